"""Fast failure: a request that waited too long to be handled is answered SYSTEM_BUSY while its sender still waits.

Requests wait in sockets: of all that the reactor finds ready at once, the last wait for the first. How long is
known to the millisecond, by the beginning of the reactor's turn. Settings and remarks are those of BrokerFastFailure of
4.9.7, whose requests wait in the queues of thread pools.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Protocol

import attrs

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.requests import REQUESTS, WaitQueue

#: The keys that may be changed while it goes on.
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
    """Tells when the reactor's turn began."""

    turn_began: float


class TickingTurnClock:
    """Turns of a reactor that does not tell of them, as far as a timer notices: its ticks come when a turn begins."""

    #: How often `tick` is to be called.
    SECONDS = 0.1

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.turn_began = _NEVER

    def tick(self) -> None:
        # It may have slept for as long, and nothing have waited.
        self.turn_began = self._now() + self.SECONDS


@attrs.define
class _Limit:
    """How long requests of one wait queue may wait."""

    is_send: bool
    seconds: float = _NEVER


class FastFailure:
    """Wraps the handlers of requests that may not wait long."""

    def __init__(self, turns: Turns, live: LiveSettings) -> None:
        self._turns = turns
        self._limits = {queue: _Limit(queue is WaitQueue.SEND) for queue in WaitQueue}
        self._log_busy_seconds = _NEVER
        #: When the sends before these were taken.
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
        """Wrap the handlers that are registered by now."""
        for code, request in REQUESTS.items():
            if request.wait_queue is not None:
                table.wrap(code, partial(self._guarded, limit=self._limits[request.wait_queue]))

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
            why = "PCBUSY_CLEAN_QUEUE"  # what was sent before these took that long to be appended
        return Refused(
            ResponseCode.SYSTEM_BUSY,
            f"[{why}]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {size}",
        )
