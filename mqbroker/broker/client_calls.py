"""What the broker asks of connected consumers on behalf of others: so many at a time, and each for so long.

Must never know what is asked.
"""

from __future__ import annotations

from mqbroker.errors import MQError, Refused, RequestTimedOut
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand

#: How many answers of clients may be waited for; more requests are refused.
CALLS_MAX = 256


class ClientCalls:
    """Calls of clients, counted."""

    def __init__(self) -> None:
        self._under_way = 0

    async def call(self, connection: IConnection, request: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """The client's answer, whatever its code.

        Raises RequestTimedOut, ConnectionClosed, and Refused(SYSTEM_BUSY) where too many are under way.
        """
        if self._under_way >= CALLS_MAX:
            remark = f"{CALLS_MAX} requests to clients wait for their answers; try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        self._under_way += 1
        try:
            return await connection.invoke(request, timeout_ms)
        finally:
            self._under_way -= 1


def call_failure(group: str, client_id: str, error: MQError) -> Refused:
    """What the administrator who asked is told where a call failed."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestTimedOut):
        return Refused(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}")
    return Refused(ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}")
