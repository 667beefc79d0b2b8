"""A disk that hangs: it is told of, and messages are refused while too much is in memory only."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher

from mqbroker.errors import FlushTimedOut, StoreUnwritable
from mqbroker.store import MessageStore
from mqbroker.store.flush import LONG_S, SyncWatchdog
from tests.store.harness import Bench, message, now, stop, turns
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


def started(
    make: Callable[..., Bench], told: list[str], *, sync_s: float | None = None, **settings: int
) -> tuple[Bench, SlowSyncs, MessageStore]:
    """A store whose syncs are slow; what it logs at its start is not in `told`."""
    bench = make(**settings)
    syncs = SlowSyncs(bench.clock, sync_s)
    store = bench.open(syncs)
    store.start()
    del told[:]
    return bench, syncs, store


def test_a_sync_that_does_not_end_is_told_of_and_then_messages_are_refused(
    make: Callable[..., Bench], told: list[str]
) -> None:
    bench, syncs, store = started(make, told, unsynced_age_max_ms=10_000)
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
    syncs.end_all()
    turns(bench.clock, 1)
    assert [line.split()[0] for line in told[2:]] == ["warn", "info"]
    assert not store._commit_log.why_refused


def test_where_no_file_can_be_opened_the_disk_is_not_blamed(make: Callable[..., Bench], told: list[str]) -> None:
    bench = make(unsynced_age_max_ms=10_000)
    store = bench.open()
    store.start()
    del told[:]
    for _ in range(2):  # the second time is as the first
        bench.disk.faults.sync_error, bench.disk.faults.failing = errno.EMFILE, "commitlog"
        store.append([message()])
        turns(bench.clock, 30)
        assert len(told) == 2
        assert all("raise the limit of open files" in line for line in told)
        assert told[1].startswith("error messages are refused: ")
        assert not [line for line in told if "iostat" in line]
        with pytest.raises(StoreUnwritable, match=r"raise the limit of open files.*unsyncedAgeMax"):
            store.append([message()])
        bench.disk.faults.sync_error = None
        turns(bench.clock, 3)
        assert [line.split(": ")[0] for line in told[2:]] == ["info messages are accepted again"]
        del told[:]
    stop(store)


def test_where_a_sync_hangs_after_a_lack_of_files_the_disk_is_the_reason(
    make: Callable[..., Bench], told: list[str]
) -> None:
    bench, syncs, store = started(make, told, unsynced_age_max_ms=10_000)
    store.append([message()])
    turns(bench.clock, 0.6)
    syncs.end(syncs.running[0], OSError(errno.EMFILE, "Too many open files"))
    turns(bench.clock, 14)
    assert [line for line in told if "messages are refused" in line] == [
        line for line in told if "is too slow: check the disk" in line
    ]
    syncs.end_all()


def test_where_the_checkpoint_cannot_be_written_that_is_the_reason(
    make: Callable[..., Bench], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(end: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bench = make(unsynced_age_max_ms=10_000)
    store = bench.open()
    store.start()
    store.append([message()])
    del told[:]
    with monkeypatch.context() as patch:
        patch.setattr(store._log_flusher, "_note_durable", no_room)
        store._commit_log.doubtful_end = store._commit_log.end
        turns(bench.clock, 30)
    assert len(told) == 2
    assert "the checkpoint cannot be written (trying again): [Errno 28]" in told[0]
    assert told[1].startswith("error messages are refused: the checkpoint cannot be written: [Errno 28]")
    assert "iostat" not in told[1]
    turns(bench.clock, 3)
    assert not store._commit_log.why_refused
    stop(store)


def test_a_sync_that_failed_is_one_alarm(make: Callable[..., Bench], told: list[str]) -> None:
    bench = make(unsynced_age_max_ms=10_000)
    store = bench.open()
    store.start()
    del told[:]
    bench.disk.faults.sync_error, bench.disk.faults.failing = errno.EIO, "commitlog"
    store.append([message()])
    turns(bench.clock, 60)
    assert [line.split()[0] for line in told if "commit log" in line or "refused" in line] == ["critical"]
    assert "restart the broker" in store._commit_log.why_refused
    bench.disk.faults.sync_error = None


def test_a_send_that_gives_up_waiting_gets_the_known_reason(make: Callable[..., Bench], told: list[str]) -> None:
    bench, syncs, store = started(make, told, sync_flush_timeout_ms=2000)
    store.append([message()])
    turns(bench.clock, 0.6)
    store.append([message()])
    failed: list[Any] = []
    store.durable(store.log_end).addErrback(failed.append)
    turns(bench.clock, 0.6)
    syncs.end(syncs.running[1], OSError(errno.EMFILE, "Too many open files"))
    turns(bench.clock, 3)
    assert [failure.type for failure in failed] == [FlushTimedOut]
    assert "raise the limit of open files" in str(failed[0].value)
    syncs.end_all()


def test_syncs_that_end_are_none_that_hang_however_many_there_are(make: Callable[..., Bench], told: list[str]) -> None:
    bench, _, store = started(make, told, sync_s=0.9, unsynced_age_max_ms=1000)
    for _ in range(60):
        store.append([message()])
        turns(bench.clock, 0.5)
    assert told == []
    turns(bench.clock, 3)


def test_the_time_between_two_syncs_is_the_length_of_none(make: Callable[..., Bench], told: list[str]) -> None:
    bench, syncs, store = started(make, told)
    for pause in (0, 3 * LONG_S, 227, 20):  # a long sync behind it is reported with its own length
        turns(bench.clock, pause)
        store.append([message()])
        turns(bench.clock, 1.5)
        syncs.end_all()
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
    bench, _, store = started(make, told, sync_s=4, unsynced_age_max_ms=1000)
    store.append([message()])
    turns(bench.clock, 4)
    assert "messages are refused" in told[0]
    turns(bench.clock, 2)
    assert "messages are accepted again" in told[1]


def test_a_clock_set_forward_makes_no_sync_a_long_one(make: Callable[..., Bench], told: list[str]) -> None:
    bench, syncs, store = started(make, told)
    store.append([message()])
    turns(bench.clock, 0.6)
    assert len(syncs.running) == 1
    bench.clock.advance(3600)
    turns(bench.clock, 0.5)
    assert (told, not store._commit_log.why_refused) == ([], True)
    syncs.end(syncs.running[0])


def test_an_interval_of_an_hour_is_no_reason_to_refuse(make: Callable[..., Bench], told: list[str]) -> None:
    bench, _, store = started(make, told, sync_s=0.1, flush_interval_commit_log_ms=3_600_000)
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
    syncs.end_all()
