"""How long stores that were put aside are kept, and how much of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqbroker.store.cut_tails import KEPT_MS_MAX
from mqbroker.store.layout import StorePaths
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.stores_aside import (
    DIVERGED,
    OUTLIVED,
    forget_segments,
    forget_stores,
    put_store_aside,
    was_put_aside,
)

NOW = 2_000_000_000_000


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(str(tmp_path), str(tmp_path / "logs" / "commitlog"))


def fill(paths: StorePaths, segments: int = 3) -> None:
    for path in (paths.commit_log, paths.consume_queues, os.path.join(paths.root, "config")):
        os.makedirs(path, exist_ok=True)
    for number in range(segments):
        Path(paths.commit_log, f"{number * 100:020d}").write_bytes(bytes(100))
    Path(paths.root, "config", "epochs.json").write_text("{}")
    Path(paths.checkpoint).write_bytes(b"")


def left(paths: StorePaths) -> list[str]:
    names = {name for _, folders, files in os.walk(paths.root) for name in (*folders, *files)}
    return sorted(name for name in names if name.startswith("commitlog."))


def test_all_parts_go_together(paths: StorePaths) -> None:
    disk = OsDisk()
    assert forget_stores(disk, paths, NOW) == []
    assert not was_put_aside(disk, paths)
    fill(paths)
    moved = put_store_aside(disk, paths, OUTLIVED, NOW)
    assert was_put_aside(disk, paths)
    assert forget_stores(disk, paths, NOW + KEPT_MS_MAX) == []
    assert sorted(forget_stores(disk, paths, NOW + KEPT_MS_MAX + 1)) == sorted(moved)
    assert not any(os.path.exists(path) for path in moved)
    assert not was_put_aside(disk, paths)


def test_of_those_that_were_outlived_the_newest_is_kept_and_of_others_the_newest_for_good(paths: StorePaths) -> None:
    disk = OsDisk()
    for age, why in ((2, OUTLIVED), (1, OUTLIVED), (5, DIVERGED), (3, DIVERGED)):
        fill(paths)
        put_store_aside(disk, paths, why, NOW - age)
    forget_stores(disk, paths, NOW)
    assert left(paths) == [
        f"commitlog.diverged-{NOW - 5}",
        f"commitlog.diverged-{NOW - 3}",
        f"commitlog.outlived-{NOW - 1}",
    ]
    forget_stores(disk, paths, NOW + 10 * KEPT_MS_MAX)
    assert left(paths) == [f"commitlog.diverged-{NOW - 3}"]


def test_other_names_are_left_alone(paths: StorePaths) -> None:
    fill(paths)
    for name in ("notes.diverged-soon", "x.outlived-", ".outlived-1", f"y.other-{NOW}", "z.outlived-" + "9" * 40):
        Path(paths.root, name).write_text("")
    assert forget_stores(OsDisk(), paths, NOW + 10 * KEPT_MS_MAX) == []


@pytest.mark.parametrize(("bytes_max", "names"), [(0, [200]), (100, [200]), (250, [100, 200]), (300, [0, 100, 200])])
def test_of_a_log_the_last_segments_are_kept(paths: StorePaths, bytes_max: int, names: list[int]) -> None:
    fill(paths)
    forget_segments(OsDisk(), paths.commit_log, bytes_max)
    assert sorted(map(int, os.listdir(paths.commit_log))) == names
