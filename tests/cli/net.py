"""A name server and brokers that answer at once, for commands that ask them."""

from __future__ import annotations

from typing import Any

import attrs

from mqbroker.errors import Unreachable
from mqbroker.wire.bodies import BrokerData, ClusterInfo, KVTable
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand


@attrs.define
class Net:
    """A name server at "ns:1", and the runtime info of brokers by address; others are unreachable."""

    brokers: dict[str, BrokerData]
    infos: dict[str, dict[str, Any]]

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if address == "ns:1":
            assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
            return RemotingCommand(0, body=ClusterInfo(self.brokers).to_json())
        if address not in self.infos:
            raise Unreachable(f"connect to {address} failed: nobody there")
        assert command.code == RequestCode.GET_BROKER_RUNTIME_INFO
        return RemotingCommand(0, body=KVTable(self.infos[address]).to_json())
