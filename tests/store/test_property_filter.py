"""Gets that ask more of messages than their tags codes: what they find, also where it is not in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from twisted.internet.defer import Deferred
from zope.interface import implementer
from zope.interface.verify import verifyObject

from mqbroker.store import GetMessageResult, GetMessageStatus, MessageStore
from mqbroker.store import message_reader as module
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_records
from tests.store.harness import Bench, after_restart, message, now
from tests.store.test_cold_reads import fail_for_good, kept, offsets, step_all


@implementer(IPropertyFilter)
class Matching:
    """Wants messages with one of the numbers; keeps what it was asked."""

    def __init__(self, *numbers: int, units: Callable[[ExtUnit], bool] = lambda unit: True) -> None:
        self.wanted = {b"%03d" % number for number in numbers}
        self.units = units
        self.most_at_once = 800
        self.asked: list[int] = []

    def may_match(self, unit: ExtUnit) -> bool:
        return self.units(unit)

    def pick(self, messages: Sequence[bytes], most: int) -> list[int]:
        picked: list[int] = []
        for place, properties in enumerate(messages):
            number = properties.partition(b"N\x01")[2][:3]
            self.asked.append(int(number or b"-1"))
            if number in self.wanted:
                picked.append(place)
            if len(picked) == most:
                break
        return picked


def fill(store: MessageStore, count: int, size: int = 10) -> None:
    store.append([message("T", 0, b"x" * size, b"N\x01%03d\x02TAGS\x01%c" % (i, 97 + i % 2)) for i in range(count)])
    store.dispatch_now()


def found(answer: GetMessageResult | Deferred[GetMessageResult]) -> GetMessageResult:
    assert isinstance(answer, GetMessageResult)
    return answer


@pytest.fixture
def store(bench: Bench) -> MessageStore:
    store = bench.open()
    fill(store, 40)
    return store


def test_the_seam() -> None:
    assert verifyObject(IPropertyFilter, Matching())


def test_messages_are_picked(store: MessageStore) -> None:
    property_filter = Matching(3, 4, 30)
    for get in (store.get, store.get):
        result = found(get("T", 0, 2, 32, property_filter=property_filter))
        assert (result.status, offsets(result), result.count) == (GetMessageStatus.FOUND, [3, 4, 30], 3)
        assert (result.next_offset, result.min_offset, result.max_offset) == (40, 0, 40)
    assert property_filter.asked == [*range(2, 40)] * 2


def test_as_many_are_picked_as_are_asked_for(store: MessageStore) -> None:
    property_filter = Matching(3, 4, 30, 31)
    result = found(store.get("T", 0, 0, 2, property_filter=property_filter))
    assert (offsets(result), result.next_offset) == ([3, 4], 5)
    result = found(store.get("T", 0, 5, 2, property_filter=property_filter))
    assert (offsets(result), result.next_offset) == ([30, 31], 32)
    size = len(result.pieces[0]) // 2
    result = found(store.get("T", 0, 0, 32, size + 1, property_filter=property_filter))
    assert (offsets(result), result.next_offset) == ([3], 4)


def test_none_is_picked(store: MessageStore) -> None:
    result = found(store.get("T", 0, 1, 32, property_filter=Matching()))
    assert (result.status, result.count, result.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 0, 40)
    result = found(store.get("T", 0, 40, 32, property_filter=Matching()))
    assert (result.status, result.next_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 40)


def test_a_get_looks_at_so_many_at_most(bench: Bench) -> None:
    store = bench.open()
    fill(store, 999)
    result = found(store.get("T", 0, 0, 32, property_filter=Matching(900)))
    assert result.status is GetMessageStatus.NO_MATCHED_MESSAGE
    assert 0 < result.next_offset <= 800
    while result.status is not GetMessageStatus.FOUND:
        result = found(store.get("T", 0, result.next_offset, 32, property_filter=Matching(900)))
    assert offsets(result) == [900]


def test_a_get_looks_at_no_more_than_the_matching_says(bench: Bench) -> None:
    store = bench.open()
    fill(store, 40)
    property_filter = Matching(3, 20)
    property_filter.most_at_once = 7
    seen = 0
    for expected in ([3], [], [20]):
        result = found(store.get("T", 0, seen, 32, property_filter=property_filter))
        seen += 7
        assert (offsets(result), result.next_offset) == (expected, seen)
    store = after_restart(bench, store)
    result = found(now(store).get("T", 0, 14, 32, property_filter=property_filter))
    assert (offsets(result), result.next_offset) == ([20], 21)


def test_tags_are_looked_at_first(store: MessageStore) -> None:
    property_filter = Matching(3, 4, 5)
    result = found(store.get("T", 0, 0, 32, None, {java_hash("b")}, property_filter))
    assert offsets(result) == [3, 5]
    assert property_filter.asked == [*range(1, 40, 2)]


def test_removed_messages_are_passed_over(make: Callable[..., Bench]) -> None:
    bench = make(mapped_file_size_commit_log=4096)
    store = bench.open()
    fill(store, 40, 300)
    first = store._commit_log.segments[0]
    store._commit_log.segments = store._commit_log.segments[1:]
    store._commit_log.min_offset += 4096
    result = found(now(store).get("T", 0, 0, 1, property_filter=Matching(*range(40))))
    assert result.status is GetMessageStatus.FOUND
    assert offsets(result)[0] > 0
    result = found(now(store).get("T", 0, 0, 1, property_filter=Matching()))
    assert (result.status, result.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 40)
    first.close()


# Units


@pytest.fixture
def extended(make: Callable[..., Bench]) -> Bench:
    return make(enable_consume_queue_ext=True)


def test_units_may_rule_messages_out(extended: Bench) -> None:
    store = extended.open()
    fill(store, 10)
    units: list[ExtUnit] = []

    def is_even(unit: ExtUnit) -> bool:
        units.append(unit)
        return unit.tags_code == java_hash("a")

    property_filter = Matching(2, 3, 4, units=is_even)
    assert offsets(found(store.get("T", 0, 0, 32, property_filter=property_filter))) == [2, 4]
    assert property_filter.asked == [0, 2, 4, 6, 8]
    assert [unit.tags_code for unit in units] == [java_hash("ab"[i % 2]) for i in range(10)]
    property_filter = Matching(2, 3, 4, units=is_even)
    assert offsets(found(store.get("T", 0, 0, 32, None, {java_hash("b")}, property_filter))) == []
    assert property_filter.asked == []


def test_units_that_are_not_in_memory_are_fetched_first(extended: Bench) -> None:
    store = extended.open()
    fill(store, 10)
    store = after_restart(extended, store)
    extended.disk.faults.evict()
    extended.worker.at_once = False
    property_filter = Matching(2, 3, 4, units=lambda unit: unit.tags_code == java_hash("a"))
    results = kept(store.get("T", 0, 0, 32, property_filter=property_filter))
    assert step_all(extended) == 3  # entries, units, messages
    assert offsets(results[0]) == [2, 4]
    assert property_filter.asked == [0, 2, 4, 6, 8]


def test_without_its_unit_a_message_may_match(extended: Bench) -> None:
    store = extended.open()
    fill(store, 4)
    store._queues.by_name["T", 0].ext = None
    property_filter = Matching(1, units=lambda unit: False)
    assert offsets(found(store.get("T", 0, 0, 32, property_filter=property_filter))) == [1]


# What is not in memory


@pytest.fixture
def page_loader(bench: Bench) -> MessageStore:
    """Messages over some ten blocks that are fetched, from before the start; nothing is in memory."""
    store = bench.open()
    fill(store, 100, 6000)
    store = after_restart(bench, store)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    return store


def test_messages_are_looked_at_when_they_are_in_memory(bench: Bench, page_loader: MessageStore) -> None:
    property_filter = Matching(3, 4)
    results = kept(page_loader.get("T", 0, 0, 2, property_filter=property_filter))
    assert not results
    assert step_all(bench) == 2
    assert offsets(results[0]) == [3, 4]
    assert max(property_filter.asked) == 4


def test_a_get_that_fetched_often_ends_with_what_it_has(
    bench: Bench, page_loader: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOADS_MAX", 3)
    seen, answers = 0, 0
    picked: list[int] = []
    while seen < 100:
        results = kept(page_loader.get("T", 0, seen, 32, property_filter=Matching(3, 70)))
        assert step_all(bench) <= 4
        (answer,) = results
        assert answer.next_offset > seen
        assert answer.status is (GetMessageStatus.FOUND if answer.count else GetMessageStatus.NO_MATCHED_MESSAGE)
        picked += [record.queue_offset for piece in answer.pieces for record in decode_records(piece)]
        seen = answer.next_offset
        answers += 1
    assert picked == [3, 70]
    assert answers > 1


def test_a_message_that_cannot_be_read_is_left_out(bench: Bench, page_loader: MessageStore) -> None:
    at = now(page_loader).physical_offset("T", 0, 3)
    bench.disk.faults.evict()
    bench.disk.faults.unreadable.add((str(bench.root / "commitlog" / f"{0:020d}"), at + 100))
    fail_for_good(bench, lambda: page_loader.get("T", 0, 0, 2, property_filter=Matching(2, 3, 4)))
    property_filter = Matching(2, 3, 4)
    results = kept(page_loader.get("T", 0, 0, 2, property_filter=property_filter))
    step_all(bench)
    assert offsets(results[0]) == [2, 4]
    assert 3 not in property_filter.asked
