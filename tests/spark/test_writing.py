"""One task's sends on a broker that fails as it is told: what is repeated, what is looked up, and what is refused."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import attrs
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from mqbroker.client import SendFailed, SendResult, SendStatus, TopicNotFound
from mqbroker.client.errors import Creates, NoBrokerForTopic
from mqbroker.client.send import Outgoing
from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut, Unreachable
from mqbroker.spark.errors import BadRow, NotAllowed, NotWritten
from mqbroker.spark.packing import FreshIds, Packer, RowIds
from mqbroker.spark.sink_options import choose_sink_columns, parse_sink_options
from mqbroker.spark.writing import TaskWriter, Written, queues_at_start
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.ids import UniqIdSource
from mqbroker.wire.properties import decode_properties

QUEUES = [MessageQueue("T", "broker-a", n) for n in range(4)]
ACCOUNT = Refused(ResponseCode.SYSTEM_ERROR, "AclException: no")
TIMED_OUT = SendFailed("T", [("broker-a", "a:1", RequestTimedOut("5 s"))])
CLOSED = SendFailed("T", [("broker-a", "a:1", ConnectionClosed("a:1"))])


@attrs.define
class Clock:
    time: float = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@attrs.define(slots=False)
class Broker:
    """Stores what is sent, unless `plan` has another outcome for the next sends: an error, whether the messages were
    stored all the same, and the status. `hidden` keys are in the log, and enter the index after so many looks at its
    position."""

    clock: Clock
    plan: list[tuple[MQError | None, bool, SendStatus]] = attrs.field(factory=list)
    stored: list[tuple[str, str]] = attrs.field(factory=list)
    hidden: int = 0
    has_index: bool = True
    asked: list[str] = attrs.field(factory=list)
    sends: list[list[str]] = attrs.field(factory=list)

    def start(self) -> None:
        pass

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return [MessageQueue(topic, q.broker_name, q.queue_id) for q in QUEUES]

    def send(self, outgoing: Outgoing, queue: MessageQueue | None) -> Future[SendResult]:
        entries = decode_batch(outgoing.body)
        rows = [(decode_properties(entry.properties)["UNIQ_KEY"], entry.body.decode()) for entry in entries]
        self.sends.append([text for _, text in rows])
        error, is_stored, status = self.plan.pop(0) if self.plan else (None, True, SendStatus.SEND_OK)
        if is_stored:
            self.stored += rows
        future: Future[SendResult] = Future()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(SendResult(status, "", "", queue or QUEUES[0], 0))
        return future

    def positions(self, topic: str) -> dict[str, tuple[int, int]]:
        self.hidden = max(0, self.hidden - 1)
        return {"broker-a": (100, 100 - self.hidden)}

    def find(self, topic: str, keys: Sequence[str]) -> list[bool]:
        self.asked += keys
        known = set() if self.hidden or not self.has_index else {key for key, _ in self.stored}
        return [key in known for key in keys]

    @property
    def bodies(self) -> list[str]:
        return sorted((text for _, text in self.stored), key=int)


@pytest.fixture
def broker() -> Broker:
    return Broker(Clock())


def write(
    broker: Broker,
    rows: Sequence[int | None],
    attempt: int = 0,
    write_id: str = "w",
    per_batch: int = 10_000,
    partition: int = 3,
    **options: Any,
) -> Written:
    keys = options.pop("keys", None)
    given = parse_sink_options({"nameServer": "a:1", "topic": "T", "batchBytes": "300"} | options)
    fields = [("body", "binary"), ("order", "bigint")] if given.id_columns else [("body", "binary")]
    fields += [("shardingKey", "string")] if keys else []
    arrays = {"body": [None if n is None else str(n).encode() for n in rows], "order": list(rows), "shardingKey": keys}
    types = {"body": pa.binary(), "order": pa.int64(), "shardingKey": pa.string()}
    whole = pa.RecordBatch.from_arrays([pa.array(arrays[n], types[n]) for n, _ in fields], names=[n for n, _ in fields])
    clock = broker.clock
    once = given.guarantee.value == "effectively-once"
    packer = Packer(
        columns=choose_sink_columns(fields, given),
        topic=given.topic,
        batch_bytes=given.batch_bytes,
        partition=partition,
        write_id=write_id,
        ids=RowIds(write_id, partition) if once else FreshIds(UniqIdSource("10.0.0.1", 1, 2, clock.now)),
        queues=queues_at_start(broker, given, clock.now, clock.sleep),
        now_ms=lambda: 0,
    )
    batches = [whole.slice(at, per_batch) for at in range(0, whole.num_rows, per_batch)]
    return TaskWriter(packer, broker, given, attempt, clock.now, clock.sleep).write(batches)


ONCE: dict[str, Any] = {"guarantee": "effectively-once"}


def texts(count: int) -> list[str]:
    return [str(n) for n in range(count)]


def test_all_rows_are_sent_and_counted(broker: Broker) -> None:
    assert write(broker, range(100), per_batch=30) == Written(3, 100, 0)
    assert broker.bodies == texts(100)
    assert len(broker.sends) > 10
    assert not broker.asked


def test_nothing_is_sent_for_no_rows(broker: Broker) -> None:
    assert write(broker, [], **ONCE) == Written(3, 0, 0)
    assert broker.sends == broker.asked == []


def test_a_send_that_failed_is_repeated_until_it_is_acknowledged(broker: Broker) -> None:
    broker.plan = [(TIMED_OUT, False, SendStatus.SEND_OK)] * 3 + [
        (Refused(ResponseCode.SYSTEM_BUSY, ""), False, SendStatus.SEND_OK)
    ]
    assert write(broker, range(10)).sent == 10
    assert broker.bodies == texts(10)


def test_a_write_without_a_broker_fails_after_the_time_for_it(broker: Broker) -> None:
    broker.plan = [(CLOSED, False, SendStatus.SEND_OK)] * 1000
    with pytest.raises(NotWritten, match=r"topic T, rows 0 to 2 of partition 3: not acknowledged within 5000 ms"):
        write(broker, range(3), retryTimeoutMs="5000")
    assert 5 <= broker.clock.time < 8


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TopicNotFound("T", ["a:1"], "none knows it", Creates.NO), TopicNotFound),
        (NoBrokerForTopic("T", "none of its masters lets it be written to"), NoBrokerForTopic),
        (Refused(ResponseCode.MESSAGE_ILLEGAL, "too long"), NotAllowed),
        (ACCOUNT, NotAllowed),
        # The client repeats the code of this refusal.
        (SendFailed("T", [("broker-a", "a:1", ACCOUNT)] * 3), NotAllowed),
    ],
)
def test_what_cannot_pass_is_raised_at_once(broker: Broker, error: MQError, kind: type[MQError]) -> None:
    broker.plan = [(error, False, SendStatus.SEND_OK)]
    with pytest.raises(kind) as caught:
        write(broker, range(3))
    assert len(broker.sends) == 1
    if kind is NotAllowed:
        why = "too long (code 13). Compare" if error.args[0] == ResponseCode.MESSAGE_ILLEGAL else "AclException"
        assert str(caught.value).startswith(f"topic T, rows 0 to 2 of partition 3: refused by the broker: {why}")


def test_an_account_that_may_not_ask_the_index_is_told_at_once(broker: Broker) -> None:
    def refuse(topic: str, keys: Sequence[str]) -> list[bool]:
        raise ACCOUNT

    broker.find = refuse
    with pytest.raises(NotAllowed, match="the index of topic T: refused by the broker: AclException: no"):
        write(broker, range(3), **ONCE)
    assert broker.sends == []
    assert broker.clock.time == 0


@pytest.mark.parametrize("ask", ["find", "positions"])
def test_an_index_that_does_not_answer_ends_the_write_after_the_time_for_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    def time_out(*_: object) -> None:
        broker.clock.sleep(5)
        raise RequestTimedOut("no answer from a:1 in 5000 ms")

    monkeypatch.setattr(broker, ask, time_out)
    with pytest.raises(
        NotWritten, match=r"the index of topic T, .* of partition 3 .*: no answer within 9000 ms \(retryT"
    ):
        write(broker, range(3), retryTimeoutMs="9000", **ONCE)
    assert broker.sends == []
    assert 9 <= broker.clock.time < 20


@pytest.mark.parametrize(
    ("acks", "status", "counts"),
    [
        ("stored", SendStatus.SLAVE_NOT_AVAILABLE, True),
        ("stored", SendStatus.FLUSH_DISK_TIMEOUT, True),
        ("flushed", SendStatus.FLUSH_SLAVE_TIMEOUT, True),
        ("flushed", SendStatus.FLUSH_DISK_TIMEOUT, False),
        ("replicated", SendStatus.FLUSH_DISK_TIMEOUT, False),
        ("replicated", SendStatus.SLAVE_NOT_AVAILABLE, False),
        ("replicated", SendStatus.FLUSH_SLAVE_TIMEOUT, False),
        ("replicated", SendStatus.SEND_OK, True),
    ],
)
def test_acks_says_which_answers_count(broker: Broker, acks: str, status: SendStatus, counts: bool) -> None:
    broker.plan = [(None, True, status)]
    if counts:
        assert write(broker, range(3), acks=acks).sent == 3
    else:
        with pytest.raises(
            NotWritten, match=f"rows 0 to 2 of partition 3: broker broker-a has stored them with {status}"
        ):
            write(broker, range(3), acks=acks)


def test_a_failed_send_of_a_queue_is_not_overtaken(broker: Broker) -> None:
    broker.plan = [(TIMED_OUT, False, SendStatus.SEND_OK)] * 2
    write(broker, range(50), keys=["k"] * 50)
    assert [text for _, text in broker.stored] == texts(50)


def test_a_bad_row_ends_the_write(broker: Broker) -> None:
    with pytest.raises(BadRow, match="row 2 of partition 3, column body"):
        write(broker, [0, 1, None])


def test_an_attempt_that_was_whole_is_not_repeated(broker: Broker) -> None:
    assert write(broker, range(100), **ONCE) == Written(3, 100, 0)
    assert write(broker, range(100), attempt=1, per_batch=7, **ONCE) == Written(3, 0, 100)
    assert broker.bodies == texts(100)


def test_another_write_is_not_taken_for_a_repetition(broker: Broker) -> None:
    for write_id in ("query/1", "query/2"):
        assert write(broker, range(5), write_id=write_id, **ONCE).sent == 5


def test_a_first_attempt_asks_for_its_first_row_alone(broker: Broker) -> None:
    write(broker, range(100), **ONCE)
    # Once before it is sent, once to see that the broker keeps an index.
    assert broker.asked == [broker.stored[0][0]] * 2


def test_the_first_row_is_acknowledged_before_the_second_is_sent(broker: Broker) -> None:
    # Were it in a batch with others under way, it could fail while a later one is stored.
    broker.plan = [(TIMED_OUT, False, SendStatus.SEND_OK)] * 1000
    with pytest.raises(NotWritten):
        write(broker, range(100), retryTimeoutMs="3000", **ONCE)
    assert {tuple(sent) for sent in broker.sends} == {("0",)}


def test_an_attempt_that_was_killed_midway_is_completed(broker: Broker) -> None:
    ended = (None, True, SendStatus.SEND_OK)
    broker.plan = [ended, ended, (Refused(ResponseCode.MESSAGE_ILLEGAL, ""), False, SendStatus.SEND_OK)]
    with pytest.raises(NotAllowed):
        write(broker, range(50), **ONCE)
    before = len(broker.stored)
    assert 1 < before < 50
    assert write(broker, range(50), attempt=1, **ONCE) == Written(3, 50 - before, before)
    assert broker.bodies == texts(50)


def test_rows_in_the_log_that_are_not_in_the_index_yet_are_waited_for(broker: Broker) -> None:
    write(broker, range(50), **ONCE)
    broker.hidden = 20
    assert write(broker, range(50), **ONCE).found == 50
    assert broker.bodies == texts(50)


def test_an_index_that_stays_behind_ends_the_write(broker: Broker) -> None:
    broker.hidden = 10**9
    with pytest.raises(NotWritten, match="the index of broker broker-a is behind its log"):
        write(broker, range(5), retryTimeoutMs="1000", **ONCE)
    assert not broker.stored


def test_a_second_attempt_gives_requests_of_the_first_time_to_arrive(broker: Broker) -> None:
    write(broker, range(5), attempt=1, **ONCE)
    assert broker.clock.time >= 1


def test_a_send_without_an_answer_that_was_stored_is_not_sent_again(broker: Broker) -> None:
    first = (None, True, SendStatus.SEND_OK)
    broker.plan = [first, (TIMED_OUT, True, SendStatus.SEND_OK), (CLOSED, False, SendStatus.SEND_OK)]
    assert write(broker, range(50), **ONCE).sent == 50
    assert broker.bodies == texts(50)


def test_a_first_row_without_an_answer_that_was_stored_is_not_sent_again(broker: Broker) -> None:
    broker.plan = [(TIMED_OUT, True, SendStatus.SEND_OK)]
    assert write(broker, range(50), **ONCE).sent == 50
    assert broker.bodies == texts(50)


def test_a_broker_without_an_index_is_found_out_after_one_row(broker: Broker) -> None:
    broker.has_index = False
    with pytest.raises(NotWritten, match="messageIndexEnable=true"):
        write(broker, range(50), **ONCE)
    assert len(broker.stored) == 1


def test_rows_in_another_order_are_recognised_by_their_columns(broker: Broker) -> None:
    options = ONCE | {"idColumns": "order"}
    write(broker, range(50), **options)
    assert write(broker, range(99, -1, -1), **options) == Written(3, 50, 50)
    assert broker.bodies == texts(100)


def test_what_is_under_way_ends_before_an_error_is_raised() -> None:
    """Otherwise the next attempt would not find it."""
    late: Future[SendResult] = Future()

    class Slow(Broker):
        def send(self, outgoing: Outgoing, queue: MessageQueue | None) -> Future[SendResult]:
            return late

    # The bad row of the second record batch is found meanwhile.
    broker = Slow(Clock())
    ended = threading.Timer(0.05, late.set_result, [SendResult(SendStatus.SEND_OK, "", "", QUEUES[0], 0)])
    ended.start()
    with pytest.raises(BadRow):
        write(broker, [0, None], per_batch=1)
    assert late.done()
    ended.join()


def test_queues_are_asked_for_once_and_an_address_that_is_wrong_is_told_soon(broker: Broker) -> None:
    asked = []

    class Away:
        def queues(self, topic: str) -> Any:
            asked.append(topic)
            raise Unreachable("nobody listens")

    options = parse_sink_options({"nameServer": "a:1", "topic": "T"})
    queues = queues_at_start(Away(), options, broker.clock.now, broker.clock.sleep)  # type: ignore[arg-type]
    with pytest.raises(Unreachable):
        queues("T")
    assert broker.clock.time < 4.5
    assert len(asked) > 2
