"""A master with a slave, both of one system: sends that wait for the slave, sends beside it, and its catching up.

Slaves are named their master's port (haMasterAddress), so that no name server takes part.
"""

import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from bench.rmqload import LoadFailed, Shape
from bench.servers import Bench, Kind, Server
from bench.table import Table, divided, number
from bench.throughput import Results, print_head, print_row, take_turns
from mqbroker.errors import MQError
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode
from tests.daemons.processes import ask
from tests.interop.processes import Process, free_ports

SENDS = (
    Shape("SYNC_MASTER 1x1", "send", 1, 1, 128, 20_000),
    Shape("SYNC_MASTER 16x4", "send", 16, 4, 128, 150_000),
    Shape("SYNC_MASTER 64x1", "send", 64, 1, 128, 100_000),
    Shape("SYNC_MASTER 64x8", "send", 64, 8, 128, 200_000),
)
BESIDE = (Shape("send 16x4", "send", 16, 4, 128, 150_000), Shape("send 64x8", "send", 64, 8, 128, 200_000))
#: About 2 GiB of the log.
FILL = Shape("fill", "send", 16, 4, 1024, 1_650_000)
ATTACHED_RATIO_WANTED = 0.85
RATIO_WANTED = 1.0
PATIENCE_S = 300
#: How often a slave is asked how far it is.
LOOK_S = 0.02


@attrs.define
class Pair:
    """A master that serves, and its slave."""

    bench: Bench
    master: Server
    slave_port: int
    slave: Process

    def restart_slave(self) -> None:
        self.slave = start_slave(self.bench, self.master, self.slave_port)

    def wait_until_equal(self) -> float:
        """Wait until the slave has the whole log; returns the MiB per second from its first progress on."""
        began = time.monotonic()
        first, moved = None, (began, 0)  # when it was first seen to have more than at first, and how much
        while True:
            end, has, now = log_end(self.master.port), log_end(self.slave_port), time.monotonic()
            if end is not None and has == end:
                return (end - moved[1]) / 2**20 / max(now - moved[0], LOOK_S)
            if now - began > PATIENCE_S or not self.slave.running:
                raise LoadFailed(f"the slave does not catch up\n{self.slave.tail()}")
            first = has if first is None else first
            if has == first and has is not None:
                moved = now, has
            time.sleep(LOOK_S)


def log_end(port: int) -> int | None:
    """Where the log of a broker ends; None if it does not say yet."""
    try:
        table = KVTable.from_json(ask(port, RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    except (OSError, MQError):
        return None
    return int(table["commitLogMaxOffset"])


def start_slave(bench: Bench, master: Server, port: int) -> Process:
    settings = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"127.0.0.1:{master.port + 1}"}
    return bench.start(master.kind, port, bench.scratch / f"{master.kind}-{port}", settings)


@contextmanager
def pair_of(bench: Bench, kind: Kind, role: str) -> Iterator[Pair]:
    """A master and a slave with empty stores, the slave connected; at the end they are killed and deleted."""
    port, slave_port = free_ports(), free_ports()
    store = bench.scratch / f"{kind}-{port}"
    master = Server(kind, port, store, bench.start(kind, port, store, {"brokerRole": role}), bench.program)
    pair = Pair(bench, master, slave_port, start_slave(bench, master, slave_port))
    try:
        bench.wait_answer(master)
        pair.wait_until_equal()
        yield pair
    finally:
        for process in (pair.slave, master.process):
            process.kill()
        for path in (store, bench.scratch / f"{kind}-{slave_port}"):
            shutil.rmtree(path, ignore_errors=True)


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    compare_sync_master(bench, table, kinds, rounds, factor)
    compare_attached(bench, table, kinds, rounds, factor)
    compare_catch_up(bench, table, kinds, factor)


def compare_sync_master(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Sends that are answered when a slave has them."""
    with ExitStack() as running:
        servers = [running.enter_context(pair_of(bench, kind, "SYNC_MASTER")).master for kind in kinds]
        for server in servers:  # which also warms it up
            server.load("bench", SENDS[-1].scaled(factor))
        print_head(table)
        for shape in SENDS:
            print_row(table, shape, take_turns(servers, "bench", shape.scaled(factor), rounds), RATIO_WANTED)


def compare_attached(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Sends of an ASYNC_MASTER with a slave, over those without."""
    table.head(f"{'ASYNC_MASTER':18}{'alone':>9} {'with':>9} {'ratio':>6}   a slave attached")
    for kind in kinds:
        with ExitStack() as running:
            alone = running.enter_context(bench.server(kind))
            attached = running.enter_context(pair_of(bench, kind, "ASYNC_MASTER")).master
            for server in (alone, attached):
                server.load("bench", BESIDE[-1].scaled(factor))
            for shape in BESIDE:
                rates = []
                for server in (alone, attached):
                    found: Results = take_turns([server], "bench", shape.scaled(factor), rounds)
                    rates.append(statistics.median(result.rate for result in found[kind]))
                ratio = divided(rates[1], rates[0])
                cells = f"{number(rates[0]):>9} {number(rates[1]):>9} {number(ratio, 2):>6}   {kind}"
                if kind == "ours":
                    table.wanted_row(shape.name, cells, ratio, at_least=ATTACHED_RATIO_WANTED)
                else:
                    table.row(shape.name, cells)


def compare_catch_up(bench: Bench, table: Table, kinds: Sequence[Kind], factor: float) -> None:
    """How fast a slave gets what it lacks."""
    fill = FILL.scaled(factor)
    bench.require_room(2 * fill.count * 1400)
    rates: dict[Kind, float] = {}
    for kind in kinds:
        with pair_of(bench, kind, "ASYNC_MASTER") as pair:
            pair.slave.stop()
            pair.master.load("bench", fill)
            pair.restart_slave()
            rates[kind] = pair.wait_until_equal()
    ours, java = rates.get("ours"), rates.get("java")
    ratio = divided(ours, java)
    table.head(f"{'catching up':18}{'ours':>9} {'Java':>9} {'ratio':>6}   MiB/s")
    cells = f"{number(ours):>9} {number(java):>9} {number(ratio, 2):>6}"
    table.wanted_row(f"{fill.count * 1.25 / 2**20:.1f} GiB", cells, ratio, at_least=RATIO_WANTED)
