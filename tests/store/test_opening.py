"""Opening a store in turns: what is said meanwhile, and what a kill in the middle leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from mqbroker.config import StoreSettings
from mqbroker.errors import StoreDamaged
from mqbroker.store import MessageStore, open_store_in_turns
from mqbroker.store.checkpoint import decode_checkpoint
from mqbroker.store.stepwise import SAY_EVERY_S, TURN_S, Progress, Steps, run_at_once, run_in_turns
from tests.store.harness import SMALL, Bench, make_bench, message, stop, tree, turns

COUNT = 5000


class SlowClock(Clock):
    """Each look at it takes some time."""

    look_s = TURN_S

    def seconds(self) -> float:
        self.rightNow += self.look_s
        return self.rightNow

    def step(self) -> None:
        """Make the next call that is due, and no other: `advance` would make those too that it leads to."""
        call = self.calls.pop(0)
        call.called = True
        call.func(*call.args)


@pytest.fixture
def unindexed(tmp_path: Path) -> Bench:
    """A store that was stopped, and whose consume queues someone deleted."""
    bench = make_bench(tmp_path / "store", mapped_file_size_consume_queue=200_000)
    store = bench.open()
    for start in range(0, COUNT, 100):
        store.append([message(queue_id=number % 3, body=b"%d" % number) for number in range(start, start + 100)])
    stop(store)
    bench.disk.remove_tree(str(bench.root / "consumequeue"))
    return bench


def begin(bench: Bench, clock: Clock) -> Deferred[MessageStore]:
    settings = StoreSettings(store_path_root_dir=str(bench.root), **{**SMALL, **bench.changes})
    return open_store_in_turns(settings, disk=bench.disk, clock=clock, worker=bench.worker, store_host=bench.store_host)


def slow_clock(bench: Bench) -> SlowClock:
    clock = SlowClock()
    clock.advance(bench.clock.seconds())
    return clock


def result_of(opening: Deferred[Any]) -> Any:
    found: list[Any] = []
    opening.addBoth(found.append)
    (value,) = found
    return value


def offsets(store: MessageStore) -> list[int]:
    return [store.max_offset("T", queue_id) for queue_id in range(3)]


def test_a_long_opening_takes_turns_and_ends_with_the_store(unindexed: Bench) -> None:
    clock = slow_clock(unindexed)
    opening = begin(unindexed, clock)
    turns = 0
    while not opening.called:
        clock.step()
        turns += 1
    store = result_of(opening)
    assert turns > 3
    assert sum(offsets(store)) == COUNT
    stop(store)


def test_a_short_opening_is_done_at_once(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "store")
    stop(result_of(begin(bench, bench.clock)))


def test_progress_is_said_now_and_then(unindexed: Bench) -> None:
    clock = slow_clock(unindexed)
    clock.look_s = SAY_EVERY_S * 0.4
    with capturedLogs() as events:
        opening = begin(unindexed, clock)
        while not opening.called:
            clock.step()
    said = [event for event in events if event["log_format"].startswith("{where}")]
    whats = [event["what"] for event in said]
    assert list(dict.fromkeys(whats)) == ["the log is read back"]  # and not once more for the queues
    percents = [event["percent"] for event in said if event["what"] == whats[0]]
    assert percents == sorted(percents)
    assert 0 < percents[0] < percents[-1] <= 100
    assert isinstance(said[0]["left"], int)
    stop(result_of(opening))


def test_what_was_found_is_reported(unindexed: Bench) -> None:
    with capturedLogs() as events:
        stop(unindexed.open())
    (found,) = [event for event in events if "last stopped" in event["log_format"]]
    assert found["how"] == "normally"
    assert found["start"] == 0
    assert found["files"] * SMALL["mapped_file_size_commit_log"] >= found["end"] == found["read"] > 0


def test_of_a_new_store_it_is_said_that_it_is_new(tmp_path: Path) -> None:
    with capturedLogs() as events:
        stop(make_bench(tmp_path / "new").open())
    assert [formatEvent(event) for event in events] == [f"{tmp_path}/new: there is no log yet, a new one is created"]


def test_cancelling_ends_it_and_lets_go_of_the_directory(unindexed: Bench) -> None:
    clock = slow_clock(unindexed)
    opening = begin(unindexed, clock)
    clock.step()
    opening.cancel()
    assert result_of(opening).check(CancelledError)
    assert clock.getDelayedCalls() == []
    store = unindexed.open()
    assert sum(offsets(store)) == COUNT
    stop(store)


def test_a_failure_in_a_later_turn_fails_it_and_lets_go_of_the_directory(unindexed: Bench) -> None:
    clock = slow_clock(unindexed)
    unindexed.disk.faults.room = 0
    opening = begin(unindexed, clock)
    while not opening.called:
        clock.step()
    assert result_of(opening).check(OSError)
    unindexed.disk.faults.room = None
    stop(unindexed.open())


@pytest.mark.parametrize("is_lucky", [True, False])
def test_a_kill_while_queues_are_built_loses_none_of_them(
    unindexed: Bench, monkeypatch: pytest.MonkeyPatch, is_lucky: bool
) -> None:
    monkeypatch.setattr("mqbroker.store.queue_rebuild.SAVE_BYTES", 200_000 if is_lucky else 2**40)
    clock = slow_clock(unindexed)
    opening = begin(unindexed, clock)
    while not list((unindexed.root / "consumequeue").glob("*/*/*")):
        clock.step()
    for _ in range(2):
        clock.step()
    assert not opening.called
    killed = unindexed.image("killed")
    opening.addErrback(lambda _: None)
    opening.cancel()
    known = decode_checkpoint((killed.root / "checkpoint").read_bytes())
    assert known.queues_offset is not None
    assert known.log_offset is not None
    assert (0 < known.queues_offset < known.log_offset) if is_lucky else known.queues_offset == 0
    assert (known.queues_ms > 0) is is_lucky
    assert list(tree(killed.root / "consumequeue"))
    with capturedLogs() as events:
        store = killed.open()
    assert sum(offsets(store)) == COUNT
    (found,) = [event for event in events if "last stopped" in event["log_format"]]
    assert found["start"] == known.queues_offset
    assert store.append([message(queue_id=0)])[0][1] == (COUNT + 2) // 3
    stop(store)


def test_what_is_made_is_for_the_brokers_user_alone_and_what_is_there_stays_as_it_is(
    make: Callable[..., Bench],
) -> None:
    bench = make(enable_consume_queue_ext=True)
    theirs = bench.root / "commitlog"
    theirs.mkdir(parents=True)
    for path in (bench.root, theirs):
        path.chmod(0o755)
    (bench.root / "lock").touch(0o644)
    store = bench.open()
    store.start()
    store.append([message()])
    turns(bench.clock, 12)
    stop(store)
    modes = {path.relative_to(bench.root): path.stat().st_mode & 0o777 for path in bench.root.rglob("*")}
    assert modes.pop(theirs.relative_to(bench.root)) == 0o755
    assert modes.pop(Path("lock")) == 0o644
    assert bench.root.stat().st_mode & 0o777 == 0o755
    assert len(modes) > 10
    assert {mode for path, mode in modes.items() if (bench.root / path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if (bench.root / path).is_file()} == {0o600}


def test_work_is_done_at_once_and_its_progress_told() -> None:
    def steps() -> Steps[str]:
        yield Progress("work", 1, 2)
        yield Progress("work", 2, 2)
        return "done"

    told: list[Progress] = []
    assert run_at_once(steps(), told.append) == "done"
    assert [progress.done for progress in told] == [1, 2]


def test_an_error_in_the_first_turn_fails_at_once() -> None:
    def steps() -> Steps[None]:
        yield Progress("work", 1, 2)
        raise StoreDamaged("file", 3, "why")

    assert result_of(run_in_turns(steps(), Clock(), lambda _: None)).check(StoreDamaged)
