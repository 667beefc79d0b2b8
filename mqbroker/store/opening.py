"""Opening of a store directory, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.config import FlushDiskType, StoreSettings
from mqbroker.store.checkpoint import (
    Checkpoint,
    CheckpointFile,
    decode_checkpoint,
    put_ends_aside,
    read_ends,
    read_former_ends,
)
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeue_entry import QueueEnd
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import IDisk, ILockedFile, IMappedFile, read_before_touch
from mqbroker.store.disk_watch import DiskWatch, RoomLimits
from mqbroker.store.dispatch import Dispatcher, has_keys_between
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.entry_repair import EntryRepair
from mqbroker.store.flush import CacheFlusher, LogFlusher, SyncWatchdog
from mqbroker.store.index import Index
from mqbroker.store.index_file import IndexFile, is_good_after
from mqbroker.store.layout import StorePaths, make_durable_directories, remove_last_first, remove_unfinished_segments
from mqbroker.store.log_scrub import LogScrub
from mqbroker.store.logscan import Damage
from mqbroker.store.message_reader import Reader
from mqbroker.store.multi_dispatch import MultiAppender, MultiQueues
from mqbroker.store.page_loader import FailedReads, PageLoader
from mqbroker.store.queue_rebuild import QueueRebuild, align_extensions
from mqbroker.store.recovery import (
    Recovered,
    Segments,
    Start,
    cut_queues,
    ends_well,
    find_lacking,
    find_start,
    is_whole,
    last_timestamp,
    load_segments,
    read_back,
    refuse_later,
    refuse_lost_log,
    store_found_again,
)
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.store.retention import CacheCleaner, LogCleaner, Remover, Retention, RetentionRules
from mqbroker.store.segment import SegmentSource, is_full_disk, why_full
from mqbroker.store.statistics import StoreStatistics
from mqbroker.store.stepwise import Steps
from mqbroker.store.store_files import StoreFiles
from mqbroker.store.syncs import ISyncs
from mqbroker.store.tags_codes import TagsCodes, parse_delay_levels
from mqbroker.store.topic_removal import (
    RemovedQueues,
    TopicRemover,
    empty_trash,
    finish_removals,
    lower_numbers,
    restore_next_offsets,
)
from mqbroker.store.transient import TransientRules, TransientStore
from mqbroker.store.worker import IWorker
from mqbroker.wire.record import RECORD_BYTES_MIN, NewMessage

#: The index is synced on every n-th flush of the consume queues: its writes are scattered.
INDEX_EVERY = 10


@attrs.frozen
class Parts:
    """The parts of an open store. `append` is the log's, or a wrapper of it."""

    append: Callable[[Sequence[NewMessage]], list[Appended]]
    commit_log: CommitLog
    queues: ConsumeQueues
    index: Index | None
    cq_dispatcher: ConsumeQueueDispatcher
    dispatcher: Dispatcher
    log_flusher: LogFlusher
    sync_watch: SyncWatchdog
    statistics: StoreStatistics
    reader: Reader
    page_loader: PageLoader
    failed_reads: FailedReads
    entry_repair: EntryRepair
    files: StoreFiles
    scrub: LogScrub
    transient: TransientStore | None
    retention: Retention
    remover: TopicRemover


@attrs.frozen
class _Found:
    """The content of a directory. `is_clean`: the store was stopped cleanly; `is_intact`: nothing that a process stored
    was lost."""

    is_clean: bool
    is_intact: bool
    checkpoint: Checkpoint
    kept: CheckpointFile
    segments: Segments
    queues: ConsumeQueues
    removed: RemovedQueues
    ends: Mapping[tuple[str, int], QueueEnd]


@attrs.frozen
class _Cut:
    """The log is read from `start`; consume queues are trusted below `trusted` and rebuilt from `rebuild_from`.

    lost: first offsets of queues that the log has nothing of. known: where rebuilt queues ended; None if none lacks
    entries. known_ms: the newest known store time.
    """

    start: Start
    trusted: int
    rebuild_from: int
    lost: Mapping[ConsumeQueue, int]
    known: dict[ConsumeQueue, int] | None
    known_ms: int


@attrs.frozen
class _OpenLog:
    commit_log: CommitLog
    source: SegmentSource
    transient: TransientStore | None
    last_ms: int


@attrs.frozen
class Opening:
    """The steps of opening a store."""

    settings: StoreSettings
    paths: StorePaths
    disk: IDisk
    clock: IReactorTime
    worker: IWorker
    log_syncs: ISyncs
    store_host: bytes
    lock: ILockedFile

    log = Logger()

    def steps(self) -> Steps[Parts]:
        """Open, recover and rebuild what is missing. Raises StoreDamaged and OSError; on errors, and if it is ended
        early, nothing is left open."""
        with ExitStack() as opened:
            parts = yield from self._open(opened)
            opened.pop_all()
        return parts

    def _open(self, opened: ExitStack) -> Steps[Parts]:
        found = yield from self._load(opened)
        segments, queues, kept, checkpoint = found.segments, found.queues, found.kept, found.checkpoint
        cut = yield from self._cut(found)
        misplaced: list[Damage] = []
        tags_codes = TagsCodes(parse_delay_levels(self.settings.message_delay_level))
        cq = ConsumeQueueDispatcher(segments, queues, tags_codes, misplaced.append, self._multi_queues(queues))
        builder = QueueRebuild(cq, queues, kept, self.disk, cut.rebuild_from, cut.known is not None)
        # Queues must first be completed from the log below.
        is_taken = cut.rebuild_from == cut.start.offset
        recovered = yield from read_back(segments, cut.start, builder.enter if is_taken else lambda run: None)
        self._say_found(segments, recovered, cut.rebuild_from, found.is_clean)
        if not found.is_clean:
            store_found_again(self.disk, segments, recovered.end, kept, found.is_intact)
        lower_numbers(queues, found.removed, recovered.end)
        log = self._open_log(found, recovered, cut.known_ms, opened)
        commit_log = log.commit_log
        index = self._open_index(found, commit_log) if self.settings.message_index_enable else None
        if index is not None:
            opened.callback(index.close)
            kept.forget_index_above(index.offset, index.end_ms)
        corrupt = CorruptRanges(commit_log.end)
        files = StoreFiles(self.disk, self.paths, self.lock, log.source, queues, index, kept, corrupt, found.removed)
        for damage in recovered.corrupt_ranges + misplaced:
            files.add_damage_at_open(damage)
        cq.look_at(commit_log, files.add_damage)
        statistics = StoreStatistics(self.clock.seconds, self.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH)
        dispatcher = Dispatcher(
            commit_log,
            queues,
            index,
            cq,
            self.clock,
            recovered.end if is_taken else cut.rebuild_from,
            files.add_damage,
            statistics,
            self._why_not_dispatched,
        )
        yield from self._build_queues(builder, dispatcher, commit_log, cut.rebuild_from, cut.lost)
        if cut.known is not None:
            self._say_built(queues, cut.known, cut.trusted)
        ends = found.ends or read_former_ends(self.disk, self.paths.queue_ends)
        self._restore_next_offsets(queues, found.removed, ends, recovered.end)
        cq.last_timestamp_ms = max(checkpoint.queues_ms, cq.last_timestamp_ms)
        if not found.is_intact:  # not before what a crash may have lost is rebuilt
            self.disk.write(self.paths.abort, self.disk.boot_id())
        durable = recovered.end if found.is_clean else min(recovered.end, checkpoint.log_offset or 0)
        flusher = self._make_flusher(log, max(segments.first_offset, durable), statistics, files)
        flusher.flushed_ms = log.last_ms if durable == recovered.end else checkpoint.log_ms
        return self._make_parts(log, queues, found.removed, cq, dispatcher, flusher, index, files, statistics)

    def _load(self, opened: ExitStack) -> Steps[_Found]:
        """Load the directory. Refuses a store that needs a person's decision before any of it is cut."""
        settings, disk, paths = self.settings, self.disk, self.paths
        abort = disk.read(paths.abort) if disk.exists(paths.abort) else None
        is_clean = abort is None
        # A killed process, unlike a crashed machine, loses nothing that was stored in a mapped file.
        is_intact = is_clean or abort == disk.boot_id() != b""
        checkpoint_data, checkpoint = self._read_checkpoint(abort)
        remove_unfinished_segments(disk, paths.commit_log, checkpoint.log_offset)
        segments = load_segments(disk, paths.commit_log, settings.mapped_file_size_commit_log)
        for file in segments.files:
            opened.callback(file.close)
        ext = (paths.consume_queues_ext, settings.mapped_file_size_consume_queue_ext)
        queues = ConsumeQueues(
            disk,
            paths.consume_queues,
            settings.mapped_file_size_consume_queue,
            ext if settings.enable_consume_queue_ext else None,
        )
        opened.callback(queues.close)
        removed = RemovedQueues(disk, paths.removed_queues, queues)
        removed.load()
        empty_trash(disk, queues.roots)
        ends = read_ends(disk, paths.queue_ends, checkpoint_data) if is_clean else {}
        yield from queues.load(is_clean, is_intact, ends)
        refuse_lost_log(segments, queues, bool(disk.names(paths.index)), checkpoint, is_intact)
        # Not earlier: a person may move a lost log to where this directory would be in the way.
        make_durable_directories(disk, paths.commit_log)
        finish_removals(queues, removed, disk, lambda queue: ends_well(segments, queue, is_clean=False))
        if is_clean:  # from here on files change
            disk.write(paths.abort, disk.boot_id())
        kept = CheckpointFile(disk, paths.checkpoint, checkpoint)
        refuse_later(segments, queues)
        self._sync_checkpoint(abort, checkpoint_data)
        put_ends_aside(disk, paths.queue_ends)
        return _Found(abort is None, is_intact, checkpoint, kept, segments, queues, removed, ends)

    def _cut(self, found: _Found) -> Steps[_Cut]:
        """Find the offset from which the log is read again, and truncate consume queues above what is known to be
        good."""
        segments, queues, kept, checkpoint = found.segments, found.queues, found.kept, found.checkpoint
        is_clean, is_intact = found.is_clean, found.is_intact
        start = find_start(segments, queues, checkpoint, is_clean, is_intact)
        kept.forget_queues_above(start.offset, start.tally)
        lost = yield from cut_queues(segments, queues, start.offset, is_clean and not start.queues_lack)
        known: dict[ConsumeQueue, int] | None = None
        trusted = start.offset
        if lost or start.queues_lack or not (is_clean or is_whole(queues, checkpoint, trusted)):
            # The entries of the other queues are skipped.
            start = attrs.evolve(start, offset=find_lacking(segments, queues, found.ends, trusted))
            # Not from there: if this start ends early, nothing records what queues should have there.
            kept.forget_queues_above(segments.first_offset)
            known = {queue: queue.max_offset for queue in queues}
            self._say_lacking(start.offset, trusted)
        known_ms = last_timestamp(
            segments, queues, start.offset
        )  # before entries are cut whose messages are not read again
        rebuild_from = align_extensions(queues, segments.first_offset, start.offset, kept.forget_queues_above)
        if known is None:
            kept.note_cut(rebuild_from, queues.tally())
        queues.note_cuts(is_clean)
        return _Cut(start, trusted, rebuild_from, lost, known, known_ms)

    def _make_flusher(self, log: _OpenLog, durable: int, statistics: StoreStatistics, files: StoreFiles) -> LogFlusher:
        settings = self.settings
        flusher = LogFlusher(
            log.commit_log,
            self.clock,
            self.log_syncs,
            log.source,
            settings.flush_interval_commit_log_ms,
            settings.sync_flush_timeout_ms,
            durable,
            statistics.durable,
            files.checkpoint.note_log,
            lambda: self._mark_unlike_disk(files),
        )
        if log.transient is not None:
            log.transient.on_commit.append(flusher.wake)
        return flusher

    def _make_parts(
        self,
        log: _OpenLog,
        queues: ConsumeQueues,
        removed: RemovedQueues,
        cq: ConsumeQueueDispatcher,
        dispatcher: Dispatcher,
        flusher: LogFlusher,
        index: Index | None,
        files: StoreFiles,
        statistics: StoreStatistics,
    ) -> Parts:
        settings, disk, commit_log = self.settings, self.disk, log.commit_log
        interval_ms = settings.flush_interval_consume_queue_ms
        files.follow(
            CacheFlusher(self.clock, self.worker, interval_ms, INDEX_EVERY, files.snapshot),
            _progress_of(flusher, dispatcher, cq, index, queues),
        )
        multi = self._multi_queues(queues)
        page_loader, failed_reads = PageLoader(self.worker), FailedReads(self.clock.seconds)
        entry_repair = EntryRepair(commit_log, queues, cq, self.worker, files.add_damage)
        return Parts(
            commit_log.append if multi is None else MultiAppender(commit_log, multi).append,
            commit_log,
            queues,
            index,
            cq,
            dispatcher,
            flusher,
            SyncWatchdog(
                commit_log,
                flusher,
                self.clock,
                (settings.flush_interval_commit_log_ms + settings.unsynced_age_max_ms) / 1000,
            ),
            statistics,
            Reader(
                commit_log,
                queues,
                settings,
                disk.memory_bytes(),
                files.corrupt_ranges,
                files.add_damage,
                page_loader,
                failed_reads,
                entry_repair,
                ResidentPages(commit_log, self.clock.seconds),
            ),
            page_loader,
            failed_reads,
            entry_repair,
            files,
            self._make_scrub(commit_log, flusher, files),
            log.transient,
            self._make_retention(commit_log, queues, index, files),
            TopicRemover(
                queues,
                removed,
                disk,
                self.worker,
                files.note_removal,
                lambda: (commit_log.min_offset, commit_log.end),
                lambda: cq.has_pending,
            ),
        )

    def _make_scrub(self, log: CommitLog, flusher: LogFlusher, files: StoreFiles) -> LogScrub:
        path, add = self.paths.segments, files.add_damage
        return LogScrub(log, lambda: flusher.flushed, self.disk, path, self.worker, self.clock, add)

    def _make_retention(
        self, commit_log: CommitLog, queues: ConsumeQueues, index: Index | None, files: StoreFiles
    ) -> Retention:
        settings, disk, worker, paths = self.settings, self.disk, self.worker, self.paths

        def safe_end() -> int:
            return files.synced_end if index is None else min(files.synced_end, index.offset)

        remover = Remover(disk, self.clock.seconds, settings.redelete_hanged_file_interval_ms / 1000)
        watched = (paths.commit_log, paths.consume_queues, paths.index)
        return Retention(
            self.clock,
            RetentionRules.of(settings),
            DiskWatch(commit_log, disk, worker, watched, RoomLimits.of(settings)),
            LogCleaner(commit_log, remover, disk, worker, safe_end),
            CacheCleaner(queues, index, remover, worker, files.run_alone),
        )

    def _mark_unlike_disk(self, files: StoreFiles) -> None:
        files.is_log_failed = True
        marked = self.worker.run(files.mark_unlike_disk)
        marked.addErrback(lambda failure: self.log.failure("{path} cannot be written", failure, path=self.paths.abort))

    def _read_checkpoint(self, abort: bytes | None) -> tuple[bytes, Checkpoint]:
        disk, paths = self.disk, self.paths
        if abort is not None:  # a killed process may have created names here without syncing them
            disk.sync_directory(paths.root)
        data = disk.read(paths.checkpoint) if disk.exists(paths.checkpoint) else b""
        if data.strip(b"\0"):
            return data, decode_checkpoint(data)
        if abort:  # an mqbroker that ended before there was a checkpoint, or while the first was being written
            return data, Checkpoint(log_offset=0, queues_offset=0)
        return data, Checkpoint()

    def _sync_checkpoint(self, abort: bytes | None, data: bytes) -> None:
        # A checkpoint that a killed process wrote without syncing could revert to an older one, which promises more.
        if abort is not None and data:
            self.disk.write(self.paths.checkpoint, data)

    def _say_found(self, segments: Segments, recovered: Recovered, rebuild_from: int, is_clean: bool) -> None:
        if is_clean and not segments.files and segments.unfinished is None:
            self.log.info("{root}: there is no log yet, a new one is created", root=self.paths.root)
            return
        self.log.info(
            "{root}: last stopped {how}; the log goes from {first} to {end} in {files} files, {read} bytes of it "
            "were read, {corrupt_ranges} ranges hold no record; consume queues are built from {start}",
            root=self.paths.root, how="normally" if is_clean else "abnormally", first=segments.first_offset,
            files=len(segments.files), end=recovered.end, read=recovered.read_bytes,
            corrupt_ranges=len(recovered.corrupt_ranges), start=rebuild_from,
        )  # fmt: skip

    def _say_lacking(self, start: int, trusted: int) -> None:
        self.log.warn(
            "{root}: consume queues lost entries that they had when the broker stopped: they are rebuilt from the "
            "log, from {start} to {end}",
            root=self.paths.root, start=start, end=trusted,
        )  # fmt: skip

    def _restore_next_offsets(
        self, queues: ConsumeQueues, removed: RemovedQueues, ends: Mapping[tuple[str, int], QueueEnd], log_end: int
    ) -> None:
        former = {key: end.max_offset for key, end in ends.items()}
        for topic, queue_id in restore_next_offsets(queues, removed, former, log_end):
            self.log.warn(
                "{topic}, queue {queue_id}: its files are lost, and the log has none of its messages; it continues "
                "at offset {n}",
                topic=topic, queue_id=queue_id, n=removed.table[topic, queue_id].next_offset,
            )  # fmt: skip

    def _say_built(self, queues: ConsumeQueues, known: Mapping[ConsumeQueue, int], trusted: int) -> None:
        """Log how many queues lacked entries of messages below `trusted` in the log; they ended at `known`."""
        count = 0
        for queue in queues:
            before = max(known.get(queue, 0), queue.first_offset)
            count += before < queue.max_offset and queue.entry_from_disk(before)[0] < trusted
        self.log.warn(
            "{root}: missing entries of {count} of {all} consume queues were rebuilt",
            root=self.paths.root, count=count, all=len(queues.by_name),
        )  # fmt: skip

    def _multi_queues(self, queues: ConsumeQueues) -> MultiQueues | None:
        settings = self.settings
        if not settings.enable_multi_dispatch:
            return None
        return MultiQueues(queues, settings.enable_lmq, settings.max_lmq_consume_queue_num)

    def _build_queues(
        self,
        builder: QueueRebuild,
        dispatcher: Dispatcher,
        commit_log: CommitLog,
        rebuild_from: int,
        lost: Mapping[ConsumeQueue, int],
    ) -> Steps[None]:
        """Dispatch what consume queues lack, and set the next offset of each."""
        yield from builder.catch_up(dispatcher, commit_log)
        if builder.cq_dispatcher.gaps and rebuild_from > commit_log.min_offset:
            self.log.warn("{root}: messages are missing in consume queues, all are rebuilt", root=self.paths.root)
            builder.checkpoint.forget_queues_above(commit_log.min_offset)
            lost = {**lost, **dispatcher.restart(commit_log.min_offset)}
            yield from builder.catch_up(dispatcher, commit_log)
        for queue, first in lost.items():  # not below, if the log has no message of it any more
            first = min(first, commit_log.end // RECORD_BYTES_MIN)
            if queue.max_offset < first:
                queue.skip_to(first)
                builder.queues.dirty[queue] = None
        for queue in builder.queues:
            queue.clear_kept()
            for path in queue.correct_min(commit_log.min_offset):
                self.disk.remove(path)
            queue.go_on_numbering()

    def _why_not_dispatched(self, error: OSError) -> str:
        if not is_full_disk(error):
            return str(error)
        return why_full(self.disk, self.paths.root, "messages that are in no consume queue cannot be read", error)

    def _open_log(self, found: _Found, recovered: Recovered, known_ms: int, opened: ExitStack) -> _OpenLog:
        settings, checkpoint = self.settings, found.checkpoint
        source = SegmentSource(
            self.disk,
            self.worker,
            self.paths.commit_log,
            settings.mapped_file_size_commit_log,
            settings.warm_maped_file_enable,
        )
        last_ms = max(
            recovered.last_timestamp_ms,
            known_ms,
            checkpoint.log_ms if checkpoint.log_offset is not None else 0,  # half messages are in no queue
        )
        rules = TransientRules.of(settings)
        transient = (
            TransientStore(self.disk, self.worker, self.clock, rules, recovered.end, last_ms)
            if rules is not None
            else None
        )
        commit_log = CommitLog(
            self._end_log(found.segments, recovered.end, source, found.is_clean),
            found.segments.first_offset,
            recovered.end,
            source,
            found.queues,
            lambda: int(self.clock.seconds() * 1000),
            self.store_host,
            transient,
        )
        opened.callback(commit_log.close)
        if not found.is_clean:
            # What was truncated could come back in another crash, behind new entries.
            commit_log.segments[-1].sync()
            self.disk.sync_directory(self.paths.commit_log)
            commit_log.doubtful_end = recovered.end  # as far as is known
        found.kept.forget_log_above(recovered.end)
        commit_log.last_timestamp_ms = last_ms
        return _OpenLog(commit_log, source, transient, last_ms)

    def _end_log(self, segments: Segments, end: int, source: SegmentSource, is_clean: bool) -> list[IMappedFile]:
        """The files of the log, cleared behind its `end`."""
        if segments.unfinished is not None:
            self.disk.remove(segments.unfinished)
        files = list(segments.files)
        size = segments.segment_bytes
        if not files or end == segments.end:  # the first segment, or one after a full last one
            files.append(source.acquire(segments.end))
        else:
            active = (end - segments.first_offset) // size
            self._end_at(files[active], (end - segments.first_offset) % size)
            self._close_later(files[active + 1 :], segments.first_offset + (active + 1) * size, source, is_clean)
            del files[active + 1 :]
        return files

    def _end_at(self, active: IMappedFile, at: int) -> None:
        """Clear the log above its end: an old record there could be taken for a new one after a crash.

        Pages of zeros on disk are deallocated too: they would have to be read before they are written."""
        if at:
            read_before_touch(active, at - 1, 1)
        active.clear_from(at)
        active.allocate(0, active.size)

    def _close_later(self, files: Sequence[IMappedFile], offset: int, source: SegmentSource, is_clean: bool) -> None:
        """Remove the segments from `offset` on, which is above the end of the log, except a preallocated one."""
        is_ahead = is_clean and len(files) > 0
        for file in files[is_ahead:]:
            file.close()
        remove_last_first(self.disk, [file.path for file in files[is_ahead:]])
        if is_ahead:
            files[0].clear_from(0)  # as all above the end; Java's broker leaves records there
            files[0].allocate(0, files[0].size)
            source.adopt(offset, files[0])

    def _open_index(self, found: _Found, commit_log: CommitLog) -> Index:
        settings, checkpoint, is_clean = self.settings, found.checkpoint, found.is_clean
        index = Index(self.disk, self.paths.index, settings.max_hash_slot_num, settings.max_index_num, self._index_name)
        index.load()
        is_noted = is_clean and checkpoint.index_offset is not None
        files = list(index.files)
        is_other = is_noted and index.end_ms != checkpoint.index_ms

        def is_good(file: IndexFile) -> bool:
            if is_other and file is files[-1]:
                return False
            if not is_good_after(file, checkpoint, commit_log.end, found.is_intact):
                return False
            number = files.index(file)
            before = files[number - 1].end_offset if number else -1
            return not (file.has_entries and has_keys_between(commit_log, before, file.begin_offset))

        index.keep_files(is_good)
        if len(index.files) < len(files):
            first = files[len(index.files)].file.path
            self.log.warn("{path} and later index files are unreliable and are rebuilt", path=first)
        indexed = checkpoint.index_offset if is_noted and not is_other and index.files == files else None
        if index.files:
            index.resume(is_clean)
            newest, entries = index.resumed
            if indexed is not None and has_keys_between(commit_log, newest, indexed, entries):
                indexed = None  # the last file is lost, and ended in the same ms as the one before
        elif checkpoint.index_ms:
            indexed = None  # there were files
        index.offset = max(index.offset, indexed or 0, commit_log.min_offset)
        return index

    def _index_name(self, ahead_ms: int) -> str:
        now_ms = int(self.clock.seconds() * 1000) + ahead_ms
        return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


def _progress_of(
    flusher: LogFlusher, dispatcher: Dispatcher, cq: ConsumeQueueDispatcher, index: Index | None, queues: ConsumeQueues
) -> Callable[[], Checkpoint]:
    def progress() -> Checkpoint:
        return Checkpoint(
            log_ms=flusher.flushed_ms,
            queues_ms=cq.last_timestamp_ms,
            index_ms=index.end_ms if index is not None else 0,
            log_offset=flusher.flushed,
            queues_offset=dispatcher.offset,
            index_offset=index.offset if index is not None else 0,
            tally=queues.tally_now() if not cq.has_pending else None,
        )

    return progress
