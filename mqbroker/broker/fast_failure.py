"""Fast failure: a request that waited too long is answered SYSTEM_BUSY before its sender times out.

Requests wait in sockets: those read last in a reactor turn wait for those read first. The wait is measured to the
millisecond from the start of the turn. Settings and remarks are those of BrokerFastFailure of 4.9.7, where requests
wait in thread pool queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Protocol

import attrs

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import Answered, HandlerTable, IConnection, PlainHandler, PlainRead, Taken
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.requests import REQUESTS, WaitQueue

#: Settings that may change at runtime.
KEYS = (
    "brokerFastFailureEnable",
    "waitTimeMillsInSendQueue",
    "waitTimeMillsInPullQueue",
    "waitTimeMillsInHeartbeatQueue",
    "waitTimeMillsInTransactionQueue",
    "osPageCacheBusyTimeOutMills",
)
_NEVER = float("inf")


class Turns(Protocol):
    """Knows when the current iteration of the reactor began."""

    turn_began: float


class TickingTurnClock:
    """Estimates the start of reactor turns with a timer, for a reactor that does not report it."""

    #: The interval at which to call `tick`.
    SECONDS = 0.1

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.turn_began = _NEVER

    def tick(self) -> None:
        # The reactor may have slept that long with no request waiting.
        self.turn_began = self._now() + self.SECONDS


@attrs.define
class _Limit:
    """The longest wait of requests of one wait queue."""

    is_send: bool
    seconds: float = _NEVER


class FastFailure:
    """Wraps the handlers of requests with a limited wait."""

    def __init__(self, turns: Turns, live: LiveSettings) -> None:
        self._turns = turns
        self._limits = {queue: _Limit(queue is WaitQueue.SEND) for queue in WaitQueue}
        self._log_busy_seconds = _NEVER
        #: When the previous sends were accepted.
        self._sends_taken = _NEVER
        self._settings_changed(live.current)
        live.follow(self._settings_changed, *KEYS)

    def _settings_changed(self, settings: BrokerSettings) -> None:
        for queue, wait_ms in (
            (WaitQueue.SEND, settings.wait_time_ms_in_send_queue),
            (WaitQueue.PULL, settings.wait_time_ms_in_pull_queue),
            (WaitQueue.HEARTBEAT, settings.wait_time_ms_in_heartbeat_queue),
            (WaitQueue.TRANSACTION, settings.wait_time_ms_in_transaction_queue),
        ):
            self._limits[queue].seconds = wait_ms / 1000 if settings.broker_fast_failure_enable else _NEVER
        self._log_busy_seconds = settings.os_page_cache_busy_time_out_ms / 1000

    def watch(self, table: HandlerTable) -> None:
        """Wrap the handlers registered so far."""
        for code, request in REQUESTS.items():
            if request.wait_queue is not None:
                limit = self._limits[request.wait_queue]
                table.wrap(code, partial(self._guarded, limit=limit))
                if code in table.plain:
                    table.plain[code] = self._unless_late(table.plain[code], limit)

    def _unless_late(self, handler: PlainHandler, limit: _Limit) -> PlainHandler:
        """Leave requests that waited too long to the handler that refuses them."""
        turns = self._turns

        def take(reads: Sequence[PlainRead]) -> Taken | Answered | None:
            now = reads[0][2].last_active
            if now - turns.turn_began >= limit.seconds:
                return None
            if limit.is_send:
                self._sends_taken = now
            return handler(reads)

        return take

    def _guarded(self, handler: Callable[[Any, IConnection], Any], limit: _Limit) -> Any:
        turns = self._turns

        @wraps(handler)
        def guarded(requests: Any, connection: IConnection) -> Any:
            now = connection.last_active
            if now - turns.turn_began >= limit.seconds:
                raise self._refusal(requests, connection, limit)
            if limit.is_send:
                self._sends_taken = now
            return handler(requests, connection)

        return guarded

    def _refusal(self, requests: Any, connection: IConnection, limit: _Limit) -> Refused:
        now = connection.last_active
        waited_ms = int((now - self._turns.turn_began) * 1000)
        size = len(requests) if isinstance(requests, list) else 1
        why = "TIMEOUT_CLEAN_QUEUE"
        if limit.is_send and now - max(self._sends_taken, self._turns.turn_began) >= self._log_busy_seconds:
            why = "PCBUSY_CLEAN_QUEUE"  # the previous sends took that long to append
        return Refused(
            ResponseCode.SYSTEM_BUSY,
            f"[{why}]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {size}",
        )
