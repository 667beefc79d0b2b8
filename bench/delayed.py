"""Delayed messages: how fast they are taken, how late those of the first level come while a million others wait, and
how fast many that are due at once come.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import closing

import attrs

from bench.rawload import exchange, wait_until
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind, Server
from bench.table import Table, by_kind, divided, number
from mqbroker.wire.command import encode_command
from mqbroker.wire.record import decode_records
from tests.interop.raw import Line, create_topic, pull, send

COUNT = 1_000_000
#: Those that are due at once, and those whose lateness is measured.
BURST = 100_000
PUNCTUAL = 200
FIRST_MS = 1000
#: Level 2 waits for longer than it takes to send the burst, level 3 for longer than all.
LEVELS = {"messageDelayLevel": "1s 10s 1h"}
BURST_MS = 10_000
RATE_WANTED = 1.0
LATE_MS_WANTED = 100


@attrs.frozen
class Run:
    """Taken and delivered a second; lateness of the 99th percentile, ms; private memory, MiB."""

    taken: float
    delivered: float
    late_ms: float
    memory_mib: float


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    runs: dict[Kind, list[Run]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            with bench.server(kind, **LEVELS) as server:
                runs[kind].append(measure(server, int(COUNT * factor), int(BURST * factor)))
    table.head(f"delayed, {int(COUNT * factor):,} wait   {'ours':>9} {'Java':>9} {'ratio':>6}")
    for name in ("taken", "delivered"):
        rate = {kind: statistics.median(getattr(run, name) for run in found) for kind, found in runs.items()}
        ratio = divided(rate.get("ours"), rate.get("java"))
        cells = f"{number(rate.get('ours')):>9} {number(rate.get('java')):>9} {number(ratio, 2):>6}"
        table.wanted_row(f"{name} a second", cells, ratio, at_least=RATE_WANTED)
    late = {kind: statistics.median(run.late_ms for run in found) for kind, found in runs.items()}
    cells = f"{number(late.get('ours')):>9} {number(late.get('java')):>9} ms"
    table.wanted_row("late, p99", cells, late.get("ours"), below=LATE_MS_WANTED)
    memory = {kind: statistics.median(run.memory_mib for run in found) for kind, found in runs.items()}
    table.row("private memory", by_kind({kind: f"{mib:.0f} MiB" for kind, mib in memory.items()}))


def measure(server: Server, count: int, burst: int) -> Run:
    """Let many wait, then look when others come. Raises LoadFailed."""
    with closing(Line(f"127.0.0.1:{server.port}")) as line:
        line.ask_well([create_topic(topic, 1) for topic in ("waiting", "burst", "punctual")])
        taken_s = exchange(server.port, [delayed("waiting", 3)] * count, check)
        late = lateness(line)
        memory_mib, _ = server.memory_mib()
        exchange(server.port, [delayed("burst", 2)] * burst, check)
        wait_until(lambda: line.max_offset("burst", 0) >= burst)
        first, last = (stored_ms(line, "burst", at) for at in (0, burst - 1))
    return Run(count / taken_s, burst * 1000 / max(1, last - first), late, memory_mib)


def lateness(line: Line) -> float:
    """How late messages of the first level come that are sent one by one: the 99th percentile, ms."""
    for _ in range(PUNCTUAL):
        now_ms = int(time.time() * 1000)
        line.ask_well([send("punctual", 0, b"x" * 128, {"DELAY": "1"}, born_timestamp=now_ms)])
        time.sleep(0.01)
    wait_until(lambda: line.max_offset("punctual", 0) >= PUNCTUAL)
    found = [record.store_timestamp - record.born_timestamp - FIRST_MS for record in line.read("punctual", 0)]
    return statistics.quantiles(found, n=100)[-1]


def stored_ms(line: Line, topic: str, offset: int) -> int:
    [answer] = line.ask_well([pull(topic, 0, offset)])
    return decode_records(answer.body)[0].store_timestamp


def delayed(topic: str, level: int) -> bytes:
    properties = {"UNIQ_KEY": "F" * 32, "TAGS": "A", "WAIT": "true", "DELAY": str(level)}
    return encode_command(send(topic, 0, b"x" * 128, properties))


def check(answer: bytes) -> None:
    if b'"code":0,' not in answer:
        raise LoadFailed(f"a delayed message was refused: {answer[:200]!r}")
