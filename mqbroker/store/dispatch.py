"""Dispatch of appended messages to consume queues and index, in turns of the clock.

Appends come from the log's dispatch queue, or from the log itself if they are not in the queue: after a start, or when
it exceeded its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.store.commitlog import CommitLog, Refusal
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.dispatch_queue import QUEUED_BYTES_MAX, DispatchQueue, read_back
from mqbroker.store.index import Index, KeyHasher, never
from mqbroker.store.logscan import Damage, Row, Run, scan
from mqbroker.store.statistics import StoreStatistics

#: Attempts to dispatch a run of messages before the message that fails is searched for.
TRIES_MAX = 3
#: How long pages that were resident count as that, seconds: entries are scattered over the file.
MOMENT_S = 0.5
#: Messages without a key after which a file is assumed to begin where the one before ended.
_LOOKS_MAX = 1000


T = TypeVar("T")
LeaveOut = Callable[[Row, Failure], None]


class Failures:
    """Finds the message that cannot be handled, if the same run of messages fails again and again for a reason that is
    neither the disk's nor that memory is short: the others of the run are handled without it."""

    def __init__(self) -> None:
        # Where the run begins that failed last, and how often it failed.
        self._start, self._count = -1, 0

    def put_each(self, run: Run, put: Callable[[Run], T], leave_out: LeaveOut) -> T | None:
        """Call `put` with a run, which must ignore what it was called with before; returns its result. `leave_out` is
        called with a message that cannot be put, and the result is None. Raises as `put`."""
        try:
            if self._start != run.start or self._count < TRIES_MAX:
                return put(run)
        except (OSError, MemoryError):
            raise
        except Exception:
            self._count = self._count + 1 if self._start == run.start else 1
            self._start = run.start
            raise
        self._put_rows(run, put, leave_out)
        self._start, self._count = -1, 0
        return None

    def _put_rows(self, run: Run, put: Callable[[Run], object], leave_out: LeaveOut) -> None:
        failed: list[tuple[Row, Failure]] = []
        for row in run.rows:
            try:
                put(Run.of_rows([row], row[3]))
            except (OSError, MemoryError):
                raise
            except Exception:
                failed.append((row, Failure()))  # type: ignore[no-untyped-call]
        if len(failed) == run.count > 1:  # it is no fault of a message
            failed[0][1].raiseException()
        for row, failure in failed:
            leave_out(row, failure)


class IndexDispatcher:
    """Indexes messages that are in consume queues: from a bounded queue in memory, or else from the log. `end` of its
    methods: the consume queues have the log below.

    :param now: seconds.
    """

    log = Logger()

    def __init__(self, index: Index, commit_log: CommitLog, now: Callable[[], float]) -> None:
        self._now = now
        # When the pages that entries touch were last checked.
        self._looked = 0.0
        self._index = index
        self._commit_log = commit_log
        self._waiting = DispatchQueue()
        self._failures = Failures()

    def is_dirty(self, end: int) -> bool:
        return self._index.offset < end

    def keep(self, run: Run) -> None:
        """Queue a run that is next to enter consume queues."""
        self._waiting.put(run)

    def index(self, end: int, count: int, is_over: Callable[[], bool] = never) -> None:
        """Index about `count` messages, some at least and until `is_over`. Raises OSError."""
        index = self._index
        now = self._now()
        if not self._looked <= now < self._looked + MOMENT_S:
            index.read()
            self._looked = now
        for found in read_back(self._commit_log, self._waiting, index.offset, end, count):
            if isinstance(found, Run):
                is_whole = self._failures.put_each(found, partial(index.add, is_over=is_over), self._leave_out)
                if is_whole is False:
                    self._waiting.put_back(found.split(index.offset, 0)[1])
                    break
            index.offset = found.end
            if is_over():
                break
        index.write_header()

    def _leave_out(self, row: Row, failure: Failure) -> None:
        self.log.failure("the message at {offset} of the log is left out of the index", failure, offset=row[3])

    def index_all(self, end: int, count: int) -> None:
        """Index everything, about `count` messages at a time. Raises OSError."""
        while self.is_dirty(end):
            self.index(end, count)

    def index_queued(self, end: int, count: int, is_over: Callable[[], bool] = never) -> bool:
        """Index what waits here, about `count` messages at a time, unless older ones must be indexed from the log
        first, until `is_over`; False if that was the reason to stop. Raises OSError."""
        while self._waiting and self._waiting.begin <= self._index.offset < end:
            self.index(end, count, is_over)
            if is_over():
                break
        return not (self._waiting and self._waiting.begin <= self._index.offset < end)


def has_keys_between(log: CommitLog, before: int, end: int, known: int | None = None) -> bool:
    """Whether messages in the log behind the one at `before` (-1 for none) and below `end` have keys, or that one has
    more than `known`: then an index file was lost. May wait. Raises Unreadable."""
    hasher = KeyHasher()
    for found in scan(log, max(before, log.min_offset), end, _LOOKS_MAX):
        for row in found.rows if isinstance(found, Run) else ():
            _, _, _, physical_offset, _, sys_flag, _, properties = row
            count = len(hasher.of_record(0, sys_flag, properties))
            if count > (0 if physical_offset > before else count if known is None else known):
                return True
    return False


#: Messages dispatched to consume queues (and then indexed) in one turn.
TURN_MESSAGES = 1000
#: Time limit of one turn for consume queues, and of one for the index, seconds.
TURN_S = 0.01
#: Bytes of the log that may be undispatched when a request is done. Above this, or when a turn ran out of time, senders
#: pay: the dispatch runs before the next request. Large turns cost least per message (with 256 KiB, sends ran at 0.83
#: times their rate with this value), so this only keeps the dispatch queue below its bound, beyond which messages are
#: read back from the log. One iteration of the reactor can append that much: large messages, or a transient commit.
UNCHARGED_BYTES_MAX = QUEUED_BYTES_MAX * 7 // 8
#: Bytes that requests must have appended to pay for that: light senders do not work for heavy ones.
CHARGED_BYTES_MIN = 4 * 1024
#: Delay of the next turn after one that ran out of time, seconds; other work of the reactor comes first.
LATE_S = 0.005
#: Every seventh message that is dispatched alone is timed.
TIMED_EVERY = 7
#: Delay of the next attempt after the disk refused a write, seconds.
RETRY_S = 1.0
#: An almost empty turn costs as much as ten sends, so turns are delayed until they have more to do. With held pulls or
#: readers: until `BUSY_S` (seconds) after the last turn, as in the Java system, once `BUSY_MESSAGES` were dispatched
#: within that time. Without: until about `IDLE_MESSAGES` or `IDLE_BYTES` were appended, which the processor's caches
#: still hold then, or `IDLE_S` have passed.
BUSY_S = 0.001
BUSY_MESSAGES = 32
IDLE_S = 0.05
IDLE_MESSAGES = 500
IDLE_BYTES = 256 * 1024


class Dispatcher:
    """Dispatches appended messages to consume queues and index.

    `offset`: the log offset up to which the consume queues are complete. `on_damage` is called with ranges of the log
    that hold no record. `statistics` records how long puts take.
    """

    log = Logger()

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        cq_dispatcher: ConsumeQueueDispatcher,
        clock: IReactorTime,
        start: int,
        on_damage: Callable[[Damage], None],
        statistics: StoreStatistics,
        why_not: Callable[[OSError], str] = str,
    ) -> None:
        """`why_not`: returns the message for an error of the disk."""
        self._why_not = why_not
        self._commit_log = commit_log
        self._queues = queues
        self._index_dispatcher = IndexDispatcher(index, commit_log, clock.seconds) if index is not None else None
        self._cq_dispatcher = cq_dispatcher
        self._clock = clock
        self._on_damage = on_damage
        self.offset = start
        self._statistics = statistics
        self._failures = Failures()
        self._taken = start  # as `offset`, counting pending entries as written
        self._call: IDelayedCall | None = None
        self._is_started = False
        #: How long the dispatch waits for appends that belong together, seconds.
        self.turn_delay_s = 0.0
        #: Queues with held pulls, by topic and queue id.
        self.awaited: list[Mapping[tuple[str, int], object]] = []
        # When the current `BUSY_S` began, how many messages were dispatched since, and when the last turn was.
        self._busy_since, self._busy_count, self._turn_began = 0.0, 0, 0.0
        #: The time in which about `IDLE_MESSAGES` or `IDLE_BYTES` are appended at the present rate.
        self._idle_s = IDLE_S
        #: Whether the next turn is delayed, and when it is due (clock time).
        self._is_delayed, self._due = False, 0.0
        #: Whether the last turn ran out of time.
        self._is_late = False
        #: Where the log ended when `charge` was called last.
        self._charged = start
        #: Whether the last turn failed; only the timer repeats it.
        self._has_failed = False
        #: Whether listeners of a dispatch may be running; they see what is dispatched so far.
        self._is_dispatching = False
        #: Returns the offset of the log above which nothing is dispatched yet; None where everything is.
        self.limit: Callable[[], int] | None = None

    # Turns

    def start(self) -> None:
        self._is_started = True
        self._cq_dispatcher.entered.clear()
        self._commit_log.on_dispatchable.append(self._schedule_more)
        self._schedule()

    def stop(self) -> None:
        """Stop scheduling turns."""
        self._is_started = False
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _schedule(self, delay_s: float = 0) -> None:
        if self._call is None and self._is_started:
            self._due = self._clock.seconds() + delay_s
            self._call = self._clock.callLater(delay_s, self._turn)

    @property
    def end(self) -> int:
        """The log offset below which messages may be dispatched."""
        end = self._commit_log.readable_end
        return end if self.limit is None else min(end, self.limit())

    def _schedule_more(self) -> None:
        """Schedule a turn, after an append or after `limit` moved."""
        if self._call is None:
            delay_s = self._delay_s()
            self._is_delayed = delay_s > 0
            self._schedule(max(self.turn_delay_s, delay_s))

    def appended(self, queues: Sequence[ConsumeQueue] | None = None) -> None:
        """Called after an append to these queues (None: unknown): queues with held pulls are dispatched earlier."""
        for waiting in self.awaited:
            if waiting and (queues is None or any((queue.topic, queue.queue_id) in waiting for queue in queues)):
                self.dispatch_earlier()

    def limit_moved(self) -> None:
        """Called when `limit` returns more than before."""
        if self.limit is not None and self._taken < self.end:
            self._schedule_more()
            self.appended()

    def _delay_s(self, is_awaited: bool = False) -> float:
        """Delay of the next turn, seconds."""
        if self._busy_count < (BUSY_MESSAGES if is_awaited else 1):
            return 0
        pause_s = BUSY_S if is_awaited else self._idle_s
        return min(pause_s, self._busy_since + pause_s - self._clock.seconds())

    def dispatch_earlier(self) -> None:
        """Run the delayed turn earlier, because a pull is held from now on."""
        if self._call is None or not self._is_delayed:
            return
        delay_s = max(self.turn_delay_s, self._delay_s(is_awaited=True))
        if self._clock.seconds() + delay_s < self._due:
            self._call.cancel()
            self._call = None
            self._schedule(delay_s)

    def dispatch_delayed(self) -> bool:
        """Run the delayed turn now, for a reader. False if no turn is delayed, or the last one ran a moment ago."""
        if self._call is None or not self._is_delayed or self._delay_s(is_awaited=True) > 0:
            return False
        return self._turn_now()

    def dispatch_queue(self, queue: ConsumeQueue) -> bool:
        """Dispatch the appended messages of a queue now, for a reader at its end. False if nothing changes. Takes about
        `TURN_S`; the next turn does the rest."""
        if self._call is None or self._has_failed:
            return False
        if self._is_delayed:
            return self._turn_now()
        if self._is_dispatching:
            return False
        # The next turn is due anyway: the last one left messages to dispatch or to index.
        before, end, is_over = queue.max_offset, queue.next_offset, self._over_after(TURN_S)
        with suppress(Exception):  # the turn that is due fails as well, and reports it
            while queue.max_offset < end and self.offset < self.end and not is_over():
                self.dispatch(TURN_MESSAGES, is_over)
        return queue.max_offset > before

    def _turn_now(self) -> bool:
        if self._is_dispatching or self._call is None:
            return False
        self._call.cancel()
        self._turn()
        return True

    def _turn(self) -> None:
        self._call, self._is_delayed, self._has_failed = None, False, False
        now = self._clock.seconds()
        if not self._busy_since <= now < self._busy_since + BUSY_S:
            self._busy_since, self._busy_count = now, 0
        passed_s, self._turn_began = now - self._turn_began, now
        before, taken = self._busy_count, self._taken
        is_over = self._over_after(TURN_S)
        try:
            self.dispatch(TURN_MESSAGES, is_over)
            # The queue has what came since the last turn. If each turn left some of it, it would exceed its bound one
            # day, and all be read from the log again, at several times the cost.
            reached = taken
            while reached < self._taken and self._is_next_queued and not is_over():
                reached = self._taken
                self.dispatch(TURN_MESSAGES, is_over)
            part = max((self._busy_count - before) / IDLE_MESSAGES, (self._taken - taken) / IDLE_BYTES)
            self._idle_s = min(IDLE_S, max(BUSY_S, passed_s / part)) if part else IDLE_S
            if self._index_dispatcher is not None and self.offset == self._taken:
                is_over = self._over_after(TURN_S)
                self._index_dispatcher.index(self.offset, TURN_MESSAGES, is_over)
                if not is_over():
                    self._index_dispatcher.index_queued(self.offset, TURN_MESSAGES, is_over)
        except OSError as error:
            # Messages that are in no consume queue cannot be got: refuse more of them.
            why = f"a consume queue or the index cannot be written: {self._why_not(error)}"
            if self._commit_log.refuse(Refusal.NOT_DISPATCHED, why):
                self.log.error("dispatch is waiting for the disk, and messages are refused: {error}", error=error)
            self._has_failed = True
            self._schedule(RETRY_S)
            return
        except Exception:
            self.log.failure("unexpected error in the dispatch, which continues in {seconds} s", seconds=RETRY_S)
            self._has_failed = True
            self._schedule(RETRY_S)
            return
        if self._commit_log.allow(Refusal.NOT_DISPATCHED):
            self.log.info("dispatch continues, messages are accepted again")
        # A limit may be within a record: it is dispatched when the limit moves.
        is_held = self.limit is not None and self.offset == self._taken == taken
        self._is_late = (self.offset < self.end and not is_held) or self._is_index_behind
        if self._is_late:
            self._schedule(LATE_S if is_over() else 0)

    def _over_after(self, seconds: float) -> Callable[[], bool]:
        """A function that returns whether `seconds` have passed since this call."""
        end, now = self._clock.seconds() + seconds, self._clock.seconds
        return lambda: now() >= end

    def charge(self) -> None:
        """Called after a request: dispatch now, at the sender's expense, if too much is undispatched or turns cannot
        keep up, and this request appended a part of it. Hot."""
        end = self.end
        came, self._charged = end - self._charged, end
        is_much = self._is_late or end - self._taken > UNCHARGED_BYTES_MAX
        if is_much and came >= CHARGED_BYTES_MIN and self._call is not None and not self._has_failed:
            self._call.cancel()
            self._turn()

    @property
    def _is_next_queued(self) -> bool:
        dispatch_queue = self._commit_log.dispatch_queue
        return bool(dispatch_queue) and dispatch_queue.begin <= self._taken

    def restart(self, start: int) -> dict[ConsumeQueue, int]:
        """Rebuild the queues that have messages at or above `start` of the log, from there. Returns them, with the
        queue offset of the first of these messages. Raises OSError."""
        restarted: dict[ConsumeQueue, int] = {}
        for queue in self._queues:
            if queue.end_of_last() > start:
                restarted[queue] = queue.search(lambda offset, _: offset < start, queue.first_offset, queue.max_offset)
                queue.reset()
        self.offset = self._taken = start
        return restarted

    def begin_at(self, offset: int) -> None:
        """Go on at `offset`, where an empty log begins now, or above which the queues have nothing any more."""
        self.offset = self._taken = offset

    def catch_up(self) -> None:
        """Dispatch all of the log that may be to the consume queues. Raises OSError."""
        before = -1
        while before < self.offset < self.end:
            before = self.offset
            self.dispatch(TURN_MESSAGES)

    @property
    def _is_index_behind(self) -> bool:
        return self._index_dispatcher is not None and self._index_dispatcher.is_dirty(self.offset)

    def index_all(self) -> None:
        """Bring the index up to date. Raises OSError."""
        if self._index_dispatcher is not None:
            self._index_dispatcher.index_all(self.offset, TURN_MESSAGES)

    def index_queued(self) -> None:
        """Index what waits in memory, unless older messages must be indexed from the log first. Raises OSError."""
        if self._index_dispatcher is not None:
            self._index_dispatcher.index_queued(self.offset, TURN_MESSAGES)

    async def index_in_turns(self) -> None:
        """As `index_queued`, of what waits now, with turns of the clock in between."""
        end, index = self.offset, self._index_dispatcher
        if end < self._taken:  # entries wait for the disk
            return
        while index is not None and not index.index_queued(end, TURN_MESSAGES, self._over_after(TURN_S)):
            await deferLater(self._clock, 0)

    # Consume queues

    def dispatch(self, count: int, is_over: Callable[[], bool] = never) -> None:
        """Write about `count` messages to their consume queues and notify the listeners, some at least and until
        `is_over`. Raises OSError. Messages that stay pending are written by the next call."""
        self._is_dispatching = True
        try:
            self._dispatch(count, is_over)
        finally:
            self._is_dispatching = False

    def _dispatch(self, count: int, is_over: Callable[[], bool]) -> None:
        commit_log, end = self._commit_log, self.end
        if self._cq_dispatcher.has_pending and not self._write_pending(is_over):
            return
        if self._taken >= end:
            return
        queue = commit_log.dispatch_queue
        for found in read_back(commit_log, queue, self._taken, commit_log.readable_end, count, end):
            if found.end > end:
                self._dispatch_below(found, end, is_over)
                break
            if isinstance(found, Run):
                self._dispatch_run(found, is_over)
            else:
                self._on_damage(found)
                self._taken = found.end
            if self._taken < found.end or is_over():
                break
        self._write_pending(is_over)

    def _dispatch_below(self, found: Run | Damage, end: int, is_over: Callable[[], bool]) -> None:
        """Dispatch the records that end at or below `end`, and leave the others for later."""
        if isinstance(found, Damage):
            return
        at, count = found.records_below(end)
        rest = found
        if count:
            appended_ms = found.appended_ms
            run, rest = found.split(at, count)
            run.appended_ms = rest.appended_ms = appended_ms
        self._commit_log.dispatch_queue.put_back(rest)
        if count:
            self._dispatch_run(run, is_over)

    def _dispatch_run(self, run: Run, is_over: Callable[[], bool]) -> None:
        put = partial(self._cq_dispatcher.dispatch_run, is_over=is_over)
        stopped, count = self._failures.put_each(run, put, self._leave_out) or (run.end, run.count)
        if stopped < run.end:
            appended_ms = run.appended_ms
            run, rest = run.split(stopped, count)
            run.appended_ms = rest.appended_ms = appended_ms
            self._commit_log.dispatch_queue.put_back(rest)
        self._busy_count += run.count
        self._taken = run.end
        if self._index_dispatcher is not None:
            self._index_dispatcher.keep(run)
        if run.appended_ms and (run.count > 1 or not run.start % TIMED_EVERY):
            self._statistics.put(run.count, max(run.appended_ms, int(self._due * 1000)))

    def _leave_out(self, row: Row, failure: Failure) -> None:
        start, end = row[3], row[3] + row[4]
        self.log.failure("the message at {offset} of the log is not added to any queue", failure, offset=start)
        why = "it cannot be put into its queue: the log of the broker has the error"
        self._on_damage(Damage(self._commit_log.path_of(start), start, end, why))

    def _write_pending(self, is_over: Callable[[], bool]) -> bool:
        is_all = self._cq_dispatcher.write(is_over)
        if is_all:
            self.offset = self._taken
        return is_all
