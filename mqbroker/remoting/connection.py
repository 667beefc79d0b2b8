"""One connection, either end: frames in, frames out, and which answer belongs to which request.

Both ends of a RocketMQ connection may ask, so server and client share this. It knows nothing of topics or stores.
The hot path is `dataReceived`: all frames of one read are decoded, those of a code with a batch handler are handed over
together, and all answers leave in one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from typing import Protocol as StructuralType

import orjson
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IAddress, IConsumer, IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.errors import BadFrame, ConnectionClosed, MQError, RequestTimedOut
from mqbroker.remoting.handlers import BatchHandler, HandlerTable, IConnection, RawRequest, failure_response
from mqbroker.remoting.limits import Limits
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

_OPAQUE_MASK = 0x7FFFFFFF

# Of a raw request what its answer needs: opaque, flag, serialize type.
_Asked = tuple[int, int, int]


class ConnectionOwner(StructuralType):
    """Who is told of a connection's beginning and end: a factory."""

    def connected(self, connection: RemotingProtocol) -> bool:
        """Return False to have it closed at once."""

    def disconnected(self, connection: RemotingProtocol) -> None: ...


@implementer(IConnection, IPushProducer)
class RemotingProtocol(Protocol):
    """A connection that speaks RemotingCommands. See IConnection for what handlers use of it."""

    def __init__(self, table: HandlerTable, clock: IReactorTime, limits: Limits, owner: ConnectionOwner) -> None:
        self.remote_addr = "?"
        self.remote_host = b""
        self.closed = False
        self.last_active = clock.seconds()
        self._table = table
        self._clock = clock
        self._limits = limits
        self._owner = owner
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._frame_begun: float | None = None
        self._opaque = 0
        self._waiting: dict[int, tuple[Deferred[RemotingCommand], IDelayedCall]] = {}
        self._in_flight = 0
        self._answers_unread = False
        self._reading = True
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
        cast(IConsumer, transport).registerProducer(self, True)
        if not self._owner.connected(self):
            transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.closed = True
        self._write = self._prompt_write = self._discard
        waiting, self._waiting = self._waiting, {}
        for deferred, timeout in waiting.values():
            timeout.cancel()
            if not deferred.called:  # cancelled by one that failed before it
                why = f"connection to {self.remote_addr} closed: {reason.getErrorMessage()}"
                deferred.errback(ConnectionClosed(why))
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
        if not self.closed:
            log.info("closing {peer}: {why}", peer=self.remote_addr, why=why)
            cast(ITCPTransport, self.transport).abortConnection()

    def overdue(self, now: float) -> str | None:
        """Why it should be closed at `now` seconds: idle, or a frame that never ends; None where it is fine."""
        if now - self.last_active >= self._limits.idle_seconds:
            return f"no traffic for {self._limits.idle_seconds:.0f} s"
        begun = self._frame_begun
        if begun is not None and self._reading and now - begun >= self._limits.frame_seconds_max:
            return f"a frame was not whole after {self._limits.frame_seconds_max:.0f} s"
        return None

    # --- bytes in

    def dataReceived(self, data: bytes) -> None:
        self.last_active = self._clock.seconds()
        try:
            frames = self._decoder.feed(data)
            if self._decoder.pending_bytes:
                if frames or self._frame_begun is None:
                    self._frame_begun = self.last_active
            else:
                self._frame_begun = None
            if frames:
                self._receive(frames)
        except BadFrame as error:
            log.warn("closing {peer}: {why}", peer=self.remote_addr, why=str(error))
            cast(ITCPTransport, self.transport).abortConnection()

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
            run.append(raw)
        self._run_batch(handler, run, write)

    def _run_batch(self, handler: BatchHandler | None, run: list[RawRequest], write: Callable[[bytes], None]) -> None:
        if handler is None:
            return
        try:
            answers = handler(run, self)
        except Exception as error:
            write(b"".join(_failures(_asked(run), error)))
            return
        if isinstance(answers, bytes):
            if answers:
                write(answers)
            return
        self._begin(len(run))
        # Not `run` itself: what thousands of waiting requests brought would be kept, and fall out of the caches.
        answers.addCallbacks(self._finish_batch, self._fail_batch, (len(run),), errbackArgs=(_asked(run),))

    def _finish_batch(self, answers: bytes, count: int) -> None:
        self._end(count)
        if answers:
            self.write(answers)

    def _fail_batch(self, failure: Failure, asked: Sequence[_Asked]) -> None:
        self._finish_batch(b"".join(_failures(asked, failure.value)), len(asked))

    def _take(self, command: RemotingCommand, write: Callable[[bytes], None]) -> None:
        if command.is_response:
            self._settle(command)
            return
        answer = self._table.handle(command, self)
        if answer is None:
            return
        if isinstance(answer, RemotingCommand):
            if not command.is_oneway:
                write(encode_command(answer))
            return
        self._begin(1)
        cast("Deferred[RemotingCommand | None]", answer).addCallback(self._finish, command)

    def _finish(self, answer: RemotingCommand | None, request: RemotingCommand) -> None:
        self._end(1)
        if answer is not None and not request.is_oneway:
            self.write(encode_command(answer))

    # --- bytes out

    def send(self, command: RemotingCommand) -> None:
        self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        """Send whole frames, without waiting for the reactor's next turn where the socket takes them."""
        self.last_active = self._clock.seconds()
        self._prompt_write(data)

    def _discard(self, data: bytes) -> None:
        """Where bytes go that have no connection."""

    # --- our own requests

    def invoke(self, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        """Send `command` under a new opaque. Cancelling forgets the request; its answer, should it come, is dropped."""
        self._opaque = opaque = (self._opaque + 1) & _OPAQUE_MASK
        deferred: Deferred[RemotingCommand] = Deferred(partial(self._forget, opaque))
        if self.closed:
            deferred.errback(ConnectionClosed(f"connection to {self.remote_addr} is closed"))
            return deferred
        command.opaque = opaque
        data = encode_command(command)
        timeout = self._clock.callLater(timeout_ms / 1000, self._time_out, opaque, timeout_ms, command.describe())
        self._waiting[opaque] = deferred, timeout
        self.write(data)
        return deferred

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self._opaque = command.opaque = (self._opaque + 1) & _OPAQUE_MASK
        command.flag |= ONEWAY_FLAG
        self.send(command)

    def _settle(self, answer: RemotingCommand) -> None:
        found = self._waiting.pop(answer.opaque, None)
        if found is None:
            log.debug("{peer} answered no request of ours (opaque {n})", peer=self.remote_addr, n=answer.opaque)
            return
        deferred, timeout = found
        timeout.cancel()
        deferred.callback(answer)

    def _time_out(self, opaque: int, timeout_ms: int, what: str) -> None:
        deferred, _ = self._waiting.pop(opaque)
        deferred.errback(RequestTimedOut(f"{what}: no answer from {self.remote_addr} in {timeout_ms} ms"))

    def _forget(self, opaque: int, deferred: Deferred[Any]) -> None:
        found = self._waiting.pop(opaque, None)
        if found is not None:
            found[1].cancel()
        deferred.errback(CancelledError())

    # --- bounds

    def _begin(self, count: int) -> None:
        self._in_flight += count
        if self._in_flight >= self._limits.requests_in_flight_max:
            self._pace()

    def _end(self, count: int) -> None:
        full = self._in_flight >= self._limits.requests_in_flight_max
        self._in_flight -= count
        if full:
            self._pace()

    def pauseProducing(self) -> None:
        """The peer does not read its answers: read no more requests of it."""
        self._answers_unread = True
        self._pace()

    def resumeProducing(self) -> None:
        self._answers_unread = False
        self._pace()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost says the rest."""

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


def _asked(run: Sequence[RawRequest]) -> list[_Asked]:
    return [(opaque, flag, serialize_type) for _, opaque, flag, _, serialize_type in run]


def _failures(asked: Sequence[_Asked], error: BaseException | None) -> list[bytes]:
    """The answers to a run whose handling raised `error`, which is logged once for all of them."""
    requests = [RemotingCommand(0, opaque=each[0], flag=each[1], serialize_type=each[2]) for each in asked]
    one = failure_response(requests[0], error)
    return [
        encode_command(RemotingCommand.response(request, one.code, one.remark))
        for request in requests
        if not request.is_oneway
    ]


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
