"""Futures of `send_async`: what the library's futures do, at less cost."""

import concurrent.futures
import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from mqbroker.client import Message, MessageQueue, ProducerOptions, SendResult
from mqbroker.client.blocking import Producer
from mqbroker.client.observers import Send, SendObserver
from mqbroker.wire.codes import RequestCode
from tests.client.faults import Passage
from tests.client.loopback import Loopback

Q = MessageQueue("T", "a", 0)
PATIENCE_S = 20


class Held:
    """A producer whose broker responds when the test tells it to."""

    def __init__(self, broker: Loopback, producer: Producer) -> None:
        self.producer = producer
        self._broker = broker
        self._passages: SimpleQueue[Passage] = SimpleQueue()
        broker.faults.refuse[None, RequestCode.SEND_MESSAGE_V2] = self._passages.put

    def send(self, **how: Any) -> Future[SendResult]:
        return self.producer.send_async(Message("T", b"x"), **how)

    def arrived(self, count: int) -> list[Passage]:
        return [self._passages.get(timeout=PATIENCE_S) for _ in range(count)]

    def answer(self, count: int = 1) -> None:
        """Answer as many sends, together."""
        self.answer_to(self.arrived(count))

    def answer_to(self, passages: list[Passage]) -> None:
        with self._broker.lock:
            for passage in passages:
                passage.pass_on()
            self._broker.settle()


@pytest.fixture
def held(server: Loopback) -> Iterator[Held]:
    server.add_topic("T", queues=1)
    with Producer(server.addr, "pg", options=ProducerOptions(sends_in_flight_max=4)) as producer:
        producer.send(Message("T", b"first"))  # heartbeats follow a first one, which is not plain
        yield Held(server, producer)
        server.faults.refuse.clear()


@contextmanager
def loop_held(producer: Producer) -> Iterator[None]:
    """The loop begins nothing until the end of the block."""
    entered, go_on = threading.Event(), threading.Event()

    async def hold() -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)

    held = producer._parts()[0].submit(hold())
    assert entered.wait(PATIENCE_S)
    yield
    go_on.set()
    held.result(PATIENCE_S)


#: A plain send, and one that is not.
HOW = pytest.mark.parametrize("how", [{}, {"queue": Q}], ids=["plain", "other"])


@HOW
def test_the_library_waits_for_them(held: Held, how: dict[str, Any]) -> None:
    sends = [held.send(**how) for _ in range(3)]
    assert concurrent.futures.wait(sends, 0) == (set(), set(sends))
    with pytest.raises(TimeoutError):
        sends[0].result(0)
    ended: SimpleQueue[Any] = SimpleQueue()
    threads = [
        threading.Thread(daemon=True, target=lambda: ended.put({each.result().queue_offset for each in sends})),
        threading.Thread(daemon=True, target=lambda: ended.put(set(concurrent.futures.wait(sends).done))),
        threading.Thread(daemon=True, target=lambda: ended.put(set(concurrent.futures.as_completed(sends)))),
    ]
    for thread in threads:
        thread.start()
    held.answer(3)
    found = [ended.get(timeout=PATIENCE_S) for _ in threads]
    assert sorted(map(len, found)) == [3, 3, 3]
    assert {1, 2, 3} in found
    assert concurrent.futures.wait(sends, 0) == (set(sends), set())
    assert [(each.done(), each.cancel(), each.exception(0)) for each in sends] == [(True, False, None)] * 3


@HOW
def test_callbacks_are_called_once_in_their_order(held: Held, how: dict[str, Any]) -> None:
    seen: SimpleQueue[Any] = SimpleQueue()
    send = held.send(**how)
    for number in range(2):
        send.add_done_callback(
            partial(lambda number, future: seen.put((number, future.result(0).queue_offset)), number)
        )
    held.answer()
    assert [seen.get(timeout=PATIENCE_S) for _ in range(2)] == [(0, 1), (1, 1)]
    send.add_done_callback(lambda future: seen.put(future))
    assert seen.get_nowait() is send
    assert seen.empty()


def test_callbacks_find_all_that_were_answered_together_done(held: Held) -> None:
    seen: SimpleQueue[list[bool]] = SimpleQueue()
    sends = [held.send() for _ in range(4)]
    for send in sends:
        send.add_done_callback(lambda _: seen.put([each.done() for each in sends]))
    held.answer(4)
    assert [seen.get(timeout=PATIENCE_S) for _ in sends] == [[True] * 4] * 4
    assert (held.producer._under_way._count, held.producer._under_way._bytes) == (0, 0)


@HOW
def test_a_cancelled_one_gives_its_room_back(held: Held, how: dict[str, Any]) -> None:
    sends = [held.send(**how) for _ in range(4)]
    seen: list[Future[SendResult]] = []
    sends[1].add_done_callback(seen.append)
    waits = threading.Thread(daemon=True, target=lambda: concurrent.futures.wait(sends, return_when="FIRST_COMPLETED"))
    passages = held.arrived(4)
    assert sends[1].cancel()
    assert sends[1].cancel()
    assert (seen, sends[1].cancelled(), sends[0].cancelled()) == ([sends[1]], True, False)
    with pytest.raises(CancelledError):
        sends[1].result(0)
    waits.start()
    fifth: list[Future[SendResult]] = []
    sender = threading.Thread(daemon=True, target=lambda: fifth.append(held.send(**how)))  # which there is room for
    sender.start()
    sender.join(PATIENCE_S)
    assert len(fifth) == 1
    held.answer_to(passages)
    held.answer()
    assert fifth[0].result(PATIENCE_S).queue_offset > 0
    waits.join(PATIENCE_S)
    assert not waits.is_alive()
    assert seen == [sends[1]]


def test_one_that_is_done_keeps_no_message(held: Held) -> None:
    message = Message("T", b"x")
    gone = weakref.ref(message)
    send = held.producer.send_async(message)
    del message
    held.answer()
    assert send.result(PATIENCE_S).queue_offset == 1
    held.producer.send_async(Message("T", b"y"))
    held.answer()
    gc.collect()
    assert gone() is None


def test_threads_that_wait_at_once_share_a_condition(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    send, made = held.send(), []
    condition = threading.Condition

    def slow(lock: Any) -> Any:
        """Another thread is faster."""
        monkeypatch.setattr(threading, "Condition", condition)
        made.append(send._condition)
        return condition(lock)

    monkeypatch.setattr(threading, "Condition", slow)
    assert send._condition is made[0]
    held.answer()
    assert send.result(PATIENCE_S).queue_offset == 1


def test_sends_that_the_loop_begins_together_keep_their_order(held: Held) -> None:
    with loop_held(held.producer):
        sends = [held.send(key="k") if number % 2 else held.send() for number in range(4)]
    held.answer(4)
    plain, other = [[send.result(PATIENCE_S).queue_offset for send in sends[n::2]] for n in range(2)]
    assert sorted(plain + other) == [1, 2, 3, 4]
    assert (plain, other) == (sorted(plain), sorted(other))


@pytest.mark.parametrize("given", [(), (Message("T", b"x"), 1)])
def test_arguments_that_are_none_of_a_send_fail_it(held: Held, given: tuple[Any, ...]) -> None:
    for _ in range(5):  # more than there is room for
        with pytest.raises(TypeError):
            held.producer.send_async(*given).result(PATIENCE_S)


def test_observers_see_the_context_variables_of_the_caller(server: Loopback) -> None:
    which = contextvars.ContextVar[int]("which")
    seen: list[int] = []

    class Notes(SendObserver):
        def before_send(self, send: Send) -> None:
            seen.append(which.get())

    server.add_topic("T", queues=1)
    with Producer(server.addr, "pg", options=ProducerOptions(observers=[Notes()])) as producer:
        which.set(0)
        producer.send(Message("T", b"x"))
        with loop_held(producer):
            for number in range(1, 4):
                which.set(number)
                sends = [producer.send_async(Message("T", b"x")), producer.send_async(Message("T", b"x"), key="k")]
        concurrent.futures.wait(sends)
    assert seen == [0, 1, 1, 2, 2, 3, 3]
