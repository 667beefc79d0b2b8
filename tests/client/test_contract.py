"""What clients do, the same on each face, with our own name server and broker in memory."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from mqbroker.client import (
    BadArgument,
    BadListener,
    BadMessage,
    BatchFailed,
    ClientClosed,
    ConsumeFrom,
    ConsumeResult,
    FirstConsumed,
    LitePullOptions,
    LocalOffsets,
    Message,
    MessageModel,
    MessageQueue,
    NameServerUnreachable,
    NoSubscription,
    OrderlyResult,
    Place,
    ProducerOptions,
    PullStatus,
    PushOptions,
    RebalanceListener,
    SendResult,
    SendStatus,
    Sql,
    SuspendQueue,
    TopicNotFound,
)
from mqbroker.errors import Refused
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.loopback import Loopback

ON_EACH_BROKER = True

Q = MessageQueue("T", "a", 0)
FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0)


def test_what_is_sent_can_be_pulled(producer: Any, consumer: Any) -> None:
    results = [producer.send(Message("T", b"%d" % n, tags="even" if n % 2 == 0 else "odd"), queue=Q) for n in range(4)]
    assert [(r.status, r.queue, r.queue_offset) for r in results] == [(SendStatus.SEND_OK, Q, n) for n in range(4)]
    assert len({r.msg_id for r in results}) == 4
    batch = producer.send_batch([Message("T", b"4"), Message("T", b"5")], queue=Q)
    assert [(each.queue, each.queue_offset) for each in batch] == [(Q, 4), (Q, 5)]
    producer.send_oneway(Message("T", b"6"), queue=Q)
    assert producer.queues("T") == consumer.queues("T") == [MessageQueue("T", "a", n) for n in range(4)]
    while consumer.max_offset(Q) < 7:  # nobody says that a oneway one has arrived
        pass
    found = consumer.pull(Q, 1)
    assert [message.body for message in found.messages] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (PullStatus.FOUND, 7, 0, 7)
    assert [message.body for message in consumer.pull(Q, 0, tags="odd").messages] == [b"1", b"3"]
    assert consumer.fetch_raw(Q, 6).next_offset == 7
    assert [raw.next_offset for raw in consumer.fetch_many([(Q, n, 1) for n in range(7)])] == [1, 2, 3, 4, 5, 6, 7]


def test_a_batch_of_any_number_splits_itself(face: Any, consumer: Any, cluster: Any) -> None:
    with face.make("Producer", "pg", options=ProducerOptions(message_bytes_max=10_000)) as producer:
        assert producer.send_batch([]) == []
        messages = [Message("T" if n % 3 else "U", b"%d" % n * 100, keys=[f"k{n}"]) for n in range(100)]
        results = producer.send_batch(iter(messages), key="one queue")
        assert len({result.msg_id for result in results}) == 100
        assert {(result.status, result.queue.topic) for result in results} == {
            (SendStatus.SEND_OK, "T"),
            (SendStatus.SEND_OK, "U"),
        }
        (queue,) = {result.queue for result in results if result.queue.topic == "T"}
        found: list[Any] = []
        while len(found) < consumer.max_offset(queue):
            found += consumer.pull(queue, len(found)).messages
        at = {result.queue_offset: (result.msg_id, result.offset_msg_id) for result in results if result.queue == queue}
        assert {m.queue_offset: (m.msg_id, m.offset_msg_id) for m in found} == at
        assert [m.body for m in found] == [m.body for m in messages if m.topic == "T"]
        with pytest.raises(BadMessage, match=r"message 1 of the batch: delayed .*; no message was sent"):
            producer.send_batch([Message("T", b"x"), Message("T", b"x", delay_level=1)], queue=queue)
        assert consumer.max_offset(queue) == len(found)
        # What a batch adds to the largest bodies would be too much for brokers.
        large = [Message("T", random.Random(n).randbytes(10_000 - n)) for n in (0, 1, 400)]
        results = producer.send_batch([messages[1], *large, messages[2]], queue=queue)
        assert [result.queue_offset for result in results] == [len(found) + n for n in range(5)]
        stored = consumer.pull(queue, len(found)).messages
        assert [m.body for m in stored] == [m.body for m in (messages[1], *large, messages[2])]
        assert [(m.msg_id, m.offset_msg_id) for m in stored] == [(r.msg_id, r.offset_msg_id) for r in results]
    batches = cluster.faults.asked(RequestCode.SEND_BATCH_MESSAGE)
    assert len(batches) > 3
    assert all(len(batch.body) <= 10_000 for batch in batches)


def test_a_batch_of_which_some_were_stored_says_which(face: Any, cluster: Any) -> None:
    asked = cluster.faults.asked

    def second_is_refused(passage: Any) -> None:
        if len(asked(RequestCode.SEND_BATCH_MESSAGE)) < 2:
            passage.pass_on()
        else:
            passage.answer(passage.request.response(passage.request, ResponseCode.MESSAGE_ILLEGAL, "no"))

    cluster.faults.refuse[None, RequestCode.SEND_BATCH_MESSAGE] = second_is_refused
    with face.make("Producer", "pg", options=ProducerOptions(message_bytes_max=10_000)) as producer:
        with pytest.raises(BatchFailed, match=r"2 of 4 messages were not sent: CODE: 13 .*Resend") as failed:
            producer.send_batch([Message("T", bytes(4_000)) for _ in range(4)], queue=Q)
        assert [type(result) for result in failed.value.results] == [SendResult, SendResult, Refused, Refused]
        with pytest.raises(Refused):
            producer.send_batch([Message("T", b"x")], queue=Q)


def test_a_large_body_is_compressed_and_keeps_its_place_among_those_of_its_key(face: Any, consumer: Any) -> None:
    large = b"%d" * 100_000
    with face.make("Producer", "pg") as producer:
        for body in (b"1", large, b"2"):
            result = producer.send(Message("T", body), key="k")
        producer.send_oneway(Message("T", large), queue=result.queue)
    while consumer.max_offset(result.queue) < 4:
        pass
    found = consumer.pull(result.queue, 0).messages
    assert [message.body for message in found] == [b"1", large, b"2", large]
    assert [message.sys_flag & 1 for message in found] == [0, 1, 0, 1]


def test_a_body_as_large_as_may_be_that_cannot_be_compressed_is_sent_as_it_is(producer: Any, consumer: Any) -> None:
    body = random.Random(1).randbytes(ProducerOptions().message_bytes_max)
    producer.send(Message("T", body), queue=Q)
    (message,) = consumer.pull(Q, 0).messages
    assert message.sys_flag & 1 == 0
    assert message.body == body


def test_a_message_goes_to_light_queues_as_well(producer: Any, consumer: Any) -> None:
    plain = producer.send(Message("T", b"1"), queue=Q)
    producer.send(Message("T", b"2").to_light_queues("%LMQ%a", "%LMQ%b"), queue=plain.queue)
    found = consumer.pull(Q, 0).messages
    assert [message.properties.get("INNER_MULTI_DISPATCH") for message in found] == [None, "%LMQ%a,%LMQ%b"]


def test_offsets_of_a_group(producer: Any, consumer: Any) -> None:
    producer.send(Message("T", b"x"), queue=Q)
    assert consumer.committed(Q) == 0  # what a broker says of a queue that is whole in memory
    consumer.commit(Q, 1)
    assert consumer.committed(Q) == 1
    assert (consumer.min_offset(Q), consumer.max_offset(Q), consumer.bounds([Q])) == (0, 1, [(0, 1)])
    assert consumer.offset_by_time(Q, 0) == 0


def test_one_key_goes_to_one_queue_in_order(producer: Any, consumer: Any) -> None:
    results = [producer.send(Message("T", b"%d" % n), key="order-7") for n in range(20)]
    assert len({r.queue for r in results}) == 1
    chosen = producer.send(Message("T", b"x"), selector=lambda queues, message: queues[2])
    assert chosen.queue.queue_id == 2
    found = consumer.pull(results[0].queue, 0)
    assert [message.body for message in found.messages][:20] == [b"%d" % n for n in range(20)]


def test_what_cannot_be_done_says_why(face: Any, producer: Any, consumer: Any) -> None:
    with pytest.raises(BadMessage, match="the body is empty"):
        producer.send(Message("T", b""))
    for method, wrong in (("send", "text"), ("send_oneway", b"bytes"), ("send_batch", [Message("T", b"x"), None])):
        with pytest.raises(BadMessage, match="a Message is sent, not "):
            getattr(producer, method)(wrong)
    with pytest.raises(TopicNotFound, match="No route info of this topic: none"):
        consumer.queues("none")
    producer.send(Message("T", b"x"), queue=Q)
    with pytest.raises(Refused, match="queueId"):
        consumer.pull(MessageQueue("T", "a", 99), 0)


def test_without_a_name_server(face: Any, cluster: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "name_server", "127.0.0.1:1")
    says = pytest.raises(NameServerUnreachable, match=r"No name server answers: 127\.0\.0\.1:1: Unreachable")
    for name, group in (("Producer", "pg"), ("PullConsumer", "cg")):
        client = face.make(name, group)
        for _ in range(2):  # it may be started again when the name server is there
            with says:
                client.start()
        client.close()


def test_a_closed_client_says_so_and_may_be_closed_again(face: Any) -> None:
    face.make("Producer", "pg").close()
    producer = face.make("Producer", "pg")
    producer.start()
    for _ in range(2):
        producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))


@pytest.mark.parametrize("kind", ["Producer", "PullConsumer", "LitePullConsumer", "PushConsumer"])
def test_a_client_is_started_once(face: Any, kind: Any) -> None:
    client = face.make(kind, "g", *([print] if kind == "PushConsumer" else []))
    if kind == "PushConsumer":
        client.subscribe("T")
    client.start()
    with pytest.raises(ClientClosed, match="can be started only once"):
        client.start()
    client.close()


@pytest.mark.parametrize("kind", ["Producer", "PullConsumer", "LitePullConsumer", "PushConsumer"])
def test_what_is_called_after_the_end_says_that_the_client_is_closed(face: Any, kind: Any) -> None:
    client = face.make(kind, "g", *([print] if kind == "PushConsumer" else []))
    if kind == "PushConsumer":
        client.subscribe("T")
    client.start()
    client.close()
    calls: dict[str, tuple[Any, ...]] = {
        "queues": ("new",),
        "message": ("new", "id"),
        "create_topic": ("new",),
        "pull": (MessageQueue("new", "a", 0), 0),
        "max_offset": (MessageQueue("new", "a", 0),),
        "commit": () if kind == "LitePullConsumer" else (MessageQueue("new", "a", 0), 1),
        "committed": (Q,),
        "subscribe": ("T",),
        "unsubscribe": ("T",),
        "assign": ([Q],),
        "suspend": (),
        "pause": (),
        "resume": (),
    }
    for name, given in calls.items():
        if hasattr(client._client, name):
            with pytest.raises(ClientClosed):
                getattr(client, name)(*given)


def test_a_producer_is_known_to_its_brokers_until_it_leaves(face: Any, cluster: Loopback) -> None:
    with face.make("Producer", "pg") as producer:
        producer.send(Message("T", b"x"))
        producer.send(Message("T", b"x"))
        if face.module.__name__ != "mqbroker.client.blocking":
            assert "pg" in cluster.parts().producers.groups()
    assert "pg" not in cluster.parts().producers.groups()


def test_a_member_takes_everything_commits_and_leaves(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(50):
        producer.send(Message("T", b"%d" % n, keys=["k"]))
    got: SimpleQueue[Any] = SimpleQueue()
    member = face.make("PushConsumer", "g", got.put, options=FROM_FIRST)
    member.subscribe("T")
    with member:
        assert {face.get(got).body for _ in range(50)} == {b"%d" % n for n in range(50)}
        assert {queue for queue in member.assigned if queue.topic == "T"} == set(producer.queues("T"))
        producer.send(Message("T", b"later"))
        assert face.get(got).body == b"later"
    offsets = cluster.parts().offsets.by_queue("g", "T")
    assert (sum(offsets.values()), len(offsets)) == (51, 4)
    assert "g" not in cluster.parts().consumers.names()
    with pytest.raises(ClientClosed):
        member.start()


def test_what_a_listener_does_not_take_comes_again(face: Any, cluster: Loopback, producer: Any) -> None:
    producer.send(Message("T", b"x"))
    got: SimpleQueue[Any] = SimpleQueue()
    verdicts = [ConsumeResult.RETRY, None]

    def listener(message: Any) -> Any:
        got.put(message)
        return verdicts.pop(0)

    member = face.make("PushConsumer", "g", listener, options=FROM_FIRST)
    member.subscribe("T")
    with member:
        first = face.get(got)
        for _ in range(500):
            cluster.advance(1)
            producer.queues("T")
            if not got.empty():
                break
        again = face.get(got)
    assert (first.body, first.reconsume_times) == (b"x", 0)
    assert (again.body, again.reconsume_times, again.topic) == (b"x", 1, "T")


def test_a_member_may_be_closed_inside_its_listener(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(20):
        producer.send(Message("T", b"%d" % n), queue=Q)
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(message: Any) -> Any:
        got.put(message)
        return member._client.close()

    # As long as this takes what the test allows, if close() waits for the call that it is in.
    options = PushOptions(consume_from=ConsumeFrom.FIRST, concurrency=1, close_timeout_s=60.0)
    member = face.make("PushConsumer", "g", listener, options=options)
    member.subscribe("T")
    member.start()
    assert face.get(got).body == b"0"
    member.close()
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 1
    assert "g" not in cluster.parts().consumers.names()
    assert got.empty()


def test_members_share_the_queues(face: Any, cluster: Loopback, producer: Any) -> None:
    producer.send(Message("T", b"x"))
    members = [face.make("PushConsumer", "g", lambda message: None, options=FROM_FIRST) for _ in range(2)]
    for member in members:
        member.subscribe("T")
        member.start()
    for _ in range(500):
        producer.send(Message("T", b"x"))  # a loop turns meanwhile, and bytes move
        cluster.advance(0.5)
        shares = [{queue for queue in member.assigned if queue.topic == "T"} for member in members]
        if [len(share) for share in shares] == [2, 2]:
            break
    assert shares[0] | shares[1] == set(producer.queues("T"))
    for member in members:
        member.close()


def test_a_queue_may_be_consumed_in_order(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(50):
        producer.send(Message("T", b"%d" % n), queue=Q)
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(message: Any) -> Any:
        got.put(message)
        if message.body == b"7" and message.reconsume_times == 0:
            raise SuspendQueue(0.01)
        return OrderlyResult.SUCCESS

    member = face.make("PushConsumer", "g", listener, options=attrs.evolve(FROM_FIRST, orderly=True))
    member.subscribe("T")
    with member:
        first = [face.get(got).body for _ in range(8)]
        cluster.advance(0.1)
        rest = [face.get(got).body for _ in range(43)]
        assert first + rest == [b"%d" % n for n in [*range(8), *range(7, 50)]]
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 50


def test_results_may_be_committed_by_hand(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(6):
        producer.send(Message("T", b"%d" % n), queue=Q)
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(message: Any) -> Any:
        got.put(message)
        return OrderlyResult.COMMIT if message.body == b"2" else None

    member = face.make("PushConsumer", "g", listener, options=attrs.evolve(FROM_FIRST, orderly=True, auto_commit=False))
    member.subscribe("T")
    with member:
        assert [face.get(got).body for _ in range(6)] == [b"%d" % n for n in range(6)]
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 3


def test_a_listener_may_get_several_messages(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(50):
        producer.send(Message("T", b"%d" % n), queue=Q)
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(messages: Any) -> Any:
        got.put([message.body for message in messages])
        return FirstConsumed(len(messages))

    member = face.make("PushConsumer", "g", listener, options=attrs.evolve(FROM_FIRST, batch_max=8))
    member.subscribe("T")
    with member:
        found: list[bytes] = []
        while len(found) < 50:
            batch = face.get(got)
            assert len(batch) <= 8
            found += batch
    assert sorted(found) == sorted(b"%d" % n for n in range(50))
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 50


def test_a_topic_may_be_given_up_and_a_member_suspended(face: Any, cluster: Loopback, producer: Any) -> None:
    producer.send(Message("T", b"0"), queue=Q)
    got: SimpleQueue[Any] = SimpleQueue()
    member = face.make("PushConsumer", "g", got.put, options=attrs.evolve(FROM_FIRST, suspend_s=0.1))
    member.subscribe("T")
    with member:
        assert face.get(got).body == b"0"
        member._client.suspend()
        member._client.resume()
        producer.send(Message("T", b"1"), queue=Q)
        assert face.get(got).body == b"1"
        member.unsubscribe("T")
        for _ in range(2):
            member.unsubscribe("other")
        assert not any(queue.topic == "T" for queue in member.assigned)
        producer.send(Message("T", b"2"), queue=Q)
        assert got.empty()


def test_a_bad_expression_is_refused_before_it_is_sent(face: Any) -> None:
    member = face.make("PushConsumer", "g", print)
    member.subscribe("T", Sql("n > 1"))
    with pytest.raises(BadArgument, match=r"expression that brokers can read \(.*the expression ends.*\), not 'n >'"):
        member.subscribe("T", Sql("n >"))
    for wrong in ("\ud800", Sql("n = '\ud800'")):
        with pytest.raises(BadArgument, match="expression must be text that UTF-8 can encode"):
            member.subscribe("T", wrong)
    member.close()


def taking(face: Any, member: Any) -> Any:
    """What takes the next message of a consumer that is iterated over."""
    if face.module.__name__ == "mqbroker.client.blocking":
        return lambda: next(member._client)
    return lambda: face.wait(lambda: face.awaitable(member._client.__anext__()))


def test_a_message_that_is_given_up_says_why(face: Any, cluster: Loopback, producer: Any, consumer: Any) -> None:
    member = face.make("PushConsumer", "g", options=FROM_FIRST)
    member.subscribe("T")
    with member:
        take = taking(face, member)
        reasons = ["no such customer", "a\x01b\x02c\ud800" + "x" * 5000, "", KeyError("customer")]
        for n, reason in enumerate(reasons):
            producer.send(Message("T", b"%d" % n), queue=Q)
            take().dead_letter(reason)
        producer.send(Message("T", b"later"), queue=Q)
        late = take()
        with pytest.raises(ValueError, match=r"0:00:07 is the delay of no level"):
            late.nack(timedelta(seconds=7))
        for level in ("5", None, -1):
            with pytest.raises(ValueError, match="delay_level must be"):
                late.nack(level)
        for reason in (None, 5, b"text"):
            with pytest.raises(BadArgument, match="reason must be text, or an exception"):
                late.dead_letter(reason)
        late.nack(timedelta(seconds=5))
        dead = MessageQueue("%DLQ%g", "a", 0)
        found: list[Any] = []
        while len(found) < 4:
            face.turn()
            try:
                found = list(consumer.pull(dead, 0).messages)
            except (TopicNotFound, Refused):
                continue
    by_body = {each.body: each.properties.get("DEAD_LETTER_REASON") for each in found}
    long = ("a b c?" + "x" * 5000)[:1000]
    assert by_body == {b"0": reasons[0], b"1": long, b"2": None, b"3": "KeyError: 'customer'"}
    assert cluster.sent_back[-1].delay_level == 2


def test_messages_may_be_taken_by_iteration(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(10):
        producer.send(Message("T", b"%d" % n, keys=["k"]), queue=Q)
    member = face.make("PushConsumer", "g", options=attrs.evolve(FROM_FIRST, unacked_max=4))
    member.subscribe("T")
    member.start()
    take = taking(face, member)
    found = [take() for _ in range(4)]
    assert [(each.body, each.keys, each.queue) for each in found] == [(b"%d" % n, ("k",), Q) for n in range(4)]
    for each in reversed(found):
        each.ack()
        each.ack()
    rest = [take() for _ in range(4)]
    assert [each.body for each in rest] == [b"4", b"5", b"6", b"7"]
    rest[0].nack(3)
    rest[1].dead_letter("broken")
    rest[2].ack()
    with pytest.raises(ValueError, match="delay_level"):
        rest[3].nack(-1)
    assert [take().body for _ in range(2)] == [b"8", b"9"]
    member.close()
    with pytest.raises((StopIteration, StopAsyncIteration)):
        take()
    rest[3].ack()
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 7


def test_a_consumer_with_a_listener_is_not_iterated_over(face: Any) -> None:
    member = face.make("PushConsumer", "g", print)
    member.subscribe("T")
    with member, pytest.raises(BadListener, match="without one to iterate"):
        taking(face, member)()
    waiting = face.make("PushConsumer", "g")
    with pytest.raises(ClientClosed):
        taking(face, waiting)()
    waiting.close()
    with pytest.raises(BadArgument, match="left out without a listener"):
        face.make("PushConsumer", "g", options=PushOptions(orderly=True))


LITE = LitePullOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0, suspend_s=0.1)


def polled(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in consumer.poll(max_count=count - len(found))]
    return found


def test_a_program_polls_its_groups_share(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(20):
        producer.send(Message("T", b"%d" % n), queue=Q)
    consumer = face.make("LitePullConsumer", "g", options=LITE)
    consumer.subscribe("T")
    with consumer:
        assert polled(consumer, 15) == [b"%d" % n for n in range(15)]
        assert consumer.assigned == set(producer.queues("T"))
        assert (consumer.lag().total, consumer.lag().queues[Q]) == (5, 5)
        assert "g" in cluster.parts().consumers.names()
        consumer.commit()
        assert consumer.committed(Q) == 15
        assert polled(consumer, 5) == [b"%d" % n for n in range(15, 20)]
    # What the last poll has returned may not have been worked on.
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 15
    assert "g" not in cluster.parts().consumers.names()


def test_a_program_reads_queues_that_it_names_from_where_it_likes(face: Any, producer: Any) -> None:
    for n in range(10):
        producer.send(Message("T", b"%d" % n), queue=Q)
    consumer = face.make("LitePullConsumer", "g", options=attrs.evolve(LITE, auto_commit=False))
    consumer.assign([Q])
    with consumer:
        assert polled(consumer, 10) == [b"%d" % n for n in range(10)]
        for to, first in ((7, b"7"), (Place.BEGIN, b"0"), (datetime.fromtimestamp(0, UTC), b"0")):
            consumer.seek(Q, to)
            assert polled(consumer, 1) == [first]
        consumer.seek(Q, Place.END)
        producer.send(Message("T", b"new"), queue=Q)
        assert polled(consumer, 1) == [b"new"]
        consumer._face.wait(lambda: done(face, consumer._client.pause()))
        producer.send(Message("T", b"later"), queue=Q)
        assert consumer.poll(timeout_s=0) == []
        consumer._face.wait(lambda: done(face, consumer._client.resume([Q])))
        assert polled(consumer, 1) == [b"later"]
        first = consumer.message_by_time(Q, 0)
        assert (first.body, consumer.message_by_time(Q, 2**50)) == (b"0", None)
        assert consumer.offset_by_time(Q, datetime.fromtimestamp(0, UTC)) == 0
        with pytest.raises(BadArgument, match="left out after assign"):
            consumer.subscribe("T")
        with pytest.raises(BadArgument, match="one of those that are assigned"):
            consumer.seek(MessageQueue("T", "a", 1), 0)


def test_a_program_is_told_of_other_queues_and_gives_a_topic_up(face: Any, cluster: Loopback, producer: Any) -> None:
    told: SimpleQueue[Any] = SimpleQueue()
    producer.create_topic("T", 2)
    consumer = face.make("LitePullConsumer", "g", options=attrs.evolve(LITE, route_age_s=0.1))

    def changed(queues: Any) -> None:
        if face.module.__name__ == "mqbroker.client.blocking":
            consumer.queues("T")  # which may block here
        told.put(queues)

    with pytest.raises(BadArgument, match="changed must be a function"):
        consumer.watch_queues("T", [])
    consumer.watch_queues("T", changed)
    consumer.subscribe("T")
    with consumer:
        assert consumer.client_id
        producer.create_topic("T", 3)
        for _ in range(1000):
            if not told.empty():
                break
            cluster.advance(0.1)
            face.turn()
        assert told.get(block=False) == {MessageQueue("T", "a", n) for n in range(3)}
        assert consumer.assigned
        consumer.unsubscribe("T")
        assert not consumer.assigned
    with pytest.raises(ClientClosed):
        consumer.watch_queues("T", changed)


def done(face: Any, result: Any) -> Any:
    """What a face waits for, of a call that is over."""

    async def coroutine() -> Any:
        return result

    return result if face.module.__name__ == "mqbroker.client.blocking" else face.awaitable(coroutine())


def test_a_lite_pull_consumer_may_be_iterated_over(face: Any, cluster: Loopback, producer: Any) -> None:
    for n in range(3):
        producer.send(Message("T", b"%d" % n), queue=Q)
    consumer = face.make("LitePullConsumer", "g", options=LITE)
    consumer.subscribe("T")
    consumer.start()
    take = taking(face, consumer)
    assert [take().body for _ in range(3)] == [b"0", b"1", b"2"]
    consumer.close()
    with pytest.raises((StopIteration, StopAsyncIteration)):
        take()


def test_a_pull_consumer_finds_the_first_message_of_a_time(producer: Any, consumer: Any) -> None:
    for n in range(5):
        producer.send(Message("T", b"%d" % n), queue=Q)
    assert consumer.message_by_time(Q, 0).body == b"0"
    assert consumer.message_by_time(Q, datetime(9999, 1, 1, tzinfo=UTC)) is None


def test_each_member_may_get_every_message(face: Any, cluster: Loopback, producer: Any, tmp_path: Path) -> None:
    producer.send(Message("T", b"x"))
    got: SimpleQueue[Any] = SimpleQueue()
    for n in range(2):
        store = LocalOffsets(tmp_path / str(n) / "offsets.json")
        options = attrs.evolve(FROM_FIRST, model=MessageModel.BROADCASTING, offset_store=store)
        member = face.make("PushConsumer", "g", got.put, options=options)
        member.subscribe("T")
        with member:
            assert face.get(got).body == b"x"
        assert (tmp_path / str(n) / "offsets.json").exists()


def test_a_rebalance_listener_is_told(face: Any, producer: Any) -> None:
    producer.send(Message("T", b"x"))
    told: SimpleQueue[Any] = SimpleQueue()

    class Told(RebalanceListener):
        def assigned(self, queues: frozenset[MessageQueue]) -> None:
            told.put(("assigned", queues))

        def revoked(self, queues: frozenset[MessageQueue]) -> None:
            told.put(("revoked", queues))

    member = face.make("PushConsumer", "g", lambda message: None, options=PushOptions(rebalance_listener=Told()))
    member.subscribe("T")
    with member:
        calls = [face.get(told) for _ in range(2)]
        assert ("assigned", frozenset(producer.queues("T"))) in calls
    assert face.get(told)[0] == "revoked"


def test_a_member_that_could_get_nothing_is_not_started(face: Any) -> None:
    with pytest.raises(NoSubscription):
        face.make("PushConsumer", "g", print).start()
    member = face.make("PushConsumer", "g", None)
    member.subscribe("T")
    with pytest.raises(BadListener):
        member.start()
    member.close()
