"""One connection, either end: frames in, frames out, and which answer belongs to which request.

Both ends of a RocketMQ connection may ask, so server and client share this. It knows nothing of topics or stores.
The hot path is `dataReceived`: all frames of one read are decoded, those of a code with a batch handler are handed over
together, and all answers leave in one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from typing import Protocol as StructuralType

import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
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
from mqbroker.remoting.complaints import Complaints
from mqbroker.remoting.failures import OVERLOADED, Asked, asked, encode_answer, failures
from mqbroker.remoting.handlers import BatchHandler, HandlerTable, IConnection, RawRequest
from mqbroker.remoting.limits import Limits, Load
from mqbroker.remoting.own_requests import OwnRequests
from mqbroker.wire.command import (
    EXT_FIELDS_MAX,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    RemotingCommand,
    decode_command,
    encode_command,
)
from mqbroker.wire.frame import JSON, Frame, FrameDecoder
from mqbroker.wire.record import encode_host

log = Logger()

#: Up to as many frames in one read their answers are sent at once; more are left to the reactor's next turn.
PROMPT_FRAMES_MAX = 8

#: What is unfinished of a frame is counted only above so many bytes: most reads end in the middle of one.
UNCOUNTED_BYTES_MAX = 16 * 1024

_OPAQUE_MASK = 0x7FFFFFFF


class ConnectionOwner(StructuralType):
    """Who is told of a connection's beginning and end: a factory."""

    def connected(self, connection: RemotingProtocol) -> bool:
        """Return False to have it closed at once."""

    load: Load
    complaints: Complaints

    def disconnected(self, connection: RemotingProtocol) -> None: ...


@implementer(IConnection, IPushProducer, IHandshakeListener)
class RemotingProtocol(Protocol):
    """A connection that speaks RemotingCommands. See IConnection for what handlers use of it."""

    def __init__(self, table: HandlerTable, clock: IReactorTime, limits: Limits, owner: ConnectionOwner) -> None:
        self.remote_addr = "?"
        self.remote_host = b""
        self.peer_version = 0
        self.closed = False
        self.last_active = clock.seconds()
        self._table = table
        self._clock = clock
        self._limits = limits
        self._owner = owner
        self._load = owner.load
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._frame_begun: float | None = None
        self._asked = OwnRequests(clock)
        self._in_flight = 0
        self._unfinished = 0
        self._answers_unread = False
        self._unread_bytes = 0
        self._unread_since = 0.0
        self._reading = True
        self._watches_writing = False
        self._on_closed: list[Callable[[], None]] = []
        self._prompt_write: Callable[[bytes], None] = self._discard
        self._write: Callable[[bytes], None] = self._discard

    # --- life

    def connectionMade(self) -> None:
        transport = cast(ITCPTransport, self.transport)
        self._write = transport.write
        # Of the transport itself: what wraps one to encrypt would hand out the method of the socket beneath it.
        prompt = hasattr(type(transport), "write_at_once")
        self._prompt_write = cast(Any, transport).write_at_once if prompt else transport.write
        self.remote_addr, self.remote_host = _peer(transport.getPeer())
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
        # A client's own handshake waits for the peer, and reading must not be paused for that.
        if not ISSLTransport.providedBy(transport):
            self._watch_writing()
        if not self._owner.connected(self):
            transport.abortConnection()

    def handshakeCompleted(self) -> None:
        """TLS is agreed upon, at either end."""
        if not self._watches_writing:
            self._watch_writing()

    def _watch_writing(self) -> None:
        """Be told from now on when the peer does not read."""
        self._watches_writing = True
        cast(IConsumer, self.transport).registerProducer(self, True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.closed = True
        self._write = self._prompt_write = self._discard
        self._count_unfinished(0)
        self._asked.connection_lost(f"connection to {self.remote_addr} closed: {reason.getErrorMessage()}")
        self._owner.disconnected(self)
        callbacks, self._on_closed = self._on_closed, []
        for callback in callbacks:
            callback()

    def notify_closed(self, callback: Callable[[], None]) -> None:
        if self.closed:
            callback()
        else:
            self._on_closed.append(callback)

    def close(self, why: str) -> None:
        self._close(LogLevel.info, why)

    def _close(self, level: LogLevel, why: str) -> None:
        """Neither takes nor sends anything from now on; the transport tells of the end later."""
        if not self.closed:
            self.closed = True
            self._write = self._prompt_write = self._discard
            self._owner.complaints.say(level, "closing {peer}: {why}", peer=self.remote_addr, why=why)
            cast(ITCPTransport, self.transport).abortConnection()

    def end(self) -> None:
        """Close it once all that was written has left."""
        if not self.closed:
            cast(IConsumer, self.transport).unregisterProducer()  # one that is paused would keep it open
            cast(ITCPTransport, self.transport).loseConnection()

    def refuse(self, why: str) -> None:
        """Close it for what the peer did, with a warning that says why."""
        self._close(LogLevel.warn, why)

    def encrypt(self, creator: object, data: bytes) -> None:
        """Go on by TLS, `data` being the first that the peer sent of it. Only over what can, as TCP does.

        :param creator: Twisted's IOpenSSLServerConnectionCreator.
        """
        transport = cast(Any, self.transport)
        transport.startTLS(creator)
        # From here on what is written goes through what encrypts, unless it is written past it to the socket.
        self._prompt_write = transport.write
        transport.protocol.dataReceived(data)

    def overdue(self, now: float) -> str | None:
        """Why it should be closed at `now` seconds: idle, or a frame that never ends; None where it is fine."""
        if now - self.last_active >= self._limits.idle_seconds:
            return f"no traffic for {self._limits.idle_seconds:.0f} s"
        begun = self._frame_begun
        if begun is not None and self._reading and now - begun >= self._limits.frame_seconds_max:
            return f"a frame was not whole after {self._limits.frame_seconds_max:.0f} s"
        if self._answers_unread and now - self._unread_since >= self._limits.idle_seconds:
            return f"it did not read its answers for {self._limits.idle_seconds:.0f} s"
        return None

    # --- bytes in

    def dataReceived(self, data: bytes) -> None:
        self.last_active = self._clock.seconds()
        try:
            frames = self._decoder.feed(data)
            pending = self._decoder.pending_bytes
            if pending:
                if frames or self._frame_begun is None:
                    self._frame_begun = self.last_active
            else:
                self._frame_begun = None
            if pending > UNCOUNTED_BYTES_MAX or self._unfinished:
                self._count_unfinished(pending)
            if frames:
                self._receive(frames)
        except BadFrame as error:
            self._close(LogLevel.warn, str(error))

    def _receive(self, frames: Sequence[Frame]) -> None:
        """Take the frames of one read; neighbours of one code go to its batch handler together."""
        batch = self._table.batch
        write = self._prompt_write if len(frames) <= PROMPT_FRAMES_MAX else self._write
        run: list[RawRequest] = []
        handler: BatchHandler | None = None
        for serialize_type, header, body in frames:
            chosen = raw = None
            if serialize_type == JSON:
                try:
                    fields = orjson.loads(header)
                    chosen = batch.get(fields["code"])
                    if chosen is not None:
                        ext, opaque, flag = fields["extFields"], fields["opaque"], fields["flag"]
                        "".join(ext.values())  # the quickest way to know that all are text: a TypeError where not
                        raw = ext, opaque, flag, body, JSON
                        if (
                            len(ext) > EXT_FIELDS_MAX
                            or type(opaque + flag + fields["code"]) is not int
                            or flag & ~ONEWAY_FLAG
                            or not -_OPAQUE_MASK <= opaque <= _OPAQUE_MASK
                        ):
                            chosen = None
                except (ValueError, TypeError, KeyError, AttributeError):
                    chosen = None  # `decode_command` says what is wrong, or finds that it is unusual only
            if chosen is None or raw is None:
                command = decode_command(serialize_type, header, body)
                chosen = None if command.flag & RESPONSE_FLAG else batch.get(command.code)
                if chosen is None:
                    self._run_batch(handler, run, write)
                    run, handler = [], None
                    self._take(command, write)
                    continue
                raw = (command.ext_fields, command.opaque, command.flag, body, serialize_type)
            if chosen is not handler:
                self._run_batch(handler, run, write)
                run, handler = [], chosen
                # Who sends is of one version: it is looked at once for a run.
                self.peer_version = fields.get("version", 0) if serialize_type == JSON else command.version
            run.append(raw)
        self._run_batch(handler, run, write)

    def _run_batch(self, handler: BatchHandler | None, run: list[RawRequest], write: Callable[[bytes], None]) -> None:
        if handler is None:
            return
        if self._load.requests >= self._limits.requests_under_way_max:
            write(failures(asked(run), OVERLOADED))
            return
        try:
            answers = handler(run, self)
        except Exception as error:
            write(failures(asked(run), error))
            return
        if isinstance(answers, bytes):
            if answers:
                write(answers)
            return
        self._begin(len(run))
        # Not `run` itself: what thousands of waiting requests brought would be kept, and fall out of the caches.
        answers.addCallbacks(self._finish_batch, self._fail_batch, (len(run),), errbackArgs=(asked(run),))

    def _finish_batch(self, answers: bytes, count: int) -> None:
        try:
            if answers:
                self.write(answers)
        finally:
            self._end(count)

    def _fail_batch(self, failure: Failure, run: Sequence[Asked]) -> None:
        self._finish_batch(failures(run, failure.value), len(run))

    def _take(self, command: RemotingCommand, write: Callable[[bytes], None]) -> None:
        if command.is_response:
            if not self._asked.settle(command):
                log.debug("{peer} answered no request of ours (opaque {n})", peer=self.remote_addr, n=command.opaque)
            return
        if self.closed:
            return
        if self._load.requests >= self._limits.requests_under_way_max:
            write(failures([(command.opaque, command.flag, command.serialize_type)], OVERLOADED))
            return
        answer = self._table.handle(command, self)
        if answer is None:
            return
        if isinstance(answer, RemotingCommand):
            if not command.is_oneway:
                data = encode_answer(answer, command)
                write(data)
                if self._answers_unread:
                    self._count_unread(len(data))
            return
        self._begin(1)
        cast("Deferred[RemotingCommand | None]", answer).addCallback(self._finish, command)

    def _finish(self, answer: RemotingCommand | None, request: RemotingCommand) -> None:
        try:
            if answer is not None and not request.is_oneway:
                self.write(encode_answer(answer, request))
        finally:
            self._end(1)

    # --- bytes out

    def send(self, command: RemotingCommand) -> None:
        self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        """Send whole frames, without waiting for the reactor's next turn where the socket takes them."""
        self.last_active = self._clock.seconds()
        self._prompt_write(data)
        if self._answers_unread:
            self._count_unread(len(data))

    def _discard(self, data: bytes) -> None:
        """Where bytes go that have no connection."""

    # --- our own requests

    def invoke(self, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        """Send `command` under a new opaque. Cancelling forgets the request; its answer, should it come, is dropped."""
        if self.closed:
            deferred: Deferred[RemotingCommand] = Deferred()
            deferred.errback(ConnectionClosed(f"connection to {self.remote_addr} is closed"))
            return deferred
        command.opaque = self._asked.next_opaque()
        data = encode_command(command)
        what = f"{command.describe()}: no answer from {self.remote_addr} in {timeout_ms} ms"
        deferred = self._asked.wait(command.opaque, timeout_ms, what)
        self.write(data)
        return deferred

    def invoke_oneway(self, command: RemotingCommand) -> None:
        command.opaque = self._asked.next_opaque()
        command.flag |= ONEWAY_FLAG
        self.send(command)

    # --- bounds

    def _begin(self, count: int) -> None:
        self._in_flight += count
        self._load.requests += count
        if self._in_flight >= self._limits.requests_in_flight_max:
            self._pace()

    def _end(self, count: int) -> None:
        full = self._in_flight >= self._limits.requests_in_flight_max
        self._in_flight -= count
        load = self._load
        load.requests -= count
        if load.on_idle is not None and not load.requests:
            load.on_idle()
        if full:
            self._pace()

    def pauseProducing(self) -> None:
        """The peer does not read its answers: read no more requests of it."""
        self._answers_unread = True
        self._unread_bytes = 0
        self._unread_since = self._clock.seconds()
        self._pace()

    def resumeProducing(self) -> None:
        self._answers_unread = False
        self._pace()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost says the rest."""

    def _count_unread(self, size: int) -> None:
        """More to be sent to a peer that does not read: what it asked before, and what we tell it unasked."""
        self._unread_bytes += size
        if self._unread_bytes > self._limits.unsent_bytes_max:
            self.close(f"it does not read its answers: {self._unread_bytes} bytes of them wait")

    def _count_unfinished(self, pending: int) -> None:
        load = self._load
        load.unfinished_bytes += pending - self._unfinished
        self._unfinished = pending
        if pending and load.unfinished_bytes > self._limits.unfinished_bytes_max:
            raise BadFrame(f"{load.unfinished_bytes} bytes of unfinished frames are kept for all connections")

    def _pace(self) -> None:
        """Read from the peer only while it reads from us and has not too much under way."""
        reading = not self._answers_unread and self._in_flight < self._limits.requests_in_flight_max
        if reading == self._reading or self.closed:
            return
        self._reading = reading
        if self._frame_begun is not None:
            self._frame_begun = self._clock.seconds()  # the peer could not go on with it meanwhile
        transport = cast(IPushProducer, self.transport)
        if reading:
            transport.resumeProducing()
        else:
            transport.pauseProducing()


def _peer(address: IAddress) -> tuple[str, bytes]:
    host, port = getattr(address, "host", None), getattr(address, "port", 0)
    if host is None:
        return "local", encode_host(("127.0.0.1", 0))
    host = host.removeprefix("::ffff:")
    try:
        encoded = encode_host((host, port))
    except MQError:
        encoded = encode_host(("0.0.0.0", port))
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), encoded
