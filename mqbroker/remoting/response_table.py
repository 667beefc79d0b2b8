"""Response table: requests sent on a connection and awaiting their responses, by opaque.

It does no I/O and imports no event loop, so every client can use it: the owner provides a clock and timers, writes the
frames and reads the responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

import attrs

from mqbroker.errors import MQError, RequestTimedOut
from mqbroker.wire.command import RemotingCommand

OPAQUE_MASK = 0x7FFFFFFF

#: A timer that fires at least this late means that the loop was busy and received data is not read yet.
_LATE_S = 0.05
_EXTENSION_S = 0.5
#: A loop that is late each time has read what had arrived by then; more extensions would keep a timeout from ending.
_EXTENSIONS_MAX = 3
#: Clocks round: a timer may fire this much early.
_EARLY_S = 1e-6


class Timer(Protocol):
    """A delayed call that can be cancelled."""

    def cancel(self) -> object: ...


#: Returns the time in seconds on a clock that is never set; timers that fire early because theirs was set are repeated.
Now = Callable[[], float]
CallLater = Callable[[float, Callable[[], None]], Timer]
#: Called once, with the response or with the error that ended the request.
Complete = Callable[[RemotingCommand | MQError], object]


def extension_s(due: float, now: float, made: int = 0) -> float:
    """Seconds by which a timeout due at `due` is extended, 0 if it has expired. `made`: its extensions so far.

    Time in which the loop was blocked is not counted: a response may have arrived that was not read.
    """
    return max(now - due, _EXTENSION_S) if now - due >= _LATE_S and made < _EXTENSIONS_MAX else 0.0


def left_s(due: float, now: float) -> float:
    """Seconds until `due`; a short extension if it has passed, since the loop was late."""
    return due - now if due > now else _EXTENSION_S


class Timeout:
    """Calls `on_timeout` once after `seconds`, unless cancelled; see `extension_s` for a loop that was blocked."""

    def __init__(self, now: Now, call_later: CallLater, seconds: float, on_timeout: Callable[[], object]) -> None:
        self.is_over = False
        self._extensions = 0
        self._now = now
        self._call_later = call_later
        self._on_timeout = on_timeout
        self._due = now() + seconds
        self._timer: Timer | None = call_later(seconds, self._expire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._now()
        if now < self._due - _EARLY_S:  # the timers follow a clock that was set forward, `now` does not
            self._timer = self._call_later(self._due - now, self._expire)
            return
        more_s = extension_s(self._due, now, self._extensions)
        if more_s:
            self._extensions += 1
            self._due = now + more_s
            self._timer = self._call_later(more_s, self._expire)
        else:
            self.is_over = True
            self._on_timeout()


@attrs.define(eq=False)
class Opaques:
    """The numbers of requests. `last`: the one given last, 0 before the first."""

    last: int = 0


@attrs.define(eq=False)
class PendingRequest:
    """A request awaiting its response. Its timeout starts when it is written."""

    opaque: int
    command: RemotingCommand
    timeout_ms: int
    complete: Complete
    owner: object = None
    written_at: float = inf
    due: float = inf
    extensions: int = 0


def _no_timers(seconds: float, what: Callable[[], None]) -> Timer:
    raise AssertionError("this response table was made without timers")


class ResponseTable:
    """The pending requests of one connection. Each ends once: answered, timed out, lost or forgotten."""

    def __init__(
        self,
        peer: str,
        now: Now,
        call_later: CallLater = _no_timers,
        on_silence: Callable[[], None] | None = None,
        opaques: Opaques | None = None,
    ) -> None:
        """`on_silence` is called if a request timed out and nothing was heard (`heard_at`) since it was written.

        The peer may have vanished without closing the connection; a new connection shows that. `opaques` may be shared
        with other connections.
        """
        self.peer = peer
        self.heard_at = -inf
        self._now = now
        self._call_later = call_later
        self._on_silence = on_silence
        self._opaques = opaques or Opaques()
        self._pending: dict[int, PendingRequest] = {}
        self._timer: Timer | None = None
        self._timer_due = inf

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def has_heard(self) -> bool:
        """Whether the peer has ever answered."""
        return self.heard_at > -inf

    @property
    def largest_bytes(self) -> int:
        """Approximate size of the largest unanswered frame."""
        return max((len(request.command.body) for request in self._pending.values()), default=0)

    def next_opaque(self) -> int:
        opaque = self._opaques.last = (self._opaques.last + 1) & OPAQUE_MASK
        return opaque

    def reserve_opaques(self, count: int) -> int:
        """The first of `count` opaques, one after the other."""
        opaques = self._opaques
        if opaques.last + count > OPAQUE_MASK:
            opaques.last = 0
        first = opaques.last + 1
        opaques.last += count
        return first

    def add(
        self, opaque: int, command: RemotingCommand, timeout_ms: int, complete: Complete, owner: object = None
    ) -> PendingRequest:
        """Add a request of `owner` about to be written with an opaque from `next_opaque`."""
        request = self._pending[opaque] = PendingRequest(opaque, command, timeout_ms, complete, owner)
        return request

    def written(self, requests: Iterable[PendingRequest], seconds: float | None = None) -> None:
        """Start the timeouts of `requests`: each request's own, or `seconds`."""
        now = self._now()
        for request in requests:
            request.written_at = now
            request.due = now + (request.timeout_ms / 1000 if seconds is None else seconds)
            if request.due < self._timer_due and request.opaque in self._pending:
                self._set_timer(request.due, now)

    def answer(self, command: RemotingCommand, now: float) -> bool:
        """Complete the request that `command` answers. Return False if no such request is pending."""
        self.heard_at = now
        request = self._pending.pop(command.opaque, None)
        if request is None:
            return False
        if not self._pending:
            self._stop_timer()
        request.complete(command)
        return True

    def forget(self, opaque: int) -> None:
        """Remove a request; a late response to it is dropped."""
        self._pending.pop(opaque, None)
        if not self._pending:
            self._stop_timer()

    def give_up(self, owner: object, error: MQError) -> None:
        """Complete the requests of `owner` with an error; late responses to them are dropped."""
        for opaque in [opaque for opaque, request in self._pending.items() if request.owner is owner]:
            request = self._pending.pop(opaque, None)
            if request is not None:  # a callback may forget other requests
                request.complete(error)
        if not self._pending:
            self._stop_timer()

    def lost(self, why: Callable[[int], MQError]) -> None:
        """Complete all requests after connection loss, with errors from `why(size of the largest request)`."""
        self._on_silence = None  # a reference to the owner: break the cycle
        self._stop_timer()
        largest = self.largest_bytes
        while self._pending:  # a callback may forget other requests
            request = self._pending.pop(next(iter(self._pending)))
            request.complete(why(largest))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_due = None, inf

    def _set_timer(self, due: float, now: float) -> None:
        # One timer, for the earliest due request; it keeps running if that one is answered and others are pending.
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._call_later(max(0.0, due - now), self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_due = None, inf
        now = self._now()
        is_silent = False
        try:
            for request in [each for each in self._pending.values() if each.due <= now + _EARLY_S]:
                more_s = extension_s(request.due, now, request.extensions)
                if more_s:
                    request.extensions += 1
                    request.due = now + more_s
                elif self._pending.pop(request.opaque, None) is not None:
                    what = f"{request.command.describe()}: no answer from {self.peer} in {request.timeout_ms} ms"
                    is_silent |= self.heard_at < request.written_at
                    request.complete(RequestTimedOut(what))
        finally:  # a callback that fails leaves the others their timeouts
            due = min((request.due for request in self._pending.values()), default=inf)
            if due < self._timer_due:
                self._set_timer(due, now)
        if is_silent and self._on_silence is not None:
            self._on_silence()
