"""Names and bytes that a process which was killed may have left in memory only, and files that it left unfinished.

Must never know what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import re

from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.disk import IDisk

log = Logger()

_SEGMENT_NAME = re.compile(r"\d{20}")
_PIECE_BYTES = 1024 * 1024


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


def store_again(commit_log: CommitLog, start: int) -> None:
    """Write what the log holds from `start` on once more, so that the next sync brings it to the disk. Raises OSError.

    After a sync that failed the kernel takes pages for written that are not, and syncing them again does nothing.
    """
    offset = max(start, commit_log.min_offset)
    while offset < commit_log.end:
        at = (offset - commit_log.min_offset) % commit_log.segment_bytes
        size = min(_PIECE_BYTES, commit_log.segment_bytes - at, commit_log.end - offset)
        (file,) = commit_log.segments_between(offset, offset + size)
        file.write_at(at, memoryview(bytes(file.view[at : at + size])))
        offset += size
