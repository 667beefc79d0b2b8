"""What `check` reports, and that it changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.errors import StoreUnknown
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.offline.check import check_store
from mqbroker.store.offline.detected_layout import Given
from mqbroker.store.offline.findings import Severity
from tests.store.harness import Bench, make_bench, message, stop, unpack_golden
from tests.store.offline.stores import (
    PER_SEGMENT,
    SEGMENT,
    add_tables,
    change,
    check,
    fill,
    flip,
    key,
    kinds,
    picture,
    segment,
    zero,
)

#: Where record 3 of `fill` stands.
THIRD = 3 * (SEGMENT // PER_SEGMENT)


def record_at(bench: Bench, number: int) -> int:
    data = (bench.root / "consumequeue/T/0" / f"{number // 100 * 2000:020d}").read_bytes()
    offset: int = ENTRY.unpack_from(data, number % 100 * 20)[0]
    return offset


@pytest.mark.parametrize("name", ["store-clean", "store-crashed"])
def test_stores_of_the_java_broker_are_whole_and_stay_as_they_are(tmp_path: Path, name: str) -> None:
    root = unpack_golden(name, tmp_path)
    before = picture(root)
    report = check(root)
    assert report.findings.is_clean
    assert kinds(report) == ({"not stopped": "note"} if name == "store-crashed" else {})
    totals = report.totals
    assert (totals.records, totals.record_bytes, totals.log_end) == (343, 73743, 73743)
    assert (totals.topics, totals.queues, totals.queue_entries) == (15, 21, 343)
    assert (totals.index_files, totals.index_entries) == (2, 470)
    assert picture(root) == before


def test_a_store_of_ours_is_whole(bench: Bench) -> None:
    fill(bench)
    before = picture(bench.root)
    report = check(bench.root)
    assert kinds(report) == {}
    assert (report.totals.records, report.totals.segments, report.totals.index_entries) == (40, 4, 80)
    assert picture(bench.root) == before


def test_sizes_are_found_out(bench: Bench) -> None:
    fill(bench)
    layout = check(bench.root).layout
    assert (layout.segment_bytes, layout.queue_file_bytes, layout.slots, layout.capacity) == (SEGMENT, 2000, 100, 400)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_the_index_of_a_young_store_is_recognised(tmp_path: Path, count: int) -> None:
    bench = make_bench(tmp_path / "store", max_hash_slot_num=1000, max_index_num=4000)
    store = bench.open()
    store.append([message(body=b"%d" % i) for i in range(count)])
    stop(store)
    report = check(bench.root)
    assert (report.layout.slots, report.layout.capacity) == (1000, 4000)
    assert report.totals.index_entries == count
    assert not [kind for kind in kinds(report) if "index" in kind]


def test_a_store_in_use_is_checked_beside_its_broker(bench: Bench) -> None:
    store = bench.open()
    store.append([message(properties=key(number)) for number in range(5)])
    add_tables(bench.root)
    report = check(bench.root, is_live=True)
    assert report.findings.is_clean
    assert set(kinds(report).values()) == {"note"}
    store.dispatch_now()
    assert store.append([message()])[0][1] == 5


Damage = Callable[[Bench], object]
SEGMENT_MISSING = {"missing segment": "lost", "messages missing": "lost", "index entry orphaned": "broken"}
END_MISSING = {"entry ahead": "lost", "checkpoint ahead": "lost", "index ahead": "broken"}
LOG_DAMAGED = {"damaged log": "lost", "messages missing": "lost", "index entry orphaned": "broken"}


@pytest.mark.parametrize(
    ("damage", "expected", "lost"),
    [
        (lambda b: flip(segment(b.root), record_at(b, 3) + 500), LOG_DAMAGED, 1),
        (lambda b: zero(segment(b.root), record_at(b, 3), 512), LOG_DAMAGED, 1),
        (lambda b: zero(segment(b.root, 1), 0, SEGMENT), LOG_DAMAGED, 12),
        (lambda b: segment(b.root, 1).unlink(), SEGMENT_MISSING, 12),
        (lambda b: segment(b.root, 3).unlink(), END_MISSING, 4),
        (lambda b: change(segment(b.root), record_at(b, 5) + 20, lambda d: d[:-1] + b"\x63", 8),
         {"queue offset wrong": "broken"}, 0),
        (lambda b: change(segment(b.root), record_at(b, 5) + 56, lambda d: b"\x7f" + d[1:], 8),
         {"store time goes back": "broken", "index times wrong": "broken"}, 0),
        (lambda b: (b.root / "commitlog" / "core.123").write_bytes(b"x"), {"foreign file": "broken"}, 0),
        (lambda b: (b.root / "commitlog" / f"{7:020d}").write_bytes(bytes(SEGMENT)), {"foreign file": "broken"}, 0),
        (lambda b: (b.root / "consumequeue" / "notes.txt").write_bytes(b"x"), {"foreign file": "broken"}, 0),
        (lambda b: (b.root / "consumequeue/T/0/x").write_bytes(b"x"), {"foreign file": "broken"}, 0),
        (lambda b: (b.root / "index" / "README").write_bytes(b"x"), {"foreign file": "note"}, 0),
        (lambda b: zero(b.root / "consumequeue/T/0" / f"{0:020d}", 100, 20), {"entry missing": "broken"}, 0),
        (lambda b: flip(b.root / "consumequeue/T/0" / f"{0:020d}", 106), {"entry wrong": "broken"}, 0),
        (lambda b: flip(b.root / "consumequeue/T/0" / f"{0:020d}", 119), {"tags code wrong": "broken"}, 0),
        (lambda b: change(b.root / "consumequeue/T/0" / f"{0:020d}", 801, lambda d: b"\x01"),
         {"entries after the end": "broken"}, 0),
        (lambda b: shutil.rmtree(b.root / "consumequeue"),
         {"consume queue missing": "broken", "queues changed": "broken"}, 0),
        (lambda b: (b.root / "consumequeue/T/0" / f"{0:020d}").write_bytes(b"short"),
         {"consume queue size": "broken", "consume queue missing": "broken", "queues changed": "broken"}, 0),
        (lambda b: shutil.rmtree(b.root / "index"), {"index missing": "broken"}, 0),
        (lambda b: (b.root / "checkpoint").unlink(), {"checkpoint missing": "broken"}, 0),
        (lambda b: flip(b.root / "checkpoint", 1), {"checkpoint ahead": "broken"}, 0),
        (lambda b: shutil.rmtree(b.root / "config"), {"config missing": "broken"}, 0),
        (lambda b: (b.root / "config/topics.json").write_bytes(b"{"), {"table unreadable": "broken"}, 0),
        (lambda b: (b.root / "config/offsets.json.bak").write_bytes(b"{}"), {"table unreadable": "broken"}, 0),
        (lambda b: change(segment(b.root, 3), SEGMENT - 5, lambda d: b"\x01"), {"torn tail": "broken"}, 0),
    ],
)  # fmt: skip
def test_each_damage_is_reported_as_what_it_is(
    bench: Bench, damage: Damage, expected: dict[str, str], lost: int
) -> None:
    fill(bench)
    damage(bench)
    before = picture(bench.root)
    report = check(bench.root)
    assert kinds(report) == expected
    assert report.findings.messages_lost == lost
    assert report.findings.is_clean == (set(expected.values()) == {"note"})
    assert picture(bench.root) == before
    for finding in report.findings.kept:
        assert finding.what
        assert finding.advice or finding.severity == "note"


def index_file(bench: Bench) -> Path:
    return next((bench.root / "index").iterdir())


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (7, {"index header wrong"}),  # begin time
        (23, {"index header wrong"}),  # begin offset
        (31, {"index header wrong", "index entries wrong", "index keys missing"}),  # end offset
        (35, {"index header wrong"}),  # slots used
        (36, {"index header wrong", "index keys missing"}),  # count
        (440 + 20 * 7 + 3, {"index entries wrong", "index slots wrong", "index keys missing"}),  # hash
        (440 + 20 * 7 + 11, {"index entries wrong", "index keys missing"}),  # offset
        (440 + 20 * 7 + 15, {"index times wrong"}),
        (440 + 20 * 7 + 19, {"index entries wrong"}),  # older
    ],
)
def test_each_part_of_the_index_is_compared(bench: Bench, at: int, expected: set[str]) -> None:
    fill(bench)
    flip(index_file(bench), at)
    found = check(bench.root, Given(slots=100, capacity=400)).findings
    assert set(found.kinds) & expected
    assert set(found.kinds) <= expected | {"index entry orphaned", "index slots wrong", "index header wrong"}
    assert found.messages_lost == 0


def test_a_wrong_slot_is_found(bench: Bench) -> None:
    fill(bench)
    data = index_file(bench).read_bytes()
    used = next(at for at in range(40, 440, 4) if data[at : at + 4] != bytes(4))
    zero(index_file(bench), used, 4)
    assert kinds(check(bench.root)) == {"index slots wrong": "broken"}


def test_an_index_of_unknown_shape_wants_the_settings(bench: Bench) -> None:
    fill(bench)
    zero(index_file(bench), 0, 40)
    found = check(bench.root).findings
    assert found.kinds == {"unknown sizes": 1}
    assert "-c" in found.kept[0].advice


def test_a_log_that_begins_above_zero_is_whole(bench: Bench) -> None:
    fill(bench)
    segment(bench.root).unlink()
    report = check(bench.root)
    assert kinds(report) == {}
    assert report.totals.log_first == SEGMENT


def test_a_queue_whose_messages_are_all_gone_is_whole(bench: Bench) -> None:
    store = bench.open()
    store.append([message("Old")] * 7 + [message(body=b"%05d" % i * 2000, properties=key(i)) for i in range(20)])
    stop(store)
    bench.opened.clear()
    add_tables(bench.root)
    segment(bench.root).unlink()
    assert kinds(check(bench.root)) == {}


def by_java(root: Path) -> None:
    """Have the checkpoint say no more than what a Java broker writes."""
    zero(root / "checkpoint", 24, 100)


def test_a_topic_that_was_deleted_is_only_noted(bench: Bench) -> None:
    fill(bench)
    by_java(bench.root)
    shutil.rmtree(bench.root / "consumequeue/T")
    (bench.root / "config/topics.json").write_bytes(b'{"topicConfigTable":{}}')
    assert kinds(check(bench.root)) == {"topic deleted": "note"}


def test_a_topic_made_again_after_it_was_deleted_is_only_noted(bench: Bench) -> None:
    fill(bench, 5)
    shutil.rmtree(bench.root / "consumequeue/T")
    store = bench.open()
    store.start()
    bench.clock.advance(1)
    stop(store)
    bench.opened.clear()
    data = (bench.root / "consumequeue/T/0" / f"{0:020d}").read_bytes()
    # The records of a queue that began anew say 0, 1, ... again.
    for number in (3, 4):
        physical_offset = ENTRY.unpack_from(data, 20 * number)[0]
        change(segment(bench.root), physical_offset + 20, lambda d, n=number: (n - 3).to_bytes(8, "big"), 8)  # type: ignore[misc]
    queue = bench.root / "consumequeue/T/0" / f"{0:020d}"
    change(queue, 0, lambda d: data[60:100] + bytes(60), 100)
    by_java(bench.root)
    assert kinds(check(bench.root)) == {"queue began anew": "note"}


def test_queues_that_are_not_as_a_stop_left_them_are_told_with_what_comes_of_it(bench: Bench) -> None:
    """Where nothing else tells: the messages of a deleted queue are gone from the log, or its topic was deleted."""
    fill(bench)
    shutil.rmtree(bench.root / "consumequeue/T")
    (bench.root / "config/topics.json").write_bytes(b'{"topicConfigTable":{}}')
    report = check(bench.root)
    assert kinds(report) == {"topic deleted": "note", "queues changed": "broken"}
    [found] = [finding for finding in report.findings.kept if finding.kind == "queues changed"]
    assert (found.path, found.offset) == (str(bench.root / "checkpoint"), 60)
    assert "1 consume queues were left, with 40 messages up to their ends; there are 0, with 0" in found.what
    assert "the next start rebuilds all consume queues" in found.advice
    (bench.root / "abort").write_bytes(b"")  # of a store that was not stopped it says nothing
    assert kinds(check(bench.root)) == {"topic deleted": "note", "not stopped": "note"}


def test_what_a_killed_broker_leaves_is_noted_not_blamed(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 20, properties=key(i)) for i in range(5)])
    store.dispatch_now()
    store.append([message(body=b"%05d" % i * 20, properties=key(i)) for i in range(5)])
    image = bench.image("killed")
    add_tables(image.root)
    report = check(image.root)
    assert report.findings.is_clean
    assert kinds(report)["entries behind"] == "note"


def test_a_torn_record_at_the_end_is_told_with_where_it_stands(bench: Bench) -> None:
    store = bench.open()
    end = store.append([message(properties=key(1)), message(properties=key(2))])[1][0]
    store.dispatch_now()
    image = bench.image("torn")
    add_tables(image.root)
    flip(segment(image.root), end + 90)
    found = [finding for finding in check(image.root).findings.kept if finding.kind == "torn tail"]
    assert [(finding.severity, finding.offset) for finding in found] == [("broken", end)]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda root: (root / "commitlog").rmdir(), "storePathRootDir"),
        (lambda root: (root / "dledger-n0").mkdir(), "DLedger"),
        (lambda root: (root / "timerwheel").write_bytes(b""), r"5\.x"),
        (lambda root: ((root / "consumequeue").mkdir(), (root / "consumequeue/CURRENT").write_bytes(b"")), "RocksDB"),
    ],
)
def test_what_is_no_store_of_this_layout_is_refused(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    (tmp_path / "commitlog").mkdir()
    make(tmp_path)
    before = picture(tmp_path)
    with pytest.raises(StoreUnknown, match=why):
        check(tmp_path)
    assert picture(tmp_path) == before


def test_findings_are_bounded_and_the_worst_are_kept(bench: Bench) -> None:
    fill(bench, 3)
    for number in range(1500):
        (bench.root / "commitlog" / f"foreign{number}").write_bytes(b"")
    for number in range(1500):
        (bench.root / "index" / f"foreign{number}").write_bytes(b"")
    found = check(bench.root).findings
    assert found.counts == {"note": 1500, "broken": 1500, "lost": 0}
    assert len(found.kept) == 2000
    assert found.left_out == 1000


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    report = check(tmp_path)
    assert report.totals.records == 0
    assert not report.findings.counts[Severity.LOST]


def test_progress_reaches_the_end(bench: Bench) -> None:
    from mqbroker.store.os_disk import OsDisk

    fill(bench)
    heard: list[tuple[int, int]] = []
    check_store(OsDisk(), str(bench.root), Given(), lambda done, total: heard.append((done, total)))
    assert heard[0] == (0, 4 * SEGMENT)
    assert heard[-1] == (4 * SEGMENT, 4 * SEGMENT)
    assert heard == sorted(heard)


def test_what_the_disk_cannot_read_is_told_and_passed_over(bench: Bench) -> None:
    fill(bench, 8)
    at = record_at(bench, 5)
    bench.disk.faults.evict()
    bench.disk.faults.unreadable.add((str(segment(bench.root)), at + 5000))
    report = check_store(bench.disk, str(bench.root), Given(), lambda done, total: None)
    assert kinds(report) == {"damaged log": "lost", "messages missing": "lost", "index entry orphaned": "broken"}
    (damage,) = report.corrupt_ranges
    assert (damage.start, damage.end) == (at, record_at(bench, 6))
    assert "the disk cannot read it" in damage.why
    assert report.totals.records == 7
