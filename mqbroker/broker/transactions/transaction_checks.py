"""Transaction checks: producers are asked about half messages that they did not settle in time.

A round covers the half messages that exist when it begins, some in each turn of the clock. A checked message is put
back at the end of the queue, with its check count, so that the queue advances; one that was checked often enough, or is
older than messages are kept, is moved to TRANS_CHECK_MAX_TIME_TOPIC. Rules are those of TransactionalMessageServiceImpl
of 4.9.7, except that a message that is not due yet does not count as checked.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.system_topics import NoRealTarget, real_target_of
from mqbroker.broker.transactions.half_message import (
    check_limit_exceeded,
    check_request,
    check_times,
    immunity_ms,
    put_back,
    real_topics,
)
from mqbroker.broker.transactions.half_queue import HalfQueue
from mqbroker.config import BrokerSettings
from mqbroker.errors import MessageRefused, MQError, StoreError
from mqbroker.remoting.handlers import IConnection
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, Prop
from mqbroker.wire.record import NewMessage, Record

log = Logger()

_HOUR_MS = 3_600_000


class Step(enum.Enum):
    """Action for an unsettled half message."""

    WAIT = "wait"
    SPARE = "spare"
    ASK = "ask"
    GIVE_UP = "give up"


@attrs.frozen
class TransactionCheckRules:
    """When a half message is checked, and how often."""

    timeout_ms: int
    checks_max: int
    reserved_ms: int

    @classmethod
    def of(cls, settings: BrokerSettings) -> TransactionCheckRules:
        reserved_ms = settings.store.file_reserved_time_hours * _HOUR_MS
        return cls(settings.transaction_time_out_ms, settings.transaction_check_max, reserved_ms)

    def step(self, record: Record, now_ms: float) -> Step:
        """SPARE: not due yet, but those behind it may be; WAIT: nor are those."""
        age_ms = now_ms - record.born_timestamp
        asked = check_times(record)
        if (asked and asked >= self.checks_max) or age_ms > self.reserved_ms:
            return Step.GIVE_UP
        immune_ms = immunity_ms(record)
        if immune_ms is not None:
            return Step.SPARE if age_ms < immune_ms else Step.ASK
        # One whose producer's clock is ahead is checked at once.
        return Step.WAIT if 0 <= age_ms < self.timeout_ms else Step.ASK


@attrs.define(eq=False)
class TransactionChecks:
    """Checks the half messages, every `transactionCheckInterval`.

    :param choose: returns a connection of a group's producer that may write to topics; None without one.
    :param make_topic: creates a topic of one queue, if it is missing.
    """

    _store: MessageStore
    _half_queue: HalfQueue
    _live: LiveSettings
    _clock: IReactorTime
    _choose: Callable[[str, Sequence[str]], IConnection | None] = attrs.field(kw_only=True)
    _make_topic: Callable[[str], object] = attrs.field(kw_only=True)
    _is_running: bool = attrs.field(init=False, default=False)
    _call: IDelayedCall | None = attrs.field(init=False, default=None)
    _round: Deferred[None] | None = attrs.field(init=False, default=None)
    _sleep: Deferred[None] | None = attrs.field(init=False, default=None)
    #: Half messages of the running round, by producer group: those without a producer to ask, and those given up.
    _unasked: Counter[str] = attrs.field(init=False, factory=Counter)
    _given_up: Counter[str] = attrs.field(init=False, factory=Counter)

    def start(self) -> None:
        self._is_running = True
        self._later()

    def stop(self) -> None:
        """Stop, ending a running round where it is."""
        self._is_running = False
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._wake()

    def _later(self) -> None:
        if self._is_running:
            self._call = self._clock.callLater(self._live.current.transaction_check_interval_ms / 1000, self._begin)

    def _begin(self) -> None:
        self._call = None
        self._round = ensureDeferred(self._check_all())
        self._round.addErrback(lambda failure: log.failure("a round of checks of transactions failed", failure))
        self._round.addCallback(lambda _: self._later())

    # A round

    async def _check_all(self) -> None:
        try:
            await self._half_queue.ready()
            self._make_topic(TRANS_HALF_TOPIC)
            await self._check(self._store.max_offset(TRANS_HALF_TOPIC, 0), TransactionCheckRules.of(self._live.current))
        except StoreError as error:
            if self._is_running:
                log.error("transactions are not checked now: {why}", why=str(error))
        self._half_queue.save_progress()
        self._report()

    def _report(self) -> None:
        """Log, once a round for each group, what its producers are to blame for."""
        for group, count in self._unasked.items():
            line = (
                "no producer of {group} is connected to check its half messages: {n}; start one, or they are moved to "
                "TRANS_CHECK_MAX_TIME_TOPIC"
            )
            log.warn(line, group=group, n=count)
        for group, count in self._given_up.items():
            log.warn(
                "half messages of {group} that its producers neither committed nor rolled back: {n}; they are not "
                "checked any more, and were moved to {topic}",
                group=group, n=count, topic=TRANS_CHECK_MAX_TIME_TOPIC,
            )  # fmt: skip
        self._unasked.clear()
        self._given_up.clear()

    async def _check(self, end: int, rules: TransactionCheckRules) -> None:
        """Check all half messages below `end`. Raises StoreError."""
        settled = self._half_queue.settled
        at = settled.next_open(settled.progress)
        while at < end:
            records, after = await self._half_queue.read(TRANS_HALF_TOPIC, at)
            if after <= at or self._is_stopped():
                return
            self._forget_missing(at, after, records)
            open_ones = [
                each for each in records if each.queue_offset < end and not settled.is_settled(each.queue_offset)
            ]
            if not self._deal_with(open_ones, rules):
                return
            at = settled.next_open(after)
            await self._turn()
            if self._is_stopped():
                return

    def _is_stopped(self) -> bool:
        return not self._is_running

    def _forget_missing(self, start: int, end: int, records: list[Record]) -> None:
        """Count missing half messages among start..end as settled: they are corrupt or deleted."""
        for record in records:
            self._half_queue.settled.forget(start, record.queue_offset)
            start = record.queue_offset + 1
        self._half_queue.settled.forget(start, end)

    async def _turn(self) -> None:
        """Wait for the reactor's next iteration."""
        self._sleep = Deferred()
        call = self._clock.callLater(0, self._wake)
        await self._sleep
        if call.active():
            call.cancel()

    def _wake(self) -> None:
        sleep, self._sleep = self._sleep, None
        if sleep is not None:
            sleep.callback(None)

    def _deal_with(self, records: list[Record], rules: TransactionCheckRules) -> bool:
        """Check these half messages; False if those behind them are too young."""
        now_ms = self._clock.seconds() * 1000
        backs: list[tuple[Record, NewMessage]] = []
        asked: list[Record] = []
        gone: dict[int, NewMessage] = {}
        is_over = False
        for record in records:
            try:
                step = rules.step(record, now_ms)
                if step is Step.WAIT:
                    is_over = True
                    break
                if step is Step.GIVE_UP or not _is_good(record):
                    log.info("the half message {key} is no longer checked", key=_key(record))
                    self._given_up[_group_of(record)] += 1
                    gone[record.queue_offset] = check_limit_exceeded(record)
                    continue
                counted = _counted(record) if step is Step.ASK else record
                backs.append((counted, put_back(counted, counted.properties)))
            except Exception:  # of one message: the others are checked
                log.failure("the half message {key} is not checked in this round", key=_key(record))
                continue
            if step is Step.ASK:
                asked.append(counted)
        if gone:
            self._give_up(gone)
        placed = self._put_back(backs)
        for record in asked:
            self._ask(_placed(record, placed[record.queue_offset]))
        return not is_over

    def _give_up(self, gone: dict[int, NewMessage]) -> None:
        self._make_topic(TRANS_CHECK_MAX_TIME_TOPIC)
        try:
            self._half_queue.settle(gone)
        except Exception as error:
            if not _is_of_one(error):
                raise
            for offset, new in gone.items():
                self._give_one_up(offset, new)

    def _give_one_up(self, offset: int, new: NewMessage) -> None:
        try:
            self._half_queue.settle({offset: new})
        except MessageRefused as error:
            log.error("the half message at {n} is dropped: {why}", n=offset, why=str(error))
            self._half_queue.settle({offset: None})
        except Exception as error:
            if not _is_of_one(error):
                raise
            log.failure("the half message at {n} cannot be moved to TRANS_CHECK_MAX_TIME_TOPIC", n=offset)

    def _put_back(self, backs: list[tuple[Record, NewMessage]]) -> dict[int, Appended | None]:
        """Put half messages back; returns the new place of each, None if it stays."""
        try:
            appended = self._half_queue.put_back({record.queue_offset: new for record, new in backs})
        except Exception as error:
            if not _is_of_one(error):
                raise
            return {record.queue_offset: self._put_one_back(record, new) for record, new in backs}
        return {record.queue_offset: placed for (record, _), placed in zip(backs, appended, strict=True)}

    def _put_one_back(self, record: Record, new: NewMessage) -> Appended | None:
        try:
            return self._half_queue.put_back({record.queue_offset: new})[0]
        except MessageRefused as error:
            # With one property more it may be too large.
            log.error("the half message {key} is not checked again: {why}", key=_key(record), why=str(error))
            return None
        except Exception as error:
            if not _is_of_one(error):
                raise
            log.failure("the half message {key} is not checked again", key=_key(record))
            return None

    def _ask(self, record: Record) -> None:
        group = _group_of(record)
        connection = self._choose(group, real_topics(record))
        if connection is None:
            self._unasked[group] += 1
            return
        try:
            connection.invoke_oneway(check_request(record))
        except MQError as error:
            log.info("{group} cannot be asked about {key}: {why}", group=group, key=_key(record), why=str(error))
            self._unasked[group] += 1
        except Exception:
            log.failure("{group} cannot be asked about {key}", group=group, key=_key(record))


def _group_of(record: Record) -> str:
    return record.properties.get(Prop.PRODUCER_GROUP, "")


def _is_of_one(error: Exception) -> bool:
    """Whether an append may have failed because of one of its messages. Of what is not a refusal that is not known."""
    return isinstance(error, MessageRefused) or not isinstance(error, StoreError | MemoryError)


def _is_good(record: Record) -> bool:
    try:
        real_target_of(record)
    except NoRealTarget:
        return False
    return True


def _counted(record: Record) -> Record:
    times = str(check_times(record) + 1)
    return attrs.evolve(record, properties={**record.properties, Prop.TRANSACTION_CHECK_TIMES: times})


def _placed(record: Record, appended: Appended | None) -> Record:
    if appended is None:  # perhaps it has no room for its count
        kept = {name: record.properties[name] for name in record.properties if name != Prop.TRANSACTION_CHECK_TIMES}
        return attrs.evolve(record, properties=kept)
    return attrs.evolve(record, physical_offset=appended[0], queue_offset=appended[1])


def _key(record: Record) -> str:
    return record.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or f"at {record.physical_offset}"
