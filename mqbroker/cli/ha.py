"""`mq ha`: replication, as name servers and brokers show it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import click

from mqbroker.cli.cluster import asked, broker_sets, number, request, runtime_info, shard_number, table_lines
from mqbroker.cli.failures import FAILED, Failure, NoAnswer, failure_of, told
from mqbroker.cli.ha_members import remove, switch
from mqbroker.cli.ha_rebuild import rebuild
from mqbroker.cli.lines import escape_controls
from mqbroker.cli.servers import Servers, server_options
from mqbroker.errors import MQError
from mqbroker.wire.codes import RequestCode

if TYPE_CHECKING:
    from mqbroker.client.net import Net

#: A broker stops and starts within this time, unless its store has much to recover.
PROMOTED_SECONDS_MAX = 60
FOLLOWS = "follows"
_COLUMNS = ("broker", "id", "address", "role", "log end", "behind", "state")


@attrs.frozen
class Member:
    """One broker. `end`: where its log ends; `behind`: the bytes that a slave lacks; None if unknown.

    `is_answering`: whether it answered; `is_well`: it answered, and follows if it is a slave. `is_ours`: it says how
    its links are. `epoch`, `in_sync`: what brokers that elect their master say: the epoch, and the ids of the in-sync
    replicas; None and empty of others; `committed`, `not_whole`: its commit point, and why its store is not whole.
    `min_in_sync`: minInSyncReplicas; `down`: the ids of brokers that etcd knows and that do not run; `is_elected`:
    whether it is the master of its group; `why_not`: why it takes no part, does not count, or acknowledges nothing.
    `shard_of`, `shards`: of a shard, the name that it has in common with the others, and how many they are.
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
    committed: int | None = None
    not_whole: str = ""
    min_in_sync: int | None = None
    down: tuple[int, ...] = ()
    is_elected: bool = False
    why_not: str = ""
    shard_of: str = ""
    shards: int = 1

    @property
    def role(self) -> str:
        return "slave" if self.broker_id else "master"


@click.group()
def ha() -> None:
    """Show replication, and change masters and members."""


ha.add_command(rebuild)
ha.add_command(switch)
ha.add_command(remove)


@ha.command()
@click.argument("name")
@click.option(
    "--id", "broker_id", type=click.IntRange(1), metavar="ID", help="The slave's brokerId, if there are several slaves."
)
@click.option("--sync", is_flag=True, help="Make it a SYNC_MASTER, which waits for slaves, instead of an ASYNC_MASTER.")
@server_options
def promote(name: str, broker_id: int | None, sync: bool, servers: Servers) -> None:
    """Promote a slave of the broker NAME to master. Stop the former master first.

    The slave restarts as master at the same address, and its settings file is changed. For a broker with shards, all
    shards are promoted.
    """
    role = "SYNC_MASTER" if sync else "ASYNC_MASTER"

    async def promoted(net: Net, name_servers: Sequence[str]) -> list[Member]:
        slaves = slaves_to_promote(await members_of(net, name_servers, name), broker_id)
        for slave in slaves:
            for line in await change_role(net, slave, role):
                click.echo(line)
        return [await wait_for_master(net, name_servers, slave) for slave in slaves]

    with told():
        masters = asked(servers, promoted)
    for master in masters:
        who = escape_controls(f"{master.name} at {master.address}")
        click.echo(f"{who} is the master now; its log ends at {master.end}")


def slaves_to_promote(members: Sequence[Member], broker_id: int | None) -> list[Member]:
    """The slave of each name, of a broker with shards of each shard: see `slave_to_promote`. Raises Failure also where
    a shard is missing."""
    by_name: dict[str, list[Member]] = {}
    for member in members:
        by_name.setdefault(member.name, []).append(member)
    shards = max((member.shards for member in members if len(by_name) > 1 or member.name == member.shard_of), default=1)
    if len(by_name) < shards:
        there = ", ".join(map(escape_controls, by_name))
        raise Failure(f"of {shards} shards only {there} are registered: start the others, or promote each by its name")
    return [slave_to_promote(each, broker_id) for each in by_name.values()] or [slave_to_promote([], broker_id)]


def slave_to_promote(members: Sequence[Member], broker_id: int | None) -> Member:
    """The slave that becomes master: the one wanted, or the only one. Raises Failure where that would lose messages, or
    it is not clear."""
    for member in members:
        if member.epoch is not None:
            raise Failure(
                "these brokers elect their master through etcd: use `mq ha switch` to change it; if there is "
                "none, `mq ha status` shows why"
            )
        if member.broker_id == 0 and member.is_answering:
            raise Failure(
                f"the master at {member.address} is running: stop it first, so that it accepts no message that the "
                "slave would not have"
            )
    slaves = [member for member in members if member.broker_id and member.is_answering]
    if not slaves:
        raise Failure("no slave responds")
    found = [member for member in slaves if broker_id in (None, member.broker_id)]
    if len(found) != 1:
        ids = ", ".join(f"{member.broker_id} (log end {member.end})" for member in slaves)
        raise Failure(f"which slave is to become the master? Choose it with --id; there are: {ids}")
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
    body = f"brokerRole={role}\nbrokerId=0\n".encode()
    remark = (await request(net, slave.address, RequestCode.UPDATE_BROKER_CONFIG, body)).remark
    return [escape_controls(remark)] if remark else []


async def wait_for_master(net: Net, name_servers: Sequence[str], slave: Member) -> Member:
    """Return the slave as master, once name servers have it as that. Raises NoAnswer."""
    deadline = net.steady() + PROMOTED_SECONDS_MAX
    while net.steady() < deadline:
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, one for each broker.")
@server_options
def status(name: str | None, as_json: bool, servers: Servers) -> None:
    """Show the brokers named NAME, or all brokers: the end of each log, and how far slaves are behind.

    Exits with 1 if something is wrong: a group acknowledges nothing or has no master, one of its brokers is down, a
    slave does not follow or does not count, or a replica is not in sync. Exits with 3 if a broker does not respond. A
    line on standard error says what is wrong.
    """
    with told():
        members = asked(servers, lambda net, name_servers: members_of(net, name_servers, name))
    for line in lines(members, as_json=as_json, on_terminal=sys.stdout.isatty()):
        click.echo(line)
    cause = cause_of(members)
    if cause:
        click.echo(f"mq: {escape_controls(cause)}", err=True)
    if not all(member.is_answering for member in members):
        raise SystemExit(NoAnswer.exit_code)
    if cause:
        raise SystemExit(FAILED)


def cause_of(members: Sequence[Member]) -> str:
    """What is wrong, in one line: of several things the one that stops most. Empty if nothing is."""
    causes: list[tuple[int, str]] = []
    for name in dict.fromkeys(member.name for member in members):
        own = [member for member in members if member.name == name]
        group = [member for member in own if member.epoch is not None]
        masters = [member for member in group if member.is_elected]
        if group and not masters:
            why = next((f": {member.why_not}" for member in group if member.why_not), "")
            causes.append((0, f"{name} has no master, and acknowledges nothing{why}"))
        for master in masters:
            if master.why_not:
                causes.append((0, f"{name} acknowledges nothing: {master.why_not}"))
        for down in sorted({broker_id for member in masters or group for broker_id in member.down}):
            causes.append((2, f"broker {down} of {name} is down: start it, or see `mq ha remove`"))
        for member in own:
            if not member.is_answering:
                causes.append((1, f"{name} at {member.address}: {member.state}"))
            elif not member.is_well and not member.is_elected:
                causes.append((3, f"{name} at {member.address}: {member.why_not or member.state}"))
            elif not member.is_well:
                causes.append((3, f"{name} at {member.address}: {member.state}"))
    return min(causes, default=(0, ""))[1]


async def members_of(net: Net, name_servers: Sequence[str], name: str | None) -> list[Member]:
    """Ask the brokers called `name`, with its shards, or all of them, masters first. Raises MQError and Failure."""
    sets = await broker_sets(net, name_servers)
    found = sorted(other for other in sets if name is None or shard_number(other, name) is not None)
    if name is not None and not found:
        there = ", ".join(map(escape_controls, sorted(sets))) or "none"
        raise Failure(f"no broker called {escape_controls(name)} is registered; there are: {there}")
    members = [member for other in found for member in await _members(net, other, sets[other].broker_addrs)]
    shards = max((member.shards for member in members if member.shard_of == name), default=1)

    def is_meant(member: Member) -> bool:
        """Whether it is one of the name, or its shard: a broker of another file may have such a name."""
        if name is None or member.name == name or member.shard_of == name:
            return True
        return not member.is_answering and (shard_number(member.name, name) or 0) < shards

    return [member for member in members if is_meant(member)]


async def _members(net: Net, name: str, addresses: Mapping[int, str]) -> list[Member]:
    """Ask the brokers of one name, by their ids."""
    members: list[Member] = []
    master_end: int | None = None
    for broker_id, address in sorted(addresses.items()):
        try:
            info = await runtime_info(net, address)
        except MQError as error:
            why = f"no answer: {failure_of(error).message}"
            members.append(Member(name, broker_id, address, None, None, why, False, False))
            continue
        if broker_id == 0:
            master_end = number(info.get("commitLogMaxOffset"))
        member = _in_group(_member(name, broker_id, address, info, master_end), info)
        if "shardOf" in info:
            member = attrs.evolve(member, shard_of=info["shardOf"], shards=number(info.get("shards")) or 1)
        members.append(member)
    return members


def _member(name: str, broker_id: int, address: str, info: dict[str, str], master_end: int | None) -> Member:
    """A broker that answered. Only ours say how their links are: Java's have no such key."""
    end = number(info.get("commitLogMaxOffset"))
    if broker_id == 0:
        state, notes = _slaves_state(info)
        return Member(name, broker_id, address, end, None, state, True, not notes)
    behind = None if end is None or master_end is None else max(0, master_end - end)
    shown = next((value for key, value in info.items() if key.startswith("haMaster_")), None)
    if shown is None:
        return Member(name, broker_id, address, end, behind, "", True, True)
    _, known, why_not = (*shown.split(",", 2), "", "")[:3]
    state = f"does not follow: {why_not}" if why_not else FOLLOWS
    behind = number(known) if behind is None else behind
    return Member(name, broker_id, address, end, behind, state, True, not why_not, True)


def _slaves_state(info: Mapping[str, str]) -> tuple[str, list[str]]:
    """What a master says of its slaves: of each its offset, the bytes and seconds that it is behind, its rate, and why
    it does not count; and of those that it refused. Returns that, and of it what is wrong."""
    slaves, notes = [], []
    for key, value in sorted(info.items(), reverse=True):
        if key.startswith("haSlave_"):
            slaves.append(value.split(",", 4))
            if slaves[-1][4:] > [""]:
                notes.append(f"{key.removeprefix('haSlave_')} does not count: {slaves[-1][4]}")
        elif key.startswith("haRefused_"):
            notes.append(f"{key.removeprefix('haRefused_')} is refused: {value}")
    return "; ".join(filter(None, [_links_state(slaves), *notes])), notes


def _links_state(slaves: Sequence[Sequence[str]]) -> str:
    if not slaves:
        return ""
    state = f"{len(slaves)} slave{'' if len(slaves) == 1 else 's'} connected"
    seconds = max(number(slave[2]) or 0 if len(slave) > 2 else 0 for slave in slaves)
    rate = sum(number(slave[3]) or 0 if len(slave) > 3 else 0 for slave in slaves)
    return state + (f", {seconds} s behind at most" if seconds else "") + (f", {rate:,} bytes/s" if rate else "")


def _in_group(member: Member, info: dict[str, str]) -> Member:
    """The broker with what it says of its group, if it elects its master."""
    epoch = number(info.get("groupEpoch"))
    if epoch is None:
        return member
    in_sync, least = _ids(info, "groupInSync"), number(info.get("groupMinInSync"))
    down = tuple(sorted({*_ids(info, "groupKnown")} - {*_ids(info, "groupRunning")})) if "groupRunning" in info else ()
    is_elected = info.get("groupIsMaster") == "true"
    own, why_not = number(info.get("groupReplicaId")), info.get("groupWhyNot", "")
    state = f"replica {own}, epoch {epoch}, {'in sync' if own in in_sync else 'not in sync'}; {member.state}"
    committed, not_whole = number(info.get("groupCommitted")), info.get("groupNotWhole", "")
    if committed is not None:
        state = f"{state.removesuffix('; ')}; commit point {committed}"
    if member.broker_id == 0 and least is not None:
        state = f"{state.removesuffix('; ')}; in sync {' '.join(map(str, in_sync))}, at least {least} must be"
    stopped = info.get("groupWhyNotConfirmed", "") if is_elected else ""
    if stopped:
        state = f"acknowledges nothing: {stopped}; {state}"
    if not_whole:
        state = f"incomplete store: {not_whole}; {state}"
    if why_not:
        state = f"takes no part: {why_not}; {state}"
    is_well = member.is_well and not (why_not or not_whole or stopped or down) and own in in_sync
    found = attrs.evolve(member, state=state.removesuffix("; "), is_well=is_well, epoch=epoch, in_sync=in_sync)
    why = stopped or why_not or (f"its store is incomplete: {not_whole}" if not_whole else "")
    return attrs.evolve(
        found,
        committed=committed,
        not_whole=not_whole,
        min_in_sync=least,
        down=down,
        is_elected=is_elected,
        why_not=why,
    )


def _ids(info: Mapping[str, str], key: str) -> tuple[int, ...]:
    return tuple(int(text) for text in info.get(key, "").split() if number(text) is not None)


def lines(members: Sequence[Member], *, as_json: bool, on_terminal: bool) -> list[str]:
    """A line per broker: JSON, columns with tabs between them, or aligned columns below their titles."""
    if as_json:
        return [json.dumps({**attrs.asdict(member), "role": member.role}) for member in members]
    rows = [
        (
            member.name,
            member.broker_id,
            member.address,
            member.role,
            member.end,
            member.behind if member.broker_id else "",
            member.state,
        )
        for member in members
    ]
    return table_lines(rows, _COLUMNS, on_terminal=on_terminal)
