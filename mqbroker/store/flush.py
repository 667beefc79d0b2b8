"""Flushing: syncs of the mapped files on the worker, in the order that recovery relies on.

The log is synced first, which acknowledgements wait for; then consume queues and index, then the checkpoint that
records it. A failed sync of the log is final: the kernel may have dropped the pages and does not report that twice, so
waiting sends fail and appends are refused. Knows nothing of the content of the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.errors import FlushTimedOut, StoreUnwritable
from mqbroker.repeated_call import RepeatedCall
from mqbroker.store.commitlog import CommitLog, Refusal
from mqbroker.store.disk import Outage
from mqbroker.store.segment import SegmentSource
from mqbroker.store.syncs import ISyncs
from mqbroker.store.worker import IWorker

#: At high rates the log is synced once per about this many bytes: a larger sync delays the sends meanwhile, on the disk
#: and the processors. Measured on two cores at 40 MB/s, p99 and p99.9 of sends are half of those with syncs of 20 MB,
#: and the kernel uses a quarter less time.
AT_ONCE_BYTES = 512 * 1024
INTERVAL_S_MIN = 0.02

#: Concurrent syncs of the log. A second one is started if the first is older than the interval, so that a slow sync
#: delays later messages by no more than the interval and a sync of their own.
RUNNING_MAX = 8

#: Errors of opening: too many open files, in this process or system-wide.
_NO_FILE_LEFT = (errno.EMFILE, errno.ENFILE)


@attrs.define(eq=False)
class _Sync:
    """A running sync of the log below `end`, whose newest message was stored at `timestamp_ms`. `began`: seconds."""

    end: int
    timestamp_ms: int
    began: float
    is_done: bool = False


class LogFlusher:
    """Syncs the log every `interval_ms`, and at once if someone waits; one sync serves all waiters (group commit).

    Stored messages wait no longer than the interval for a sync to start, if need be beside slower ones. `flushed`: the
    log is on disk below it. `source` syncs the names of segments.
    """

    log = Logger()

    def __init__(
        self,
        commit_log: CommitLog,
        clock: IReactorTime,
        syncs: ISyncs,
        source: SegmentSource,
        interval_ms: int,
        timeout_ms: int,
        flushed: int,
        on_served: Callable[[int, float], None],
        note_durable: Callable[[int], None],
        on_failed: Callable[[], None],
    ) -> None:
        """`on_served`: called with the number of waiters served at once, and the time (seconds) since which the first
        waited. `note_durable` records in the checkpoint that the log is on disk below an offset; for the worker; raises
        OSError. `on_failed`: called when a sync failed: the files may differ from what was stored."""
        self._commit_log = commit_log
        self._clock = clock
        self._syncs = syncs
        self._source = source
        self._interval_s = interval_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self.flushed = flushed
        self.flushed_ms = 0
        self.flushes = 0
        self._on_served = on_served
        self._note_durable = note_durable
        self._on_failed = on_failed
        # The offset last recorded in the checkpoint.
        self._noted = flushed
        self._is_noting = False
        #: Why the last sync, or the last note of one, could not be made; empty after one that was.
        self._why_not_begun = self._why_not_noted = ""
        self._noting = Outage(
            "synced messages are not acknowledged, because the checkpoint cannot be written (trying again)",
            "the checkpoint is written again, and messages are acknowledged",
        )
        # (end, deadline, waiter), in order of `end`, and so of time.
        self._waiting: deque[tuple[int, float, Deferred[None]]] = deque()
        # In the order of their start: a sync counts only when the earlier ones have ended, since the kernel may report
        # an error to one of them only.
        self._running: deque[_Sync] = deque()
        #: Whether to start another as soon as one ends.
        self._is_due = False
        self._tick_call: IDelayedCall | None = None
        #: Time of the last tick, and the log's end then.
        self._ticked = (clock.seconds(), commit_log.readable_end)
        self._timeout_call: IDelayedCall | None = None

    @property
    def oldest_sync(self) -> object | None:
        """The running sync that began first, as an object that identifies it."""
        return next((sync for sync in self._running if self._is_noting or not sync.is_done), None)

    @property
    def why_not_synced(self) -> str:
        """The known reason why messages are not synced, or synced but not acknowledged, other than a slow disk; empty
        if there is none."""
        return self._commit_log.why(Refusal.STOPPED) or self._why_not_begun or self._why_not_noted

    def start(self) -> None:
        self._commit_log.on_next_wanted.append(self._hasten)
        self._tick_call = self._clock.callLater(self._interval_s, self._tick)

    def _hasten(self) -> None:
        """Tick now: a segment that fills fast may be full before the next tick."""
        if self._tick_call is not None:
            self._tick_call.reset(0)

    def _tick(self) -> None:
        self._tick_call = self._clock.callLater(self._until_next_s(), self._tick)
        self._commit_log.prepare_next()
        self._serve()
        if not self._running:
            self._begin()
            return
        left_s = self._running[-1].began + self._interval_s - self._clock.seconds()
        if left_s > 0:
            if left_s < self._tick_call.getTime() - self._clock.seconds():
                self._tick_call.reset(left_s)
        elif len(self._running) < RUNNING_MAX:
            self._begin()
        else:
            self._is_due = True

    def _until_next_s(self) -> float:
        """Time until the size of one sync has accumulated, at the rate since the last tick."""
        (since, start), self._ticked = self._ticked, (self._clock.seconds(), self._commit_log.readable_end)
        now, end = self._ticked
        if end == start:
            return self._interval_s
        seconds = (now - since) * AT_ONCE_BYTES / (end - start)
        return min(self._interval_s, max(INTERVAL_S_MIN, seconds))

    def durable(self, end: int) -> Deferred[None]:
        """Fires when the log is on disk below `end`.

        Fails with StoreUnwritable if syncing failed, with FlushTimedOut if it took longer than allowed. Cancelling only
        gives up waiting.
        """
        if end <= self.flushed:
            return succeed(None)
        why_stopped = self._commit_log.why(Refusal.STOPPED)
        if why_stopped:
            return fail(StoreUnwritable(why_stopped))
        waiting: Deferred[None] = Deferred()
        if self._waiting and end < self._waiting[-1][0]:
            end = self._waiting[-1][0]
        self._waiting.append((end, self._clock.seconds() + self._timeout_s, waiting))
        if self._timeout_call is None:  # it stays without waiters: usually others follow soon
            self._timeout_call = self._clock.callLater(self._timeout_s, self._give_up)
        self._serve()
        self._begin_alone()
        return waiting

    def wake(self) -> None:
        """Start a sync if someone waits for data that can be synced now."""
        if self._waiting:
            self._begin_alone()

    def _begin_alone(self) -> None:
        if not self._running:
            self._begin()

    def _begin(self) -> None:
        """Sync what no running sync covers."""
        commit_log, running = self._commit_log, self._running
        end = commit_log.readable_end
        if end <= (running[-1].end if running else self.flushed) or commit_log.why(Refusal.STOPPED):
            return
        segments = commit_log.segments_between(self.flushed, end)
        self.flushes += 1
        begin = self._syncs.sync_beside if running else self._syncs.sync
        sync = _Sync(end, commit_log.readable_ms, self._clock.seconds())
        then = self._source.sync_names if self._source.has_new_names else None
        if not running and commit_log.doubtful_end > self._noted:
            then = partial(self._sync_names_and_note, end)
        running.append(sync)
        try:
            done = begin(segments, then)
            done.addCallbacks(self._ended, self._failed, callbackArgs=(sync,), errbackArgs=(sync,))
            done.addErrback(self._not_noticed, sync)
        except Exception:  # out of memory: whether the sync runs, and its result, would stay unknown
            self._failed(Failure(), sync)  # type: ignore[no-untyped-call]

    def _ended(self, _: None, sync: _Sync) -> None:
        sync.is_done = True
        self._serve()

    def _not_noticed(self, failure: Failure, sync: _Sync) -> None:
        """Called for an unexpected error at the end of a sync. If the result was recorded, waiters are served at the
        next tick; otherwise the sync counts as failed."""
        if sync.is_done:
            self.log.failure("unexpected error after a sync of the commit log", failure)
        else:
            self._failed(failure, sync)

    def _serve(self) -> None:
        """Complete the syncs that have ended, in their order, after recording in the checkpoint what recovery would
        doubt."""
        running = self._running
        while running and running[0].is_done and not self._is_noting:
            # Recovery trusts the checkpoint, and must not doubt what was acknowledged.
            if self._commit_log.doubtful_end > self._noted < running[0].end:
                while len(running) > 1 and running[1].is_done:  # one note for all that have ended
                    running.popleft()
                end = running[0].end
                self._is_noting = True
                noted = maybeDeferred(self._syncs.sync_beside, (), partial(self._note, end))
                noted.addCallbacks(self._was_noted, self._not_noted)
                return
            self._synced(running.popleft())

    def _sync_names_and_note(self, end: int) -> None:
        self._source.sync_names()
        with contextlib.suppress(Exception):  # no sync failed, and it is tried again, and logged then
            self._note(end)

    def _note(self, end: int) -> None:
        self._note_durable(end)
        self._noted = end

    def _was_noted(self, _: None) -> None:
        self._is_noting, self._why_not_noted = False, ""
        self._noting.worked()
        self._serve()

    def _not_noted(self, failure: Failure) -> None:
        """The data stays synced: the next tick, or the next waiter, records it again."""
        self._is_noting = False
        error = failure.getErrorMessage() or type(failure.value).__name__
        self._why_not_noted = f"the checkpoint cannot be written: {error}"
        self._noting.failed(error)
        self._fail_waiting(StoreUnwritable(self._why_not_noted))

    def _synced(self, sync: _Sync) -> None:
        self._why_not_begun = ""
        self.flushed = sync.end
        self.flushed_ms = sync.timestamp_ms
        waiting = self._waiting
        since = waiting[0][1] - self._timeout_s if waiting else 0.0
        if self._is_due:
            self._is_due = False
            self._begin()
        elif waiting and waiting[-1][0] > sync.end:  # the disk works while the others are served
            self._begin_alone()
        served = 0
        while waiting and waiting[0][0] <= sync.end:
            served += 1
            _fire(waiting.popleft()[2], None)
        if served:
            self._on_served(served, since)

    def _failed(self, failure: Failure, sync: _Sync) -> None:
        if sync not in self._running:  # one beside it has failed, which is final
            return
        if isinstance(failure.value, OSError) and failure.value.errno in _NO_FILE_LEFT:
            self._running.remove(sync)
            self._not_begun(failure.value)
            return
        self._running.clear()
        error = failure.getErrorMessage() or type(failure.value).__name__  # that of memory has no text
        why = f"the commit log cannot be synced to the disk, restart the broker: {error}"
        self.log.critical("{why}", why=why)
        self._commit_log.refuse(Refusal.STOPPED, why)
        try:
            self._on_failed()
        finally:
            self._fail_waiting(StoreUnwritable(why))

    def _not_begun(self, error: OSError) -> None:
        """A file could not be opened for its sync: no sync failed, and the next tick tries again."""
        why = f"the commit log cannot be synced to the disk now; raise the limit of open files (ulimit -n): {error}"
        if not self._why_not_begun:
            self.log.error("{why}", why=why)
        self._why_not_begun = why
        if self._running:  # others hold their files open
            self._is_due = True
        else:
            self._fail_waiting(StoreUnwritable(why))

    def _cancel_timeout(self) -> None:
        if self._timeout_call is not None:
            self._timeout_call.cancel()
            self._timeout_call = None

    def _fail_waiting(self, error: Exception) -> None:
        self._cancel_timeout()
        waiting, self._waiting = self._waiting, deque()
        for end, _, deferred in waiting:  # what is on the disk stays there, whatever fails later
            _fire(deferred, None if end <= self.flushed else error)

    def _give_up(self) -> None:
        self._timeout_call = None
        now = self._clock.seconds()
        waiting, late = self._waiting, []
        while waiting and waiting[0][1] <= now:
            late.append(waiting.popleft()[2])
        if waiting:
            self._timeout_call = self._clock.callLater(waiting[0][1] - now, self._give_up)
        for each in late:  # callbacks may wait again at once
            _fire(each, FlushTimedOut(self.why_not_synced or "the disk did not confirm in time"))

    def stop(self) -> Deferred[None]:
        """Sync the rest; fires, or fails with StoreUnwritable, when that is done, however long it takes: a process
        cannot end before its syncs."""
        if self._tick_call is not None:
            self._tick_call.cancel()
            self._tick_call = None
        return self._all_durable().addBoth(self._stopped)

    def _all_durable(self) -> Deferred[None]:
        done: Deferred[None] = Deferred()

        def ended(result: Failure | None) -> None:
            if isinstance(result, Failure) and result.check(FlushTimedOut):  # type: ignore[no-untyped-call]
                self._all_durable().chainDeferred(done)
            else:
                done.callback(result)

        self.durable(self._commit_log.readable_end).addBoth(ended)
        return done

    def _stopped(self, result: Failure | None) -> Failure | None:
        self._cancel_timeout()
        return result


def _fire(deferred: Deferred[None], result: Exception | None) -> None:
    if not deferred.called:  # it was cancelled
        if result is not None:
            deferred.errback(result)
        else:
            deferred.callback(None)


#: With the index or not -> the work for the worker, the callback for its result, and how many files it syncs; None for
#: nothing to do.
SnapshotFunction = Callable[[bool], tuple[Callable[[], Any], Callable[[Any], None], int] | None]

#: A pause after syncing, in seconds for each file, and at most: tens of thousands of queues take seconds, in which
#: other threads get less done. What was not synced is rebuilt after a crash.
PAUSE_S_A_FILE = 0.001
PAUSE_S_MAX = 60.0


class CacheFlusher:
    """Syncs consume queues and, less often, the index, then writes the checkpoint.

    :param snapshot: called on the reactor's thread, with True to include the index; returns the work for the worker,
        which raises no OSError, the callback for its result, and how many files are synced.
    """

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        worker: IWorker,
        interval_ms: int,
        index_every: int,
        snapshot: SnapshotFunction,
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._interval_s = interval_ms / 1000
        self._index_every = index_every
        self._snapshot = snapshot
        self._turn = 0
        self._not_before = 0.0
        self._running: Deferred[None] | None = None
        self._call: IDelayedCall | None = None

    def start(self) -> None:
        self._call = self._clock.callLater(self._interval_s, self._tick)

    def _tick(self) -> None:
        self._call = self._clock.callLater(self._interval_s, self._tick)
        if self._running is not None or self._clock.seconds() < self._not_before:
            return
        self._turn += 1
        done = maybeDeferred(self._flush, self._turn % self._index_every == 0)
        done.addErrback(lambda failure: self.log.failure("consume queues cannot be synced", failure))

    def _flush(self, with_index: bool) -> Deferred[None]:
        taken = self._snapshot(with_index)
        if taken is None:
            return succeed(None)
        work, then, files = taken
        running = self._running = self._worker.run(work)

        def done(result: Any) -> Failure | None:
            self._running = None
            self._not_before = self._clock.seconds() + min(PAUSE_S_A_FILE * files, PAUSE_S_MAX)
            if isinstance(result, Failure):
                return result
            then(result)
            return None

        running.addBoth(done)
        return running

    @property
    def is_running(self) -> bool:
        """Whether a sync runs, or the work of `run_alone`."""
        return self._running is not None

    def run_alone(self, work: Callable[[], Any]) -> Deferred[Any]:
        """Run `work` on the worker while no sync runs: for the removal of files."""
        if self._running is not None:
            later: Deferred[Any] = Deferred()
            self._running.addBoth(lambda _: maybeDeferred(self.run_alone, work).chainDeferred(later))
            return later
        running = self._running = self._worker.run(work)
        done: Deferred[Any] = Deferred()

        def finished(result: Any) -> None:
            self._running = None
            done.callback(result)

        running.addBoth(finished)
        return done

    def stop(self) -> Deferred[None]:
        """Sync all that is left; fires or fails when it is done."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._running is None:
            return self._flush(True)
        last: Deferred[None] = Deferred()
        self._running.addBoth(lambda _: maybeDeferred(self._flush, True).chainDeferred(last))
        return last


LOOK_S = 1.0
#: A longer sync is logged.
LONG_S = 5


class SyncWatchdog:
    """Watches syncs of the log: logs one that hangs, and refuses messages while the oldest unsynced one is too old.

    Time is counted in checks, one a second, so that a clock that is set forward makes no sync a long one.

    :param unsynced_s_max: messages are refused while stored ones have waited longer than this for their sync, seconds.
    """

    log = Logger()

    def __init__(self, commit_log: CommitLog, flusher: LogFlusher, clock: IReactorTime, unsynced_s_max: float) -> None:
        self._commit_log = commit_log
        self._flusher = flusher
        self._unsynced_s_max = unsynced_s_max
        self._looks = 0
        self._oldest: object | None = None
        self._oldest_since = 0
        # (check, the log's end then), from the first that is not synced.
        self._ends: deque[tuple[int, int]] = deque()
        #: Why messages are refused; empty if they are not.
        self._told = ""
        self._call = RepeatedCall(self._look, clock=clock)

    def start(self) -> None:
        if not self._call.running:
            self._call.start(LOOK_S, now=False)

    def stop(self) -> None:
        if self._call.running:
            self._call.stop()

    def _look(self) -> None:
        self._looks += 1
        self._look_at_oldest()
        self._look_at_age()

    def _look_at_oldest(self) -> None:
        """Log a long sync, once, and its end."""
        oldest, looks = self._flusher.oldest_sync, self._looks - self._oldest_since
        if oldest is not self._oldest:
            if self._oldest is not None and looks > LONG_S:
                self.log.warn("a sync of the commit log to the disk took {seconds} s", seconds=looks)
            self._oldest, self._oldest_since = oldest, self._looks
        elif oldest is not None and looks == LONG_S:
            self.log.error(
                "{path}: a sync to the disk has not ended after {seconds} s, and {bytes} bytes of messages are in "
                "memory only: check the disk (dmesg, iostat)",
                path=self._commit_log.segments[-1].path,
                seconds=LONG_S,
                bytes=self._commit_log.readable_end - self._flusher.flushed,
            )

    def _look_at_age(self) -> None:
        """Refuse messages, or accept them again, by the age of the oldest unsynced one."""
        commit_log, ends, end = self._commit_log, self._ends, self._commit_log.readable_end
        if end > self._flusher.flushed and (not ends or end > ends[-1][1]):
            ends.append((self._looks, end))
        while ends and ends[0][1] <= self._flusher.flushed:
            ends.popleft()
        waits_s = (self._looks - ends[0][0]) * LOOK_S if ends else 0
        if waits_s > self._unsynced_s_max:
            reason = self._why_unsynced()
            if reason != self._told and not commit_log.why(Refusal.STOPPED):  # else they are refused for that
                self._told = reason
                why = (
                    f"{reason}; messages have waited for their sync for more than {self._unsynced_s_max:g} s "
                    "(unsyncedAgeMax), and would be lost in a power failure"
                )
                commit_log.refuse(Refusal.NOT_SYNCED, why)
                self.log.error("messages are refused: {why}", why=why)
            return
        self._told = ""
        if commit_log.allow(Refusal.NOT_SYNCED):
            self.log.info("messages are accepted again: the commit log was synced to the disk")

    def _why_unsynced(self) -> str:
        """The reason that the flusher knows, unless it was able to begin a sync that hangs."""
        hangs = self._oldest is not None and self._looks - self._oldest_since >= LONG_S
        if self._flusher.why_not_synced and not hangs:
            return self._flusher.why_not_synced
        directory = os.path.dirname(self._commit_log.segments[-1].path)
        return f"the disk of {directory} is too slow: check the disk (dmesg, iostat)"
