"""The slave's end of replication: connects to the master, and appends the records that it sends.

A connection begins with the comparison of the two logs; then the slave reports the end of its log, and the master sends
the rest. The slave reports what it has appended or, with SYNC_FLUSH, synced. Lost connections are made again with a
growing delay. Source of the intervals: HAClient of 4.9.7, which waits 5 seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import BrokerSettings, FlushDiskType
from mqbroker.errors import MQError, StoreBusy, StoreError
from mqbroker.ha.divergence import Diverged
from mqbroker.ha.link import COMMITTED, GREETING, REPORT, BadPeer, Greeting, SlaveLink, encode_confirmation
from mqbroker.ha.link_secret import Last, LinkSecret, SlaveProof
from mqbroker.remoting.client import Connector
from mqbroker.remoting.tcp import write_at_once
from mqbroker.repeated_call import RepeatedCall
from mqbroker.wire.names import split_address
from mqbroker.wire.record import BadRecord

log = Logger()

CONNECT_SECONDS_MAX = 5.0
#: Size of one recv, bytes: what a slave that catches up appends in one pass of Python.
READ_BYTES = 256 * 1024
#: Delays before the next attempts; the last one stays.
RETRY_SECONDS = (1.0, 2.0, 4.0, 5.0)
#: The delay while the master is about to serve.
EXPECTED_RETRY_SECONDS = 0.1
#: Delay after the logs were found to differ: it needs a person.
DIVERGED_SECONDS = 60.0
#: Delay after the store refused to append.
UNWRITABLE_SECONDS = 10.0
WATCH_SECONDS = 1.0


class ISlaveLog(Protocol):
    """What replication needs of a slave's store: see `RawAppender`."""

    @property
    def end(self) -> int:
        """Where the log ends."""

    @property
    def flushed(self) -> int:
        """The log is on disk below this offset."""

    def take(self, offset: int, data: bytes | memoryview) -> None:
        """Take bytes of the master's log. Raises BadRecord, StoreUnwritable and StoreBusy."""

    def append(self) -> None:
        """Append the whole records received so far. Raises as `take`."""

    def restart(self) -> None:
        """Forget a part of a record at the end of the last piece."""

    def durable(self, end: int) -> Deferred[None]:
        """Fires when the log is on disk below `end`. Fails with StoreError."""

    def last_record(self) -> tuple[int, bytes] | None:
        """Offset and bytes of the last record; None without records. Raises OSError."""


@attrs.frozen(kw_only=True)
class SlaveSettings:
    """haSendHeartbeatInterval and haHousekeepingInterval of 4.9.7.

    `heartbeat_s`: the last report is repeated after this time without one. `idle_s`: a connection that received nothing
    for longer is closed. `reports_flushed`: only durable records are reported. `secret`: both ends prove that they know
    it.
    """

    heartbeat_s: float = 5.0
    idle_s: float = 20.0
    reports_flushed: bool = False
    secret: LinkSecret | None = None

    @classmethod
    def of(cls, settings: BrokerSettings) -> SlaveSettings:
        return cls(
            heartbeat_s=settings.ha_send_heartbeat_interval_ms / 1000,
            idle_s=settings.ha_housekeeping_interval_ms / 1000,
            reports_flushed=settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        )


@attrs.frozen
class MasterStatus:
    """State of a slave's link. `address`: the master's, for replication; empty if unknown. `end`: the slave's log ends
    there. `behind`: bytes that it lacked when the master was last asked; None if it was not yet. `why_not`: why the
    slave does not follow; empty if it does."""

    address: str
    end: int
    behind: int | None
    why_not: str


@attrs.frozen
class _Ended:
    """Why a connection ended. `retry_s`: delay of the next one; None for that of the back-off."""

    why: str
    retry_s: float | None = None


class MasterConnection(TwistedProtocol):
    """A connection to the master. `ended` fires when it is closed.

    :param compare: compares the two logs, of a group by `greet`; raises Diverged, MQError and OSError.
    :param on_following: called when the slave has reported where its log ends.
    :param on_progress: called, of a group, with the master's commit point and with what is about to be reported, when
        either has moved.
    """

    def __init__(
        self,
        raw: ISlaveLog,
        settings: SlaveSettings,
        now: Callable[[], float],
        compare: Callable[[MasterConnection], Awaitable[None]],
        on_following: Callable[[], None],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._raw, self._settings, self._now = raw, settings, now
        self._compare, self._on_following = compare, on_following
        self._on_progress = on_progress
        self._committed = 0
        self._link = SlaveLink()
        #: The proof under way, which fires with where the master's log begins and ends.
        self._proof: SlaveProof | None = None
        self._proved: Deferred[tuple[int, int]] | None = None
        #: Where the master's log begins and ends, if it has proved that it knows the secret.
        self.bounds: tuple[int, int] | None = None
        #: A log that is empty is to begin there.
        self.begin_at = 0
        self._is_reporting = False
        #: Fired with the answer to a greeting.
        self._answer: Deferred[bytes] | None = None
        self._reported = 0
        self._heard_at = self._wrote_at = now()
        self._why: _Ended | None = None
        self._beginning: Deferred[None] = succeed(None)
        self.ended: Deferred[_Ended] = Deferred()

    def connectionMade(self) -> None:
        transport = cast(Any, self.transport)
        transport.setTcpNoDelay(True)
        transport.bufferSize = READ_BYTES
        self._heard_at = self._now()
        self._beginning = Deferred.fromCoroutine(self._begin())
        self._beginning.addErrback(self._not_begun)

    async def _begin(self) -> None:
        self._raw.restart()
        if self._settings.secret is not None:
            self.bounds = await self._prove(self._settings.secret)
        await self._compare(self)
        if self._settings.reports_flushed:
            await self._raw.durable(self._raw.end)
        if self._why is None:
            self._heard_at = self._now()
            self._is_reporting = True
            self._report(self._raw.end or self.begin_at)
            self._on_following()

    def _prove(self, secret: LinkSecret) -> Deferred[tuple[int, int]]:
        """Prove that this end knows the secret, once the other has proved it. Raises MQError and OSError."""
        proof = self._proof = SlaveProof(secret.keys(), Last.of(self._raw.last_record()))
        proved = self._proved = Deferred()
        cast(Any, self.transport).write(proof.hello())
        return proved

    def _take_proof(self, proof: SlaveProof, data: bytes) -> None:
        try:
            answer = proof.receive(data)
        except BadPeer as error:
            self.close(str(error), DIVERGED_SECONDS)
            return
        if answer:
            self._proof = None
            cast(Any, self.transport).write(answer)
            proved, self._proved = self._proved, None
            if proved is not None and proof.bounds is not None:
                proved.callback(proof.bounds)

    def greet(self, greeting: Greeting) -> Deferred[bytes]:
        """Begin as a replica of a group; fires with what the master answers, once."""
        self._link.is_greeting = True
        answer = self._answer = Deferred()
        cast(Any, self.transport).write(greeting.encode())
        return answer

    def confirm(self, proof: bytes) -> None:
        """Tell the master, after its answer, that the greeting was made for this connection."""
        cast(Any, self.transport).write(encode_confirmation(proof))

    def _not_begun(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, CancelledError):
            return
        if not isinstance(error, MQError | OSError):
            log.failure("the log cannot be compared with the master's", failure)
        self.close(str(error), DIVERGED_SECONDS if isinstance(error, Diverged) else None)

    def dataReceived(self, data: bytes) -> None:
        self._heard_at = self._now()
        if self._why is not None:
            return
        if self._proof is not None:
            self._take_proof(self._proof, data)
            return
        if not self._is_reporting and not self._link.is_greeting:
            self.close("it sends something before it was told where this log ends", DIVERGED_SECONDS)
            return
        try:
            for offset, piece in self._link.receive(data):
                if offset == GREETING:
                    self._greeted(piece)
                elif offset == COMMITTED:
                    self._committed_at(REPORT.unpack(piece)[0])
                else:
                    self._raw.take(offset, piece)
            self._raw.append()
        except (BadPeer, BadRecord) as error:
            self.close(str(error), DIVERGED_SECONDS)
        except StoreBusy as error:
            self.close(str(error))
        except StoreError as error:
            self.close(f"nothing can be appended: {error}", UNWRITABLE_SECONDS)
        else:
            if self._is_reporting:
                self._report_progress()

    def _greeted(self, piece: memoryview) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.callback(bytes(piece))

    def _committed_at(self, committed: int) -> None:
        if committed < self._committed:
            raise BadPeer(f"its commit point goes back from {self._committed} to {committed}")
        self._committed = committed
        if self._on_progress is not None:
            self._on_progress(committed, self._reported)

    def _report_progress(self) -> None:
        end = self._raw.flushed if self._settings.reports_flushed else self._raw.end
        if end > self._reported:
            self._report(end)
        if self._settings.reports_flushed and self._raw.end > end:
            self._raw.durable(self._raw.end).addCallbacks(self._have_flushed, self._not_flushed)

    def _have_flushed(self, _: None) -> None:
        if self._why is None and self._raw.flushed > self._reported:
            self._report(self._raw.flushed)

    def _not_flushed(self, failure: Failure) -> None:
        self.close(f"the log is not flushed: {failure.getErrorMessage()}", UNWRITABLE_SECONDS)

    def _report(self, offset: int) -> None:
        self._reported = offset
        self._wrote_at = self._now()
        if self._on_progress is not None:
            self._on_progress(self._committed, offset)  # it must be known that it was, before it counts
        write_at_once(self.transport, REPORT.pack(offset))

    def look(self) -> None:
        """Send a heartbeat if one is due; close the connection if nothing was received for too long."""
        now, settings = self._now(), self._settings
        if now - self._heard_at > settings.idle_s:
            self.close(f"nothing was heard from it for {settings.idle_s:.0f} s")
        elif self._is_reporting and self._why is None and now - self._wrote_at >= settings.heartbeat_s:
            self._report(self._reported)

    def close(self, why: str, retry_s: float | None = None) -> None:
        """Close the connection."""
        if self._why is None:
            self._why = _Ended(why, retry_s)
            cast(Any, self.transport).abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        why = reason.getErrorMessage()
        if self._proof is not None:
            why = f"it ends the link rather than prove that it knows the secret (haSecretFile): its log says why; {why}"
        self._why = self._why or _Ended(why)
        try:
            self._beginning.cancel()
        finally:  # or no other connection would be made
            self.ended.callback(self._why)


Compare = Callable[[MasterConnection], Awaitable[None]]


class SlaveService(Service):
    """Follows the master whose address `follow` was given last.

    :param compare, on_progress: see `MasterConnection`.
    :param steady: seconds of a clock that is never set: no connection is closed because the time of day jumps.
    """

    def __init__(
        self,
        clock: IReactorTime,
        raw: ISlaveLog,
        settings: SlaveSettings,
        connector: Connector,
        compare: Compare,
        steady: Callable[[], float] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._steady, self._on_progress = steady or clock.seconds, on_progress
        self._clock, self._raw, self._settings = clock, raw, settings
        self._connector, self._compare = connector, compare
        self.address = ""
        #: Where the master's log ended when it was last asked.
        self.master_end: int | None = None
        self._why_not = "the address of the master is not known yet"
        self._told = ""
        self._attempts = 0
        #: Whether the master was named a moment ago, and may not serve yet.
        self.is_expected: Callable[[], bool] = lambda: False
        self._connection: MasterConnection | None = None
        self._work: Deferred[None] = succeed(None)
        self._connecting: Deferred[Any] = succeed(None)
        #: The Deferred of the loop's pause.
        self._sleeping: Deferred[None] | None = None
        self._watch = RepeatedCall(self._look, clock=clock)

    @property
    def status(self) -> MasterStatus:
        end = self._raw.end
        behind = None if self.master_end is None else max(0, self.master_end - end)
        return MasterStatus(self.address, end, behind, self._why_not)

    def follow(self, address: str, *, at_once: bool = False) -> None:
        """Follow the master at `address`, from now on; no effect if it is empty, or the same as before, except that
        with `at_once` the next attempt to connect does not wait."""
        if address and address == self.address and at_once and self._connection is None:
            self._attempts = 0
            self._wake()
        if not address or address == self.address:
            return
        self.address, self._attempts, self.master_end = address, 0, None
        if self._connection is not None:
            self._connection.close(f"the master's address is {address} now")
        self._wake()

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self._watch.start(WATCH_SECONDS, now=False)
        self._work = Deferred.fromCoroutine(self._run())
        self._work.addErrback(lambda failure: log.failure("replication ended", failure))

    def stopService(self) -> Deferred[None]:
        """Close the connection; fires when it is closed."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._watch.running:
            self._watch.stop()
        if self._connection is not None:
            self._connection.close("the broker stops")
        self._wake()
        stopped: Deferred[None] = Deferred()
        self._work.addCallback(stopped.callback)
        return stopped

    async def _run(self) -> None:
        while self.running:
            if not self.address:
                await self._sleep(None)
                continue
            try:
                ended = await self._follow_once(self.address)
                if not self.running:
                    return
                self._say(ended)
                retry_s = ended.retry_s
                if retry_s is None and self.is_expected():
                    retry_s = EXPECTED_RETRY_SECONDS
                elif retry_s is None:
                    retry_s = RETRY_SECONDS[min(self._attempts, len(RETRY_SECONDS) - 1)]
                    self._attempts += 1
            except Exception as error:
                retry_s = RETRY_SECONDS[-1]
                self._why_not = f"unexpected error: {str(error) or type(error).__name__}"
                log.failure("replication failed and is tried again in {s:g} s", s=retry_s)
                if self._connection is not None:
                    self._connection.close(self._why_not)
                    self._connection = None
            await self._sleep(retry_s)

    async def _follow_once(self, address: str) -> _Ended:
        """Connect, and follow until the connection ends."""
        connection = MasterConnection(
            self._raw, self._settings, self._steady, self._compare, self._following, self._on_progress
        )
        try:
            self._connecting = connectProtocol(  # type: ignore[no-untyped-call]
                self._connector(*split_address(address)), connection
            )
            await self._connecting.addTimeout(CONNECT_SECONDS_MAX, self._clock)
        except CancelledError:
            return _Ended("the attempt was given up", 0)
        except Exception as error:
            return _Ended(f"no connection: {error!s}")
        finally:
            self._connecting = succeed(None)
        self._connection = connection
        if not self.running or address != self.address:
            connection.close("it is no longer the master to follow")
        ended = await connection.ended
        self._connection = None
        return ended

    def _following(self) -> None:
        self._attempts = 0
        self._why_not = self._told = ""
        log.info("replicating from master {address}, from offset {n}", address=self.address, n=self._raw.end)

    def _say(self, ended: _Ended) -> None:
        self._why_not = ended.why
        if ended.why != self._told or ended.retry_s == DIVERGED_SECONDS:
            self._told = ended.why
            log.warn("not replicating from master {address}: {why}", address=self.address, why=ended.why)

    async def _sleep(self, seconds: float | None) -> None:
        """Return after `seconds`, or when woken."""
        sleeping = self._sleeping = Deferred()
        timer = None if seconds is None else self._clock.callLater(seconds, self._wake)
        await sleeping
        if timer is not None and timer.active():
            timer.cancel()

    def _wake(self) -> None:
        self._connecting.cancel()
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.callback(None)

    def _look(self) -> None:
        if self._connection is not None:
            self._connection.look()
