"""Damage of the log that a start finds, below the durable mark and above it; and a log that is not there."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.errors import LogMissing, StoreDamaged, StoreUnknown
from mqbroker.store import GetMessageStatus
from mqbroker.wire.record import decode_record
from tests.store.harness import Bench, message, now, stop, tree, turns
from tests.store.test_recovery import SEGMENT, bodies, segment, settle, write


def test_damage_below_the_durable_mark_is_passed_over_and_reported(bench: Bench) -> None:
    store = bench.open()
    rows = store.append([message(body=b"%d" % i * 50) for i in range(20)])
    settle(bench, store)
    end = store.log_end
    image = bench.image("rotten")
    image.disk.boot = b"another boot"
    write(segment(image), rows[7][0] + 120, b"\xff\xff")
    shutil.rmtree(image.root / "consumequeue")
    again = image.open()
    assert again.log_end == end
    assert [(damage.path, damage.start, damage.end) for damage in again.corrupt_ranges] == [
        (str(segment(image)), rows[7][0], rows[8][0])
    ]
    assert bodies(again) == [b"%d" % i * 50 for i in range(20) if i != 7]
    assert now(again).record(rows[7][0]) is None
    found = again.get("T", 0, 7, 1)
    assert (found.status, found.next_offset, found.count) == (GetMessageStatus.FOUND, 9, 1)
    assert again.append([message()])[0][:2] == (end, 20)
    stop(again)


def test_damage_up_to_the_durable_mark_is_kept_and_the_log_goes_on_behind_it(bench: Bench) -> None:
    """Slaves have what is damaged here, at its place: nothing else may ever stand there."""
    store = bench.open()
    rows = store.append([message(body=b"%d" % i * 50) for i in range(5)])
    settle(bench, store)
    end = store.log_end
    image = bench.image("rotten")
    image.disk.boot = b"another boot"
    write(segment(image), rows[4][0], b"\xff" * 150)
    shutil.rmtree(image.root / "consumequeue")
    again = image.open()
    assert again.log_end == end
    assert [damage[1:3] for damage in again.corrupt_ranges] == [(rows[4][0], end)]
    assert segment(image).read_bytes()[rows[4][0] :][:150] == b"\xff" * 150
    assert again.append([message(body=b"new")])[0][0] == end
    again.dispatch_now()
    assert bodies(again)[-1] == b"new"
    after = image.image("after").open()
    assert now(after).record(end) is not None
    for each in (again, after):
        stop(each)


@pytest.mark.parametrize("survivor", [2, 3])
def test_what_stands_alone_above_the_durable_mark_behind_damage_is_a_torn_tail(bench: Bench, survivor: int) -> None:
    """The last synced record rotted, and of those behind it, which were not synced, a power cut left a later one."""
    store = bench.open()
    store.append([message(body=b"0"), message(body=b"1" * 200)])
    settle(bench, store)
    end = store.log_end
    rows = store.append([message(body=b"2" * 200), message(body=b"3" * 200)])
    image = bench.image("torn")
    image.disk.boot = b"another boot"
    path = segment(image)
    write(path, end - 330, b"\xff" * 50)
    shutil.rmtree(image.root / "consumequeue")
    if survivor == 3:
        write(path, end, bytes(rows[1][0] - end))
    again = image.open()
    assert again.log_end == (end if survivor == 3 else rows[1][0] + rows[1][2])
    assert bodies(again) == ([b"0"] if survivor == 3 else [b"0", b"2" * 200, b"3" * 200])
    assert [damage.end for damage in again.corrupt_ranges] == [end]
    stop(again)


def test_a_whole_segment_of_zeros_below_the_durable_mark_is_passed_over(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 2000) for i in range(40)])  # 10 kB each: 12 in a segment
    settle(bench, store)
    image = bench.image("zeros")
    image.disk.boot = b"another boot"
    write(segment(image, 1), 0, bytes(SEGMENT))
    shutil.rmtree(image.root / "consumequeue")
    again = image.open()
    assert bodies(again) == [b"%05d" % i * 2000 for i in range(40) if not 12 <= i < 24]
    assert again.corrupt_ranges[0].start == SEGMENT
    assert again.append([message()])[0][1] == 40
    stop(again)


@pytest.mark.parametrize("ended", ["stopped", "killed", "power"])
@pytest.mark.parametrize("left", [None, "directory", "unfinished"])
def test_without_a_log_nothing_is_deleted_before_a_person_says_so(bench: Bench, ended: str, left: str | None) -> None:
    """As when its disk is not mounted, or the setting names another directory."""
    store = bench.open()
    store.append([message()] * 3)
    store.start()
    turns(bench.clock, 20)  # a checkpoint, and an index
    if ended == "stopped":
        stop(store)
        bench.opened.clear()
        image = bench
    else:
        image = bench.image(ended)
        image.disk.boot = b"first boot" if ended == "killed" else b"second boot"
    shutil.rmtree(image.root / "commitlog")
    if left is not None:
        (image.root / "commitlog").mkdir()
    if left == "unfinished":
        (image.root / "commitlog" / f"{0:020d}").touch()
    before = {name: data for name, data in tree(image.root).items() if name.startswith(("consumequeue", "index"))}
    assert len(before) == 2
    with pytest.raises(
        StoreUnknown,
        match=r"beside it there are 1 queues with messages and an index: set storePathCommitLog.*lost for good, so are",
    ):
        image.open()
    after = tree(image.root)
    assert {name: data for name, data in after.items() if name.startswith(("consumequeue", "index"))} == before
    # Nothing is in the way of a log that is moved back.
    assert (image.root / "commitlog").exists() == (left is not None)
    # Without anything that was made from it, an empty store begins.
    shutil.move(image.root / "consumequeue", image.root.parent / "old-queues")
    with pytest.raises(LogMissing, match=r"commitlog: there is no segment.* 0 queues with messages and an index"):
        image.open()
    shutil.move(image.root / "index", image.root.parent / "old-index")
    again = image.open()
    assert again.append([message()])[0][:2] == (0, 0)
    stop(again)
    image.opened.clear()


def test_a_log_that_was_never_durable_may_be_gone_after_a_power_cut(bench: Bench) -> None:
    store = bench.open()
    store.append([message()] * 3)
    store.dispatch_now()
    image = bench.image("power")
    image.disk.boot = b"second boot"
    shutil.rmtree(image.root / "commitlog")
    again = image.open()
    assert again.max_offset("T", 0) == 0
    assert again.append([message()])[0][:2] == (0, 0)
    stop(again)


def test_a_log_whose_first_segments_are_gone_keeps_its_offsets(bench: Bench) -> None:
    store = bench.open()
    store.append([message(body=b"%05d" % i * 2000) for i in range(40)])
    stop(store)
    segment(bench, 0).unlink()
    again = bench.open()
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (12, 40)
    assert again.get("T", 0, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert again.log_min_offset == SEGMENT
    stop(again)
    bench.opened.clear()
    shutil.rmtree(bench.root / "consumequeue")
    third = bench.open()
    assert (third.min_offset("T", 0), third.max_offset("T", 0)) == (12, 40)
    found = third.get("T", 0, 12, 32)
    assert decode_record(bytes(found.pieces[0])).body == b"%05d" % 12 * 2000


def test_a_queue_whose_messages_are_all_gone_goes_on_with_its_offsets(bench: Bench) -> None:
    store = bench.open()
    store.append([message("Old")] * 7 + [message(body=b"%05d" % i * 2000) for i in range(20)])
    stop(store)
    segment(bench, 0).unlink()
    again = bench.open()
    assert (again.min_offset("Old", 0), again.max_offset("Old", 0)) == (7, 7)
    assert again.append([message("Old")])[0][1] == 7


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda root: (root / f"{SEGMENT:020d}").unlink(), "segment 00000000000000131072 before it is missing"),
        (lambda root: (root / "00000000000000000007").write_bytes(b""), "not a segment; mappedFileSizeCommitLog is"),
        (lambda root: (root / "x").write_bytes(b""), "not a segment"),
        (lambda root: (root / f"{0:020d}").write_bytes(b"short"), "5 bytes; mappedFileSizeCommitLog is 131072"),
    ],
)
def test_segments_that_cannot_be_right_are_named_and_left(
    bench: Bench, damage: Callable[[Path], object], why: str
) -> None:
    store = bench.open()
    store.append([message(body=b"x" * 60_000)] * 8)
    stop(store)
    damage(bench.root / "commitlog")
    before = {name: data for name, data in tree(bench.root).items() if name != "lock"}
    gc.collect()  # what tests before have left open would be closed at any time
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(StoreDamaged, match=why):
        bench.open()
    assert os.listdir("/proc/self/fd") == descriptors
    assert {name: data for name, data in tree(bench.root).items() if name != "lock"} == before
