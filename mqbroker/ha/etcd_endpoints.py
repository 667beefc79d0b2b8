"""Choice among the endpoints of etcd: a member that hangs delays a request, and does not fail it.

Independent of the requests and of how they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.errors import MQError

log = Logger()

T = TypeVar("T")

#: How long an endpoint that failed or timed out is tried after all others, seconds.
SILENT_SECONDS = 10.0


class EtcdError(MQError):
    """etcd gave no usable response. The request may have been applied, or may be applied later."""


class NotDone(EtcdError):
    """A member of etcd was not reached, or refused the request, which was certainly not applied."""


@attrs.frozen
class Reply(Generic[T]):
    """`is_repeated`: another member was asked the same, may have done it before or do it later, and did not say so."""

    answer: T
    is_repeated: bool


class Endpoints:
    """The members of etcd, of which one is the current one: it is asked first, until it does not answer.

    :param first: index of the first current endpoint, modulo their number: brokers of a group begin at different ones.
    :param timeout_s: a request that no endpoint answers in this time fails. The next endpoint is asked after an equal
        part of it.
    :param on_moved: called when another endpoint becomes the current one.
    """

    def __init__(
        self,
        clock: IReactorTime,
        endpoints: Sequence[str],
        first: int,
        timeout_s: float,
        on_moved: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock, self.timeout_s = clock, timeout_s
        self._endpoints, self._current, self._on_moved = tuple(endpoints), first % len(endpoints), on_moved
        self._silent_until: dict[str, float] = {}

    @property
    def current(self) -> str:
        return self._endpoints[self._current]

    @property
    def patience_s(self) -> float:
        """How long an endpoint may take before the next one is asked, too."""
        return self.timeout_s / (len(self._endpoints) + 1)

    def ask(self, send: Callable[[str], Deferred[T]], may_repeat: bool = True) -> Deferred[Reply[T]]:
        """Ask one endpoint after the other until one answers; cancellation ends that.

        The next is asked at once if `send` fails, and after `patience_s` without an answer. Fails with EtcdError, where
        none has answered after `timeout_s`, or all have failed.

        :param send: sends the request to an endpoint; fails with NotDone or another EtcdError.
        :param may_repeat: whether the request may be sent to several. Else the next endpoint is asked after NotDone
            only.
        """
        return _Asking(self, self._in_order(), send, may_repeat).done

    def _in_order(self) -> list[str]:
        """The endpoints in order: the current one first, those that timed out lately last."""
        turned = self._endpoints[self._current :] + self._endpoints[: self._current]
        now = self.clock.seconds()
        return sorted(turned, key=lambda endpoint: self._silent_until.get(endpoint, 0.0) > now)

    def note_failed(self, endpoint: str) -> None:
        """Ask the others before this one for a while."""
        self._silent_until[endpoint] = self.clock.seconds() + SILENT_SECONDS

    def note_answer(self, endpoint: str) -> None:
        """Stay with this endpoint if the current one has failed lately."""
        self._silent_until.pop(endpoint, None)
        if endpoint != self.current and self.current in self._silent_until:
            log.info("etcd at {old} does not respond: {new} is tried first", old=self.current, new=endpoint)
            self._current = self._endpoints.index(endpoint)
            self._on_moved()

    def why_failed(self, reasons: dict[str, str]) -> str:
        """`reasons` by endpoint; the text is the same in whatever order they were asked."""
        by_reason: dict[str, list[str]] = {}
        for endpoint in self._endpoints:
            if endpoint in reasons:
                by_reason.setdefault(reasons[endpoint], []).append(endpoint)
        return "; ".join(f"etcd at {', '.join(those)} {reason}" for reason, those in by_reason.items())


class _Asking(Generic[T]):
    """One request; `done` fires with the first answer to it."""

    def __init__(
        self, endpoints: Endpoints, order: list[str], send: Callable[[str], Deferred[T]], may_repeat: bool
    ) -> None:
        self.done: Deferred[Reply[T]] = Deferred(lambda _: self._end())
        self._endpoints, self._clock, self._left = endpoints, endpoints.clock, order
        self._send, self._may_repeat = send, may_repeat
        self._has_ended = False
        #: The attempts under way, and when each began.
        self._open: dict[str, tuple[Deferred[Any], float]] = {}
        self._reasons: dict[str, str] = {}
        #: Whether an attempt has failed that may have been done.
        self._is_doubtful = False
        self._next_call: IDelayedCall | None = None
        self._deadline_call = self._clock.callLater(endpoints.timeout_s, self._time_out)
        self._next()

    def _next(self) -> None:
        """Ask the next endpoint."""
        call, self._next_call = self._next_call, None
        if call is not None and call.active():
            call.cancel()
        endpoint = self._left.pop(0)
        attempt = self._send(endpoint)
        self._open[endpoint] = attempt, self._clock.seconds()
        if self._may_repeat and self._left:
            self._next_call = self._clock.callLater(self._endpoints.patience_s, self._next)
        attempt.addCallbacks(self._answered, self._failed, callbackArgs=(endpoint,), errbackArgs=(endpoint,))

    def _answered(self, answer: T, endpoint: str) -> None:
        if self._has_ended:
            return
        del self._open[endpoint]
        now, patience_s = self._clock.seconds(), self._endpoints.patience_s
        for other, (_, asked_at) in self._open.items():
            if now - asked_at >= patience_s:
                self._endpoints.note_failed(other)
        is_repeated = self._is_doubtful or bool(self._open)
        self._end()
        self._endpoints.note_answer(endpoint)
        self.done.callback(Reply(answer, is_repeated))

    def _failed(self, failure: Failure, endpoint: str) -> None:
        if self._has_ended:
            return
        del self._open[endpoint]
        self._endpoints.note_failed(endpoint)
        if not failure.check(EtcdError, CancelledError):  # type: ignore[no-untyped-call]
            log.failure("the request to etcd failed", failure)
        self._reasons[endpoint] = failure.getErrorMessage()
        if not failure.check(NotDone):  # type: ignore[no-untyped-call]
            self._is_doubtful = True
        if self._left and (self._may_repeat or not self._is_doubtful):
            self._next()
        elif not self._open:
            self._fail()

    def _time_out(self) -> None:
        for endpoint in self._open:
            self._endpoints.note_failed(endpoint)
            self._reasons[endpoint] = f"does not answer within {self._endpoints.timeout_s:g} s"
        self._is_doubtful = True
        self._fail()

    def _fail(self) -> None:
        why, is_doubtful = self._endpoints.why_failed(self._reasons), self._is_doubtful
        self._end()
        self.done.errback((EtcdError if is_doubtful else NotDone)(why))

    def _end(self) -> None:
        self._has_ended = True
        for call in (self._next_call, self._deadline_call):
            if call is not None and call.active():
                call.cancel()
        for attempt, _ in self._open.values():
            attempt.cancel()
