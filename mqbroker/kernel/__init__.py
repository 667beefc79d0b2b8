"""The compiled part of the hot path, where the machine that installed the package had a C compiler.

Each function handles the longest supported prefix of its input, and returns its length; the caller handles the next
item in Python, which is the specification, and calls again. Bytes in, values out: no function keeps a reference to a
file's memory between two calls. Objects that it reads in each iteration of the reactor (`Socket` and `Peer` of each
connection, `LogTail` of the commit log) have fields that it accesses without a lookup. Imports no other package.

`compiled` is None without it, or where the environment says ``MQBROKER_KERNEL=off``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _load() -> ModuleType | None:
    if os.environ.get("MQBROKER_KERNEL") == "off":
        return None
    try:
        from mqbroker.kernel import compiled
    except ImportError:
        return None
    return compiled


compiled = _load()


class Socket:
    """Base of a transport whose socket may be read and written directly.

    descriptor: of the socket, -1 while none is open. is_free: whether nothing else waits to be sent, so that bytes sent
    now stay in order. is_reading: whether it is read from. shared_reads: reads it together with others, if set.
    protocol: receives the bytes.
    """

    descriptor: int = -1
    is_free: bool = True
    is_reading: bool = False
    shared_reads: Any = None
    protocol: Any = None


class Peer:
    """Base of a protocol whose plain requests may be taken together with those of others.

    socket: where responses may be sent directly while it `is_free`; None if they may not, and once closed.
    may_take_plain: whether plain requests may be taken from what is read next: nothing that came before waits.
    last_active: seconds on the clock when bytes last came, or were sent. from_address: what all connections from its
    address share.
    """

    socket: Socket | None = None
    may_take_plain: bool = False
    last_active: float = 0.0
    from_address: Any = None


class OffsetClock:
    """Base of a clock that is `ahead` of a monotonic one; calling it returns seconds.

    `look` is called with the monotonic time once that has come to `fresh_until`, and sets both anew.
    """

    monotonic: Callable[[], float]
    ahead: float
    fresh_until: float

    def __call__(self) -> float:
        now = self.monotonic()
        if now >= self.fresh_until:
            self.look(now)
        return now + self.ahead

    def look(self, now: float) -> None:
        raise NotImplementedError


class Slots:
    """Base of a bound of sends in flight, by number and bytes; a larger one goes alone.

    Those that wait for a slot are in `_waiting`; `_granted` of them have one and did not resume yet.
    """

    def __init__(self, count_max: int, bytes_max: int, waiting: Sized) -> None:
        self._count_max, self._bytes_max, self._waiting = count_max, bytes_max, waiting
        self._granted = self._count = self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether a further send must wait."""
        return self._count >= self._count_max or self._bytes >= self._bytes_max

    def acquired(self, size: int, count: int = 1) -> bool:
        """Acquire a slot for `size` bytes, or several of `size` together; False if they must be waited for: others wait
        already, or there is no room."""
        return not self._waiting and not self._granted and self._occupied(size, count)

    def _occupied(self, size: int, count: int = 1) -> bool:
        """Whether there was room, which is taken now; there always is for one alone."""
        after = self._count + count
        if after > 1 and (after > self._count_max or self._bytes + size > self._bytes_max):
            return False
        self._count = after
        self._bytes += size
        return True


#: Consume queues, and the queue offsets of the next messages that are appended to them.
NextOffsets = list[tuple[Any, int]]


class LogTail:
    """Base of a log of segments, which is appended to at its `end`.

    Compiled, `append_encoded` does itself what needs nothing but a copy: where the pages are ready and no segment is
    wanted. The rest it leaves to `append_unready`.
    """

    #: Offsets: the end, where the last segment begins, where its last record ends at most. The newest store timestamp.
    end: int
    _base: int
    _limit: int
    last_timestamp_ms: int
    #: The last segment; how far it may be written, and until when (ms); above which end the next one is wanted.
    _buffer: Any
    _readied_to: int
    _readied_until: int
    _next_wanted_at: int
    #: The buffer of new records before they are written to the segment, if any; why appends are refused.
    _transient: Any
    _refusals: dict[Any, str]
    #: Consume queues whose next offsets count records that are not stored yet, with their former next offsets.
    _unstored: NextOffsets
    #: A deque of the runs that are not yet dispatched, and their type.
    dispatch_queue: Any
    run_type: Any
    #: Called when something is about to be dispatched, and nothing was before; when the log has grown for its readers.
    on_dispatchable: list[Callable[[], None]]
    on_growth: list[Callable[[], None]]

    def next_place(self, now_ms: int) -> tuple[int, int, int]:
        """For records that are encoded at `now_ms`: their store timestamp (ms), the offset of the first, and bytes that
        they may take in the segment; none while appends are refused."""
        if self._unstored:  # memory was out as well when it was to be done
            self._take_back_numbers()
        return max(now_ms, self.last_timestamp_ms), self.end, 0 if self._refusals else self._limit - self.end

    def append_encoded(self, data: bytes, count: int, last: int, now: int, numbers: NextOffsets) -> None:
        """Append records that were encoded for `next_place`, of which `now` is the timestamp. `last`: where the last of
        them begins in `data`. Their queues get `numbers`. Raises what `append_unready` does."""
        self.append_unready(data, count, last, now, numbers)

    def append_unready(self, data: bytes, count: int, last: int, now: int, numbers: NextOffsets) -> None:
        raise NotImplementedError

    def _take_back_numbers(self) -> None:
        raise NotImplementedError


if not TYPE_CHECKING and compiled is not None:
    Socket, Peer, OffsetClock = compiled.Socket, compiled.Peer, compiled.OffsetClock
    LogTail, Slots = compiled.LogTail, compiled.Slots
