"""Reads the sockets of all connections of a port that are ready with one call, where Twisted calls Python for each. The
requests read are handled together as far as possible.

The reactor of the console scripts hands over those that are ready in a turn (`daemons/epoll.py`); under another one
they are read in its next turn. Measured on two cores, 64 connections with one send in flight on each are answered at
twice the rate. Needs the compiled module.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet import main
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger

from mqbroker.kernel import compiled
from mqbroker.remoting.handlers import PlainRead
from mqbroker.remoting.limits import AddressLoad

if TYPE_CHECKING:
    from mqbroker.remoting.tcp import ImmediateWriteServer

log = Logger()

#: Number of sockets that are read before their requests are handled.
READS_MAX = 64

_NOTHING_THERE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class ReadsHandler(Protocol):
    """Handles the bytes that were read."""

    def take_together(
        self, reads: list[PlainRead], sizes: Mapping[AddressLoad, int], now: float
    ) -> list[tuple[int, PlainRead]]:
        """Gets reads of connections that may have plain requests taken: bytes, 0 and protocol; how many bytes came from
        each address, and when. Returns those of which something is left for `dataReceived`, from where on, and which
        they were."""

    def in_time(self, protocols: Sequence[Any]) -> list[bool]:
        """Whether each has time left in this iteration of the reactor."""


class SharedReads:
    """Reads the sockets of connections."""

    def __init__(self, reactor: Any, handler: ReadsHandler) -> None:
        assert compiled is not None
        self._reactor, self._handler = reactor, handler
        self._receiver = compiled.Receiver()
        #: Ready in this turn of a reactor that hands over one at a time; each once, even if it is found ready twice.
        self._ready: dict[ImmediateWriteServer, None] = {}

    def read_one(self, transport: ImmediateWriteServer) -> None:
        """Read from one that the reactor has found ready; together with others, unless it is the only one."""
        if getattr(self._reactor, "hands_over_reads", False):
            self.read([transport])
            return
        if not self._ready:
            self._reactor.callLater(0, self._read_ready)
        self._ready[transport] = None

    def _read_ready(self) -> None:
        ready, self._ready = self._ready, {}
        self.read(list(ready))

    def read(self, ready: list[ImmediateWriteServer]) -> None:
        """Read the sockets that are ready, and handle their requests."""
        next_ones = ready[:READS_MAX]
        while ready := next_ones[self._read(next_ones) :] + ready[READS_MAX:]:
            next_ones = self._still_to_read(ready[:READS_MAX])

    def _still_to_read(self, transports: list[ImmediateWriteServer]) -> list[ImmediateWriteServer]:
        """Without those that others' requests have closed or paused meanwhile, and those that have had their time: what
        was sent to these stays in their sockets, which costs nothing."""
        transports = [transport for transport in transports if transport.is_reading]
        in_time = self._handler.in_time([transport.protocol for transport in transports])
        return [transport for transport, may in zip(transports, in_time, strict=True) if may]

    def _read(self, transports: list[ImmediateWriteServer]) -> int:
        """Read from the sockets that are to be read and handle what was read, as far as the buffer lasts; returns how
        many were looked at. What was read is freed before the next are read, which find that memory in the caches."""
        now = self._reactor.seconds()
        try:
            count, reads, readers, sizes, others = self._receiver.receive(transports, now)
        except MemoryError as error:
            self._end(transports, error)
            return len(transports)
        if reads:
            try:
                left = self._handler.take_together(reads, sizes, now)
            except BaseException as error:
                log.failure("unexpected error in requests that were read together")
                self._end(readers, error)
                left = []
            for number, (data, at, _) in left:
                self._deliver(readers[number], data[at:])
        for transport, found in others:
            if isinstance(found, bytes):
                self._deliver(transport, found)
            elif found not in _NOTHING_THERE:
                self._end([transport], main.CONNECTION_LOST if found else main.CONNECTION_DONE)
        return int(count)

    def _deliver(self, transport: ImmediateWriteServer, data: bytes) -> None:
        if not transport.may_read:
            return
        try:
            cast(TwistedProtocol, transport.protocol).dataReceived(data)
        except BaseException as error:
            log.failure("unexpected error of a connection, which is closed")
            self._end([transport], error)

    def _end(self, transports: Sequence[ImmediateWriteServer], why: BaseException) -> None:
        for transport in transports:
            if not transport.may_read:  # its end is under way
                continue
            try:
                transport.stopReading()
                self._reactor._disconnectSelectable(transport, why, True)  # noqa: SLF001
            except BaseException:
                log.failure("unexpected error at the end of a connection")
