"""What a full disk, or one that is nearly so, does to old messages and to new ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.logger import capturedLogs, formatEvent

from mqbroker.errors import DiskFull
from mqbroker.store.disk import DiskSpace
from mqbroker.store.disk_watch import Room, RoomLimits
from tests.fakes import FaultyDisk
from tests.store.aging import HOUR_MS, OTHER_HOUR, a_turn, age, bodies, filled, names, numbered, space
from tests.store.harness import Bench, message

pytestmark = pytest.mark.usefixtures("utc")


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
    assert len([event for event in events if "no message is old enough" in event["log_format"]]) == 1


def test_no_more_young_messages_go_than_it_takes(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=OTHER_HOUR)
    filled(bench, 5)
    disk = bench.disk
    remove = disk.remove

    def make_room(path: str) -> None:
        remove(path)
        disk.faults.space = space(85 if len(names(bench)) == 3 else 86)

    disk.remove = make_room
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
    assert not store._commit_log.why_refused
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
    assert (store.log_end, not store._commit_log.why_refused, store.stats.is_disk_full) == (end, False, True)
    assert store.stats.log_disk_percent == 91
    assert store.stats.why_refused == str(refused.value)
    assert bodies(store) == numbered(0, 5)
    assert len([event for event in events if "are refused" in event["log_format"]]) == 1
    bench.disk.faults.space = space(90)
    a_turn(bench)
    assert not store._commit_log.why_refused
    assert not store.stats.is_disk_full
    assert store.stats.why_refused == ""
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
    assert not store._commit_log.why_refused
    bench.clock.advance(0.1)
    assert store._commit_log.why_refused


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
    assert len([event for event in events if "the free space of the disk cannot be read" in formatEvent(event)]) == 1
    assert not store._commit_log.why_refused
    assert names(bench) == ["0", "1"]


def test_without_room_for_a_segment_the_reason_is_the_disk(bench: Bench) -> None:
    store = bench.open()
    bench.disk.faults.room = 0
    bench.disk.faults.space = space(60, 12_345)
    with pytest.raises(
        DiskFull, match=r"the broker's disk is full \[.*/commitlog: \d+ bytes used, 12345 free\]: .* 131072 bytes"
    ):
        store.append([message(body=b"x" * 100_000)] * 2)
