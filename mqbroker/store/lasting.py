"""Names that a process which was killed may have left in memory only, and files that it left unfinished.

Must never know what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import re

from twisted.logger import Logger

from mqbroker.store.disk import IDisk

log = Logger()

_SEGMENT_NAME = re.compile(r"\d{20}")


def make_lasting_directories(disk: IDisk, path: str) -> None:
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


def remove_unfinished_segments(disk: IDisk, directory: str, durable_end: int | None) -> None:
    """Delete a segment that got a name but no size, and what follows it: nothing of that was ever acknowledged.

    :param durable_end: below it all of the log was synced; None where that is not known: then the last alone may go.
    """
    names = disk.names(directory)
    for i, name in enumerate(names):
        if not _SEGMENT_NAME.fullmatch(name) or disk.file_size(os.path.join(directory, name)):
            continue
        if int(name) >= (durable_end if durable_end is not None else int(names[-1])):
            for unfinished in reversed(names[i:]):
                log.warn("{path} was never finished: removed", path=os.path.join(directory, unfinished))
                disk.remove(os.path.join(directory, unfinished))
        return
