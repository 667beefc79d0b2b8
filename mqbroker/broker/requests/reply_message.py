"""Reply messages: codes 324 and 325 carry a reply to the broker, 326 pushes it to the requesting client.

A consumer sends its reply to the broker that the request message came from. The message's property
REPLY_TO_CLIENT names the client that waits; it is found among the producers by its id. Source of the rules and remarks:
ReplyMessageProcessor of 4.9.7.
"""

from __future__ import annotations

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.broker.client_registry import ProducerRegistry
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.requests.send_rules import SendHeader, SendRules
from mqbroker.errors import MQError, StoreError
from mqbroker.remoting.handlers import Call, IConnection, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire import headers as h
from mqbroker.wire.codes import Prop, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.names import join_address
from mqbroker.wire.properties import decode_properties, reencode_properties
from mqbroker.wire.record import NewMessage

log = Logger()

#: Time-out of the push to the requesting client.
PUSH_TIMEOUT_MS = 10_000
#: Header fields that a push copies from the reply.
_SHARED = {field.name for field in attrs.fields(h.ReplyMessageRequestHeader)} & {
    field.name for field in attrs.fields(h.SendMessageRequestHeader)
} - {"properties"}


@attrs.frozen
class ReplyRequests:
    """Pushes replies to the waiting clients, and stores them if `storeReplyMessageEnable` is on.

    :param store_host: this broker's address and port.
    """

    store: MessageStore
    rules: SendRules
    producers: ProducerRegistry
    live: LiveSettings
    clock: IReactorTime
    store_host: tuple[str, int]

    @answers(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    async def reply(self, call: Call[SendHeader]) -> RemotingCommand:
        """SUCCESS once the waiting client has it; SYSTEM_ERROR with a remark if the push fails."""
        request, connection, settings = call.request, call.connection, self.live.current
        header = attrs.evolve(call.header, batch=False)
        messages, queue_id, _ = self.rules.check(header, request.code, request.body, connection)
        failed = await self._push(header, request.body, connection)
        message_id, queue_offset = "0", 0
        if settings.store_reply_message_enable:
            saved = self.rules.saved()
            if saved is not None:
                await saved
            message_id, queue_offset = self._keep(messages)
        answer = h.SendMessageResponseHeader(msg_id=message_id, queue_id=queue_id, queue_offset=queue_offset)
        code = ResponseCode.SUCCESS if failed is None else ResponseCode.SYSTEM_ERROR
        response = RemotingCommand.response(request, code, failed, answer)
        response.ext_fields[Prop.MSG_REGION] = settings.region_id
        response.ext_fields[Prop.TRACE_SWITCH] = str(settings.trace_on).lower()
        return response

    async def _push(self, header: SendHeader, body: bytes, sender: IConnection) -> str | None:
        """Push the reply to the requesting client. Returns the reason of a failure, else None."""
        properties = decode_properties((header.properties or "").encode())
        client_id = properties.get(Prop.MESSAGE_REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{Prop.MESSAGE_REPLY_TO_CLIENT}] is null"
        connection = self.producers.find(client_id)
        if connection is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = int(self.clock.seconds() * 1000)
        properties[Prop.PUSH_REPLY_TIME] = str(now_ms)
        push = h.ReplyMessageRequestHeader(
            **{name: getattr(header, name) for name in _SHARED},
            properties=reencode_properties(properties).decode(),
            born_host=sender.remote_addr,
            store_host=join_address(*self.store_host),
            store_timestamp=now_ms,
        )
        command = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body)
        try:
            answer = await connection.invoke(command, PUSH_TIMEOUT_MS)
        except MQError as error:
            why: str | None = str(error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return None
            why = f"code {answer.code}: {answer.remark}"
        log.info("the reply to {client} was not accepted: {why}", client=client_id, why=why)
        return f"push reply message to {client_id}fail."

    def _keep(self, messages: list[NewMessage]) -> tuple[str, int]:
        """Store the reply; returns its id and queue offset. It was delivered already, so that a full disk is no
        failure."""
        try:
            (appended,) = self.store.append(messages)
        except StoreError as error:
            log.info("a reply is not stored: {why}", why=str(error))
            return "0", 0
        return offset_message_id(self.store_host, appended[0]), appended[1]
