"""The settings of each shard: of the processes of one broker's name and file, each with ports and a store of its own.

Knows nothing of processes, and touches no file.
"""

from __future__ import annotations

import os
import re

import attrs

from mqbroker.config.fields import parse_name
from mqbroker.config.settings import BrokerSettings
from mqbroker.wire.names import split_address

#: Difference of the ports of consecutive shards.
PORT_STEP = 10
PORT_MAX = 65535
#: The directory, in that of shard 0, of another shard's store.
SHARD_DIRECTORY = re.compile(r"shard-([1-9][0-9]{0,3})")


def shard_settings(settings: BrokerSettings, shard: int) -> BrokerSettings:
    """The settings of a shard, of those in the file.

    Shard 0 has the name, the ports and the paths of the file. Others have `brokerName-SHARD`, ports higher by
    PORT_STEP * SHARD, and a store in `storePathRootDir/shard-SHARD`. A log outside of storePathRootDir gets a directory
    beside it, for in it there are segments alone. What is only read (accounts, certificates) they share.
    """
    store = attrs.evolve(settings.store, memory_shares=settings.shards)
    if not shard:
        return attrs.evolve(settings, store=store)
    root = os.path.join(store.store_path_root_dir, f"shard-{shard}")
    return attrs.evolve(
        settings,
        shard=shard,
        broker_name=f"{settings.broker_name}-{shard}",
        ha_listen_port=_port(settings.ha_listen_port, shard),
        ha_master_address=_address(settings.ha_master_address, shard),
        server=attrs.evolve(settings.server, listen_port=_port(settings.server.listen_port, shard)),
        store=attrs.evolve(
            store,
            store_path_root_dir=root,
            store_path_commit_log=_log_path(store.store_path_commit_log, store.store_path_root_dir, root, shard),
        ),
    )


def _port(port: int, shard: int) -> int:
    return port + PORT_STEP * shard if port else 0  # 0 takes a free one


def _address(address: str, shard: int) -> str:
    if not address:
        return ""
    host, _, _ = address.rpartition(":")
    return f"{host}:{_port(split_address(address)[1], shard)}"


def _log_path(path: str, root: str, shard_root: str, shard: int) -> str:
    is_inside = os.path.commonpath([path, root]) == root
    return os.path.join(shard_root, os.path.relpath(path, root)) if is_inside else f"{path}-shard-{shard}"


def ports_of(settings: BrokerSettings) -> list[tuple[str, int]]:
    """The ports of a broker, with what each is for."""
    ports = [("listenPort", settings.server.listen_port), ("haListenPort", settings.ha_listen_port)]
    return [*ports, ("the VIP channel", settings.vip_port)] if settings.vip_port is not None else ports


def why_no_shards(settings: BrokerSettings) -> str:
    """Why a broker cannot have as many shards as its settings say; empty if it can, or has one."""
    if settings.shards == 1:
        return ""
    last = f"{settings.broker_name}-{settings.shards - 1}"
    try:
        parse_name(last)
    except ValueError:
        return f"the last of them would be called {last}, which is too long; set a shorter brokerName"
    near = {"localhost", "::1", settings.broker_ip1, settings.broker_ip2}
    taken: dict[int, str] = {}
    for address in settings.namesrv_addr:
        host, port = split_address(address)
        if host in near or host.startswith("127."):
            taken[port] = f"the port of the name server {address}"
    for shard in range(settings.shards):
        of_shard = shard_settings(settings, shard)
        if of_shard.ha_master_address and int(of_shard.ha_master_address.rpartition(":")[2]) > PORT_MAX:
            return f"haMasterAddress of shard {shard} would be {of_shard.ha_master_address}; set fewer"
        for name, port in ports_of(of_shard):
            this = f"{name} of shard {shard}"
            if port > PORT_MAX:
                return f"{this} would be {port}, and {PORT_MAX} is the highest port; set fewer, or a lower listenPort"
            if port in taken:
                return f"{this} would be {port}, which is {taken[port]} too; set another listenPort or haListenPort"
            if port:
                taken[port] = this
    return ""
