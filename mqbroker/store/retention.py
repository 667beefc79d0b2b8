"""Retention: when old messages are deleted, and how: segments of the log, then their entries in consume queues and
index.

Messages older than fileReservedTime are deleted at the hours of deleteWhen, and at any hour when the disk is nearly
full or on request; younger ones too when there is hardly any space left. Rules and numbers are those of
DefaultMessageStore.CleanCommitLogService and of MappedFileQueue.deleteExpiredFileByTime of 4.9.7. When files are
deleted regardless of age because space is short, the disk is checked after each one, so that no more are than needed.

Files are deleted one at a time and oldest first, so that a crash at any moment leaves no gap. A file is unlinked first,
and dropped by the store when that is synced. Slices that readers hold stay valid: the blocks are freed with the last of
them. Files are never truncated, as touching a mapping behind its file's end kills the process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.disk import IDisk, IMappedFile, Outage
from mqbroker.store.disk_watch import DiskWatch, Room, RoomLimits
from mqbroker.store.index import Index
from mqbroker.store.worker import IWorker

#: Queues processed in one turn of the clock.
QUEUES_A_TURN = 200

RunFunction = Callable[[Callable[[], Any]], Deferred[Any]]
#: Waits for a number of milliseconds.
PauseFunction = Callable[[float], Awaitable[None]]


class Remover:
    """Deletes files. One that cannot be deleted is tried again after `retry_s`, and logged once.

    :param now: seconds.
    """

    log = Logger()

    def __init__(self, disk: IDisk, now: Callable[[], float], retry_s: float) -> None:
        self._disk = disk
        self._now = now
        self._retry_s = retry_s
        self._due: dict[str, float] = {}

    def is_due(self, path: str) -> bool:
        """Whether to try a file: it did not fail, or long enough ago."""
        return self._due.get(path, 0.0) <= self._now()

    async def remove(self, path: str, run: RunFunction) -> bool:
        """Delete a file durably, by `run`; False if that fails."""
        if not self.is_due(path):
            return False

        def work() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(path)
            with contextlib.suppress(FileNotFoundError):
                self._disk.sync_directory(os.path.dirname(path))

        try:
            await run(work)
        except OSError as error:
            if path not in self._due:
                self.log.error(
                    "{path} cannot be deleted; trying again every {s} s: {error}",
                    path=path, s=self._retry_s, error=error,
                )  # fmt: skip
            self._due[path] = self._now() + self._retry_s
            return False
        self._due.pop(path, None)
        return True


class LogCleaner:
    """Deletes the oldest segments of the log.

    :param safe_end: consume queues and index of the log below it are on disk.
    """

    log = Logger()

    def __init__(
        self, commit_log: CommitLog, remover: Remover, disk: IDisk, worker: IWorker, safe_end: Callable[[], int]
    ) -> None:
        self._commit_log = commit_log
        self._remover = remover
        self._disk = disk
        self._worker = worker
        self._safe_end = safe_end
        self.deleted = 0

    @property
    def minimum(self) -> int:
        """Start of the log."""
        return self._commit_log.min_offset

    def oldest(self) -> IMappedFile | None:
        """The next segment to delete; None for the last one, or one that is not yet synced everywhere."""
        commit_log = self._commit_log
        if len(commit_log.segments) < 2 or commit_log.min_offset + commit_log.segment_bytes > self._safe_end():
            return None
        segment = commit_log.segments[0]
        return segment if self._remover.is_due(segment.path) else None

    async def modified_ms(self, segment: IMappedFile) -> int | None:
        """Time of the last write to a segment, ms; None if the disk cannot tell."""
        try:
            modified: int = await self._worker.run(lambda: self._disk.modified_ms(segment.path))
        except FileNotFoundError:  # deleted by another process: counts as oldest
            return 0
        except OSError:
            return None
        return modified

    async def delete(self, segment: IMappedFile) -> bool:
        """Delete the segment returned by `oldest`."""
        if not await self._remover.remove(segment.path, self._worker.run):
            return False
        gone = self._commit_log.drop_first()
        assert gone is segment
        self.deleted += 1
        self.log.info("{path} was deleted, the log starts at {n}", path=gone.path, n=self._commit_log.min_offset)
        # This, or the last reader's slice, frees its blocks: a gigabyte of them takes a while.
        await self._worker.run(gone.close)
        return True


class CacheCleaner:
    """Deletes what consume queues and index have below the log's minimum.

    :param run_alone: runs on the worker while none of their files is being synced.
    """

    log = Logger()

    def __init__(
        self,
        queues: ConsumeQueues,
        index: Index | None,
        remover: Remover,
        worker: IWorker,
        run_alone: RunFunction,
    ) -> None:
        self._queues = queues
        self._index = index
        self._remover = remover
        self._worker = worker
        self._run_alone = run_alone
        #: Files of extensions that are dropped but not deleted yet.
        self._orphans: list[str] = []
        self.deleted = 0

    async def follow(self, minimum: int, pause: PauseFunction, interval_ms: int) -> bool:
        """Raise the queues' minimum offsets to the log's, and delete files that are below.

        False if not all could be deleted."""
        is_done = True
        queues = list(self._queues)
        for start in range(0, len(queues), QUEUES_A_TURN):
            await pause(0)
            for queue in queues[start : start + QUEUES_A_TURN]:
                if queue.min_offset < queue.max_offset and queue.oldest()[0] < minimum:
                    self._orphans += queue.correct_min(minimum)
        for start in range(0, len(queues), QUEUES_A_TURN):
            await pause(0)
            for queue in queues[start : start + QUEUES_A_TURN]:
                if queue.removable_files():
                    is_done &= await self._clean_queue(queue)
                    await pause(interval_ms)
        is_done &= await self._clean_orphans(pause, interval_ms)
        return await self._clean_index(minimum) and is_done

    async def _clean_orphans(self, pause: PauseFunction, interval_ms: int) -> bool:
        while self._orphans:
            if not await self._remover.remove(self._orphans[0], self._run_alone):
                return False
            del self._orphans[0]
            self.deleted += 1
            await pause(interval_ms)
        return True

    async def _clean_queue(self, queue: ConsumeQueue) -> bool:
        while files := queue.removable_files():
            if not await self._remover.remove(files[0].path, self._run_alone):
                return False
            if not queue.is_removed:
                await self._worker.run(queue.drop_first_file().close)
                self.deleted += 1
        return not queue.has_old_files

    async def _clean_index(self, minimum: int) -> bool:
        index = self._index
        if index is None:
            return True
        while (file := index.oldest_below(minimum)) is not None:
            if not index.is_synced(file) or not await self._remover.remove(file.file.path, self._run_alone):
                return False
            index.drop_first_file()
            await self._worker.run(file.file.close)
            self.deleted += 1
            self.log.info("{path} was deleted: the log has none of its messages", path=file.file.path)
        return True


#: Segments deleted in one turn.
SEGMENTS_A_TURN = 10
#: Turns for which a request to delete holds.
TURNS_ON_DEMAND = 20
#: Delay of the first check of the disks.
FIRST_LOOK_S = 1.0
_HOUR_MS = 3_600_000


@attrs.frozen
class RetentionRules:
    """Age of messages to delete, and the hours of the local time of day."""

    reserved_ms: int
    hours: frozenset[int]
    clean_forcibly: bool
    segments_interval_ms: int
    queues_interval_ms: int
    interval_s: float

    @classmethod
    def of(cls, settings: StoreSettings) -> RetentionRules:
        return cls(
            settings.file_reserved_time_hours * _HOUR_MS,
            frozenset(settings.delete_when_hours),
            settings.clean_file_forcibly_enable,
            settings.delete_commit_log_files_interval_ms,
            settings.delete_consume_queue_files_interval_ms,
            settings.clean_resource_interval_ms / 1000,
        )

    def is_time(self, now_s: float) -> bool:
        """Whether it is one of the hours, in local time."""
        return time.localtime(now_s).tm_hour in self.hours

    def is_expired(self, modified_ms: int, now_ms: float) -> bool:
        return now_ms >= modified_ms + self.reserved_ms


class Retention:
    """Deletes expired files every cleanResourceInterval."""

    log = Logger()

    def __init__(
        self, clock: IReactorTime, rules: RetentionRules, watch: DiskWatch, segments: LogCleaner, caches: CacheCleaner
    ) -> None:
        self._clock = clock
        self._rules = rules
        self.watch = watch
        self.segments = segments
        self.caches = caches
        #: The log's minimum that consume queues and index were last trimmed to.
        self._followed = 0
        self._turns_on_demand = 0
        self._is_helpless = False
        self._is_stopped = False
        self._deleting = Outage("old messages cannot be deleted (trying again)", "old messages are deleted again")
        self._calls: dict[Callable[[], None], IDelayedCall] = {}
        self._pausing: tuple[IDelayedCall, Deferred[None]] | None = None
        self._running: Deferred[None] = succeed(None)

    def settings_changed(self, settings: StoreSettings) -> None:
        """Apply changed settings from the next turn on."""
        self._rules = RetentionRules.of(settings)
        self.watch.limits = RoomLimits.of(settings)

    # Turns

    def start(self) -> None:
        self._again(self._look, FIRST_LOOK_S)
        self._again(self._clean, self._rules.interval_s)

    def _again(self, function: Callable[[], None], delay_s: float) -> None:
        self._calls[function] = self._clock.callLater(delay_s, function)

    def _look(self) -> None:
        self._again(self._look, self._rules.interval_s)
        self.watch.look()

    def _clean(self) -> None:
        self._again(self._clean, self._rules.interval_s)
        if self._running.called:
            self._running = Deferred.fromCoroutine(self._turn())
            self._running.addCallbacks(lambda _: self._deleting.worked(), self._failed)

    def _failed(self, failure: Failure) -> None:
        if isinstance(failure.value, OSError):
            self._deleting.failed(failure.getErrorMessage())
        else:
            self.log.failure("old messages cannot be deleted", failure)

    def delete_expired(self) -> None:
        """Delete files older than fileReservedTime in the next turns, at any hour."""
        self._turns_on_demand = TURNS_ON_DEMAND

    def stop(self) -> Deferred[None]:
        """Fires when no deletion runs any more."""
        self._is_stopped = True
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()
        if self._pausing is not None:
            call, paused = self._pausing
            call.cancel()
            self._pausing = None
            paused.callback(None)
        stopped: Deferred[None] = Deferred()
        self._running.addBoth(lambda _: stopped.callback(None))
        return stopped

    def _pause(self, duration_ms: float) -> Deferred[None]:
        if self._is_stopped:
            raise _Stopped
        paused: Deferred[None] = Deferred()

        def go_on(_: None) -> None:
            self._pausing = None
            if self._is_stopped:
                raise _Stopped

        paused.addCallback(go_on)
        self._pausing = self._clock.callLater(duration_ms / 1000, paused.callback, None), paused
        return paused

    async def _turn(self) -> None:
        try:
            room = await self.watch.look()
            if self._is_time_to_delete(room):
                await self._delete_segments(room)
            minimum = self.segments.minimum
            interval_ms = self._rules.queues_interval_ms
            if minimum > self._followed and await self.caches.follow(minimum, self._pause, interval_ms):
                self._followed = minimum
        except _Stopped:
            pass

    # Segments

    def _is_time_to_delete(self, room: Room) -> bool:
        is_demanded = self._turns_on_demand > 0
        if is_demanded:
            self._turns_on_demand -= 1
        return is_demanded or room >= Room.SCARCE or self._rules.is_time(self._clock.seconds())

    async def _delete_segments(self, room: Room) -> None:
        rules = self._rules
        deleted = 0
        while (segment := self.segments.oldest()) is not None:
            if not (rules.clean_forcibly and room >= Room.URGENT):
                modified_ms = await self.segments.modified_ms(segment)
                if modified_ms is None or not rules.is_expired(modified_ms, self._clock.seconds() * 1000):
                    break
            if not await self.segments.delete(segment):
                break
            deleted += 1
            if deleted >= SEGMENTS_A_TURN:
                break
            room = await self.watch.look()
            await self._pause(rules.segments_interval_ms)
        self._tell_helpless(deleted, room)

    def _tell_helpless(self, deleted: int, room: Room) -> None:
        is_helpless = not deleted and room >= Room.SCARCE
        if is_helpless and not self._is_helpless:
            self.log.warn("the disk is filling up, and no message is old enough to delete")
        self._is_helpless = is_helpless


class _Stopped(Exception):
    """Raised to end a turn when the store stops."""
