"""What consumers cost that wait: memory and CPU of a broker that holds a long poll for each of thousands, and how soon
one of them has a message that is sent.

Each consumer is a connection with one pull of a queue of its own. The CPU is that of the broker while nobody says
anything; the wake-up is timed from the send of a message to the end of the answer to the pull that waits for it. All
clients are this process, for both brokers alike. Both have worked before: a JVM that just started has neither
compiled its code nor touched its heap.
"""

import math
import os
import random
import resource
import select
import socket
import statistics
import time
from collections.abc import Sequence

import attrs

from bench import probe
from bench.rmqload import LoadFailed, Shape
from bench.servers import Bench, Kind, Server
from bench.table import Table, divided, number
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.headers import CreateTopicRequestHeader

WARM_UP = Shape("warm-up 16x4 128 B", "send", 16, 4, 128, 200_000)
CONSUMERS = 10_000
QUEUES_A_TOPIC = 1000
WAKES = 500
REST_S = 10.0
#: For how long a pull may be held, and nothing come over a connection: longer than all of this takes.
HOLD_S = 600
PATIENCE_S = 30.0
MEMORY_RATIO_WANTED = 10.0
RATIO_WANTED = 1.0
#: Of each process: what it has open beside connections.
FILES_BESIDE = 1000


@attrs.frozen
class Idle:
    """What one broker was measured to take: MiB without and with consumers, percent of one core, microseconds."""

    empty_mib: float
    held_mib: float
    cpu_percent: float
    p50_us: float
    p99_us: float


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], factor: float, consumers: int | None) -> None:
    """Print what each broker takes. Raises LoadFailed where so many files cannot be open, or a pull is not held."""
    count = consumers or max(100, int(CONSUMERS * factor))
    allow_files(count + FILES_BESIDE)
    found = {kind: measure(bench, kind, count, factor) for kind in kinds}
    ours, java = found.get("ours"), found.get("java")

    def row(name: str, field: str, digits: int, wanted: float | None = None) -> None:
        of_ours, of_java = (getattr(each, field) if each else None for each in (ours, java))
        ratio = divided(of_java, of_ours)
        cells = f"{number(of_ours, digits):>9} {number(of_java, digits):>9} {number(ratio, 2):>9}"
        if wanted is None:
            table.row(name, cells)
        else:
            table.wanted_row(name, cells, ratio, at_least=wanted)

    table.head(f"{f'{count:,} long polls':18}{'ours':>9} {'Java':>9} {'Java/ours':>9}")
    row("MiB without them", "empty_mib", 1)
    row("MiB with them", "held_mib", 1, MEMORY_RATIO_WANTED)
    row("CPU at rest, %", "cpu_percent", 2, RATIO_WANTED)
    row("wake-up p50, us", "p50_us", 0)
    row("wake-up p99, us", "p99_us", 0, RATIO_WANTED)


def allow_files(count: int) -> None:
    """Let this process and those it starts have so many files open. Raises LoadFailed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise LoadFailed(f"{count} open files are needed, {hard} are allowed (ulimit -n); give fewer --consumers")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def measure(bench: Bench, kind: Kind, count: int, factor: float) -> Idle:
    settings = {"serverChannelMaxIdleTimeSeconds": str(HOLD_S), "mappedFileSizeConsumeQueue": "20000"}
    with bench.server(kind, **settings) as server:
        server.load("warm", WARM_UP.scaled(factor))
        control = Line(server.port)
        for topic in range(math.ceil(count / QUEUES_A_TOPIC)):
            control.ask(topic_request(name_of(topic)))
        empty_mib, _ = server.memory_mib()
        with Consumers(server.port, count) as consumers:
            consumers.expect_silence(2.0)
            held_mib, _ = server.memory_mib()
            rest_s = max(2.0, REST_S * factor)
            began = cpu_seconds(server)
            consumers.expect_silence(rest_s)
            cpu_percent = 100 * (cpu_seconds(server) - began) / rest_s
            wakes = max(100, int(WAKES * factor))
            latencies = consumers.wake_up(control, wakes)
        control.close()
    p99 = statistics.quantiles(latencies, n=100)[98]
    return Idle(empty_mib, held_mib, cpu_percent, statistics.median(latencies), p99)


def name_of(topic: int) -> str:
    return f"idle{topic}"


def topic_request(name: str) -> RemotingCommand:
    header = CreateTopicRequestHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=QUEUES_A_TOPIC,
        write_queue_nums=QUEUES_A_TOPIC,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    return RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def cpu_seconds(server: Server) -> float:
    """What the server's process has had of CPU time."""
    with open(f"/proc/{server.process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Line:
    """A connection on which one request at a time is answered."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()

    def close(self) -> None:
        self.socket.close()

    def send(self, request: RemotingCommand) -> None:
        self.socket.sendall(encode_command(request))

    def receive(self) -> list[RemotingCommand]:
        """The answers that what has come completes. Raises LoadFailed where one is none, or the end comes."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise LoadFailed("the broker closed a connection")
        return [decode_command(*frame) for frame in self._decoder.feed(data)]

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """Raises LoadFailed where the answer is no success."""
        self.send(request)
        answers: list[RemotingCommand] = []
        while not answers:
            answers = self.receive()
        if answers[0].code != ResponseCode.SUCCESS:
            raise LoadFailed(f"code {answers[0].code}: {answers[0].remark}")
        return answers[0]


class Consumers:
    """Connections that each have a pull waiting, of a queue of its own."""

    def __init__(self, port: int, count: int) -> None:
        self._poll = select.epoll()
        self._lines: dict[int, tuple[Line, str, int]] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._by_queue: dict[tuple[str, int], Line] = {}
        for consumer in range(count):
            topic, queue_id = divmod(consumer, QUEUES_A_TOPIC)
            self._add(Line(port), name_of(topic), queue_id)

    def _add(self, line: Line, topic: str, queue_id: int) -> None:
        self._lines[line.socket.fileno()] = line, topic, queue_id
        self._by_queue[topic, queue_id] = line
        self._poll.register(line.socket, select.EPOLLIN)
        self._pull(line, topic, queue_id)

    def _pull(self, line: Line, topic: str, queue_id: int) -> None:
        request = probe.pull_request(topic)
        request.ext_fields.update(
            queueId=str(queue_id),
            queueOffset=str(self._offsets.get((topic, queue_id), 0)),
            sysFlag=str(int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)),
            suspendTimeoutMillis=str(HOLD_S * 1000),
        )
        line.send(request)

    def __enter__(self) -> "Consumers":
        return self

    def __exit__(self, *_: object) -> None:
        for line, _topic, _queue_id in self._lines.values():
            line.close()
        self._poll.close()

    def expect_silence(self, seconds: float) -> None:
        """Wait. Raises LoadFailed where anything comes: then not all pulls are held."""
        if ready := self._poll.poll(seconds):
            line, topic, queue_id = self._lines[ready[0][0]]
            answers = line.receive()
            what = f"code {answers[0].code}: {answers[0].remark}" if answers else "a part of an answer"
            raise LoadFailed(f"the pull of queue {queue_id} of {topic} was not held; it was told {what}")

    def wake_up(self, control: Line, times: int) -> list[float]:
        """Send to one queue after the other, any, and wait until its consumer has it; the times that took, us."""
        chance = random.Random(1)
        queues = list(self._by_queue)
        latencies = []
        for _ in range(times):
            topic, queue_id = chance.choice(queues)
            request = probe.send_request(topic)
            request.ext_fields["e"] = str(queue_id)
            began = time.perf_counter()
            control.send(request)
            self._expect(topic, queue_id)
            latencies.append((time.perf_counter() - began) * 1e6)
            answers: list[RemotingCommand] = []
            while not answers:
                answers = control.receive()
            self._offsets[topic, queue_id] = self._offsets.get((topic, queue_id), 0) + 1
            self._pull(self._by_queue[topic, queue_id], topic, queue_id)
        return latencies

    def _expect(self, topic: str, queue_id: int) -> None:
        """Wait until the consumer of that queue, and nobody else, has a message."""
        answers: list[RemotingCommand] = []
        while not answers:
            ready = self._poll.poll(PATIENCE_S)
            if [fd for fd, _ in ready] != [self._by_queue[topic, queue_id].socket.fileno()]:
                raise LoadFailed(f"{len(ready)} consumers heard of a message in queue {queue_id} of {topic}")
            answers = self._lines[ready[0][0]][0].receive()
        if answers[0].code != ResponseCode.SUCCESS:
            raise LoadFailed(f"code {answers[0].code}: {answers[0].remark}")
