"""Finding single new messages by both their places, and what is left to a get."""

from __future__ import annotations

import pytest

from mqbroker.store import MessageStore, checked_reader
from mqbroker.store.logscan import Damage
from mqbroker.wire.record import decode_record
from tests.store.harness import Bench, message, now, stop, turns


@pytest.fixture
def store(bench: Bench) -> MessageStore:
    """A message of another queue, and five of T 0."""
    store = bench.open()
    store.append([message(queue_id=1), *[message(body=b"%d" % n * 10) for n in range(5)]])
    store.dispatch_now()
    return store


def places(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[tuple[int, int]]:
    """Queue offset and physical offset of each message."""
    offsets = range(store.max_offset(topic, queue_id))
    return [(offset, now(store).physical_offset(topic, queue_id, offset)) for offset in offsets]


def test_a_record_is_found_as_it_is_stored(store: MessageStore) -> None:
    record_at = store.recent_records("T", 0)
    for offset, physical_offset in places(store):
        record = record_at(offset, physical_offset)
        assert record is not None
        assert record == now(store).record(physical_offset)
        found = decode_record(record)
        assert (found.queue_offset, found.body) == (offset, b"%d" % offset * 10)


def test_both_places_must_be_those_of_one_message(store: MessageStore) -> None:
    record_at = store.recent_records("T", 0)
    found = places(store)
    known = set(found)
    offsets = [-1, 5, 2**62, *[offset for offset, _ in found]]
    physical_offsets = [-1, 0, 1, store.log_end, 2**62, *[physical for _, physical in found]]
    assert [
        (offset, physical)
        for offset in offsets
        for physical in physical_offsets
        if record_at(offset, physical) and (offset, physical) not in known
    ] == []


def test_it_follows_the_queue(bench: Bench) -> None:
    store = bench.open()
    record_at = store.recent_records("T", 0)
    assert record_at(0, 0) is None
    store.append([message()])
    assert record_at(0, 0) is None  # not dispatched yet
    store.dispatch_now()
    assert record_at(0, 0) is not None
    assert store.recent_records("T", 1)(0, 0) is None


def test_in_later_segments_too(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=bytes([n]) * 1000) for n in range(250)])
    store.dispatch_now()
    found = places(store)
    assert found[-1][1] > 131072
    record_at = store.recent_records("T", 0)
    assert [(record_at(*place) or b"")[88:1088] for place in found] == [bytes([n]) * 1000 for n in range(250)]


def test_what_was_deleted_takes_a_get(bench: Bench) -> None:
    """Also before its queue knows."""
    store = bench.open()
    store.append([message(body=bytes([n]) * 1000) for n in range(250)])
    store.dispatch_now()
    found = places(store)
    record_at = store.recent_records("T", 0)
    store._commit_log.drop_first().close()
    assert [record_at(*place) is not None for place in found] == [physical >= 131072 for _, physical in found]


def test_what_is_from_before_the_start_takes_a_get(bench: Bench, store: MessageStore) -> None:
    found = places(store)
    stop(store)
    store = bench.open()
    store.append([message()])
    store.dispatch_now()
    record_at = store.recent_records("T", 0)
    assert [record_at(*place) for place in found] == [None] * 5
    assert record_at(*places(store)[5]) is not None


def test_what_is_far_behind_takes_a_get(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_reader, "HOT_BYTES_MAX", 300)
    store = bench.open()
    appended = store.append([message(body=b"x") for _ in range(5)])
    assert 2 * appended[0][2] < 300 < 3 * appended[0][2]
    store.dispatch_now()
    record_at = store.recent_records("T", 0)
    assert [record_at(*place) is not None for place in places(store)] == [False, False, False, True, True]


def test_what_is_damaged_takes_a_get(store: MessageStore) -> None:
    found = places(store)
    (_, start), (_, end) = found[2:4]
    store._files.add_damage(Damage("commitlog", start, end, "rotten"))
    record_at = store.recent_records("T", 0)
    assert [record_at(*place) is not None for place in found] == [False, False, False, True, True]


def test_of_a_topic_that_was_removed_nothing_is_found(bench: Bench, store: MessageStore) -> None:
    found = places(store)
    record_at = store.recent_records("T", 0)
    store.remove_topics(["T"])
    turns(bench.clock, 3)
    assert store.bounds("T", 0) == (5, 5)
    assert [record_at(*place) for place in found] == [None] * 5
