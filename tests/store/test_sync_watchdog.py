"""A disk that hangs: it is told of, and messages are refused while too much is in memory only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher

from mqbroker.errors import StoreUnwritable
from mqbroker.store.flush import LONG_S, SyncWatchdog
from tests.store.harness import Bench, message, now, turns
from tests.store.test_flush import SlowSyncs


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What was logged as a warning or worse, or of messages that are taken again."""
    lines: list[str] = []

    def observe(event: LogEvent) -> None:
        if "sync" in str(event.get("log_format")) or event["log_level"] >= LogLevel.warn:
            lines.append(f"{event['log_level'].name} {event['log_format'].format(**event)}")

    globalLogPublisher.addObserver(cast(ILogObserver, observe))
    yield lines
    globalLogPublisher.removeObserver(cast(ILogObserver, observe))


def test_a_sync_that_does_not_end_is_told_of_and_then_messages_are_refused(
    make: Callable[..., Bench], told: list[str]
) -> None:
    bench = make(unsynced_age_max_ms=10_000)
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    del told[:]
    store.append([message()])
    turns(bench.clock, 0.6)
    assert len(syncs.running) == 1
    turns(bench.clock, LONG_S)
    assert told == []
    turns(bench.clock, 1)
    (line,) = told
    assert "has not ended after 5 s" in line
    assert f"{store.log_end} bytes" in line
    turns(bench.clock, 4)
    assert not store._commit_log.why_refused
    store.append([message()])
    turns(bench.clock, 1.5)
    assert len(told) == 2
    assert "messages are refused" in told[1]
    assert "unsyncedAgeMax" in store._commit_log.why_refused
    with pytest.raises(StoreUnwritable, match="is too slow"):
        store.append([message()])
    turns(bench.clock, 100)
    assert len(told) == 2
    assert now(store).get("T", 0, 0, 32).count == 2  # reads go on
    while syncs.running:
        syncs.end(syncs.running[0])
    turns(bench.clock, 1)
    assert [line.split()[0] for line in told[2:]] == ["warn", "info"]
    assert not store._commit_log.why_refused


def test_syncs_that_end_are_none_that_hang_however_many_there_are(make: Callable[..., Bench], told: list[str]) -> None:
    bench = make(unsynced_age_max_ms=1000)
    store = bench.open(SlowSyncs(bench.clock, 0.9))
    store.start()
    del told[:]
    for _ in range(60):
        store.append([message()])
        turns(bench.clock, 0.5)
    assert told == []
    turns(bench.clock, 3)


def test_the_time_between_two_syncs_is_the_length_of_none(make: Callable[..., Bench], told: list[str]) -> None:
    bench = make()
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    del told[:]
    for pause in (0, 3 * LONG_S, 227, 20):  # a long sync behind it is reported with its own length
        turns(bench.clock, pause)
        store.append([message()])
        turns(bench.clock, 1.5)
        while syncs.running:
            syncs.end(syncs.running[0])
    turns(bench.clock, 60)
    assert told == []
    store.append([message()])
    turns(bench.clock, LONG_S + 3)
    syncs.end(syncs.running[0])
    turns(bench.clock, 1)
    assert [line.split()[0] for line in told] == ["error", "warn"]
    assert told[1].split(" took ")[1] in ("8 s", "9 s")


def test_messages_are_refused_where_the_disk_is_too_slow_for_them_though_each_sync_ends(
    make: Callable[..., Bench], told: list[str]
) -> None:
    bench = make(unsynced_age_max_ms=1000)
    store = bench.open(SlowSyncs(bench.clock, 4))
    store.start()
    del told[:]
    store.append([message()])
    turns(bench.clock, 4)
    assert "messages are refused" in told[0]
    turns(bench.clock, 2)
    assert "messages are accepted again" in told[1]


def test_a_clock_set_forward_makes_no_sync_a_long_one(make: Callable[..., Bench], told: list[str]) -> None:
    bench = make()
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    del told[:]
    store.append([message()])
    turns(bench.clock, 0.6)
    assert len(syncs.running) == 1
    bench.clock.advance(3600)
    turns(bench.clock, 0.5)
    assert (told, not store._commit_log.why_refused) == ([], True)
    syncs.end(syncs.running[0])


def test_an_interval_of_an_hour_is_no_reason_to_refuse(make: Callable[..., Bench], told: list[str]) -> None:
    bench = make(flush_interval_commit_log_ms=3_600_000)
    store = bench.open(SlowSyncs(bench.clock, 0.1))
    store.start()
    del told[:]
    store.append([message()])
    turns(bench.clock, 3500)
    assert (told, not store._commit_log.why_refused, store.flushed) == ([], True, 0)
    turns(bench.clock, 200)
    assert store.flushed == store.log_end


def test_a_look_that_fails_is_not_the_last_one(
    make: Callable[..., Bench], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(unsynced_age_max_ms=10_000)
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    with monkeypatch.context() as patch:
        patch.setattr(SyncWatchdog, "_look_at_age", lambda self: 1 / 0)
        store.start()
        del told[:]
        turns(bench.clock, 3)
    [line] = told
    assert "SyncWatchdog._look failed and is called again every 1 s" in line
    store.append([message()])
    turns(bench.clock, 13)
    assert "unsyncedAgeMax" in store._commit_log.why_refused
    while syncs.running:
        syncs.end(syncs.running[0])
