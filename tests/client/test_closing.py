"""`close()` ends within `close_timeout_s`, whatever brokers, name servers and listeners do."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mqbroker.client import (
    LitePullOptions,
    Message,
    MessageQueue,
    ProducerOptions,
    PullOptions,
    PushOptions,
    aio,
    deferred,
)
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.net import every
from mqbroker.client.producer import ProducerCore
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.wire.codes import RequestCode
from tests.client.faults import SILENT
from tests.client.loopback import Loopback
from tests.client.member import Member
from tests.client.test_contract import FROM_FIRST
from tests.client.world import FixedIdentity, World

Q = MessageQueue("T", "a", 0)
TRACES = "RMQ_SYS_TRACE_TOPIC"


never: Deferred[None] = Deferred()


def hang(message: Any) -> Deferred[None]:
    return never


def silent_end(world: World, core: Any, closing_s: float) -> float:
    """How long `close` of a core takes when nobody answers any more."""
    world.cluster.faults.refuse[None, None] = SILENT
    ends: list[float] = []
    began = world.clock.seconds()
    world.run(core.close()).addBoth(lambda _: ends.append(world.clock.seconds() - began))
    while not ends and world.clock.seconds() - began < 100:
        world.clock.advance(0.05)
    return round(ends[0], 2) - closing_s


@pytest.mark.parametrize("closing_s", [0.0, 0.2, 2.0, 10.0, 60.0])
@pytest.mark.parametrize("kind", ["producer", "push", "hanging", "orderly", "lite pull", "pull"])
def test_a_client_is_closed_in_time_when_nobody_answers(
    one_queue: World, name_server: str, kind: str, closing_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    world = one_queue
    world.cluster.add_topic(TRACES, queues=1, brokers=["a"])
    world.cluster.store(Q, b"x")
    options: Any = {"close_timeout_s": closing_s}
    core: Any
    if kind == "producer":
        core = ProducerCore(
            world.net(), (name_server,), "pg", ProducerOptions(trace_topic=TRACES, **options), FixedIdentity()
        )
        world.result(core.start())
        world.result(core.send(Message("T", b"x")))
        world.result(core.heartbeats.send_to_new())
    elif kind == "pull":
        core = PullConsumerCore(world.net(), (name_server,), "g", PullOptions(**options))
        world.result(core.start())
        world.run(core.pull(Q, 1, suspend_s=5)).addErrback(lambda _: None)
    elif kind == "lite pull":
        core = LitePullConsumerCore(
            world.net(), (name_server,), "g", LitePullOptions(consume_from=FROM_FIRST.consume_from, **options),
            FixedIdentity(),
        )  # fmt: skip
        world.result(core.subscribe("T"))
        world.result(core.start())
        for _ in range(2):
            world.run(core.poll(0.5))
            world.clock.advance(1)
    else:
        listener = hang if kind == "hanging" else None
        member = Member(world, name_server, listener=listener, orderly=kind == "orderly", trace_topic=TRACES, **options)
        member.start()
        world.clock.advance(1)
        assert member.bodies == [b"x"]
        core = member.core
    assert silent_end(world, core, closing_s) <= 0.05
    world.clock.advance(1000)
    assert not [call for call in world.clock.getDelayedCalls() if "resume" in str(call)]
    if kind == "hanging":
        assert "listeners of g still run after" in caplog.text


def test_a_silent_broker_does_not_keep_the_others_from_hearing(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=1)
    world.cluster.add_topic("%RETRY%g", queues=1)
    member = Member(world, name_server).start()
    world.cluster.store(Q, b"x")
    world.cluster.store(MessageQueue("T", "b", 0), b"x")
    world.clock.advance(2)
    assert len(member.bodies) == 2
    for code in (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT):
        world.cluster.faults.refuse["10.0.0.2:10911", code] = SILENT
    ends: list[Any] = []
    world.run(member.core.close()).addBoth(ends.append)
    for _ in range(500):
        world.clock.advance(0.02)
    assert ends == [None]
    assert world.cluster.offsets["g", MessageQueue("T", "b", 0)] == 1
    left = world.cluster.faults.asked_of(RequestCode.UNREGISTER_CLIENT)
    assert sorted(left) == ["10.0.0.2:10911", "10.0.0.3:10911"]


@pytest.mark.parametrize("name", ["Producer", "PullConsumer", "LitePullConsumer", "PushConsumer"])
def test_close_ends_in_time_on_each_api(face: Any, cluster: Loopback, name: str) -> None:
    kinds: Any = {"Producer": ProducerOptions, "PullConsumer": PullOptions, "LitePullConsumer": LitePullOptions}
    options = kinds.get(name, PushOptions)(close_timeout_s=0.4)
    client = face.make(name, "g", *([print] if name == "PushConsumer" else []), options=options)
    if name in ("PushConsumer", "LitePullConsumer"):
        client.subscribe("T")
    client.start()
    if name == "Producer":
        client.send(Message("T", b"x"))
        face.turn()
    with cluster.lock:
        cluster.faults.refuse[None, None] = SILENT
    if name == "Producer" and hasattr(client._client, "send_async"):
        client.send_async(Message("T", b"x"))
    began = time.monotonic()
    if face.module is deferred:
        ends: list[Any] = []
        client._client.close().addBoth(ends.append)
        for _ in range(9):
            cluster.advance(0.05)
        assert ends == [None]
    else:
        client.close()
    assert time.monotonic() - began < 2.5, "a request's time-out is 3 s"


def test_a_listener_that_does_not_let_itself_be_cancelled_does_not_hold_close(cluster: Loopback) -> None:
    cluster.add_topic("T", queues=1)
    cluster.store(Q, b"x")
    began, go_on = threading.Event(), False

    async def listener(message: Any) -> None:
        began.set()
        while not go_on:
            try:
                await asyncio.sleep(0.05)
            except (asyncio.CancelledError, CancelledError):
                continue

    async def main() -> None:
        nonlocal go_on
        options = PushOptions(consume_from=FROM_FIRST.consume_from, close_timeout_s=0.4)
        consumer = aio.PushConsumer(cluster.name_server, "g", listener, options=options)
        consumer.subscribe("T")
        await consumer.start()
        await asyncio.to_thread(began.wait, 20)
        async with asyncio.timeout(5):
            await consumer.close()
        go_on = True

    logging.getLogger("mqbroker.client").setLevel(logging.ERROR)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("mqbroker.client").setLevel(logging.NOTSET)
    assert cluster.members("g") == []


def test_what_is_repeated_ends_when_it_is_cancelled_in_the_middle(world: World, caplog: Any) -> None:
    """On Twisted a cancellation is an Exception: a loop that takes it for a failure never ends."""
    calls: list[Deferred[None]] = []

    async def what() -> None:
        calls.append(Deferred())
        await calls[-1]

    net = world.net()
    task = net.spawn(every(net, 1.0, what))
    world.cluster.advance(1.0)
    calls[0].cancel()  # what it waits for was cancelled, and not the loop
    world.cluster.advance(1.0)
    assert len(calls) == 2
    assert "trying again in 1 s" in caplog.text
    caplog.clear()
    task.cancel()
    world.cluster.advance(5.0)
    assert len(calls) == 2
    assert caplog.text == ""
