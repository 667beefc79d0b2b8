"""The compiled part of the hot path, where the machine that installed the package had a C compiler.

Each function takes a prefix of what it is given, as long as that is plain, and says how far it came; the caller does
the next piece in Python, which is the specification, and calls again. Bytes in, values out: nothing of it holds memory
of a file, or state of a store, between two calls. What it reads of each connection in each turn, `Socket` and `Peer`,
has fields that it reaches without a lookup. Knows nothing of the other packages.

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


if not TYPE_CHECKING and compiled is not None:
    Socket, Peer, OffsetClock = compiled.Socket, compiled.Peer, compiled.OffsetClock
