"""The client over in-memory connections."""

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mqbroker.errors import ConnectionClosed, MQError, RequestTimedOut, TooManyRequests, Unreachable
from mqbroker.remoting.client import RemotingClient
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.names import split_address
from tests.remoting.link import UNREAD_MAX, Network, result, serve, waiting

ECHO, LATER = 10, 11
A, B = "10.0.0.1:10911", "10.0.0.3:10911"


@pytest.fixture
def held() -> list[Any]:
    """What LATER was asked for: (request, Deferred)."""
    return []


@pytest.fixture
def network(clock: Clock, held: list[Any]) -> Network:
    table = HandlerTable()
    table.register(ECHO, lambda request, connection: RemotingCommand.response(request, body=request.body))

    def later(request: RemotingCommand, connection: IConnection) -> Deferred[Any]:
        held.append((request, Deferred()))
        return held[-1][1]

    table.register(LATER, later)
    network = Network()
    network.servers = {A: serve(clock, table), B: serve(clock, table)}
    return network


@pytest.fixture
def closed() -> list[Any]:
    return []


@pytest.fixture
def client(clock: Clock, network: Network, closed: list[Any]) -> RemotingClient:
    return RemotingClient(clock, connector=network.connector, on_closed=closed.append)


def answer(held: list[tuple[RemotingCommand, Deferred[Any]]], body: bytes = b"") -> None:
    request, deferred = held.pop(0)
    deferred.callback(RemotingCommand.response(request, body=body))


def echo(body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(ECHO, body=body)


def test_an_answer(client: RemotingClient, network: Network) -> None:
    asked = client.invoke_sync(A, echo(b"x"), 1000)
    network.pump()
    assert result(asked).body == b"x"
    assert list(client._connections) == [A]


def test_an_error_code_is_an_answer(client: RemotingClient, network: Network) -> None:
    asked = client.invoke_sync(A, RemotingCommand(77), 1000)
    network.pump()
    assert result(asked).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_concurrent_requests_share_one_connection(client: RemotingClient, network: Network) -> None:
    network.hold = True
    asked = [client.invoke_sync(A, echo(bytes([i])), 1000) for i in range(3)]
    oneway = client.invoke_oneway(A, echo(), 1000)
    assert network.attempts == [A]
    assert result(oneway) is waiting
    network.let_through()
    network.pump()
    assert [result(deferred).body for deferred in asked] == [b"\0", b"\1", b"\2"]
    again = client.invoke_sync(A, echo(b"again"), 1000)
    other = client.invoke_sync(B, echo(b"other"), 1000)
    network.let_through()
    network.pump()
    assert (result(again).body, result(other).body) == (b"again", b"other")
    assert network.attempts == [A, B]


def test_a_failed_connect_fails_all_who_wait_and_is_tried_again(client: RemotingClient, network: Network) -> None:
    network.hold = True
    asked = [client.invoke_sync("10.0.0.9:1", echo(), 1000) for _ in range(2)]
    network.let_through()
    errors = [result(deferred) for deferred in asked]
    assert {type(error) for error in errors} == {Unreachable}
    assert "connect to 10.0.0.9:1 failed" in str(errors[0])
    assert errors[0].retriable
    network.hold = False
    assert isinstance(result(client.invoke_sync("10.0.0.9:1", echo(), 1000)), Unreachable)
    assert network.attempts == ["10.0.0.9:1"] * 2


def test_a_connect_that_hangs_times_out(client: RemotingClient, network: Network, clock: Clock) -> None:
    network.hold = True
    asked = client.invoke_sync(A, echo(), 1500)
    oneway = client.invoke_oneway(A, echo(), 1500)
    clock.advance(1.5)
    assert isinstance(result(asked), RequestTimedOut)
    assert isinstance(result(oneway), RequestTimedOut)
    network.let_through()  # and may still succeed, for others
    later = client.invoke_sync(A, echo(b"x"), 1000)
    network.pump()
    assert result(later).body == b"x"
    assert network.attempts == [A]


def test_the_time_covers_connecting_and_answering(client: RemotingClient, network: Network, clock: Clock) -> None:
    network.hold = True
    asked = client.invoke_sync(A, RemotingCommand(LATER), 1000)
    clock.advance(0.6)
    network.let_through()
    network.pump()
    clock.advance(0.39)
    assert not asked.called
    clock.advance(0.01)
    error = result(asked)
    assert isinstance(error, RequestTimedOut)
    assert "1000 ms" in str(error)


def test_a_connection_that_was_made_while_the_reactor_was_busy_counts(
    client: RemotingClient, network: Network, clock: Clock
) -> None:
    network.hold = True
    asked = client.invoke_sync(A, echo(b"x"), 3000)
    clock.advance(5)  # timers come first at the end of such a turn, and what was made after them
    assert not asked.called
    network.let_through()
    network.pump()
    assert result(asked).body == b"x"


def test_a_connect_is_given_up_in_time(client: RemotingClient, network: Network, clock: Clock) -> None:
    network.hold = True
    asked = client.invoke_sync(A, echo(), 60_000)
    clock.advance(3)
    assert "connect to 10.0.0.1:10911 failed: timed out" in str(result(asked))
    network.let_through()
    assert network.links == []


def test_a_connection_is_closed_where_no_answer_came_since_a_request_that_timed_out(
    client: RemotingClient, network: Network, clock: Clock, held: list[Any]
) -> None:
    first = client.invoke_sync(A, RemotingCommand(LATER), 1000)
    clock.advance(0.5)
    second = client.invoke_sync(A, echo(), 1000)
    network.pump()
    clock.advance(0.5)
    network.pump()
    assert (type(result(first)), type(result(second))) == (RequestTimedOut, RemotingCommand)
    assert list(client._connections) == [A]
    third = client.invoke_sync(A, RemotingCommand(LATER), 1000)
    clock.advance(1)
    network.pump()
    assert isinstance(result(third), RequestTimedOut)
    assert list(client._connections) == []


def test_a_lost_connection_fails_its_requests_and_the_next_connects_again(
    client: RemotingClient, network: Network, closed: list[Any], held: list[Any]
) -> None:
    asked = [client.invoke_sync(A, RemotingCommand(LATER), 1000) for _ in range(3)]
    other = client.invoke_sync(B, RemotingCommand(LATER), 1000)
    network.pump()
    network.links[0].cut()
    assert {type(result(deferred)) for deferred in asked} == {ConnectionClosed}
    assert result(other) is waiting
    assert closed == [A]
    assert list(client._connections) == [B]
    again = client.invoke_sync(A, echo(b"back"), 1000)
    network.pump()
    assert result(again).body == b"back"
    assert network.attempts == [A, B, A]
    client.close()
    network.pump()


def test_what_the_server_asks_is_declined(client: RemotingClient, network: Network) -> None:
    client.invoke_oneway(A, echo(), 1000)
    network.pump()
    (connection,) = network.servers[A].connections
    asked = connection.invoke(RemotingCommand(40), 1000)
    network.pump()
    assert result(asked).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_oneway_fires_when_it_is_handed_over(client: RemotingClient, network: Network) -> None:
    assert result(client.invoke_oneway(A, RemotingCommand(LATER), 1000)) is None
    assert len(network.links[0].ends[0].written)


def test_oneways_wait_in_order_while_the_peer_does_not_read(client: RemotingClient, network: Network) -> None:
    big = bytes(UNREAD_MAX)
    sent = [client.invoke_oneway(A, echo(big), 1000) for _ in range(3)]
    last = client.invoke_oneway(A, echo(b"last"), 1000)
    assert [result(deferred) for deferred in (*sent, last)] == [None, waiting, waiting, waiting]
    sent[1].cancel()
    near = network.links[0].ends[0]
    near.taken(len(near.outbox))
    assert [result(sent[2]), result(last)] == [None, waiting]
    near.taken(len(near.outbox))
    assert result(last) is None
    assert near.written.endswith(b"last")


def test_oneways_that_wait_when_the_connection_ends_say_so(client: RemotingClient, network: Network) -> None:
    client.invoke_oneway(A, echo(bytes(UNREAD_MAX)), 1000)
    waits = [client.invoke_oneway(A, echo(), 1000) for _ in range(2)]
    network.links[0].cut()
    assert [type(result(deferred)) for deferred in waits] == [ConnectionClosed, ConnectionClosed]


def test_permits_fail_an_async_request_at_once_and_let_a_sync_one_wait(
    clock: Clock, network: Network, held: list[Any]
) -> None:
    client = RemotingClient(clock, connector=network.connector, requests_max=2)
    first = [client.invoke_async(A, RemotingCommand(LATER), 5000) for _ in range(2)]
    refused = client.invoke_async(A, echo(), 5000)
    assert isinstance(result(refused), TooManyRequests)
    patient = client.invoke_sync(A, echo(b"patient"), 5000)
    network.pump()
    assert result(patient) is waiting
    answer(held)
    network.pump()
    network.pump()
    assert isinstance(result(first[0]), RemotingCommand)
    assert client.invoke_async(A, echo(), 5000).addErrback(lambda _: None).called is False
    client.close()
    network.pump()
    assert isinstance(result(first[1]), ConnectionClosed)


def test_a_request_that_waits_for_a_permit_times_out(clock: Clock, network: Network, held: list[Any]) -> None:
    client = RemotingClient(clock, connector=network.connector, requests_max=1)
    first = client.invoke_sync(A, RemotingCommand(LATER), 5000)
    second = client.invoke_sync(A, echo(), 1000)
    network.pump()
    clock.advance(1)
    assert isinstance(result(second), RequestTimedOut)
    answer(held, b"done")
    network.pump()
    assert result(first).body == b"done"
    third = client.invoke_async(A, echo(), 1000)
    network.pump()
    assert isinstance(result(third), RemotingCommand)


@pytest.mark.parametrize("state", ["connecting", "waiting for the answer"])
def test_cancelling_frees_the_permit(clock: Clock, network: Network, held: list[Any], state: str) -> None:
    client = RemotingClient(clock, connector=network.connector, requests_max=1)
    network.hold = state == "connecting"
    first = client.invoke_async(A, RemotingCommand(LATER), 5000)
    network.pump()
    first.cancel()
    assert isinstance(result(first), CancelledError)
    second = client.invoke_async(A, echo(b"x"), 5000)
    network.let_through()
    network.pump()
    assert result(second).body == b"x"
    assert network.attempts == [A]


def test_every_end_of_a_request_gives_its_permit_back(clock: Clock, network: Network, held: list[Any]) -> None:
    client = RemotingClient(clock, connector=network.connector, requests_max=1)
    for _ in range(3):
        asked = client.invoke_async("10.0.0.9:1", echo(), 1000)
        assert isinstance(result(asked), Unreachable)
        asked = client.invoke_async("nonsense", echo(), 1000)
        assert isinstance(result(asked), MQError)
        asked = client.invoke_async(A, RemotingCommand(LATER), 1000)
        network.pump()
        clock.advance(1)
        assert isinstance(result(asked), RequestTimedOut)
        asked = client.invoke_async(A, RemotingCommand(LATER), 1000)
        network.links[-1].cut()
        assert isinstance(result(asked), ConnectionClosed)
        asked = client.invoke_async(A, echo(), 1000)
        network.pump()
        assert isinstance(result(asked), RemotingCommand)


def test_one_who_waits_may_cancel_another_when_the_connection_is_made(client: RemotingClient, network: Network) -> None:
    network.hold = True
    second: list[Any] = []
    first = client.invoke_oneway(A, echo(), 1000).addCallback(lambda _: second[0].cancel())
    second.append(client.invoke_sync(A, echo(), 1000))
    network.let_through()
    assert result(first) is None
    assert isinstance(result(second[0]), CancelledError)


def test_a_request_is_sent_though_one_before_it_failed_to_encode(client: RemotingClient, network: Network) -> None:
    network.hold = True
    bad = client.invoke_sync(A, RemotingCommand(ECHO, {"x": "\ud800"}), 1000)
    good = client.invoke_sync(A, echo(b"good"), 1000)
    network.let_through()
    network.pump()
    assert isinstance(result(bad), TypeError)
    assert result(good).body == b"good"


def test_close_ends_all_and_takes_no_more(
    client: RemotingClient, network: Network, clock: Clock, held: list[Any]
) -> None:
    asked = [client.invoke_sync(address, RemotingCommand(LATER), 1000) for address in (A, B)]
    network.pump()
    done = client.close()
    assert result(done) is waiting
    network.pump()
    assert result(done) is None
    assert {type(result(deferred)) for deferred in asked} == {ConnectionClosed}
    assert isinstance(result(client.invoke_sync(A, echo(), 1000)), ConnectionClosed)
    assert isinstance(result(client.invoke_oneway(A, echo(), 1000)), ConnectionClosed)
    assert list(client._connections) == []
    for server in network.servers.values():
        server.doStop()
    assert clock.getDelayedCalls() == []


def test_close_ends_a_connect_under_way(client: RemotingClient, network: Network) -> None:
    network.hold = True
    asked = client.invoke_sync(A, echo(), 1000)
    assert result(client.close()) is None
    assert isinstance(result(asked), ConnectionClosed)
    network.let_through()
    assert network.links == []


def test_an_idle_connection_is_closed(
    client: RemotingClient, network: Network, clock: Clock, closed: list[Any]
) -> None:
    client.invoke_oneway(A, echo(), 1000)
    network.pump()
    for _ in range(125):
        clock.advance(1)
    network.pump()
    assert closed == [A]


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" host.example:1 ", ("host.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses(address: str, wanted: tuple[str, int]) -> None:
    assert split_address(address) == wanted


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "h:²", "h:x", "h:1.5"]
)
def test_what_is_no_address_is_refused(client: RemotingClient, address: str) -> None:
    with pytest.raises(MQError, match="is not an address"):
        split_address(address)
    assert "is not an address" in str(result(client.invoke_sync(address, echo(), 1000)))


def test_a_connection_is_lost_made_again_and_watched_as_often_as_it_must_be(
    client: RemotingClient, network: Network, clock: Clock, closed: list[Any]
) -> None:
    for number in range(1, 4):
        asked = client.invoke_sync(A, echo(b"x"), 1000)
        network.pump()
        assert result(asked).body == b"x"
        assert len(network.attempts) == number
        for _ in range(40):  # by its own watch: nothing is sent
            clock.advance(5)
            network.pump()
        assert closed == [A] * number
        assert (client._connections, client._watch._loop.running) == ({}, False)
