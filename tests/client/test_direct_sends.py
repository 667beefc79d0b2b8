"""Sends of threads on sockets of their own: with the same outcome as those on the loop, whatever the broker does."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from mqbroker.client import ClientClosed, Message, MessageQueue, ProducerOptions, SendStatus, direct_sends
from mqbroker.client.blocking import Producer
from mqbroker.client.errors import SendFailed
from mqbroker.client.observers import SendObserver
from mqbroker.client.thread_sends import UnderWay
from mqbroker.errors import Refused
from mqbroker.kernel import compiled
from mqbroker.remoting.hooks import ConnectionListener, RpcHook
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.client.faults import SILENT, Passage
from tests.client.loopback import Loopback

pytestmark = pytest.mark.skipif(compiled is None, reason="plain sends are the compiled module's")

SEND = RequestCode.SEND_MESSAGE_V2
PATIENCE_S = 20


@pytest.fixture
def topic(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    """Topic T with four queues; all sends but the first two may have sockets of their own."""
    monkeypatch.setattr(direct_sends, "FIRST", 0)
    server.add_topic("T", queues=4)
    return server


@pytest.fixture
def producer(topic: Loopback) -> Iterator[Producer]:
    with Producer(topic.addr, "pg", options=ProducerOptions(send_timeout_s=PATIENCE_S)) as producer:
        warm_up(producer)
        yield producer


def warm_up(producer: Producer) -> None:
    for _ in range(2):  # the first asks for the route, the second is a plain one on the loop
        producer.send(Message("T", b"first"))


def bodies(topic: Loopback) -> list[bytes]:
    return [message.body for n in range(4) for message in topic.stored(MessageQueue("T", "a", n))]


def pass_on(topic: Loopback, passages: list[Passage]) -> None:
    with topic.lock:
        for passage in passages:
            passage.pass_on()
        topic.settle()


def sockets_of(producer: Producer) -> Any:
    direct = producer._under_way._direct
    assert direct is not None
    return direct._open


def test_the_first_sends_share_the_loops_connection(server: Loopback) -> None:
    server.add_topic("T", queues=4)
    with Producer(server.addr, "pg") as producer:
        for _ in range(2 + direct_sends.FIRST):
            producer.send(Message("T", b"0"))
        assert len(server.connections) == 1
        producer.send(Message("T", b"0"))
        server.wait_for_connections(2)


def test_results_and_ids_are_those_of_any_send(topic: Loopback, producer: Producer) -> None:
    results = [producer.send(Message("T", b"%d" % n, tags="a", keys=["k"], properties={"p": "v"})) for n in range(8)]
    assert len(sockets_of(producer)) == 1
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.msg_id for result in results}) == 8
    for n, result in enumerate(results):
        record = topic.stored(result.queue)[result.queue_offset]
        wanted = {"TAGS": "a", "KEYS": "k", "p": "v", "UNIQ_KEY": result.msg_id}
        assert (record.body, record.queue_offset) == (b"%d" % n, result.queue_offset)
        assert wanted.items() <= record.properties.items()
    turns = [result.queue.queue_id for result in results]
    assert turns == [(turns[0] + n) % 4 for n in range(8)]


def test_sends_that_are_left_to_the_loop_leave_out_no_queue(topic: Loopback, producer: Producer) -> None:
    """A text beyond ASCII is encoded by the general path: its turn is taken once."""
    tags = ["t", "é", "é", "é", "t", "é", "t", "t"]
    turns = [producer.send(Message("T", b"x", tags=tag)).queue.queue_id for tag in tags]
    assert turns == [(turns[0] + n) % 4 for n in range(8)]
    assert sockets_of(producer)


def test_each_thread_has_a_socket_while_it_sends(topic: Loopback, producer: Producer) -> None:
    passages: list[Passage] = []
    all_there = threading.Event()

    def hold(passage: Passage) -> None:
        passages.append(passage)
        if len(passages) == 5:
            all_there.set()

    topic.faults.refuse[None, SEND] = hold
    threads = [threading.Thread(target=producer.send, args=[Message("T", b"%d" % n)]) for n in range(5)]
    for thread in threads:
        thread.start()
    assert all_there.wait(PATIENCE_S)
    assert len({id(passage.connection) for passage in passages}) == 5
    topic.faults.refuse.clear()
    pass_on(topic, passages)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(bodies(topic)) == [*(b"%d" % n for n in range(5)), b"first", b"first"]
    producer.send(Message("T", b"next"))
    assert len(sockets_of(producer)) == 5


def test_threads_above_the_limit_use_the_loop(
    topic: Loopback, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_sends, "SOCKETS_MAX", 1)
    both, passages = threading.Event(), []

    def hold(passage: Passage) -> None:
        passages.append(passage)
        if len(passages) == 2:
            both.set()

    topic.faults.refuse[None, SEND] = hold
    threads = [threading.Thread(target=producer.send, args=[Message("T", b"0")]) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert both.wait(PATIENCE_S)
    pass_on(topic, passages)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(topic.connections) == 2


def test_a_refusal_is_raised_after_one_attempt(topic: Loopback, producer: Producer) -> None:
    topic.faults.refuse[None, SEND] = (ResponseCode.MESSAGE_ILLEGAL, "no")
    with pytest.raises(Refused, match="no") as found:
        producer.send(Message("T", b"0"))
    assert found.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(topic.faults.asked(SEND)) == 3
    topic.faults.refuse.clear()
    assert producer.send(Message("T", b"1")).status is SendStatus.SEND_OK


def once(do: Callable[[Passage], object]) -> Callable[[Passage], object]:
    """Do it to the first request alone; the others pass."""
    asked: list[Passage] = []

    def rule(passage: Passage) -> object:
        asked.append(passage)
        return do(passage) if len(asked) == 1 else passage.pass_on()

    return rule


def write(frame: bytes) -> Callable[[Passage], object]:
    return lambda passage: passage.connection.write(frame)


@pytest.mark.parametrize(
    "do",
    [
        Passage.cut,
        write(b"\0\0\0\1rubbish"),
        write(b"\x7f\xff\xff\xff\0\0\0\0"),
        lambda passage: passage.answer(RemotingCommand(ResponseCode.SYSTEM_BUSY, {}, flag=1, remark="busy")),
    ],
    ids=["cut", "short frame", "long frame", "busy"],
)
def test_what_fails_is_sent_again_on_the_loop(topic: Loopback, producer: Producer, do: Any) -> None:
    topic.faults.refuse[None, SEND] = once(do)
    assert producer.send(Message("T", b"0")).status is SendStatus.SEND_OK
    requests = topic.faults.asked(SEND)
    assert len(requests) == 4
    assert requests[2].ext_fields["i"] == requests[3].ext_fields["i"]  # with the same id
    topic.faults.refuse.clear()
    producer.send(Message("T", b"1"))
    assert sorted(bodies(topic)) == [b"0", b"1", b"first", b"first"]


def test_an_answer_in_pieces_among_others_is_read(
    topic: Loopback, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(passage: Passage) -> None:
        other = RemotingCommand(ResponseCode.SUCCESS, {}, flag=1, opaque=987654)
        asked = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "x"})
        passage.connection.write(encode_command(other) + encode_command(asked))
        passage.pass_on()

    monkeypatch.setattr(direct_sends, "_READ_BYTES", 7)
    topic.faults.refuse[None, SEND] = once(answer)
    assert producer.send(Message("T", b"0")).status is SendStatus.SEND_OK
    assert len(topic.faults.asked(SEND)) == 3


def test_a_silent_broker_costs_the_sends_time_and_no_more(topic: Loopback) -> None:
    options = ProducerOptions(send_timeout_s=0.3, retries=0)
    with Producer(topic.addr, "pg", options=options) as producer:
        warm_up(producer)
        topic.faults.refuse[None, SEND] = SILENT
        with pytest.raises(SendFailed, match=r"no answer from .* in 300 ms"):
            producer.send(Message("T", b"0"))
        assert not sockets_of(producer)  # a late answer would be taken for the next send's
        topic.faults.refuse.clear()
        assert producer.send(Message("T", b"1")).queue_offset >= 0


def test_a_broker_that_never_ends_talking_costs_the_sends_time_and_no_more(
    topic: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_sends, "_READ_BYTES", 1)  # so that there is always more
    other = encode_command(RemotingCommand(ResponseCode.SUCCESS, {}, flag=1, opaque=987654))
    asked, over = SimpleQueue[Passage](), threading.Event()

    def talk() -> None:
        passage = asked.get()
        while not over.is_set():
            with topic.lock:
                passage.connection.write(other * 10)
                topic.settle()

    talking = threading.Thread(target=talk)
    talking.start()
    with Producer(topic.addr, "pg", options=ProducerOptions(send_timeout_s=0.3, retries=0)) as producer:
        warm_up(producer)
        topic.faults.refuse[None, SEND] = asked.put
        with pytest.raises(SendFailed, match=r"no answer from .* in 300 ms"):
            producer.send(Message("T", b"0"))
        over.set()
        talking.join(PATIENCE_S)


def test_a_slow_broker_is_avoided(topic: Loopback, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_sends, "QUICK_S", -1.0)
    took, noted = threading.Event(), []

    def note(broker: str, seconds: float) -> None:
        noted.append((broker, threading.current_thread().name))
        took.set()

    direct = producer._under_way._direct
    assert direct is not None
    monkeypatch.setattr(direct._availability, "took", note)
    producer.send(Message("T", b"0"))
    assert took.wait(PATIENCE_S)
    assert noted == [("a", "mq-client")]


def test_a_socket_that_was_idle_is_not_used_again(
    topic: Loopback, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.send(Message("T", b"0"))
    (used,) = sockets_of(producer)
    used.used_at -= direct_sends._IDLE_S
    producer.send(Message("T", b"1"))
    (other,) = sockets_of(producer)
    assert other is not used
    assert used.socket.fileno() == -1


def test_no_send_overtakes_one_that_nobody_waits_for(topic: Loopback, producer: Producer) -> None:
    held: list[Passage] = []
    topic.faults.refuse[None, SEND] = once(held.append)
    future = producer.send_async(Message("T", b"async"))
    assert producer.send(Message("T", b"after")).status is SendStatus.SEND_OK
    assert len(topic.connections) == 1  # both are on the loop's
    pass_on(topic, held)
    future.result(PATIENCE_S)
    topic.faults.refuse.clear()
    producer.send_oneway(Message("T", b"oneway"))
    producer.send(Message("T", b"after"))
    assert len(topic.connections) == 1
    producer.send(Message("T", b"direct"))
    topic.wait_for_connections(2)


def test_a_close_ends_a_send_that_waits(topic: Loopback, producer: Producer) -> None:
    asked, raised = threading.Event(), []
    topic.faults.refuse[None, SEND] = lambda passage: asked.set()

    def send() -> None:
        try:
            producer.send(Message("T", b"0"))
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert asked.wait(PATIENCE_S)
    producer.close()
    thread.join(PATIENCE_S)
    assert isinstance(raised[0], (ClientClosed, SendFailed))
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"1"))


def test_sends_that_find_no_socket_leave_out_no_queue(
    topic: Loopback, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_sends, "SOCKETS_MAX", 0)
    queues = [producer.send(Message("T", b"0")).queue.queue_id for _ in range(8)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "options",
    [
        ProducerOptions(linger_s=0.0),
        ProducerOptions(observers=[SendObserver()]),
        ProducerOptions(observers=[RpcHook()]),
        ProducerOptions(observers=[ConnectionListener()]),
        ProducerOptions(namespace="n"),
    ],
    ids=["batches", "observers", "hooks", "connection listeners", "namespace"],
)
def test_what_the_loop_does_with_sends_is_done_with_all(topic: Loopback, options: ProducerOptions) -> None:
    topic.add_topic("n%T", queues=1)
    with Producer(topic.addr, "pg", options=options) as producer:
        for _ in range(4):
            producer.send(Message("T", b"0"))
        assert len(topic.connections) == 1


def test_a_broker_without_room_for_sockets_is_asked_on_the_loop(
    topic: Loopback, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert producer.send(Message("T", b"0")).status is SendStatus.SEND_OK
    assert not sockets_of(producer)


def _send_in_child(producer: Producer, results: Any) -> None:
    results.put([producer.send(Message("T", b"child")).msg_id for _ in range(3)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_sockets_of_its_own(topic: Loopback, producer: Producer) -> None:
    ids = [producer.send(Message("T", b"parent")).msg_id for _ in range(3)]
    fork = get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=_send_in_child, args=(producer, results))
    child.start()
    ids += results.get()
    child.join(PATIENCE_S)
    ids += [producer.send(Message("T", b"parent again")).msg_id for _ in range(3)]
    assert len(set(ids)) == 9
    assert len(sockets_of(producer)) == 1


def test_sends_under_way_are_seen_by_those_that_would_overtake() -> None:
    class Producer:
        @property
        def sends(self) -> Any:
            return self

        def direct(self) -> Any:
            return self

        def send(self, message: Message) -> str:
            return "direct"

    under_way = UnderWay(ProducerOptions(), Producer())  # type: ignore[arg-type]
    assert under_way.send_directly(Message("T", b"0")) == "direct"
    under_way.enter(1, may_wait=False)
    assert under_way.send_directly(Message("T", b"0")) is None
    under_way.leave(1)
    assert under_way.send_directly(attrs.evolve(Message("T", b"0"))) == "direct"


def test_threads_that_wait_for_room_are_woken_for_a_quarter_of_it() -> None:
    under_way = UnderWay(ProducerOptions(sends_in_flight_max=8, sends_in_flight_bytes_max=1000))
    entered = threading.Event()

    def enter(size: int) -> None:
        under_way.enter(size, may_wait=True)
        entered.set()

    for _ in range(8):
        enter(10)
    entered.clear()
    thread = threading.Thread(target=enter, args=[700])
    thread.start()
    under_way.leave(10)
    assert not entered.wait(0.1)  # there is room, for one
    under_way.leave(10)
    assert entered.wait(PATIENCE_S)
    thread.join()
    entered.clear()
    thread = threading.Thread(target=enter, args=[400])
    thread.start()
    under_way.leave(10)
    assert not entered.wait(0.1)  # there is none for so many bytes
    under_way.leave(700)
    assert entered.wait(PATIENCE_S)
    thread.join()
    for size in (400, 10, 10, 10, 10, 10):
        under_way.leave(size)
    under_way.wait_until_empty(0)
