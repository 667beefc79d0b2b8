"""Cutting a stopped store's log back: of a broker that has what its group never acknowledged.

The store is left as a machine crash would leave it that lost the end of the log: the next start recovers it.
"""

from __future__ import annotations

from mqbroker.errors import StoreError
from mqbroker.store.checkpoint import FORMER, CheckpointFile, decode_checkpoint
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import StorePaths, remove_last_first
from mqbroker.store.recovery import load_segments


def cut_log(disk: IDisk, paths: StorePaths, segment_bytes: int, end: int) -> None:
    """Cut the log of the store, which must be stopped, to `end`, the end of a record.

    Whenever that is interrupted, the log has whole records, and all below `end`. Raises StoreLocked, StoreDamaged and
    OSError; StoreError where the log begins above `end`.
    """
    lock = disk.lock(paths.lock)
    try:
        _cut(disk, paths, segment_bytes, end)
    finally:
        lock.release()


def _cut(disk: IDisk, paths: StorePaths, segment_bytes: int, end: int) -> None:
    segments = load_segments(disk, paths.commit_log, segment_bytes)
    try:
        if segments.end <= end:
            return
        if segments.files and end < segments.first_offset:
            raise StoreError(f"the log begins at {segments.first_offset}, and cannot be truncated to {end}")
        # The file of another start of the machine: nothing derived from the log is taken as whole.
        disk.write(paths.abort, b"")
        # A queue that loses all its messages goes on where the master's is, not where it was.
        for path in (paths.queue_ends, paths.queue_ends + FORMER):
            if disk.exists(path):
                disk.remove(path)
        disk.sync_directory(paths.root)
        if disk.exists(paths.checkpoint):
            kept = CheckpointFile(disk, paths.checkpoint, decode_checkpoint(disk.read(paths.checkpoint)))
            kept.forget_queues_above(end)
            kept.forget_index_above(end, kept.known.index_ms)
            kept.forget_log_above(end)
        # A log without any segment would be taken for a lost one.
        last = max(0, end - segments.first_offset - 1) // segments.segment_bytes
        unfinished = [] if segments.unfinished is None else [segments.unfinished]
        remove_last_first(disk, [*(file.path for file in segments.files[last + 1 :]), *unfinished])
        active = segments.files[last]
        active.clear_from(end - segments.first_offset - last * segments.segment_bytes)
        active.sync()
    finally:
        for file in segments.files:
            file.close()
