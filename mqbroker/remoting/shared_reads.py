"""Reads for all connections of a port: one poll of their sockets and one call to receive, where a reactor has a turn of
Python for each. What was read is handled together as far as it can be.

The sockets are in an epoll of their own, which is one reader of the reactor, of whatever kind that is. Writing stays
with the reactor, and so do the ends of connections. Measured on two cores, 64 connections with one send in flight on
each are answered at twice the rate. Needs the compiled module.
"""

from __future__ import annotations

import errno
import select
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet import main
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.kernel import compiled
from mqbroker.remoting.handlers import PlainRead

if TYPE_CHECKING:
    from mqbroker.remoting.tcp import ImmediateWriteServer

log = Logger()

#: Sockets read before what they brought is handled.
READS_MAX = 64
#: Sockets that are looked at in one turn of the reactor: epoll has the others first in the next one.
READY_MAX = 1024

_NOTHING_THERE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class ReadsHandler(Protocol):
    """Handles what was read."""

    def take_together(self, reads: list[PlainRead]) -> list[tuple[int, PlainRead]]:
        """Gets reads: bytes, 0 and protocol; returns those of which something is left for `dataReceived`, from where
        on, and which they were."""

    def in_time(self, protocols: Sequence[Any]) -> list[bool]:
        """Whether each may have more of this turn of the reactor."""


def can_share_reads() -> bool:
    """Whether the compiled module and the system have what it takes."""
    return compiled is not None and hasattr(select, "epoll")


class SharedReads:
    """A reader of the reactor, which reads the sockets of connections."""

    def __init__(self, reactor: Any, handler: ReadsHandler) -> None:
        assert compiled is not None
        self._reactor, self._handler = reactor, handler
        self._receiver = compiled.Receiver()
        self._is_port_open = True
        self._poll: select.epoll | None = None
        #: By descriptor.
        self._transports: dict[int, ImmediateWriteServer] = {}

    def add(self, transport: ImmediateWriteServer) -> None:
        """Read for `transport`. Raises OSError."""
        if self._reads(transport):
            return
        if self._poll is None:
            self._poll = select.epoll()
            try:
                self._reactor.addReader(self)
            except OSError:
                self._poll.close()
                self._poll = None
                raise
        self._poll.register(transport.descriptor, select.EPOLLIN)
        self._transports[transport.descriptor] = transport

    def remove(self, transport: ImmediateWriteServer) -> None:
        """Read for it no longer."""
        if self._reads(transport) and self._poll is not None:
            del self._transports[transport.descriptor]
            self._poll.unregister(transport.descriptor)
            self._close_unused()

    def _reads(self, transport: ImmediateWriteServer) -> bool:
        return self._transports.get(transport.descriptor) is transport

    def port_closed(self) -> None:
        """No more connections are accepted: with the last one that reads the poll is closed."""
        self._is_port_open = False
        self._close_unused()

    def _close_unused(self) -> None:
        if self._poll is not None and not (self._is_port_open or self._transports):
            self._reactor.removeReader(self)
            self._poll.close()
            self._poll = None

    # --- the reactor's calls

    def fileno(self) -> int:
        return -1 if self._poll is None else self._poll.fileno()

    def logPrefix(self) -> str:  # noqa: N802
        return "reads"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor ends: so do the connections, of which it knows nothing."""
        for transport in list(self._transports.values()):
            try:
                transport.connectionLost(reason)
            except BaseException:
                log.failure("unexpected error at the end of a connection")
        self.port_closed()

    def doRead(self) -> None:  # noqa: N802
        if self._poll is None or not self._transports:
            return
        ready = deque(self._transports[fd] for fd, _ in self._poll.poll(0, min(READY_MAX, len(self._transports))))
        if len(ready) > 1 and hasattr(self._reactor, "turn_began"):
            self._reactor.turn_began = self._reactor.seconds()
        is_first = True
        while ready:
            next_ones = [ready.popleft() for _ in range(min(READS_MAX, len(ready)))]
            if not is_first:
                next_ones = self._still_to_read(next_ones)
            if next_ones:
                ready.extendleft(reversed(next_ones[self._read(next_ones) :]))
            is_first = False

    def _still_to_read(self, transports: list[ImmediateWriteServer]) -> list[ImmediateWriteServer]:
        """Without those that others' requests have closed or paused meanwhile, and those that have had their time: what
        was sent to these stays in their sockets, which costs nothing."""
        transports = [transport for transport in transports if self._reads(transport)]
        in_time = self._handler.in_time([transport.protocol for transport in transports])
        return [transport for transport, may in zip(transports, in_time, strict=True) if may]

    def _read(self, transports: list[ImmediateWriteServer]) -> int:
        """Read from the sockets and handle what was read, as far as the buffer lasts; returns how many they were."""
        try:
            count, reads, readers, others = self._receiver.receive(transports)
        except MemoryError as error:
            self._end(transports, error)
            return len(transports)
        if reads:
            self._handle(reads, readers)
        for transport, error_number in others:
            if error_number not in _NOTHING_THERE:
                self._end([transport], main.CONNECTION_LOST if error_number else main.CONNECTION_DONE)
        return int(count)

    def _handle(self, reads: list[PlainRead], transports: Sequence[ImmediateWriteServer]) -> None:
        try:
            left = self._handler.take_together(reads)
        except BaseException as error:
            log.failure("unexpected error in requests that were read together")
            self._end(transports, error)
            return
        for number, (data, at, protocol) in left:
            if not transports[number].may_read:
                continue
            try:
                cast(TwistedProtocol, protocol).dataReceived(data[at:])
            except BaseException as error:
                log.failure("unexpected error of a connection, which is closed")
                self._end([transports[number]], error)

    def _end(self, transports: Sequence[ImmediateWriteServer], why: BaseException) -> None:
        for transport in transports:
            if not transport.may_read:  # its end is under way
                continue
            try:
                transport.stopReading()
                self._reactor._disconnectSelectable(transport, why, True)  # noqa: SLF001
            except BaseException:
                log.failure("unexpected error at the end of a connection")
