"""The service that listens on one port while it runs."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IReactorTCP

from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.remoting.tcp import listen


class ListeningService(Service):
    """Serves `factory` on `port` (0 takes a free one) of `interface` ("" is all addresses)."""

    def __init__(
        self,
        reactor: IReactorTCP,
        port: int,
        factory: RemotingServerFactory,
        *,
        backlog: int = 1024,
        interface: str = "",
    ) -> None:
        self.port = port
        self._reactor = reactor
        self._wanted = port
        self._factory = factory
        self._backlog = backlog
        self._interface = interface
        self._listening: IListeningPort | None = None
        self._is_paused = False

    def startService(self) -> None:
        """Listen; `port` is the real one from then on. Raises twisted's CannotListenError."""
        self._listening = listen(
            self._reactor, self._wanted, self._factory, backlog=self._backlog, interface=self._interface
        )
        self.port = self._listening.getHost().port  # type: ignore[attr-defined]
        super().startService()  # type: ignore[no-untyped-call]

    def pause(self) -> None:
        """Accept nobody for now: who connects waits in the backlog."""
        if self._listening is not None:
            self._is_paused = True
            self._listening.stopReading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        """Accept again after `pause`."""
        if self._listening is not None and self._is_paused:
            self._is_paused = False
            self._listening.startReading()  # type: ignore[attr-defined]

    def stopService(self) -> Deferred[None]:
        """Stop listening, then close every connection. Fires when they are gone."""
        super().stopService()  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await maybeDeferred(listening.stopListening)
        gone = DeferredList([_gone(connection) for connection in self._factory.connections])
        self._factory.close_all("the server stops")
        await gone


def _gone(connection: RemotingProtocol) -> Deferred[None]:
    done: Deferred[None] = Deferred()
    connection.notify_closed(lambda: done.callback(None))
    return done
