"""Removing topics as a whole: what goes, what stays, what numbers go on with, and every moment it can be cut short."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from mqbroker.store import MessageStore
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.consumequeues import Removed
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.wire.codes import SCHEDULE_TOPIC
from mqbroker.wire.record import decode_record
from tests.store.harness import Bench, message, now, stop, turns

Make = Callable[..., Bench]


def result(deferred: Deferred[list[str]]) -> list[str]:
    results: list[list[str] | Failure] = []
    deferred.addBoth(results.append)
    [found] = results
    if isinstance(found, Failure):
        found.raiseException()
    assert isinstance(found, list)
    return found


def filled(bench: Bench) -> MessageStore:
    """Three messages in each of two queues of Old, Kept and a topic of the system."""
    store = bench.open()
    store.start()
    for i in range(6):
        store.append([message(topic, i % 2, b"%d" % i) for topic in ("Old", "Kept", SCHEDULE_TOPIC)])
    turns(bench.clock, 3)
    return store


def bodies(store: MessageStore, topic: str = "Old", queue_id: int = 0) -> list[bytes]:
    found = []
    for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
        got = now(store).get(topic, queue_id, offset, 1)
        assert got.status is GetMessageStatus.FOUND
        assert decode_record(got.pieces[0]).queue_offset == offset
        found.append(decode_record(got.pieces[0]).body)
    return found


def ended(bench: Bench, store: MessageStore, ending: str) -> Bench:
    """A copy of a store's directory after the store was "stopped", "killed", or had another end."""
    if ending in ("stopped", "without queues"):
        stop(store)
    image = bench.image("again")
    if ending == "machine stopped":
        image.disk.boot = b"other boot"
    if ending == "without queues":
        image.disk.remove_tree(str(image.root / "consumequeue"))
    return image


def directories(bench: Bench, root: str = "consumequeue") -> list[str]:
    return sorted(str(path.relative_to(bench.root / root)) for path in (bench.root / root).glob("*/*"))


KEPT = ["Kept/0", "Kept/1", f"{SCHEDULE_TOPIC}/0", f"{SCHEDULE_TOPIC}/1"]


def test_a_topic_goes_and_the_others_stay(bench: Bench) -> None:
    store = filled(bench)
    end = store.log_end
    assert result(store.remove_topics({"Old", "Never", SCHEDULE_TOPIC})) == ["Old"]
    assert directories(bench) == KEPT
    assert sorted(path.name for path in (bench.root / "consumequeue").iterdir()) == ["Kept", SCHEDULE_TOPIC]
    assert bodies(store) == bodies(store, queue_id=1) == []
    assert bodies(store, "Kept") == [b"0", b"2", b"4"]
    assert bodies(store, SCHEDULE_TOPIC, 1) == [b"1", b"3", b"5"]
    assert store.log_end == end
    assert now(store).record(0) is not None
    assert result(store.remove_topics(["Old"])) == []


def test_only_what_is_named_and_the_systems_is_kept(bench: Bench) -> None:
    store = filled(bench)
    store.append([message("%LMQ%light"), message("Other"), message("%RETRY%G")])
    store.dispatch_now()
    assert result(store.keep_only_topics({"Kept", "%RETRY%G"})) == ["Old", "Other"]
    assert directories(bench) == ["%LMQ%light/0", "%RETRY%G/0", *KEPT]
    assert store._queues.lmq_count == 1
    assert result(store.remove_topics(["%LMQ%light"])) == ["%LMQ%light"]
    assert store._queues.lmq_count == 0


def test_one_that_is_made_again_goes_on_with_its_numbers(bench: Bench) -> None:
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    appended = store.append([message("Old", 0, b"new"), message("Old", 1, b"new"), message("Old", 7, b"new")])
    assert [row[1] for row in appended] == [3, 3, 0]
    turns(bench.clock, 3)
    assert bodies(store) == [b"new"]
    assert now(store).get("Old", 0, 0, 9).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert now(store).get("Old", 0, 0, 9).next_offset == 3
    stop(store)
    assert bodies(bench.open()) == [b"new"]


@pytest.mark.parametrize("restarted", [False, True])
def test_its_offsets_are_those_that_its_first_message_will_have(bench: Bench, restarted: bool) -> None:
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    if restarted:
        stop(store)
        store = bench.open()
        store.start()
    assert store.bounds("Old", 0) == (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (3, 3)
    assert (store.bounds("Old", 9), store.min_offset("Old", 9), store.max_offset("Old", 9)) == (None, 0, 0)
    assert now(store).offset_by_time("Old", 0, 0) == 3
    for offset, status in [(0, GetMessageStatus.OFFSET_TOO_SMALL), (3, GetMessageStatus.OFFSET_OVERFLOW_ONE)]:
        got = now(store).get("Old", 0, offset, 9)
        assert (got.status, got.next_offset, got.min_offset, got.max_offset) == (status, 3, 3, 3)
        assert store.get("Old", 0, offset, 9) == got
    assert store.append([message("Old", 0, b"new")])[0][1] == 3
    turns(bench.clock, 3)
    assert bodies(store) == [b"new"]


@pytest.mark.parametrize("ending", ["stopped", "killed", "machine stopped", "without queues"])
@pytest.mark.parametrize("made_again", [None, "before", "after"])
def test_what_was_removed_does_not_come_back(make: Make, ending: str, made_again: str | None) -> None:
    bench = make()
    store = filled(bench)
    store.append([message("Old", body=b"last")])  # the newest of the log, not dispatched yet
    result(store.remove_topics(["Old"]))
    if made_again == "before":
        store.append([message("Old", body=b"new")])
        turns(bench.clock, 3)
    image = ended(bench, store, ending)
    with capturedLogs() as events:
        again = image.open()
    assert not [event for event in events if "messages are missing" in event["log_format"]]
    again.start()
    if made_again == "after":
        assert again.append([message("Old", body=b"new")])[0][1] == 4
        turns(image.clock, 3)
    assert bodies(again) == ([b"new"] if made_again else [])
    assert again.max_offset("Old", 0) in ((5,) if made_again else (0, 4))
    assert bodies(again, "Kept", 1) == [b"1", b"3", b"5"]
    assert again.append([message("Old"), message("Old", 1)])[1][1] == 3
    stop(again)


@pytest.mark.parametrize("ext", [False, True])
@pytest.mark.parametrize("made_again", [False, True])
def test_every_moment_can_be_the_last(make: Make, ext: bool, made_again: bool) -> None:
    """The topic is there whole, or not at all; what came after its removal is there."""
    bench = make(enable_consume_queue_ext=ext, mapped_file_size_consume_queue_ext=4096)
    store = filled(bench)
    bench.worker.at_once = False
    done: list[list[str]] = []
    store.remove_topics(["Old"]).addCallback(done.append)
    was_there = []
    for step in range(20):
        if made_again and step == 2:
            store.append([message("Old", body=b"new")])
            store.dispatch_now()
        for boot in (b"first boot", b"other boot"):
            image = bench.image(f"{step}-{boot.decode()[:5]}")
            image.disk.boot = boot
            opened = image.open()
            both = bodies(opened), bodies(opened, "Old", 1)
            new = [b"new"] if made_again and step >= 2 else []
            lost = [b"new"] if new and boot != b"first boot" else new
            whole = [b"0", b"2", b"4"], [b"1", b"3", b"5"]
            assert both in ((new, []), (whole[0] + new, whole[1]), (lost, []))
            was_there.append(both[1] != [])
            assert bodies(opened, "Kept") == whole[0]
            assert opened.append([message("Old")])[0][1] == 3 + len(new)
            assert not (image.root / "consumequeue" / ".removed").exists()
            stop(opened)
        if not bench.worker.waiting:
            break
        bench.worker.step()
    assert done == [["Old"]]
    # From when it is noted on, a start finishes it.
    assert was_there == [True, True] + [False] * (len(was_there) - 2)
    assert directories(bench) == (sorted([*KEPT, "Old/0"]) if made_again else KEPT)
    if ext:
        assert directories(bench, "consumequeue_ext") == directories(bench)
    bench.worker.at_once = True


def test_a_removal_is_finished_also_where_the_last_message_of_the_log_goes_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(bench)
    store.append([message("Old", body=b"last")])
    store.dispatch_now()
    images: list[Bench] = []
    rename = bench.disk.rename

    def killed_before(old: str, new: str) -> None:
        if not images and ".removed" in new:
            images.append(bench.image("killed"))  # it is noted, and nothing done yet
        rename(old, new)

    monkeypatch.setattr(bench.disk, "rename", killed_before)
    assert result(store.remove_topics(["Old"])) == ["Old"]
    (image,) = images
    assert "Old/0" in directories(image)
    opened = image.open()
    assert bodies(opened) == []
    assert directories(image) == KEPT
    assert opened.append([message("Old")])[0][1] == 4
    stop(opened)


def test_what_comes_while_it_is_removed_is_removed_and_counts(bench: Bench) -> None:
    store = filled(bench)
    bench.worker.at_once = False
    done: list[list[str]] = []
    store.remove_topics(["Old"]).addCallback(done.append)
    assert store.append([message("Old", body=b"late")])[0][1] == 3
    while bench.worker.waiting:
        bench.worker.step()
    assert done == [["Old"]]
    bench.worker.at_once = True
    assert store.append([message("Old", body=b"new")])[0][1] == 4
    store.dispatch_now()
    assert bodies(store) == [b"new"]
    stop(store)
    bench.disk.remove_tree(str(bench.root / "consumequeue"))
    assert bodies(bench.open()) == [b"new"]


def test_syncs_go_on_after_a_removal(bench: Bench) -> None:
    store = filled(bench)
    store.append([message("Old", body=b"x"), message("New")])
    store.dispatch_now()
    result(store.remove_topics(["Old"]))
    turns(bench.clock, 3)
    store.append([message("Kept")])
    turns(bench.clock, 3)
    assert store._files.synced_end == store.log_end
    stop(store)
    assert not (bench.root / "abort").exists()


def test_where_the_note_cannot_be_written_all_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(bench)

    def refuse(path: str, pieces: Sequence[bytes]) -> None:
        raise OSError(28, "No space left on device", path)

    with monkeypatch.context() as patched:
        patched.setattr(bench.disk, "replace", refuse)
        with pytest.raises(OSError, match="No space"):
            result(store.remove_topics(["Old"]))
    assert bodies(store) == [b"0", b"2", b"4"]
    assert result(store.remove_topics(["Old"])) == ["Old"]


def removed_but_not_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[MessageStore, list[bool]]:
    """A store in which the second note of a removal fails, a message having come between the two; notes go on failing
    until the list is empty."""
    store = filled(bench)
    refuses: list[bool] = []
    replace = bench.disk.replace

    def refuse(path: str, pieces: Sequence[bytes]) -> None:
        if refuses and "removedQueues" in path:
            raise OSError(28, "No space left on device", path)
        replace(path, pieces)

    monkeypatch.setattr(bench.disk, "replace", refuse)
    bench.worker.at_once = False
    done: list[Failure] = []
    store.remove_topics(["Old"]).addErrback(done.append)
    assert store.append([message("Old", body=b"between")])[0][1] == 3
    bench.worker.step()
    assert "Old/0" not in directories(bench)
    refuses.append(True)
    while bench.worker.waiting:
        bench.worker.step()
    bench.worker.at_once = True
    assert "No space" in str(done[0].value)
    turns(bench.clock, 30)
    return store, refuses


@pytest.mark.parametrize("ending", ["stopped", "killed", "machine stopped", "without queues"])
@pytest.mark.parametrize("new", [[], [b"new"]])
def test_numbers_of_messages_that_came_before_a_removal_was_noted_are_not_given_again(
    make: Make, ending: str, new: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    store, _ = removed_but_not_noted(bench, monkeypatch)
    for body in new:
        assert store.append([message("Old", body=body)])[0][1] == 4
    store.append([message("Kept", body=b"end")])
    turns(bench.clock, 30)
    if ending == "stopped":
        stop(store)
    image = bench.image("again")
    if ending == "machine stopped":
        image.disk.boot = b"other boot"
    if ending == "without queues":
        image.disk.remove_tree(str(image.root / "consumequeue"))
    again = image.open()
    assert bodies(again) in (new, [b"between", *new])
    assert bodies(again, queue_id=1) == []
    assert again.append([message("Old", body=b"newer"), message("Old", 1)])[0][1] == 4 + len(new)
    again.dispatch_now()
    assert bodies(again)[-1 - len(new) :] == [*new, b"newer"]
    stop(again)
    image.disk.remove_tree(str(image.root / "consumequeue"))
    assert bodies(image.open())[-1 - len(new) :] == [*new, b"newer"]


def test_what_was_removed_is_noted_with_the_next_checkpoint_that_can_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, refuses = removed_but_not_noted(bench, monkeypatch)
    assert store.append([message("Old", body=b"new")])[0][1] == 4
    turns(bench.clock, 30)
    noted = json.loads((bench.root / "removedQueues.json").read_bytes())
    assert store._files.synced_end <= noted["queues"][0][3]
    refuses.clear()
    turns(bench.clock, 3)
    noted = json.loads((bench.root / "removedQueues.json").read_bytes())
    assert ([row[:3] for row in noted["queues"]], noted["removing"]) == ([["Old", 0, 4], ["Old", 1, 3]], [])
    assert store._files.synced_end == store.log_end
    stop(store)
    assert not (bench.root / "abort").exists()
    assert bodies(bench.open()) == [b"new"]


def test_a_stop_is_not_clean_while_a_removal_is_not_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = removed_but_not_noted(bench, monkeypatch)
    stop(store)
    assert (bench.root / "abort").exists()


def test_where_a_directory_cannot_be_moved_its_topic_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(bench)
    rename = bench.disk.rename

    def refuse(old: str, new: str) -> None:
        if "Old" in old:
            raise OSError(13, "Permission denied", old)
        rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(bench.disk, "rename", refuse)
        with pytest.raises(OSError, match="Permission denied"):
            result(store.keep_only_topics([]))
    assert bodies(store) == [b"0", b"2", b"4"]
    assert bodies(store, "Kept") == []
    stop(store)
    again = bench.open()
    assert bodies(again) == [b"0", b"2", b"4"]
    assert again.append([message("Kept")])[0][1] == 3


def test_stopping_waits_for_a_removal(bench: Bench) -> None:
    store = filled(bench)
    bench.worker.at_once = False
    removed: list[list[str]] = []
    stopped: list[list[str]] = []
    store.remove_topics(["Old"]).addCallback(removed.append)
    store.remove_topics(["Kept"]).addCallback(removed.append)
    store.stop().addCallback(lambda _: stopped.extend(removed))
    while bench.worker.waiting:
        bench.worker.step()
    assert stopped == [["Old"], ["Kept"]]
    bench.worker.at_once = True
    assert not (bench.root / "abort").exists()


def test_a_queue_is_begun_in_the_middle_of_a_file_or_not_at_all(make: Make) -> None:
    bench = make(mapped_file_size_consume_queue=2000)  # 100 entries
    store = bench.open()
    store.append([message("Old")] * 150)
    store.dispatch_now()
    result(store.remove_topics(["Old"]))
    bench.disk.faults.room = 0
    store.append([message("Old", body=b"new"), message("Old", body=b"newer")])
    with pytest.raises(OSError, match="No space"):
        store.dispatch_now()
    assert store.max_offset("Old", 0) == 150
    assert list((bench.root / "consumequeue" / "Old" / "0").iterdir()) == []
    bench.disk.faults.room = None
    store.dispatch_now()
    assert bodies(store) == [b"new", b"newer"]
    entries = (bench.root / "consumequeue" / "Old" / "0" / f"{2000:020d}").read_bytes()
    blank = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    assert entries[:1000] == blank * 50
    stop(store)
    assert bodies(bench.open()) == [b"new", b"newer"]


def test_what_the_log_lost_was_not_removed(bench: Bench) -> None:
    """A machine stops: what is appended where lost messages were counts."""
    store = filled(bench)
    turns(bench.clock, 3)
    flushed = bench.image("flushed")
    store.append([message("Old", body=b"lost")])
    result(store.remove_topics(["Old"]))
    (flushed.root / "removedQueues.json").write_bytes((bench.root / "removedQueues.json").read_bytes())
    flushed.disk.remove_tree(str(flushed.root / "consumequeue" / "Old"))
    again = flushed.open()
    again.append([message("Old", body=b"new")])
    stop(again)
    flushed.disk.remove_tree(str(flushed.root / "consumequeue"))
    assert bodies(flushed.open()) == [b"new"]


@pytest.mark.parametrize("remove", [MessageStore.remove_topics, MessageStore.renumber_topics])
def test_where_the_log_began_anew_a_removed_queue_gets_no_number_that_no_record_can_have(
    bench: Bench, remove: Callable[..., Deferred[list[str]]]
) -> None:
    store = filled(bench)
    result(remove(store, ["Old"]))
    stop(store)
    for name in ("commitlog", "consumequeue", "index"):
        bench.disk.remove_tree(str(bench.root / name))
    (bench.root / "checkpoint").unlink()
    store = bench.open()
    for number in range(2):
        [(start, offset, size, _)] = store.append([message("Old", body=b"%d" % number)])
        assert offset == number
        assert now(store).record(start, size) is not None
    stop(store)
    bench.disk.remove_tree(str(bench.root / "consumequeue"))
    for _ in range(2):  # what was noted is on the disk
        store = bench.open()
        assert bodies(store) == [b"0", b"1"]
        assert not store.corrupt_ranges
        stop(store)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"queues": []}',
        b'{"queues": [["../x", 0, 1, 1]], "removing": []}',
        b'{"queues": [["Old", -1, 1, 1]], "removing": []}',
        b'{"queues": [["Old", 0, 1e3, 1]], "removing": []}',
        b'{"queues": [["Old", 0, 1, 99999999999999999999]], "removing": []}',
        b'{"queues": [["Old", 0, 1]], "removing": []}',
        b'{"queues": [], "removing": [["Old", true]]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_note_is_told_and_passed_over(bench: Bench, data: bytes) -> None:
    stop(filled(bench))
    (bench.root / "removedQueues.json").write_bytes(data)
    with capturedLogs() as events:
        store = bench.open()
    assert len([event for event in events if "is damaged" in event["log_format"]]) == 1
    assert bodies(store) == [b"0", b"2", b"4"]


def test_queues_without_messages_in_the_log_go_and_keep_their_numbers(make: Make) -> None:
    bench = make()
    store = bench.open()
    store.start()
    store.append([message("Old"), message("Old"), message("Old", 1)])
    store.append([message("Kept", body=b"x" * 60_000)] * 4)
    store.append([message("Old", 1)])
    turns(bench.clock, 3)
    bench.disk.faults.space = type(bench.disk.faults.space)(86, 14)
    turns(bench.clock, 10)
    assert store.log_min_offset > 0
    assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (2, 2)
    assert result(store.remove_empty_queues()) == ["Old"]
    assert [path for path in directories(bench) if path.startswith("Old")] == ["Old/1"]
    stop(store)
    again = bench.open()
    assert again.append([message("Old"), message("Old", 1)])[0][1] == 2
    again.dispatch_now()
    assert bodies(again) == [b"body"]


def test_what_has_aged_is_forgotten(make: Make) -> None:
    bench = make(disk_free_bytes_min=0)
    store = bench.open()
    store.start()
    store.append([message("Old"), message("Gone")])
    turns(bench.clock, 3)
    result(store.remove_topics(["Old", "Gone"]))
    store.append([message("Old", body=b"x" * 60_000)] * 6)
    turns(bench.clock, 3)
    bench.disk.faults.space = type(bench.disk.faults.space)(86, 14)
    turns(bench.clock, 10)
    assert store.log_min_offset > 0
    store.append([message("Other")])
    result(store.remove_topics(["Other"]))
    noted = json.loads((bench.root / "removedQueues.json").read_bytes())
    assert sorted(row[0] for row in noted["queues"]) == ["Gone", "Other"]
    assert noted["removing"] == []


@pytest.mark.parametrize("ending", ["stopped", "killed", "without queues"])
@pytest.mark.parametrize("count", range(1, 6))
def test_one_that_a_java_broker_made_again_is_as_that_made_it(make: Make, count: int, ending: str) -> None:
    bench = make()
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    store.append([message("Kept", body=b"end")])
    stop(store)
    note = (bench.root / "removedQueues.json").read_bytes()
    (bench.root / "removedQueues.json").unlink()  # which Java does not read
    java, new = bench.open(), [b"%d of Java's" % n for n in range(count)]
    assert [row[1] for row in java.append([message("Old", body=body) for body in new])] == list(range(count))
    stop(java)
    (bench.root / "removedQueues.json").write_bytes(note)
    again = bench.open()
    assert bodies(again) == new
    again = ended(bench, again, ending).open()
    assert bodies(again) == new
    assert again.append([message("Old"), message("Old", 1)])[0][1] == count
    again.dispatch_now()
    assert again.max_offset("Old", 0) == count + 1
    assert (again.min_offset("Old", 1), again.max_offset("Old", 1)) == (3, 4)


def test_one_that_is_garbled_goes_on_with_its_numbers(bench: Bench, make: Make) -> None:
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    [(of_another, _, size, _)] = store.append([message("Kept", body=b"after")])
    turns(bench.clock, 3)
    image = bench.image("image")
    image.disk.boot = b"other boot"
    queue = image.root / "consumequeue" / "Old" / "0" / f"{0:020d}"
    queue.parent.mkdir(parents=True)
    queue.write_bytes(ENTRY.pack(of_another, size, 0).ljust(2000, b"\0"))
    again = image.open()
    assert again.append([message("Old", body=b"new")])[0][1] == 3
    again.dispatch_now()
    assert (bodies(again), again.bounds("Old", 0)) == ([b"new"], (3, 4))


def test_the_trash_of_a_process_that_ended_is_emptied(bench: Bench) -> None:
    stop(filled(bench))
    trash: Path = bench.root / "consumequeue" / ".removed" / "1"
    trash.mkdir(parents=True)
    (trash / f"{0:020d}").write_bytes(b"x")
    assert bodies(bench.open()) == [b"0", b"2", b"4"]
    assert not trash.parent.exists()


def test_a_get_that_waits_for_the_disk_finds_its_topic_removed(bench: Bench) -> None:
    stop(filled(bench))
    store = bench.open()
    bench.disk.faults.evict()
    bench.worker.at_once = False
    waiting = store.get("Old", 0, 0, 9)
    assert isinstance(waiting, Deferred)
    got: list[GetMessageResult] = []
    waiting.addCallback(got.append)
    fetch = bench.worker.waiting.pop()
    removed: list[list[str]] = []
    store.remove_topics(["Old"]).addCallback(removed.append)
    while bench.worker.waiting:
        bench.worker.step()
    assert (removed, got) == ([["Old"]], [])
    bench.worker.waiting.append(fetch)
    bench.worker.step()
    assert [(result.status, result.next_offset) for result in got] == [(GetMessageStatus.OFFSET_TOO_SMALL, 3)]
    bench.worker.at_once = True


def test_removed_queues_that_are_read_over_do_not_count_at_a_stop(bench: Bench) -> None:
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    stop(store)
    bench.disk.remove_tree(str(bench.root / "consumequeue" / "Kept"))
    for expected in (1, 0):  # built anew once
        with capturedLogs() as events:
            stop(bench.open())
        assert len([event for event in events if "lost entries" in event["log_format"]]) == expected


def followed(bench: Bench, make: Make, *, made_again: bool) -> tuple[MessageStore, Bench, MessageStore]:
    """A master that has removed a topic, and a slave with the same log that has it still."""
    master = filled(bench)
    end = master.log_end
    stop(master)
    image = bench.image("slave")
    master = bench.open()
    master.start()
    result(master.remove_topics(["Old"]))
    slave = image.open()
    slave.start()
    if made_again:
        for store in (master, slave):
            store._queues.open(b"Old", 0).number_from(3)
            store.append([message("Old", 0, b"new")])
            turns((bench if store is master else image).clock, 3)
    assert {key: note.until for key, note in master.removed_queues().items()} == {("Old", 0): end, ("Old", 1): end}
    return master, image, slave


@pytest.mark.parametrize("ending", ["none", "stopped", "killed", "without queues"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_slave_removes_what_its_master_removed(bench: Bench, make: Make, ending: str, made_again: bool) -> None:
    master, image, slave = followed(bench, make, made_again=made_again)
    assert bodies(slave)[:3] == [b"0", b"2", b"4"]
    assert result(slave.follow_removals(master.removed_queues())) == ["Old"]
    assert result(slave.follow_removals(master.removed_queues())) == []
    if ending != "none":
        image = ended(image, slave, ending)
        slave = image.open()
        slave.start()
    assert bodies(slave) == bodies(master) == ([b"new"] if made_again else [])
    for queue_id in (0, 1):
        assert slave.bounds("Old", queue_id) == master.bounds("Old", queue_id)
        assert bodies(slave, "Kept", queue_id) == bodies(master, "Kept", queue_id)
    assert (image.root / "consumequeue" / "Old" / "0").exists() is made_again
    assert not (image.root / "consumequeue" / "Old" / "1").exists()
    # As a master it goes on with the same numbers.
    assert [row[1] for row in slave.append([message("Old", n) for n in (0, 1)])] == [3 + made_again, 3]


def test_messages_that_come_while_a_slave_removes_stay(bench: Bench, make: Make) -> None:
    master, image, slave = followed(bench, make, made_again=False)
    image.worker.at_once = False
    removal = slave.follow_removals(master.removed_queues())
    image.worker.step()
    slave.append([message("Old", 0, b"new")])
    turns(image.clock, 3)
    image.worker.at_once = True
    image.worker.work()
    assert result(removal) == ["Old"]
    assert (bodies(slave), bodies(slave, queue_id=1)) == ([b"new"], [])
    image.worker.at_once = True
    stop(slave)
    assert bodies(image.image("again").open()) == [b"new"]


def test_messages_that_come_while_empty_queues_are_removed_stay(bench: Bench) -> None:
    store = filled(bench)
    result(store.remove_topics(["Old"]))
    queue = store._queues.open(b"Old", 0)
    queue.skip_to(4)
    queue.begin_at(4)
    queue.number_from(4)
    bench.worker.at_once = False
    removal = store.remove_empty_queues()
    store.append([message("Old", 0, b"new")])
    turns(bench.clock, 3)
    bench.worker.at_once = True
    bench.worker.work()
    assert result(removal) == []
    assert bodies(store) == [b"new"]


def test_a_slave_that_cannot_write_removes_later(bench: Bench, make: Make) -> None:
    master, image, slave = followed(bench, make, made_again=True)
    image.disk.faults.write_error = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        result(slave.follow_removals(master.removed_queues()))
    # It hides them all the same, and the next removal writes it.
    assert bodies(slave) == [b"new"]
    image.disk.faults.write_error = None
    result(slave.follow_removals(master.removed_queues()))
    assert bodies(image.image("again").open()) == [b"new"]


def test_notes_of_the_system_and_those_of_nothing_remove_nothing(bench: Bench, make: Make) -> None:
    _, _, slave = followed(bench, make, made_again=True)
    notes = {("Old", 0): Removed(0, 0), (SCHEDULE_TOPIC, 0): Removed(1, 1)}
    assert result(slave.follow_removals(notes)) == []
    assert bodies(slave, SCHEDULE_TOPIC) == [b"0", b"2", b"4"]
    assert bodies(slave) == [b"0", b"2", b"4", b"new"]


@pytest.mark.parametrize("ending", ["stopped", "killed", "machine stopped", "without queues"])
@pytest.mark.parametrize("count", range(6))
def test_topics_of_a_java_master_begin_at_0_again(bench: Bench, make: Make, count: int, ending: str) -> None:
    _, image, slave = followed(bench, make, made_again=False)
    assert result(slave.renumber_topics(["Old", "Never"])) == ["Old"]
    assert slave.bounds("Old", 0) == (0, 0)
    new = [b"new %d" % n for n in range(count)]
    assert [slave.append([message("Old", 0, body)])[0][1] for body in new] == list(range(count))
    turns(image.clock, 3)
    assert bodies(slave) == new
    again = ended(image, slave, ending).open()
    assert bodies(again) == new
    assert again.bounds("Old", 0) == (0, count)
    assert again.append([message("Old")])[0][1] == count


@pytest.mark.parametrize("steps", range(1, 6))
def test_however_far_a_slave_has_come_they_begin_at_0_again(bench: Bench, make: Make, steps: int) -> None:
    _, image, slave = followed(bench, make, made_again=False)
    image.worker.at_once = False
    removal = slave.renumber_topics(["Old"])
    while steps and image.worker.waiting:
        steps -= 1
        image.worker.step()
    again = image.image("again").open()
    assert again.bounds("Old", 0) == (0, 0)
    assert bodies(again) == []
    assert again.append([message("Old", 0, b"new")])[0][1] == 0
    again.dispatch_now()
    assert bodies(again) == [b"new"]
    image.worker.work()
    assert result(removal) == ["Old"]
