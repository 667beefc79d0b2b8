"""MessageStore: open, append, get, wait until durable, stop.

Connects log, queues, index, dispatch, flushing and recovery, each in its own module. Knows nothing of the network, nor
of what messages mean.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.errors import StoreUnwritable
from mqbroker.kernel import NextOffsets
from mqbroker.store.commitlog import Refusal
from mqbroker.store.consumequeue_dispatcher import BitMap, DispatchListener
from mqbroker.store.consumequeues import Removed
from mqbroker.store.disk import DiskSpace, IDisk, ILockedFile
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.layout import StorePaths, make_durable_directories, refuse_other
from mqbroker.store.logscan import Damage, Run, Scanned, scan, scan_file
from mqbroker.store.opening import Opening, Parts
from mqbroker.store.queries import ByKey, Queries
from mqbroker.store.queue_rebuild import withdraw
from mqbroker.store.raw_append import RawAppender
from mqbroker.store.raw_log import RawLog
from mqbroker.store.stepwise import ProgressLine, Steps, run_at_once, run_in_turns
from mqbroker.store.syncs import ISyncs, WorkerSyncs
from mqbroker.store.worker import IWorker
from mqbroker.wire.record import NewMessage

#: How long a slave's dispatch waits for more: its records come in many small pieces.
FOLLOWER_DISPATCH_S = 0.005


@attrs.frozen
class StoreStats:
    """Offsets in bytes of the log, times in ms, disk usage in percent (0 if not checked yet).

    `uncommitted`: bytes of the log in the transient pool only, which has `buffers_left` free buffers; None without a
    pool. `log_space`: of the log's disk; None if not checked yet. `earliest_ms`: store time of the oldest message; -1
    if there is none. `corrupt_ranges`: ranges of the log that hold no record. `rotten_entries`: consume queue entries
    that did not match their message. `why_refused`: why messages are refused other than by a slave's role; empty if
    they are not.
    """

    log_min_offset: int
    log_end: int
    flushed: int
    dispatched: int
    indexed: int
    flushes: int
    corrupt_ranges: int
    earliest_ms: int
    deleted_segments: int
    deleted_cache_files: int
    log_disk_percent: int
    queues_disk_percent: int
    is_disk_full: bool
    rotten_entries: int
    uncommitted: int
    buffers_left: int | None
    log_space: DiskSpace | None
    why_refused: str


class IEncodedLog(Protocol):
    """What appends encoded records: see `CommitLog`."""

    @property
    def end(self) -> int: ...

    def next_place(self, now_ms: int) -> tuple[int, int, int]: ...

    def append_encoded(self, data: bytes, count: int, last: int, now: int, numbers: NextOffsets) -> None: ...


class MessageStore:
    """An open store. Created by `open_store`; `start` starts its services, `stop` closes it."""

    log = Logger()

    def __init__(self, parts: Parts) -> None:
        commit_log, dispatcher = parts.commit_log, parts.dispatcher
        self._commit_log = commit_log
        self._queues = parts.queues
        self._index = parts.index
        self._cq_dispatcher = parts.cq_dispatcher
        self._dispatcher = dispatcher
        self._log_flusher = parts.log_flusher
        self._sync_watch = parts.sync_watch
        self._reader = parts.reader
        self._page_loader = parts.page_loader
        self._files = parts.files
        self._transient = parts.transient
        self._retention = parts.retention
        self._remover = parts.remover
        self._scrub = parts.scrub
        self._is_stopped = False
        #: Offset of the oldest message, and its store time, ms.
        self._earliest = (-1, -1)
        #: The log as bytes, for replication.
        self.raw_log = RawLog(commit_log, parts.reader.resident_pages, parts.page_loader)
        self.statistics = parts.statistics
        #: Messages and bytes added to each queue; cleared by the statistics.
        self.entered = parts.cq_dispatcher.entered
        #: The log's own method, unless messages may name queues (see multi_dispatch).
        self._append = parts.append
        #: Hot: queues with held pulls, and the callback for appends to them that did not go through `append`.
        self.awaited, self.appended = dispatcher.awaited, dispatcher.appended
        #: Hot: called after requests that may have appended; counted against their senders.
        self.charge = dispatcher.charge
        if parts.transient is not None:
            parts.transient.on_commit.append(dispatcher.appended)
        #: Hot: where records that are encoded already are appended, and the queues that number them.
        self.encoded_log: IEncodedLog = commit_log
        self.open_queue = parts.queues.open
        #: Hot: the reader's own methods.
        self.get, self.locate = parts.reader.get, parts.reader.locate
        self.resident_ranges, self.queues_by_name = parts.reader.resident_ranges, parts.queues.by_name
        self.recent_records = parts.reader.recent_records

        #: Queries, which never wait for the disk.
        self.queries = Queries(
            commit_log,
            parts.queues,
            parts.index,
            parts.files.corrupt_ranges,
            parts.files.add_damage,
            parts.page_loader,
            parts.failed_reads,
            parts.entry_repair.repair,
        )
        #: Log offsets, and the callbacks for when readers find everything below them.
        self._on_shown: list[tuple[int, Callable[[], None]]] = []
        #: Returns why nothing may be appended at the moment, empty if something may; None where it always may be.
        self.why_not_append: Callable[[], str] | None = None
        #: Returns the offset below which other brokers have the log that must have it.
        self.replicated: Callable[[], int] = lambda: sys.maxsize
        #: Called with topic, queue id, next offset, tags code (None for several) and store timestamp (ms) once each
        #: queue that got messages in a turn, once they can be got.
        self.on_dispatch: list[DispatchListener] = parts.cq_dispatcher.listeners

    def is_awaited_by(self, *waiting: Mapping[tuple[str, int], object]) -> None:
        """`waiting`: the queues with held pulls from now on, by topic and queue id."""
        self.awaited[:] = waiting

    def dispatch_soon(self) -> None:
        """Called when a pull is held: later appends are dispatched without delay."""
        self._dispatcher.dispatch_earlier()

    def dispatch_delayed(self) -> bool:
        """Called for a reader that found nothing and can wait: run the delayed dispatch now, unless the last one was a
        moment ago. False if nothing changes."""
        return self._dispatcher.dispatch_delayed()

    def dispatch_queue(self, topic: str, queue_id: int) -> bool:
        """Called for a reader at the end of a queue: dispatch the messages appended to it now. False if nothing
        changes."""
        queue = self._queues.by_name.get((topic, queue_id))
        if queue is None or queue.max_offset >= queue.next_offset:
            return False
        return self._dispatcher.dispatch_queue(queue)

    def make_bit_maps(self, of_topic: Callable[[str], BitMap | None]) -> None:
        """Compute bit maps for extension units from now on, for topics with filters."""
        self._cq_dispatcher.make_bit_maps(of_topic)

    def show_below(self, limit: Callable[[], int]) -> None:
        """Hide the log above `limit()`, which never decreases, from readers. Called before `start`. Raises OSError."""
        self._dispatcher.limit = self.queries.limit = limit
        log_min, before_cut = self._commit_log.min_offset, self._files.checkpoint.forget_queues_above
        withdraw(self._dispatcher, self._queues, log_min, limit(), before_cut)

    def limit_moved(self) -> None:
        """Called when the limit of `show_below` has grown: readers see the log up to it from now on."""
        self._dispatcher.limit_moved()
        while self._on_shown and self._dispatcher.end >= self._on_shown[0][0]:
            try:
                self.dispatch_now()
            except OSError:  # the dispatch reports it; again when the limit moves
                return
            self._on_shown.pop(0)[1]()

    def when_shown(self, act: Callable[[], None]) -> None:
        """Call `act` once readers find all that the log has now: for services that read what a former run or a former
        master has done. At once where that is so; never if the store stops before."""
        if self._dispatcher.end >= self._commit_log.readable_end:
            act()
        else:
            self._on_shown.append((self._commit_log.readable_end, act))

    def look(self, *, is_again: bool = False) -> None:
        """Check some records of each segment, and report those that changed since they were written. Called before
        `start`, maybe on the worker. `is_again`: only ranges that an earlier call found damaged. Raises OSError."""
        self._scrub.look(self.corrupt_ranges, is_again=is_again)

    def watch(self, bytes_a_second: int, on_damage: Callable[[Damage], None]) -> None:
        """Read all of the log again and again from `start` on, so many bytes a second. `on_damage` is called when a
        range is found that holds no record any more."""
        self._scrub.bytes_a_second = bytes_a_second
        self._files.on_damage = lambda damage: self._scrub.confirm(damage, on_damage)

    # Life

    def start(self) -> None:
        self._dispatcher.start()
        self._log_flusher.start()
        self._sync_watch.start()
        self._files.start()
        self._retention.start()
        if self._scrub.bytes_a_second is not None:
            self._scrub.start()

    def stop(self) -> Deferred[None]:
        """Sync everything, close it and release the lock.

        Fires in any case; if something could not be written, the next start recovers.
        """
        if self._is_stopped:
            return succeed(None)
        self._is_stopped = True
        self._dispatcher.stop()
        # So that the next start need not search for undispatched messages; no readers are left.
        self._dispatcher.limit = None
        self.on_dispatch.clear()
        self._on_shown.clear()
        transient = self._transient
        stopped = Deferred.fromCoroutine(self._stop_background())
        if transient is not None:
            stopped.addCallback(lambda _: transient.stop())
        stopped.addCallback(lambda _: self._log_flusher.stop())
        stopped.addBoth(self._stop_watching)
        stopped.addCallback(lambda _: self._dispatcher.catch_up())
        stopped.addCallback(lambda _: self._dispatcher.index_all())
        stopped.addCallback(lambda _: self._files.stop())
        stopped.addErrback(lambda failure: self.log.failure("the store did not stop cleanly", failure))
        stopped.addCallback(lambda _: self._close())
        return stopped

    async def _stop_background(self) -> None:
        """Stop what appends no messages: they are synced even if that fails."""
        for stop in (self._retention.stop, self._scrub.stop, self._remover.stop):
            try:
                await maybeDeferred(stop)
            except Exception:
                self.log.failure("a part of the store did not stop cleanly")

    def _stop_watching(self, result: Failure | None) -> Failure | None:
        self._sync_watch.stop()
        return result

    def _close(self) -> Deferred[None]:
        # The worker may still use the segments' files: they are closed after it is done.
        stopped = self._files.close().addBoth(lambda _: self._page_loader.stop())
        return stopped.addBoth(lambda _: self._close_files())

    def _close_files(self) -> None:
        self._commit_log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._files.lock.release()

    # Writing

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """See `CommitLog.append`."""
        if self.why_not_append is not None and (why := self.why_not_append()):
            raise StoreUnwritable(why)
        appended = self._append(messages)
        self.appended()
        return appended

    def durable(self, end: int) -> Deferred[None]:
        """Fires when the log is on disk below `end`, a physical offset.

        Fails with StoreUnwritable if syncing failed, with FlushTimedOut after syncFlushTimeout.
        """
        return self._log_flusher.durable(end)

    def follow(self) -> RawAppender:
        """Make the log a copy of a master's: it refuses all other appends from now on."""
        self._commit_log.refuse(Refusal.FOLLOWS, "this broker is a slave: its log is its master's")
        self._dispatcher.turn_delay_s = FOLLOWER_DISPATCH_S
        return RawAppender(self._commit_log, self._log_flusher, self._dispatcher, self._find_last)

    def _find_last(self) -> tuple[int, int] | None:
        """Offset and size of the last record of the log; None if it has none, or other bytes follow it. May wait.
        Raises OSError."""
        last = None
        for found in self._scan_end():
            if isinstance(found, Damage):
                last = None
            elif found.count:
                last = found.last, found.end - found.last
        return last

    def _scan_end(self) -> Iterator[Run | Damage]:
        log = self._commit_log
        queues = [queue for queue in self._queues if queue.max_offset > queue.min_offset]
        newest = max((queue.entry_from_disk(queue.max_offset - 1)[0] for queue in queues), default=log.min_offset)
        # Behind it are records that are in no queue, such as half messages.
        return scan(log, max(newest, log.min_offset), log.end, sys.maxsize)

    def gaps(self) -> Sequence[Damage]:
        """Ranges that are known to hold no record. The end of the log is looked at: a file that was set back to an
        older copy has zeros there. May wait. Raises OSError."""
        return [*self.corrupt_ranges, *(found for found in self._scan_end() if isinstance(found, Damage))]

    def settings_changed(self, settings: StoreSettings) -> None:
        """Apply changed retention and transfer limits of `settings`; other settings apply at the next start."""
        self._retention.settings_changed(settings)
        self._reader.settings_changed(settings)

    def delete_expired_files(self) -> None:
        """Delete the files of messages older than fileReservedTime in the next turns, whatever deleteWhen says."""
        self._retention.delete_expired()

    def remove_topics(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove topics, except those of the system; fires with those that existed.

        Their messages stay in the log until they expire. A topic that is created again continues its queues' offsets.
        Fails with OSError if the disk refuses: topics that could not be removed are unchanged.
        """
        return self._remover.remove_topics(names)

    def removed_queues(self) -> Mapping[tuple[str, int], Removed]:
        """The queues that were removed while the log has their messages, by topic and queue id."""
        return self._queues.removed

    def follow_removals(self, notes: Mapping[tuple[str, int], Removed]) -> Deferred[list[str]]:
        """Remove what a master has removed by its `removed_queues`: see `TopicRemover.follow`."""
        return self._remover.follow(notes)

    def renumber_topics(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove topics that a Java master has removed: see `TopicRemover.renumber`."""
        return self._remover.renumber(names)

    def keep_only_topics(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove all other topics but light queues (%LMQ%): cleanUnusedTopic of Java."""
        return self._remover.keep_only(names)

    def remove_empty_queues(self) -> Deferred[list[str]]:
        """Remove queues of which the log has no message any more: cleanExpiredConsumerQueue of Java."""
        return self._remover.remove_empty_queues()

    def dispatch_now(self) -> None:
        """Dispatch all appends now instead of in the next turn, so that `get` finds them."""
        self._dispatcher.catch_up()

    # Reading

    def min_offset(self, topic: str, queue_id: int) -> int:
        return (self.bounds(topic, queue_id) or (0, 0))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The end of what `get` finds: undispatched messages do not count."""
        return (self.bounds(topic, queue_id) or (0, 0))[1]

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message that is appended to a queue."""
        queue = self.queues_by_name.get((topic, queue_id))
        return self.max_offset(topic, queue_id) if queue is None else queue.next_offset

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """See `ConsumeQueues.bounds`."""
        if not self.dispatch_queue(topic, queue_id):  # a slave numbers messages only once they are dispatched
            self.dispatch_delayed()
        return self._queues.bounds(topic, queue_id)

    async def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> ByKey:
        """Records of a topic by unique key or key, stored between two times: see `Queries.by_key`."""
        committed = self._commit_log.make_readable(self._commit_log.end - 1)
        if committed is not None:
            await committed
            with contextlib.suppress(OSError):  # as when they are not indexed
                self.dispatch_now()
        self.dispatch_delayed()
        with contextlib.suppress(OSError):  # on a full disk messages that wait to be indexed are not found
            await self._dispatcher.index_in_turns()
        return await self.queries.by_key(topic, key, max_count, begin_ms, end_ms)

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """See `Queries.offset_by_time`."""
        if not self.dispatch_queue(topic, queue_id):
            self.dispatch_delayed()
        return await self.queries.offset_by_time(topic, queue_id, timestamp_ms)

    async def is_far(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message of a queue is so far behind that it counts as on disk; False if there is none."""
        return await self.queries.is_far(topic, queue_id, offset, self._reader.near_bytes)

    @property
    def log_min_offset(self) -> int:
        return self._commit_log.min_offset

    @property
    def log_end(self) -> int:
        return self._commit_log.readable_end

    @property
    def flushed(self) -> int:
        """The log is on disk below this offset."""
        return self._log_flusher.flushed

    @property
    def dispatched(self) -> int:
        """The queues have the messages of the log below this offset."""
        return self._dispatcher.offset

    @property
    def settled(self) -> int:
        """Below this offset the log stays as it is whatever happens: it is on disk here, and where it must be."""
        return min(self.flushed, self.replicated())

    @property
    def index_end(self) -> tuple[int, int]:
        """Store timestamp (ms) and physical offset of the newest indexed message."""
        return (self._index.end_ms, self._index.end_offset) if self._index is not None else (0, 0)

    @property
    def corrupt_ranges(self) -> Sequence[Damage]:
        """Ranges of the log found to hold no record."""
        return tuple(self._files.corrupt_ranges)

    @property
    def damages_found(self) -> int:
        """How many of them were found since the log was opened."""
        return self._files.damages_found

    def _earliest_ms(self) -> int:
        """Store time of the oldest message, read once as it may be on disk only; -1 if none can be read."""
        start, earliest_ms = self._earliest
        if start != self._commit_log.min_offset:
            start = self._commit_log.min_offset
            try:
                found = self._commit_log.view(start) and scan_file(*self._commit_log.place(start), start)
            except OSError:
                return -1
            if not isinstance(found, Scanned):
                return -1
            earliest_ms = found.store_timestamp_ms
            self._earliest = start, earliest_ms
        return earliest_ms

    @property
    def stats(self) -> StoreStats:
        retention = self._retention
        log_percent, queues_percent, _ = retention.watch.used_percents
        return StoreStats(
            log_min_offset=self._commit_log.min_offset,
            log_end=self._commit_log.readable_end,
            flushed=self._log_flusher.flushed,
            dispatched=self._dispatcher.offset,
            indexed=self._index.offset if self._index is not None else 0,
            flushes=self._log_flusher.flushes,
            corrupt_ranges=len(self._files.corrupt_ranges),
            earliest_ms=self._earliest_ms(),
            deleted_segments=retention.segments.deleted,
            deleted_cache_files=retention.caches.deleted,
            log_disk_percent=log_percent,
            queues_disk_percent=queues_percent,
            is_disk_full=bool(self._commit_log.why(Refusal.DISK_FULL)),
            rotten_entries=self._reader.verifier.rotten_entries,
            uncommitted=self._commit_log.end - self._commit_log.readable_end,
            buffers_left=self._transient.buffers_left if self._transient is not None else None,
            log_space=retention.watch.log_space,
            why_refused=self._commit_log.why_raw_refused,
        )


def open_store(
    settings: StoreSettings,
    *,
    disk: IDisk,
    clock: IReactorTime,
    worker: IWorker,
    store_host: bytes,
    log_syncs: ISyncs | None = None,
) -> MessageStore:
    """Open the store directory, recover it if it was not stopped cleanly, and bring consume queues up to date.

    :param store_host: 8 or 20 bytes, the broker's address in records.
    :param log_syncs: syncs the log, which acknowledgements wait for; `worker` by default.

    Raises StoreLocked, StoreUnknown, StoreUnwritable, StoreDamaged and OSError, with nothing left open.
    """
    steps = opening_steps(settings, disk=disk, clock=clock, worker=worker, store_host=store_host, log_syncs=log_syncs)
    return run_at_once(steps, ProgressLine(settings.store_path_root_dir, clock.seconds))


def open_store_in_turns(
    settings: StoreSettings,
    *,
    disk: IDisk,
    clock: IReactorTime,
    worker: IWorker,
    store_host: bytes,
    log_syncs: ISyncs | None = None,
) -> Deferred[MessageStore]:
    """As `open_store`, but a long recovery lets the reactor serve others. It can be cancelled."""
    steps = opening_steps(settings, disk=disk, clock=clock, worker=worker, store_host=store_host, log_syncs=log_syncs)
    return run_in_turns(steps, clock, ProgressLine(settings.store_path_root_dir, clock.seconds))


def _lock(disk: IDisk, paths: StorePaths) -> ILockedFile:
    """Raises StoreLocked, StoreUnwritable if the disk is read-only, OSError."""
    try:
        make_durable_directories(disk, paths.root)
        return disk.lock(paths.lock)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        why = f"{error.filename or paths.lock}: {error.strerror}"
        what = (
            "a broker must be able to write there: correct the mount or the permissions, or set another "
            "storePathRootDir"
        )
        raise StoreUnwritable(f"{why}; {what}") from error


def opening_steps(
    settings: StoreSettings,
    *,
    disk: IDisk,
    clock: IReactorTime,
    worker: IWorker,
    store_host: bytes,
    log_syncs: ISyncs | None = None,
) -> Steps[MessageStore]:
    """The work of `open_store`."""
    paths = StorePaths(settings.store_path_root_dir, settings.store_path_commit_log)
    refuse_other(disk, paths.root)
    log_syncs = log_syncs or WorkerSyncs(worker)
    lock = _lock(disk, paths)
    try:
        parts = yield from Opening(settings, paths, disk, clock, worker, log_syncs, store_host, lock).steps()
        return MessageStore(parts)
    except BaseException:
        lock.release()
        raise
