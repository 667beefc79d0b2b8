"""Consume queues that do not agree with the log: pages, files and directories that are missing, or garbage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from mqbroker.store import MessageStore
from mqbroker.store.checkpoint import decode_checkpoint, encode_checkpoint
from mqbroker.store.get_message_result import GetMessageResult
from mqbroker.wire.codes import SysFlag
from tests.store.aging import BODY, HOUR_MS, NOW_HOUR, SEGMENT, a_turn, age, numbered
from tests.store.aging import bodies as aged_bodies
from tests.store.harness import Bench, message, stop, tree, turns
from tests.store.test_recovery import bodies, queue_file, settle, write

#: Entries of a file of a queue.
PER_FILE = 100
COUNT = 350


def zeros_at(entry: int, count: int = 50) -> Callable[[Bench], None]:
    return lambda image: write(queue_file(image, entry // PER_FILE), entry % PER_FILE * 20, bytes(20 * count))


def garbage_in(number: int) -> Callable[[Bench], object]:
    return lambda image: queue_file(image, number).write_bytes(b"\xa5\x17\xff\x80" * 500)


def without_file(number: int) -> Callable[[Bench], None]:
    return lambda image: queue_file(image, number).unlink()


def without(*parts: str) -> Callable[[Bench], None]:
    return lambda image: shutil.rmtree(Path(image.root, "consumequeue", *parts))


LOSSES: dict[str, Callable[[Bench], object]] = {
    "the newest page": zeros_at(300),
    "the newest entry": zeros_at(349, 1),
    "the last file": without_file(3),
    "a file in the middle": without_file(1),
    "the first file": without_file(0),
    "the directory of the queue": without("T", "0"),
    "the directory of the topic": without("T"),
    "all queues": without(),
    "garbage in the last file": garbage_in(3),
}


def result_of(found: GetMessageResult | Deferred[GetMessageResult]) -> GetMessageResult:
    if isinstance(found, Deferred):
        assert isinstance(found.result, GetMessageResult)
        return found.result
    return found


def filled(bench: Bench) -> MessageStore:
    """A store with messages of T/0 and one of another queue, all of it synced and covered by the checkpoint."""
    store = bench.open()
    for number in range(COUNT):
        store.append([message(body=b"%d" % number)])
    store.append([message("Other", body=b"other")])
    settle(bench, store)
    turns(bench.clock, 3)
    return store


@pytest.mark.parametrize("boot", [b"first boot", b"another boot"])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_crash_took_of_a_queue_is_built_again_from_the_log(bench: Bench, loss: str, boot: bytes) -> None:
    store = filled(bench)
    queues = tree(bench.root / "consumequeue")
    image = bench.image("crashed")
    image.disk.boot = boot
    LOSSES[loss](image)
    with capturedLogs() as logs:
        again = image.open()
    assert bodies(again) == [b"%d" % number for number in range(COUNT)]
    assert bodies(again, "Other") == [b"other"]
    assert len([entry for entry in logs if "rebuilt" in entry["log_format"]]) >= 1
    assert again.append([message(body=b"next")])[0][1] == COUNT
    again.dispatch_now()
    assert again.get("T", 0, COUNT, 1).next_offset == COUNT + 1
    assert decode_checkpoint((image.root / "checkpoint").read_bytes()).queues_offset == 0
    stop(again)
    stop(store)
    assert list(tree(image.root / "consumequeue")) == list(queues)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_goes_while_the_broker_is_stopped_is_built_again_from_the_log(bench: Bench, loss: str) -> None:
    stop(filled(bench))
    LOSSES[loss](bench)
    again = bench.open()
    assert bodies(again) == [b"%d" % number for number in range(COUNT)]
    assert again.append([message()])[0][1] == COUNT
    stop(again)


@pytest.mark.parametrize(
    "loss", ["the last file", "a file in the middle", "the first file", "the directory of the queue"]
)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_only_queues_that_lack_entries_are_built_again(bench: Bench, loss: str, how: str) -> None:
    store = bench.open()
    store.append([message("Other", body=b"%d" % number) for number in range(COUNT)])
    store.append([message("Mine", body=b"%d" % number) for number in range(COUNT)])
    between = store.append([message(body=b"%d" % number) for number in range(COUNT)])
    settle(bench, store)
    turns(bench.clock, 3)
    image = bench
    if how == "killed":
        image = bench.image("killed")
    else:
        stop(store)
    whole = tree(image.root / "consumequeue")
    other = image.root / "consumequeue" / "Other" / "0" / f"{0:020d}"
    write(other, 50 * 20, bytes(20))  # nobody reads it
    LOSSES[loss](image)
    with capturedLogs() as logs:
        again = image.open()
    assert other.read_bytes()[1000:1020] == bytes(20)
    [begun] = [entry for entry in logs if "consume queues lost entries" in entry["log_format"]]
    [ended] = [entry for entry in logs if "were rebuilt" in entry["log_format"]]
    assert (ended["count"], ended["all"]) == (1, 3)
    # After a crash nobody knows which they are before the log is read.
    first = {"the last file": 300, "a file in the middle": 100}.get(loss, 0)
    assert begun["start"] == (between[first][0] if how == "stopped" else 0)
    assert begun["end"] == again.log_end
    assert bodies(again) == [b"%d" % number for number in range(COUNT)]
    assert again.append([message(body=b"next")])[0][1] == COUNT
    assert bodies(again, "Other") == [b"%d" % number for number in range(COUNT)]
    stop(again)
    stop(store)
    built = tree(image.root / "consumequeue")
    assert [name for name in whole if built[name][:2000] != whole[name][:2000] and "T/0" not in name] == []


@pytest.fixture
def aged(make: Callable[..., Bench], utc: None) -> Bench:
    """A stopped store of messages 8 to 17 of T, in queue files of three entries from 6 on, and none of Gone, which had
    two."""
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, mapped_file_size_consume_queue=60)
    store = bench.open()
    store.start()
    store.append([message("Gone"), message("Gone")])
    store.append([message(body=b"%06d" % number + BODY) for number in range(18)])
    turns(bench.clock, 3)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    assert store.log_min_offset == 2 * SEGMENT
    assert store.min_offset("T", 0) == 8
    stop(store)
    assert min(path.name for path in (bench.root / "consumequeue" / "T" / "0").iterdir()) == f"{6 * 20:020d}"
    return bench


def killed(bench: Bench, how: str) -> None:
    if how == "killed":
        (bench.root / "abort").write_bytes(bench.disk.boot)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_first_files_that_are_missing_are_noticed_where_the_log_does_not_begin_at_0(
    aged: Bench, how: str, count: int
) -> None:
    killed(aged, how)
    for path in sorted((aged.root / "consumequeue" / "T" / "0").iterdir())[:count]:
        path.unlink()
    again = aged.open()
    assert again.min_offset("T", 0) == 8
    assert aged_bodies(again) == numbered(8, 18)
    assert again.append([message()])[0][1] == 18
    stop(again)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_file_without_an_entry_hides_none_that_were_before_it(aged: Bench, how: str) -> None:
    """As where all files are lost but one that was just made."""
    killed(aged, how)
    directory = aged.root / "consumequeue" / "T" / "0"
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / f"{18 * 20:020d}").write_bytes(bytes(60))
    again = aged.open()
    assert again.min_offset("T", 0) == 8
    assert aged_bodies(again) == numbered(8, 18)
    assert again.append([message()])[0][1] == 18
    stop(again)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_queue_goes_on_with_its_numbers_of_which_neither_files_nor_log_have_a_message(aged: Bench, how: str) -> None:
    killed(aged, how)
    first = aged.root / "consumequeue" / "Gone" / "0" / f"{0:020d}"
    first.unlink()
    first.with_name(f"{3 * 20:020d}").write_bytes(bytes(60))
    again = aged.open()
    assert (again.min_offset("Gone", 0), again.max_offset("Gone", 0)) == (3, 3)
    assert again.append([message("Gone", body=b"next")])[0][1] == 3
    again.dispatch_now()
    assert aged_bodies(again, "Gone") == [b"next"]
    stop(again)
    again = aged.open()
    assert aged_bodies(again, "Gone") == [b"next"]
    stop(again)


@pytest.mark.parametrize("loss", ["the file", "the directory", "the page"])
@pytest.mark.parametrize("how", ["stopped", "killed", "killed twice", "killed again later"])
def test_a_queue_that_lost_all_goes_on_with_its_numbers_of_the_last_stop(aged: Bench, how: str, loss: str) -> None:
    """The log has none of its messages, so that nothing else could tell."""
    if how.startswith("killed"):
        aged.open().append([message(body=b"later")])  # nobody stops it
        aged = aged.image("killed")
    if how == "killed twice":
        aged.open()
        aged = aged.image("twice")
    directory = aged.root / "consumequeue" / "Gone" / "0"
    if loss == "the page":
        write(directory / f"{0:020d}", 0, bytes(60))
    else:
        shutil.rmtree(directory if loss == "the file" else directory.parent)
    with capturedLogs() as logs:
        again = aged.open()
    assert [entry["n"] for entry in logs if "it continues at" in entry["log_format"]] == [2]
    assert again.bounds("Gone", 0) == (2, 2)
    if how == "killed again later":  # what it goes on with is on the disk
        (aged.root / "queueEnds.last").unlink(missing_ok=True)
        aged = aged.image("later")
        again = aged.open()
    assert again.append([message("Gone", body=b"next")])[0][1] == 2
    again.dispatch_now()
    assert aged_bodies(again, "Gone") == [b"next"]
    stop(again)
    with capturedLogs() as logs:
        again = aged.open()
    assert not [entry for entry in logs if "it continues at" in entry["log_format"]]
    assert aged_bodies(again, "Gone") == [b"next"]
    assert again.bounds("Gone", 0) == (2, 3)
    stop(again)


def test_with_another_log_no_queue_goes_on_with_numbers_of_the_one_before(aged: Bench) -> None:
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(aged.root / name, ignore_errors=True)
    again = aged.open()
    assert again.append([message("Gone")])[0][1] == 0
    stop(again)


def test_a_queue_that_is_built_anew_does_not_give_the_numbers_again_of_what_went_before_the_log(
    make: Callable[..., Bench], utc: None
) -> None:
    """The one message that the log has of it is damaged, and where another is that consume queues do not have yet."""
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    store.start()
    store.append([message("Rare"), message("Rare")])
    store.append([message(body=b"%06d" % number + BODY) for number in range(18)])
    rare, first, hidden, _ = store.append([message("Rare"), message(), message(body=b"hidden"), message()])
    turns(bench.clock, 3)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    stop(store)
    known = decode_checkpoint((bench.root / "checkpoint").read_bytes())
    known = attrs.evolve(known, queues_offset=first[0], tally=None)
    (bench.root / "checkpoint").write_bytes(encode_checkpoint(known))
    killed(bench, "killed")
    (bench.root / "queueEnds").unlink()  # which knows that there was one more
    for damaged in (rare, hidden):
        base = damaged[0] // SEGMENT * SEGMENT
        write(bench.root / "commitlog" / f"{base:020d}", damaged[0] - base + 4, b"\xff")
    with capturedLogs() as logs:
        again = bench.open()
    assert [entry for entry in logs if "messages are missing in consume queues" in entry["log_format"]]
    assert again.max_offset("T", 0) == 21
    assert again.append([message("Rare", body=b"next")])[0][1] == 2
    again.dispatch_now()
    assert aged_bodies(again, "Rare") == [b"next"]
    stop(again)


def test_a_queue_begins_behind_lost_entries_of_which_the_log_has_no_message(aged: Bench) -> None:
    killed(aged, "killed")
    write(aged.root / "consumequeue" / "Gone" / "0" / f"{0:020d}", 0, b"\x7f" * 20)
    again = aged.open()
    again.start()
    assert result_of(again.get("Gone", 0, 0, 1)).count == 0
    a_turn(aged)
    assert (again.min_offset("Gone", 0), again.max_offset("Gone", 0)) == (2, 2)
    stop(again)


def test_no_file_is_missed_that_went_with_the_messages_of_the_log(aged: Bench) -> None:
    killed(aged, "killed")
    with capturedLogs() as logs:
        again = aged.open()
    assert not [entry for entry in logs if "rebuilt" in entry["log_format"]]
    assert aged_bodies(again) == numbered(8, 18)
    stop(again)


@pytest.mark.parametrize("loss", ["the newest page", "the last file", "the directory of the queue"])
def test_queues_are_counted_after_a_start_that_takes_back_what_the_checkpoint_says(bench: Bench, loss: str) -> None:
    """No entry says where a half message at the end of the log is: the start goes on from the last entry."""
    store = filled(bench)
    store.append([message(sys_flag=SysFlag.TRANSACTION_PREPARED)])
    stop(store)
    bench.open()  # a process that is killed before it syncs
    image = bench.image("killed")
    LOSSES[loss](image)
    assert bodies(image.open()) == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("loss", LOSSES)
def test_what_goes_before_a_start_has_counted_what_it_built_anew_is_there(bench: Bench, loss: str) -> None:
    stop(filled(bench))
    without("Other")(bench)
    bench.open()  # a process that is killed before it syncs
    image = bench.image("killed")
    LOSSES[loss](image)
    again = image.open()
    assert bodies(again) == [b"%d" % number for number in range(COUNT)]
    assert bodies(again, "Other") == [b"other"]


def test_what_a_long_recovery_saves_is_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbroker.store.queue_rebuild.SAVE_BYTES", 4096)
    filled(bench)
    image = bench.image("killed")
    shutil.rmtree(image.root / "consumequeue")
    image.open()
    found = decode_checkpoint((image.root / "checkpoint").read_bytes())
    assert found.tally is not None
    assert COUNT // 2 < found.tally[1] <= COUNT + 1
    again = image.image("killed again")
    with capturedLogs() as logs:
        again.open()
    assert not [entry for entry in logs if "rebuilt" in entry["log_format"]]


def test_of_a_page_of_garbage_nothing_stays_behind_the_newest_entry(bench: Bench) -> None:
    stop(filled(bench))
    path = queue_file(bench, 3)
    before, stat = path.read_bytes(), path.stat()
    path.write_bytes(b"\xa5\x17\xff\x80" * 500)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # by the note of the stop nothing has changed
    again = bench.open()
    assert bodies(again) == [b"%d" % number for number in range(COUNT)]
    stop(again)
    assert path.read_bytes() == before


def test_the_checkpoint_counts_queues_as_far_as_the_log_is_synced(bench: Bench) -> None:
    store = bench.open()
    store.start()
    checkpoint = bench.root / "checkpoint"
    for number in range(1, 30):
        for queue_id in range(number % 3):
            store.append([message(queue_id=queue_id)])
        bench.clock.advance(0.7)
        if checkpoint.exists():
            found = decode_checkpoint(checkpoint.read_bytes())
            assert (found.queues_offset is None) == (found.tally is None)
            assert (found.queues_offset or 0) <= (found.log_offset or 0)
    turns(bench.clock, 5)
    found = decode_checkpoint(checkpoint.read_bytes())
    assert found.queues_offset == found.log_offset == store.log_end
    assert found.tally == (2, store.max_offset("T", 0) + store.max_offset("T", 1))


def test_a_checkpoint_does_not_go_on_without_a_tally(bench: Bench) -> None:
    """As after a start that found queues to lack entries: the log is not synced as far as they are for some time."""
    filled(bench)
    image = bench.image("killed")
    LOSSES["the last file"](image)
    store = image.open()
    store.start()
    had: list[tuple[int, bool]] = []
    for _ in range(30):
        store.append([message()])
        image.clock.advance(0.7)
        found = decode_checkpoint((image.root / "checkpoint").read_bytes())
        had.append((found.queues_offset or 0, found.tally is not None))
    assert not had[0][0]
    assert had[-1][1]
    assert [offset for offset, has_tally in had if offset and not has_tally] == []


def test_nothing_is_built_anew_after_a_crash_that_took_nothing(bench: Bench) -> None:
    filled(bench)
    image = bench.image("killed")
    with capturedLogs() as logs:
        again = image.open()
    assert not [entry for entry in logs if "rebuilt" in entry["log_format"]]
    stop(again)


def test_a_topic_that_was_removed_before_a_crash_is_not_missed(bench: Bench) -> None:
    store = filled(bench)
    removed: list[list[str]] = []
    store.remove_topics(["Other"]).addCallback(removed.append)
    turns(bench.clock)
    assert removed == [["Other"]]
    for seconds in (0, 3):
        turns(bench.clock, seconds)
        image = bench.image(f"killed{seconds}")
        with capturedLogs() as logs:
            again = image.open()
        assert not [entry for entry in logs if "rebuilt" in entry["log_format"]]
        assert bodies(again, "Other") == []
        stop(again)


@pytest.mark.parametrize("ext", [False, True])
@pytest.mark.parametrize("made", ["directory", "unsized file", "empty file"])
@pytest.mark.parametrize("before", [1, 250])
def test_a_topic_made_again_and_killed_before_its_first_entry_goes_on_with_its_numbers(
    make: Callable[..., Bench], before: int, made: str, ext: bool
) -> None:
    bench = make(enable_consume_queue_ext=ext)
    store = bench.open()
    for _ in range(before):
        store.append([message("Again")])
    settle(bench, store)
    store.remove_topics(["Again"])
    turns(bench.clock, 3)
    parts = ("consumequeue", "consumequeue_ext") if ext else ("consumequeue",)
    assert not (bench.root / "consumequeue" / "Again").exists()
    ((_, queue_offset, _, _),) = store.append([message("Again", body=b"new")])
    assert queue_offset == before
    image = bench.image("killed")
    for part in parts:
        directory = image.root / part / "Again" / "0"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        if made != "directory" and part == "consumequeue":
            name = f"{before // PER_FILE * 2000:020d}"
            (directory / name).write_bytes(bytes(2000 if made == "empty file" else 0))
    again = image.open()
    assert again.max_offset("Again", 0) == before + 1
    assert again.get("Again", 0, before, 1).count == 1
    assert again.append([message("Again")])[0][1] == before + 1
    stop(again)
