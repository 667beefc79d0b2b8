"""The clients' network on plain sockets: nothing here suspends, so a coroutine over it runs to its end in one call.

A pool of connections for each address, safe for several threads. It belongs to the process that made it: after a fork
the child calls `abandon` and makes its own. No Twisted, no event loop, no thread.
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
from types import TracebackType
from typing import Any, TypeVar

import attrs

from mqbroker.client.net import Lock, signed
from mqbroker.client.options import split_address
from mqbroker.client.tls import ClientTls, Contexts, is_alert, lost, ssl_context, ssl_failed
from mqbroker.errors import ConnectionClosed, MQError, RequestTimedOut, Unreachable
from mqbroker.wire.command import ONEWAY_FLAG, FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 3.0
_READ_BYTES = 256 * 1024
#: Brokers close connections that were idle for 120 s; ours are not used again after half of that.
_IDLE_S_MAX = 60.0
#: Requests sent ahead of their answers on one connection: they fit into socket buffers, so neither side gets stuck.
_WINDOW = 64


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a BlockingNet to its end."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine suspended where nothing can resume it")


class _Connection:
    """One socket, used by one thread at a time."""

    def __init__(self, addr: str, timeout_s: float, tls: Contexts[ssl.SSLContext] | None) -> None:
        self._addr = addr
        self._tls = None if tls is None else tls.tls
        self._heard = False
        #: The bytes of the largest request since it was last idle.
        self._largest = 0
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._answers: dict[int, RemotingCommand] = {}
        self.idle_since = 0.0
        try:
            self._socket = socket.create_connection(split_address(addr), min(timeout_s, _CONNECT_TIMEOUT_S))
        except OSError as error:
            raise Unreachable(f"connect to {addr} failed: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = _encrypted(self._socket, addr, tls)

    def send(self, command: RemotingCommand, deadline: float, flag: int = 0) -> int:
        """Send a request and return its opaque."""
        opaque = next(self._opaques) & 0x7FFFFFFF
        data = encode_command(attrs.evolve(command, opaque=opaque, flag=command.flag | flag))
        self._largest = max(self._largest, len(data))
        self._within(deadline, command, lambda: self._socket.sendall(data))
        return opaque

    def answer(self, opaque: int, command: RemotingCommand, deadline: float) -> RemotingCommand:
        """Wait for the answer with `opaque`; others that come first are kept."""
        while opaque not in self._answers:
            data = self._within(deadline, command, lambda: self._socket.recv(_READ_BYTES))
            if not data:
                raise self._lost(f"{self._addr} closed the connection before it answered")
            self._heard = True
            self._take(data)
        return self._answers.pop(opaque)

    def is_usable(self, now: float) -> bool:
        """False where the peer has closed it, or it was idle for too long."""
        self._largest = 0
        if now - self.idle_since > _IDLE_S_MAX:
            return False
        # Looked at by a read that does not wait: select() cannot tell of descriptors above 1023.
        self._socket.settimeout(0)
        try:
            if self._tls:
                # Only what TLS itself has to say may be there; this takes it.
                self._socket.recv(1)
                return False
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()

    def _lost(self, text: str) -> ConnectionClosed:
        return lost(text, self._tls, has_answered=self._heard, request_bytes=self._largest)

    def _refusal(self, error: OSError) -> MQError | None:
        """What the server said when it ended an encrypted connection; a send may find it ended before that is read."""
        if self._tls is None:
            return None
        try:
            if not is_alert(error) and not self._heard:
                self._socket.settimeout(0)
                self._socket.recv(1)
        except (OSError, ValueError) as found:
            error = found if isinstance(found, OSError) else error
        return ssl_failed(self._addr, self._tls, error) if is_alert(error) else None

    def _take(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            command = decode_command(*frame)
            # What a broker asks of a producer that heartbeats needs a live client to answer it.
            if command.is_response:
                self._answers[command.opaque] = command

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
            raise self._refusal(error) or self._lost(f"the connection to {self._addr} was lost: {error}") from error


def _encrypted(plain: socket.socket, addr: str, tls: Contexts[ssl.SSLContext]) -> socket.socket:
    """Shake hands over `plain`, within the time that it has. Raises TlsFailed, Unreachable or BadTls."""
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
    """Requests to one address over one connection, `_WINDOW` of them ahead of their answers."""

    def __init__(self, net: BlockingNet, addr: str) -> None:
        self._net = net
        self._addr = addr
        self._commands: list[RemotingCommand] = []
        self._opaques: list[int] = []
        self._connection: _Connection | None = None
        self._error: MQError | None = None

    def add(self, command: RemotingCommand) -> None:
        self._commands.append(command)

    def start(self, deadline: float) -> None:
        """Send the first window."""
        try:
            self._connection = self._net.take(self._addr, deadline)
            self._send_up_to(_WINDOW, deadline)
        except MQError as error:
            self._error = error

    def finish(self, deadline: float) -> list[RemotingCommand | MQError]:
        """Collect all answers, in order; after an error all that are missing are that error."""
        results: list[RemotingCommand | MQError] = []
        for n, command in enumerate(self._commands):
            if self._error is None and self._connection is not None:
                try:
                    results.append(self._connection.answer(self._opaques[n], command, deadline))
                    self._send_up_to(n + 1 + _WINDOW, deadline)
                    continue
                except MQError as error:
                    self._error = error
            if len(results) == n:
                results.append(self._error or ConnectionClosed("not sent"))
        if self._connection is not None and self._error is None:
            self._net.give_back(self._addr, self._connection)
            self._connection = None
        return results

    def abandon(self) -> None:
        """Close the connection unless it is back in the pool: answers may still be on their way over it."""
        if self._connection is not None:
            self._connection.close()

    def _send_up_to(self, count: int, deadline: float) -> None:
        assert self._connection is not None
        for command in self._commands[len(self._opaques) : count]:
            self._opaques.append(self._connection.send(command, deadline))


class Flight:
    """Requests on their way. `finish` takes the answers; without it `abandon` closes the connections they are on."""

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
        """Wait for all answers, from now on for as long as the time-out says; they are in the requests' order."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        try:
            answers = {addr: iter(pipeline.finish(deadline)) for addr, pipeline in self._pipelines.items()}
        finally:
            self.abandon()
        return [next(answers[addr]) for addr in self._addrs]

    def abandon(self) -> None:
        """Give up answers that were not taken."""
        for pipeline in self._pipelines.values():
            pipeline.abandon()


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

    def now(self) -> float:
        return time.time()

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        (result,) = await self.invoke_many([(addr, command)], timeout_ms)
        if isinstance(result, MQError):
            raise result
        return result

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        return self.launch(requests, timeout_ms).finish()

    def launch(self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int) -> Flight:
        """Send requests now and take their answers later. What fails already is an error among the answers."""
        return Flight(self, [(addr, signed(command, self._credentials)) for addr, command in requests], timeout_ms)

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        connection = self.take(addr, deadline)
        try:
            connection.send(signed(command, self._credentials), deadline, ONEWAY_FLAG)
        except BaseException:
            connection.close()
            raise
        self.give_back(addr, connection)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to hold up

    def lock(self) -> Lock:
        return _ThreadLock()

    async def close(self) -> None:
        with self._lock:
            self._closed = True
        self.abandon()

    def abandon(self) -> None:
        """Close this process's handles of idle connections. In a forked child the parent's go on: no FIN is sent."""
        idle, self._idle = self._idle, {}
        for connection in itertools.chain.from_iterable(idle.values()):
            connection.close()

    def take(self, addr: str, deadline: float) -> _Connection:
        """A connection that nobody else uses. Raises Unreachable, or ConnectionClosed where the client is closed."""
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

    def give_back(self, addr: str, connection: _Connection) -> None:
        """Keep a connection on which no answer is outstanding."""
        connection.idle_since = time.monotonic()
        with self._lock:
            if not self._closed:
                self._idle.setdefault(addr, []).append(connection)
                return
        connection.close()
