"""What administrators ask of one consumer, passed on to it and its answer back: codes 307 and 309."""

from __future__ import annotations

from mqbroker.broker.client_calls import ClientCalls, call_failure
from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.errors import MQError, Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    decode_header,
)
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.versions import V3_1_8_SNAPSHOT, old_version_name

TIMEOUT_MS = 10_000
#: How the administrator proved who it is; nothing for a consumer to see.
_CREDENTIALS = frozenset({"AccessKey", "Signature", "SecurityToken"})


class ClientCallProcessor:
    """Passes requests on to consumers.

    :param broker_name: what a consumer is told of where a message lies.
    """

    def __init__(self, consumers: ConsumerRegistry, calls: ClientCalls, store: MessageStore, broker_name: str) -> None:
        self._consumers = consumers
        self._calls = calls
        self._store = store
        self._broker_name = broker_name

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info)
        table.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def running_info(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """What a consumer tells of itself, with the stacks of its threads where jstackEnable says so."""
        header = decode_header(GetConsumerRunningInfoRequestHeader, request.ext_fields)
        onward = RemotingCommand(request.code, _without_credentials(request), request.body)
        return await self._pass_on(request, onward, header.consumer_group, header.client_id)

    async def consume_directly(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Have a consumer consume one message now, by its id; the answer tells how that went."""
        header = decode_header(ConsumeMessageDirectlyResultRequestHeader, request.ext_fields)
        _, offset = parse_offset_message_id(header.msg_id or "")
        record = await self._store.queries.record(offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        fields = _without_credentials(request) | {"brokerName": self._broker_name}
        onward = RemotingCommand(request.code, fields, record)
        return await self._pass_on(request, onward, header.consumer_group, header.client_id or "")

    async def _pass_on(
        self, request: RemotingCommand, onward: RemotingCommand, group: str, client_id: str
    ) -> RemotingCommand:
        found = self._consumers.find(group, client_id)
        if found is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        connection, client = found
        if client.version < V3_1_8_SNAPSHOT:
            remark = (
                f"The Consumer <{client_id}> Version <{old_version_name(client.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        try:
            told = await self._calls.call(connection, onward, TIMEOUT_MS)
        except MQError as error:
            raise call_failure(group, client_id, error) from error
        answer = RemotingCommand.response(request, told.code, told.remark, body=told.body)
        answer.ext_fields = told.ext_fields
        return answer


def _without_credentials(request: RemotingCommand) -> dict[str, str]:
    return {key: value for key, value in request.ext_fields.items() if key not in _CREDENTIALS}
