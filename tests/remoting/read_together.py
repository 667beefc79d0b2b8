"""Connections that are read together, on real sockets and a reactor that moves nothing by itself."""

from __future__ import annotations

import select
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from twisted.internet.error import ConnectionDone
from twisted.internet.posixbase import _DisconnectSelectableMixin
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from mqbroker.kernel import Peer
from mqbroker.remoting.handlers import PlainRead
from mqbroker.remoting.limits import AddressLoad
from mqbroker.remoting.shared_reads import SharedReads
from mqbroker.remoting.tcp import ImmediateWriteServer
from tests.remoting.test_tcp import Reactor


class EndingReactor(Reactor, _DisconnectSelectableMixin):
    """Ends connections as Twisted's reactors do; a turn hands over those that are ready as `BusyPollReactor` does."""

    hands_over_reads = True

    def turn(self) -> None:
        together = defaultdict[SharedReads, list[ImmediateWriteServer]](list)
        for reader in select.select(sorted(self.readers, key=lambda each: each.fileno()), [], [], 0)[0]:
            if isinstance(reader, ImmediateWriteServer) and reader.shared_reads is not None:
                together[reader.shared_reads].append(reader)
        for reads, ready in together.items():
            reads.read(ready)


class Kept(Peer, Protocol):
    """Keeps what comes, and calls `on_data` with itself."""

    peer: socket.socket

    def __init__(self) -> None:
        self.may_take_plain = True
        self.received = b""
        self.reason: Failure | None = None
        self.on_data: Callable[[Kept], Any] = lambda kept: None
        self.on_lost: Callable[[], Any] = lambda: None

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        self.on_data(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        assert self.reason is None
        self.reason = reason
        self.on_lost()

    @property
    def lost(self) -> type[BaseException] | None:
        """Why it has ended."""
        return None if self.reason is None else self.reason.type

    @property
    def server(self) -> ImmediateWriteServer:
        return cast(ImmediateWriteServer, self.transport)


class Connections:
    """Connections that are read together. `protocols` and `taken` are what `take_together` was given, by call; `take`
    says how many bytes of each read are taken."""

    def __init__(self, reactor: EndingReactor) -> None:
        self.reactor = reactor
        self.all: list[Kept] = []
        self.protocols: list[list[object]] = []
        self.taken: list[list[bytes]] = []
        self.take: Callable[[Sequence[bytes]], Sequence[int]] = lambda reads: [0] * len(reads)
        #: Those that have had their time.
        self.late: list[Kept] = []
        self.reads = SharedReads(reactor, self)

    def in_time(self, protocols: Sequence[Any]) -> list[bool]:
        return [protocol not in self.late for protocol in protocols]

    def take_together(
        self, reads: list[PlainRead], sizes: Mapping[AddressLoad, int], now: float
    ) -> list[tuple[int, PlainRead]]:
        assert reads
        assert sum(sizes.values()) == sum(len(data) for data, *_ in reads)
        assert all(at == 0 for _, at, _ in reads)
        self.protocols.append([protocol for *_, protocol in reads])
        self.taken.append([data for data, *_ in reads])
        stops = self.take(self.taken[-1])
        left = [(data, stop, protocol) for (data, _, protocol), stop in zip(reads, stops, strict=True)]
        return [(number, each) for number, each in enumerate(left) if each[1] < len(each[0])]

    def make(self, count: int, kind: type[Kept] = Kept) -> list[Kept]:
        return [self._make_one(kind()) for _ in range(count)]

    def _make_one(self, kept: Kept) -> Kept:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        kept.peer = theirs
        server = ImmediateWriteServer(ours, kept, ("127.0.0.1", 1), cast(Any, self), 0, cast(Any, self.reactor))
        kept.makeConnection(server)
        self.all.append(kept)
        return kept

    def turn(self) -> None:
        """A turn of the reactor."""
        self.reactor.turn()

    #: As a port.
    _realPortNumber = 0  # noqa: N815

    def close(self) -> None:
        for kept in self.all:
            kept.peer.close()
            kept.server.connectionLost(Failure(ConnectionDone()))
