"""The cache of mapped files: how many there are, which goes, and that nothing is lost by it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mqbroker.store.disk import IMappedFile
from mqbroker.store.file_cache import CachedFile, FileCache
from mqbroker.store.os_disk import OsDisk

SIZE = 4096


def make(root: Path, cache: FileCache, count: int) -> list[CachedFile]:
    return [cache.create(str(root / f"{number}"), SIZE) for number in range(count)]


def mapped(files: list[CachedFile]) -> list[int]:
    return [number for number, file in enumerate(files) if file.mapped is not None]


def look_at(file: CachedFile) -> None:
    assert len(file.view) == SIZE


def test_no_more_are_mapped_than_may_be(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    cache = FileCache(OsDisk(), 4)
    files = make(tmp_path, cache, 50)
    assert len(cache) == len(mapped(files)) == 4
    for number, file in enumerate(files):
        file.allocate(0, SIZE)
        file.buffer[:2] = number.to_bytes(2, "big")
        assert len(cache) == 4
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert [int.from_bytes(file.view[:2], "big") for file in files] == list(range(50))
    for file in files:
        file.close()
    assert len(cache) == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_used_lately_stays(tmp_path: Path) -> None:
    files = make(tmp_path, cache := FileCache(OsDisk(), 4), 4)
    fifth = cache.create(str(tmp_path / "fifth"), SIZE)  # all were new: the first went
    assert mapped(files) == [1, 2, 3]
    look_at(files[1])
    look_at(files[3])
    cache.create(str(tmp_path / "sixth"), SIZE)
    assert mapped(files) == [1, 3]
    assert fifth.mapped is not None


def test_what_is_to_be_synced_goes_last(tmp_path: Path) -> None:
    files = make(tmp_path, cache := FileCache(OsDisk(), 3), 3)
    for file in files[:2]:
        file.allocate(0, SIZE)
        file.buffer[0] = 1
    others = [cache.create(str(tmp_path / f"other {number}"), SIZE) for number in range(10)]
    assert mapped(files) == [0, 1]
    files[0].sync()
    others += [cache.create(str(tmp_path / f"another {number}"), SIZE) for number in range(2)]
    assert mapped(files) == [1]
    for file in others[-2:]:
        assert file.buffer
    cache.create(str(tmp_path / "last"), SIZE)  # nothing else is left
    assert len(cache) == 3


def test_a_sync_that_fails_leaves_it_to_be_synced(tmp_path: Path) -> None:
    file = FileCache(OsDisk(), 3).create(str(tmp_path / "file"), SIZE)
    assert file.buffer
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        file.sync()
    assert file.is_dirty


def test_what_others_hold_of_a_file_stays_valid(tmp_path: Path) -> None:
    cache = FileCache(OsDisk(), 1)
    first, second = make(tmp_path, cache, 2)
    first.allocate(0, SIZE)
    buffer, view = first.buffer, first.view[10:20]
    look_at(second)
    assert first.mapped is None
    buffer[10:20] = b"0123456789"
    assert bytes(view) == bytes(first.view[10:20]) == b"0123456789"


def test_what_the_worker_does_takes_no_place(tmp_path: Path) -> None:
    files = make(tmp_path, cache := FileCache(OsDisk(), 1), 2)
    files[0].allocate(0, SIZE)
    look_at(files[1])
    files[0].write_at(5, memoryview(b"here"))
    files[0].fetch(0, SIZE)
    files[0].sync()
    files[0].sync_apart()
    assert mapped(files) == [1]
    assert files[0].view[5:9] == b"here"
    files[0].clear_from(7)
    assert files[0].view[5:9] == b"he\0\0"
    assert len(cache) == 1


def test_a_closed_file_is_not_opened_again(tmp_path: Path) -> None:
    (file,) = make(tmp_path, FileCache(OsDisk(), 1), 1)
    file.close()
    (tmp_path / "0").write_bytes(bytes(SIZE))  # another one of this name
    for use in (lambda: file.view, lambda: file.buffer, file.sync, lambda: file.fetch(0, 1)):
        with pytest.raises(FileNotFoundError):
            use()
    assert not file.is_resident(0, 1)
    file.close()


class FewFiles(OsDisk):
    """A disk on which only so many files can be mapped."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.files: list[CachedFile] = []

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        if len(mapped(self.files)) >= self.room:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open_mapped(path, size, keep_open=keep_open, read_only=read_only)


def test_where_fewer_can_be_open_than_was_thought_some_are_let_go(tmp_path: Path) -> None:
    disk = FewFiles(100)
    cache = FileCache(disk, 10)
    disk.files = files = make(tmp_path, cache, 20)
    disk.room = 6
    for file in files:
        look_at(file)
    assert len(cache) <= 10
    disk.room = 0
    with pytest.raises(OSError, match="Too many open files"):
        look_at(files[0])
    assert not files[0].is_resident(0, 1)
    disk.room = 1
    look_at(files[0])


def test_what_is_not_mapped_is_written_to_by_system_calls_where_there_is_no_room(tmp_path: Path) -> None:
    files = make(tmp_path, cache := FileCache(OsDisk(), 3), 3)
    others = make_more(tmp_path, cache, 2)
    assert mapped(files) == [2]
    for file in files:
        file.allocate(0, SIZE)
        file.store(10, b"kept")
        assert file.is_dirty
    assert mapped(files) == [2]
    others[0].close()
    files[0].store(20, b"mapped")
    assert mapped(files) == [0, 2]
    assert [bytes(file.view[10:14]) for file in files] == [b"kept"] * 3
    assert (tmp_path / "0").read_bytes()[10:26] == b"kept".ljust(10, b"\0") + b"mapped"
    files[1].close()
    with pytest.raises(FileNotFoundError):
        files[1].store(0, b"x")


def make_more(root: Path, cache: FileCache, count: int) -> list[CachedFile]:
    return [cache.create(str(root / f"more {number}"), SIZE) for number in range(count)]
