"""Our asyncio and our Twisted client beside the Java client, which take turns with one broker of ours: asynchronous
sends, and a push consumer with a backlog, whose listener counts. The clients have one core alone, the broker another
one. A client that waits for the broker shows in the CPU time of a message, not in the rate."""

import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import methodcaller

import attrs

from bench import routes
from bench.affinity import first_and_others, pin, starting_on
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind
from bench.table import Table, divided, number
from tests.interop.processes import EventProcess

BYTES = 128
SENDS = 200_000
IN_FLIGHT = (64, 256)
BACKLOG = 500_000
#: Sends of each client before those that are measured: Java's takes ten seconds and more for them.
WARM_UP = 800_000
RATIO_WANTED = 1.5
#: Our client on Twisted; "ours" is the one on asyncio.
TWISTED = "twisted"
LIMIT_S = 300.0
_groups = itertools.count()


@attrs.frozen
class Client:
    kind: str
    process: EventProcess

    def order(self, text: str) -> tuple[float, float]:
        """Have it done: messages a second, and us of CPU a message. Raises LoadFailed."""
        count = len(self.process.events("load"))
        self.process.write_line(text)
        done = self.process.wait_events("load", count + 1, LIMIT_S)[-1]
        if done["failed"]:
            raise LoadFailed(f"{self.process.name}: {done['failed']} sends failed\n{self.process.tail()}")
        return done["count"] / done["seconds"], done["cpu"] / done["count"] * 1e6

    def consume(self, count: int) -> tuple[float, float]:
        return self.order(f"consume backlog load-consumers-{next(_groups)} {count}")


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Warm both clients up and print the table."""
    backlog = int(BACKLOG * factor)
    with ExitStack() as running:
        name_server = running.enter_context(servers(bench))
        names = [name for kind in kinds for name in ((kind, TWISTED) if kind == "ours" else (kind,))]
        clients = [running.enter_context(client(bench, name, name_server)) for name in names]
        clients[0].order(f"send backlog {backlog} 256 {BYTES}")
        for one in clients:
            one.order(f"send load {int(WARM_UP * factor)} 256 {BYTES}")
            one.consume(backlog)
            one.consume(backlog)
        heads = f"{'ours':>9} {'Java':>9} {'ratio':>6}   CPU us: {'ours':>6} {'Java':>6} {'ratio':>6}"
        heads += f"   {'Twisted':>9} {'CPU us':>6}"
        table.head(f"{'clients, msg/s':18}{heads}")
        for in_flight in IN_FLIGHT:
            order = f"send load {int(SENDS * factor)} {in_flight} {BYTES}"
            _row(table, f"send, {in_flight} in flight", clients, rounds, methodcaller("order", order))
        _row(table, "push", clients, rounds, methodcaller("consume", backlog))


def _row(
    table: Table, name: str, clients: Sequence[Client], rounds: int, measure: Callable[[Client], tuple[float, float]]
) -> None:
    found: dict[str, list[tuple[float, float]]] = {one.kind: [] for one in clients}
    for _ in range(rounds):
        for one in clients:
            found[one.kind].append(measure(one))
    rates = {kind: statistics.median(rate for rate, _ in each) for kind, each in found.items()}
    cpu = {kind: statistics.median(us for _, us in each) for kind, each in found.items()}
    ratio = divided(rates.get("ours"), rates.get("java"))
    cells = f"{number(rates.get('ours')):>9} {number(rates.get('java')):>9} {number(ratio, 2):>6}   {'':7}"
    cells += f"{number(cpu.get('ours'), 1):>7} {number(cpu.get('java'), 1):>6}"
    cells += f" {number(divided(cpu.get('java'), cpu.get('ours')), 2):>6}"
    cells += f"   {number(rates.get(TWISTED)):>9} {number(cpu.get(TWISTED), 1):>6}"
    table.wanted_row(name, cells, ratio, at_least=RATIO_WANTED)


@contextmanager
def servers(bench: Bench) -> Iterator[str]:
    """A name server and a broker of ours, on all cores but the clients'; their name server's address."""
    with (
        routes.namesrv(bench, "ours") as name_server,
        bench.server("ours", namesrvAddr=f"127.0.0.1:{name_server.port}") as broker,
    ):
        for process in (name_server.process, broker.process):
            pin(process.pid, first_and_others()[1])
        yield f"127.0.0.1:{name_server.port}"


@contextmanager
def client(bench: Bench, kind: str, name_server: str) -> Iterator[Client]:
    if kind == "java":
        assert bench.java is not None
        command = bench.java.command(bench.scratch, "mqbroker.interop.Load", name_server, jvm=())
    else:
        module = "bench.deferred_load" if kind == TWISTED else "bench.client_load"
        command = [sys.executable, "-m", module, name_server]
    with starting_on(first_and_others()[0]):
        process = EventProcess(f"client-{kind}", command, bench.scratch, {"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        yield Client(kind, process)
    finally:
        process.kill()
