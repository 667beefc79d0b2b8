"""Notices that a consumer's event loop did not run for a while: a listener blocks it, or the process was suspended."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mqbroker.client.net import Net

log = logging.getLogger(__name__)

_TICK_S = 1.0
#: A loop that was blocked for so long is warned of, once a minute.
_BLOCKED_S = 5.0
_WARN_EVERY_S = 60.0
#: Brokers give up a member that sent no heartbeat for so long: BrokerController and ClientManageProcessor of 4.9.7.
_EXPIRY_S = 120.0
_MARGIN_S = 10.0


class LoopWatch:
    """Whether a member of `group` was away for so long that brokers may have given its queues to others."""

    def __init__(
        self, net: Net, group: str, listener: str, heartbeat_s: float, come_back: Callable[[], Awaitable[None]]
    ) -> None:
        """`come_back` has the member take its queues anew."""
        self._net = net
        self._group = group
        self._listener = listener
        # The last heartbeat may have been sent so long before the loop stopped.
        self._away_s = max(_BLOCKED_S, _EXPIRY_S - _MARGIN_S - heartbeat_s)
        self._come_back = come_back
        self._lock = net.lock()
        #: None before the start.
        self._ticked_at: float | None = None
        self._must_come_back = False
        self._warn_again_at = float("-inf")

    @property
    def was_away(self) -> bool:
        """Whether nothing may be handed out or committed before `ensure_member`."""
        if self._ticked_at is None:
            return False
        return self._must_come_back or self._net.steady() - self._ticked_at > self._away_s

    async def ensure_member(self) -> None:
        """Come back where the member was away."""
        async with self._lock:
            if self.was_away:
                self._must_come_back = True
                await self._come_back()
                self._must_come_back = False
                self._ticked_at = self._net.steady()

    async def run(self) -> None:
        """Watch, until this is cancelled."""
        ticked_at = self._ticked_at = self._net.steady()
        while True:
            await self._net.sleep(_TICK_S)
            now = self._net.steady()
            blocked_s = now - ticked_at - _TICK_S
            if blocked_s >= _BLOCKED_S and now >= self._warn_again_at:
                self._warn_again_at = now + _WARN_EVERY_S
                log.warning(
                    "the event loop did not run for %.0f s: group %s sent no heartbeat and committed nothing meanwhile."
                    " Where its listener %s blocks, call what blocks by asyncio.to_thread or deferToThread, or use"
                    " mqbroker.client.blocking",
                    blocked_s,
                    self._group,
                    self._listener,
                )
            if self.was_away:
                await self.ensure_member()
            ticked_at = self._ticked_at = now
