"""A store directory that one kind of broker wrote, opened by the other."""

from typing import Any, Literal

import pytest

from tests.interop.fleet import Broker, Fleet, Kind
from tests.interop.processes import Event, ProcessFailed
from tests.interop.traffic import assert_dense, bodies, consumer, produce, pull, stop_consumer, wait_committed

WAYS: list[tuple[Kind, Kind]] = [("ours", "java"), ("java", "ours")]
BROKER = "travelling"
# What a record has of its own: the same whoever reads it.
KEPT = (
    *("topic", "queueId", "queueOffset", "physicalOffset", "sha256", "tags", "keys", "flag", "sysFlag"),
    *("msgId", "bornTimestamp", "storeTimestamp", "reconsumeTimes"),
)


def end(broker: Broker, how: Literal["stopped", "killed"]) -> None:
    broker.process.stop() if how == "stopped" else broker.process.kill()


def kept(events: list[Event]) -> list[dict[str, Any]]:
    """The lasting part of each message, in a fixed order."""
    rows = [{name: event.get(name) for name in KEPT} for event in events]
    return sorted(rows, key=lambda row: row["physicalOffset"])


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize(("first", "second"), WAYS)
def test_all_is_there_and_goes_on(
    fleet: Fleet, topic: str, first: Kind, second: Kind, how: Literal["stopped", "killed"]
) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker(first, namesrv, store, brokerName=BROKER)
    sent = produce(fleet, namesrv, topic, count=200, size=300, keys=True, tags="A,B")
    sent += produce(fleet, namesrv, topic, prefix="large", count=5, size=20_000)
    sent += produce(fleet, namesrv, topic, prefix="batch", mode="batch", count=30)
    before = pull(fleet, namesrv, topic)
    assert bodies(before) == bodies(sent)
    end(broker, how)

    fleet.broker(second, namesrv, store, brokerName=BROKER)
    after = pull(fleet, namesrv, topic)
    assert kept(after) == kept(before)
    more = produce(fleet, namesrv, topic, prefix="more", count=50, tags="B")
    found = pull(fleet, namesrv, topic)
    assert bodies(found) == bodies(sent) + bodies(more)
    assert_dense(found)
    by_key = fleet.mqadmin("queryMsgByKey", "-n", namesrv.addr, "-t", topic, "-k", "message-77")
    assert sent[77]["msgId"] in by_key
    with_tag = [event for event in sent[:200] if event["index"] % 2]
    assert bodies(pull(fleet, namesrv, topic, tags="B")) == bodies(with_tag) + bodies(more)


@pytest.mark.parametrize(("first", "second"), WAYS)
def test_topics_and_the_offsets_of_groups_move_along(fleet: Fleet, topic: str, first: Kind, second: Kind) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker(first, namesrv, store, brokerName=BROKER)
    fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=3).finish()
    produce(fleet, namesrv, topic, count=30)
    process = consumer(fleet, namesrv, topic, "mover")
    process.wait_events("message", 30)
    stop_consumer(process)
    wait_committed(broker, "mover", topic, queues=3, count=30)
    broker.process.stop()

    fleet.broker(second, namesrv, store, brokerName=BROKER, autoCreateTopicEnable="false")
    later = produce(fleet, namesrv, topic, prefix="later", count=9)
    assert {event["queueId"] for event in later} == {0, 1, 2}
    process = consumer(fleet, namesrv, topic, "mover")
    process.wait_events("message", 9)
    assert bodies(stop_consumer(process)) == bodies(later)


def test_there_and_back_over_many_segments(fleet: Fleet, topic: str) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    sent: list[Event] = []
    kinds: list[Kind] = ["ours", "java", "ours", "java"]
    for turn, kind in enumerate(kinds):
        broker = fleet.broker(kind, namesrv, store, brokerName=BROKER, mappedFileSizeCommitLog="262144")
        sent += produce(fleet, namesrv, topic, prefix=f"turn {turn}", count=300, size=1500)
        found = pull(fleet, namesrv, topic)
        assert bodies(found) == bodies(sent)
        assert_dense(found)
        broker.process.stop()
    assert len(list((store / "commitlog").iterdir())) >= 8


@pytest.mark.parametrize(("first", "second"), [*WAYS, ("ours", "ours")])
def test_a_store_in_use_is_refused(fleet: Fleet, topic: str, first: Kind, second: Kind) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    fleet.broker(first, namesrv, store, brokerName=BROKER)
    sent = produce(fleet, namesrv, topic, count=10)
    with pytest.raises(ProcessFailed, match=r"(?i)lock"):
        fleet.broker(second, namesrv, store, brokerName="another")
    assert bodies(pull(fleet, namesrv, topic)) == bodies(sent)
