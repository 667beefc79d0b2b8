"""A broker on a disk without room: messages are refused with the reason, nothing else stops, and it ends by itself."""

import contextlib
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.daemons.history import QUEUES, TOPIC, check_caches, pull_all, send_on, send_one
from tests.daemons.permits import need
from tests.daemons.processes import DEADLINE_SECONDS, Process, ask, wait_for
from tests.daemons.small_disks import KINDS, SmallDisk

pytestmark = pytest.mark.daemons

DISK_BYTES = 8 * 1024 * 1024
SEGMENT_BYTES = 512 * 1024
BODY_BYTES = 20_000
SIZES = {
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 100,
    "max_index_num": 4000,
}
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 4000,
    "flushIntervalCommitLog": 50,
    "flushIntervalConsumeQueue": 50,
    "flushConsumerOffsetInterval": 50,
    "cleanResourceInterval": 100,
    "cleanFileForciblyEnable": "false",
}
#: Nothing is refused before the disk itself refuses.
NO_WATCH = {"diskSpaceWarningLevelRatio": 100, "diskFreeBytesMin": 0}
FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"]


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(request.param, tmp_path, DISK_BYTES)
    yield disk
    disk.end()


@pytest.fixture
def broker(daemon: Callable[..., Process]) -> Callable[..., Process]:
    def start_broker(store: Path, wrapper: Callable[..., Any], **changes: Any) -> Process:
        settings = SETTINGS | changes | {"storePathRootDir": store}
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        return daemon("broker", *options, wrapper=wrapper)

    return start_broker


def body_of(n: int) -> bytes:
    return b"%d-" % n + bytes(BODY_BYTES)


def send_until_refused(send: Callable[..., Any], acked: list[bytes], limit: int = 2000) -> RemotingCommand:
    """Send message after message until the answer is not SUCCESS; that answer. `acked` gets what is acknowledged."""
    for n in range(len(acked), len(acked) + limit):
        answer = send(n)
        if answer.code != ResponseCode.SUCCESS:
            return answer
        acked.append(body_of(n))
    raise AssertionError(f"{limit} messages were taken")


def sender(port: int) -> Callable[..., Any]:
    return lambda n: send_one(port, body_of(n), n % QUEUES)


def wait_until_taken(port: int, acked: list[bytes]) -> None:
    def is_taken() -> bool:
        return send_one(port, body_of(len(acked)), len(acked) % QUEUES).code == ResponseCode.SUCCESS

    wait_for(is_taken, "a message to be taken")
    acked.append(body_of(len(acked)))


def commit(port: int, offset: int) -> None:
    fields: dict[str, Any] = {"consumerGroup": "CG", "topic": TOPIC, "queueId": 0, "commitOffset": offset}
    assert ask(port, RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == ResponseCode.SUCCESS


def committed(port: int) -> int:
    fields: dict[str, Any] = {"consumerGroup": "CG", "topic": TOPIC, "queueId": 0}
    return int(ask(port, RequestCode.QUERY_CONSUMER_OFFSET, **fields).ext_fields["offset"])


def written_offset(store: Path) -> int | None:
    table = store / "config" / "consumerOffset.json"
    return int(re.search(r"\{\"?0\"?:(\d+)", table.read_text())[1]) if table.exists() else None


def stored(port: int) -> list[bytes]:
    return sorted((record.body for queue in range(QUEUES) for record in pull_all(port, queue)), key=number)


def number(body: bytes) -> int:
    return int(body.partition(b"-")[0])


@pytest.mark.parametrize("flush", FLUSHES)
def test_no_room_for_the_next_segment(
    broker: Callable[..., Process], disk: SmallDisk, tmp_path: Path, flush: str
) -> None:
    store, seen = disk.path / "store", disk.seen / "store"
    process = broker(store, disk.wrapper, flushDiskType=flush, **NO_WATCH)
    port = process.wait_for_port()
    acked: list[Any] = []
    for _ in range(QUEUES):
        wait_until_taken(port, acked)
    wait_for(lambda: stored(port) == acked, "files of all queues")
    commit(port, 1)
    wait_for(lambda: written_offset(seen) == 1, "offset 1 in the file")
    disk.fill(spare=64 * 1024)
    for _ in range(2):
        refused = send_until_refused(sender(port), acked)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        full = (
            rf"service not available now\. the broker's disk is full \[{store}/commitlog: \d+ bytes used, \d+ free\]: "
        )
        assert re.match(full, refused.remark)
        assert f"there is no room for the next segment of {SEGMENT_BYTES} bytes" in refused.remark
    disk.fill()
    # Reading and committing go on.
    commit(port, 2)
    assert committed(port) == 2
    assert stored(port) == acked
    # A disk that keeps some blocks back may still have room for a table.
    wait_for(lambda: written_offset(seen) == 2 or "consumerOffset.json could not be written" in process.err, "a try")
    assert written_offset(seen) in (1, 2)
    disk.free()
    wait_until_taken(port, acked)
    wait_for(lambda: written_offset(seen) == 2, "offset 2 in the file")
    assert stored(port) == acked
    assert process.stop() == 0
    assert not (seen / "abort").exists()
    subprocess.run(["cp", "-a", seen, tmp_path / "copy"], check=True)
    check_caches(tmp_path / "copy", tmp_path / "rebuilt", SIZES)


def test_no_room_for_consume_queues(broker: Callable[..., Process], disk: SmallDisk, tmp_path: Path) -> None:
    """The log has room, but what it takes nobody could get."""
    store = disk.path / "store"
    process = broker(store, disk.wrapper, mappedFileSizeCommitLog=4 * 1024 * 1024, **NO_WATCH)
    port = process.wait_for_port()
    acked = [body_of(0)]
    assert send_one(port, body_of(0), 0).code == ResponseCode.SUCCESS
    wait_for(lambda: stored(port) == acked, "the message in its queue")
    disk.fill()
    assert send_one(port, body_of(1), 1).code == ResponseCode.SUCCESS  # the first of its queue, which has no file yet
    process.wait_for_line("dispatch is waiting for the disk")
    acked.append(body_of(1))
    refused = send_one(port, body_of(2), 0)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "a consume queue or the index cannot be written: " in refused.remark
    assert f"{store}/consumequeue/{TOPIC}/1" in refused.remark
    assert re.search(rf"the broker's disk is full \[{store}: \d+ bytes used, \d+ free\]", refused.remark)
    assert stored(port) == acked[:1]
    disk.free()
    process.wait_for_line("dispatch continues, messages are accepted again")
    wait_until_taken(port, acked)
    wait_for(lambda: stored(port) == acked, "all messages in their queues")
    assert process.err.count("dispatch is waiting for the disk") == 1
    assert process.stop() == 0


def test_messages_are_refused_before_the_disk_is_full(broker: Callable[..., Process], disk: SmallDisk) -> None:
    store = disk.path / "store"
    process = broker(store, disk.wrapper, diskFreeBytesMin=3 * 1024 * 1024)
    port = process.wait_for_port()
    acked: list[Any] = []
    for _ in range(QUEUES):
        wait_until_taken(port, acked)
    wait_for(lambda: stored(port) == acked, "files of all queues")
    disk.fill(spare=2 * 1024 * 1024)
    process.wait_for_line("messages are refused: ")
    refused = send_one(port, body_of(len(acked)))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert f"{store}" in refused.remark
    assert re.search(r"\d+ % are used and \d+ bytes free", refused.remark)
    assert "diskFreeBytesMin" in refused.remark or "diskSpaceWarningLevelRatio" in refused.remark
    assert stored(port) == acked
    disk.free()
    process.wait_for_line("messages are accepted again: ")
    wait_until_taken(port, acked)
    assert stored(port) == acked
    assert process.stop() == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_start_on_a_full_disk(
    broker: Callable[..., Process], disk: SmallDisk, tmp_path: Path, end: signal.Signals
) -> None:
    """It starts, or says in one line why not; what it has is there when there is room again."""
    store, seen = disk.path / "store", disk.seen / "store"
    # Segments too large for the next one to be made ahead: where one goes again, there is room.
    settings = NO_WATCH | {"mappedFileSizeCommitLog": 4 * 1024 * 1024}
    process = broker(store, disk.wrapper, **settings)
    port = process.wait_for_port()
    acked: list[Any] = []
    for _ in range(2 * QUEUES):
        wait_until_taken(port, acked)
    disk.fill()
    process.signal(end)
    process.wait()
    again = broker(store, disk.wrapper, **settings)
    port = again.port_or_end()
    if port is None:
        assert again.wait() == 1
        assert re.fullmatch(rf"mqbroker: {store}/\S+: No space left on device\n", without_log_lines(again.err))
    else:
        assert stored(port) == acked
        assert again.stop() == 1
    disk.free()
    third = broker(store, disk.wrapper, **settings)
    port = third.wait_for_port()
    assert stored(port) == acked
    wait_until_taken(port, acked)
    assert stored(port) == acked
    assert third.stop() == 0
    assert not (seen / "abort").exists()


def without_log_lines(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not re.match(r"\d{4}-\d\d-\d\d ", line))


def limited(**limits: int) -> Callable[..., Any]:
    options = [f"--{name}={limit}:{limit}" for name, limit in limits.items()]
    need("limits of a process", ["prlimit", *options, "true"])
    return lambda _: ["prlimit", *options]


def test_files_may_not_be_as_large_as_a_segment(broker: Callable[..., Process], tmp_path: Path) -> None:
    process = broker(tmp_path / "store", limited(fsize=SEGMENT_BYTES // 2))
    assert process.wait() == 1
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    assert without_log_lines(process.err) == f"mqbroker: {segment}: File too large\n"
    assert not segment.exists()
    process = broker(tmp_path / "store", lambda _: ())
    acked: list[Any] = []
    wait_until_taken(process.wait_for_port(), acked)
    assert process.stop() == 0


def test_files_may_not_be_as_large_as_an_index(broker: Callable[..., Process], tmp_path: Path) -> None:
    process = broker(tmp_path / "store", limited(fsize=SEGMENT_BYTES), maxIndexNum=100_000)
    port = process.wait_for_port()
    assert send_one(port, body_of(0), 0).code == ResponseCode.SUCCESS
    process.wait_for_line("dispatch is waiting for the disk")
    refused = send_one(port, body_of(1), 0)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "File too large" in refused.remark
    assert f"{tmp_path}/store/index/" in refused.remark
    assert stored(port) == [body_of(0)]
    assert process.stop() == 1
    process = broker(tmp_path / "store", lambda _: (), maxIndexNum=100_000)
    port = process.wait_for_port()
    assert stored(port) == [body_of(0)]
    assert process.stop() == 0


def accepts(port: int) -> bool:
    """Whether a connection is served: the broker may not have noticed yet that others were closed."""
    with contextlib.suppress(ConnectionError):
        return ask(port, RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.SUCCESS
    return False


def test_no_more_files_may_be_open(broker: Callable[..., Process], tmp_path: Path) -> None:
    """Connections have taken all descriptors: no segment can be made, until some of them are closed."""
    process = broker(tmp_path / "store", limited(nofile=48), **NO_WATCH)
    port = process.wait_for_port()
    acked: list[Any] = []
    wait_until_taken(port, acked)
    commit(port, 1)
    wait_for(lambda: written_offset(tmp_path / "store") == 1, "offset 1 in the file")
    idle = []
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connection:
        try:
            for _ in range(60):
                with contextlib.suppress(ConnectionError):  # those that are too many are closed at once
                    idle.append(socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS))
            refused = send_until_refused(lambda n: send_on(connection, body_of(n), n % QUEUES), acked)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "Too many open files" in refused.remark
        finally:
            for each in idle:
                each.close()
    wait_for(lambda: accepts(port), "a connection that is served")
    wait_until_taken(port, acked)
    assert stored(port) == acked
    assert written_offset(tmp_path / "store") == 1
    assert process.stop() == 0
