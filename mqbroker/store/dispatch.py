"""Dispatch of appended messages to consume queues and index, in turns of the clock.

Appends come from the log's dispatch queue, or from the log itself if they are not in the queue: after a start, or when
it exceeded its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog, Refusal
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.dispatch_queue import Dispatchable, DispatchQueue, ScannedRuns
from mqbroker.store.index import Index, KeyHasher
from mqbroker.store.index_file import IndexRow
from mqbroker.store.logscan import Damage, Run, scan
from mqbroker.store.statistics import StoreStatistics

#: How long pages that were resident count as that, seconds: entries are scattered over the file.
MOMENT_S = 0.5
#: After so many messages without a key a file is assumed to begin where the one before ended.
_LOOKS_MAX = 1000


def _read_back(log: CommitLog, runs: ScannedRuns, start: int, end: int, count: int) -> Iterator[Run | Damage]:
    """As `scan`, with the runs that were scanned when they were appended."""
    while start < end and count > 0:
        run = runs.pop(start)
        if run is None:
            yield from scan(log, start, end, count)
            return
        yield run
        start, count = run.end, count - max(1, len(run.rows))


class IndexDispatcher:
    """Indexes messages that are in consume queues: from a bounded queue in memory, or else from the log. `end` of its
    methods: the consume queues have the log below.

    :param now: seconds.
    """

    def __init__(self, index: Index, commit_log: CommitLog, queues: ConsumeQueues, now: Callable[[], float]) -> None:
        self._now = now
        # When the pages that entries touch were last checked.
        self._looked = 0.0
        self._index = index
        self._commit_log = commit_log
        self._queues = queues
        self._waiting = DispatchQueue()
        self._runs = ScannedRuns()

    def is_dirty(self, end: int) -> bool:
        return self._index.offset < end

    def keep(self, appends: Sequence[Dispatchable], size: int) -> None:
        """Queue appends of `size` bytes of the log, which are the next to enter consume queues."""
        self._waiting.put(appends, size)

    def keep_run(self, run: Run, start: int) -> None:
        """As `keep`, for a run that begins at `start`."""
        self._runs.put(run, start, run.end - start)

    def index(self, end: int, count: int) -> None:
        """Index about `count` messages. Raises OSError."""
        index = self._index
        waiting = self._waiting
        now = self._now()
        if not self._looked <= now < self._looked + MOMENT_S:
            index.read()
            self._looked = now
        while count > 0 and waiting:
            if index.offset < waiting.begin:
                count -= self._index_from_log(waiting.begin, count)
                continue
            appends, taken = waiting.pop(count)
            index.add(appends)
            count -= taken
        if not waiting and index.offset < end and count > 0:
            self._index_from_log(end, count)
        index.write_header()

    def index_all(self, end: int, count: int) -> None:
        """Index everything, about `count` messages at a time. Raises OSError."""
        while self.is_dirty(end):
            self.index(end, count)

    def index_queued(self, end: int, count: int) -> None:
        """Index what waits here, about `count` messages at a time, unless older ones must be indexed from the log
        first. Raises OSError."""
        while self._waiting and self._index.offset >= self._waiting.begin:
            self.index(end, count)

    def _index_from_log(self, end: int, count: int) -> int:
        """Index at most `count` messages below `end` read back from the log; returns their number."""
        index = self._index
        rows: list[IndexRow] = []
        indexed = 0
        indexed_to = index.offset
        queues, rows_of = self._queues, index.rows_of
        for found in _read_back(self._commit_log, self._runs, index.offset, end, count):
            if isinstance(found, Run):
                for topic, queue_id, _, physical_offset, _, sys_flag, timestamp_ms, properties in found.rows:
                    rows += rows_of(queues.open(topic, queue_id), sys_flag, properties, physical_offset, timestamp_ms)
                indexed += len(found.rows)
            else:
                indexed += 1
            indexed_to = found.end
        index.put(rows, end if indexed < count else indexed_to)
        return indexed


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


#: Messages that are dispatched to consume queues (and then indexed) in one turn.
TURN_MESSAGES = 1000
#: One in so many puts that are dispatched alone is timed.
TIMED_EVERY = 7
#: Delay of the next attempt after the disk refused a write, seconds.
RETRY_S = 1.0


class Dispatcher:
    """Dispatches to consume queues and index.

    `offset`: the consume queues have the log below. `on_damage` is called with ranges that hold no record. `statistics`
    gets the times of puts.
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
        """`why_not`: makes the message for an error of the disk."""
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
        self._taken = start  # as `offset`, counting pending entries as written
        self._call: IDelayedCall | None = None
        self._is_started = False
        #: How long appends may wait for their turn, seconds: until what belongs together has come.
        self.turn_delay_s = 0.0

    # Turns

    def start(self) -> None:
        self._is_started = True
        self._cq_dispatcher.entered.clear()
        self._commit_log.on_dispatchable.append(lambda: self._schedule(self.turn_delay_s))
        self._schedule()

    def stop(self) -> None:
        """Stop scheduling turns."""
        self._is_started = False
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
            # The queue has what came since the last turn. If each turn left some of it, it would exceed its bound one
            # day, and all be read from the log again, at several times the cost.
            while self._is_next_queued:
                self.dispatch(TURN_MESSAGES)
            if self._index_dispatcher is not None:
                self._index_dispatcher.index(self.offset, TURN_MESSAGES)
                self._index_dispatcher.index_queued(self.offset, TURN_MESSAGES)
        except OSError as error:
            # Messages that are in no consume queue cannot be got: refuse more of them.
            why = f"a consume queue or the index cannot be written: {self._why_not(error)}"
            if self._commit_log.refuse(Refusal.NOT_DISPATCHED, why):
                self.log.error("dispatch waits for the disk, and messages are refused: {error}", error=error)
            self._schedule(RETRY_S)
            return
        if self._commit_log.allow(Refusal.NOT_DISPATCHED):
            self.log.info("dispatch goes on, messages are accepted again")
        if self.offset < self._commit_log.readable_end or self._is_index_behind:
            self._schedule()

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
        """Go on at `offset`, where an empty log begins now."""
        self.offset = self._taken = offset

    def catch_up(self) -> None:
        """Dispatch the whole log to the consume queues. Raises OSError."""
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
        """Write about `count` messages to their consume queues and notify the listeners. Raises OSError: the messages
        stay pending, and are written by the next call."""
        commit_log = self._commit_log
        dispatch_queue = commit_log.dispatch_queue
        if self._cq_dispatcher.touched:
            self._write_pending()
        while count > 0 and dispatch_queue:
            begin = dispatch_queue.begin
            if self._taken < begin:
                count -= self._dispatch_from_log(begin, count)
                continue
            appends, taken = dispatch_queue.pop(count)
            self._dispatch_appended(appends)
            if len(appends) > 1 or not begin % TIMED_EVERY:
                self._statistics.put(taken, appends[0][1][0][3])
            count -= taken
        if not dispatch_queue and self._taken < commit_log.readable_end and count > 0:
            self._dispatch_from_log(commit_log.readable_end, count)
        self._write_pending()

    def _dispatch_appended(self, appends: Sequence[Dispatchable]) -> None:
        self._cq_dispatcher.dispatch(appends)
        last = appends[-1][1][-1]
        taken_bytes = last[0] + last[2] - self._taken
        self._taken += taken_bytes
        if self._index_dispatcher is not None:
            self._index_dispatcher.keep(appends, taken_bytes)

    def _dispatch_from_log(self, end: int, count: int) -> int:
        """As `_dispatch_appended`, for at most `count` messages below `end` read back from the log; returns their
        number."""
        taken = 0
        for found in _read_back(self._commit_log, self._commit_log.scanned_runs, self._taken, end, count):
            if isinstance(found, Damage):
                taken += 1
                self._on_damage(found)
            else:
                taken += len(found.rows)
                self._cq_dispatcher.dispatch_run(found)
                if self._index_dispatcher is not None:
                    self._index_dispatcher.keep_run(found, self._taken)
            self._taken = found.end
        if taken < count:
            self._taken = end
        return taken

    def _write_pending(self) -> None:
        self._cq_dispatcher.write()
        self.offset = self._taken
