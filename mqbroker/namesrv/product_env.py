"""Routes of another environment: a name server for cluster tests asks production's about what it does not have.

Source: ClusterTestRequestProcessor of 4.9.7, which asks whatever name servers NAMESRV_ADDR names.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.remoting.client import RemotingClient
from mqbroker.wire.bodies import TopicRouteData
from mqbroker.wire.body import ANSWERED_DIALECT_BYTES_MAX
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetRouteInfoRequestHeader

log = Logger()

TIMEOUT_MS = 5_000

#: So many questions are under way at most.
ASKED_MAX = 256

#: What a question carries that was passed on, so that name servers that name each other do not ask in a circle.
PASSED_ON = "clusterTestPassedOn"


class ProductEnvironment(Service):
    """The name servers at `addresses`; each is asked until one answers."""

    def __init__(self, client: RemotingClient, addresses: Sequence[str], name: str) -> None:
        self._client = client
        self._addresses = addresses
        self._name = name
        self._asked = 0

    async def route(self, topic: str) -> TopicRouteData | None:
        """The route of `topic` there; None where there is none, or nobody answers.

        Raises Refused where too much is asked at once.
        """
        if self._asked >= ASKED_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._asked} questions to {self._name} are not answered yet")
        self._asked += 1
        try:
            for address in self._addresses:
                try:
                    return await self._ask(address, topic)
                except Unreachable as error:
                    log.warn("environment {name}: {why}", name=self._name, why=str(error))
        except MQError as error:
            log.warn("environment {name}, topic {topic}: {why}", name=self._name, topic=topic, why=str(error))
        finally:
            self._asked -= 1
        return None

    async def _ask(self, address: str, topic: str) -> TopicRouteData | None:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        request.ext_fields[PASSED_ON] = "true"
        answer = await self._client.invoke_async(address, request, TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code:
            raise Refused(answer.code, answer.remark or "")
        return TopicRouteData.from_json(answer.body, ANSWERED_DIALECT_BYTES_MAX)

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        return self._client.close()
