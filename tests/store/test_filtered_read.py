"""Gets by a property filter of messages that were appended not long ago: quicker than others, with the same answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.store import GetMessageResult, GetMessageStatus, MessageStore
from mqbroker.store.checked_reader import CheckedReader
from mqbroker.store.filtered_read import FilteredRead
from mqbroker.store.get_message_result import Get
from mqbroker.wire.names import java_hash
from tests.store.harness import Bench, make_bench, message, now
from tests.store.test_cold_reads import offsets
from tests.store.test_property_filter import Matching

V6_HOST = bytes(15) + b"\x01" + (40000).to_bytes(4, "big")


def checked_of(store: MessageStore) -> CheckedReader:
    return store._reader._checked


def filtered_of(store: MessageStore) -> FilteredRead:
    return checked_of(store)._filtered


def quickly(store: MessageStore, get: Get, window: int = 800) -> GetMessageResult | None:
    return filtered_of(store).get(get, window)


def slowly(store: MessageStore, get: Get, monkeypatch: pytest.MonkeyPatch) -> GetMessageResult:
    """What is answered with checks alone."""
    with monkeypatch.context() as patch:
        patch.setattr(FilteredRead, "get", lambda self, get, window: None)
        return checked_of(store).get(get, [], (), is_repaired=False)


def seen(result: GetMessageResult | None) -> Any:
    assert result is not None
    return result._replace(pieces=list(map(bytes, result.pieces)))


SENT = st.lists(
    st.tuples(
        st.integers(0, 1),  # queue
        st.sampled_from([0, 10, 10, 10, 300, 3000]),  # bytes of the body
        st.integers(0, 2),  # tag and number
        st.booleans(),  # whether from an IPv6 host
    ),
    min_size=1,
    max_size=150,
)
LIMITS = st.tuples(st.sampled_from([-1, 0, 1, 2, 7, 32, 1000]), st.sampled_from([None, 0, 500, 2000, 10_000]))


@settings(derandomize=True, database=None, deadline=None)
@given(SENT, st.sets(st.integers(0, 2)), LIMITS, st.integers(0, 150))
def test_the_answers_are_those_of_a_closer_look(
    sent: list[tuple[int, int, int, bool]],
    numbers: set[int],
    limits: tuple[int, int | None],
    offset: int,
) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        bench = make_bench(Path(directory) / "store", mapped_file_size_commit_log=16 * 1024)
        store = bench.open()
        store.append(
            [
                message(
                    queue_id=queue,
                    body=b"N\x01001\x02" + b"x" * size,
                    properties=b"TAGS\x01%d\x02N\x01%03d" % (number, number),
                    born_host=V6_HOST if is_v6 else V6_HOST[:8],
                )
                for queue, size, number, is_v6 in sent
            ]
        )
        store.dispatch_now()
        queue = store._queues.by_name["T", sent[0][0]]
        get = Get(queue, offset % queue.max_offset, *limits, None, Matching(*numbers))
        found = quickly(store, get)
        assert found is not None or len(store._commit_log.segments) > 1
        if found is not None:
            assert seen(found) == seen(slowly(store, get, patch))
        bench.close()


def fill(store: MessageStore, count: int = 100, size: int = 10) -> None:
    store.append([message(body=b"x" * size, properties=b"TAGS\x01%d\x02N\x01%03d" % (i % 4, i)) for i in range(count)])
    store.dispatch_now()


def by_number(
    store: MessageStore,
    *numbers: int,
    offset: int = 0,
    max_bytes: int | None = None,
    tags_codes: set[int] | None = None,
) -> Get:
    return Get(store._queues.by_name["T", 0], offset, 32, max_bytes, tags_codes, Matching(*numbers))


def test_a_get_of_what_was_just_appended_is_answered_quickly(bench: Bench) -> None:
    store = bench.open()
    fill(store)
    found = quickly(store, by_number(store, *range(1, 100, 4), offset=6))
    assert found is not None
    assert (found.status, offsets(found), found.next_offset) == (GetMessageStatus.FOUND, [*range(9, 100, 4)], 100)
    assert (found.min_offset, found.max_offset, found.suggest_slave) == (0, 100, False)
    found = quickly(store, by_number(store, *range(1, 100, 4), offset=6), 10)
    assert found is not None
    assert (offsets(found), found.next_offset) == ([9, 13], 16)
    found = quickly(store, by_number(store, 5, 6, 90))
    assert found is not None
    assert (offsets(found), found.count, len(found.pieces)) == ([5, 6, 90], 3, 2)
    found = quickly(store, by_number(store, 200))
    assert found is not None
    assert (found.status, found.pieces, found.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, [], 100)


@pytest.mark.parametrize("between", [0, 100, 1500, 2500])
def test_messages_stand_close_or_far_apart(bench: Bench, between: int) -> None:
    """Which decides how they are come by."""
    store = bench.open()
    for number in range(30):
        store.append(
            [
                message(properties=b"N\x01%03d" % number, body=b"N\x01%03d" % (number + 1)),
                message(queue_id=1, properties=b"N\x01002", body=b"x" * between),
            ]
        )
    store.dispatch_now()
    get = by_number(store, 2, 7, 29)
    found = quickly(store, get)
    assert found is not None
    assert (offsets(found), found.next_offset) == ([2, 7, 29], 30)
    assert isinstance(get.property_filter, Matching)
    assert get.property_filter.asked == [*range(30)]


def test_bytes_are_bounded_also_by_what_is_not_wanted(bench: Bench) -> None:
    store = bench.open()
    fill(store, 100, 1000)
    size = store._queues.by_name["T", 0].entry(0)[1]
    for bytes_max, next_offset, wanted in [(size, 2, [1]), (2 * size, 6, [1, 5]), (2 * size - 1, 2, [1])]:
        found = quickly(store, by_number(store, *range(1, 100, 4), max_bytes=bytes_max))
        assert found is not None
        assert (offsets(found), found.next_offset) == (wanted, next_offset)


def test_bytes_are_bounded_by_a_large_one_that_is_not_wanted(bench: Bench) -> None:
    store = bench.open()
    fill(store, 12)
    store.append([message(body=b"x" * 5000)])
    fill(store, 80)
    found = quickly(store, by_number(store, *range(1, 12, 4), max_bytes=4000))
    assert found is not None
    assert (offsets(found), found.next_offset) == ([1, 5, 9], 12)


def test_of_what_is_in_two_segments_all_is_found(bench: Bench) -> None:
    store = bench.open()
    fill(store, 100, 3000)
    assert len(store._commit_log.segments) > 2
    for offset in range(0, 100, 3):
        result = now(store).get("T", 0, offset, 32, 1 << 20, None, Matching(*range(1, 100, 4)))
        assert offsets(result) == [i for i in range(1, 100, 4) if i >= offset]


def test_what_is_not_as_plain_takes_a_closer_look(make: Callable[..., Bench]) -> None:
    store = make("extended", enable_consume_queue_ext=True).open()
    fill(store)
    assert quickly(store, by_number(store, 1)) is None
    bench = make()
    store = bench.open()
    fill(store)
    assert quickly(store, by_number(store, 5, tags_codes={java_hash("1")})) is None
    assert quickly(store, by_number(store, 5)._replace(property_filter=None)) is None
    filtered_of(store)._hot_bytes = 5000
    assert quickly(store, by_number(store, 1)) is None
    assert quickly(store, by_number(store, 1, offset=90)) is not None
    filtered_of(store)._hot_bytes = 1 << 30
    store._queues.by_name["T", 0].resident_from = 3
    assert quickly(store, by_number(store, 1, offset=2)) is None
    assert quickly(store, by_number(store, 1, offset=3)) is not None
    store._commit_log.min_offset = 1
    assert quickly(store, by_number(store, 1, offset=3)) is not None
    store._queues.by_name["T", 0].resident_from = 0
    assert quickly(store, by_number(store, 1)) is None
    store = make("again").open()
    fill(store)
    filtered_of(store)._corrupt_ranges.intact_from = 1  # as after a start
    assert quickly(store, by_number(store, 1)) is None


def put_entry(store: MessageStore, offset: int, physical_offset: int, size: int) -> None:
    """Have an entry of the queue say something else."""
    file, at, _ = store._queues.by_name["T", 0].place(offset)
    file.buffer[at : at + 12] = physical_offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize("size", [0, 90, 1000, 0x7FFFFFFF, -5])
@pytest.mark.parametrize("physical_offset", [-1, 0, 40, 10_000, 100_000, 1 << 40])
def test_an_entry_of_no_message_takes_a_closer_look(bench: Bench, physical_offset: int, size: int) -> None:
    store = bench.open()
    fill(store)
    put_entry(store, 9, physical_offset, size)
    get = by_number(store, 8, 9, 10)
    found = quickly(store, get)
    assert found is None or (offsets(found) == [8, 10] and size != 0x7FFFFFFF)  # as much is not copied
    got = [*offsets(now(store).get("T", 0, 0, 32, None, None, get.property_filter))]
    got += offsets(now(store).get("T", 0, 9, 32, None, None, get.property_filter))
    assert {*got} >= {8, 10}
    put_entry(store, 99, physical_offset, size)
    found = quickly(store, get._replace(offset=99))
    assert found is None or not found.count


def test_an_entry_of_more_than_there_is_takes_a_closer_look(bench: Bench) -> None:
    store = bench.open()
    fill(store, 100, 3000)
    put_entry(store, 97, store._queues.by_name["T", 0].entry(97)[0], 200_000)
    assert quickly(store, by_number(store, 97, offset=90)) is None
