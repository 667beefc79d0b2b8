"""Dispatch: what was appended to the log enters consume queues and index, a turn of the clock at a time.

It takes appends from the log's pile, and from the log itself what is not in the pile: after a start, or when the pile
grew over its bound. Must never know who waits for messages.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.store.commitlog import PILE_BYTES_MAX, CommitLog, Piled
from mqbroker.store.consumequeue import ConsumeQueue, ConsumeQueues
from mqbroker.store.consumequeue_ext import ADDRESS_MAX
from mqbroker.store.extending import BitMap, extend_entries
from mqbroker.store.index import Index, IndexRow
from mqbroker.store.logscan import Damage, Scanned, scan
from mqbroker.store.multi_dispatch import NAMES_MARK, MultiQueues
from mqbroker.store.properties import find_property
from mqbroker.store.statistics import StoreStatistics
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.javahash import java_hash
from mqbroker.wire.record import RECORD_BYTES_MIN

#: Messages for which consume queues (and then index) are written in one turn.
TURN_MESSAGES = 1000
#: Of puts that have a turn for themselves one in so many is timed, as their places in the log will have it.
TIMED_EVERY = 7
#: How long after the disk refused a write the next try is.
RETRY_S = 1.0
_TAG_CODES_MAX = 10_000
_TAGS = b"TAGS\x01"
_DELAY = b"DELAY\x01"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

#: topic, queue id, next queue offset, tags code (None where messages with several came), store timestamp (ms).
DispatchListener = Callable[[str, int, int, "int | None", int], None]


def parse_delay_levels(text: str) -> list[int]:
    """`1s 5s 1m 2h` -> milliseconds of level 1, 2, ... Raises ValueError."""
    try:
        return [int(level[:-1]) * _UNIT_MS[level[-1].lower()] for level in text.split()]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r}: levels are numbers with s, m, h or d, such as 1s 5m 2h") from None


class Dispatcher:
    """Feeds consume queues and index.

    `offset`: all of the log below is in the consume queues. `on_damage` is told of bytes that hold no record.
    `statistics` is told how long puts took.
    """

    log = Logger()

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        clock: IReactorTime,
        delay_levels_ms: Sequence[int],
        start: int,
        on_damage: Callable[[Damage], None],
        statistics: StoreStatistics,
        multi: MultiQueues | None = None,
        why_not: Callable[[OSError], str] = str,
    ) -> None:
        """`why_not`: what a person is told of an error of the disk."""
        self._multi = multi
        self._why_not = why_not
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._clock = clock
        self._delay_levels_ms = delay_levels_ms
        self._on_damage = on_damage
        self.offset = start
        self.last_timestamp_ms = 0
        self.listeners: list[DispatchListener] = []
        #: Gives what makes the bit maps of a topic's messages, where units of the extension are written; None for none.
        self.bit_maps: Callable[[str], BitMap | None] = lambda topic: None
        self._statistics = statistics
        #: Messages and bytes that came into each queue since the start, or since someone who counts them cleared it.
        self.entered: dict[ConsumeQueue, list[int]] = {}
        #: How often a message read from the log did not follow the one before it in its queue.
        self.gaps = 0
        self._taken = start  # as offset, but pending entries of queues count as written
        #: Entries that stay without a unit of their queue's extension, by physical offset.
        self._unextended: set[tuple[ConsumeQueue, int]] = set()
        self._touched: dict[ConsumeQueue, int] = {}  # queue -> store timestamp of its newest pending entry
        self._to_index: deque[Piled] = deque()
        self._to_index_bytes = 0
        self._tag_codes: dict[bytes, int] = {}
        self._call: IDelayedCall | None = None
        self._is_started = False

    # Turns

    def start(self) -> None:
        self._is_started = True
        self.entered.clear()
        self._commit_log.on_pile = self._schedule
        self._schedule()

    def stop(self) -> None:
        """Take no more turns of the clock's."""
        self._is_started = False
        self._commit_log.on_pile = lambda: None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _schedule(self, delay_s: float = 0) -> None:
        if self._call is None and self._is_started:
            self._call = self._clock.callLater(delay_s, self._turn)

    def _turn(self) -> None:
        self._call = None
        try:
            self.dispatch(TURN_MESSAGES)
            self.index(TURN_MESSAGES)
        except OSError as error:
            if not self._commit_log.why_behind:
                self.log.error("dispatch waits for the disk, and no messages are taken: {error}", error=error)
            # What is not in a consume queue nobody can get: no more of that.
            self._commit_log.why_behind = f"a consume queue or the index cannot be written: {self._why_not(error)}"
            self._schedule(RETRY_S)
            return
        if self._commit_log.why_behind:
            self._commit_log.why_behind = ""
            self.log.info("dispatch goes on, messages are taken again")
        if self.offset < self._commit_log.readable_end or self.is_index_behind:
            self._schedule()

    def restart(self, start: int) -> None:
        """Build the queues that have messages at or above `start` of the log anew, from there."""
        for queue in self._queues:
            if queue.end_of_last() > start:
                queue.reset()
        self.offset = self._taken = start

    def catch_up(self) -> None:
        """Dispatch to the consume queues all that is in the log. Raises OSError."""
        while self.offset < self._commit_log.readable_end:
            self.dispatch(TURN_MESSAGES)

    def index_all(self) -> None:
        """Bring the index up to date. Raises OSError."""
        while self.is_index_behind:
            self.index(TURN_MESSAGES)

    # Consume queues

    def dispatch(self, count: int) -> None:
        """Write about `count` messages to their consume queues and tell the listeners. Raises OSError: what was
        taken waits, and is written by the next call."""
        commit_log = self._commit_log
        pile = commit_log.pile
        if self._touched:
            self._write_pending()
        while count > 0 and pile:
            begin = pile[0][1][0][0]
            if self._taken < begin:
                count -= self._take_from_log(begin, count)
                continue
            appends, taken = _pop_adjoining(pile, count)
            self._take(appends)
            if len(appends) > 1 or not begin % TIMED_EVERY:
                self._statistics.put(taken, appends[0][1][0][3])
            count -= taken
        if not pile:
            commit_log.pile_bytes = 0
            if self._taken < commit_log.readable_end and count > 0:
                self._take_from_log(commit_log.readable_end, count)
        self._write_pending()

    def _take(self, appends: Sequence[Piled]) -> None:
        """Turn messages, appended one after another, into pending entries of their queues. Hot."""
        touched = self._touched
        tag_codes = self._tag_codes
        for messages, appended, queues in appends:
            for message, (physical_offset, _, size, timestamp), queue in zip(messages, appended, queues, strict=True):
                if message[3] & 4:  # SysFlag.TRANSACTION_PREPARED, which _ROLLBACK includes
                    continue
                properties = message[9]
                if queue.is_schedule:
                    code = self._tags_code(queue, properties, timestamp)
                else:
                    at = properties.rfind(_TAGS)
                    if at < 0:
                        code = 0
                    elif at and properties[at - 1] != 2:
                        code = self._tags_code(queue, properties, timestamp)
                    else:
                        end = properties.find(b"\x02", at)
                        tag = properties[at + 5 :] if end < 0 else properties[at + 5 : end]
                        try:
                            code = tag_codes[tag]
                        except KeyError:
                            code = self._tags_code(queue, properties, timestamp)
                queue.pending += (physical_offset, size, code)
                touched[queue] = timestamp
        last = appends[-1][1][-1]
        taken_bytes = last[0] + last[2] - self._taken
        self._commit_log.pile_bytes -= taken_bytes
        self._taken += taken_bytes
        self.last_timestamp_ms = last[3]
        if self._index is not None:
            self._keep_for_index(appends, taken_bytes)

    def _tags_code(self, queue: ConsumeQueue, properties: bytes, timestamp_ms: int) -> int:
        if queue.is_schedule:
            level = find_property(properties, _DELAY)
            if level:
                return self._deliver_at(level, timestamp_ms, properties)
        tag = find_property(properties, _TAGS)
        code = self._tag_codes.get(tag)
        if code is None:
            if len(self._tag_codes) >= _TAG_CODES_MAX:
                self._tag_codes.clear()
            code = self._tag_codes[tag] = java_hash(tag.decode("utf-8", "replace"))
        return code

    def _deliver_at(self, level_text: bytes, timestamp_ms: int, properties: bytes) -> int:
        """When a delayed message is due, which stands in its queue entry instead of a tag's hash."""
        try:
            level = min(int(level_text), len(self._delay_levels_ms))
        except ValueError:
            level = 0
        if level > 0:
            return timestamp_ms + self._delay_levels_ms[level - 1]
        return java_hash(find_property(properties, _TAGS).decode("utf-8", "replace"))

    def _take_from_log(self, end: int, count: int) -> int:
        """As `_take`, for at most `count` messages below `end` read back from the log; says how many there were."""
        taken = 0
        for item in itertools.islice(scan(self._commit_log, self._taken, end), count):
            taken += 1
            if isinstance(item, Damage):
                self._on_damage(item)
                self._taken = item.end
            else:
                self._take_scanned(item)
                self._taken = item.physical_offset + item.size
        if taken < count:
            self._taken = end
        return taken

    def _take_scanned(self, item: Scanned) -> None:
        self.last_timestamp_ms = max(self.last_timestamp_ms, item.store_timestamp_ms)
        if item.sys_flag & SysFlag.TRANSACTION_PREPARED:
            return
        queue = self._queues.open(item.topic, item.queue_id)
        code = self._tags_code(queue, item.properties, item.store_timestamp_ms)
        if not self._enter(queue, item.queue_offset, item, code):
            end = item.physical_offset + item.size
            why = f"queue offset {item.queue_offset} where {queue.max_offset} follows"
            self._on_damage(Damage(self._commit_log.path_of(end - 1), item.physical_offset, end, why))
        elif self._multi is not None and NAMES_MARK in item.properties:
            self._enter_named(self._multi, item, code)

    def _enter(
        self, queue: ConsumeQueue, queue_offset: int, item: Scanned, code: int, is_extended: bool = True
    ) -> bool:
        """Make a message read from the log a pending entry of a queue, unless it is in; False where its offset
        cannot be true."""
        expected = queue.max_offset + len(queue.pending) // 3
        if queue_offset < expected:  # written before the stop, or by a Java broker twice, or removed
            return True
        if queue_offset > expected:
            self._write_pending()
            lost_bytes = item.physical_offset - max(queue.end_of_last(), 0)
            if queue.max_offset and queue_offset - expected > lost_bytes // RECORD_BYTES_MIN:
                return False
            self.gaps += 1
            queue.skip_to(queue_offset)
        if not is_extended and queue.ext is not None:
            self._unextended.add((queue, item.physical_offset))
        queue.pending += (item.physical_offset, item.size, code)
        self._touched[queue] = item.store_timestamp_ms
        return True

    def _enter_named(self, multi: MultiQueues, item: Scanned, code: int) -> None:
        """As `_enter`, for the queues that the message names; of one that is named twice once."""
        try:
            named = multi.entered(item.properties, item.queue_id)
        except ValueError as error:
            self._warn_of_named(item, str(error))
            return
        for queue, offset in named:
            is_possible = offset <= item.physical_offset // RECORD_BYTES_MIN
            # Java writes these entries without a unit of the extension.
            if not is_possible or not self._enter(queue, offset, item, code, is_extended=False):
                self._warn_of_named(item, f"offset {offset} in {queue.topic}")

    def _warn_of_named(self, item: Scanned, why: str) -> None:
        self.log.warn(
            "message at {offset} of the log is not put into queues that INNER_MULTI_DISPATCH names: {why}",
            offset=item.physical_offset, why=why,
        )  # fmt: skip

    def _write_pending(self) -> None:
        touched = self._touched
        listeners = self.listeners
        dirty = self._queues.dirty
        entered = self.entered
        while touched:
            queue, timestamp = touched.popitem()
            if queue.is_removed:
                queue.pending = []
                continue
            pending = queue.pending
            before = queue.max_offset
            code = _common_code(pending) if listeners else None
            try:
                if queue.ext is not None:
                    bit_map = self.bit_maps(queue.topic)
                    extend_entries(self._commit_log, queue, queue.ext, pending, self._unextended, bit_map)
                queue.write(pending)
            except OSError:
                touched[queue] = timestamp
                written = 3 * (queue.max_offset - before)
                self._forget_unextended(queue, pending[:written])
                counts = entered.setdefault(queue, [0, 0])
                counts[0] += written // 3
                counts[1] += sum(pending[1:written:3])
                del pending[:written]
                raise
            finally:
                dirty[queue] = None
            self._forget_unextended(queue, pending)
            try:
                counts = entered[queue]
            except KeyError:
                counts = entered[queue] = [0, 0]
            size = len(pending)
            if size == 3:
                counts[0] += 1
                counts[1] += pending[1]
            else:
                counts[0] += size // 3
                counts[1] += sum(pending[1::3])
            queue.pending = []
            if queue.next_offset < queue.max_offset:
                queue.next_offset = queue.max_offset
            if listeners:
                self._tell(queue, code, timestamp)
        self.offset = self._taken

    def _forget_unextended(self, queue: ConsumeQueue, written: Sequence[int]) -> None:
        if self._unextended:
            self._unextended.difference_update([(queue, physical_offset) for physical_offset in written[::3]])

    def _tell(self, queue: ConsumeQueue, code: int | None, timestamp_ms: int) -> None:
        for listener in self.listeners:
            try:
                listener(queue.topic, queue.queue_id, queue.max_offset, code, timestamp_ms)
            except Exception:  # a listener's mistake must not stop dispatch
                self.log.failure("listener of {topic} failed", topic=queue.topic)

    # Index

    @property
    def is_index_behind(self) -> bool:
        return self._index is not None and self._index.offset < self.offset

    def _keep_for_index(self, appends: Sequence[Piled], size: int) -> None:
        if self._to_index_bytes > PILE_BYTES_MAX:
            self._to_index.clear()
            self._to_index_bytes = 0
        self._to_index += appends
        self._to_index_bytes += size

    def index(self, count: int) -> None:
        """Index about `count` of the messages that are in consume queues. Raises OSError."""
        index = self._index
        if index is None:
            return
        waiting = self._to_index
        while count > 0 and waiting:
            begin = waiting[0][1][0][0]
            if index.offset < begin:
                count -= self._index_from_log(index, begin, count)
                continue
            appends, taken = _pop_adjoining(waiting, count)
            index.add(appends)
            self._to_index_bytes -= index.offset - begin
            count -= taken
        if not waiting:
            self._to_index_bytes = 0
            if index.offset < self.offset and count > 0:
                self._index_from_log(index, self.offset, count)
        index.write_header()

    def index_piled(self) -> None:
        """Index what waits in memory, unless older messages must be indexed from the log first. Raises OSError."""
        while self._to_index and self._index is not None and self._index.offset >= self._to_index[0][1][0][0]:
            self.index(TURN_MESSAGES)

    def _index_from_log(self, index: Index, end: int, count: int) -> int:
        rows: list[IndexRow] = []
        indexed = 0
        indexed_to = index.offset
        for item in itertools.islice(scan(self._commit_log, index.offset, end), count):
            indexed += 1
            if isinstance(item, Damage):
                indexed_to = item.end
                continue
            queue = self._queues.open(item.topic, item.queue_id)
            rows += index.rows_of(queue, item.sys_flag, item.properties, item.physical_offset, item.store_timestamp_ms)
            indexed_to = item.physical_offset + item.size
        index.put(rows, end if indexed < count else indexed_to)
        return indexed


def _common_code(pending: Sequence[int]) -> int | None:
    """The tags code that all entries have; None where they differ, or have addresses of units already."""
    code = pending[2]
    return code if code > ADDRESS_MAX and len(set(pending[2::3])) == 1 else None


def _pop_adjoining(pile: deque[Piled], count: int) -> tuple[list[Piled], int]:
    """Take appends of about `count` messages off the front, none missing between them; and how many messages."""
    appends = [pile.popleft()]
    taken = len(appends[0][1])
    while pile and taken < count:
        last = appends[-1][1][-1]
        if pile[0][1][0][0] != last[0] + last[2]:
            break
        appends.append(pile.popleft())
        taken += len(appends[-1][1])
    return appends, taken
