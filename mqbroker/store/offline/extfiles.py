"""Extensions of consume queues as they lie on the disk: which files each queue has, and its units. Must never know the
log, nor the entries that lead to units.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import attrs

from mqbroker.store.consumequeue_ext import END_BYTES, ExtUnit, is_address, parse_unit, undecorate
from mqbroker.store.consumequeues import TRASH
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import SEGMENT_NAME
from mqbroker.store.offline.filepool import NO_VIEW, FilePool
from mqbroker.store.offline.findings import Findings
from mqbroker.store.offline.layout import FOREIGN_ADVICE, listed

_REBUILD = "`mq store repair` builds it anew with its consume queue from the log"

QueueKey = tuple[bytes, int]


class ExtFiles:
    """The extension of one queue. `view` is the file at `base`, last asked for."""

    __slots__ = ("_pool", "base", "paths", "view")

    def __init__(self, pool: FilePool) -> None:
        self._pool = pool
        self.paths: dict[int, str] = {}
        self.view = NO_VIEW
        self.base = -1

    def unit(self, address: int) -> ExtUnit | None:
        """The unit at an address; None where no whole one stands."""
        file_bytes = self._pool.file_bytes
        if not file_bytes or not is_address(address):
            return None
        base, at = divmod(undecorate(address), file_bytes)
        base *= file_bytes
        if base != self.base and not self._open(base):
            return None
        return parse_unit(self.view, at, file_bytes - END_BYTES - at)

    def _open(self, base: int) -> bool:
        """Have the file at `base` in the view; False where there is none."""
        path = self.paths.get(base)
        if path is None:
            return False
        self.view = self._pool.open(path, self._forget)
        self.base = base
        return True

    def _forget(self) -> None:
        self.view = NO_VIEW
        self.base = -1


@attrs.frozen
class Extensions:
    """`bad`: directories of queues' extensions with which an opening refuses the store, or that it cannot use."""

    by_queue: dict[QueueKey, ExtFiles]
    bad: list[str]


def load_extensions(
    disk: IDisk, root: str, pool: FilePool, queues: Collection[QueueKey], findings: Findings, foreign: list[str]
) -> Extensions:
    """The extensions of `queues`. What is no file of one is a finding; its path is added to `foreign` where an opening
    comes upon it."""
    found = Extensions({}, [])
    for topic in listed(disk, root):
        topic_path = os.path.join(root, topic)
        if topic == TRASH:
            continue
        if not disk.is_directory(topic_path):
            findings.note("foreign file", topic_path, 0, "not a directory of a topic; brokers pass over it")
            continue
        for queue_id in disk.names(topic_path):
            path = os.path.join(topic_path, queue_id)
            is_number = queue_id.isascii() and queue_id.isdecimal() and int(queue_id) <= 0x7FFFFFFF
            key = (topic.encode(), int(queue_id)) if is_number else None
            if key is None or key not in queues:
                findings.note("extension of no queue", path, 0, "there is no consume queue of this name")
            elif not disk.is_directory(path):
                foreign.append(path)
                findings.broken("foreign file", path, 0, "not a directory of an extension", FOREIGN_ADVICE)
            else:
                ext = found.by_queue[key] = ExtFiles(pool)
                if not _load_files(disk, path, ext, pool.file_bytes, findings, foreign):
                    found.bad.append(path)
    return found


def _load_files(
    disk: IDisk, directory: str, ext: ExtFiles, file_bytes: int, findings: Findings, foreign: list[str]
) -> bool:
    """Whether all files are of the right size, and follow each other."""
    is_good = True
    expected = -1
    names = disk.names(directory)
    for name in names:
        path = os.path.join(directory, name)
        if not SEGMENT_NAME.fullmatch(name) or disk.is_directory(path):
            foreign.append(path)
            findings.broken("foreign file", path, 0, "not an extension file", FOREIGN_ADVICE)
            continue
        size = disk.file_size(path)
        if not size and name == names[-1]:
            findings.note("unfinished file", path, 0, "made by a broker that was killed; the next start deletes it")
            continue
        base = int(name)
        if not file_bytes or size != file_bytes or base % file_bytes:
            what = f"{size} bytes where an extension file has {file_bytes or 'none known'}"
            findings.broken("extension size", path, min(size, file_bytes), what, _REBUILD)
            is_good = False
            continue
        if expected not in (-1, base):
            findings.broken("missing extension file", path, 0, "the file before it is missing", _REBUILD)
            is_good = False
        expected = base + file_bytes
        ext.paths[base] = path
    return is_good
