"""Remoting server: factory for connections sharing one handler table, and closing of idle connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger, LogLevel

from mqbroker.kernel import compiled
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.extensions import Extensions
from mqbroker.remoting.fair_scheduler import FairScheduler
from mqbroker.remoting.handlers import HandlerTable, PlainRead
from mqbroker.remoting.limits import AddressLoad, Limits, Load
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.responses import settle, write_left
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.remoting.tls import ServerTls
from mqbroker.repeated_call import RepeatedCall

log = Logger()

#: Interval between checks for idle connections and incomplete frames.
WATCH_SECONDS = 5.0
CLOSINGS_LOGGED_PER_MINUTE = 20


class ConnectionEvent(Enum):
    """The events passed to `on_event`."""

    CONNECT = "connect"
    CLOSE = "close"


class IdleWatch:
    """Closes overdue connections, on one timer for all; the same timer flushes the counts of `logs`."""

    def __init__(
        self,
        connections: set[RemotingProtocol],
        clock: SteadyClock,
        logs: Sequence[RateLimitedLog] = (),
        extensions: Extensions | None = None,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._logs = logs
        self._extensions = extensions or Extensions()
        self._loop = RepeatedCall(self._look, clock=clock.timers)

    def start(self) -> None:
        if not self._loop.running:
            self._loop.start(WATCH_SECONDS, now=False)

    def stop(self) -> None:
        if self._loop.running:
            self._loop.stop()

    def _look(self) -> None:
        now = self._clock.seconds()
        for connection in list(self._connections):
            try:
                why = connection.overdue(now)
                if why is not None and not connection.closed:
                    self._extensions.tell("idle", connection.remote_addr, why)
                    connection.close(why)
            except Exception:  # or the others would never be closed
                log.failure("unexpected error in closing the overdue connection of {peer}", peer=connection.remote_addr)
        for limited in self._logs:
            limited.look()


class RemotingServerFactory(ServerFactory):
    """Builds RemotingProtocols. `on_event(event, connection)` is called when a connection opens or closes."""

    noisy = False

    def __init__(
        self,
        table: HandlerTable,
        clock: IReactorTime,
        limits: Limits | None = None,
        on_event: Callable[[ConnectionEvent, RemotingProtocol], None] | None = None,
        tls: ServerTls | None = None,
        steady: Callable[[], float] | None = None,
        extensions: Extensions | None = None,
    ) -> None:
        """`steady` returns seconds of a clock that is never set, by default those of `clock`. The connection
        listeners among the extensions are called."""
        self._extensions = extensions or Extensions()
        self.connections: set[RemotingProtocol] = set()
        self._table = table
        self._clock = clock
        self._limits = limits or Limits()
        self.on_event = on_event
        self._tls = tls
        self.load = Load()
        self.scheduler = FairScheduler(clock)
        self.close_log = RateLimitedLog("connections closed", clock.seconds, CLOSINGS_LOGGED_PER_MINUTE)
        self._refusals = RateLimitedLog("connections refused", clock.seconds, 1)
        self._steady = SteadyClock(clock, steady)
        self._watch = IdleWatch(self.connections, self._steady, (self.close_log, self._refusals), self._extensions)

    def startFactory(self) -> None:
        self._watch.start()

    def stopFactory(self) -> None:
        self._watch.stop()

    def buildProtocol(self, addr: IAddress | None) -> RemotingProtocol:
        protocol = RemotingProtocol(self._table, self._clock, self._limits, self, steady=self._steady.seconds)
        protocol.factory = self
        if self._tls is not None:
            self._tls.watch(protocol)
        return protocol

    def take_together(
        self, reads: list[PlainRead], sizes: Mapping[AddressLoad, int], now: float
    ) -> list[tuple[int, PlainRead]]:
        """Have the plain requests at the beginnings of reads handled together, as far as the scheduler allows; of each
        read as much as handlers take in one call. `reads`: of connections that may have them taken, of each another.
        `sizes`: how many bytes came from each address; `now`: when.

        Returns the unhandled rest, for `dataReceived`, and the read that it belongs to.
        """
        plain, scheduler = self._table.plain, self.scheduler
        if compiled is None or not plain or self.load.is_held:
            return list(enumerate(reads))
        may_all = scheduler.has_time_for_all and self.load.is_light(self._limits.requests_under_way_max)
        if not may_all:
            late = [address for address in sizes if not scheduler.has_time(address)]
            may = [self._may_take(connection, late) for _, _, connection in reads]
            refused = [(number, read) for number, read in enumerate(reads) if not may[number]]
            chosen = [number for number in range(len(reads)) if may[number]]
            reads = [reads[number] for number in chosen]
            sizes = {address: size for address, size in sizes.items() if address not in late}
        left = compiled.serve_plain(reads, self._table.take_plain, len(plain), write_left, settle)
        if self._table.charge is not None:
            self._table.charge()
        seconds, total = self._clock.seconds() - now, sum(sizes.values())
        for address, size in sizes.items():
            scheduler.spent(address, seconds * size / total)
        return left if may_all else refused + [(chosen[at], read) for at, read in left]

    def in_time(self, protocols: Sequence[Any]) -> list[bool]:
        """Whether the scheduler has time left for each in this iteration of the reactor. TLS wrappers are unwrapped."""
        inside = [getattr(protocol, "wrappedProtocol", protocol) for protocol in protocols]
        return [self.scheduler.has_time(connection.from_address) for connection in inside]

    @staticmethod
    def _may_take(connection: Any, late: Sequence[AddressLoad]) -> bool:
        """Whether plain requests of a connection may be taken when time or capacity is short."""
        return connection.from_address not in late and connection.has_room_for_requests()

    def connected(self, connection: RemotingProtocol) -> bool:
        part = connection.from_address
        count = len(part.connections)
        if count >= self._limits.connections_per_address_max:
            line = "{n} connections from the address of {peer} are open: no more are accepted from there"
            self._refusals.say(LogLevel.warn, line, n=count, peer=connection.remote_addr)
            return False
        if self._is_full(connection):
            why = "others want a connection, no more may be open, and its address has the most of them"
            if not self.load.make_room_for(part, why):
                return False
        self.connections.add(connection)
        self._tell(ConnectionEvent.CONNECT, connection)
        self._extensions.tell("connected", connection.remote_addr)
        return True

    def _is_full(self, connection: RemotingProtocol) -> bool:
        line = ""
        if len(self.connections) >= self._limits.connections_max:
            line = "{n} connections are open: no more are taken"
        elif _file_number(connection) >= self._limits.files_max:
            line = "{n} connections are open, and no more files may be: no more are taken; raise ulimit -n"
        if line:
            self._refusals.say(LogLevel.warn, line, n=len(self.connections))
        return bool(line)

    def disconnected(self, connection: RemotingProtocol) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._tell(ConnectionEvent.CLOSE, connection)
            if connection.failure:
                self._extensions.tell("failed", connection.remote_addr, connection.failure)
            self._extensions.tell("closed", connection.remote_addr)

    def _tell(self, event: ConnectionEvent, connection: RemotingProtocol) -> None:
        if self.on_event is not None:
            self.on_event(event, connection)

    def hold(self) -> None:
        """Leave requests unread, or unhandled, until `release`. Those accepted before are answered."""
        self.load.is_held = True
        for connection in list(self.connections):
            connection.hold_changed()

    def release(self) -> None:
        """Handle requests again after `hold`."""
        if self.load.is_held:
            self.load.is_held = False
            for connection in list(self.connections):
                connection.hold_changed()

    def close_all(self, why: str) -> None:
        """Close every connection; `on_event` is called for each as usual."""
        for connection in list(self.connections):
            connection.close(why)


def _file_number(connection: RemotingProtocol) -> int:
    """Descriptor of its socket; -1 if none. The kernel assigns the lowest free one, so at least as many are open."""
    number = getattr(connection.transport, "fileno", None)
    return -1 if number is None else int(number())
