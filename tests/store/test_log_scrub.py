"""What a disk has lost of the log since it was written is noticed at a start, or while the broker runs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.store import MessageStore, log_scrub, logscan
from mqbroker.store.log_scrub import DAMAGED_MAX, PASS_SECONDS
from mqbroker.store.logscan import RUN_BYTES, Damage, Run
from mqbroker.store.recovery import Segments
from tests.remoting.logs import log_kept
from tests.store.harness import Bench, message, stop

SEGMENT_BYTES = 16 * 1024
#: All of it in one second.
ALL = 1 << 30


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make(mapped_file_size_commit_log=SEGMENT_BYTES)


def segment(bench: Bench, number: int) -> Path:
    return bench.root / "commitlog" / f"{number * SEGMENT_BYTES:020d}"


def write(path: Path, at: int, data: bytes) -> None:
    """Not what maps of the file hold: those are private to nobody."""
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), data, at)


def opened(bench: Bench, found: list[Damage] | None = None, bytes_a_second: int = 0) -> MessageStore:
    """A store that is looked at, and reports to `found` what is found later."""
    store = bench.open()
    store.watch(bytes_a_second, (lambda damage: None) if found is None else found.append)
    store.look()
    store.start()
    return store


def fill(bench: Bench, store: MessageStore, segments: int = 4) -> list[int]:
    """Append a message each second, until there are so many segments; returns where they are."""
    places: list[int] = []
    while store.log_end < segments * SEGMENT_BYTES:
        places += [row[0] for row in store.append([message(body=b"%d" % len(places) * 400)])]
        bench.clock.advance(1)
    bench.clock.advance(2)
    return places


def damaged(bench: Bench) -> tuple[MessageStore, list[Damage]]:
    """A store whose third segment has lost some bytes, and what it reports."""
    found: list[Damage] = []
    store = opened(bench, found, ALL)
    fill(bench, store)
    write(segment(bench, 2), 500, b"\xff" * 20)
    return store, found


def read_through(bench: Bench) -> None:
    """Let time pass, in which all of the log is read."""
    bench.clock.advance(PASS_SECONDS)
    for _ in range(10):
        bench.clock.advance(1)


def test_segments_of_zeros_are_noticed_at_a_start(bench: Bench) -> None:
    store = opened(bench)
    fill(bench, store)
    stop(store)
    write(segment(bench, 1), 0, bytes(SEGMENT_BYTES))
    again = opened(bench)
    assert [(damage.start, damage.end) for damage in again.gaps()] == [(SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    stop(again)


def test_a_segment_that_was_set_back_is_noticed_at_a_start_by_its_last_record(bench: Bench) -> None:
    store = opened(bench)
    places = fill(bench, store)
    stop(store)
    last = max(place for place in places if place < 2 * SEGMENT_BYTES)
    write(segment(bench, 1), last - SEGMENT_BYTES, bytes(2 * SEGMENT_BYTES - last))
    again = opened(bench)
    assert [damage.start for damage in again.gaps()] == [last]
    stop(again)


def test_another_record_in_the_place_of_one_is_noticed_at_a_start(bench: Bench) -> None:
    store = opened(bench)
    places = fill(bench, store)
    stop(store)
    marks = {int(place) for place in json.loads((bench.root / "segments.json").read_bytes())["marks"]}
    place = min(marks & set(places))
    write(segment(bench, place // SEGMENT_BYTES), place % SEGMENT_BYTES + 12, b"\0\0\0\1")  # of another queue
    again = opened(bench)
    [damage] = again.gaps()
    assert (damage.start, damage.why) == (place, "another record than the one that was written there")
    stop(again)


def test_what_is_found_at_a_start_is_remembered_by_a_stop_a_moment_later(bench: Bench) -> None:
    """As when a broker that has just started gets another role: then only what was damaged before is checked."""
    store = opened(bench)
    fill(bench, store)
    stop(store)
    write(segment(bench, 1), 0, bytes(SEGMENT_BYTES))
    stop(opened(bench))
    for _ in range(2):
        again = bench.open()
        again.look(is_again=True)
        assert [damage.start for damage in again.gaps()] == [SEGMENT_BYTES]
        stop(again)


def test_there_are_a_few_marks_in_each_segment_and_none_of_those_that_were_deleted(bench: Bench) -> None:
    store = opened(bench, bytes_a_second=ALL)
    places = fill(bench, store, segments=8)
    bench.clock.advance(2 * PASS_SECONDS)
    marks = json.loads((bench.root / "segments.json").read_bytes())["marks"]
    assert {int(place) for place in marks} <= set(places)
    for number in range(7):
        inside = [int(place) for place in marks if int(place) // SEGMENT_BYTES == number]
        assert 3 <= len(inside) <= 6
        assert max(inside) == max(place for place in places if place // SEGMENT_BYTES == number)
    stop(store)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"marks": [], "damaged": [], "at": 0}', b"\xff" * 99])
def test_marks_that_cannot_be_read_are_made_anew(bench: Bench, content: bytes) -> None:
    store = opened(bench)
    fill(bench, store)
    stop(store)
    (bench.root / "segments.json").write_bytes(content)
    again = opened(bench)
    assert again.gaps() == []
    stop(again)


@pytest.mark.parametrize("place", [-1, 5, 1 << 62, 10 * SEGMENT_BYTES])
def test_places_that_the_log_does_not_have_are_forgotten(bench: Bench, place: int) -> None:
    store = opened(bench)
    fill(bench, store)
    stop(store)
    said = {"marks": {str(1 << 62): 1}, "damaged": [0, -1, 1 << 62], "at": place}
    (bench.root / "segments.json").write_bytes(json.dumps(said).encode())
    again = opened(bench, bytes_a_second=ALL)
    assert again.gaps() == []
    bench.clock.advance(PASS_SECONDS + 5)
    stop(again)
    now = json.loads((bench.root / "segments.json").read_bytes())
    assert now["damaged"] == []
    assert str(1 << 62) not in now["marks"]


@pytest.mark.parametrize("rot", [bytes(200), b"\xff" * 3], ids=["zeros", "rot"])
def test_what_rots_while_the_broker_runs_is_found_and_remembered(bench: Bench, rot: bytes) -> None:
    found: list[Damage] = []
    store = opened(bench, found, ALL)
    places = fill(bench, store)
    bench.clock.advance(PASS_SECONDS)
    assert found == []
    place, following = places[25:27]
    write(segment(bench, place // SEGMENT_BYTES), place % SEGMENT_BYTES + 100, rot)
    read_through(bench)
    assert [(each.start, each.end) for each in found] == [(place, following)]
    stop(store)
    again = opened(bench)
    assert [each.start for each in again.gaps()] == [place]
    stop(again)


def test_a_page_that_the_disk_cannot_read_is_found(bench: Bench) -> None:
    found: list[Damage] = []
    store = opened(bench, found, ALL)
    places = fill(bench, store)
    bench.disk.faults.evict()
    page = SEGMENT_BYTES + 4096
    path = str(segment(bench, 1))
    bench.disk.faults.unreadable = {(path, at) for at in range(4096, 8192)}
    read_through(bench)
    assert [damage.start for damage in found] == [max(place for place in places if place < page)]
    assert page + 4096 <= found[0].end
    assert found[0].end in places
    bench.disk.faults.unreadable = set()
    stop(store)
    again = opened(bench)
    assert again.gaps() == []  # it can be read again
    stop(again)


def test_it_reads_as_many_bytes_in_a_second_as_it_may(make: Callable[..., Bench]) -> None:
    bench = make(mapped_file_size_commit_log=1 << 20)
    store = opened(bench)
    store.append([message(body=b"x" * 1000)] * 900)
    bench.clock.advance(2)
    stop(store)
    store = opened(bench, bytes_a_second=200_000)
    for _ in range(3):
        before = store._scrub._at
        bench.clock.advance(1)
        assert before + 200_000 <= store._scrub._at <= before + 200_000 + RUN_BYTES
    stop(store)


def test_with_0_bytes_a_second_nothing_is_read_but_places_are_marked(bench: Bench) -> None:
    store = opened(bench)
    places = fill(bench, store)
    write(segment(bench, 1), 500, b"\xff" * 20)
    bench.clock.advance(PASS_SECONDS)
    assert store.corrupt_ranges == ()
    assert store._scrub._at == 0
    assert set(store._scrub._marks) <= set(places)
    assert len(store._scrub._marks) > 8
    stop(store)


def test_what_a_reader_finds_is_read_once_more_before_it_counts(bench: Bench) -> None:
    """One that was reported by mistake would have the log copied again and again."""
    found: list[Damage] = []
    store = opened(bench, found)
    places = fill(bench, store)
    store._files.add_damage(Damage("somewhere", places[3], places[4], "a mistake"))
    assert found == []
    write(segment(bench, 0), places[5], b"\xff" * 20)
    store._files.add_damage(Damage("somewhere", places[5], places[6], "it is so"))
    assert [damage.start for damage in found] == [places[5]]
    stop(store)


def test_a_disk_that_refuses_to_write_marks_is_asked_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, pieces: object) -> None:
        raise OSError(errno.ENOSPC, "no room", path)

    store = opened(bench)
    monkeypatch.setattr(bench.disk, "replace", refuse)
    fill(bench, store)
    assert not (bench.root / "segments.json").exists()
    monkeypatch.undo()
    bench.clock.advance(2)
    assert (bench.root / "segments.json").exists()
    stop(store)


@pytest.mark.parametrize("step", ["scan", "_new_marks", "_looked"])
def test_an_unexpected_failure_is_logged_once_and_the_log_is_read_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store, found = damaged(bench)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(log_scrub if step == "scan" else store._scrub, step, fail)
    with log_kept() as logged:
        read_through(bench)
    assert [failure.type for failure in logged.failures] == [MemoryError]
    assert found == []
    monkeypatch.undo()
    read_through(bench)
    read_through(bench)
    assert len(found) == 1
    stop(store)


def test_one_segment_that_cannot_be_read_does_not_keep_the_others_from_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, found = damaged(bench)

    def scan_others(segments: Segments, *rest: int) -> Iterator[Run | Damage]:
        if segments.first_offset == SEGMENT_BYTES:
            raise MemoryError
        return logscan.scan(segments, *rest)

    monkeypatch.setattr(log_scrub, "scan", scan_others)
    read_through(bench)
    assert len(found) == 1
    stop(store)


def test_a_scrub_that_fails_to_stop_does_not_keep_messages_from_the_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(bench)
    store.append([message(body=b"last")])
    synced: list[int] = []
    all_durable = store._log_flusher.stop

    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(store._scrub, "_save", fail)
    monkeypatch.setattr(store._log_flusher, "stop", lambda: all_durable().addCallback(synced.append))
    with log_kept() as logged:
        stop(store)
    assert [failure.type for failure in logged.failures] == [MemoryError]
    assert synced == [None]
    assert not (bench.root / "abort").exists()


def test_a_segment_that_is_deleted_while_it_is_read_is_no_damage(bench: Bench) -> None:
    found: list[Damage] = []
    store = opened(bench, found, ALL)
    fill(bench, store)
    bench.worker.at_once = False
    bench.clock.advance(PASS_SECONDS)
    file = store._commit_log.segments[0]
    file.close()
    bench.worker.work()
    assert found == []
    bench.worker.at_once = True
    stop(store)


def test_a_stop_waits_for_what_is_being_read(bench: Bench) -> None:
    store = opened(bench, bytes_a_second=ALL)
    fill(bench, store)
    bench.worker.at_once = False
    bench.clock.advance(PASS_SECONDS)
    stopped: list[Any] = []
    store.stop().addCallback(stopped.append)
    bench.clock.advance(1)
    assert not stopped
    while bench.worker.waiting:
        bench.worker.work()
        bench.clock.advance(1)
    assert stopped == [None]


def test_no_more_damaged_places_are_remembered_than_a_limit(bench: Bench) -> None:
    store = opened(bench)
    fill(bench, store)
    store._scrub._damaged |= set(range(100, 100 + 2 * DAMAGED_MAX))
    store._scrub._is_dirty = True
    stop(store)
    assert len(json.loads((bench.root / "segments.json").read_bytes())["damaged"]) == DAMAGED_MAX
