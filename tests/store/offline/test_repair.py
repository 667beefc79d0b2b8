"""What `repair` does, that it loses nothing whole, and that it can be interrupted anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mqbroker.store.consumequeue_entry import BLANK_SIZE, ENTRY
from mqbroker.store.disk import IDisk
from mqbroker.store.offline.detected_layout import Given
from mqbroker.store.offline.repair import Plan, Repair, make_plan
from mqbroker.store.os_disk import OsDisk
from mqbroker.wire.record import decode_record
from tests.fakes import FaultyDisk, Killed
from tests.store.harness import START_S, Bench, make_bench, message, now, stop, tree, unpack_golden
from tests.store.offline.stores import (
    SEGMENT,
    add_tables,
    check,
    fill,
    flip,
    key,
    kinds,
    picture,
    segment,
    zero,
)
from tests.store.offline.test_check import record_at

SHAPE = Given(queue_file_bytes=2000, slots=100, capacity=400)


def plan_of(root: Path, *, fence: bool = False, move_foreign: bool = False) -> Plan:
    return make_plan(check(root), fence=fence, move_foreign=move_foreign)


def repair(root: Path, disk: IDisk | None = None, *, name: str = "repair-1", **flags: bool) -> Path:
    """Repair as the command does; returns the folder."""
    disk = disk or OsDisk()
    report = check(root, SHAPE)
    plan = make_plan(report, fence=flags.get("fence", False), move_foreign=flags.get("move_foreign", False))
    assert not plan.obstacles
    clock = Clock()
    clock.advance(START_S)
    folder = root / name
    Repair(disk, clock, report, plan, str(folder), disk.lock(str(root / "lock"))).run(lambda progress: None)
    return folder


def numbers(bench: Bench) -> list[int]:
    """The messages that the entries of T/0 lead to in an opened store."""
    store = bench.open()
    found = []
    for offset in range(store.min_offset("T", 0), store.max_offset("T", 0)):
        data = now(store).record(now(store).physical_offset("T", 0, offset))
        # A blank entry names the place where the message was; one that was not mended leads into damage.
        if data is not None and decode_record(data).topic == "T":
            found.append(int(decode_record(data).body[:5]))
    stop(store)
    bench.opened.clear()
    return found


@pytest.mark.parametrize("name", ["store-clean", "store-crashed"])
def test_what_is_built_anew_is_byte_for_byte_what_java_had(tmp_path: Path, name: str) -> None:
    root = unpack_golden(name, tmp_path)
    before = {part: tree(root / part) for part in ("consumequeue", "index", "commitlog")}
    for path in (root / "consumequeue").rglob("0*0"):
        zero(path, 0, 40)
    flip(min((root / "index").iterdir()), 500)
    damaged = {part: tree(root / part) for part in ("consumequeue", "index")}
    folder = repair(root)
    assert tree(root / "consumequeue") == before["consumequeue"]
    assert list(tree(root / "index").values()) == list(before["index"].values())
    first = f"{0:020d}"
    assert tree(root / "commitlog")[first] == before["commitlog"][first]
    assert {part: tree(folder / part) for part in damaged} == damaged
    assert kinds(check(root)) == {}


def test_a_plan_changes_nothing_and_a_whole_store_needs_none(bench: Bench) -> None:
    fill(bench)
    assert plan_of(bench.root).is_empty
    shutil.rmtree(bench.root / "consumequeue")
    before = picture(bench.root)
    plan = plan_of(bench.root)
    assert (plan.rebuild_queues, plan.rebuild_index, plan.obstacles) == (True, False, [])
    assert picture(bench.root) == before


def test_a_torn_tail_is_saved_and_cut(bench: Bench) -> None:
    store = bench.open()
    end = store.append([message(properties=key(1)), message(properties=key(2))])[1][0]
    image = bench.image("torn")
    add_tables(image.root)
    flip(segment(image.root), end + 90)
    torn = segment(image.root).read_bytes()[end:].rstrip(b"\0")
    folder = repair(image.root)
    assert [path.read_bytes() for path in folder.glob("*.cut")] == [torn]
    assert kinds(check(image.root)) == {"no index": "note"}
    again = image.open()
    assert (again.log_end, again.max_offset("T", 0)) == (end, 1)


def test_messages_after_damage_outlive_a_repair_of_a_killed_store(bench: Bench) -> None:
    """Above what a sync covered an opening cuts at damage; the repair has seen that whole messages follow."""
    store = bench.open()
    for number in range(40):
        store.append([message(body=b"%05d" % number * 2000, properties=key(number))])
    store.dispatch_now()
    at = now(store).physical_offset("T", 0, 5)
    image = bench.image("damaged")
    add_tables(image.root)
    flip(segment(image.root), at + 100)
    zero(image.root / "consumequeue/T/0" / f"{0:020d}", 0, 20)
    repair(image.root)
    assert numbers(image) == [number for number in range(40) if number != 5]
    assert kinds(check(image.root))["damaged log"] == "lost"


@pytest.mark.parametrize("size", [100, 10_500, 60_000])
def test_a_fence_makes_the_log_whole_again_and_keeps_what_was_there(bench: Bench, size: int) -> None:
    fill(bench)
    first = record_at(bench, 3)
    zero(segment(bench.root), first, size)
    lost = check(bench.root).corrupt_ranges
    before = segment(bench.root).read_bytes()
    folder = repair(bench.root, fence=True)
    report = check(bench.root)
    assert kinds(report) == {"messages lost before": "note"}
    assert report.totals.fenced_bytes == lost[0].end - lost[0].start
    saved = next(folder.glob("*.fenced")).read_bytes()
    assert saved == before[lost[0].start : lost[0].end]
    gone = report.findings.messages_lost
    assert gone == -(-size // (record_at(bench, 1) - record_at(bench, 0)))
    store = bench.open()
    assert not store.corrupt_ranges
    stop(store)
    bench.opened.clear()
    found = numbers(bench)
    assert sorted(set(found)) == [number for number in range(40) if not 3 <= number < 3 + gone]


def test_queue_entries_of_lost_messages_lead_to_the_next_message(bench: Bench) -> None:
    fill(bench)
    zero(segment(bench.root), record_at(bench, 3), 10_500)
    repair(bench.root, fence=True)
    data = (bench.root / "consumequeue/T/0" / f"{0:020d}").read_bytes()
    entries = list(ENTRY.iter_unpack(data[: 40 * 20]))
    assert entries[3] == entries[4] == entries[5]
    assert all(size != BLANK_SIZE for _, size, _ in entries)


def test_damage_up_to_the_end_of_a_segment_becomes_a_filler(bench: Bench) -> None:
    fill(bench)
    zero(segment(bench.root), record_at(bench, 10), SEGMENT)
    repair(bench.root, fence=True)
    assert kinds(check(bench.root)) == {"messages lost before": "note"}
    assert set(numbers(bench)) == {*range(10), *range(12, 40)}


def test_a_missing_segment_is_in_the_way_until_a_filler_is_asked_for(bench: Bench) -> None:
    fill(bench)
    segment(bench.root, 1).unlink()
    before = picture(bench.root)
    plan = plan_of(bench.root)
    assert any("is missing" in obstacle for obstacle in plan.obstacles)
    assert picture(bench.root) == before
    repair(bench.root, fence=True)
    assert set(numbers(bench)) == {*range(12), *range(24, 40)}


def test_a_segment_that_was_cut_short_gets_its_size_back(bench: Bench) -> None:
    fill(bench)
    path = segment(bench.root, 3)
    data = path.read_bytes()
    path.write_bytes(data[:50_000])
    folder = repair(bench.root)
    assert path.read_bytes() == data
    assert next(folder.glob("*.short")).read_bytes() == data[:50_000]


def test_foreign_files_are_moved_only_when_told(bench: Bench) -> None:
    fill(bench)
    (bench.root / "commitlog" / "notes").write_bytes(b"a")
    (bench.root / "consumequeue" / "notes").write_bytes(b"b")
    assert len(plan_of(bench.root).obstacles) == 1
    folder = repair(bench.root, move_foreign=True)
    assert tree(folder / "foreign") == {"commitlog/notes": b"a", "consumequeue/notes": b"b"}
    assert kinds(check(bench.root)) == {}


def test_a_queue_without_messages_in_the_log_keeps_its_next_offset(bench: Bench) -> None:
    store = bench.open()
    store.append([message("Old")] * 7 + [message(body=b"%05d" % i * 2000, properties=key(i)) for i in range(20)])
    stop(store)
    bench.opened.clear()
    add_tables(bench.root)
    segment(bench.root).unlink()
    zero(bench.root / "consumequeue/T/0" / f"{0:020d}", 15 * 20, 20)
    repair(bench.root)
    again = bench.open()
    assert again.append([message("Old")])[0][1] == 7
    assert again.append([message()])[0][1] == 20


@pytest.mark.parametrize("gone", ["Old", "T", "."])
def test_after_a_repair_a_start_finds_the_queues_as_they_were_left(bench: Bench, gone: str) -> None:
    store = bench.open()
    store.append([message("Old")] * 7 + [message(body=b"%05d" % i * 2000, properties=key(i)) for i in range(20)])
    stop(store)
    bench.opened.clear()
    add_tables(bench.root)
    segment(bench.root).unlink()  # with all messages of Old
    shutil.rmtree(bench.root / "consumequeue" / gone)
    assert kinds(check(bench.root))["queues changed"] == "broken"
    repair(bench.root)
    assert kinds(check(bench.root)) == {}
    with capturedLogs() as events:
        again = bench.open()
    assert not [event for event in events if "rebuilt" in event["log_format"]]
    assert again.max_offset("T", 0) == 20
    assert again.max_offset("Old", 0) == 7


def test_a_repair_killed_anywhere_leaves_what_opens_and_can_be_repaired(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    zero(segment(bench.root), record_at(bench, 3), 10_500)
    (segment(bench.root).parent / "notes").write_bytes(b"")
    zero(bench.root / "consumequeue/T/0" / f"{0:020d}", 600, 20)
    flip(next((bench.root / "index").iterdir()), 500)
    whole = [number for number in range(40) if number not in (3, 4)]
    lives = 0
    while True:
        root = Path(shutil.copytree(bench.root, tmp_path / f"killed{lives}"))
        disk = FaultyDisk()
        disk.faults.lives = lives
        try:
            repair(root, disk, fence=True, move_foreign=True)
        except (Killed, OSError):  # what stops a store that is built anew is told as an error
            copy = make_bench(Path(shutil.copytree(root, tmp_path / f"opened{lives}")))
            (copy.root / "commitlog" / "notes").unlink(missing_ok=True)
            # Message 30 has no entry until the repair comes to the consume queues.
            assert set(whole) - {30} <= set(numbers(copy)) <= set(whole)
            opened = check(copy.root, SHAPE)
            assert not opened.totals.fenced_bytes or "messages missing" not in kinds(opened)
            repair(root, name="repair-2", fence=True, move_foreign=True)
        else:
            break
        # Killed when only the last steps of the opening were left, there is nothing to repair, and any start goes on.
        assert set(kinds(check(root, SHAPE)).values()) == {"note"}
        assert sorted(set(numbers(make_bench(root)))) == whole
        shutil.rmtree(root)
        shutil.rmtree(copy.root)
        lives += 2
    assert lives > 30
