"""What is counted, and how the broker is: codes 28 and 315."""

from __future__ import annotations

from mqbroker.broker.runtime_info import RuntimeInfo
from mqbroker.broker.stats import BrokerStats
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.bodies import BrokerStatsData, BrokerStatsItem, KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import ViewBrokerStatsDataRequestHeader, decode_header


class StatsProcessor:
    """Answers from the counts."""

    def __init__(self, stats: BrokerStats, info: RuntimeInfo) -> None:
        self._stats = stats
        self._info = info

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info)
        table.register(RequestCode.VIEW_BROKER_STATS_DATA, self.view)

    def runtime_info(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=KVTable(self._info.table()).to_json())

    def view(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(ViewBrokerStatsDataRequestHeader, request.ext_fields)
        view = self._stats.view(header.stats_name, header.stats_key)
        if view is None:
            remark = f"The stats <{header.stats_name[:255]}> <{header.stats_key[:512]}> not exist"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        items = [BrokerStatsItem(each.sum, each.tps, each.avgpt) for each in (view.minute, view.hour, view.day)]
        return RemotingCommand.response(request, body=BrokerStatsData(*items).to_json())
