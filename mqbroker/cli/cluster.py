"""What name servers and brokers tell about a cluster, and tables of it for a terminal or a pipe."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mqbroker.cli.lines import escape_controls, log_warnings
from mqbroker.cli.servers import Servers
from mqbroker.errors import Unreachable
from mqbroker.wire.codes import RequestCode

if TYPE_CHECKING:
    from mqbroker.client.net import Net
    from mqbroker.wire.bodies import BrokerData
    from mqbroker.wire.command import RemotingCommand

T = TypeVar("T")

TIMEOUT_MS = 5_000
#: Digits of Java's greatest long. Python converts at most 4,300.
_LONG_DIGITS = 19


def asked(servers: Servers, ask: Callable[[Net, Sequence[str]], Coroutine[Any, Any, T]]) -> T:
    """What `ask` returns, called with connections and the name servers' addresses."""
    import asyncio

    from mqbroker.client.aio_net import AioNet
    from mqbroker.client.broker_requests import decline

    async def main() -> T:
        net = AioNet(decline, random.Random(), servers.credentials, servers.tls)
        try:
            return await ask(net, servers.name_servers.split(";"))
        finally:
            await net.close()

    log_warnings()
    return asyncio.run(main())


async def request(net: Net, address: str, code: int, body: bytes = b"") -> RemotingCommand:
    """The response of a broker or name server. Raises MQError."""
    from mqbroker.remoting.client import succeeded
    from mqbroker.wire.command import RemotingCommand

    return succeeded(await net.invoke(address, RemotingCommand.request(code, None, body), TIMEOUT_MS))


async def broker_sets(net: Net, name_servers: Iterable[str]) -> dict[str, BrokerData]:
    """The brokers that the first name server knows which answers. Raises NameServerUnreachable, Refused."""
    from mqbroker.client.errors import NameServerUnreachable
    from mqbroker.wire.bodies import ClusterInfo
    from mqbroker.wire.body import ANSWERED_DIALECT_BYTES_MAX

    causes = []
    for address in name_servers:
        try:
            answer = await request(net, address, RequestCode.GET_BROKER_CLUSTER_INFO)
        except Unreachable as error:
            causes.append((address, str(error)))
            continue
        return dict(ClusterInfo.from_json(answer.body, ANSWERED_DIALECT_BYTES_MAX).broker_addr_table)
    raise NameServerUnreachable(causes)


async def runtime_info(net: Net, address: str) -> dict[str, str]:
    """A broker's runtime information. Raises MQError."""
    from mqbroker.wire.bodies import KVTable

    return KVTable.from_json((await request(net, address, RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


def number(text: str | None) -> int | None:
    """A number of a broker, from 0 to Java's greatest long; None if it is none."""
    if text is None or not (text.isdecimal() and text.isascii() and len(text) <= _LONG_DIGITS):
        return None
    value = int(text)
    return value if value < 2**63 else None


def shard_number(name: str, shard_of: str) -> int | None:
    """Which shard of `shard_of` a broker is by its name; None if it cannot be one."""
    if name == shard_of:
        return 0
    found = re.fullmatch(r"-([1-9][0-9]{0,3})", name.removeprefix(shard_of)) if name.startswith(shard_of) else None
    return int(found[1]) if found else None


def table_lines(rows: Iterable[Sequence[object]], columns: tuple[str, ...], *, on_terminal: bool) -> list[str]:
    """A line per row: columns with tabs between them, or aligned below their titles. None is shown as "?"."""
    cells = [
        tuple(escape_controls("?" if cell is None else str(cell)).replace("\t", "\\t") for cell in row) for row in rows
    ]
    if not on_terminal:
        return ["\t".join(row) for row in cells]
    cells.insert(0, columns)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
