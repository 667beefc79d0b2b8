"""The message store as its users see it: open, append, get, wait until durable, stop.

Ties log, queues, index, dispatch, flushing and recovery together, each of which lives in its own module. Must never
know of the network, nor of what messages mean.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.config import StoreSettings
from mqbroker.store.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from mqbroker.store.commitlog import Appended, CommitLog, NewMessage
from mqbroker.store.consumequeue import ConsumeQueues
from mqbroker.store.disk import IDisk, ILockedFile, IMappedFile
from mqbroker.store.dispatch import Dispatcher, DispatchListener, parse_delay_levels
from mqbroker.store.flush import CacheFlusher, LogFlusher
from mqbroker.store.index import Index, IndexFile
from mqbroker.store.logscan import Damage, Scanned, scan_at
from mqbroker.store.pull import GetResult, Reader
from mqbroker.store.queries import find_by_key, offset_by_time, store_timestamp_at
from mqbroker.store.recovery import Recovered, Segments, last_timestamp, load_segments, recover
from mqbroker.store.segment import SegmentSource
from mqbroker.store.worker import IWorker

#: The index is synced on every so many-th flush of the consume queues: its writes are scattered.
INDEX_EVERY = 10
_DAMAGES_MAX = 1000


@attrs.frozen
class StoreStats:
    """Offsets in bytes of the log."""

    log_min_offset: int
    log_end: int
    flushed: int
    dispatched: int
    indexed: int
    flushes: int
    damages: int


class MessageStore:
    """A store that is open. Made by `open_store`; `start` sets it to work, `stop` ends it."""

    log = Logger()

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        dispatcher: Dispatcher,
        log_flusher: LogFlusher,
        reader: Reader,
        files: StoreFiles,
    ) -> None:
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._log_flusher = log_flusher
        self._reader = reader
        self._files = files
        self._is_stopped = False
        #: Hot: the log's own function.
        self.append: Callable[[Sequence[NewMessage]], list[Appended]] = commit_log.append
        #: Called with topic, queue id, next offset, tags code (None for several) and store timestamp (ms) once for
        #: each queue that got messages in a turn, after they can be got.
        self.on_dispatch: list[DispatchListener] = dispatcher.listeners

    # Life

    def start(self) -> None:
        self._dispatcher.start()
        self._log_flusher.start()
        self._files.start()

    def stop(self) -> Deferred[None]:
        """Bring everything to the disk, close it and release the lock.

        Fires in any case; when something could not be written, the store recovers at the next start.
        """
        if self._is_stopped:
            return succeed(None)
        self._is_stopped = True
        self._dispatcher.stop()
        stopped = maybeDeferred(self._log_flusher.stop)
        stopped.addCallback(lambda _: self._dispatcher.catch_up())
        stopped.addCallback(lambda _: self._dispatcher.index_all())
        stopped.addCallback(lambda _: self._files.stop())
        stopped.addErrback(lambda failure: self.log.failure("the store did not stop cleanly", failure))
        stopped.addCallback(lambda _: self._close())
        return stopped

    def _close(self) -> Deferred[None]:
        closed = self._files.close()
        self._commit_log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        return closed.addBoth(lambda _: self._files.lock.release())

    # Writing

    @property
    def writable(self) -> bool:
        return not self.why_unwritable

    @property
    def why_unwritable(self) -> str:
        """Why messages are refused; empty where they are not."""
        return self._commit_log.why_stopped or self._commit_log.why_full

    def durable(self, end: int) -> Deferred[None]:
        """Fires when the log is on the disk below `end`, a physical offset.

        Fails with StoreUnwritable when syncing failed, with FlushTimedOut after syncFlushTimeout.
        """
        return self._log_flusher.durable(end)

    def dispatch_now(self) -> None:
        """Make what was appended so far available to `get`, without waiting for the next turn."""
        self._dispatcher.catch_up()

    # Reading

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        tags_codes: AbstractSet[int] | None = None,
    ) -> GetResult:
        """Messages of a queue from `offset` on, at least one however large, filtered by tags codes where given."""
        queue = self._queues.by_name.get((topic, queue_id))
        return self._reader.get(queue, offset, max_count, max_bytes, tags_codes)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.by_name.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset the next message will have that can be got: those not dispatched yet do not count."""
        queue = self._queues.by_name.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the message stored nearest to a time; 0 where the queue holds none."""
        queue = self._queues.by_name.get((topic, queue_id))
        return offset_by_time(self._commit_log, queue, timestamp_ms) if queue is not None else 0

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at `offset` was stored, ms; -1 where there is none."""
        queue = self._queues.by_name.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return -1
        return store_timestamp_at(self._commit_log, queue.entry(offset)[0])

    def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored, ms; -1 where there is none."""
        return self.store_timestamp(topic, queue_id, self.min_offset(topic, queue_id))

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the message at `offset` of a queue stands in the log; -1 where there is none."""
        queue = self._queues.by_name.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return -1
        return queue.entry(offset)[0]

    def read_record(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The record at an offset of the log, checked; None where none stands there, or one of another size."""
        found = self._commit_log.view(physical_offset)
        if found is None:
            return None
        view, at = found
        item = scan_at(view, at, physical_offset)
        if not isinstance(item, Scanned) or size not in (None, item.size):
            return None
        return bytes(view[at : at + item.size])

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes of the log from `offset` on, up to the end of its segment: what replication sends."""
        found = self._commit_log.view(offset)
        if found is None:
            return memoryview(b"")
        view, at = found
        return view[at : min(at + max_bytes, len(view), at + self._commit_log.end - offset)]

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of a topic by unique key or key, newest first, stored between two times."""
        if self._index is None:
            return []
        self._dispatcher.index_piled()
        return find_by_key(self._commit_log, self._index, topic, key, max_count, begin_ms, end_ms)

    @property
    def log_min_offset(self) -> int:
        return self._commit_log.min_offset

    @property
    def log_end(self) -> int:
        return self._commit_log.end

    @property
    def flushed(self) -> int:
        """All of the log below this offset is on the disk."""
        return self._log_flusher.flushed

    @property
    def index_end(self) -> tuple[int, int]:
        """Store timestamp (ms) and physical offset of the newest message the index knows."""
        return (self._index.end_ms, self._index.end_offset) if self._index is not None else (0, 0)

    @property
    def damages(self) -> Sequence[Damage]:
        """Ranges of the log found to hold no record."""
        return self._files.damages

    @property
    def stats(self) -> StoreStats:
        return StoreStats(
            log_min_offset=self._commit_log.min_offset,
            log_end=self._commit_log.end,
            flushed=self._log_flusher.flushed,
            dispatched=self._dispatcher.offset,
            indexed=self._index.offset if self._index is not None else 0,
            flushes=self._log_flusher.flushes,
            damages=len(self._files.damages),
        )


@attrs.frozen
class StorePaths:
    """Where things are, as in the Java broker."""

    root: str
    commit_log: str

    @property
    def consume_queues(self) -> str:
        return os.path.join(self.root, "consumequeue")

    @property
    def index(self) -> str:
        return os.path.join(self.root, "index")

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.root, "checkpoint")

    @property
    def abort(self) -> str:
        return os.path.join(self.root, "abort")

    @property
    def lock(self) -> str:
        return os.path.join(self.root, "lock")


class StoreFiles:
    """Keeps checkpoint and abort file true: what was synced, and whether the store was stopped."""

    log = Logger()

    def __init__(
        self,
        disk: IDisk,
        paths: StorePaths,
        lock: ILockedFile,
        source: SegmentSource,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self.lock = lock
        self._source = source
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._is_broken = False
        self.damages: list[Damage] = []
        self._flusher: CacheFlusher | None = None
        self._progress: Callable[[], Checkpoint] = lambda: checkpoint

    def follow(
        self, flusher_of: Callable[[SnapshotFunction], CacheFlusher], progress: Callable[[], Checkpoint]
    ) -> None:
        """Make the flusher; `progress` says how far log, queues and index are."""
        self._progress = progress
        self._flusher = flusher_of(self._snapshot)

    def add_damage(self, damage: Damage) -> None:
        self.log.error(
            "{path}: no record from offset {start} to {end} of the log: {why}",
            path=damage.path, start=damage.start, end=damage.end, why=damage.why,
        )  # fmt: skip
        if len(self.damages) < _DAMAGES_MAX and damage not in self.damages:
            self.damages.append(damage)

    def start(self) -> None:
        if self._flusher is not None:
            self._flusher.start()

    def _snapshot(self, with_index: bool) -> tuple[Callable[[], None], Callable[[], None]] | None:
        now = self._progress()
        if not with_index:
            former = self._checkpoint
            now = attrs.evolve(now, index_ms=former.index_ms, index_offset=former.index_offset)
        if self._is_broken or now == self._checkpoint:
            return None
        mapped = self._queues.take_unsynced()
        if with_index and self._index is not None:
            mapped += self._index.take_unsynced()
        self._is_broken = True  # until it is done: what was taken and not synced must never be covered

        def work() -> None:
            for file in mapped:
                file.sync()
            self._disk.write(self._paths.checkpoint, encode_checkpoint(now))

        def then() -> None:
            self._is_broken = False
            self._checkpoint = now

        return work, then

    def stop(self) -> Deferred[None]:
        """Sync what is left and note that the store was stopped; fails where that cannot be."""
        assert self._flusher is not None
        done = self._flusher.stop()
        done.addCallback(lambda _: self._note_clean_stop())
        return done

    def _note_clean_stop(self) -> None:
        if not self._is_broken:
            self._disk.remove(self._paths.abort)
            self._disk.sync_directory(self._paths.root)

    def close(self) -> Deferred[None]:
        return self._source.stop()


SnapshotFunction = Callable[[bool], "tuple[Callable[[], None], Callable[[], None]] | None"]


def open_store(
    settings: StoreSettings, *, disk: IDisk, clock: IReactorTime, worker: IWorker, store_host: bytes
) -> MessageStore:
    """Open the store directory, recover it where it was not stopped, and bring consume queues up to date.

    :param store_host: 8 or 20 bytes, the broker's address as records keep it.
    Raises StoreLocked, StoreDamaged, and OSError where the disk refuses; then nothing is left open.
    """
    paths = StorePaths(settings.store_path_root_dir, settings.store_path_commit_log)
    disk.make_directories(paths.root)
    lock = disk.lock(paths.lock)
    try:
        return _Opening(settings, paths, disk, clock, worker, store_host, lock).open()
    except BaseException:
        lock.release()
        raise


@attrs.frozen
class _Opening:
    """The steps of opening a store."""

    settings: StoreSettings
    paths: StorePaths
    disk: IDisk
    clock: IReactorTime
    worker: IWorker
    store_host: bytes
    lock: ILockedFile

    log = Logger()

    def open(self) -> MessageStore:
        settings, disk, paths = self.settings, self.disk, self.paths
        delay_levels_ms = parse_delay_levels(settings.message_delay_level)
        abort = disk.read(paths.abort) if disk.exists(paths.abort) else None
        is_clean = abort is None
        # A killed process, unlike a machine, takes nothing with it that was stored in a mapped file.
        is_intact = is_clean or abort == disk.boot_id() != b""
        disk.make_directories(paths.commit_log)
        segments = load_segments(disk, paths.commit_log, settings.mapped_file_size_commit_log)
        queues = ConsumeQueues(disk, paths.consume_queues, settings.mapped_file_size_consume_queue)
        queues.load()
        checkpoint = decode_checkpoint(disk.read(paths.checkpoint)) if disk.exists(paths.checkpoint) else Checkpoint()
        recovered = recover(segments, queues, checkpoint, is_clean=is_clean)
        self.log.info(
            "{root}: last stopped {how}, the log ends at {end}, consume queues are built from {start}",
            root=paths.root, how="normally" if is_clean else "abnormally",
            end=recovered.end, start=recovered.rebuild_from,
        )  # fmt: skip
        # From here on files change: a crash from now on must be recovered from.
        disk.write(paths.abort, disk.boot_id())
        source = SegmentSource(disk, self.worker, paths.commit_log, settings.mapped_file_size_commit_log)
        commit_log = self._open_log(segments, recovered, source, queues, is_clean)
        commit_log.last_timestamp_ms = max(
            recovered.last_timestamp_ms, last_timestamp(segments, queues, recovered.rebuild_from)
        )
        index = self._open_index(checkpoint, commit_log, is_clean, is_intact) if settings.message_index_enable else None
        files = StoreFiles(disk, paths, self.lock, source, queues, index, checkpoint)
        for damage in recovered.damages:
            files.add_damage(damage)
        dispatcher = Dispatcher(
            commit_log, queues, index, self.clock, delay_levels_ms, recovered.rebuild_from, files.add_damage
        )
        dispatcher.last_timestamp_ms = checkpoint.queues_ms
        dispatcher.catch_up()
        for queue in queues:
            queue.correct_min(commit_log.min_offset)
            queue.next_offset = queue.max_offset
        flusher = LogFlusher(
            commit_log,
            self.clock,
            self.worker,
            settings.flush_interval_commit_log_ms,
            settings.sync_flush_timeout_ms,
            recovered.end if is_clean else max(segments.first_offset, min(recovered.end, checkpoint.log_offset or 0)),
        )
        flusher.flushed_ms = checkpoint.log_ms
        files.follow(
            lambda snapshot: CacheFlusher(
                self.clock, self.worker, settings.flush_interval_consume_queue_ms, INDEX_EVERY, snapshot
            ),
            _progress_of(flusher, dispatcher, index),
        )
        reader = Reader(commit_log, settings, disk.memory_bytes())
        return MessageStore(commit_log, queues, index, dispatcher, flusher, reader, files)

    def _open_log(
        self,
        segments: Segments,
        recovered: Recovered,
        source: SegmentSource,
        queues: ConsumeQueues,
        is_clean: bool,
    ) -> CommitLog:
        files = list(segments.files)
        size = segments.segment_bytes
        end = recovered.end
        if not files or end == segments.end:  # the first segment, or one after a full last one
            files.append(source.take(segments.end))
        else:
            active = (end - segments.first_offset) // size
            self._end_at(files[active], (end - segments.first_offset) % size, is_clean)
            for i in range(active + 1, len(files)):
                self._keep_or_remove(files[i], segments.first_offset + i * size, source, is_clean)
            del files[active + 1 :]
        return CommitLog(
            files, segments.first_offset, end, source, queues, lambda: int(self.clock.seconds() * 1000), self.store_host
        )

    def _end_at(self, active: IMappedFile, at: int, is_clean: bool) -> None:
        """Make sure of zeros above the end, or an old record there could be taken for a new one after a crash."""
        if not is_clean or any(active.view[at : at + 64]):
            active.clear_from(at)
        active.allocate(0, active.size)

    def _keep_or_remove(self, file: IMappedFile, offset: int, source: SegmentSource, is_clean: bool) -> None:
        if is_clean and not any(file.view[:64]):
            file.allocate(0, file.size)
            source.adopt(offset, file)
        else:
            file.close()
            self.disk.remove(file.path)

    def _open_index(self, checkpoint: Checkpoint, commit_log: CommitLog, is_clean: bool, is_intact: bool) -> Index:
        settings = self.settings
        index = Index(self.disk, self.paths.index, settings.max_hash_slot_num, settings.max_index_num, self._index_name)
        index.load()
        index.keep_files(lambda file: _is_good_index(file, checkpoint, commit_log.end, is_intact))
        indexed = checkpoint.index_offset if is_clean else None
        if index.files:
            index.resume(is_clean)
        elif checkpoint.index_ms:
            indexed = None  # there were files
        index.offset = max(index.offset, indexed or 0, commit_log.min_offset)
        return index

    def _index_name(self, ahead_ms: int) -> str:
        now_ms = int(self.clock.seconds() * 1000) + ahead_ms
        return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


def _is_good_index(file: IndexFile, checkpoint: Checkpoint, log_end: int, is_intact: bool) -> bool:
    """Whether an index file can be relied on: after the machine stopped only one that was full and synced."""
    if file.end_offset >= log_end or is_intact:
        return file.end_offset < log_end
    if checkpoint.index_offset is not None:
        return file.is_full and file.end_offset < checkpoint.index_offset
    return file.is_full and file.end_ms <= checkpoint.index_ms


def _progress_of(flusher: LogFlusher, dispatcher: Dispatcher, index: Index | None) -> Callable[[], Checkpoint]:
    def progress() -> Checkpoint:
        return Checkpoint(
            log_ms=flusher.flushed_ms,
            queues_ms=dispatcher.last_timestamp_ms,
            index_ms=index.end_ms if index is not None else 0,
            log_offset=flusher.flushed,
            queues_offset=dispatcher.offset,
            index_offset=index.offset if index is not None else 0,
        )

    return progress
