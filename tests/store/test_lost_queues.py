"""Consume queues that do not agree with the log: pages, files and directories that are missing, or garbage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.logger import capturedLogs

from mqbroker.store import MessageStore
from mqbroker.store.checkpoint import decode_checkpoint
from tests.store.harness import Bench, message, stop, tree, turns
from tests.store.test_recovery import bodies, queue_file, settle, write

#: Entries of a file of a queue.
PER_FILE = 100
COUNT = 350


def zeros_at(entry: int, count: int = 50) -> Callable[[Bench], None]:
    return lambda image: write(queue_file(image, entry // PER_FILE), entry % PER_FILE * 20, bytes(20 * count))


def garbage_in(number: int) -> Callable[[Bench], None]:
    return lambda image: queue_file(image, number).write_bytes(b"\xa5\x17\xff\x80" * 500)


def without_file(number: int) -> Callable[[Bench], None]:
    return lambda image: queue_file(image, number).unlink()


def without(*parts: str) -> Callable[[Bench], None]:
    return lambda image: shutil.rmtree(Path(image.root, "consumequeue", *parts))


LOSSES: dict[str, Callable[[Bench], None]] = {
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
    assert len([entry for entry in logs if "anew" in entry["log_format"]]) >= 1
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
            assert found.queues_offset is not None
            assert found.log_offset is not None
            if found.tally is not None:
                assert found.queues_offset <= found.log_offset
    turns(bench.clock, 5)
    found = decode_checkpoint(checkpoint.read_bytes())
    assert found.queues_offset == found.log_offset == store.log_end
    assert found.tally == (2, store.max_offset("T", 0) + store.max_offset("T", 1))


def test_nothing_is_built_anew_after_a_crash_that_took_nothing(bench: Bench) -> None:
    filled(bench)
    image = bench.image("killed")
    with capturedLogs() as logs:
        again = image.open()
    assert not [entry for entry in logs if "anew" in entry["log_format"]]
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
        assert not [entry for entry in logs if "anew" in entry["log_format"]]
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
