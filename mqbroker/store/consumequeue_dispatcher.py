"""Consume queue dispatcher: turns messages into pending entries of their queues, then writes these, each with an
extension unit where extensions are enabled.

Messages come in the order of the log, either just appended or read back from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from twisted.logger import Logger

from mqbroker.kernel import compiled
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY, ENTRY_BYTES
from mqbroker.store.consumequeue_ext import ADDRESS_MAX, ConsumeQueueExt
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.index import never
from mqbroker.store.logscan import Damage, ILogView, Row, Run, Scanned, scan_at
from mqbroker.store.multi_dispatch import MultiQueues
from mqbroker.store.tags_codes import TagsCodes
from mqbroker.wire.codes import SCHEDULE_TOPIC
from mqbroker.wire.properties import DISPATCH_MARK
from mqbroker.wire.record import RECORD_BYTES_MIN, property_bytes, store_timestamp_at

#: Makes the bit map of a message from its property bytes. Must not raise.
BitMap = Callable[[bytes], bytes]


def extend_entries(
    log: ILogView,
    queue: ConsumeQueue,
    ext: ConsumeQueueExt,
    entries: bytearray,
    unextended: set[tuple[ConsumeQueue, int]],
    bit_map: BitMap | None = None,
    is_over: Callable[[], bool] = never,
) -> bool:
    """Write a unit for each entry, and replace its tags code by the unit's address. Entries with an address keep it;
    one that does not fit into the extension, or whose physical offset is in `unextended`, keeps its code.

    Returns False if bit maps took so long that time `is_over`. Raises OSError; the next call continues where it
    stopped.
    """
    for at in range(0, len(entries), ENTRY_BYTES):
        physical_offset, size, code = ENTRY.unpack_from(entries, at)
        if code > ADDRESS_MAX and (not unextended or (queue, physical_offset) not in unextended):
            found = log.view(physical_offset)
            timestamp_ms = -1 if found is None else store_timestamp_at(*found)
            bits = b""
            if bit_map is not None:
                bits = bit_map(property_bytes(*found, size) if found is not None else b"")
            address = ext.put(code, timestamp_ms, bits)
            if address is not None:
                ENTRY.pack_into(entries, at, physical_offset, size, address)
            if bits and is_over():
                return False
    return True


_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
#: Records that are looked at without a look at the time, where the compiled module does not do it: one may be in
#: thousands of queues, which takes some ms.
ROWS_AT_ONCE = 8
#: topic, queue id, next queue offset, tags code (None if the messages differ), store timestamp (ms).
DispatchListener = Callable[[str, int, int, "int | None", int], None]


@attrs.define
class _Pending:
    """Entries of a queue that are to be written: their number, the bytes of their messages, the tags code of the first,
    whether others differ from it, and the store timestamp of the newest (ms)."""

    entries: bytearray = attrs.field(factory=bytearray)
    count: int = 0
    message_bytes: int = 0
    code: int = 0
    is_mixed: bool = False
    newest_ms: int = 0

    def add(self, entries: bytes, count: int, message_bytes: int, code: int, is_mixed: bool, newest_ms: int) -> None:
        if self.count:
            self.is_mixed |= is_mixed or code != self.code
        else:
            self.code, self.is_mixed = code, is_mixed
        self.entries += entries
        self.count += count
        self.message_bytes += message_bytes
        self.newest_ms = newest_ms

    def drop(self, count: int) -> int:
        """Drop the first entries, which are written; returns the bytes of their messages."""
        written: int = sum([size for _, size, _ in ENTRY.iter_unpack(self.entries[: count * ENTRY_BYTES])])
        del self.entries[: count * ENTRY_BYTES]
        self.count -= count
        self.message_bytes -= written
        return written


class ConsumeQueueDispatcher:
    """Makes and writes consume queue entries."""

    log = Logger()

    def __init__(
        self,
        log_view: ILogView,
        queues: ConsumeQueues,
        tags_codes: TagsCodes,
        on_damage: Callable[[Damage], None],
        multi: MultiQueues | None = None,
    ) -> None:
        """As `look_at`."""
        self.look_at(log_view, on_damage)
        self._queues = queues
        self._tags_codes = tags_codes
        self._multi = multi
        #: Store timestamp of the newest message dispatched.
        self.last_timestamp_ms = 0
        #: Gaps: messages read from the log that did not follow the one before in their queue.
        self.gaps = 0
        #: Messages and bytes added to each queue since the start, or since the statistics cleared it.
        self.entered: dict[ConsumeQueue, list[int]] = {}
        self.listeners: list[DispatchListener] = []
        self._bit_map_of: Callable[[str], BitMap | None] | None = None
        # Entries to be written.
        self._pending: dict[ConsumeQueue, _Pending] = {}
        # Physical offsets of entries that get no extension unit.
        self._unextended: set[tuple[ConsumeQueue, int]] = set()
        # The compiled part of `dispatch_run`.
        self._plain = None
        if compiled is not None:
            self._plain = compiled.QueueEntries(self._open, tags_codes.delay_levels_ms, multi is not None)

    def look_at(self, log_view: ILogView, on_damage: Callable[[Damage], None]) -> None:
        """Set where messages are read again (`log_view`), and the callback for records with impossible queue
        offsets."""
        self._log_view = log_view
        self._on_damage = on_damage

    def make_bit_maps(self, of_topic: Callable[[str], BitMap | None]) -> None:
        """Compute bit maps for extension units from now on, for topics for which `of_topic` returns a function."""
        self._bit_map_of = of_topic

    @property
    def has_pending(self) -> bool:
        """Whether there are entries to be written."""
        return bool(self._pending)

    def dispatch_run(self, run: Run, is_over: Callable[[], bool] = never) -> tuple[int, int]:
        """Turn messages into pending entries of their queues, some at least and until `is_over`. Those that their queue
        has already are skipped. Returns where it stopped, and how many it took. Hot.

        Raises OSError: call again with the same arguments to continue.
        """
        at, count = run.start, 0
        while at < run.end:
            if count and is_over():
                return at, count
            if self._plain is None or run.data is None or at < self._queues.former_end:
                rows = run.rows
                self._dispatch_rows(rows[count : count + ROWS_AT_ONCE])
                count = min(count + ROWS_AT_ONCE, len(rows))
                at = rows[count][3] if count < len(rows) else run.end
                continue
            data = run.data
            taken, plain_count, found = self._plain.take(data, at - run.start, run.end - run.start, run.start)
            for queue, *entries in found:
                self._pending_of(queue).add(*entries)
            at, count = run.start + taken, count + plain_count
            if at < run.end:
                item = scan_at(memoryview(data), taken, at)
                assert isinstance(item, Scanned)
                self._dispatch_rows([item])
                at, count = at + item.size, count + 1
        self.last_timestamp_ms = max(self.last_timestamp_ms, run.newest_ms)
        return at, count

    def _open(self, topic: bytes, queue_id: int) -> tuple[ConsumeQueue, int, bool]:
        queue = self._queues.open(topic, queue_id)
        return queue, self._next_offset(queue), queue.is_schedule

    def _next_offset(self, queue: ConsumeQueue) -> int:
        pending = self._pending.get(queue)
        return queue.max_offset if pending is None else queue.max_offset + pending.count

    def _pending_of(self, queue: ConsumeQueue) -> _Pending:
        pending = self._pending.get(queue)
        if pending is None:
            pending = self._pending[queue] = _Pending()
        return pending

    def _dispatch_rows(self, rows: Sequence[Row]) -> None:
        multi = self._multi
        for row in rows:
            topic, queue_id, queue_offset, physical_offset, size, sys_flag, timestamp, properties = row
            if sys_flag & 4:  # SysFlag.TRANSACTION_PREPARED, which _ROLLBACK includes
                continue
            queue = self._queues.open(topic, queue_id)
            if physical_offset < self._queues.former_end and self._is_former(queue, physical_offset):
                continue
            expected = self._next_offset(queue)
            if queue_offset < expected and multi is None:
                continue
            if queue_offset != expected or (multi is not None and DISPATCH_MARK in properties):
                self._dispatch_scanned(Scanned._make(row))
                continue
            code = self._tags_codes.of(queue.is_schedule, properties, timestamp)
            entry = ENTRY.pack(physical_offset, size, code)
            self._pending_of(queue).add(entry, 1, size, code, False, timestamp)

    def _is_former(self, queue: ConsumeQueue, physical_offset: int) -> bool:
        """Whether a message is from before a queue was removed that began at 0 again."""
        removed = self._queues.removed.get((queue.topic, queue.queue_id))
        return removed is not None and removed.next_offset == 0 and physical_offset < removed.until

    def _dispatch_scanned(self, item: Scanned) -> None:
        queue = self._queues.open(item.topic, item.queue_id)
        code = self._tags_codes.of(queue.is_schedule, item.properties, item.store_timestamp_ms)
        if not self._enter(queue, item.queue_offset, item, code):
            end = item.physical_offset + item.size
            why = f"queue offset {item.queue_offset} where {queue.max_offset} follows"
            self._on_damage(Damage(self._log_view.path_of(end - 1), item.physical_offset, end, why))
        elif self._multi is not None and DISPATCH_MARK in item.properties:
            self._enter_named(self._multi, item, code)

    def _enter(
        self, queue: ConsumeQueue, queue_offset: int, item: Scanned, code: int, is_extended: bool = True
    ) -> bool:
        """Add a pending entry for a message read from the log, unless the queue has it; False if its queue offset is
        impossible."""
        expected = self._next_offset(queue)
        if queue_offset < expected:  # written before the stop, or by a Java broker twice, or removed
            return True
        if queue_offset > expected:
            self.write()
            lost_bytes = item.physical_offset - max(queue.end_of_last(), 0)
            if queue.max_offset and queue_offset - expected > lost_bytes // RECORD_BYTES_MIN:
                return False
            self.gaps += 1
            queue.skip_to(queue_offset)
        if not is_extended and queue.ext is not None:
            self._unextended.add((queue, item.physical_offset))
        entry = ENTRY.pack(item.physical_offset, item.size, code)
        self._pending_of(queue).add(entry, 1, item.size, code, False, item.store_timestamp_ms)
        return True

    def _enter_named(self, multi: MultiQueues, item: Scanned, code: int) -> None:
        """As `_enter`, for the queues that the message names, each once."""
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
            "message at {offset} of the log is not added to the queues in its INNER_MULTI_DISPATCH: {why}",
            offset=item.physical_offset, why=why,
        )  # fmt: skip

    def place_of(self, queue: ConsumeQueue, row: Row) -> tuple[int, int] | None:
        """The offset in `queue` and the tags code of a message read from the log; None if it does not belong to the
        queue."""
        topic, queue_id, queue_offset, physical_offset, _, sys_flag, timestamp, properties = row
        if sys_flag & 4 or self._is_former(queue, physical_offset):  # SysFlag.TRANSACTION_PREPARED
            return None
        code = self._tags_codes.of(topic == _SCHEDULE_TOPIC, properties, timestamp)
        if (topic, queue_id) == (queue.topic_bytes, queue.queue_id):
            return queue_offset, code
        if self._multi is not None and DISPATCH_MARK in properties:
            try:
                named = self._multi.entered(properties, queue_id)
            except ValueError:
                return None
            return next(((offset, code) for other, offset in named if other is queue), None)
        return None

    def write(self, is_over: Callable[[], bool] = never) -> bool:
        """Write the pending entries and notify the listeners, of one queue at least and until `is_over`; returns
        whether all are written. Raises OSError: what was not written is written by the next call."""
        dirty, is_first = self._queues.dirty, True
        while self._pending:
            if not is_first and is_over():
                return False
            is_first = False
            queue, pending = self._pending.popitem()
            if queue.is_removed:
                continue
            before = queue.max_offset
            try:
                if queue not in dirty:
                    queue.read_end()
                if queue.ext is not None:
                    bit_map = self._bit_map_of(queue.topic) if self._bit_map_of is not None else None
                    if not extend_entries(
                        self._log_view, queue, queue.ext, pending.entries, self._unextended, bit_map, is_over
                    ):
                        self._pending[queue] = pending
                        return False
                queue.write(pending.entries)
            except OSError:
                self._pending[queue] = pending
                written = queue.max_offset - before
                self._forget_unextended(queue, pending.entries[: written * ENTRY_BYTES])
                self._note_entered(queue, written, pending.drop(written))
                raise
            finally:
                dirty[queue] = None
            self._forget_unextended(queue, pending.entries)
            self._note_entered(queue, pending.count, pending.message_bytes)
            if self.listeners:
                self._tell(queue, None if pending.is_mixed else pending.code, pending.newest_ms)
        return True

    def _note_entered(self, queue: ConsumeQueue, count: int, message_bytes: int) -> None:
        counts = self.entered.get(queue)
        if counts is None:
            counts = self.entered[queue] = [0, 0]
        counts[0] += count
        counts[1] += message_bytes

    def _forget_unextended(self, queue: ConsumeQueue, written: bytearray) -> None:
        if self._unextended:
            self._unextended.difference_update([(queue, entry[0]) for entry in ENTRY.iter_unpack(written)])

    def _tell(self, queue: ConsumeQueue, code: int | None, timestamp_ms: int) -> None:
        for listener in self.listeners:
            try:
                listener(queue.topic, queue.queue_id, queue.max_offset, code, timestamp_ms)
            except Exception:  # a listener's exception must not stop dispatch
                self.log.failure("listener of {topic} failed", topic=queue.topic)
