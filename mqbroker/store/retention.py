"""Retention: when old messages go. At the hours of deleteWhen those older than fileReservedTime, at any hour when the
disk runs out of room or someone asks for it; younger ones too when there is hardly any room left.

The rules, and what their numbers are, are those of DefaultMessageStore.CleanCommitLogService and of
MappedFileQueue.deleteExpiredFileByTime of 4.9.7. When files go for want of room whatever their age, no more go than it
takes: the disk is looked at after each. Must never know how files are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.store.deletion import CacheCleaner, LogCleaner
from mqbroker.store.disk_watch import DiskWatch, Room, RoomLimits
from mqbroker.store.outages import Outage

#: How many segments go in one turn.
SEGMENTS_A_TURN = 10
#: For how many turns a demand to delete holds.
TURNS_ON_DEMAND = 20
#: When the disks are looked at first.
FIRST_LOOK_S = 1.0
_HOUR_MS = 3_600_000


@attrs.frozen
class RetentionRules:
    """How old messages must be, and at which hours of the local time of day they go."""

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
        """Whether it is one of the hours, by the local time of this machine."""
        return time.localtime(now_s).tm_hour in self.hours

    def is_expired(self, modified_ms: int, now_ms: float) -> bool:
        return now_ms >= modified_ms + self.reserved_ms


class Retention:
    """Looks every cleanResourceInterval at what there is to delete, and deletes it."""

    log = Logger()

    def __init__(
        self, clock: IReactorTime, rules: RetentionRules, watch: DiskWatch, segments: LogCleaner, caches: CacheCleaner
    ) -> None:
        self._clock = clock
        self._rules = rules
        self.watch = watch
        self.segments = segments
        self.caches = caches
        #: The log's minimum that consume queues and index have followed to.
        self._followed = 0
        self._turns_on_demand = 0
        self._is_helpless = False
        self._is_stopped = False
        self._deleting = Outage(
            "old messages cannot be deleted, which is tried again", "old messages are deleted again"
        )
        self._calls: dict[Callable[[], None], IDelayedCall] = {}
        self._pausing: tuple[IDelayedCall, Deferred[None]] | None = None
        self._running: Deferred[None] = succeed(None)

    def settings_changed(self, settings: StoreSettings) -> None:
        """From the next turn on."""
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
        """Delete what is older than fileReservedTime at any hour, in the next turns."""
        self._turns_on_demand = TURNS_ON_DEMAND

    def stop(self) -> Deferred[None]:
        """Fires when nothing is deleted any more."""
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
            self.log.warn("the disk fills up and there is no message old enough to delete")
        self._is_helpless = is_helpless


class _Stopped(Exception):
    """The store stops: the turn ends where it is."""
