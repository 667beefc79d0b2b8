"""A master with a slave, both of one system: sends that wait for the slave, sends beside it, and its catching up.

Each pair has a name server of its own, from which the slave knows its master: ours for both systems, so that it makes
no difference between them.
"""

import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import attrs

from bench import routes
from bench.affinity import first_and_others, pin, starting_on
from bench.idle import Line
from bench.rmqload import LoadFailed, Shape
from bench.servers import Bench, Kind, Server
from bench.table import Table, divided, number
from bench.throughput import print_head, print_row, reach_second_file, take_turns
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from tests.interop.processes import Process, eventually, free_ports

SENDS = (
    Shape("SYNC_MASTER 1x1", "send", 1, 1, 128, 20_000),
    Shape("SYNC_MASTER 16x4", "send", 16, 4, 128, 150_000),
    Shape("SYNC_MASTER 64x1", "send", 64, 1, 128, 100_000),
    Shape("SYNC_MASTER 64x8", "send", 64, 8, 128, 200_000),
)
BESIDE = (
    Shape("slave beside 16x4", "send", 16, 4, 128, 150_000),
    Shape("slave beside 64x8", "send", 64, 8, 128, 200_000),
)
#: A JVM that just started has not compiled its code.
WARM_UP = Shape("warm-up 64x8", "send", 64, 8, 128, 600_000)
#: About 1.3 GiB of the log: the third file is there by the end, and the fourth is wanted only a GiB later. Slow enough
#: that our slave goes on as it does beside a master all day, with files that were filled with zeros before; one that
#: gets more than 160 MiB/s catches up, and writes to files that were not.
STEADY_FILL = Shape("to the second file", "send", 1, 1, 4096, 320_000)
#: About 2 GiB of the log.
FILL = Shape("fill", "send", 16, 4, 1024, 1_810_000)
ATTACHED_RATIO_WANTED = 0.85
RATIO_WANTED = 1.0
PATIENCE_S = 300
#: How often a slave is asked how far it is, which takes it half a millisecond.
LOOK_S = 0.05


@attrs.frozen
class CaughtUp:
    """What a slave lacked, and how fast it got that: from its start, and from its first progress on."""

    mib: float
    from_start: float
    flowing: float


@attrs.define
class Pair:
    """A master that serves, and its slave."""

    bench: Bench
    master: Server
    slave_port: int
    settings: dict[str, str]
    slave: Process

    def wait_until_equal(self) -> int:
        """Wait until the slave has the whole log of a master that is sent nothing; returns the log's end."""
        end = time.monotonic() + PATIENCE_S
        while (has := log_end(self.slave_port)) is None or has != log_end(self.master.port):
            self._require_progress(end)
            time.sleep(LOOK_S)
        return has

    def catch_up(self, had: int) -> CaughtUp:
        """Start the slave, whose log ends at `had`, and time until it has the whole log. Raises LoadFailed."""
        end = log_end(self.master.port)
        if end is None or end <= had:
            raise LoadFailed(f"{self.master.process.name} has nothing for its slave: {had} to {end}")
        began = time.monotonic()
        self.slave = start_slave(self.bench, self.master.kind, self.slave_port, self.settings)
        last: tuple[float, int] | None = None  # when it was last seen to have no more than at first, and how much
        while (has := log_end(self.slave_port)) is None or has < end:
            now = time.monotonic()
            if has is not None and (last is None or has == last[1]):
                last = now, has
            self._require_progress(began + PATIENCE_S)
            time.sleep(LOOK_S)
        now = time.monotonic()
        moved_at, moved_from = last or (began, had)
        mib = (end - had) / 2**20
        return CaughtUp(mib, mib / (now - began), (end - moved_from) / 2**20 / (now - moved_at))

    def _require_progress(self, end: float) -> None:
        if time.monotonic() > end or not self.slave.running:
            raise LoadFailed(f"{self.slave.name} does not catch up\n{self.slave.tail()}")


def log_end(port: int) -> int | None:
    """Where the log of a broker ends; None if it does not say yet."""
    answer = ask(port, RequestCode.GET_BROKER_RUNTIME_INFO)
    return None if answer is None else int(KVTable.from_json(answer.body).table["commitLogMaxOffset"])


def ask(port: int, code: RequestCode) -> RemotingCommand | None:
    """The answer to a request without fields; None where there is none, or it is no success."""
    try:
        with closing(Line(port)) as line:
            return line.ask(RemotingCommand(code))
    except (OSError, LoadFailed):
        return None


def start_slave(bench: Bench, kind: Kind, port: int, settings: Mapping[str, str]) -> Process:
    role = {"brokerRole": "SLAVE", "brokerId": "1"}
    return bench.start(kind, port, store_of(bench, kind, port), {**settings, **role})


def store_of(bench: Bench, kind: Kind, port: int) -> Path:
    return bench.scratch / f"{kind}-{port}"


@contextmanager
def pair_of(bench: Bench, kind: Kind, role: str) -> Iterator[Pair]:
    """A master and a slave with empty stores, the slave connected; at the end they are killed and deleted."""
    port, slave_port = free_ports(), free_ports()
    stores = [store_of(bench, kind, of) for of in (port, slave_port)]
    with ExitStack() as running:
        namesrv = running.enter_context(routes.namesrv(bench, "ours"))
        for store in stores:
            running.callback(shutil.rmtree, store, ignore_errors=True)
        settings = {"namesrvAddr": f"127.0.0.1:{namesrv.port}", "brokerIP2": "127.0.0.1"}
        process = bench.start(kind, port, stores[0], {**settings, "brokerRole": role})
        running.callback(process.kill)
        # A slave that registers before its master asks for it again only half a minute later.
        eventually(f"{process.name} is registered", lambda: not process.running or is_registered(namesrv.port))
        master = Server(kind, port, stores[0], process, bench.program)
        pair = Pair(bench, master, slave_port, settings, start_slave(bench, kind, slave_port, settings))
        running.callback(lambda: pair.slave.kill())  # the one that runs at the end
        bench.wait_answer(master)  # a SYNC_MASTER gives it only when the slave is connected
        pair.wait_until_equal()
        yield pair


def is_registered(namesrv_port: int) -> bool:
    answer = ask(namesrv_port, RequestCode.GET_BROKER_CLUSTER_INFO)
    return answer is not None and b"bench-broker" in answer.body


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    compare_sync_master(bench, table, kinds, rounds, factor)
    compare_attached(bench, table, kinds, rounds, factor)
    compare_catch_up(bench, table, kinds, factor)


def compare_sync_master(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Sends that are answered when a slave has them."""
    with ExitStack() as running:
        servers = [running.enter_context(pair_of(bench, kind, "SYNC_MASTER")).master for kind in kinds]
        for server in servers:  # which also warms it up
            server.load("bench", WARM_UP.scaled(factor))
        print_head(table)
        for shape in SENDS:
            print_row(table, shape, take_turns(servers, "bench", shape.scaled(factor), rounds), RATIO_WANTED)


def compare_attached(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Sends of an ASYNC_MASTER with a slave, over those without: as the system distributes the processes over the
    cores, and with a core of its own for the master in both cases, as where the slave is on another machine."""
    table.head(f"{'ASYNC_MASTER':18}{'alone':>9} {'with':>9} {'ratio':>6}   a slave attached")
    of_master, of_others = first_and_others()
    for kind in kinds:
        with ExitStack() as running:
            alone = running.enter_context(bench.server(kind))
            pair = running.enter_context(pair_of(bench, kind, "ASYNC_MASTER"))
            servers = (alone, pair.master)
            for server in servers:
                server.load("bench", WARM_UP.scaled(factor))
            reach_second_file(servers, factor, STEADY_FILL)
            for shape in BESIDE:
                print_attached(table, servers, shape.name, shape.scaled(factor), rounds)
            for server in servers:
                pin(server.process.pid, of_master)
            pin(pair.slave.pid, of_others)
            with starting_on(of_others):
                for shape in BESIDE:
                    name = f"{shape.name.removeprefix('slave beside ')}, own core"
                    print_attached(table, servers, name, shape.scaled(factor), rounds)


def print_attached(table: Table, servers: tuple[Server, Server], name: str, shape: Shape, rounds: int) -> None:
    """Have a broker alone and one with a slave take turns, and print what the slave leaves of the rate."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for server, measured in zip(servers, found, strict=True):
            measured.append(server.load("bench", shape).rate)
    rates = [statistics.median(measured) for measured in found]
    ratio = divided(rates[1], rates[0])
    kind = servers[0].kind
    cells = f"{number(rates[0]):>9} {number(rates[1]):>9} {number(ratio, 2):>6}   {kind}"
    if kind == "ours":
        table.wanted_row(name, cells, ratio, at_least=ATTACHED_RATIO_WANTED)
    else:
        table.row(name, cells)


def compare_catch_up(bench: Bench, table: Table, kinds: Sequence[Kind], factor: float) -> None:
    """How fast a slave gets what it lacks."""
    fill = FILL.scaled(factor)
    bench.require_room(2 * fill.count * 1400)
    found: dict[Kind, CaughtUp] = {}
    for kind in kinds:
        with pair_of(bench, kind, "ASYNC_MASTER") as pair:
            had = pair.wait_until_equal()
            pair.slave.stop()
            pair.master.load("bench", fill)
            found[kind] = pair.catch_up(had)
    ours, java = found.get("ours"), found.get("java")
    mib = " and ".join(f"{each.mib:,.0f}" for each in found.values())
    table.head(f"{'catching up, MiB/s':18}{'ours':>9} {'Java':>9} {'ratio':>6}   {mib} MiB")
    for name, field in (("from its start", "from_start"), ("once it flows", "flowing")):
        of_ours, of_java = (getattr(each, field) if each else None for each in (ours, java))
        ratio = divided(of_ours, of_java)
        cells = f"{number(of_ours):>9} {number(of_java):>9} {number(ratio, 2):>6}"
        table.wanted_row(name, cells, ratio, at_least=RATIO_WANTED)
