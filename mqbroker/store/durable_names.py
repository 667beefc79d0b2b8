"""Names that a process which was killed may have left in memory only, and files that it left unfinished.

Must never know what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from twisted.logger import Logger

from mqbroker.store.disk import IDisk

log = Logger()

_SEGMENT_NAME = re.compile(r"\d{20}")


def make_durable_directories(disk: IDisk, path: str) -> None:
    """Create `path` and its parents where missing, and bring their names to the disk. Raises OSError.

    A directory that is there may have been made by a process that was killed before it came to that.
    """
    made = [path]
    while not disk.exists(made[-1]) and os.path.dirname(made[-1]) != made[-1]:
        made.append(os.path.dirname(made[-1]))
    disk.make_directories(path)
    for directory in made:
        with contextlib.suppress(PermissionError):  # one may be allowed to pass through a directory, not to open it
            disk.sync_directory(os.path.dirname(directory) or ".")


def remove_last_first(disk: IDisk, paths: Sequence[str]) -> None:
    """Delete files of a row, each for good before the one in front of it: whenever that ends, those that are left have
    no gap. Raises OSError."""
    for path in reversed(paths):
        disk.remove(path)
        disk.sync_directory(os.path.dirname(path))


def remove_unfinished_segments(disk: IDisk, directory: str, durable_end: int | None) -> None:
    """Delete a segment that got a name but no size, and what follows it: nothing of that was ever acknowledged.

    Nothing where there is anything but segments, or no directory. Raises OSError.

    :param durable_end: below it all of the log was synced; None where that is not known: then the last alone may go.
    """
    if not disk.exists(directory):
        return
    disk.sync_directory(directory)  # a segment that was deleted must not come back before younger ones
    names = disk.names(directory)
    if not all(_SEGMENT_NAME.fullmatch(name) for name in names):
        return
    paths = [os.path.join(directory, name) for name in names]
    first = next((i for i, path in enumerate(paths) if not disk.file_size(path)), len(names))
    if first < len(names) and int(names[first]) >= (durable_end if durable_end is not None else int(names[-1])):
        for path in paths[first:]:
            log.warn("{path} was never finished: removed", path=path)
        remove_last_first(disk, paths[first:])
