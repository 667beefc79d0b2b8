"""Tails that were cut off the log are kept for a while in `cut/` of the store's directory, each in a directory that
`mq store dump` reads.

    cut/<time, ms>-<from>-<to>/commitlog/<offset>    sparse segments, which have from..to of the log
"""

from __future__ import annotations

import os
import re

import attrs

from mqbroker.store.disk import IDisk
from mqbroker.store.layout import StorePaths, make_durable_directories
from mqbroker.store.recovery import load_segments

#: Bytes kept in all; of a longer tail only the first ones.
KEPT_BYTES_MAX = 1024 * 1024 * 1024
KEPT_MS_MAX = 7 * 86_400_000
_NAME = re.compile(r"(\d{13,})-(\d{20})-(\d{20})")
_CHUNK = 1024 * 1024


@attrs.frozen
class CutTail:
    """`start`..`end` of a log, cut off at a time in ms."""

    path: str
    at_ms: int
    start: int
    end: int


def cut_tails(disk: IDisk, root: str) -> list[CutTail]:
    """The kept tails, oldest first. Raises OSError."""
    folder = os.path.join(root, "cut")
    found = [(name, _NAME.fullmatch(name)) for name in disk.names(folder)]
    tails = [CutTail(os.path.join(folder, name), *map(int, match.groups())) for name, match in found if match]
    return sorted(tails, key=lambda tail: (tail.at_ms, tail.start))


def keep_tail(disk: IDisk, paths: StorePaths, segment_bytes: int, start: int, end: int, now_ms: int) -> CutTail:
    """Copy `start`..`end` of the log of a stopped store, durably; returns where it is, and what of it was kept. Older
    tails are deleted to make room. Raises OSError and StoreDamaged."""
    end = min(end, start + KEPT_BYTES_MAX)
    forget_tails(disk, paths.root, now_ms, KEPT_BYTES_MAX - (end - start))
    path = os.path.join(paths.root, "cut", f"{now_ms:013d}-{start:020d}-{end:020d}")
    if disk.exists(path):
        disk.remove_tree(path)
    # A copy that is not complete has another name, and is removed with the next.
    unfinished = os.path.join(paths.root, "cut", "unfinished")
    if disk.exists(unfinished):
        disk.remove_tree(unfinished)
    directory = os.path.join(unfinished, "commitlog")
    make_durable_directories(disk, directory)
    segments = load_segments(disk, paths.commit_log, segment_bytes)
    try:
        for file in segments.files:
            base = int(os.path.basename(file.path))
            low, high = max(start, base), min(end, base + segment_bytes)
            if low < high:
                copy = disk.create_mapped(os.path.join(directory, os.path.basename(file.path)), segment_bytes)
                try:
                    copy.allocate(low - base, high - low)
                    for at in range(low - base, high - base, _CHUNK):
                        size = min(_CHUNK, high - base - at)
                        file.fetch(at, size)
                        copy.write_at(at, file.view[at : at + size])
                    copy.sync()
                finally:
                    copy.close()
    finally:
        for file in segments.files:
            file.close()
    disk.sync_directory(directory)
    disk.rename(unfinished, path)
    disk.sync_directory(os.path.dirname(path))
    return CutTail(path, now_ms, start, end)


def forget_tails(disk: IDisk, root: str, now_ms: int, bytes_max: int = KEPT_BYTES_MAX) -> list[str]:
    """Delete tails that are older than a week, and the oldest of more than `bytes_max`; returns their paths. Raises
    OSError."""
    kept_bytes, gone = 0, []
    for tail in reversed(cut_tails(disk, root)):
        kept_bytes += tail.end - tail.start
        if kept_bytes > bytes_max or now_ms - tail.at_ms > KEPT_MS_MAX:
            gone.append(tail.path)
    for path in gone:
        disk.remove_tree(path)
    return gone
