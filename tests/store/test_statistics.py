"""What a store counts of itself: how much was put, how fast, and how long it took."""

from pathlib import Path

import pytest
from twisted.internet.task import Clock

from mqbroker.config import FlushDiskType
from mqbroker.store import dispatch
from mqbroker.store.statistics import StoreStatistics
from tests.store.harness import START_S, make_bench, message, now, turns


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1000.5)
    return clock


@pytest.fixture
def statistics(clock: Clock) -> StoreStatistics:
    return StoreStatistics(clock.seconds, is_sync=False)


def pass_seconds(clock: Clock, statistics: StoreStatistics, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        statistics.sample()


def test_rates_are_known_when_it_ran_that_long(clock: Clock, statistics: StoreStatistics) -> None:
    statistics.sample()
    for _ in range(9):
        statistics.puts += 10
        pass_seconds(clock, statistics, 1)
    assert statistics.rates(10) is None
    statistics.puts += 20
    statistics.found += 5
    statistics.missed += 40
    statistics.got += 160
    pass_seconds(clock, statistics, 1)
    rates = statistics.rates(10)
    assert (rates.puts, rates.found, rates.missed, rates.got) == (11.0, 0.5, 4.0, 16.0)
    assert statistics.rates(60) is None
    pass_seconds(clock, statistics, 50)
    assert statistics.rates(60).puts == 110 / 60
    assert statistics.rates(10).puts == 0.0


def test_samples_are_bounded(clock: Clock, statistics: StoreStatistics) -> None:
    statistics.puts += 6000
    pass_seconds(clock, statistics, 601)
    statistics.puts += 6000
    pass_seconds(clock, statistics, 600)
    assert statistics.rates(600).puts == 10.0
    pass_seconds(clock, statistics, 1)
    assert statistics.rates(600).puts == 0.0
    assert statistics.rates(601) is None


def test_samples_of_one_moment_have_no_rate(statistics: StoreStatistics) -> None:
    statistics.sample()
    statistics.puts += 5
    statistics.sample()
    assert statistics.rates(1).puts == 0.0


@pytest.mark.parametrize(
    ("ms", "place"),
    [(-5, 0), (0, 0), (1, 1), (9, 1), (10, 2), (49, 2), (50, 3), (99, 3), (100, 4), (200, 5), (500, 6), (999, 6),
     (1000, 7), (2000, 8), (3000, 9), (4000, 10), (5000, 11), (9999, 11), (10_000, 12), (10**9, 12)],
)  # fmt: skip
def test_classes_of_times(clock: Clock, statistics: StoreStatistics, ms: int, place: int) -> None:
    now_ms = int(clock.seconds() * 1000)
    statistics.put(3, now_ms - ms)
    assert list(statistics.put_classes) == [0] * 13  # of the last full minute
    pass_seconds(clock, statistics, 60)
    assert list(statistics.put_classes) == [0] * place + [3] + [0] * (12 - place)
    assert statistics.longest_put_ms == max(0, ms)
    pass_seconds(clock, statistics, 60)
    assert list(statistics.put_classes) == [0] * 13
    assert statistics.longest_put_ms == max(0, ms)


def test_percentiles_lie_between_two_bounds(clock: Clock, statistics: StoreStatistics) -> None:
    now_ms = int(clock.seconds() * 1000)
    assert statistics.put_percentile_ms(0.99) == 0.0
    statistics.put(90, now_ms)
    statistics.put(9, now_ms - 22)
    statistics.put(1, now_ms - 60_000)
    pass_seconds(clock, statistics, 60)
    assert statistics.put_percentile_ms(0.45) == 0.5  # half of those up to 1 ms
    assert statistics.put_percentile_ms(0.93) == pytest.approx(20 + 2 * 3 / 9)
    assert statistics.put_percentile_ms(0.99) == 22.0
    assert statistics.put_percentile_ms(1.0) == 10_000.0


def test_a_store_counts_what_it_takes(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    store = bench.open()
    store.start()
    store.append([message("T", 0, b"x" * 100), message("T", 1, b"x" * 100)])
    store.append([message("U", 0, b"x")])
    bench.clock.advance(0.025)  # the turn comes late
    statistics = store.statistics
    assert statistics.began == START_S
    assert statistics.longest_put_ms == 25
    entered = {(queue.topic, queue.queue_id): counts for queue, counts in store.entered.items()}
    size = len(now(store).record(0))
    assert entered == {("T", 0): [1, size], ("T", 1): [1, size], ("U", 0): [1, size - 99]}
    bench.close()


def test_what_was_there_before_the_start_does_not_count(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    store = bench.open()
    store.start()
    store.append([message("T", 0, b"before")])
    turns(bench.clock)
    killed = bench.image("killed")
    bench.close()
    store = killed.open()
    store.start()
    turns(killed.clock)
    assert store.max_offset("T", 0) == 1
    assert store.entered == {}
    killed.close()


def test_what_is_read_back_from_the_log_counts_without_its_time(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, enable_multi_dispatch=True, enable_lmq=True)
    store = bench.open()
    store.start()
    store.append([message("T", 0, b"x", b"INNER_MULTI_DISPATCH\x01%LMQ%lamp")])
    assert store._commit_log.dispatch_queue.take(0, 1) is not None  # as if it had been dropped
    bench.clock.advance(5)
    assert store.statistics.longest_put_ms == 0
    assert {queue.topic for queue in store.entered} == {"T", "%LMQ%lamp"}
    bench.close()


def test_of_puts_that_come_one_by_one_some_are_timed_and_all_are_counted(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    store = bench.open()
    store.start()

    def put(late_s: float, count: int = 1) -> int:
        begin = store.log_end
        for _ in range(count):
            store.append([message("T", 0, b"x")])
        bench.clock.advance(late_s)
        return begin

    put(0.03)
    assert store.statistics.longest_put_ms == 30
    idle_s = dispatch.IDLE_S  # so long a turn is put off, which is not counted
    put(0.04 + idle_s, count=2)
    assert store.statistics.longest_put_ms == 40
    begins = [put(0.05 + idle_s) for _ in range(14)]
    timed = [begin for begin in begins if begin % 7 == 0]
    assert len(timed) == 2
    assert store.statistics.longest_put_ms == 50
    store.statistics.puts += 17  # as who counts them will do
    bench.clock.advance(60)
    store.statistics.sample()
    assert list(store.statistics.put_classes) == [12, 0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    bench.close()


def test_under_sync_flush_a_put_lasts_until_it_is_on_the_disk(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = bench.open()
    store.start()
    turns(bench.clock)
    bench.worker.at_once = False
    (first,) = store.append([message("T", 0, b"one")])
    waiting = [store.durable(first[0] + first[2]), store.durable(first[0] + first[2])]
    bench.clock.advance(0.25)
    assert store.statistics.longest_put_ms == 0
    bench.worker.step()
    bench.worker.at_once = True
    assert [each.called for each in waiting] == [True, True]
    assert store.statistics.longest_put_ms == 250
    for _ in range(60):
        bench.clock.advance(1)
        store.statistics.sample()
    assert list(store.statistics.put_classes) == [0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    bench.close()
