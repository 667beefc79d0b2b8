"""Filters that Spark pushes down: what is read because of them, and that the rows are the same as without."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.1")
pytest.importorskip("pyarrow")

from pyspark.sql import datasource
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType, TimestampType

from mqbroker.spark import source
from mqbroker.spark.errors import BadOption
from mqbroker.spark.options import parse_options
from mqbroker.spark.source import BatchReader, PushdownReader, RocketMQDataSource
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog
from tests.spark.test_filters import KAFKA

SCHEMA = (
    StructType()
    .add("topic", StringType())
    .add("brokerName", StringType())
    .add("queueID", IntegerType())  # Spark compares names without regard to case
    .add("queueOffset", LongType())
    .add("tags", StringType())
    .add("storeTimestamp", TimestampType())
)
T0 = datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Two topics on two brokers. Messages are 30 s apart, but for a clock that goes back at times;
    the hashes of the tags Aa and BB are the same."""
    log = FakeLog()
    for number, (topic, broker, queue_id) in enumerate(
        (topic, broker, queue_id) for topic in ("bills", "orders") for broker in "ab" for queue_id in (0, 1)
    ):
        queue = MessageQueue(topic, broker, queue_id)
        for n in range(40 + number):
            stored = 1_700_000_000_000 + n * 30_000 - (50_000 if n % 7 == 3 else 0)
            tags = {0: "Aa", 1: "BB", 2: None, 3: "paid"}[n % 4]
            properties = {"UNIQ_KEY": f"U{n}"} | ({} if tags is None else {"TAGS": tags})
            log.add(queue, 1, store_timestamp=stored, properties=properties)
    monkeypatch.setattr(source, "_client", lambda options: log)
    return log


Condition = tuple[Any, Callable[[dict[str, Any]], bool]]


def conditions(rng: random.Random) -> Condition:
    """A filter, and what it means for a row; null is not true."""
    number, at = rng.randrange(-2, 45), T0 + timedelta(seconds=rng.randrange(-100, 1500), microseconds=rng.randrange(9))
    comparisons: dict[str, Callable[[Any, Any], bool]] = {
        "EqualTo": lambda left, right: left == right,
        "EqualNullSafe": lambda left, right: left == right,
        "GreaterThan": lambda left, right: left > right,
        "GreaterThanOrEqual": lambda left, right: left >= right,
        "LessThan": lambda left, right: left < right,
        "LessThanOrEqual": lambda left, right: left <= right,
    }
    texts = {
        "topic": ["orders", "bills", "x"],
        "brokerName": ["a", "b"],
        "tags": ["Aa", "BB", "paid", " paid", "*", ""],
    }
    name = rng.choice(["topic", "brokerName", "queueID", "queueOffset", "queueOffset", "tags", "storeTimestamp"])
    kind = rng.choice([*comparisons, "In", "IsNotNull", "StringStartsWith"])
    value: Any = rng.choice(texts[name]) if name in texts else at if name == "storeTimestamp" else number % 3
    if name == "queueOffset":
        value = number
    if kind == "In":
        other = rng.choice(texts[name]) if name in texts else number + 2
        value = [value, value if name == "storeTimestamp" else other]
        return datasource.In((name,), value), lambda row: row[name] in value
    if kind == "IsNotNull":
        return datasource.IsNotNull((name,)), lambda row: row[name] is not None
    if kind == "StringStartsWith" and name in texts:
        return datasource.StringStartsWith((name,), value), lambda row: (row[name] or "-").startswith(value)
    kind = kind if kind in comparisons else "EqualTo"
    compare = comparisons[kind]
    return getattr(datasource, kind)((name,), value), lambda row: row[name] is not None and compare(row[name], value)


def rows_of(reader: BatchReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def options(**given: str) -> Any:
    return parse_options({"nameServer": "h:1", "topic": "orders,bills", "retryTimeoutMs": "0"} | given, streaming=False)


def test_pushed_filters_change_no_row(log: FakeLog) -> None:
    every = rows_of(BatchReader(options(), SCHEMA))
    rng = random.Random(5)
    fewer = 0
    for _ in range(300):
        chosen = [conditions(rng) for _ in range(rng.randrange(1, 4))]
        reader = PushdownReader(options(), SCHEMA)
        left = list(reader.pushFilters([each for each, _ in chosen]))
        read = rows_of(reader)
        meaning = {id(each): holds for each, holds in chosen}
        found = [row for row in read if all(meaning[id(each)](row) for each in left)]
        wanted = [row for row in every if all(holds(row) for _, holds in chosen)]
        assert sorted(map(str, found)) == sorted(map(str, wanted)), chosen
        fewer += len(read) < len(every)
    assert fewer > 200


def ranges(log: FakeLog, *filters: Any) -> list[tuple[str, str, int, int, int]]:
    reader = PushdownReader(options(), SCHEMA)
    list(reader.pushFilters(list(filters)))
    found = (part.value for part in reader.partitions())
    return [(r.queue.topic, r.queue.broker_name, r.queue.queue_id, r.start, r.end) for r in found]


def test_only_the_ranges_that_matter_are_read(log: FakeLog) -> None:
    d = datasource
    one = [d.EqualTo(("topic",), "orders"), d.EqualTo(("brokerName",), "a"), d.EqualTo(("queueID",), 1)]
    assert ranges(log, *one) == [("orders", "a", 1, 0, 45)]
    assert ranges(log, *one, d.LessThan(("queueOffset",), 9), d.GreaterThan(("queueOffset",), 3)) == [
        ("orders", "a", 1, 4, 9)
    ]
    assert ranges(log, *one, d.In(("queueOffset",), [7, 5, 6, 20, 99])) == [
        ("orders", "a", 1, 5, 8),
        ("orders", "a", 1, 20, 21),
    ]
    late = d.GreaterThanOrEqual(("storeTimestamp",), T0 + timedelta(seconds=600))
    # The bound, 20 messages on, and a minute before it.
    assert ranges(log, *one, late) == [("orders", "a", 1, 18, 45)]
    assert ranges(log, *one, d.LessThan(("storeTimestamp",), T0 + timedelta(seconds=600))) == [
        ("orders", "a", 1, 0, 23)
    ]


def test_a_filter_whose_meaning_is_not_known_is_left_to_spark(log: FakeLog) -> None:
    d = datasource
    for each in (
        d.Not(d.EqualTo(("topic",), "orders")),
        d.EqualTo(("properties", "shop"), "7"),
        d.EqualTo(("queueOffset",), "7"),
        d.EqualTo(("queueID",), True),
        d.EqualTo(("storeTimestamp",), datetime(2023, 1, 1)),
        d.In(("storeTimestamp",), []),
        d.EqualTo(("tags",), "a || b"),
        d.GreaterThan(("tags",), "a"),
        d.IsNull(("tags",)),
        SimpleNamespace(),
    ):
        reader = PushdownReader(options(), SCHEMA)
        assert list(reader.pushFilters([each])) == [each]
        assert len(reader.partitions()) == 8


def test_tags_are_not_pushed_where_an_option_filters(log: FakeLog) -> None:
    reader = PushdownReader(options(tags="BB"), SCHEMA)
    tags = datasource.EqualTo(("tags",), "Aa")
    assert list(reader.pushFilters([tags])) == [tags]
    assert {row["tags"] for row in rows_of(reader)} == {"BB"}


def test_the_columns_of_the_kafka_source_are_pushed_too(log: FakeLog) -> None:
    d = datasource
    filters = [d.EqualTo(("topic",), "bills"), d.GreaterThanOrEqual(("offset",), 41)]
    reader = PushdownReader(options(schema="kafka"), KAFKA)
    assert list(reader.pushFilters([*filters, d.EqualTo(("partition",), 1)])) == [d.EqualTo(("partition",), 1)]
    assert [part.value.start for part in reader.partitions()] == [41, 41]


def test_a_reader_that_takes_filters_is_only_for_sessions_that_push_them(log: FakeLog) -> None:
    given = {"nameServer": "h:1", "topic": "orders"}
    assert type(RocketMQDataSource(given).reader(SCHEMA)) is BatchReader
    spec = SimpleNamespace(name="pyspark.sql.worker.data_source_pushdown_filters")
    scope = {"__spec__": spec, "source": RocketMQDataSource(given), "schema": SCHEMA}
    exec("reader = source.reader(schema)", scope)  # as the worker that pushes filters calls it
    assert type(scope["reader"]) is PushdownReader


def test_the_index_finds_a_unique_key_where_the_option_allows_it(log: FakeLog) -> None:
    key = datasource.EqualTo(("uniqKey",), "U42")

    def read(**given: str) -> list[tuple[str, int, int]]:
        reader = PushdownReader(options(**given), SCHEMA)
        assert list(reader.pushFilters([key])) == [key]
        found = [part.value for part in reader.partitions()]
        return [(each.queue.topic, each.start, each.end) for each in found]

    assert len(read()) == 8
    # Only queues of 43 messages and more have it.
    assert read(indexLookup="true") == [("bills", 42, 43)] + [("orders", 42, 43)] * 4
    log.index_is_behind = True
    assert len(read(indexLookup="true")) == 8


KEYS = StructType().add("queueOffset", LongType()).add("keys", ArrayType(StringType())).add("prop_KEYS", StringType())


def test_the_index_finds_keys_and_the_rows_are_the_same_as_without(log: FakeLog) -> None:
    log.records.clear()
    for topic in ("orders", "bills"):
        for n in range(40):
            keys = {0: "o-1 o-2", 1: "o-2  o-1", 2: "o-2", 3: ""}[n % 4] if n < 16 else f"k-{n}"
            log.add(MessageQueue(topic, "a", 0), 1, properties={"UNIQ_KEY": f"U{n}"} | ({"KEYS": keys} if keys else {}))
    d = datasource
    for pushed, holds, fewer in (
        (d.EqualTo(("keys",), ["o-1", "o-2"]), lambda row: row["keys"] == ["o-1", "o-2"], True),
        (d.EqualNullSafe(("keys",), ["k-20"]), lambda row: row["keys"] == ["k-20"], True),
        (d.In(("keys",), [["o-2"], ["k-20"], ["none"]]), lambda row: row["keys"] in (["o-2"], ["k-20"]), True),
        (d.EqualTo(("prop_KEYS",), "o-2  o-1"), lambda row: row["prop_KEYS"] == "o-2  o-1", True),
        (d.EqualTo(("keys",), []), lambda row: row["keys"] == [], False),
        (d.EqualTo(("keys",), [None]), lambda row: row["keys"] == [None], False),
        (d.EqualNullSafe(("keys",), None), lambda row: row["keys"] is None, False),
        (d.EqualTo(("prop_KEYS",), " "), lambda row: row["prop_KEYS"] == " ", False),
        (d.In(("keys",), [[f"k-{n}"] for n in range(99)]), lambda row: (row["keys"] or "-")[0][0] == "k", False),
    ):
        given = {"propertyColumns": "KEYS"}
        wanted = [row for row in rows_of(BatchReader(options(**given), KEYS)) if holds(row)]
        for index in ("false", "true"):
            reader = PushdownReader(options(indexLookup=index, **given), KEYS)
            assert list(reader.pushFilters([pushed])) == [pushed]
            read = rows_of(reader)
            assert [row for row in read if holds(row)] == wanted, pushed
            assert (len(read) < 80) == (fewer and index == "true"), pushed


def test_the_index_finds_the_key_of_the_kafka_source(log: FakeLog) -> None:
    log.records.clear()
    for n in range(10):
        log.add(MessageQueue("orders", "a", 0), 1, properties={"UNIQ_KEY": f"U{n}", "KEYS": f"k{n % 3} other"})
    for value, wanted in ((b"k1 other", [1, 4, 7]), (b"\xff", [])):
        reader = PushdownReader(options(topic="orders", schema="kafka", indexLookup="true"), KAFKA)
        list(reader.pushFilters([datasource.EqualTo(("key",), value)]))
        assert [row["offset"] for row in rows_of(reader)] == wanted


SHOPS = StructType().add("queueOffset", LongType()).add("PROP_shop", StringType())


@pytest.mark.parametrize("filters_by_sql", [True, False])
def test_properties_that_are_columns_are_filtered_by_brokers_that_can(log: FakeLog, filters_by_sql: bool) -> None:
    log.records.clear()
    log.filters_by_sql = filters_by_sql
    queue = MessageQueue("orders", "a", 0)
    shops = ["7", "8", None, "o'neill", "7", ""]
    for n in range(60):
        shop = shops[n % len(shops)]
        log.add(queue, 1, properties={"UNIQ_KEY": f"U{n}"} | ({"shop": shop} if shop else {}))
    given = options(topic="orders", propertyColumns="shop,Till")
    for filters, wanted in (
        ([datasource.EqualTo(("PROP_shop",), "7")], {"7"}),
        ([datasource.In(("PROP_shop",), ["7", "8"]), datasource.IsNotNull(("PROP_shop",))], {"7", "8"}),
        ([datasource.EqualTo(("PROP_shop",), "o'neill")], {"7", "8", "o'neill", None}),  # not the same to all brokers
    ):
        reader = PushdownReader(given, SHOPS)
        assert list(reader.pushFilters(filters)) == filters
        found = {row["PROP_shop"] for row in rows_of(reader)}
        assert found == (wanted if filters_by_sql else {"7", "8", "o'neill", None})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"propertyColumns": "a b"}, "'a b' is not the name of a property"),
        ({"propertyColumns": "a,,b"}, "'a,,b' is not"),
        ({"propertyColumns": "shop,SHOP"}, "differ in more than their case"),
        ({"propertyColumns": "shop", "schema": "kafka"}, "schema=kafka has the properties in headers"),
    ],
)
def test_property_columns_that_cannot_be_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(BadOption, match=f"option propertyColumns: .*{why}"):
        options(**given)


def test_columns_of_properties_have_text_or_null(log: FakeLog) -> None:
    log.records.clear()
    queue = MessageQueue("orders", "a", 0)
    log.add(queue, 1, properties={"UNIQ_KEY": "u", "shop": "7"})
    log.add(queue, 1, properties={"UNIQ_KEY": "\xff", "Shop": "8"})
    for is_utf8 in (True, False):
        if not is_utf8:
            log.records[queue][1] = log.records[queue][1].replace("\xff".encode(), b"\xff\xfe")
        reader = BatchReader(options(topic="orders", propertyColumns="shop"), SHOPS)
        assert [row["PROP_shop"] for row in rows_of(reader)] == ["7", None]
