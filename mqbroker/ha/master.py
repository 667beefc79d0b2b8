"""The master's replication port: a link to each slave that connects, fed from the log as it grows.

Replication reads the log like a consumer does; the log knows nothing of it. A link sends what the transport takes:
while a slave does not read, nothing is read from the log for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IAddress, IListeningPort, IPushProducer, IReactorTCP, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import ServerFactory, connectionDone
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.config import BrokerRole, BrokerSettings
from mqbroker.errors import MQError, StoreError
from mqbroker.ha.link import START_ANEW, BadPeer, Greeting, MasterLink
from mqbroker.ha.link_secret import LinkSecret, MasterProof
from mqbroker.ha.slave_check import NotCompared, SlaveCheck
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.tcp import write_parts_at_once
from mqbroker.repeated_call import RepeatedCall
from mqbroker.wire.names import join_address

log = Logger()

#: Links at a time. One more takes the place of the oldest that has reported nothing, or, in a group, is of no replica;
#: else it is refused.
LINKS_MAX = 64
LINES_PER_MINUTE = 20
WATCH_SECONDS = 1.0
#: How long a stop waits for slaves to acknowledge the whole log.
DRAIN_SECONDS_MAX = 3.0
#: Bytes of pieces that are sent with one call.
SENT_AT_ONCE_BYTES = 256 * 1024
#: Interval of the line that says how far slaves are behind, as in Java.
REPORT_SECONDS = 60.0
#: Pause between two sends of the log where nobody waits for slaves; Java's looks ten times a second then. Beside a
#: busy master a slave took 1.5 times as much CPU time with 2 ms as with 5, and 1.15 times as much with 5 as with 10.
PAUSE_SECONDS = 0.010
#: Maximum delay of sending a new commit point, seconds.
COMMITTED_SECONDS = 0.05
#: Window of a slave's rate, seconds.
RATE_SECONDS = 10
#: Delays before a slave is compared again, which could not be; the last one stays.
COMPARE_SECONDS = (1.0, 2.0, 4.0, 10.0)
#: How long a slave waits for the comparison of the logs, seconds; then it is sent the log, but does not count.
UNCOMPARED_SECONDS = 10.0
#: How long a refused slave is shown, seconds; and of how many addresses.
REFUSED_SECONDS, REFUSED_MAX = 300.0, 16


class ILog(Protocol):
    """What replication reads of the store."""

    segment_bytes: int
    #: Called each time that `end` has grown.
    on_growth: list[Callable[[], None]]

    @property
    def start(self) -> int:
        """Where the log begins."""

    @property
    def end(self) -> int:
        """Where the log ends for readers."""

    def read(self, offset: int, size: int) -> Deferred[bytes] | memoryview:
        """Bytes of one segment: at once if they are resident. The Deferred fails if they cannot be read, or were
        deleted meanwhile. Raises StoreBusy."""


@attrs.frozen(kw_only=True)
class HaSettings:
    """haListenPort, haSendHeartbeatInterval, haHousekeepingInterval and haTransferBatchSize of 4.9.7.

    `heartbeat_s`: a link on which nothing was sent for so long gets a heartbeat. `idle_s`: one on which nothing was
    received for longer is closed. `pause_s`: the log is sent once in so long at most, for fewer and larger pieces,
    which spare both ends half of what they do; 0 where senders wait for slaves.
    """

    listen_port: int
    interface: str = ""
    heartbeat_s: float = 5.0
    idle_s: float = 20.0
    piece_bytes_max: int = 32 * 1024
    pause_s: float = 0.0

    @classmethod
    def of(cls, settings: BrokerSettings) -> HaSettings:
        return cls(
            listen_port=settings.ha_listen_port,
            interface=settings.server.bind_address,
            heartbeat_s=settings.ha_send_heartbeat_interval_ms / 1000,
            idle_s=settings.ha_housekeeping_interval_ms / 1000,
            piece_bytes_max=settings.ha_transfer_batch_size,
            pause_s=0.0 if settings.store.broker_role is BrokerRole.SYNC_MASTER else PAUSE_SECONDS,
        )


class IGroup(Protocol):
    """What the master of a group of brokers says to a replica that greets it."""

    def answer(self, greeting: Greeting, log_end: int) -> Deferred[tuple[bytes, bytes]]:
        """Fires with the answer, encoded, and the proof with which the replica must confirm it. Fails with BadPeer
        where the replica is not of this group and epoch, or is not the one that etcd has."""


@attrs.frozen
class SlaveStatus:
    """State of one link. `acknowledged`: the slave has the log below this offset; `behind`: bytes that it lacks;
    `behind_s`: for how long it has not had the whole log, seconds; `rate`: bytes a second that it got in the last
    RATE_SECONDS; `why_not_counted`: why nothing that it reports confirms a message; empty if it does."""

    peer: str
    acknowledged: int
    behind: int
    behind_s: float
    rate: float = 0.0
    why_not_counted: str = ""


@attrs.frozen
class Trust:
    """Which slaves count.

    :param secret: that slaves must know; None if they need not.
    :param is_exempt: whether a slave at an address, without port, need not: one of the Java system cannot.
    :param check: compares a slave's log with this one before it counts; None to compare nothing.
    """

    secret: LinkSecret | None = None
    is_exempt: Callable[[str], bool] = lambda host: True
    check: SlaveCheck | None = None


@implementer(IPushProducer)
class SlaveConnection(TwistedProtocol):
    """The master's end of a connection to one slave."""

    def __init__(self, factory: MasterFactory, peer: str) -> None:
        self.peer, self.host = peer, peer.rpartition(":")[0].strip("[]")
        secret = factory.trust.secret
        self._proof = MasterProof(
            None if secret is None else secret.keys,
            is_needed=secret is not None and not factory.trust.is_exempt(self.host),
        )
        #: Whether what it reports counts: its log was compared with this one; why it does not; and whether it is sent
        #: nothing until then.
        self.counts, self.why_not_counted, self._is_held = True, "", False
        self._comparing: Deferred[None] | None = None
        self._compare_at, self._attempts = 0.0, 0
        self.link = MasterLink(factory.log.segment_bytes, factory.settings.piece_bytes_max)
        self.heard_at = self.wrote_at = factory.now()
        #: The slave has all that was in the log at this time; minus infinity until it had.
        self.caught_up_at = -math.inf
        self._connected_at = self.heard_at
        #: Where the log ended when that was looked at last, and when.
        self._mark = (factory.log.end, self.heard_at)
        #: Samples, one a second: time and acknowledged offset.
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SECONDS + 1)
        self._factory = factory
        self._is_paused = self._is_reading = self._is_closed = False
        #: Where the log ended when a replica greeted whose store was not whole: with that it has all again.
        self._whole_at = 0
        self._answering: Deferred[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the replica has all that it ever acknowledged."""
        return self.link.acknowledged >= self._whole_at

    # --- Twisted's calls

    def connectionMade(self) -> None:
        transport = cast(Any, self.transport)
        transport.setTcpNoDelay(True)
        transport.registerProducer(self, True)
        self._factory.connected(self)

    def dataReceived(self, data: bytes) -> None:
        self.heard_at = self._factory.now()
        source = self._factory.log
        is_new, is_greeted, is_proven = self.link.sent is None, self.link.greeting is not None, self.link.is_proven
        try:
            if not self._proof.is_over:
                answer, data = self._proof.receive(data, source.start, source.end)
                if answer:
                    cast(Any, self.transport).write(answer)
                if not data:
                    return
            has_grown = self.link.receive(data, source.start, source.end)
            if not is_greeted and self.link.greeting is not None:
                self._greet(self.link.greeting)
            if not is_proven and self.link.is_proven:
                self._factory.slaves.close_former(self)
        except BadPeer as error:
            self._refuse(str(error))
            return
        except MQError as error:  # this end's secret cannot be read
            self.close(str(error))
            return
        if is_new and self.link.sent is not None:
            self._begin_comparing()
            self._samples.append((self.heard_at, self.link.acknowledged))
            log.info("slave {peer} connected, and gets the log from {n} on", peer=self.peer, n=self.link.sent)
        if has_grown:
            self._note_progress(self.heard_at)
            self._factory.slaves.notify()
        if is_new:
            self.send()

    def _greet(self, greeting: Greeting) -> None:
        group = self._factory.group
        if group is None:
            raise BadPeer("it belongs to a group whose master is elected (etcdEndpoints), and this broker to none")
        end = self._factory.log.end
        self._whole_at = 0 if greeting.is_whole else end
        self._answering = group.answer(greeting, end).addCallback(self._answer).addErrback(self._not_answered)

    def _answer(self, answer: tuple[bytes, bytes]) -> None:
        if not self._is_closed:
            cast(Any, self.transport).write(self.link.answer(*answer))

    def _not_answered(self, failure: Failure) -> None:
        if not failure.check(CancelledError):  # type: ignore[no-untyped-call]
            self._refuse(failure.getErrorMessage())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_closed = True
        if self._answering is not None:
            self._answering.cancel()
        if self._comparing is not None:
            self._comparing.cancel()
        self._factory.disconnected(self, reason.getErrorMessage())

    def pauseProducing(self) -> None:
        self._is_paused = True

    def resumeProducing(self) -> None:
        self._is_paused = False
        self.send()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost follows."""

    @property
    def is_closed(self) -> bool:
        """Whether the link is closed, or about to be."""
        return self._is_closed

    # --- whether it counts

    def confirms(self, begin: int, end: int) -> bool:
        """Whether the slave counts, and has acknowledged begin..end of the log, which was sent over this link."""
        return self.counts and self.link.confirms(begin, end)

    def _begin_comparing(self) -> None:
        """Called with the first report: what a slave of no group has must be as in this log."""
        link, check = self.link, self._factory.trust.check
        if check is None or link.greeting is not None or not link.acknowledged:
            self._factory.slaves.accepted(self)
            return
        self.counts, self._is_held, self.why_not_counted = False, True, "its log is being compared"
        self._compare_again()

    def _compare_again(self) -> None:
        check = self._factory.trust.check
        assert check is not None
        self._comparing = Deferred.fromCoroutine(self._compare(check))
        self._comparing.addErrback(self._not_compared)

    async def _compare(self, check: SlaveCheck) -> None:
        link, slaves, proof = self.link, self._factory.slaves, self._proof
        offset = link.start
        assert offset is not None
        ending = await check.check_ending(offset, proof.last, is_proven=proof.is_proven)
        if ending is not None:
            await check.ask(self.host, ending, offset, lambda: link.sent or offset, lambda: link.acknowledged)
        self._comparing, self.counts, self._is_held, self.why_not_counted = None, True, False, ""
        slaves.accepted(self)
        slaves.notify()
        self.send()

    def _not_compared(self, failure: Failure) -> None:
        self._comparing = None
        error = failure.value
        if isinstance(error, CancelledError) or self._is_closed:
            return
        if isinstance(error, BadPeer):
            self._refuse(str(error))
            return
        if not isinstance(error, MQError):
            log.failure("the log of slave {peer} cannot be compared", failure, peer=self.peer)
        now, why = self._factory.now(), f"its log cannot be compared with this one: {error}"
        if why != self.why_not_counted:
            line = "nothing that slave {peer} reports counts: {why}"
            self._factory.lines.say(LogLevel.warn, line, peer=self.peer, why=why)
        self.why_not_counted = why
        self._compare_at = now + COMPARE_SECONDS[min(self._attempts, len(COMPARE_SECONDS) - 1)]
        self._attempts += 1
        if isinstance(error, NotCompared) and error.goes_on:
            self._is_held = False
            self.send()

    def _refuse(self, why: str) -> None:
        self._factory.slaves.refuse(self.host, why)
        self.close(why)

    # --- sending

    def send(self) -> None:
        """Send what the slave lacks, until the transport is full or the rest must be read from disk."""
        source = self._factory.log
        parts: list[bytes | memoryview] = []
        size = 0
        if not self._is_paused and (told := self.link.commit_point(self._factory.slaves.committed)):
            parts.append(told)
        while not (self._is_paused or self._is_reading or self._is_closed or self._is_held):
            piece = self.link.next_piece(source.end)
            if piece is None:
                break
            if piece[0] < source.start:
                self.close(f"what it lacks from {piece[0]} on was deleted here: {START_ANEW}")
                return
            try:
                found = source.read(*piece)
            except StoreError:  # too many reads wait; the next look tries again
                break
            if not isinstance(found, memoryview):
                self._write(parts)  # before what is read, which may be there already
                self._is_reading = True
                found.addCallbacks(self._have_read, self._not_read)
                return
            parts += [self.link.header(len(found)), found]
            size += len(found)
            if size >= SENT_AT_ONCE_BYTES:
                self._write(parts)
                parts, size = [], 0
        self._write(parts)

    def _have_read(self, data: bytes) -> None:
        self._is_reading = False
        if not self._is_closed:
            self._write([self.link.header(len(data)), data])
            self.send()

    def _not_read(self, failure: Failure) -> None:
        self._is_reading = False
        self.close(f"the log cannot be read for it: {failure.getErrorMessage()}")

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        if parts and not self._is_closed:
            self.wrote_at = self._factory.now()
            write_parts_at_once(self.transport, parts)

    def look(self, now: float) -> None:
        """Send a heartbeat if one is due; close the link if nothing was received for too long."""
        settings = self._factory.settings
        self._note_progress(now)
        if self._attempts and now - self._connected_at >= UNCOMPARED_SECONDS:
            self._is_held = False
        if self.link.sent is not None:
            self._samples.append((now, self.link.acknowledged))
        if now - self.heard_at > settings.idle_s:
            self.close(f"nothing was heard from it for {settings.idle_s:.0f} s")
        elif not (self.counts or self._is_closed) and self._comparing is None and now >= self._compare_at:
            self._compare_again()
        elif self.link.sent is not None and not self._is_paused and now - self.wrote_at >= settings.heartbeat_s:
            self._write([self.link.header(0)])

    def _note_progress(self, now: float) -> None:
        end, marked_at = self._mark
        if self.link.acknowledged >= end:
            self.caught_up_at = marked_at
            end = self._factory.log.end
            self._mark = end, now
            if self.link.acknowledged >= end:
                self.caught_up_at = now

    def status(self) -> SlaveStatus:
        acknowledged = self.link.acknowledged
        behind = self._factory.log.end - acknowledged
        behind_s = self._factory.now() - max(self.caught_up_at, self._connected_at)
        seconds, rate = behind_s if behind else 0.0, self._rate()
        return SlaveStatus(self.peer, acknowledged, behind, seconds, rate, self.why_not_counted)

    def _rate(self) -> float:
        if not self._samples:
            return 0.0
        since, had = self._samples[0]
        seconds = self._factory.now() - since
        return (self.link.acknowledged - had) / seconds if seconds > 0 else 0.0

    def close(self, why: str = "") -> None:
        """Close the link, and log `why`, if given."""
        if self._is_closed:
            return
        self._is_closed = True
        if why:
            line = "the replication link to {peer} is closed: {why}"
            self._factory.lines.say(LogLevel.warn, line, peer=self.peer, why=why)
        cast(Any, self.transport).abortConnection()


class Slaves:
    """The links to slaves that read `log`."""

    def __init__(self, log: ILog) -> None:
        self.log = log
        self.links: list[SlaveConnection] = []
        #: The commit point of a group, which is sent to its replicas.
        self.committed = 0
        #: Whether slaves can connect.
        self.are_served = False
        self._unserved: set[str] = set()
        #: Called when a slave connects, or has acknowledged more.
        self.on_acknowledged: list[Callable[[], None]] = []
        self.now: Callable[[], float] = lambda: 0.0
        #: Why slaves were refused, and when, by address.
        self._refused: dict[str, tuple[str, float]] = {}

    def refuse(self, host: str, why: str) -> None:
        """Remember why a slave was refused, for a while."""
        self._refused.pop(host, None)
        if len(self._refused) >= REFUSED_MAX:
            self._refused.pop(next(iter(self._refused)))
        self._refused[host] = why, self.now()

    @property
    def refused(self) -> dict[str, str]:
        """Why slaves were refused in the last minutes, by address."""
        since = self.now() - REFUSED_SECONDS
        return {host: why for host, (why, at) in self._refused.items() if at >= since}

    def accepted(self, connection: SlaveConnection) -> None:
        """Called when a slave counts from now on."""
        self._refused.pop(connection.host, None)

    def _reported(self) -> list[SlaveConnection]:
        """The links over which the first report has come."""
        return [connection for connection in self.links if connection.link.sent is not None]

    def acknowledged(self, count: int) -> int | None:
        """The highest offset that `count` slaves have acknowledged; None with fewer slaves."""
        offsets = sorted((each.link.acknowledged for each in self._reported() if each.counts), reverse=True)
        return offsets[count - 1] if len(offsets) >= count else None

    def confirm(self, begin: int, end: int, count: int) -> bool:
        """Whether `count` slaves have acknowledged begin..end of the log, which was sent to them."""
        return sum([connection.confirms(begin, end) for connection in self.links]) >= count

    def replicas(self) -> dict[int, SlaveConnection]:
        """The links to replicas of the group, by their id, over which the first report has come."""
        return {
            link.link.greeting.replica_id: link
            for link in self._reported()
            if link.link.greeting is not None and link.link.is_proven and not link.is_closed
        }

    def close_former(self, link: SlaveConnection) -> None:
        """Close the other links to the replica, which has connected again, and proven it."""
        greeting = link.link.greeting
        for other in list(self.links):
            theirs = other.link.greeting if other.link.is_proven and other is not link else None
            if greeting is not None and theirs is not None and theirs.replica_id == greeting.replica_id:
                other.close("the same replica has connected again")

    def notify(self) -> None:
        """Call the listeners."""
        for listener in self.on_acknowledged:
            listener()

    def note_fetch(self, peer: str) -> None:
        """Called when a slave fetches tables: log, once per host, that it gets no messages if it cannot connect."""
        host = peer.rpartition(":")[0]
        if self.are_served or host in self._unserved or len(self._unserved) >= LINKS_MAX:
            return
        self._unserved.add(host)
        line = (
            "the slave at {host} fetches tables, but gets no messages: no slave can connect, see the start of the log"
        )
        log.warn(line, host=host)

    @property
    def are_complete(self) -> bool:
        """Whether all slaves that have reported have the whole log."""
        end = self.log.end
        return all(connection.link.acknowledged >= end for connection in self._reported())

    def states(self) -> list[SlaveStatus]:
        """The slaves that have reported their offset, in the order of connection."""
        return [connection.status() for connection in self._reported()]


class MasterFactory(ServerFactory):
    """Builds the connections to slaves.

    :param is_allowed: whether a slave may connect from an address, given without port.
    :param on_growth: called each time that the log has grown while there are connections.
    :param group: of which this broker is the master; None without elections.
    """

    noisy = False

    def __init__(
        self,
        slaves: Slaves,
        settings: HaSettings,
        now: Callable[[], float],
        is_allowed: Callable[[str], bool],
        on_growth: Callable[[], None],
        on_disconnected: Callable[[], None],
        group: IGroup | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.group, self.trust = group, trust or Trust()
        slaves.now = now
        self.slaves, self.log, self.settings, self.now = slaves, slaves.log, settings, now
        self._is_allowed = is_allowed
        self._on_growth = on_growth
        self._on_disconnected = on_disconnected
        self.lines = RateLimitedLog("replication links closed", now, LINES_PER_MINUTE)
        #: Fired when no connection is left.
        self._gone: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> SlaveConnection | None:
        host = str(getattr(addr, "host", "")).removeprefix("::ffff:")
        peer = join_address(host, getattr(addr, "port", 0))
        why = None
        if not self._is_allowed(host):
            why = "haWhiteRemoteAddresses does not have its address"
        elif len(self.slaves.links) >= LINKS_MAX and not self._make_room():
            why = f"there are {LINKS_MAX} already"
        if why is not None:
            self.lines.say(LogLevel.warn, "a replication link from {peer} is refused: {why}", peer=peer, why=why)
            self.slaves.refuse(host, why)
            return None
        return SlaveConnection(self, peer)

    def _make_room(self) -> bool:
        """Close the oldest link that has not reported yet (slaves do so at once) or, in a group, is no replica's; False
        without one."""
        links = [
            link
            for link in self.slaves.links
            if not link.is_closed and (link.link.sent is None or (self.group and not link.link.is_proven))
        ]
        if not links:
            return False
        chosen = min(links, key=lambda link: (link.link.is_proven, link.link.sent is not None))
        why = "it reports nothing" if chosen.link.sent is None else "it is of no replica of the group"
        chosen.close(f"{why}, and others connect")
        return True

    def connected(self, connection: SlaveConnection) -> None:
        if not self.slaves.links:
            self.log.on_growth.append(self._on_growth)
        self.slaves.links.append(connection)

    def disconnected(self, connection: SlaveConnection, why: str) -> None:
        self.slaves.links.remove(connection)
        if not self.slaves.links:
            self.log.on_growth.remove(self._on_growth)
        if connection.link.sent is not None:
            log.info("slave {peer} disconnected: {why}", peer=connection.peer, why=why)
        self._on_disconnected()
        if not self.slaves.links:
            gone, self._gone = self._gone, None
            if gone is not None:
                gone.callback(None)

    def close(self) -> Deferred[None]:
        """Close all connections; fires when they are closed."""
        if not self.slaves.links:
            return succeed(None)
        gone = self._gone = Deferred()
        for connection in list(self.slaves.links):
            connection.close()
        return gone


class MasterService(Service):
    """Listens for slaves, and sends them the log. `port` is the bound port while it runs.

    :param steady: seconds of a clock that is never set: no link is closed because the time of day jumps.
    """

    def __init__(
        self,
        reactor: Any,
        slaves: Slaves,
        settings: HaSettings,
        is_allowed: Callable[[str], bool] = lambda host: True,
        group: IGroup | None = None,
        steady: Callable[[], float] | None = None,
        trust: Trust | None = None,
    ) -> None:
        self._clock = cast(IReactorTime, reactor)
        self._reactor = cast(IReactorTCP, reactor)
        self._slaves = slaves
        slaves.on_acknowledged.append(self._fire_if_drained)
        slaves.on_acknowledged.append(self._tell_committed)
        self._steady = steady or self._clock.seconds
        self.factory = MasterFactory(
            slaves, settings, self._steady, is_allowed, self._log_has_grown, self._fire_if_drained, group, trust
        )
        self.port = settings.listen_port
        self._listening: IListeningPort | None = None
        self._loops = [
            (RepeatedCall(self._look, clock=self._clock), WATCH_SECONDS),
            (RepeatedCall(self._report, clock=self._clock), REPORT_SECONDS),
        ]
        self._is_scheduled = self._is_telling = False
        #: The commit point that all replicas were told.
        self._told = 0
        self._sent_at = -math.inf
        #: Fired when all slaves have the whole log, or have had the time to get it.
        self._drained: Deferred[None] | None = None

    def startService(self) -> None:
        """Listen. Raises Twisted's CannotListenError."""
        settings = self.factory.settings
        self._listening = self._reactor.listenTCP(settings.listen_port, self.factory, interface=settings.interface)
        self.port = cast(Any, self._listening.getHost()).port
        self._slaves.are_served = True
        for loop, seconds in self._loops:
            loop.start(seconds, now=False)
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Deferred[None]:
        """Stop listening, let the slaves get the rest of the log, and close the links; fires when all are closed."""
        super().stopService()  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._slaves.are_served = False
        if self._listening is not None:
            await maybeDeferred(self._listening.stopListening)
        if not self._slaves.are_complete:
            drained = self._drained = Deferred()
            timer = self._clock.callLater(DRAIN_SECONDS_MAX, self._end_draining)
            await drained
            if timer.active():
                timer.cancel()
        for loop, _ in self._loops:
            if loop.running:
                loop.stop()
        await self.factory.close()

    def _log_has_grown(self) -> None:
        """Send appended records. If senders wait for slaves: the first of an iteration of the reactor at once, and the
        rest of it together; otherwise all of a pause together."""
        if self._is_scheduled:
            return
        self._is_scheduled = True
        pause_s = self.factory.settings.pause_s
        self._clock.callLater(max(0.0, self._sent_at + pause_s - self._steady()), self._send_rest)
        if not pause_s:
            self._send()

    def _tell_committed(self) -> None:
        """Tell replicas of a commit point that has moved: with the next part of the log, or soon without."""
        if self._slaves.committed > self._told and not self._is_telling:
            self._is_telling = True
            self._clock.callLater(COMMITTED_SECONDS, self._tell_now)

    def _tell_now(self) -> None:
        self._is_telling, self._told = False, self._slaves.committed
        self._send()

    def _send_rest(self) -> None:
        self._is_scheduled = False
        self._sent_at = self._steady()
        self._send()

    def _send(self) -> None:
        self._for_each_link(SlaveConnection.send)

    def _look(self) -> None:
        now = self._steady()
        self._for_each_link(lambda connection: connection.look(now))
        self._send()
        self.factory.lines.look()

    def _for_each_link(self, act: Callable[[SlaveConnection], None]) -> None:
        for connection in list(self._slaves.links):
            try:
                act(connection)
            except Exception:  # the other slaves get the log
                log.failure("unexpected error of the replication link to {peer}", peer=connection.peer)
                connection.close("an unexpected error")

    def _report(self) -> None:
        for slave in self._slaves.states():
            line = "slave {peer} is {behind} bytes and {seconds:.0f} s behind, and gets {rate:.0f} bytes a second"
            log.info(line, peer=slave.peer, behind=slave.behind, seconds=slave.behind_s, rate=slave.rate)

    def _fire_if_drained(self) -> None:
        if self._slaves.are_complete:
            self._end_draining()

    def _end_draining(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.callback(None)
