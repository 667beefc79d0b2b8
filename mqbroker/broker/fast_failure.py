"""Fast failure: what waited too long to be taken is answered SYSTEM_BUSY, while who sent it still waits for an answer.

Requests wait in sockets: of all that the reactor finds ready at once, the last ones wait for the first. How long is
known to the millisecond, by the beginning of the reactor's turn. Settings and remarks are those of BrokerFastFailure of
4.9.7, whose requests wait in the queues of thread pools.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Protocol

import attrs

from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import RequestCode, ResponseCode

#: The keys that may be changed while it goes on.
KEYS = (
    "brokerFastFailureEnable",
    "waitTimeMillsInSendQueue",
    "waitTimeMillsInPullQueue",
    "waitTimeMillsInHeartbeatQueue",
    "waitTimeMillsInTransactionQueue",
    "osPageCacheBusyTimeOutMills",
)
_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
_NEVER = float("inf")


class Turns(Protocol):
    """Knows when the reactor's turn began."""

    turn_began: float


class TickedTurns:
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
class _Patience:
    """How long requests of one kind may wait."""

    is_send: bool = False
    seconds: float = _NEVER


class FastFailure:
    """Puts itself before the handlers of requests that may not wait long."""

    def __init__(self, turns: Turns, settings: BrokerSettings) -> None:
        self._turns = turns
        self._sends, self._pulls, self._heartbeats, self._transactions = (
            _Patience(is_send=True),
            _Patience(),
            _Patience(),
            _Patience(),
        )
        self._log_busy_seconds = _NEVER
        #: When the sends before these were taken.
        self._sends_taken = _NEVER
        self.settings_changed(settings)

    def settings_changed(self, settings: BrokerSettings) -> None:
        is_on = settings.broker_fast_failure_enable
        for patience, wait_ms in (
            (self._sends, settings.wait_time_ms_in_send_queue),
            (self._pulls, settings.wait_time_ms_in_pull_queue),
            (self._heartbeats, settings.wait_time_ms_in_heartbeat_queue),
            (self._transactions, settings.wait_time_ms_in_transaction_queue),
        ):
            patience.seconds = wait_ms / 1000 if is_on else _NEVER
        self._log_busy_seconds = settings.os_page_cache_busy_time_out_ms / 1000

    def watch(self, table: HandlerTable) -> None:
        """Guard what is served by now."""
        for code in _SENDS:
            table.wrap(code, self._guarded_sends)
        for patience, code in (
            (self._pulls, RequestCode.PULL_MESSAGE),
            (self._heartbeats, RequestCode.HEART_BEAT),
            (self._transactions, RequestCode.END_TRANSACTION),
        ):
            table.wrap(code, partial(self._guarded, patience=patience))

    def _guarded(self, handler: Callable[[Any, IConnection], Any], patience: _Patience) -> Any:
        turns = self._turns

        @wraps(handler)
        def take(requests: Any, connection: IConnection) -> Any:
            if connection.last_active - turns.turn_began >= patience.seconds:
                raise self._refusal(requests, connection, patience)
            return handler(requests, connection)

        return take

    def _guarded_sends(self, handler: Callable[[Any, IConnection], Any]) -> Any:
        turns = self._turns
        patience = self._sends

        @wraps(handler)
        def take(requests: Any, connection: IConnection) -> Any:
            now = connection.last_active
            if now - turns.turn_began >= patience.seconds:
                raise self._refusal(requests, connection, patience)
            self._sends_taken = now
            return handler(requests, connection)

        return take

    def _refusal(self, requests: Any, connection: IConnection, patience: _Patience) -> Refused:
        now = connection.last_active
        waited_ms = int((now - self._turns.turn_began) * 1000)
        size = len(requests) if isinstance(requests, list) else 1
        why = "TIMEOUT_CLEAN_QUEUE"
        if patience.is_send and now - max(self._sends_taken, self._turns.turn_began) >= self._log_busy_seconds:
            why = "PCBUSY_CLEAN_QUEUE"  # what was sent before these took that long to be appended
        return Refused(
            ResponseCode.SYSTEM_BUSY,
            f"[{why}]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {size}",
        )
