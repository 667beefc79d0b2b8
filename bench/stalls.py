"""How long one who asks a little waits while another asks as much as it can.

An attack is bytes that a peer writes at once, without reading what is answered. A prober on a connection of its own
asks one small question after the other meanwhile: the longest it waits is what is measured. So it is where nobody
attacks, and many leave at once.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from bench import idle, routes
from bench.servers import Bench, Kind
from bench.table import Table
from mqbroker.wire.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    RegisterBrokerBody,
    SubscriptionData,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import ONEWAY_FLAG, FrameDecoder, RemotingCommand, encode_command
from mqbroker.wire.headers import RegisterBrokerRequestHeader
from mqbroker.wire.registration import body_crc32, encode_registration

#: What nobody may make another wait.
WANTED_MS = 100.0
#: How long an attack is watched, and how often it is repeated in that time.
WATCH_S = 10.0
REPEATS = 5
PAUSE_S = 0.005

OFFSETS = 20_000
#: They share the 100,000 topics that the name server has.
BROKERS = 300
CONSUMERS = 3000


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], factor: float) -> None:
    """Print for each attack the longest wait of the prober, in ms."""
    watch_s = max(3.0, WATCH_S * factor)
    count = max(100, int(CONSUMERS * factor))
    idle.allow_files(count + idle.FILES_BESIDE)
    table.head(f"{'longest wait of others, ms':44} " + " ".join(f"{kind:>9}" for kind in kinds))
    waits: dict[str, dict[Kind, float]] = {}
    for kind in kinds:
        for name, wait_ms in _of_namesrv(bench, kind, watch_s):
            waits.setdefault(f"name server: {name}", {})[kind] = wait_ms
        for name, wait_ms in _of_broker(bench, kind, watch_s, count):
            waits.setdefault(f"broker: {name}", {})[kind] = wait_ms
    for name, found in waits.items():
        cells = " ".join(_cell(found.get(kind)) for kind in kinds)
        table.wanted_row(f"{name:44}", cells, found.get("ours"), below=WANTED_MS)


def _cell(wait_ms: float | None) -> str:
    if wait_ms is None:
        return f"{'-':>9}"
    return f"{'> 60 s':>9}" if wait_ms == math.inf else f"{wait_ms:9.0f}"


def _of_namesrv(bench: Bench, kind: Kind, watch_s: float) -> Iterator[tuple[str, float]]:
    ask = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "bench-topic-000007"})

    @contextmanager
    def started() -> Iterator[int]:
        with routes.namesrv(bench, kind) as server:
            server.register(routes.all_topics(0))
            yield server.port

    yield from _waits(started, ask, _on_namesrv(), watch_s)
    with started() as port:
        leaving = _longest_wait_after_leaving(port, ask, _brokers_with_topics(), watch_s)
    yield f"{BROKERS} brokers that leave", leaving


def _of_broker(bench: Bench, kind: Kind, watch_s: float, count: int) -> Iterator[tuple[str, float]]:
    ask = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "BenchmarkTest", "queueId": "0"})

    @contextmanager
    def started() -> Iterator[int]:
        with bench.server(kind) as broker:
            _fill(broker.port)
            yield broker.port

    yield from _waits(started, ask, _on_broker(), watch_s)
    with started() as port:
        leaving = _longest_wait_after_leaving(port, ask, _consumers_of_one_group(count), watch_s)
    yield f"{count:,} consumers of one group that leave", leaving


def _waits(
    started: Callable[[], AbstractContextManager[int]],
    ask: RemotingCommand,
    attacks: Mapping[str, bytes],
    watch_s: float,
) -> Iterator[tuple[str, float]]:
    """The longest wait under each attack; infinite where there was no answer, after which a new server is attacked."""
    names = list(attacks)
    while names:
        with started() as port:
            is_alive = True
            while names and is_alive:
                name = names.pop(0)
                wait_ms = _longest_wait_ms(port, ask, attacks[name], watch_s)
                is_alive = wait_ms < math.inf
                yield name, wait_ms


def _on_namesrv() -> Mapping[str, bytes]:
    code = RequestCode
    cluster, broker = {"cluster": "bench-cluster"}, {"brokerName": "bench-broker"}
    return {
        "nothing": b"",
        "all topics": _requests(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 1000),
        "all topics, one-way": _requests(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 1000, flag=ONEWAY_FLAG),
        "a cluster's topics, one-way": _requests(code.GET_TOPICS_BY_CLUSTER, 1000, cluster, flag=ONEWAY_FLAG),
        "permissions, one-way": _requests(code.WIPE_WRITE_PERM_OF_BROKER, 100, broker, flag=ONEWAY_FLAG),
    }


def _on_broker() -> Mapping[str, bytes]:
    code = RequestCode
    subscriptions = [SubscriptionData(f"topic-{n}", "*") for n in range(100_000)]
    consumer = ConsumerData("CG", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", subscriptions)
    heartbeat = HeartbeatData("client", [], [consumer]).to_json()
    queues = frozenset(MessageQueue("BenchmarkTest", "bench-broker", n) for n in range(60_000))
    lock = LockBatchRequestBody("CG", "client", queues).to_json()
    key = {"topic": "BenchmarkTest", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    return {
        "nothing": b"",
        "who consumes a topic": _requests(code.QUERY_TOPIC_CONSUME_BY_WHO, 1000, {"topic": "BenchmarkTest"}),
        "messages by key": _requests(code.QUERY_MESSAGE, 1000, key),
        "a heartbeat of 12 MB": _requests(code.HEART_BEAT, 1, body=heartbeat),
        "a lock of 3 MB": _requests(code.LOCK_BATCH_MQ, 3, body=lock),
        "1 MB of Fastjson's dialect": _requests(code.HEART_BEAT, 3, body=b"{1:[" + b"{}," * 340_000 + b"{}]}"),
    }


def _brokers_with_topics() -> Iterator[RemotingCommand]:
    """What each of the brokers says of itself: each has its part of the topics, beside the broker that has all."""
    names = [f"bench-topic-{number:06d}" for number in range(routes.TOPICS)]
    for number in range(BROKERS):
        topics = {name: TopicConfig(name, 4, 4) for name in names[number::BROKERS]}
        wrapper = TopicConfigSerializeWrapper(topics, DataVersion(0, 1))
        body = encode_registration(RegisterBrokerBody(wrapper), compressed=False)
        header = RegisterBrokerRequestHeader(
            broker_name=f"leaving-{number}",
            broker_addr=f"127.0.0.1:{20_000 + number}",
            cluster_name="bench-cluster",
            ha_server_addr="",
            broker_id=0,
            body_crc32=body_crc32(body),
        )
        yield RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)


def _consumers_of_one_group(count: int) -> Iterator[RemotingCommand]:
    subscription = SubscriptionData("BenchmarkTest", "*")
    consumer = ConsumerData("Leaving", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [subscription])
    for number in range(count):
        body = HeartbeatData(f"leaving-{number}", [], [consumer]).to_json()
        yield RemotingCommand(RequestCode.HEART_BEAT, body=body)


def _longest_wait_after_leaving(
    port: int, ask: RemotingCommand, present: Iterator[RemotingCommand], watch_s: float
) -> float:
    """Let peers come, each over a connection of its own, and all go at once; the longest wait of the prober then."""
    with _connected(port) as prober, ExitStack() as peers:
        _ask(prober, ask)  # who says nothing for long is closed
        for request in present:
            _ask(peers.enter_context(_connected(port)), request)
        peers.close()
        try:
            return _longest_wait(prober, ask, watch_s)
        except OSError:
            return math.inf


def _requests(
    code: int, count: int, fields: Mapping[str, str] | None = None, *, flag: int = 0, body: bytes = b""
) -> bytes:
    return encode_command(RemotingCommand(code, dict(fields or {}), body, flag=flag)) * count


def _fill(port: int) -> None:
    """Give a broker a table of offsets."""
    for begin in range(0, OFFSETS, 1000):
        with _connected(port) as connection:
            for number in range(begin, begin + 1000):
                fields = {"consumerGroup": f"G{number}", "topic": "BenchmarkTest", "queueId": "0", "commitOffset": "1"}
                _ask(connection, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))


def _longest_wait_ms(port: int, ask: RemotingCommand, attack: bytes, watch_s: float) -> float:
    """Infinite where the prober got no answer in a minute."""
    over = threading.Event()
    attacker = threading.Thread(target=_attack, args=(port, attack, watch_s / REPEATS, over), daemon=True)
    attacker.start()
    try:
        with _connected(port) as prober:
            return _longest_wait(prober, ask, watch_s)
    except OSError:
        return math.inf
    finally:
        over.set()
        attacker.join()


def _longest_wait(prober: socket.socket, ask: RemotingCommand, watch_s: float) -> float:
    longest, end = 0.0, time.monotonic() + watch_s
    while (began := time.monotonic()) < end:
        _ask(prober, ask)
        longest = max(longest, time.monotonic() - began)
        time.sleep(PAUSE_S)
    return longest * 1000


def _attack(port: int, attack: bytes, pause_s: float, over: threading.Event) -> None:
    """Write it again and again, each time over a connection of its own that is not read."""
    while attack and not over.is_set():
        try:
            with _connected(port) as connection:
                connection.settimeout(pause_s)
                connection.sendall(attack)
                over.wait(pause_s)
        except OSError:
            over.wait(0.01)


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), WATCH_S * 6) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def _ask(connection: socket.socket, request: RemotingCommand) -> None:
    connection.sendall(encode_command(request))
    decoder = FrameDecoder()
    while not decoder.feed(data := connection.recv(1 << 16)):
        if not data:
            raise ConnectionError("it closed the connection")
