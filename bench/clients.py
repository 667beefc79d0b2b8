"""Our clients beside the Java client, which take turns with one broker of ours: each way to send and to consume. The
clients have one core alone, the broker another one. A client that waits for the broker shows in the CPU time of a
message, not in the rate."""

import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from bench import routes
from bench.affinity import first_and_others, pin, starting_on
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind
from bench.table import Table, divided, number
from tests.interop.processes import Event, EventProcess

BYTES = 128
BACKLOG = 500_000
#: Sends of each client before those that are measured: Java's takes ten seconds and more for them.
WARM_UP = 800_000
QUEUES = 1_000
LIMIT_S = 300.0
MODULES = {"asyncio": "bench.client_load", "Twisted": "bench.deferred_load", "blocking": "bench.blocking_load"}
_groups = itertools.count()


@attrs.frozen
class Measure:
    """An order to a client; {count} of it is `count` or the fewer of a quick run, {group} a group of its own."""

    kind: str
    order: str
    count: int


@attrs.frozen
class Row:
    """What is measured, beside what, and the ratio that is wanted: of rates, or of times, where less is better."""

    name: str
    ours: Measure
    beside: Measure
    at_least: float | None = None
    p50_below: float | None = None


def _sends(kind: str, in_flight: int, count: int, variant: str = "") -> Measure:
    return Measure(kind, f"send load {{count}} {in_flight} {BYTES} {variant}".rstrip(), count)


def _threads(kind: str, threads: int, count: int) -> Measure:
    return Measure(kind, f"threads load {{count}} {threads} {BYTES}", count)


def _consumes(kind: str, mode: str = "push", count: int = BACKLOG) -> Measure:
    return Measure(kind, f"consume backlog {{count}} {{group}} {mode}", count)


def _does(kind: str, what: str, count: int) -> Measure:
    # Of topics of their own: what consumes the requests is in the same process.
    return Measure(kind, f"{what} {what}-{kind} {{count}} 64 {BYTES}", count)


#: Rows of a group are measured in turn.
GROUPS = (
    *(
        [
            Row(f"send, {n}: asyncio", _sends("asyncio", n, 200_000), _sends("java", n, 200_000), at_least=1.1),
            Row(f"send, {n}: Twisted", _sends("Twisted", n, 200_000), _sends("java", n, 200_000), at_least=1.1),
        ]
        for n in (64, 256)
    ),
    [
        Row("push: asyncio", _consumes("asyncio"), _consumes("java"), at_least=1.1),
        Row("push: Twisted", _consumes("Twisted"), _consumes("java"), at_least=1.1),
        Row("push: blocking", _consumes("blocking"), _consumes("java"), at_least=0.8),
    ],
    [Row("blocking, 1 thread", _threads("blocking", 1, 20_000), _threads("java", 1, 20_000), p50_below=1.1)],
    [Row("blocking, 16 threads", _threads("blocking", 16, 48_000), _threads("java", 16, 48_000), at_least=0.8)],
    [Row("send_async", _sends("blocking", 256, 100_000), _sends("java", 256, 100_000), at_least=0.6)],
    [
        Row(f"asyncio {mode} / push", _consumes("asyncio", mode), _consumes("asyncio"), at_least=0.8)
        for mode in ("orderly", "broadcasting", "lite")
    ],
    [Row("request, 64", _does("asyncio", "request", 20_000), _does("java", "request", 20_000), at_least=0.8)],
    [Row("transact, 64", _does("asyncio", "transact", 30_000), _does("java", "transact", 30_000), at_least=0.8)],
    [
        Row(
            "linger, 1,000 / without",
            _sends("asyncio", 1000, 200_000, "linger"),
            _sends("asyncio", 1000, 200_000),
            at_least=2.0,
        )
    ],
    [
        Row(f"send, 256: {variant}", _sends("asyncio", 256, 100_000, variant), _sends("java", 256, 100_000), 0.5)
        for variant in ("hook", "trace")
    ],
)

#: (name, orders to be repeated, MiB that the process may grow between the second and the last time)
MEMORY = (
    ("5,000 sends at once", [Measure("asyncio", f"send load {{count}} 5000 {BYTES}", 100_000)], 8.0),
    ("send_async unbounded", [_sends("blocking", 0, 50_000)], 8.0),
    (
        f"{QUEUES:,} queues",
        [
            Measure("Twisted", f"send wide {{count}} 256 {BYTES}", 50_000),
            Measure("asyncio", "watch wide {count} g", 50_000),
        ],
        8.0,
    ),
)
MEMORY_TIMES = 5


@attrs.frozen
class Client:
    kind: str
    process: EventProcess

    def begin(self, text: str) -> int:
        """Have it done; `finish` waits for it, by what is returned."""
        self.process.write_line(text)
        return len(self.process.events("load")) + 1

    def finish(self, count: int) -> Event:
        done = self.process.wait_events("load", count, LIMIT_S)[count - 1]
        if done["failed"]:
            raise LoadFailed(f"{self.process.name}: {done['failed']} sends failed\n{self.process.tail()}")
        return done

    def order(self, text: str) -> Event:
        """Have it done, and return the answer. Raises LoadFailed."""
        return self.finish(self.begin(text))


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Warm the clients up and print the table."""
    with ExitStack() as running:
        name_server = running.enter_context(servers(bench))
        names = [name for kind in kinds for name in (MODULES if kind == "ours" else (kind,))]
        clients = {name: running.enter_context(client(bench, name, name_server)) for name in names}

        def measure(wanted: Measure) -> Event:
            count = max(1000, int(wanted.count * factor))
            return clients[wanted.kind].order(wanted.order.format(count=count, group=f"load-{next(_groups)}"))

        for topic in [f"request-{name}" for name in names if "asyncio" in clients]:
            clients["asyncio"].order(f"topic {topic} 0 8")
        measure(Measure(names[0], f"send backlog {{count}} 256 {BYTES}", BACKLOG))
        for name in names:
            measure(_sends(name, 256, WARM_UP // (8 if name == "blocking" else 1)))
            measure(_consumes(name))
        heads = f"{'ours':>9} {'beside':>9} {'ratio':>6}   CPU us: {'ours':>6} {'beside':>6}"
        table.head(f"{'clients, msg/s':26}{heads}")
        for group in GROUPS:
            _print(table, [row for row in group if row.ours.kind in clients], rounds, set(clients), measure)
        if "ours" in kinds:
            clients["asyncio"].order(f"topic wide 0 {QUEUES}")
            table.head(f"{'memory of clients, MiB':26}after each of {MEMORY_TIMES} times")
            for name, orders, below in MEMORY:
                _print_memory(
                    table, name, [[measure(order) for order in orders][-1] for _ in range(MEMORY_TIMES)], below
                )


def _print(
    table: Table, rows: Sequence[Row], rounds: int, kinds: set[str], measure: Callable[[Measure], Event]
) -> None:
    wanted = dict.fromkeys(each for row in rows for each in (row.ours, row.beside) if each.kind in kinds)
    for each in wanted:
        if each.order.split()[0] in {"threads", "request", "transact"}:
            measure(each)  # to warm it up
    found: dict[Measure, list[Event]] = {each: [] for each in wanted}
    for _ in range(rounds):
        for each in wanted:
            found[each].append(measure(each))

    def median(of: Measure, value: Callable[[Event], float]) -> float | None:
        return statistics.median(map(value, found[of])) if of in found else None

    for row in rows:
        is_time = row.p50_below is not None
        figures = [median(each, _p50_us if is_time else _rate) for each in (row.ours, row.beside)]
        cpu = [median(each, lambda done: done["cpu"] / done["count"] * 1e6) for each in (row.ours, row.beside)]
        ratio = divided(figures[0], figures[1])
        cells = f"{number(figures[0]):>9} {number(figures[1]):>9} {number(ratio, 2):>6}   {'':7}"
        cells += f"{number(cpu[0], 1):>7} {number(cpu[1], 1):>6}"
        name = f"{row.name}{', p50 us' if is_time else ''}"
        table.wanted_row(f"{name:26}", cells, ratio, at_least=row.at_least, below=row.p50_below)


def _print_memory(table: Table, name: str, done: Sequence[Event], below: float) -> None:
    sizes = [each["rss_mib"] for each in done]
    cells = "".join(f"{size:8.1f}" for size in sizes) + f"   {sizes[-1] - sizes[1]:+.1f}"
    table.wanted_row(f"{name:26}", cells, sizes[-1] - sizes[1], below=below)


def _rate(done: Event) -> float:
    return float(done["count"] / done["seconds"])


def _p50_us(done: Event) -> float:
    return float(done["p50_us"])


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
def client(bench: Bench, kind: str, name_server: str, number: int = 0) -> Iterator[Client]:
    if kind == "java":
        assert bench.java is not None
        command = bench.java.command(bench.scratch, "mqbroker.interop.Load", name_server, jvm=())
    else:
        command = [sys.executable, "-m", MODULES[kind], name_server]
    # Local offsets are below HOME.
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(bench.scratch)}
    with starting_on(first_and_others()[0]):
        process = EventProcess(f"client-{kind}-{number}", command, bench.scratch, env)
    try:
        yield Client(kind, process)
    finally:
        process.kill()
