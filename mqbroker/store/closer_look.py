"""Gets that take a closer look: filtered, far behind, of messages from before the start, or with something amiss.

One entry of the consume queue after another, by the rules of DefaultMessageStore.getMessage of 4.9.7: what counts as
full, how far a get looks, and where the next one goes on. Messages that were removed, are damaged or are none are
passed over. Must never wait for the disk: it says what it misses.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from struct import Struct

import attrs

from mqbroker.config import StoreSettings
from mqbroker.store.cold import Stretch
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ENTRY_BYTES, ConsumeQueue, entries_struct
from mqbroker.store.consumequeue_ext import ADDRESS_MAX
from mqbroker.store.damages import Damages
from mqbroker.store.disk import IMappedFile
from mqbroker.store.outcomes import Get, GetResult, GetStatus, outside
from mqbroker.store.verifying import Verifier
from mqbroker.wire.record import RECORD_BYTES_MIN

_ENTRY = Struct(">qiq")
#: Bytes of entries one get looks at, unless more messages are asked for: it matters where most are filtered out.
_WINDOW_BYTES = 16_000
#: Entries that are asked for, whether they are in memory, in one go.
_CHUNK = 64
#: The same for the log, in bytes.
_BLOCK_BYTES = 64 * 1024
_MAX_INT = 0x7FFFFFFF


@attrs.define
class _Look:
    """How far one get is. `missing`: what is not in memory; None where that does not matter."""

    get: Get
    missing: list[Stretch] | None
    status: GetStatus = GetStatus.NO_MATCHED_MESSAGE
    seen: int = 0
    newest: int = 0
    skip_below: int = -1
    is_full: bool = False
    total: int = 0
    count: int = 0
    runs: list[tuple[int, int]] = attrs.field(factory=list)
    in_memory: tuple[IMappedFile | None, int, int] = (None, 0, 0)


class CloserLook:
    """Looks closer.

    :param near_bytes: messages further behind than this count as on the disk.
    :param touched: is told of each place of a file that is about to be read.
    """

    def __init__(
        self,
        log: CommitLog,
        damages: Damages,
        verifier: Verifier,
        settings: StoreSettings,
        near_bytes: int,
        touched: Callable[[IMappedFile, int], None],
    ) -> None:
        self._log = log
        self._damages = damages
        self._verifier = verifier
        self._near_bytes = near_bytes
        self._touched = touched
        self._memory_limits = (
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
        )
        self._disk_limits = (
            settings.max_transfer_count_on_message_in_disk,
            settings.max_transfer_bytes_on_message_in_disk,
        )

    def get(self, get: Get, missing: list[Stretch] | None) -> GetResult:
        """The answer. Where something was added to `missing` it means nothing, and is to be asked for again when that
        is in memory."""
        queue, offset = get.queue, get.offset
        if not queue.min_offset <= offset < queue.max_offset:
            return outside(offset, queue.min_offset, queue.max_offset)
        look = _Look(get, missing)
        _, _, available = queue.place(offset)
        end = offset + min(available, _window(get.max_count))
        for start in range(offset, end, _CHUNK):
            entries = self._entries(look, start, min(_CHUNK, end - start))
            if entries is None:
                break
            if look.count or not self._pass_over(look, start, entries):
                self._look_at(look, start, entries)
            if look.is_full:
                break
        if look.newest and self._is_far(look.newest):
            queue.asked_below = max(queue.asked_below, offset + look.seen)
        return self._result(look)

    def _entries(self, look: _Look, start: int, count: int) -> memoryview | None:
        """Entries from `start` on; None where they are not in memory, and the get ends or waits."""
        file, at, _ = look.get.queue.place(start)
        size = count * ENTRY_BYTES
        if look.missing is not None and not self._has(look, file, at, size):
            if not look.count:
                look.missing.append(Stretch(file, at, size))
            return None
        return file.view[at : at + size]

    def _pass_over(self, look: _Look, start: int, entries: memoryview) -> bool:
        """Pass over entries none of which is wanted; False, and nothing done, where it is not so."""
        tags_codes = look.get.tags_codes
        if tags_codes is None or look.skip_below >= 0:
            return False
        flat = entries_struct(len(entries) // ENTRY_BYTES).unpack(entries)
        if min(flat[2::3]) <= ADDRESS_MAX or not tags_codes.isdisjoint(flat[2::3]):
            return False
        look.seen = start - look.get.offset + len(flat) // 3
        look.newest = flat[-3]
        look.status = GetStatus.NO_MATCHED_MESSAGE
        return True

    def _look_at(self, look: _Look, start: int, entries: memoryview) -> None:
        get = look.get
        tags_codes = get.tags_codes
        seen = start - get.offset
        for physical_offset, size, code in _ENTRY.iter_unpack(entries):
            look.newest = physical_offset
            if physical_offset < look.skip_below:
                seen += 1
                continue
            if look.count and self._would_be_too_much(look, physical_offset, size):
                look.is_full = True
                break
            seen += 1
            if tags_codes is not None and code not in tags_codes and not _is_wanted(get.queue, code, tags_codes):
                if not look.count:
                    look.status = GetStatus.NO_MATCHED_MESSAGE
            elif self._is_there(look, get.offset + seen - 1, physical_offset, size):
                self._take(look, physical_offset, size)
            else:
                if not look.count:
                    look.status = GetStatus.MESSAGE_WAS_REMOVING
                if 0 <= physical_offset < self._log.min_offset:  # so are the others of its segment
                    segment_bytes = self._log.segment_bytes
                    look.skip_below = physical_offset - physical_offset % segment_bytes + segment_bytes
        look.seen = seen

    def _would_be_too_much(self, look: _Look, physical_offset: int, size: int) -> bool:
        get = look.get
        if look.count >= get.max_count:
            return True
        count_limit, bytes_limit = self._disk_limits if self._is_far(physical_offset) else self._memory_limits
        if get.max_bytes is not None:
            bytes_limit = get.max_bytes
        # The Java broker's sum is of 32 bits: a size that takes it over them is none of a message, and is passed over.
        return bytes_limit < look.total + size <= _MAX_INT or look.count >= count_limit

    def _is_there(self, look: _Look, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Whether the message is in the log, whole; taken for granted as long as it is not in memory."""
        log = self._log
        if size < RECORD_BYTES_MIN or log.read(physical_offset, size) is None:
            return False
        is_own = physical_offset >= self._damages.sure_from
        if not is_own and self._damages.covers(physical_offset, physical_offset + size):
            return False
        if look.missing is not None and (not is_own or self._is_far(physical_offset)):
            file, at = log.place(physical_offset)
            if not self._has(look, file, at, size):
                look.missing.append(Stretch(file, at, size))
                return True
        return is_own or self._verifier.is_good(look.get.queue, queue_offset, physical_offset, size)

    def _has(self, look: _Look, file: IMappedFile, at: int, size: int) -> bool:
        """Whether bytes are in memory; asked for some more of them than these, where there will be a next time."""
        known, start, end = look.in_memory
        if known is file and start <= at and at + size <= end:
            return True
        start = at - at % _BLOCK_BYTES
        end = min(max(start + _BLOCK_BYTES, at + size), file.size)
        if file.is_resident(start, end - start):
            look.in_memory = file, start, end
        elif not file.is_resident(at, size):
            return False
        self._touched(file, at)
        return True

    def _take(self, look: _Look, physical_offset: int, size: int) -> None:
        runs = look.runs
        end = physical_offset + size
        if runs and runs[-1][1] == physical_offset and physical_offset % self._log.segment_bytes:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((physical_offset, end))
        look.total += size
        look.count += 1
        look.status = GetStatus.FOUND

    def _is_far(self, physical_offset: int) -> bool:
        return self._log.end - physical_offset > self._near_bytes

    def _result(self, look: _Look) -> GetResult:
        pieces = []
        for start, end in look.runs:
            piece = self._log.read(start, end - start)
            assert piece is not None
            pieces.append(piece)
        queue, offset = look.get.queue, look.get.offset
        return GetResult(
            look.status,
            offset + look.seen,
            queue.min_offset,
            queue.max_offset,
            pieces,
            look.count,
            self._is_far(look.newest),
        )


def _is_wanted(queue: ConsumeQueue, code: int, tags_codes: AbstractSet[int]) -> bool:
    """Whether a message is wanted whose entry does not have a wanted tags code but may have the address of its unit.

    Without its unit nobody knows: the consumer looks at the tag itself."""
    if code > ADDRESS_MAX:
        return False
    tags_code = queue.tags_code(code)
    return tags_code is None or tags_code in tags_codes


def _window(max_count: int) -> int:
    """How many entries a get looks at; the Java broker reckons it in 32 bits."""
    wanted_bytes = (max_count * ENTRY_BYTES + _MAX_INT + 1) % (1 << 32) - _MAX_INT - 1
    return -(-max(_WINDOW_BYTES, wanted_bytes) // ENTRY_BYTES)
