"""How files go: while they are read, against a disk that will not, and with what is made of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mqbroker.store.flush import CacheFlusher
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_record
from tests.fakes import SteppedWorker
from tests.store.aging import BODY, HOUR_MS, NOW_HOUR, SEGMENT, a_turn, age, bodies, filled, names, numbered, to_second
from tests.store.harness import Bench, message, now, stop, turns

pytestmark = pytest.mark.usefixtures("utc")


def test_what_was_got_before_stays_readable(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = filled(bench, 3)
    got = now(store).get("T", 0, 0, 4)
    sent = store._commit_log.read(100, 50_000)
    before = [bytes(piece) for piece in got.pieces], bytes(sent)
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert names(bench) == ["2"]
    assert ([bytes(piece) for piece in got.pieces], bytes(sent)) == before
    assert [record.body[:6] for record in map(decode_record, before[0])] == numbered(0, 1)
    stop(store)
    assert [bytes(piece) for piece in got.pieces] == before[0]


def test_a_get_that_waits_for_the_disk_finds_its_segment_deleted(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    stop(filled(bench, 3))
    store = bench.open()
    store.start()
    turns(bench.clock, 3)
    bench.disk.faults.evict()
    bench.worker.at_once = False
    waiting = store.get("T", 0, 2, 1)
    assert isinstance(waiting, Deferred)
    got: list[GetMessageResult] = []
    waiting.addCallback(got.append)
    fetch = bench.worker.waiting.pop()
    bench.worker.at_once = True
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert (names(bench), got) == (["2"], [])
    fetch[1].callback(fetch[0]())
    assert [(result.status, result.next_offset) for result in got] == [(GetMessageStatus.OFFSET_TOO_SMALL, 8)]
    assert list(store.corrupt_ranges) == []


def test_a_file_that_cannot_be_deleted_is_tried_again_and_told_of_once(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = filled(bench, 4)
    bench.disk.faults.unremovable.add(f"{SEGMENT:020d}")
    age(bench, 2 * HOUR_MS)
    with capturedLogs() as events:
        for _ in range(11):
            a_turn(bench)
        assert names(bench) == ["1", "2", "3"]
        assert bodies(store) == numbered(4, 13)
        for _ in range(12):
            a_turn(bench)
        assert names(bench) == ["1", "2", "3"]
        assert len([event for event in events if "cannot be deleted" in event["log_format"]]) == 1
        bench.disk.faults.unremovable.clear()
        a_turn(bench)
        assert names(bench) == ["1", "2", "3"]  # not due yet
        for _ in range(12):
            a_turn(bench)
    assert names(bench) == ["3"]


def test_what_someone_else_deleted_is_forgotten(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = filled(bench, 3)
    (bench.root / "commitlog" / f"{0:020d}").unlink()
    a_turn(bench)
    assert names(bench) == ["1", "2"]
    assert store.log_min_offset == SEGMENT
    assert bodies(store) == numbered(4, 9)


def test_stopping_ends_a_turn_between_two_files(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, delete_commit_log_files_interval_ms=60_000)
    store = filled(bench, 4)
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert names(bench) == ["1", "2", "3"]
    stop(store)
    assert bench.clock.getDelayedCalls() == []
    assert names(bench) == ["1", "2", "3"]
    assert bodies(bench.open()) == numbered(4, 13)


def test_stopping_waits_for_the_file_that_is_being_deleted(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, clean_resource_interval_ms=4000)
    store = filled(bench, 2)
    age(bench, 2 * HOUR_MS)
    bench.worker.at_once = False
    to_second(bench, 4)
    stopped: list[None] = []
    store.stop().addCallback(stopped.append)
    seen = []
    while bench.worker.waiting:
        bench.worker.step()
        seen.append((names(bench), stopped[:]))
    assert seen[0] == (["0", "1"], [])
    assert seen[-1] == (["1"], [None])
    assert [at for at, ended in seen if ended] == [["1"]]


# What follows


def test_consume_queues_follow(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, delete_consume_queue_files_interval_ms=10)
    store = bench.open()
    store.start()
    for i in range(700):  # 100 entries to a file
        store.append([message(queue_id=i % 2, body=b"%06d" % i + b"x" * 900)])
    store.append([message("Other", body=b"%06d" % 9 + BODY)] * 9)
    turns(bench.clock, 3)

    def files(topic: str, queue_id: int) -> list[int]:
        return sorted(
            int(path.name) // 2000 for path in (bench.root / "consumequeue" / topic / str(queue_id)).iterdir()
        )

    assert files("T", 0) == [0, 1, 2, 3]
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1, 2)
    a_turn(bench)
    assert store.log_min_offset == 3 * SEGMENT
    low = store.min_offset("T", 0)
    assert 100 < low < 250
    assert now(store).physical_offset("T", 0, low) >= 3 * SEGMENT > 3 * SEGMENT - 2500
    assert files("T", 0) == files("T", 1) == list(range(low // 100, 4))
    assert len(bodies(store)) == 350 - low
    assert now(store).get("T", 0, low - 1, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert now(store).get("T", 0, low - 1, 1).next_offset == low
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    # All of its messages are gone; its last file says where it goes on.
    assert (store.min_offset("T", 0), store.max_offset("T", 0), files("T", 0)) == (350, 350, [3])
    stop(store)
    again = bench.open()
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (350, 350)
    assert again.append([message()])[0][1] == 350
    again.dispatch_now()
    assert bodies(again) == [b"body"]


def test_the_last_files_stay_though_the_log_has_none_of_their_messages(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, max_index_num=100)
    store = bench.open()
    store.start()
    for i in range(200):  # two whole files of its queue, three of the index
        store.append([message(properties=b"KEYS\x01k%d" % i)])
    store.append([message("Other", body=BODY, properties=b"")] * 8)
    turns(bench.clock, 13)
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    a_turn(bench)
    assert names(bench) == ["2"]
    assert [path.name for path in (bench.root / "consumequeue" / "T" / "0").iterdir()] == [f"{2000:020d}"]
    assert len(list((bench.root / "index").iterdir())) == 1
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (200, 200)
    stop(store)
    again = bench.open()
    assert again.append([message()])[0][1] == 200


@pytest.mark.parametrize("refused", [False, True])
def test_extensions_follow(make: Callable[..., Bench], refused: bool) -> None:
    bench = make(
        delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, enable_consume_queue_ext=True,
        mapped_file_size_consume_queue_ext=1024,
    )  # fmt: skip
    store = bench.open()
    store.start()
    for i in range(500):
        store.append([message(body=b"%06d" % i + b"x" * 900)])
    turns(bench.clock, 3)
    directory = bench.root / "consumequeue_ext" / "T" / "0"
    files = sorted(path.name for path in directory.iterdir())
    if refused:
        bench.disk.faults.unremovable.add(files[1])
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    a_turn(bench)
    left = sorted(path.name for path in directory.iterdir())
    if refused:
        assert left == files[1:]
        bench.disk.faults.unremovable.clear()
        for _ in range(13):
            a_turn(bench)
        left = sorted(path.name for path in directory.iterdir())
    assert 1 < len(left) < len(files) - 3
    assert left == files[-len(left) :]
    low = store.min_offset("T", 0)
    tagged = frozenset({java_hash("TagA")})
    assert now(store).get("T", 0, low, 1, tags_codes=tagged).count == 1
    assert bodies(store) == numbered(low, 500)
    stop(store)
    assert bodies(bench.open()) == numbered(low, 500)


def test_index_files_follow_but_not_the_last(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, max_index_num=100)
    store = bench.open()
    store.start()
    for i in range(500):
        store.append([message(body=b"x" * 1000, properties=b"KEYS\x01k%d" % i)])
    turns(bench.clock, 15)
    count = len(list((bench.root / "index").iterdir()))
    assert count > 4
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    a_turn(bench)
    left = len(list((bench.root / "index").iterdir()))
    assert 1 < left < count
    assert now(store).query("T", "k0", 9, 0, 2**62) == []
    assert len(now(store).query("T", "k499", 9, 0, 2**62)) == 1
    first = store.min_offset("T", 0)
    assert len(now(store).query("T", f"k{first}", 9, 0, 2**62)) == 1
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    a_turn(bench)
    assert len(list((bench.root / "index").iterdir())) >= 1
    assert len(now(store).query("T", "k499", 9, 0, 2**62)) == 1


def test_what_would_disturb_a_sync_runs_alone() -> None:
    clock, worker = Clock(), SteppedWorker()
    worker.at_once = False
    done: list[str] = []

    def work(name: str) -> Callable[[], None]:
        return lambda: done.append(name)

    flusher = CacheFlusher(clock, worker, 1000, 10, lambda _: (work("sync"), lambda done: None, 1))
    flusher.start()
    clock.advance(1)
    results = [flusher.run_alone(work(name)) for name in "ab"]
    for ran in (["sync"], ["sync", "a"], ["sync", "a", "b"]):
        clock.advance(1)
        assert len(worker.waiting) == 1
        worker.step()
        assert done == ran
    assert all(result.called for result in results)
    assert worker.waiting == []
    clock.advance(1)
    assert len(worker.waiting) == 1


def test_work_that_runs_alone_and_fails_lets_the_next_run(make: Callable[..., Bench]) -> None:
    store = make().open()

    def fail() -> None:
        raise OSError(5, "Input/output error")

    failed: list[object] = []
    store._files.run_alone(fail).addErrback(lambda failure: failed.append(failure.check(OSError)))
    done: list[None] = []
    store._files.run_alone(lambda: None).addCallback(done.append)
    assert (failed, done) == ([OSError], [None])
