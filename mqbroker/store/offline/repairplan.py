"""Deciding what would mend a store: from a check's report to a list of steps. Must never change anything."""

from __future__ import annotations

import attrs

from mqbroker.store.logscan import Damage
from mqbroker.store.offline.check import Report
from mqbroker.store.offline.layout import SegmentFile
from mqbroker.store.offline.logwalk import FENCE_BYTES_MIN, Tail
from mqbroker.store.offline.smallfiles import REMOVED_UNREADABLE
from mqbroker.wire.record import BLANK_BYTES_MIN

#: mappedFileSizeConsumeQueue, where neither files nor settings say another: 300,000 entries.
QUEUE_FILE_BYTES = 6_000_000
#: Findings that building consume queues anew mends, and the index.
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
    """What to do, and what stands in the way. Each part is empty where there is nothing of it to do."""

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
    #: What stays as it is, and why.
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
        """The steps for people, in the order in which they are done."""
        said = [f"move {path} away" for path in self.move]
        said += [f"copy {file.path}, extended with zeros to its full size" for file in self.extend]
        said += [f"cut {tail.dirty_end - tail.start} bytes off at {tail.start} of the log" for tail in self.cut]
        said += [f"fence bytes {damage.start} to {damage.end} of the log" for damage in self.fence]
        said += [f"put a filler in place of the missing segment {offset:020d}" for offset in self.fill]
        if self.rebuild_queues:
            said.append(f"build consume queues anew from the log, in files of {self.queue_file_bytes} bytes")
        if self.rebuild_index:
            said.append("build the index anew from the log")
        if self.opens:
            said.append("write the checkpoint, and note that the store was stopped")
        return said


def make_plan(report: Report, *, fence: bool, move_foreign: bool) -> Plan:
    layout, kinds = report.layout, report.findings.kinds
    obstacles: list[str] = []
    left: list[str] = []
    size = layout.segment_bytes
    if kinds["unknown sizes"] or not size:
        obstacles.append("the sizes of the files cannot be known: name the broker's settings with -c")
    if layout.foreign and not move_foreign:
        obstacles.append(f"{len(layout.foreign)} foreign files, {layout.foreign[0]} the first: add --move-foreign")
    missing = _missing(layout.segments, size)
    if missing and not fence:
        obstacles.append(f"segment {missing[0]:020d} is missing: restore it from a copy, or add --fence for a filler")
    extend = []
    for file in layout.segments:
        if 0 < file.size < size:
            extend.append(file)
        elif file.size != size:
            obstacles.append(f"{file.path} has {file.size} bytes and cannot be taken for a segment")
    fenced = [damage for damage in report.damages if fence and _can_fence(damage, size)]
    for damage in report.damages:
        if damage not in fenced:
            why = "too short for a record" if fence else "add --fence, for Java brokers to get past it"
            left.append(f"bytes {damage.start} to {damage.end} of the log hold no record: our brokers pass over; {why}")
    has_log = bool(layout.segments)
    rebuild_queues = has_log and bool(fenced or missing or _QUEUE_KINDS & kinds.keys())
    if rebuild_queues and kinds[REMOVED_UNREADABLE]:
        path = layout.path("removedQueues.json")
        obstacles.append(f"{path} is damaged: restore it from a copy, or move it away, and removed topics come back")
    cut = [tail for tail in report.tails if tail.dirty_end > tail.start]
    return Plan(
        move=layout.foreign if move_foreign else [],
        extend=extend,
        cut=cut,
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
    """Offsets of the segments that are not there though later ones are."""
    if not size or not segments:
        return []
    there = {file.offset for file in segments}
    count = (segments[-1].offset - segments[0].offset) // size
    if count > 1_000_000:  # names far from each other are not of one log
        return [segments[0].offset + size]
    return [offset for offset in range(segments[0].offset, segments[-1].offset, size) if offset not in there]


def _can_fence(damage: Damage, size: int) -> bool:
    room = damage.end - damage.start
    return room >= FENCE_BYTES_MIN or (damage.end % size == 0 and room >= BLANK_BYTES_MIN)
