"""What the how-to pages on Spark say is printed when something goes wrong: each sentence, by an error that has it.

Real Spark prints those of `MISTAKES` and `STREAM_MISTAKES` in test_spark, and of `MISTAKES` in test_sink; here are all
others, and that no sentence is left.
"""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.types import BinaryType, LongType, StructType

from mqbroker.client import SendFailed, SendStatus, TopicNotFound
from mqbroker.client.errors import Creates, NoBrokerForTopic
from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.errors import ConnectionClosed, MQError, Refused, Unreachable
from mqbroker.spark import source
from mqbroker.spark.errors import (
    BadOption,
    BadRow,
    BadSchema,
    DataLoss,
    NotAllowed,
    NotOnExecutors,
    NotReadable,
    NotWritten,
    PySparkTooOld,
)
from mqbroker.spark.java import JavaMissing, check_version, find_java
from mqbroker.spark.sink import refuse_overwriting
from mqbroker.spark.sink_options import choose_sink_columns, parse_sink_options
from mqbroker.spark.source import RocketMQDataSource
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode
from tests.spark import test_sink, test_spark
from tests.spark.fake_log import FakeLog
from tests.spark.test_packing import packed
from tests.spark.test_spark import sentences_of
from tests.spark.test_writing import ONCE, Broker, Clock, write

READS, WRITES = "jobs-on-spark", "write-from-spark"
A0, GONE = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 77)
SCHEMA = StructType().add("queueOffset", LongType()).add("body", BinaryType())


@attrs.define
class Reads:
    """A topic of four messages, and queries of it."""

    log: FakeLog

    def batch(self, **options: str) -> None:
        reader = RocketMQDataSource(self._given(options)).reader(SCHEMA)
        for partition in reader.partitions():
            list(reader.read(partition))

    def stream(self, change: Callable[[], object], **options: str) -> None:
        """A query from the earliest message, and what it meets when it goes on after a `change`."""
        reader = RocketMQDataSource(self._given({"startingoffsets": "earliest"} | options)).streamReader(SCHEMA)
        first = reader.initialOffset()
        reader.partitions(first, first)
        here = reader.latestOffset(first)
        change()
        reader.partitions(here, reader.latestOffset(here))

    def _given(self, options: dict[str, str]) -> dict[str, str]:
        return {"nameserver": "here:1", "topic": "orders", "retrytimeoutms": "0"} | options

    def age_out(self) -> None:
        self.log.add(A0, 4)
        self.log.first[A0] = 6

    def make_again(self) -> None:
        self.log.make_again(A0, 9)

    def damage(self) -> None:
        data = bytearray(self.log.records[A0][1])
        data[data.index(b"body")] ^= 1
        self.log.records[A0][1] = bytes(data)

    def answer(self, answer: RawPull | MQError) -> None:
        self.log.faults.append(lambda want: answer)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    log = FakeLog()
    log.add(A0, 4)
    monkeypatch.setattr(source, "_client", lambda options: log)
    return Reads(log)


def lose(reads: Reads, kind: str) -> None:
    if kind == "AGED_OUT":
        reads.stream(reads.age_out)
    elif kind == "RECREATED":
        reads.stream(reads.make_again)
    elif kind == "QUEUE_GONE":
        reads.log.add(GONE, 5)
        reads.stream(lambda: reads.log.records.pop(GONE))
    elif kind == "CORRUPT":
        reads.damage()
        reads.batch()
    else:
        reads.answer(RawPull(PullStatus.FOUND, 7, 0, 4, b""))
        reads.batch()


def meet(reads: Reads, error: MQError, **options: str) -> None:
    reads.answer(error)
    reads.batch(**options)


_ACCOUNT = Refused(ResponseCode.SYSTEM_ERROR, "AclException: No default permission for topic:orders")
#: Of the guide of reads: the class, how each sentence begins, and what raises it.
OF_READS: list[tuple[type[MQError], str, Callable[[Reads], object]]] = [
    (DataLoss, "ROCKETMQ_DATA_LOSS.AGED_OUT: ", lambda reads: lose(reads, "AGED_OUT")),
    (DataLoss, "ROCKETMQ_DATA_LOSS.RECREATED: ", lambda reads: lose(reads, "RECREATED")),
    (DataLoss, "ROCKETMQ_DATA_LOSS.QUEUE_GONE: ", lambda reads: lose(reads, "QUEUE_GONE")),
    (DataLoss, "ROCKETMQ_DATA_LOSS.CORRUPT: ", lambda reads: lose(reads, "CORRUPT")),
    (DataLoss, "ROCKETMQ_DATA_LOSS.NOT_DENSE: ", lambda reads: lose(reads, "NOT_DENSE")),
    (NotReadable, "queue 0 of topic orders on broker broker-a returns", lambda reads: meet(reads, Unreachable("down"))),
    (NotAllowed, "queue 0 of topic orders on broker broker-a, from offset 0", lambda reads: meet(reads, _ACCOUNT)),
    (BadOption, "option sql92: ", lambda reads: meet(reads, Refused(1, "does not support SQL92"), sql92="a = 1")),
    (NotOnExecutors, "the Python of the executors cannot import mqbroker", lambda _: fail(NotOnExecutors("mqbroker"))),
    (PySparkTooOld, 'the format "rocketmq" needs PySpark 4.0', lambda _: fail(PySparkTooOld("3.5.9"))),
    (JavaMissing, "Java is too old: ", lambda _: check_version("/usr/bin/java", 0, 'openjdk version "11.0.2"')),
    (JavaMissing, "Java not found: ", lambda _: find_java({"PATH": ""})),
]


def fail(error: MQError) -> None:
    raise error


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST])
def test_a_group_that_a_broker_refuses_is_told_as_an_account(reads: Reads, code: int) -> None:
    (sentence,) = [
        each for each in sentences_of(READS) if each.startswith("queue 0 of topic orders on broker broker-a, f")
    ]
    with pytest.raises(NotAllowed, match="group") as caught:
        meet(reads, Refused(code, "no"))
    assert str(caught.value).startswith(sentence)


def test_rows_that_a_broker_finds_too_long_are_told_as_those_of_an_account() -> None:
    (sentence,) = [each for each in sentences_of(WRITES) if "refused by the broker" in each]
    with pytest.raises(NotAllowed, match="maxMessageSize") as caught:
        send(Refused(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(("kind", "begin", "cause"), OF_READS, ids=[begin for _, begin, _ in OF_READS])
def test_a_read_says_what_the_guide_has(
    reads: Reads, kind: type[MQError], begin: str, cause: Callable[[Reads], object]
) -> None:
    (sentence,) = [each for each in sentences_of(READS) if each.startswith(begin)]
    with pytest.raises(kind) as caught:
        cause(reads)
    assert str(caught.value).startswith(sentence)


TWO = [b"x", b"y"]
LONG = b"x" * (4 * 1024 * 1024 + 1)
_CLOSED = SendFailed("orders", [("broker-a", "a:1", ConnectionClosed("a:1"))])


def pack(**rows: Any) -> None:
    packed(rows, partition=0, topic="orders")


def refuse(**options: str) -> None:
    parse_sink_options({"nameServer": "a:1", "topic": "orders"} | options)


def choose(fields: dict[str, str], **options: str) -> None:
    choose_sink_columns(fields.items(), parse_sink_options({"nameServer": "a:1", "topic": "orders"} | options))


def send(
    error: MQError | None, status: SendStatus = SendStatus.SEND_OK, *, is_indexed: bool = True, **options: Any
) -> None:
    broker = Broker(Clock(), [(error, error is None, status)] * 1000, has_index=is_indexed)
    write(broker, [1, 2], partition=0, topic="orders", **options)


#: As `OF_READS`, of the guide of writes.
OF_WRITES: list[tuple[type[MQError], str, Callable[[], object]]] = [
    (BadOption, "option nameServer: is required", lambda: refuse(nameServer="")),
    (BadOption, "option acks: ", lambda: refuse(acks="all")),
    (BadOption, "option kafka.bootstrap.servers: ", lambda: refuse(**{"kafka.bootstrap.servers": "h:1"})),
    (BadOption, "option topic: ", lambda: refuse(topic="my orders")),
    (BadOption, "option mode: ", lambda: refuse_overwriting(is_stream=False)),
    (BadOption, "option outputMode: ", lambda: refuse_overwriting(is_stream=True)),
    (BadSchema, "column body: is missing", lambda: choose({"tags": "string"})),
    (BadSchema, "column body: its type is int", lambda: choose({"body": "int"})),
    (BadSchema, "column delayTimeLevel: ", lambda: choose({"body": "binary", "delayTimeLevel": "int"}, **ONCE)),
    (BadRow, "row 1 of partition 0, column body: is empty", lambda: pack(body=[b"x", b""])),
    (BadRow, "row 1 of partition 0, column body: is 4194305 bytes", lambda: pack(body=[b"x", LONG])),
    (
        BadRow,
        "row 1 of partition 0, column properties: holds",
        lambda: pack(body=TWO, properties=[[], [("a\x02", "1")]]),
    ),
    (BadRow, "row 1 of partition 0, column tags: ", lambda: pack(body=TWO, tags=["a", "a || b"])),
    (
        BadRow,
        "row 1 of partition 0, column queueId: ",
        lambda: pack(body=TWO, brokerName=[None, "broker-a"], queueId=[None, 9]),
    ),
    (TopicNotFound, "No route info", lambda: send(TopicNotFound("orders", ["a:1"], "none has it", Creates.NO))),
    (
        NoBrokerForTopic,
        "No broker for topic orders: ",
        lambda: send(NoBrokerForTopic("orders", "none of its masters lets it be written to")),
    ),
    (NotAllowed, "topic orders, rows 0 to 1 of partition 0: refused by the broker", lambda: send(_ACCOUNT)),
    (
        NotWritten,
        "topic orders, rows 0 to 1 of partition 0: not acknowledged",
        lambda: send(_CLOSED, retryTimeoutMs="5000"),
    ),
    (
        NotWritten,
        "topic orders, rows 0 to 1 of partition 0: broker broker-a has stored",
        lambda: send(None, SendStatus.SLAVE_NOT_AVAILABLE, acks="replicated"),
    ),
    (NotWritten, "topic orders: the broker's index", lambda: send(None, is_indexed=False, **ONCE)),
]


@pytest.mark.parametrize(("kind", "begin", "cause"), OF_WRITES, ids=[begin for _, begin, _ in OF_WRITES])
def test_a_write_says_what_the_guide_has(kind: type[MQError], begin: str, cause: Callable[[], object]) -> None:
    (sentence,) = [each for each in sentences_of(WRITES) if each.startswith(begin)]
    with pytest.raises(kind) as caught:
        cause()
    assert str(caught.value).startswith(sentence)


def test_no_sentence_of_the_guides_is_left_without_a_test() -> None:
    reads = [*(begin for _, _, begin in test_spark.MISTAKES), *(begin for _, _, begin in test_spark.STREAM_MISTAKES)]
    writes = [*(begin for _, _, begin in test_sink.MISTAKES), test_sink.SPECULATIVE]
    for page, begins in (
        (READS, [*reads, *(begin for _, begin, _ in OF_READS)]),
        (WRITES, [*writes, *(begin for _, begin, _ in OF_WRITES)]),
    ):
        sentences = sentences_of(page)
        assert len(sentences) > 20
        assert sorted(begins) == sorted(set(begins))
        assert [each for each in sentences if not any(each.startswith(begin.strip()) for begin in begins)] == []
