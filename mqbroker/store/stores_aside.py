"""Stores that were put aside, and how long they are kept: parts whose names end with the reason and the time.

commitlog.diverged-<time, ms>    of a store that was not the beginning of its master's: only a person can say whether
                                 its messages are needed. The newest stays; older ones are kept for a week
commitlog.outlived-<time, ms>    of a store that ended before its master's begins: its master has deleted all that
                                 by its age. The newest stays for a week, and of its log the last segments
"""

from __future__ import annotations

import os
import re

import attrs

from mqbroker.store.cut_tails import KEPT_BYTES_MAX, KEPT_MS_MAX
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import SEGMENT_NAME, StorePaths, put_aside

DIVERGED, OUTLIVED = "diverged", "outlived"
_NAME = re.compile(rf".+\.({DIVERGED}|{OUTLIVED})-(\d{{1,15}})")


@attrs.frozen(order=True)
class StoreAside:
    """A store that was put aside at a time in ms, for a reason: its parts."""

    at_ms: int
    why: str
    paths: tuple[str, ...]


def put_store_aside(disk: IDisk, paths: StorePaths, why: str, now_ms: int) -> list[str]:
    """Put the store aside; returns the new paths. Raises OSError and StoreLocked."""
    moved = put_aside(disk, paths, f".{why}-{now_ms}")
    if why == OUTLIVED:
        forget_segments(disk, f"{paths.commit_log}.{why}-{now_ms}")
    return moved


def forget_segments(disk: IDisk, directory: str, bytes_max: int = KEPT_BYTES_MAX) -> None:
    """Delete the first segments of a log until `bytes_max` are left at most; the last one stays. Raises OSError."""
    names = sorted(name for name in disk.names(directory) if SEGMENT_NAME.fullmatch(name))
    kept = 0
    for number, name in enumerate(reversed(names)):
        path = os.path.join(directory, name)
        kept += disk.file_size(path)
        if number and kept > bytes_max:
            disk.remove(path)


def stores_aside(disk: IDisk, paths: StorePaths) -> list[StoreAside]:
    """The stores that were put aside, the oldest first. Raises OSError."""
    found: dict[tuple[int, str], list[str]] = {}
    for folder in {paths.root, os.path.join(paths.root, "config"), os.path.dirname(paths.commit_log)}:
        for name in disk.names(folder) if disk.is_directory(folder) else ():
            if match := _NAME.fullmatch(name):
                found.setdefault((int(match[2]), match[1]), []).append(os.path.join(folder, name))
    return sorted(StoreAside(at_ms, why, tuple(sorted(parts))) for (at_ms, why), parts in found.items())


def was_put_aside(disk: IDisk, paths: StorePaths) -> bool:
    """Whether there is a store that was put aside. Raises OSError."""
    return bool(stores_aside(disk, paths))


def forget_stores(disk: IDisk, paths: StorePaths, now_ms: int) -> list[str]:
    """Delete what is kept no longer; returns the paths. Raises OSError."""
    gone: list[str] = []
    for why in (DIVERGED, OUTLIVED):
        former = [store for store in stores_aside(disk, paths) if store.why == why]
        newest = former[-1:]
        for store in former:
            is_old, is_newest = now_ms - store.at_ms > KEPT_MS_MAX, store in newest
            if (is_old and not is_newest) if why == DIVERGED else (is_old or not is_newest):
                gone += store.paths
    for path in gone:
        if disk.is_directory(path):
            disk.remove_tree(path)
        else:
            disk.remove(path)
    return gone
