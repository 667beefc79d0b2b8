"""Requests about a broker itself: its settings (codes 25 and 26), its statistics (28 and 315), its files (329)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.runtime_info import RuntimeInfo
from mqbroker.config.changes import NotChangeable, read_changes, with_effect
from mqbroker.config.load import java_properties
from mqbroker.errors import BadSetting, Refused
from mqbroker.remoting.handlers import Call, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import BrokerStatsData, KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.fastjson import dumps
from mqbroker.wire.headers import GetBrokerConfigResponseHeader, ViewBrokerStatsDataRequestHeader

log = Logger()

#: Saves changes in the broker's settings file; fires True, or False if that failed.
Save = Callable[[Mapping[str, str]], Deferred[bool]]


@attrs.frozen
class SettingsRequests:
    """The settings, shown and changed. Java accepts any of its keys but a few paths, and ignores unknown keys and
    unreadable values; here a request with one bad key changes nothing.

    :param save: None if the broker was started without a file.
    """

    live: LiveSettings
    save: Save | None
    _one_by_one: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    @answers(RequestCode.GET_BROKER_CONFIG)
    def show(self, call: Call[None]) -> RemotingCommand:
        """All settings as `key=value` lines, including Java's that have no effect here."""
        version = dumps(self.live.data_version.to_value()).decode()
        body = java_properties(self.live.current).encode()
        return RemotingCommand.response(call.request, header=GetBrokerConfigResponseHeader(version=version), body=body)

    @answers(RequestCode.UPDATE_BROKER_CONFIG)
    async def change(self, call: Call[None]) -> RemotingCommand:
        """Change settings now and in the broker's file; all of the request, or none."""
        changed = self._one_by_one.run(lambda: Deferred.fromCoroutine(self._change(call)))
        return RemotingCommand.response(call.request, remark=await changed)

    async def _change(self, call: Call[None]) -> str | None:
        """Returns the remark about a change."""
        try:
            changes = with_effect(read_changes(call.request.body))
            self.live.change_by_request(changes)
        except NotChangeable as error:
            raise Refused(ResponseCode.NO_PERMISSION, str(error)) from error
        except BadSetting as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if not changes:
            return None
        log.info("{peer} changed settings: {keys}", peer=call.connection.remote_addr, keys=", ".join(changes))
        if self.save is None:
            return "changed until the next start: the broker was started without a settings file"
        if not await self.save(changes):
            remark = "changed until the next start only: the settings file could not be written; see the broker's log"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return None


@attrs.frozen
class StatsRequests:
    """Runtime information and statistics, and the deletion of expired files."""

    store: MessageStore
    stats: BrokerStats
    info: RuntimeInfo

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, call: Call[None]) -> KVTable:
        return KVTable(self.info.table())

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def counts(self, call: Call[ViewBrokerStatsDataRequestHeader]) -> BrokerStatsData:
        name, key = call.header.stats_name, call.header.stats_key
        view = self.stats.view(name, key)
        if view is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The stats <{name[:255]}> <{key[:512]}> not exist")
        return view

    @answers(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_files(self, call: Call[None]) -> None:
        """Delete files of the log past fileReservedTime in the next turns, at any hour."""
        log.info("{peer} requests the deletion of expired log files", peer=call.connection.remote_addr)
        self.store.delete_expired_files()
