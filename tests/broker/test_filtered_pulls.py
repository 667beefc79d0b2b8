"""Pulls filtered by SQL92: checks, what is found, what waits, retries."""

from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.store.dispatch import IDLE_S
from mqbroker.wire.bodies import CheckClientRequestBody, SubscriptionData
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UnregisterClientRequestHeader
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench, Client
from tests.broker.test_pull import SUSPEND, beat, bodies, offsets

SUBSCRIPTION = PullSysFlag.SUBSCRIPTION
NOT_SUPPORTED = (ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92")
NOT_PARSED = (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(enable_property_filter=True)


def sql(text: str = "a > 5", version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type="SQL92")


def told(answer: RemotingCommand) -> tuple[int, str | None]:
    return (answer.code, answer.remark)


def pull(client: Client, text: str | None = "a > 5", **fields: Any) -> RemotingCommand | None:
    """With the expression in the pull."""
    return client.pull(subscription=text, expression_type="SQL92", **fields)


def put(client: Client, *values: int, topic: str = "T") -> None:
    for value in values:
        (answer,) = client.send(topic, b"%d" % value, properties=f"a\x01{value}\x02TAGS\x01t{value % 2}")
        assert answer.code == 0
    client.bench.turn(IDLE_S)
    client.heard()  # that its group has changed


def test_messages_are_filtered_by_the_expression_of_the_pull(client: Client) -> None:
    put(client, 1, 9, 2, 8, 3)
    answer = pull(client)
    assert (answer.code, bodies(answer), offsets(answer)) == (0, [b"9", b"8"], (5, 0, 5))
    assert bodies(pull(client, "a BETWEEN 2 AND 8 AND TAGS = 't0'")) == [b"2", b"8"]
    assert bodies(pull(client, max_msg_nums=1, queue_offset=2)) == [b"8"]
    assert bodies(pull(client, "TRUE")) == [b"1", b"9", b"2", b"8", b"3"]
    nothing = pull(client, "missing > 5")
    assert told(nothing) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert offsets(nothing) == (5, 0, 5)


def test_what_matches_is_counted_and_what_does_not_is_passed_over(client: Client) -> None:
    put(client, *[number % 10 for number in range(40)])
    answer = pull(client, "a = 3", max_msg_nums=2)
    assert (bodies(answer), offsets(answer)[0]) == ([b"3", b"3"], 14)
    answer = pull(client, "a = 3", max_msg_nums=32, queue_offset=14)
    assert (bodies(answer), offsets(answer)[0]) == ([b"3", b"3"], 40)


def test_of_a_large_expression_fewer_messages_are_looked_at(client: Client) -> None:
    put(client, *range(30))
    text = " OR ".join(f"a={number % 7}" for number in range(2000))
    answer = pull(client, text)
    assert (bodies(answer), offsets(answer)) == ([b"%d" % number for number in range(7)], (10, 0, 30))
    answer = pull(client, text, queue_offset=10)
    assert (answer.code, offsets(answer)[0]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 20)


def test_a_message_that_cannot_be_evaluated_does_not_match(client: Client) -> None:
    client.send(properties="a\x01x")
    put(client, 7)
    client.send(properties="")
    assert bodies(pull(client)) == [b"7"]


@pytest.mark.parametrize("text", ["a >", "", None, "5", "a > 5 AND " * 2000, "(" * 300 + "NOT a" + ") = 1" * 300])
def test_an_expression_that_cannot_be_read_is_refused(client: Client, text: str | None) -> None:
    put(client, 7)
    assert told(pull(client, text)) == NOT_PARSED


def test_a_type_of_expressions_that_nobody_knows_is_refused(client: Client) -> None:
    put(client, 7)
    assert told(client.pull(subscription="a > 5", expression_type="XPATH")) == NOT_PARSED


# --- by heartbeats


def test_messages_are_filtered_by_the_expression_of_the_group(client: Client) -> None:
    put(client, 1, 9, 2, 8, 3)
    beat(client, sql())
    assert bodies(client.pull(sys_flag=0)) == [b"9", b"8"]
    beat(client, sql("a < 3", 2))
    assert bodies(client.pull(sys_flag=0, sub_version=2)) == [b"1", b"2"]
    assert bodies(client.pull(sys_flag=0, sub_version=1)) == [b"1", b"2"]
    late = client.pull(sys_flag=0, sub_version=3)
    assert told(late) == (ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")


def test_a_group_whose_expression_cannot_be_read_is_told(client: Client) -> None:
    put(client, 9)
    beat(client, sql("a >"))
    remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
    assert told(client.pull(sys_flag=0)) == (ResponseCode.FILTER_DATA_NOT_EXIST, remark)
    beat(client, sql("a > 5", 2))
    assert bodies(client.pull(sys_flag=0)) == [b"9"]
    beat(client, sql("a >>", 3))
    assert client.pull(sys_flag=0).code == ResponseCode.FILTER_DATA_NOT_EXIST


def leave(client: Client) -> None:
    header = UnregisterClientRequestHeader(client_id="c1", consumer_group="CG")
    assert client.ask(RequestCode.UNREGISTER_CLIENT, header).code == 0


def test_a_filter_that_is_older_than_the_subscription_is_told(client: Client) -> None:
    """A group that filters no more, and then again with an older subscription than it had, which changes no filter."""
    put(client, 9)
    beat(client, sql(version=5))
    leave(client)
    beat(client, sql("a < 5", version=3))
    assert bodies(client.pull(sys_flag=0, sub_version=3)) == [b"9"]
    beat(client, SubscriptionData("T", "*", sub_version=8))
    leave(client)
    beat(client, sql("", version=8))
    late = client.pull(sys_flag=0, sub_version=8)
    assert told(late) == (ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")


def test_a_filter_dies_when_its_group_is_gone(bench: Bench, client: Client) -> None:
    beat(client, sql())
    assert not bench.parts.filters.get("T", "CG").is_dead
    client.peer.transport.loseConnection()
    client.link.pump()
    assert bench.parts.filters.get("T", "CG").is_dead


def test_filters_are_kept_in_their_file(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("one", enable_property_filter=True)
    beat(bench.client(), sql("a > 4"))
    ((seconds, persist),) = [row for row in bench.parts.periodic() if row[1] == bench.parts.filters.persist]
    persist()
    assert seconds == 10
    assert bench.file("consumerFilter.json").load(lambda data: b'"a > 4"' in data)


# --- where it is off


@pytest.mark.parametrize("kind", ["SQL92", "XPATH"])
def test_without_the_setting_expressions_are_not_supported(make_bench: Callable[..., Bench], kind: str) -> None:
    client = make_bench(enable_property_filter=False).client()
    put(client, 9)
    remark = f"The broker does not support consumer to filter message by {kind}"
    refused = (ResponseCode.SYSTEM_ERROR, remark)
    assert told(client.pull(subscription="a > 5", expression_type=kind)) == refused
    assert told(client.pull(subscription="a >", expression_type=kind)) == refused
    assert told(client.pull(subscription="", expression_type=kind)) == NOT_PARSED


def test_without_the_setting_a_group_is_told_so(make_bench: Callable[..., Bench]) -> None:
    client = make_bench(enable_property_filter=False).client()
    put(client, 9)
    beat(client, sql())
    assert told(client.pull(sys_flag=0)) == NOT_SUPPORTED
    beat(client, sql("a >", 2))
    assert client.pull(sys_flag=0, sub_version=2).code == ResponseCode.FILTER_DATA_NOT_EXIST


# --- checks of clients


@pytest.mark.parametrize(
    ("enabled", "wanted", "outcome"),
    [
        (True, sql(), (0, None)),
        (True, sql("a >"), (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the expression ends before it is whole")),
        (True, sql(""), (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the expression is empty")),
        (
            True,
            SubscriptionData("T", "x", expression_type="XPATH"),
            (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "'XPATH' is not a type of expressions; use SQL92"),
        ),
        (False, sql(), NOT_SUPPORTED),
        (False, sql("a >"), NOT_SUPPORTED),
        (False, SubscriptionData("T", "a > 5"), (0, None)),
        (True, SubscriptionData("T", "a >", expression_type=""), (0, None)),
    ],
)
def test_a_client_may_ask_beforehand(
    make_bench: Callable[..., Bench], enabled: bool, wanted: SubscriptionData, outcome: tuple[int, str | None]
) -> None:
    client = make_bench(enable_property_filter=enabled).client()
    body = CheckClientRequestBody("c1", "CG", wanted).to_json()
    assert told(client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)) == outcome


# --- long polling


def test_a_held_pull_wakes_for_what_matches(bench: Bench, client: Client) -> None:
    put(client, 1)
    assert pull(client, sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=1) is None
    other = bench.client()
    put(other, 2, 3)
    assert client.heard() == []
    assert len(bench.held) == 1
    put(other, 4, 9, 1)
    (answer,) = client.heard()
    assert (answer.code, bodies(answer), offsets(answer)) == (0, [b"9"], (5, 0, 5))
    assert len(bench.held) == 0


def test_a_held_pull_that_nothing_matches_goes_on_behind(bench: Bench, client: Client) -> None:
    put(client, 1)
    assert pull(client, sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=1, suspend_timeout_millis=5000) is None
    put(bench.client(), 2, 3)
    bench.turn(6)
    (answer,) = client.heard()
    assert (told(answer), offsets(answer)) == ((ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"), (3, 0, 3))


# --- retries


def retry(client: Client, topic: str, value: int, group: str = "CG") -> None:
    (answer,) = client.send(f"%RETRY%{group}", b"%d" % value, properties=f"a\x01{value}\x02RETRY_TOPIC\x01{topic}")
    assert answer.code == 0


RETRIED = {"topic": "%RETRY%CG", "consumer_group": "CG"}


@pytest.mark.parametrize("from_heartbeat", [True, False])
def test_retries_are_filtered_by_what_is_wanted_of_their_topic(
    make_bench: Callable[..., Bench], from_heartbeat: bool
) -> None:
    client = make_bench(enable_property_filter=True, filter_support_retry=True).client()
    beat(client, sql(), sql("a < 3", topic="U"), SubscriptionData("%RETRY%CG", "*"))
    for topic in ("T", "U", "V"):
        for value in (1, 9):
            retry(client, topic, value)
    client.send("%RETRY%CG", b"none", properties="a\x011")
    client.bench.store.dispatch_now()
    answer = client.pull(sys_flag=0 if from_heartbeat else SUBSCRIPTION, sub_version=0, **RETRIED)
    assert [(record.body, record.properties.get("RETRY_TOPIC")) for record in decode_records(answer.body)] == [
        (b"9", "T"), (b"1", "U"), (b"1", "V"), (b"9", "V"), (b"none", None)
    ]  # fmt: skip


def test_retries_of_other_topics_and_without_the_setting_are_not_filtered(
    make_bench: Callable[..., Bench], bench: Bench, client: Client
) -> None:
    beat(client, sql(), SubscriptionData("%RETRY%CG", "*"))
    retry(client, "T", 1)
    assert bodies(client.pull(**RETRIED)) == [b"1"]
    client = make_bench("other", enable_property_filter=True, filter_support_retry=True).client()
    topic = "V" * len("%RETRY%") + "CG"
    beat(client, sql(), SubscriptionData(topic, "*"))
    client.send(topic, b"1", properties="a\x011\x02RETRY_TOPIC\x01T")
    assert bodies(client.pull(topic)) == [b"1"]
    assert bodies(client.pull(topic, sys_flag=0, sub_version=0)) == [b"1"]


def test_retries_are_filtered_by_tags_as_well(make_bench: Callable[..., Bench]) -> None:
    client = make_bench(enable_property_filter=True, filter_support_retry=True).client()
    beat(client, sql(), SubscriptionData("%RETRY%CG", "*"))
    for tag in "AB":
        for value in (1, 9):
            properties = f"a\x01{value}\x02RETRY_TOPIC\x01T\x02TAGS\x01{tag}"
            client.send("%RETRY%CG", f"{tag}{value}".encode(), properties=properties)
    client.bench.store.dispatch_now()
    assert bodies(client.pull(subscription="A", **RETRIED)) == [b"A9"]
