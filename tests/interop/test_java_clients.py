"""The unmodified Java producer and consumers on our name server and broker, and on Java's: the same holds on both."""

import pytest

from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.traffic import (
    assert_dense,
    assigned,
    bodies,
    consumer,
    positions,
    produce,
    pull,
    stop_consumer,
    wait_assigned,
    wait_committed,
)

COMPRESSED = 0x1


@pytest.fixture(scope="module", params=["ours", pytest.param("java", marks=pytest.mark.thorough)])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Whose name server and broker."""
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, kind: Kind) -> Broker:
    broker: Broker = request.getfixturevalue(f"{'our' if kind == 'ours' else 'java'}_broker")
    return broker


@pytest.fixture(scope="module")
def namesrv(request: pytest.FixtureRequest, kind: Kind, broker: Broker) -> Namesrv:
    """Of that kind, with a broker of that kind."""
    namesrv: Namesrv = request.getfixturevalue(f"{'our' if kind == 'ours' else 'java'}_namesrv")
    return namesrv


@pytest.fixture
def queues4(shared_fleet: Fleet, namesrv: Namesrv, broker: Broker, topic: str) -> str:
    """The topic, created with four queues."""
    shared_fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=4).finish()
    return topic


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch", "selector"])
def test_every_mode_of_sending(shared_fleet: Fleet, namesrv: Namesrv, queues4: str, mode: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, mode=mode, count=60, keys=True, tags="A,B")
    found = pull(shared_fleet, namesrv, queues4, count=len(sent))
    assert bodies(found) == bodies(sent)
    assert_dense(found)
    by_body = {event["sha256"]: event for event in found}
    for event in sent:
        message = by_body[event["sha256"]]
        assert message["tags"] == "AB"[event["index"] % 2]
        assert message["keys"] == f"message-{event['index']}"
        assert message["properties"]["umlaut"] == "\u00e4\u4e2d"
        if mode in ("sync", "async", "selector"):
            assert positions([message]) == positions([event])


def test_the_selector_puts_all_into_one_queue(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    produce(shared_fleet, namesrv, queues4, mode="selector", queue=2, count=5)
    found = pull(shared_fleet, namesrv, queues4)
    assert [(event["queueId"], event["queueOffset"]) for event in found] == [(2, i) for i in range(5)]


def test_a_topic_that_nobody_created(shared_fleet: Fleet, namesrv: Namesrv, topic: str) -> None:
    sent = produce(shared_fleet, namesrv, topic, count=10)
    assert bodies(pull(shared_fleet, namesrv, topic, count=10)) == bodies(sent)


def test_large_bodies_travel_compressed(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, count=6, size=100_000)
    found = pull(shared_fleet, namesrv, queues4)
    assert bodies(found) == bodies(sent)
    assert all(event["sysFlag"] & COMPRESSED for event in found)


def test_the_largest_body_that_the_client_lets_out(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, count=1, size=4 * 1024 * 1024)
    assert bodies(pull(shared_fleet, namesrv, queues4)) == bodies(sent)


def test_push_with_tags_gets_only_those(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, count=30, tags="A,B,C")
    wanted = [event for event in sent if "ABC"[event["index"] % 3] != "B"]
    process = consumer(shared_fleet, namesrv, queues4, f"{queues4}-group", tags="A || C")
    process.wait_events("message", len(wanted))
    assert bodies(stop_consumer(process)) == bodies(wanted)


def test_pull_with_a_tag(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, count=30, tags="A,B,C")
    wanted = [event for event in sent if event["index"] % 3 == 1]
    assert bodies(pull(shared_fleet, namesrv, queues4, tags="B")) == bodies(wanted)


def test_a_waiting_consumer_is_woken(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    process = consumer(shared_fleet, namesrv, queues4, f"{queues4}-group")
    wait_assigned(process, queues=4)
    sent = produce(shared_fleet, namesrv, queues4, count=1)
    # Far below the 15 s after which the client asks again by itself.
    [message] = process.wait_events("message", 1, patience_s=10)
    assert message["sha256"] == sent[0]["sha256"]
    stop_consumer(process)


def test_ordered_consumption_sees_each_queue_in_order(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, count=40)
    process = consumer(shared_fleet, namesrv, queues4, f"{queues4}-group", orderly=True)
    process.wait_events("message", 40)
    found = stop_consumer(process)
    assert bodies(found) == bodies(sent)
    assert_dense(found)


def test_broadcast_reaches_every_consumer(shared_fleet: Fleet, namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, namesrv, queues4, count=10)
    processes = [
        consumer(shared_fleet, namesrv, queues4, f"{queues4}-group", broadcast=True, instance=name)
        for name in ("one", "two")
    ]
    for process in processes:
        process.wait_events("message", 10)
        assert bodies(stop_consumer(process)) == bodies(sent)


def test_two_consumers_share_the_queues_and_one_takes_over(
    shared_fleet: Fleet, namesrv: Namesrv, broker: Broker, queues4: str
) -> None:
    group = f"{queues4}-group"
    one = consumer(shared_fleet, namesrv, queues4, group, instance="one", persist_ms=100)
    wait_assigned(one, queues=4)
    two = consumer(shared_fleet, namesrv, queues4, group, instance="two", persist_ms=100)
    # The broker tells the first of the second at once; without that it would find out only after 20 s.
    wait_assigned(one, queues=2, patience_s=15)
    wait_assigned(two, queues=2, patience_s=15)
    assert assigned(one).isdisjoint(assigned(two))

    sent = produce(shared_fleet, namesrv, queues4, count=40)
    one.wait_events("message", 20)
    two.wait_events("message", 20)
    wait_committed(broker, group, queues4, queues=4, count=40)
    found_by_two = stop_consumer(two)
    wait_assigned(one, queues=4, patience_s=15)
    later = produce(shared_fleet, namesrv, queues4, prefix="later", count=8)
    one.wait_events("message", 28)
    assert bodies(stop_consumer(one)) + bodies(found_by_two) == bodies(sent) + bodies(later)


def test_a_consumer_that_comes_back_goes_on_where_it_was(
    shared_fleet: Fleet, namesrv: Namesrv, broker: Broker, queues4: str
) -> None:
    group = f"{queues4}-group"
    produce(shared_fleet, namesrv, queues4, count=20)
    first = consumer(shared_fleet, namesrv, queues4, group)
    first.wait_events("message", 20)
    stop_consumer(first)
    wait_committed(broker, group, queues4, queues=4, count=20)
    later = produce(shared_fleet, namesrv, queues4, prefix="later", count=20)
    second = consumer(shared_fleet, namesrv, queues4, group)
    second.wait_events("message", 20)
    assert bodies(stop_consumer(second)) == bodies(later)


def test_offsets_of_a_queue(shared_fleet: Fleet, namesrv: Namesrv, broker: Broker, queues4: str) -> None:
    group = f"{queues4}-group"
    produce(shared_fleet, namesrv, queues4, count=20)
    reader = consumer(shared_fleet, namesrv, queues4, group)
    reader.wait_events("message", 20)
    found = stop_consumer(reader)
    wait_committed(broker, group, queues4, queues=4, count=20)
    middle = sorted(event["storeTimestamp"] for event in found)[10]
    process = shared_fleet.peer("offsets", namesrv, topic=queues4, group=group, time=middle)
    process.finish()
    offsets = {event["queueId"]: event for event in process.events("offsets")}
    assert sorted(offsets) == [0, 1, 2, 3]
    for queue_id, event in offsets.items():
        times = {m["queueOffset"]: m["storeTimestamp"] for m in found if m["queueId"] == queue_id}
        assert (event["min"], event["max"], event["committed"]) == (0, len(times), len(times))
        if broker.kind == "ours":
            assert event["atTime"] == min((at for at, time in times.items() if time >= middle), default=len(times))
        else:  # the message nearest in time; of several in one millisecond any
            distance = {offset: abs(time - middle) for offset, time in times.items()}
            assert distance[event["atTime"]] == min(distance.values())


def test_a_restarted_broker_serves_its_clients_on(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("ours", namesrv)
    fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=4).finish()
    process = consumer(fleet, namesrv, topic, "restart")
    before = produce(fleet, namesrv, topic, prefix="before", count=20)
    process.wait_events("message", 20)
    broker.process.stop()
    fleet.restart(broker)
    after = produce(fleet, namesrv, topic, prefix="after", count=20)
    process.wait_events("message", 40)
    assert bodies(stop_consumer(process)) == bodies(before) + bodies(after)


def test_a_killed_broker_has_all_it_acknowledged(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("ours", namesrv)
    sent = produce(fleet, namesrv, topic, count=300, size=200)
    batch = produce(fleet, namesrv, topic, prefix="batch", mode="batch", count=40)
    broker.process.kill()
    fleet.restart(broker)
    found = pull(fleet, namesrv, topic)
    assert bodies(found) == bodies(sent) + bodies(batch)
    assert_dense(found)
    assert positions(sent) <= positions(found)
