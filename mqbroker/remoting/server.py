"""Remoting server: factory for connections sharing one handler table, and closing of idle connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import ServerFactory
from twisted.internet.task import LoopingCall
from twisted.logger import LogLevel

from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.fair_scheduler import FairScheduler
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import AddressLoad, Limits, Load
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.responses import settle
from mqbroker.remoting.tls import ServerTls

#: Interval between checks for idle connections and incomplete frames.
WATCH_SECONDS = 5.0
CLOSINGS_LOGGED_PER_MINUTE = 20
#: Plain requests of a longer read are not handled together with others, but alone, in slices of time.
SHORT_READ_BYTES = 16 * 1024


class ConnectionEvent(Enum):
    """The events passed to `on_event`."""

    CONNECT = "connect"
    CLOSE = "close"


class IdleWatch:
    """Closes overdue connections, on one timer for all; the same timer flushes the counts of `logs`."""

    def __init__(
        self, connections: set[RemotingProtocol], clock: IReactorTime, logs: Sequence[RateLimitedLog] = ()
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._logs = logs
        self._loop = LoopingCall(self._look)
        self._loop.clock = clock

    def start(self) -> None:
        if not self._loop.running:
            self._loop.start(WATCH_SECONDS, now=False)

    def stop(self) -> None:
        if self._loop.running:
            self._loop.stop()

    def _look(self) -> None:
        now = self._clock.seconds()
        for connection in list(self._connections):
            why = connection.overdue(now)
            if why is not None:
                connection.close(why)
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
    ) -> None:
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
        self._watch = IdleWatch(self.connections, clock, (self.close_log, self._refusals))

    def startFactory(self) -> None:
        self._watch.start()

    def stopFactory(self) -> None:
        self._watch.stop()

    def buildProtocol(self, addr: IAddress | None) -> RemotingProtocol:
        protocol = RemotingProtocol(self._table, self._clock, self._limits, self)
        protocol.factory = self
        if self._tls is not None:
            self._tls.watch(protocol)
        return protocol

    def take_together(self, protocols: Sequence[object], reads: Sequence[bytes]) -> Sequence[bytes]:
        """Have the plain requests at the beginnings of short reads handled together, as far as the scheduler allows;
        returns what is left of each read, for `dataReceived`. `protocols`: of any kind, of each read another."""
        if not self._table.plain:
            return reads
        now = self._clock.seconds()
        is_roomy = self.load.is_light(self._limits.requests_under_way_max)
        chosen: list[tuple[int, RemotingProtocol]] = []
        counts: dict[AddressLoad, int] = {}
        for number, (connection, data) in enumerate(zip(protocols, reads, strict=True)):
            if (
                len(data) <= SHORT_READ_BYTES
                and isinstance(connection, RemotingProtocol)
                and connection.may_take_plain
                and (is_roomy or connection.has_room_for_requests())
            ):
                address = connection.from_address
                if address not in counts:
                    if self.scheduler.until(address, now) <= now:
                        continue
                    counts[address] = 0
                counts[address] += 1
                connection.last_active = now
                chosen.append((number, connection))
        left = list(reads)
        for _ in range(len(self._table.plain)):
            taken = self._table.take_plain([(left[number], 0, each) for number, each in chosen]) if chosen else None
            if taken is None:
                break
            settle(taken, [each for _, each in chosen])
            for (number, _), (stop, _) in zip(chosen, taken.reads, strict=True):
                left[number] = left[number][stop:]
            chosen = [(number, each) for number, each in chosen if left[number] and not each.closed]
        if counts:
            share = (self._clock.seconds() - now) / sum(counts.values())
            for address, count in counts.items():
                self.scheduler.spent(address, share * count)
        return left

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

    def _tell(self, event: ConnectionEvent, connection: RemotingProtocol) -> None:
        if self.on_event is not None:
            self.on_event(event, connection)

    def close_all(self, why: str) -> None:
        """Close every connection; `on_event` is called for each as usual."""
        for connection in list(self.connections):
            connection.close(why)


def _file_number(connection: RemotingProtocol) -> int:
    """Descriptor of its socket; -1 if none. The kernel assigns the lowest free one, so at least as many are open."""
    number = getattr(connection.transport, "fileno", None)
    return -1 if number is None else int(number())
