"""Rebuild of consume queues and their extensions when a store is opened: from the records that recovery reads, or from
the log once it is open.

The extension of each queue is first aligned with the queue: units beyond the newest entry are truncated, and so are
entries whose units are missing, to be rebuilt with the units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs
from twisted.logger import Logger

from mqbroker.store.checkpoint import CheckpointFile
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeue_entry import ENTRY, ENTRY_BYTES
from mqbroker.store.consumequeue_ext import ConsumeQueueExt, is_address
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.disk import IDisk, read_before_touch
from mqbroker.store.dispatch import TURN_MESSAGES, Dispatcher
from mqbroker.store.logscan import Run
from mqbroker.store.stepwise import Progress, Steps

log = Logger()

_LOOK_ENTRIES = 4096


def align_extensions(
    queues: Iterable[ConsumeQueue], log_min: int, end: int, before_cut: Callable[[int], None] = lambda offset: None
) -> int:
    """Align extensions and queues; `log_min` is the start of the log.

    Returns the offset from which the log must be dispatched again: `end`, or less if entries were truncated.
    `before_cut` is called with it first, and must make it durable: a crash would hide that they are missing.
    """
    cuts: list[tuple[ConsumeQueue, ConsumeQueueExt, int]] = []
    for queue in queues:
        ext = queue.ext
        if ext is None:
            continue
        lost = _align(queue, ext, log_min)
        if lost is not None:
            log.warn(
                "{directory}: units are missing, they and the queue's entries are rebuilt from offset {offset} of "
                "the log",
                directory=ext.directory, offset=lost,
            )  # fmt: skip
            cuts.append((queue, ext, lost))
            end = min(end, lost)
    before_cut(end)
    for queue, ext, lost in cuts:
        queue.truncate(lost)
        _align(queue, ext, log_min)
    return end


def _align(queue: ConsumeQueue, ext: ConsumeQueueExt, log_min: int) -> int | None:
    """Truncate the extension behind the newest entry that has a unit. If units of entries are missing, nothing is done,
    and the physical offset of the oldest such entry is returned."""
    lost: int | None = None
    has_gap = _first_is_lost(queue, ext, log_min)
    if has_gap:
        ext.reset()
    for looked, (physical_offset, _, code) in enumerate(_newest_first(queue, log_min)):
        if is_address(code):
            if ext.unit(code) is not None:
                if lost is None:
                    ext.truncate_by_max(code)
                return lost
            lost = physical_offset
        elif looked >= _LOOK_ENTRIES and lost is None and not has_gap and not ext.has_files:
            break  # never had one, like entries of messages that name other queues
    if lost is None:  # no entry has a unit
        ext.reset()
    return lost


def _first_is_lost(queue: ConsumeQueue, ext: ConsumeQueueExt, log_min: int) -> bool:
    """Whether the queue's oldest message in the log should have a unit, and has none."""
    offset = queue.search(lambda physical, _: physical < log_min, queue.first_offset, queue.max_offset)
    if offset >= queue.max_offset:
        return False
    code = queue.entry_from_disk(offset)[2]
    return is_address(code) and ext.unit(code) is None


def _newest_first(queue: ConsumeQueue, log_min: int) -> Iterator[tuple[int, int, int]]:
    """The entries of a queue whose messages the log may still have."""
    high = queue.max_offset
    while high > queue.first_offset:
        low = max(queue.first_offset, high - _LOOK_ENTRIES)
        entries: list[tuple[int, int, int]] = []
        while low < high:
            file, at, count = queue.place(low)
            count = min(count, high - low)
            read_before_touch(file, at, count * ENTRY_BYTES)
            entries += ENTRY.iter_unpack(file.view[at : at + count * ENTRY_BYTES])
            low += count
        for entry in reversed(entries):
            if entry[0] < log_min:
                return
            yield entry
        high -= len(entries)


def withdraw(
    dispatcher: Dispatcher,
    queues: ConsumeQueues,
    log_min: int,
    end: int,
    before_cut: Callable[[int], None],
) -> None:
    """Take the entries of messages that do not end at or below `end` of the log out of their queues, to be dispatched
    again; the queues number new messages as before.

    `before_cut` as of `align_extensions`. Raises OSError.
    """
    cut = [queue for queue in queues if queue.end_of_last() > end]
    if not cut:
        return
    before_cut(end)
    for queue in cut:
        queue.truncate(end)
        if queue.ext is not None:
            _align(queue, queue.ext, log_min)
    queues.note_cuts(is_clean=True)
    # Where a record ends, which `end` may not be.
    dispatcher.begin_at(max(log_min, *(queue.end_of_last() for queue in queues)))


#: Queues are saved every so many bytes of the log: after a kill the rebuild continues from there.
SAVE_BYTES = 1024 * 1024 * 1024


@attrs.define
class QueueRebuild:
    """Rebuilds queues. `saved`: the queues have the log below, and are synced up to it. `have_more`: some queues had
    entries above it from the beginning."""

    cq_dispatcher: ConsumeQueueDispatcher
    queues: ConsumeQueues
    checkpoint: CheckpointFile
    disk: IDisk
    saved: int
    have_more: bool

    def enter(self, run: Run) -> None:
        """Add messages that recovery has read to their queues. Raises OSError."""
        self.cq_dispatcher.dispatch_run(run)
        self.cq_dispatcher.write()
        self._save_sometimes(run.end)

    def catch_up(self, dispatcher: Dispatcher, commit_log: CommitLog) -> Steps[None]:
        """Dispatch the rest of the log to the queues. Raises OSError."""
        self.saved = dispatcher.offset
        while dispatcher.offset < commit_log.readable_end:
            dispatcher.dispatch(TURN_MESSAGES)
            self._save_sometimes(dispatcher.offset)
            yield Progress("consume queues are built from the log", dispatcher.offset, commit_log.readable_end)

    def _save_sometimes(self, offset: int) -> None:
        if offset - self.saved < SAVE_BYTES:
            return
        for queue in self.queues:
            queue.clear_kept()
        tally = None if self.have_more else self.queues.tally_now()
        for file in self.queues.drain_unsynced():
            file.sync()
        for directory in self.queues.drain_new_names():
            self.disk.sync_directory(directory)
        self.checkpoint.note_queues(offset, self.cq_dispatcher.last_timestamp_ms, tally)
        self.saved = offset
