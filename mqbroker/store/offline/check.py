"""Checking a store directory whole: one pass over the log, with consume queues and index walked beside it.

Nothing is written, locked or created. Memory is bounded by the number of queues, not of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from mqbroker.store.checkpoint import Checkpoint
from mqbroker.store.disk import IDisk
from mqbroker.store.logscan import Damage, Scanned
from mqbroker.store.offline.extfiles import load_extensions
from mqbroker.store.offline.filepool import FilePool
from mqbroker.store.offline.findings import Findings, Totals
from mqbroker.store.offline.indexcheck import IndexCheck
from mqbroker.store.offline.indexread import IndexReader
from mqbroker.store.offline.layout import Given, Layout, read_layout
from mqbroker.store.offline.logwalk import Fence, Tail, walk
from mqbroker.store.offline.queuecheck import QueueCheck
from mqbroker.store.offline.queuefiles import load_queues
from mqbroker.store.offline.smallfiles import SmallFiles, check_checkpoint, check_tally, read_small_files, when
from mqbroker.store.tags_codes import parse_delay_levels

#: Bytes of the log passed, and of how many.
ProgressFunction = Callable[[int, int], None]

#: Clocks are set back a little now and then; more is damage, or was a wrong clock.
_CLOCK_BACK_MS = 3_600_000
_DAMAGED = (
    "restore it from a copy or a slave; our brokers pass over it, Java's cut the log there: "
    "`mq store repair --fence` makes it passable for both"
)


@attrs.frozen
class Report:
    """What a check found. `damages`, `tail`: of the log; a repair works on them."""

    layout: Layout
    small: SmallFiles
    findings: Findings
    totals: Totals
    newest_ms: int
    damages: list[Damage]
    tails: list[Tail]
    live_queues: frozenset[tuple[bytes, int]]
    has_extra_queues: bool
    bad_extensions: list[str]


class _LogCheck:
    """Goes along the log, tells what is wrong with the log itself, and passes records on."""

    def __init__(self, findings: Findings, totals: Totals, is_live: bool) -> None:
        self._is_live = is_live
        self._findings = findings
        self._totals = totals
        self.newest_ms = 0
        self.damages: list[Damage] = []
        self.tails: list[Tail] = []

    def records(self, items: Iterator[Scanned | Damage | Fence | Tail]) -> Iterator[Scanned]:
        totals = self._totals
        for item in items:
            if isinstance(item, Scanned):
                timestamp_ms = item.store_timestamp_ms
                if timestamp_ms >= self.newest_ms:
                    self.newest_ms = timestamp_ms
                else:
                    self._check_time(item)
                totals.records += 1
                totals.record_bytes += item.size
                totals.log_end = item.physical_offset + item.size
                yield item
            elif isinstance(item, Damage):
                self._tell_damage(item)
            elif isinstance(item, Fence):
                totals.fenced_bytes += item.end - item.start
                totals.log_end = item.end
            else:
                self._tell_tail(item)

    def _check_time(self, item: Scanned) -> None:
        back_ms = self.newest_ms - item.store_timestamp_ms
        if not self._findings.kinds["store time goes back"] or back_ms > _CLOCK_BACK_MS:
            what = (
                f"record at {item.physical_offset} was stored at {when(item.store_timestamp_ms)}, "
                f"one before it at {when(self.newest_ms)}"
            )
            if back_ms <= _CLOCK_BACK_MS:
                self._findings.note("store time goes back", "", item.physical_offset, what)
            else:
                advice = "searches by time miss messages around it; nothing else does"
                self._findings.broken("store time goes back", "", item.physical_offset, what, advice)
        if back_ms > _CLOCK_BACK_MS:  # told once for each that is far off, not for all that follow
            self.newest_ms = item.store_timestamp_ms

    def _tell_damage(self, item: Damage) -> None:
        self._totals.damaged_bytes += item.end - item.start
        self._totals.log_end = max(self._totals.log_end, item.end)
        if len(self.damages) < 100_000:
            self.damages.append(item)
        at = item.start % self._totals.segment_bytes if self._totals.segment_bytes else 0
        what = f"bytes {item.start} to {item.end} of the log hold no record: {item.why or 'zeros'}"
        self._findings.lost("damaged log", item.path, at, what, _DAMAGED)

    def _tell_tail(self, item: Tail) -> None:
        self.tails.append(item)
        if item.dirty_end > item.start:
            at = item.start % self._totals.segment_bytes if self._totals.segment_bytes else 0
            why = f" ({item.why})" if item.why else ""
            what = (
                f"{item.dirty_end - item.start} bytes after the last record, at {item.start} of the log, are none{why}"
            )
            if self._is_live:
                self._findings.note("torn tail", item.path, at, f"{what}; it may just be being written")
                return
            advice = "a torn write, most likely: the next start cuts it off, and so does `mq store repair`"
            self._findings.broken("torn tail", item.path, at, what, advice)


def check_store(
    disk: IDisk, root: str, given: Given, on_progress: ProgressFunction, *, is_live: bool = False
) -> Report:
    """Check the store at `root`; with `is_live` one to which a broker writes meanwhile.

    Raises StoreUnknown where there is none that can be read, and OSError.
    """
    findings = Findings()
    layout = read_layout(disk, root, given, findings)
    small = read_small_files(disk, layout, findings)
    is_open_ended = is_live or not small.is_stopped
    synced_ms = small.checkpoint.safe_ms if small.checkpoint is not None else 0
    open_from_ms = synced_ms if is_open_ended else None
    totals = Totals(segments=len(layout.segments), segment_bytes=layout.segment_bytes, log_first=layout.log_first)
    totals.log_end = layout.log_first
    totals.index_files = len(layout.index_files)
    if not layout.segment_bytes and layout.segments:
        findings.broken(
            "unknown sizes", layout.commit_log, 0, "segments of no common size", "name the settings with -c"
        )
    pool = FilePool(disk, layout.queue_file_bytes)
    queue_root = layout.path("consumequeue")
    files = load_queues(disk, queue_root, pool, findings, layout.foreign)
    levels_ms = parse_delay_levels(layout.delay_levels) if layout.delay_levels else []
    ext_pool = FilePool(disk, layout.ext_file_bytes)
    ext = load_extensions(disk, layout.path("consumequeue_ext"), ext_pool, files.keys(), findings, layout.foreign)
    queues = QueueCheck(files, ext.by_queue, pool, layout.log_first, levels_ms, small.removed, findings)
    queues.expects_named = given.multi_dispatch
    index = _index_check(disk, layout, small.checkpoint, is_open_ended, findings)
    log = _LogCheck(findings, totals, is_live)
    total = sum(min(segment.size, layout.segment_bytes) for segment in layout.segments)
    done = 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        on_progress(done, total)

    on_progress(0, total)
    take_queue, take_index = queues.take, index.take if index is not None else _ignore
    try:
        for item in log.records(walk(disk, layout.segments, layout.segment_bytes, passed)):
            take_queue(item)
            take_index(item)
        totals.topics, totals.queues, totals.queue_entries = queues.finish(totals.log_end, small.topics, open_from_ms)
        if index is not None:
            totals.index_entries = index.finish(totals.log_end, is_open_ended)
    finally:
        pool.close()
        ext_pool.close()
        if index is not None:
            index.close()
    if small.checkpoint is not None:
        path = layout.path("checkpoint")
        check_checkpoint(path, small.checkpoint, log.newest_ms, totals.log_end, small.is_stopped, findings)
        if not is_open_ended:
            check_tally(path, small.checkpoint.tally, queues.tally, findings)
    return Report(
        layout, small, findings, totals, log.newest_ms, log.damages, log.tails, queues.live(), queues.has_extra(),
        ext.bad,
    )  # fmt: skip


def _ignore(item: Scanned) -> None:
    pass


def _index_check(
    disk: IDisk, layout: Layout, checkpoint: Checkpoint | None, is_open_ended: bool, findings: Findings
) -> IndexCheck | None:
    directory = layout.path("index")
    if not layout.index_files:
        if checkpoint is not None and checkpoint.index_ms > 0:
            advice = "`mq store repair` builds the index anew from the log"
            findings.broken("index missing", directory, 0, "no index file, though there were some", advice)
        else:
            findings.note("no index", directory, 0, "no index: messages cannot be found by their keys")
        return None
    if not layout.slots:
        advice = "name the broker's settings with -c (maxHashSlotNum, maxIndexNum)"
        findings.broken("unknown sizes", directory, 0, "the index files are of an unknown shape", advice)
        return None
    reader = IndexReader(disk, layout.index_files, layout.slots, layout.capacity, findings, is_open_ended)
    return IndexCheck(reader, directory, layout.log_first, findings)
