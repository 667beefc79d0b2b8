"""The name server's settings, shown and changed by request. It must never know of ports.

Source of codes and remarks: DefaultRequestProcessor of 4.9.7. Java takes any key but two paths, and passes over what it
does not know or cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.config import NamesrvSettings, is_without_effect, show_settings
from mqbroker.config.changes import NotChangeable, change_settings, read_changes
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand

log = Logger()

#: What a request may change: never a path, an address, or what others reach it by.
CHANGEABLE = frozenset({"orderMessageEnable"})

PATHS = frozenset({"kvConfigPath", "configStorePath"})


class ConfigProcessor:
    """GET and UPDATE_NAMESRV_CONFIG.

    :param apply: is told of changed settings.
    :param save: puts changes into the settings' file, and fires True, or False where that failed.
    """

    def __init__(
        self,
        settings: NamesrvSettings,
        apply: Callable[[NamesrvSettings], None],
        save: Callable[[Mapping[str, str]], Deferred[bool]],
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._save = save

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_NAMESRV_CONFIG, self.show)
        table.register(RequestCode.UPDATE_NAMESRV_CONFIG, self.change)

    def adopt(self, settings: NamesrvSettings) -> list[str]:
        """Take what may be changed of settings that were read anew; returns the other keys that differ."""
        wanted, now = _shown(settings), _shown(self._settings)
        differ = [key for key in wanted if wanted[key] != now[key]]
        changes = {key: wanted[key] for key in differ if key in CHANGEABLE}
        if changes:
            self._settings = change_settings(self._settings, changes, CHANGEABLE)
            self._apply(self._settings)
        return [key for key in differ if key not in CHANGEABLE]

    def show(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        lines = show_settings(self._settings)
        return RemotingCommand.response(request, body="".join(f"{line}\n" for line in lines).encode())

    async def change(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        changes = read_changes(request.body)
        if not PATHS.isdisjoint(changes):
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config path")
        changes = {key: value for key, value in changes.items() if not is_without_effect(key)}
        if changes:
            await self._change(changes, connection)
        return RemotingCommand.response(request)

    async def _change(self, changes: Mapping[str, str], connection: IConnection) -> None:
        try:
            self._settings = change_settings(self._settings, changes, CHANGEABLE)
        except NotChangeable as error:
            raise Refused(ResponseCode.NO_PERMISSION, str(error)) from None
        log.info("{peer} changed {changes}", peer=connection.remote_addr, changes=changes)
        self._apply(self._settings)
        if not await self._save(changes):
            path = self._settings.config_store_path
            remark = f"changed until the next start only: {path} could not be written"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)


def _shown(settings: NamesrvSettings) -> dict[str, str]:
    return dict(line.split("=", 1) for line in show_settings(settings))
