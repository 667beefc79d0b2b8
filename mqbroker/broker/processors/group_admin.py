"""Groups as administrators see them: their removal, and who produces: codes 207 and 328."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.clients import ProducerRegistry
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.processors.topics import after
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.wire.admin_bodies import ProducerInfo, ProducerTableInfo
from mqbroker.wire.codes import LanguageCode, RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import DeleteSubscriptionGroupRequestHeader, decode_header

log = Logger()


class GroupAdminProcessor:
    """Removes groups, and shows producers."""

    def __init__(
        self,
        groups: GroupTable,
        offsets: OffsetTable,
        producers: ProducerRegistry,
        walks: Walks,
        on_removed: Callable[[str], None],
    ) -> None:
        """`on_removed` is called with the name of each group that is removed."""
        self._groups = groups
        self._offsets = offsets
        self._producers = producers
        self._walks = walks
        self._on_removed = on_removed

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete_group)
        table.register(RequestCode.GET_ALL_PRODUCER_INFO, self._walks.bounded(self.all_producers))

    def delete_group(
        self, request: RemotingCommand, connection: IConnection
    ) -> RemotingCommand | Deferred[RemotingCommand | None]:
        """Forget a group's settings, and with removeOffset where it stands; what is not there is gone already."""
        header = decode_header(DeleteSubscriptionGroupRequestHeader, request.ext_fields)
        log.info("{peer} deletes group {name}", peer=connection.remote_addr, name=header.group_name)
        self._groups.remove(header.group_name)
        if header.remove_offset:
            self._offsets.remove_group(header.group_name)
        self._on_removed(header.group_name)
        return after(self._groups.saved(), RemotingCommand.response(request))

    async def all_producers(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """The producers online, by group."""
        producers: dict[str, list[ProducerInfo]] = {}
        for name, clients in list(self._producers.groups().items()):
            infos = producers[name] = []
            for at, client in list(clients.items()):
                await self._walks.step()
                infos.append(
                    ProducerInfo(
                        client.client_id,
                        f"/{at.remote_addr}",  # as Java prints addresses
                        LanguageCode(client.language).name,
                        client.version,
                        int(client.last_seen * 1000),
                    )
                )
        return RemotingCommand.response(request, body=await self._walks.written(ProducerTableInfo(producers)))
