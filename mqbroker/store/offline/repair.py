"""Repair of a locked store: from a check's report to a plan of steps, and its execution.

Nothing is deleted: replaced or overwritten bytes are first saved in a directory. After a kill at any point the store
can be opened, or repaired again. Before anything else changes, the log's end is written to the checkpoint, and the
store marked as not stopped: then an opening, such as the repair's own at its end, skips corrupt ranges below that end,
and rebuilds consume queues and index.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import attrs
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from mqbroker.config import StoreSettings
from mqbroker.store.checkpoint import Checkpoint, encode_checkpoint
from mqbroker.store.consumequeue_entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from mqbroker.store.disk import IDisk, ILockedFile, IMappedFile
from mqbroker.store.layout import StorePaths
from mqbroker.store.logscan import Damage, Scanned, scan_at
from mqbroker.store.message_store import MessageStore
from mqbroker.store.offline.check import REMOVED_UNREADABLE, Report
from mqbroker.store.offline.detected_layout import Layout, SegmentFile
from mqbroker.store.offline.log_walk import FENCE_BYTES_MIN, Tail, fences
from mqbroker.store.offline.queue_files import QueueFiles, queues_of
from mqbroker.store.opening import Opening
from mqbroker.store.stepwise import Progress, run_at_once
from mqbroker.store.syncs import WorkerSyncs
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.record import BLANK_BYTES_MIN, encode_blank

#: Default of mappedFileSizeConsumeQueue: 300,000 entries.
QUEUE_FILE_BYTES = 6_000_000
#: Findings that a rebuild of consume queues, or of the index, repairs.
_QUEUE_KINDS = {
    "consume queue missing", "consume queue size", "missing queue file", "entry missing", "entry wrong",
    "tags code wrong", "entry ahead", "entry orphaned", "entries after the end", "messages missing", "queues changed",
    "unit missing", "unit wrong", "extension size", "missing extension file",
}  # fmt: skip
_INDEX_KINDS = {
    "index missing", "index size", "index header wrong", "index entries wrong", "index slots wrong",
    "index keys missing", "index entry orphaned", "index times wrong", "index ahead",
}  # fmt: skip
_CHECKPOINT_KINDS = {"checkpoint missing", "checkpoint ahead"}


@attrs.frozen
class Plan:
    """The steps of a repair, and what prevents it. Parts without work are empty."""

    move: list[str]
    extend: list[SegmentFile]
    cut: list[Tail]
    fence: list[Damage]
    fill: list[int]
    rebuild_queues: bool
    rebuild_index: bool
    reset_checkpoint: bool
    queue_file_bytes: int
    obstacles: list[str]
    #: What remains unrepaired, and why.
    left: list[str]

    @property
    def opens(self) -> bool:
        """Whether the store has to be opened and closed again."""
        edits = self.extend or self.cut or self.fence or self.fill
        return bool(edits) or self.rebuild_queues or self.rebuild_index or self.reset_checkpoint

    @property
    def is_empty(self) -> bool:
        return not self.opens and not self.move

    def lines(self) -> list[str]:
        """The steps as text, in the order of execution."""
        said = [f"move {path} away" for path in self.move]
        said += [f"copy {file.path}, extended with zeros to its full size" for file in self.extend]
        said += [f"cut {tail.dirty_end - tail.start} bytes off at {tail.start} of the log" for tail in self.cut]
        said += [f"fence bytes {damage.start} to {damage.end} of the log" for damage in self.fence]
        said += [f"put a filler in place of the missing segment {offset:020d}" for offset in self.fill]
        if self.rebuild_queues:
            said.append(f"rebuild consume queues from the log, in files of {self.queue_file_bytes} bytes")
        if self.rebuild_index:
            said.append("rebuild the index from the log")
        if self.opens:
            said.append("write the checkpoint, and note that the store was stopped")
        return said


def make_plan(report: Report, *, fence: bool, move_foreign: bool) -> Plan:
    """Plan a repair."""
    layout, kinds = report.layout, report.findings.kinds
    obstacles: list[str] = []
    left: list[str] = []
    size = layout.segment_bytes
    if kinds["unknown sizes"] or not size:
        obstacles.append("the sizes of the files cannot be known: name the broker's settings with -c")
    foreign = report.findings.foreign
    if foreign and not move_foreign:
        obstacles.append(f"{len(foreign)} foreign files, {foreign[0]} the first: add --move-foreign")
    missing = _missing(layout.segments, size)
    if missing and not fence:
        obstacles.append(f"segment {missing[0]:020d} is missing: restore it from a copy, or add --fence for a filler")
    extend = []
    for file in layout.segments:
        if 0 < file.size < size:
            extend.append(file)
        elif file.size != size:
            obstacles.append(f"{file.path} has {file.size} bytes and cannot be taken for a segment")
    fenced = [damage for damage in report.corrupt_ranges if fence and _can_fence(damage, size)]
    for damage in report.corrupt_ranges:
        if damage not in fenced:
            why = "too short for a record" if fence else "add --fence, for Java brokers to get past it"
            left.append(f"bytes {damage.start} to {damage.end} of the log hold no record: our brokers pass over; {why}")
    has_log = bool(layout.segments)
    rebuild_queues = has_log and bool(fenced or missing or _QUEUE_KINDS & kinds.keys())
    if rebuild_queues and kinds[REMOVED_UNREADABLE]:
        path = layout.path("removedQueues.json")
        obstacles.append(f"{path} is damaged: restore it from a copy, or move it away, and removed topics come back")
    return Plan(
        move=foreign if move_foreign else [],
        extend=extend,
        cut=[tail for tail in report.tails if tail.dirty_end > tail.start],
        fence=fenced,
        fill=missing if fence else [],
        rebuild_queues=rebuild_queues,
        rebuild_index=has_log and bool(_INDEX_KINDS & kinds.keys()),
        reset_checkpoint=has_log and bool(_CHECKPOINT_KINDS & kinds.keys()),
        queue_file_bytes=layout.queue_file_bytes or QUEUE_FILE_BYTES,
        obstacles=obstacles,
        left=left,
    )


def _missing(segments: list[SegmentFile], size: int) -> list[int]:
    """Offsets of missing segments before existing ones."""
    if not size or not segments:
        return []
    there = {file.offset for file in segments}
    count = (segments[-1].offset - segments[0].offset) // size
    if count > 1_000_000:  # distant names are not of one log
        return [segments[0].offset + size]
    return [offset for offset in range(segments[0].offset, segments[-1].offset, size) if offset not in there]


def _can_fence(damage: Damage, size: int) -> bool:
    room = damage.end - damage.start
    return room >= FENCE_BYTES_MIN or (damage.end % size == 0 and room >= BLANK_BYTES_MIN)


_SAVE_BYTES = 16 * 1024 * 1024


@attrs.frozen
class Repair:
    """One repair. `folder`: the directory for saved files, created in the store's directory.

    `lock` is owned by it, and released at the end of `run` in any case.
    """

    disk: IDisk
    clock: IReactorTime
    report: Report
    plan: Plan
    folder: str
    lock: ILockedFile

    def run(self, on_progress: Callable[[Progress], None]) -> None:
        """Raises OSError and StoreError; another repair can do the rest."""
        try:
            self._prepare()
            for path in self.plan.move:
                self._move_away(path, "foreign")
            if self.plan.opens:
                self._note_end()
                self._move_caches()  # first: an entry of corrupt records must not lead to the fence in their place
                self._mend_log()
                self._open(on_progress)
                if self.plan.fence or self.plan.fill:
                    self._stand_in()
        finally:
            self.lock.release()

    @property
    def _layout(self) -> Layout:
        return self.report.layout

    @property
    def _has_index(self) -> bool:
        return bool(self._layout.index_files) or self.plan.rebuild_index

    def _prepare(self) -> None:
        if self.disk.exists(self.folder):
            raise FileExistsError(17, "there is already a repair of this second; try again", self.folder)
        self.disk.make_directories(self.folder)
        self.disk.write(os.path.join(self.folder, "plan.txt"), ("\n".join(self.plan.lines()) + "\n").encode())
        self.disk.sync_directory(self._layout.root)

    def _note_end(self) -> None:
        totals = self.report.totals
        queues_offset = totals.log_first if self.plan.rebuild_queues else totals.log_end
        # Times of 0 make a Java broker that is started in between read the whole log. The index's time must not be 0.
        index_ms = self.report.newest_ms if self._has_index else 0
        checkpoint = Checkpoint(
            index_ms=index_ms, log_offset=totals.log_end, queues_offset=queues_offset, index_offset=0
        )
        path = self._layout.path("checkpoint")
        if self.disk.exists(path):
            self._save(path, 0, min(self.disk.file_size(path), 4096), "checkpoint")
        removed = self._layout.path("removedQueues.json")  # an opening finishes recorded removals
        if self.disk.exists(removed) and not self.disk.is_directory(removed):
            self._save(removed, 0, self.disk.file_size(removed), "removedQueues.json")
        self.disk.write(path, encode_checkpoint(checkpoint))
        self.disk.write(self._layout.path("abort"), self.disk.boot_id())

    # The log

    def _mend_log(self) -> None:
        for file in self.plan.extend:
            self._extend(file)
        for tail in self.plan.cut:
            self._edit(tail.path, tail.start, tail.dirty_end, "cut", lambda file, at, end: file.clear_from(at))
        for damage in self.plan.fence:
            self._edit(damage.path, damage.start, damage.end, "fenced", partial(_fence, damage))
        for offset in self.plan.fill:
            self._fill(offset)

    def _extend(self, file: SegmentFile) -> None:
        """Replace a segment that is too short by a copy of full size."""
        name = os.path.basename(file.path)
        path = os.path.join(self.folder, name + ".extended")
        self._copy(file.path, 0, file.size, path, self._layout.segment_bytes)
        self._save(file.path, 0, file.size, name + ".short")
        self.disk.rename(path, file.path)
        self.disk.sync_directory(self._layout.commit_log)

    def _edit(self, path: str, start: int, end: int, what: str, edit: Callable[[IMappedFile, int, int], None]) -> None:
        """Save bytes start..end of the log, then change them."""
        size = self._layout.segment_bytes
        at = start % size
        stop = at + end - start
        self._save(path, at, stop, f"commitlog-{start}-{end}.{what}")
        with closing(self.disk.open_mapped(path, size, keep_open=True)) as file:
            edit(file, at, stop)
            file.sync()

    def _fill(self, offset: int) -> None:
        size = self._layout.segment_bytes
        path = os.path.join(self._layout.commit_log, f"{offset:020d}")
        with closing(self.disk.create_mapped(path, size)) as file:
            _put(file, 0, encode_blank(size))
            file.sync()
        self.disk.sync_directory(self._layout.commit_log)

    def _save(self, path: str, at: int, end: int, name: str) -> None:
        """Copy bytes at..end of a file into the folder."""
        if end > at:
            self._copy(path, at, end, os.path.join(self.folder, name), end - at)
            self.disk.sync_directory(self.folder)

    def _copy(self, path: str, at: int, end: int, target: str, size: int) -> None:
        """Copy bytes at..end of a file to a new one of `size` bytes, in pieces, and sync that."""
        with (
            closing(self.disk.open_mapped(path, end, read_only=True)) as file,
            closing(self.disk.create_mapped(target, size)) as copy,
        ):
            copy.allocate(0, end - at)
            for start in range(at, end, _SAVE_BYTES):
                with file.view[start : start + _SAVE_BYTES] as piece:
                    copy.buffer[start - at : start - at + len(piece)] = piece
            copy.sync()

    # Consume queues and index

    def _move_caches(self) -> None:
        if self.plan.rebuild_queues:
            # A queue without a message in the log stays: only its files have its next offset.
            for topic, queue_id in sorted(self.report.live_queues):
                for kind in ("consumequeue", "consumequeue_ext"):
                    path = self._layout.path(kind, topic.decode("latin-1"), str(queue_id))
                    if self.disk.exists(path):
                        self._move_away(path, "")
            for path in self.report.bad_extensions:  # of queues without a message too: no entry needs their units
                if self.disk.exists(path):
                    self._move_away(path, "")
        index = self._layout.path("index")
        if self.plan.rebuild_index and self.disk.exists(index):
            self._move_away(index, "")

    def _move_away(self, path: str, below: str) -> None:
        """Move into the folder, under the same relative path."""
        relative = os.path.relpath(path, self._layout.root)
        if relative.startswith(os.pardir):  # the log is in a directory of its own
            relative = os.path.join("commitlog", os.path.basename(path))
        target = os.path.join(self.folder, below, relative)
        self.disk.make_directories(os.path.dirname(target))
        self.disk.rename(path, target)
        self.disk.sync_directory(os.path.dirname(target))
        self.disk.sync_directory(os.path.dirname(path))

    def _settings(self) -> StoreSettings:
        layout = self._layout
        shapes: dict[str, Any] = {}
        if layout.slots and layout.capacity:
            shapes = {"max_hash_slot_num": layout.slots, "max_index_num": layout.capacity}
        shapes["mapped_file_size_consume_queue"] = self.plan.queue_file_bytes
        if layout.ext_file_bytes:
            shapes["mapped_file_size_consume_queue_ext"] = layout.ext_file_bytes
        if layout.delay_levels:
            shapes["message_delay_level"] = layout.delay_levels
        if self.report.has_extra_queues:
            shapes |= {"enable_multi_dispatch": True, "enable_lmq": True}
        return StoreSettings(
            store_path_root_dir=layout.root,
            store_path_commit_log=layout.commit_log,
            mapped_file_size_commit_log=layout.segment_bytes,
            message_index_enable=self._has_index,
            enable_consume_queue_ext=bool(layout.ext_file_bytes),
            **shapes,
        )

    def _open(self, on_progress: Callable[[Progress], None]) -> None:
        """Open the store, which rebuilds missing parts, and stop it, which records that it is complete."""
        settings = self._settings()
        paths = StorePaths(settings.store_path_root_dir, settings.store_path_commit_log)
        lock, worker = _Kept(), InlineWorker()
        opening = Opening(settings, paths, self.disk, self.clock, worker, WorkerSyncs(worker), bytes(8), lock)
        store = MessageStore(run_at_once(opening.steps(), on_progress))
        store.start()
        failed: list[object] = []
        store.stop().addErrback(failed.append)
        if failed or self.disk.exists(paths.abort):
            raise OSError(5, "the store could not be stopped after its repair; see the messages above", paths.root)

    def _stand_in(self) -> None:
        """Point the entries of lost messages to the next message.

        Java's brokers do not get past a blank entry; this way consumers get one message twice, and continue.
        """
        file_bytes = self.plan.queue_file_bytes
        with queues_of(self.disk, self._layout, file_bytes) as queues:
            for key in self.report.live_queues & queues.keys():
                for offset, following in _blanks(queues[key], self._layout.log_first):
                    path, at = queues[key].place(offset)
                    with closing(self.disk.open_mapped(path, file_bytes)) as file:
                        file.buffer[at : at + ENTRY_BYTES] = ENTRY.pack(*following)
                        file.sync()


def _fence(damage: Damage, file: IMappedFile, at: int, end: int) -> None:
    if end == file.size:
        _put(file, at, encode_blank(end - at))
        return
    following = scan_at(file.view, end, damage.end)
    timestamp_ms = following.store_timestamp_ms if isinstance(following, Scanned) else 0
    file.allocate(at, end - at)
    with file.view[at:end] as damaged:
        pieces = list(fences(damaged, damage.start, timestamp_ms))
    for place, data in pieces:
        file.buffer[at + place : at + place + len(data)] = data


def _put(file: IMappedFile, at: int, data: bytes) -> None:
    file.allocate(at, len(data))
    file.buffer[at : at + len(data)] = data


def _blanks(queue: QueueFiles, log_first: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Offsets of blank entries between others, with the entry that follows."""
    found: list[tuple[int, tuple[int, int, int]]] = []
    waiting: list[int] = []
    is_begun = False
    for offset, entry in queue.entries(queue.first):
        if entry[1] == BLANK_SIZE:
            if is_begun or (entry[0] and entry[0] >= log_first):
                waiting.append(offset)
            continue
        is_begun = True
        found += [(blank, entry) for blank in waiting]
        waiting.clear()
    return found


@implementer(ILockedFile)
class _Kept:
    """Wraps the lock while the store is open, so that it is released after the last step, not by the store's stop."""

    def release(self) -> None:
        pass
