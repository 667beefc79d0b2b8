"""Dispatch: what was appended to the log enters consume queues and index, a turn of the clock at a time.

It takes appends from the log's pile, and from the log itself what is not in the pile: after a start, or when the pile
grew over its bound. Must never know who waits for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog, Dispatchable
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.index import Index
from mqbroker.store.index_dispatcher import IndexDispatcher, pop_adjoining
from mqbroker.store.logscan import Damage, scan
from mqbroker.store.statistics import StoreStatistics

#: Messages for which consume queues (and then index) are written in one turn.
TURN_MESSAGES = 1000
#: Of puts that have a turn for themselves one in so many is timed, as their places in the log will have it.
TIMED_EVERY = 7
#: How long after the disk refused a write the next try is.
RETRY_S = 1.0


class Dispatcher:
    """Feeds consume queues and index.

    `offset`: all of the log below is in the consume queues. `on_damage` is told of bytes that hold no record.
    `statistics` is told how long puts took.
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
        """`why_not`: what a person is told of an error of the disk."""
        self._why_not = why_not
        self._commit_log = commit_log
        self._queues = queues
        self._index_dispatcher = (
            IndexDispatcher(index, commit_log, queues, clock.seconds) if index is not None else None
        )
        self._cq_dispatcher = cq_dispatcher
        self._clock = clock
        self._on_damage = on_damage
        self.offset = start
        self._statistics = statistics
        self._taken = start  # as offset, but pending entries of queues count as written
        self._call: IDelayedCall | None = None
        self._is_started = False

    # Turns

    def start(self) -> None:
        self._is_started = True
        self._cq_dispatcher.entered.clear()
        self._commit_log.on_dispatchable = self._schedule
        self._schedule()

    def stop(self) -> None:
        """Take no more turns of the clock's."""
        self._is_started = False
        self._commit_log.on_dispatchable = lambda: None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _schedule(self, delay_s: float = 0) -> None:
        if self._call is None and self._is_started:
            self._call = self._clock.callLater(delay_s, self._turn)

    def _turn(self) -> None:
        self._call = None
        try:
            self.dispatch(TURN_MESSAGES)
            # What is piled came since the last turn. Were some of it left each time, it would be too much one day, and
            # all be read from the log again, at several times the cost.
            while self._is_next_piled:
                self.dispatch(TURN_MESSAGES)
            if self._index_dispatcher is not None:
                self._index_dispatcher.index(self.offset, TURN_MESSAGES)
                self._index_dispatcher.index_queued(self.offset, TURN_MESSAGES)
        except OSError as error:
            if not self._commit_log.why_behind:
                self.log.error("dispatch waits for the disk, and no messages are taken: {error}", error=error)
            # What is not in a consume queue nobody can get: no more of that.
            self._commit_log.why_behind = f"a consume queue or the index cannot be written: {self._why_not(error)}"
            self._schedule(RETRY_S)
            return
        if self._commit_log.why_behind:
            self._commit_log.why_behind = ""
            self.log.info("dispatch goes on, messages are taken again")
        if self.offset < self._commit_log.readable_end or self._is_index_behind:
            self._schedule()

    @property
    def _is_next_piled(self) -> bool:
        dispatch_queue = self._commit_log.dispatch_queue
        return bool(dispatch_queue) and dispatch_queue[0][1][0][0] <= self._taken

    def restart(self, start: int) -> dict[ConsumeQueue, int]:
        """Build the queues that have messages at or above `start` of the log anew, from there. Returns those, with the
        number that the first of these messages had. Raises OSError."""
        restarted: dict[ConsumeQueue, int] = {}
        for queue in self._queues:
            if queue.end_of_last() > start:
                restarted[queue] = queue.search(lambda offset, _: offset < start, queue.first_offset, queue.max_offset)
                queue.reset()
        self.offset = self._taken = start
        return restarted

    def catch_up(self) -> None:
        """Dispatch to the consume queues all that is in the log. Raises OSError."""
        while self.offset < self._commit_log.readable_end:
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

    # Consume queues

    def dispatch(self, count: int) -> None:
        """Write about `count` messages to their consume queues and tell the listeners. Raises OSError: what was
        taken waits, and is written by the next call."""
        commit_log = self._commit_log
        dispatch_queue = commit_log.dispatch_queue
        if self._cq_dispatcher.touched:
            self._write_pending()
        while count > 0 and dispatch_queue:
            begin = dispatch_queue[0][1][0][0]
            if self._taken < begin:
                count -= self._take_from_log(begin, count)
                continue
            appends, taken = pop_adjoining(dispatch_queue, count)
            self._take(appends)
            if len(appends) > 1 or not begin % TIMED_EVERY:
                self._statistics.put(taken, appends[0][1][0][3])
            count -= taken
        if not dispatch_queue:
            commit_log.pile_bytes = 0
            if self._taken < commit_log.readable_end and count > 0:
                self._take_from_log(commit_log.readable_end, count)
        self._write_pending()

    def _take(self, appends: Sequence[Dispatchable]) -> None:
        self._cq_dispatcher.take(appends)
        last = appends[-1][1][-1]
        taken_bytes = last[0] + last[2] - self._taken
        self._commit_log.pile_bytes -= taken_bytes
        self._taken += taken_bytes
        if self._index_dispatcher is not None:
            self._index_dispatcher.keep(appends, taken_bytes)

    def _take_from_log(self, end: int, count: int) -> int:
        """As `_take`, for at most `count` messages below `end` read back from the log; says how many there were."""
        taken = 0
        for found in scan(self._commit_log, self._taken, end, count):
            if isinstance(found, Damage):
                taken += 1
                self._on_damage(found)
            else:
                taken += len(found.rows)
                self._cq_dispatcher.take_run(found)
            self._taken = found.end
        if taken < count:
            self._taken = end
        return taken

    def _write_pending(self) -> None:
        self._cq_dispatcher.write()
        self.offset = self._taken
