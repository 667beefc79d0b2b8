"""TCP for servers: a transport that can send at once, without the reactor's next turn and its two epoll_ctl calls.

Measured on two cores it gives a fifth more answers a second where few are in flight on a connection.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp
from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IListeningPort, IReactorTCP
from twisted.internet.protocol import ServerFactory


class PromptServer(tcp.Server):
    """The server side of one connection, with `write_at_once`."""

    # What one recv asks for, and how much may wait to be sent before producers are paused.
    bufferSize = 256 * 1024  # noqa: N815

    def write_at_once(self, data: bytes) -> None:
        """Send what the socket takes now; the rest as `write` does. Errors are left to the reactor to find."""
        if self.connected and not (self.disconnecting or self.disconnected or self.dataBuffer or self._tempDataBuffer):
            try:
                sent = self.socket.send(data)
            except OSError:
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self.write(data)  # type: ignore[no-untyped-call]


class PromptPort(tcp.Port):
    """A listening port whose connections are PromptServers."""

    transport = PromptServer


def listen(
    reactor: IReactorTCP, port: int, factory: ServerFactory, *, backlog: int = 1024, interface: str = ""
) -> IListeningPort:
    """Listen on `port` (0 takes a free one). Raises twisted's CannotListenError."""
    if not isinstance(reactor, ReactorBase):
        return reactor.listenTCP(port, factory, backlog, interface)
    listening: Any = PromptPort(port, factory, backlog, interface, reactor)
    listening.startListening()
    return listening  # type: ignore[no-any-return]
