"""Who is connected, and who hears of whom."""

from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.broker.client_registry import CLIENT_EXPIRY_SECONDS, ConsumerRegistry, ProducerRegistry
from mqbroker.errors import Refused
from mqbroker.wire.bodies import ConsumerData, SubscriptionData
from mqbroker.wire.codes import LanguageCode, RequestCode
from tests.broker.bench import FakeConnection, live_settings


@pytest.fixture
def consumers(clock: Clock) -> ConsumerRegistry:
    return ConsumerRegistry(clock, live_settings(), lambda group: None)


@pytest.fixture
def producers(clock: Clock) -> ProducerRegistry:
    return ProducerRegistry(clock.seconds, live_settings())


def connections(count: int) -> list[FakeConnection]:
    return [FakeConnection(f"10.0.0.2:{40000 + i}") for i in range(count)]


def beat(
    registry: ConsumerRegistry,
    connection: FakeConnection,
    client_id: str,
    *subscriptions: SubscriptionData,
    group: str = "CG",
    notify: bool = True,
    **fields: Any,
) -> None:
    data = ConsumerData(group, subscription_data_set=list(subscriptions), **fields)
    registry.register(connection, client_id, LanguageCode.JAVA, 407, data, notify)


def notified(clock: Clock, *several: FakeConnection) -> list[int]:
    """How often each was told since the last time."""
    clock.advance(0)
    clock.advance(0.1)
    counts = []
    for connection in several:
        for command in connection.sent:
            assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            assert command.ext_fields["consumerGroup"] == "CG"
        counts.append(len(connection.sent))
        connection.sent.clear()
    return counts


def test_who_comes_and_goes_is_told_to_all_of_the_group(consumers: ConsumerRegistry, clock: Clock) -> None:
    a, b, stranger = connections(3)
    beat(consumers, a, "a", SubscriptionData("T"))
    beat(consumers, stranger, "s", SubscriptionData("T"), group="Other")
    clock.advance(0)
    stranger.sent.clear()
    a.sent.clear()
    beat(consumers, b, "b", SubscriptionData("T"))
    assert notified(clock, a, b, stranger) == [1, 1, 0]
    beat(consumers, b, "b", SubscriptionData("T"))
    assert notified(clock, a, b, stranger) == [0, 0, 0]
    assert consumers.group("CG").client_ids() == ["a", "b"]
    consumers.unregister(b, "CG")
    assert notified(clock, a, b, stranger) == [1, 0, 0]
    consumers.unregister(b, "CG")
    consumers.unregister(b, "Nobody")
    assert notified(clock, a, b, stranger) == [0, 0, 0]
    consumers.connection_closed(a)
    assert consumers.group("CG") is None
    assert consumers.group("Other").client_ids() == ["s"]


def test_a_new_topic_is_a_change_and_a_newer_version_is_not(consumers: ConsumerRegistry, clock: Clock) -> None:
    (a,) = connections(1)
    beat(consumers, a, "a", SubscriptionData("T", sub_version=1))
    notified(clock, a)
    beat(consumers, a, "a", SubscriptionData("T", "A", sub_version=2))
    assert notified(clock, a) == [0]
    assert consumers.group("CG").subscriptions["T"].sub_string == "A"
    beat(consumers, a, "a", SubscriptionData("T", "old", sub_version=1))
    assert consumers.group("CG").subscriptions["T"].sub_string == "A"
    beat(consumers, a, "a", SubscriptionData("T", sub_version=2), SubscriptionData("U"))
    assert notified(clock, a) == [1]
    beat(consumers, a, "a", SubscriptionData("U"))
    assert notified(clock, a) == [1]
    assert list(consumers.group("CG").subscriptions) == ["U"]


def test_one_client_on_two_connections_is_one_client(consumers: ConsumerRegistry) -> None:
    a, again = connections(2)
    beat(consumers, a, "same")
    beat(consumers, again, "same")
    assert consumers.group("CG").client_ids() == ["same"]
    consumers.connection_closed(a)
    assert consumers.group("CG").client_ids() == ["same"]


@pytest.mark.parametrize("how", ["group", "broker"])
def test_telling_can_be_off(clock: Clock, how: str) -> None:
    live = live_settings(notify_consumer_ids_changed_enable=how != "broker")
    registry = ConsumerRegistry(clock, live, lambda group: None)
    a, b = connections(2)
    for connection in (a, b):
        beat(registry, connection, "x", notify=how != "group")
    registry.unregister(b, "CG", notify=how != "group")
    assert notified(clock, a, b) == [0, 0]


def test_what_the_group_says_of_itself_is_the_latest(consumers: ConsumerRegistry) -> None:
    (a,) = connections(1)
    beat(consumers, a, "a", message_model="CLUSTERING")
    beat(consumers, a, "a", message_model="BROADCASTING", consume_type="CONSUME_ACTIVELY")
    group = consumers.group("CG")
    assert (group.message_model, group.consume_type) == ("BROADCASTING", "CONSUME_ACTIVELY")


def test_who_sends_no_heartbeat_leaves_its_group(
    consumers: ConsumerRegistry, producers: ProducerRegistry, clock: Clock
) -> None:
    silent, alive = connections(2)
    for connection in (silent, alive):
        beat(consumers, connection, connection.remote_addr)
        producers.register(connection, connection.remote_addr, 0, 407, "PG")
    clock.advance(CLIENT_EXPIRY_SECONDS - 1)
    beat(consumers, alive, alive.remote_addr)
    producers.register(alive, alive.remote_addr, 0, 407, "PG")
    consumers.expire()
    producers.expire()
    assert not silent.closed
    notified(clock, silent, alive)
    clock.advance(1)
    consumers.expire()
    assert notified(clock, alive) == [1]
    producers.expire()
    assert list(producers.group("PG")) == [alive]
    assert consumers.group("CG").client_ids() == [alive.remote_addr]
    assert not silent.closed
    assert not alive.closed


def test_the_other_groups_of_a_connection_remain_when_one_is_silent(
    consumers: ConsumerRegistry, producers: ProducerRegistry, clock: Clock
) -> None:
    """Time and again: a group that comes back may be silent again."""
    (shared,) = connections(1)
    for _ in range(3):
        for group in ("CG", "Silent"):
            beat(consumers, shared, "c", group=group)
            producers.register(shared, "p", 0, 407, group)
        for _ in range(5):
            clock.advance(CLIENT_EXPIRY_SECONDS / 4)
            beat(consumers, shared, "c")
            producers.register(shared, "p", 0, 407, "CG")
            consumers.expire()
            producers.expire()
        assert not shared.closed
        assert consumers.names() == ["CG"]
        assert list(producers.groups()) == ["CG"]
        assert producers.find("p") is shared


def test_a_closed_connection_leaves_all_its_groups(consumers: ConsumerRegistry, producers: ProducerRegistry) -> None:
    a, b = connections(2)
    for group in ("CG", "Other", "Third"):
        beat(consumers, a, "a", group=group)
        producers.register(a, "a", 0, 407, group)
    producers.register(b, "b", 0, 407, "Third")
    consumers.connection_closed(a)
    producers.connection_closed(a)
    assert [consumers.group(name) for name in ("CG", "Other", "Third")] == [None] * 3
    assert [list(producers.group(name)) for name in ("CG", "Other", "Third")] == [[], [], [b]]


@pytest.mark.parametrize("leave", ["unregister", "connection_closed"])
def test_a_client_with_two_connections_is_found_by_the_other_when_one_leaves(
    consumers: ConsumerRegistry, producers: ProducerRegistry, leave: str
) -> None:
    for first_leaves in (True, False):
        pair = connections(2)
        for connection in pair:
            beat(consumers, connection, "same")
            producers.register(connection, "same", 0, 407, "PG")
        assert producers.find("same") is pair[1]
        leaving, staying = pair if first_leaves else reversed(pair)
        group = {"unregister": ("CG",), "connection_closed": ()}[leave]
        getattr(consumers, leave)(leaving, *group)
        group = {"unregister": ("PG",), "connection_closed": ()}[leave]
        getattr(producers, leave)(leaving, *group)
        assert producers.find("same") is staying
        assert consumers.find("CG", "same")[0] is staying
        consumers.connection_closed(staying)
        producers.connection_closed(staying)
        assert producers.find("same") is None


def test_a_closing_connection_is_not_found_while_another_is_open(
    consumers: ConsumerRegistry, producers: ProducerRegistry
) -> None:
    open_one, closing = connections(2)
    for connection in (open_one, closing):
        beat(consumers, connection, "same")
        producers.register(connection, "same", 0, 407, "PG")
    closing.closed = True
    assert producers.find("same") is open_one
    assert consumers.find("CG", "same")[0] is open_one


def test_a_producer_is_found_as_long_as_one_of_its_groups_is_there(producers: ProducerRegistry) -> None:
    (a,) = connections(1)
    for group in ("First", "Second"):
        producers.register(a, "p", 0, 407, group)
    producers.unregister(a, "First")
    assert producers.find("p") is a
    producers.unregister(a, "Second")
    assert producers.find("p") is None


def test_a_client_id_of_several_connections_stays_with_their_account(producers: ProducerRegistry) -> None:
    first, second, stranger = connections(3)
    for connection in (first, second):
        producers.register(connection, "p", 0, 407, "PG", "owner")
    producers.connection_closed(second)
    with pytest.raises(Refused, match="another account"):
        producers.register(stranger, "p", 0, 407, "PG", "stranger")
    first.closed = True
    producers.register(stranger, "p", 0, 407, "PG", "stranger")
    assert producers.find("p") is stranger
    with pytest.raises(Refused, match="another account"):
        producers.register(second, "p", 0, 407, "PG", "owner")


def test_the_last_of_ten_thousand_connections_with_one_client_id_is_found(producers: ProducerRegistry) -> None:
    many = connections(10_000)
    for connection in many:
        producers.register(connection, "p", 0, 407, "PG")
    for connection in reversed(many[1:]):
        producers.connection_closed(connection)
    assert producers.find("p") is many[0]


def test_producers_leave(producers: ProducerRegistry) -> None:
    a, b = connections(2)
    producers.register(a, "a", 0, 407, "PG")
    producers.unregister(b, "PG")
    producers.unregister(a, "Nobody")
    assert list(producers.group("PG")) == [a]
    producers.unregister(a, "PG")
    assert producers.group("PG") == {}
