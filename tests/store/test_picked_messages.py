"""Gets of resident messages by the compiled module: the same answers as with checks, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.kernel import compiled
from mqbroker.store import GetMessageResult, GetMessageStatus, MessageStore
from mqbroker.store.get_message_result import Get
from mqbroker.wire.names import java_hash
from tests.store.harness import Bench, after_restart, make_bench, message, now
from tests.store.test_cold_reads import offsets
from tests.store.test_filtered_read import LIMITS, SENT, V6_HOST, put_entry

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")


def picked(store: MessageStore, get: Get) -> GetMessageResult | None:
    return store._reader._get_at_once(get.queue, *get[1:])


def checked(store: MessageStore, get: Get) -> GetMessageResult:
    return store._reader._checked.get(get, [], (), is_repaired=False)


def seen(result: GetMessageResult) -> Any:
    return result._replace(pieces=[b"".join(result.pieces)])


def fill(store: MessageStore, count: int = 100, size: int = 10) -> None:
    store.append([message(body=b"x" * size, properties=b"TAGS\x01%d\x02N\x01%03d" % (i % 4, i)) for i in range(count)])
    store.dispatch_now()


def of(store: MessageStore, offset: int = 0, *tags: str, max_bytes: int | None = None) -> Get:
    codes = {java_hash(tag) for tag in tags} or None
    return Get(store._queues.by_name["T", 0], offset, 32, max_bytes, codes)


@settings(derandomize=True, database=None, deadline=None)
@given(SENT, st.none() | st.sets(st.integers(0, 2)), LIMITS, st.integers(0, 150), st.booleans())
def test_the_answers_are_those_of_a_closer_look(
    sent: list[tuple[int, int, int, bool]],
    tags: set[int] | None,
    limits: tuple[int, int | None],
    offset: int,
    is_from_before: bool,
) -> None:
    with TemporaryDirectory() as directory:
        bench = make_bench(Path(directory) / "store", mapped_file_size_commit_log=16 * 1024)
        store = bench.open()
        store.append(
            [
                message(
                    queue_id=queue,
                    body=b"x" * size,
                    properties=b"TAGS\x01%d" % tag,
                    born_host=V6_HOST if is_v6 else V6_HOST[:8],
                )
                for queue, size, tag, is_v6 in sent
            ]
        )
        store.dispatch_now()
        if is_from_before:
            store = after_restart(bench, store)
        queue = store._queues.by_name["T", sent[0][0]]
        codes = None if tags is None else {java_hash(str(tag)) for tag in tags}
        get = Get(queue, offset % queue.max_offset, *limits, codes)
        now(store).get("T", queue.queue_id, *get[1:])  # which loads what is not in memory
        found = picked(store, get)
        assert found is not None or len(store._commit_log.segments) > 1
        if found is not None:
            assert seen(found) == seen(checked(store, get))
        bench.close()


def test_what_was_just_appended(bench: Bench) -> None:
    store = bench.open()
    fill(store)
    for get, wanted, next_offset in [
        (of(store, 6), [*range(6, 38)], 38),
        (of(store, 6, "1"), [*range(9, 100, 4)], 100),
        (of(store, 6, "1", "2", "none"), [i for i in range(6, 72) if i % 4 in (1, 2)][:32], 70),
        (of(store, 99), [99], 100),
    ]:
        found = picked(store, get)
        assert found is not None
        assert (found.status, offsets(found), found.next_offset) == (GetMessageStatus.FOUND, wanted, next_offset)
        assert (found.min_offset, found.max_offset, found.suggest_slave) == (0, 100, False)
    found = picked(store, of(store, 0, "other"))
    assert found is not None
    assert (found.status, found.pieces, found.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, [], 100)


def test_bytes_are_bounded_also_by_what_is_not_wanted(bench: Bench) -> None:
    store = bench.open()
    fill(store, 100, 1000)
    size = store._queues.by_name["T", 0].entry(0)[1]
    for bytes_max, next_offset, wanted in [(size, 2, [1]), (2 * size, 6, [1, 5]), (2 * size - 1, 2, [1])]:
        found = picked(store, of(store, 0, "1", max_bytes=bytes_max))
        assert found is not None
        assert (offsets(found), found.next_offset) == (wanted, next_offset)


def test_messages_far_apart_and_in_several_segments(make: Callable[..., Bench]) -> None:
    store = make(mapped_file_size_commit_log=4 << 20).open()
    for _ in range(12):
        store.append([message(queue_id=1, body=b"y" * 60_000)] * 11 + [message(body=b"x")])
    store.dispatch_now()
    found = picked(store, of(store))
    assert len(store._commit_log.segments) > 1
    assert found is not None
    assert offsets(found) == [*range(12)]


def test_more_tags_than_are_compared_one_by_one(bench: Bench) -> None:
    store = bench.open()
    fill(store)
    many = [str(number) for number in range(64)]
    found = picked(store, of(store, 0, *many))
    assert found is not None
    assert len(offsets(found)) == 32
    assert picked(store, of(store, 0, *many, "one more")) is None
    assert now(store).get("T", 0, 0, 32, None, {java_hash(tag) for tag in [*many, "one more"]}).count == 32


@pytest.mark.parametrize("size", [0, 90, 1000, 0x7FFFFFFF, -5])
@pytest.mark.parametrize("physical_offset", [-1, 0, 40, 10_000, 100_000, 1 << 40, (1 << 63) - 1])
def test_an_entry_of_no_message_takes_a_closer_look(bench: Bench, physical_offset: int, size: int) -> None:
    store = bench.open()
    fill(store)
    for offset in (9, 99):
        put_entry(store, offset, physical_offset, size)
        assert picked(store, of(store, offset)) is None
        assert picked(store, of(store, offset - 1)) is None
        found = picked(store, of(store, offset - 1, str(offset % 4)))
        assert found is None or not {offset} & {*offsets(found)}


def corrupt(store: MessageStore, offset: int, at: int, data: bytes) -> None:
    """Have a message of the queue differ in the log."""
    physical_offset, _, _ = store._queues.by_name["T", 0].entry(offset)
    segment, start = store._commit_log.place(physical_offset)
    segment.buffer[start + at : start + at + len(data)] = data


#: Where: size, magic, checksum, queue id, queue offset, physical offset, body, topic, tag.
WRONG = [
    (3, b"\x10"),
    (4, b"\0"),
    (8, b"\0\0\0\0"),
    (15, b"\1"),
    (27, b"\5"),
    (35, b"\1"),
    (88, b"?"),
    (99, b"U"),
    (107, b"9"),
]


@pytest.mark.parametrize(("at", "data"), WRONG)
def test_a_message_from_before_the_start_is_verified(bench: Bench, at: int, data: bytes) -> None:
    store = bench.open()
    fill(store)
    store = after_restart(bench, store)
    now(store).get("T", 0, 0, 32)
    assert picked(store, of(store)) is not None
    corrupt(store, 20, at, data)
    assert picked(store, of(store)) is None
    assert picked(store, of(store, 20, "0")) is None
    found = picked(store, of(store, 21))
    assert found is not None
    assert offsets(found) == [*range(21, 53)]


@pytest.mark.parametrize(("at", "data"), [WRONG[0], WRONG[1], WRONG[5]])
def test_of_an_own_message_size_and_place_are_verified(bench: Bench, at: int, data: bytes) -> None:
    store = bench.open()
    fill(store)
    corrupt(store, 20, at, data)
    assert picked(store, of(store)) is None
    assert picked(store, of(store, 21)) is not None


def test_what_is_not_as_plain_takes_a_closer_look(make: Callable[..., Bench]) -> None:
    store = make("extended", enable_consume_queue_ext=True).open()
    fill(store)
    assert picked(store, of(store)) is None
    store = make("far", access_message_in_memory_max_ratio=0).open()
    fill(store)
    assert picked(store, of(store)) is None
    store = make().open()
    fill(store)
    store._reader._corrupt_ranges._ranges = [*store._reader._corrupt_ranges]
    assert picked(store, of(store)) is not None


def test_what_is_far_behind_is_looked_for_in_memory_each_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    fill(store)
    pages, looks = store._reader.resident_pages, []
    real = pages._is_resident
    monkeypatch.setattr(pages, "_is_resident", lambda *span: (looks.append(span), real(*span))[1])
    for _ in range(3):
        assert picked(store, of(store)) is not None
    assert len(looks) <= 1
    store._reader._hot_bytes = 0
    queue = store._queues.by_name["T", 0]
    for _ in range(3):
        assert picked(store, of(store, 8)) is not None
    assert len(looks) >= 3
    assert queue.resident_from == 8
    monkeypatch.setattr(pages, "_is_resident", lambda *span: False)
    assert picked(store, of(store, 8)) is None
    monkeypatch.undo()
    monkeypatch.setattr(pages, "has_entries", lambda *span, anew=False: not anew)
    assert picked(store, of(store, 8)) is None
