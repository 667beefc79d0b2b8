"""`mq ha`: replication, as name servers and brokers show it."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs
import click

from mqbroker.cli.failures import FAILED, Failure, NoAnswer, failure_of, told
from mqbroker.cli.lines import escape_controls
from mqbroker.cli.servers import Servers, server_options

if TYPE_CHECKING:
    from mqbroker.client.net import Net
    from mqbroker.wire.bodies import BrokerData

TIMEOUT_MS = 5_000
#: A broker stops and starts within this time, unless its store has much to recover.
PROMOTED_SECONDS_MAX = 60
FOLLOWS = "follows"
_COLUMNS = ("broker", "id", "address", "role", "log end", "behind", "state")


@attrs.frozen
class Member:
    """One broker. `end`: where its log ends; `behind`: the bytes that a slave lacks; None if unknown.

    `is_answering`: whether it answered; `is_well`: it answered, and follows if it is a slave. `is_ours`: it says how
    its links are. `epoch`, `in_sync`: what brokers that elect their master say: the epoch, and the ids of the in-sync
    replicas; None and empty of others.
    """

    name: str
    broker_id: int
    address: str
    end: int | None
    behind: int | None
    state: str
    is_answering: bool
    is_well: bool
    is_ours: bool = False
    epoch: int | None = None
    in_sync: tuple[int, ...] = ()

    @property
    def role(self) -> str:
        return "slave" if self.broker_id else "master"


@click.group()
def ha() -> None:
    """Masters and slaves."""


@ha.command()
@click.argument("name")
@click.option("--id", "broker_id", type=click.IntRange(1), help="The slave's brokerId, if there are several.")
@click.option("--sync", is_flag=True, help="Become a SYNC_MASTER, which waits for slaves; else an ASYNC_MASTER.")
@server_options
def promote(name: str, broker_id: int | None, sync: bool, servers: Servers) -> None:
    """Make a slave of the brokers called NAME their master: stop the former master before.

    The slave stops, and starts again as master at the same address; its settings file is changed.
    """
    role = "SYNC_MASTER" if sync else "ASYNC_MASTER"
    with told():
        from mqbroker.client.blocking_net import BlockingNet, run

        net = BlockingNet(random.Random(), servers.credentials, servers.tls)
        try:
            name_servers = servers.name_servers.split(";")
            slave = slave_to_promote(run(members_of(net, name_servers, name)), broker_id)
            for line in run(change_role(net, slave, role)):
                click.echo(line)
            master = run(wait_for_master(net, name_servers, slave))
        finally:
            run(net.close())
    click.echo(f"{escape_controls(name)} at {master.address} is the master now; its log ends at {master.end}")


def slave_to_promote(members: Sequence[Member], broker_id: int | None) -> Member:
    """The slave that becomes master: the one wanted, or the only one. Raises Failure where that would lose messages, or
    it is not clear."""
    for member in members:
        if member.epoch is not None:
            raise Failure(
                "these brokers elect their master by etcd: stop the master, and another takes its place; if none does, "
                "the state that `mq ha status` shows says why"
            )
        if member.broker_id == 0 and member.is_answering:
            raise Failure(
                f"the master at {member.address} answers: stop it first, so that it takes no message that the slave "
                "would lack"
            )
    slaves = [member for member in members if member.broker_id and member.is_answering]
    if not slaves:
        raise Failure("no slave answers")
    found = [member for member in slaves if broker_id in (None, member.broker_id)]
    if len(found) != 1:
        ids = ", ".join(f"{member.broker_id} (log end {member.end})" for member in slaves)
        raise Failure(f"which slave is to be master? --id names it; there are: {ids}")
    [slave] = found
    ahead = [member for member in slaves if (member.end or 0) > (slave.end or 0)]
    if ahead:
        more = (ahead[0].end or 0) - (slave.end or 0)
        raise Failure(f"the slave {ahead[0].broker_id} has {more} bytes more: make it the master")
    if not slave.is_ours:
        raise Failure(
            f"the slave at {slave.address} is of the Java system: change brokerId and brokerRole in its file, and "
            "restart it"
        )
    return slave


async def change_role(net: Net, slave: Member, role: str) -> list[str]:
    """Have a slave start again as master; returns what it remarks. Raises MQError."""
    from mqbroker.remoting.client import succeeded
    from mqbroker.wire.codes import RequestCode
    from mqbroker.wire.command import RemotingCommand

    body = f"brokerRole={role}\nbrokerId=0\n".encode()
    command = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, None, body)
    remark = succeeded(await net.invoke(slave.address, command, TIMEOUT_MS)).remark
    return [escape_controls(remark)] if remark else []


async def wait_for_master(net: Net, name_servers: Sequence[str], slave: Member) -> Member:
    """Return the slave as master, once name servers have it as that. Raises NoAnswer."""
    from mqbroker.errors import MQError

    deadline = net.now() + PROMOTED_SECONDS_MAX
    while net.now() < deadline:
        try:
            members = await members_of(net, name_servers, slave.name)
        except (MQError, Failure):  # it is unregistered meanwhile
            members = []
        for member in members:
            if member.broker_id == 0 and member.address == slave.address and member.is_answering:
                return member
        await net.sleep(0.2)
    raise NoAnswer(f"{slave.address} is not registered as master after {PROMOTED_SECONDS_MAX} s: its log says why")


@ha.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per broker and line.")
@server_options
def status(name: str | None, as_json: bool, servers: Servers) -> None:
    """Show the brokers called NAME, or all: the end of each log, and how far slaves are behind.

    Exits with 1 if a slave does not follow or a replica is not in sync, and with 3 if a broker does not answer.
    """
    with told():
        from mqbroker.client.blocking_net import BlockingNet, run

        net = BlockingNet(random.Random(), servers.credentials, servers.tls)
        try:
            members = run(members_of(net, servers.name_servers.split(";"), name))
        finally:
            run(net.close())
    for line in lines(members, as_json=as_json, on_terminal=sys.stdout.isatty()):
        click.echo(line)
    if not all(member.is_answering for member in members):
        raise SystemExit(NoAnswer.exit_code)
    if not all(member.is_well for member in members):
        raise SystemExit(FAILED)


async def members_of(net: Net, name_servers: Sequence[str], name: str | None) -> list[Member]:
    """Ask the brokers called `name`, or all of them, masters first. Raises MQError and Failure."""
    from mqbroker.errors import MQError

    sets = await _broker_sets(net, name_servers)
    if name is not None and name not in sets:
        there = ", ".join(map(escape_controls, sorted(sets))) or "none"
        raise Failure(f"no broker called {escape_controls(name)} is registered; there are: {there}")
    members: list[Member] = []
    for broker_name, data in sorted(sets.items()):
        if name not in (None, broker_name):
            continue
        master_end: int | None = None
        for broker_id, address in sorted(data.broker_addrs.items()):
            try:
                info = await _runtime_info(net, address)
            except MQError as error:
                why = f"no answer: {failure_of(error).message}"
                members.append(Member(broker_name, broker_id, address, None, None, why, False, False))
                continue
            if broker_id == 0:
                master_end = _number(info.get("commitLogMaxOffset"))
            members.append(_in_group(_member(broker_name, broker_id, address, info, master_end), info))
    return members


async def _broker_sets(net: Net, name_servers: Iterable[str]) -> dict[str, BrokerData]:
    """The brokers that the first name server knows which answers. Raises NameServerUnreachable, Refused."""
    from mqbroker.client.errors import NameServerUnreachable
    from mqbroker.errors import Unreachable
    from mqbroker.remoting.client import succeeded
    from mqbroker.wire.bodies import ClusterInfo
    from mqbroker.wire.codes import RequestCode
    from mqbroker.wire.command import RemotingCommand

    causes = []
    for address in name_servers:
        command = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            answer = await net.invoke(address, command, TIMEOUT_MS)
        except Unreachable as error:
            causes.append((address, str(error)))
            continue
        return dict(ClusterInfo.from_json(succeeded(answer).body).broker_addr_table)
    raise NameServerUnreachable(causes)


async def _runtime_info(net: Net, address: str) -> dict[str, str]:
    from mqbroker.remoting.client import succeeded
    from mqbroker.wire.bodies import KVTable
    from mqbroker.wire.codes import RequestCode
    from mqbroker.wire.command import RemotingCommand

    answer = await net.invoke(address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_MS)
    return KVTable.from_json(succeeded(answer).body).table


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


def _member(name: str, broker_id: int, address: str, info: dict[str, str], master_end: int | None) -> Member:
    """A broker that answered. Only ours say how their links are: Java's have no such key."""
    end = _number(info.get("commitLogMaxOffset"))
    if broker_id == 0:
        slaves = [value.split(",") for key, value in info.items() if key.startswith("haSlave_")]
        return Member(name, broker_id, address, end, None, _slaves_state(slaves), True, True)
    behind = None if end is None or master_end is None else max(0, master_end - end)
    shown = next((value for key, value in info.items() if key.startswith("haMaster_")), None)
    if shown is None:
        return Member(name, broker_id, address, end, behind, "", True, True)
    _, known, why_not = (*shown.split(",", 2), "", "")[:3]
    state = f"does not follow: {why_not}" if why_not else FOLLOWS
    behind = _number(known) if behind is None else behind
    return Member(name, broker_id, address, end, behind, state, True, not why_not, True)


def _slaves_state(slaves: Sequence[Sequence[str]]) -> str:
    """What a master says of its slaves: of each its offset, the bytes and seconds that it is behind, and its rate."""
    if not slaves:
        return ""
    state = f"{len(slaves)} slave{'' if len(slaves) == 1 else 's'} connected"
    seconds = max(_number(slave[2]) or 0 if len(slave) > 2 else 0 for slave in slaves)
    rate = sum(_number(slave[3]) or 0 if len(slave) > 3 else 0 for slave in slaves)
    return state + (f", {seconds} s behind at most" if seconds else "") + (f", {rate:,} bytes/s" if rate else "")


def _in_group(member: Member, info: dict[str, str]) -> Member:
    """The broker with what it says of its group, if it elects its master."""
    epoch = _number(info.get("groupEpoch"))
    if epoch is None:
        return member
    in_sync = tuple(int(text) for text in info.get("groupInSync", "").split() if _number(text) is not None)
    own, why_not = _number(info.get("groupReplicaId")), info.get("groupWhyNot", "")
    state = f"replica {own}, epoch {epoch}, {'in sync' if own in in_sync else 'not in sync'}; {member.state}"
    if why_not:
        state = f"takes no part: {why_not}; {state}"
    is_well = member.is_well and not why_not and own in in_sync
    return attrs.evolve(member, state=state.removesuffix("; "), is_well=is_well, epoch=epoch, in_sync=in_sync)


def lines(members: Sequence[Member], *, as_json: bool, on_terminal: bool) -> list[str]:
    """A line per broker: JSON, columns with tabs between them, or aligned columns below their titles."""
    if as_json:
        return [json.dumps({**attrs.asdict(member), "role": member.role}) for member in members]
    rows = [
        tuple(
            escape_controls("?" if cell is None else str(cell)).replace("\t", "\\t")
            for cell in (
                member.name,
                member.broker_id,
                member.address,
                member.role,
                member.end,
                member.behind if member.broker_id else "",
                member.state,
            )
        )
        for member in members
    ]
    if not on_terminal:
        return ["\t".join(row) for row in rows]
    rows.insert(0, _COLUMNS)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
