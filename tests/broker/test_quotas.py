"""The tables that peers fill are bounded, and say so."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.broker.client_registry import SUBSCRIPTIONS_PER_CLIENT, ProducerRegistry
from mqbroker.broker.requests import client_requests
from mqbroker.errors import Refused
from mqbroker.wire.bodies import ConsumerData, SubscriptionData, SubscriptionGroupConfig
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UnregisterClientRequestHeader
from tests.broker.bench import Bench, Client, FakeConnection, live_settings
from tests.broker.sending import one, put_topic
from tests.broker.test_client_requests import OTHER, beat, commit, consumer, consumer_ids
from tests.broker.test_configuration import change
from tests.broker.test_group_admin import clone, delete_group
from tests.broker.test_topic_admin import delete
from tests.broker.test_topic_requests import create

SYSTEM_TOPICS = 8


def refused(answer: RemotingCommand, what: str) -> None:
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert what in (answer.remark or ""), answer.remark
    assert "or raise " in (answer.remark or "")


# --- topics


def test_so_many_topics(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(topics_max=SYSTEM_TOPICS + 2)
    client = bench.client()
    assert len(bench.topics.names()) == SYSTEM_TOPICS
    assert one(client.send("A")).code == 0
    assert create(client, "B").code == 0
    refused(create(client, "C"), "10 topics, as many as topicsMax allows")
    refused(one(client.send("C")), "10 topics, as many as topicsMax allows")
    assert create(client, "B", perm=4).code == 0  # a change is none more
    assert one(client.send("A")).code == 0
    assert delete(client, "A").code == 0
    assert one(client.send("C")).code == 0
    change(client, f"topicsMax={SYSTEM_TOPICS + 3}")
    assert one(client.send("A")).code == 0


def test_topics_of_the_file_stay_and_those_of_the_system_are_made(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(topics_max=1)
    assert len(bench.topics.names()) == SYSTEM_TOPICS
    bench.topics.create_internal("TRANS_CHECK_MAX_TIME_TOPIC", 1)
    client = bench.client()
    refused(create(client, "A"), "topicsMax")


# --- groups


def used(bench: Bench, group: str) -> None:
    """Let a group stand somewhere: it is not one that was only heard of."""
    bench.offsets.commit(group, "T", 0, 1)


def test_so_many_groups(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    client = bench.client()
    known = len(bench.groups.snapshot().subscription_group_table)
    change(client, f"groupsMax={known + 1}")
    assert beat(client, consumers=[consumer("A", "T")]).code == 0
    used(bench, "A")
    refused(beat(client, consumers=[consumer("B", "T")]), "subscription groups, as many as groupsMax allows")
    client.send("T")
    refused(client.pull("T", consumer_group="B"), "groupsMax")
    group = SubscriptionGroupConfig("B").to_json()
    refused(client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group), "groupsMax")
    group = SubscriptionGroupConfig("A", consume_enable=False).to_json()
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == 0
    assert delete_group(client, "A").code == 0
    assert beat(client, consumers=[consumer("B", "T")]).code == 0


@pytest.mark.parametrize("stays", [False, True])
def test_two_heartbeats_do_not_fill_the_table_of_groups_for_good(make_bench: Callable[..., Bench], stays: bool) -> None:
    """Neither once who sent them is gone nor while it is there."""
    bench = make_bench()
    known = len(bench.groups)
    change(bench.client(), f"groupsMax={known + 20}")
    flood = bench.client(OTHER)
    for first in (0, 10):
        names = [consumer(f"flood{n}", "T") for n in range(first, first + 10)]
        assert beat(flood, client_id="flood", consumers=names).code == 0
    assert len(bench.groups) == known + 20
    if not stays:
        flood.link.cut()
    client = bench.client()
    for number in range(30):
        assert beat(client, consumers=[consumer(f"ours{number}", "T")]).code == 0
        assert bench.groups.get(f"ours{number}") is not None
    assert len(bench.groups) == known + 20


def test_what_was_used_or_set_is_not_forgotten(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    client = bench.client()
    known = len(bench.groups)
    change(client, f"groupsMax={known + 4}")
    for name in ("Committed", "Heard"):
        beat(client, consumers=[consumer(name, "T")])
    used(bench, "Committed")
    for group in (SubscriptionGroupConfig("Set", retry_max_times=3), SubscriptionGroupConfig("Shut", False)):
        assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.to_json()).code == 0
    for number in range(3):
        assert beat(client, consumers=[consumer(f"New{number}", "T")]).code == 0
    assert [name for name in ("Committed", "Set", "Shut", "Heard") if bench.groups.get(name)] == [
        "Committed", "Set", "Shut",
    ]  # fmt: skip
    # Where groups are made by administrators alone, each is one that somebody wanted.
    change(client, "autoCreateSubscriptionGroup=false")
    wanted = SubscriptionGroupConfig("Wanted").to_json()
    refused(client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=wanted), "groupsMax")
    assert bench.groups.get("New2") is not None


def test_whom_nobody_is_connected_for_goes_first(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    client, other = bench.client(), bench.client(OTHER)
    change(client, f"groupsMax={len(bench.groups) + 3}")
    for at, name in ((client, "First"), (other, "Gone"), (client, "Last")):
        assert beat(at, client_id=name, consumers=[consumer(name, "T")]).code == 0
    other.link.cut()
    assert beat(client, consumers=[consumer("New", "T")]).code == 0
    assert [name for name in ("First", "Gone", "Last", "New") if bench.groups.get(name)] == ["First", "Last", "New"]


def test_a_forgotten_group_takes_its_retry_topic_along_where_that_is_empty(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(topics_max=SYSTEM_TOPICS + 4)
    client = bench.client()
    client.send("T")
    for name in ("A", "B", "C"):
        assert beat(client, consumers=[consumer(name, "T")]).code == 0
    client.send("%RETRY%B", properties="")
    bench.store.dispatch_now()
    assert bench.store.max_offset("%RETRY%B", 0) == 1
    # The table of topics is full: groups that were never used go, and those that hold messages stay.
    for name in ("D", "E", "F", "G"):
        assert beat(client, consumers=[consumer(name, "T")]).code == 0
        topics = set(bench.topics.names())
        assert len(topics) == SYSTEM_TOPICS + 4
        assert {"T", "%RETRY%B", f"%RETRY%{name}"} <= topics
        assert bench.groups.get("B") is not None


def test_a_group_is_used_as_long_as_it_stands_somewhere(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    offsets = bench.offsets
    assert not offsets.has_group("A")
    for topic in ("T", "U"):
        for queue_id in range(2):
            offsets.commit("A", topic, queue_id, 1)
    offsets.clone("A", "B", "T")
    offsets.clone("A", "B", "T")
    assert (offsets.has_group("A"), offsets.has_group("B")) == (True, True)
    offsets.persist()
    again = type(offsets)(bench.file("consumerOffset.json"), bench.parts.live)
    for table in (offsets, again):
        table.remove_group("A")
        assert (table.has_group("A"), table.has_group("B")) == (False, True)
        table.remove_group("B")
        assert not table.has_group("B")


# --- offsets


def test_so_many_offsets(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(offsets_max=2)
    client = bench.client()
    put_topic(client, "T")
    assert commit(client, 1).code == 0
    assert commit(client, 1, queue_id=1).code == 0
    refused(commit(client, 1, queue_id=2), "2 committed offsets, as many as offsetsMax allows")
    refused(commit(client, 1, group="B"), "offsetsMax")
    refused(clone(client, topic="T"), "offsetsMax")
    assert bench.offsets.snapshot().offset_table == {"T@CG": {0: 1, 1: 1}}
    assert commit(client, 2).code == 0  # a change is none more
    assert delete_group(client, remove_offset=True).code == 0
    assert commit(client, 1, group="B").code == 0
    assert clone(client, "B", "C").code == 0
    refused(commit(client, 1, group="D"), "offsetsMax")
    assert clone(client, "B", "C").code == 0  # in place of its own


def test_a_pull_goes_on_where_its_offset_is_not_kept(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(offsets_max=1)
    client = bench.client()
    client.send("T")
    bench.turn(1)
    commit(client, 1, group="B")
    assert client.pull("T", sys_flag=5, commit_offset=1).code == 0
    assert bench.offsets.query("CG", "T", 0) is None


def test_the_brokers_own_offsets_are_kept_in_any_case(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(offsets_max=1)
    for queue_id in range(3):
        bench.offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", queue_id, 5, is_own=True)
    assert len(bench.offsets.by_queue("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC")) == 3


def test_a_farewell_makes_no_group(bench: Bench, client: Client) -> None:
    before = bench.groups.snapshot()
    header = UnregisterClientRequestHeader(client_id="c1", consumer_group="NEW")
    assert client.ask(RequestCode.UNREGISTER_CLIENT, header).code == 0
    assert bench.groups.snapshot() == before


def test_offsets_of_light_queues_count(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(offsets_max=1, store={"enable_lmq": True, "enable_multi_dispatch": True})
    client = bench.client()
    assert commit(client, 1, group="%LMQ%a", topic="%LMQ%x").code == 0
    assert commit(client, 2, group="%LMQ%a", topic="%LMQ%x").code == 0
    refused(commit(client, 1, group="%LMQ%b", topic="%LMQ%x"), "offsetsMax")
    assert delete_group(client, "%LMQ%a", remove_offset=True).code == 0
    assert commit(client, 1, group="%LMQ%b", topic="%LMQ%x").code == 0


def test_offsets_of_the_file_count(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    client = bench.client()
    put_topic(client, "T")
    commit(client, 1)
    commit(client, 1, group="B")
    bench.offsets.persist()
    bench.close()
    again = make_bench(offsets_max=2)
    client = again.client()
    refused(commit(client, 1, group="C"), "offsetsMax")
    assert again.offsets.query("CG", "T", 0) == 1
    again.close()
    os.sync()


# --- clients


def test_so_many_clients(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(clients_max=2)
    client, other = bench.client(), bench.client(OTHER)
    assert beat(client, producers=["P", "Q"], consumers=[consumer("A", "T"), consumer("B", "T")]).code == 0
    refused(beat(other, client_id="c2", consumers=[consumer("A", "T")]), "2 consumers, as many as clientsMax allows")
    refused(beat(other, client_id="c2", producers=["P"]), "2 producers, as many as clientsMax allows")
    assert beat(client, producers=["P"], consumers=[consumer("A", "T")]).code == 0  # it is known
    client.link.cut()
    assert beat(other, client_id="c2", producers=["P", "R"], consumers=[consumer("A", "T")]).code == 0
    assert consumer_ids(other, "A") == ["c2"]


def test_so_many_subscriptions_of_all_groups(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(clients_max=1)
    client = bench.client()
    topics = [f"T{n}" for n in range(SUBSCRIPTIONS_PER_CLIENT + 1)]
    refused(beat(client, consumers=[consumer("A", *topics)]), "10 times clientsMax")
    assert beat(client, consumers=[consumer("A", *topics[1:])]).code == 0
    assert beat(client, consumers=[consumer("A", *topics[:-1])]).code == 0
    client.link.cut()
    assert bench.consumers._subscriptions == 0


@pytest.mark.parametrize(
    "subscription",
    [
        SubscriptionData("T", "x" * (client_requests.EXPRESSION_LENGTH_MAX + 1)),
        SubscriptionData("T", "A", frozenset(map(str, range(1025)))),
        SubscriptionData("T", "A", frozenset("A"), frozenset(range(1025))),
    ],
)
def test_how_much_one_subscription_may_say(bench: Bench, client: Client, subscription: SubscriptionData) -> None:
    answer = beat(client, consumers=[ConsumerData("CG", subscription_data_set=[subscription])])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("a subscription of ")
    assert bench.consumers.group("CG") is None


def test_how_many_subscriptions_one_group_may_have(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "SUBSCRIPTIONS_MAX", 2)
    answer = beat(client, consumers=[consumer("CG", "T", "U", "V")])
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "3 subscriptions of one group: 2 at most")


@pytest.mark.parametrize("kind", ["producers", "consumers"])
def test_how_many_groups_one_client_may_have(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(client_requests, "GROUPS_OF_CLIENT_MAX", 2)

    def groups(count: int) -> dict[str, Any]:
        names = [f"G{number}" for number in range(count)]
        return {kind: names if kind == "producers" else [consumer(name, "T") for name in names]}

    answer = beat(client, **groups(3))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "3 groups of one client: 2 at most; share them among several"
    assert bench.consumers.names() == []
    assert bench.producers.groups() == {}
    assert beat(client, **groups(2)).code == ResponseCode.SUCCESS


def test_a_producer_that_says_it_is_another_each_time() -> None:
    registry = ProducerRegistry(lambda: 0.0, live_settings(clients_max=1))
    connection = FakeConnection()
    for number in range(3):
        registry.register(connection, f"p{number}", 0, 0, "PG")
    assert [registry.find(f"p{number}") for number in range(3)] == [None, None, connection]
    assert len(registry._holders) == 1
    with pytest.raises(Refused, match="clientsMax"):
        registry.register(FakeConnection(), "p2", 0, 0, "PG")
    registry.connection_closed(connection)
    assert (registry._holders, registry._joined, registry.groups()) == ({}, {}, {})
