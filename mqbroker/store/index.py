"""The index: maps the keys of messages to their log offsets. A sequence of files that can be rebuilt from the log.

A key is hashed as "topic#key". Never reads the log.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence

from mqbroker.kernel import compiled
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile, IndexRow
from mqbroker.store.logscan import Row, Run, Scanned, scan_at
from mqbroker.store.page_loader import Pages
from mqbroker.wire.bounded_cache import BoundedCache
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.names import java_hash
from mqbroker.wire.properties import find_property

_MAX_INT = 0x7FFFFFFF
_UNIQ_KEY = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"

#: Keys differ in their last characters (unique keys: the counter); the hash of the prefix is cached.
_TAIL = 4
_TAIL_FACTOR = 31**_TAIL
_PAIR_FACTOR = 31**2
_HEADS_BYTES_MAX = 4 * 1024 * 1024
#: Entries for which an index file gets blocks at a time.
INDEXED_AT_ONCE = 10_000
#: More keys than a message has: of 32 kB of properties.
RECORD_KEYS_MAX = 16_400
#: Bytes of properties whose keys are indexed without a look at the time, where the compiled module does not do it: a
#: few ms where there is a key in each two.
PROPERTIES_AT_ONCE = 4096
_PAIRS_MAX = 4096
_FILE_NAME = re.compile(r"\d{17}")


def never() -> bool:
    """That time is not over."""
    return False


@functools.lru_cache(1024)
def topic_hash(topic: bytes) -> int:
    """The hash of "topic#", with which those of its keys begin."""
    return java_hash(topic.decode("utf-8", "replace") + "#")


def positive_hash(value: int) -> int:
    """The absolute value of a 32-bit hash, as the index stores it; 0 for the one that has none."""
    value &= 0xFFFFFFFF
    return value if value <= _MAX_INT else -value & _MAX_INT


class KeyHasher:
    """Java's hash of "topic#key", from the hash of "topic#" and the key's bytes."""

    def __init__(self) -> None:
        #: First part of an ASCII key -> factor for the topic's hash, and summand.
        self.heads: BoundedCache[bytes, tuple[int, int]] = BoundedCache(_HEADS_BYTES_MAX)
        #: Two characters of the ASCII keys that were hashed -> their hash.
        self.pairs: dict[bytes, int] = {}

    def hash(self, topic_hash: int, key: bytes) -> int:
        if len(key) < _TAIL or not key.isascii():
            text = key.decode("utf-8", "replace")
            units = len(text.encode("utf-16-be", "surrogatepass")) // 2
            return positive_hash(topic_hash * pow(31, units, 1 << 32) + java_hash(text))
        factor, add = self.heads.get(key[:-4]) or self._keep(key[:-4])
        tail = self._pair(key[-4:-2]) * _PAIR_FACTOR + self._pair(key[-2:])
        return positive_hash(topic_hash * factor + add + tail)

    def _keep(self, head: bytes) -> tuple[int, int]:
        factor = pow(31, len(head) + _TAIL, 1 << 32)
        add = java_hash(head.decode("ascii")) * _TAIL_FACTOR & 0xFFFFFFFF
        self.heads.keep(head, (factor, add), len(head))
        return factor, add

    def of_record(self, topic_hash: int, sys_flag: int, properties: bytes) -> list[int]:
        """The hashes of a record's keys, in the order in which they are entered."""
        if sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
            return []
        return [self.hash(topic_hash, key) for key in record_keys(properties) if key]

    def _pair(self, pair: bytes) -> int:
        value = 31 * pair[0] + pair[1]
        if len(self.pairs) < _PAIRS_MAX:
            self.pairs[pair] = value
        return value


def record_keys(properties: bytes) -> list[bytes]:
    """A message's unique key, and each of its keys; some may be empty."""
    return [find_property(properties, _UNIQ_KEY), *find_property(properties, _KEYS).split(b" ")]


class Index:
    """The index files; the log is indexed below `offset`.

    :param file_name: names a new file: the wall clock plus the argument (ms) as yyyyMMddHHmmssSSS.
    """

    def __init__(self, disk: IDisk, directory: str, slots: int, capacity: int, file_name: Callable[[int], str]) -> None:
        self._disk = disk
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._file_bytes = HEADER_BYTES + slots * SLOT_BYTES + capacity * ENTRY_BYTES
        self._file_name = file_name
        self._hasher = KeyHasher()
        self._unsynced: list[IndexFile] = []
        self.files: list[IndexFile] = []
        self.offset = 0
        #: A message and how many of its keys are in: the files may end between its keys.
        self.resumed = (-1, 0)
        self._has_new_name = False

    def load(self) -> None:
        """Open the existing files, up to one of another size. Foreign files are ignored."""
        for name in self._disk.names(self._directory):
            path = os.path.join(self._directory, name)
            if not _FILE_NAME.fullmatch(name):  # not one of ours
                continue
            if self._disk.file_size(path) != self._file_bytes:
                break
            file = self._disk.open_mapped(path, self._file_bytes)
            try:
                self.files.append(IndexFile(file, self._slots, self._capacity))
            except OSError:
                file.close()
                raise
        self._remove_strays()

    def _remove_strays(self) -> None:
        """Delete files that were created and never written to, such as those whose mapping failed; only the last,
        behind a full one, can be used."""
        kept: list[IndexFile] = []
        for file in self.files:
            is_next = file is self.files[-1] and (not kept or kept[-1].is_full)
            if is_next or not file.is_unused:
                kept.append(file)
            else:
                file.file.close()
                self._disk.remove(file.file.path)
                self._has_new_name = True
        self.files = kept

    def keep_files(self, is_good: Callable[[IndexFile], bool]) -> None:
        """Delete the first bad file and all after it, used or not; they are rebuilt."""
        kept: list[IndexFile] = []
        for file in self.files:
            # A file that others follow had entries.
            if not is_good(file) or not (file.has_entries or file is self.files[-1]):
                break
            kept.append(file)
        for file in self.files[len(kept) :]:
            file.file.close()
        self.files = kept
        names = {os.path.basename(file.file.path) for file in kept}
        for name in self._disk.names(self._directory):
            if _FILE_NAME.fullmatch(name) and name not in names:
                self._disk.remove(os.path.join(self._directory, name))
                self._has_new_name = True

    def add(self, run: Run, is_over: Callable[[], bool] = never) -> bool:
        """Index the keys of a run's records above `offset`, up to which all are indexed, some at least and until
        `is_over`; returns whether that were all. Raises OSError; see `offset` for how far it came."""
        self.offset = max(self.offset, run.start)
        while self.offset < run.end:
            if compiled is None or run.data is None:
                self._add_some([row for row in run.rows if row[3] >= self.offset], run.end)
            else:
                self._add_plain(run, run.data)
            if is_over():
                break
        return self.offset >= run.end

    def _add_some(self, rows: Sequence[Row], end: int) -> None:
        """Index the first rows, as many as take little time; the last of all ends at `end`."""
        count, size = 0, 0
        while count < len(rows) and size < PROPERTIES_AT_ONCE:
            size += len(rows[count][7])
            count += 1
        self._add_rows(rows[:count], rows[count][3] if count < len(rows) else end)

    def _add_plain(self, run: Run, data: bytes) -> None:
        """Index some of the next records of a run: those that are plain, or else one."""
        start = self.offset
        for entries in (min(INDEXED_AT_ONCE, 2 * run.count), RECORD_KEYS_MAX):
            self._add_compiled(run, data, entries)
            if self.offset > start:
                return
        row = scan_at(memoryview(data), start - run.start, start)
        assert isinstance(row, Scanned)
        self._add_rows([row], row.physical_offset + row.size)

    def _add_compiled(self, run: Run, data: bytes, entries: int) -> None:
        """Index the records of a run that are plain, of about `entries` keys, up to the first that is not."""
        assert compiled is not None
        file = self.files[-1] if self.files else None
        if file is None or not file.has_entries:
            return
        at, number = self.offset - run.start, file.make_room(entries)
        at, count, slots_used, last, last_ms = compiled.index_keys(
            data, at, run.end - run.start, run.start, file.file.buffer, self._slots, file.count, number,
            file.begin_ms, file.slots_used, self.resumed[0],
        )  # fmt: skip
        file.count, file.slots_used = count, slots_used
        if last >= 0:
            file.end_offset, file.end_ms = last, last_ms
        self.offset = run.start + at

    def _add_rows(self, records: Sequence[Row], end: int) -> None:
        rows: list[IndexRow] = []
        for topic, _, _, physical_offset, _, sys_flag, timestamp_ms, properties in records:
            rows += self._rows_of(topic, sys_flag, properties, physical_offset, timestamp_ms)
        self.put(rows, end)

    def _rows_of(
        self, topic: bytes, sys_flag: int, properties: bytes, physical_offset: int, timestamp_ms: int
    ) -> list[IndexRow]:
        """The rows of one message: its unique key and each of its keys."""
        hashes = self._hasher.of_record(topic_hash(topic), sys_flag, properties)
        rows = [(key_hash, physical_offset, timestamp_ms) for key_hash in hashes]
        if physical_offset == self.resumed[0]:
            del rows[: self.resumed[1]]
        return rows

    def put(self, rows: Sequence[IndexRow], end: int) -> None:
        """Add rows, with which the log is indexed below `end`. Raises OSError; see `add`."""
        done = 0
        try:
            while done < len(rows):
                if not self.files or self.files[-1].is_full:
                    self._add_file()
                done = self.files[-1].put_rows(rows, done)
        except OSError:
            self.offset = offset = rows[done][1]
            already = self.resumed[1] if self.resumed[0] == offset else 0
            self.resumed = (offset, already + sum(row[1] == offset for row in rows[:done]))
            raise
        self.offset = end

    def _add_file(self) -> None:
        self._disk.make_directories(self._directory)
        if self.files:  # before there is another: only the last file is looked at for entries above its header
            self.files[-1].write_header()
        ahead_ms = 0
        while True:
            path = self._path_of_next(ahead_ms)
            if not self._disk.exists(path):
                break
            ahead_ms += 1
        mapped = self._disk.create_mapped(path, self._file_bytes)
        try:
            file = IndexFile(mapped, self._slots, self._capacity)
        except OSError:
            mapped.close()
            self._disk.remove(path)
            raise
        if self.files:
            file.begin_after(self.files[-1])
        self.files.append(file)
        self._unsynced.append(file)
        self._has_new_name = True

    def _path_of_next(self, ahead_ms: int) -> str:
        name = self._file_name(ahead_ms)
        if self.files:  # the order of names is that of files, also when the clock went back
            newest = int(os.path.basename(self.files[-1].file.path))
            name = max(name, f"{newest + 1 + ahead_ms:017d}")
        return os.path.join(self._directory, name)

    def read(self) -> None:
        """Read what new entries touch of the last file into memory. Raises Unreadable."""
        if self.files:
            self.files[-1].read()

    def write_header(self) -> None:
        if self.files:
            self.files[-1].write_header()

    def drain_unsynced(self) -> list[IMappedFile]:
        """The files written to since this was last called."""
        taken = [file.file for file in self._unsynced]
        self._unsynced = self.files[-1:]
        return taken

    def drain_new_names(self) -> list[str]:
        """The directories in which files were created since this was last called."""
        taken = [os.path.dirname(self._directory), self._directory] if self._has_new_name else []
        self._has_new_name = False
        return taken

    def oldest_below(self, physical_min: int) -> IndexFile | None:
        """The first file, if all its messages are below `physical_min` and it is not the last."""
        first = self.files[0] if len(self.files) > 1 else None
        return first if first is not None and first.end_offset < physical_min else None

    def is_synced(self, file: IndexFile) -> bool:
        return file not in self._unsynced

    def drop_first_file(self) -> None:
        """Drop the first file. The caller closes it."""
        assert len(self.files) > 1
        self.files.pop(0).forget()

    def resume(self, is_clean: bool) -> None:
        """Continue after the newest entry of the existing files."""
        last = self.files[-1]
        last.read()
        if not is_clean:
            last.roll_back()
        if last.count <= 1 and len(self.files) > 1:  # killed before it had a header: nothing is in it yet
            last.begin_after(self.files[-2])
        self._unsynced = [last]
        if not is_clean:  # any of it may be unsynced
            self._unsynced = list(self.files)
            self._has_new_name = True
        self.offset = last.end_offset
        self.resumed = (last.end_offset, self._entries_of(last.end_offset))

    def _entries_of(self, message_offset: int) -> int:
        """How many entries the newest message has: a file may have become full between two of its keys."""
        entries = 0
        for file in reversed(self.files):
            found = file.newest_entries(message_offset)
            entries += found
            if found < file.count - 1:
                break
        return entries

    @property
    def end_ms(self) -> int:
        return self.files[-1].end_ms if self.files else 0

    @property
    def end_offset(self) -> int:
        """Log offset of the newest indexed message."""
        return self.files[-1].end_offset if self.files else 0

    async def find(self, topic: str, key: str, begin_ms: int, end_ms: int, count: int, pages: Pages) -> list[int]:
        """Physical offsets of messages that may have this key, newest first: hashes can collide."""
        key_hash = self._hasher.hash(java_hash(topic + "#"), key.encode())
        found: list[int] = []
        for file in reversed(list(self.files)):
            if not file.has_entries:
                continue
            if file.overlaps(begin_ms, end_ms):
                found += await file.find(key_hash, begin_ms, end_ms, count - len(found), pages)
            if len(found) >= count or file.begin_ms < begin_ms:
                break
        return found

    def close(self) -> None:
        for file in self.files:
            file.forget()
            file.file.close()
