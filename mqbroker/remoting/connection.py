"""Remoting connection, used by server and client: reads and writes frames and matches responses to requests.

Both ends of a RocketMQ connection may send requests. All frames of one read are decoded, those of a code with a batch
handler are passed to it together, and all responses are sent in one write. Frames beyond the connection's share of a
reactor iteration are queued; see `fair_scheduler`. This module knows nothing of topics or stores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from typing import Protocol as StructuralType

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import (
    IConsumer,
    IHandshakeListener,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.errors import BadFrame, ConnectionClosed, MQError
from mqbroker.kernel import Peer
from mqbroker.remoting.failures import OVERLOADED, asked, encode_answer, failures
from mqbroker.remoting.fair_scheduler import FairScheduler
from mqbroker.remoting.handlers import BatchHandler, HandlerTable, IConnection, RawRequest, Taken
from mqbroker.remoting.limits import AddressLoad, Limits, Load
from mqbroker.remoting.peer_address import peer_of
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.response_table import OPAQUE_MASK, Opaques, ResponseTable
from mqbroker.remoting.responses import settle, write_each
from mqbroker.remoting.tcp import ImmediateWriteServer, unsent_bytes
from mqbroker.wire.command import (
    EXT_FIELDS_MAX,
    JSON,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Frame,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    json_command,
    load_json_header,
)

log = Logger()

#: Responses to at most this many frames of one read are sent at once; to more, in the next reactor iteration.
PROMPT_FRAMES_MAX = 8
#: Responses of at least this size are always sent at once, so that they do not accumulate in memory.
PROMPT_BYTES_MIN = 64 * 1024

#: An incomplete frame is counted only above this size: most reads end in the middle of a frame.
UNCOUNTED_BYTES_MAX = 16 * 1024

#: Memory overhead of a queued frame, in bytes.
FRAME_COST_BYTES = 100


class ConnectionOwner(StructuralType):
    """The factory of a connection: called when it opens and closes."""

    def connected(self, connection: RemotingProtocol) -> bool:
        """Return False to have it closed at once."""

    load: Load
    scheduler: FairScheduler
    close_log: RateLimitedLog

    def disconnected(self, connection: RemotingProtocol) -> None: ...


@implementer(IConnection, IPushProducer, IHandshakeListener)
class RemotingProtocol(Peer, Protocol):
    """A connection that speaks RemotingCommands. See IConnection for what handlers use of it."""

    def __init__(
        self,
        table: HandlerTable,
        clock: IReactorTime,
        limits: Limits,
        owner: ConnectionOwner,
        *,
        closes_silent: bool = False,
        opaques: Opaques | None = None,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """With `closes_silent` it closes if a request timed out and no response was received since it was sent.

        `steady` returns seconds of a clock that is never set, by default those of `clock`: what is overdue is by that.
        """
        self.remote_addr = "?"
        self.remote_host = b""
        self.peer_version = 0
        self.closed = False
        #: Why it broke or was closed for its peer's fault; empty otherwise.
        self.failure = ""
        self.last_active = self._noted_active = clock.seconds()
        self._table = table
        self._clock = clock
        self._steady = steady or clock.seconds
        self._active_at = self._checked_at = self._steady()
        self._limits = limits
        self._owner = owner
        self._load = owner.load
        self._scheduler = owner.scheduler
        self.from_address = AddressLoad(b"")  # until it is known
        self.handled_s = 0.0
        self.kept_bytes = 0
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._frame_begun: float | None = None
        self._handshake_begun: float | None = None
        close_silent = partial(self.close, "no answer came over it in time") if closes_silent else None
        self._responses = ResponseTable("?", self._steady, clock.callLater, close_silent, opaques)
        self._in_flight = 0
        self._waiting: list[Frame] = []
        self._waiting_bytes = 0
        self._has_entered = False
        self._answers_unread = False
        self._unsent_least = 0
        self._unread_since = 0.0
        self._reading = True
        self._watches_writing = False
        #: Gets the first bytes instead of `dataReceived`, which it may call with them.
        self.sniff: Callable[[bytes], None] | None = None
        self._on_closed: list[Callable[[], None]] = []
        self._on_room: deque[Callable[[], None]] = deque()
        self._prompt_write: Callable[[bytes], None] = _discard
        self._write: Callable[[bytes], None] = _discard

    # --- life

    def connectionMade(self) -> None:
        transport = cast(ITCPTransport, self.transport)
        self._write = self._prompt_write = transport.write
        # Look at the type: a TLS wrapper would return the method of the socket it wraps.
        if hasattr(type(transport), "write_at_once"):
            self.socket = server = cast(ImmediateWriteServer, transport)
            self._prompt_write = server.write_at_once
        self.remote_addr, self.remote_host = peer_of(transport.getPeer())
        self._responses.peer = self.remote_addr
        self.from_address = self._load.of(self.remote_host)
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
        # A client's own handshake waits for the peer, and reading must not be paused for that.
        if not ISSLTransport.providedBy(transport):
            self._watch_writing()
        self._keep_may_take()
        if self._owner.connected(self):
            self.from_address.connections[self] = None
        else:
            transport.abortConnection()

    def handshakeCompleted(self) -> None:
        """The TLS handshake completed, on either end."""
        self._handshake_begun = None
        if not self._watches_writing:
            self._watch_writing()

    def _watch_writing(self) -> None:
        """Register as the transport's producer, to be paused while the peer does not read."""
        self._watches_writing = True
        cast(IConsumer, self.transport).registerProducer(self, True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.closed and not isinstance(reason.value, ConnectionDone | ConnectionAborted):
            self.failure = reason.getErrorMessage()
        self.closed = True
        self._release()
        self.from_address.connections.pop(self, None)
        self._load.forget(self.from_address)
        why = f"connection to {self.remote_addr} closed: {reason.getErrorMessage()}"
        self._responses.lost(lambda largest: ConnectionClosed(why))
        self._owner.disconnected(self)
        callbacks, self._on_closed = self._on_closed, []
        for callback in callbacks:
            callback()
        self._notify_room()

    def notify_closed(self, callback: Callable[[], None]) -> None:
        if self.closed:
            callback()
        else:
            self._on_closed.append(callback)

    def notify_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the peer has read what was sent, in order of registration; at once if it has."""
        self._on_room.append(callback)
        self._notify_room()

    @property
    def has_room(self) -> bool:
        """Whether the peer has read what it was sent, except what the transport may buffer."""
        return not self._answers_unread

    def _notify_room(self) -> None:
        # A callback may write and fill the transport's buffer again.
        while self._on_room and (self.closed or self.has_room):
            self._on_room.popleft()()

    def close(self, why: str) -> None:
        self._close(LogLevel.info, why)

    def _close(self, level: LogLevel, why: str) -> None:
        """Stop reading and writing; the transport calls connectionLost later."""
        if not self.closed:
            self.closed = True
            if level is LogLevel.warn:
                self.failure = why
            self._release()
            self._owner.close_log.say(level, "closing {peer}: {why}", peer=self.remote_addr, why=why)
            cast(ITCPTransport, self.transport).abortConnection()

    def _release(self) -> None:
        """Drop received bytes and unhandled frames. No reference cycle may remain, or only the garbage collector would
        free the connection."""
        self._write = self._prompt_write = _discard
        self.socket = None
        self.may_take_plain = False
        self._decoder.clear()
        self._waiting = []
        self._waiting_bytes = 0
        self._count_kept(0)

    def end(self) -> None:
        """Close the connection once all written data is sent."""
        if not self.closed:
            cast(IConsumer, self.transport).unregisterProducer()  # a paused producer would keep it open
            cast(ITCPTransport, self.transport).loseConnection()

    def refuse(self, why: str) -> None:
        """As `close`; logs a warning."""
        self._close(LogLevel.warn, why)

    def encrypt(self, creator: object, data: bytes) -> None:
        """Start TLS, with `data` the first TLS bytes from the peer. The transport must support it, as TCP does.

        :param creator: Twisted's IOpenSSLServerConnectionCreator.
        """
        self._handshake_begun = self._steady()
        transport = cast(Any, self.transport)
        transport.startTLS(creator)
        # Write through the TLS layer from now on, not directly to the socket.
        self._prompt_write, self.socket = transport.write, None
        transport.protocol.dataReceived(data)

    def overdue(self, now: float) -> str | None:
        """Why it should be closed, for example because it is idle, at `now` seconds of the clock that is never set;
        None if it should not."""
        if self.last_active != self._noted_active:
            # `last_active` is by a clock that may be set: of that, no more counts than passed since the last check.
            idle_s = min(max(0.0, self._clock.seconds() - self.last_active), now - self._checked_at)
            self._noted_active, self._active_at = self.last_active, now - idle_s
        self._checked_at = now
        if self._answers_unread:
            unsent = unsent_bytes(self.transport)
            if unsent < self._unsent_least:  # it reads, if slowly
                self._unsent_least, self._unread_since, self._active_at = unsent, now, now
            elif now - self._unread_since >= self._limits.idle_seconds:
                return f"it did not read its answers for {self._limits.idle_seconds:.0f} s"
        if now - self._active_at >= self._limits.idle_seconds:
            return f"no traffic for {self._limits.idle_seconds:.0f} s"
        begun = self._handshake_begun
        if begun is not None and now - begun >= self._limits.handshake_seconds_max:
            return f"its TLS handshake was not done after {self._limits.handshake_seconds_max:.0f} s"
        begun = self._frame_begun
        if begun is not None and self._reading and now - begun >= self._limits.frame_seconds_max:
            return f"a frame was incomplete after {self._limits.frame_seconds_max:.0f} s"
        return None

    # --- bytes in

    def _keep_may_take(self) -> None:
        self.may_take_plain = not (self.closed or self.sniff or self._decoder.pending_bytes) and self._reading

    def dataReceived(self, data: bytes) -> None:
        if self.closed:
            return
        if self.sniff is not None:
            sniff, self.sniff = self.sniff, None
            sniff(data)
            return
        self.last_active = self._clock.seconds()
        try:
            if self._table.plain and not self._waiting:
                data = self._take_plain(data)
                if not (data or self.kept_bytes):
                    return
            frames = self._decoder.feed(data)
            pending = self._decoder.pending_bytes
            if pending:
                if frames or self._frame_begun is None:
                    self._frame_begun = self._steady()
            else:
                self._frame_begun = None
            if frames:
                if self._waiting:
                    self._queue_frames(frames)
                else:
                    self._handle_read(frames)
            if pending > UNCOUNTED_BYTES_MAX or self.kept_bytes:
                self._count_kept(self._decoder.pending_bytes + self._waiting_bytes)
        except BadFrame as error:
            self._close(LogLevel.warn, str(error))
        finally:
            self._keep_may_take()

    def _take_plain(self, data: bytes) -> bytes:
        """Have plain requests handled as far as the scheduler allows; returns the bytes behind them."""
        began, address = self.last_active, self.from_address
        until = self._scheduler.until(address, began)
        joined = self._decoder.join(data) if until > began and self._may_go_on() else None
        if joined is None:
            return data
        at = 0
        while self.has_room_for_requests() and (taken := self._table.take_plain([(joined, at, self)])) is not None:
            at = taken[0][0][0]
            if isinstance(taken, Taken):
                settle(taken, [self])
            else:
                write_each([self], taken[1])
            self._charge()
            if at == len(joined) or self._must_stop(until):
                break
        self._scheduler.spent(address, self._clock.seconds() - began)
        if not at:
            return joined
        self._frame_begun = None
        return b"" if self.closed else joined[at:]

    def _handle_read(self, frames: list[Frame]) -> None:
        """Handle `frames` as far as the scheduler allows and queue the rest."""
        began, address = self.last_active, self.from_address
        until = self._scheduler.until(address, began)
        handled = self._handle(frames, until) if until > began and self._may_go_on() else 0
        self._charge()
        self._scheduler.spent(address, self._clock.seconds() - began)
        if handled < len(frames) and not self.closed:
            self._queue_frames(frames[handled:])

    def _queue_frames(self, frames: list[Frame]) -> None:
        """Queue frames; reading pauses until the queue is empty."""
        self._waiting += frames
        self._waiting_bytes += sum(len(header) + len(body) + FRAME_COST_BYTES for _, header, body in frames)
        self._count_kept(self._decoder.pending_bytes + self._waiting_bytes)
        self._pace()

    def requeue(self, request: RemotingCommand) -> bool:
        """Have a request handled again once the server holds none any more; False if it holds none now."""
        if self._load.is_held and not self.closed:
            self._queue_frames(FrameDecoder().feed(encode_command(request)))
            return True
        return False

    def go_on(self, until: float) -> bool:
        """Handle queued frames until the given time on the clock; called by the scheduler, which has others wait."""
        if self._load.is_held:
            self._has_entered = False
            return False
        try:
            del self._waiting[: self._handle(self._waiting, until)]
            self._charge()
        except Exception as error:
            if not isinstance(error, BadFrame):
                log.failure("unexpected error of a connection, which is closed")
            self._close(LogLevel.warn, str(error) or type(error).__name__)
        if not self._waiting and not self.closed:
            self._waiting_bytes = 0
            self._count_kept(self._decoder.pending_bytes)
            self._pace()
        self._has_entered = bool(self._waiting) and self._may_go_on()
        return self._has_entered

    def _charge(self) -> None:
        if self._table.charge is not None:
            self._table.charge()

    def _may_go_on(self) -> bool:
        """Whether the peer reads its responses, the requests in flight are below the limit and none are held."""
        is_below = self._in_flight < self._limits.requests_in_flight_max
        return is_below and not self._answers_unread and not self._load.is_held

    def _must_stop(self, until: float) -> bool:
        return self._clock.seconds() >= until or not self._may_go_on() or self.closed

    def _handle(self, frames: Sequence[Frame], until: float) -> int:
        """Handle at least one frame, and more until clock time `until`; return how many. Consecutive frames of one code
        are passed to its batch handler together."""
        batch = self._table.batch
        write = self._prompt_write if len(frames) <= PROMPT_FRAMES_MAX else self._write
        run: list[RawRequest] = []
        run_max = 0
        handler: BatchHandler | None = None
        for number, (serialize_type, header, body) in enumerate(frames):
            chosen = raw = None
            if serialize_type == JSON:
                fields = load_json_header(header)
                try:
                    chosen = batch.get(fields["code"])
                    if chosen is not None:
                        ext, opaque, flag = fields["extFields"], fields["opaque"], fields["flag"]
                        "".join(ext.values())  # fastest check that all are str: TypeError if not
                        raw = ext, opaque, flag, body, JSON
                        if (
                            len(ext) > EXT_FIELDS_MAX
                            or not (type(opaque) is type(flag) is type(fields["code"]) is int)
                            or flag & ~ONEWAY_FLAG
                            or not -OPAQUE_MASK <= opaque <= OPAQUE_MASK
                        ):
                            chosen = None
                except (TypeError, KeyError, AttributeError):
                    chosen = None  # `json_command` raises if it is invalid, not merely unusual
            command = None
            if chosen is None or raw is None:
                command = (
                    json_command(fields, body)
                    if serialize_type == JSON
                    else decode_command(serialize_type, header, body)
                )
                chosen = None if command.flag & RESPONSE_FLAG else batch.get(command.code)
                raw = (command.ext_fields, command.opaque, command.flag, body, serialize_type)
            if run and (chosen is not handler or len(run) >= run_max):
                self._run_batch(handler, run, write)
                run, handler = [], None
                if self._must_stop(until):
                    return number
            if chosen is None:
                assert command is not None
                self._take(command, write)
                if self._must_stop(until):
                    return number + 1
                continue
            if chosen is not handler:
                handler = chosen
                # A sender has one version, so it is read once for a run.
                code, version = (fields["code"], fields.get("version", 0)) if command is None else (
                    command.code, command.version
                )  # fmt: skip
                self.peer_version = version
                run_max = self._table.run_max(code)
            run.append(raw)
        self._run_batch(handler, run, write)
        return len(frames)

    def _run_batch(self, handler: BatchHandler | None, run: list[RawRequest], write: Callable[[bytes], None]) -> None:
        if handler is None:
            return
        if not self.has_room_for_requests():
            write(failures(asked(run), OVERLOADED))
            return
        try:
            answers = handler(run, self)
        except Exception as error:
            write(failures(asked(run), error))
            return
        if isinstance(answers, bytes):
            if answers:
                self._put(answers, write)
            return
        # Not `run` itself: what thousands of waiting requests brought would be kept, and fall out of the caches.
        those = asked(run)
        settle(Taken([(0, len(run))], answers.addCallback(lambda data: [data]), lambda _: those), [self])

    def _take(self, command: RemotingCommand, write: Callable[[bytes], None]) -> None:
        if command.is_response:
            if not self._responses.answer(command, self._steady()):
                log.debug(
                    "{peer} sent a response without a request (opaque {n})", peer=self.remote_addr, n=command.opaque
                )
            return
        if self.closed:
            return
        if not self.has_room_for_requests():
            write(failures([(command.opaque, command.flag, command.serialize_type)], OVERLOADED))
            return
        answer = self._table.handle(command, self)
        if answer is None:
            return
        if isinstance(answer, RemotingCommand):
            if not command.is_oneway:
                self._put(encode_answer(answer, command), write)
            return
        self.begin_requests(1)
        cast("Deferred[RemotingCommand | None]", answer).addCallback(self._finish, command)

    def _finish(self, answer: RemotingCommand | None, request: RemotingCommand) -> None:
        try:
            if answer is not None and not request.is_oneway:
                self.write(encode_answer(answer, request))
        finally:
            self.end_requests(1)

    # --- bytes out

    def send(self, command: RemotingCommand) -> None:
        self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        """Send whole frames, without waiting for the reactor's next turn where the socket takes them."""
        self.last_active = self._clock.seconds()
        self._put(data, self._prompt_write)

    def write_rest(self, data: bytes) -> None:
        """Send what the socket did not take directly."""
        self._put(data, self._write)

    def _put(self, data: bytes, write: Callable[[bytes], None]) -> None:
        if len(data) >= PROMPT_BYTES_MIN:
            write = self._prompt_write
        if self._answers_unread:
            self._unsent_least += len(data)
        write(data)
        if self._answers_unread:
            self._check_unsent()

    # --- our own requests

    def invoke(
        self, command: RemotingCommand, timeout_ms: int, seconds: float | None = None
    ) -> Deferred[RemotingCommand]:
        """Send `command` under a new opaque. Cancelling forgets the request; its answer, should it come, is dropped.

        Fails with ConnectionClosed, or with RequestTimedOut after `timeout_ms`, or after `seconds` where that is given.
        """
        if self.closed:
            return fail(ConnectionClosed(f"connection to {self.remote_addr} is closed"))
        command.opaque = self._responses.next_opaque()
        data = encode_command(command)
        deferred: Deferred[RemotingCommand] = Deferred(partial(_forget, self._responses, command.opaque))

        def complete(result: RemotingCommand | MQError) -> None:
            deferred.errback(result) if isinstance(result, MQError) else deferred.callback(result)

        request = self._responses.add(command.opaque, command, timeout_ms, complete)
        self.write(data)
        self._responses.written([request], seconds)
        return deferred

    def invoke_oneway(self, command: RemotingCommand) -> None:
        command.opaque = self._responses.next_opaque()
        command.flag |= ONEWAY_FLAG
        self.send(command)

    # --- bounds

    def has_room_for_requests(self) -> bool:
        """Whether more requests may be under way."""
        most = self._limits.requests_under_way_max
        load = self._load
        return load.is_light(most) or load.has_room(most, self.from_address, self._in_flight)

    def begin_requests(self, count: int) -> None:
        self._in_flight += count
        self._load.requests += count
        self.from_address.requests += count
        if self._in_flight >= self._limits.requests_in_flight_max:
            self._pace()

    def end_requests(self, count: int) -> None:
        full = self._in_flight >= self._limits.requests_in_flight_max
        self._in_flight -= count
        load, address = self._load, self.from_address
        load.requests -= count
        address.requests -= count
        if self.closed:
            load.forget(address)
        if load.on_idle is not None and not load.requests:
            load.on_idle()
        if full:
            self._pace()

    def pauseProducing(self) -> None:
        """The peer does not read its answers: read no more requests of it. A transport may say so at each write."""
        if not self._answers_unread:
            self._answers_unread = True
            self._unsent_least = unsent_bytes(self.transport)
            self._unread_since = self._steady()
            self._pace()

    def resumeProducing(self) -> None:
        self._answers_unread = False
        self._pace()
        self._notify_room()

    def stopProducing(self) -> None:
        """The transport is closed; connectionLost does the cleanup."""

    def _check_unsent(self) -> None:
        """Limit the unsent bytes, responses and our own requests, to a peer that does not read."""
        unsent = unsent_bytes(self.transport)
        if unsent > self._limits.unsent_bytes_max:
            self.close(f"it does not read its answers: {unsent} bytes of them wait")

    def _count_kept(self, kept: int) -> None:
        """Update the byte count of incomplete and of queued frames."""
        load = self._load
        grown = kept - self.kept_bytes
        self.kept_bytes = kept
        self.from_address.kept_bytes += grown
        load.kept_bytes += grown
        if grown > 0:
            load.close_largest(self._limits.unfinished_bytes_max)

    def hold_changed(self) -> None:
        """Called when the server holds requests, or does not any more."""
        self._pace()

    def _pace(self) -> None:
        """Read only while the peer reads, its requests in flight are below the limit and no frames are queued."""
        if self.closed:
            return
        may_go_on = self._may_go_on()
        if may_go_on and self._waiting and not self._has_entered:
            self._has_entered = True
            self._scheduler.wait(self)
        reading = may_go_on and not self._waiting
        if reading == self._reading:
            return
        self._reading = reading
        self._keep_may_take()
        if self._frame_begun is not None:
            self._frame_begun = self._steady()  # reading was paused, so the peer could not finish it
        transport = cast(IPushProducer, self.transport)
        if reading:
            transport.resumeProducing()
        else:
            transport.pauseProducing()


def _forget(responses: ResponseTable, opaque: int, deferred: Deferred[RemotingCommand]) -> None:
    responses.forget(opaque)
    deferred.errback(CancelledError())


def _discard(data: bytes) -> None:
    """Drop bytes written after the connection was closed."""
