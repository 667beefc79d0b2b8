"""What a replica of a group does with sends: it hands them to the master, and its answers back.

Clients of 4.x ask name servers for the master every 30 seconds, and until then send to the one that they know, which
a planned change made a replica. They send the message at most three times, at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut
from mqbroker.remoting.client import RemotingClient
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RESPONSE_FLAG, RemotingCommand

#: The remark of a request that a replica has forwarded; it is not forwarded again. Signatures do not cover it.
HANDED_ON = "handed on by a replica"
#: Clients wait 3 seconds by default.
TIMEOUT_MS = 5_000
#: How long a master that was just named may take to serve, seconds.
PATIENCE_SECONDS = 2.5
RETRY_SECONDS = 0.05
#: Requests whose permission is checked before they are forwarded: a master may trust the address of a replica.
CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)
NO_MASTER = "service not available now. This broker is a replica, and the master of its group cannot be reached"
UNKNOWN = "the master of this broker's group did not answer: the message may be stored"


@attrs.frozen
class SendsToMaster:
    """Forwards requests to the master, after this broker has checked the permission to send them.

    :param master: the address of the master; empty without one.
    :param is_patient: whether the master was named a moment ago, and may not serve yet.
    """

    client: RemotingClient
    clock: IReactorTime
    master: Callable[[], str]
    is_patient: Callable[[], bool]

    def serve(self, table: HandlerTable) -> None:
        """Take the requests over from their handlers."""
        table.replace(CODES, self._hand_on)

    async def _hand_on(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand | None:
        refused = Refused(ResponseCode.SERVICE_NOT_AVAILABLE, NO_MASTER)
        if request.remark == HANDED_ON:
            raise refused
        due = self.clock.seconds() + PATIENCE_SECONDS
        while True:
            answer = await self._answer(request)
            if answer is not None or request.is_oneway:
                return answer
            if not self.is_patient() or self.clock.seconds() > due:
                raise refused
            if cast(Any, connection).requeue(request):  # this broker starts again, perhaps as the master
                return None
            await deferLater(self.clock, RETRY_SECONDS)

    async def _answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """The master's; None where it has certainly done nothing. Raises Refused where that is not known."""
        address = self.master()
        if not address:
            return None
        sent = attrs.evolve(request, remark=HANDED_ON)
        try:
            if request.is_oneway:
                await self.client.invoke_oneway(address, sent, TIMEOUT_MS)
                return None
            answer = await self.client.invoke_async(address, sent, TIMEOUT_MS)
        except (ConnectionClosed, RequestTimedOut):
            raise Refused(ResponseCode.SYSTEM_ERROR, UNKNOWN) from None
        except MQError:
            return None
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and self.is_patient():
            return None
        return attrs.evolve(answer, opaque=request.opaque, flag=RESPONSE_FLAG, serialize_type=request.serialize_type)
