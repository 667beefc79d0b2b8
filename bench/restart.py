"""How soon a broker that was killed serves again, with a million messages in its store.

A store is written under load and its broker killed at once (SIGKILL) when the last send is answered. Each start works
on a copy of that, all of it written to the disk before. Then the brokers change stores: each opens the other's, and
finds little of what it would have noted itself: ours reads all of the log then.

And how fast ours reads the log of ten million messages to build queues and index anew, as where both were lost.
"""

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import attrs

from bench import probe
from bench.idle import Line
from bench.rmqload import LoadFailed, Shape
from bench.servers import Bench, Kind
from bench.table import Table, divided, number
from bench.throughput import FILL, FILLED, RATIO_WANTED
from tests.interop.processes import free_ports

#: A store with its segments in full, and copies without their holes, for both.
ROOM_BYTES = 5 << 30
#: The same for ten million messages of ours.
LARGE_FILL = Shape("fill 64x8 128 B", "send", 64, 8, 128, 10_000_000)
LARGE_ROOM_BYTES = 12 << 30
#: Of messages a second, from the start of the program.
REBUILD_WANTED = 2_000_000


@attrs.frozen
class Restart:
    """Seconds from the start of the program."""

    send_s: float
    pull_s: float


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    bench.require_room(ROOM_BYTES)
    fill = FILL.scaled(factor)
    stores = {kind: bench.scratch / f"killed-{kind}" for kind in kinds}
    name = "s after SIGKILL"
    try:
        for kind, store in stores.items():
            with bench.server(kind) as server:
                server.load(FILLED, fill)
                server.process.kill()
                copy_store(server.store, store)
        head = f"{name:18}{'ours':>9} {'Java':>9} {'Java/ours':>9}   {fill.count:,} messages in the store"
        table.head(head)
        show(table, "own", {kind: restarts(bench, kind, stores[kind], rounds) for kind in kinds})
        if len(kinds) == 2:
            changed = dict(zip(kinds, reversed(kinds), strict=True))
            show(table, "other's", {kind: restarts(bench, kind, stores[changed[kind]], rounds) for kind in kinds})
    finally:
        for store in stores.values():
            shutil.rmtree(store, ignore_errors=True)


def measure_large(bench: Bench, table: Table, factor: float) -> None:
    """Starts of ours on a killed broker's store of ten million messages: as it was left, and without its consume
    queues and index, until all messages are in the queues again."""
    bench.require_room(LARGE_ROOM_BYTES)
    fill = LARGE_FILL.scaled(factor)
    killed = bench.scratch / "killed-large"
    try:
        with bench.server("ours") as server:
            server.load(FILLED, fill)
            with closing(Line(server.port)) as line:
                last = int(line.ask(probe.pull_request(FILLED)).ext_fields["maxOffset"])
            server.process.kill()
            copy_store(server.store, killed)
        table.head(f"s after SIGKILL, {fill.count:,} messages in the store of ours")
        table.row("all pulled again", f"{number(restart(bench, 'ours', killed, last).pull_s, 2):>9}")
        for lost in ("consumequeue", "index"):
            shutil.rmtree(killed / lost)
        seconds = restart(bench, "ours", killed, last).pull_s
        cells = f"{number(seconds, 2):>9}   {fill.count / seconds:,.0f} messages/s"
        table.wanted_row("all built anew", cells, fill.count / seconds, at_least=REBUILD_WANTED)
    finally:
        shutil.rmtree(killed, ignore_errors=True)


def show(table: Table, whose: str, found: dict[Kind, Restart]) -> None:
    for what, field in (("send", "send_s"), ("pull", "pull_s")):
        ours, java = (getattr(found[kind], field) if kind in found else None for kind in ("ours", "java"))
        ratio = divided(java, ours)
        cells = f"{number(ours, 2):>9} {number(java, 2):>9} {number(ratio, 2):>9}"
        if whose == "own":
            table.wanted_row(f"{whose} store, {what}", cells, ratio, at_least=RATIO_WANTED)
        else:
            table.row(f"{whose} store, {what}", cells)


def restarts(bench: Bench, kind: Kind, killed: Path, rounds: int) -> Restart:
    """Medians over some starts of a broker on a killed one's store."""
    found = [restart(bench, kind, killed) for _ in range(rounds)]
    return Restart(statistics.median(f.send_s for f in found), statistics.median(f.pull_s for f in found))


def restart(bench: Bench, kind: Kind, killed: Path, last: int = 0) -> Restart:
    """Start a broker on a copy of a killed one's store; send and pull are asked for side by side. `last`: the queue
    offset up to which queue 0 must reach before a pull counts."""
    store = bench.scratch / f"restarted-{kind}"
    copy_store(killed, store)
    port = free_ports()
    began = time.monotonic()
    process = bench.start(kind, port, store, {})
    try:
        with ThreadPoolExecutor(2) as clients:
            asked = (
                (probe.send_request("after"), probe.is_stored),
                (probe.pull_request(FILLED), probe.reaches(last)),
            )
            answered = [
                clients.submit(probe.wait_for, port, request, is_good, lambda: process.running)
                for request, is_good in asked
            ]
            return Restart(*(each.result() - began for each in answered))
    except LoadFailed as failure:
        raise LoadFailed(f"{process.name} on the store {killed.name}: {failure}\n{process.tail()}") from None
    finally:
        process.kill()
        shutil.rmtree(store, ignore_errors=True)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store without blocks for its holes, and have the copy on the disk, for a start to meet a disk at rest."""
    shutil.rmtree(target, ignore_errors=True)
    command = ["cp", "--archive", "--sparse=always", str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    for file in target.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
