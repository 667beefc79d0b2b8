import asyncio
import fcntl
import multiprocessing
import os
import pickle
import resource
import socket
import threading
import time
from typing import Any

import pytest

from mqbroker.client import BadMessage, ClientClosed, Message, MessageQueue, ProducerOptions, PullOptions, PushOptions
from mqbroker.client.blocking import Producer, PullConsumer, PushConsumer
from mqbroker.client.options import ConsumeFrom
from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.record import encode_record
from tests.client.faults import Passage
from tests.client.loopback import Loopback

Q = MessageQueue("T", "a", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def topic(server: Loopback) -> Any:
    server.add_topic("T", queues=2)
    return server


def test_many_pulls_are_sent_ahead_of_their_answers(topic: Loopback, silent: object) -> None:
    for n in range(300):
        topic.store(Q, b"%d" % n)
    held = []

    def hold_some(passage: Any) -> None:
        """Answer nothing before ten pulls are here, and those in another order."""
        held.append(passage)
        if len(held) == 10:
            for pull in reversed(held):
                pull.pass_on()
            topic.faults.refuse.clear()

    topic.faults.refuse[None, PULL] = hold_some
    with PullConsumer(topic.addr, "cg") as consumer:
        results = consumer.fetch_many([(Q, n, 1) for n in range(300)])
    assert [r.next_offset for r in results] == list(range(1, 301))


def test_pulls_can_be_taken_later_or_given_up(topic: Loopback) -> None:
    for n in range(3):
        topic.store(Q, b"%d" % n)
    with PullConsumer(topic.addr, "cg") as consumer:
        ahead = consumer.fetch_ahead([(Q, n, 1) for n in range(3)])
        other = consumer.fetch_ahead([(Q, 2, 1)])
        other.abandon()
        assert [r.next_offset for r in ahead.finish()] == [1, 2, 3]
        assert consumer.bounds([Q]) == [(0, 3)]
    # The connection with an answer still on its way was not used again.
    topic.wait_for_connections(2)
    assert len(topic.connections) == 2


def test_an_answer_that_does_not_come_times_out_and_the_connection_is_not_used_again(
    topic: Loopback, silent: object
) -> None:
    topic.store(Q)
    topic.faults.refuse[None, PULL] = silent
    with PullConsumer(topic.addr, "cg", options=PullOptions(pull_timeout_ms=100)) as consumer:
        consumer.queues("T")
        with pytest.raises(RequestTimedOut):
            consumer.pull(Q, 0)
        topic.faults.refuse.clear()
        consumer._core._options = PullOptions()  # with time for an answer, however busy the machine is
        assert consumer.pull(Q, 0).next_offset == 1
        assert len(topic.connections) == 2


def test_a_connection_that_the_broker_closes_fails_its_requests_and_is_replaced(topic: Loopback) -> None:
    topic.store(Q)

    with PullConsumer(topic.addr, "cg") as consumer:
        consumer.queues("T")
        topic.faults.refuse[None, PULL] = Passage.cut
        with pytest.raises(ConnectionClosed):
            consumer.pull(Q, 0)
        topic.faults.refuse.clear()
        assert consumer.pull(Q, 0).next_offset == 1


def test_a_connection_that_was_closed_while_idle_is_not_used(topic: Loopback) -> None:
    with Producer(topic.addr, "pg") as producer:
        producer.send(Message("T", b"0"))
        for connection in topic.connections:
            connection.shut_down()
        # One attempt only: it would fail on the old connection.
        producer.send(Message("T", b"1"), queue=Q)
    assert len(topic.connections) == 2


def test_a_connection_with_a_high_descriptor_is_used_again(topic: Loopback) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"no descriptor above 1023 may be had here: the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    try:
        with Producer(topic.addr, "pg") as producer:
            producer.send(Message("T", b"0"))
            (connection,) = producer._parts()[0]._idle[topic.broker_addr]
            high = socket.socket(fileno=fcntl.fcntl(connection._socket.fileno(), fcntl.F_DUPFD, 1500))
            connection._socket.close()
            connection._socket = high
            for n in range(3):
                producer.send(Message("T", b"%d" % n))
        assert high.fileno() == -1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(topic.connections) == 1


def test_requests_of_the_broker_between_answers_are_left_alone(topic: Loopback) -> None:
    def ask(passage: Any) -> None:
        passage.connection.write(encode_command(RemotingCommand(39, opaque=passage.request.opaque)))
        passage.pass_on()

    topic.faults.refuse[None, None] = ask
    with Producer(topic.addr, "pg") as producer:
        assert producer.send(Message("T", b"0"), queue=Q).queue == Q


def test_threads_share_a_producer(topic: Loopback) -> None:
    with Producer(topic.addr, "pg", options=ProducerOptions(send_threads=4)) as producer:
        sends = [producer.send_async(Message("T", b"%d" % n)) for n in range(200)]
        results = [send.result(10) for send in sends]
        failed = producer.send_async(Message("T", b""))
        with pytest.raises(BadMessage):
            failed.result(10)
    assert len({r.msg_id for r in results}) == 200
    assert len(topic.connections) <= 4
    assert sum(len(topic.stored(MessageQueue("T", "a", n))) for n in range(2)) == 200


def test_pickled_clients_keep_addresses_and_options_only(topic: Loopback) -> None:
    topic.store(Q)
    with Producer(topic.addr, "pg") as producer, PullConsumer(topic.addr, "cg") as consumer:
        producer.send(Message("T", b"0"))
        consumer.queues("T")
        again, reader = pickle.loads(pickle.dumps((producer, consumer)))
        with again, reader:
            assert again.send(Message("T", b"1")).queue.topic == "T"
            assert reader.pull(Q, 0).next_offset >= 1
            assert pickle.loads(pickle.dumps(reader.queues("T"))) == reader.queues("T")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(PushConsumer(topic.addr, "g", print))


def _use_in_child(producer: Any, consumer: Any, results: Any) -> None:
    own = producer.send(Message("T", b"child"), queue=Q)
    results.put((os.getpid(), own.msg_id, consumer.pull(Q, 0).max_offset))
    producer.close()
    consumer.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own_connections_and_the_parents_go_on(topic: Loopback) -> None:
    fork = multiprocessing.get_context("fork")
    with Producer(topic.addr, "pg") as producer, PullConsumer(topic.addr, "cg") as consumer:
        first = producer.send(Message("T", b"parent"), queue=Q)
        consumer.pull(Q, 0)
        before = len(topic.connections)
        results = fork.SimpleQueue()
        child = fork.Process(target=_use_in_child, args=(producer, consumer, results))
        child.start()
        pid, msg_id, max_offset = results.get()
        child.join(10)
        assert (child.exitcode, max_offset) == (0, 2)
        assert pid != os.getpid()
        assert msg_id != first.msg_id
        used = len(topic.connections)
        assert used > before
        producer.send(Message("T", b"parent again"), queue=Q)
        assert consumer.pull(Q, 0).max_offset == 3
        assert len(topic.connections) == used


def test_a_message_by_hand_is_consumed_on_a_listeners_thread(topic: Loopback) -> None:
    topic.store(Q, b"0")
    topic.add_topic("%RETRY%g", queues=1)
    got, done, leave = [], threading.Event(), threading.Event()

    def listener(message: Any) -> None:
        got.append((message.body, threading.current_thread().name))
        done.set()
        assert leave.wait(10)

    options = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_ms=0, concurrency=2)
    consumer = PushConsumer(topic.addr, "g", listener, options=options)
    consumer.subscribe("T")
    with consumer:
        assert done.wait(10)
        fields = {"consumerGroup": "g", "clientId": "c"}
        record = encode_record(*topic.stored(Q))
        answers = topic.ask_client([RemotingCommand(307, fields | {"jstackEnable": "true"})])
        assert "wait(threading.py:" in ConsumerRunningInfo.from_json(answers.get(timeout=10).body).jstack
        leave.set()
        answers = topic.ask_client([RemotingCommand(309, fields, record)])
        result = ConsumeMessageDirectlyResult.from_json(answers.get(timeout=10).body)
    assert (result.consume_result, [body for body, _ in got]) == ("CR_SUCCESS", [b"0", b"0"])
    assert all(name.startswith("mq-listen") for _, name in got)
    assert topic.offsets["g", Q] == 1


class _HeldAtItsEnd(PushConsumer):
    """Its loop is closed, with what was handed to it meanwhile, when `may_end` is set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, options=PushOptions(suspend_ms=0))
        self.ends, self.may_end = threading.Event(), threading.Event()

    async def _serve(self, ready: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        close = loop.close

        def hold_and_close() -> None:
            self.ends.set()
            assert self.may_end.wait(10)
            close()

        loop.close = hold_and_close
        await super()._serve(ready)


@pytest.fixture
def ending(topic: Loopback) -> Any:
    """A push consumer that is being closed by another thread, and whose loop ends."""
    topic.add_topic("%RETRY%g", queues=1)
    consumer = _HeldAtItsEnd(topic.addr, "g", print)
    consumer.subscribe("T")
    consumer.start()
    closing = threading.Thread(target=consumer.close)
    closing.start()
    assert consumer.ends.wait(10)
    yield consumer
    consumer.may_end.set()
    closing.join(10)
    assert not closing.is_alive()


def test_a_consumer_may_be_closed_while_its_loop_ends(ending: _HeldAtItsEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = ending._thread
    assert thread is not None
    join = thread.join

    def let_it_end_and_join() -> None:
        ending.may_end.set()
        join()

    monkeypatch.setattr(thread, "join", let_it_end_and_join)
    ending.close()
    assert not thread.is_alive()
    ending.close()


def test_nothing_is_left_waiting_for_a_loop_that_ends(ending: _HeldAtItsEnd) -> None:
    refused = threading.Event()

    def subscribe() -> None:
        with pytest.raises(ClientClosed, match="this push consumer was closed"):
            ending.subscribe("U")
        refused.set()

    threading.Thread(target=subscribe, daemon=True).start()
    assert refused.wait(10)


# --- heartbeats


def beats(topic: Loopback) -> int:
    return len(topic.faults.asked(RequestCode.HEART_BEAT))


def registered(topic: Loopback) -> int:
    """The connections that the broker knows as those of the producer."""
    with topic.lock:
        return len(topic.parts("a").producers.group("pg"))


def test_each_connection_that_carries_messages_sends_heartbeats_of_its_own(topic: Loopback) -> None:
    with Producer(topic.addr, "pg") as producer:
        net, _ = producer._parts()
        producer.send(Message("T", b"0"), queue=Q)
        held = [net.acquire(topic.broker_addr, time.monotonic() + 30)]
        for n in (2, 3, 4):  # as of threads that send at the same time
            producer.send(Message("T", b"x"), queue=Q)
            assert (registered(topic), beats(topic)) == (n, n)
            held.append(net.acquire(topic.broker_addr, time.monotonic() + 30))
        for connection in held:
            net.release(topic.broker_addr, connection)
        for round_ in (2, 3):
            for connection in held:
                connection.beat_at -= 31
            for _ in range(3):  # each uses the connection that was released last
                producer.send(Message("T", b"x"), queue=Q)
            assert beats(topic) == 4 + round_ - 1


def test_a_connection_that_carries_oneway_messages_alone_sends_heartbeats(topic: Loopback) -> None:
    with Producer(topic.addr, "pg") as producer:
        for _ in range(3):
            producer.send_oneway(Message("T", b"x"), queue=Q)
        producer.send(Message("T", b"x"), queue=Q)
        assert (registered(topic), beats(topic)) == (1, 1)


def test_a_heartbeat_that_fails_costs_the_connection_and_not_the_send(
    topic: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    topic.faults.refuse[None, RequestCode.HEART_BEAT] = lambda passage: passage.cut()
    with Producer(topic.addr, "pg") as producer:
        assert producer.send(Message("T", b"x"), queue=Q).queue_offset == 0
        assert "heartbeat to " in caplog.text
        topic.faults.refuse.clear()
        assert producer.send(Message("T", b"x"), queue=Q).queue_offset == 1
        assert registered(topic) == 1


def test_a_pull_consumer_sends_no_heartbeats(topic: Loopback) -> None:
    topic.store(Q, b"0")
    with PullConsumer(topic.addr, "cg") as consumer:
        consumer.pull(Q, 0)
    assert beats(topic) == 0
