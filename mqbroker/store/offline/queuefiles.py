"""Consume queues as they lie on the disk: which files each queue has, and its entries. Must never know the log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from mqbroker.store.consumequeue import BLANK_SIZE, ENTRY, ENTRY_BYTES, entries_struct
from mqbroker.store.consumequeues import TOPIC_NAME, TRASH
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import SEGMENT_NAME
from mqbroker.store.offline.filepool import NO_VIEW, FilePool
from mqbroker.store.offline.findings import Findings
from mqbroker.store.offline.layout import FOREIGN_ADVICE, listed
from mqbroker.wire.names import is_lmq

_CHUNK = 256
_REBUILD = "`mq store repair` builds consume queues anew from the log"

Entry = tuple[int, int, int]


class QueueFiles:
    """The files of one queue. `view` holds the entries from `base` up to `end`, of the file last asked for."""

    __slots__ = ("_bases", "_paths", "_per_file", "_pool", "base", "directory", "end", "name", "view")

    def __init__(self, pool: FilePool, name: str, directory: str) -> None:
        self._pool = pool
        self._per_file = pool.file_bytes // ENTRY_BYTES
        self._bases: list[int] = []
        self._paths: dict[int, str] = {}
        self.name = name
        self.directory = directory
        self.view = NO_VIEW
        self.base = self.end = 0

    def add_file(self, base: int, path: str) -> None:
        self._bases.append(base)
        self._paths[base] = path

    @property
    def first(self) -> int:
        """The lowest offset there is a place for."""
        return self._bases[0] if self._bases else 0

    @property
    def is_there(self) -> bool:
        return bool(self._bases)

    def place(self, offset: int) -> tuple[str, int]:
        """File and byte of an entry, for a report."""
        base = offset // self._per_file * self._per_file if self._per_file else 0
        return self._paths.get(base, self.directory), (offset - base) * ENTRY_BYTES

    def entry(self, offset: int) -> Entry | None:
        """None where no file has it."""
        if not self.base <= offset < self.end and not self._open(offset):
            return None
        found: Entry = ENTRY.unpack_from(self.view, (offset - self.base) * ENTRY_BYTES)
        return found

    def entries(self, start: int) -> Iterator[tuple[int, Entry]]:
        """The entries from `start` on up to the first place that was never written, with their offsets."""
        offset = start
        while self.base <= offset < self.end or self._open(offset):
            count = min(_CHUNK, self.end - offset)
            flat = entries_struct(count).unpack_from(self.view, (offset - self.base) * ENTRY_BYTES)
            for i in range(0, 3 * count, 3):
                if flat[i + 1] <= 0:
                    return
                yield offset + i // 3, flat[i : i + 3]
            offset += count

    def bounds(self, log_first: int) -> tuple[int, int]:
        """The lowest offset whose message may be in the log, which starts at `log_first`, and the one after the
        highest."""
        top = self.max_offset()
        low = self._search(
            self.first, top, lambda entry: entry[0] < log_first or (entry[1] == BLANK_SIZE and not entry[0])
        )
        return low, top

    def max_offset(self) -> int:
        """The offset after the highest that was written, as an opening finds it."""
        high = self._bases[-1] + self._per_file if self._bases else 0
        return self._search(self.first, high, lambda entry: entry[1] > 0)

    def _search(self, low: int, high: int, is_below: Callable[[Entry], bool]) -> int:
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and is_below(entry):
                low = middle + 1
            else:
                high = middle
        return low

    def _open(self, offset: int) -> bool:
        """Have the file with `offset` in the view; False where there is none."""
        if not self._per_file:
            return False
        base = offset // self._per_file * self._per_file
        path = self._paths.get(base)
        if path is None:
            return False
        self.view = self._pool.open(path, self._forget)
        self.base, self.end = base, base + self._per_file
        return True

    def _forget(self) -> None:
        self.view = NO_VIEW
        self.base = self.end = 0

    def dirt_after(self, offset: int, size: int) -> int:
        """How many of the next `size` bytes of the file, from where entry `offset` would stand, are not zero."""
        if self.entry(offset) is None:
            return 0
        at = (offset - self.base) * ENTRY_BYTES
        piece = bytes(self.view[at : at + size])
        return len(piece) - piece.count(0)


def load_queues(
    disk: IDisk, root: str, pool: FilePool, findings: Findings, foreign: list[str]
) -> dict[tuple[bytes, int], QueueFiles]:
    """The queues there are. What is no file of a queue is a finding; its path is added to `foreign`."""
    queues: dict[tuple[bytes, int], QueueFiles] = {}

    def add_foreign(path: str, why: str) -> None:
        foreign.append(path)
        findings.broken("foreign file", path, 0, why, FOREIGN_ADVICE)

    for topic in listed(disk, root):
        topic_path = os.path.join(root, topic)
        if topic == TRASH:  # queues that are being deleted
            continue
        if not disk.is_directory(topic_path):
            add_foreign(topic_path, "not a directory of a topic")
            continue
        for queue_id in disk.names(topic_path):
            path = os.path.join(topic_path, queue_id)
            is_number = queue_id.isascii() and queue_id.isdecimal() and int(queue_id) <= 0x7FFFFFFF
            if not is_number or not (TOPIC_NAME.fullmatch(topic) or is_lmq(topic)) or not disk.is_directory(path):
                add_foreign(path, "not a directory of a queue")
                continue
            queue = QueueFiles(pool, f"{topic}/{queue_id}", path)
            _load_files(disk, queue, pool.file_bytes, findings, add_foreign)
            queues[topic.encode(), int(queue_id)] = queue
    return queues


def _load_files(
    disk: IDisk, queue: QueueFiles, file_bytes: int, findings: Findings, add_foreign: Callable[[str, str], None]
) -> None:
    expected = -1
    names = disk.names(queue.directory)
    for name in names:
        path = os.path.join(queue.directory, name)
        if not SEGMENT_NAME.fullmatch(name) or disk.is_directory(path) or int(name) >= 1 << 63:
            add_foreign(path, "not a consume queue file")
            continue
        size = disk.file_size(path)
        if not size and name == names[-1]:
            findings.note("unfinished file", path, 0, "made by a broker that was killed; the next start takes it up")
            continue
        if not file_bytes or size != file_bytes or int(name) % file_bytes:
            what = f"{size} bytes where a consume queue file has {file_bytes or 'none known'}"
            findings.broken("consume queue size", path, min(size, file_bytes), what, _REBUILD)
            continue
        base = int(name) // ENTRY_BYTES
        if expected >= 0 and base != expected:
            findings.broken("missing queue file", path, 0, "the file before it is missing", _REBUILD)
        expected = base + file_bytes // ENTRY_BYTES
        queue.add_file(base, path)
