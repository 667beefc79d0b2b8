"""Ours beside the Java broker, on one machine, under the same load: python -m bench.run [--quick]

Both brokers run with the same settings on fresh stores. First each takes a million messages, which also warms it up;
then, shape by shape, they take turns, and the medians of the rounds are printed, with those of a null server: the
ceiling that the load generator and the kernel set. Figures are worth something only when the machine does nothing else.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import rmqload
from bench.rmqload import LoadFailed, Result, Shape
from bench.servers import Bench, Kind, Server
from tests.interop.java import JavaMissing, java_system
from tests.interop.processes import ProcessFailed

FILL = Shape("fill 16x4 128 B", "send", 16, 4, 128, 1_000_000)
SHAPES = (
    Shape("send 1x1 128 B", "send", 1, 1, 128, 30_000),
    Shape("send 16x4 128 B", "send", 16, 4, 128, 200_000),
    Shape("send 1x64 128 B", "send", 1, 64, 128, 200_000),
    Shape("send 64x1 128 B", "send", 64, 1, 128, 200_000),
    Shape("send 64x8 128 B", "send", 64, 8, 128, 300_000),
    Shape("send 16x4 1 KiB", "send", 16, 4, 1024, 150_000),
)
PULL = Shape("pull 4x1 of 32", "pull", 4, 1, 128, 1_000_000)
FILLED = "filled"

KINDS: tuple[Kind, ...] = ("ours", "java", "echo")
Results = dict[Kind, list[Result]]


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    factor = 0.2 if options.quick else 1.0
    rounds = options.rounds or (1 if options.quick else 3)
    kinds: list[Kind] = [options.only] if options.only else ["ours", "java"]
    try:
        with tempfile.TemporaryDirectory(prefix="mqbroker-bench-", dir=options.scratch) as scratch:
            load = rmqload.build(Path(scratch))
            bench = Bench(Path(scratch), load, java_system() if "java" in kinds else None)
            print(machine(bench))
            measure_starts(bench, kinds, rounds)
            compare(bench, kinds, rounds, factor)
    except (LoadFailed, JavaMissing, ProcessFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.run", description="Ours beside the Java broker, under the same load.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages, one round")
    parser.add_argument("--rounds", type=int, help="rounds of each shape (3; 1 with --quick)")
    parser.add_argument("--only", choices=["ours", "java"], help="measure one of the two")
    parser.add_argument("--scratch", help="directory for the stores, on the disk to be measured (default: temporary)")
    return parser.parse_args(argv)


def machine(bench: Bench) -> str:
    """The machine in one line: figures mean nothing without it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [f"{os.cpu_count()} cores ({cpu})", f"{memory_gib:.0f} GiB", f"Linux {platform.release()}"]
    parts.append(f"Python {platform.python_version()}")
    if bench.java is not None:
        version = subprocess.run([bench.java.java, "-version"], capture_output=True, text=True, check=True).stderr
        parts.append(version.splitlines()[0])
    return ", ".join(parts)


def measure_starts(bench: Bench, kinds: Sequence[Kind], rounds: int) -> None:
    """Print the median time from exec to the first answer."""
    seconds: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            seconds[kind].append(bench.start_seconds(kind))
    print("\nexec to first answer   ", row({kind: f"{statistics.median(seconds[kind]):.2f} s" for kind in kinds}))


def compare(bench: Bench, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Fill both brokers, print their memory, then the table of shapes."""
    with ExitStack() as running:
        servers = [running.enter_context(bench.server(kind)) for kind in kinds]
        echo = running.enter_context(bench.server("echo"))
        fill = FILL.scaled(factor)
        for server in servers:
            rmqload.run(bench.load, server.port, FILLED, fill)
        memory = {server.kind: server.memory_mib() for server in servers}
        private = row({kind: f"{of[0]} MiB" for kind, of in memory.items()})
        resident = row({kind: f"{of[1]} MiB" for kind, of in memory.items()})
        print(f"private memory after {fill.count:,} messages   {private}   (resident, with mapped files: {resident})\n")
        print(
            f"{'':18}{'ours':>9} {'Java':>9} {'ratio':>6} {'null':>9} {'of null':>7}   p99 us: {'ours':>6} {'Java':>6}"
        )
        for shape in SHAPES:
            print_row(shape, take_turns(bench, [*servers, echo], "bench", shape.scaled(factor), rounds))
        print_row(PULL, take_turns(bench, servers, FILLED, PULL.scaled(factor), rounds))


def take_turns(bench: Bench, servers: Sequence[Server], topic: str, shape: Shape, rounds: int) -> Results:
    """Run the shape on one server after the other, `rounds` times."""
    results: Results = {server.kind: [] for server in servers}
    for _ in range(rounds):
        for server in servers:
            results[server.kind].append(rmqload.run(bench.load, server.port, topic, shape))
    return results


def print_row(shape: Shape, results: Results) -> None:
    """Print a line of the table, of the medians; what was not measured is a dash."""
    rate = {kind: statistics.median(result.rate for result in found) for kind, found in results.items()}
    p99 = {kind: statistics.median(result.p99_us for result in found) for kind, found in results.items()}
    ours, java, echo = (rate.get(kind) for kind in KINDS)
    cells = [f"{shape.name:18}{number(ours):>9} {number(java):>9} {ratio(ours, java):>6} "]
    cells += [
        f"{number(echo):>9} {ratio(ours, echo):>7}   {'':8}{number(p99.get('ours')):>6} {number(p99.get('java')):>6}"
    ]
    print("".join(cells), flush=True)


def row(values: dict[Kind, str]) -> str:
    return ", ".join(f"{'Java' if kind == 'java' else kind} {value}" for kind, value in values.items())


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def ratio(value: float | None, other: float | None) -> str:
    return "-" if value is None or other is None else f"{value / other:.2f}"


if __name__ == "__main__":
    sys.exit(main())
