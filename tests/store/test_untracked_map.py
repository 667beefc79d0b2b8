"""Maps of files that keep no descriptor open."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from mqbroker.store.untracked_map import map_untracked

SIZE = 3 * 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    return path


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_what_is_stored_is_in_the_file_and_the_other_way_round(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with path.open("r+b") as file:
        buffer = map_untracked(file.fileno(), SIZE)
    assert len(os.listdir("/proc/self/fd")) == before
    buffer[5000:5003] = b"new"
    assert path.read_bytes()[4999:5004] == b"xnewx"
    with path.open("r+b") as file:
        file.write(b"begin")
    assert buffer[:6] == b"beginx"
    assert len(buffer) == SIZE
    assert is_mapped(path)
    view = memoryview(buffer)
    del buffer
    gc.collect()
    assert bytes(view[5000:5003]) == b"new"
    view.release()
    gc.collect()
    assert not is_mapped(path)


def test_a_file_that_is_too_short_is_not_mapped(path: Path) -> None:
    with path.open("r+b") as file, pytest.raises(ValueError, match="greater than file size"):
        map_untracked(file.fileno(), SIZE + 1)
    assert not is_mapped(path)


def test_a_file_that_may_not_be_written_to_is_not_mapped(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(OSError, match="ermission") as refused:
        map_untracked(file.fileno(), SIZE)
    assert refused.value.errno == errno.EACCES
    gc.collect()
    assert not is_mapped(path)
