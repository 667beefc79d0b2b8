"""Acknowledged sends of our asyncio client with automatic batches, beside those of aiokafka to Kafka.

``python -m bench.kafka [--rounds N] [--messages FACTOR]``. Each client has one core, its broker the others. Needs Java
17, mvn, which fetches Kafka, and aiokafka in this environment.
"""

import argparse
import fcntl
import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from bench import clients, rmqload
from bench.affinity import first_and_others, starting_on
from bench.clients import Client
from bench.rmqload import LoadFailed
from bench.servers import JVM, Bench
from bench.table import Table, divided, number
from tests.interop.java import JavaMissing
from tests.interop.processes import Event, EventProcess, Process, eventually, free_ports

VERSION = "4.0.0"
PARTITIONS = 8
COUNT = 200_000
IN_FLIGHT = 1000
#: Of our sends with automatic batches: to those without, and to aiokafka's.
WANTED_WITHOUT, WANTED_BESIDE = 2.0, 3.0

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>mqbroker</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies>
</project>
"""

_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={store}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@attrs.frozen
class Kafka:
    """Kafka's jars, fetched by Maven into a cache."""

    java: str
    jars: Path

    @classmethod
    def fetch(cls) -> "Kafka":
        """Raises JavaMissing."""
        java, maven = shutil.which("java"), shutil.which("mvn")
        if java is None or maven is None:
            raise JavaMissing("java and mvn must be on the PATH: a JDK of version 17 or later, Maven 3.6 or later")
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(caches).absolute() / "mqbroker" / f"kafka-{VERSION}"
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (cache / "fetched").exists():
                (cache / "pom.xml").write_text(_POM)
                goal = "dependency:copy-dependencies"
                command = [maven, "-q", "-B", "-f", str(cache / "pom.xml"), goal, f"-DoutputDirectory={cache / 'lib'}"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise JavaMissing(f"mvn cannot fetch Kafka {VERSION}:\n{done.stdout}{done.stderr}")
                (cache / "fetched").touch()
        return cls(java, cache / "lib")

    def command(self, main: str, *args: str) -> list[str]:
        return [self.java, *JVM, "-cp", f"{self.jars}/*", main, *args]

    @contextmanager
    def server(self, scratch: Path) -> Iterator[str]:
        """One node in KRaft mode, on all cores but the clients'; its address."""
        port, controller = free_ports(), free_ports()
        store, conf = scratch / "kafka", scratch / "kafka.properties"
        conf.write_text(_SETTINGS.format(port=port, controller=controller, store=store, partitions=PARTITIONS))
        formatting = ["format", "--standalone", "-t", "bWFkZS1mb3ItYmVuY2g", "-c", str(conf)]
        done = subprocess.run(
            self.command("kafka.tools.StorageTool", *formatting), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LoadFailed(f"Kafka cannot format its store:\n{done.stdout}{done.stderr}")
        with starting_on(first_and_others()[1]):
            process = Process("kafka", self.command("kafka.Kafka", str(conf)), scratch, {})
        try:

            def answers() -> bool:
                if not process.running:
                    raise LoadFailed(f"Kafka died\n{process.tail()}")
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                except OSError:
                    return False
                return True

            eventually("Kafka listens", answers)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            shutil.rmtree(store, ignore_errors=True)


@contextmanager
def aiokafka(bench: Bench, address: str) -> Iterator[Client]:
    command = [sys.executable, "-m", "bench.kafka_load", address]
    with starting_on(first_and_others()[0]):
        process = EventProcess("aiokafka", command, bench.scratch, {"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        yield Client("aiokafka", process)
    finally:
        process.kill()


def compare(bench: Bench, kafka: Kafka, table: Table, rounds: int, factor: float) -> None:
    count = max(1000, int(COUNT * factor))
    with ExitStack() as running:
        name_server = running.enter_context(clients.servers(bench))
        ours = running.enter_context(clients.client(bench, "asyncio", name_server))
        beside = running.enter_context(aiokafka(bench, running.enter_context(kafka.server(bench.scratch))))
        ours.order(f"topic load 0 {PARTITIONS}")
        orders = {
            "with batches": (ours, f"send load {count} {IN_FLIGHT} 128 linger"),
            "without": (ours, f"send load {count} {IN_FLIGHT} 128 plain"),
            "aiokafka": (beside, f"send load {count} {IN_FLIGHT} 128"),
        }
        found: dict[str, list[Event]] = {name: [] for name in orders}
        for round_ in range(rounds + 1):
            for name, (client, order) in orders.items():
                done = client.order(order)
                if round_:  # the first one warms up
                    found[name].append(done)
    rate = {name: statistics.median(done["count"] / done["seconds"] for done in of) for name, of in found.items()}
    table.head(f"acknowledged sends a second, 128 B, {IN_FLIGHT:,} in flight, Kafka {VERSION}; CPU us of the client")
    for name, of in found.items():
        cpu = statistics.median(done["cpu"] / done["count"] * 1e6 for done in of)
        table.row(f"{name:26}", f"{number(rate[name]):>9} {number(cpu, 1):>9}")
    for name, wanted in (("without", WANTED_WITHOUT), ("aiokafka", WANTED_BESIDE)):
        ratio = divided(rate["with batches"], rate[name])
        table.wanted_row(f"{f'with batches / {name}':26}", f"{number(ratio, 2):>9}", ratio, at_least=wanted)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (3)")
    parser.add_argument("--messages", type=float, default=1.0, metavar="FACTOR", help="times the usual number (1)")
    args = parser.parse_args()
    if importlib.util.find_spec("aiokafka") is None:
        sys.exit("aiokafka is not installed in this environment: pip install aiokafka")
    try:
        kafka = Kafka.fetch()
    except JavaMissing as error:
        sys.exit(str(error))
    table = Table()
    with tempfile.TemporaryDirectory(prefix="mqbroker-bench-") as scratch:
        bench = Bench(Path(scratch), rmqload.build(Path(scratch)), None)
        compare(bench, kafka, table, args.rounds, args.messages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
