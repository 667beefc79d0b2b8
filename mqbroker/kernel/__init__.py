"""The compiled part of the hot path, where the machine that installed the package had a C compiler.

Each function takes a prefix of what it is given, as long as that is plain, and says how far it came; the caller does
the next piece in Python, which is the specification, and calls again. Bytes in, values out: nothing of it holds memory
of a file between two calls. What it reads in each turn - of each connection `Socket` and `Peer`, of the commit log
`LogTail` - has fields that it reaches without a lookup. Knows nothing of the other packages.

`compiled` is None without it, or where the environment says ``MQBROKER_KERNEL=off``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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

    descriptor: of the socket, -1 while none is open. is_free: whether what is sent over it now comes in its turn.
    is_reading: whether it is to be read. shared_reads: what reads it, where others are read together with it.
    protocol: gets what was read.
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
    #: What new records wait in before they are written to the segment; why appends are refused.
    _transient: Any
    _refusals: dict[Any, str]
    #: Consume queues that were numbered on for records which are not stored yet, and their former next offsets.
    _unstored: NextOffsets
    #: A deque of what is not yet dispatched, and the type of what it has.
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
    LogTail = compiled.LogTail
