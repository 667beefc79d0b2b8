"""Requests with long bodies: handled in steps, between which others are served; short ones at once."""

from __future__ import annotations

from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from mqbroker.errors import Refused
from mqbroker.remoting.cooperative_tasks import StepRunner, run_at_once
from mqbroker.remoting.handlers import Call
from mqbroker.remoting.limits import Shares
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.registration import Steps

T = TypeVar("T")

#: A shorter body is handled at once: some hundred entries, a few ms.
SHORT_BYTES = 64 * 1024
#: Each takes a ms or two.
STEPS_AT_ONCE = 4
#: Bytes of long bodies that are being handled, of all connections.
BYTES_MAX = 64 * 1024 * 1024


class LongRequests:
    """Runs requests in steps of the reactor `clock`, a bounded number of bytes at a time."""

    def __init__(self, clock: IReactorTime) -> None:
        self._runner = StepRunner(clock)
        self._shares = Shares()

    def run(self, call: Call[Any], steps: Steps[T]) -> T | Deferred[T]:
        """Handle a request. Raises, or fails, as `steps` does, and Refused if too many are being handled."""
        size = len(call.request.body)
        if size <= SHORT_BYTES:
            return run_at_once(steps)
        if not self._shares.acquire(call.connection, size, BYTES_MAX):
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._shares.taken} bytes of long requests are being handled")

        try:
            for _ in range(STEPS_AT_ONCE):  # what cannot be read, or has few entries, is answered at once
                next(steps)
        except BaseException as end:
            self._shares.give_back(call.connection, size)
            if isinstance(end, StopIteration):
                result: T = end.value
                return result
            raise

        async def run() -> T:
            try:
                return await self._runner.run(steps)
            finally:
                self._shares.give_back(call.connection, size)

        return Deferred.fromCoroutine(run())
