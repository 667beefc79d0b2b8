"""Whether a file is another than it was, for who reads it again then."""

from __future__ import annotations

import os

#: When it was written, its size, and which one it is: one that was moved into its place counts as another.
FileStamp = tuple[int, int, int]


def file_stamp(path: str) -> FileStamp | None:
    """What is compared with what it was; None where there is no such file, or it cannot be asked for."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class StampedFiles:
    """Some files, and what they were when it was last asked whether they are others now."""

    def __init__(self, *paths: str | None) -> None:
        self._paths = [path for path in paths if path]
        self._stamps = self._look()

    def have_changed(self) -> bool:
        """Whether any is another than when this was last asked, or than at first."""
        before, self._stamps = self._stamps, self._look()
        return self._stamps != before

    def _look(self) -> list[FileStamp | None]:
        return [file_stamp(path) for path in self._paths]
