"""Connections to a master's replication port that say what no slave would, or too much, or nothing, or do not read."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from random import Random

from mqbroker.ha.election import GroupSettings
from mqbroker.ha.link import REPORT, BadPeer, Greeting, SlaveLink

GIANT = 2**62


def greetings(cluster: str, broker: str, epoch: int, ids: list[int]) -> Iterator[bytes]:
    """Forged ones: of another group, of other epochs, with the ids of `ids` and of nobody."""
    prefix = GroupSettings(cluster=cluster, broker=broker, replica_id=1, ttl_s=1).prefix
    digest = sha256(prefix.encode()).digest()[:8]
    yield Greeting(bytes(8), epoch, 1).encode()
    for other in (-1, 0, epoch - 1, epoch + 1, GIANT):
        yield Greeting(digest, other, 1).encode()
    for replica_id in (*ids, -1, 0, GIANT):
        yield Greeting(digest, epoch, replica_id).encode()


def lies(rng: Random, forged: list[bytes]) -> Iterator[bytes]:
    """What each of the connections sends."""
    for size in (1, 7, 8, 9, 64, 4096, 100_000):
        yield rng.randbytes(size)
    offsets = (GIANT, -1, -2, -3, 2**63 - 1, -(2**63))
    for offset in offsets:
        yield REPORT.pack(offset)
        yield REPORT.pack(0) + REPORT.pack(offset)
        yield REPORT.pack(offset) * 1000
    for greeting in forged:
        yield greeting
        yield greeting[:20]
        for offset in offsets:
            yield greeting + REPORT.pack(offset)
            yield greeting + REPORT.pack(0) + REPORT.pack(offset)
        yield greeting + rng.randbytes(100)


class BadSlaves:
    """Open connections to `address`; `close` ends them."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._open = ExitStack()

    def say(self, data: bytes) -> None:
        """Connect and send; the master may have closed the connection before all was sent."""
        with suppress(OSError):
            connection = self._open.enter_context(socket.create_connection(self._address, 5))
            connection.sendall(data)

    def say_all(self, rng: Random, forged: list[bytes]) -> None:
        for data in lies(rng, forged):
            self.say(data)

    def never_read(self, count: int) -> None:
        """Ask for the log over so many connections, and read nothing of it."""
        for _ in range(count):
            self.say(REPORT.pack(0))

    def close(self) -> None:
        self._open.close()


class Forger:
    """A peer that says it is a slave, and acknowledges all that it is sent; it ends with the connection."""

    def __init__(self, address: tuple[str, int], greeting: bytes) -> None:
        """`greeting`: that of a group; else empty, and it begins as a slave of the Java system without a log."""
        #: How much of the log it got.
        self.bytes_got = 0
        self._link = SlaveLink()
        self._link.is_greeting = bool(greeting)
        self._socket = socket.create_connection(address, 5)
        self._socket.sendall(greeting or REPORT.pack(0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end = 0
        with suppress(OSError, BadPeer):
            while data := self._socket.recv(1 << 18):
                for offset, piece in self._link.receive(data):
                    if offset >= 0:
                        self.bytes_got += len(piece)
                        end = max(end, offset + len(piece))
                self._socket.sendall(REPORT.pack(end))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
