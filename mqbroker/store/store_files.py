"""Checkpoint and abort file of an open store: what was synced, and whether it was stopped cleanly."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.store.checkpoint import Checkpoint, CheckpointFile, encode_checkpoint, write_ends
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import IDisk, ILockedFile, IMappedFile, Outage, is_shortage, store_again, sync_each
from mqbroker.store.flush import CacheFlusher
from mqbroker.store.index import Index
from mqbroker.store.layout import StorePaths
from mqbroker.store.logscan import Damage
from mqbroker.store.segment import SegmentSource
from mqbroker.store.topic_removal import RemovedQueues

#: Replaces the boot id in the abort file when files cannot be trusted although the machine still runs.
_UNLIKE_DISK = b"?"
_TALLIED_MAX = 64


@attrs.frozen
class _Outcome:
    """Result of syncing, and of writing the checkpoint: `error` if one failed. `spoilt`: files whose sync failed;
    `is_marked`: the abort file says so."""

    error: OSError | None
    spoilt: Sequence[IMappedFile] = ()
    is_synced: bool = False
    is_marked: bool = False


class StoreFiles:
    """Maintains checkpoint and abort file of an open store."""

    log = Logger()

    def __init__(
        self,
        disk: IDisk,
        paths: StorePaths,
        lock: ILockedFile,
        source: SegmentSource,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: CheckpointFile,
        corrupt_ranges: CorruptRanges,
        removed: RemovedQueues,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self.lock = lock
        self._source = source
        self._queues = queues
        self._index = index
        self.checkpoint = checkpoint
        # Files that are being synced, and files of which a sync failed.
        self._unsynced: dict[IMappedFile, None] = {}
        self._new_names: dict[str, None] = {}
        self._spoilt: dict[IMappedFile, None] = {}
        # Whether the abort file says that files cannot be trusted.
        self._is_marked = False
        #: Whether a sync of the log failed: then they cannot be trusted for the rest of the process.
        self.is_log_failed = False
        self._syncing = Outage(
            "consume queues or index cannot be synced to the disk (trying again): messages are accepted as before, but "
            "the checkpoint does not advance, and no message above it is deleted",
            "consume queues and index are synced to the disk again",
        )
        self._writing = Outage("the checkpoint cannot be written (trying again)", "the checkpoint is written again")
        # Truncations of the opening must be synced even if no message came.
        self._is_saved = False
        self.corrupt_ranges = corrupt_ranges
        #: How many corrupt ranges were found while the log is open.
        self.damages_found = 0
        #: Called with each of them.
        self.on_damage: Callable[[Damage], None] = lambda damage: None
        self._removed = removed
        # Progress that is recorded once the log is synced as far.
        self._tallied: deque[Checkpoint] = deque()
        self._flusher: CacheFlusher | None = None
        self._progress: Callable[[], Checkpoint] | None = None

    def follow(self, flusher: CacheFlusher, progress: Callable[[], Checkpoint]) -> None:
        """Create the `flusher`, which syncs by `snapshot`; `progress` returns how far log, queues and index are."""
        self._progress = progress
        self._flusher = flusher

    def add_damage(self, damage: Damage) -> None:
        """Hide a corrupt range of the log from readers, and log it once."""
        if self.corrupt_ranges.add(damage):
            self.damages_found += 1
            self._tell(damage)
            self.on_damage(damage)

    def add_damage_at_open(self, damage: Damage) -> None:
        """As `add_damage`, for ranges found before the log was opened."""
        if self.corrupt_ranges.add_at_open(damage):
            self._tell(damage)

    def _tell(self, damage: Damage) -> None:
        self.log.error(
            "{path}: no record from offset {start} to {end} of the log: {why}",
            path=damage.path, start=damage.start, end=damage.end, why=damage.why,
        )  # fmt: skip

    def start(self) -> None:
        if self._flusher is not None:
            self._flusher.start()

    def snapshot(self, with_index: bool) -> tuple[Callable[[], _Outcome], Callable[[_Outcome], None], int] | None:
        assert self._progress is not None
        now = self._where_tallied(self._progress())
        if not with_index:
            former = self.checkpoint.known
            now = attrs.evolve(now, index_ms=former.index_ms, index_offset=former.index_offset)
        if self._is_all_synced and self._is_saved and now == self.checkpoint.known:
            return None
        self._collect_unsynced(with_index)
        try:
            self._store_spoilt_again()
        except OSError as error:
            self._syncing.failed(str(error))
            return None
        files, directories = list(self._unsynced), list(self._new_names)
        may_unmark = self._is_marked and not self.is_log_failed
        note_removed = self._removed.unsaved

        def work() -> _Outcome:
            outcome = self._sync(files, directories)
            if outcome.error is None:
                try:
                    if note_removed is not None:
                        note_removed()
                    self.checkpoint.advance(now)
                    if may_unmark:
                        self._disk.write(self._paths.abort, self._disk.boot_id())
                except OSError as error:
                    return _Outcome(error, is_synced=True)
            return outcome

        return work, lambda outcome: self._ended(outcome, note_removed), len(files)

    @property
    def _is_all_synced(self) -> bool:
        return not (self._unsynced or self._new_names or self._is_marked or self._removed.unsaved)

    def _collect_unsynced(self, with_index: bool) -> None:
        """Collect what must be synced, which is kept here until it was."""
        self._unsynced.update(dict.fromkeys(self._queues.drain_unsynced()))
        self._new_names.update(dict.fromkeys(self._queues.drain_new_names()))
        if with_index and self._index is not None:
            self._unsynced.update(dict.fromkeys(self._index.drain_unsynced()))
            self._new_names.update(dict.fromkeys(self._index.drain_new_names()))

    def _store_spoilt_again(self) -> None:
        """Dirty again what the kernel may take for clean since a sync failed, so that the next sync writes it. Raises
        OSError."""
        for file in list(self._spoilt):
            if self._disk.exists(file.path):  # or the file was removed meanwhile, and closed
                store_again(file, 0, file.size, is_sparse=True)
            del self._spoilt[file]

    def _sync(self, files: Sequence[IMappedFile], directories: Sequence[str]) -> _Outcome:
        """On the worker. Files removed meanwhile need no sync."""
        failed_files = sync_each(self._disk, lambda file: file.sync(), files)
        if failed_files:
            return self._failed(failed_files)
        failed_names = sync_each(self._disk, self._disk.sync_directory, directories)
        if failed_names:
            return self._failed([(None, error) for _, error in failed_names])
        return _Outcome(None, is_synced=True)

    def mark_unlike_disk(self) -> None:
        """Mark that memory and disk differ until all is synced again: a start after a kill may find older pages. Raises
        OSError. For the worker."""
        self._disk.write(self._paths.abort, _UNLIKE_DISK)

    def _failed(self, failed: Sequence[tuple[IMappedFile | None, OSError]]) -> _Outcome:
        errors = [error for _, error in failed if not is_shortage(error)]
        if not errors:  # nothing was attempted
            return _Outcome(failed[0][1])
        with contextlib.suppress(OSError):
            self.mark_unlike_disk()
        spoilt = [file for file, error in failed if file is not None and not is_shortage(error)]
        return _Outcome(errors[0], spoilt, is_marked=True)

    def _ended(self, outcome: _Outcome, note_removed: Callable[[], None] | None) -> None:
        self._is_marked |= outcome.is_marked
        self._spoilt.update(dict.fromkeys(outcome.spoilt))
        if not outcome.is_synced:
            self._syncing.failed(str(outcome.error))
            return
        self._syncing.worked()
        self._unsynced.clear()
        self._new_names.clear()
        if outcome.error is not None:
            self._writing.failed(str(outcome.error))
            return
        self._writing.worked()
        self._removed.saved(note_removed)
        self._is_marked = False
        self._is_saved = True

    def _where_tallied(self, now: Checkpoint) -> Checkpoint:
        """The progress, with a tally of queues of an earlier snapshot, up to which the log is synced: only that can be
        compared after a crash. Without a tally queues are left out."""
        tallied = self._tallied
        if now.tally is not None and len(tallied) < _TALLIED_MAX:
            tallied.append(now)
        best = self.checkpoint.known
        while tallied and (tallied[0].queues_offset or 0) <= (now.log_offset or 0):
            best = tallied.popleft()
        return attrs.evolve(now, queues_offset=best.queues_offset, queues_ms=best.queues_ms, tally=best.tally)

    @property
    def synced_end(self) -> int:
        """The log and its consume queue entries are on disk below this offset, and the checkpoint says so."""
        return min(self.checkpoint.known.log_offset or 0, self.checkpoint.known.queues_offset or 0)

    def run_alone(self, work: Callable[[], Any]) -> Deferred[Any]:
        """Run `work` on the worker while no consume queue and no index file is being synced."""
        assert self._flusher is not None
        return self._flusher.run_alone(work)

    def note_removal(self, note: Callable[[], None], queues: Collection[ConsumeQueue] | None) -> Deferred[None]:
        """Run `note` as `run_alone` does, before these queues are removed; updates the checkpoint's tally to the
        remaining queues. None: unknown which were removed."""
        assert self._flusher is not None
        if self._flusher.is_running:  # a running sync may record another tally
            return self.run_alone(lambda: None).addCallback(lambda _: self._note_removal(note, queues))
        return self._note_removal(note, queues)

    def _note_removal(self, note: Callable[[], None], queues: Collection[ConsumeQueue] | None) -> Deferred[None]:
        self._tallied.clear()
        end = self.checkpoint.known.queues_offset or 0
        share = None if queues is None else self._queues.share_of(queues, end)

        def alone() -> None:
            note()
            self.checkpoint.forget_queues(share)  # not if that failed, and nothing is removed

        return self.run_alone(alone)

    def stop(self) -> Deferred[None]:
        """Sync the rest and record the clean stop; fails if that is impossible."""
        assert self._flusher is not None
        done = self._flusher.stop()
        done.addCallback(lambda _: self._note_clean_stop())
        return done

    def _note_clean_stop(self) -> None:
        if self._is_all_synced:
            self.checkpoint.write(attrs.evolve(self.checkpoint.known, tally=self._queues.tally()))
            self._write_ends()
            self._disk.remove(self._paths.abort)
            self._disk.sync_directory(self._paths.root)

    def _write_ends(self) -> None:
        try:
            write_ends(self._disk, self._paths.queue_ends, self._queues, encode_checkpoint(self.checkpoint.known))
        except OSError as error:  # it only saves the next start time
            self.log.warn("the next start must read all consume queues: {error}", error=error)

    def close(self) -> Deferred[None]:
        return self._source.stop()
