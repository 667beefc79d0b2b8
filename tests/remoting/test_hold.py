"""A server that holds requests: they wait on their connections, and another table may serve them then."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from tests.commands import decode_commands
from tests.remoting.link import Link, Peer, raw_link, serve

ECHO, LATER, BATCH = RequestCode.HEART_BEAT, RequestCode.QUERY_MESSAGE, RequestCode.PULL_MESSAGE


def table(name: bytes, later: list[Deferred[Any]]) -> HandlerTable:
    made = HandlerTable()
    made.register(ECHO, lambda request, connection: RemotingCommand.response(request, body=name))

    def wait(request: RemotingCommand, connection: Any) -> Deferred[Any]:
        later.append(Deferred())
        return later[-1].addCallback(lambda _: RemotingCommand.response(request, body=name))

    made.register(LATER, wait)
    made.register_batch(
        BATCH,
        lambda run, connection: b"".join(
            encode_command(RemotingCommand(0, body=name, opaque=opaque, flag=1)) for _, opaque, *_ in run
        ),
    )
    return made


class World:
    def __init__(self) -> None:
        self.clock, self.later = Clock(), list[Deferred[Any]]()
        self.table = table(b"first", self.later)
        self.factory: RemotingServerFactory = serve(self.clock, self.table)

    def connect(self) -> Connected:
        return Connected(self, *raw_link(self.factory))


class Connected:
    def __init__(self, world: World, peer: Peer, link: Link) -> None:
        self.world, self.peer, self.link = world, peer, link
        self.decoder = FrameDecoder()
        link.pump()

    def tell(self, *codes: int) -> None:
        data = b"".join(encode_command(RemotingCommand(code, opaque=number)) for number, code in enumerate(codes, 1))
        self.peer.transport.write(data)
        self.heard_now = self.heard()

    def heard(self) -> list[tuple[int, bytes]]:
        for _ in range(5):
            self.link.pump()
            self.world.clock.advance(0.01)
        data = bytes(self.peer.received)
        self.peer.received.clear()
        return [(each.opaque, each.body) for each in decode_commands(self.decoder.feed(data))]


@pytest.mark.parametrize("is_new", [False, True])
def test_requests_wait_until_they_are_released_and_are_served_by_the_other_table_in_order(is_new: bool) -> None:
    world = World()
    connected = None if is_new else world.connect()
    world.factory.hold()
    connected = connected or world.connect()
    connected.tell(ECHO, BATCH, BATCH, ECHO)
    assert connected.heard_now == []
    assert world.factory.load.requests == 0
    world.table.become(table(b"second", world.later))
    world.factory.release()
    assert connected.heard() == [(number, b"second") for number in (1, 2, 3, 4)]
    connected.tell(ECHO)
    assert connected.heard_now == [(1, b"second")]


def test_what_was_accepted_before_is_answered_and_nothing_after() -> None:
    world = World()
    connected = world.connect()
    connected.tell(LATER)
    world.factory.hold()
    connected.tell(ECHO)
    assert connected.heard_now == []
    world.later[0].callback(None)
    assert connected.heard() == [(1, b"first")]
    world.factory.release()
    assert connected.heard() == [(1, b"first")]


def test_a_request_that_is_queued_again_comes_to_the_other_table() -> None:
    world = World()
    connected = world.connect()
    [server] = world.factory.connections
    again = RemotingCommand(ECHO, opaque=7)
    assert not server.requeue(again)
    world.factory.hold()
    assert server.requeue(again)
    world.table.become(table(b"second", world.later))
    assert connected.heard() == []
    world.factory.release()
    assert connected.heard() == [(7, b"second")]


def test_a_connection_that_closes_meanwhile_leaves_nothing() -> None:
    world = World()
    connected = world.connect()
    world.factory.hold()
    connected.tell(*[ECHO] * 100)
    [server] = world.factory.connections
    server.close("for a test")
    connected.heard()
    assert not world.factory.connections
    assert world.factory.load.kept_bytes == 0
    world.factory.release()


def test_other_handlers_in_the_place_of_all_kinds() -> None:
    world = World()
    connected = world.connect()
    world.table.replace([BATCH, ECHO], lambda request, connection: RemotingCommand.response(request, body=b"other"))
    connected.tell(BATCH, ECHO)
    assert connected.heard_now == [(1, b"other"), (2, b"other")]
