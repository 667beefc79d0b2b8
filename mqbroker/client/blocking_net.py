"""The clients' network on plain sockets: its coroutines never suspend, so that they run to their end in one call.

A thread-safe pool of connections for each address. It belongs to one process: after a fork the child calls `abandon`
and creates its own. No Twisted, no event loop, no threads.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar

import attrs

from mqbroker.client.net import Lock, signed
from mqbroker.client.tls import ClientTls, Contexts, is_alert, ssl_context, ssl_failed, why_lost
from mqbroker.errors import ConnectionClosed, MQError, RequestTimedOut, Unreachable
from mqbroker.remoting.response_table import Complete, ResponseTable
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import ONEWAY_FLAG, Frame, FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.names import split_address
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 3.0
_READ_BYTES = 256 * 1024
#: Brokers close connections that were idle for 120 s; they are not reused after half of that.
_IDLE_S_MAX = 60.0
#: Requests sent ahead of their responses on one connection: they fit into socket buffers, so that neither side blocks.
_WINDOW = 64
_SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a BlockingNet to its end."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine suspended where nothing can resume it")


def _decoded(frame: Frame) -> RemotingCommand:
    return decode_command(*frame)


class _Connection:
    """One socket, used by one thread at a time."""

    def __init__(self, addr: str, timeout_s: float, tls: Contexts[ssl.SSLContext] | None) -> None:
        self._addr = addr
        self._tls = None if tls is None else tls.tls
        self._decoder = FrameDecoder()
        self.responses = ResponseTable(addr, time.monotonic)
        self.idle_since = 0.0
        #: When a heartbeat was sent over it.
        self.beat_at = float("-inf")
        try:
            self._socket = socket.create_connection(split_address(addr), min(timeout_s, _CONNECT_TIMEOUT_S))
        except OSError as error:
            raise Unreachable(f"connect to {addr} failed: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = _encrypted(self._socket, addr, tls)

    def send(self, command: RemotingCommand, deadline: float) -> None:
        """Send a oneway request."""
        oneway = attrs.evolve(command, opaque=self.responses.next_opaque(), flag=command.flag | ONEWAY_FLAG)
        self._within(deadline, command, lambda: self._socket.sendall(encode_command(oneway)))

    def send_all(self, commands: Sequence[RemotingCommand], deadline: float, completes: Sequence[Complete]) -> None:
        """Send requests, and call `completes` with the response of each."""
        frames = []
        for command, complete in zip(commands, completes, strict=True):
            opaque = self.responses.next_opaque()
            frames.append(encode_command(command, opaque))
            self._decoder.expect_answer(command)
            self.responses.add(opaque, command, 0, complete)
        self._within(deadline, commands[0], lambda: self._socket.sendall(b"".join(frames)))

    def read(self, command: RemotingCommand, deadline: float) -> None:
        """Read responses, such as that of `command`, and complete their requests."""
        data = self._within(deadline, command, lambda: self._socket.recv(_READ_BYTES))
        if not data:
            raise self._why_lost(None, command)
        now = self.responses.heard_at = time.monotonic()
        for answer in map(_decoded, self._decoder.feed(data)):
            # A broker's requests to a producer that sends heartbeats need a live client.
            if answer.is_response:
                self.responses.answer(answer, now)

    def is_usable(self, now: float) -> bool:
        """False if the peer has closed it, or it was idle for too long."""
        if now - self.idle_since > _IDLE_S_MAX:
            return False
        # By a non-blocking read: select() cannot handle descriptors above 1023.
        self._socket.settimeout(0)
        try:
            if self._tls:
                # Only records of TLS itself may be there; this reads them.
                self._socket.recv(1)
                return False
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()

    def _why_lost(self, error: OSError | None, command: RemotingCommand) -> MQError:
        has_answered = self.responses.has_heard
        if self._tls is not None and error is not None and not is_alert(error) and not has_answered:
            # A send may find the connection closed before the server's reason was read.
            try:
                self._socket.settimeout(0)
                self._socket.recv(1)
            except (OSError, ValueError) as found:
                error = found if isinstance(found, OSError) else error
        request_bytes = max(self.responses.largest_bytes, len(command.body))
        return why_lost(self._addr, tls=self._tls, error=error, has_answered=has_answered, request_bytes=request_bytes)

    def _within(self, deadline: float, command: RemotingCommand, act: Callable[[], T]) -> T:
        left_s = deadline - time.monotonic()
        try:
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            return act()
        except TimeoutError:
            raise RequestTimedOut(f"{command.describe()}: no answer from {self._addr} in time") from None
        except OSError as error:
            raise self._why_lost(error, command) from error


def _encrypted(plain: socket.socket, addr: str, tls: Contexts[ssl.SSLContext]) -> socket.socket:
    """TLS handshake over `plain`, within its time-out. Raises TlsFailed, Unreachable or BadTls."""
    try:
        return tls.current().wrap_socket(plain, server_hostname=tls.tls.name_of(split_address(addr)[0]))
    except TimeoutError as error:
        plain.close()
        raise Unreachable(f"connect to {addr} failed: no TLS handshake in time") from error
    except OSError as error:
        plain.close()
        raise ssl_failed(addr, tls.tls, error) from error
    except BaseException:
        plain.close()
        raise


class _Pipeline:
    """Requests to one address over one connection, `_WINDOW` of them ahead of their responses."""

    def __init__(self, net: BlockingNet, addr: str) -> None:
        self._net = net
        self._addr = addr
        self._commands: list[RemotingCommand] = []
        self._results: list[RemotingCommand | MQError | None] = []
        self._sent = 0
        self._connection: _Connection | None = None

    def add(self, command: RemotingCommand) -> None:
        self._commands.append(command)
        self._results.append(None)

    def start(self, deadline: float) -> None:
        """Send the first window."""
        try:
            self._connection = self._net.acquire(self._addr, deadline)
            self._fill_window(self._connection, deadline)
        except MQError as error:
            self._fail(error)

    def finish(self, deadline: float) -> list[RemotingCommand | MQError]:
        """Collect all responses, in order; after an error all missing ones are that error."""
        connection = self._connection
        try:
            while connection is not None and len(connection.responses):
                connection.read(self._commands[self._results.index(None)], deadline)
                self._fill_window(connection, deadline)
        except MQError as error:
            self._fail(error)
        if self._connection is not None and any(command.code in _SENDS for command in self._commands):
            self._beat(self._connection, deadline)
        if self._connection is not None:
            self._net.release(self._addr, self._connection)
            self._connection = None
        return [result or ConnectionClosed("not sent") for result in self._results]

    def abandon(self) -> None:
        """Close the connection unless it is back in the pool: responses may still arrive on it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _beat(self, connection: _Connection, deadline: float) -> None:
        """Send the producer's heartbeat over a connection that carries its messages, when one is due: brokers count
        heartbeats by connection."""
        heartbeats, now = self._net.heartbeats, time.monotonic()
        if heartbeats is None or not self._net.is_beat_due(connection, now):
            return
        answers: list[RemotingCommand | MQError] = []
        request = self._net.signed(heartbeats.request())
        try:
            connection.send_all([request], deadline, [answers.append])
            while not answers:
                connection.read(request, deadline)
            connection.beat_at = now
        except MQError as error:
            answers.append(error)
            self.abandon()
        heartbeats.answered(self._addr, answers[0])

    def _fill_window(self, connection: _Connection, deadline: float) -> None:
        first, room = self._sent, _WINDOW - len(connection.responses)
        commands = self._commands[first : first + max(0, room)]
        if commands:
            self._sent += len(commands)
            completes = [partial(self._results.__setitem__, number) for number in range(first, self._sent)]
            connection.send_all(commands, deadline, completes)

    def _fail(self, error: MQError) -> None:
        self._results = [error if result is None else result for result in self._results]
        self.abandon()


class RequestsInFlight:
    """Requests in flight. `finish` reads the responses; `abandon` closes the connections instead."""

    def __init__(self, net: BlockingNet, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int) -> None:
        self._addrs = [addr for addr, _ in requests]
        self._timeout_ms = timeout_ms
        self._pipelines: dict[str, _Pipeline] = {}
        for addr, command in requests:
            self._pipelines.setdefault(addr, _Pipeline(net, addr)).add(command)
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            for pipeline in self._pipelines.values():
                pipeline.start(deadline)
        except BaseException:
            self.abandon()
            raise

    def finish(self) -> list[RemotingCommand | MQError]:
        """Wait for all responses, for the time-out from now on; returned in the requests' order."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        try:
            answers = {addr: iter(pipeline.finish(deadline)) for addr, pipeline in self._pipelines.items()}
        finally:
            self.abandon()
        return [next(answers[addr]) for addr in self._addrs]

    def abandon(self) -> None:
        """Give up responses that were not read."""
        for pipeline in self._pipelines.values():
            pipeline.abandon()


class Heartbeats(Protocol):
    """The heartbeats of a producer, which are sent over each connection that it sends messages over."""

    heartbeat_s: float

    def request(self) -> RemotingCommand: ...

    def answered(self, addr: str, answer: RemotingCommand | MQError) -> MQError | None: ...


class _ThreadLock:
    """A lock between threads; a coroutine that waits for it blocks its thread, as everything here does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.release()


class BlockingNet:
    """Net on blocking sockets."""

    def __init__(
        self, rng: random.Random, credentials: Credentials | None = None, tls: ClientTls | None = None
    ) -> None:
        """Raises BadTls where files of `tls` cannot be used."""
        self.rng = rng
        self._tls = None if tls is None else Contexts(tls, ssl_context)
        self._credentials = credentials
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Connection]] = {}
        self._closed = False
        #: Of a producer.
        self.heartbeats: Heartbeats | None = None

    def now(self) -> float:
        return time.time()

    def steady(self) -> float:
        return time.monotonic()

    def signed(self, command: RemotingCommand) -> RemotingCommand:
        """The command, signed by the account."""
        return signed(command, self._credentials)

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        (result,) = await self.invoke_many([(addr, command)], timeout_ms)
        if isinstance(result, MQError):
            raise result
        return result

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        return self.launch(requests, timeout_ms).finish()

    def launch(self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int) -> RequestsInFlight:
        """Send requests now and read their responses later. Requests that fail already are errors among the
        responses."""
        return RequestsInFlight(self, [(addr, self.signed(command)) for addr, command in requests], timeout_ms)

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        connection = self.acquire(addr, deadline)
        try:
            connection.send(self.signed(command), deadline)
            now = time.monotonic()
            if self.heartbeats is not None and command.code in _SENDS and self.is_beat_due(connection, now):
                connection.send(self.signed(self.heartbeats.request()), deadline)
                connection.beat_at = now
        except BaseException:
            connection.close()
            raise
        self.release(addr, connection)

    def is_beat_due(self, connection: _Connection, now: float) -> bool:
        """Whether a connection that has carried a message needs a heartbeat."""
        return self.heartbeats is not None and now - connection.beat_at >= self.heartbeats.heartbeat_s

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to hold up

    def lock(self) -> Lock:
        return _ThreadLock()

    async def close(self) -> None:
        with self._lock:
            self._closed = True
        self.abandon()

    def abandon(self) -> None:
        """Close this process's handles of idle connections. In a forked child the parent's stay open: no FIN is
        sent."""
        idle, self._idle = self._idle, {}
        for connection in itertools.chain.from_iterable(idle.values()):
            connection.close()

    def acquire(self, addr: str, deadline: float) -> _Connection:
        """A connection for exclusive use. Raises Unreachable, or ConnectionClosed if the client is closed."""
        with self._lock:
            if self._closed:
                raise ConnectionClosed("the client is closed")
            idle = self._idle.get(addr, [])
            while idle:
                connection = idle.pop()
                if connection.is_usable(time.monotonic()):
                    return connection
                connection.close()
        return _Connection(addr, max(0.001, deadline - time.monotonic()), self._tls)

    def release(self, addr: str, connection: _Connection) -> None:
        """Return a connection, with no response outstanding, to the pool."""
        connection.idle_since = time.monotonic()
        with self._lock:
            if not self._closed:
                self._idle.setdefault(addr, []).append(connection)
                return
        connection.close()
