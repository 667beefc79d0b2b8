"""A broker whose disk fails a sync: who waits is not answered that it worked, writing stops, reading goes on."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.store.checkpoint import decode_checkpoint
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.daemons.failing_calls import BY, Shim, Strace
from tests.daemons.history import QUEUES, TOPIC, check_caches, log_end, pull_all, send_one
from tests.daemons.processes import Process, ask, wait_for

pytestmark = pytest.mark.daemons

SIZES = {
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 100,
    "max_index_num": 4000,
}
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 4000,
    "flushIntervalCommitLog": 50,
    "flushIntervalConsumeQueue": 50,
    "flushConsumerOffsetInterval": 50,
}


@pytest.fixture(params=list(BY))
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shim | Strace]:
    failing = BY[request.param](tmp_path)
    yield failing
    failing.end()


@pytest.fixture
def broker(
    daemon: Callable[..., Process], tmp_path: Path, failing: Shim | Strace
) -> Callable[..., tuple[Process, int]]:
    def start_broker(flush: str) -> tuple[Process, int]:
        settings = SETTINGS | failing.settings | {"storePathRootDir": tmp_path / "store", "flushDiskType": flush}
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        process = daemon("broker", *options, environment=failing.environment)
        return process, process.wait_for_port()

    return start_broker


def send_some(port: int, first: int, count: int) -> list[bytes]:
    """Bodies, each acknowledged."""
    bodies = [b"%d" % n for n in range(first, first + count)]
    for n, body in enumerate(bodies):
        assert send_one(port, body, n % QUEUES).code == ResponseCode.SUCCESS
    return bodies


def stored(port: int) -> list[bytes]:
    return sorted((record.body for queue in range(QUEUES) for record in pull_all(port, queue)), key=int)


def is_synced(store: Path) -> Callable[..., bool]:
    """Whether the checkpoint covers all that is in log and queues."""

    def covers() -> bool:
        path = store / "checkpoint"
        checkpoint = decode_checkpoint(path.read_bytes()) if path.exists() else None
        end = log_end(store / "commitlog")
        return checkpoint is not None and checkpoint.log_offset == checkpoint.queues_offset == end

    return covers


def test_a_sync_that_hangs(daemon: Callable[..., Process], tmp_path: Path) -> None:
    """Takes 3 s: messages are refused after the shortest time that can be set."""
    store = tmp_path / "store"
    failing = Shim(tmp_path)
    settings = SETTINGS | {"storePathRootDir": store, "kernelSyncEnable": "false", "unsyncedAgeMax": 1000}
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    process = daemon("broker", *options, environment=failing.environment)
    port = process.wait_for_port()
    acked = send_some(port, 0, 4)
    wait_for(is_synced(store), "a checkpoint of all")
    failing.begin(process, "hanging_fdatasync", store / "commitlog")
    acked += send_some(port, 4, 4)
    process.wait_for_line("messages are refused: ")
    refused = send_one(port, b"100")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "(unsyncedAgeMax)" in refused.remark
    assert stored(port) == acked
    failing.end()
    process.wait_for_line("messages are accepted again: ")
    acked += send_some(port, 8, 4)
    wait_for(is_synced(store), "a checkpoint of all")
    assert stored(port) == acked
    assert process.stop() == 0


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_failing_sync_of_the_log(
    broker: Callable[..., tuple[Process, int]], tmp_path: Path, failing: Shim | Strace, flush: str
) -> None:
    store = tmp_path / "store"
    process, port = broker(flush)
    acked = send_some(port, 0, 20)
    wait_for(is_synced(store), "a checkpoint of all")
    failing.begin(process, "fdatasync", store / "commitlog")
    first = send_one(port, b"100")
    if flush == "SYNC_FLUSH":
        assert first.code == ResponseCode.SERVICE_NOT_AVAILABLE
    else:  # it was acknowledged before the sync
        assert first.code == ResponseCode.SUCCESS
        acked.append(b"100")
    process.wait_for_line("CRITICAL")
    assert failing.hits >= 1
    failing.end()
    # What the disk did not keep it will not tell again: no later sync makes it good.
    for _ in range(3):
        later = send_one(port, b"101")
        assert later.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the commit log cannot be synced to the disk, restart the broker: " in later.remark
        assert f"Input/output error: '{store}/commitlog/00000000000000000000'" in later.remark
    assert set(acked) <= set(stored(port)) <= {*acked, b"100"}
    assert process.err.count("CRITICAL") == 1
    assert process.stop() == 1
    assert (store / "abort").exists()
    process, port = broker(flush)
    # The machine did not stop: what was in memory is still there, and is synced now.
    acked += send_some(port, 200, 5)
    assert set(acked) <= set(stored(port)) <= {*acked, b"100"}
    assert process.stop() == 0
    assert not (store / "abort").exists()
    check_caches(store, tmp_path / "rebuilt", SIZES)


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_failing_sync_of_consume_queues_or_index(
    broker: Callable[..., tuple[Process, int]], tmp_path: Path, failing: Shim | Strace, part: str
) -> None:
    """Messages are durable without them: they are taken on, and the checkpoint goes on when the fault is over."""
    store = tmp_path / "store"
    process, port = broker("SYNC_FLUSH")
    acked = send_some(port, 0, 20)
    wait_for(is_synced(store), "a checkpoint of all")
    wait_for(lambda: (store / "index").exists(), "an index")
    failing.begin(process, "fdatasync", store / part)
    acked += send_some(port, 20, 20)
    process.wait_for_line("consume queues or index cannot be synced to the disk")
    assert failing.hits >= 1
    failing.end()
    acked += send_some(port, 40, 20)
    assert stored(port) == acked
    process.wait_for_line("are synced to the disk again")
    wait_for(is_synced(store), "a checkpoint of all")
    assert process.stop() == 0
    assert not (store / "abort").exists()
    check_caches(store, tmp_path / "rebuilt", SIZES)


def test_failing_sync_of_the_checkpoint(
    broker: Callable[..., tuple[Process, int]], tmp_path: Path, failing: Shim | Strace
) -> None:
    """What it would cover is on the disk: it is written again."""
    store = tmp_path / "store"
    process, port = broker("SYNC_FLUSH")
    acked = send_some(port, 0, 4)
    wait_for(is_synced(store), "a checkpoint of all")
    failing.begin(process, "fsync", store / "checkpoint")
    acked += send_some(port, 4, 4)
    process.wait_for_line("the checkpoint cannot be written (trying again): ")
    assert failing.hits >= 1
    failing.end()
    acked += send_some(port, 8, 4)
    wait_for(is_synced(store), "a checkpoint of all")
    assert stored(port) == acked
    assert process.stop() == 0
    assert not (store / "abort").exists()


def test_failing_sync_of_a_table(
    broker: Callable[..., tuple[Process, int]], tmp_path: Path, failing: Shim | Strace
) -> None:
    """Offsets are committed as before; the former file stays, and the new one comes when the disk works again."""
    store = tmp_path / "store"
    table = store / "config" / "consumerOffset.json"
    process, port = broker("ASYNC_FLUSH")
    send_some(port, 0, 4)

    def commit(offset: int) -> None:
        fields: dict[str, Any] = {"consumerGroup": "CG", "topic": TOPIC, "queueId": 0, "commitOffset": offset}
        assert ask(port, RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == ResponseCode.SUCCESS

    def written() -> int | None:
        return int(re.search(r"\{\"?0\"?:(\d+)", table.read_text())[1]) if table.exists() else None

    commit(1)
    wait_for(lambda: written() == 1, "offset 1 in the file")
    (store / "config" / "consumerOffset.json.tmp").touch()  # strace takes the names of files that there are
    failing.begin(process, "fsync", store / "config")
    commit(2)
    process.wait_for_line("consumerOffset.json could not be written: ")
    assert failing.hits >= 1
    assert written() == 1
    failing.end()
    wait_for(lambda: written() == 2, "offset 2 in the file")
    assert process.stop() == 0
    assert written() == 2


def test_failing_sync_of_a_new_segments_name(
    broker: Callable[..., tuple[Process, int]], tmp_path: Path, failing: Shim | Strace
) -> None:
    """A segment whose name may be gone holds nothing that can be acknowledged."""
    store = tmp_path / "store"
    process, port = broker("SYNC_FLUSH")
    acked = send_some(port, 0, 4)
    wait_for(is_synced(store), "a checkpoint of all")
    failing.begin(process, "fsync", store / "commitlog")
    answers = []
    for n in range(100, 110):
        answers.append(send_one(port, b"%d" % n + bytes(500_000)))
        if answers[-1].code != ResponseCode.SUCCESS:
            break
    assert answers[-1].code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the commit log cannot be synced" in answers[-1].remark
    assert failing.hits >= 1
    failing.end()
    acked += [b"%d" % (100 + n) + bytes(500_000) for n in range(len(answers) - 1)]
    bodies = [record.body for queue in range(QUEUES) for record in pull_all(port, queue)]
    assert set(acked) <= set(bodies)
    assert process.stop() == 1
    shutil.rmtree(store / "index")
    process, port = broker("SYNC_FLUSH")
    assert set(acked) <= {record.body for queue in range(QUEUES) for record in pull_all(port, queue)}
    assert process.stop() == 0
