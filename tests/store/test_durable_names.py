"""What a process that was killed left in memory only, or unfinished."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mqbroker.store import os_disk
from mqbroker.store.layout import make_durable_directories, remove_last_first, remove_unfinished_segments
from mqbroker.store.os_disk import OsDisk
from tests.fakes import FaultyDisk, Killed

SIZE = 4096


def test_names_of_directories_are_synced_up_to_one_that_was_there(tmp_path: Path) -> None:
    disk = FaultyDisk()
    make_durable_directories(disk, str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert {str(tmp_path), str(tmp_path / "a")} <= disk.faults.synced_directories
    disk.faults.synced_directories.clear()
    make_durable_directories(disk, str(tmp_path / "a" / "b"))
    assert disk.faults.synced_directories == {str(tmp_path / "a")}


def test_a_parent_that_may_not_be_opened_is_passed_over(tmp_path: Path) -> None:
    class Guarded(OsDisk):
        def sync_directory(self, path: str) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    make_durable_directories(Guarded(), str(tmp_path / "store"))
    assert (tmp_path / "store").is_dir()


def test_a_failing_sync_of_names_is_told(tmp_path: Path) -> None:
    class Failing(OsDisk):
        def sync_directory(self, path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

    with pytest.raises(OSError, match="Input/output error"):
        make_durable_directories(Failing(), str(tmp_path / "store"))


def make_segments(directory: Path, sizes: list[int]) -> None:
    for i, size in enumerate(sizes):
        (directory / f"{i * SIZE:020d}").write_bytes(bytes(size))


@pytest.mark.parametrize(
    ("sizes", "durable_end", "left"),
    [
        ([SIZE, SIZE], 0, 2),
        ([SIZE, 0], SIZE, 1),
        ([SIZE, 0, SIZE], SIZE, 1),
        ([SIZE, 0, SIZE], SIZE + 1, 3),  # it was synced once: whoever emptied it, it is no crash
        ([SIZE, 0, SIZE], None, 3),
        ([SIZE, SIZE, 0], None, 2),
        ([0], 0, 0),
        ([], 0, 0),
    ],
)
def test_a_segment_without_a_size_goes_with_what_follows(
    tmp_path: Path, sizes: list[int], durable_end: int | None, left: int
) -> None:
    make_segments(tmp_path, sizes)
    remove_unfinished_segments(OsDisk(), str(tmp_path), durable_end)
    assert len(list(tmp_path.iterdir())) == left


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"")
    remove_unfinished_segments(OsDisk(), str(tmp_path), 0)
    assert (tmp_path / "notes").exists()


def test_with_a_foreign_file_nothing_is_removed(tmp_path: Path) -> None:
    make_segments(tmp_path, [SIZE, 0, SIZE])
    (tmp_path / "notes").write_bytes(b"mine")
    remove_unfinished_segments(OsDisk(), str(tmp_path), 0)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("lives", [0, 1, 2, 3])
def test_whenever_a_removal_ends_there_is_no_gap(tmp_path: Path, lives: int) -> None:
    make_segments(tmp_path, [SIZE, SIZE, SIZE, SIZE])
    disk = FaultyDisk()
    disk.faults.lives = 2 * lives
    with contextlib.suppress(Killed):
        remove_last_first(disk, [str(tmp_path / f"{i * SIZE:020d}") for i in (1, 2, 3)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{i * SIZE:020d}" for i in range(4 - lives)]
    # Two removals at once may come to the disk in any order.
    assert [what for what, _ in disk.faults.changes] == ["remove", "sync_directory"] * lives


@pytest.mark.parametrize("has_holes", [True, False])
def test_clearing_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_holes: bool) -> None:
    shortened: list[int] = []
    real = os.ftruncate

    def watch(fd: int, size: int) -> None:
        shortened.append(size)
        real(fd, size)

    file = OsDisk().create_mapped(str(tmp_path / "file"), 3 * SIZE)
    file.buffer[:] = b"x" * (3 * SIZE)
    monkeypatch.setattr(os, "ftruncate", watch)
    if not has_holes:
        monkeypatch.setattr(os_disk, "_punch_hole", lambda *_: False)
    file.clear_from(SIZE + 100)
    assert file.buffer[:] == b"x" * (SIZE + 100) + bytes(2 * SIZE - 100)
    assert shortened == ([] if has_holes else [SIZE + 100, 3 * SIZE])
    file.clear_from(3 * SIZE)
    file.close()


def test_syncing_apart_uses_a_descriptor_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Any] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file = OsDisk().create_mapped(str(tmp_path / "file"), SIZE, keep_open=True)
    file.sync()
    file.sync()
    file.sync_apart()
    assert synced[0] == synced[1] != synced[2]
    file.close()
