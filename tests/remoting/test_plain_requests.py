"""Plain requests, which a handler takes from the bytes of a read before these are split into frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection, Taken
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import JSON, RESPONSE_FLAG, RemotingCommand, encode_command
from tests.remoting.link import raw_link, serve
from tests.remoting.requests import BATCH, ECHO, echo, request

Answer = Callable[[int], "bytes | Deferred[bytes]"]


class Plain:
    """Takes the frames at the beginning that have no body, one at a time."""

    def __init__(self) -> None:
        self.opaques: list[int] = []
        self.answer: Answer = lambda opaque: encode_command(RemotingCommand(0, opaque=opaque, flag=RESPONSE_FLAG))

    def take(self, data: bytes, at: int, connection: IConnection) -> Taken | None:
        size = 4 + int.from_bytes(data[at : at + 4], "big")
        head = int.from_bytes(data[at + 4 : at + 8], "big")
        if len(data) - at < 8 or size > len(data) - at or size != 8 + head:
            return None
        opaque = int(data[at : at + size].partition(b'"opaque":')[2].partition(b",")[0])
        self.opaques.append(opaque)
        return Taken(at + size, 1, self.answer(opaque), lambda: [(opaque, 0, JSON)])


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
def table(plain: Plain) -> HandlerTable:
    table = HandlerTable()
    table.register(ECHO, echo)
    table.register_plain(BATCH, plain.take)
    return table


def frame(opaque: int, body: bytes = b"") -> bytes:
    return request(ECHO, opaque, body, x="y")


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000, 1 << 20])
def test_each_request_is_handled_once_however_the_bytes_come(
    clock: Clock, table: HandlerTable, plain: Plain, chunk: int
) -> None:
    peer, link = raw_link(serve(clock, table))
    bodies = [b"", b"", b"body", b"", b"b" * 300, b"", b"", b"x"]
    peer.transport.write(b"".join(frame(opaque, body) for opaque, body in enumerate(bodies)))
    link.pump(chunk)
    assert sorted(answer.opaque for answer in peer.answers) == list(range(len(bodies)))
    assert plain.opaques == [opaque for opaque in plain.opaques if not bodies[opaque]]


def test_a_stream_whose_reads_end_within_frames_is_not_taken_for_a_stalled_one(
    clock: Clock, table: HandlerTable, plain: Plain
) -> None:
    factory = serve(clock, table)
    peer, link = raw_link(factory)
    data, size = b"".join(frame(1000 + number) for number in range(1000)), len(frame(1000))
    for second in range(100):
        peer.transport.write(data[max(0, 2 * size * second - 20) : 2 * size * (second + 1) - 20])
        link.pump()
        assert link.protocols[1].overdue(clock.seconds()) is None
        clock.advance(1)
    assert len(plain.opaques) == 199
    clock.advance(30)
    assert "a frame was not whole" in str(link.protocols[1].overdue(clock.seconds()))


def test_answers_that_come_later_count_as_requests_in_flight(clock: Clock, table: HandlerTable, plain: Plain) -> None:
    waiting: list[Deferred[bytes]] = []

    def later(opaque: int) -> Deferred[bytes]:
        waiting.append(Deferred())
        return waiting[-1]

    plain.answer = later
    factory = serve(clock, table)
    peer, link = raw_link(factory)
    peer.transport.write(frame(1) + frame(2))
    link.pump()
    assert factory.load.requests == 2
    waiting[0].callback(encode_command(RemotingCommand(0, opaque=1, flag=RESPONSE_FLAG)))
    waiting[1].errback(Refused(ResponseCode.SYSTEM_BUSY, "no"))
    link.pump()
    assert [(answer.opaque, answer.code) for answer in peer.answers] == [(1, 0), (2, ResponseCode.SYSTEM_BUSY)]
    assert factory.load.requests == 0


def test_nothing_is_handled_after_the_connection_was_closed(clock: Clock, table: HandlerTable, plain: Plain) -> None:
    handled: list[Any] = []
    table.register_batch(BATCH, lambda raws, connection: handled.extend(raws) or b"")
    peer, link = raw_link(serve(clock, table))

    def close(opaque: int) -> bytes:
        link.protocols[1].close("enough")
        return b""

    plain.answer = close
    peer.transport.write(frame(1) + request(BATCH, 2, b"body", x="y"))
    link.pump()
    assert (plain.opaques, handled, link.lost) == ([1], [], True)


def test_what_is_refused_is_not_taken(table: HandlerTable) -> None:
    table.refuse([ECHO], Refused(ResponseCode.SYSTEM_BUSY, "no"))
    assert table.plain is not None
    table.refuse([BATCH], Refused(ResponseCode.SYSTEM_BUSY, "no"))
    assert table.plain is None


def test_with_a_guard_each_request_is_checked(plain: Plain) -> None:
    table = HandlerTable()
    table.protect(Any)  # type: ignore[arg-type]
    table.register_plain(BATCH, plain.take)
    assert table.plain is None
