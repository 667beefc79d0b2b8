"""Recovery: images of a killed process and of a machine that lost power, torn tails, damage, missing files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.logger import capturedLogs

from mqbroker.errors import LogMissing
from mqbroker.store import MessageStore, recovery
from mqbroker.store.checkpoint import Checkpoint, encode_checkpoint
from mqbroker.store.recovery import Segments, load_segments, refuse_lost_log, store_log_again, sync_log
from mqbroker.wire.record import decode_record, decode_records, encode_blank, encode_record
from tests.store.harness import Bench, message, now, stop, tree, turns

SEGMENT = 131072


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """All bodies of a queue in order, each checked to stand at its offset."""
    found: list[bytes] = []
    offset = 0
    while offset < store.max_offset(topic, queue_id):
        result = now(store).get(topic, queue_id, offset, 32)
        for piece in result.pieces:
            for record in decode_records(piece):
                assert record.queue_offset >= offset
                found.append(record.body)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def write(path: Path, at: int, data: bytes) -> None:
    modified_ns = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    # As after a while: the clock of a file system moves in steps of some milliseconds.
    os.utime(path, ns=(modified_ns + 5_000_000, modified_ns + 5_000_000))


def segment(bench: Bench, number: int = 0) -> Path:
    return bench.root / "commitlog" / f"{number * SEGMENT:020d}"


def queue_file(bench: Bench, number: int = 0) -> Path:
    return bench.root / "consumequeue" / "T" / "0" / f"{number * 2000:020d}"


def settle(bench: Bench, store: MessageStore) -> None:
    """Dispatch, sync and write the checkpoint."""
    if store not in bench.opened:
        bench.opened.append(store)
    store.start()
    turns(bench.clock, 12)
    assert store.flushed == store.log_end


def test_a_stopped_store_goes_on(bench: Bench) -> None:
    for i in range(5):
        store = bench.open()
        assert bodies(store) == [b"%d" % j for j in range(i)]
        assert store.append([message(body=b"%d" % i)])[0][1] == i
        stop(store)
        assert not (bench.root / "abort").exists()


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("synced", [False, True])
def test_a_killed_process_loses_nothing(bench: Bench, dispatched: bool, synced: bool) -> None:
    store = bench.open()
    store.start()
    store.append([message(body=b"%05d" % i * 200) for i in range(300)])
    if synced:
        turns(bench.clock, 12)
    store.append([message(body=b"%05d" % i * 200) for i in range(300, 400)])
    if dispatched:
        store.dispatch_now()
    image = bench.image("killed")
    assert (image.root / "abort").exists()
    again = image.open()
    assert bodies(again) == [b"%05d" % i * 200 for i in range(400)]
    assert not again.corrupt_ranges
    stop(again)
    stop(store)
    assert tree(image.root / "consumequeue") == tree(bench.root / "consumequeue")
    again = image.open()
    assert again.append([message()])[0][:2] == (store.log_end, 400)


def test_a_torn_record_is_cut_off_whatever_of_it_was_written(bench: Bench) -> None:
    """Zeros within a sector are as they were sent: where they begin in properties, all of the record stays."""
    store = bench.open()
    store.append([message(body=b"whole")])
    at = store.log_end
    store.append([message(body=b"torn", properties=b"k\x01v")])
    size = store.log_end - at
    for written in range(size - 3):
        image = bench.image(f"torn{written}")
        write(segment(image), at + written, bytes(size - written))
        again = image.open()
        assert bodies(again) == [b"whole"]
        assert not any(segment(image).read_bytes()[at:])
        assert again.append([message(body=b"next")])[0][:2] == (at, 1)
        again.dispatch_now()
        assert bodies(again) == [b"whole", b"next"]
        stop(again)
        shutil.rmtree(image.root)


@pytest.mark.parametrize("bit", [0, 33, 64, 96, 170, 176, 230, 704, 720, 744, 750, 752])
def test_a_record_with_a_flipped_bit_at_the_tail_is_cut_off(bench: Bench, bit: int) -> None:
    store = bench.open()
    store.append([message(body=b"whole")])
    at = store.log_end
    store.append([message(body=b"flipped")])
    image = bench.image("flipped")
    data = segment(image).read_bytes()
    write(segment(image), at + bit // 8, bytes([data[at + bit // 8] ^ 1 << bit % 8]))
    again = image.open()
    assert bodies(again) == [b"whole"]
    stop(again)


def test_what_stood_above_the_cut_does_not_come_back(bench: Bench) -> None:
    """Pages are written in any order: a whole record may stand above a lost one. It must not become part of the log
    after the place of the lost one was written again."""
    store = bench.open()
    store.append([message(body=b"1")])
    lost = store.log_end
    store.append([message(body=b"2")])
    size = store.log_end - lost
    store.append([message(body=b"3")])
    image = bench.image("lost")
    write(segment(image), lost, bytes(size))
    again = image.open()
    assert bodies(again) == [b"1"]
    assert again.log_end == lost
    again.append([message(body=b"4")])
    third = image.image("after").open()
    assert bodies(third) == [b"1", b"4"]
    for each in (third, again):
        stop(each)


@pytest.mark.parametrize("place", ["above the end", "in the next segment", "in a later segment"])
@pytest.mark.parametrize(("by", "zeros"), [("Java", 10), ("Java", 64), ("Java", 4096), ("this", 10)])
def test_no_old_record_comes_back_over_a_log_that_was_cut_by_position(
    bench: Bench, place: str, by: str, zeros: int
) -> None:
    """The Java broker, after a power cut, leaves what is above the end that it found, and stops cleanly."""
    store = bench.open()
    rows = store.append([message(body=b"%05d" % i * 2000) for i in range(30)])  # 12 in a segment
    store.dispatch_now()
    last = {"above the end": 14, "in the next segment": 11, "in a later segment": 5}[place]
    offset = rows[last][0] + rows[last][2] if place != "in the next segment" else SEGMENT
    image = bench.image("cut")
    path = segment(image, offset // SEGMENT)
    if place == "above the end":
        write(path, offset % SEGMENT, bytes(zeros))
    elif place == "in the next segment":
        write(path, 0, bytes(zeros))
    else:
        write(path, offset, bytes(SEGMENT - offset))
        write(segment(image, 1), 0, bytes(zeros))
    segment(image, 2).unlink()
    (image.root / "abort").unlink()
    log_offset = offset if by == "this" else None
    known = Checkpoint(2**42, 2**42, 0, log_offset, log_offset, log_offset)
    (image.root / "checkpoint").write_bytes(encode_checkpoint(known))
    for queue in (image.root / "consumequeue").rglob("0*"):
        if queue.is_file():
            write(queue, (last + 1) * 20, bytes(2000 - (last + 1) * 20))
    again = image.open()
    assert again.log_end == offset
    again.append([message(body=b"new")])
    segments = sorted((image.root / "commitlog").iterdir())
    data = b"".join(path.read_bytes() for path in segments)
    assert not any(data[again.log_end :])
    stop(again)


@pytest.mark.parametrize("removals", [0, 1, 2])
def test_an_end_while_segments_above_a_cut_are_removed_leaves_no_gap(bench: Bench, removals: int) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 2000) for i in range(40)])  # 12 in a segment
    image = bench.image("torn")
    write(segment(image), 0, bytes(SEGMENT))

    class Dying(type(image.disk)):  # type: ignore[misc]
        left = removals

        def remove(self, path: str) -> None:
            if "commitlog" in path:
                if not self.left:
                    raise RuntimeError("killed")
                self.left -= 1
            super().remove(path)

    image.disk = Dying()
    with pytest.raises(RuntimeError, match="killed"):
        image.open()
    again = image.image("again").open()
    assert again.log_end == 0
    stop(again)


def test_lost_pages_of_caches_are_built_again_from_the_checkpoint(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%d" % i) for i in range(150)])
    settle(bench, store)
    synced = store.stats.dispatched
    assert synced == store.log_end
    store.append([message(body=b"%d" % i) for i in range(150, 250)])
    bench.clock.advance(0)
    image = bench.image("powerless")
    image.disk.boot = b"another boot"
    queue_file(image, 2).unlink()
    write(queue_file(image, 1), 60 * 20, bytes(300))  # zeros in the middle of what was not synced
    for path in (image.root / "index").iterdir():
        write(path, 100, b"\xff" * 500)
    again = image.open()
    image.opened.append(again)
    again.start()
    turns(image.clock, 1)
    assert bodies(again) == [b"%d" % i for i in range(250)]
    assert len(now(again).query("T", "7F0000010A2C18B4AAC27D0000000001", 1000, 0, 2**62)) == 250
    stop(again)
    stop(store)
    assert tree(image.root / "consumequeue") == tree(bench.root / "consumequeue")
    assert list(tree(image.root / "index").values()) == list(tree(bench.root / "index").values())


def test_without_a_checkpoint_everything_is_read(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 500) for i in range(200)])
    settle(bench, store)
    image = bench.image("bare")
    (image.root / "checkpoint").unlink()
    for path in (image.root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(b"\0" * 2000)
    again = image.open()
    assert bodies(again) == [b"%05d" % i * 500 for i in range(200)]
    stop(again)


def test_a_checkpoint_of_java_is_trusted_but_for_three_seconds(bench: Bench) -> None:
    store = bench.open()
    store.start()
    for i in range(20):
        store.append([message(body=b"%d" % i)])
        bench.clock.advance(1)
    image = bench.image("java")
    checkpoint = image.root / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))
    write(queue_file(image), 17 * 20, bytes(3 * 20))  # what Java had not synced
    again = image.open()
    assert bodies(again) == [b"%d" % i for i in range(20)]
    stop(again)


@pytest.mark.parametrize("body_bytes", [10, 20_000])
def test_a_power_cut_that_took_pages_of_one_queue_of_a_java_broker_takes_no_message(
    bench: Bench, body_bytes: int
) -> None:
    """It syncs two pages of a queue at least, but for once a minute: one with few messages may have none on the disk
    when another has all."""
    store = bench.open()
    store.start()
    sent: dict[str, list[bytes]] = {"T": [], "Quiet": [], "Slow": []}
    for i in range(26):
        topic = "Quiet" if i in (2, 7, 12) else "Slow" if i == 11 else "T"
        sent[topic].append(b"%d" % i * body_bytes)
        store.append([message(topic, body=sent[topic][-1])])
        bench.clock.advance(1)
    image = bench.image("java")
    image.disk.boot = b"another boot"
    (image.root / "abort").write_bytes(b"")
    checkpoint = image.root / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))
    write(image.root / "consumequeue" / "Quiet" / "0" / f"{0:020d}", 0, bytes(2000))
    shutil.rmtree(image.root / "consumequeue" / "Slow")
    again = image.open()
    assert {topic: bodies(again, topic) for topic in sent} == sent
    assert again.append([message("Slow")])[0][1] == 1
    stop(again)


def test_a_kill_after_the_filler_goes_on_in_the_next_segment(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"first")])
    end = store.log_end
    image = bench.image("filled")
    write(segment(image), end, encode_blank(SEGMENT - end))
    again = image.open()
    assert again.append([message(body=b"second")])[0][:2] == (SEGMENT, 1)
    again.dispatch_now()
    assert bodies(again) == [b"first", b"second"]
    third = image.image("again").open()
    assert bodies(third) == [b"first", b"second"]
    for each in (third, again):
        stop(each)


def test_a_record_that_leaves_no_room_for_a_filler_ends_the_log_well(bench: Bench) -> None:
    """Neither broker writes one; a Java checkpoint says that there is more of the log."""
    store = bench.open()
    store.append([message(body=b"first")])
    end = store.log_end
    image = bench.image("full")
    first = decode_record(segment(image).read_bytes())
    body = b"x" * (SEGMENT - end - (first.store_size - len(first.body)))
    write(segment(image), end, encode_record(attrs.evolve(first, physical_offset=end, queue_offset=1, body=body)))
    (image.root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(2**42, 2**42, 0)))
    again = image.open()
    assert (again.log_end, list(again.corrupt_ranges)) == (SEGMENT, [])
    assert bodies(again) == [b"first", body]
    assert again.append([message()])[0][:2] == (SEGMENT, 2)
    stop(again)


def test_a_filler_of_a_wrong_size_is_a_torn_tail(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"first")])
    image = bench.image("filled")
    write(segment(image), store.log_end, encode_blank(100))
    again = image.open()
    assert again.log_end == store.log_end
    stop(again)


def test_consume_queues_ahead_of_the_log_are_cut(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 2000) for i in range(40)])
    stop(store)
    for number in (2, 3):
        segment(bench, number).unlink()
    again = bench.open()
    assert bodies(again) == [b"%05d" % i * 2000 for i in range(24)]
    (damage,) = again.corrupt_ranges
    assert (damage.path, damage.start) == (str(segment(bench, 1)), 2 * SEGMENT)
    assert damage.end > 3 * SEGMENT
    assert "its last segments are missing" in damage.why
    assert again.append([message()])[0][:2] == (2 * SEGMENT, 24)
    after_kill = bench.image("killed").open()
    assert after_kill.flushed <= 2 * SEGMENT < after_kill.log_end, "what is new does not pass for synced"


@pytest.mark.parametrize("is_first", [True, False])
def test_files_that_a_killed_process_made_and_gave_no_size_are_made_again(bench: Bench, is_first: bool) -> None:
    store = bench.open()
    if not is_first:
        store.append([message(body=b"x" * 1000)] * 100)
        settle(bench, store)
        (bench.root / "index" / "20990101000000000").write_bytes(b"")
    image = bench.image("killed")
    for files in (image.root / "commitlog", image.root / "consumequeue" / "T" / "0"):
        files.mkdir(parents=True, exist_ok=True)
        if is_first:
            shutil.rmtree(files)
            files.mkdir()
        number = sum(path.stat().st_size for path in files.iterdir())
        (files / f"{number:020d}").write_bytes(b"")
    again = image.open()
    again.append([message(body=b"y" * 1000)] * 101)
    again.dispatch_now()
    assert bodies(again) == [b"x" * 1000] * (0 if is_first else 100) + [b"y" * 1000] * 101
    assert not again.corrupt_ranges
    stop(again)
    assert {path.stat().st_size for path in (image.root / "commitlog").iterdir()} == {SEGMENT}
    assert {path.stat().st_size for path in (image.root / "consumequeue" / "T" / "0").iterdir()} == {2000}


def test_a_segment_prepared_ahead_is_used_after_a_clean_stop(make: Callable[..., Bench]) -> None:
    bench = make()
    store = bench.open()
    store.start()
    store.append([message(body=b"x" * 100_000)])
    bench.clock.advance(0.5)
    assert segment(bench, 1).exists()
    inode = segment(bench, 1).stat().st_ino
    stop(store)
    again = bench.open()
    assert again.append([message(body=b"y" * 100_000)])[0][0] == SEGMENT
    assert segment(bench, 1).stat().st_ino == inode


def test_the_index_outlives_a_killed_process_but_not_a_machine(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message(properties=b"KEYS\x01k%d" % i) for i in range(30)])
    bench.clock.advance(0)
    names = [path.name for path in (bench.root / "index").iterdir()]
    for boot, same in [(b"first boot", True), (b"second boot", False)]:
        image = bench.image(boot.decode())
        image.disk.boot = boot
        again = image.open()
        assert (again.stats.indexed > 0) is same
        image.opened.append(again)
        again.start()
        turns(image.clock, 1)
        assert [len(now(again).query("T", f"k{i}", 9, 0, 2**62)) for i in range(30)] == [1] * 30
        stop(again)
        assert ([path.name for path in (image.root / "index").iterdir()] == names) is same


@pytest.mark.parametrize("how", ["one queue missing", "one queue short", "nothing"])
def test_queues_that_changed_while_the_store_was_stopped_are_built_anew(bench: Bench, how: str) -> None:
    store = bench.open()
    for i in range(30):
        store.append([message(queue_id=i % 3, body=b"%d" % i)])
    stop(store)
    before = tree(bench.root / "consumequeue")
    queue = bench.root / "consumequeue" / "T" / "1"
    if how == "one queue missing":
        shutil.rmtree(queue)
    elif how == "one queue short":
        write(queue / f"{0:020d}", 5 * 20, bytes(1900))
    with capturedLogs() as events:
        again = bench.open()
    for queue_id in range(3):
        assert bodies(again, queue_id=queue_id) == [b"%d" % i for i in range(30) if i % 3 == queue_id]
    assert not again.corrupt_ranges
    (found,) = [event for event in events if "last stopped" in event["log_format"]]
    assert (found["start"] == again.log_end) is (how == "nothing")
    stop(again)
    assert tree(bench.root / "consumequeue") == before


@pytest.mark.parametrize("how", ["one queue missing", "one queue short"])
def test_queues_that_lost_what_the_checkpoint_covers_are_built_anew(bench: Bench, how: str) -> None:
    store = bench.open()
    for i in range(30):
        store.append([message(queue_id=i % 3, body=b"%d" % i)])
    settle(bench, store)
    store.append([message(queue_id=i % 3, body=b"%d" % i) for i in range(30, 36)])
    image = bench.image("partial")
    if how == "one queue missing":
        shutil.rmtree(image.root / "consumequeue" / "T" / "1")
    else:
        write(image.root / "consumequeue" / "T" / "1" / f"{0:020d}", 5 * 20, bytes(1900))
    again = image.open()
    for queue_id in range(3):
        assert bodies(again, queue_id=queue_id) == [b"%d" % i for i in range(36) if i % 3 == queue_id]
    assert not again.corrupt_ranges
    stop(again)
    stop(store)
    assert tree(image.root / "consumequeue") == tree(bench.root / "consumequeue")


def test_an_opening_that_failed_after_a_machine_stopped_does_not_make_its_index_trusted(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message(properties=b"KEYS\x01k%d" % i) for i in range(30)])
    bench.clock.advance(0)
    image = bench.image("stopped")
    image.disk.boot = b"second boot"
    for path in (image.root / "index").iterdir():
        write(path, 40, bytes(400))  # slots that never got to the disk
    image.disk.faults.room = SEGMENT
    with pytest.raises(OSError, match="No space left"):
        image.open()
    image.disk.faults.room = None
    again = image.open()
    image.opened.append(again)
    again.start()
    turns(image.clock, 1)
    assert [len(now(again).query("T", f"k{i}", 9, 0, 2**62)) for i in range(30)] == [1] * 30
    stop(again)


def test_a_queue_offset_that_was_given_twice_enters_its_queue_once(bench: Bench) -> None:
    """A Java broker that was switched between roles can leave such a log."""
    store = bench.open()
    store.append([message(body=b"%d" % i) for i in range(4)])
    stop(store)
    shutil.rmtree(bench.root / "consumequeue")
    data = segment(bench).read_bytes()
    size = int.from_bytes(data[:4], "big")
    for i, queue_offset in enumerate([0, 1, 1, 2]):
        write(segment(bench), i * size + 20, queue_offset.to_bytes(8, "big"))
    again = bench.open()
    assert bodies(again) == [b"0", b"1", b"3"]
    assert again.append([message()])[0][1] == 3


@pytest.mark.parametrize("is_gap", [False, True])
def test_a_queue_offset_that_cannot_be_is_damage(bench: Bench, is_gap: bool) -> None:
    """Also where a queue that is gone has all queues built anew, once the end of the log is known."""
    store = bench.open()
    rows = store.append([message(body=b"%d" % i * 1000) for i in range(10)])
    store.append([message(queue_id=1)])
    if is_gap:
        settle(bench, store)
    store.append([message(queue_id=1)])
    image = bench.image("killed")
    if is_gap:
        shutil.rmtree(image.root / "consumequeue" / "T" / "1")
    bad, after = rows[5][0], rows[6][0]
    write(segment(image), bad + 20, (50).to_bytes(8, "big"))
    again = image.open()
    assert [damage[:3] for damage in again.corrupt_ranges] == [(str(segment(image)), bad, after)]
    assert bodies(again) == [b"%d" % i * 1000 for i in range(10) if i != 5]
    assert len(bodies(again, queue_id=1)) == 2


def test_what_was_not_known_to_be_on_the_disk_is_stored_again_before_it_is_synced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that failed may have left pages that the kernel takes for written, and names that are not on the disk."""
    store = bench.open()
    settle(bench, store)
    store.append([message(body=b"durable" * 1000)] * 30)
    settle(bench, store)
    durable = store.flushed
    store.append([message(body=b"unsure" * 1000)] * 30)
    end = store.log_end
    image = bench.image("killed")
    stored: list[int] = []

    class File:
        def __init__(self, view: memoryview) -> None:
            self.view = view

        def is_resident(self, offset: int, size: int) -> bool:
            return True

        def write_at(self, at: int, data: memoryview) -> None:
            assert self.view[at : at + 1] == data
            stored.append(at)

    segments = load_segments(image.disk, str(image.root / "commitlog"), SEGMENT)
    files: list[Any] = [File(file.view) for file in segments.files]
    store_log_again(attrs.evolve(segments, files=files), durable, end)
    assert len(stored) == end // 4096 - durable // 4096 + 1
    assert {at % 4096 for at in stored} == {0}
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(recovery, "store_log_again", lambda segments, start, end: calls.append((start, end)))
    again = image.open()
    assert calls == [(durable, end)]
    again.durable(end)
    assert str(image.root / "commitlog") in image.disk.faults.synced_directories
    stop(again)
    calls.clear()
    image.open()
    assert calls == []


class SyncedFile:
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1


@pytest.mark.parametrize(
    ("start", "end", "synced"),
    [
        (0, 300, [0, 0, 0]),
        (300, 301, [1, 0, 0]),
        (300, 400, [1, 0, 0]),
        (300, 401, [1, 1, 0]),
        (399, 500, [1, 1, 0]),
        (400, 500, [0, 1, 0]),
        (500, 600, [0, 0, 1]),
        (0, 501, [1, 1, 1]),
        (600, 600, [0, 0, 0]),
    ],
)
def test_the_segments_of_a_range_are_synced_and_no_others(start: int, end: int, synced: list[int]) -> None:
    files: list[Any] = [SyncedFile() for _ in range(3)]
    sync_log(Segments(files, first_offset=300, segment_bytes=100), start, end)
    assert [file.syncs for file in files] == synced


@pytest.mark.parametrize(
    ("checkpoint", "is_intact", "is_refused"),
    [
        (Checkpoint(), True, True),
        (Checkpoint(), False, False),  # the machine crashed before anything was on the disk
        (Checkpoint(log_ms=1), False, True),
        (Checkpoint(log_offset=1), False, True),
    ],
)
def test_a_log_that_is_gone_is_refused_where_it_was_on_the_disk(
    checkpoint: Checkpoint, is_intact: bool, is_refused: bool
) -> None:
    queues: Any = ()
    empty = Segments([], first_offset=0, segment_bytes=100)
    with pytest.raises(LogMissing) if is_refused else contextlib.nullcontext():
        refuse_lost_log(empty, queues, True, checkpoint, is_intact)
    with_a_segment = Segments([SyncedFile()], first_offset=0, segment_bytes=100)  # type: ignore[list-item]
    refuse_lost_log(with_a_segment, queues, True, checkpoint, is_intact)
