"""Single messages: by key (code 12) and by offset (code 33)."""

from __future__ import annotations

from mqbroker.access.rights import IRights
from mqbroker.config import BrokerSettings, StoreSettings
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import UNIQUE_MSG_QUERY_FLAG, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
    decode_header,
)


class QueryProcessor:
    """Looks messages up in the store."""

    def __init__(self, store: MessageStore, settings: StoreSettings, rights: IRights) -> None:
        self._store = store
        self._rights = rights
        self._default_max = settings.default_query_max_num
        self._max = settings.max_msgs_num_batch

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._default_max = settings.store.default_query_max_num

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.QUERY_MESSAGE, self.query)
        table.register(RequestCode.VIEW_MESSAGE_BY_ID, self.view)

    async def query(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Messages of a topic that have a key, within times of storing in ms."""
        header = decode_header(QueryMessageRequestHeader, request.ext_fields)
        by_unique_key = request.ext_fields.get(UNIQUE_MSG_QUERY_FLAG, "").lower() == "true"
        wanted = self._default_max if by_unique_key else header.max_num
        count = max(0, min(wanted, self._max))
        found = await self._store.query_when_ready(
            header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
        )
        timestamp, offset = self._store.index_end if found.candidates else (0, 0)
        answer = QueryMessageResponseHeader(index_last_update_timestamp=timestamp, index_last_update_phyoffset=offset)
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, remark, answer)
        return RemotingCommand.response(request, header=answer, body=b"".join(found.records))

    async def view(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """The record at an offset of the log."""
        header = decode_header(ViewMessageRequestHeader, request.ext_fields)
        record = await self._store.queries.record(header.offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        self._rights.check_record(request.code, request.ext_fields, request.body, connection, record)
        return RemotingCommand.response(request, body=record)
