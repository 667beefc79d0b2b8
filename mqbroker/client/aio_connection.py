"""One connection of the asyncio clients: frames on one transport, joined when they are written, and the plain sends and
responses that the compiled module makes and reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import attrs

from mqbroker.client.fifo_lock import FifoLock
from mqbroker.client.messages import Message, SendResult, SendStatus
from mqbroker.client.pull_run import complete
from mqbroker.client.tls import ClientTls, why_lost
from mqbroker.errors import BadFrame, ConnectionClosed, MQError
from mqbroker.kernel import compiled
from mqbroker.remoting.response_table import Complete, PendingRequest, ResponseTable
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import (
    AFTER_OPAQUE,
    BEFORE_OPAQUE,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    take_responses,
)

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 1.0
#: Frames sent within one turn of the loop are joined, up to so many bytes; the peer works on these meanwhile.
_UNWRITTEN_BYTES_MAX = 8 * 1024
_READ_BYTES = 64 * 1024
#: A peer that reads nothing for so long, seconds, while more waits for it, counts as gone.
_UNREAD_S_MAX = 10.0

#: Where a message is sent: its queue, and what its header has before its own fields.
Place = tuple[MessageQueue, bytes]
#: A plain send that was not answered yet.
Sent = tuple[asyncio.Future[Any], Message, MessageQueue, str, "_Run"]


@attrs.define(eq=False)
class _Run:
    """Plain sends that were written together, and have one time-out."""

    addr: str
    began: float
    opaque: int
    left: int
    forget_opaque: Callable[[int], None]

    def forget(self) -> None:
        """All are answered."""
        self.forget_opaque(self.opaque)


SendsEnded = Callable[[list[tuple[Sent, SendResult | RemotingCommand | MQError]]], object]


class Connection(asyncio.BufferedProtocol):
    """Frames on one transport; each request waits for the response with its opaque."""

    def __init__(
        self,
        addr: str,
        answer: Callable[[RemotingCommand, Connection], None],
        tls: ClientTls | None,
        gate: FifoLock,
        sends_ended: SendsEnded,
    ) -> None:
        """`gate` is held by those that wait for a connection to this address."""
        self._sends_ended = sends_ended
        self.addr = addr
        self._gate = gate
        self._sent: dict[int, Sent] = {}
        # A Protocol would have 256 KiB allocated, and shrunk, for each read.
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._tls = tls
        self._answer = answer
        #: Number of the peer's requests whose responses are not ready, or do not fit into the socket's buffer.
        self.unanswered = 0
        self._decoder = FrameDecoder()
        self._loop = loop = asyncio.get_running_loop()  # which asks the system for the process each time
        self._responses = ResponseTable(addr, loop.time, loop.call_later, self.close)
        self._transport: asyncio.Transport | None = None
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._unwritten_requests: list[PendingRequest] = []
        self._after_write: list[Callable[[], None]] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._write_lock = FifoLock()
        self._unread_timer: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self.is_open = False

    def pause_writing(self) -> None:
        self._writable.clear()
        self._unread_timer = self._loop.call_later(_UNREAD_S_MAX, self._close_unread)

    def resume_writing(self) -> None:
        self._writable.set()
        self._stop_unread_timer()

    def _close_unread(self) -> None:
        log.warning("closing the connection to %s: it has read nothing for %g s", self.addr, _UNREAD_S_MAX)
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data_received(bytes(self._buffer[:nbytes]))

    def _data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if compiled is not None:
            data = self._take_plain(data, now)
            if not data:
                return
        try:
            commands = [decode_command(*frame) for frame in self._decoder.feed(data)]
        except BadFrame as error:
            log.warning("closing the connection to %s: %s", self.addr, error)
            self.close()
            return
        self._handle(commands, now)

    def _take_plain(self, data: bytes, now: float) -> bytes:
        """Take the plain responses from the beginning of `data`; returns the rest."""
        whole, at = self._decoder.join(data), 0
        if whole is None or compiled is None:
            return data
        if self._sent:
            stored, at = compiled.take_stored(whole, self._sent, SendResult, SendStatus.SEND_OK)
            if stored:
                self._responses.heard_at = now
                self._sends_ended(stored)
        responses, at = take_responses(whole, at)
        if responses:
            self._handle(responses, now)
        return whole[at:]

    def _handle(self, commands: list[RemotingCommand], now: float) -> None:
        self._responses.heard_at = now
        for command in commands:
            if not command.is_response:
                self._answer(command, self)
            elif not self._responses.answer(command, now) and command.opaque in self._sent:
                self._sends_ended([(self._sent.pop(command.opaque), command)])

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._lost.set()
        self._writable.set()
        self._stop_unread_timer()
        has_answered = self._responses.has_heard
        self._responses.lost(
            lambda largest: why_lost(self.addr, self._tls, error, has_answered=has_answered, request_bytes=largest)
        )

    def send(self, command: RemotingCommand) -> None:
        """Write at the end of this turn of the loop, joined with other frames, or earlier if they are many."""
        self._write_soon(encode_command(command))

    def _write_soon(self, frame: bytes) -> None:
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        if self._unwritten_bytes >= _UNWRITTEN_BYTES_MAX:
            self._write()

    @property
    def is_free(self) -> bool:
        """Whether all sent bytes are in the buffer of the socket, too, and nobody waits to send more."""
        return self.is_ready and self.is_writable

    @property
    def is_ready(self) -> bool:
        """Whether it is open, and nobody waits for a connection."""
        return self.is_open and self._gate.is_empty

    @property
    def is_writable(self) -> bool:
        """Whether all sent bytes are in the socket's buffer, and nobody waits to send more."""
        return self._writable.is_set() and self._write_lock.is_empty

    async def writable(self) -> bool:
        """Wait, in the order of calls, until all sent bytes are in the socket's buffer; False if the connection was
        closed."""
        if not self.is_writable:
            async with self._write_lock:
                await self._writable.wait()
        return self.is_open

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send at once, writable or not, and wait for the response; the time-out counts from the write."""
        if not self.is_open:
            raise ConnectionClosed(f"the connection to {self.addr} is closed")
        waiter: asyncio.Future[RemotingCommand] = self._loop.create_future()
        opaque = self.post(command, timeout_ms, partial(complete, waiter), partial(encode_command, command))
        try:
            return await waiter
        except BaseException:  # it was cancelled, or has ended anyhow
            self.forget(opaque)
            raise

    def post(
        self, command: RemotingCommand, timeout_ms: int, complete: Complete, encode: Callable[[int], bytes]
    ) -> int:
        """Send the frame that `encode` returns for an opaque, and have `complete` called with the response, or the
        error; returns the opaque."""
        opaque = self._responses.next_opaque()
        frame = encode(opaque)
        self._unwritten_requests.append(self._responses.add(opaque, command, timeout_ms, complete))
        self._write_soon(frame)
        return opaque

    def after_write(self, call: Callable[[], None]) -> None:
        """Call it when all that was sent in this turn of the loop is written."""
        self._after_write.append(call)

    def forget(self, opaque: int) -> None:
        """Ignore the response, and any error."""
        self._responses.forget(opaque)

    def send_run(
        self,
        messages: list[Message],
        places: list[Place],
        waiters: list[Any],
        now_s: float,
        timeout_ms: int,
        id_prefix: str,
        id_number: int,
    ) -> int:
        """Send the first messages, as long as they are plain, each as in its place; returns how many. `now_s` is the
        time of day; the ids of messages without one begin with `id_prefix`, and are numbered."""
        if compiled is None:
            return 0
        opaque = self._responses.reserve_opaques(1 + len(messages))
        run = _Run(self.addr, now_s, opaque, 0, self._responses.forget)
        born_ms = int(now_s * 1000)
        try:
            frames = compiled.encode_sends(
                messages, places, waiters, run, opaque + 1, born_ms, id_prefix, id_number,
                BEFORE_OPAQUE, AFTER_OPAQUE, self._sent,
            )  # fmt: skip
        except Exception:  # a message that was changed behind its checks: the general path says so to its sender
            for number in range(len(messages)):
                self._sent.pop(opaque + 1 + number, None)
            return 0
        if frames:
            run.left = len(frames)
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {}, messages[0].body)
            # The run has an opaque of its own, which nobody answers.
            failed = partial(self._failed, range(opaque + 1, opaque + 1 + len(frames)))
            self._unwritten_requests.append(self._responses.add(opaque, command, timeout_ms, failed))
            self._write_soon(b"".join(frames))
        return len(frames)

    def _failed(self, opaques: range, error: Any) -> None:
        if not isinstance(error, MQError):
            error = ConnectionClosed(f"{self.addr} has answered what it was not asked")
        self._sends_ended([(self._sent.pop(opaque), error) for opaque in opaques if opaque in self._sent])

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        self._unwritten_bytes = 0
        if self._transport is not None and unwritten and not self._transport.is_closing():
            self._transport.write(b"".join(unwritten))
        requests, self._unwritten_requests = self._unwritten_requests, []
        self._responses.written(requests)
        calls, self._after_write = self._after_write, []
        for call in calls:
            call()

    def close(self) -> None:
        self._write()
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    async def ended(self) -> None:
        """Wait for the end of a closed connection; TLS exchanges close_notify first."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._lost.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._lost.wait()
