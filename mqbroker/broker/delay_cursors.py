"""The cursors of a delay level: each delivers a part of the level's queue, in the order of the queue.

Messages become due in that order, except where `messageDelayLevel` was changed before a start, or where the clock of a
Java broker was set back: there the queue is split, so that no message waits for one that is due later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf

import attrs
import orjson
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from mqbroker.store.consumequeue_ext import is_address
from mqbroker.wire.record import RawRecord

log = Logger()

#: By level: the ranges of queue offsets whose messages are delivered, after the first one that is not, ascending.
Delivered = dict[int, list[tuple[int, int]]]

#: No message waits longer: an entry that says so is damaged.
DELAY_MS_MAX = 400 * 86_400_000
#: Cursors of a level, at most. Beyond that a part is not split, and its messages may wait for others.
CURSORS_MAX = 32
#: A message may become due this much earlier than one that is before it in its part.
TOLERANCE_MS = 1000


@attrs.define(eq=False)
class Cursor:
    """Delivers the messages from `offset` up to `end`, or without an end if that is None."""

    offset: int
    end: int | None
    #: Whether some of them may have been delivered before the start.
    is_unchecked: bool
    #: Whether it should have been split, but there were too many cursors.
    is_joined: bool = False
    timer: IDelayedCall | None = None
    #: Whether its next messages are being read from the disk.
    is_reading: bool = False
    #: (queue offset, time in ms): messages below it with a store time in the future are due by then.
    ahead: tuple[int, float] = (0, 0.0)
    #: The message that the store failed for last, and how often.
    tries: tuple[int, int] = (-1, 0)

    def due_ms(
        self, record: RawRecord, code: int | None, delay_ms: int, now_ms: float, queue_end: Callable[[], int]
    ) -> float:
        """When a message is due, in ms since the epoch: at the time that is its tags code, whatever the delay of its
        level, `delay_ms`, is now. A code that cannot be a time, such as the address of a lost unit, counts as
        missing.

        A message with a store time in the future (the clock was set back) waits no longer than its delay from when
        that was detected, and so do the messages that were behind it then.
        """
        stored_ms = record.store_timestamp
        if code is None or is_address(code) or code - stored_ms > DELAY_MS_MAX:
            code = stored_ms + delay_ms
        if stored_ms <= now_ms:
            return code
        delay_ms = max(0, code - stored_ms)
        end, due_ms = self.ahead
        if record.queue_offset >= end or due_ms > now_ms + delay_ms:
            end, due_ms = self.ahead = queue_end(), now_ms + delay_ms
        return min(code, due_ms)


@attrs.define(eq=False)
class Level:
    """The cursors of a level, in the order of its queue. `first_new`: offset of the first message that no broker can
    have delivered before the start."""

    number: int
    cursors: list[Cursor]
    first_new: int
    #: Due times below this offset are compared.
    compared: int
    #: Runs the next comparison.
    timer: IDelayedCall | None = None
    is_comparing: bool = False
    #: The latest due time of the part that was compared last, ms.
    _latest_ms: float = -inf
    _is_joined: bool = False

    @classmethod
    def starting_at(cls, number: int, offset: int, delivered: Sequence[tuple[int, int]], first_new: int) -> Level:
        """The level with cursors from `offset` on, which leave out the ranges `delivered`. Those are ignored if the
        queue ends before them: their messages' copies tell what was delivered then."""
        cursors: list[Cursor] = []
        if len(delivered) >= CURSORS_MAX or any(end > first_new for _, end in delivered):
            delivered = ()
        for begin, end in delivered:
            if offset < begin:
                cursors.append(Cursor(offset, begin, offset < first_new))
            offset = max(offset, end)
        cursors.append(Cursor(offset, None, offset < first_new))
        return cls(number, cursors, first_new, cursors[0].offset)

    @property
    def is_compared(self) -> bool:
        """Whether all due times from before the start, and the first one after it, are compared: later ones are in
        order, because store times never decrease, and the delays do not change."""
        return self.compared > self.first_new

    @property
    def delivered(self) -> list[tuple[int, int]]:
        """See `Delivered`."""
        between = [(former.end, cursor.offset) for former, cursor in pairwise(self.cursors)]
        return [(begin, end) for begin, end in between if begin is not None and begin < end]

    def cancel(self) -> None:
        """Cancel all timers."""
        timers = [self.timer, *(cursor.timer for cursor in self.cursors)]
        for timer in timers:
            if timer is not None:
                timer.cancel()

    def move(self, cursor: Cursor, offset: int) -> None:
        """All messages of a cursor below `offset` are delivered; one that has no more is removed."""
        cursor.offset = offset
        if cursor.end is not None and offset >= cursor.end:
            self.cursors.remove(cursor)

    def compare(self, codes: list[int], now_ms: float) -> list[Cursor]:
        """Compare the next due times, which are the tags `codes` from offset `compared` on, and split the queue where
        they decrease; returns the new cursors. Damaged times do not count."""
        begin = self.compared
        self.compared += len(codes)
        added: list[Cursor] = []
        for offset, due_ms in enumerate(codes, begin):
            if due_ms > now_ms + DELAY_MS_MAX or is_address(due_ms):
                continue
            if due_ms >= self._latest_ms - TOLERANCE_MS:
                self._latest_ms = max(self._latest_ms, due_ms)
            elif (cursor := self._cursor_before(offset)) is None:
                self._latest_ms = due_ms
            elif len(self.cursors) < CURSORS_MAX:
                other = Cursor(offset, cursor.end, offset < self.first_new)
                cursor.end = offset
                self.cursors.insert(self.cursors.index(cursor) + 1, other)
                added.append(other)
                self._latest_ms = due_ms
            else:
                cursor.is_joined = True
                if not self._is_joined:
                    log.warn(
                        "delay level {delay} has more than {n} parts that are due independently of each other: some of "
                        "its messages are delivered late",
                        delay=self.number, n=CURSORS_MAX,
                    )  # fmt: skip
                self._is_joined = True
        return added

    def _cursor_before(self, offset: int) -> Cursor | None:
        """The cursor that has to deliver other messages before the one at `offset`; None without one."""
        for cursor in self.cursors:
            if cursor.offset < offset and (cursor.end is None or offset < cursor.end):
                return cursor
        return None


def encode_delivered(delivered: Delivered) -> bytes:
    """config/delayDelivered.json: `{"2": [[1, 42]]}` if messages 1 to 41 of level 2 are delivered, and 0 is not."""
    return orjson.dumps(delivered, option=orjson.OPT_NON_STR_KEYS)


def decode_delivered(data: bytes) -> Delivered:
    """The ranges in the content of the file, checked by `delivered_of`; none if it is damaged."""
    try:
        levels = orjson.loads(data).items()
    except (ValueError, AttributeError):
        return {}
    return delivered_of({int(number): ranges for number, ranges in levels if number.isdecimal()})


def delivered_of(levels: Mapping[int, object]) -> Delivered:
    """The ranges by level, without levels whose ranges are invalid or do not ascend: their messages' copies tell what
    was delivered."""
    return {number: ranges for number, found in levels.items() if (ranges := _ranges(found))}


def _ranges(found: object) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for each in found if isinstance(found, list) else ():
        if not isinstance(each, list) or len(each) != 2 or not all(type(value) is int for value in each):
            return []
        ranges.append((each[0], each[1]))
    flat = [value for each in ranges for value in each]
    return ranges if all(value < after for value, after in pairwise(flat)) else []
