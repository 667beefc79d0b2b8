"""Flushing: who waits for what, one sync for all, time-outs, and a disk that fails."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.config import StoreSettings
from mqbroker.errors import FlushTimedOut, StoreUnwritable
from mqbroker.store import GetMessageStatus, MessageStore, open_store_in_turns
from mqbroker.store.checkpoint import decode_checkpoint
from mqbroker.store.disk import IMappedFile
from mqbroker.store.flush import AT_ONCE_BYTES, INTERVAL_S_MIN, RUNNING_MAX, LogFlusher
from mqbroker.store.syncs import ISyncs, WorkerSyncs
from tests.fakes import SteppedWorker
from tests.store.harness import SMALL, Bench, message, now, stop


def results(*waiting: Deferred[None]) -> list[object]:
    """A list that gets, in order, None or the error of each."""
    got: list[object] = []

    def done(result: Failure | None) -> None:
        got.append(result.value if isinstance(result, Failure) else None)

    for each in waiting:
        each.addBoth(done)
    return got


def end_of(appended: list[tuple[int, int, int, int]]) -> int:
    return appended[-1][0] + appended[-1][2]


def test_nothing_is_durable_before_its_sync_ended(bench: Bench) -> None:
    store = bench.open()
    bench.worker.at_once = False
    got = results(store.durable(end_of(store.append([message()]))))
    assert got == []
    assert bench.disk.faults.syncs == 0
    bench.worker.step()
    assert got == [None]
    assert bench.disk.faults.syncs == 1
    assert store.flushed == store.log_end


def test_what_is_on_the_disk_is_durable_at_once(bench: Bench) -> None:
    store = bench.open()
    end = end_of(store.append([message()]))
    assert results(store.durable(end)) == [None]
    bench.worker.at_once = False
    assert results(store.durable(end), store.durable(0)) == [None, None]


def test_one_sync_serves_all_who_came_before_it(bench: Bench) -> None:
    store = bench.open()
    bench.worker.at_once = False
    first = results(store.durable(end_of(store.append([message()]))))
    later = results(*(store.durable(end_of(store.append([message()]))) for _ in range(100)))
    bench.worker.step()
    assert (first, later) == ([None], [])  # these were appended while the sync was on its way
    bench.worker.step()
    assert later == [None] * 100
    assert bench.disk.faults.syncs == 2
    assert bench.worker.waiting == []


def test_the_next_sync_is_on_its_way_before_those_of_the_last_are_answered(bench: Bench) -> None:
    store = bench.open()
    bench.worker.at_once = False
    first = store.durable(end_of(store.append([message()])))
    on_their_way: list[int] = []
    first.addCallback(lambda _: on_their_way.append(len(bench.worker.waiting)))
    later = results(store.durable(end_of(store.append([message()]))))
    bench.worker.step()
    assert (on_their_way, later) == ([1], [])
    bench.worker.step()
    assert later == [None]


def test_the_log_may_have_a_worker_of_its_own(bench: Bench) -> None:
    """What takes long on the other must not keep those who wait for a sync."""
    settings = StoreSettings(store_path_root_dir=str(bench.root), **{**SMALL, "message_index_enable": False})
    bench.worker.at_once = False
    log_worker = SteppedWorker()
    log_worker.at_once = False
    opened: list[MessageStore] = []
    open_store_in_turns(
        settings,
        disk=bench.disk,
        clock=bench.clock,
        worker=bench.worker,
        store_host=bench.store_host,
        log_syncs=WorkerSyncs(log_worker),
    ).addCallback(opened.append)
    (store,) = bench.opened = opened
    got = results(store.durable(end_of(store.append([message()]))))
    assert bench.worker.waiting == []
    log_worker.step()
    assert got == [None]


def test_waiting_in_any_order_of_ends(bench: Bench) -> None:
    store = bench.open()
    bench.worker.at_once = False
    one = end_of(store.append([message()]))
    two = end_of(store.append([message()]))
    got = results(store.durable(two), store.durable(one))
    bench.worker.step()
    assert got == [None, None]


def test_all_segments_written_to_are_synced(bench: Bench) -> None:
    store = bench.open()
    got = results(store.durable(end_of(store.append([message(body=b"x" * 100_000)] * 3))))
    assert got == [None]
    assert bench.disk.faults.syncs == 3
    results(store.durable(end_of(store.append([message()]))))
    assert bench.disk.faults.syncs == 4


def test_without_anyone_waiting_the_interval_bounds_what_is_not_synced(make: Callable[..., Bench]) -> None:
    bench = make(flush_interval_commit_log_ms=200)
    store = bench.open()
    store.start()
    store.append([message()])
    bench.clock.advance(0.19)
    assert store.flushed == 0
    bench.clock.advance(0.01)
    assert store.flushed == store.log_end
    syncs = store.stats.flushes
    bench.clock.pump([0.2] * 5)
    assert store.stats.flushes == syncs  # nothing new, nothing to sync


@implementer(ISyncs)
class SlowSyncs:
    """Each sync takes `seconds`, or as long as it takes until it is told to end."""

    def __init__(self, clock: Clock, seconds: float | None = None) -> None:
        self._clock = clock
        self.seconds = seconds
        self.running: list[Deferred[None]] = []
        self.beside = 0

    def sync(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        assert self.running == []
        return self._begin()

    def sync_beside(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        assert self.running != []
        self.beside += 1
        return self._begin()

    def _begin(self) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.running.append(done)
        if self.seconds == 0:
            self.end(done)
        elif self.seconds is not None:
            self._clock.callLater(self.seconds, self.end, done)
        return done

    def end(self, done: Deferred[None], error: OSError | None = None) -> None:
        self.running.remove(done)
        if error is None:
            done.callback(None)
        else:
            done.errback(error)

    def end_all(self) -> None:
        while self.running:
            self.end(self.running[0])


@pytest.mark.parametrize("sync_s", [0.03, 0.3, 0.499, 0.5, 0.9, 1.7, 3.3])
@pytest.mark.parametrize("someone_waits", [False, True])
def test_a_slow_sync_keeps_nothing_in_memory_longer_than_the_interval_and_one_sync(
    make: Callable[..., Bench], sync_s: float, someone_waits: bool
) -> None:
    bench = make(flush_interval_commit_log_ms=500, sync_flush_timeout_ms=60_000)
    store = bench.open(SlowSyncs(bench.clock, sync_s))
    store.start()
    stored: deque[tuple[int, float]] = deque()
    oldest_s = 0.0
    for number in range(700):
        if number < 500:
            end = end_of(store.append([message()]))
            stored.append((end, bench.clock.seconds()))
            if someone_waits and number % 23 == 0:
                store.durable(end)
        bench.clock.advance(0.02)
        while stored and stored[0][0] <= store.flushed:
            stored.popleft()
        if stored:
            oldest_s = max(oldest_s, bench.clock.seconds() - stored[0][1])
    assert not stored
    assert sync_s - 0.021 < oldest_s <= 0.5 + sync_s + 0.021


def test_a_sync_of_very_many_queues_keeps_no_sync_of_the_log_waiting(make: Callable[..., Bench]) -> None:
    """That of the queues does not end here, while the log has one in each interval."""
    bench = make(flush_interval_commit_log_ms=500, mapped_file_size_commit_log=1 << 20)
    store = bench.open(SlowSyncs(bench.clock, 0.1))
    store.start()
    bench.worker.at_once = False
    for number in range(200):
        store.append([message(f"T{number // 4}", number % 4)])
    store.dispatch_now()
    bench.clock.advance(1)
    sync_of_queues = bench.worker.waiting[0]
    for number in range(8):
        end = end_of(store.append([message(f"T{number}")]))
        for _ in range(32):
            bench.clock.advance(0.02)
        assert store.flushed >= end
    assert bench.worker.waiting[0] is sync_of_queues
    bench.worker.at_once = True
    while bench.worker.waiting:
        bench.worker.step()


def test_syncs_beside_others_are_no_more_than_so_many_and_the_next_begins_as_one_ends(bench: Bench) -> None:
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    ends = []
    for number in range(1, RUNNING_MAX + 3):
        ends.append(end_of(store.append([message()])))
        bench.clock.advance(0.5)
        assert len(syncs.running) == min(number, RUNNING_MAX)
    assert syncs.beside == RUNNING_MAX - 1
    syncs.end(syncs.running[0])
    assert store.flushed == ends[0]
    assert len(syncs.running) == RUNNING_MAX
    bench.clock.advance(5)  # nothing new
    assert len(syncs.running) == RUNNING_MAX
    syncs.end_all()
    assert store.flushed == store.log_end


def test_a_sync_beside_another_counts_when_that_has_ended(bench: Bench) -> None:
    """What the other fails on is told to one of them only, where that came first."""
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    one = results(store.durable(end_of(store.append([message()]))))
    two = results(store.durable(end_of(store.append([message()]))))
    bench.clock.advance(0.5)
    first, second = syncs.running
    syncs.end(second)
    assert (one, two, store.flushed) == ([], [], 0)
    syncs.end(first)
    assert (one, two, store.flushed) == ([None], [None], store.log_end)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_sync_is_final_whatever_others_beside_it_say(bench: Bench, failing: int) -> None:
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    got = results(store.durable(end_of(store.append([message()]))))
    store.append([message()])
    bench.clock.advance(0.5)
    running = list(syncs.running)
    syncs.end(running[failing], OSError(errno.EIO, "Input/output error"))
    assert [type(error) for error in got] == [StoreUnwritable]
    syncs.end(running[1 - failing])
    assert (store.flushed, not store._commit_log.why_refused) == (0, False)


def test_no_file_for_a_sync_beside_another_is_tried_when_that_has_ended(bench: Bench) -> None:
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    got = results(store.durable(end_of(store.append([message()]))))
    store.append([message()])
    bench.clock.advance(0.5)
    syncs.end(syncs.running[1], OSError(errno.EMFILE, "Too many open files"))
    assert (got, not store._commit_log.why_refused) == ([], True)
    syncs.end(syncs.running[0])
    assert got == [None]
    (again,) = syncs.running
    syncs.end(again)
    assert store.flushed == store.log_end


def test_what_comes_fast_is_synced_in_small_parts(make: Callable[..., Bench]) -> None:
    """Much at once would hold up those who send meanwhile."""
    bench = make(flush_interval_commit_log_ms=500, mapped_file_size_commit_log=16 * 1024 * 1024)
    store = bench.open()
    store.start()
    waited: list[int] = []
    for _ in range(200):  # 10 MB a second, for two
        store.append([message(body=b"x" * 100_000)])
        waited.append(store.log_end - store.flushed)
        bench.clock.advance(0.01)
    assert max(waited[:50]) > 8 * AT_ONCE_BYTES  # of which nothing was known before
    assert max(waited[60:]) < AT_ONCE_BYTES * 5 // 4
    syncs = store.stats.flushes
    assert syncs < 50
    for _ in range(200):  # slow again
        store.append([message()])
        bench.clock.advance(0.01)
    assert 4 <= store.stats.flushes - syncs <= 6


def test_however_fast_it_comes_syncs_are_no_more_often_than_that(make: Callable[..., Bench]) -> None:
    bench = make(flush_interval_commit_log_ms=500, mapped_file_size_commit_log=64 * 1024 * 1024)
    store = bench.open()
    store.start()
    bench.clock.advance(0.5)
    for _ in range(500):  # 100 MB a second, for a second
        store.append([message(body=b"x" * 100_000)] * 2)
        bench.clock.advance(0.002)
    assert 20 < store.stats.flushes <= 1 / INTERVAL_S_MIN + 2


def test_the_next_segment_is_made_when_a_quarter_of_one_is_full_not_at_the_next_tick(bench: Bench) -> None:
    """One that fills in less than an interval would be full before the next was there."""
    store = bench.open()
    store.start()
    following = bench.root / "commitlog" / f"{SMALL['mapped_file_size_commit_log']:020d}"
    store.append([message(body=b"x" * 32_000)])
    bench.clock.advance(0)
    assert not following.exists()
    store.append([message(body=b"x" * 2000)])
    bench.clock.advance(0)
    assert following.exists()
    stop(store)
    assert bench.clock.getDelayedCalls() == []


def test_who_waits_too_long_is_told(make: Callable[..., Bench]) -> None:
    bench = make(sync_flush_timeout_ms=3000)
    store = bench.open()
    bench.worker.at_once = False
    first = results(store.durable(end_of(store.append([message()]))))
    bench.clock.advance(2)
    second = results(store.durable(end_of(store.append([message()]))))
    bench.clock.advance(0.9)
    assert first == []
    bench.clock.advance(0.1)
    assert isinstance(first[0], FlushTimedOut)
    assert second == []
    bench.worker.step()
    bench.worker.step()
    assert second == [None]
    assert len(first) == 1
    bench.clock.advance(3)
    assert (len(first), second) == (1, [None])
    assert bench.clock.getDelayedCalls() == []
    assert not store._commit_log.why_refused


def test_giving_up_waiting_harms_nobody(bench: Bench) -> None:
    store = bench.open()
    bench.worker.at_once = False
    end = end_of(store.append([message()]))
    gone, stays = store.durable(end), store.durable(end)
    left, got = results(gone), results(stays)
    gone.cancel()
    bench.worker.step()
    assert isinstance(left[0], CancelledError)
    assert got == [None]


def test_a_failed_sync_fails_all_who_wait_and_stops_writes_for_good(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message()])
    bench.clock.advance(0)
    bench.worker.at_once = False
    end = end_of(store.append([message()]))
    got = results(store.durable(end), store.durable(end))
    late = results(store.durable(end_of(store.append([message()]))))
    bench.disk.faults.sync_error = errno.EIO
    bench.worker.step()
    assert [type(error) for error in got + late] == [StoreUnwritable] * 3
    assert store._commit_log.why_refused
    assert "Input/output error" in store._commit_log.why_refused
    with pytest.raises(StoreUnwritable, match="Input/output error"):
        store.append([message()])
    assert isinstance(results(store.durable(end))[0], StoreUnwritable)
    # The kernel does not report an error twice: a later sync that succeeds proves nothing.
    bench.disk.faults.sync_error = None
    bench.worker.at_once = True
    bench.clock.advance(5)
    assert store._commit_log.why_refused
    assert store.flushed == 0
    # Reads go on.
    assert now(store).get("T", 0, 0, 32).status is GetMessageStatus.FOUND
    assert store.max_offset("T", 0) == 3
    stop(store)
    # It was no clean stop, and the checkpoint covers nothing.
    assert (bench.root / "abort").exists()


class NoMemory(WorkerSyncs):
    """Syncs that cannot be begun any more once memory is out."""

    is_out = False

    def sync(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        if self.is_out:
            raise MemoryError
        return super().sync(files, then)


def out_of_memory(*_: object) -> None:
    raise MemoryError


def test_a_sync_that_cannot_be_begun_counts_as_failed_and_what_is_on_the_disk_as_that(bench: Bench) -> None:
    syncs = NoMemory(bench.worker)
    store = bench.open(log_syncs=syncs)
    bench.worker.at_once = False
    first = results(store.durable(end_of(store.append([message()]))))
    second = results(store.durable(end_of(store.append([message()]))))
    syncs.is_out = True
    bench.worker.step()
    assert first == [None]
    assert [type(error) for error in second] == [StoreUnwritable]
    assert "restart the broker: MemoryError" in store._commit_log.why_refused
    bench.worker.at_once = True
    stop(store)


def test_a_note_in_the_checkpoint_that_cannot_be_begun_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    store.start()
    for _ in range(2):
        end = end_of(store.append([message()]))
        monkeypatch.setattr(store._log_flusher._syncs, "sync_beside", out_of_memory)
        monkeypatch.setattr(store._log_flusher, "_note", out_of_memory)  # nor beside the sync
        store._commit_log.doubtful_end = end
        bench.worker.at_once = False
        first = results(store.durable(end))
        second = results(store.durable(end))
        bench.worker.at_once = True
        bench.worker.work()
        assert [type(error) for error in [*first, *second]] == [StoreUnwritable] * 2
        monkeypatch.undo()
        assert results(store.durable(end)) == [None]
    stop(store)


def test_a_sync_whose_end_is_not_noticed_counts_as_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFlusher, "_ended", out_of_memory)
    store = bench.open()
    got = results(store.durable(end_of(store.append([message()]))))
    assert [type(error) for error in got] == [StoreUnwritable]
    assert "restart the broker: MemoryError" in store._commit_log.why_refused
    stop(store)


def test_after_an_error_behind_a_sync_the_next_tick_serves_who_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    store.start()
    bench.worker.at_once = False
    got = results(store.durable(end_of(store.append([message()]))))
    with monkeypatch.context() as patched:
        patched.setattr(LogFlusher, "_synced", out_of_memory)
        bench.worker.step()
    assert got == []
    bench.worker.at_once = True
    bench.clock.advance(1)
    assert not store._commit_log.why_refused
    assert got == [None]
    stop(store)


def test_a_failed_sync_has_a_start_after_a_kill_trust_the_log_as_little_as_after_a_power_cut(bench: Bench) -> None:
    """The kernel may forget pages that it could not write, and read the old ones again."""
    store = bench.open()
    store.start()
    store.append([message()])
    bench.disk.faults.sync_error = errno.EIO
    bench.clock.pump([0.5] * 4)  # of the log, and then of consume queues
    assert store._commit_log.why_refused
    bench.disk.faults.sync_error = None
    bench.clock.pump([0.5] * 6)  # queues are synced; the log stays what it is
    found = decode_checkpoint((bench.root / "checkpoint").read_bytes())
    assert (found.log_offset, found.queues_offset) == (0, None)  # none are counted above what is synced of the log
    assert (bench.root / "abort").read_bytes() not in (b"", bench.disk.boot)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_sync_for_which_no_file_could_be_opened_is_tried_again(bench: Bench, number: int) -> None:
    store = bench.open()
    store.start()
    bench.worker.at_once = False
    end = end_of(store.append([message()]))
    got = results(store.durable(end))
    bench.disk.faults.sync_error = number
    bench.worker.step()
    assert isinstance(got[0], StoreUnwritable)
    assert "limit of open files" in str(got[0])
    assert not store._commit_log.why_refused
    bench.disk.faults.sync_error = None
    bench.worker.at_once = True
    end = end_of(store.append([message()]))
    bench.clock.advance(5)
    assert store.flushed == end
    stop(store)


def test_stopping_syncs_everything(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message(queue_id=i) for i in range(3)])
    bench.worker.at_once = False
    stopped: list[object] = []
    store.stop().addCallback(stopped.append)
    assert bench.disk.faults.syncs == 0
    while bench.worker.waiting:
        assert stopped == []
        bench.worker.step()
    assert stopped == [None]
    assert bench.disk.faults.syncs == 5  # log, three queues, index
    assert not (bench.root / "abort").exists()
    assert bench.clock.getDelayedCalls() == []


def test_stopping_waits_for_a_sync_longer_than_who_sends(make: Callable[..., Bench]) -> None:
    bench = make(sync_flush_timeout_ms=3000)
    store = bench.open()
    store.start()
    store.append([message()])
    bench.worker.at_once = False
    stopped: list[object] = []
    store.stop().addCallback(stopped.append)
    bench.clock.pump([1] * 20)
    assert stopped == []
    while bench.worker.waiting:
        bench.worker.step()
    assert stopped == [None]
    assert not (bench.root / "abort").exists()
    assert bench.clock.getDelayedCalls() == []


def test_names_of_new_files_are_synced_before_anything_relies_on_them(bench: Bench) -> None:
    store = bench.open()
    store.start()
    synced = bench.disk.faults.synced_directories
    assert synced == {str(path) for path in (bench.root / "commitlog", bench.root, *list(bench.root.parents)[:2])}
    synced.clear()
    got = results(store.durable(end_of(store.append([message(body=b"x" * 100_000)] * 3))))
    assert got == [None]
    assert synced == {str(bench.root / "commitlog")}
    bench.clock.advance(0)
    bench.clock.advance(1)
    queues = bench.root / "consumequeue"
    assert {str(queues), str(queues / "T"), str(queues / "T" / "0")} <= synced
    bench.clock.pump([1] * 10)
    assert str(bench.root / "index") in synced
    synced.clear()
    store.append([message()])
    bench.clock.pump([1] * 12)
    assert synced == set()


def test_all_who_wait_for_a_failed_sync_fail_also_where_the_failure_cannot_be_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    monkeypatch.setattr(store._log_flusher, "_on_failed", out_of_memory)
    bench.worker.at_once = False
    got = results(*(store.durable(end_of(store.append([message()]))) for _ in range(3)))
    bench.disk.faults.sync_error = errno.EIO
    bench.worker.step()
    assert [type(error) for error in got] == [StoreUnwritable] * 3
    assert store._commit_log.why_refused
    bench.disk.faults.sync_error = None
    bench.worker.at_once = True
    stop(store)
