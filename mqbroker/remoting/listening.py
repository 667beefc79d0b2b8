"""Service that listens on the server ports while running."""

from __future__ import annotations

from typing import cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IReactorTCP, IReactorTime
from twisted.logger import Logger

from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.remoting.tcp import NO_BUFFERS, Buffers, listen

log = Logger()

#: Time for written responses to be sent before connections are aborted.
LEAVING_SECONDS_MAX = 2.0


class ListeningService(Service):
    """Serves `factory` on `port` (0 picks a free one) of `interface` ("" is all addresses).

    :param other_port: an additional port, used if it can be bound.
    """

    def __init__(
        self,
        reactor: IReactorTCP,
        port: int,
        factory: RemotingServerFactory,
        *,
        backlog: int = 1024,
        interface: str = "",
        buffers: Buffers = NO_BUFFERS,
        other_port: int | None = None,
    ) -> None:
        self.port = port
        self.other_port: int | None = None
        self._reactor = reactor
        self._wanted = port
        self._factory = factory
        self._backlog = backlog
        self._interface = interface
        self._buffers = buffers
        self._other_wanted = other_port
        self._listening: list[IListeningPort] = []
        self._is_paused = False

    def startService(self) -> None:
        """Listen and set `port` to the bound port. Raises Twisted's CannotListenError."""
        self.port = self._listen(self._wanted)
        if self._other_wanted is not None:
            try:
                self.other_port = self._listen(self._other_wanted)
            except CannotListenError as error:
                log.warn("cannot listen on port {port} in addition to {main}: {why}",
                         port=self._other_wanted, main=self.port, why=str(error.socketError))  # fmt: skip
        super().startService()  # type: ignore[no-untyped-call]

    def _listen(self, port: int) -> int:
        listening = listen(
            self._reactor,
            port,
            self._factory,
            backlog=self._backlog,
            interface=self._interface,
            buffers=self._buffers,
        )
        self._listening.append(listening)
        return listening.getHost().port  # type: ignore[attr-defined, no-any-return]

    def pause(self) -> None:
        """Stop accepting temporarily: new connections wait in the backlog."""
        if self._listening:
            self._is_paused = True
        for listening in self._listening:
            listening.stopReading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        """Accept again after `pause`."""
        if self._is_paused:
            self._is_paused = False
            for listening in self._listening:
                listening.startReading()  # type: ignore[attr-defined]

    def stop_accepting(self) -> Deferred[None]:
        """Stop listening; open connections stay open. Fires when the ports are free."""
        listening, self._listening = self._listening, []
        closed = DeferredList([maybeDeferred(each.stopListening) for each in listening])
        return closed.addCallback(lambda _: None)

    def stopService(self) -> Deferred[None]:
        """Stop listening, then close every connection once its written data is sent. Fires when all are closed."""
        super().stopService()  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self.stop_accepting()
        if not self._factory.connections:
            return
        gone = DeferredList([_gone(connection) for connection in self._factory.connections])
        for connection in list(self._factory.connections):
            connection.end()
        clock = cast(IReactorTime, self._reactor)
        cut = clock.callLater(LEAVING_SECONDS_MAX, self._factory.close_all, "it did not read the last answers")
        await gone
        if cut.active():
            cut.cancel()


def _gone(connection: RemotingProtocol) -> Deferred[None]:
    done: Deferred[None] = Deferred()
    connection.notify_closed(lambda: done.callback(None))
    return done
