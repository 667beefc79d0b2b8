"""Getting messages: the outcomes by name, limits, filters, and pieces that stay valid."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from mqbroker.store import GetMessageResult, GetMessageStatus, MessageStore, queries
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import NewMessage, decode_records
from tests.store.harness import Bench, message, now, stop


def offsets(found: GetMessageResult) -> list[int]:
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
        (0, 0, GetMessageStatus.FOUND, 32),
        (0, 49, GetMessageStatus.FOUND, 50),
        (0, 50, GetMessageStatus.OFFSET_OVERFLOW_ONE, 50),
        (0, 51, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 50),
        (0, -1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        (9, 5, GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0),
    ],
)
def test_outcomes(store: MessageStore, queue_id: int, offset: int, status: GetMessageStatus, next_offset: int) -> None:
    found = now(store).get("T", queue_id, offset, 32)
    end = 50 if queue_id == 0 else 0
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (status, next_offset, 0, end)
    assert offsets(found) == (list(range(offset, next_offset)) if status is GetMessageStatus.FOUND else [])


def test_messages_in_a_row_are_one_piece(store: MessageStore) -> None:
    found = now(store).get("T", 0, 3, 20)
    assert len(found.pieces) == 1
    assert offsets(found) == list(range(3, 23))


@pytest.mark.parametrize("size", [100, 2000])
def test_scattered_messages_come_without_those_between(bench: Bench, size: int) -> None:
    store = bench.open()
    bodies = [bytes([65 + i]) * size for i in range(12)]
    store.append([message("T", 1 + i % 2, body) for i, body in enumerate(bodies)])
    store.dispatch_now()
    found = now(store).get("T", 1, 1, 4)
    records = [record for piece in found.pieces for record in decode_records(piece)]
    assert [record.body for record in records] == bodies[2:10:2]
    assert offsets(found) == [1, 2, 3, 4]


@pytest.mark.parametrize("queue_id", [0, 1])
@pytest.mark.parametrize(("max_count", "count"), [(0, 1), (1, 1), (2, 2), (32, 20), (1000, 20)])
def test_counts(store: MessageStore, queue_id: int, max_count: int, count: int) -> None:
    start = store.max_offset("T", queue_id) - 20
    found = now(store).get("T", queue_id, start, max_count)
    assert offsets(found) == list(range(start, start + count))
    assert found.next_offset == start + count


def test_never_more_than_the_settings_allow(make: Callable[..., Bench]) -> None:
    bench = make(max_transfer_count_on_message_in_memory=7)
    store = bench.open()
    store.append([message()] * 20)
    store.dispatch_now()
    assert now(store).get("T", 0, 0, 32).count == 7


@pytest.mark.parametrize("queue_id", [0, 1])
def test_bytes_are_bounded_but_one_message_always_comes(store: MessageStore, queue_id: int) -> None:
    size = len(now(store).get("T", queue_id, 0, 1).pieces[0])
    for max_bytes, count in [(0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size + 3, 5)]:
        found = now(store).get("T", queue_id, 0, 32, max_bytes)
        assert offsets(found) == list(range(count))
        assert found.next_offset == count


def test_messages_far_behind_have_smaller_limits_and_suggest_the_slave(make: Callable[..., Bench]) -> None:
    bench = make(access_message_in_memory_max_ratio=0)
    store = bench.open()
    store.append([message(queue_id=i % 2) for i in range(40)])
    store.dispatch_now()
    for queue_id in (0, 1):
        found = now(store).get("T", queue_id, 0, 32)
        assert (found.count, found.suggest_slave) == (8, True)


def test_recent_messages_do_not_suggest_the_slave(store: MessageStore) -> None:
    assert not now(store).get("T", 0, 0, 32).suggest_slave
    assert not now(store).get("T", 1, 0, 32).suggest_slave


def test_tags_filter_and_the_next_offset_passes_what_was_left_out(store: MessageStore) -> None:
    a, b = java_hash("a"), java_hash("b")
    found = now(store).get("T", 1, 0, 32, tags_codes=frozenset([a]))
    assert offsets(found) == list(range(0, 20, 2))
    assert found.next_offset == 20
    found = now(store).get("T", 1, 0, 3, tags_codes=frozenset([b]))
    assert offsets(found) == [1, 3, 5]
    assert found.next_offset == 6
    assert now(store).get("T", 1, 0, 32, tags_codes=frozenset([a, b])).count == 20
    nothing = now(store).get("T", 1, 4, 32, tags_codes=frozenset([1]))
    assert (nothing.status, nothing.next_offset, nothing.pieces) == (GetMessageStatus.NO_MATCHED_MESSAGE, 20, [])


def test_a_filter_looks_at_800_entries_at_most(make: Callable[..., Bench]) -> None:
    bench = make(mapped_file_size_consume_queue=20_000)
    store = bench.open()
    store.append([message(body=b"")] * 900)
    store.dispatch_now()
    found = now(store).get("T", 0, 0, 32, tags_codes=frozenset([1]))
    assert (found.status, found.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 800)


def test_a_get_ends_with_the_file_of_the_queue_and_goes_on_in_the_next(bench: Bench) -> None:
    store = bench.open()
    store.append([message()] * 150)  # files of 100 entries
    store.dispatch_now()
    found = now(store).get("T", 0, 90, 32)
    assert offsets(found) == list(range(90, 100))
    assert offsets(now(store).get("T", 0, 100, 32)) == list(range(100, 132))


def test_pieces_do_not_cross_segments(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 1000) for i in range(60)])
    store.dispatch_now()
    offset = 0
    while offset < 60:
        found = now(store).get("T", 0, offset, 32, 1_000_000)
        assert offsets(found) == list(range(offset, offset + found.count))
        offset = found.next_offset


def test_pieces_are_read_only_and_outlive_the_store(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"kept")] * 5)
    store.dispatch_now()
    found = now(store).get("T", 0, 0, 32)
    with pytest.raises(TypeError, match=r"read-only|does not support item assignment"):
        found.pieces[0][0] = 1  # type: ignore[index]
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
    assert now(store).earliest_timestamp("T", 0) == first
    assert now(store).store_timestamp("T", 0, 19) == first + 9000
    assert (now(store).store_timestamp("T", 0, 20), now(store).store_timestamp("U", 0, 0)) == (-1, -1)
    assert now(store).earliest_timestamp("U", 0) == -1
    cases = [(-5000, 0), (0, 0), (400, 2), (600, 2), (1000, 2), (5000, 10), (8999, 18), (9000, 18), (99_000, 20)]
    for after, offset in cases:
        assert now(store).offset_by_time("T", 0, first + after) == offset
    assert now(store).offset_by_time("U", 0, first) == 0


def test_reading_by_offset_of_the_log(bench: Bench) -> None:
    store = bench.open()
    rows = store.append([message()] * 3)
    at, size = rows[1][0], rows[1][2]
    assert now(store).record(at) == now(store).record(at, size) is not None
    assert now(store).record(at, size + 1) is None
    for bad in (-1, at + 1, store.log_end, 10**12):
        assert now(store).record(bad) is None


@pytest.mark.parametrize(
    "entry",
    [(0, -5), (0, 0), (0, 90), (-1, 200), (1 << 62, 200), (-(1 << 62), 200), (0, 1 << 30), (131072, 200)],
)
@pytest.mark.parametrize("place", [0, 5, 19])
def test_a_rotten_entry_is_built_again_and_its_neighbours_are_got(
    bench: Bench, store: MessageStore, entry: tuple[int, int], place: int
) -> None:
    path = bench.root / "consumequeue" / "T" / "1" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(place * 20)
        file.write(struct.pack(">qi", *entry))
    got: list[int] = []
    offset = 0
    while offset < 20:
        found = now(store).get("T", 1, offset, 32)
        got += offsets(found)
        assert found.next_offset > offset
        offset = found.next_offset
    assert got == list(range(20))


# The rules of DefaultMessageStore.getMessage, one by one


def tagged(count: int, tags: bytes = b"ab", size: int = 10) -> list[NewMessage]:
    return [message(body=b"%d" % (n % 10) * size, properties=b"TAGS\x01%c" % tags[n % len(tags)]) for n in range(count)]


def fill(bench: Bench, messages: list[NewMessage]) -> MessageStore:
    store = bench.open()
    for at in range(0, len(messages), 100):
        store.append(messages[at : at + 100])
    store.dispatch_now()
    return store


A, B, OTHER = frozenset([java_hash("a")]), frozenset([java_hash("b")]), frozenset([1])


def test_found(store: MessageStore) -> None:
    found = now(store).get("T", 0, 3, 4)
    assert found[:4] == (GetMessageStatus.FOUND, 7, 0, 50)
    assert (offsets(found), found.count, found.suggest_slave) == ([3, 4, 5, 6], 4, False)


def test_no_matched_message(store: MessageStore) -> None:
    found = now(store).get("T", 1, 4, 32, tags_codes=OTHER)
    assert found == (GetMessageStatus.NO_MATCHED_MESSAGE, 20, 0, 20, [], 0, False)


def test_no_message_in_queue(bench: Bench) -> None:
    store = bench.open()
    for offset in (-1, 0, 5):
        assert now(store).get("T", 0, offset, 32) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, False)
    store.append([message()])  # not dispatched yet
    assert now(store).get("T", 0, 0, 32).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_offset_overflow_one(store: MessageStore) -> None:
    assert now(store).get("T", 0, 50, 32) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 50, 0, 50, [], 0, False)


def test_offset_overflow_badly(store: MessageStore) -> None:
    for offset in (51, 2**63 - 1):
        assert now(store).get("T", 0, offset, 32) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 50, 0, 50, [], 0, False)


def test_offset_too_small(store: MessageStore) -> None:
    for offset in (-1, -(2**63)):
        assert now(store).get("T", 0, offset, 32) == (GetMessageStatus.OFFSET_TOO_SMALL, 0, 0, 50, [], 0, False)
    store._queues.by_name["T", 0].min_offset = 20
    assert now(store).get("T", 0, 19, 32) == (GetMessageStatus.OFFSET_TOO_SMALL, 20, 20, 50, [], 0, False)
    assert now(store).get("T", 0, 20, 1).status is GetMessageStatus.FOUND


def rolled(bench: Bench, first: list[NewMessage], second: list[NewMessage]) -> MessageStore:
    """A store of which the segment with the `first` messages is deleted, and the queue's minimum has not followed."""
    store = bench.open()
    store.append([*first, message("Other", body=bytes(130_000))])
    store.append(second)
    store.dispatch_now()
    gone = store._commit_log.drop_first()
    gone.close()
    bench.disk.remove(gone.path)
    return store


def test_message_was_removing(bench: Bench) -> None:
    store = rolled(bench, tagged(20), tagged(1, b"c"))
    found = now(store).get("T", 0, 0, 32, tags_codes=A)
    # The entries of the deleted segment are passed over, wanted or not; the one after it is not wanted.
    assert found == (GetMessageStatus.NO_MATCHED_MESSAGE, 21, 0, 21, [], 0, False)
    store._queues.by_name["T", 0].max_offset = 20
    found = now(store).get("T", 0, 3, 32, tags_codes=A)
    assert found == (GetMessageStatus.MESSAGE_WAS_REMOVING, 20, 0, 20, [], 0, False)
    assert now(store).get("T", 0, 3, 32) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 20, 0, 20, [], 0, False)


def test_messages_behind_removed_ones_are_found_by_the_same_get(bench: Bench) -> None:
    store = rolled(bench, tagged(50), tagged(40))
    found = now(store).get("T", 0, 10, 4)
    assert (found.status, found.next_offset, offsets(found)) == (GetMessageStatus.FOUND, 54, [50, 51, 52, 53])


def test_a_get_looks_at_no_more_than_800_entries_though_all_are_removed(make: Callable[..., Bench]) -> None:
    bench = make(mapped_file_size_consume_queue=40_000)
    store = bench.open()
    for _ in range(9):
        store.append([message(body=b"", properties=b"")] * 100)
    store.append([message("Other", body=bytes(110_000))] * 2)
    store.dispatch_now()
    store._commit_log.drop_first().close()
    found = now(store).get("T", 0, 50, 32)
    assert (found.status, found.next_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 850)


@pytest.mark.parametrize(
    ("max_count", "looked_at"),
    [
        (-(2**31), 800),
        (-1, 800),
        (0, 800),
        (800, 800),
        (801, 801),
        (1000, 1000),
        (2**31 - 1, 800),  # 20 times it is -20 in 32 bits
        (2**28, 1000),  # and here 0x40000000: all there is
    ],
)
def test_how_far_a_filter_looks(make: Callable[..., Bench], max_count: int, looked_at: int) -> None:
    bench = make(mapped_file_size_consume_queue=20_000)
    store = fill(bench, tagged(1000, size=0))
    found = now(store).get("T", 0, 0, max_count, tags_codes=OTHER)
    assert (found.status, found.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, looked_at)


def test_a_get_that_is_full_does_not_pass_over_what_is_not_wanted(bench: Bench) -> None:
    store = fill(bench, tagged(10))
    found = now(store).get("T", 0, 0, 2, tags_codes=A)
    assert (offsets(found), found.next_offset) == ([0, 2], 3)
    size = sum(map(len, found.pieces)) // 2
    found = now(store).get("T", 0, 0, 32, 2 * size, tags_codes=A)
    assert (offsets(found), found.next_offset) == ([0, 2], 3)
    # Nor what would not fit, though it is not wanted.
    found = now(store).get("T", 0, 0, 32, 2 * size - 1, tags_codes=A)
    assert (offsets(found), found.next_offset) == ([0], 1)


@pytest.mark.parametrize(("size", "got", "then"), [(2**31 - 1, [0, 1, 3, 4], [3, 4]), (2**31 - 500, [0, 1], [2, 3, 4])])
def test_a_size_that_takes_the_sum_over_32_bits_is_passed_over_at_once(
    bench: Bench, size: int, got: list[int], then: list[int]
) -> None:
    """What it is of a message lost to damage; any other ends this get, and the next has the entry built again."""
    store = fill(bench, tagged(5))
    path = bench.root / "consumequeue" / "T" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(2 * 20 + 8)
        file.write(struct.pack(">i", size))
    assert offsets(now(store).get("T", 0, 0, 32)) == got
    assert offsets(now(store).get("T", 0, 2, 32)) == then


@pytest.mark.parametrize("tags_codes", [None, A | B])
def test_limits_in_memory(make: Callable[..., Bench], tags_codes: frozenset[int] | None) -> None:
    bench = make(max_transfer_count_on_message_in_memory=5, max_transfer_bytes_on_message_in_memory=600)
    store = fill(bench, tagged(20))
    assert now(store).get("T", 0, 0, 32, None, tags_codes).count == 5
    store.append([message(body=b"x" * 400, properties=b"TAGS\x01a"), *tagged(3)])
    store.dispatch_now()
    assert now(store).get("T", 0, 19, 32, None, tags_codes).count == 1
    assert now(store).get("T", 0, 20, 32, None, tags_codes).count == 1


@pytest.mark.parametrize("tags_codes", [None, A | B])
def test_each_message_counts_as_in_memory_or_on_the_disk_by_itself(
    make: Callable[..., Bench], tags_codes: frozenset[int] | None
) -> None:
    bench = make(max_transfer_count_on_message_in_memory=12, max_transfer_count_on_message_in_disk=8)
    sized = fill(bench, tagged(1))
    size = sized.log_end
    near = make("near", max_transfer_count_on_message_in_memory=12, max_transfer_count_on_message_in_disk=8)
    near.disk.memory_bytes = lambda: 25 * size  # of which 40 % are ten messages
    store = fill(near, tagged(40))
    for offset, count, is_far in [
        (0, 8, True),  # 30 is the first that is near
        (21, 8, True),  # it ends at 29, which is far
        (22, 12, False),  # the ninth is near, and so are the limits from there on
        (30, 10, False),
    ]:
        found = now(store).get("T", 0, offset, 32, None, tags_codes)
        assert (found.count, found.suggest_slave) == (count, is_far), offset


def test_the_slave_is_suggested_by_what_was_looked_at_last(make: Callable[..., Bench]) -> None:
    bench = make()
    size = fill(bench, tagged(1)).log_end
    near = make("near")
    near.disk.memory_bytes = lambda: 25 * size
    store = fill(near, tagged(40))
    assert now(store).get("T", 0, 29, 1).suggest_slave is False  # it looked at 30 too, and saw that it was full
    assert now(store).get("T", 0, 28, 1).suggest_slave is True
    assert now(store).get("T", 0, 0, 32, tags_codes=OTHER).suggest_slave is False


@pytest.mark.parametrize("max_count", [0, -1, -(2**31)])
def test_one_message_comes_where_none_is_asked_for(store: MessageStore, max_count: int) -> None:
    assert offsets(now(store).get("T", 0, 3, max_count)) == [3]
    assert offsets(now(store).get("T", 1, 3, max_count, tags_codes=A)) == [4]


# By time


def timed(bench: Bench, *groups: tuple[float, int]) -> tuple[MessageStore, int]:
    """Messages, so many at each time after the first, s; and the time of the first, ms."""
    store = bench.open()
    start_s = bench.clock.seconds()
    for after_s, count in groups:
        bench.clock.advance(start_s + after_s - bench.clock.seconds())
        store.append([message(body=b"x" * 40)] * count)
    store.dispatch_now()
    return store, int(start_s * 1000)


def test_of_messages_of_one_time_the_first_is_found(bench: Bench) -> None:
    store, first = timed(bench, (0, 3), (1, 20), (2, 1))
    assert now(store).offset_by_time("T", 0, first) == 0
    assert now(store).offset_by_time("T", 0, first + 1000) == 3
    assert now(store).offset_by_time("T", 0, first + 2000) == 23


@pytest.mark.parametrize(
    ("after_ms", "offset"),
    [(-(2**62), 0), (-1, 0), (0, 0), (1, 3), (2999, 3), (3000, 3), (3001, 6), (10**9, 6), (2**62, 6)],
)
def test_the_first_message_at_or_after_a_time_is_found_and_the_end_where_there_is_none(
    bench: Bench, after_ms: int, offset: int
) -> None:
    store, first = timed(bench, (0, 3), (3, 3))
    assert now(store).offset_by_time("T", 0, first + after_ms) == offset
    assert now(store).offset_by_time("U", 0, first + after_ms) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 9, 10, 11, 99, 100, 101, 250])
def test_times_over_several_files_of_a_queue(bench: Bench, size: int) -> None:
    """Files have 100 entries; messages of one time end in one, or stand in several."""
    groups = 250 // size + 1
    store, first = timed(bench, *[(n, size) for n in range(groups)])
    for n in range(groups):
        assert now(store).offset_by_time("T", 0, first + n * 1000) == n * size
        assert now(store).offset_by_time("T", 0, first + n * 1000 - 1) == n * size
        assert now(store).offset_by_time("T", 0, first + n * 1000 + 1) == (n + 1) * size


def test_times_when_the_oldest_messages_are_gone(bench: Bench) -> None:
    store = bench.open()
    first = int(bench.clock.seconds() * 1000)
    for _ in range(10):
        store.append([message(body=b"x" * 30_000)])
        bench.clock.advance(1)
    store.dispatch_now()
    queue = store._queues.by_name["T", 0]
    store._commit_log.drop_first().close()
    for _ in range(2):  # before the queue's minimum has followed, and after
        assert now(store).offset_by_time("T", 0, 0) == 4
        assert now(store).offset_by_time("T", 0, first + 6000) == 6
        assert now(store).offset_by_time("T", 0, first + 6001) == 7
        assert now(store).offset_by_time("T", 0, 2**62) == 10
        queue.correct_min(store.log_min_offset)
        assert queue.min_offset == 4


@pytest.mark.parametrize(
    "damaged",
    [{4, 9, 10, 19}, {0}, {0, 1, 2}, {19}, {9}, set(range(5, 15)), set(range(10)), set(range(10, 20)), {*range(1, 19)}],
    ids=str,
)
@pytest.mark.parametrize("passed_over", [queries._UNREADABLE_MAX, 3])
def test_times_with_damaged_messages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, damaged: set[int], passed_over: int
) -> None:
    """Where more are damaged in a row than are passed over, no message that can be read is left out."""
    store, first = timed(bench, *[(n, 1) for n in range(20)])
    places = [now(store).physical_offset("T", 0, n) for n in range(20)]
    stop(store)
    with (bench.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        for n in damaged:
            file.seek(places[n] + 100)
            file.write(b"?")
    again = bench.open()
    monkeypatch.setattr(queries, "_UNREADABLE_MAX", passed_over)
    for n in range(21):
        wanted = min((good for good in range(n, 20) if good not in damaged), default=again.max_offset("T", 0))
        for before_ms in (0, 1, 999):
            found = now(again).offset_by_time("T", 0, first + n * 1000 - before_ms)
            if found != wanted:
                assert passed_over == 3
                assert len(damaged) > 8
                assert found < wanted
    assert now(again).store_timestamp("T", 0, min(damaged)) == -1


# By offset of the log


def test_records_that_a_message_only_pretends_to_be(bench: Bench) -> None:
    """A body that looks like a record: of its offset, or of a size that no message has."""
    store = bench.open()
    store.append([message(body=bytes(200))])
    at = now(store).physical_offset("T", 0, 0) + 88
    fake = bytearray(200)
    struct.pack_into(">II", fake, 0, 0x7FFFFFF0, 0xDAA320A7)
    struct.pack_into(">q", fake, 28, at)
    end = store.log_end
    store.append([message(body=bytes(fake))])
    inner = end + 88
    assert now(store).record(inner) is None
    assert now(store).record(inner, 0x7FFFFFF0) is None
    assert now(store).record(inner, 200) is None
    for offset in (2**63 - 1, -(2**63), store.log_end - 1):
        assert now(store).record(offset) is None


def test_records_larger_than_any_message_are_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    ((at, _, size, _),) = store.append([message()])
    for limit, is_read in ((size, False), (size + 1, True)):
        monkeypatch.setattr(queries, "_RECORD_BYTES_MAX", limit)
        assert (now(store).record(at) is not None) is is_read


# By key


def test_queries_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    store.append([message(body=b"%02d" % n * 500, properties=b"KEYS\x01k") for n in range(40)])
    store.dispatch_now()

    def found(count: int) -> list[int]:
        return [decode_records(data)[0].queue_offset for data in now(store).query("T", "k", count, 0, 2**62)]

    assert found(3) == [37, 38, 39]
    assert found(1000) == list(range(40))
    monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", 5000)
    assert found(1000) == [36, 37, 38, 39]
    monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", 1)
    assert found(1000) == [39]
