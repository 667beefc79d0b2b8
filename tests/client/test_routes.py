import pytest
from twisted.internet.defer import fail

from mqbroker.client import NameServerUnreachable, NoBrokerForTopic, TopicNotFound
from mqbroker.client.errors import TlsFailed
from mqbroker.client.routes import Routes
from mqbroker.errors import Unreachable
from mqbroker.wire.bodies import MessageQueue, QueueData
from mqbroker.wire.codes import RequestCode, ResponseCode

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def make(world, *servers, age_s=30.0):
    return Routes(world.net(), servers, age_s=age_s)


def test_queues_follow_permissions_and_masters(world, name_server):
    cluster = world.cluster
    cluster.add_broker("slave-only", "10.0.0.4:10911", broker_id=1)
    cluster.topics["T"] = [
        QueueData("b", 2, 1, 6),
        QueueData("a", 1, 1, 4),
        QueueData("slave-only", 1, 1, 6),
    ]
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


def test_a_route_is_kept_for_its_age(world, name_server):
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    for seconds, asked in ((0, 1), (29.9, 1), (0.1, 2)):
        world.clock.advance(seconds)
        world.result(routes.get("T"))
        assert len(world.cluster.asked(ROUTE)) == asked


def test_a_doubted_route_is_asked_for_again_after_a_second(world, name_server):
    world.cluster.add_topic("T")
    routes = make(world, name_server, age_s=None)
    world.result(routes.get("T"))
    routes.mark_stale("T")
    world.result(routes.get("T"))
    assert len(world.cluster.asked(ROUTE)) == 1
    world.clock.advance(1)
    world.result(routes.get("T"))
    world.clock.advance(100)
    world.result(routes.get("T"))
    assert len(world.cluster.asked(ROUTE)) == 2


def test_the_next_name_server_is_asked_and_then_kept(world):
    world.cluster.add_topic("T")
    world.cluster.down.add("n:1")
    routes = make(world, "n:1", "n:2", age_s=0.0)
    for _ in range(3):
        world.result(routes.get("T"))
    assert world.cluster.asked_of(ROUTE).count("n:1") <= 1


def test_a_name_server_that_does_not_know_the_topic_is_not_the_last_word(world):
    world.cluster.add_topic("T")
    for first in ("n:1", "n:2"):
        world.cluster.refuse = {(first, ROUTE): (ResponseCode.TOPIC_NOT_EXIST, "not yet")}
        assert world.result(make(world, "n:1", "n:2").get("T")).topic == "T"


def test_an_unknown_topic_borrows_the_auto_create_topic_for_sending(world, name_server):
    world.cluster.add_topic("TBW102", queues=8)
    routes = make(world, name_server)
    route = world.result(routes.get("new", create=True))
    assert route.is_default
    assert [q.queue_id for q in route.publish_queues if q.broker_name == "a"] == [0, 1, 2, 3]
    assert {q.topic for q in route.publish_queues} == {"new"}
    with pytest.raises(TopicNotFound):
        world.result(routes.get("new"))
    world.cluster.add_topic("new", queues=1)
    assert not world.result(routes.get("new")).is_default


def test_typed_errors(world, name_server):
    routes = make(world, name_server)
    with pytest.raises(TopicNotFound, match="no broker creates topics"):
        world.result(routes.get("new", create=True))
    world.cluster.down.add(name_server)
    with pytest.raises(NameServerUnreachable, match=name_server):
        world.result(routes.get("other"))


def test_the_former_route_serves_while_name_servers_are_away(world, name_server):
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    good = world.result(routes.get("T"))
    world.cluster.down.add(name_server)
    world.clock.advance(31)
    assert world.result(routes.get("T")) == good
    asked = len(world.cluster.requests)
    assert world.result(routes.get("T")) == good
    assert len(world.cluster.requests) == asked
    world.cluster.down.clear()
    del world.cluster.topics["T"]
    world.clock.advance(31)
    assert world.result(routes.get("T")) == good


@pytest.mark.parametrize(("other", "raised"), [(TlsFailed, TlsFailed), (Unreachable, NameServerUnreachable)])
def test_name_servers_that_are_there_but_not_trusted_say_so_themselves(world, name_server, other, raised):
    errors = [TlsFailed(name_server, "why", "what to do"), other("10.0.0.9:9876", "why", "what to do")]
    world.cluster.handle = lambda addr, request: fail(errors[addr != name_server])
    with pytest.raises(raised) as caught:
        world.result(make(world, name_server, "10.0.0.9:9876").get("T"))
    assert "what to do" in str(caught.value)


def test_thousands_who_wait_share_one_answer(world, name_server, silent):
    world.cluster.refuse[name_server, ROUTE] = silent
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    found = []
    for _ in range(3000):
        world.run(routes.get("T")).addBoth(found.append)
    world.clock.advance(3)
    assert len(found) == 3000
    assert all(failure.check(NameServerUnreachable) for failure in found)
    assert len(world.cluster.asked(ROUTE)) == 1
    del world.cluster.refuse[name_server, ROUTE]
    assert world.result(routes.get("T")).topic == "T"


def test_an_address_is_the_preferred_brokers_or_the_masters(world, name_server):
    world.cluster.add_broker("a", "10.0.0.5:10911", broker_id=1)
    world.cluster.add_topic("T")
    routes = make(world, name_server)
    queue = MessageQueue("T", "a", 0)
    assert world.result(routes.address(queue)) == "10.0.0.2:10911"
    assert world.result(routes.address(queue, 1)) == "10.0.0.5:10911"
    assert world.result(routes.address(queue, 1, master_only=True)) == "10.0.0.2:10911"
    assert world.result(routes.address(MessageQueue("T", "b", 0), 1)) == "10.0.0.3:10911"
    with pytest.raises(NoBrokerForTopic):
        world.result(routes.address(MessageQueue("T", "gone", 0)))
