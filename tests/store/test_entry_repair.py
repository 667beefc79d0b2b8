"""Entries of consume queues that readers find lost or wrong, and that are built again from the log."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from twisted.logger import capturedLogs

from mqbroker.store import MessageStore
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_records
from tests.store.harness import Bench, message, now, run_now, stop, tree, turns
from tests.store.test_lost_queues import COUNT, PER_FILE, filled, result_of
from tests.store.test_recovery import queue_file, settle, write

LOST_IN_A_ROW = {
    "a page inside": (150, 50),
    "one entry": (150, 1),
    "two files": (100, 200),
    "the first page": (0, 60),
    "up to the newest but one": (200, 149),
}


def lose(bench: Bench, first: int, count: int, lost: bytes) -> None:
    for entry in range(first, first + count):
        write(queue_file(bench, entry // PER_FILE), entry % PER_FILE * 20, lost)


@pytest.mark.parametrize("lost", [bytes(20), b"\xff" * 20, b"\x7f" * 20])
@pytest.mark.parametrize("place", LOST_IN_A_ROW)
@pytest.mark.parametrize("first", [0, 100, 155, 349])
def test_entries_that_a_reader_finds_lost_are_built_again_from_the_log(
    bench: Bench, first: int, place: str, lost: bytes
) -> None:
    stop(filled(bench))
    again = bench.open()
    whole = tree(bench.root / "consumequeue")
    lose(bench, *LOST_IN_A_ROW[place], lost)
    with capturedLogs() as logs:
        found: list[int] = []
        offset = first
        while offset < COUNT:
            result = result_of(again.get("T", 0, offset, 32))
            found += [record.queue_offset for piece in result.pieces for record in decode_records(piece)]
            assert result.next_offset > offset
            offset = result.next_offset
    assert found == list(range(first, COUNT))
    begins, count = LOST_IN_A_ROW[place]
    told = [entry for entry in logs if "are rebuilt from the log" in entry["log_format"]]
    if first < begins + count:
        assert [(entry["low"], entry["high"], entry["blank"]) for entry in told] == [(begins, begins + count - 1, 0)]
        assert tree(bench.root / "consumequeue") == whole
    again.start()
    turns(bench.clock, 3)
    stop(again)


@pytest.mark.parametrize("tags_codes", [None, frozenset([java_hash("TagA")])])
def test_who_may_wait_finds_them_too_and_so_do_filters(bench: Bench, tags_codes: frozenset[int] | None) -> None:
    stop(filled(bench))
    again = bench.open()
    lose(bench, 150, 100, bytes(20))
    found = []
    offset = 0
    while offset < COUNT:
        result = again.get("T", 0, offset, 32, tags_codes=tags_codes)
        found += [record.queue_offset for piece in result.pieces for record in decode_records(piece)]
        offset = result.next_offset
    assert found == list(range(COUNT))
    stop(again)


def test_who_comes_while_it_is_mended_waits_with_the_first(bench: Bench) -> None:
    stop(filled(bench))
    again = bench.open()
    lose(bench, 150, 50, bytes(20))
    bench.worker.at_once = False
    answers = [again.get("T", 0, offset, 10) for offset in (150, 160, 199)]
    assert len(bench.worker.waiting) == 1
    bench.worker.step()
    assert [result_of(answer).count for answer in answers] == [10, 10, 1]  # of one file
    bench.worker.at_once = True


def entry(bench: Bench, number: int) -> bytes:
    at = number % PER_FILE * 20
    return queue_file(bench, number // PER_FILE).read_bytes()[at : at + 20]


WRONG: dict[str, Callable[[bytes, bytes], bytes]] = {
    "another offset's": lambda own, other: other,
    "a size that is too small": lambda own, other: own[:8] + struct.pack(">i", 95) + own[12:],
    "a size that is too large": lambda own, other: own[:8] + struct.pack(">i", 1 << 20) + own[12:],
    "the midst of a record": lambda own, other: struct.pack(">q", struct.unpack_from(">q", own)[0] + 7) + own[8:],
    "a tags code of no message": lambda own, other: own[:12] + struct.pack(">q", 4711),
    "a place below": lambda own, other: bytes(8) + own[8:],
}


def read_from(store: MessageStore, first: int = 0) -> list[int]:
    """The offsets of all messages of T/0 that are served, in the order of them."""
    found: list[int] = []
    offset = first
    while offset < COUNT:
        result = result_of(store.get("T", 0, offset, 32))
        found += [record.queue_offset for piece in result.pieces for record in decode_records(bytes(piece))]
        assert result.next_offset > offset
        offset = result.next_offset
    return found


#: What comes back from a disk comes by pages, and tags codes are looked at once.
SPOILT = [
    (wrong, when, first, count)
    for wrong in WRONG
    for when in ("stopped", "killed", "before it was read", "after it was read")
    for first, count in ((150, 1), (95, 60))
    if when != "after it was read" or (count > 1 and "tags" not in wrong)
]


@pytest.mark.parametrize(("wrong", "when", "first", "count"), SPOILT)
def test_entries_that_point_elsewhere_are_built_again_from_the_log(
    bench: Bench, wrong: str, when: str, first: int, count: int
) -> None:
    store = filled(bench)
    if when == "killed":
        bench = bench.image("killed")
    else:
        stop(store)
    whole = tree(bench.root / "consumequeue")
    is_running = when in ("before it was read", "after it was read")
    again = bench.open() if is_running else None
    if again is not None and when == "after it was read":
        assert read_from(again) == list(range(COUNT))
    spoilt = [WRONG[wrong](entry(bench, number), entry(bench, 320)) for number in range(first, first + count)]
    for number, data in enumerate(spoilt, first):
        write(queue_file(bench, number // PER_FILE), number % PER_FILE * 20, data)
    if again is None:
        again = bench.open()
    with capturedLogs() as logs:
        assert read_from(again) == list(range(COUNT))
    told = [entry for entry in logs if "are rebuilt from the log" in entry["log_format"]]
    assert {(entry["low"], entry["high"], entry["blank"]) for entry in told} == {(first, first + count - 1, 0)}
    assert tree(bench.root / "consumequeue") == whole
    assert again.stats.rotten_entries == 0
    stop(again)
    stop(store)


@pytest.mark.parametrize("lost", [bytes(20), b"\xff" * 20, b"\x7f" * 20, "another's"])
@pytest.mark.parametrize("when", ["stopped", "running"])
@pytest.mark.parametrize(("first", "count"), [(0, 100), (100, 200), (0, 349), (174, 1), (300, 49)])
def test_a_search_by_time_has_lost_entries_built_again(
    bench: Bench, first: int, count: int, when: str, lost: bytes | str
) -> None:
    store = bench.open()
    for number in range(COUNT):
        store.append([message(body=b"%d" % number)])
        bench.clock.advance(1)
    store.append([message("Other", body=b"other")])
    settle(bench, store)
    times = [now(store).store_timestamp("T", 0, number) for number in range(COUNT)]
    assert times == sorted(set(times))
    whole = tree(bench.root / "consumequeue")
    stop(store)
    again = bench.open() if when == "running" else None
    data = entry(bench, 349) if isinstance(lost, str) else lost
    lose(bench, first, count, data)
    again = again or bench.open()
    ask = again.queries
    assert run_now(ask.earliest_timestamp("T", 0)) == times[0]
    for number in (0, 3, 99, 100, 174, 200, 299, 300, 349):
        assert run_now(ask.offset_by_time("T", 0, times[number])) == number
        assert now(again).offset_by_time("T", 0, times[number] + 400) == number + 1
        assert run_now(ask.store_timestamp("T", 0, number)) == times[number]
    assert read_from(again) == list(range(COUNT))
    assert tree(bench.root / "consumequeue") == whole
    stop(again)


def test_an_entry_stays_that_leads_to_where_the_log_is_damaged(bench: Bench) -> None:
    """A copy may bring that back."""
    store = filled(bench)
    places = [now(store).physical_offset("T", 0, number) for number in (150, 153)]
    stop(store)
    log = bench.root / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    write(log, places[0], bytes(places[1] - places[0]))
    queues = tree(bench.root / "consumequeue")
    again = bench.open()
    for _ in range(2):
        assert read_from(again) == [number for number in range(COUNT) if number not in (150, 151, 152)]
    assert again.corrupt_ranges
    stop(again)
    assert tree(bench.root / "consumequeue") == queues
    log.write_bytes(data)
    again = bench.open()
    assert read_from(again) == list(range(COUNT))
    stop(again)


def test_who_waits_for_other_entries_of_a_queue_to_be_mended_gets_its_own_after_them(bench: Bench) -> None:
    stop(filled(bench))
    again = bench.open()
    lose(bench, 50, 1, bytes(20))
    lose(bench, 150, 1, bytes(20))
    bench.worker.at_once = False
    answers = [again.get("T", 0, offset, 1) for offset in (50, 150)]
    for _ in range(2):
        bench.worker.step()
    bench.worker.at_once = True
    found = [record.queue_offset for answer in answers for record in decode_records(result_of(answer).pieces[0])]
    assert found == [50, 150]
    stop(again)


def test_where_the_log_has_no_message_either_the_entry_stays_blank(bench: Bench) -> None:
    store = filled(bench)
    start = now(store).physical_offset("T", 0, 150)
    stop(store)
    write(bench.root / "commitlog" / f"{0:020d}", start, b"\xff" * 100)
    again = bench.open()
    lose(bench, 150, 1, bytes(20))
    result = result_of(again.get("T", 0, 150, 1))
    assert result.next_offset > 150
    assert [record.queue_offset for piece in result.pieces for record in decode_records(piece)] == [151]
    stop(again)
