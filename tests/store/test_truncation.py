"""A log that is cut back: what is below stays, what is above is gone, whatever interrupts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqbroker.errors import StoreError, StoreLocked
from mqbroker.store.layout import StorePaths
from mqbroker.store.truncation import cut_log
from tests.fakes import Killed
from tests.store.harness import Bench, message, stop
from tests.store.test_recovery import bodies

COUNT = 30


def paths_of(bench: Bench) -> StorePaths:
    return StorePaths(str(bench.root), str(bench.root / "commitlog"))


def filled(bench: Bench, *, is_clean: bool = True) -> list[int]:
    """Where each message of a stopped store ends."""
    store = bench.open()
    ends = []
    for number in range(COUNT):
        store.append([message(queue_id=number % 2, body=b"%d" % number + b"x" * 9000)])
        ends.append(store.log_end)
    store.dispatch_now()
    if is_clean:
        stop(store)
    return ends


def reopened(bench: Bench) -> tuple[int, list[bytes]]:
    """Where the log ends, and the bodies that can be got, in order."""
    store = bench.open()
    found = [(queue_id, body) for queue_id in (0, 1) for body in bodies(store, "T", queue_id)]
    assert store.corrupt_ranges == ()
    end = store.log_end
    stop(store)
    return end, sorted((body for _, body in found), key=lambda body: int(body.rstrip(b"x")))


@pytest.mark.parametrize("kept", [1, 2, 7, 15, 29, 30])
def test_what_is_below_stays(bench: Bench, kept: int) -> None:
    ends = filled(bench)
    cut_log(bench.disk, paths_of(bench), bench.settings().mapped_file_size_commit_log, ends[kept - 1])
    end, kept_bodies = reopened(bench)
    assert end == ends[kept - 1]
    assert [body.rstrip(b"x") for body in kept_bodies] == [b"%d" % number for number in range(kept)]
    # Nothing of what was cut comes back when the log grows again.
    store = bench.open()
    store.append([message(body=b"99")])
    store.dispatch_now()
    stop(store)
    assert reopened(bench)[1][-1] == b"99"


def test_a_queue_without_a_message_left_begins_anew(bench: Bench) -> None:
    ends = filled(bench)
    store = bench.open()
    store.append([message(queue_id=5), message(queue_id=5)])
    store.dispatch_now()
    stop(store)
    cut_log(bench.disk, paths_of(bench), bench.settings().mapped_file_size_commit_log, ends[-1])
    store = bench.open()
    assert store.max_offset("T", 5) == 0
    assert store.append([message(queue_id=5)])[0][1] == 0
    stop(store)


def test_all_of_it(bench: Bench) -> None:
    filled(bench)
    cut_log(bench.disk, paths_of(bench), bench.settings().mapped_file_size_commit_log, 0)
    assert reopened(bench) == (0, [])


def test_nothing_to_cut(bench: Bench) -> None:
    ends = filled(bench)
    before = reopened(bench)
    cut_log(bench.disk, paths_of(bench), bench.settings().mapped_file_size_commit_log, ends[-1] + (1 << 40))
    assert reopened(bench) == before


def test_below_the_beginning(bench: Bench) -> None:
    filled(bench)
    first = bench.root / "commitlog" / f"{0:020d}"
    first.unlink()
    with pytest.raises(StoreError, match="begins at"):
        cut_log(bench.disk, paths_of(bench), bench.settings().mapped_file_size_commit_log, 10)


def test_a_running_store_is_left_alone(bench: Bench) -> None:
    store = bench.open()
    with pytest.raises(StoreLocked):
        cut_log(bench.disk, paths_of(bench), bench.settings().mapped_file_size_commit_log, 0)
    stop(store)


def test_killed_at_any_point_the_log_is_whole_and_not_shorter(bench: Bench) -> None:
    ends = filled(bench)
    wanted, results = ends[9], set()
    for lives in range(60):
        image = bench.image(f"image{lives}")
        image.disk.faults.lives = lives
        try:
            cut_log(image.disk, paths_of(image), bench.settings().mapped_file_size_commit_log, wanted)
        except Killed:
            is_done = False
        else:
            is_done = True
        image.disk.faults.lives = None
        end, whole = reopened(image)
        # Without its last segment the log ends with the filler of the one before.
        assert end in ends[9:] or end % bench.settings().mapped_file_size_commit_log == 0
        assert len(whole) == sum(each <= end for each in ends) >= 10
        results.add(end)
        if is_done:
            break
    assert is_done
    assert wanted in results
    assert len(results) > 1


def test_after_a_kill_too(bench: Bench, tmp_path: Path) -> None:
    ends = filled(bench, is_clean=False)
    image = bench.image("killed")
    cut_log(image.disk, paths_of(image), bench.settings().mapped_file_size_commit_log, ends[4])
    assert reopened(image)[0] == ends[4]
