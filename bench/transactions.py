"""Half messages a second and commits a second, and what they cost in memory.

Commits are one-way, as Java's producers send them, and none waits for another. They are compared on brokers that have
just started; what a JVM does that had as many before is shown beside.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing

import attrs
import orjson

from bench.rawload import exchange, tell
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind, Server
from bench.table import Table, by_kind, divided, number
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.headers import EndTransactionRequestHeader
from tests.interop.raw import Line, create_topic, send

COUNT = 100_000
TOPIC = "transactions"
GROUP = "bench-transactions"
WANTED = 1.0


@attrs.frozen
class Run:
    """Halves and commits a second, of the first and of the next as many, and private memory with the first half
    messages there, MiB."""

    halves: float
    commits: float
    next_halves: float
    next_commits: float
    memory_mib: float


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    count = max(1000, int(COUNT * factor))
    runs: dict[Kind, list[Run]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            # Nobody is to be asked while it runs.
            with bench.server(kind, transactionTimeOut="3600000") as server:
                runs[kind].append(measure(server, count))
    table.head(f"transactions, {count:,}   {'ours':>9} {'Java':>9} {'ratio':>6}")
    for name, label in (("halves", "halves a second"), ("commits", "commits a second")):
        cells, ratio = _compared(runs, name)
        table.wanted_row(label, cells, ratio, at_least=WANTED)
        cells, _ = _compared(runs, f"next_{name}")
        table.row(f"  of the next {count:,}", cells)
    memory = {kind: statistics.median(run.memory_mib for run in found) for kind, found in runs.items()}
    table.row("private memory", by_kind({kind: f"{mib:.0f} MiB" for kind, mib in memory.items()}))


def _compared(runs: Mapping[Kind, Sequence[Run]], name: str) -> tuple[str, float | None]:
    """The cells of a row, and the ratio."""
    rate = {kind: statistics.median(getattr(run, name) for run in found) for kind, found in runs.items()}
    ratio = divided(rate.get("ours"), rate.get("java"))
    return f"{number(rate.get('ours')):>9} {number(rate.get('java')):>9} {number(ratio, 2):>6}", ratio


def measure(server: Server, count: int) -> Run:
    """Put half messages to it, and commit them all, twice. Raises LoadFailed."""
    with closing(Line(f"127.0.0.1:{server.port}")) as line:
        line.ask_well([create_topic(TOPIC, 1)])
        halves, commits, memory_mib = _put(server, line, 0, count)
        next_halves, next_commits, _ = _put(server, line, count, 2 * count)
    return Run(halves, commits, next_halves, next_commits, memory_mib)


def _put(server: Server, line: Line, start: int, end: int) -> tuple[float, float, float]:
    """Halves and commits a second, and memory between them, MiB."""
    answers: list[bytes] = []
    halves_s = exchange(server.port, [half(n) for n in range(start, end)], answers.append)
    memory_mib, _ = server.memory_mib()
    ends = [commit(answer) for answer in answers]
    commits_s = tell(server.port, ends, lambda: line.max_offset(TOPIC, 0) >= end)
    return (end - start) / halves_s, (end - start) / commits_s, memory_mib


def half(n: int) -> bytes:
    properties = {"UNIQ_KEY": f"{n:032X}", "TRAN_MSG": "true", "PGROUP": GROUP, "TAGS": "A", "WAIT": "true"}
    return encode_command(send(TOPIC, 0, b"x" * 128, properties, producer_group=GROUP, sys_flag=4))


def commit(answer: bytes) -> bytes:
    """The end that belongs to the answer to a half message. Raises LoadFailed."""
    command = orjson.loads(answer)
    if command["code"] != 0:
        raise LoadFailed(f"a half message was refused: {command.get('remark')}")
    fields = command["extFields"]
    header = EndTransactionRequestHeader(
        producer_group=GROUP,
        tran_state_table_offset=int(fields["queueOffset"]),
        commit_log_offset=int(fields["msgId"][-16:], 16),
        commit_or_rollback=8,
        from_transaction_check=False,
        msg_id="x",
    )
    request = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
    request.flag |= ONEWAY_FLAG
    return encode_command(request)
