"""Spoils what the store could build from the log: pages that a disk lost or mixed up, files and directories that are
missing."""

from __future__ import annotations

import os
from random import Random

from tests.store.simulation.disk import SimDisk
from tests.store.simulation.inode import PAGE_BYTES

#: What each extra of the runs spoils, and how.
EXTRAS = {
    "lost queues": ("consumequeue", ("zeros", "zeros", "file", "directory")),
    "garbled queues": ("consumequeue", ("garbage",)),
    "spoilt extensions": ("consumequeue_ext", ("zeros", "garbage", "file", "directory")),
    "spoilt index": ("index", ("zeros", "garbage", "file", "directory")),
}


def spoil(disk: SimDisk, part: str, kind: str, rng: Random) -> str:
    """Spoil something below the directory `part`; returns what, and nothing where there is nothing."""
    found = [path for path, inode in disk.files(part) if inode.size and inode.image().strip(b"\0")]
    if not found:
        return ""
    path = rng.choice(found)
    if kind == "directory":
        path = os.path.dirname(path)
        if rng.random() < 0.3 and os.path.dirname(path) != os.path.dirname(part):
            path = os.path.dirname(path)
    if kind in ("file", "directory"):
        disk.lose(path)
        return path
    inode = disk.inode(path)
    inode.bring(range(len(inode.blocks)))
    pages = [number for number in range(-(-inode.size // PAGE_BYTES)) if inode.page(number).strip(b"\0")]
    number = rng.choice(pages)
    size = len(inode.page(number))
    inode.spoil(number * PAGE_BYTES, bytes(size) if kind == "zeros" else rng.randbytes(size))
    return path
