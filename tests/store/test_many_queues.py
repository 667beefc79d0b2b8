"""More consume queues than there may be files open: all of them work, and a start looks into as few as it can."""

from __future__ import annotations

import contextlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from mqbroker.store import GetMessageResult, MessageStore, recovery
from mqbroker.store.checkpoint import parse_ends
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.disk import IMappedFile
from mqbroker.store.message_store import opening_steps
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.stepwise import Progress, ProgressLine, run_at_once
from tests.fakes import FaultyDisk
from tests.store.harness import Bench, message, now, stop, tree, turns

TOPICS = 12
QUEUES = 4
KEYS = [(f"T{topic}", queue_id) for topic in range(TOPICS) for queue_id in range(QUEUES)]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of files of consume queues that were read or mapped."""
    paths: list[str] = []
    read_part, open_mapped = OsDisk.read_part, FaultyDisk.open_mapped

    def reading(self: OsDisk, path: str, offset: int, size: int) -> bytes:
        paths.append(path)
        return read_part(self, path, offset, size)

    def mapping(
        self: FaultyDisk, path: str, size: int, *, keep_open: bool = False, read_only: bool = False
    ) -> IMappedFile:
        if "consumequeue" in path:
            paths.append(path)
        return open_mapped(self, path, size, keep_open=keep_open, read_only=read_only)

    monkeypatch.setattr(OsDisk, "read_part", reading)
    monkeypatch.setattr(FaultyDisk, "open_mapped", mapping)
    return paths


def send(store: MessageStore, rounds: int = 1) -> None:
    for _ in range(rounds):
        for topic, queue_id in KEYS:
            store.append([message(topic, queue_id)])
        store.dispatch_now()


def counts(store: MessageStore) -> list[int]:
    found = [now(store).get(topic, queue_id, 0, 32) for topic, queue_id in KEYS]
    assert all(isinstance(each, GetMessageResult) for each in found)
    return [each.count for each in found]


def open_files() -> Iterator[str]:
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this directory
            yield os.readlink(fd)


def filled(bench: Bench, rounds: int = 3) -> MessageStore:
    store = bench.open()
    store.start()
    send(store, rounds)
    turns(bench.clock, 12)
    return store


def test_no_file_is_open_a_few_are_mapped_and_all_queues_work(bench: Bench) -> None:
    store = filled(bench)
    of_queues = str(bench.root / "consumequeue")  # other tests may have left some of theirs to the collector
    assert not [path for path in open_files() if path.startswith(of_queues)]
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if of_queues in line}
    assert 0 < len(mapped) <= bench.disk.cached_files_max()
    assert counts(store) == [3] * len(KEYS)
    stop(store)
    store = bench.open()
    send(store)
    assert counts(store) == [4] * len(KEYS)


def test_a_clean_start_looks_into_no_queue(bench: Bench, looked: list[str]) -> None:
    stop(filled(bench))
    looked.clear()
    store = bench.open()
    assert looked == []
    assert not (bench.root / "queueEnds").exists()
    assert {store.bounds(*key) for key in KEYS} == {(0, 3)}
    assert counts(store) == [3] * len(KEYS)
    send(store)
    assert counts(store) == [4] * len(KEYS)


def test_after_a_kill_each_queue_is_read_once(bench: Bench, looked: list[str]) -> None:
    store = filled(bench)
    send(store)  # not covered by a checkpoint: cut off, and made again
    image = bench.image("image")
    looked.clear()
    again = image.open()
    files = sorted(str(image.root / "consumequeue" / t / str(q) / f"{0:020d}") for t, q in KEYS)
    assert sorted(looked) == files
    assert {again.bounds(*key) for key in KEYS} == {(0, 4)}
    stop(again)
    looked.clear()
    # Nothing is above the checkpoint now.
    image.open().start()
    turns(image.clock, 12)
    quiet = image.image("quiet")
    looked.clear()
    quiet.disk.boot = image.disk.boot
    quiet.open()
    assert sorted(looked) == [path.replace(str(image.root), str(quiet.root)) for path in files]


def queue_trees(bench: Bench) -> dict[str, bytes]:
    return {path: data.rstrip(b"\0") for path, data in tree(bench.root / "consumequeue").items()}


@pytest.mark.parametrize("rounds", [1, 3, 20])
@pytest.mark.parametrize("covered", [0, 1, 3])
def test_entries_above_the_checkpoint_are_as_the_log_says(bench: Bench, covered: int, rounds: int) -> None:
    """Whether they stay in the files, or are cut off as too many."""
    store = bench.open()
    store.start()
    send(store, covered)
    turns(bench.clock, 12)
    send(store, rounds)
    image = bench.image("image")
    spoilt = image.root / "consumequeue" / "T3" / "1" / f"{0:020d}"
    with spoilt.open("r+b") as file:  # the tags code, of which nothing else would tell
        file.seek((covered + rounds - 1) * 20 + 19)
        file.write(b"\x55")
    again = image.open()
    assert queue_trees(image) == queue_trees(bench)
    send(again)
    assert {again.bounds(*key) for key in KEYS} == {(0, covered + rounds + 1)}


@pytest.mark.parametrize("covered", [0, 1, 3])
def test_entries_of_messages_that_the_log_lost_go(bench: Bench, covered: int) -> None:
    store = bench.open()
    store.start()
    send(store, covered)
    turns(bench.clock, 12)
    end = store.log_end
    send(store, 2)
    image = bench.image("image")
    with (image.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write(bytes(4))
    again = image.open()
    assert again.log_end == end
    left = {path: data[: 20 * covered] for path, data in queue_trees(bench).items()} if covered else {}
    assert queue_trees(image) == left
    assert again.append([message("T3", 1)])[0][1] == covered


def test_a_kill_while_entries_are_made_again_leaves_what_the_next_start_needs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(bench)
    send(store, 2)
    image = bench.image("image")
    clear_kept, calls = ConsumeQueue.clear_kept, itertools.count()

    def ending(self: ConsumeQueue) -> None:
        if next(calls) == 10:
            raise OSError(5, "Input/output error")
        clear_kept(self)

    monkeypatch.setattr(ConsumeQueue, "clear_kept", ending)
    with pytest.raises(OSError):
        image.open()
    monkeypatch.setattr(ConsumeQueue, "clear_kept", clear_kept)
    image.open()
    assert queue_trees(image) == queue_trees(bench)


@pytest.mark.parametrize("count", [0, 1, 2, 99, 100, 101, 203, 204, 205, 408, 409, 1000, 1999, 2000, 2001, 4000])
def test_the_end_is_found_in_long_files(make: Callable[..., Bench], count: int) -> None:
    bench = make(mapped_file_size_consume_queue=40_000)
    store = bench.open()
    if count:
        store.append([message() for _ in range(count)])
        store.dispatch_now()
    stop(store)
    (bench.root / "queueEnds").unlink()
    again = bench.open()
    assert again.bounds("T", 0) == ((0, count) if count else None)
    end = again._queues.by_name["T", 0].end_of_last() if count else again.log_end
    assert end == again.log_end


def touch(path: Path) -> None:
    """Have been written to later than it was."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 5_000_000))


def test_a_queue_that_changed_since_is_looked_into(bench: Bench, looked: list[str]) -> None:
    stop(filled(bench))
    path = bench.root / "consumequeue" / "T3" / "1" / f"{0:020d}"
    touch(path)
    looked.clear()
    store = bench.open()
    assert looked == [str(path)]
    assert counts(store) == [3] * len(KEYS)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: b"00000000" + data[8:],
        lambda data: data.replace(b"T", b"U"),
    ],
)
def test_a_note_that_is_damaged_is_not_used(bench: Bench, looked: list[str], spoil: Callable[[bytes], bytes]) -> None:
    stop(filled(bench))
    note = bench.root / "queueEnds"
    note.write_bytes(spoil(note.read_bytes()))
    looked.clear()
    store = bench.open()
    assert len(looked) == len(KEYS)
    assert counts(store) == [3] * len(KEYS)


def test_a_note_of_another_stop_is_not_used(bench: Bench, looked: list[str]) -> None:
    store = filled(bench)
    stop(store)
    note = (bench.root / "queueEnds").read_bytes()
    store = bench.open()
    send(store)
    stop(store)
    (bench.root / "queueEnds").write_bytes(note)
    looked.clear()
    store = bench.open()
    assert len(looked) == len(KEYS)
    assert counts(store) == [4] * len(KEYS)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"checkpoint":7,"queues":[[1,2]]}',
        b'{"checkpoint":7,"queues":[["T",0,0,1,0,true,1,0,1,0,1]]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_note_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_ends(b"%08x\n" % zlib.crc32(body) + body, 7)


def test_a_stop_without_room_for_the_note_is_clean(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(bench)
    write = OsDisk.write

    def full(self: OsDisk, path: str, data: bytes) -> None:
        if path.endswith("queueEnds"):
            raise OSError(28, "No space left on device", path)
        write(self, path, data)

    monkeypatch.setattr(OsDisk, "write", full)
    stop(store)
    assert not (bench.root / "abort").exists()
    assert counts(bench.open()) == [3] * len(KEYS)


def test_a_long_start_says_how_far_it_is() -> None:
    clock = Clock()
    line = ProgressLine("/store", clock.seconds)
    with capturedLogs() as events:
        for seconds, done in ((0, 0), (1, 4_000), (1.5, 8_000), (0.5, 9_000), (2, 12_000)):
            clock.advance(seconds)
            line(Progress("consume queues are opened", done, 20_000, "topics"))
    assert [formatEvent(event).partition("opened, ")[2] for event in events] == [
        "8,000 of 20,000 topics (40 %), 3200.0 topics/s, about 4 s left",
        "12,000 of 20,000 topics (60 %), 2400.0 topics/s, about 3 s left",
    ]


def test_a_start_after_a_kill_says_how_many_queues_it_has_checked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_QUEUES_A_STEP", 20)
    filled(bench)
    killed = bench.image("killed")
    told: list[Progress] = []
    steps = opening_steps(
        killed.settings(), disk=killed.disk, clock=killed.clock, worker=killed.worker, store_host=killed.store_host
    )
    store = run_at_once(steps, told.append)
    assert [each[1:] for each in told if each.what == "the ends of consume queues are checked"] == [
        (done, len(KEYS), "queues") for done in (0, 20, 40)
    ]
    stop(store)
