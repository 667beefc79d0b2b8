"""One file of the index on a disk without room."""

from __future__ import annotations

import errno

import pytest

from mqbroker.store.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile


class _FullDisk:
    """A new file on a disk without room."""

    path, size = "index/1", HEADER_BYTES + SLOT_BYTES + ENTRY_BYTES
    buffer = view = None

    def allocate(self, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def is_resident(self, offset: int, size: int) -> bool:
        pytest.fail("touched before blocks were allocated: on tmpfs that is a SIGBUS")


def test_a_new_file_is_not_touched_before_there_is_room_for_it() -> None:
    with pytest.raises(OSError, match="No space left"):
        IndexFile(_FullDisk(), 1, 1)  # type: ignore[arg-type]
