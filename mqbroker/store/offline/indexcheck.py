"""Comparing the log with the index while the log is walked: both are in the order of the log, so that one pass over
each, side by side, tells which keys are missing and which entries point at nothing. Must never know of files.
"""

from __future__ import annotations

from mqbroker.store.index import KeyHasher
from mqbroker.store.logscan import Scanned
from mqbroker.store.offline.findings import Findings
from mqbroker.store.offline.indexread import IndexEntry, IndexReader
from mqbroker.store.offline.smallfiles import when
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.javahash import java_hash
from mqbroker.wire.properties import find_property

_UNIQ_KEY = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"
_TOPICS_MAX = 10_000
_REBUILD = "`mq store repair` builds the index anew from the log"


class RecordKeys:
    """The hashes the index has of a record's keys."""

    def __init__(self) -> None:
        self._hasher = KeyHasher()
        self._topics: dict[bytes, int] = {}

    def hashes(self, item: Scanned) -> list[int]:
        """In the order they are entered. Hot."""
        properties = item.properties
        if item.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
            return []
        try:
            topic_hash = self._topics[item.topic]
        except KeyError:
            topic_hash = self._topic_hash(item.topic)
        key = find_property(properties, _UNIQ_KEY)
        found = [self._hasher.hash(topic_hash, key)] if key else []
        if _KEYS in properties:
            keys = find_property(properties, _KEYS).split(b" ")
            found += [self._hasher.hash(topic_hash, key) for key in keys if key]
        return found

    def _topic_hash(self, topic: bytes) -> int:
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        value = self._topics[topic] = java_hash(topic.decode("latin-1") + "#")
        return value

    def hash(self, topic: str, key: str) -> int:
        return self._hasher.hash(java_hash(topic + "#"), key.encode("utf-8", "replace"))


class IndexCheck:
    """`take` every record, in the order of the log; then `finish`."""

    def __init__(self, reader: IndexReader, directory: str, log_first: int, findings: Findings) -> None:
        self._entries = reader.entries()
        self._times = reader.times
        self._directory = directory
        self._findings = findings
        self._keys = RecordKeys()
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

    def take(self, item: Scanned) -> None:
        """Compare one record with its entries. Hot."""
        offset = item.physical_offset
        wanted = self._keys.hashes(item)
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
        # The Java broker enters the newest message again after a start.
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
        """Tell what was found. Returns how many entries there are."""
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
        if ahead and is_open_ended:
            findings.note("index ahead", self._directory, 0, f"{ahead} entries point beyond the end of the log")
        elif ahead:
            findings.broken(
                "index ahead", self._directory, 0, f"{ahead} entries point beyond the end of the log", _REBUILD
            )
        return self.count

    def close(self) -> None:
        """Let go of the files."""
        self._entries.close()
