"""The bound of a producer's sends at once: as many as fit, the rest in order, whatever is cancelled meanwhile."""

import asyncio
import random
import socket
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import BadArgument, Message, ProducerOptions, SendFailed
from mqbroker.client.aio import Producer
from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import decline
from mqbroker.client.routes import Routes
from mqbroker.client.send import SendsInFlight
from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.wire.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.client.loopback import Loopback
from tests.client.test_producer import SEND, make
from tests.client.world import World

MANY = 10_000


class Places:
    """Sends of a size that end when they are told to; `order` has those that had their turn."""

    def __init__(self, world: World, count_max: Any = 3, bytes_max: Any = 100) -> None:
        self.world = world
        self.in_flight = SendsInFlight(world.net(), count_max, bytes_max)
        self.order: list[Any] = []
        self.gates: dict[Any, Deferred[Any]] = {}

    def enter(self, name: Any, size: Any = 1) -> Any:
        return self.world.run(self._enter(name, size)).addErrback(lambda failure: None)

    async def _enter(self, name: Any, size: Any) -> None:
        await self.in_flight.acquire(size)
        self.order.append(name)
        self.gates[name] = Deferred()
        try:
            await self.gates[name]
        finally:
            self.in_flight.release(size)

    def end(self, name: Any) -> None:
        self.gates.pop(name).callback(None)
        self.world.cluster.settle()


def test_as_many_as_may_be_go_at_once_and_the_rest_in_order(world: World) -> None:
    places = Places(world)
    for n in range(6):
        places.enter(n)
    assert places.order == [0, 1, 2]
    places.end(1)
    assert places.order == [0, 1, 2, 3]
    places.end(0)
    places.end(2)
    assert places.order == [0, 1, 2, 3, 4, 5]


def test_sends_take_all_bytes_that_may_be(world: World) -> None:
    places = Places(world)
    for name, size in (("first", 60), ("last byte", 40), ("one more", 1)):
        places.enter(name, size)
    assert places.order == ["first", "last byte"]
    places.end("last byte")
    assert places.order == ["first", "last byte", "one more"]


def test_what_is_larger_than_all_that_may_be_goes_alone_and_nobody_goes_before_it(world: World) -> None:
    places = Places(world)
    places.enter("small", 60)
    places.enter("large", 500)
    places.enter("tiny", 1)
    assert places.order == ["small"]
    places.end("small")
    assert places.order == ["small", "large"]
    places.end("large")
    assert places.order == ["small", "large", "tiny"]


def test_those_that_leave_the_line_take_no_place(world: World) -> None:
    places = Places(world, count_max=1)
    waiting = [places.enter(n) for n in range(5)]
    for n in (1, 3):
        waiting[n].cancel()
    places.end(0)
    places.end(2)
    assert places.order == [0, 2, 4]
    waiting[4].cancel()
    places.enter(5)
    assert places.order == [0, 2, 4, 5]


def test_thousands_that_end_at_once_come_from_a_loop(world: World) -> None:
    in_flight, order = SendsInFlight(world.net(), 1, 1), []
    gate: Deferred[Any] = Deferred()

    async def enter(n: Any) -> None:
        await in_flight.acquire(1)
        order.append(n)
        if n == 0:
            await gate
        in_flight.release(1)

    for n in range(MANY):
        world.run(enter(n))
    gate.callback(None)
    world.cluster.settle()
    assert order == list(range(MANY))


def test_on_asyncio_nobody_overtakes_and_cancelled_ones_give_their_places_back() -> None:
    async def main() -> None:
        in_flight, order = SendsInFlight(AioNet(decline, random.Random(1)), 2, 1000), []

        async def enter(n: Any) -> None:
            await in_flight.acquire(1)
            try:
                order.append(n)
                await asyncio.sleep(0)
            finally:
                in_flight.release(1)

        tasks = []
        for n in range(400):
            tasks.append(asyncio.create_task(enter(n)))
            if n % 3 == 0:
                await asyncio.sleep(0)
            if n % 7 == 0:
                tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == sorted(order)
        assert len(order) >= 342
        assert (in_flight._count, in_flight._bytes, len(in_flight._waiting), in_flight._granted) == (0, 0, 0, 0)

    asyncio.run(main())


# --- a producer's sends


def test_many_sends_at_once_wait_for_their_turn_and_none_of_them_fails(world: World, name_server: str) -> None:
    """Each is answered a second after it was sent: all together take far longer than one is allowed."""
    world.cluster.add_topic("T")
    producer = make(world, name_server, sends_in_flight_max=10, send_timeout_s=1.5)
    outstanding, most = [0], [0]

    def later(passage: Any) -> None:
        outstanding[0] += 1
        most.append(outstanding[0])
        world.cluster.reactor.callLater(1.0, done, passage)

    def done(passage: Any) -> None:
        outstanding[0] -= 1
        passage.pass_on()

    world.faults.refuse[None, SEND] = later
    found: list[Any] = []
    for _ in range(200):
        world.run(producer.send(Message("T", b"x"))).addBoth(found.append)
    assert len(world.faults.asked(SEND)) == 10
    world.clock.pump([1.0] * 30)
    assert [getattr(result, "status", result) for result in found] == [0] * 200
    assert max(most) == 10


def test_sends_in_flight_are_bounded_by_bytes_too(world: World, name_server: str, silent: object) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    producer = make(world, name_server, sends_in_flight_bytes_max=10_000, compress_over_bytes=10**9)
    world.faults.refuse["10.0.0.2:10911", SEND] = silent
    for _ in range(10):
        world.run(producer.send(Message("T", b"x" * 4000))).addErrback(lambda _: None)
    assert len(world.faults.asked(SEND)) == 2


def test_what_waits_when_its_producer_closes_says_so(world: World, name_server: str, silent: object) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    producer = make(world, name_server, sends_in_flight_max=1)
    world.faults.refuse["10.0.0.2:10911", SEND] = silent
    found: list[Any] = []
    for _ in range(3):
        world.run(producer.send(Message("T", b"x"))).addErrback(found.append)
    world.result(producer.close())
    world.clock.advance(3)
    assert sorted(type(failure.value).__name__ for failure in found) == ["ClientClosed", "ClientClosed", "SendFailed"]
    assert not world.clock.getDelayedCalls()


def test_one_key_keeps_its_order_in_the_first_burst(server: Loopback) -> None:
    """Sends that come while the route is being asked for, and the connection made, must not go before those."""
    server.add_topic("T", queues=4)

    async def main() -> None:
        async with Producer(server.addr, "pg") as producer:
            tasks = []
            for n in range(300):
                tasks.append(asyncio.create_task(producer.send(Message("T", b"%d" % n), key="k")))
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert [request.body for request in server.faults.asked(SEND)] == [b"%d" % n for n in range(300)]


class RouteAnswers(AioNet):
    """A net that answers each request with the route of topic T, once that is let go."""

    def __init__(self) -> None:
        super().__init__(decline, random.Random(1))
        self.is_let_go = asyncio.Event()

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        await self.is_let_go.wait()
        data = TopicRouteData(None, [QueueData("a", 1, 1, 6)], [BrokerData("a", "c", {0: "10.0.0.2:10911"})])
        return RemotingCommand(ResponseCode.SUCCESS, body=data.to_json())


def test_on_asyncio_who_comes_with_the_answer_goes_behind_those_that_wait() -> None:
    """They wake up in a later turn of the loop, so that a newcomer finds the route there and others still waiting."""

    async def main() -> None:
        net = RouteAnswers()
        routes, order = Routes(net, ("10.0.0.1:9876",), age_s=30.0), []

        async def get(n: Any) -> None:
            await routes.get("T")
            order.append(n)

        tasks = [asyncio.create_task(get(n)) for n in range(5)]
        await asyncio.sleep(0)
        net.is_let_go.set()
        for n in range(5, 20):
            tasks.append(asyncio.create_task(get(n)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == list(range(20))

    asyncio.run(main())


def test_on_asyncio_who_waits_for_a_route_does_not_keep_others_waiting_after_it() -> None:
    """Each that goes on comes again a turn later, as a sender that gets its answers fast."""

    async def main() -> None:
        net = RouteAnswers()
        routes, waited = Routes(net, ("10.0.0.1:9876",), age_s=30.0), []

        async def keep_sending() -> None:
            for _ in range(20):
                waited.append(routes.known("T") is None)
                await routes.get("T")
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(keep_sending()) for _ in range(50)]
        await asyncio.sleep(0)
        net.is_let_go.set()
        await asyncio.gather(*tasks)
        assert waited.count(True) == 50

    asyncio.run(main())


def test_on_twisted_one_key_keeps_its_order_in_the_first_burst(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    producer = make(world, name_server)
    asked: list[Any] = []
    world.faults.refuse[None, RequestCode.GET_ROUTEINFO_BY_TOPIC] = asked.append
    found: list[Any] = []
    for n in range(20):
        world.run(producer.send(Message("T", b"%d" % n), key="k")).addBoth(found.append)
    asked[0].pass_on()
    world.run(producer.send(Message("T", b"20"), key="k")).addBoth(found.append)
    world.clock.advance(0)
    assert [request.body for request in world.faults.asked(SEND)] == [b"%d" % n for n in range(21)]
    assert len(found) == 21
    assert not world.clock.getDelayedCalls()


def test_requests_keep_their_order_while_their_connection_is_made(server: Loopback) -> None:
    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        tasks = []
        for n in range(200):
            request = RemotingCommand(RequestCode.UNREGISTER_CLIENT, {"clientID": str(n)})
            tasks.append(asyncio.create_task(net.invoke(server.broker_addr, request, 10_000)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await net.close()

    asyncio.run(main())
    left = server.faults.asked(RequestCode.UNREGISTER_CLIENT)
    assert [request.ext_fields["clientID"] for request in left] == [str(n) for n in range(200)]


def test_one_key_keeps_its_order_over_a_connection_that_takes_no_more(server: Loopback) -> None:
    server.add_topic("T", queues=1)
    queue = MessageQueue("T", "a", 0)

    async def main() -> None:
        async with Producer(server.addr, "pg") as producer:
            await producer.send(Message("T", b"first"), queue=queue)
            connection = producer._net._lines.connections[server.addr]
            connection.pause_writing()
            tasks = [asyncio.create_task(producer.send(Message("T", b"%d" % n), key="k")) for n in range(100)]
            for _ in range(5):
                await asyncio.sleep(0)
            connection.resume_writing()
            for n in range(100, 200):
                tasks.append(asyncio.create_task(producer.send(Message("T", b"%d" % n), key="k")))
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert [request.body for request in server.faults.asked(SEND)[1:]] == [b"%d" % n for n in range(200)]


# --- time-outs, and loops that are busy with thousands of sends


def test_on_twisted_an_answer_that_came_while_the_reactor_was_busy_counts(
    world: World, name_server: str, silent: object
) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    producer = make(world, name_server)
    found: list[Any] = []
    sent: list[Any] = []
    world.faults.refuse[None, SEND] = sent.append
    world.run(producer.send(Message("T", b"x"))).addBoth(found.append)
    world.clock.advance(8.0)  # timers come first at the end of such a turn, and reading after them
    assert not found
    sent[0].pass_on()
    world.cluster.settle()
    assert found[0].queue.topic == "T"
    assert not world.clock.getDelayedCalls()


def test_on_twisted_no_answer_is_waited_for_without_an_end(world: World, name_server: str, silent: object) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    producer = make(world, name_server)
    found: list[Any] = []
    world.faults.refuse["10.0.0.2:10911", SEND] = silent
    world.run(producer.send(Message("T", b"x"))).addBoth(found.append)
    world.clock.advance(8.0)
    world.clock.advance(5.0)
    assert isinstance(found[0].value, SendFailed)
    assert not world.clock.getDelayedCalls()


@pytest.fixture
def reads_nothing() -> Any:
    """The address of somebody who takes connections and reads nothing from them."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_oneway_sends_wait_for_a_peer_that_does_not_read(reads_nothing: Any) -> None:
    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, body=bytes(64 * 1024))
        sent = []

        async def send() -> None:
            for n in range(10_000):
                await net.send_oneway(reads_nothing, request)
                sent.append(n)

        sending = asyncio.create_task(send())
        while not net.connections or net.connections[reads_nothing].is_writable:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        (connection,) = net.connections.values()
        transport: Any = connection._transport
        assert len(sent) < 1000
        assert transport.get_write_buffer_size() < 1024 * 1024
        assert not sending.done()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        connection._close_unread()
        await net.close()

    asyncio.run(main())


def test_a_peer_that_reads_nothing_for_long_is_given_up(reads_nothing: Any) -> None:
    """What waits for it fails; the timer is the connection's own."""

    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, body=bytes(64 * 1024))
        await net.send_oneway(reads_nothing, request)
        sending = asyncio.gather(
            *(net.invoke(reads_nothing, request, 60_000) for _ in range(500)), return_exceptions=True
        )
        while net.connections[reads_nothing].is_writable:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        (connection,) = net.connections.values()
        assert connection._unread_timer is not None
        connection._close_unread()
        errors = await sending
        assert {type(error) for error in errors} == {ConnectionClosed}
        assert {str(error) for error in errors} == {
            f"this client closed its connection to {reads_nothing}: the peer has read nothing for 10 s",
            f"the connection to {reads_nothing} is closed",  # who waited for room to write
        }
        assert connection._unread_timer is None
        await net.close()

    asyncio.run(main())


def test_who_waits_on_a_connection_that_is_given_up_as_silent_is_told_so(reads_nothing: Any) -> None:
    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2)
        short, long = await asyncio.gather(
            *(net.invoke(reads_nothing, request, timeout_ms) for timeout_ms in (50, 60_000)), return_exceptions=True
        )
        assert isinstance(short, RequestTimedOut)
        assert isinstance(long, ConnectionClosed)
        why = "nothing came since a request was sent whose time is over"
        assert str(long) == f"this client closed its connection to {reads_nothing}: {why}"
        await net.close()

    asyncio.run(main())


@pytest.mark.parametrize("options", [{"sends_in_flight_max": 0}, {"sends_in_flight_bytes_max": 0}, {"retries": -1}])
def test_bounds_that_let_nothing_through_are_refused(options: Any) -> None:
    with pytest.raises(BadArgument):
        ProducerOptions(**options)
