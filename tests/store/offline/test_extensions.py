"""Extensions of consume queues and %LMQ% queues: what a check finds wrong with them, and what a repair makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.consumequeue_ext import undecorate
from mqbroker.store.offline.detected_layout import Given
from tests.store.harness import Bench, make_bench, message, stop, tree, unpack
from tests.store.offline.stores import add_tables, change, check, fill, flip, kinds, picture, segment, zero
from tests.store.offline.test_fuzz import edit, edits
from tests.store.offline.test_repair import plan_of, repair
from tests.store.test_golden_ext import CHANGES

FIRST = f"{0:020d}"
SECOND = f"{2048:020d}"
EXT = "consumequeue_ext/plain/1"
ABSENT = {"named queues absent": "note"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    unpack("store-ext-lmq-4.9.7.tar.gz", tmp_path)
    return tmp_path / "store-ext-lmq"


def caches(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(root).items() if name.startswith("consumequeue")}


def test_a_store_of_the_java_broker_with_both_is_whole(root: Path) -> None:
    before = picture(root)
    report = check(root)
    assert kinds(report) == {}
    assert report.has_extra_queues
    assert (report.layout.ext_file_bytes, report.totals.queues) == (2048, 7)
    assert plan_of(root).is_empty
    assert picture(root) == before


def unit_at(root: Path, offset: int) -> int:
    """Where the unit of a message of plain/1 stands in its file."""
    data = (root / "consumequeue/plain/1" / FIRST).read_bytes()
    return undecorate(ENTRY.unpack_from(data, 20 * offset)[2])


@pytest.mark.parametrize(
    ("at", "kind"),
    [(0, "unit missing"), (1, "unit missing"), (2, "unit wrong"), (9, "unit wrong"), (10, "unit wrong"),
     (17, "unit wrong"), (18, "unit missing"), (19, "unit missing")],
)  # fmt: skip
def test_each_part_of_a_unit_is_compared(root: Path, at: int, kind: str) -> None:
    before = caches(root)
    flip(root / EXT / FIRST, unit_at(root, 7) + at)
    report = check(root)
    assert kinds(report) == {kind: "broken"}
    assert "messages 7 " in report.findings.kept[0].what
    repair(root)
    assert caches(root) == before
    assert kinds(check(root)) == {}


Damage = Callable[[Path], object]
MISSING = {"missing extension file": "broken", "unit missing": "broken"}
SIZE = {"extension size": "broken", "unit missing": "broken"}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda r: (r / EXT / SECOND).unlink(), {"unit missing": "broken"}),
        (lambda r: shutil.rmtree(r / EXT), {"unit missing": "broken"}),
        (lambda r: (r / EXT / SECOND).rename(r / EXT / f"{4096:020d}"), MISSING),
        (lambda r: (r / EXT / SECOND).rename(r / EXT / f"{2047:020d}"), SIZE),
        (lambda r: (r / EXT / SECOND).write_bytes(b"short"), SIZE),
        (lambda r: (r / EXT / FIRST).write_bytes(b""), SIZE),
        (lambda r: zero(r / EXT / FIRST, 0, 2048), {"unit missing": "broken"}),
        (lambda r: change(r / "consumequeue/plain/1" / FIRST, 12, lambda d: b"\x80", 1), {}),
        (lambda r: change(r / "consumequeue/plain/1" / FIRST, 12, lambda d: b"\x81", 1), {"unit missing": "broken"}),
        (lambda r: (r / "consumequeue_ext/gone/0").mkdir(parents=True), {"extension of no queue": "note"}),
        (lambda r: (r / "consumequeue_ext/notes").write_bytes(b""), {"foreign file": "note"}),
        (lambda r: (r / EXT / f"{4096:020d}").write_bytes(b""), {"unfinished file": "note"}),
    ],
)  # fmt: skip
def test_bad_extensions_are_found_and_built_anew(root: Path, damage: Damage, expected: dict[str, str]) -> None:
    before = caches(root)
    damage(root)
    damaged = caches(root)
    report = check(root)
    assert kinds(report) == expected
    if not report.findings.is_clean:
        assert report.findings.messages_lost == 0
        folder = repair(root)
        assert caches(root) == before
        assert {name: (folder / name).read_bytes() for name in damaged} == damaged
    stop(make_bench(root, **CHANGES).open())


@pytest.mark.parametrize("name", ["x", f"{0:020d}.bak"])
def test_foreign_files_in_an_extension_are_moved_when_told(root: Path, name: str) -> None:
    (root / EXT / name).write_bytes(b"")
    assert kinds(check(root)) == {"foreign file": "broken"}
    assert len(plan_of(root).obstacles) == 1
    repair(root, move_foreign=True)
    assert kinds(check(root)) == {}
    stop(make_bench(root, **CHANGES).open())


def test_a_bad_extension_of_a_queue_without_messages_is_moved_too(bench: Bench) -> None:
    bench.changes = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 2048}
    store = bench.open()
    store.append([message("Old")] * 7 + [message(body=b"%05d" % i * 2000) for i in range(20)])
    stop(store)
    bench.opened.clear()
    add_tables(bench.root)
    segment(bench.root).unlink()
    old = bench.root / "consumequeue_ext/Old/0"
    (old / FIRST).write_bytes(b"short")
    assert kinds(check(bench.root, Given(ext_file_bytes=2048))) == {"extension size": "broken"}
    folder = repair(bench.root)
    assert (folder / "consumequeue_ext/Old/0" / FIRST).read_bytes() == b"short"
    again = bench.open()
    assert (again.max_offset("Old", 0), again.max_offset("T", 0)) == (7, 20)


def test_units_behind_after_a_crash_are_noted(root: Path) -> None:
    last = (root / "consumequeue/plain/1" / f"{2000:020d}").read_bytes().rstrip(b"\0")
    address = undecorate(ENTRY.unpack_from(last, len(last) - 20)[2])
    (root / "abort").write_bytes(b"")
    zero(root / EXT / f"{address // 2048 * 2048:020d}", address % 2048, 4)
    assert kinds(check(root)) == {"entries behind": "note", "not stopped": "note"}


@pytest.mark.parametrize("at", [7, 11, 19])
def test_a_flipped_entry_of_a_light_queue_is_found(root: Path, at: int) -> None:
    before = caches(root)
    flip(root / "consumequeue/%LMQ%home%lamp/0" / FIRST, 20 * 7 + at)
    report = check(root)
    assert kinds(report) == {"tags code wrong" if at == 19 else "entry wrong": "broken"}
    repair(root)
    assert caches(root) == before


def test_an_entry_too_many_in_a_light_queue_is_found(root: Path) -> None:
    path = root / "consumequeue/%LMQ%+#/0" / FIRST
    data = path.read_bytes()
    change(path, 55 * 20, lambda d: data[:20], 20)
    found = check(root).findings
    assert (dict(found.kinds), found.messages_lost) == ({"entry orphaned": 1}, 0)


def test_a_light_queue_that_is_missing_is_built_anew(root: Path) -> None:
    before = caches(root)
    shutil.rmtree(root / "consumequeue/%LMQ%a")
    assert kinds(check(root)) == {"consume queue missing": "broken"}
    repair(root)
    assert caches(root) == before
    assert kinds(check(root)) == {}


def test_all_light_queues_that_are_missing_are_a_matter_of_settings(root: Path) -> None:
    for path in (root / "consumequeue").glob("%LMQ%*"):
        shutil.rmtree(path)
    assert kinds(check(root)) == ABSENT
    assert kinds(check(root, Given(multi_dispatch=False))) == ABSENT
    assert kinds(check(root, Given(multi_dispatch=True))) == {"consume queue missing": "broken"}


def test_without_any_consume_queue_all_are_built_that_messages_name(root: Path) -> None:
    before = caches(root)
    shutil.rmtree(root / "consumequeue")
    assert kinds(check(root)) == {"consume queue missing": "broken", "extension of no queue": "note"}
    repair(root)
    assert caches(root) == before


def test_names_that_are_none_are_passed_over(bench: Bench) -> None:
    fill(bench, 3)
    shutil.rmtree(bench.root / "consumequeue")
    (bench.root / "checkpoint").unlink()
    store = bench.open()
    hostile = b"INNER_MULTI_DISPATCH\x01../../x,%LMQ%ok\x02INNER_MULTI_QUEUE_OFFSET\x010,0"
    store.append([message(properties=hostile)])
    stop(store)
    bench.opened.clear()
    report = check(bench.root, Given(multi_dispatch=True))
    assert (b"%LMQ%ok", 0) in report.live_queues
    assert all(b"/" not in topic for topic, _ in report.live_queues)
    assert "topic deleted" not in kinds(report)
    assert [finding.what for finding in report.findings.kept if finding.kind == "consume queue missing"] == [
        "1 messages of queue %LMQ%ok/0 are in no consume queue"
    ]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(edits, min_size=1, max_size=3))
def test_nothing_in_an_extension_breaks_a_check(root: Path, changes: list[tuple[int, str, float, int, int]]) -> None:
    copy = root.parent / "copy"
    shutil.copytree(root, copy)
    try:
        files = sorted(path for path in (copy / "consumequeue_ext").rglob("*") if path.is_file())
        for number, kind, where, size, byte in changes:
            path = files[number % len(files)]
            if path.exists():
                edit(path, kind, where, size, byte)
        before = picture(copy)
        check(copy)
        check(copy, Given(ext_file_bytes=2048))
        assert picture(copy) == before
    finally:
        shutil.rmtree(copy)
