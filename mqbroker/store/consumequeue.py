"""Consume queue: the entries of a topic's queue, one per message, each with its offset in the log.

Files of one size, each named by its start offset in bytes, which can all be rebuilt from the log.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import re
from collections.abc import Callable

from mqbroker.errors import StoreDamaged
from mqbroker.store.consumequeue_entry import (
    BLANK_SIZE,
    ENTRY,
    ENTRY_BYTES,
    SPAN,
    QueueEnd,
    are_zeros,
    ends_below,
    find_newest,
    is_blank,
    is_entry,
    search_entries,
    span_at,
)
from mqbroker.store.consumequeue_ext import ConsumeQueueExt
from mqbroker.store.disk import IMappedFile, read_before_touch, unreadable
from mqbroker.store.file_cache import CachedFile, FileCache
from mqbroker.wire.codes import SCHEDULE_TOPIC
from mqbroker.wire.record import RECORD_BYTES_MIN

#: Files are sparse; blocks are put behind this much at a time.
ALLOCATE_BYTES = 64 * 1024
_PAGE_BYTES = 4096
#: Entries of a queue that may stay in its file when they are truncated, to be found there when they are rebuilt.
_KEPT_MAX = 16
_MEND = "set it as it was, or let `mq store repair` rebuild them"
#: Advice for foreign files and directories.
MOVE_AWAY = "move it away (`mq store repair --move-foreign`)"
_FILE_NAME = re.compile(r"\d{20}")


class ConsumeQueue:
    """One queue of a topic.

    `next_offset` is the next that the log assigns, `max_offset` the next to be written here: between them are messages
    that wait for the dispatcher.
    """

    __slots__ = (
        "_allocated", "_base", "_cache", "_disk", "_file_bytes", "_files", "_first", "_is_clear", "_is_cut", "_kept",
        "_new_names", "_oldest", "_per_file", "_tail", "_unsynced", "begins_at", "directory", "ext", "is_removed",
        "is_schedule", "lacks_first", "last", "max_offset", "min_offset", "next_offset", "queue_id",
        "resident_from", "topic", "topic_bytes",
    )  # fmt: skip

    def __init__(
        self,
        cache: FileCache,
        directory: str,
        topic: str,
        queue_id: int,
        file_bytes: int,
        new_names: set[str],
        begins_at: int = 0,
        ext: ConsumeQueueExt | None = None,
    ) -> None:
        """`new_names` collects the directories in which a file was created, until they are synced."""
        self._cache = cache
        self._disk = cache.disk
        self._new_names = new_names
        self.directory = directory
        #: If present, entries hold addresses of its units instead of tags codes.
        self.ext = ext
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.is_schedule = topic == SCHEDULE_TOPIC
        #: Offset of its first message ever: not 0 if the queue was removed and created again.
        self.begins_at = begins_at
        self.is_removed = False
        #: Whether its first file is not that of the last clean stop; None if unknown.
        self.lacks_first: bool | None = None
        self.next_offset = self.max_offset = self.min_offset = begins_at
        #: Physical offset and size of the newest entry, if any: known without its file.
        self.last = (0, 0)
        self.resident_from = 0  # entries below may not be resident
        self._file_bytes = file_bytes
        self._per_file = file_bytes // ENTRY_BYTES
        self._files: list[CachedFile] = []
        self._first = self._base = self._allocated = 0
        self._unsynced: list[CachedFile] = []
        # Whether the files hold only zeros behind the newest entry.
        self._is_clear = True
        # Whether entries were truncated that a crash could bring back until the next sync.
        self._is_cut = False
        # As `last`, of the entry at `min_offset`; None if not read yet.
        self._oldest: tuple[int, int] | None = None
        # The newest entries, as read by `load`.
        self._tail = b""
        # Bytes in the last file from `max_offset` on that were truncated but not cleared.
        self._kept = b""

    # Writing

    def write(self, entries: bytes | bytearray) -> None:
        """Append entries. Raises OSError with none or some written, see `max_offset`."""
        start = (self.max_offset - self._base) * ENTRY_BYTES
        end = start + len(entries)
        if end > self._allocated:
            self._write_slowly(entries)
            return
        self._files[-1].store(start, entries)
        self.last = SPAN.unpack_from(entries, len(entries) - ENTRY_BYTES)
        self.max_offset += len(entries) // ENTRY_BYTES
        self.number_from(self.max_offset)

    def number_from(self, offset: int) -> None:
        """Raise the next message's offset to `offset` at least."""
        self.next_offset = max(self.next_offset, offset)

    def go_on_numbering(self) -> None:
        """Reset the next message's offset to the one after the newest entry."""
        self.next_offset = self.max_offset

    def read_end(self) -> None:
        """Read the pages of the next entry and unit, which may have been evicted since the last sync. Raises
        Unreadable."""
        at = (self.max_offset - self._base) * ENTRY_BYTES
        if self._files and 0 < at < self._file_bytes and not self._files[-1].is_left_unmapped:
            read_before_touch(self._files[-1], at - 1, 1)
        if self.ext is not None:
            self.ext.read_end()

    def _write_slowly(self, entries: bytes | bytearray) -> None:
        at = ENTRY_BYTES * self._write_kept(entries) if self._kept else 0
        while at < len(entries):
            part = bytes(entries[at : at + self._room() * ENTRY_BYTES])
            self._store(part)
            at += len(part)
        self.number_from(self.max_offset)

    def _write_kept(self, entries: bytes | bytearray) -> int:
        """Write the leading entries that the file already has, and return how many. Without mapping the file; written
        again, since after a failed sync the kernel may take their pages for clean. Raises OSError."""
        kept = self._kept
        data = bytes(entries[: len(kept) - len(kept) % ENTRY_BYTES])
        count = len(data) // ENTRY_BYTES
        if not data or not kept.startswith(data):
            self.clear_kept()
            return 0
        self._files[-1].write_at((self.max_offset - self._base) * ENTRY_BYTES, memoryview(data))
        self._kept = kept[len(data) :]
        self.last = SPAN.unpack_from(data, len(data) - ENTRY_BYTES)
        self.max_offset += count
        return count

    def clear_kept(self) -> None:
        """Zero in the files what `truncate` cut off and was not written again. Raises OSError."""
        self._tail = b""
        if not self._kept:
            return
        self._oldest = None
        if self.max_offset:
            self._files[-1].clear_from((self.max_offset - self._base) * ENTRY_BYTES)
            self._kept = b""
        else:
            self.reset()

    def _store(self, data: bytes) -> None:
        start = (self.max_offset - self._base) * ENTRY_BYTES
        self._files[-1].store(start, data)
        self.last = SPAN.unpack_from(data, len(data) - ENTRY_BYTES)
        self.max_offset += len(data) // ENTRY_BYTES

    def _room(self) -> int:
        """Number of entries that can be written at `max_offset`, at least one: creates a file or allocates blocks if
        needed."""
        if not self._files:
            self._begin(self.max_offset)
        elif self.max_offset >= self._base + self._per_file:
            self._add_file(self.max_offset // self._per_file * self._per_file)
        start = (self.max_offset - self._base) * ENTRY_BYTES
        if start + ENTRY_BYTES > self._allocated:
            if start and not self._allocated:  # an existing file: its end may be on disk only
                read_before_touch(self._files[-1], start - 1, 1)
            end = start + ENTRY_BYTES
            # Doubled each time: with very many queues most have few messages.
            step = min(ALLOCATE_BYTES, max(_PAGE_BYTES, 1 << (end - 1).bit_length()))
            want = min(self._file_bytes, -(-end // step) * step)
            self._files[-1].allocate(self._allocated, want - self._allocated)
            self._allocated = want
        return (self._allocated - start) // ENTRY_BYTES

    def _begin(self, offset: int) -> None:
        """Create the first file, starting at entry `offset`. Raises OSError with nothing done."""
        base = offset // self._per_file * self._per_file
        self._add_file(base)
        size = (offset - base) * ENTRY_BYTES
        try:
            if size:
                self._files[-1].allocate(0, size)
                self._files[-1].buffer[:size] = ENTRY.pack(0, BLANK_SIZE, 0) * (offset - base)
        except OSError:
            file = self._files.pop()
            self._unsynced.remove(file)
            file.close()
            self._disk.remove(file.path)
            raise
        self._allocated = size
        self.min_offset = self.max_offset = offset
        self._oldest = None
        self.last = 0, BLANK_SIZE

    def _add_file(self, base: int) -> None:
        if not self._files:
            self._disk.make_directories(self.directory)
            self._first = base
        self._note_new_names()
        path = os.path.join(self.directory, f"{base * ENTRY_BYTES:020d}")
        try:
            file = self._cache.create(path, self._file_bytes)
        except FileExistsError:  # the empty one that `load` ignores
            self._disk.remove(path)
            file = self._cache.create(path, self._file_bytes)
        self._files.append(file)
        self._activate()

    def _note_new_names(self) -> None:
        directory = self.directory
        for _ in range(4):  # of the queue, the topic, all topics, and the store
            self._new_names.add(directory)
            directory = directory.rpartition("/")[0]

    def _activate(self) -> None:
        # Allocating again what the file has costs nothing.
        file = self._files[-1]
        self._base = self._first + (len(self._files) - 1) * self._per_file
        self._allocated = 0
        self._unsynced.append(file)

    def skip_to(self, offset: int) -> None:
        """Fill with blank entries up to `offset`: the messages before it are gone from the log, or corrupt in it."""
        blank = ENTRY.pack(max(0, self.end_of_last()), BLANK_SIZE, 0)
        self.clear_kept()
        if not self._files:
            self._begin(offset)
        while self.max_offset < offset:
            count = min(self._room(), offset - self.max_offset)
            self._store(blank * count)

    def rewrite(self, offset: int, data: bytes) -> None:
        """Overwrite an entry between min and max. Raises OSError."""
        index, at = divmod(offset - self._first, self._per_file)
        file = self._files[index]
        file.allocate(at * ENTRY_BYTES, ENTRY_BYTES)
        file.buffer[at * ENTRY_BYTES : at * ENTRY_BYTES + ENTRY_BYTES] = data
        if file not in self._unsynced:
            self._unsynced.append(file)
        self._oldest = None

    def clear_page_behind(self) -> None:
        """Zero the page of the newest entry behind it. Raises OSError."""
        at = (self.max_offset - self._base) * ENTRY_BYTES
        size = min(-at % _PAGE_BYTES, self._file_bytes - at)
        if size:
            self._files[-1].allocate(at, size)
            self._files[-1].buffer[at : at + size] = bytes(size)

    def drain_unsynced(self) -> list[IMappedFile]:
        """The files written to since this was last called."""
        taken: list[IMappedFile] = [*self._unsynced]
        self._unsynced = self._files[-1:]
        return taken if self.ext is None else taken + self.ext.drain_unsynced()

    # Reading

    @property
    def first_offset(self) -> int:
        """Offset of the first entry, of a message or blank; the next offset if there is none."""
        return self._first if self._files else self.max_offset

    def locate(self, offset: int) -> tuple[memoryview, int, int]:
        """A file's bytes, the position of entry `offset` in them, and the number of entries up to the file's end."""
        file, at, count = self.place(offset)
        return file.view, at, count

    def place(self, offset: int) -> tuple[IMappedFile, int, int]:
        """As `locate`, with the file instead of its bytes."""
        index, at = divmod(offset - self._first, self._per_file)
        return self._files[index], at * ENTRY_BYTES, min(self._per_file - at, self.max_offset - offset)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tags code of an entry between min and max."""
        view, at, _ = self.locate(offset)
        found: tuple[int, int, int] = ENTRY.unpack_from(view, at)
        return found

    def entry_from_disk(self, offset: int) -> tuple[int, int, int]:
        """As `entry`, if it may be on disk only. May wait. Raises Unreadable."""
        file, at, _ = self.place(offset)
        read_before_touch(file, at, ENTRY_BYTES)
        return self.entry(offset)

    def span(self, offset: int) -> tuple[int, int]:
        """Physical offset and size of the message of an entry between min and max. Hot."""
        index, at = divmod(offset - self._first, self._per_file)
        found: tuple[int, int] = SPAN.unpack_from(self._files[index].view, at * ENTRY_BYTES)
        return found

    def end_of_last(self) -> int:
        """Log offset at which the newest message ends; -1 if unknown."""
        if not self._files or self.max_offset <= self._first:
            return -1
        physical_offset, size = self.last
        return physical_offset + size if size != BLANK_SIZE else physical_offset or -1

    def search(self, is_below: Callable[[int, int], bool], low: int, high: int, *, lost_are_below: bool = False) -> int:
        """Binary search for the first offset in low..high whose entry (physical offset, size) is not below; lost
        entries are ignored. Raises Unreadable."""
        return search_entries(self.entry_from_disk, self.last[0], is_below, low, high, lost_are_below)

    # Loading

    def load(self, is_clean: bool = True, is_intact: bool = True, end: QueueEnd | None = None) -> bool:
        """Open the existing files and find the end; returns False if some had to be left out.

        `is_intact`: the store was stopped cleanly, so nothing is missing. `end`: as noted at a clean stop, valid if the
        files are the same. Raises StoreDamaged on foreign or misshapen files. A missing file, or after a crash one
        without its size, ends the queue, and the files after it are deleted.
        """
        is_whole = True
        names = self._disk.names(self.directory)
        for name in names:
            path = f"{self.directory}/{name}"
            if not _FILE_NAME.fullmatch(name) or int(name) % self._file_bytes:
                raise StoreDamaged(path, 0, f"not a consume queue file of {self._file_bytes} bytes: {MOVE_AWAY}")
            base = int(name) // ENTRY_BYTES
            size = self._disk.file_size(path)
            follows = not self._files or base == self._first + len(self._files) * self._per_file
            if not (is_whole and follows and (size or is_clean)):
                is_whole = False
                self._remove(path)
                continue
            if not size and name == names[-1]:  # created by a process that was killed before it set the size
                break
            if size != self._file_bytes:
                why = f"{size} bytes; mappedFileSizeConsumeQueue is {self._file_bytes}: {_MEND}"
                raise StoreDamaged(path, size, why)
            if not self._files:
                self._first = base
            self._files.append(self._cache.open(path, size))
        if self._files:
            if end is not None and self._is_as_noted(end):
                self._cut_at(end.max_offset)
                self.min_offset, self.last, self._oldest = end.min_offset, end.last, end.oldest
                self.lacks_first = False
            else:
                self.lacks_first = None if end is None else end.first < self._first
                self._find_end(is_intact)
            self.resident_from = self.max_offset
        if self.ext is not None:
            self.ext.load()
        return is_whole

    def _is_as_noted(self, end: QueueEnd) -> bool:
        limit = self._first + len(self._files) * self._per_file
        is_possible = end.first <= end.min_offset <= end.max_offset <= limit
        files = self._files
        return is_possible and end[:3] == (self._first, len(files), self._disk.modified_ms(files[-1].path))

    def noted_end(self) -> QueueEnd | None:
        """The note for the next `load`; None if there are no files, or one cannot be read."""
        if not self._files:
            return None
        try:
            oldest = self.oldest() if self.min_offset < self.max_offset else (0, 0)
            modified_ms = self._disk.modified_ms(self._files[-1].path)
        except OSError:
            return None
        return QueueEnd(self._first, len(self._files), modified_ms, self.min_offset, self.max_offset, self.last, oldest)

    def _find_end(self, is_intact: bool) -> None:
        """Find the newest entry. Only the beginning of a file with few entries is read, and none is mapped: mapped
        holes of a sparse file take memory too."""
        number = len(self._files) - 1
        while number and not is_entry(self._read(number, 0, 1)):
            number -= 1
        low, count, data, oldest = find_newest(functools.partial(self._read, number), self._per_file)
        self._is_clear = is_intact and are_zeros(data[count * ENTRY_BYTES :])
        self._tail = data[max(0, count - _KEPT_MAX) * ENTRY_BYTES : count * ENTRY_BYTES]
        self._cut_at(self._first + number * self._per_file + low + count)
        if count:
            self.last = span_at(data, count - 1)
        elif not self.is_empty:
            self.last = span_at(self._read(number, low - 1, 1), 0)
        self.min_offset = self._first
        self._oldest = oldest if not number and not self.is_empty else None

    def _read(self, number: int, at: int, count: int) -> bytes:
        """Up to `count` entries of a file, from its entry `at` on."""
        path = self._files[number].path
        with unreadable(path, at * ENTRY_BYTES):
            return self._disk.read_part(path, at * ENTRY_BYTES, count * ENTRY_BYTES)

    @property
    def is_empty(self) -> bool:
        """Whether its files hold no entry."""
        return self.max_offset <= self.first_offset

    def truncate(self, physical_end: int) -> None:
        """Truncate the entries of messages at or above `physical_end` in the log.

        A few of the newest stay in the file until `clear_kept`, if nothing else can be behind them: usually the same
        are written again."""
        if self._kept:
            self.clear_kept()
        if not self._files:
            return
        before = self.max_offset
        is_below = ends_below(physical_end)
        if before > self._first and not is_below(*self.last):
            if self._keep(is_below):
                return
            self._cut_at(self.search(is_below, self._first, before, lost_are_below=True))
            self.last = self.span(self.max_offset - 1) if self.max_offset > self._first else (0, 0)
            self._is_clear = False
        self._is_cut |= self.max_offset < before
        if not self.max_offset:
            self.reset()
            return
        at = (self.max_offset - self._base) * ENTRY_BYTES
        if at < self._file_bytes and not self._is_clear:
            self._files[-1].clear_from(at)
        self._is_clear = True
        self._note_doubtful_name()

    def _note_doubtful_name(self) -> None:
        # No message below is in the last file: a killed process may not have synced its name.
        if self.max_offset <= self._base or self.last[1] == BLANK_SIZE:
            self._note_new_names()

    def note_synced_cut(self) -> bool:
        """Whether entries were truncated since this was last called, which a crash could bring back until a sync."""
        is_cut, self._is_cut = self._is_cut, False
        return is_cut

    def _keep(self, is_below: Callable[[int, int], bool]) -> bool:
        """Truncate the queue at the first entry that is not below, and leave the rest in the file; False if they are
        too many, or what follows them is unknown."""
        tail, self._tail = self._tail, b""
        spans: list[tuple[int, int]] = [span_at(tail, at) for at in range(len(tail) // ENTRY_BYTES)]
        start = self.max_offset - len(spans)
        are_known = all(size >= RECORD_BYTES_MIN and 0 <= offset <= self.last[0] for offset, size in spans)
        if not spans or not are_known or not self._is_clear or self.ext is not None:
            return False
        count = bisect.bisect_left(spans, True, key=lambda span: not is_below(*span))
        if not count and start:  # some of those before may be removed too
            return False
        self._cut_at(start + count)
        self.last = spans[count - 1] if count else (0, 0)
        self._kept = tail[count * ENTRY_BYTES :]
        self._is_cut = True
        self._note_doubtful_name()
        return True

    def _cut_at(self, offset: int) -> None:
        while len(self._files) > 1 and offset <= self._first + (len(self._files) - 1) * self._per_file:
            gone = self._files.pop()
            gone.close()
            self._remove(gone.path)
        self._unsynced = []
        self._activate()
        self.max_offset = offset

    def correct_min(self, physical_min: int) -> list[str]:
        """Move `min_offset` to the first message at or above `physical_min`.

        Returns the paths of extension files that no entry needs any more, to be deleted in this order."""
        if not self._files:
            return []
        is_gone: Callable[[int, int], bool] = lambda offset, size: offset < physical_min or is_blank(offset, size)  # noqa: E731
        self._skip_former()  # whatever happened to the entries before
        if self.min_offset < self.max_offset and is_gone(*self.oldest()):
            self.min_offset = self.search(is_gone, self._first, self.max_offset)
            self._oldest = None
        if self.ext is not None and self.min_offset < self.max_offset:
            return self.ext.truncate_by_min(self.entry_from_disk(self.min_offset)[2])
        return []

    def begin_at(self, offset: int) -> None:
        """Hide the entries below `offset`, of messages from before the queue was removed and created again."""
        self.begins_at = offset
        self._skip_former()

    def _skip_former(self) -> None:
        if self.min_offset < self.begins_at <= self.max_offset:
            self.min_offset = self.begins_at
            self._oldest = None

    def oldest(self) -> tuple[int, int]:
        """Physical offset and size of the entry at `min_offset`, which must exist. Raises OSError."""
        if self._oldest is None:
            number, at = divmod(self.min_offset - self._first, self._per_file)
            self._oldest = span_at(self._read(number, at, 1), 0)
        return self._oldest

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    @property
    def has_old_files(self) -> bool:
        """Whether all entries of the first file, which is not the last, are below `min_offset`."""
        return len(self._files) > 1 and self.min_offset >= self._first + self._per_file

    def removable_files(self) -> list[IMappedFile]:
        """Files whose entries are all below `min_offset`, oldest first; neither the last nor those not yet synced."""
        count = (self.min_offset - self._first) // self._per_file
        old: list[IMappedFile] = [*self._files[: max(0, min(count, len(self._files) - 1))]]
        return list(itertools.takewhile(lambda file: file not in self._unsynced, old))

    def drop_first_file(self) -> IMappedFile:
        """Drop the first file; slices that readers hold stay valid. The caller closes it."""
        assert self.has_old_files
        self._first += self._per_file
        return self._files.pop(0)

    def assume_begin(self, offset: int) -> None:
        """Set the offset of the first message ever; the files are unchanged."""
        self.begins_at = offset

    def restart_at(self, offset: int) -> None:
        """Delete all files, and start at this offset. Raises OSError."""
        self.begins_at = self.next_offset = offset
        self.reset()

    def note_read(self, end: int) -> None:
        """Note that a reader is far behind the newest messages: pages of entries below `end` may have been evicted."""
        self.resident_from = max(self.resident_from, end)

    def reset(self) -> None:
        """Delete all files: the queue is about to be rebuilt."""
        for file in self._files:
            file.close()
            self._remove(file.path)
        self._forget_files()
        self.max_offset = self.min_offset = self.begins_at
        self.resident_from = 0
        if self.ext is not None:
            self.ext.reset()

    def detach_files(self) -> list[IMappedFile]:
        """Detach all files: the queue is empty from now on. Returns the files, which the caller closes."""
        self.is_removed = True
        files = self._forget_files()
        self.min_offset = self.max_offset = self.next_offset
        return files if self.ext is None else files + self.ext.detach_files()

    def _forget_files(self) -> list[IMappedFile]:
        files: list[IMappedFile] = [*self._files]
        self._files = []
        self._unsynced = []
        self._first = self._base = self._allocated = 0
        self._oldest = None
        self._tail = self._kept = b""
        return files

    def _remove(self, path: str) -> None:
        self._disk.remove(path)
        self._new_names.add(self.directory)

    def close(self) -> None:
        for file in self._files:
            file.close()
        if self.ext is not None:
            self.ext.close()
