"""An extension of brokers: topics may be created only with a team's name in front."""

from mqbroker.errors import Refused
from mqbroker.remoting.extensions import ConnectionListener, RpcHook
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from twisted.logger import Logger

log = Logger()
TEAMS = ("billing-", "shop-")


class TopicNames(RpcHook, ConnectionListener):
    def before_request(self, addr: str, request: RemotingCommand) -> None:
        if request.code != RequestCode.UPDATE_AND_CREATE_TOPIC:
            return
        topic = request.ext_fields.get("topic", "")
        if not topic.startswith(TEAMS):
            why = f"the topic {topic} must begin with one of {', '.join(TEAMS)}"
            raise Refused(ResponseCode.NO_PERMISSION, why)

    def failed(self, addr: str, why: str) -> None:
        log.warn("the connection of {addr} broke: {why}", addr=addr, why=why)
