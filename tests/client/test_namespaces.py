"""Namespaces of pull and lite pull consumers, and of what is told of queues: brokers know the whole names."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    ConsumeFrom,
    LitePullOptions,
    Message,
    MessageFilter,
    MessageQueue,
    MQError,
    Place,
    ProducerOptions,
    PullOptions,
    PushOptions,
    RebalanceListener,
)
from mqbroker.wire.codes import RequestCode

ON_EACH_BROKER = True

Q = MessageQueue("T", "a", 0)
WHOLE = MessageQueue("one%T", "a", 0)


class Topics(MessageFilter):
    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def accepts(self, group: str, message: Any) -> bool:
        self.seen.add((group, message.topic))
        return True


def fill(face: Any, count: int) -> None:
    with face.make("Producer", "pg", options=ProducerOptions(namespace="one")) as producer:
        for n in range(count):
            producer.send(Message("T", b"%d" % n, tags="odd" if n % 2 else "even"), queue=Q)
    with face.make("Producer", "pg") as producer:
        producer.send(Message("T", b"of no namespace"), queue=Q)


def test_a_pull_consumer_has_a_namespace(face: Any, cluster: Any) -> None:
    fill(face, 4)
    topics = Topics()
    options = PullOptions(namespace="one", observers=[topics])
    with face.make("PullConsumer", "cg", options=options) as consumer:
        assert Q in consumer.queues("T")
        for queue in (Q, WHOLE):  # as in Java, names that already have the namespace stay as they are
            found = consumer.pull(queue, 0).messages
            assert [(m.topic, m.queue, m.body) for m in found] == [("T", Q, b"%d" % n) for n in range(4)]
            assert consumer.bounds([queue]) == [(0, 4)]
        assert [m.body for m in consumer.pull(Q, 0, tags="odd").messages] == [b"1", b"3"]
        assert topics.seen == {("one%cg", "T")}
        assert (consumer.min_offset(Q), consumer.max_offset(Q), consumer.offset_by_time(Q, 0)) == (0, 4, 0)
        assert (consumer.fetch_raw(Q, 1).next_offset, consumer.fetch_many([(Q, 2, 1)])[0].next_offset) == (4, 3)
        first = consumer.message_by_time(Q, 0)
        assert (first.topic, first.body, consumer.message_by_time(Q, 2**50)) == ("T", b"0", None)
        consumer.commit(Q, 3)
        assert consumer.committed(Q) == 3
        with pytest.raises(BadArgument, match="queue must be a MessageQueue"):
            consumer.max_offset("T")
    assert cluster.parts().offsets.by_queue("one%cg", "one%T") == {0: 3}
    pulls = cluster.faults.asked(RequestCode.PULL_MESSAGE)
    assert {(pull.ext_fields["topic"], pull.ext_fields["consumerGroup"]) for pull in pulls} == {("one%T", "one%cg")}


def polled(reader: Any, count: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while len(found) < count:
        found += [(message.topic, message.body) for message in reader.poll(max_count=count - len(found))]
    return found


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_lite_pull_consumer_has_a_namespace(face: Any, cluster: Any, is_assigned: bool) -> None:
    fill(face, 4)
    everything = [("T", b"%d" % n) for n in range(4)]
    options = LitePullOptions(namespace="one", consume_from=ConsumeFrom.FIRST, auto_commit=False)
    reader = face.make("LitePullConsumer", "lg", options=options)
    if is_assigned:
        reader.assign([Q])
    else:
        reader.subscribe("T")
    with reader:
        assert polled(reader, 2) == everything[:2]
        assert {queue.topic for queue in reader.assigned} == {"T"}
        assert reader.assigned <= set(reader.queues("T"))
        assert (reader.lag().queues[Q], reader.lag().total) == (2, 2)
        assert polled(reader, 2) == everything[2:]
        reader.seek(Q, Place.BEGIN)
        for _ in range(100):  # the queue is read again from its new position
            if (lag := reader.lag().queues[Q]) == 4:
                break
            face.turn()
        assert lag == 4
        assert polled(reader, 1) == everything[:1]
        reader.seek(WHOLE, 3)
        assert polled(reader, 1) == everything[3:]
        reader.commit({Q: 3})
        assert reader.committed(Q) == reader.committed(WHOLE) == 3
        assert reader.message_by_time(Q, 0).topic == "T"
        assert reader.offset_by_time(Q, 0) == 0
    assert cluster.parts().offsets.by_queue("one%lg", "one%T")[0] == 3


def test_messages_of_assigned_queues_may_be_picked(face: Any, cluster: Any) -> None:
    fill(face, 6)
    options = LitePullOptions(namespace="one", consume_from=ConsumeFrom.FIRST)
    with face.make("LitePullConsumer", "lg", options=options) as reader:
        reader.assign([Q], "odd")
        assert [body for _, body in polled(reader, 3)] == [b"1", b"3", b"5"]
        reader.assign([Q], "even")
        reader.seek(Q, Place.BEGIN)
        assert [body for _, body in polled(reader, 3)] == [b"0", b"2", b"4"]
        reader.assign([Q], "odd")
        # None that the other expression picked; what was handed out last may come again, if it is pulled so soon.
        assert {message.body for message in reader.poll(timeout_s=0)} <= {b"1", b"3", b"5"}
        with pytest.raises(MQError, match="SQL"):
            reader.assign([Q], "a > 5")


def test_a_selector_does_not_see_the_namespace(face: Any, cluster: Any) -> None:
    with face.make("Producer", "pg", options=ProducerOptions(namespace="one")) as producer:
        producer.create_topic("T", 4)
        third = producer.queues("T")[2]
        seen: list[Any] = []

        def choose(queues: Any, message: Any) -> Any:
            seen.append(queues)
            return {queue: queue for queue in queues}[third]

        assert producer.send(Message("T", b"x"), selector=choose).queue == third
        producer.send_oneway(Message("T", b"x"), selector=choose)
        assert [set(queues) for queues in seen] == [set(producer.queues("T"))] * 2


class Told(RebalanceListener):
    def __init__(self) -> None:
        self.topics: SimpleQueue[set[str]] = SimpleQueue()

    def assigned(self, queues: frozenset[MessageQueue]) -> None:
        self.topics.put({queue.topic for queue in queues})

    revoked = assigned


def test_a_rebalance_listener_and_a_filter_do_not_see_the_namespace(face: Any, cluster: Any) -> None:
    fill(face, 1)
    told, topics, got = Told(), Topics(), SimpleQueue[Any]()
    options = PushOptions(namespace="one", consume_from=ConsumeFrom.FIRST, rebalance_listener=told, observers=[topics])
    member = face.make("PushConsumer", "g", lambda message: got.put(message.topic), options=options)
    member.subscribe("T")
    with member:
        assert face.get(got) == "T"
        assert face.get(told.topics) in ({"T"}, {"%RETRY%g"})
    assert topics.seen == {("one%g", "T")}
