"""Reads that brokers filter: what they find, how far they get, what is lost; and the columns of the Kafka source."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.client.subscription import Sql
from mqbroker.errors import Refused
from mqbroker.spark import source
from mqbroker.spark.errors import BadOption, BadSchema, DataLoss
from mqbroker.spark.options import parse_options
from mqbroker.spark.source import RocketMQDataSource
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog, Want

QUEUE, OTHER = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)
SCHEMA = StructType().add("queueOffset", LongType()).add("tags", StringType()).add("body", BinaryType())


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Brokers compare the hashes of tags, and those of Aa and BB are the same."""
    log = FakeLog()
    for n in range(300):
        tags = {0: "Aa", 1: "BB", 2: None}[n % 3]
        properties = {"UNIQ_KEY": f"U{n}"} | ({} if tags is None else {"TAGS": tags})
        log.add(QUEUE, 1, properties=properties)
    monkeypatch.setattr(source, "_client", lambda options: log)
    return log


def read(**options: str) -> list[int]:
    """The offsets that a batch returns."""
    given = {"nameServer": "here:1", "topic": "orders", "retryTimeoutMs": "0"} | options
    reader = RocketMQDataSource(given).reader(SCHEMA)
    return [n for part in reader.partitions() for found in reader.read(part) for n in found.column(0).to_pylist()]


def test_tags_are_compared_by_text_as_brokers_compare_hashes(log: FakeLog) -> None:
    assert read(tags="Aa") == list(range(0, 300, 3))
    assert read(tags="BB || Aa") == [n for n in range(300) if n % 3 != 2]
    assert read(tags="*") == list(range(300))
    assert read(tags="paid") == []


def test_a_range_that_brokers_filter_ends_where_it_should(log: FakeLog) -> None:
    ends = {"startingOffsets": '{"orders":{"a":{"0":4}}}', "endingOffsets": '{"orders":{"a":{"0":98}}}'}
    assert read(tags="Aa", **ends) == list(range(6, 98, 3))
    assert read(tags="Aa", maxRecordsPerPartition="7", **ends) == list(range(6, 98, 3))


def test_a_property_that_is_not_utf_8_is_no_obstacle_to_a_filter(log: FakeLog) -> None:
    log.records[QUEUE][1] = log.records[QUEUE][1].replace(b"U1", b"U\xff")
    log.records[QUEUE][3] = log.records[QUEUE][3].replace(b"U3", b"U\xff")
    assert read(tags="Aa", maxRecordsPerPartition="10")[:4] == [0, 3, 6, 9]


def test_messages_deleted_under_a_filter_are_a_loss_all_the_same(log: FakeLog, tmp_path: Path) -> None:
    def delete(want: Want) -> RawPull | None:
        log.first[QUEUE] = 100
        return None

    log.faults = [delete]
    with pytest.raises(DataLoss, match="AGED_OUT"):
        read(tags="Aa")
    log.first = {}
    assert read(tags="Aa", failOnDataLoss="false", dataLossTo=str(tmp_path)) == list(range(102, 300, 3))
    (row,) = tmp_path.glob("*.json")
    assert '"fromOffset": 0, "toOffset": 100' in row.read_text()


def test_exactly_the_message_that_does_not_decode_is_skipped_under_a_filter(log: FakeLog) -> None:
    log.records[QUEUE][30] = log.records[QUEUE][30].replace(b"body", b"b0dy")
    with pytest.raises(DataLoss, match="CORRUPT"):
        read(tags="Aa")
    assert read(tags="Aa", failOnDataLoss="false") == [n for n in range(0, 300, 3) if n != 30]


def test_an_answer_with_other_offsets_is_refused(log: FakeLog) -> None:
    log.faults = [lambda want: RawPull(PullStatus.FOUND, 300, 0, 300, b"".join(log.records[QUEUE][5:2:-1]))]
    with pytest.raises(DataLoss, match="received other offsets"):
        read(tags="Aa")


def test_a_broker_without_sql92_is_named_with_its_setting(log: FakeLog) -> None:
    log.faults = [lambda want: Refused(1, "The broker does not support consumer to filter message by SQL92")]
    with pytest.raises(BadOption, match=r"option sql92: broker a refuses it.*enablePropertyFilter=true"):
        read(sql92="shop = '7'")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tags": "a", "sql92": "b = 1"}, "option sql92: tags and sql92 are two filters"),
        ({"tags": "||"}, "option tags: .* names no tag"),
        ({"tags": "a = 1"}, "option tags: .*is an SQL92 expression"),
        ({"sql92": "a ="}, "option sql92: "),
        ({"schema": "avro"}, "option schema: 'avro' is not one of rocketmq, kafka"),
    ],
)
def test_filters_that_are_none_are_refused(log: FakeLog, options: dict[str, str], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        read(**options)


def test_sql92_goes_to_the_brokers_as_it_is() -> None:
    given = {"nameServer": "here:1", "topic": "orders", "sql92": "shop = '7'"}
    assert parse_options(given, streaming=True).expression == Sql("shop = '7'")


def kafka(**options: str) -> tuple[RocketMQDataSource, Any]:
    given = {"nameServer": "here:1", "topic": "orders", "schema": "kafka", "retryTimeoutMs": "0"} | options
    found = RocketMQDataSource(given)
    return found, found.schema()


KAFKA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
)


@pytest.mark.parametrize("is_utf8", [True, False])
def test_the_columns_of_the_kafka_source(log: FakeLog, is_utf8: bool) -> None:
    log.add(OTHER, 1, b"a", properties={"KEYS": "k1 k2", "shop": "7", "TAGS": "paid", "UNIQ_KEY": "u", "till": "3"})
    log.add(OTHER, 1, b"b", properties={"UNIQ_KEY": "u"})
    if not is_utf8:
        log.records[OTHER][1] = log.records[OTHER][1].replace(b"UNIQ_KEY\x01u", b"UNIQ_KEY\x01\xff")
    found, ddl = kafka(assign='{"orders":{"b":[0],"a":[0]}}', topic="")
    assert ddl.startswith("key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp")
    assert ddl.endswith("timestampType int, headers array<struct<key:string,value:binary>>")
    reader = found.reader(KAFKA)
    (batch,) = reader.read(reader.partitions()[1])
    first, second = batch.to_pylist()
    assert first["timestamp"].timestamp() == pytest.approx(1_700_000_000.001)
    assert {name: value for name, value in first.items() if name != "timestamp"} == {
        "key": b"k1 k2",
        "value": b"a",
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "timestampType": 1,
        "headers": [{"key": "shop", "value": b"7"}, {"key": "till", "value": b"3"}],
    }
    assert (second["key"], second["value"], second["offset"], second["headers"]) == (None, b"b", 1, [])


def test_headers_of_the_kafka_source_can_be_left_out_as_there() -> None:
    assert "headers" not in kafka(includeHeaders="false")[1]
    assert "headers" in kafka(includeHeaders="TRUE")[1]
    with pytest.raises(BadOption, match="option includeHeaders: 'no' is neither true nor false"):
        kafka(includeHeaders="no")
    with pytest.raises(BadSchema, match=r"column queueOffset: messages have no such column; .*value binary"):
        kafka()[0].reader(SCHEMA)
