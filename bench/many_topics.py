"""A broker with 20,000 topics of 4 queues each, that may have 4,096 files open: the sends that make them, and how soon
it serves again, in how much memory, after a stop and after SIGKILL.

Each queue has a few messages, sent over one connection with many under way. A server that cannot do it is said to fail,
and why.
"""

import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from bench import probe
from bench.idle import Line
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind, Server
from bench.table import Table, number
from mqbroker.wire.codes import ResponseCode
from tests.interop.processes import ProcessFailed, free_ports

TOPICS = 20_000
QUEUES = 4
FILES = 4_096
UNDER_WAY = 500
#: Of blocks on the disk, for each queue: its file, its directory, and what stands in log and index.
QUEUE_BYTES = 16 * 1024
START_S_WANTED = 10.0
MIB_WANTED = 500.0
STOP_PATIENCE_S = 600.0
SETTINGS = {"mappedFileSizeCommitLog": str(64 << 20), "defaultTopicQueueNums": str(QUEUES)}


@attrs.frozen
class Start:
    """Seconds from the start of the program to an accepted send, and MiB then: private, and with pages of files."""

    seconds: float
    private_mib: float
    resident_mib: float


@attrs.frozen
class Found:
    made_a_second: float
    sent_a_second: float
    stop_seconds: float
    stopped: Start
    killed: Start


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], factor: float) -> None:
    topics = max(10, int(TOPICS * factor))
    bench.require_room(topics * QUEUES * QUEUE_BYTES + (1 << 30))
    found: dict[Kind, Found] = {}
    for kind in kinds:
        try:
            found[kind] = measure(bench, kind, topics)
        except (LoadFailed, ProcessFailed, OSError) as failure:
            if kind == "ours":
                raise
            print(f"{kind} fails with {topics:,} topics: {str(failure).splitlines()[0]}")
    show(table, topics, found.get("ours"), found.get("java"))


def show(table: Table, topics: int, ours: Found | None, java: Found | None) -> None:
    both = (ours, java)

    def row(name: str, values: Sequence[float | None], digits: int, below: float | None = None) -> None:
        cells = "".join(f"{number(value, digits):>10}" for value in values)
        if below is None:
            table.row(name, cells)
        else:
            table.wanted_row(name, cells, values[0], below=below)

    table.head(f"{f'{topics:,} topics':18}{'ours':>10}{'Java':>10}   of {QUEUES} queues, {FILES:,} files may be open")
    row("first sends /s", [each.made_a_second if each else None for each in both], 0)
    row("sends /s", [each.sent_a_second if each else None for each in both], 0)
    row("s to stop", [each.stop_seconds if each else None for each in both], 1)
    for how in ("stopped", "killed"):
        starts: list[Start | None] = [getattr(each, how) if each else None for each in both]
        row(f"{how}: s to serve", [each.seconds if each else None for each in starts], 2, START_S_WANTED)
        row("  private MiB", [each.private_mib if each else None for each in starts], 0)
        row("  resident MiB", [each.resident_mib if each else None for each in starts], 0, MIB_WANTED)


def measure(bench: Bench, kind: Kind, topics: int) -> Found:
    """Raises LoadFailed and ProcessFailed where the broker cannot do it."""
    store = bench.scratch / f"many-{kind}"
    try:
        with running(bench, kind, store) as (_, server):
            made = send_to_all(server.port, topics)
            sent = send_to_all(server.port, topics)
            began = time.monotonic()
            server.process.stop(STOP_PATIENCE_S)
            stop_seconds = time.monotonic() - began
        with running(bench, kind, store) as (stopped, server):
            send_to_all(server.port, topics)
        with running(bench, kind, store) as (killed, server):
            send_to_all(server.port, topics)
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return Found(made, sent, stop_seconds, stopped, killed)


@contextmanager
def running(bench: Bench, kind: Kind, store: Path) -> Iterator[tuple[Start, Server]]:
    """A broker on a store, and how it started; it is killed at the end."""
    port = free_ports()
    began = time.monotonic()
    process = bench.start(kind, port, store, SETTINGS)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    server = Server(kind, port, store, process, bench.program)
    try:
        served = probe.wait_for(port, probe.send_request("probe"), probe.is_stored, lambda: process.running)
        yield Start(served - began, *server.memory_mib()), server
    except LoadFailed as failure:
        raise LoadFailed(f"{failure}\n{process.tail()}") from None
    finally:
        process.kill()


def send_to_all(port: int, topics: int) -> float:
    """Send a message to each queue of each topic; how many were accepted a second. Raises LoadFailed where not all
    were."""
    line = Line(port)
    began = time.monotonic()
    count = topics * QUEUES
    sent = answered = 0
    try:
        while answered < count:
            while sent < count and sent - answered < UNDER_WAY:
                topic, queue_id = divmod(sent, QUEUES)
                request = probe.send_request(f"many{topic}")
                request.ext_fields["e"] = str(queue_id)
                request.opaque = sent
                line.send(request)
                sent += 1
            for answer in line.receive():
                if answer.code != ResponseCode.SUCCESS:
                    raise LoadFailed(f"send {answer.opaque} of {count}: code {answer.code}: {answer.remark}")
                answered += 1
    finally:
        line.close()
    return count / (time.monotonic() - began)
