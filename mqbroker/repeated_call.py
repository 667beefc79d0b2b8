"""Calls that are repeated as long as a service runs, whatever becomes of one of them."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()


class RepeatedCall(LoopingCall):
    """A LoopingCall that goes on after a failure, where Twisted's ends for good, and may be restarted during a call.

    The first of several failures in a row is logged with its traceback, and the success that ends them.
    """

    def __init__(self, function: Callable[..., object], *args: object, clock: IReactorTime) -> None:
        # Not Twisted's, which installs the global reactor: the program may still choose one.
        self.f, self.a, self.kw, self.clock = self._call_once, (), {}, clock
        self._function, self._args = function, args
        self._has_failed = False

    def start(self, interval: float, now: bool = True) -> Deferred[LoopingCall]:
        if self.running or self._deferred is None:
            return super().start(interval, now)
        # It was stopped during a call: when that ends, Twisted's would have two loops, and never stop one of them.
        self.running, self.interval, self.starttime = True, interval, self.clock.seconds()
        return self._deferred

    def _call_once(self) -> Deferred[None] | None:
        try:
            result = self._function(*self._args)
        except BaseException:  # as maybeDeferred does
            result = Failure()  # type: ignore[no-untyped-call]
        if result is None:  # most calls: no Deferred is needed
            self._worked(None)
            return None
        return maybeDeferred(lambda: result).addCallbacks(self._worked, self._not_worked)

    def _worked(self, _: object) -> None:
        if self._has_failed:
            self._has_failed = False
            log.info("{name} works again", name=self._name)

    def _not_worked(self, failure: Failure) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.failure("{name} failed and is called again every {s:g} s", failure, name=self._name, s=self.interval)

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", type(self._function).__name__)
