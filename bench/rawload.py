"""Requests put to a broker as they are, many at once: for loads that the load generator does not make.

Frames are made before the clock starts, so that little is left to do beside the broker's own work.
"""

import selectors
import socket
import time
from collections.abc import Callable, Sequence

from bench.rmqload import LoadFailed
from mqbroker.wire.command import FrameDecoder

#: How many connections a load uses, and how many requests are in flight on each.
CONNECTIONS = 4
DEPTH = 64
_LIMIT_S = 240.0


class _Peer:
    """One connection: so many requests at once, and the next when all those are answered."""

    def __init__(self, port: int, frames: Sequence[bytes], take: Callable[[bytes], None]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = frames
        self._take = take
        self._decoder = FrameDecoder()
        self._next = 0
        self._awaited = 0

    def send(self) -> bool:
        """Send the next requests; False where there are none."""
        frames = self._frames[self._next : self._next + DEPTH]
        self._next += len(frames)
        self._awaited = len(frames)
        self.socket.sendall(b"".join(frames))
        return bool(frames)

    def receive(self) -> bool:
        """Take what came; False when all requests are answered."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise LoadFailed("the broker closed a connection")
        for _, header, _ in self._decoder.feed(data):
            self._take(bytes(header))
            self._awaited -= 1
        return self._awaited > 0 or self.send()


def exchange(port: int, frames: Sequence[bytes], take: Callable[[bytes], None]) -> float:
    """Put all requests to the broker at `port` and give the header of each answer to `take`; how long it took, s.

    Raises LoadFailed.
    """
    share = -(-len(frames) // CONNECTIONS)
    peers = [_Peer(port, frames[at : at + share], take) for at in range(0, len(frames), share)]
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            peer.send()
            selector.register(peer.socket, selectors.EVENT_READ, peer)
        while selector.get_map():
            found = selector.select(10)
            if not found or time.monotonic() - began > _LIMIT_S:
                raise LoadFailed("requests are not answered")
            for key, _ in found:
                if not key.data.receive():
                    selector.unregister(key.fileobj)
    seconds = time.monotonic() - began
    for peer in peers:
        peer.socket.close()
    return seconds


def tell(port: int, frames: Sequence[bytes], until: Callable[[], bool]) -> float:
    """Put one-way requests to the broker; how long it took until `until` was true, s. Raises LoadFailed."""
    share = -(-len(frames) // CONNECTIONS)
    sockets = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(CONNECTIONS)]
    began = time.monotonic()
    for at in range(0, share, DEPTH):
        for number, each in enumerate(sockets):
            start = number * share + at
            each.sendall(b"".join(frames[start : min(start + DEPTH, (number + 1) * share)]))
    wait_until(until)
    seconds = time.monotonic() - began
    for each in sockets:
        each.close()
    return seconds


def wait_until(holds: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
    """Return when it holds. Raises LoadFailed when that takes too long."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise LoadFailed(f"not all is there after {limit_s:.0f} s")
        time.sleep(0.01)
