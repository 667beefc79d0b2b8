"""The half message queue and its op queue: which half messages are settled, and the progress of both queues.

After a start the settled ones are read from the op queue, in turns; callers wait for that. The progress of the two
queues is stored as by the Java broker: as offsets of the group CID_RMQ_SYS_TRANS, which are never ahead of what is
synced. A kill or an election may leave the committed message of a half message, or its copy that was put back, without
the op message that follows it: that one is stored then.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.stored_copies import origin, read_queue
from mqbroker.broker.system_topics import NoRealTarget, real_target_of
from mqbroker.broker.topic_table import halved
from mqbroker.broker.transactions.half_message import QUEUE_ID, settled_by, settlement
from mqbroker.errors import StoreError
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.get_message_result import GetMessageStatus
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, Prop, SysFlag
from mqbroker.wire.record import BadRecord, NewMessage, RawRecord, Record, decode_record

log = Logger()


#: Maximum distance of a half message from the first unsettled one: bounds the state in memory.
SPAN_MAX = 64 * 1024 * 1024
#: Half messages that were put back and whose new offset is remembered.
MOVES_MAX = 100_000
#: Open half messages for whose committed messages a start looks, and how many of the last messages of a queue may be
#: such: our brokers store an op message right behind, Java's a few of other threads' messages later.
OPEN_MAX = 100_000
TAIL_MESSAGES = 256
_TRIM_MIN = 64 * 1024
_HALF = TRANS_HALF_TOPIC.encode()
GROUP = "CID_RMQ_SYS_TRANS"
#: Messages per read; reads of resident messages per turn of a start.
READ_MAX = 32
_TURN_READS = 8
_RETRY_SECONDS = 1.0


class SettledState:
    """`progress`: half messages below it are settled. `op_progress`: op messages below it settle none at or above
    `progress`."""

    def __init__(self, progress: int, op_progress: int) -> None:
        self.progress = progress
        #: A byte for each half message from `_base` on, 1 if it is settled.
        self._settled = bytearray()
        self._base = progress
        #: The half message that each op message from `_op_base` on settles; those before `_op_at` are finished.
        self._ops = array("q")
        self._op_base = op_progress
        self._op_at = 0
        self._moves: dict[int, int] = {}

    @property
    def op_progress(self) -> int:
        return self._op_base + self._op_at

    @property
    def next_op(self) -> int:
        """The offset of the next op message."""
        return self._op_base + len(self._ops)

    def is_settled(self, offset: int) -> bool:
        at = offset - self._base
        return at < 0 or (at < len(self._settled) and self._settled[at] == 1)

    def is_open(self, offset: int) -> bool:
        """Whether a half message at `offset` can be settled. Hot."""
        at = offset - self._base
        settled = self._settled
        return at >= 0 and (at >= len(settled) or not settled[at]) and offset < self.progress + SPAN_MAX

    def is_possible(self, offset: int) -> bool:
        """Whether the state of a half message at `offset` fits into the bounds."""
        return 0 <= offset < self.progress + SPAN_MAX

    def settle(self, offset: int, op_offset: int) -> None:
        """Apply the op message at `op_offset`, which settles the half message at `offset`."""
        if op_offset < self.next_op:
            return
        # Unknown op messages in between settle nothing.
        self._ops.extend([-1] * (op_offset - self.next_op))
        self._ops.append(offset if self.is_possible(offset) else -1)
        self._set(offset, offset + 1)

    def settle_all(self, offsets: Sequence[int], op_offset: int) -> None:
        """As `settle`, for consecutive op messages, the first at `op_offset`. Hot."""
        base = self._base
        high = max(offsets)
        if op_offset != self.next_op or min(offsets) < base or not self.is_possible(high):
            for number, offset in enumerate(offsets):
                self.settle(offset, op_offset + number)
            return
        self._ops.extend(offsets)
        settled = self._settled
        settled.extend(bytes(max(0, high + 1 - base - len(settled))))
        for offset in offsets:
            settled[offset - base] = 1
        self._pass_settled()
        self._pass_ops()

    def forget(self, start: int, end: int) -> None:
        """Half messages at start..end are missing: they count as settled."""
        self._set(max(start, self._base), min(end, self.progress + SPAN_MAX))

    def next_open(self, offset: int) -> int:
        """The first half message at or after `offset` that is not settled."""
        at = max(0, offset - self._base)
        if at >= len(self._settled):
            return self._base + at
        found = self._settled.find(0, at)
        return self._base + (found if found >= 0 else len(self._settled))

    def move(self, offset: int, to: int) -> None:
        """A half message was put back: it is at `to` now."""
        if len(self._moves) >= MOVES_MAX:
            del self._moves[next(iter(self._moves))]
        self._moves[offset] = to

    def where(self, offset: int) -> int:
        """The present offset of the half message that was at `offset`."""
        while (moved := self._moves.get(offset)) is not None:
            offset = moved
        return offset

    def _set(self, start: int, end: int) -> None:
        if self._base <= start < end and self.is_possible(end - 1):
            settled = self._settled
            settled.extend(bytes(max(0, end - self._base - len(settled))))
            settled[start - self._base : end - self._base] = b"\x01" * (end - start)
            self._pass_settled()
        self._pass_ops()

    def _pass_settled(self) -> None:
        self.progress = self.next_open(self.progress)
        if self.progress - self._base >= _TRIM_MIN:
            del self._settled[: self.progress - self._base]
            self._base = self.progress

    def _pass_ops(self) -> None:
        ops, at, progress = self._ops, self._op_at, self.progress
        while at < len(ops) and ops[at] < progress:
            at += 1
        if at >= _TRIM_MIN:
            del ops[:at]
            self._op_base += at
            at = 0
        self._op_at = at


def _copied(record: RawRecord) -> int:
    """The physical offset of the half message of which a record is the committed message, or was put back; -1 if it is
    neither. What a producer sends has 0 there, whatever its flags."""
    offset = record.prepared_offset
    if record.topic == _HALF:
        return origin(offset)
    is_committed = record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
    return offset if is_committed and offset > 0 else -1


class HalfQueue:
    """Tracks which half messages are settled, and settles them."""

    def __init__(
        self, store: MessageStore, offsets: OffsetTable, clock: IReactorTime, store_host: bytes, stats: BrokerStats
    ) -> None:
        self._store = store
        self._stats = stats
        self._offsets = offsets
        self._clock = clock
        self._store_host = store_host
        half = self._start_of(TRANS_HALF_TOPIC)
        op = self._start_of(TRANS_OP_HALF_TOPIC)
        self.settled = SettledState(half, op)
        self._saved = (half, op)
        #: Progress of both queues, and the end in the log of the messages that it depends on.
        self._candidate: tuple[int, int, int] | None = None
        self._log_end = 0
        #: Whether the op queue has been read.
        self.is_ready = False
        self._is_stopped = False
        self._waiting: list[Deferred[None]] = []
        self._call: IDelayedCall | None = None

    def _start_of(self, topic: str) -> int:
        low, high = self._store.min_offset(topic, QUEUE_ID), self._store.max_offset(topic, QUEUE_ID)
        known = self._offsets.query(GROUP, topic, QUEUE_ID)
        return low if known is None else min(max(low, known), high)

    # Start and stop

    def start(self) -> None:
        """Start reading the op queue."""
        self._turn()

    def stop(self) -> None:
        """Stop reading; waiting callers fail with StoreError."""
        self.save_progress()
        self._is_stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.errback(StoreError("the broker is stopping"))

    async def ready(self) -> None:
        """Return when the op queue has been read. Raises StoreError if the broker stops before."""
        if not self.is_ready:
            waiter: Deferred[None] = Deferred()
            self._waiting.append(waiter)
            await waiter

    def _turn(self) -> None:
        self._call = None
        loading = ensureDeferred(self._load())
        loading.addErrback(self._not_loaded)

    def _not_loaded(self, failure: Failure) -> None:
        log.failure("the op queue of transactions cannot be read", failure)
        if not self._is_stopped and not self.is_ready:
            self._call = self._clock.callLater(_RETRY_SECONDS, self._turn)

    async def _load(self) -> None:
        """One turn of reading."""
        try:
            is_over = await self._read_entries()
            if is_over and not self._is_stopped:
                await self._settle_copied()
        except StoreError as error:
            if not self._is_stopped:
                log.error("the op queue of transactions cannot be read yet: {why}", why=str(error))
                self._call = self._clock.callLater(_RETRY_SECONDS, self._turn)
            return
        if self._is_stopped:
            return
        if not is_over:
            self._call = self._clock.callLater(0, self._turn)
            return
        self.is_ready = True
        self._log_end = self._store.log_end
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)

    async def _read_entries(self) -> bool:
        """Read some op messages; returns whether those were the last. Raises StoreError."""
        high = self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)
        for _ in range(_TURN_READS):
            records, after = await self.read(TRANS_OP_HALF_TOPIC, self.settled.next_op)
            if after == self.settled.next_op:
                return True
            for record in records:
                offset = settled_by(record)
                self.settled.settle(offset if offset < high else -1, record.queue_offset)
            self.settled.settle(-1, after - 1)  # if the last of them was no message
        return False

    async def _settle_copied(self) -> None:
        """Store the op messages that are missing. Raises StoreError."""
        open_ones, queues = await self._find_open()
        found: dict[int, None] = {}
        for topic, queue_id in queues if open_ones else ():
            low, high = self._store.bounds(topic, queue_id) or (0, 0)
            begin = max(low, high - TAIL_MESSAGES)
            async for record in read_queue(self._store, self._clock, topic, queue_id, begin):
                offset = open_ones.get(_copied(record))
                if offset is None or (topic == TRANS_HALF_TOPIC and offset == record.queue_offset):
                    continue
                found[offset] = None
                if topic == TRANS_HALF_TOPIC:
                    self.settled.move(offset, record.queue_offset)
        if found and not self._is_stopped:
            log.info(
                "half messages that were already committed or rolled back, and are marked so now: {n}", n=len(found)
            )
            self.settle(found)

    async def _find_open(self) -> tuple[dict[int, int], set[tuple[str, int]]]:
        """The queue offsets of open half messages by their physical ones, and by those that they had before they were
        put back; and the queues in which copies of them would be. Raises StoreError."""
        settled, end = self.settled, self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)
        open_ones: dict[int, int] = {}
        queues = {(TRANS_HALF_TOPIC, QUEUE_ID)}
        at, reads = settled.next_open(settled.progress), 0
        while at < end and not self._is_stopped:
            records, after = await self.read(TRANS_HALF_TOPIC, at)
            if after <= at:
                break
            for record in records:
                if settled.is_settled(record.queue_offset):
                    continue
                open_ones[record.physical_offset] = record.queue_offset
                if record.prepared_offset < 0:
                    open_ones.setdefault(origin(record.prepared_offset), record.queue_offset)
                try:
                    topic, queue_id = real_target_of(record)
                except NoRealTarget:
                    continue
                if Prop.DELAY_TIME_LEVEL in record.properties:
                    queues.update(name for name in self._store.queues_by_name if name[0] == SCHEDULE_TOPIC)
                queues.update((topic.decode(), possible) for possible in halved(queue_id))
            while len(open_ones) > OPEN_MAX:
                del open_ones[next(iter(open_ones))]
            at, reads = settled.next_open(after), reads + 1
            if reads % _TURN_READS == 0:
                await deferLater(self._clock, 0)
        return open_ones, queues

    async def read(self, topic: str, offset: int) -> tuple[list[Record], int]:
        """Messages at or after `offset` of one of the two queues, and the next offset: `offset` if there are no more.

        Raises StoreError.
        """
        found = self._store.get(topic, QUEUE_ID, offset, READ_MAX)
        if isinstance(found, Deferred):
            found = await found
        if found.status is not GetMessageStatus.FOUND:
            return [], max(offset, found.next_offset)
        data = memoryview(b"".join(found.pieces))
        records: list[Record] = []
        at = 0
        try:
            while at < len(data):
                records.append(decode_record(data, at))
                at += records[-1].store_size
        except BadRecord as error:
            bad = records[-1].queue_offset + 1 if records else offset
            log.error("{topic} has a message at {n} that cannot be read: {why}", topic=topic, n=bad, why=str(error))
            return records, bad + 1
        return records, found.next_offset

    # Settling

    def settle(self, settled: Mapping[int, NewMessage | None]) -> list[Appended]:
        """Settle half messages, each with the message that replaces it, if any; returns where that and the op message
        were stored.

        All or none of it is stored, each replacement before its op message. Raises StoreError.
        """
        if not settled:
            return []
        messages = settlement(settled.items(), int(self._clock.seconds() * 1000), self._store_host)
        appended = self._store.append(messages)
        physical, last_op, size, _ = appended[-1]
        self.settled.settle_all(list(settled), last_op + 1 - len(settled))
        self._log_end = physical + size
        self._stats.stored_again(len(messages) - len(settled))
        return appended

    def put_back(self, halves: Mapping[int, NewMessage]) -> list[Appended]:
        """Replace half messages by copies; returns where those are. Raises StoreError."""
        appended = self.settle(halves)[::2]
        for offset, placed in zip(halves, appended, strict=True):
            self.settled.move(offset, placed[1])
        return appended

    # Progress

    def save_progress(self) -> None:
        """Commit the progress of both queues to the offset table, as far as it is settled."""
        if self.is_ready:
            self._commit_candidate()
            if self._candidate is None:
                self._candidate = self.settled.progress, self.settled.op_progress, self._log_end
            self._commit_candidate()

    def _commit_candidate(self) -> None:
        if self._candidate is None or self._store.settled < self._candidate[2]:
            return
        (half, op, _), self._candidate = self._candidate, None
        if (half, op) == self._saved:
            return
        self._saved = half, op
        self._offsets.commit(GROUP, TRANS_HALF_TOPIC, QUEUE_ID, half, is_own=True)
        self._offsets.commit(GROUP, TRANS_OP_HALF_TOPIC, QUEUE_ID, op, is_own=True)
