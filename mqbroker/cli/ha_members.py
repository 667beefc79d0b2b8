"""`mq ha switch` and `mq ha remove`: who is the master, and who is a member, of brokers that elect their master.

Both ask the master, by a request that an administrator's account may send, as for a topic that is to be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mqbroker.cli.cluster import asked
from mqbroker.cli.failures import Failure, NoAnswer, failure_of, told
from mqbroker.cli.lines import escape_controls
from mqbroker.cli.servers import Servers, server_options
from mqbroker.errors import MQError, Refused
from mqbroker.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqbroker.cli.ha import Member
    from mqbroker.client.net import Net

#: The target starts again as the master within this time.
SWITCHED_SECONDS_MAX = 30
TIMEOUT_MS = 15_000


@click.command()
@click.argument("name")
@click.option("--to", required=True, type=click.IntRange(1), metavar="ID", help="The brokerId of the new master.")
@server_options
def switch(name: str, to: int, servers: Servers) -> None:
    """Make another broker of the group NAME its master, before a planned stop of the current master.

    The new master must be in sync and its store complete. No send fails during the switch: sends are held, usually for
    less than a second, and the former master forwards what clients still send to it. For a broker with shards, all
    shards are switched.
    """
    with told():
        for line in asked(servers, lambda net, name_servers: switch_master(net, name_servers, name, to)):
            click.echo(escape_controls(line))


async def switch_master(net: Net, name_servers: Sequence[str], name: str, to: int) -> list[str]:
    """Have the masters of NAME name broker `to`; a line for each. Raises MQError and Failure."""
    lines = []
    for master in await _masters(net, name_servers, name):
        remark = await _ask(net, master.address, RequestCode.SWITCH_GROUP_MASTER, to)
        lines.append(f"{master.name}: {remark}")
        await _wait_for_master(net, name_servers, master.name, to)
    return lines


@click.command()
@click.argument("name")
@click.option(
    "--id", "broker_id", type=click.IntRange(1), metavar="ID", help="The member's brokerId; without it, NAME is the id."
)
@server_options
def remove(name: str, broker_id: int | None, servers: Servers) -> None:
    """Remove a broker that will not come back from the group NAME. With only one group: `mq ha remove ID`.

    The broker must not be running or in sync: start a replacement first.
    """
    if broker_id is None and not (name.isdecimal() and name.isascii() and len(name) < 10):
        raise click.UsageError("which broker? Give its brokerId with --id")

    with told():
        for line in asked(servers, lambda net, name_servers: remove_member(net, name_servers, name, broker_id)):
            click.echo(escape_controls(line))


async def remove_member(net: Net, name_servers: Sequence[str], name: str, broker_id: int | None) -> list[str]:
    """Have the masters of NAME forget a broker, or of the only group the one whose id NAME is; a line for each. Raises
    MQError and Failure."""
    gone = broker_id if broker_id is not None else int(name)
    masters = await _masters(net, name_servers, name if broker_id is not None else None)
    if broker_id is None and len(masters) > 1:
        there = ", ".join(master.name for master in masters)
        raise Failure(f"which group? Use `mq ha remove NAME --id {gone}`; there are: {there}")
    return [f"{each.name}: {await _ask(net, each.address, RequestCode.REMOVE_GROUP_MEMBER, gone)}" for each in masters]


async def _masters(net: Net, name_servers: Sequence[str], name: str | None) -> list[Member]:
    """The master of each group of that name, with its shards, or of all. Raises MQError and Failure."""
    from mqbroker.cli.ha import members_of

    members = await members_of(net, name_servers, name)
    groups = dict.fromkeys(member.name for member in members if member.epoch is not None)
    if not groups:
        if any(not member.is_answering for member in members):
            raise NoAnswer("no broker of the group responds: see `mq ha status`")
        raise Failure("these brokers do not elect their master: use `mq ha promote`")
    found = []
    for group in groups:
        masters = [member for member in members if member.name == group and member.is_elected]
        if not masters:
            raise Failure(f"{group} has no master: `mq ha status` says why")
        found.append(masters[0])
    return found


async def _ask(net: Net, address: str, code: RequestCode, replica_id: int) -> str:
    from mqbroker.remoting.client import succeeded
    from mqbroker.wire.command import RemotingCommand

    command = RemotingCommand.request(code, None, b"%d" % replica_id)
    try:
        answer = succeeded(await net.invoke(address, command, TIMEOUT_MS))
    except Refused as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            raise Failure(error.remark) from None
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Failure(f"the broker at {address} is too old for this request: upgrade it") from None
        raise failure_of(error) from None
    return answer.remark or "done"


async def _wait_for_master(net: Net, name_servers: Sequence[str], name: str, to: int) -> None:
    """Return once name servers have it as the master. Raises NoAnswer."""
    from mqbroker.cli.cluster import broker_sets, runtime_info

    deadline = net.now() + SWITCHED_SECONDS_MAX
    while net.now() < deadline:
        try:
            address = (await broker_sets(net, name_servers))[name].broker_addrs[0]
            info = await runtime_info(net, address)
        except (MQError, KeyError):  # it starts
            info = {}
        if info.get("groupReplicaId") == str(to) and info.get("groupIsMaster") == "true":
            return
        await net.sleep(0.1)
    raise NoAnswer(f"broker {to} is not registered as master after {SWITCHED_SECONDS_MAX} s: `mq ha status` shows more")
