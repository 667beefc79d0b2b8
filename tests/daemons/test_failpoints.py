"""A broker that kills itself at one point of its work while messages stream in: what it acknowledged is there.

Each point (`failpoint_broker.points`) is passed with asynchronous and with synchronous flush, the how-many-th time
comes from a seed, printed; MQBROKER_KILL_SEED chooses another. A point that is never passed fails its test.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import ConsumerOffsetSerializeWrapper
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.broker.bench import live_settings
from tests.daemons.failpoint_broker import points
from tests.daemons.forks import ForkServer
from tests.daemons.history import (
    QUEUES,
    TOPIC,
    Sender,
    check_caches,
    check_history,
    check_remaining,
    check_store,
    pull_all,
    scan_log,
)
from tests.daemons.processes import DEADLINE_SECONDS, Process, receive, wait_for

pytestmark = pytest.mark.daemons

SEED = int(os.environ.get("MQBROKER_KILL_SEED", "497"))
FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"]
SENDERS = 2
#: For most; a segment is prepared ahead only where it takes longer to fill.
SEGMENT_BYTES = 32 * 1024
LARGE_SEGMENT_BYTES = 512 * 1024
SIZES = {
    "mapped_file_size_consume_queue": 1000,
    "max_hash_slot_num": 100,
    "max_index_num": 200,
}
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 200,
    "maxMessageSize": 4096,
    "flushIntervalCommitLog": 20,
    "flushIntervalConsumeQueue": 20,
    "flushConsumerOffsetInterval": 20,
    # Where the disk is busy a turn with a roll in it takes a quarter of a second, and the sends behind it are refused.
    "brokerFastFailureEnable": "false",
}
#: How often at most a point is passed before the last time: less often where that takes thousands of messages, each of
#: which is looked up afterwards; others up to 30.
PASSAGES_MAX = {
    "append": 10,
    "append.stored": 4,
    "roll": 6,
    "flush": 8,
    "flush.after_index": 2,
    "checkpoint": 4,
    "json": 8,
    "open": 1,
    "delete": 8,
    "delete.index_file_removed": 2,
    "delete.before_index_file": 2,
    "dispatch.before_index": 10,
    "dispatch.index_without_header": 4,
    "dispatch.queue_file_created": 8,
    "dispatch.queue_file_made": 8,
    "dispatch.index_file_created": 3,
    "dispatch.index_file_made": 3,
}
STARTING = [point for point in points() if point.startswith("open.")]
STOPPING = [point for point in points() if point.startswith("stop.")]
DELETING = [point for point in points() if point.startswith("delete.")]
RUNNING = [point for point in points() if point not in STARTING + STOPPING + DELETING]
#: Segments go as soon as there is another and their messages are on the disk everywhere.
DELETE_AT_ONCE = {
    "fileReservedTime": 0,
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": 10,
    "deleteCommitLogFilesInterval": 1,
    "deleteConsumeQueueFilesInterval": 1,
}


def passages_max(point: str) -> int:
    return PASSAGES_MAX.get(point, PASSAGES_MAX.get(point.partition(".")[0], 30))


class Committer(threading.Thread):
    """Commits rising offsets of a group until the connection is lost."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.answered = 0
        self.sent = 0
        self._connection = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)

    def run(self) -> None:
        with self._connection:
            try:
                while True:
                    self._commit(self.sent + 1)
            except (OSError, AssertionError):
                pass

    def _commit(self, offset: int) -> None:
        self.sent = offset
        fields = {"consumerGroup": "CG", "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
        command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields, opaque=offset)
        self._connection.sendall(encode_command(command))
        receive(self._connection, int.from_bytes(receive(self._connection, 4), "big"))
        self.answered = offset


@pytest.fixture
def broker(start: Callable[..., Process], forks: ForkServer, tmp_path: Path) -> Callable[..., Process]:
    """Start a broker with a store in `tmp_path`/store: a plain one, or one that dies at a point."""

    def start_broker(flush: str, *point: int | str, segment_bytes: int = SEGMENT_BYTES, **changes: Any) -> Process:
        own = {"storePathRootDir": tmp_path / "store", "flushDiskType": flush, "mappedFileSizeCommitLog": segment_bytes}
        settings = SETTINGS | own | changes
        module = "tests.daemons.failpoint_broker" if point else "mqbroker.daemons.broker"
        return start(
            *("-m", module, *point, "-o", "bindAddress=127.0.0.1", "-o", "listenPort=0", "--ports-file", "ports.json"),
            *[part for key, value in settings.items() for part in ("-o", f"{key}={value}")],
            forks=forks,
        )

    return start_broker


def stream_until_killed(process: Process, label: str, rng: Random) -> tuple[list[Sender], list[Committer]]:
    """Let senders and a committer go on until the broker is gone; these, ended. It may be gone before it serves."""
    port = process.port_or_end()
    threads: list[Any] = []
    if port is not None:
        threads = [*(Sender(f"{label}-{n}", port, Random(rng.random())) for n in range(SENDERS)), Committer(port)]
    for thread in threads:
        thread.start()
    assert process.wait() == -signal.SIGKILL, process.err
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    return [thread for thread in threads if isinstance(thread, Sender)], threads[SENDERS:]


def check_tables(root: Path, senders: list[Sender], committers: Any) -> None:
    """The tables can be read; topics that messages were acknowledged for are in them, and no offset went back far."""
    worker = InlineWorker()
    table = TopicTable(JsonFile(str(root / "config/topics.json"), worker, OsDisk()), lambda: 0.0, live_settings(root))
    if any(sender.acked for sender in senders):
        assert table.get(TOPIC) is not None
    offsets = JsonFile(str(root / "config/consumerOffset.json"), worker, OsDisk())
    try:
        loaded = offsets.load(ConsumerOffsetSerializeWrapper.from_json)
    except MQError as error:
        pytest.fail(str(error))
    if loaded is not None and committers:
        committed = loaded.offset_table.get(f"{TOPIC}@CG", {}).get(0, 0)
        assert committed <= max(committer.sent for committer in committers)


def choose(point: str, rng: Random) -> tuple[int, int]:
    """How large segments are, and which passage of the point is the last."""
    last = rng.randint(1, passages_max(point))
    print(f"seed {SEED}: {point}, passage {last}")
    return LARGE_SEGMENT_BYTES if "written_through" in point else SEGMENT_BYTES, last


def sizes(segment_bytes: int = SEGMENT_BYTES) -> dict[str, int]:
    return SIZES | {"mapped_file_size_commit_log": segment_bytes}


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("point", RUNNING + STARTING)
def test_killed_at(broker: Callable[..., Process], tmp_path: Path, point: str, flush: str) -> None:
    rng = Random(f"{SEED} {point} {flush}")
    segment_bytes, last = choose(point, rng)
    senders, committers = stream_until_killed(broker(flush, point, last, segment_bytes=segment_bytes), "0", rng)
    print(f"{sum(len(sender.acked) for sender in senders)} acknowledged")
    assert {answer.remark for sender in senders for answer in sender.refused.values()} == set()
    check_store(tmp_path / "store", tmp_path / "copies", sizes(segment_bytes), senders)
    check_tables(tmp_path / "store", senders, committers)


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("point", DELETING)
def test_killed_while_it_deletes_at(broker: Callable[..., Process], tmp_path: Path, point: str, flush: str) -> None:
    rng = Random(f"{SEED} {point} {flush}")
    _, last = choose(point, rng)
    senders, _ = stream_until_killed(broker(flush, point, last, **DELETE_AT_ONCE), "0", rng)
    print(f"{sum(len(sender.acked) for sender in senders)} acknowledged")
    check_remaining(tmp_path / "store", tmp_path / "copies", sizes(), senders)


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("point", STOPPING)
def test_killed_while_it_stops_at(broker: Callable[..., Process], tmp_path: Path, point: str, flush: str) -> None:
    process = broker(flush, point, 1)
    sender = Sender("0", process.wait_for_port(), Random(point))
    sender.start()
    wait_for(lambda: len(sender.acked) > 100, "100 acknowledgements")
    process.signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGKILL, process.err
    sender.join(DEADLINE_SECONDS)
    assert (tmp_path / "store" / "abort").exists() == (point == "stop.before_mark")
    check_store(tmp_path / "store", tmp_path / "copies", sizes(), [sender])


@pytest.mark.parametrize("flush", FLUSHES)
def test_killed_again_and_again(broker: Callable[..., Process], tmp_path: Path, flush: str) -> None:
    """One store, opened each time after it was killed at another point, also while it was opened."""
    rng = Random(f"{SEED} {flush}")
    running = [point for point in RUNNING if "written_through" not in point]
    senders = []
    for n, point in enumerate(["open.marked", *rng.sample(running, 3), "open.after_log", *rng.sample(running, 2)]):
        _, last = choose(point, rng)
        new, _ = stream_until_killed(broker(flush, point, last), str(n), rng)
        senders += new
    assert senders
    process = broker(flush)
    port = process.wait_for_port()
    queues = {queue: pull_all(port, queue) for queue in range(QUEUES)}
    assert process.stop() == 0
    check_history(scan_log(tmp_path / "store" / "commitlog"), queues, senders)
    check_caches(tmp_path / "store", tmp_path / "rebuilt", sizes())
