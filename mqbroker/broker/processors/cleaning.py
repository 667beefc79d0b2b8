"""Removing topics, and what is left of topics and old messages: codes 215, 306, 316 and 329."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.topics import TopicTable
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import DeleteTopicRequestHeader, decode_header
from mqbroker.wire.names import check_topic

log = Logger()


class CleaningProcessor:
    """Removes what administrators want gone; answers when it is."""

    def __init__(self, topics: TopicTable, store: MessageStore, on_removed: Callable[[str], None]) -> None:
        """`on_removed` is called with the name of each topic that is removed."""
        self._topics = topics
        self._store = store
        self._on_removed = on_removed

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete_topic)
        table.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_empty_queues)
        table.register(RequestCode.CLEAN_UNUSED_TOPIC, self.clean_unused_topics)
        table.register(RequestCode.DELETE_EXPIRED_COMMITLOG, self.delete_expired_files)

    async def delete_topic(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Remove a topic with its queues; one that is not there is removed already. Offsets of groups stay."""
        name = check_topic(decode_header(DeleteTopicRequestHeader, request.ext_fields).topic)
        if self._topics.is_system(name):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
        log.info("{peer} deletes topic {name}", peer=connection.remote_addr, name=name)
        self._topics.remove(name)
        saved = self._topics.saved()
        if saved is not None:
            await saved
        self._on_removed(name)
        return await self._removed(request, self._store.remove_topics([name]))

    async def clean_unused_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Remove the queues of topics that are not in the table."""
        log.info("{peer} has unused topics cleaned", peer=connection.remote_addr)
        return await self._removed(request, self._store.keep_only_topics(self._topics.names()))

    async def clean_empty_queues(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Remove queues all of whose messages aged away."""
        log.info("{peer} has empty consume queues cleaned", peer=connection.remote_addr)
        return await self._removed(request, self._store.remove_empty_queues())

    async def _removed(self, request: RemotingCommand, removal: Deferred[list[str]]) -> RemotingCommand:
        try:
            removed = await removal
        except OSError as error:
            remark = f"not all files could be removed: {error}; mend the disk and do it again"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from error
        for topic in removed:
            self._on_removed(topic)
        return RemotingCommand.response(request)

    def delete_expired_files(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Delete, from the next turn on, files of the log past fileReservedTime, at whatever hour it is."""
        log.info("{peer} has expired files of the log deleted", peer=connection.remote_addr)
        self._store.delete_expired_files()
        return RemotingCommand.response(request)
