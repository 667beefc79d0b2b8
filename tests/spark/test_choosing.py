"""What a query reads: topics, patterns, queues; and where it starts and ends by times and committed offsets."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructType

from mqbroker.spark import source
from mqbroker.spark.errors import BadOption, DataLoss
from mqbroker.spark.options import parse_options
from mqbroker.spark.source import RocketMQDataSource, StreamReader
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog, replace_sleep

A0, A1, B0 = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1), MessageQueue("orders", "b", 0)
BILLS = MessageQueue("bills", "a", 0)
SCHEMA = StructType().add("queueOffset", LongType())
#: When `FakeLog` stores the message at offset 0; each next one comes a millisecond later.
T0 = 1_700_000_000_001


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    log = FakeLog()
    for queue, count in ((A0, 10), (A1, 4), (B0, 6), (BILLS, 3)):
        log.add(queue, count)
    monkeypatch.setattr(source, "_client", lambda options: log)
    return log


def ranges(**options: str) -> dict[MessageQueue, tuple[int, int]]:
    """What a batch reads of each queue."""
    given = {"nameServer": "here:1", "retryTimeoutMs": "0"} | options
    parts = RocketMQDataSource(given).reader(SCHEMA).partitions()
    return {part.value.queue: (part.value.start, part.value.end) for part in parts}


def stream(**options: str) -> StreamReader:
    given = {"nameServer": "here:1", "retryTimeoutMs": "0"} | options
    reader = RocketMQDataSource(given).streamReader(SCHEMA)
    assert isinstance(reader, StreamReader)
    return reader


def triggers(reader: StreamReader) -> Iterator[dict[str, Any]]:
    """The end of each trigger."""
    here = reader.initialOffset()
    while True:
        end = reader.latestOffset(here)
        reader.partitions(here, end)
        here = end
        yield {topic: queues for topic, queues in here.items() if not topic.startswith("#")}


def refusal(**options: str) -> str:
    with pytest.raises(BadOption) as caught:
        ranges(**options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["topic", "subscribe", "path"])
def test_topics_by_name_have_three_names_of_their_own(log: FakeLog, name: str) -> None:
    assert ranges(**{name: "orders, bills"}).keys() == {A0, A1, B0, BILLS}
    assert ranges(paths='["orders","bills"]').keys() == {A0, A1, B0, BILLS}


def test_one_way_of_choosing_is_needed_and_no_two(log: FakeLog) -> None:
    assert "option topic: is required" in refusal()
    assert "set one of topic and assign" in refusal(topic="orders", assign='{"orders":{"a":[0]}}')
    assert "set one of subscribe and what stands in load()" in refusal(subscribe="orders", path="bills")


def test_a_pattern_matches_whole_names_and_nothing_of_the_system(log: FakeLog) -> None:
    log.internal |= {"DefaultCluster", "a"}
    for topic in ("%RETRY%readers", "%DLQ%readers", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster", "order"):
        log.add(MessageQueue(topic, "a", 0), 1)
    assert {queue.topic for queue in ranges(subscribePattern=".*")} == {"orders", "bills", "order"}
    assert {queue.topic for queue in ranges(subscribePattern="order")} == {"order"}
    assert {queue.topic for queue in ranges(subscribePattern="%DLQ%.*|bills")} == {"%DLQ%readers", "bills"}
    assert {queue.topic for queue in ranges(subscribePattern="RMQ_SYS_TRACE_TOPIC")} == {"RMQ_SYS_TRACE_TOPIC"}
    assert "matches no topic" in refusal(subscribePattern="orders.+")
    assert "is not a regular expression of Python" in refusal(subscribePattern="orders(")


def test_a_stream_looks_for_topics_of_its_pattern_at_every_trigger(log: FakeLog) -> None:
    ends = triggers(stream(subscribePattern="bil.*|new.*", startingOffsets="earliest"))
    assert [next(ends), next(ends)] == [{"bills": {"a": {"0": 0}}}, {"bills": {"a": {"0": 3}}}]
    log.add(MessageQueue("news", "a", 0), 5)
    assert next(ends)["news"] == {"a": {"0": 0}}
    assert next(ends)["news"] == {"a": {"0": 5}}
    # A name server forgets the topics of a broker that restarts.
    del log.records[BILLS]
    assert next(ends)["bills"] == {"a": {"0": 3}}


@pytest.mark.parametrize("options", [{}, {"expectBrokers": "a"}])
def test_a_pattern_waits_while_the_name_server_lists_no_topic(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """So it is while the only broker restarts; where one is expected, those of others are not all."""
    waiting, before = list[float](), log.records
    log.records = {BILLS: before[BILLS]} if options else {}
    given = {"subscribePattern": "ord.*", "retryTimeoutMs": "60000"} | options

    def sleep(seconds: float) -> None:
        waiting.append(seconds)
        if len(waiting) == 3:
            log.records = before

    replace_sleep(monkeypatch, sleep)
    assert ranges(**given).keys() == {A0, A1, B0}
    assert len(waiting) == 3
    if not options:
        log.records, waiting[:] = {}, []
        assert next(triggers(stream(**given))) == {"orders": {"a": {"0": 10, "1": 4}, "b": {"0": 6}}}
        log.records = {}
        assert "lists none, as no broker is registered" in refusal(**given | {"retryTimeoutMs": "0"})


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_plan_says_of_which_brokers_it_is(log: FakeLog, caplog: pytest.LogCaptureFixture, is_stream: bool) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        if is_stream:
            next(triggers(stream(topic="orders,bills")))
        else:
            ranges(topic="orders,bills")
    assert caplog.messages == ["queues at the start: bills on a: 1; orders on a: 2; orders on b: 1"] * 2


def test_queues_can_be_assigned(log: FakeLog) -> None:
    chosen = json.dumps({"orders": {"a": [1], "b": [0]}, "bills": {"a": [0]}})
    assert ranges(assign=chosen) == {A1: (0, 4), B0: (0, 6), BILLS: (0, 3)}
    assert next(triggers(stream(assign=chosen))) == {"orders": {"a": {"1": 4}, "b": {"0": 6}}, "bills": {"a": {"0": 3}}}
    assert "queue 7 of topic orders on broker a does not exist" in refusal(assign='{"orders":{"a":[0,7]}}')


def test_an_assigned_queue_that_is_gone_is_a_loss_in_a_run_of_what_is_available(log: FakeLog) -> None:
    options = {"assign": '{"orders":{"a":[0,1]}}', "startingOffsets": "earliest"}
    ends = triggers(stream(**options))
    _, end = next(ends), next(ends)
    del log.records[A1]
    log.add(A0, 1)

    def run(**more: str) -> dict[str, Any]:
        reader = stream(**options | more)
        reader.prepareForTriggerAvailableNow()
        return reader.latestOffset(end)

    with pytest.raises(DataLoss, match="QUEUE_GONE: topic orders, broker a, queue 1"):
        run()
    assert run(failOnDataLoss="false")["orders"] == {"a": {"0": 11, "1": 4}}
    with pytest.raises(BadOption, match="option assign: queue 1 of topic orders on broker a does not exist"):
        stream(**options, failOnDataLoss="false").initialOffset()


@pytest.mark.parametrize(
    "text",
    [
        *("orders", '["orders"]', '{"orders":{}}', '{"orders":{"a":[]}}', '{"orders":{"a":[-1]}}'),
        *('{"orders":{"a":["0"]}}', '{"orders":["a"]}', "{}"),
    ],
)
def test_an_assignment_that_names_no_queues_is_refused(log: FakeLog, text: str) -> None:
    assert refusal(assign=text).startswith("option assign: ")


def test_a_batch_starts_at_the_first_message_stored_at_or_after_a_time(log: FakeLog) -> None:
    assert ranges(topic="orders", startingTimestamp=str(T0 + 3)) == {A0: (3, 10), A1: (3, 4), B0: (3, 6)}
    assert ranges(topic="bills", startingTimestamp="2023-11-14T22:13:20.002Z") == {BILLS: (1, 3)}
    assert ranges(topic="bills", startingTimestamp="2023-11-14T23:13:20.002+01:00") == {BILLS: (1, 3)}
    assert ranges(topic="bills", startingTimestamp="2023-11-14T22:13:20.0011Z") == {BILLS: (1, 3)}
    assert ranges(topic="bills", startingTimestamp="0") == {BILLS: (0, 3)}


def test_an_end_by_time_is_exclusive_and_that_of_the_queue_where_nothing_is_as_late(log: FakeLog) -> None:
    assert ranges(topic="orders", endingTimestamp=str(T0 + 5)) == {A0: (0, 5), A1: (0, 4), B0: (0, 5)}


def test_a_start_later_than_all_messages_is_refused_unless_the_latest_will_do(log: FakeLog) -> None:
    late = {"topic": "orders", "startingTimestamp": str(T0 + 5)}
    assert "queue 1 of topic orders on broker a has no message stored at 2023-11-14T22:13:20.006+00:00" in refusal(
        **late
    )
    assert ranges(**late, startingOffsetsByTimestampStrategy="latest") == {A0: (5, 10), B0: (5, 6)}


def test_queues_may_have_times_of_their_own(log: FakeLog) -> None:
    times = json.dumps({"orders": {"a": {"0": T0 + 7, "1": "2023-11-14T22:13:20.003Z"}}})
    assert ranges(topic="orders", startingOffsetsByTimestamp=times) == {A0: (7, 10), A1: (2, 4), B0: (0, 6)}
    assert ranges(topic="orders", endingOffsetsByTimestamp=times) == {A0: (0, 7), A1: (0, 2), B0: (0, 6)}
    missing = json.dumps({"orders": {"a": {"9": T0}}})
    assert "queue 9 of topic orders on broker a does not exist" in refusal(
        topic="orders", startingOffsetsByTimestamp=missing
    )


def test_a_stream_may_start_at_a_time_that_no_message_has_reached(log: FakeLog) -> None:
    ends = triggers(stream(topic="bills", startingTimestamp=str(T0 + 2), startingOffsetsByTimestampStrategy="latest"))
    assert next(ends) == {"bills": {"a": {"0": 2}}}
    assert next(ends) == {"bills": {"a": {"0": 3}}}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"startingTimestamp": "2026-03-01T06:00:00"}, "startingTimestamp: '2026-03-01T06:00:00' has no time zone"),
        ({"startingTimestamp": "2026-03-01"}, "has no time zone"),
        ({"endingTimestamp": "yesterday"}, "option endingTimestamp: 'yesterday' is not a time; use milliseconds"),
        ({"endingTimestamp": "-5"}, "is not a time"),
        ({"startingTimestamp": "1969-01-01T00:00:00Z"}, "is not a time from 1970 on"),
        ({"startingTimestamp": "9" * 30}, "is not a time from 1970 on"),
        ({"startingTimestamp": "4102444800000"}, "is in the future"),
        ({"endingTimestamp": "4102444800000"}, "is in the future: no message is stored then yet; leave it out"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "is before startingTimestamp"),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "set one of startingTimestamp and startingOffsets"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "is used with startingTimestamp or "),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "x"}, "'x' is neither error nor latest"),
        ({"startingOffsetsByTimestamp": "5"}, "is not JSON like"),
        ({"startingOffsetsByTimestamp": '{"bills":{"a":{"0":5}}}'}, "topic 'bills' is not among those read"),
        ({"startingOffsets": "group"}, "set consumerGroup to the group that has them"),
        ({"endingOffsets": "group:earliest", "consumerGroup": "g"}, "a batch cannot end at the earliest"),
        ({"readFrom": "slaves"}, "'slaves' is not one of master, slave, any"),
        ({"namespace": "a%b"}, "option namespace"),
    ],
)  # fmt: skip
def test_mistakes_about_the_bounds_are_named(log: FakeLog, options: dict[str, str], why: str) -> None:
    assert why in refusal(topic="orders", **options)


def test_a_query_starts_and_ends_at_what_a_group_has_committed(log: FakeLog) -> None:
    log.group = {A0: 7, A1: 2}
    group = {"topic": "orders", "consumerGroup": "readers"}
    assert ranges(**group, startingOffsets="group") == {A0: (7, 10), A1: (2, 4), B0: (0, 6)}
    assert ranges(**group, startingOffsets="group:latest") == {A0: (7, 10), A1: (2, 4)}
    assert ranges(**group, endingOffsets="group") == {A0: (0, 7), A1: (0, 2), B0: (0, 6)}
    started = next(triggers(stream(**group, startingOffsets="group")))
    assert started == {"orders": {"a": {"0": 7, "1": 2}, "b": {"0": 6}}}


def test_committed_offsets_whose_messages_are_deleted_are_a_loss(log: FakeLog) -> None:
    log.group, log.first = {A0: 2}, {A0: 5}
    group = {"topic": "orders", "consumerGroup": "readers", "startingOffsets": "group"}
    with pytest.raises(DataLoss, match=r"AGED_OUT.*startingOffsets says 2, the first one left is 5"):
        ranges(**group)
    assert ranges(**group, failOnDataLoss="false")[A0] == (5, 10)


@pytest.mark.parametrize(
    ("options", "may_move"),
    [
        ({"startingOffsets": "latest"}, True),
        ({"startingOffsets": "earliest"}, False),
        ({"startingOffsets": "group:earliest", "consumerGroup": "g"}, True),
        (
            {"startingOffsetsByTimestamp": '{"orders":{"a":{"0":5}}}', "startingOffsetsByTimestampStrategy": "latest"},
            True,
        ),
    ],
)
def test_a_start_that_may_be_another_after_a_restart_is_known(options: dict[str, str], may_move: bool) -> None:
    given = {"nameServer": "here:1", "topic": "orders"} | options
    assert parse_options(given, streaming=True).starting.has_latest() is may_move
