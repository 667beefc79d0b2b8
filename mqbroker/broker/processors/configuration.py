"""The broker's settings, shown and changed by administrators: codes 25 and 26.

Java takes any key of its own but a few paths, and passes over what it does not know or cannot read; here nothing is
taken where one thing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.config import is_without_effect
from mqbroker.config.changes import NotChangeable, read_changes
from mqbroker.config.java_view import java_properties
from mqbroker.errors import BadSetting, Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.fastjson import dumps
from mqbroker.wire.headers import GetBrokerConfigResponseHeader

log = Logger()

#: Puts changes into the file the broker was started with; fires True, or False where that failed.
Save = Callable[[Mapping[str, str]], Deferred[bool]]


class ConfigurationProcessor:
    """GET and UPDATE_BROKER_CONFIG.

    :param save: None where the broker was started without a file.
    """

    def __init__(self, live: LiveSettings, save: Save | None) -> None:
        self._live = live
        self._save = save
        self._one_by_one = DeferredLock()

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_BROKER_CONFIG, self.show)
        table.register(RequestCode.UPDATE_BROKER_CONFIG, self.change)

    def show(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """All settings as `key=value` lines, those that Java has and have no effect here among them."""
        version = dumps(self._live.data_version.to_value()).decode()
        body = java_properties(self._live.current).encode()
        return RemotingCommand.response(request, header=GetBrokerConfigResponseHeader(version=version), body=body)

    def change(self, request: RemotingCommand, connection: IConnection) -> Deferred[RemotingCommand | None]:
        """Change settings now and in the broker's file; all that the request names, or nothing."""
        return self._one_by_one.run(lambda: Deferred.fromCoroutine(self._change(request, connection)))

    async def _change(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        try:
            changes = read_changes(request.body)
            changes = {key: value for key, value in changes.items() if not is_without_effect(key)}
            self._live.change(changes)
        except NotChangeable as error:
            raise Refused(ResponseCode.NO_PERMISSION, str(error)) from error
        except BadSetting as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if not changes:
            return RemotingCommand.response(request)
        log.info("{peer} changed settings: {keys}", peer=connection.remote_addr, keys=", ".join(changes))
        if self._save is None:
            remark = "changed until the next start: the broker was started without a settings file"
            return RemotingCommand.response(request, remark=remark)
        if not await self._save(changes):
            remark = "changed until the next start only: the settings file could not be written; see the broker's log"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return RemotingCommand.response(request)
