"""When old messages go, and what does not go yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from mqbroker.config import StoreSettings
from mqbroker.store.retention import RetentionRules
from tests.store.aging import (
    BODY,
    HOUR_MS,
    NOW_HOUR,
    OTHER_HOUR,
    SEGMENT,
    a_turn,
    age,
    bodies,
    filled,
    names,
    numbered,
    space,
    to_second,
)
from tests.store.harness import START_S, Bench, message, turns

pytestmark = pytest.mark.usefixtures("utc")


def test_at_the_hour_what_is_older_goes_but_never_the_last(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = filled(bench, 4)
    a_turn(bench)
    assert names(bench) == ["0", "1", "2", "3"]
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert names(bench) == ["3"]
    assert store.log_min_offset == 3 * SEGMENT
    assert bodies(store) == numbered(12, 13)
    assert store.stats.deleted_segments == 3
    a_turn(bench)
    assert names(bench) == ["3"]
    assert store.append([message()])[0][1] == 13


@pytest.mark.parametrize(("ago_ms", "goes"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_a_file_goes_when_it_was_not_written_to_for_the_reserved_time(
    make: Callable[..., Bench], ago_ms: int, goes: bool
) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, clean_resource_interval_ms=4000)
    filled(bench, 2)
    ns = int(START_S * 1000 + 4000 - ago_ms) * 1_000_000
    os.utime(bench.root / "commitlog" / f"{0:020d}", ns=(ns, ns))
    to_second(bench, 4)
    assert names(bench) == (["1"] if goes else ["0", "1"])


def test_a_young_file_keeps_the_older_ones_after_it(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    filled(bench, 5)
    age(bench, 2 * HOUR_MS, 0, 2, 3)
    a_turn(bench)
    assert names(bench) == ["1", "2", "3", "4"]


def test_the_hours_are_local(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(delete_when_hours=(3, 15), file_reserved_time_hours=1)
    filled(bench, 3)
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert names(bench) == ["0", "1", "2"]
    monkeypatch.setenv("TZ", "XXX-5")
    time.tzset()
    a_turn(bench)
    assert names(bench) == ["2"]


def test_on_demand_what_is_older_goes_in_the_next_20_turns(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, file_reserved_time_hours=1)
    store = filled(bench, 4)
    age(bench, 2 * HOUR_MS, 0)
    store.delete_expired_files()
    a_turn(bench)
    assert names(bench) == ["1", "2", "3"]
    for _ in range(18):
        a_turn(bench)
    age(bench, 2 * HOUR_MS, 1)
    a_turn(bench)
    assert names(bench) == ["2", "3"]
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert names(bench) == ["2", "3"]


def test_ten_go_in_a_turn_one_after_another(make: Callable[..., Bench]) -> None:
    bench = make(
        delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, delete_commit_log_files_interval_ms=250,
        clean_resource_interval_ms=20_000,
    )  # fmt: skip
    filled(bench, 13)
    age(bench, 2 * HOUR_MS)
    turns(bench.clock, 16.99)
    assert len(names(bench)) == 13
    left = []
    for _ in range(12):
        bench.clock.advance(0.25)
        left.append(len(names(bench)))
    assert left == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 3, 3]
    turns(bench.clock, 20)
    assert names(bench) == ["12"]


def test_nothing_goes_that_is_not_on_the_disk(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, flush_interval_consume_queue_ms=60_000)
    store = bench.open()
    store.start()
    for i in range(9):
        store.append([message(body=b"%06d" % i + BODY)])
    turns(bench.clock, 3)
    assert store.stats.flushed == store.log_end
    age(bench, 2 * HOUR_MS)
    for _ in range(5):
        a_turn(bench)
    assert names(bench) == ["0", "1", "2"]  # consume queues are not synced
    a_turn(bench)
    a_turn(bench)
    assert names(bench) == ["2"]


def test_nothing_goes_when_the_log_cannot_be_synced(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    bench.disk.faults.sync_error = 5
    store.start()
    store.append([message(body=BODY)] * 9)
    turns(bench.clock, 3)
    age(bench, 2 * HOUR_MS)
    bench.disk.faults.space = space(99)
    a_turn(bench)
    assert names(bench) == ["0", "1", "2"]


@pytest.mark.parametrize(("ago_ms", "is_expired"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_the_reserved_time_ends_to_the_millisecond(ago_ms: int, is_expired: bool) -> None:
    rules = RetentionRules.of(StoreSettings(store_path_root_dir="/d", file_reserved_time_hours=1))
    assert rules.is_expired(5 * HOUR_MS - ago_ms, 5 * HOUR_MS) is is_expired


def test_nothing_goes_that_is_not_in_consume_queues(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, message_index_enable=False)
    store = bench.open()
    (bench.root / "consumequeue").write_bytes(b"in the way")
    store.start()
    store.append([message(body=BODY)] * 9)
    turns(bench.clock, 3)
    assert store.stats.flushed == store.log_end
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    a_turn(bench)
    assert names(bench)[:3] == ["0", "1", "2"]
    (bench.root / "consumequeue").unlink()
    a_turn(bench)
    a_turn(bench)
    assert names(bench)[0] == "2"


def test_nothing_goes_that_is_not_in_the_index(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    (bench.root / "index").write_bytes(b"in the way")
    store.start()
    store.append([message(body=BODY)] * 9)
    turns(bench.clock, 3)
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert store.max_offset("T", 0) == 9
    assert names(bench)[:3] == ["0", "1", "2"]
    (bench.root / "index").unlink()
    a_turn(bench)
    assert names(bench)[0] == "2"
