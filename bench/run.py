"""Ours beside the Java broker, on one machine, under the same load: python -m bench.run [--quick] [--only PARTS]

Both brokers run with the same settings on fresh stores and take turns. The parts:

    start    from exec to the first answer, on an empty store
    send     messages a second and latency, asynchronous flush
    pull     messages a second
    twistd   sends and pulls of ours under twistd, beside the console script
    filter   messages a second that pulls by tag and by SQL92 look through
    sync     as send, answered when on the disk (SYNC_FLUSH)
    restart  from exec to the first send and the first pull that are answered, after SIGKILL with a million messages
    rebuild  of ours alone: the same with ten million, and how fast queues and index are built anew from the log
    roll     latency of sends through ten rolls to a next segment of the log
    transactions  half messages and commits a second, of the first 100,000 and the next
    delayed  taken and delivered a second, and how late those come that are due while a million wait
    memory   of ours alone, while ten million messages are sent
    routes   a name server with 100,000 topics: their registration, memory, and answers a second
    topics   a broker with 20,000 topics that may have 4,096 files open: sends, starts and memory
    idle     memory, CPU and wake-up of a broker that holds the long polls of ten thousand consumers
    replication  a master with a slave: SYNC_MASTER, a slave attached, and how fast one catches up
    growth   sends a second by connections, topics and size, from few to very many; --plot draws them
    shards   CPU time of a message on one core, and two shards on two cores
    spark    rows a second that Spark reads on one core, and what an idle stream takes
    clients  each way to send and to consume of our clients and of Java's, on one core, with one broker of ours
    joins    messages that come twice where a member joins a group, and where it leaves
    stalls   the longest that one waits while another asks as much as it can

Figures are worth something only when the machine does nothing else. Ratios are such that more is better.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    clients,
    delayed,
    filtered,
    growth,
    idle,
    joins,
    many_topics,
    memory,
    replication,
    restart,
    rmqload,
    roll,
    routes,
    shards,
    spark,
    stalls,
    throughput,
    transactions,
)
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind
from bench.table import Table, by_kind
from tests.interop.java import JavaMissing, java_system
from tests.interop.processes import ProcessFailed

PARTS = (
    "start",
    "send",
    "pull",
    "twistd",
    "filter",
    "sync",
    "restart",
    "rebuild",
    "roll",
    "transactions",
    "delayed",
    "memory",
    "routes",
    "topics",
    "idle",
    "replication",
    "growth",
    "shards",
    "spark",
    "clients",
    "joins",
    "stalls",
)

#: Parts that measure nothing of the Java broker.
OURS_ALONE = {"memory", "rebuild", "twistd", "shards", "spark"}


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    factor = 0.1 if options.quick else 1.0
    rounds = options.rounds or (1 if options.quick else 3)
    kinds: list[Kind] = [options.kind] if options.kind else ["ours", "java"]
    table = Table()
    failed = False
    try:
        with tempfile.TemporaryDirectory(prefix="mqbroker-bench-", dir=options.scratch) as scratch:
            needs_java = "java" in kinds and not set(options.only) <= OURS_ALONE
            bench = Bench(Path(scratch), rmqload.build(Path(scratch)), java_system() if needs_java else None)
            print(machine(bench))
            for part in steps(bench, table, options, kinds, rounds, factor):
                try:
                    part()
                except (LoadFailed, ProcessFailed) as failure:
                    failed = True
                    print(f"bench: {failure}", file=sys.stderr)
    except (LoadFailed, JavaMissing) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    table.summary()
    return int(failed)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.run", description="Ours beside the Java broker, under the same load.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, one round")
    parser.add_argument("--rounds", type=int, help="rounds of each shape (3; 1 with --quick)")
    parser.add_argument("--only", type=parts, default=list(PARTS), help=f"of {','.join(PARTS)}: what to measure")
    parser.add_argument("--kind", choices=["ours", "java"], help="measure one of the two brokers")
    parser.add_argument("--consumers", type=int, help="how many consumers wait in idle (10,000; 1,000 with --quick)")
    parser.add_argument("--plot", type=Path, help="directory for drawings of growth (needs matplotlib)")
    parser.add_argument("--scratch", help="directory for the stores, on the disk to be measured (default: temporary)")
    return parser.parse_args(argv)


def parts(text: str) -> list[str]:
    """Names of parts, with commas between. Raises ArgumentTypeError."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return names


def steps(
    bench: Bench,
    table: Table,
    options: argparse.Namespace,
    kinds: Sequence[Kind],
    rounds: int,
    factor: float,
) -> list[Callable[[], None]]:
    """What to do, in order. Sends and pulls share the brokers, which take long to fill."""
    only = options.only
    sends, pulls = "send" in only, "pull" in only
    by_part: dict[str, Callable[[], None]] = {
        "start": lambda: measure_starts(bench, table, kinds, rounds),
        "send": lambda: throughput.compare(bench, table, kinds, rounds, factor, sends=sends, pulls=pulls),
        "twistd": lambda: throughput.compare_twistd(bench, table, rounds, factor),
        "filter": lambda: filtered.compare(bench, table, kinds, rounds, factor),
        "sync": lambda: throughput.compare_sync(bench, table, kinds, rounds, factor),
        "restart": lambda: restart.compare(bench, table, kinds, rounds, factor),
        "rebuild": lambda: restart.measure_large(bench, table, factor),
        "roll": lambda: roll.compare(bench, table, kinds, is_quick=factor < 1),
        "transactions": lambda: transactions.compare(bench, table, kinds, rounds, factor),
        "delayed": lambda: delayed.compare(bench, table, kinds, rounds, factor),
        "memory": lambda: memory.measure(bench, table, factor),
        "routes": lambda: routes.compare(bench, table, kinds, rounds, factor),
        "topics": lambda: many_topics.compare(bench, table, kinds, factor),
        "idle": lambda: idle.compare(bench, table, kinds, factor, options.consumers),
        "replication": lambda: replication.compare(bench, table, kinds, rounds, factor),
        "shards": lambda: shards.measure(bench, table, rounds, factor),
        "spark": lambda: spark.measure(bench, table, rounds, factor),
        "growth": lambda: growth.compare(bench, table, kinds, factor, options.plot),
        "clients": lambda: clients.compare(bench, table, kinds, rounds, factor),
        "joins": lambda: joins.compare(bench, table, kinds, rounds),
        "stalls": lambda: stalls.compare(bench, table, kinds, factor),
    }
    wanted = {"send" if name == "pull" else name for name in only}
    if "ours" not in kinds:
        wanted -= OURS_ALONE
    return [part for name, part in by_part.items() if name in wanted]


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


def measure_starts(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int) -> None:
    """Print the median time from exec to the first answer."""
    seconds: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            seconds[kind].append(bench.start_seconds(kind))
    medians = by_kind({kind: f"{statistics.median(seconds[kind]):.2f} s" for kind in kinds})
    table.head(f"exec to first answer   {medians}")


if __name__ == "__main__":
    sys.exit(main())
