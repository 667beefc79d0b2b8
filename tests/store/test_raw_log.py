"""The log as bytes: at once what is resident, the rest after the worker has read it."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from mqbroker.store import MessageStore
from tests.store.harness import Bench, after_restart, message
from tests.store.test_cold_reads import step_all


def fill(store: MessageStore, count: int = 40) -> bytes:
    """Append messages; returns the log."""
    store.append([message("T", 0, b"%02d" % n * 500) for n in range(count)])
    found = store.raw_log.read(0, store.raw_log.end)
    assert isinstance(found, memoryview)
    return bytes(found)


def waiting(found: Deferred[bytes] | memoryview) -> list[bytes]:
    assert isinstance(found, Deferred)
    results: list[bytes] = []
    found.addCallback(results.append)
    return results


@pytest.fixture
def store(bench: Bench) -> MessageStore:
    return bench.open()


def test_what_was_appended_is_read_at_once(store: MessageStore) -> None:
    log = fill(store)
    assert (store.raw_log.start, store.raw_log.end) == (0, len(log))
    found = store.raw_log.read(1000, 5000)
    assert isinstance(found, memoryview)
    assert bytes(found) == log[1000:6000]


def test_what_was_evicted_is_read_by_the_worker(bench: Bench, store: MessageStore) -> None:
    log = fill(store)
    store.dispatch_now()
    store = after_restart(bench, store)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    results = waiting(store.raw_log.read(8192, 5000))
    assert results == []
    step_all(bench)
    assert results == [log[8192 : 8192 + 5000]]


def test_growth_is_told(store: MessageStore) -> None:
    told: list[int] = []
    store.raw_log.on_growth.append(lambda: told.append(store.raw_log.end))
    fill(store, 1)
    store.dispatch_now()
    assert len(told) == 1
    fill(store, 1)
    assert len(told) == 2
