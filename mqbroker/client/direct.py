"""One message handed to the listener because an administrator asks for it: whatever comes of it, no offset moves."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.places import describe_error
from mqbroker.errors import Refused
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult
from mqbroker.wire.codes import ResponseCode

log = logging.getLogger(__name__)

#: As many may be with the listener at once; more are refused.
DIRECT_MAX = 16

#: None where the listener is content, else the delay level it asks for; what the listener raises comes out.
Listen = Callable[[ReceivedMessage], Awaitable[int | None]]


class DirectConsumption:
    """Calls the listener for messages that no queue brought."""

    def __init__(self, listen: Listen, now: Callable[[], float]) -> None:
        self._listen = listen
        self._now = now
        self.running = 0

    async def consume(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """What the listener makes of `message`. Raises Refused where too many are with it."""
        if self.running >= DIRECT_MAX:
            why = f"{DIRECT_MAX} messages for direct consumption are with the listener; try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, why)
        log.info("consuming message %s of %s directly", message.msg_id, message.queue)
        began = self._now()
        self.running += 1
        try:
            result, remark = await self._ask(message)
        finally:
            self.running -= 1
        spent_ms = max(0, int((self._now() - began) * 1000))
        return ConsumeMessageDirectlyResult(consume_result=result, remark=remark, spent_time_mills=spent_ms)

    async def _ask(self, message: ReceivedMessage) -> tuple[str, str | None]:
        try:
            delay_level = await self._listen(message)
        except Exception as error:
            log.warning("the listener failed on message %s, consumed directly: %r", message.msg_id, error)
            return "CR_THROW_EXCEPTION", describe_error(error)
        return ("CR_SUCCESS" if delay_level is None else "CR_LATER"), None
