from typing import Any

import pytest

from mqbroker.client import MessageQueue, NoBrokerForTopic, PullOptions, PullStatus, TopicNotFound
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.errors import Refused, Unreachable
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import decode_records
from tests.client.world import World

A, B = "10.0.0.2:10911", "10.0.0.3:10911"
Q = MessageQueue("T", "a", 0)


@pytest.fixture
def consumer(world: World, name_server: str) -> Any:
    world.cluster.add_topic("T", queues=2)
    return PullConsumerCore(world.net(), (name_server,), "cg", PullOptions())


def test_a_pull_carries_its_subscription_and_no_heartbeat_is_sent(world: World, consumer: Any) -> None:
    world.cluster.store(Q, b"0", TAGS="a")
    world.cluster.store(Q, b"1", TAGS="b")
    result = world.result(consumer.pull(Q, 0, tags="b"))
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (PullStatus.FOUND, 2, 0, 2)
    assert [m.body for m in result.messages] == [b"1"]
    (request,) = world.faults.asked(RequestCode.PULL_MESSAGE)
    assert (request.ext_fields["sysFlag"], request.ext_fields["subscription"]) == ("4", "b")
    assert world.faults.asked(RequestCode.HEART_BEAT) == []


def test_what_a_pull_may_find(world: World, consumer: Any) -> None:
    world.cluster.store(Q)
    assert world.result(consumer.pull(Q, 1)).status is PullStatus.NO_NEW_MESSAGE
    moved = world.result(consumer.pull(Q, 5))
    assert (moved.status, moved.next_offset, moved.messages) == (PullStatus.OFFSET_ILLEGAL, 1, ())


def test_a_pull_can_wait_for_a_message(world: World, consumer: Any) -> None:
    found: list[Any] = []
    world.run(consumer.pull(Q, 0, suspend_s=60)).addBoth(found.append)
    world.clock.advance(30)
    assert not found
    world.cluster.store(Q, b"new")
    assert found[0].messages[0].body == b"new"


def test_raw_pulls_of_several_queues_come_in_order_with_errors_in_place(world: World, consumer: Any) -> None:
    other = MessageQueue("T", "b", 1)
    for n in range(3):
        world.cluster.store(Q, b"%d" % n)
    world.faults.down.add(B)
    first, failed, last = world.result(consumer.fetch_many([(Q, 0, 2), (other, 0, 32), (Q, 2, 32)]))
    assert [r.body for r in decode_records(first.body)] == [b"0", b"1"]
    assert isinstance(failed, Unreachable)
    assert (last.next_offset, last.max_offset) == (3, 3)
    world.faults.refuse[A, RequestCode.PULL_MESSAGE] = (ResponseCode.NO_PERMISSION, "no")
    (refused,) = world.result(consumer.fetch_many([(Q, 0, 2)]))
    assert isinstance(refused, Refused)
    with pytest.raises(Refused):
        world.result(consumer.fetch_raw(Q, 0))


def test_offsets(world: World, consumer: Any) -> None:
    for _ in range(3):
        world.clock.advance(10)
        world.cluster.store(Q)
    offsets = consumer.offsets
    assert world.result(consumer.queues("T"))[0] == Q
    assert (world.result(offsets.min(Q)), world.result(offsets.max(Q))) == (0, 3)
    assert world.result(offsets.at_time(Q, int(world.clock.seconds() - 10) * 1000)) == 1
    query = RequestCode.QUERY_CONSUMER_OFFSET
    world.faults.refuse[A, query] = (ResponseCode.QUERY_NOT_FOUND, "Not found")  # of a queue that has lost messages
    assert world.result(offsets.committed(Q)) is None
    del world.faults.refuse[A, query]
    world.result(offsets.commit(Q, 1))
    assert world.result(offsets.committed(Q)) == 1
    world.faults.refuse[A, RequestCode.UPDATE_CONSUMER_OFFSET] = (ResponseCode.SYSTEM_ERROR, "no")
    with pytest.raises(Refused):
        world.result(offsets.commit(Q, 2))


def test_bounds_of_many_queues_come_with_errors_in_place(world: World, consumer: Any) -> None:
    world.cluster.store(Q)
    world.faults.down.add(B)
    gone, down, also = (MessageQueue("T", broker, n) for broker, n in (("gone", 0), ("b", 0), ("a", 1)))
    no_broker, failed, empty, one = world.result(consumer.offsets.bounds([gone, down, also, Q]))
    assert isinstance(no_broker, NoBrokerForTopic)
    assert isinstance(failed, Unreachable)
    assert (empty, one) == ((0, 0), (0, 1))
    with pytest.raises(NoBrokerForTopic):
        world.result(consumer.fetch_many([(gone, 0, 1)]))


def counts_of(world: World) -> list[int]:
    """Requests for offsets of topics, and of queues, since the last call."""
    codes = (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    found = [len(world.faults.asked(code)) for code in codes]
    world.faults.requests.clear()
    return found


def test_bounds_of_a_topic_take_one_request_of_each_broker(world: World, consumer: Any) -> None:
    world.cluster.add_topic("U", queues=3, brokers=["a"])
    queues = [MessageQueue(*place) for place in (("T", "a", 0), ("T", "a", 1), ("T", "b", 1), ("U", "a", 2))]
    for queue in (queues[0], queues[2], queues[2], queues[3]):
        world.cluster.store(queue)
    world.result(consumer.queues("T"))
    counts_of(world)
    found = world.result(consumer.offsets.bounds_by_topic(queues))
    assert counts_of(world) == [3, 0, 0]
    assert found == world.result(consumer.offsets.bounds(queues)) == [(0, 1), (0, 0), (0, 2), (0, 1)]
    assert counts_of(world) == [0, 4, 4]


def test_queues_that_a_topics_bounds_lack_are_asked_one_by_one(world: World, consumer: Any) -> None:
    """As while a topic gets fewer queues, whose last ones are still read; and light queues, which are no topics."""
    world.cluster.add_topic("Less", queues=3, write_queues=1, brokers=["a"])
    less = [MessageQueue("Less", "a", n) for n in range(3)]
    light = MessageQueue("%LMQ%x", "a", 0)
    world.cluster.register("a", A, 0, [TopicConfig("%LMQ%x", 1, 1)])
    world.cluster.store(less[0])
    world.cluster.store(less[2])
    wanted = [(0, 1), (0, 0), (0, 1), (0, 0)]
    counts_of(world)
    assert world.result(consumer.offsets.bounds_by_topic([*less, light])) == wanted
    assert counts_of(world) == [2, 3, 3]
    bodies = b"", b'{"offsetTable":{}}', b'{"offsetTable":{{"brokerName":"a","queueId":0}:1}}'
    for body in bodies:
        response = RemotingCommand(ResponseCode.SUCCESS, {}, body, flag=1)
        world.faults.refuse[A, RequestCode.GET_TOPIC_STATS_INFO] = lambda passage, r=response: passage.answer(r)
        assert world.result(consumer.offsets.bounds_by_topic([*less, light])) == wanted
        assert counts_of(world) == [2, 4, 4]


def test_bounds_of_a_topic_come_with_errors_in_place(world: World, consumer: Any) -> None:
    world.cluster.store(Q)
    world.faults.down.add(B)
    gone, down, also = (MessageQueue("T", broker, n) for broker, n in (("gone", 0), ("b", 0), ("b", 1)))
    no_broker, failed, other, one = world.result(consumer.offsets.bounds_by_topic([gone, down, also, Q]))
    assert isinstance(no_broker, NoBrokerForTopic)
    assert isinstance(failed, Unreachable)
    assert (other, one) == (failed, (0, 1))


def test_an_unknown_topic(world: World, consumer: Any) -> None:
    with pytest.raises(TopicNotFound):
        world.result(consumer.queues("nope"))
