"""One connection of the clients on an event loop: frames on one transport, joined when they are written, and the plain
sends and responses that the compiled module makes and reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs

from mqbroker.client.loop import FifoLock, Future, Loop, complete, wake
from mqbroker.client.messages import Message, SendResult, SendStatus
from mqbroker.errors import BadFrame, ConnectionClosed, MQError
from mqbroker.kernel import compiled
from mqbroker.remoting.response_table import Complete, PendingRequest, ResponseTable, Timeout
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

#: Frames sent within one turn of the loop are joined, up to so many bytes; the peer works on these meanwhile.
_UNWRITTEN_BYTES_MAX = 8 * 1024
#: A peer that reads nothing for this long, seconds, while data waits for it, counts as gone.
_UNREAD_S_MAX = 10.0

#: Where a message is sent: its queue, and what its header has before its own fields.
Place = tuple[MessageQueue, bytes]
#: A plain send that was not answered yet.
Sent = tuple[Future, Message, MessageQueue, str, "_Run"]


@attrs.define(eq=False)
class _Run:
    """Plain sends that were written together, and have one time-out."""

    addr: str
    began: float
    sent_at: float
    opaque: int
    left: int
    forget_opaque: Callable[[int], None]
    owner: Owner

    def forget(self) -> None:
        """All are answered."""
        self.forget_opaque(self.opaque)


SendsEnded = Callable[[list[tuple[Sent, SendResult | RemotingCommand | MQError]]], object]


class Owner(Protocol):
    """Whose requests some of those on a connection are."""

    #: Called with plain sends that have ended, and how.
    sends_ended: SendsEnded


class WhyLost(Protocol):
    """`mqbroker.client.tls.why_lost`, with TLS settings or without."""

    def __call__(
        self, addr: str, *, error: BaseException | None, has_answered: bool, request_bytes: int
    ) -> MQError: ...


class Tell(Protocol):
    """Is called with an event of a connection, one of the methods of ConnectionListener, and its arguments."""

    def __call__(self, event: str, /, *args: str) -> object: ...


class Transport(Protocol):
    """As asyncio's transports: written data that was not sent yet is buffered."""

    def write(self, data: bytes, /) -> object: ...

    def is_closing(self) -> bool: ...

    def close(self) -> object:
        """Close it when all is sent."""

    def abort(self) -> object: ...


@attrs.define(eq=False)
class Line:
    """The waiters for a connection to an address: later callers must not overtake them."""

    count: int = 0


class Connection:
    """Frames on one transport; each request waits for the response with its opaque."""

    def __init__(
        self,
        addr: str,
        loop: Loop,
        line: Line,
        answer: Callable[[RemotingCommand, Connection], None],
        why_lost: WhyLost,
        tell: Tell = lambda event, *args: None,
    ) -> None:
        """`answer` is called with each request of the peer."""
        self.addr = addr
        self._loop = loop
        self._line = line
        self._answer = answer
        self._why_lost = why_lost
        self._tell_listeners = tell
        self._sent: dict[int, Sent] = {}
        #: The senders of plain sends.
        self._owners: dict[Owner, None] = {}
        #: Number of the peer's requests whose responses are not ready, or do not fit into the socket's buffer.
        self.unanswered = 0
        self._decoder = FrameDecoder()
        self._responses = ResponseTable(addr, loop.time, loop.call_later, self._close_silent)
        self._transport: Transport | None = None
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._unwritten_requests: list[PendingRequest] = []
        self._after_write: list[Callable[[], None]] = []
        self._is_paused = False
        self._room: Future | None = None
        self._write_lock = FifoLock(lambda: loop)
        self._unread_timer: Timeout | None = None
        self._ends: list[Future] = []
        self.is_open = self.is_lost = False
        #: Why this side has closed it, if it has.
        self._closed_why = ""

    # what its transport's protocol calls

    def opened(self, transport: Transport) -> None:
        self._transport = transport
        self.is_open = True
        self._tell_listeners("connected", self.addr)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._unread_timer = self._timeout(_UNREAD_S_MAX, self._close_unread)

    def resume_writing(self) -> None:
        self._is_paused = False
        wake(self._room)
        self._stop_unread_timer()

    def lost(self, error: BaseException | None) -> None:
        """Called at its end, with an error unless the peer has closed it."""
        was_open, self.is_open, self.is_lost = self.is_open, False, True
        self.resume_writing()
        for end in self._ends:
            wake(end)
        has_answered = self._responses.has_heard

        def why(largest: int) -> MQError:
            if self._closed_why:
                return ConnectionClosed(f"this client closed its connection to {self.addr}: {self._closed_why}")
            return self._why_lost(self.addr, error=error, has_answered=has_answered, request_bytes=largest)

        if error is not None and was_open:
            self._tell_listeners("failed", self.addr, str(why(0)))
        if self._transport is not None:
            self._tell_listeners("closed", self.addr)
        self._responses.lost(why)

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        while data := data if compiled is None else self._take_plain(data, now):
            end = self._end_of_next(data, 0)
            try:
                commands = [decode_command(*frame) for frame in self._decoder.feed(data[:end])]
            except BadFrame as error:
                log.warning("closing the connection to %s: %s", self.addr, error)
                self._tell_listeners("failed", self.addr, str(error))
                self.close(str(error))
                return
            self._handle(commands, now)
            data = data[end:]

    def _end_of_next(self, data: bytes, at: int) -> int:
        """The end of what is read of `data` before the next search for responses to plain sends: of the frame at `at`;
        of all if none are expected."""
        return at + 4 + int.from_bytes(data[at : at + 4], "big") if self._sent else len(data)

    def _take_plain(self, data: bytes, now: float) -> bytes:
        """Take the plain responses from the beginning of `data`; returns the rest."""
        whole = self._decoder.join(data)
        if whole is None or compiled is None:
            return data
        while whole:
            at = 0
            if self._sent:
                stored, at = compiled.take_stored(whole, self._sent, SendResult, SendStatus.SEND_OK)
                if stored:
                    self._responses.heard_at = now
                    self._tell(stored)
            responses, end = take_responses(whole[: self._end_of_next(whole, at)], at)
            if not responses:
                return whole[at:]
            self._handle(responses, now)
            whole = whole[end:]
        return whole

    def _tell(self, ended: list[tuple[Sent, SendResult | RemotingCommand | MQError]]) -> None:
        """Tell the owners of plain sends that they have ended, and how."""
        if len(self._owners) == 1:
            next(iter(self._owners)).sends_ended(ended)
            return
        for owner in list(self._owners):
            mine = [each for each in ended if each[0][4].owner is owner]
            if mine:
                owner.sends_ended(mine)

    def give_up(self, owner: Owner, error: MQError) -> None:
        """End the requests of `owner` with an error."""
        self._write()
        self._responses.give_up(owner, error)
        self._owners.pop(owner, None)

    def _handle(self, commands: list[RemotingCommand], now: float) -> None:
        self._responses.heard_at = now
        for command in commands:
            if not command.is_response:
                self._answer(command, self)
            elif not self._responses.answer(command, now) and command.opaque in self._sent:
                self._tell([(self._sent.pop(command.opaque), command)])

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
        """Whether all sent bytes are in the buffer of the socket, too, and no caller waits to send more."""
        return self.is_ready and self.is_writable

    @property
    def is_ready(self) -> bool:
        """Whether it is open, and no caller waits for a connection."""
        return self.is_open and not self._line.count

    @property
    def is_writable(self) -> bool:
        """Whether all sent bytes are in the socket's buffer, and no caller waits to send more."""
        return not self._is_paused and self._write_lock.is_empty

    async def writable(self) -> bool:
        """Wait, in the order of calls, until all sent bytes are in the socket's buffer; False if the connection was
        closed."""
        if not self.is_writable:
            async with self._write_lock:
                while self._is_paused:
                    self._room = self._loop.create_future()
                    await self._room
        return self.is_open

    async def request(self, command: RemotingCommand, timeout_ms: int, owner: object = None) -> RemotingCommand:
        """Send at once, writable or not, and wait for the response; the time-out counts from the write."""
        if not self.is_open:
            raise ConnectionClosed(f"the connection to {self.addr} is closed")
        waiter = self._loop.create_future()
        opaque = self.post(command, timeout_ms, partial(complete, waiter), partial(encode_command, command), owner)
        try:
            response: RemotingCommand = await waiter
        except BaseException:  # it was cancelled, or has ended anyhow
            self.forget(opaque)
            raise
        return response

    def post(
        self,
        command: RemotingCommand,
        timeout_ms: int,
        complete: Complete,
        encode: Callable[[int], bytes],
        owner: object = None,
    ) -> int:
        """Send the frame that `encode` returns for an opaque, and have `complete` called with the response, or the
        error, also when `owner` gives up; returns the opaque."""
        opaque = self._responses.next_opaque()
        frame = encode(opaque)
        self._decoder.expect_answer(command)
        self._unwritten_requests.append(self._responses.add(opaque, command, timeout_ms, complete, owner))
        self._write_soon(frame)
        return opaque

    def after_write(self, call: Callable[[], None]) -> None:
        """Call `call` when everything sent in this iteration of the loop is written."""
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
        owner: Owner,
    ) -> int:
        """Send the first messages, as long as they are plain, each as in its place; returns how many. `now_s` is the
        time of day; the ids of messages without one begin with `id_prefix`, and are numbered."""
        if compiled is None:
            return 0
        opaque = self._responses.reserve_opaques(1 + len(messages))
        run = _Run(self.addr, now_s, self._loop.time(), opaque, 0, self._responses.forget, owner)
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
            self._owners[owner] = None
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {}, messages[0].body)
            # The run has an opaque of its own, which gets no response.
            failed = partial(self._failed, range(opaque + 1, opaque + 1 + len(frames)))
            self._unwritten_requests.append(self._responses.add(opaque, command, timeout_ms, failed, owner))
            self._write_soon(b"".join(frames))
        return len(frames)

    def _failed(self, opaques: range, error: Any) -> None:
        if not isinstance(error, MQError):
            error = ConnectionClosed(f"{self.addr} has answered what it was not asked")
        self._tell([(self._sent.pop(opaque), error) for opaque in opaques if opaque in self._sent])

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

    def close(self, why: str = "the client is closed") -> None:
        """Close it; what waits for responses fails with `why`."""
        self._closed_why = why
        self._write()
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    async def ended(self, timeout_s: float) -> None:
        """Wait for the end of a closed connection, which is aborted after `timeout_s`; TLS exchanges close_notify
        first."""
        if self.is_lost:
            return
        end = self._loop.create_future()
        self._ends.append(end)
        timeout = self._timeout(timeout_s, self._abort)
        try:
            await end
        finally:
            timeout.cancel()

    def _close_unread(self) -> None:
        self._closed_why = why = f"the peer has read nothing for {_UNREAD_S_MAX:g} s"
        log.warning("closing the connection to %s: %s", self.addr, why)
        self._tell_listeners("idle", self.addr, why)
        self.is_open = False
        self._abort()

    def _close_silent(self) -> None:
        why = "nothing came since a request was sent whose time is over"
        self._tell_listeners("idle", self.addr, why)
        self.close(why)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _timeout(self, seconds: float, call: Callable[[], None]) -> Timeout:
        return Timeout(self._loop.time, self._loop.call_later, seconds, call)
