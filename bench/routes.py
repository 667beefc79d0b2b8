"""A name server with 100,000 topics: how long their registration takes, what it costs, and how fast it answers."""

import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from bench.rmqload import LoadFailed
from bench.servers import JVM, Bench, Kind
from bench.table import Table, by_kind, divided, number
from mqbroker.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.headers import RegisterBrokerRequestHeader
from mqbroker.wire.registration import body_crc32, encode_registration
from tests.interop.processes import Process, ProcessFailed, free_ports

SOURCE = Path(__file__).parent / "routeload.c"
TOPICS = 100_000
#: (connections, requests in flight on each, requests)
SHAPES = ((1, 1, 20_000), (16, 4, 200_000), (64, 8, 300_000))
REGISTRATIONS = 4
LIMIT_S = 120
KINDS: tuple[Kind, Kind] = ("ours", "java")
RATIO_WANTED = 1.0
MEMORY_WANTED = 10.0

_LINE = re.compile(r"routes (?P<rate>\d+) msg/s .* errors=(?P<errors>\d+) us: p50=\d+ p99=(?P<p99>\d+)")


@attrs.frozen
class Namesrv:
    """A running name server, and the connection of the broker that registers with it."""

    kind: Kind
    port: int
    process: Process
    broker: socket.socket

    def register(self, body: bytes) -> float:
        """Register; return the seconds until the answer. Raises LoadFailed."""
        header = RegisterBrokerRequestHeader(
            broker_name="bench-broker",
            broker_addr="127.0.0.1:10911",
            cluster_name="bench-cluster",
            ha_server_addr="127.0.0.1:10912",
            broker_id=0,
            body_crc32=body_crc32(body),
        )
        began = time.monotonic()
        self.broker.sendall(encode_command(RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)))
        decoder = FrameDecoder()
        while not (frames := decoder.feed(self.broker.recv(1 << 16))):
            pass
        (answer,) = [decode_command(*frame) for frame in frames]
        if answer.code:
            raise LoadFailed(f"{self.process.name}: registration refused: {answer.code} {answer.remark}")
        return time.monotonic() - began

    def memory_mib(self) -> float:
        """Memory that no file backs."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        return int(status["RssAnon"].split()[0]) / 1024


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Print the registration's cost, the memory after it, then a row of answers for each shape."""
    program = _build(bench.scratch)
    with ExitStack() as running:
        servers = [running.enter_context(namesrv(bench, kind)) for kind in kinds]
        before = {server.kind: server.memory_mib() for server in servers}
        seconds: dict[Kind, list[float]] = {server.kind: [] for server in servers}
        for counter in range(REGISTRATIONS):
            body = all_topics(counter)
            for server in servers:
                seconds[server.kind].append(server.register(body))
        table.head(f"a name server with {TOPICS:,} topics of one broker, {len(body) / 1e6:.1f} MB of JSON")
        first = by_kind({kind: f"{took[0]:.2f} s" for kind, took in seconds.items()})
        later = by_kind({kind: f"{statistics.median(took[1:]):.2f} s" for kind, took in seconds.items()})
        table.row("registration", f"first {first}; later {later}")
        heads = f"{'ours':>9} {'Java':>9} {'ratio':>6}   p99 us: {'ours':>6} {'Java':>6}"
        table.head(f"{'routes a second':18}{heads}")
        for server in servers:  # which warms it up
            _load(program, server, *SHAPES[1][:2], max(1000, int(SHAPES[1][2] * factor)))
        for connections, depth, count in SHAPES:
            rates: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for server in servers:
                    rates[server.kind].append(
                        _load(program, server, connections, depth, max(1000, int(count * factor)))
                    )
            _print_row(table, f"routes {connections}x{depth}", rates)
        _print_memory(table, before, {server.kind: server.memory_mib() for server in servers})


def all_topics(counter: int) -> bytes:
    """The body of a registration with all topics, told apart by `counter`."""
    topics = {name: TopicConfig(name, 8, 8) for name in (f"bench-topic-{n:06d}" for n in range(TOPICS))}
    wrapper = TopicConfigSerializeWrapper(topics, DataVersion(0, counter))
    return encode_registration(RegisterBrokerBody(wrapper), compressed=False)


def _print_row(table: Table, name: str, rates: dict[Kind, list[tuple[float, float]]]) -> None:
    medians = {
        kind: [statistics.median(column) for column in zip(*found, strict=True)] for kind, found in rates.items()
    }
    ours, java = (medians.get(kind, (None, None)) for kind in KINDS)
    ratio = divided(ours[0], java[0])
    cells = f"{number(ours[0]):>9} {number(java[0]):>9} {number(ratio, 2):>6}   {'':8}"
    cells += f"{number(ours[1]):>6} {number(java[1]):>6}"
    table.wanted_row(name, cells, ratio, at_least=RATIO_WANTED)


def _print_memory(table: Table, before: dict[Kind, float], after: dict[Kind, float]) -> None:
    cells = by_kind({kind: f"{before[kind]:.0f} MiB before, {after[kind]:.0f} after" for kind in after})
    ratio = divided(after.get("java"), after.get("ours"))
    table.wanted_row("memory", f"{cells}; Java's by ours {number(ratio, 1)}", ratio, at_least=MEMORY_WANTED)


def _build(scratch: Path) -> Path:
    program = scratch / "routeload"
    done = subprocess.run(["cc", "-O2", "-o", str(program), str(SOURCE)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailed(f"cc failed on {SOURCE}:\n{done.stderr}")
    return program


def _load(program: Path, server: Namesrv, connections: int, depth: int, count: int) -> tuple[float, float]:
    """(answers a second, p99 in us)"""
    command = [str(program), *map(str, (server.port, connections, depth, count, TOPICS, LIMIT_S))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S + 30, check=False)
    found = _LINE.search(done.stdout)
    if done.returncode or found is None or found["errors"] != "0":
        raise LoadFailed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return float(found["rate"]), float(found["p99"])


@contextmanager
def namesrv(bench: Bench, kind: Kind) -> Iterator[Namesrv]:
    port = free_ports()
    folder = bench.scratch / f"namesrv-{kind}-{port}"
    folder.mkdir()
    conf = folder / "namesrv.conf"
    keys = {"listenPort": port, "bindAddress": "127.0.0.1", "kvConfigPath": folder / "kv.json"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command, env = [str(Path(sys.executable).parent / "mqnamesrv"), "-c", str(conf)], {}
    if kind == "java":
        assert bench.java is not None
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        command = bench.java.command(folder, main, "-c", str(conf), jvm=JVM)
        env = {"ROCKETMQ_HOME": str(bench.java.home)}
    process = Process(f"namesrv-{kind}", command, folder, env)
    try:
        with _connected(process, port) as broker:
            yield Namesrv(kind, port, process, broker)
    finally:
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _connected(process: Process, port: int) -> socket.socket:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.running:
        try:
            connection = socket.create_connection(("127.0.0.1", port), 60)
        except OSError:
            time.sleep(0.05)
        else:
            connection.settimeout(60)
            return connection
    raise ProcessFailed(f"{process.name} gives no answer\n{process.tail()}")
