"""Records that a crash left in part, and messages whose bytes look like those.

A sector that was not written holds zeros, and no CRC covers properties. But every message may have any bytes.
"""

from __future__ import annotations

import errno
import mmap
import shutil
from collections.abc import Callable
from typing import Any, cast

import pytest
from twisted.python.failure import Failure

from mqbroker.config import FlushDiskType
from mqbroker.errors import StoreUnwritable
from mqbroker.store.checkpoint import decode_checkpoint
from tests.store.harness import Bench, message, now, stop, turns
from tests.store.offline.stores import check, kinds
from tests.store.test_recovery import bodies, segment, write

SECTOR = 512
Make = Callable[..., Bench]


@pytest.mark.parametrize("shift", range(0, SECTOR, 73))
def test_a_record_that_lacks_sectors_is_cut_off_whichever_they_are(bench: Bench, shift: int) -> None:
    store = bench.open()
    store.append([message(body=b"whole" + bytes(shift))])
    at = store.log_end
    store.append([message(body=b"torn" * 100, properties=b"k\x01" + b"v" * 1500)])
    end = store.log_end
    sectors = [max(at, start) for start in range(at - at % SECTOR, end, SECTOR)]
    for number, start in enumerate(sectors):
        image = bench.image(f"torn{number}")
        image.disk.boot = b"another boot"
        write(segment(image), start, bytes(SECTOR - start % SECTOR))
        again = image.open()
        assert bodies(again) == [b"whole" + bytes(shift)]
        assert not any(segment(image).read_bytes()[at:])
        assert again.append([message(body=b"next")])[0][:2] == (at, 1)
        again.dispatch_now()
        assert bodies(again) == [b"whole" + bytes(shift), b"next"]
        stop(again)
        shutil.rmtree(image.root)


def test_an_append_that_a_kill_cut_short_is_cut_off_wherever_that_was(bench: Bench) -> None:
    """What is stored in memory one after another is there one after another, and the first bytes come last."""
    store = bench.open()
    store.append([message(body=b"whole")])
    at = store.log_end
    stored: list[tuple[int, bytes]] = []

    class Watched:
        def __init__(self, buffer: mmap.mmap) -> None:
            self._buffer = buffer

        def __setitem__(self, place: slice, data: bytes) -> None:
            stored.append((place.start, bytes(data)))
            self._buffer[place] = data

    log = store._commit_log
    log._buffer = cast(mmap.mmap, Watched(log._buffer))
    store.append([message(body=b"torn"), message(body=b"torn too")])
    end = store.log_end
    whole = segment(bench).read_bytes()
    steps = [(place + i, data[i : i + 1]) for place, data in stored for i in range(len(data))]
    assert len(steps) == end - at
    image = bench.image("killed")
    data = bytearray(whole)
    data[at:end] = bytes(end - at)
    for number, (place, byte) in enumerate(steps):
        if number % 7 == 0 or number > len(steps) - 9:
            segment(image).write_bytes(data)
            (image.root / "abort").write_bytes(image.disk.boot)
            again = image.open()
            assert bodies(again) == [b"whole"]
            stop(again)
        data[place : place + 1] = byte
    assert bytes(data) == whole


HOSTILE: dict[str, dict[str, Any]] = {
    "ends in NUL": {"properties": b"k\x01v\0"},
    "NULs": {"properties": bytes(64)},
    "many NULs": {"properties": b"k\x01" + bytes(32765)},
    "NULs and separators": {"properties": bytes(600) + b"\x02k\x01v\x01\x02\x02\x01" + bytes(600)},
    "separators": {"properties": b"\x01\x02\x02\x01\x01"},
    "no text": {"properties": b"\xff\xfe\xc0\x01\xed\xa0\x80\x02"},
    "nothing": {"properties": b"", "body": b""},
    "only NULs": {"properties": bytes(2000), "body": bytes(2000)},
    "body of a record": {"body": b"\0\0\1\0\xda\xa3\x20\xa7" * 30},
    "long topic": {"topic": "x" * 127, "properties": b"\0"},
    "odd topic": {"topic": "%|-_", "properties": b"\0"},
}


@pytest.mark.parametrize("position", ["alone", "first", "last", "inside"])
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("ends", ["kill", "power", "power and no queues"])
def test_a_message_of_any_bytes_and_those_behind_it_are_there_after_a_crash(
    make: Make, hostile: str, position: str, ends: str
) -> None:
    bench = make(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = bench.open()
    before, after = {"alone": (0, 0), "first": (0, 20), "last": (20, 0), "inside": (20, 20)}[position]
    messages = [*[message()] * before, message(**HOSTILE[hostile]), *[message()] * after]
    records = []
    for each in messages:
        ((start, _, size, _),) = store.append([each])
        acknowledged: list[None] = []
        store.durable(start + size).addCallback(acknowledged.append)
        assert acknowledged == [None]
        records.append((start, now(store).record(start)))
    store.dispatch_now()
    image = bench.image("crashed")
    if ends != "kill":
        image.disk.boot = b"another boot"
    if ends == "power and no queues":
        shutil.rmtree(image.root / "consumequeue")
    again = image.open()
    assert [now(again).record(start) for start, _ in records] == [record for _, record in records]
    assert (again.log_end, list(again.corrupt_ranges)) == (store.log_end, [])
    topic = messages[before][0].decode()
    assert again.max_offset(topic, 0) == (1 if topic != "T" else len(messages))
    stop(again)
    assert not {"damage", "torn tail"} & kinds(check(image.root)).keys()


def test_after_a_kill_what_was_not_synced_is_there_too(bench: Bench) -> None:
    store = bench.open()
    store.append([message(properties=b"k\x01" + bytes(3 * SECTOR)), message(body=b"next")])
    image = bench.image("killed")
    again = image.open()
    assert (bodies(again), again.log_end) == ([b"body", b"next"], store.log_end)
    stop(again)


def test_what_could_be_taken_for_torn_is_acknowledged_when_the_checkpoint_covers_it(make: Make) -> None:
    bench = make(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = bench.open()
    bench.worker.at_once = False
    ((start, _, size, _),) = store.append([message(properties=b"k\x01\0")])
    acknowledged: list[None] = []
    store.durable(start + size).addCallback(acknowledged.append)
    checkpoint = bench.root / "checkpoint"
    assert not checkpoint.exists()
    bench.worker.step()
    assert acknowledged
    assert decode_checkpoint(checkpoint.read_bytes()).log_offset == start + size
    bench.worker.at_once = True


def test_where_the_checkpoint_cannot_be_written_what_needs_it_is_not_acknowledged(make: Make) -> None:
    bench = make(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = bench.open()
    store.start()
    bench.disk.faults.write_error = errno.EIO
    ((start, _, size, _),) = store.append([message(properties=b"k\x01\0")])
    failed = store.durable(start + size)
    assert isinstance(failed.result, Failure)
    assert failed.result.check(StoreUnwritable)
    failed.addErrback(lambda failure: None)
    bench.disk.faults.write_error = None
    turns(bench.clock, 1)
    assert store.flushed == start + size
    assert decode_checkpoint((bench.root / "checkpoint").read_bytes()).log_offset == start + size
