"""The rules of routes: values and a time in, values out."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.namesrv import route_table
from mqbroker.namesrv.route_table import (
    EXPIRY_MS,
    TOPICS_OF_EVERY_BROKER,
    Registered,
    Registration,
    RouteTable,
)
from mqbroker.wire.bodies import BrokerData, DataVersion, QueueData, TopicConfig, TopicList
from mqbroker.wire.codes import Perm
from mqbroker.wire.registration import BrokerTopics, QueueNumbers
from tests.commands import finish
from tests.numbers import numbers

A, B = "127.0.0.1:10911", "127.0.0.1:11911"
HA = "127.0.0.1:10912"


def topics(*names: str, version: int = 1, **fields: Any) -> BrokerTopics:
    config = attrs.evolve(TopicConfig(""), **fields)
    numbers = QueueNumbers(config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)
    return BrokerTopics(dict.fromkeys(names, numbers), DataVersion(0, version))


def whole(*names: str, version: int = 1, **fields: Any) -> BrokerTopics:
    """A broker's whole table."""
    return topics(*names, *TOPICS_OF_EVERY_BROKER, version=version, **fields)


def registration(
    addr: str = A,
    *,
    name: str = "broker-a",
    broker_id: int = 0,
    cluster: str = "C",
    held: BrokerTopics | None = None,
    servers: list[str] | None = None,
    digest: bytes = b"",
    opaque: int = 0,
) -> Registration:
    held = held if held is not None else topics("T")
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_addr=addr,
        broker_id=broker_id,
        ha_server_addr=HA if addr == A else "",
        topics=attrs.evolve(held, filter_servers=servers or []),
        has_filter_servers=servers is not None,
        digest=digest,
        opaque=opaque,
    )


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def route_of(table: RouteTable, topic: str = "T") -> Any:
    queues = table.topic_queues(topic)
    return None if queues is None else table.route_by(queues)


def addrs(table: RouteTable, topic: str = "T") -> dict[str, dict[int, str]] | None:
    route = route_of(table, topic)
    return None if route is None else {data.broker_name: data.broker_addrs for data in route.broker_datas}


def test_a_registered_topic_has_a_route(table: RouteTable) -> None:
    held = topics("T", read_queue_nums=4, write_queue_nums=3, perm=6, topic_sys_flag=1)
    assert table.register(registration(held=held), "x", 0) == Registered(is_new=True)
    route = route_of(table)
    assert route.queue_datas == [QueueData("broker-a", 4, 3, 6, 1)]
    assert route.broker_datas == [BrokerData("broker-a", "C", {0: A})]
    assert route.filter_server_table == {}
    assert route.order_topic_conf is None
    assert route_of(table, "U") is None


def test_a_slave_learns_its_master(table: RouteTable) -> None:
    assert table.register(registration(B, broker_id=1), "y", 0) == Registered(is_new=True)
    table.register(registration(), "x", 0)
    assert table.register(registration(B, broker_id=1), "y", 0) == Registered(A, HA)
    assert addrs(table) == {"broker-a": {0: A, 1: B}}


def test_a_slave_brings_no_topics(table: RouteTable) -> None:
    table.register(registration(B, broker_id=1), "y", 0)
    assert table.topics() == TopicList(frozenset())


@pytest.mark.parametrize("held", [topics, whole])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_topics_are_taken_over_whatever_their_version(table: RouteTable, held: Any, version: int) -> None:
    table.register(registration(held=whole("T", "U")), "x", 0)
    table.register(registration(held=held("T", perm=4, version=version)), "x", 0)
    assert route_of(table).queue_datas[0].perm == 4


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_topic_that_is_not_in_a_whole_table_goes(table: RouteTable, version: int) -> None:
    table.register(registration(held=whole("T", "U")), "x", 0)
    table.register(registration(B, name="broker-b", held=whole("T", "U")), "y", 0)
    before = table.topics_version
    table.register(registration(held=whole("T", version=version)), "x", 0)
    assert (addrs(table, "U"), addrs(table).keys()) == ({"broker-b": {0: B}}, {"broker-a", "broker-b"})
    assert table.topics_version > before
    table.register(registration(B, name="broker-b", held=whole(version=version)), "y", 0)
    assert (addrs(table, "U"), addrs(table)) == (None, {"broker-a": {0: A}})


def test_a_changed_topic_leaves_the_others(table: RouteTable) -> None:
    table.register(registration(held=whole("T", "U")), "x", 0)
    for name in (*TOPICS_OF_EVERY_BROKER, "T"):
        table.register(registration(held=topics(name, version=2)), "x", 0)
    table.register(registration(held=topics(version=2)), "x", 0)
    assert addrs(table, "U") == addrs(table) == {"broker-a": {0: A}}


@pytest.mark.parametrize("cluster", [None, "C"])
def test_a_topic_deleted_here_alone_comes_back_with_the_next_registration(
    table: RouteTable, cluster: str | None
) -> None:
    said = registration(held=whole("T", "U"), digest=b"d")
    table.register(said, "x", 0)
    table.register(registration(B, name="broker-b", cluster="D", held=whole("U"), digest=b"e"), "y", 0)
    table.delete_topic("T", cluster)
    assert addrs(table) is None
    # One that asks whether it must register is told so; the others need not.
    assert table.changed(A, DataVersion(0, 1))
    assert not table.changed(B, DataVersion(0, 1))
    assert table.renew(A, b"d", "x", 1) is None
    assert table.renew(B, b"e", "y", 1) is not None
    table.register(said, "x", 1)
    assert addrs(table) == {"broker-a": {0: A}}
    assert table.renew(A, b"d", "x", 2) is not None


@pytest.mark.parametrize(
    ("changes", "is_complete"),
    [
        ([topics("N", version=2)], True),
        ([topics("N", version=2), topics("O", "P", version=4)], True),
        # A removal, which a Java broker does not register by itself, has a version too.
        ([topics("N", version=3)], False),
        ([topics(version=2)], False),
        ([topics("N", version=3), topics("O", version=4)], False),
        ([topics("N", version=3), whole("N", version=3)], True),
    ],
)
def test_changes_that_are_missed_are_asked_for(
    table: RouteTable, changes: list[BrokerTopics], is_complete: bool
) -> None:
    table.register(registration(held=whole("T")), "x", 0)
    for held in changes:
        table.register(registration(held=held), "x", 0)
    assert table.changed(A, changes[-1].data_version) is not is_complete


def test_a_change_of_a_broker_whose_table_is_unknown_is_not_taken_for_its_table(table: RouteTable) -> None:
    table.register(registration(held=topics("T"), digest=b"d"), "x", 0)
    assert table.changed(A, DataVersion(0, 1))
    assert table.renew(A, b"d", "x", 1) is None
    # Nor if it was a slave, whose topics are in no route.
    table.register(registration(B, broker_id=1, held=whole("T")), "y", 0)
    assert not table.changed(B, DataVersion(0, 1))
    table.unregister("broker-a", A, 0)
    table.register(registration(B, held=topics("U", version=2)), "y", 0)
    assert table.changed(B, DataVersion(0, 2))


def test_a_master_that_is_one_again_brings_its_topics_again(table: RouteTable) -> None:
    said = registration(B, held=whole("T"), digest=b"d")
    table.register(said, "y", 0)
    table.register(registration(A, held=whole("U")), "x", 0)
    assert table.drop_connection("x") == [A]
    assert addrs(table) is None
    assert table.renew(B, b"d", "y", 1) is None
    table.register(said, "y", 1)
    assert (addrs(table), addrs(table, "U")) == ({"broker-a": {0: B}}, None)


def test_a_broker_that_changes_its_address(table: RouteTable) -> None:
    table.register(registration(A), "x", 0)
    registered = table.register(registration(B, held=topics("U", version=1)), "y", 0)
    assert registered == Registered(is_new=True, replaced=A)
    assert addrs(table) == {"broker-a": {0: B}}
    assert addrs(table, "U") == {"broker-a": {0: B}}
    assert table.drop_connection("x") == [A]
    assert addrs(table) == {"broker-a": {0: B}}


def elected_with_a_late_registration(table: RouteTable) -> None:
    """B was elected, and then the registration of A comes, which was the master before."""
    table.register(registration(A, broker_id=1), "x", 0)
    table.register(registration(B, broker_id=0), "y", 0)
    assert table.register(registration(A, broker_id=0), "x", 0).replaced == B
    assert addrs(table) == {"broker-a": {0: A}}


def test_the_elected_master_has_its_id_again_when_the_former_one_goes(table: RouteTable) -> None:
    elected_with_a_late_registration(table)
    version = table.brokers_version
    assert table.drop_connection("x") == [A]
    assert addrs(table) == {"broker-a": {0: B}}
    assert table.brokers_version > version
    # It goes as any other.
    assert table.drop_connection("y") == [B]
    assert addrs(table) is None


def test_the_elected_master_has_its_id_again_when_the_former_one_is_its_slave(table: RouteTable) -> None:
    elected_with_a_late_registration(table)
    registered = table.register(registration(A, broker_id=1), "x", 0)
    assert registered.master_addr == B
    assert addrs(table) == {"broker-a": {0: B, 1: A}}


def test_a_broker_that_has_gone_or_has_another_id_is_not_a_master_again(table: RouteTable) -> None:
    elected_with_a_late_registration(table)
    assert not table.unregister("broker-a", B, 0)
    table.drop_connection("x")
    assert addrs(table) is None
    elected_with_a_late_registration(table)
    table.register(registration(B, broker_id=2), "y", 0)
    table.drop_connection("x")
    assert addrs(table) == {"broker-a": {2: B}}
    elected_with_a_late_registration(table)
    table.drop_connection("y")
    table.drop_connection("x")
    assert addrs(table) is None
    assert not table._brokers


def test_who_had_ids_before_is_not_kept_for_ever(table: RouteTable) -> None:
    for broker_id in range(100):
        table.register(registration(A, broker_id=broker_id), "x", 0)
        table.register(registration(B, broker_id=broker_id), "y", 0)
    assert len(table._brokers["broker-a"].former) <= 2


def test_a_slave_that_becomes_the_master_has_one_id(table: RouteTable) -> None:
    table.register(registration(A), "x", 0)
    table.register(registration(B, broker_id=1), "y", 0)
    table.unregister("broker-a", A, 0)
    table.register(registration(B, broker_id=0), "y", 0)
    assert addrs(table) == {"broker-a": {0: B}}


def test_a_slave_that_becomes_the_master_brings_its_topics(table: RouteTable) -> None:
    table.register(registration(B, broker_id=1), "y", 0)
    assert route_of(table) is None
    table.register(registration(B, broker_id=0), "y", 0)
    assert addrs(table) == {"broker-a": {0: B}}


def test_unregistering_takes_out_what_only_it_had(table: RouteTable) -> None:
    table.register(registration(held=topics("T", "U")), "x", 0)
    table.register(registration(B, name="broker-b"), "y", 0)
    assert table.unregister("broker-a", A, 0)
    assert addrs(table) == {"broker-b": {0: B}}
    assert table.topics() == TopicList(frozenset("T"))
    assert table.cluster_info().cluster_addr_table == {"C": frozenset({"broker-b"})}
    assert not table.unregister("broker-a", A, 0)
    table.unregister("broker-b", B, 0)
    assert table.cluster_info().cluster_addr_table == {}
    assert table.cluster_info().broker_addr_table == {}


def test_a_master_that_leaves_keeps_its_slaves_reading(table: RouteTable) -> None:
    table.register(registration(), "x", 0)
    table.register(registration(B, broker_id=1), "y", 0)
    table.unregister("broker-a", A, 0)
    assert addrs(table) == {"broker-a": {1: B}}


def test_a_late_unregistration_leaves_the_one_that_came_since(table: RouteTable) -> None:
    table.register(registration(A), "x", 0)
    table.register(registration(B), "y", 0)
    table.unregister("broker-a", A, 0)
    assert addrs(table) == {"broker-a": {0: B}}


@pytest.mark.parametrize(("name", "broker_id"), [("broker-b", 0), ("broker-a", 1), ("broker-c", 0)])
def test_an_unregistration_of_what_was_never_there_changes_nothing(
    table: RouteTable, name: str, broker_id: int
) -> None:
    table.register(registration(A), "x", 0)
    table.register(registration(B, name="broker-b"), "y", 0)
    assert not table.unregister(name, A, broker_id)
    assert addrs(table) == {"broker-a": {0: A}, "broker-b": {0: B}}
    assert table.version_of(A) is not None


def test_a_closed_connection_takes_out_its_brokers_only(table: RouteTable) -> None:
    table.register(registration(A), "x", 0)
    table.register(registration(B, name="broker-b"), "y", 0)
    assert table.drop_connection("z") == []
    assert table.drop_connection("x") == [A]
    assert addrs(table) == {"broker-b": {0: B}}


def test_the_former_connection_of_a_broker_that_came_back_means_nothing(table: RouteTable) -> None:
    table.register(registration(), "x", 0)
    table.register(registration(), "y", 0)
    assert table.drop_connection("x") == []
    assert addrs(table) == {"broker-a": {0: A}}


@pytest.mark.parametrize(("after_ms", "gone"), [(EXPIRY_MS, []), (EXPIRY_MS + 1, [A])])
def test_a_silent_broker_expires_after_two_minutes(table: RouteTable, after_ms: int, gone: list[str]) -> None:
    table.register(registration(), "x", 1000)
    assert table.expire(1000 + after_ms) == gone
    assert (route_of(table) is None) == bool(gone)


def test_a_broker_with_nothing_to_tell_is_alive(table: RouteTable) -> None:
    table.register(registration(held=whole("T")), "x", 0)
    assert not table.changed(A, DataVersion(0, 1))
    table.touch(A, 100_000)
    assert table.expire(EXPIRY_MS + 1) == []
    assert table.expire(100_000 + EXPIRY_MS + 1) == [A]
    table.touch(A, 300_000)
    assert table.version_of(A) is None


def test_versions(table: RouteTable) -> None:
    assert table.changed(A, DataVersion())
    table.register(registration(), "x", 0)
    assert table.version_of(A) == DataVersion(0, 1)
    assert table.changed(A, DataVersion(0, 2))
    assert table.changed(A, DataVersion(1, 1))


def test_filter_servers(table: RouteTable) -> None:
    table.register(registration(servers=["f:1"]), "x", 0)
    assert route_of(table).filter_server_table == {A: ["f:1"]}
    table.register(registration(servers=None), "x", 0)
    assert route_of(table).filter_server_table == {A: ["f:1"]}
    table.register(registration(servers=[]), "x", 0)
    assert route_of(table).filter_server_table == {}


def test_write_permission(table: RouteTable) -> None:
    table.register(registration(held=topics("T", "U", perm=7)), "x", 0)
    table.register(registration(B, name="broker-b"), "y", 0)
    assert finish(table.wipe_write_permission("broker-a")) == 2
    perms = {data.broker_name: data.perm for data in route_of(table).queue_datas}
    assert perms == {"broker-a": Perm.READ | Perm.INHERIT, "broker-b": 6}
    assert finish(table.add_write_permission("broker-a")) == 2
    assert [data.perm for data in route_of(table, "U").queue_datas] == [6]
    assert finish(table.wipe_write_permission("nobody")) == 0


def perms(table: RouteTable, topic: str = "T") -> list[int]:
    return [data.perm for data in route_of(table, topic).queue_datas]


def drained(table: RouteTable) -> None:
    table.register(registration(held=whole("T"), digest=b"d", opaque=7), "x", 0)
    finish(table.wipe_write_permission("broker-a"))
    assert perms(table) == [Perm.READ]


def test_a_drain_outlasts_registrations(table: RouteTable) -> None:
    drained(table)
    tables = whole("T", "U", version=2), topics("U", "T", version=2), whole("T", "U", version=1)
    for opaque, held in enumerate(tables, start=8):
        assert table.register(registration(held=held, opaque=opaque), "x", 0).is_wiped
        assert perms(table) == perms(table, "U") == [Perm.READ]


def test_a_drain_outlasts_a_connection_and_a_silence(table: RouteTable) -> None:
    drained(table)
    table.drop_connection("x")
    registered = table.register(registration(held=whole("T", "U"), opaque=9), "y", 0)
    assert (registered.is_new, registered.is_wiped, registered.has_started_anew) == (True, True, False)
    assert table.expire(EXPIRY_MS + 1) == [A]
    assert table.register(registration(held=whole("T", "U"), opaque=10), "y", 0).is_wiped
    assert perms(table) == perms(table, "U") == [Perm.READ]


def test_a_drain_ends_when_the_permission_is_given_again(table: RouteTable) -> None:
    drained(table)
    finish(table.add_write_permission("broker-a"))
    assert perms(table) == [6]
    # What the broker registers next is what its topics have.
    assert table.renew(A, b"d", "x", 0, 8) is None
    assert not table.register(registration(held=whole("T", perm=4), opaque=8), "x", 0).is_wiped
    assert perms(table) == [4]
    table.register(registration(held=whole("T"), opaque=9), "x", 0)
    assert perms(table) == [6]


@pytest.mark.parametrize("opaque", [1, 7])
def test_a_drain_ends_when_the_broker_starts_anew(table: RouteTable, opaque: int) -> None:
    drained(table)
    assert table.renew(A, b"d", "x", 0, 30) is not None
    table.drop_connection("x")
    registered = table.register(registration(held=whole("T"), digest=b"d", opaque=opaque), "y", 0)
    assert (registered.is_wiped, registered.has_started_anew) == (False, True)
    assert perms(table) == [6]
    # And a second time.
    finish(table.wipe_write_permission("broker-a"))
    assert table.renew(A, b"d", "y", 0, opaque + 1) is not None
    assert perms(table) == [Perm.READ]
    # It was killed, and its connection is not noticed to be gone.
    assert table.renew(A, b"d", "z", 0, opaque + 1) is None
    table.register(registration(held=whole("T"), digest=b"d", opaque=opaque + 1), "z", 0)
    assert perms(table) == [6]


def test_a_drain_ends_when_the_broker_stops(table: RouteTable) -> None:
    drained(table)
    assert table.unregister("broker-a", A, 0)
    assert not table.register(registration(held=whole("T"), opaque=100), "y", 0).is_wiped
    assert perms(table) == [6]


def test_a_drain_outlasts_a_change_of_the_master(table: RouteTable) -> None:
    drained(table)
    table.register(registration(B, broker_id=1, held=whole("T"), opaque=1), "y", 0)
    assert table.unregister("broker-a", A, 0)
    assert table.register(registration(B, held=whole("T"), opaque=2), "y", 0).is_wiped
    assert perms(table) == [Perm.READ]
    # A slave that starts is not the master that does.
    table.register(registration(A, broker_id=1, held=whole("T"), opaque=1), "x", 0)
    assert perms(table) == [Perm.READ]
    assert table.register(registration(B, held=whole("T"), opaque=1), "y", 0).has_started_anew
    assert perms(table) == [6]


def test_drains_are_bounded(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "BROKERS_MAX", 2)
    for n in range(9):
        table.register(registration(f"h:{n}", name=f"b{n}"), n, 0)
        finish(table.wipe_write_permission(f"b{n}"))
        finish(table.wipe_write_permission("unknown"))
        table.drop_connection(n)
    assert len(table._wiped) <= 2


def test_deleting_topics(table: RouteTable) -> None:
    table.register(registration(held=topics("T", "U")), "x", 0)
    table.register(registration(B, name="broker-b", cluster="D"), "y", 0)
    table.delete_topic("T", "D")
    assert addrs(table) == {"broker-a": {0: A}}
    table.delete_topic("T", "unknown")
    assert addrs(table) == {"broker-a": {0: A}}
    table.delete_topic("T", "C")
    assert route_of(table) is None
    table.delete_topic("U")
    assert table.topics() == TopicList(frozenset())


def test_lists(table: RouteTable) -> None:
    table.register(registration(held=topics("T", "U")), "x", 0)
    table.register(registration(B, name="broker-b", cluster="D"), "y", 0)
    assert table.topics() == TopicList(frozenset("TU"))
    assert table.topics(table.of_cluster("D")) == TopicList(frozenset("T"))
    assert table.topics(table.of_cluster("nowhere")) == TopicList(frozenset())
    assert table.system_topics() == TopicList(frozenset({"C", "D", "broker-a", "broker-b"}), A)
    assert RouteTable().system_topics() == TopicList()


def test_an_address_under_two_names_takes_both_along(table: RouteTable) -> None:
    table.register(registration(), "x", 0)
    table.register(registration(name="broker-b", cluster="D", held=topics("U")), "x", 1)
    assert table.drop_connection("x") == [A]
    assert (route_of(table), route_of(table, "U"), table.cluster_info().cluster_addr_table) == (None, None, {})


def test_a_broker_goes_with_the_connection_that_it_registered_over_last(table: RouteTable) -> None:
    said = registration(held=whole("T"), digest=b"d")
    table.register(said, "x", 0)
    assert table.renew(A, b"d", "y", 1) is not None
    assert table.drop_connection("x") == []
    assert table.drop_connection("y") == [A]
    table.register(said, "x", 2)
    table.register(registration(B), "z", 3)  # the same id of the same name
    assert table.drop_connection("x") == [A]
    assert addrs(table) == {"broker-a": {0: B}}
    assert table.drop_connection("z") == [B]
    assert (table._names_of, table._addrs_of, table._clusters_of) == ({}, {}, {})


def test_a_set_in_two_clusters_leaves_both(table: RouteTable) -> None:
    table.register(registration(), "x", 0)
    table.register(registration(B, broker_id=1, cluster="D"), "y", 0)
    assert table.cluster_info().cluster_addr_table == {"C": {"broker-a"}, "D": {"broker-a"}}
    table.drop_connection("x")
    assert table.cluster_info().cluster_addr_table == {"C": {"broker-a"}, "D": {"broker-a"}}
    table.drop_connection("y")
    assert table.cluster_info().cluster_addr_table == {}


NAMES = st.sampled_from(["broker-a", "broker-b"])
ADDRS = st.sampled_from([A, B, "127.0.0.1:12911"])
IDS = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("register"), NAMES, ADDRS, IDS, st.sampled_from("xyz"), st.integers(1, 3)),
    st.tuples(st.just("unregister"), NAMES, ADDRS, IDS),
    st.tuples(st.just("drop"), st.sampled_from("xyz")),
    st.tuples(st.just("expire"), numbers(0, 200_000)),
)


def take(table: RouteTable, step: tuple[Any, ...], now: int) -> None:
    match step:
        case ("register", name, addr, broker_id, connection, version):
            held = topics(f"T{version}", version=version) if now % 2 else whole(f"T{version}", version=version)
            table.register(registration(addr, name=name, broker_id=broker_id, held=held), connection, now)
        case ("unregister", name, addr, broker_id):
            table.unregister(name, addr, broker_id)
        case ("drop", connection):
            table.drop_connection(connection)
        case ("expire", after):
            table.expire(now + after)


@settings(derandomize=True, deadline=None, database=None)
@given(st.lists(STEPS, max_size=20))
def test_the_tables_agree_whatever_happens(steps: list[tuple[Any, ...]]) -> None:
    table = RouteTable[str]()
    for now, step in enumerate(steps):
        take(table, step, now)
        info = table.cluster_info()
        assert set().union(*info.cluster_addr_table.values()) == set(info.broker_addr_table)
        assert all(data.broker_addrs for data in info.broker_addr_table.values())
        assert all(route_of(table, topic) is not None for topic in table.topics().topic_list)
    for connection in "xyz":
        table.drop_connection(connection)
    table.expire(10**9)
    assert (table._names_of, table._addrs_of, table._clusters_of) == ({}, {}, {})
    assert attrs.asdict(table.topics()) == attrs.asdict(TopicList())
