import asyncio
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    BadMessage,
    ClientClosed,
    LitePullOptions,
    Message,
    MessageQueue,
    NameServerUnreachable,
    ProducerOptions,
    PullOptions,
    PushOptions,
    loop_thread,
)
from mqbroker.client.blocking import LitePullConsumer, Producer, PullConsumer, PushConsumer
from mqbroker.client.errors import WouldDeadlock
from mqbroker.client.loop_thread import LoopThread
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


@pytest.fixture
def silent_server() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


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
    assert len(topic.connections) == 1


def test_an_answer_that_does_not_come_times_out_and_later_ones_count(topic: Loopback, silent: object) -> None:
    topic.store(Q)
    topic.faults.refuse[None, PULL] = silent
    with PullConsumer(topic.addr, "cg", options=PullOptions(pull_timeout_s=0.1)) as consumer:
        consumer.queues("T")
        with pytest.raises(RequestTimedOut):
            consumer.pull(Q, 0)
    topic.faults.refuse.clear()
    with PullConsumer(topic.addr, "cg") as consumer:
        assert consumer.pull(Q, 0).next_offset == 1


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


def test_requests_of_the_broker_between_answers_are_left_alone(topic: Loopback) -> None:
    def ask(passage: Any) -> None:
        passage.connection.write(encode_command(RemotingCommand(39, opaque=passage.request.opaque)))
        passage.pass_on()

    topic.faults.refuse[None, None] = ask
    with Producer(topic.addr, "pg") as producer:
        assert producer.send(Message("T", b"0"), queue=Q).queue == Q


def test_threads_share_a_producer(topic: Loopback) -> None:
    with Producer(topic.addr, "pg", options=ProducerOptions(sends_in_flight_max=4)) as producer:
        sends = [producer.send_async(Message("T", b"%d" % n)) for n in range(200)]
        results = [send.result(10) for send in sends]
        failed = producer.send_async(Message("T", b""))
        with pytest.raises(BadMessage):
            failed.result(10)
    assert len({r.msg_id for r in results}) == 200
    assert len(topic.connections) == 1
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


FORKING = """
import faulthandler, os, random, sys, threading, time
from mqbroker.client import Message
from mqbroker.client.blocking import Producer, PullConsumer

rng, over, errors, ids = random.Random(sys.argv[2]), threading.Event(), [], []
producer, consumer = Producer(sys.argv[1], "pg"), PullConsumer(sys.argv[1], "cg")
calls = [
    lambda: producer.send(Message("T", b"parent")),
    lambda: producer.send(Message("T", b"parent"), key="k"),
    lambda: producer.send_async(Message("T", b"parent")).result(),
    lambda: consumer.bounds(consumer.queues("T")),
]

def work(call):
    while not over.is_set():
        try:
            call()
        except Exception as error:
            errors.append(error)
            return

threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
for thread in threads:
    thread.start()
for _ in range(15):
    time.sleep(rng.random() * 0.02)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            faulthandler.dump_traceback_later(40, exit=True)
            sent = producer.send(Message("T", b"child")), producer.send_async(Message("T", b"child")).result()
            consumer.bounds(consumer.queues("T"))
            os.write(writer, " ".join(each.msg_id for each in sent).encode())
            producer.close()
            consumer.close()
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    with open(reader) as pipe:
        ids += pipe.read().split()
over.set()
for thread in threads:
    thread.join()
producer.close()
consumer.close()
print(len(ids), len(set(ids)), errors)
"""


@pytest.mark.parametrize("seed", range(2))
def test_children_that_are_forked_at_any_moment_and_their_parent_go_on(topic: Loopback, seed: int) -> None:
    """While threads use the clients."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, topic.addr, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "30 30 []\n", "")


def test_a_message_by_hand_is_consumed_on_a_listeners_thread(topic: Loopback) -> None:
    topic.store(Q, b"0")
    topic.add_topic("%RETRY%g", queues=1)
    got, done, leave = [], threading.Event(), threading.Event()

    def listener(message: Any) -> None:
        got.append((message.body, threading.current_thread().name))
        done.set()
        assert leave.wait(10)

    options = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_s=0, concurrency=2)
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


def test_a_push_consumer_that_threads_close_at_once_is_closed_for_all(topic: Loopback) -> None:
    topic.add_topic("%RETRY%g", queues=1)
    consumer = PushConsumer(topic.addr, "g", print, options=PushOptions(suspend_s=0))
    consumer.subscribe("T")
    consumer.start()
    threads = [threading.Thread(target=consumer.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in [*threads, *threading.enumerate()] if thread.name == "mq-client")
    with pytest.raises(ClientClosed, match="this push consumer was closed"):
        consumer.subscribe("U")
    consumer.close()


def test_a_thread_that_has_the_number_of_an_ended_loop_may_block() -> None:
    ended = LoopThread()
    number = ended._thread.ident
    ended.stop()
    seen = []

    def look() -> None:
        seen.append((threading.get_ident(), ended.is_current))

    while number not in dict(seen) and len(seen) < 1000:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert not any(is_current for _, is_current in seen)


def test_a_closed_push_consumer_has_released_its_thread(topic: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.add_topic("%RETRY%g", queues=1)
    consumer = PushConsumer(topic.addr, "g", print, options=PushOptions(suspend_s=0))
    consumer.subscribe("T")
    consumer.start()
    returned, released, release = threading.Event(), [], loop_thread.release

    def release_late(thread: LoopThread) -> None:
        released.append(returned.wait(0.2))
        release(thread)

    monkeypatch.setattr(loop_thread, "release", release_late)
    consumer.close()
    returned.set()
    assert released == [False]
    assert client_threads() == []


# --- the loop's thread


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mq-client"]


def test_clients_of_a_process_share_one_thread_which_ends_with_the_last(topic: Loopback) -> None:
    with Producer(topic.addr, "pg") as producer, PullConsumer(topic.addr, "cg") as consumer:
        producer.send(Message("T", b"0"), queue=Q)
        assert consumer.pull(Q, 0).next_offset == 1
        assert len(client_threads()) == 1
    assert client_threads() == []
    with PullConsumer(topic.addr, "cg") as consumer:
        assert consumer.pull(Q, 0).next_offset == 1
    assert client_threads() == []


def test_calls_that_come_together_are_taken_in_order_and_those_of_an_ended_loop_fail() -> None:
    thread, entered, go_on = LoopThread(), threading.Event(), threading.Event()
    order: list[int] = []

    async def hold() -> None:
        entered.set()
        assert go_on.wait(10)

    async def note(number: int) -> None:
        order.append(number)

    held = thread.submit(hold())
    assert entered.wait(10)
    noted = [thread.submit(note(number)) for number in range(100)]
    go_on.set()
    for future in [held, *noted]:
        future.result(10)
    assert order == list(range(100))
    endless = thread.submit(asyncio.sleep(1000))
    thread.submit(asyncio.sleep(0)).result(10)
    thread.stop()
    with pytest.raises(ClientClosed):
        endless.result(10)
    with pytest.raises(ClientClosed):
        thread.run(asyncio.sleep(0))


def test_a_call_that_fails_does_not_keep_those_waiting_that_came_with_it() -> None:
    thread, entered, go_on = LoopThread(), threading.Event(), threading.Event()
    failures: list[Any] = []
    thread.loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))

    async def hold() -> None:
        entered.set()
        assert go_on.wait(10)

    held = thread.submit(hold())
    assert entered.wait(10)
    thread.call(lambda: 1 / 0, Future())
    other = thread.submit(asyncio.sleep(0, "done"))
    go_on.set()
    assert (held.result(10), other.result(10)) == (None, "done")
    assert [type(each) for each in failures] == [ZeroDivisionError]
    thread.stop()


def test_giving_up_a_wait_cancels_what_was_waited_for() -> None:
    thread, ended = LoopThread(), threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    future = thread.submit(wait())
    thread.submit(asyncio.sleep(0)).result(10)
    assert future.cancel()
    assert ended.wait(10)
    thread.stop()


def test_what_was_polled_while_the_wait_was_interrupted_comes_with_the_next_poll(
    topic: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(topic.addr, "pg") as producer:
        for n in range(3):
            producer.send(Message("T", b"%d" % n), queue=Q)
    reader = LitePullConsumer(topic.addr, "lg", options=LitePullOptions(consume_from=ConsumeFrom.FIRST))
    reader.subscribe("T")
    run = LoopThread.run

    def interrupted(thread: LoopThread, coroutine: Any) -> None:
        run(thread, coroutine)
        if coroutine.__qualname__ != "later":  # which takes back
            raise KeyboardInterrupt

    with reader:
        for take in (lambda: next(reader), lambda: reader.poll(5, 1), lambda: reader.poll(5, 2)):
            with monkeypatch.context() as patch:
                patch.setattr(LoopThread, "run", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    take()
        found: list[bytes] = []
        for _ in range(3):
            found += [message.body for message in reader.poll(1)]
            with pytest.raises(BadArgument):
                reader.poll(-1)
        assert found == [b"0", b"1", b"2"]
        assert reader.poll(0) == []


def test_the_time_of_the_first_send_includes_the_connection_to_a_name_server(silent_server: str) -> None:
    producer = Producer(silent_server, "pg", options=ProducerOptions(send_timeout_s=20, close_timeout_s=1))
    began = time.monotonic()
    for send in (
        lambda: producer.send(Message("T", b"x"), timeout_s=0.1),
        lambda: producer.send_batch([Message("T", b"x")], timeout_s=0.1),
        lambda: producer.send_async(Message("T", b"x"), timeout_s=0.1).result(),
    ):
        with pytest.raises(NameServerUnreachable, match=r"no answer within the 0\.[0-9]{1,4} s that were left"):
            send()
    producer.close()
    assert time.monotonic() - began < 15


def test_a_producer_that_was_used_before_its_start_says_at_the_start_that_nobody_answers(silent_server: str) -> None:
    producer = Producer(silent_server, "pg", options=ProducerOptions(send_timeout_s=0.2, close_timeout_s=1))
    for call in (lambda: producer.queues("T"), producer.start, producer.start):
        with pytest.raises(NameServerUnreachable):
            call()
    producer.close()


@pytest.mark.parametrize("is_there", [True, False], ids=["that is there", "that comes later"])
def test_a_message_that_an_interrupted_iteration_has_fetched_comes_next(
    topic: Loopback, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    member = PushConsumer(topic.addr, "g", options=PushOptions(consume_from=ConsumeFrom.FIRST))
    member.subscribe("T")
    result = Future.result

    def interrupted(future: Any) -> None:
        if is_there:
            result(future)
        raise KeyboardInterrupt

    with Producer(topic.addr, "pg") as producer, member:
        if is_there:
            producer.send(Message("T", b"0"), queue=Q)
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(member)
        if not is_there:
            producer.send(Message("T", b"0"), queue=Q)
        producer.send(Message("T", b"1"), queue=Q)  # for who does not get the first
        assert next(member).body == b"0"


def test_a_blocking_call_on_the_clients_own_thread_is_an_error(topic: Loopback) -> None:
    outcomes: SimpleQueue[Any] = SimpleQueue()
    with Producer(topic.addr, "pg") as producer:

        def again(_: Any) -> None:
            for call in (lambda: producer.send(Message("T", b"1")), lambda: producer.queues("T"), producer.close):
                try:
                    call()
                except Exception as error:
                    outcomes.put(error)
            outcomes.put(producer.send_async(Message("T", b"2"), queue=Q))

        producer.send_async(Message("T", b"0"), queue=Q).add_done_callback(again)
        for _ in range(3):
            error = outcomes.get(timeout=10)
            assert isinstance(error, WouldDeadlock)
            assert "send_async" in str(error)
        assert outcomes.get(timeout=10).result(10).queue_offset == 1


def test_a_send_that_meets_a_close_leaves_no_room_taken(topic: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> None:
        raise ClientClosed("this client was closed")

    with Producer(topic.addr, "pg") as producer:
        with monkeypatch.context() as patch:
            patch.setattr(LoopThread, "call", closed)
            with pytest.raises(ClientClosed):
                producer.send_async(Message("T", b"x"))
        assert (producer._under_way._count, producer._under_way._bytes) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        ProducerOptions(sends_in_flight_max=3, send_timeout_s=30),
        ProducerOptions(sends_in_flight_bytes_max=6, send_timeout_s=30),
    ],
)
def test_sends_that_are_not_waited_for_are_bounded(topic: Loopback, options: ProducerOptions) -> None:
    held: SimpleQueue[Passage] = SimpleQueue()
    topic.faults.refuse[None, RequestCode.SEND_MESSAGE_V2] = held.put
    futures: list[Any] = []
    with Producer(topic.addr, "pg", options=options) as producer:

        def send() -> None:
            for _ in range(5):
                futures.append(producer.send_async(Message("T", b"xx"), queue=Q))

        sender = threading.Thread(target=send)
        sender.start()
        first = [held.get(timeout=10) for _ in range(3)]
        assert len(futures) == 3
        with topic.lock:
            first[0].pass_on()
            topic.settle()
        fourth = held.get(timeout=10)
        topic.faults.refuse.clear()
        with topic.lock:
            for passage in (*first[1:], fourth):
                passage.pass_on()
            topic.settle()
        sender.join(10)
        assert sorted(future.result(10).queue_offset for future in futures) == list(range(5))


# --- heartbeats


def beats(topic: Loopback) -> int:
    return len(topic.faults.asked(RequestCode.HEART_BEAT))


def registered(topic: Loopback) -> int:
    """The connections that the broker knows as those of the producer."""
    with topic.lock:
        return len(topic.parts("a").producers.group("pg"))


def test_threads_that_send_are_one_producer_to_the_broker(topic: Loopback) -> None:
    with Producer(topic.addr, "pg") as producer:
        threads = [threading.Thread(target=producer.send, args=(Message("T", b"x"),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
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
