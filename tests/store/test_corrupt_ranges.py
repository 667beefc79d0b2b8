"""Ranges of the log known to hold no record: what they cover, and that nobody is served from them."""

from __future__ import annotations

import itertools
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.store import GetMessageStatus, MessageStore, message_reader, record_verifier
from mqbroker.store import corrupt_ranges as module
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.logscan import Damage, scan_at
from mqbroker.wire.record import decode_records
from tests.store.harness import Bench, after_restart, message, now, stop


def damage(start: int, end: int, why: str = "why") -> Damage:
    return Damage("path", start, end, why)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_they_are_ordered_and_disjoint_and_cover_what_was_added(ranges: list[tuple[int, int]]) -> None:
    corrupt_ranges = CorruptRanges(10)
    lost: set[int] = set()
    for start, size in ranges:
        wanted = set(range(start, start + size))
        assert corrupt_ranges.add(damage(start, start + size)) == (not wanted <= lost)
        lost |= wanted
    known = list(corrupt_ranges)
    assert len(corrupt_ranges) == len(known)
    assert all(before.end <= after.start for before, after in itertools.pairwise(known))
    assert {offset for each in known for offset in range(each.start, each.end)} == lost
    for start in range(82):
        for size in (1, 2, 7):
            assert corrupt_ranges.covers(start, start + size) == bool(lost & set(range(start, start + size)))
    assert corrupt_ranges.intact_from == max([10, *(offset + 1 for offset in lost)])


def test_the_first_of_what_is_joined_says_why() -> None:
    corrupt_ranges = CorruptRanges(0)
    corrupt_ranges.add(damage(10, 20, "later"))
    corrupt_ranges.add(damage(5, 12, "first"))
    assert list(corrupt_ranges) == [damage(5, 20, "first")]


def test_what_was_beyond_the_end_of_the_log_is_told_but_not_kept_from_readers() -> None:
    corrupt_ranges = CorruptRanges(100)
    assert corrupt_ranges.add_at_open(damage(100, 130))
    assert not corrupt_ranges.add_at_open(damage(100, 130))
    assert corrupt_ranges.add_at_open(damage(40, 50))
    assert list(corrupt_ranges) == [damage(40, 50), damage(100, 130)]
    assert (corrupt_ranges.covers(100, 130), corrupt_ranges.covers(45, 46)) == (False, True)
    assert corrupt_ranges.intact_from == 100
    corrupt_ranges.add(damage(90, 110))
    assert not corrupt_ranges.covers(110, 130)
    assert corrupt_ranges.intact_from == 110


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGES_MAX", 3)
    corrupt_ranges = CorruptRanges(0)
    assert [corrupt_ranges.add(damage(10 * i, 10 * i + 5)) for i in range(4)] == [True, True, True, False]
    assert len(corrupt_ranges) == 3
    assert not corrupt_ranges.covers(30, 35)


# What rots


def fill(bench: Bench) -> tuple[MessageStore, list[tuple[int, int]]]:
    """Ten messages each of queues 0 and 1, in turns; and where each of queue 0 stands."""
    store = bench.open()
    rows = store.append([message("T", i % 2, b"%02d" % i * 50, b"KEYS\x01k%d" % i) for i in range(20)])
    store.dispatch_now()
    return store, [(row[0], row[2]) for row in rows[::2]]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_file(bench: Bench) -> Path:
    return bench.root / "commitlog" / f"{0:020d}"


def queue_file(bench: Bench, topic: str = "T", queue_id: int = 0) -> Path:
    return bench.root / "consumequeue" / topic / str(queue_id) / f"{0:020d}"


def all_of(store: MessageStore, queue_id: int, count: int = 4) -> list[int]:
    """The queue offsets of all messages that can be got, a few at a time."""
    got: list[int] = []
    offset = 0
    while offset < 10:
        found = now(store).get("T", queue_id, offset, count)
        got += [record.queue_offset for piece in found.pieces for record in decode_records(piece)]
        assert found.next_offset > offset
        offset = found.next_offset
    return got


ROT = {
    "size": (0, b"\0\0\0\x7f"),
    "huge size": (0, b"\x7f"),
    "magic": (4, b"\0"),
    "crc": (8, b"\xff"),
    "queue id": (12, b"\1"),
    "queue offset": (27, b"\x63"),
    "physical offset": (35, b"\xee"),
    "sys flag": (39, b"\x30"),
    "body size": (87, b"\xff"),
    "negative body size": (84, b"\xff"),
    "body": (120, b"?"),
    "topic size": (188, b"\x09"),
    "topic": (189, b"U"),
    "properties size": (190, b"\x7f"),
}


@pytest.mark.parametrize("what", ROT)
@pytest.mark.parametrize("count", [1, 4, 32])
def test_a_record_that_rotted_is_served_to_nobody(bench: Bench, what: str, count: int) -> None:
    store, places = fill(bench)
    stop(store)
    at, data = ROT[what]
    overwrite(log_file(bench), places[5][0] + at, data)
    again = bench.open()
    assert all_of(again, 0, count) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert all_of(again, 1, count) == list(range(10))
    found = again.get("T", 0, 5, 1, tags_codes=frozenset([0]))
    assert [record.queue_offset for record in decode_records(found.pieces[0])] == [6]


def test_a_rotten_record_is_reported_once_and_kept_from_all_readers(bench: Bench) -> None:
    store, places = fill(bench)
    stop(store)
    at, size = places[5]
    overwrite(log_file(bench), at + 120, b"?")
    again = bench.open()
    assert now(again).record(at) is None
    assert now(again).query("T", "k10", 9, 0, 2**62) == []
    assert not again.corrupt_ranges
    assert now(again).store_timestamp("T", 0, 5) == -1
    for _ in range(3):
        all_of(again, 0)
    assert list(again.corrupt_ranges) == [Damage(str(log_file(bench)), at, at + size, "body CRC differs")]
    assert again.stats.corrupt_ranges == 1
    assert len(now(again).query("T", "k8", 9, 0, 2**62)) == 1
    assert now(again).record(places[4][0]) is not None


def test_the_last_message_of_a_queue_is_damaged(bench: Bench) -> None:
    store, places = fill(bench)
    store.append([message(body=b"after")])  # so that the log does not end with it
    stop(store)
    overwrite(log_file(bench), places[9][0] + 120, b"?")
    again = bench.open()
    found = again.get("T", 0, 9, 1)
    assert (found.status, found.next_offset) == (GetMessageStatus.FOUND, 11)
    found = again.get("T", 0, 9, 32, tags_codes=frozenset([5]))
    assert (found.status, found.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 11)


def test_the_last_message_of_the_log_is_damaged_and_no_other_is_cut_away(bench: Bench) -> None:
    store, places = fill(bench)
    end = store.log_end
    stop(store)
    for at, _ in (places[3], (end - 200, 0)):  # the last is of queue 1
        overwrite(log_file(bench), at + 100, b"?")
    again = bench.open()
    assert again.log_end == end
    assert all_of(again, 0) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert all_of(again, 1) == list(range(9))
    assert again.append([message("T", 1)])[0][:2] == (end, 10)


def test_only_a_damaged_message_is_there(bench: Bench) -> None:
    store = bench.open()
    at = store.append([message(body=b"body" * 9), message("U")])[0][0]
    stop(store)
    overwrite(log_file(bench), at + 90, b"?")
    again = bench.open()
    found = again.get("T", 0, 0, 32)
    assert (found.status, found.next_offset, found.pieces) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 1, [])
    assert again.get("T", 0, 1, 32).status is GetMessageStatus.OFFSET_OVERFLOW_ONE


@pytest.mark.parametrize("points_to", ["another queue's", "another offset's", "the middle of one", "nothing"])
@pytest.mark.parametrize("count", [1, 32])
def test_an_entry_that_points_elsewhere_is_built_again_and_harms_no_other(
    bench: Bench, points_to: str, count: int
) -> None:
    store, places = fill(bench)
    stop(store)
    at, size = places[5]
    wrong = {
        "another queue's": (places[5][0] + size, size),
        "another offset's": places[6],
        "the middle of one": (at + 100, size),
        "nothing": (at, size - 3),
    }[points_to]
    overwrite(queue_file(bench), 5 * 20, struct.pack(">qi", *wrong))
    again = bench.open()
    for _ in range(2):
        assert all_of(again, 0, count) == list(range(10))
    assert all_of(again, 1) == list(range(10))
    assert not again.corrupt_ranges
    assert again.stats.rotten_entries == 0
    assert now(again).record(at) is not None


def test_queues_whose_directories_were_swapped_are_built_again(bench: Bench) -> None:
    store = bench.open()
    store.append([message(topic, body=b"x" * 50) for topic in ("Aa", "BB", "Aa", "BB")])
    stop(store)
    mine, other = queue_file(bench, "Aa"), queue_file(bench, "BB")
    data = mine.read_bytes(), other.read_bytes()
    mine.write_bytes(data[1])
    other.write_bytes(data[0])
    again = bench.open()
    for topic in ("Aa", "BB"):
        for _ in range(2):
            found = again.get(topic, 0, 0, 32)
            assert (found.status, found.next_offset) == (GetMessageStatus.FOUND, 2)
            assert {record.topic for piece in found.pieces for record in decode_records(bytes(piece))} == {topic}
    assert (mine.read_bytes(), other.read_bytes()) == data


def test_an_entry_that_points_to_the_same_number_of_another_topic_is_built_again(bench: Bench) -> None:
    store = bench.open()
    rows = store.append([message(topic, body=b"x" * 50) for topic in ("Aa", "BB")])
    stop(store)
    overwrite(queue_file(bench, "Aa"), 0, struct.pack(">qi", rows[1][0], rows[1][2]))
    again = bench.open()
    for _ in range(2):
        assert again.get("BB", 0, 0, 1).count == 1
        (record,) = decode_records(bytes(again.get("Aa", 0, 0, 1).pieces[0]))
        assert record.topic == "Aa"


def test_a_rotten_size_leads_to_no_other_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be on the disk, and many."""
    store, places = fill(bench)
    stop(store)
    at, _ = places[5]
    overwrite(log_file(bench), at, struct.pack(">I", 100_000))
    again = bench.open()
    rooms: list[int] = []

    def look(view: memoryview, at: int, physical_offset: int) -> object:
        rooms.append(len(view) - at)
        return scan_at(view, at, physical_offset)

    monkeypatch.setattr(record_verifier, "scan_at", look)
    assert all_of(again, 0) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert set(rooms) == {size for _, size in places}


def test_messages_are_verified_where_their_queue_was_built_anew(bench: Bench) -> None:
    store, places = fill(bench)
    stop(store)
    shutil.rmtree(bench.root / "consumequeue")
    again = bench.open()
    overwrite(log_file(bench), places[5][0] + 100, b"?")
    assert all_of(again, 0) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_messages_behind_those_found_whole_are_verified(bench: Bench) -> None:
    store, places = fill(bench)
    stop(store)
    overwrite(log_file(bench), places[5][0] + 120, b"?")
    again = bench.open()
    assert again.get("T", 0, 0, 3).count == 3
    found = again.get("T", 0, 1, 6)
    assert [record.queue_offset for piece in found.pieces for record in decode_records(piece)] == [1, 2, 3, 4, 6, 7]


def test_a_record_is_verified_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, places = fill(bench)
    store = after_restart(bench, store)
    store.append([message("T", 0, b"new" * 50) for _ in range(5)])
    store.dispatch_now()
    checked: list[int] = []

    def look(view: memoryview, at: int, physical_offset: int) -> object:
        checked.append(physical_offset)
        return scan_at(view, at, physical_offset)

    monkeypatch.setattr(message_reader, "compiled", None)  # which verifies each time
    monkeypatch.setattr(record_verifier, "scan_at", look)
    for _ in range(3):
        assert all_of(store, 0, 32)[:10] == list(range(10))
    assert checked == [at for at, _ in places]


def test_what_is_verified_is_forgotten_within_bounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_verifier, "_CHUNKS_MAX", 1)
    monkeypatch.setattr(record_verifier, "_CHUNK_BITS", 9)
    store, _ = fill(bench)
    store = after_restart(bench, store)
    for _ in range(2):
        assert all_of(store, 0) == list(range(10))


def test_records_with_hosts_of_16_bytes_are_verified_too(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%d" % i * 50, born_host=b"\1" * 20) for i in range(10)])
    stop(store)
    overwrite(log_file(bench), 140, b"?")
    again = bench.open()
    assert all_of(again, 0) == list(range(1, 10))
    assert again.stats.corrupt_ranges == 1
