"""When old messages go, what goes, and what a store is like whose log does not start at 0."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mqbroker.config import StoreSettings
from mqbroker.errors import DiskFull
from mqbroker.store import MessageStore
from mqbroker.store.disk import DiskSpace
from mqbroker.store.disk_watch import Room, RoomLimits
from mqbroker.store.flush import CacheFlusher
from mqbroker.store.outcomes import GetResult, GetStatus
from mqbroker.store.retention import RetentionRules
from mqbroker.wire.javahash import java_hash
from mqbroker.wire.record import decode_record
from tests.store.harness import START_S, Bench, FaultyDisk, SteppedWorker, message, stop, turns

SEGMENT = 131072
HOUR_MS = 3_600_000
#: The benches' clocks start at 10:06 UTC.
NOW_HOUR = 10
OTHER_HOUR = (4,)
BODY = b"x" * 32_000  # four to a segment


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def space(used_percent: int, free_bytes: int = 100 * 1024**4) -> DiskSpace:
    """A disk with so much free of which exactly so many percent are used."""
    return DiskSpace(free_bytes // (100 - used_percent) * used_percent, free_bytes)


def filled(bench: Bench, segments: int) -> MessageStore:
    """A started store of so many segments, four messages in each but the last, all on the disk, fresh."""
    store = bench.open()
    store.start()
    for i in range(4 * segments - 3):
        store.append([message(body=b"%06d" % i + BODY, properties=b"KEYS\x01k%d" % i)])
    store.append([message("Rare", body=b"rare")])
    turns(bench.clock, 3)
    assert store.stats.flushed == store.log_end
    age(bench, 0)
    return store


def names(bench: Bench) -> list[str]:
    """The segments there are, as numbers; one made ahead of time does not count."""
    found = sorted(int(path.name) // SEGMENT for path in (bench.root / "commitlog").iterdir())
    return [str(n) for n in found]


def age(bench: Bench, ms: float, *only: int) -> None:
    """Have the segments written to so long ago."""
    for path in (bench.root / "commitlog").iterdir():
        if not only or int(path.name) // SEGMENT in only:
            ns = int((bench.clock.seconds() * 1000 - ms) * 1_000_000)
            os.utime(path, ns=(ns, ns))


def a_turn(bench: Bench) -> None:
    """Let one turn of retention, and all it does, happen."""
    turns(bench.clock, 10)


def to_second(bench: Bench, after_start: float) -> None:
    """Come to what is due so many seconds after the bench was made."""
    bench.clock.advance(START_S + after_start - bench.clock.seconds() + 1e-6)


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    """The messages of queue 0, without their padding, got one by one from its minimum."""
    found = []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        got = store.get(topic, 0, offset, 1)
        assert (got.status, got.next_offset) == (GetStatus.FOUND, offset + 1)
        record = decode_record(got.pieces[0])
        assert record.queue_offset == offset
        found.append(record.body[:6])
        offset += 1
    return found


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%06d" % i for i in range(first, end)]


# When


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


# Room


@pytest.mark.parametrize(
    ("used", "left"), [(75, ["0", "1", "2", "3"]), (76, ["1", "2", "3"]), (85, ["1", "2", "3"]), (86, ["3"])]
)
def test_a_fuller_disk_takes_more(make: Callable[..., Bench], used: int, left: list[str]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, file_reserved_time_hours=1)
    filled(bench, 4)
    age(bench, 2 * HOUR_MS, 0)
    bench.disk.faults.space = space(used)
    a_turn(bench)
    assert names(bench) == left


def test_young_messages_stay_where_forced_cleaning_is_off(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, clean_file_forcibly_enable=False)
    filled(bench, 3)
    bench.disk.faults.space = space(95)
    with capturedLogs() as events:
        a_turn(bench)
        a_turn(bench)
    assert names(bench) == ["0", "1", "2"]
    assert len([event for event in events if "no message old enough" in event["log_format"]]) == 1


def test_no_more_young_messages_go_than_it_takes(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR)
    filled(bench, 5)
    disk = bench.disk
    remove = disk.remove

    def make_room(path: str) -> None:
        remove(path)
        disk.faults.space = space(85 if len(names(bench)) == 3 else 86)

    disk.remove = make_room  # type: ignore[method-assign]
    disk.faults.space = space(86)
    a_turn(bench)
    assert names(bench) == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("used", "free", "room"),
    [
        (50, 1000, Room.ENOUGH),
        (50, 999, Room.FULL),
        (75, 1000, Room.ENOUGH),
        (76, 1000, Room.SCARCE),
        (85, 1000, Room.SCARCE),
        (86, 1000, Room.URGENT),
        (90, 1000, Room.URGENT),
        (91, 1000, Room.FULL),
    ],
)
def test_room_is_judged_by_ratio_and_bytes(used: int, free: int, room: Room) -> None:
    disk = DiskSpace(used * 10, 1000 - used * 10)
    assert disk.used_percent == used
    scale = free / disk.available_bytes
    disk = DiskSpace(int(disk.used_bytes * scale), free)
    assert RoomLimits(75, 85, 90, 1000).judge(disk) is room


def test_a_full_disk_refuses_messages_and_nothing_else(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, clean_file_forcibly_enable=False)
    store = filled(bench, 2)
    bench.disk.faults.space = space(90)
    a_turn(bench)
    assert store.writable
    bench.disk.faults.space = space(91)
    end = store.log_end
    with capturedLogs() as events:
        a_turn(bench)
        a_turn(bench)
    with pytest.raises(DiskFull, match="91 % are used") as refused:
        store.append([message()])
    for part in (
        str(bench.root),
        "CL:  0.91 CQ:  0.91 INDEX:  0.91",
        "bytes free",
        "90 %",
        "diskSpaceWarningLevelRatio",
    ):
        assert part in str(refused.value)
    assert (store.log_end, store.writable, store.stats.is_disk_full) == (end, False, True)
    assert store.stats.log_disk_percent == 91
    assert bodies(store) == numbered(0, 5)
    assert len([event for event in events if "are refused" in event["log_format"]]) == 1
    bench.disk.faults.space = space(90)
    a_turn(bench)
    assert store.writable
    assert not store.stats.is_disk_full
    assert store.append([message()])[0][1] == 5


def test_too_few_free_bytes_refuse_messages(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, disk_free_bytes_min=5000)
    store = filled(bench, 1)
    bench.disk.faults.space = space(50, 4999)
    a_turn(bench)
    with pytest.raises(DiskFull, match=r"less than 5000 bytes free \(diskFreeBytesMin\)"):
        store.append([message()])
    bench.disk.faults.space = space(50, 5000)
    a_turn(bench)
    store.append([message()])


def test_the_disks_are_looked_at_a_second_after_the_start(bench: Bench) -> None:
    bench.disk.faults.space = space(91)
    store = bench.open()
    store.start()
    bench.clock.advance(0.9)
    assert store.writable
    bench.clock.advance(0.1)
    assert not store.writable


def test_the_fuller_disk_decides(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(delete_when_hours=OTHER_HOUR)
    store = filled(bench, 2)
    full = str(bench.root / "consumequeue")
    monkeypatch.setattr(FaultyDisk, "space", lambda _, path: space(91 if path == full else 10))
    a_turn(bench)
    with pytest.raises(DiskFull, match=full):
        store.append([message()])
    assert (store.stats.log_disk_percent, store.stats.queues_disk_percent) == (10, 91)


def test_a_disk_that_does_not_tell_changes_nothing(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(delete_when_hours=OTHER_HOUR)
    store = filled(bench, 2)

    def unknown(_: FaultyDisk, path: str) -> DiskSpace:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(FaultyDisk, "space", unknown)
    with capturedLogs() as events:
        a_turn(bench)
        a_turn(bench)
    assert len([event for event in events if "cannot be found out" in event["log_format"]]) == 1
    assert store.writable
    assert names(bench) == ["0", "1"]


def test_without_room_for_a_segment_the_reason_is_the_disk(bench: Bench) -> None:
    store = bench.open()
    bench.disk.faults.room = 0
    bench.disk.faults.space = space(60, 12_345)
    with pytest.raises(
        DiskFull, match=r"the broker's disk is full \[.*/commitlog: \d+ bytes used, 12345 free\]: .* 131072 bytes"
    ):
        store.append([message(body=b"x" * 100_000)] * 2)


# What


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


def test_what_was_got_before_stays_readable(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = filled(bench, 3)
    got = store.get("T", 0, 0, 4)
    sent = store.read_log(100, 50_000)
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
    waiting = store.get_when_ready("T", 0, 2, 1)
    assert isinstance(waiting, Deferred)
    got: list[GetResult] = []
    waiting.addCallback(got.append)
    fetch = bench.worker.waiting.pop()
    bench.worker.at_once = True
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    assert (names(bench), got) == (["2"], [])
    fetch[1].callback(fetch[0]())
    assert [(result.status, result.next_offset) for result in got] == [(GetStatus.OFFSET_TOO_SMALL, 8)]
    assert list(store.damages) == []


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
    assert store.physical_offset("T", 0, low) >= 3 * SEGMENT > 3 * SEGMENT - 2500
    assert files("T", 0) == files("T", 1) == list(range(low // 100, 4))
    assert len(bodies(store)) == 350 - low
    assert store.get("T", 0, low - 1, 1).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get("T", 0, low - 1, 1).next_offset == low
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
    store.append([message("Other", body=BODY, properties=b"")] * 9)
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
    assert store.get("T", 0, low, 1, tags_codes=tagged).count == 1
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
    assert store.query("T", "k0", 9, 0, 2**62) == []
    assert len(store.query("T", "k499", 9, 0, 2**62)) == 1
    first = store.min_offset("T", 0)
    assert len(store.query("T", f"k{first}", 9, 0, 2**62)) == 1
    age(bench, 2 * HOUR_MS)
    a_turn(bench)
    a_turn(bench)
    assert len(list((bench.root / "index").iterdir())) >= 1
    assert len(store.query("T", "k499", 9, 0, 2**62)) == 1


# A log that does not start at 0


def with_first_gone(make: Callable[..., Bench]) -> Bench:
    """A stopped store of messages 8 to 17 of T, one of Rare whose messages are all there, and Gone, whose are not."""
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    store.start()
    store.append([message("Gone")])
    for i in range(18):
        store.append([message(body=b"%06d" % i + BODY, properties=b"KEYS\x01k%d" % i)])
        bench.clock.advance(0.01)
    store.append([message("Rare", body=b"rare")])
    turns(bench.clock, 3)
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    stop(store)
    assert names(bench)[0] == "2"
    return bench


def check_first_gone(store: MessageStore) -> None:
    assert store.log_min_offset == 2 * SEGMENT
    assert bodies(store) == numbered(8, 18)
    assert bodies(store, "Rare") == [b"rare"]
    first = store.store_timestamp("T", 0, 8)
    assert store.earliest_timestamp("T", 0) == first == store.stats.earliest_ms
    assert [store.offset_by_time("T", 0, first + add) for add in (-9999, 0, 10, 9999)] == [8, 8, 9, 17]
    assert store.get("T", 0, 3, 9).next_offset == 8
    assert store.get("T", 0, 3, 9).status is GetStatus.OFFSET_TOO_SMALL
    assert store.read_record(0) is None
    assert store.query("T", "k3", 9, 0, 2**62) == []
    assert [decode_record(found).body[:6] for found in store.query("T", "k12", 9, 0, 2**62)] == [b"000012"]
    assert store.append([message(), message("Rare")])[1][1] == 1
    store.dispatch_now()
    assert store.max_offset("T", 0) == 19


def test_it_opens_after_a_clean_stop(make: Callable[..., Bench]) -> None:
    store = with_first_gone(make).open()
    check_first_gone(store)
    assert store.append([message("Gone")])[0][1] == 1


@pytest.mark.parametrize("missing", ["checkpoint", "index", "consumequeue"])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("boot", [b"first boot", b"other boot"])
def test_it_opens_without_what_is_made_of_the_log(
    make: Callable[..., Bench], missing: str, is_killed: bool, boot: bytes
) -> None:
    bench = with_first_gone(make)
    if (bench.root / missing).is_dir():
        bench.disk.remove_tree(str(bench.root / missing))
    else:
        (bench.root / missing).unlink()
    if is_killed:
        (bench.root / "abort").write_bytes(boot)
    store = bench.open()
    store.start()
    turns(bench.clock, 1)
    check_first_gone(store)


def test_it_opens_with_a_checkpoint_from_before(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    store.start()
    store.append([message(body=b"%06d" % 0 + BODY)])
    turns(bench.clock, 3)
    checkpoint = (bench.root / "checkpoint").read_bytes()
    for i in range(1, 18):
        store.append([message(body=b"%06d" % i + BODY)])
    turns(bench.clock, 3)
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    for boot in (b"first boot", b"other boot"):
        image = bench.image(boot.decode()[:5])
        (image.root / "checkpoint").write_bytes(checkpoint)
        image.disk.boot = boot
        opened = image.open()
        assert bodies(opened) == numbered(8, 18)
        stop(opened)


def test_every_moment_of_a_deletion_can_be_the_last(make: Callable[..., Bench]) -> None:
    """Kill, and machine stop, after each step of the worker's."""
    bench = make(
        delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, clean_resource_interval_ms=4000, max_index_num=100,
        delete_commit_log_files_interval_ms=0, delete_consume_queue_files_interval_ms=0,
    )  # fmt: skip
    store = bench.open()
    store.start()
    for i in range(500):
        store.append([message(body=b"%06d" % i + b"x" * 1000, properties=b"KEYS\x01k%d" % i)])
    turns(bench.clock, 3.9)
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1, 2)
    bench.worker.at_once = False
    seen = set()
    for step in range(40):
        bench.clock.advance(0.1)
        if bench.worker.waiting:
            bench.worker.step()
        files = sorted(str(path.relative_to(bench.root)) for path in bench.root.rglob("0*"))
        if tuple(files) in seen:
            continue
        seen.add(tuple(files))
        for boot in (b"first boot", b"other boot"):
            image = bench.image(f"{step}-{boot.decode()[:5]}")
            image.disk.boot = boot
            opened = image.open()
            low = opened.min_offset("T", 0)
            assert bodies(opened) == numbered(low, 500)
            assert opened.physical_offset("T", 0, low) >= opened.log_min_offset
            assert opened.append([message()])[0][1] == 500
            stop(opened)
            bench.disk.remove_tree(str(image.root))
    assert len(seen) > 6
    bench.worker.at_once = True
    while bench.worker.waiting:
        bench.worker.step()
    assert store.log_min_offset == 3 * SEGMENT


def test_what_would_disturb_a_sync_runs_alone() -> None:
    clock, worker = Clock(), SteppedWorker()
    worker.at_once = False
    done: list[str] = []

    def work(name: str) -> Callable[[], None]:
        return lambda: done.append(name)

    flusher = CacheFlusher(clock, worker, 1000, 10, lambda _: (work("sync"), lambda: None))
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
