"""Index check, while the log is walked: both are in the order of the log, so that one pass over each finds missing keys
and entries without a message. Index files are read from first to last entry, each checked against the slots at that
time; their layout is in `mqbroker.store.index_file`.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from contextlib import closing
from functools import lru_cache
from typing import NamedTuple

import attrs

from mqbroker.store.disk import IDisk
from mqbroker.store.index import KeyHasher
from mqbroker.store.index_file import ENTRY, ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexHeader, read_header
from mqbroker.store.logscan import Scanned
from mqbroker.store.offline.findings import Findings, when
from mqbroker.wire.names import java_hash

_SLOTS_CHUNK = 65536
_REBUILD = "`mq store repair` rebuilds the index from the log"
_RESIZE = "name the broker's settings with -c, or let `mq store repair` rebuild the index"


class IndexEntry(NamedTuple):
    """`seconds` after `begin_ms` the message was stored; -1 for the first of a file, where the number is no time."""

    physical_offset: int
    key_hash: int
    seconds: int
    begin_ms: int


@attrs.frozen
class IndexReader:
    """Reads the files in their order; faults of a file itself are added to `findings`."""

    disk: IDisk
    paths: list[str]
    slots: int
    capacity: int
    findings: Findings
    #: Whether the store was not stopped cleanly: then the newest file may have more entries than its header says.
    is_open_ended: bool
    #: Log offset -> store time (ms) of the message there, by the header of the given file and byte.
    times: dict[int, tuple[int, str, int]] = attrs.field(factory=dict)

    def entries(self) -> Generator[IndexEntry, None, None]:
        """All entries, oldest first."""
        size = HEADER_BYTES + self.slots * SLOT_BYTES + self.capacity * ENTRY_BYTES
        for path in self.paths:
            found = self.disk.file_size(path)
            if not self.slots or found != size:
                what = f"{found} bytes where an index file has {size if self.slots else 'none known'}"
                self.findings.broken("index size", path, min(found, size), what, _RESIZE)
                continue
            with closing(self.disk.open_mapped(path, size, read_only=True)) as file:
                yield from _FileReader(self, path, file.view, path == self.paths[-1]).entries()

    def broken(self, kind: str, path: str, offset: int, what: str) -> None:
        self.findings.broken(kind, path, offset, what, _REBUILD)


@attrs.frozen
class _FileReader:
    _reader: IndexReader
    _path: str
    _view: memoryview
    _is_last: bool

    @property
    def _entries_at(self) -> int:
        return HEADER_BYTES + self._reader.slots * SLOT_BYTES

    def entries(self) -> Generator[IndexEntry, None, None]:
        """Entries that are not in the order of the log are left out, and reported."""
        header = read_header(self._view)
        reader = self._reader
        if not 0 <= header.count <= reader.capacity or not 0 <= header.slots_used <= reader.slots:
            what = (
                f"the header counts {header.count} entries and {header.slots_used} slots "
                f"where {reader.capacity} and {reader.slots} are the most"
            )
            reader.broken("index header wrong", self._path, 32, what)
            return
        count = max(header.count, 1)
        newest = array("i", bytes(4 * reader.slots))
        begin_ms = header.begin_ms
        bad_entries = first_bad = slots_used = 0
        if count > 1:
            reader.times[header.begin_offset] = (begin_ms, self._path, 0)
            reader.times[header.end_offset] = (header.end_ms, self._path, 8)
        last = IndexEntry(-1, 0, -1, begin_ms)
        first: IndexEntry | None = None
        rows = ENTRY.iter_unpack(self._view[self._entries_at + ENTRY_BYTES : self._entries_at + count * ENTRY_BYTES])
        for number, (key_hash, physical_offset, seconds, older) in enumerate(rows, 1):  # number 0 is not used
            entry = IndexEntry(physical_offset, key_hash, seconds if number > 1 else -1, begin_ms)
            first = first or entry
            slot = key_hash % reader.slots
            if (
                key_hash < 0
                or not last.physical_offset <= physical_offset <= header.end_offset
                or seconds < 0
                or older != newest[slot]
            ):
                bad_entries += 1
                first_bad = first_bad or number
            if key_hash >= 0:
                if not newest[slot]:
                    slots_used += 1
                newest[slot] = number
            if last.physical_offset <= physical_offset <= header.end_offset:
                last = entry
                yield entry
        self._check_header(header, first, last, slots_used)
        self._check_slots(newest, count)
        if bad_entries:
            at = self._entries_at + first_bad * ENTRY_BYTES
            what = f"{bad_entries} entries from number {first_bad} on are not linked as they must be"
            reader.broken("index entries wrong", self._path, at, what)

    def _check_header(self, header: IndexHeader, first: IndexEntry | None, last: IndexEntry, slots_used: int) -> None:
        if first is None:
            return
        wrong = []
        if header.begin_ms > header.end_ms or header.begin_ms < 0:
            wrong.append(f"times from {header.begin_ms} to {header.end_ms}")
        if (header.begin_offset, header.end_offset) != (first.physical_offset, last.physical_offset):
            wrong.append(f"offsets from {header.begin_offset} to {header.end_offset}")
        if header.slots_used != slots_used:
            wrong.append(f"{header.slots_used} slots used where {slots_used} are")
        if wrong:
            self._reader.broken("index header wrong", self._path, 0, f"the header says {', '.join(wrong)}")

    def _check_slots(self, newest: array[int], count: int) -> None:
        """Each slot must name its newest entry. Brokers write entries before the header: the last file may be ahead."""
        bad = first_bad = 0
        newest.byteswap()
        wanted = memoryview(newest).cast("B")
        for start in range(0, len(wanted), _SLOTS_CHUNK):
            found = bytes(self._view[HEADER_BYTES + start : HEADER_BYTES + min(start + _SLOTS_CHUNK, len(wanted))])
            if found == bytes(wanted[start : start + _SLOTS_CHUNK]):
                continue
            for at in range(0, len(found), SLOT_BYTES):
                if found[at : at + SLOT_BYTES] != wanted[start + at : start + at + SLOT_BYTES]:
                    first_bad = first_bad or HEADER_BYTES + start + at
                    bad += 1
        behind = self._entries_at + count * ENTRY_BYTES
        if bad and self._reader.is_open_ended and self._is_last and any(self._view[behind : behind + ENTRY_BYTES]):
            what = f"{bad} slots name entries the header does not count yet; the next start takes them back"
            self._reader.findings.note("index ahead of its header", self._path, 32, what)
        elif bad:
            self._reader.broken("index slots wrong", self._path, first_bad, f"{bad} slots name another entry")


_TOPICS_MAX = 10_000


class IndexCheck:
    """`compare` every record, in the order of the log; then `finish`."""

    def __init__(self, reader: IndexReader, directory: str, log_first: int, findings: Findings) -> None:
        self._entries = reader.entries()
        self._times = reader.times
        self._directory = directory
        self._findings = findings
        self._hasher = KeyHasher()
        self._topic_hash = lru_cache(_TOPICS_MAX)(lambda topic: java_hash(topic.decode("latin-1") + "#"))
        self._next = next(self._entries, None)
        self.count = 0
        while self._next is not None and self._next.physical_offset < log_first:  # of messages deleted since
            self._advance()
        self._last_offset = self._last_found = -1
        self._missing = 0
        self._first_missing = self._last_missing = -1
        self._orphans = 0
        self._wrong_times = 0
        self._first_orphan = -1

    def _advance(self) -> None:
        self.count += 1
        self._next = next(self._entries, None)

    def compare(self, item: Scanned) -> None:
        """Compare one record with its entries. Hot."""
        offset = item.physical_offset
        wanted = self._hasher.of_record(self._topic_hash(item.topic), item.sys_flag, item.properties)
        entry = self._next
        while entry is not None and entry[0] < offset:
            self._pass(entry)
            self._advance()
            entry = self._next
        if offset in self._times:
            self._check_time(item)
        for key_hash in wanted:
            if entry is not None and entry[0] == offset and entry[1] == key_hash:
                self._last_found = offset
                seconds = entry[2]
                if seconds >= 0 and seconds != max(0, (item.store_timestamp_ms - entry[3]) // 1000):
                    self._wrong_times += 1
                self._next = entry = next(self._entries, None)
                self.count += 1
            else:
                self._miss(offset)
        self._last_offset = offset

    def _check_time(self, item: Scanned) -> None:
        time_ms, path, at = self._times[item.physical_offset]
        if time_ms != item.store_timestamp_ms:
            what = f"the header says {when(time_ms)} where the message says {when(item.store_timestamp_ms)}"
            self._findings.broken("index header wrong", path, at, what, _REBUILD)

    def _pass(self, entry: IndexEntry) -> None:
        # The Java broker adds the newest message again after a start.
        if entry.physical_offset != self._last_offset:
            self._orphans += 1
            if self._first_orphan < 0:
                self._first_orphan = entry.physical_offset

    def _miss(self, offset: int) -> None:
        if not self._missing:
            self._first_missing = offset
        self._missing += 1
        self._last_missing = offset

    def finish(self, log_end: int, is_open_ended: bool) -> int:
        """Report the findings. Returns the number of entries."""
        ahead = 0
        while self._next is not None:
            if self._next.physical_offset >= log_end:
                ahead += 1
            else:
                self._pass(self._next)
            self._advance()
        findings = self._findings
        if self._missing:
            what = (
                f"{self._missing} keys are not in the index, of messages from {self._first_missing} "
                f"to {self._last_missing} of the log"
            )
            if is_open_ended and self._first_missing >= self._last_found:
                findings.note("index behind", self._directory, 0, f"{what}; the next start enters them")
            else:
                findings.broken("index keys missing", self._directory, 0, what, _REBUILD)
        if self._orphans:
            what = f"{self._orphans} entries point at no message with such a key, the first at {self._first_orphan}"
            findings.broken("index entry orphaned", self._directory, 0, what, _REBUILD)
        if self._wrong_times:
            what = f"{self._wrong_times} entries say another time than their messages"
            findings.broken("index times wrong", self._directory, 0, what, _REBUILD)
        what = f"{ahead} entries point beyond the end of the log"
        if ahead and is_open_ended:
            findings.note("index ahead", self._directory, 0, what)
        elif ahead:
            findings.broken("index ahead", self._directory, 0, what, _REBUILD)
        return self.count

    def close(self) -> None:
        """Close the files."""
        self._entries.close()
