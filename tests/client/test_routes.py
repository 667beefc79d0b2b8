from typing import Any

import pytest
from twisted.internet.defer import fail

from mqbroker.client import NameServerUnreachable, NoBrokerForTopic, TopicNotFound
from mqbroker.client.errors import TlsFailed
from mqbroker.client.routes import Routes, route_of
from mqbroker.errors import Unreachable
from mqbroker.wire.bodies import BrokerData, MessageQueue, QueueData, TopicConfig, TopicList, TopicRouteData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import FRAME_BYTES_MAX, RemotingCommand
from tests.client.world import World

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def make(world: World, *servers: Any, age_s: Any = 30.0) -> Any:
    return Routes(world.net(), servers, age_s=age_s)


def test_queues_follow_permissions_and_masters(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", 2, brokers=["b"], write_queues=1)
    world.cluster.add_topic("T", 1, perm=4, brokers=["a"])
    # A master that has told of its topics, and left.
    world.cluster.register("slave-only", "10.0.0.9:10911", 0, [TopicConfig("T", 1, 1, 6)])
    world.cluster.register("slave-only", "10.0.0.4:10911", 1)
    world.cluster.unregister("slave-only", "10.0.0.9:10911")
    route = world.result(make(world, name_server).get("T"))
    assert route.publish_queues == (MessageQueue("T", "b", 0),)
    assert [(q.broker_name, q.queue_id) for q in route.subscribe_queues] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("slave-only", 0),
    ]
    assert route.any_address("slave-only") == "10.0.0.4:10911"
    assert route.master("slave-only") is None


def test_a_route_is_kept_for_its_age(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    for seconds, asked in ((0, 1), (29.9, 1), (0.1, 2)):
        world.clock.advance(seconds)
        world.result(routes.get("T"))
        assert len(world.faults.asked(ROUTE)) == asked


def test_a_doubted_route_is_asked_for_again_after_a_second(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    routes = make(world, name_server, age_s=None)
    world.result(routes.get("T"))
    routes.mark_stale("T")
    world.result(routes.get("T"))
    assert len(world.faults.asked(ROUTE)) == 1
    world.clock.advance(1)
    world.result(routes.get("T"))
    world.clock.advance(100)
    world.result(routes.get("T"))
    assert len(world.faults.asked(ROUTE)) == 2


def test_a_route_that_a_broker_has_left_is_asked_for_again_soon_until_it_is_back(
    world: World, name_server: str
) -> None:
    world.cluster.add_topic("T", 1, brokers=["a", "b"])
    routes = make(world, name_server, age_s=None)
    assert set(world.result(routes.get("T")).brokers) == {"a", "b"}
    for _ in range(2):
        world.cluster.unregister("b")
        routes.mark_stale("T")
        world.clock.advance(1)
        assert set(world.result(routes.get("T")).brokers) == {"a"}
        assert routes.has_left("T")
        world.clock.advance(2)
        asked = len(world.faults.asked(ROUTE))
        world.result(routes.get("T"))
        assert len(world.faults.asked(ROUTE)) == asked
        world.cluster.register_again("b", "T")
        world.clock.advance(1)
        assert set(world.result(routes.get("T")).brokers) == {"a", "b"}
        assert not routes.has_left("T")
        asked = len(world.faults.asked(ROUTE))
        world.clock.advance(100)
        world.result(routes.get("T"))
        assert len(world.faults.asked(ROUTE)) == asked


def test_a_broker_that_has_left_for_good_is_asked_for_during_a_minute(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", 1, brokers=["a", "b"])
    world.cluster.register("another", "10.0.0.9:10911", 0, [TopicConfig("T", 1, 1, 6)])
    routes = make(world, name_server, age_s=None)
    world.result(routes.get("T"))
    world.cluster.unregister("another", "10.0.0.9:10911")
    routes.mark_stale("T")
    for _ in range(100):
        world.clock.advance(3)
        world.result(routes.get("T"))
    assert len(world.faults.asked(ROUTE)) == 1 + 1 + 19
    assert not routes.has_left("T")


def test_the_next_name_server_is_asked_and_then_kept(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    routes = make(world, "10.0.0.8:9876", name_server, age_s=0.0)
    for _ in range(3):
        world.result(routes.get("T"))
    assert world.cluster.network.attempts.count("10.0.0.8:9876") <= 1
    assert len(world.faults.asked(ROUTE)) == 3


def test_a_name_server_that_does_not_know_the_topic_is_not_the_last_word(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    other = "10.0.0.8:9876"
    world.cluster.serve_also_at(other, name_server)
    for first in (name_server, other):
        world.faults.refuse = {(first, ROUTE): (ResponseCode.TOPIC_NOT_EXIST, "not yet")}
        assert world.result(make(world, name_server, other).get("T")).topic == "T"


def test_an_unknown_topic_borrows_the_auto_create_topic_for_sending(world: World, name_server: str) -> None:
    routes = make(world, name_server)
    route = world.result(routes.get("new", create=True))
    assert route.is_default
    assert [q.queue_id for q in route.publish_queues if q.broker_name == "a"] == [0, 1, 2, 3]
    assert {q.topic for q in route.publish_queues} == {"new"}
    with pytest.raises(TopicNotFound):
        world.result(routes.get("new"))
    world.cluster.add_topic("new", queues=1)
    assert not world.result(routes.get("new")).is_default


def test_typed_errors(world: World, name_server: str) -> None:
    world.cluster.create_no_topics()
    routes = make(world, name_server)
    with pytest.raises(TopicNotFound, match="no broker creates topics"):
        world.result(routes.get("new", create=True))
    world.faults.down.add(name_server)
    with pytest.raises(NameServerUnreachable, match=name_server):
        world.result(routes.get("other"))


def test_the_former_route_serves_while_name_servers_are_away(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    good = world.result(routes.get("T"))
    world.faults.down.add(name_server)
    world.clock.advance(31)
    assert world.result(routes.get("T")) == good
    asked = len(world.faults.requests)
    assert world.result(routes.get("T")) == good
    assert len(world.faults.requests) == asked
    world.faults.down.clear()
    world.cluster.forget_topic("T")
    world.clock.advance(31)
    assert world.result(routes.get("T")) == good


@pytest.mark.parametrize(("other", "raised"), [(TlsFailed, TlsFailed), (Unreachable, NameServerUnreachable)])
def test_name_servers_that_are_there_but_not_trusted_say_so_themselves(
    world: World, name_server: str, other: Any, raised: Any
) -> None:
    errors = {name_server: TlsFailed, "10.0.0.9:9876": other}
    connect = world.cluster.network.connect
    world.cluster.network.connect = lambda address, factory: fail(errors[address](address, "why", "what to do"))
    with pytest.raises(raised) as caught:
        world.result(make(world, *errors).get("T"))
    world.cluster.network.connect = connect
    assert "what to do" in str(caught.value)


def test_thousands_who_wait_share_one_answer(world: World, name_server: str, silent: object) -> None:
    world.faults.refuse[name_server, ROUTE] = silent
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    found: list[Any] = []
    for _ in range(3000):
        world.run(routes.get("T")).addBoth(found.append)
    world.clock.advance(3)
    assert len(found) == 3000
    assert all(failure.check(NameServerUnreachable) for failure in found)
    assert len(world.faults.asked(ROUTE)) == 1
    del world.faults.refuse[name_server, ROUTE]
    assert world.result(routes.get("T")).topic == "T"


@pytest.fixture
def shared(world: World, name_server: str) -> list[Routes]:
    """The routes of clients with the same connections, each of which has got that of T."""
    world.cluster.add_topic("T", 1, brokers=["a"])
    net = world.net()
    each = [Routes(net, (name_server,), age_s=None) for _ in range(50)]
    for routes in each:
        world.result(routes.get("T"))
    return each


def test_a_client_that_comes_asks_itself_and_refreshes_are_shared(world: World, shared: list[Routes]) -> None:
    asked = len(world.faults.asked(ROUTE))
    assert asked == len(shared)
    assert len({id(routes.last("T")) for routes in shared}) == 1
    for brokers in (["a"], ["a", "b"], ["a", "b"]):
        world.clock.advance(30)
        world.cluster.add_topic("T", 1, brokers=brokers)
        for routes in shared:
            world.result(routes.refresh_all())
        asked += 1
        assert len(world.faults.asked(ROUTE)) == asked
        assert {id(routes.last("T")) for routes in shared} == {id(shared[0].last("T"))}
        assert set(shared[0].brokers()) == set(brokers)
    for routes in shared[:2]:
        world.result(routes.refresh_all())
    assert len(world.faults.asked(ROUTE)) == asked + 2
    world.clock.advance(20)
    world.result(shared[1].refresh_all())
    world.clock.advance(1.1)
    world.result(shared[0].refresh_all())
    assert len(world.faults.asked(ROUTE)) == asked + 4


def test_a_request_that_has_failed_since_is_a_reason_to_ask(world: World, shared: list[Routes]) -> None:
    world.clock.advance(30)
    world.result(shared[0].refresh_all())
    world.clock.advance(0.5)
    world.cluster.add_topic("T", 1, brokers=["a", "b"])
    shared[1].mark_stale("T")
    assert set(world.result(shared[1].get("T")).brokers) == {"a", "b"}
    asked = len(world.faults.asked(ROUTE))
    world.result(shared[2].refresh_all())
    assert set(shared[2].brokers()) == {"a", "b"}
    assert len(world.faults.asked(ROUTE)) == asked


def test_the_answer_for_another_client_is_waited_for_a_moment(
    world: World, name_server: str, shared: list[Routes]
) -> None:
    world.clock.advance(30)
    asked, held = len(world.faults.asked(ROUTE)), list[Any]()
    world.faults.refuse[name_server, ROUTE] = held.append
    refreshed = [world.run(routes.refresh_all()) for routes in shared[:3]]
    assert len(held) == 1
    held.pop().pass_on()
    world.clock.advance(0)
    assert all(each.called for each in refreshed)
    world.clock.advance(30)
    refreshed = [world.run(routes.refresh_all()) for routes in shared[:3]]
    assert len(held) == 1
    world.clock.advance(0.3)
    assert len(held) == 3
    for passage in held:
        passage.pass_on()
    world.clock.advance(0)
    assert all(each.called for each in refreshed)
    assert len(world.faults.asked(ROUTE)) == asked + 4


def test_what_was_not_answered_is_asked_again(world: World, name_server: str, shared: list[Routes]) -> None:
    world.clock.advance(30)
    world.faults.refuse[name_server, ROUTE] = ResponseCode.SYSTEM_ERROR, "busy"
    for routes in shared[:2]:
        with pytest.raises(NameServerUnreachable):
            world.result(Routes(routes._net, (name_server,), age_s=None).get("T"))
        world.result(routes.refresh_all())
    world.faults.refuse.clear()
    world.cluster.add_topic("T", 1, brokers=["a", "b"])
    world.result(shared[2].refresh_all())
    assert set(shared[2].brokers()) == {"a", "b"}


def test_the_name_server_that_has_answered_one_client_is_the_first_for_others(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    net = world.net()
    for _ in range(20):
        world.result(Routes(net, ("10.0.0.8:9876", name_server), age_s=None).get("T"))
    assert world.cluster.network.attempts.count("10.0.0.8:9876") <= 1


def test_the_routes_of_many_topics_are_not_kept_for_all(
    world: World, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbroker.client.routes._SHARED_MAX", 3)
    routes = make(world, name_server)
    for n in range(10):
        world.cluster.add_topic(f"T{n}")
        world.result(routes.get(f"T{n}"))
    assert list(routes._net.routes.asked) == ["T7", "T8", "T9"]


def test_an_address_is_the_preferred_brokers_or_the_masters(world: World, name_server: str) -> None:
    world.cluster.register("a", "10.0.0.5:10911", 1)
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    queue = MessageQueue("T", "a", 0)
    assert world.result(routes.address(queue)) == "10.0.0.2:10911"
    assert world.result(routes.address(queue, 1)) == "10.0.0.5:10911"
    assert world.result(routes.address(queue, 1, master_only=True)) == "10.0.0.2:10911"
    assert world.result(routes.address(MessageQueue("T", "b", 0), 1)) == "10.0.0.3:10911"
    with pytest.raises(NoBrokerForTopic):
        world.result(routes.address(MessageQueue("T", "gone", 0)))


def route(*queues: QueueData) -> TopicRouteData:
    names = {each.broker_name for each in queues}
    return TopicRouteData(None, list(queues), [BrokerData(name, "c", {0: "10.0.0.2:10911"}) for name in names])


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (route(QueueData("a", 2**31 - 1, 4, 6)), "a route of 2147483647 queues, 131072 at most"),
        (route(QueueData("a", 4, 2**31 - 1, 6)), "a route of 2147483647 queues, 131072 at most"),
        (route(*(QueueData(f"b{n}", 65535, 65535, 6) for n in range(3))), "a route of 196605 queues, 131072 at most"),
        (route(QueueData("a", 4, 4, 6), QueueData("a", 4, 4, 6)), "the queues of a broker twice"),
    ],
)
def test_of_a_route_that_no_client_can_use_nothing_is_made(
    world: World, name_server: str, data: TopicRouteData, why: str, create: bool
) -> None:
    hostile = "10.0.0.8:9876"
    world.cluster.serve_also_at(hostile, name_server)

    def claim(passage: Any) -> None:
        passage.answer(RemotingCommand.response(passage.request, body=data.to_json()))

    world.faults.refuse[hostile, ROUTE] = claim
    with pytest.raises(NameServerUnreachable, match=why):
        world.result(make(world, hostile).get("T", create=create))
    world.cluster.add_topic("T")
    # Another name server is asked.
    assert len(world.result(make(world, hostile, name_server).get("T", create=create)).publish_queues) == 4


def test_a_route_of_negative_numbers_has_no_queues() -> None:
    found = route_of("T", route(QueueData("a", -3, -1, 6), QueueData("b", 2, -5, 6), QueueData("c", -7, 1, 6)))
    assert [(each.broker_name, each.queue_id) for each in found.publish_queues] == [("c", 0)]
    assert [(each.broker_name, each.queue_id) for each in found.subscribe_queues] == [("b", 0), ("b", 1)]


def test_a_route_as_long_as_two_brokers_may_have_is_taken() -> None:
    found = route_of("T", route(QueueData("b", 65535, 65535, 6), QueueData("a", 65535, 65535, 6)))
    assert len(found.publish_queues) == 131_070
    assert found.publish_queues == found.subscribe_queues
    assert [found.publish_queues[n] for n in (0, 65534, 65535, -1)] == [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 65534),
        MessageQueue("T", "b", 0),
        MessageQueue("T", "b", 65534),
    ]


LIST = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


def listing(world: World, body: bytes) -> None:
    world.faults.refuse[None, LIST] = lambda passage: passage.answer(
        RemotingCommand.response(passage.request, body=body)
    )


def test_as_many_topics_are_listed_as_a_broker_may_have(world: World, name_server: str) -> None:
    names = frozenset(f"{'t' * 70}{n:06}" for n in range(200_000))
    body = TopicList(names).to_json()
    assert 15_000_000 < len(body) < FRAME_BYTES_MAX
    listing(world, body)
    assert world.result(make(world, name_server).topics()) == names


def test_a_list_of_topics_that_takes_long_to_read_is_refused(world: World, name_server: str) -> None:
    listing(world, b'{"topicList":[' + b"[]," * 100_000 + b"[]]}")
    with pytest.raises(NameServerUnreachable, match=r"TopicList: 10000\d objects and lists, 69632 at most"):
        world.result(make(world, name_server).topics())


def test_a_body_that_takes_long_to_read_is_refused(world: World, name_server: str) -> None:
    body = b'{"x":[' + b"[]," * 400_000 + b"[]]}"
    world.faults.refuse[None, ROUTE] = lambda passage: passage.answer(
        RemotingCommand.response(passage.request, body=body)
    )
    with pytest.raises(NameServerUnreachable, match=r"TopicRouteData: 12000\d\d bytes, 1048576 at most"):
        world.result(make(world, name_server).get("T"))
