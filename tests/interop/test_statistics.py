"""The same traffic, counted by brokers of both kinds; and what they tell of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest

from mqbroker.wire.bodies import BrokerStatsData, BrokerStatsItem, KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.interop.fleet import Broker
from tests.interop.processes import eventually
from tests.interop.raw import GROUP, Line, create_topic, send, send_batch

BODY = b"x" * 100


@pytest.fixture
def lines(java_broker: Broker, our_broker: Broker) -> Iterator[list[Line]]:
    with ExitStack() as opened:
        yield [opened.enter_context(closing(Line(broker.addr))) for broker in (java_broker, our_broker)]


def traffic(line: Line, topic: str, group: str) -> dict[str, int]:
    """Bring 18 messages to a topic and give them to one group, another of which sends one back; how many bytes then are
    in which topic."""
    retry = f"%RETRY%{group}"
    line.ask_well([create_topic(topic, 4)])
    line.ask_well([send(topic, 0, BODY, {"KEYS": "k"}) for _ in range(10)])
    line.ask_well([send_batch(topic, 0, [(BODY, {}) for _ in range(5)])])
    line.ask_well([send(topic, 0, BODY, {"DELAY": "1"}) for _ in range(3)])
    eventually("the delayed messages are there", lambda: line.max_offset(topic, 0) == 18)
    records = line.read(topic, 0)
    fields = {"offset": records[0].physical_offset, "group": group, "delayLevel": 1, "originTopic": topic}
    assert line.one(RequestCode.CONSUMER_SEND_MSG_BACK, **fields).code == ResponseCode.SUCCESS
    eventually("the message that was sent back is there again", lambda: line.max_offset(retry, 0) == 1)
    return {topic: sum(r.store_size for r in records), retry: sum(r.store_size for r in line.read(retry, 0))}


def last_minute(line: Line, name: str, key: str, total: int) -> BrokerStatsItem | None:
    """None where not all is counted yet: samples are taken every 10 s."""
    answer = line.one(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    if answer.code != ResponseCode.SUCCESS:
        assert answer.remark == f"The stats <{name}> <{key}> not exist"
        return None
    item = BrokerStatsData.from_json(answer.body).stats_minute
    assert item.sum <= total, (name, key, item)
    return item if item.sum == total else None


def test_the_same_traffic_gives_the_same_statistics(lines: list[Line], topic: str) -> None:
    group = f"G-{topic}"
    retry = f"%RETRY%{group}"
    stored = [traffic(line, topic, group) for line in lines]
    # The same messages are not of one size: Java leaves the property DELAY in them.
    in_topic, in_retry = ([sizes[name] for sizes in stored] for name in (topic, retry))
    for name, key, totals in (
        ("TOPIC_PUT_NUMS", topic, [18, 18]),
        ("TOPIC_PUT_NUMS", retry, [1, 1]),
        ("GROUP_GET_NUMS", f"{topic}@{GROUP}", [18, 18]),
        ("SNDBCK_PUT_NUMS", f"{topic}@{group}", [1, 1]),
        ("TOPIC_PUT_SIZE", topic, in_topic),
        ("TOPIC_PUT_SIZE", retry, in_retry),
        ("GROUP_GET_SIZE", f"{topic}@{GROUP}", in_topic),
    ):
        java, ours = (
            eventually(f"{name} of {key} is {total}", partial(last_minute, line, name, key, total))
            for line, total in zip(lines, totals, strict=True)
        )
        if name.endswith("NUMS"):
            assert ours.avgpt == java.avgpt, (name, key)


def form(text: str) -> str:
    """A value with each number in it as 0, or as 0.0 where it has a point.

    Rates of the last ten seconds, minute and ten minutes count as one: of a broker that is young there is nothing but
    the space before those that it does not have.
    """
    numbers = re.sub(r"\d+(\.\d+)?(E-?\d+)?", lambda found: "0.0" if found[1] else "0", text)
    return re.sub(r"^0\.0( (0\.0)?){0,2}$", "0.0", numbers)


def runtime_info(line: Line) -> dict[str, str]:
    answer = line.one(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = KVTable.from_json(answer.body).table
    # By the delay levels that were used, and by the paths of the store.
    return {re.sub(r"_(\d+|/.*)$", "", key): value for key, value in table.items()}


def has_rates(line: Line) -> bool:
    return not runtime_info(line)["putTps"].startswith(" ")


#: Java has null for the one in its first minute, and does not find the second in small files; the third may be 0.
DIFFERENT = {"putMessageDistributeTime", "earliestMessageTimeStamp", "remainHowManyDataToFlush"}


def test_runtime_information_has_the_same_keys_and_forms(lines: list[Line]) -> None:
    for line in lines:
        eventually("it ran for ten seconds", partial(has_rates, line))
    java, ours = map(runtime_info, lines)
    assert ours.keys() == java.keys()
    assert {key for key in ours if form(ours[key]) != form(java[key])} <= DIFFERENT
    fixed = {key for key in ours if key.startswith("brokerVersion") or key.endswith(("Capacity", "Numbs"))}
    assert len(fixed) == 8
    # What is free of a disk changes while one looks; its size does not.
    assert {key for key in fixed if ours[key].partition(",")[0] != java[key].partition(",")[0]} == set()
