"""Plain sends of threads that wait for their results, each on a socket of the calling thread: a hand-over to the loop's
thread and back takes three times as long. Other sends, and all failures, are left to the loop."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import attrs

from mqbroker.client.attempts import QUICK_S, Availability, FirstAttempt
from mqbroker.client.connection import Connection
from mqbroker.client.identity import Identity
from mqbroker.client.loop_net import CONNECT_TIMEOUT_S, IN_MEMORY, LoopNet
from mqbroker.client.messages import Message, SendResult, SendStatus
from mqbroker.client.tls import why_lost
from mqbroker.errors import BadFrame, ConnectionClosed, MQError, RequestTimedOut
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.command import AFTER_OPAQUE, BEFORE_OPAQUE, FrameDecoder, RemotingCommand, decode_command
from mqbroker.wire.ids import UniqIdSource
from mqbroker.wire.names import split_address

if TYPE_CHECKING:
    from mqbroker.client.plain_sends import PlainSends

#: Sends of a client to a broker over the loop before the first one on a socket of its own, also after one could not be
#: opened: a program that sends a few messages needs no second connection.
FIRST = 16
#: Threads that send on sockets of their own at the same time, to one broker; others use the loop.
SOCKETS_MAX = 16
#: A socket that was not used for this time, seconds, is closed: it has no heartbeats, and the broker may close it.
_IDLE_S = 10.0
_READ_BYTES = 64 * 1024

#: What the compiled module notes of a request: see `encode_sends`.
Pending = dict[int, tuple[None, Message, MessageQueue, str, None]]


@attrs.define(eq=False)
class _Socket:
    """A connection to a broker, used by one thread at a time; `beside` is the loop's to the same broker."""

    socket: socket.socket
    addr: str
    beside: Connection
    ids: UniqIdSource
    used_at: float
    opaque: int = 0
    _timeout_ms: int = 0

    def allow(self, timeout_ms: int) -> None:
        """Set the socket's time-out in the system: one of Python's costs two more calls each time."""
        if self._timeout_ms != timeout_ms:
            value = timeout_ms if os.name == "nt" else struct.pack("ll", timeout_ms // 1000, timeout_ms % 1000 * 1000)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            self._timeout_ms = timeout_ms

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # ends the wait of a thread that reads
        self.socket.close()


class DirectSends:
    """Takes sends of one producer from any thread."""

    def __init__(self, net: LoopNet, plain: PlainSends, identity: Identity, availability: Availability) -> None:
        self._net = net
        self._plain = plain
        self._identity = identity
        self._availability = availability
        self._gate = threading.Lock()
        self._idle: dict[str, list[_Socket]] = defaultdict(list)
        self._open: set[_Socket] = set()
        #: By address: sends without a free socket since the start or the last failure to open one; sockets that are
        #: open or being opened.
        self._sends: dict[str, int] = defaultdict(int)
        self._count: dict[str, int] = defaultdict(int)
        self._is_closed = False

    def send(self, message: Message) -> SendResult | FirstAttempt | None:
        """Send `message` to the next queue: the result, a failed attempt, or None if it has to be sent on the loop."""
        place = self._plain.place(message)
        if place is None:
            return None
        (queue, head), connection, timeout_ms = place
        used = self._take(connection)
        if used is None:
            return None
        is_done = False
        try:
            outcome = self._send(used, message, queue, head, timeout_ms)
            is_done = outcome is None or isinstance(outcome, SendResult)
        finally:  # without a result, a late response would be taken for that of the next request
            self._give_back(used) if is_done else self._drop(used)
        return outcome

    def close(self) -> None:
        """Close the sockets; sends on them end on the loop, which says why."""
        with self._gate:
            self._is_closed = True
            sockets, self._open = self._open, set()
            self._idle.clear()
        for each in sockets:
            each.close()

    def _send(
        self, used: _Socket, message: Message, queue: MessageQueue, head: bytes, timeout_ms: int
    ) -> SendResult | FirstAttempt | None:
        assert compiled is not None
        began, sent_at = self._net.now(), self._net.steady()
        used.opaque = used.opaque % 0x7FFFFFFF + 1
        pending: Pending = {}
        try:
            frames = compiled.encode_sends(
                [message], [(queue, head)], [None], None, used.opaque, int(began * 1000), *used.ids.reserve(1),
                BEFORE_OPAQUE, AFTER_OPAQUE, pending,
            )  # fmt: skip
        except Exception:  # the message was changed after its checks: the general path raises the error
            return None
        if not frames:
            return None
        # Only now: a send that is left to the loop takes its turn there, and two turns would skip a queue.
        self._plain.take_turn(message.topic)
        msg_id = pending[used.opaque][3]
        outcome = self._asked(used, frames[0], sent_at, timeout_ms, pending)
        if isinstance(outcome, SendResult):
            used.used_at = self._net.steady()
            if (seconds := used.used_at - sent_at) > QUICK_S:
                self._net.call_from_thread(partial(self._availability.took, queue.broker_name, seconds))
            return outcome
        return FirstAttempt(began, sent_at, msg_id, queue, used.addr, outcome)

    def _asked(
        self, used: _Socket, frame: bytes, sent_at: float, timeout_ms: int, pending: Pending
    ) -> SendResult | RemotingCommand | MQError:
        """The answer to a request, or the error in its place."""
        assert compiled is not None
        decoder, has_answered = None, used.opaque > 1
        try:
            used.allow(timeout_ms)
            used.socket.sendall(frame)
            while True:
                data = used.socket.recv(_READ_BYTES)
                if not data:
                    break
                if decoder is None:
                    stored, at = compiled.take_stored(data, pending, SendResult, SendStatus.SEND_OK)
                    if stored and at == len(data):
                        result: SendResult = stored[0][1]
                        return result
                    decoder = FrameDecoder()
                for parts in decoder.feed(data):
                    command = decode_command(*parts)
                    if command.is_response and command.opaque == used.opaque:
                        return command
                left_ms = timeout_ms - int((self._net.steady() - sent_at) * 1000)
                if left_ms <= 0:
                    raise BlockingIOError
                used.allow(left_ms)
        except BlockingIOError:  # the time is over
            return RequestTimedOut(f"no answer from {used.addr} to a send in {timeout_ms} ms")
        except BadFrame as error:
            return ConnectionClosed(f"the connection to {used.addr} was closed: {error}")
        except OSError as error:
            return why_lost(used.addr, tls=None, error=error, has_answered=has_answered, request_bytes=len(frame))
        return why_lost(used.addr, tls=None, error=None, has_answered=has_answered, request_bytes=len(frame))

    def _take(self, connection: Connection) -> _Socket | None:
        """A socket to the peer of `connection`, opened after that one."""
        addr, now = connection.addr, self._net.steady()
        while True:
            with self._gate:
                idle = self._idle[addr]
                if self._is_closed:
                    return None
                found = idle.pop() if idle else None
                if found is None:
                    self._sends[addr] += 1
                    if self._sends[addr] <= FIRST or self._count[addr] >= SOCKETS_MAX:
                        return None
                    self._count[addr] += 1
            if found is None:
                return self._connect(connection, now)
            if found.beside is connection and now - found.used_at < _IDLE_S:
                return found
            self._drop(found)

    def _connect(self, connection: Connection, now: float) -> _Socket | None:
        addr, opened = connection.addr, None
        try:
            if not (self._net.is_encrypted or self._net.hooks.key or addr in IN_MEMORY):
                made = socket.create_connection(split_address(addr), CONNECT_TIMEOUT_S)
                made.settimeout(None)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                opened = _Socket(made, addr, connection, self._identity.id_source(), now)
        except OSError:  # the send goes over the loop, which reports a broker that is down
            pass
        with self._gate:
            if opened is not None and not self._is_closed:
                self._open.add(opened)
                return opened
            self._count[addr] -= 1
            self._sends[addr] = 0
        if opened is not None:
            opened.close()
        return None

    def _give_back(self, used: _Socket) -> None:
        with self._gate:
            if used in self._open:
                self._idle[used.addr].append(used)

    def _drop(self, used: _Socket) -> None:
        with self._gate:
            if used in self._open:
                self._open.discard(used)
                self._count[used.addr] -= 1
        used.close()
