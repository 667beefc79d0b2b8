"""Faults between clients and servers: requests are noted, and by rules refused, dropped, kept back or cut off.

Everything else goes on to our own servers as it came, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
from twisted.internet.interfaces import IAddress
from twisted.python.failure import Failure

from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.wire.command import FRAME_BYTES_MAX, FrameDecoder, RemotingCommand, encode_command
from tests.commands import decode_commands, decode_frame

#: The rule for a request that nobody answers.
SILENT: Final = object()


@attrs.frozen
class Passage:
    """A request on its way to a server; a rule that is a function gets it, and does one of these or nothing."""

    request: RemotingCommand
    connection: TappedConnection
    _frame: bytes

    def pass_on(self) -> None:
        if not self.request.is_response:
            self.connection.passed.append(self.request)
        self.connection.server.dataReceived(self._frame)

    def cut(self) -> None:
        """Lose the connection."""
        self.connection.transport.abortConnection()

    def answer(self, response: RemotingCommand) -> None:
        self.connection.write(encode_command(attrs.evolve(response, opaque=self.request.opaque)))


class Faults:
    """The rules, and what was asked.

    `refuse` maps (address, code) to (response code, remark), to SILENT, or to a function that gets the Passage; None
    stands for all addresses, and for all codes. Servers in `down` lose their connections at the next request.
    """

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.refuse: dict[tuple[str | None, int | None], Any] = {}
        self.requests: list[tuple[str, RemotingCommand]] = []
        self.connections: list[TappedConnection] = []
        self.former_connections: list[TappedConnection] = []
        #: Gets what clients answer to requests of servers; None lets the server have it.
        self.answers: Callable[[RemotingCommand], None] | None = None

    def asked(self, code: int) -> list[RemotingCommand]:
        return [request for _, request in self.requests if request.code == code]

    def asked_of(self, code: int) -> list[str]:
        return [addr for addr, request in self.requests if request.code == code]

    def passed(self, code: int) -> list[RemotingCommand]:
        """Requests that servers got."""
        return [
            request
            for connection in self.former_connections + self.connections
            for request in connection.passed
            if request.code == code
        ]

    def unanswered(self, code: int) -> list[RemotingCommand]:
        """Requests that went on to a server over a connection that is open, which has not answered them yet."""
        found = []
        for connection in self.connections:
            answered = {command.opaque for command in connection.answers() if command.is_response}
            found += [each for each in connection.passed if each.code == code and each.opaque not in answered]
        return found

    def cut(self, addr: str) -> None:
        """Lose all connections to a server."""
        for connection in list(self.connections):
            if connection.addr == addr:
                connection.transport.abortConnection()

    def meet(self, passage: Passage) -> None:
        request, connection = passage.request, passage.connection
        if request.is_response and self.answers is not None:
            self.answers(request)
            return
        if not request.is_response:
            self.requests.append((connection.addr, request))
            if connection.addr in self.down:
                connection.transport.abortConnection()
                return
            places = ((connection.addr, request.code), (None, request.code), (None, None))
            rule = next((self.refuse[place] for place in places if place in self.refuse), None)
            if rule is SILENT:
                return
            if callable(rule):
                rule(passage)
                return
            if rule is not None:
                passage.answer(RemotingCommand.response(request, *rule))
                return
        passage.pass_on()


class TappedFactory:
    """A server as clients reach it."""

    def __init__(self, factory: RemotingServerFactory, addr: str, faults: Faults) -> None:
        self._factory, self.addr, self.faults = factory, addr, faults

    def buildProtocol(self, peer: IAddress) -> TappedConnection:
        return TappedConnection(self._factory.buildProtocol(peer), self.addr, self.faults)


class TappedConnection:
    """Stands before the server's protocol, and hands it what the rules let through."""

    def __init__(self, server: RemotingProtocol, addr: str, faults: Faults) -> None:
        self.server, self.addr = server, addr
        #: Requests that the server got.
        self.passed: list[RemotingCommand] = []
        self.transport: Any = None
        self._faults = faults
        self._unread = b""

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self._faults.connections.append(self)
        self.server.makeConnection(transport)

    def dataReceived(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= 4 and self.transport.closing is None:
            end = 4 + int.from_bytes(self._unread[:4], "big")
            if end > FRAME_BYTES_MAX:
                frame, self._unread = self._unread, b""
                self.server.dataReceived(frame)  # it is to see for itself that this is none
                return
            if len(self._unread) < end:
                return
            frame, self._unread = self._unread[:end], self._unread[end:]
            self._faults.meet(Passage(decode_frame(frame), self, frame))

    def connectionLost(self, reason: Failure) -> None:
        self._faults.connections.remove(self)
        self._faults.former_connections.append(self)
        self.server.connectionLost(reason)

    def write(self, data: bytes) -> None:
        """Send bytes to the client, in the server's name."""
        self.transport.write(data)

    def answers(self) -> list[RemotingCommand]:
        """All that was sent to the client."""
        return decode_commands(FrameDecoder().feed(bytes(self.transport.written)))
