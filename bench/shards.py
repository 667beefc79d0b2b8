"""CPU time of a message on one core, and two shards on two cores.

Brokers are pinned to cores; with one broker the load generator has another core to itself.
"""

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import attrs

from bench import rmqload
from bench.affinity import pin, starting_on
from bench.rmqload import Result, Shape
from bench.servers import Bench, Server
from bench.table import Table
from mqbroker.config.shards import PORT_STEP

SEND = Shape("send, 16 x 4", "send", 16, 4, 128, 1_000_000)
PULL = Shape("pull of 32, 16 x 4", "pull", 16, 4, 128, 1_000_000)
_TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class _Figures:
    """Of one run: messages a second, CPU time of the broker for one, us, and its share of its cores."""

    rate: float
    cpu_us: float
    share: float


def measure(bench: Bench, table: Table, rounds: int, factor: float) -> None:
    """Print medians of rates and of the CPU time of a message; of two shards each has a load generator of its own."""
    cores = sorted(os.sched_getaffinity(0))
    table.head(f"one broker on core {cores[0]}, the load generator on core {cores[-1]}")
    _measure(bench, table, rounds, factor, cores[:1], cores[-1:])
    table.head(f"two shards and their load generators on cores {cores[:2]}")
    _measure(bench, table, rounds, factor, cores[:2], cores[:2])


def _measure(
    bench: Bench, table: Table, rounds: int, factor: float, of_broker: Sequence[int], of_load: Iterable[int]
) -> None:
    """A shard on each core of `of_broker`."""
    found: dict[Shape, list[_Figures]] = {SEND: [], PULL: []}
    for _ in range(rounds):
        with bench.server("ours", shards=str(len(of_broker))) as server:
            server.process.wait_line("boot success")
            pids = _children(server.process.pid) or [server.process.pid]
            for pid, core in zip(pids, of_broker, strict=True):
                pin(pid, [core])
            with starting_on(of_load):
                for shape, figures in found.items():
                    figures.append(_loaded(server, pids, shape.scaled(factor)))
    for shape, figures in found.items():
        rate = median(each.rate for each in figures)
        cpu_us, share = median(each.cpu_us for each in figures), median(each.share for each in figures)
        table.row(shape.name, f"{rate:12,.0f} msg/s{cpu_us:8.2f} us of CPU a message   {share:.0%} of a core")


def _loaded(server: Server, pids: Sequence[int], shape: Shape) -> _Figures:
    def load(number: int) -> Result:
        return rmqload.run(server.program, server.port + PORT_STEP * number, "bench", shape)

    before, began = sum(map(_cpu_s, pids)), time.monotonic()
    with ThreadPoolExecutor(len(pids)) as threads:
        results = list(threads.map(load, range(len(pids))))
    took, cpu = time.monotonic() - began, sum(map(_cpu_s, pids)) - before
    rate = sum(result.rate for result in results)
    return _Figures(rate, cpu / (shape.count * len(pids)) * 1e6, cpu / took / len(pids))


def _children(pid: int) -> list[int]:
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _cpu_s(pid: int) -> float:
    """User and system time of all threads so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
