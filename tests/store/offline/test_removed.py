"""Topics that were removed as a whole: a check knows of them, and a repair does not bring them back."""

from __future__ import annotations

import json
import shutil

import pytest

from mqbroker.store.offline.repair import make_plan
from tests.store.harness import Bench, message, stop, tree, turns
from tests.store.offline.stores import add_tables, check, kinds, picture, zero
from tests.store.offline.test_repair import plan_of, repair
from tests.store.test_topic_removal import bodies, directories, filled, result

TOPICS = b'{"topicConfigTable":{"Kept":{},"Old":{}}}'


def removed(bench: Bench, *, made_again: bool = False) -> None:
    """Old was removed, and is in topics.json still; then the store was stopped."""
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    if made_again:
        store.append([message("Old", body=b"new"), message("Old", body=b"newer")])
        turns(bench.clock, 3)
    stop(store)
    bench.opened.clear()
    add_tables(bench.root)
    (bench.root / "config" / "topics.json").write_bytes(TOPICS)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_removed_topic_is_only_noted(bench: Bench, made_again: bool) -> None:
    removed(bench, made_again=made_again)
    before = picture(bench.root)
    report = check(bench.root)
    assert report.findings.is_clean
    assert kinds(report) == {"queue removed": "note"}
    assert [finding.what for finding in report.findings.kept if finding.kind == "queue removed"] == [
        "3 messages of queue Old/0 were removed with it, and are in the log only",
        "3 messages of queue Old/1 were removed with it, and are in the log only",
    ]
    assert (report.totals.topics, report.totals.queues) == ((3, 5) if made_again else (2, 4))
    assert ((b"Old", 0) in report.live_queues) == made_again
    assert plan_of(bench.root).is_empty
    assert picture(bench.root) == before


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/Kept"])
def test_a_repair_does_not_bring_it_back(bench: Bench, made_again: bool, gone: str) -> None:
    removed(bench, made_again=made_again)
    before = tree(bench.root / "consumequeue")
    shutil.rmtree(bench.root / gone)
    assert kinds(check(bench.root))["consume queue missing"] == "broken"
    folder = repair(bench.root)
    assert tree(bench.root / "consumequeue") == before
    assert check(bench.root).findings.is_clean
    assert plan_of(bench.root).is_empty
    assert (folder / "removedQueues.json").read_bytes() == (bench.root / "removedQueues.json").read_bytes()
    again = bench.open()
    assert bodies(again) == ([b"new", b"newer"] if made_again else [])
    assert again.append([message("Old")])[0][1] == (5 if made_again else 3)


def test_what_is_wrong_with_one_that_was_made_again_is_found(bench: Bench) -> None:
    removed(bench, made_again=True)
    zero(bench.root / "consumequeue/Old/0" / f"{0:020d}", 60, 20)
    found = kinds(check(bench.root))
    assert found["entry missing"] == "broken"
    repair(bench.root)
    assert bodies(bench.open()) == [b"new", b"newer"]


def test_one_that_a_java_broker_made_again_has_numbers_from_0(bench: Bench) -> None:
    removed(bench)
    note = (bench.root / "removedQueues.json").read_bytes()
    (bench.root / "removedQueues.json").unlink()
    (bench.root / "checkpoint").unlink()  # what Java changes in it makes the rest of it void
    java = bench.open()
    java.append([message("Old", 0, b"java's")])
    stop(java)
    bench.opened.clear()
    (bench.root / "removedQueues.json").write_bytes(note)
    assert check(bench.root).findings.is_clean
    shutil.rmtree(bench.root / "consumequeue/Old/0")
    assert kinds(check(bench.root))["consume queue missing"] == "broken"


def test_a_removal_cut_short_is_noted_and_finished(bench: Bench) -> None:
    store = filled(bench)
    bench.worker.at_once = False
    store.remove_topics(["Old"])
    seen = set()
    for step in range(20):
        image = bench.image(f"step{step}")
        add_tables(image.root)
        found = kinds(check(image.root))
        assert set(found.values()) == {"note"}
        seen |= {"removal unfinished"} & found.keys()
        if (image.root / "removedQueues.json").exists():
            shutil.rmtree(image.root / "consumequeue/Kept")
            repair(image.root)
            assert directories(image) == directories(image, "consumequeue")
            assert not list((image.root / "consumequeue").glob("Old/*"))
            assert check(image.root).findings.is_clean
        if not bench.worker.waiting:
            break
        bench.worker.step()
    assert seen
    bench.worker.at_once = True


def test_a_removal_that_was_only_noted_is_no_damage(bench: Bench) -> None:
    store = filled(bench)
    bench.worker.at_once = False
    store.remove_topics(["Old"])
    before = bench.image("before")
    bench.worker.step()
    note = (bench.root / "removedQueues.json").read_bytes()
    bench.worker.at_once = True
    while bench.worker.waiting:
        bench.worker.step()
    assert json.loads(note)["removing"] == [["Old", 0], ["Old", 1]]
    add_tables(before.root)
    (before.root / "removedQueues.json").write_bytes(note)  # and the new names of directories were lost
    found = kinds(check(before.root))
    assert found.keys() >= {"removal unfinished"}
    assert set(found.values()) == {"note"}
    stop(before.open())
    assert directories(before) == [path for path in directories(bench) if not path.startswith("Old")]
    assert check(before.root).findings.is_clean


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"queues": [["Old", 0, "3", 1]], "removing": []}'])
def test_a_damaged_note_is_in_the_way_of_a_rebuild(bench: Bench, data: bytes) -> None:
    removed(bench)
    (bench.root / "removedQueues.json").write_bytes(data)
    report = check(bench.root)
    assert kinds(report)["removed queues unreadable"] == "broken"
    plan = make_plan(report, fence=False, move_foreign=False)
    assert ["removedQueues.json is damaged" in obstacle for obstacle in plan.obstacles] == [True]
    (bench.root / "removedQueues.json").unlink()
    assert not plan_of(bench.root).obstacles


def test_a_note_that_is_no_file_is_told(bench: Bench) -> None:
    removed(bench)
    (bench.root / "removedQueues.json").unlink()
    (bench.root / "removedQueues.json").mkdir()
    assert kinds(check(bench.root))["removed queues unreadable"] == "broken"
