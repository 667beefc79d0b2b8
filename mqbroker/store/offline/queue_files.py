"""Consume queues and their extensions as they are on disk. Missing, misshapen or foreign files are findings, and the
rest is read.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager

import attrs

from mqbroker.store.consumequeue_entry import ENTRY, ENTRY_BYTES, entries_struct, is_blank
from mqbroker.store.consumequeue_ext import END_BYTES, ExtUnit, is_address, parse_unit, undecorate
from mqbroker.store.consumequeues import TOPIC_NAME, TRASH
from mqbroker.store.disk import IDisk
from mqbroker.store.file_cache import CachedFile, FileCache
from mqbroker.store.layout import SEGMENT_NAME
from mqbroker.store.offline.detected_layout import Layout, listed
from mqbroker.store.offline.findings import Findings
from mqbroker.wire.names import is_lmq

#: Files mapped at a time.
MAPPED_MAX = 512
_CHUNK = 256

Entry = tuple[int, int, int]
QueueKey = tuple[bytes, int]


@attrs.frozen
class _FileKind:
    """Texts of findings, for files of queues and of extensions."""

    name: str
    wrong_size: str
    missing: str
    if_unfinished: str
    advice: str
    entry_bytes: int = 1


_QUEUE_FILE = _FileKind(
    "consume queue file", "consume queue size", "missing queue file", "takes it up",
    "`mq store repair` rebuilds consume queues from the log", ENTRY_BYTES,
)  # fmt: skip
_EXT_FILE = _FileKind(
    "extension file", "extension size", "missing extension file", "deletes it",
    "`mq store repair` rebuilds it with its consume queue from the log",
)  # fmt: skip


@attrs.define
class _Files:
    """Files of `file_bytes` each in one directory; some may be missing."""

    _cache: FileCache
    _file_bytes: int
    directory: str
    #: By their start offset.
    _files: dict[int, CachedFile] = attrs.field(factory=dict, init=False)

    def _find(self, place: int) -> tuple[CachedFile | None, int]:
        """The file with the byte at `place` (None if it is missing), and the position in it."""
        at = place % self._file_bytes if self._file_bytes else place
        return self._files.get(place - at), at

    def load(self, disk: IDisk, kind: _FileKind, findings: Findings) -> bool:
        """Find the files; returns whether all have the right size, without gaps."""
        is_good, expected, file_bytes = True, -1, self._file_bytes
        names = disk.names(self.directory)
        article = "an" if kind.name[0] in "aeiou" else "a"
        for name in names:
            path = os.path.join(self.directory, name)
            if not SEGMENT_NAME.fullmatch(name) or disk.is_directory(path) or int(name) >= 1 << 63:
                findings.foreign_file(path, f"not {article} {kind.name}")
                continue
            size = disk.file_size(path)
            if not size and name == names[-1]:
                what = f"made by a broker that was killed; the next start {kind.if_unfinished}"
                findings.note("unfinished file", path, 0, what)
                continue
            base = int(name)
            if not file_bytes or size != file_bytes or base % file_bytes or size % kind.entry_bytes:
                what = f"{size} bytes where {article} {kind.name} has {file_bytes or 'none known'}"
                findings.broken(kind.wrong_size, path, min(size, file_bytes), what, kind.advice)
                is_good = False
                continue
            if expected not in (-1, base):
                findings.broken(kind.missing, path, 0, "the file before it is missing", kind.advice)
                is_good = False
            expected = base + file_bytes
            self._files[base] = self._cache.open(path, file_bytes)
        return is_good


@attrs.define
class QueueFiles(_Files):
    """The files of one queue, `name`d by topic and queue id."""

    name: str = attrs.field(kw_only=True)

    @property
    def first(self) -> int:
        """The lowest offset in the files."""
        return next(iter(self._files), 0) // ENTRY_BYTES

    @property
    def is_there(self) -> bool:
        return bool(self._files)

    def place(self, offset: int) -> tuple[str, int]:
        """File and byte of an entry, for a report."""
        file, at = self._find(offset * ENTRY_BYTES)
        return self.directory if file is None else file.path, at

    def entry(self, offset: int) -> Entry | None:
        """An entry; None if no file has it. Hot."""
        file, at = self._find(offset * ENTRY_BYTES)
        return None if file is None else ENTRY.unpack_from(file.view, at)

    def leads_to(self, offset: int, physical_offset: int, size: int) -> bool:
        """Whether an entry is that of this record."""
        entry = self.entry(offset)
        return entry is not None and entry[:2] == (physical_offset, size)

    def entries(self, start: int) -> Iterator[tuple[int, Entry]]:
        """The entries from `start` on up to the first unwritten one, with their offsets."""
        offset = start
        while True:
            file, at = self._find(offset * ENTRY_BYTES)
            if file is None:
                return
            count = min(_CHUNK, (self._file_bytes - at) // ENTRY_BYTES)
            flat = entries_struct(count).unpack_from(file.view, at)
            for i in range(0, 3 * count, 3):
                if flat[i + 1] <= 0:
                    return
                yield offset + i // 3, flat[i : i + 3]
            offset += count

    def bounds(self, log_first: int) -> tuple[int, int]:
        """Min offset, of the first message that may be in the log, which starts at `log_first`; and max offset."""
        top = self.max_offset()
        low = self._search(self.first, top, lambda entry: entry[0] < log_first or is_blank(entry[0], entry[1]))
        return low, top

    def max_offset(self) -> int:
        """The offset after the newest entry, as an opening finds it."""
        high = (max(self._files) + self._file_bytes) // ENTRY_BYTES if self._files else 0
        return self._search(self.first, high, lambda entry: entry[1] > 0)

    def _search(self, low: int, high: int, is_below: Callable[[Entry], bool]) -> int:
        def is_reached(offset: int) -> bool:
            entry = self.entry(offset)
            return entry is None or not is_below(entry)

        return low + bisect_left(range(low, high), True, key=is_reached)

    def dirt_after(self, offset: int, size: int) -> int:
        """Number of the next `size` bytes of the file, from entry `offset` on, that are not zero."""
        file, at = self._find(offset * ENTRY_BYTES)
        piece = b"" if file is None else bytes(file.view[at : at + size])
        return len(piece) - piece.count(0)


@attrs.define
class ExtFiles(_Files):
    """The files of one queue's extension."""

    def unit(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if there is no whole one."""
        file, at = self._find(undecorate(address)) if is_address(address) else (None, 0)
        return None if file is None else parse_unit(file.view, at, self._file_bytes - END_BYTES - at)


def files_to_read(disk: IDisk) -> FileCache:
    """A file cache that maps a bounded number of queue files."""
    return FileCache(disk, MAPPED_MAX, read_only=True)


@contextmanager
def queues_of(disk: IDisk, layout: Layout, file_bytes: int) -> Iterator[dict[QueueKey, QueueFiles]]:
    """The queues of a store in files of `file_bytes`; faults are not told."""
    with closing(files_to_read(disk)) as cache:
        yield load_queues(disk, layout.path("consumequeue"), cache, file_bytes, Findings())


def load_queues(
    disk: IDisk, root: str, cache: FileCache, file_bytes: int, findings: Findings
) -> dict[QueueKey, QueueFiles]:
    """Find the queues."""
    queues: dict[QueueKey, QueueFiles] = {}
    for topic in listed(disk, root):
        topic_path = os.path.join(root, topic)
        if topic == TRASH:  # queues that are being deleted
            continue
        if not disk.is_directory(topic_path):
            findings.foreign_file(topic_path, "not a directory of a topic")
            continue
        is_topic = TOPIC_NAME.fullmatch(topic) or is_lmq(topic)
        for queue_id in disk.names(topic_path):
            path = os.path.join(topic_path, queue_id)
            if not _is_number(queue_id) or not is_topic or not disk.is_directory(path):
                findings.foreign_file(path, "not a directory of a queue")
                continue
            queue = QueueFiles(cache, file_bytes, path, name=f"{topic}/{queue_id}")
            queues[topic.encode(), int(queue_id)] = queue
            queue.load(disk, _QUEUE_FILE, findings)
    return queues


def load_extensions(
    disk: IDisk, root: str, cache: FileCache, file_bytes: int, queues: Collection[QueueKey], findings: Findings
) -> tuple[dict[QueueKey, ExtFiles], list[str]]:
    """The extensions of `queues`, and the directories with which an opening refuses the store, or that it cannot
    use."""
    found: dict[QueueKey, ExtFiles] = {}
    bad: list[str] = []
    for topic in listed(disk, root):
        topic_path = os.path.join(root, topic)
        if topic == TRASH:
            continue
        if not disk.is_directory(topic_path):
            findings.note("foreign file", topic_path, 0, "not a directory of a topic; brokers pass over it")
            continue
        for queue_id in disk.names(topic_path):
            path = os.path.join(topic_path, queue_id)
            key = (topic.encode(), int(queue_id)) if _is_number(queue_id) else None
            if key is None or key not in queues:
                findings.note("extension of no queue", path, 0, "there is no consume queue of this name")
            elif not disk.is_directory(path):
                findings.foreign_file(path, "not a directory of an extension")
            else:
                ext = found[key] = ExtFiles(cache, file_bytes, path)
                if not ext.load(disk, _EXT_FILE, findings):
                    bad.append(path)
    return found, bad


def _is_number(text: str) -> bool:
    """Whether a name is a queue id."""
    return text.isascii() and text.isdecimal() and int(text) <= 0x7FFFFFFF
