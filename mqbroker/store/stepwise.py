"""Long work while a store is opened: done at once, or in turns that let the reactor serve others, with progress lines
in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

T = TypeVar("T")
#: Maximum duration of one turn, and interval of progress lines, seconds.
TURN_S = 0.05
SAY_EVERY_S = 2.0
_MIB = 1024 * 1024

log = Logger()


class Progress(NamedTuple):
    """Progress of `what`: done and total, in bytes or in `unit`."""

    what: str
    done: int
    total: int
    unit: str = ""


#: Work that yields its progress now and then.
Steps = Generator[Progress, None, T]


def run_at_once(steps: Steps[T], told: Callable[[Progress], None]) -> T:
    """Run it to its end; returns its result, raises its exception."""
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        told(progress)


def run_in_turns(steps: Steps[T], clock: IReactorTime, told: Callable[[Progress], None]) -> Deferred[T]:
    """Run it in turns of the clock. Fires with its result or fails with its exception: at once, if one turn is enough.
    Cancelling ends it like an exception raised at its last yield."""
    call: IDelayedCall | None = None

    def cancel(_: Deferred[T]) -> None:
        if call is not None and call.active():
            call.cancel()
        steps.close()

    done: Deferred[T] = Deferred(cancel)

    def turn() -> None:
        nonlocal call
        end = clock.seconds() + TURN_S
        try:
            while True:
                told(next(steps))
                if clock.seconds() >= end:
                    break
        except StopIteration as result:
            done.callback(result.value)
            return
        except Exception as error:
            done.errback(error)
            return
        call = clock.callLater(0, turn)

    turn()
    return done


class ProgressLine:
    """Logs progress, every `SAY_EVERY_S` at most: short work is not logged.

    :param where: what is worked on.
    """

    def __init__(self, where: str, seconds: Callable[[], float]) -> None:
        self._where = where
        self._seconds = seconds
        self._what = ""
        self._began = self._said = 0.0
        self._began_at = 0

    def __call__(self, progress: Progress) -> None:
        now = self._seconds()
        if progress.what != self._what:
            self._what = progress.what
            self._began = self._said = now
            self._began_at = progress.done
        elif now - self._said >= SAY_EVERY_S:
            self._said = now
            self._say(progress, (progress.done - self._began_at) / (now - self._began))

    def _say(self, progress: Progress, rate: float) -> None:
        left = progress.total - progress.done
        unit, unit_size = (progress.unit, 1) if progress.unit else ("MiB", _MIB)
        log.info(
            "{where}: {what}, {done} of {total} {unit} ({percent} %), {rate} {unit}/s, about {left} s left",
            where=self._where, what=progress.what, done=f"{progress.done // unit_size:,}",
            total=f"{progress.total // unit_size:,}", percent=100 * progress.done // max(progress.total, 1), unit=unit,
            rate=round(rate / unit_size, 1), left=round(left / rate) if rate > 0 else "?",
        )  # fmt: skip
