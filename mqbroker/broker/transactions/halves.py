"""Half messages in the store: which of them are settled, settling them, and how far that is.

After a start what is settled is read from the entries of RMQ_SYS_TRANS_OP_HALF_TOPIC, in turns; who needs it waits.
How far the two queues are done with is kept as the Java broker keeps it: as offsets of the group CID_RMQ_SYS_TRANS,
which are never ahead of what is on the disk. Must never know of producers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.stats import BrokerStats
from mqbroker.broker.transactions.ledger import Ledger
from mqbroker.broker.transactions.messages import QUEUE_ID, settled_by, settling
from mqbroker.errors import StoreError
from mqbroker.store.commitlog import Appended, NewMessage
from mqbroker.store.message_store import MessageStore
from mqbroker.store.outcomes import GetStatus
from mqbroker.wire.codes import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from mqbroker.wire.record import BadRecord, Record, decode_record

log = Logger()

GROUP = "CID_RMQ_SYS_TRANS"
#: How many messages are read at once; how many reads of what is in memory make one turn of a start.
READ_MAX = 32
_TURN_READS = 8
_RETRY_SECONDS = 1.0


class _Progress(NamedTuple):
    half: int
    op: int
    #: Where in the log ends what it stands on.
    log_end: int


class HalfMessages:
    """Knows which half messages are settled, and settles them."""

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
        self.ledger = Ledger(half, op)
        self._saved = (half, op)
        self._candidate: _Progress | None = None
        self._log_end = 0
        self._is_loaded = False
        self._is_stopped = False
        self._waiting: list[Deferred[None]] = []
        self._call: IDelayedCall | None = None

    def _start_of(self, topic: str) -> int:
        low, high = self._store.min_offset(topic, QUEUE_ID), self._store.max_offset(topic, QUEUE_ID)
        known = self._offsets.query(GROUP, topic, QUEUE_ID)
        return low if known is None else min(max(low, known), high)

    # Start and stop

    def start(self) -> None:
        """Begin to read what is settled."""
        self._turn()

    def stop(self) -> None:
        """Read no more; who waits for it fails with StoreError."""
        self.save_progress()
        self._is_stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.errback(StoreError("the broker is stopping"))

    @property
    def is_ready(self) -> bool:
        """Whether it is known what is settled."""
        return self._is_loaded

    async def ready(self) -> None:
        """Return when it is known what is settled. Raises StoreError where the broker stops before."""
        if not self._is_loaded:
            waiter: Deferred[None] = Deferred()
            self._waiting.append(waiter)
            await waiter

    def _turn(self) -> None:
        self._call = None
        loading = ensureDeferred(self._load())
        loading.addErrback(lambda failure: log.failure("what is settled of transactions cannot be read", failure))

    async def _load(self) -> None:
        """One turn of reading."""
        try:
            is_over = await self._read_entries()
        except StoreError as error:
            if not self._is_stopped:
                log.error("what is settled of transactions cannot be read yet: {why}", why=str(error))
                self._call = self._clock.callLater(_RETRY_SECONDS, self._turn)
            return
        if self._is_stopped:
            return
        if not is_over:
            self._call = self._clock.callLater(0, self._turn)
            return
        self._is_loaded = True
        self._log_end = self._store.log_end
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)

    async def _read_entries(self) -> bool:
        """Read some entries; returns whether those were the last. Raises StoreError."""
        high = self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)
        for _ in range(_TURN_READS):
            records, after = await self.read(TRANS_OP_HALF_TOPIC, self.ledger.next_op)
            if after == self.ledger.next_op:
                return True
            for record in records:
                offset = settled_by(record)
                self.ledger.settle(offset if offset < high else -1, record.queue_offset)
            self.ledger.settle(-1, after - 1)  # where the last of them was no message
        return False

    async def read(self, topic: str, offset: int) -> tuple[list[Record], int]:
        """Messages at or after `offset` of a queue of ours, and where to go on: at `offset` where there is no more.

        Raises StoreError.
        """
        found = self._store.get_when_ready(topic, QUEUE_ID, offset, READ_MAX)
        if isinstance(found, Deferred):
            found = await found
        if found.status is not GetStatus.FOUND:
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
        """Settle half messages, each with the message that takes its place, if any; where that and what settles it
        were stored.

        All or none of it is stored, and what takes its place before what settles it. Raises StoreError and OSError.
        """
        if not settled:
            return []
        messages = settling(settled.items(), int(self._clock.seconds() * 1000), self._store_host)
        appended = self._store.append(messages)
        physical, last_op, size, _ = appended[-1]
        self.ledger.settle_all(list(settled), last_op + 1 - len(settled))
        self._log_end = physical + size
        self._stats.stored_again(len(messages) - len(settled))
        return appended

    def put_back(self, halves: Mapping[int, NewMessage]) -> list[Appended]:
        """Settle half messages, each with another in its place; where those are. Raises StoreError and OSError."""
        appended = self.settle(halves)[::2]
        for offset, placed in zip(halves, appended, strict=True):
            self.ledger.move(offset, placed[1])
        return appended

    # Progress

    def save_progress(self) -> None:
        """Let the table of offsets know how far both queues are done with, as far as that is on the disk."""
        if self._is_loaded:
            self._commit_candidate()
            if self._candidate is None:
                self._candidate = _Progress(self.ledger.progress, self.ledger.op_progress, self._log_end)
            self._commit_candidate()

    def _commit_candidate(self) -> None:
        candidate = self._candidate
        if candidate is None or self._store.flushed < candidate.log_end:
            return
        self._candidate = None
        half, op, _ = candidate
        if (half, op) == self._saved:
            return
        self._saved = half, op
        self._offsets.commit(GROUP, TRANS_HALF_TOPIC, QUEUE_ID, half, is_own=True)
        self._offsets.commit(GROUP, TRANS_OP_HALF_TOPIC, QUEUE_ID, op, is_own=True)
