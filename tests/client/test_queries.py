"""What any client may ask brokers, on each face: topics, messages by their ids and keys, times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    ConsumeFrom,
    Message,
    MessageQueue,
    ProducerOptions,
    PushOptions,
    TopicNotFound,
)
from mqbroker.errors import Refused
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.loopback import Loopback

ON_EACH_BROKER = True

Q = MessageQueue("T", "a", 0)


@pytest.fixture(params=["Producer", "PullConsumer", "LitePullConsumer", "PushConsumer"])
def client(request: Any, face: Any) -> Any:
    client = face.make(request.param, "asking", *([print] if request.param == "PushConsumer" else []))
    if request.param == "PushConsumer":
        client.subscribe("other")
    with client:
        yield client


def test_a_topic_is_created(client: Any, cluster: Loopback) -> None:
    client.create_topic("N", 6)
    if hasattr(client._client, "queues"):
        assert client.queues("N") == [MessageQueue("N", "a", n) for n in range(6)]
    client.create_topic("N", 8)
    config = cluster.parts().topics.get("N")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (8, 8, 6)


def test_a_topic_that_cannot_be_created_says_why(client: Any, cluster: Loopback) -> None:
    for wrong in (("bad topic",), ("N", 0), ("N", "4"), (5,)):
        with pytest.raises(BadArgument):
            client.create_topic(*wrong)
    with pytest.raises(TopicNotFound):
        client.create_topic("N", like="none")
    with pytest.raises(Refused):
        client.create_topic("TBW102")
    cluster.faults.refuse[None, RequestCode.UPDATE_AND_CREATE_TOPIC] = (ResponseCode.SYSTEM_ERROR, "no")
    with pytest.raises(Refused, match="no"):
        client.create_topic("N")


def test_a_message_is_found_by_either_id_and_by_key(client: Any, producer: Any, cluster: Loopback) -> None:
    sent = [producer.send(Message("T", b"%d" % n, keys=["all", f"k{n}"]), queue=Q) for n in range(3)]
    producer.send(Message("U", b"other", keys=["all"]))
    for one in sent:
        for msg_id in (one.msg_id, one.offset_msg_id):
            found = client.message("T", msg_id)
            assert (found.msg_id, found.offset_msg_id, found.queue) == (one.msg_id, one.offset_msg_id, Q)
        assert client.message("U", one.offset_msg_id) is None
    assert client.message("T", "F" * 32) is None
    assert client.message("T", "no id") is None
    assert [message.body for message in client.messages_by_key("T", "all")] == [b"0", b"1", b"2"]
    assert [message.body for message in client.messages_by_key("T", "k1")] == [b"1"]
    assert client.messages_by_key("T", "none") == []
    assert len(client.messages_by_key("T", "all", 2)) == 2
    late = datetime.fromtimestamp(cluster.reactor.seconds(), UTC) + timedelta(hours=1)
    assert client.messages_by_key("T", "all", begin=late) == []
    assert len(client.messages_by_key("T", "all", begin=0, end=late)) == 3
    with pytest.raises(TopicNotFound):
        client.message("none", sent[0].msg_id)
    for wrong in (("T", 5), ("T", ""), ("T", "\ud800"), ("bad topic", "k")):
        with pytest.raises(BadArgument):
            client.message(*wrong)
        with pytest.raises(BadArgument):
            client.messages_by_key(*wrong)
    for times in ({"begin": datetime(2020, 1, 1)}, {"end": "now"}, {"begin": -1}, {"max_count": 0}):
        with pytest.raises(BadArgument):
            client.messages_by_key("T", "k", **times)


def test_the_first_store_time_of_a_queue(client: Any, producer: Any, cluster: Loopback) -> None:
    first = int(cluster.reactor.seconds() * 1000)
    for _ in range(2):
        producer.send(Message("T", b"x"), queue=Q)
        cluster.advance(5)
    found = client.first_store_time(Q)
    assert -1 <= int(found.timestamp() * 1000) - first < 4_000
    assert client.first_store_time(MessageQueue("T", "a", 1)) is None
    with pytest.raises(BadArgument):
        client.first_store_time("T")


def test_a_message_that_comes_again_is_found_where_it_waits(face: Any, producer: Any, cluster: Loopback) -> None:
    times: SimpleQueue[Any] = SimpleQueue()

    def again(message: Any) -> bool:
        times.put((message.topic, message.offset_msg_id))
        return bool(message.reconsume_times)

    member = face.make("PushConsumer", "g", again, options=PushOptions(consume_from=ConsumeFrom.FIRST))
    member.subscribe("T")
    sent = producer.send(Message("T", b"x", keys=["k"]), queue=Q)
    with member:
        assert face.get(times) == ("T", sent.offset_msg_id)
        for _ in range(100):
            if not times.empty():
                break
            cluster.advance(1)
            face.turn()
        _, offset_msg_id = face.get(times)
        retry = MessageQueue("%RETRY%g", "a", 0)
        found = [member.message("%RETRY%g", sent.msg_id), *member.messages_by_key("%RETRY%g", "k")]
        found += [member.message(each, offset_msg_id) for each in ("T", "%RETRY%g")]
        assert [(each.queue, each.topic, each.offset_msg_id) for each in found] == [(retry, "T", offset_msg_id)] * 4
        assert [each.queue for each in member.messages_by_key("T", "k")] == [Q]


def test_questions_are_asked_in_the_namespace(face: Any, cluster: Loopback) -> None:
    with face.make("Producer", "pg", options=ProducerOptions(namespace="one")) as producer:
        producer.create_topic("T", 2)
        sent = producer.send(Message("T", b"x", keys=["k"]), queue=Q)
        assert [queue.queue_id for queue in producer.queues("T")] == [0, 1]
        for topic in ("T", "one%T"):  # as in Java, names that already have the namespace stay as they are
            found = [producer.message(topic, msg_id) for msg_id in (sent.msg_id, sent.offset_msg_id)]
            found += producer.messages_by_key(topic, "k")
            assert [(message.topic, message.queue) for message in found] == [("T", Q)] * 3
        assert producer.first_store_time(Q) is not None
    assert cluster.parts().topics.get("one%T").read_queue_nums == 2
