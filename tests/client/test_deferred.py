"""The Twisted face's own parts: signals, locks, tasks, the answers to brokers, and the clients over a real server."""

import random
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from zope.interface import implementer

from mqbroker.client import ClientClosed, Message, deferred
from mqbroker.client.broker_requests import decline
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.net import every
from mqbroker.errors import Unreachable
from tests.client.world import World


@pytest.fixture
def clock() -> Any:
    return Clock()


@pytest.fixture
def net(clock: Any) -> Any:
    return DeferredNet(clock, decline, random.Random(1))


def note(found: Any, coroutine: Any) -> Any:
    return Deferred.fromCoroutine(coroutine).addBoth(found.append)


def test_a_signal_is_kept_until_somebody_waits(clock: Any, net: Any) -> None:
    signal = net.signal()
    found: list[Any] = []
    signal.set()
    signal.set()
    note(found, signal.wait())
    assert found == [True]
    note(found, signal.wait(5))
    clock.advance(5)
    assert found == [True, False]
    note(found, signal.wait(5))
    signal.set()
    clock.advance(0)
    assert found == [True, False, True]
    assert not clock.getDelayedCalls()


def test_a_wait_that_is_cancelled_leaves_the_signal_usable(clock: Any, net: Any) -> None:
    signal = net.signal()
    found: list[Any] = []
    note(found, signal.wait(5)).cancel()
    assert not clock.getDelayedCalls()
    signal.set()
    note(found, signal.wait())
    assert found[1] is True


def test_a_lock_lets_in_one_at_a_time_in_order_and_thousands_after_each_other(clock: Any, net: Any) -> None:
    lock = net.lock()
    order: list[Any] = []
    gate: Deferred[Any] = Deferred()

    async def enter(n: Any) -> None:
        async with lock:
            order.append(n)
            if n == 0:
                await gate

    waiting = [Deferred.fromCoroutine(enter(n)) for n in range(5000)]
    waiting[1].addErrback(lambda _: None).cancel()
    assert order == [0]
    gate.callback(None)
    assert order == [0], "who leaves goes on first"
    clock.advance(0)
    assert order == [0, *range(2, 5000)]


def test_a_task_can_be_cancelled_from_inside_and_outside(clock: Any, net: Any) -> None:
    ended: list[Any] = []

    async def run() -> None:
        if tasks:
            tasks[0].cancel()
        try:
            await net.sleep(10)
        finally:
            ended.append(clock.seconds())

    tasks = []
    tasks.append(net.spawn(run()))
    tasks.append(net.spawn(run()))
    assert ended == [0]
    tasks[1].cancel()
    tasks[1].cancel()
    assert ended == [0, 0]

    async def cancel_itself() -> None:
        await net.sleep(1)
        own[0].cancel()
        await net.sleep(10)
        ended.append("too late")

    own = [net.spawn(cancel_itself())]
    clock.pump([1, 0, 20])
    assert ended == [0, 0]


def test_errors_of_a_task_are_logged(net: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("boo")

    net.spawn(fail())
    assert "boo" in caplog.text


def test_every_goes_on_after_an_error(clock: Any, net: Any) -> None:
    calls = []

    async def what() -> None:
        calls.append(clock.seconds())
        raise Unreachable("away")

    task = net.spawn(every(net, 5, what))
    clock.pump([1] * 15)
    assert calls == [5, 10, 15]
    task.cancel()
    assert not clock.getDelayedCalls()


def test_a_producer_that_is_not_started_says_so(clock: Any) -> None:
    producer = deferred.Producer(clock, "127.0.0.1:9876", "g")
    calls: list[Any] = [
        lambda: producer.send(Message("T", b"x")),
        lambda: producer.send(Message("T", b"x"), key="k"),
        lambda: producer.send_batch([Message("T", b"x")]),
        lambda: producer.send_oneway(Message("T", b"x")),
        lambda: producer.queues("T"),
    ]
    found: list[Any] = []
    for _ in ("before the start", "after the end"):
        for call in calls:  # by their Deferreds, so that an errback hears of it
            call().addErrback(lambda failure: found.append(failure.type))
        producer.close()
    assert found == [ClientClosed] * 10


def test_the_clients_keep_to_the_reactor_they_are_given(clock: Any, world: World) -> None:
    """Producer and consumers over endpoints that fail: what is raised is typed, and nothing stays on the clock."""
    found: list[Any] = []
    consumer = deferred.PullConsumer(clock, "127.0.0.1:9876", "g", connector=lambda host, port: Refusing())
    consumer.start().addErrback(found.append)
    producer = deferred.Producer(clock, "127.0.0.1:9876", "g", connector=lambda host, port: Refusing())
    producer.start().addErrback(found.append)
    pusher = deferred.PushConsumer(clock, "127.0.0.1:9876", "g", print, connector=lambda host, port: Refusing())
    pusher.subscribe("T")
    pusher.start().addErrback(found.append)
    for _ in range(10):
        clock.advance(0)
    assert ["No name server answers" in str(failure.value) for failure in found] == [True] * 3
    for client in (consumer, producer, pusher):
        client.close().addErrback(found.append)
    assert len(found) == 3
    assert not clock.getDelayedCalls()


@implementer(IStreamClientEndpoint)
class Refusing:
    def connect(self, factory: Any) -> Any:
        waiter: Deferred[Any] = Deferred()
        waiter.errback(ConnectionRefusedError("refused"))
        return waiter
