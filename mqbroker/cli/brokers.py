"""`mq brokers`: the brokers of the clusters, with their rates; the shards of a broker as one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs
import click

from mqbroker.cli.cluster import asked, broker_sets, number, runtime_info, shard_number, table_lines
from mqbroker.cli.failures import FAILED, NoAnswer, failure_of, told
from mqbroker.cli.lines import escape_controls
from mqbroker.cli.servers import Servers, server_options
from mqbroker.errors import MQError

if TYPE_CHECKING:
    from mqbroker.client.net import Net

N = TypeVar("N", int, float)

_COLUMNS = ("cluster", "broker", "id", "address", "version", "in/s", "out/s", "in today", "out today", "state")

#: Begins `why_not` of a broker that did not answer.
_NO_ANSWER = "no answer: "


@attrs.frozen
class BrokerRow:
    """A broker, or all of its shards. Rates are messages a second over the last ten seconds; None if unknown.

    `shard_of`: the name in common; empty of a broker that is no shard. `shard`: which one; None for all together.
    `shards`: how many there are; `serving`: how many of these brokers answered, and accept messages or are slaves.
    `why_not`: why none, or one, does not.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    version: str | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    in_today: int | None = None
    out_today: int | None = None
    shard_of: str = ""
    shard: int | None = None
    shards: int = 1
    serving: int = 1
    why_not: str = ""

    @property
    def state(self) -> str:
        if self.shards == 1:
            return self.why_not
        count = f"{self.shards}" if self.serving == self.shards else f"{self.serving} of {self.shards}"
        what = f"{count} shards" if self.shard is None else f"shard {self.shard} of {self.shards}"
        return f"{what}; {self.why_not}" if self.why_not else what


@click.command()
@click.option("--shards", "each", is_flag=True, help="Show each shard of a broker on its own line.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, one for each broker.")
@server_options
def brokers(each: bool, as_json: bool, servers: Servers) -> None:
    """List the brokers that the name servers know, with their addresses and message rates.

    The shards of a broker are shown as one line, with the sums of those that respond. Exits with 1 if shards are
    missing or a broker refuses messages, and with 3 if a broker does not respond.
    """
    with told():
        found = asked(servers, rows_of)
    merged = merged_rows(found)
    for line in lines(found if each else merged, as_json=as_json, on_terminal=sys.stdout.isatty()):
        click.echo(line)
    if any(row.why_not.startswith(_NO_ANSWER) for row in found):
        raise SystemExit(NoAnswer.exit_code)
    if any(row.serving < row.shards for row in merged):
        raise SystemExit(FAILED)


async def rows_of(net: Net, name_servers: Sequence[str]) -> list[BrokerRow]:
    """Ask all brokers; a row for each address, by cluster and name. Raises NameServerUnreachable, Refused."""
    rows = []
    for name, data in sorted((await broker_sets(net, name_servers)).items()):
        for broker_id, address in sorted(data.broker_addrs.items()):
            row = BrokerRow(data.cluster or "", name, broker_id, address)
            try:
                rows.append(_with_info(row, await runtime_info(net, address)))
            except MQError as error:
                rows.append(attrs.evolve(row, serving=0, why_not=f"{_NO_ANSWER}{failure_of(error).message}"))
    return sorted(_known_shards(rows), key=lambda row: (row.cluster, row.shard_of or row.name, row.broker_id))


def _with_info(row: BrokerRow, info: dict[str, str]) -> BrokerRow:
    shards = number(info.get("shards")) or 1
    why_refused = escape_controls(info.get("whyRefused", ""))
    return attrs.evolve(
        row,
        version=info.get("brokerVersionDesc"),
        in_per_s=_rate(info.get("putTps")),
        out_per_s=_rate(info.get("getTransferedTps")),
        in_today=_today(info, "msgPutTotal"),
        out_today=_today(info, "msgGetTotal"),
        shard_of=info.get("shardOf", "") if shards > 1 else "",
        shards=shards if "shardOf" in info else 1,
        serving=0 if why_refused else 1,
        why_not=f"refuses messages: {why_refused}" if why_refused else "",
    )


def _rate(text: str | None) -> float | None:
    """The first of three rates; it is blank in the first ten seconds."""
    try:
        rate = float((text or "").split(" ")[0])
    except ValueError:
        return None
    return rate if 0 <= rate < 2**63 else None  # which nan is not


def _today(info: dict[str, str], key: str) -> int | None:
    now, morning = number(info.get(f"{key}TodayNow")), number(info.get(f"{key}TodayMorning"))
    return None if now is None or morning is None else now - morning


def _known_shards(rows: list[BrokerRow]) -> list[BrokerRow]:
    """The rows, in which shards that did not answer are known by their names."""
    sharded = {(row.cluster, row.shard_of): row.shards for row in rows if row.shard_of}

    def known(row: BrokerRow) -> BrokerRow:
        if row.shard_of:
            return attrs.evolve(row, shard=shard_number(row.name, row.shard_of))
        for (cluster, shard_of), shards in sharded.items():
            shard = shard_number(row.name, shard_of) if cluster == row.cluster else None
            if shard is not None and shard < shards and row.why_not.startswith(_NO_ANSWER):
                return attrs.evolve(row, shard_of=shard_of, shard=shard, shards=shards)
        return row

    return [known(row) for row in rows]


def merged_rows(rows: Iterable[BrokerRow]) -> list[BrokerRow]:
    """A row for each broker, with its shards, of one id, taken together."""
    groups: dict[tuple[str, str, int], list[BrokerRow]] = {}
    for row in rows:
        groups.setdefault((row.cluster, row.shard_of or row.name, row.broker_id), []).append(row)
    return [_merged(group) if group[0].shard_of else group[0] for group in groups.values()]


def _merged(group: list[BrokerRow]) -> BrokerRow:
    group = sorted(group, key=lambda row: row.shard or 0)
    versions = dict.fromkeys(row.version for row in group if row.version)
    return attrs.evolve(
        group[0],
        name=group[0].shard_of,
        shard=None,
        version=", ".join(versions) or None,
        in_per_s=_sum(group, lambda row: row.in_per_s),
        out_per_s=_sum(group, lambda row: row.out_per_s),
        in_today=_sum(group, lambda row: row.in_today),
        out_today=_sum(group, lambda row: row.out_today),
        serving=sum(row.serving for row in group),
        why_not="; ".join(f"{row.name}: {row.why_not}" for row in group if row.why_not),
    )


def _sum(group: list[BrokerRow], value: Callable[[BrokerRow], N | None]) -> N | None:
    known = [each for each in map(value, group) if each is not None]
    return sum(known) if known else None


def lines(rows: Sequence[BrokerRow], *, as_json: bool, on_terminal: bool) -> list[str]:
    """A line per row, as JSON or a table."""
    if as_json:
        return [json.dumps({**attrs.asdict(row), "state": row.state}) for row in rows]
    return table_lines([_cells(row) for row in rows], _COLUMNS, on_terminal=on_terminal)


def _cells(row: BrokerRow) -> tuple[object, ...]:
    rates = (None if rate is None else f"{rate:.1f}" for rate in (row.in_per_s, row.out_per_s))
    where = row.cluster, row.name, row.broker_id, row.address, row.version
    return (*where, *rates, row.in_today, row.out_today, row.state)
