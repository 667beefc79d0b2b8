"""Messages that are not in memory: fetched by the worker before they are touched, and what cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.errors import StoreBusy, StoreDamaged
from mqbroker.kernel import compiled
from mqbroker.store import GetMessageResult, GetMessageStatus, MessageStore, checked_reader
from mqbroker.store.file_cache import CachedFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.page_loader import (
    FORGOTTEN_S,
    LASTING_COUNT,
    LASTING_S,
)
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.record import decode_records
from tests.fakes import FaultyFile
from tests.store.harness import Bench, after_restart, message, now

T = TypeVar("T")


def offsets(found: GetMessageResult) -> list[int]:
    return [record.queue_offset for piece in found.pieces for record in decode_records(piece)]


@pytest.fixture
def store(bench: Bench) -> MessageStore:
    """Twenty messages each of queues 0 and 1 with tags a and b, from before the start; nothing is in memory."""
    store = bench.open()
    store.append(
        [message("T", i % 2, b"%02d" % i * 500, b"KEYS\x01k%d\x02TAGS\x01%c" % (i, 97 + i // 2 % 2)) for i in range(40)]
    )
    store.dispatch_now()
    store = after_restart(bench, store)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    return store


def kept(answer: GetMessageResult | Deferred[T] | Awaitable[T]) -> list[T]:
    """Where the answer will be once it is there."""
    results: list[T] = []
    deferred = answer if isinstance(answer, Deferred) else ensureDeferred(answer)  # type: ignore[arg-type]
    deferred.addCallback(results.append)
    return results


def step_all(bench: Bench) -> int:
    """Let the worker do all there is; says how much that was."""
    steps = 0
    while bench.worker.waiting:
        bench.worker.step()
        steps += 1
    return steps


def why_failed(bench: Bench, waiting: object) -> str:
    """What it fails with, once it was read for, with nothing in memory that was not read for it."""
    said: list[str] = []
    deferred = waiting if isinstance(waiting, Deferred) else ensureDeferred(waiting)  # type: ignore[arg-type]
    deferred.addErrback(lambda failure: said.append(str(failure.trap(StoreDamaged) and failure.value)))
    step_all(bench)
    bench.disk.faults.evict()
    return said[0]


def fail_for_good(bench: Bench, act: Callable[[], object]) -> None:
    """Do what cannot be read as often, over as long, as makes it damage the next time."""
    for _ in range(LASTING_COUNT - 1):
        bench.disk.faults.evict()
        assert "the disk cannot read it" in why_failed(bench, act())
        bench.clock.advance(LASTING_S)


def test_messages_from_before_the_start_come_when_they_are_in_memory(bench: Bench, store: MessageStore) -> None:
    results = kept(store.get("T", 0, 3, 10))
    assert step_all(bench) == 2  # entries, then messages
    (found,) = results
    assert (found.status, offsets(found), found.next_offset) == (GetMessageStatus.FOUND, list(range(3, 13)), 13)
    again = store.get("T", 0, 3, 10)
    assert isinstance(again, GetMessageResult)
    assert again._replace(pieces=[]) == found._replace(pieces=[])
    assert b"".join(again.pieces) == b"".join(found.pieces)


def test_entries_from_before_the_start_are_not_touched_before_they_are_fetched(
    bench: Bench, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    view: Any = CachedFile.view
    monkeypatch.setattr(CachedFile, "view", property(lambda file: (touched.append(file.path), view.fget(file))[1]))
    answer = store.get("T", 0, 3, 10)
    assert isinstance(answer, Deferred)
    assert not touched
    step_all(bench)


def test_what_was_found_whole_is_fetched_again_when_it_left_memory(bench: Bench, store: MessageStore) -> None:
    kept(store.get("T", 0, 0, 20))
    step_all(bench)
    assert isinstance(store.get("T", 0, 0, 20), GetMessageResult)
    log, queue = (str(bench.root / part / f"{0:020d}") for part in ("commitlog", "consumequeue/T/0"))
    for path in (log, queue):
        bench.disk.faults.fetched -= {(path, page) for page in range(1000)}
        results = kept(store.get("T", 0, 0, 20))
        assert not results
        step_all(bench)
        assert offsets(results[0]) == list(range(20))


def test_what_was_found_whole_and_cannot_be_read_any_more(bench: Bench, store: MessageStore) -> None:
    assert now(store).get("T", 0, 0, 20).count == 20
    path, at = str(bench.root / "commitlog" / f"{0:020d}"), now(store).physical_offset("T", 0, 5)
    bench.disk.faults.evict()
    bench.disk.faults.unreadable.add((path, at + 100))
    fail_for_good(bench, lambda: store.get("T", 0, 0, 10))
    results = kept(store.get("T", 0, 0, 10))
    step_all(bench)
    assert offsets(results[0]) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    bench.disk.faults.is_cold = False
    for get in (store.get, store.get):
        found = get("T", 0, 0, 10)
        assert isinstance(found, GetMessageResult)
        assert offsets(found) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_nothing_is_answered_before_it_was_fetched(bench: Bench, store: MessageStore) -> None:
    results = kept(store.get("T", 0, 3, 10))
    for _ in range(2):
        assert not results
        bench.worker.step()
    assert len(results) == 1


def test_what_this_process_appended_is_not_asked_for(bench: Bench, store: MessageStore) -> None:
    store.append([message("T", 0, b"new")] * 3)
    store.dispatch_now()
    found = store.get("T", 0, 20, 32)
    assert isinstance(found, GetMessageResult)
    assert offsets(found) == [20, 21, 22]
    assert not bench.worker.waiting


def test_what_this_process_appended_is_asked_for_when_it_is_far_behind(make: Callable[..., Bench]) -> None:
    bench = make(access_message_in_memory_max_ratio=0)
    store = bench.open()
    store.append([message()] * 20)
    store.dispatch_now()
    bench.disk.faults.evict()
    bench.worker.at_once = False
    results = kept(store.get("T", 0, 0, 32))
    assert step_all(bench) == 2
    assert (results[0].count, results[0].suggest_slave) == (8, True)
    assert store._queues.by_name["T", 0].resident_from == 8
    bench.disk.faults.evict()
    results = kept(store.get("T", 0, 8, 32))
    assert step_all(bench) == 2
    assert results[0].next_offset == 16


def test_what_this_process_appended_is_asked_for_from_some_distance_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_reader, "HOT_BYTES_MAX", 3000)
    store = bench.open()
    store.append([message()] * 40)
    store.dispatch_now()
    near = store.get("T", 0, 30, 10)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    if compiled is not None:  # what was in memory a moment ago is not asked for again
        assert store.get("T", 0, 30, 10) == near
    assert isinstance(near, GetMessageResult)
    assert near.count == 10
    results = kept(store.get("T", 0, 0, 40))
    assert step_all(bench) == 2
    assert (results[0].count, results[0].suggest_slave) == (32, False)
    again = store.get("T", 0, 0, 40)
    assert isinstance(again, GetMessageResult)
    assert b"".join(again.pieces) == b"".join(results[0].pieces)
    bench.disk.faults.evict()
    bench.clock.advance(1)
    later = kept(store.get("T", 0, 30, 10))
    assert later == []
    step_all(bench)
    assert offsets(later[0]) == [*range(30, 40)]


def test_filters_fetch_only_what_they_want(bench: Bench, store: MessageStore) -> None:
    results = kept(store.get("T", 0, 0, 32, None, frozenset([98])))
    step_all(bench)
    assert offsets(results[0]) == list(range(1, 20, 2))
    bench.disk.faults.evict()
    nothing = kept(store.get("T", 0, 0, 32, None, frozenset([1])))
    assert step_all(bench) == 1
    assert (nothing[0].status, nothing[0].next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 20)


def test_units_of_the_extension_are_fetched_before_they_are_looked_at(make: Callable[..., Bench]) -> None:
    bench = make(enable_consume_queue_ext=True)
    store = bench.open()
    store.append([message(properties=b"TAGS\x01%c" % (97 + n % 2)) for n in range(20)])
    store.dispatch_now()
    store = after_restart(bench, store)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    results = kept(store.get("T", 0, 0, 32, None, frozenset([98])))
    assert step_all(bench) == 3
    assert offsets(results[0]) == list(range(1, 20, 2))
    (unit_file,) = {path for path, _, _ in bench.disk.faults.fetches if "consumequeue_ext" in path}
    bench.disk.faults.evict()
    bench.disk.faults.unreadable.add((unit_file, 0))
    answer = store.get("T", 0, 0, 32, None, frozenset([98]))
    assert isinstance(answer, Deferred)
    failures: list[str] = []
    answer.addErrback(lambda failure: failures.append(str(failure.trap(StoreDamaged) and failure.value)))
    step_all(bench)
    assert failures[0].startswith(f"{unit_file} is damaged at byte 0")


@pytest.mark.parametrize(
    ("queue_id", "offset", "status"),
    [
        (0, 20, GetMessageStatus.OFFSET_OVERFLOW_ONE),
        (0, 21, GetMessageStatus.OFFSET_OVERFLOW_BADLY),
        (0, -1, GetMessageStatus.OFFSET_TOO_SMALL),
        (9, 0, GetMessageStatus.NO_MESSAGE_IN_QUEUE),
    ],
)
def test_outcomes_without_messages_wait_for_nothing(
    bench: Bench, store: MessageStore, queue_id: int, offset: int, status: GetMessageStatus
) -> None:
    found = store.get("T", queue_id, offset, 32)
    assert isinstance(found, GetMessageResult)
    assert found.status is status
    assert not bench.worker.waiting


def test_rotten_messages_are_passed_over_when_they_are_in_memory(bench: Bench, store: MessageStore) -> None:
    at = now(store).physical_offset("T", 0, 5)
    with (bench.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at + 200)
        file.write(b"?")
    results = kept(store.get("T", 0, 4, 3))
    step_all(bench)
    assert offsets(results[0]) == [4, 6, 7]
    assert [damage.start for damage in store.corrupt_ranges] == [at]


def test_a_read_that_fails_once_hides_nothing(bench: Bench, store: MessageStore) -> None:
    at = now(store).physical_offset("T", 0, 5)
    path = str(bench.root / "commitlog" / f"{0:020d}")
    for act in (lambda: store.get("T", 0, 3, 5), lambda: store.queries.record(at)):
        bench.disk.faults.evict()
        bench.disk.faults.unreadable.add((path, at + 50))
        for _ in range(20):  # of many who ask at once
            assert why_failed(bench, act()).startswith(f"{path} is damaged at byte {at}: the disk cannot read it")
        bench.clock.advance(FORGOTTEN_S + 1)
    assert not store.corrupt_ranges
    bench.disk.faults.unreadable.clear()
    results = kept(store.get("T", 0, 3, 5))
    record = kept(store.queries.record(at))
    step_all(bench)
    assert offsets(results[0]) == [3, 4, 5, 6, 7]
    assert record == [now(store).record(at)]


def test_a_message_that_cannot_be_read_is_reported_and_the_rest_served(bench: Bench, store: MessageStore) -> None:
    at = now(store).physical_offset("T", 0, 5)
    path = str(bench.root / "commitlog" / f"{0:020d}")
    bench.disk.faults.unreadable.add((path, at + 100))
    fail_for_good(bench, lambda: store.get("T", 0, 3, 5))
    assert not store.corrupt_ranges
    results = kept(store.get("T", 0, 3, 5))
    step_all(bench)
    assert offsets(results[0]) == [3, 4, 6, 7, 8]
    (damage,) = store.corrupt_ranges
    assert (damage.start, damage.end) == (at, now(store).physical_offset("T", 1, 5))
    assert "the disk cannot read it" in damage.why
    fetches = len(bench.disk.faults.fetches)
    again = store.get("T", 0, 3, 5)
    assert isinstance(again, GetMessageResult)
    assert offsets(again) == [3, 4, 6, 7, 8]
    assert len(bench.disk.faults.fetches) == fetches
    assert kept(store.queries.record(at)) == [None]


def test_a_consume_queue_that_cannot_be_read_is_told_and_nothing_passed_over(bench: Bench, store: MessageStore) -> None:
    path = str(bench.root / "consumequeue" / "T" / "0" / f"{0:020d}")
    bench.disk.faults.unreadable.add((path, 90))
    answer = store.get("T", 0, 0, 5)
    assert isinstance(answer, Deferred)
    failures: list[str] = []
    answer.addErrback(lambda failure: failures.append(str(failure.trap(StoreDamaged) and failure.value)))
    step_all(bench)
    assert failures[0].startswith(f"{path} is damaged at byte 0: the disk cannot read it")
    assert "delete" in failures[0]
    bench.disk.faults.unreadable.clear()
    results = kept(store.get("T", 0, 0, 5))
    step_all(bench)
    assert offsets(results[0]) == list(range(5))


@pytest.mark.parametrize("part", ["consumequeue", "commitlog", "index"])
def test_a_want_of_descriptors_is_no_damage(
    bench: Bench, store: MessageStore, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    fetch = FaultyFile.fetch

    def refused(self: FaultyFile, offset: int, size: int) -> None:
        if part in self.path:
            raise OSError(errno.EMFILE, "Too many open files", self.path)
        fetch(self, offset, size)

    def ask() -> Deferred[object]:
        if part == "index":
            return ensureDeferred(store.query("T", "k3", 10, 0, 2**62))
        answer = store.get("T", 0, 0, 5)
        assert isinstance(answer, Deferred)
        return answer  # type: ignore[return-value]

    with monkeypatch.context() as patched:
        patched.setattr(FaultyFile, "fetch", refused)
        failures: list[str] = []
        ask().addErrback(lambda failure: failures.append(str(failure.trap(StoreBusy) and failure.value)))
        step_all(bench)
    (why,) = failures
    assert part in why
    assert "raise the limit of open files (ulimit -n)" in why
    assert "delete" not in why
    assert store.corrupt_ranges == ()
    results = kept(ask())
    step_all(bench)
    assert results


def test_a_segment_that_was_cut_off_ends_nobody(tmp_path: Path) -> None:
    """The real disk: touching bytes beyond the end of a mapped file would be SIGBUS."""
    bench = Bench(tmp_path / "store", *_real())
    store = bench.open()
    store.append([message(body=b"x" * 5000)] * 20)
    store.dispatch_now()
    store = after_restart(bench, store)
    os.truncate(tmp_path / "store" / "commitlog" / f"{0:020d}", 8192)
    got: list[int] = []
    offset = 0
    for _ in range(200):
        answer = maybeDeferred(store.get, "T", 0, offset, 4)
        failed: list[Failure] = []
        answer.addErrback(failed.append)
        if failed:
            failed[0].trap(StoreDamaged)
            bench.clock.advance(LASTING_S / 2)
            continue
        (found,) = kept(answer)
        got += offsets(cast(GetMessageResult, found))
        offset = found.next_offset
        if offset == 20:
            break
    assert got == [0]
    assert len(store.corrupt_ranges) == 19
    assert kept(store.queries.record(store.log_end - 5200)) == [None]


def test_a_segment_deleted_while_it_is_fetched(make: Callable[..., Bench]) -> None:
    bench = make()
    store = bench.open()
    for i in range(40):
        store.append([message("T", 0, b"%05d" % i * 1200)])
    store.dispatch_now()
    store = after_restart(bench, store)
    held = now(store).get("T", 0, 0, 2)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    results = kept(store.get("T", 0, 0, 2))
    bench.worker.step()
    assert not results
    gone = store._commit_log.drop_first()
    gone.close()
    bench.disk.remove(gone.path)
    step_all(bench)
    (found,) = results
    # The queue's minimum has not followed yet.
    assert (found.status, found.min_offset) == (GetMessageStatus.FOUND, 0)
    assert offsets(found)[0] == 21
    assert not store.corrupt_ranges
    assert offsets(held) == [0, 1]


def test_queries_fetch_what_they_touch(bench: Bench, store: MessageStore) -> None:
    at = now(store).physical_offset("T", 0, 7)
    bench.disk.faults.evict()
    record = kept(store.queries.record(at))
    time = kept(store.queries.store_timestamp("T", 0, 7))
    far = kept(store.is_far("T", 0, 7))
    by_time = kept(store.queries.offset_by_time("T", 1, 0))
    by_key = kept(store.query("T", "k14", 9, 0, 2**62))
    assert not record + time + far + by_time + by_key
    assert step_all(bench) > 5
    assert record == [now(store).record(at)]
    assert time == [now(store).store_timestamp("T", 0, 7)]
    assert far == [False]
    assert by_time == [0]
    assert by_key == [(now(store).query("T", "k14", 9, 0, 2**62), 1)]
    assert len(by_key[0].records) == 1


def test_a_query_whose_index_is_deleted_meanwhile_finds_nothing(bench: Bench, store: MessageStore) -> None:
    results = kept(store.query("T", "k14", 9, 0, 2**62))
    assert store._index is not None
    store._index.files[0].forget()
    step_all(bench)
    assert results == [([], 0)]
    store._index.files.clear()


def test_an_index_that_cannot_be_read_is_told(bench: Bench, store: MessageStore) -> None:
    assert store._index is not None
    path = store._index.files[0].file.path
    bench.disk.faults.unreadable.update((path, at) for at in range(0, 500, 10))
    failures: list[str] = []
    ensureDeferred(store.query("T", "k14", 9, 0, 2**62)).addErrback(
        lambda failure: failures.append(str(failure.trap(StoreDamaged) and failure.value))
    )
    step_all(bench)
    assert failures
    assert failures[0].startswith(f"{path} is damaged")


def test_what_never_stays_in_memory_is_not_touched_before_it_was_read(
    bench: Bench, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = now(store).physical_offset("T", 0, 3), now(store).physical_offset("T", 0, 13)
    bench.disk.faults.fetches.clear()
    monkeypatch.setattr(FaultyFile, "is_resident", lambda file, at, size: False)
    results = kept(store.get("T", 0, 3, 10))
    step_all(bench)
    assert offsets(results[0]) == list(range(3, 13))
    log = str(bench.root / "commitlog" / f"{0:020d}")
    read = [(at, at + size) for path, at, size in bench.disk.faults.fetches if path == log]
    assert min(read)[0] <= start
    assert max(stop for _, stop in read) >= end - 700


def test_bytes_that_never_come_to_memory_are_served_all_the_same(bench: Bench, store: MessageStore) -> None:
    """There may be file systems that cannot tell what is in memory."""
    results = kept(store.get("T", 0, 3, 10))
    for _ in range(20):
        if bench.worker.waiting:
            bench.worker.step()
        bench.disk.faults.fetched.clear()
    assert offsets(results[0]) == list(range(3, 13))


def _real() -> tuple[Clock, Any, Any, dict[str, Any]]:
    from tests.store.harness import SMALL

    clock = Clock()
    clock.advance(1_795_255_600.5)
    return clock, OsDisk(), InlineWorker(), {**SMALL}


def test_a_store_stops_after_its_reads(bench: Bench, store: MessageStore) -> None:
    results = kept(store.get("T", 0, 3, 10))
    bench.worker.step()
    reading = bench.worker.waiting.pop()
    bench.worker.at_once = True
    stopped: list[None] = []
    store.stop().addCallback(stopped.append)
    assert not stopped
    bench.worker.waiting.append(reading)
    bench.worker.step()
    assert offsets(results[0]) == list(range(3, 13))
    assert stopped == [None]
