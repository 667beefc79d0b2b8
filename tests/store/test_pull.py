"""Getting messages: the outcomes by name, limits, filters, and pieces that stay valid."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from mqbroker.store import GetResult, GetStatus, MessageStore
from mqbroker.wire.javahash import java_hash
from mqbroker.wire.record import decode_records
from tests.store.harness import Bench, message, stop


def offsets(found: GetResult) -> list[int]:
    records = [record for piece in found.pieces for record in decode_records(piece)]
    assert len(records) == found.count
    return [record.queue_offset for record in records]


@pytest.fixture
def store(bench: Bench) -> MessageStore:
    """Queue 0 alone, then queues 1 and 2 in turns with tags a and b, bodies of 100 bytes."""
    store = bench.open()
    store.append([message(body=b"x" * 100, properties=b"") for _ in range(50)])
    store.append([message("T", 1 + i % 2, b"y" * 100, b"TAGS\x01%c" % (97 + i // 2 % 2)) for i in range(40)])
    store.dispatch_now()
    return store


@pytest.mark.parametrize(
    ("queue_id", "offset", "status", "next_offset"),
    [
        (0, 0, GetStatus.FOUND, 32),
        (0, 49, GetStatus.FOUND, 50),
        (0, 50, GetStatus.OFFSET_OVERFLOW_ONE, 50),
        (0, 51, GetStatus.OFFSET_OVERFLOW_BADLY, 50),
        (0, -1, GetStatus.OFFSET_TOO_SMALL, 0),
        (9, 5, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
    ],
)
def test_outcomes(store: MessageStore, queue_id: int, offset: int, status: GetStatus, next_offset: int) -> None:
    found = store.get("T", queue_id, offset, 32)
    end = 50 if queue_id == 0 else 0
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (status, next_offset, 0, end)
    assert offsets(found) == (list(range(offset, next_offset)) if status is GetStatus.FOUND else [])


def test_messages_in_a_row_are_one_piece(store: MessageStore) -> None:
    found = store.get("T", 0, 3, 20)
    assert len(found.pieces) == 1
    assert offsets(found) == list(range(3, 23))


def test_scattered_messages_are_a_piece_each(store: MessageStore) -> None:
    found = store.get("T", 1, 3, 10)
    assert len(found.pieces) == 10
    assert offsets(found) == list(range(3, 13))


@pytest.mark.parametrize("queue_id", [0, 1])
@pytest.mark.parametrize(("max_count", "count"), [(0, 1), (1, 1), (2, 2), (32, 20), (1000, 20)])
def test_counts(store: MessageStore, queue_id: int, max_count: int, count: int) -> None:
    start = store.max_offset("T", queue_id) - 20
    found = store.get("T", queue_id, start, max_count)
    assert offsets(found) == list(range(start, start + count))
    assert found.next_offset == start + count


def test_never_more_than_the_settings_allow(make: Callable[..., Bench]) -> None:
    bench = make(max_transfer_count_on_message_in_memory=7)
    store = bench.open()
    store.append([message()] * 20)
    store.dispatch_now()
    assert store.get("T", 0, 0, 32).count == 7


@pytest.mark.parametrize("queue_id", [0, 1])
def test_bytes_are_bounded_but_one_message_always_comes(store: MessageStore, queue_id: int) -> None:
    size = store.get("T", queue_id, 0, 1).pieces[0].nbytes
    for max_bytes, count in [(0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size + 3, 5)]:
        found = store.get("T", queue_id, 0, 32, max_bytes)
        assert offsets(found) == list(range(count))
        assert found.next_offset == count


def test_messages_far_behind_have_smaller_limits_and_suggest_the_slave(make: Callable[..., Bench]) -> None:
    bench = make(access_message_in_memory_max_ratio=0)
    store = bench.open()
    store.append([message(queue_id=i % 2) for i in range(40)])
    store.dispatch_now()
    for queue_id in (0, 1):
        found = store.get("T", queue_id, 0, 32)
        assert (found.count, found.suggest_slave) == (8, True)


def test_recent_messages_do_not_suggest_the_slave(store: MessageStore) -> None:
    assert not store.get("T", 0, 0, 32).suggest_slave
    assert not store.get("T", 1, 0, 32).suggest_slave


def test_tags_filter_and_the_next_offset_passes_what_was_left_out(store: MessageStore) -> None:
    a, b = java_hash("a"), java_hash("b")
    found = store.get("T", 1, 0, 32, tags_codes=frozenset([a]))
    assert offsets(found) == list(range(0, 20, 2))
    assert found.next_offset == 20
    found = store.get("T", 1, 0, 3, tags_codes=frozenset([b]))
    assert offsets(found) == [1, 3, 5]
    assert found.next_offset == 6
    assert store.get("T", 1, 0, 32, tags_codes=frozenset([a, b])).count == 20
    nothing = store.get("T", 1, 4, 32, tags_codes=frozenset([1]))
    assert (nothing.status, nothing.next_offset, nothing.pieces) == (GetStatus.NO_MATCHED_MESSAGE, 20, [])


def test_a_filter_looks_at_800_entries_at_most(make: Callable[..., Bench]) -> None:
    bench = make(mapped_file_size_consume_queue=20_000)
    store = bench.open()
    store.append([message(body=b"")] * 900)
    store.dispatch_now()
    found = store.get("T", 0, 0, 32, tags_codes=frozenset([1]))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)


def test_a_get_ends_with_the_file_of_the_queue_and_goes_on_in_the_next(bench: Bench) -> None:
    store = bench.open()
    store.append([message()] * 150)  # files of 100 entries
    store.dispatch_now()
    found = store.get("T", 0, 90, 32)
    assert offsets(found) == list(range(90, 100))
    assert offsets(store.get("T", 0, 100, 32)) == list(range(100, 132))


def test_pieces_do_not_cross_segments(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 1000) for i in range(60)])
    store.dispatch_now()
    offset = 0
    while offset < 60:
        found = store.get("T", 0, offset, 32, 1_000_000)
        assert offsets(found) == list(range(offset, offset + found.count))
        offset = found.next_offset


def test_pieces_are_read_only_and_outlive_the_store(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"kept")] * 5)
    store.dispatch_now()
    found = store.get("T", 0, 0, 32)
    with pytest.raises(TypeError, match="read-only"):
        found.pieces[0][0] = 1
    stop(store)
    del store
    bench.opened.clear()
    assert [record.body for record in decode_records(found.pieces[0])] == [b"kept"] * 5


def test_times_of_a_queue(bench: Bench) -> None:
    store = bench.open()
    first = int(bench.clock.seconds() * 1000)
    for _ in range(10):
        store.append([message()] * 2)
        bench.clock.advance(1)
    store.dispatch_now()
    assert store.earliest_timestamp("T", 0) == first
    assert store.store_timestamp("T", 0, 19) == first + 9000
    assert (store.store_timestamp("T", 0, 20), store.store_timestamp("U", 0, 0)) == (-1, -1)
    assert store.earliest_timestamp("U", 0) == -1
    cases = [(-5000, 0), (0, 1), (400, 1), (600, 2), (1000, 2), (5000, 11), (8999, 18), (9000, 18), (99_000, 19)]
    for after, offset in cases:
        assert store.offset_by_time("T", 0, first + after) == offset
    assert store.offset_by_time("U", 0, first) == 0


def test_reading_by_offset_of_the_log(bench: Bench) -> None:
    store = bench.open()
    rows = store.append([message()] * 3)
    at, size = rows[1][0], rows[1][2]
    assert store.read_record(at) == store.read_record(at, size) is not None
    assert store.read_record(at, size + 1) is None
    for bad in (-1, at + 1, store.log_end, 10**12):
        assert store.read_record(bad) is None
    assert bytes(store.read_log(at, 10_000)) == store.read_record(at) + store.read_record(rows[2][0])  # type: ignore[operator]
    assert store.read_log(at, 7).nbytes == 7
    assert store.read_log(store.log_end, 7).nbytes == 0


@pytest.mark.parametrize(
    "entry",
    [(0, -5), (0, 0), (0, 90), (-1, 200), (1 << 62, 200), (-(1 << 62), 200), (0, 1 << 30), (131072, 200)],
)
@pytest.mark.parametrize("place", [0, 5, 19])
def test_a_rotten_entry_is_passed_over_and_its_neighbours_are_got(
    bench: Bench, store: MessageStore, entry: tuple[int, int], place: int
) -> None:
    path = bench.root / "consumequeue" / "T" / "1" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(place * 20)
        file.write(struct.pack(">qi", *entry))
    got: list[int] = []
    offset = 0
    while offset < 20:
        found = store.get("T", 1, offset, 32)
        got += offsets(found)
        assert found.next_offset > offset
        offset = found.next_offset
    assert got == [n for n in range(20) if n != place]
