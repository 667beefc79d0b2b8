"""Sends and pulls a second: both brokers take turns under the same load, shape by shape; medians of the rounds.

Those of sends stand beside a null server's: the ceiling that the load generator and the kernel set.
"""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from bench.rmqload import Result, Shape
from bench.servers import Bench, Kind, Server
from bench.table import Table, by_kind, divided, number

FILL = Shape("fill 16x4 128 B", "send", 16, 4, 128, 1_000_000)
SENDS = (
    Shape("send 1x1 128 B", "send", 1, 1, 128, 30_000),
    Shape("send 16x4 128 B", "send", 16, 4, 128, 200_000),
    Shape("send 1x64 128 B", "send", 1, 64, 128, 200_000),
    Shape("send 64x1 128 B", "send", 64, 1, 128, 200_000),
    Shape("send 64x8 128 B", "send", 64, 8, 128, 200_000),
    Shape("send 16x4 1 KiB", "send", 16, 4, 1024, 150_000),
)
PULLS = (
    Shape("pull 1x1 of 32", "pull", 1, 1, 128, 1_000_000),
    Shape("pull 4x1 of 32", "pull", 4, 1, 128, 1_000_000),
)
#: After the sends.
OLD_PULL = Shape("pull 4x1, older", "pull", 4, 1, 128, 1_000_000)
SYNC_SENDS = (
    Shape("sync 1x1 128 B", "send", 1, 1, 128, 5_000),
    Shape("sync 16x4 128 B", "send", 16, 4, 128, 50_000),
    Shape("sync 64x8 128 B", "send", 64, 8, 128, 60_000),
)
TWISTD_SHAPES = (*SENDS[:3], PULLS[0])
FILLED = "filled"
#: About 1.7 GiB of the log: the third file is there as well by the end.
SECOND_FILE = Shape("to the second file", "send", 16, 4, 2048, 800_000)
RATIO_WANTED = 1.0
#: What twistd may cost: nothing that could be told from one run to the next.
TWISTD_RATIO_WANTED = 0.97

KINDS: tuple[Kind, ...] = ("ours", "java", "echo")
Results = dict[Kind, list[Result]]


def compare(
    bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float, *, sends: bool, pulls: bool
) -> None:
    """Fill both brokers, print their memory, then the table of pulls, of sends, or both."""
    with ExitStack() as running:
        servers = [running.enter_context(bench.server(kind)) for kind in kinds]
        reach_second_file(servers, factor)
        for server in servers:
            server.load(FILLED, FILL.scaled(factor))
        print_memory(servers, SECOND_FILE.scaled(factor).count + FILL.scaled(factor).count)
        print_head(table)
        if pulls:
            for shape in PULLS:
                print_row(table, shape, take_turns(servers, FILLED, shape.scaled(factor), rounds), RATIO_WANTED)
        if sends:
            echo = running.enter_context(bench.server("echo"))
            for shape in SENDS:
                print_row(table, shape, take_turns([*servers, echo], "bench", shape.scaled(factor), rounds))
        if sends and pulls:  # what is a GiB and more behind the end of the log by now
            print_row(table, OLD_PULL, take_turns(servers, FILLED, OLD_PULL.scaled(factor), rounds), RATIO_WANTED)


def compare_sync(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Sends that are answered when they are on the disk, to both brokers on the same disk."""
    with ExitStack() as running:
        servers = [running.enter_context(bench.server(kind, flushDiskType="SYNC_FLUSH")) for kind in kinds]
        for server in servers:  # which also warms it up
            server.load("bench", SYNC_SENDS[-1].scaled(factor))
        print_head(table)
        for shape in SYNC_SENDS:
            print_row(table, shape, take_turns(servers, "bench", shape.scaled(factor), rounds), RATIO_WANTED)


def compare_twistd(bench: Bench, table: Table, rounds: int, factor: float) -> None:
    """Our broker under twistd beside the one of the console script, which take turns: the same is wanted."""
    with ExitStack() as running:
        kinds: tuple[Kind, ...] = ("ours", "twistd")
        servers = [running.enter_context(bench.server(kind)) for kind in kinds]
        reach_second_file(servers, factor)
        for server in servers:
            server.load(FILLED, FILL.scaled(factor))
        table.head(f"{'messages a second':18}{'script':>9} {'twistd':>9} {'ratio':>6}")
        for shape in TWISTD_SHAPES:
            topic = "bench" if shape.mode == "send" else FILLED
            results = take_turns(servers, topic, shape.scaled(factor), rounds)
            script, twistd = (statistics.median(result.rate for result in results[kind]) for kind in kinds)
            ratio = divided(twistd, script)
            cells = f"{number(script):>9} {number(twistd):>9} {number(ratio, 2):>6}"
            table.wanted_row(shape.name, cells, ratio, at_least=TWISTD_RATIO_WANTED)


def reach_second_file(servers: Sequence[Server], factor: float, fill: Shape = SECOND_FILE) -> None:
    """Send until the log goes on in its second file, as it does in all but the first hours of a broker: ours prepares
    the others before they are needed, and the first one of a new store while it writes to it."""
    for server in servers:
        server.load("to-the-second-file", fill.scaled(factor))


def take_turns(servers: Sequence[Server], topic: str, shape: Shape, rounds: int) -> Results:
    """Run the shape on one server after the other, `rounds` times."""
    results: Results = {server.kind: [] for server in servers}
    for _ in range(rounds):
        for server in servers:
            results[server.kind].append(server.load(topic, shape))
    return results


def print_memory(servers: Sequence[Server], count: int) -> None:
    memory = {server.kind: server.memory_mib() for server in servers}
    private = by_kind({kind: f"{of[0]:.0f} MiB" for kind, of in memory.items()})
    resident = by_kind({kind: f"{of[1]:.0f} MiB" for kind, of in memory.items()})
    print(f"private memory after {count:,} messages   {private}   (resident, with mapped files: {resident})")


def print_head(table: Table) -> None:
    heads = f"{'ours':>9} {'Java':>9} {'ratio':>6} {'null':>9} {'of null':>7}   p99 us: {'ours':>6} {'Java':>6}"
    table.head(f"{'messages a second':18}{heads}")


def print_row(table: Table, shape: Shape, results: Results, wanted: float | None = None) -> None:
    """Print a line of the table, of the medians; what was not measured is a dash."""
    rate = {kind: statistics.median(result.rate for result in found) for kind, found in results.items()}
    p99 = {kind: statistics.median(result.p99_us for result in found) for kind, found in results.items()}
    ours, java, echo = (rate.get(kind) for kind in KINDS)
    ratio = divided(ours, java)
    cells = f"{number(ours):>9} {number(java):>9} {number(ratio, 2):>6} "
    cells += f"{number(echo):>9} {number(divided(ours, echo), 2):>7}   {'':8}"
    cells += f"{number(p99.get('ours')):>6} {number(p99.get('java')):>6}"
    if wanted is None:
        table.row(shape.name, cells)
    else:
        table.wanted_row(shape.name, cells, ratio, at_least=wanted)
