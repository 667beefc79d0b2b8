"""The checkpoint as it is on the disk, and what must be taken back of it before caches are cut. Must never know what
is cut.
"""

from __future__ import annotations

import threading

import attrs

from mqbroker.store.checkpoint import Checkpoint, encode_checkpoint
from mqbroker.store.disk import IDisk


class CheckpointFile:
    """The checkpoint, and the file it is kept in. All raise OSError where that cannot be written."""

    def __init__(self, disk: IDisk, path: str, known: Checkpoint) -> None:
        self._disk = disk
        self.path = path
        #: What the file says.
        self.known = known
        # Several workers may write at a time, and none must undo what another has noted.
        self._lock = threading.Lock()

    def write(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            self._write(checkpoint)

    def _write(self, checkpoint: Checkpoint) -> None:
        self._disk.write(self.path, encode_checkpoint(checkpoint))
        self.known = checkpoint

    def advance(self, checkpoint: Checkpoint) -> None:
        """Write how far all is; where the log is further was noted, it stays."""
        with self._lock:
            noted = self.known.log_offset
            if noted is not None and noted > (checkpoint.log_offset or 0):
                checkpoint = attrs.evolve(checkpoint, log_offset=noted)
            self._write(checkpoint)

    def note_log(self, offset: int) -> None:
        """Note that all of the log below `offset` is on the disk."""
        with self._lock:
            if offset > (self.known.log_offset or 0):
                self._write(attrs.evolve(self.known, log_offset=offset))

    def forget_log_above(self, offset: int) -> None:
        """Note that the log ends at `offset`, so that what is appended there does not pass for synced after a kill."""
        known = self.known
        if known.log_offset is not None and known.log_offset > offset:
            self.write(attrs.evolve(known, log_offset=offset))

    def note_queues(self, offset: int, timestamp_ms: int, tally: tuple[int, int] | None) -> None:
        """Note that consume queues have all below `offset` of the log, the newest message of `timestamp_ms`, on the
        disk."""
        self.write(attrs.evolve(self.known, queues_offset=offset, queues_ms=timestamp_ms, tally=tally))

    def note_cut(self, offset: int, tally: tuple[int, int]) -> None:
        """Note what consume queues have that were cut to `offset` of the log, where the checkpoint is of that."""
        if self.known.queues_offset == offset and self.known.tally != tally:
            self.write(attrs.evolve(self.known, tally=tally))

    def forget_queues_above(self, offset: int, tally: tuple[int, int] | None = None) -> None:
        """Note that consume queues are about to be built anew from `offset` of the log: an end of the process or of
        the machine meanwhile leaves them shorter than the checkpoint says. `tally`: of what they have below, where that
        is known."""
        known = self.known
        if known.queues_offset is not None and known.queues_offset > offset:
            self.write(attrs.evolve(known, queues_offset=offset, queues_ms=0, tally=tally))

    def forget_index_above(self, offset: int, end_ms: int) -> None:
        """As `forget_queues_above`, for the index, whose newest message is of `end_ms`."""
        known = self.known
        if known.index_offset is not None and known.index_offset > offset:
            self.write(attrs.evolve(known, index_offset=offset, index_ms=min(known.index_ms, end_ms)))

    def forget_tally(self) -> None:
        """Note that queues are about to go, so that nobody looks for them after a kill."""
        with self._lock:
            if self.known.tally is not None:
                self._write(attrs.evolve(self.known, tally=None))
