"""Bringing the extension of each consume queue to where the queue ends, when a store is opened.

Both are caches of the log: units beyond the queue's newest entry are cut off, and entries whose units are missing go,
to be made again with the units. Must never know how either is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from twisted.logger import Logger

from mqbroker.store.consumequeue import ENTRY, ENTRY_BYTES, ConsumeQueue
from mqbroker.store.consumequeue_ext import ConsumeQueueExt, is_address
from mqbroker.store.disk import read_before_touch

log = Logger()

_LOOK_ENTRIES = 4096


def align_extensions(
    queues: Iterable[ConsumeQueue], log_min: int, end: int, before_cut: Callable[[int], None] = lambda offset: None
) -> int:
    """Make extensions and queues fit each other; `log_min` is where the log starts.

    Returns from where on the log must be dispatched again: `end`, or less where entries went. That is told to
    `before_cut` before any goes: it must last, or nobody would know after a crash that they are missing.
    """
    cuts: list[tuple[ConsumeQueue, ConsumeQueueExt, int]] = []
    for queue in queues:
        ext = queue.ext
        if ext is None:
            continue
        lost = _align(queue, ext, log_min)
        if lost is not None:
            log.warn(
                "{directory}: units are missing, they and the queue's entries are built anew from {offset} of the log",
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
    """Cut the extension behind the newest entry that has a unit. Where units of entries are missing nothing is done,
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
            break  # never had one, as those of other queues' messages have not
    if lost is None:  # no entry has a unit
        ext.reset()
    return lost


def _first_is_lost(queue: ConsumeQueue, ext: ConsumeQueueExt, log_min: int) -> bool:
    """Whether the oldest message of the log that is in the queue should have a unit, and has none."""
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
