"""Our own servers behind real sockets on loopback: threads carry the bytes to the protocols in memory."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import attrs
from twisted.python.failure import Failure

from mqbroker.wire.command import RemotingCommand, encode_command
from tests.client.faults import TappedFactory
from tests.client.own_cluster import OwnCluster
from tests.remoting.link import CLIENT, SERVER, End


class Accepted:
    """A connection that was accepted: plain, or encrypted by `tls`, whose state is under the lock."""

    def __init__(self, raw: socket.socket, tls: ssl.SSLContext | None, lock: threading.RLock) -> None:
        self._raw, self._lock = raw, lock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None if tls is None else tls.wrap_bio(self._in, self._out, server_side=True)
        self._is_shaken = False

    def receive(self) -> bytes:
        """What the client sent; nothing at the end."""
        while True:
            try:
                data = self._raw.recv(65536)
            except OSError:
                return b""
            if not data or self._tls is None:
                return data
            with self._lock:
                self._in.write(data)
                try:
                    data = self._decrypted(self._tls)
                except ssl.SSLError:
                    self._flush()
                    self._part()
                    return b""
                self._flush()
            if data:
                return data

    def _decrypted(self, tls: ssl.SSLObject) -> bytes:
        found = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self._is_shaken:
                tls.do_handshake()
                self._is_shaken = True
            while data := tls.read(65536):
                found += data
            with contextlib.suppress(OSError):  # the client says goodbye, and may wait for an answer
                tls.unwrap()
                self._flush()
            self.shut_down()
        return found

    def send(self, data: bytes) -> None:
        with self._lock:
            if self._tls is None:
                self._raw.sendall(data)
            else:
                self._tls.write(data)
                self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):  # the client may have gone
            self._raw.sendall(self._out.read())

    def _part(self) -> None:
        """Let the other side read what it was told."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_WR)
            while self._raw.recv(65536):
                pass

    def shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._raw.close()


class Loopback(OwnCluster):
    """A name server and a broker, "a". `addr` is the name server's; `connections` are those to the broker."""

    def __init__(self, root: Path, tls: ssl.SSLContext | None = None) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.addr, self.broker_addr = (f"127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners)
        self.connections: list[Accepted] = []
        self._open: list[tuple[End, Accepted]] = []
        super().__init__(root, self.addr, {"a": self.broker_addr}, is_eager=False)
        self._tls = tls
        self._accepted = threading.Condition()
        self._threads: list[threading.Thread] = []
        for listener, addr in zip(self._listeners, (self.addr, self.broker_addr), strict=True):
            self._begin(self._accept, listener, self.network.servers[addr])

    def wait_for_connections(self, count: int) -> None:
        """A client's connection may be used and closed before it is accepted here."""
        with self._accepted:
            assert self._accepted.wait_for(lambda: len(self.connections) >= count, 30)

    def ask_client(self, requests: Sequence[RemotingCommand]) -> SimpleQueue[RemotingCommand]:
        """Send requests over the newest connection to the broker; a queue that their answers come into."""
        answers: SimpleQueue[RemotingCommand] = SimpleQueue()
        asked = [attrs.evolve(request, opaque=1000 + n) for n, request in enumerate(requests)]
        with self.lock:
            self.faults.answers = answers.put
            newest = [each for each in self.faults.connections if each.addr == self.broker_addr][-1]
            newest.write(b"".join(map(encode_command, asked)))
            self.settle()
        return answers

    def settle(self) -> None:
        with self.lock:
            super().settle()
            for end, accepted in list(self._open):
                with contextlib.suppress(OSError):
                    if end.outbox:
                        accepted.send(end.taken(len(end.outbox)))
                if end.closing is not None:
                    accepted.shut_down()

    def close(self) -> None:
        self.stop_listening()
        super().close()

    def stop_listening(self) -> None:
        for listener in self._listeners:
            if listener.fileno() != -1:
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
        with self.lock:
            for _, accepted in self._open:
                accepted.shut_down()
        for thread in self._threads:
            thread.join(10)

    def _begin(self, function: object, *args: object) -> None:
        self._threads.append(threading.Thread(target=function, args=args, daemon=True))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, factory: TappedFactory) -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            accepted = Accepted(raw, self._tls, self.lock)
            if factory.addr == self.broker_addr:
                with self._accepted:
                    self.connections.append(accepted)
                    self._accepted.notify_all()
            self._begin(self._serve, accepted, factory)

    def _serve(self, accepted: Accepted, factory: TappedFactory) -> None:
        end, protocol = End(CLIENT, SERVER), factory.buildProtocol(CLIENT)
        with self.lock:
            self._open.append((end, accepted))
            protocol.makeConnection(end)
            self.settle()
        while end.closing is None and (data := accepted.receive()):
            with self.lock:
                if end.closing is None:
                    protocol.dataReceived(data)
                self.settle()
        with self.lock:
            self._open.remove((end, accepted))
            protocol.connectionLost(end.closing or Failure(ConnectionError("closed")))
            self.settle()
        accepted.close()
