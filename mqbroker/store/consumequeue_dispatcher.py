"""Consume queue dispatcher: turns messages into pending entries of their queues, then writes these, each with an
extension unit where extensions are enabled.

Messages come in the order of the log, either just appended or read back from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from twisted.logger import Logger

from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_ext import ADDRESS_MAX, ConsumeQueueExt
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.dispatch_queue import Dispatchable
from mqbroker.store.logscan import Damage, ILogView, Row, Run, Scanned
from mqbroker.store.multi_dispatch import NAMES_MARK, MultiQueues
from mqbroker.store.tags_codes import TagsCodes
from mqbroker.wire.codes import SCHEDULE_TOPIC
from mqbroker.wire.record import RECORD_BYTES_MIN, property_bytes, store_timestamp_at

#: Makes the bit map of a message from its property bytes. Must not raise.
BitMap = Callable[[bytes], bytes]


def extend_entries(
    log: ILogView,
    queue: ConsumeQueue,
    ext: ConsumeQueueExt,
    pending: list[int],
    unextended: set[tuple[ConsumeQueue, int]],
    bit_map: BitMap | None = None,
) -> None:
    """Write a unit for each entry, given as physical offset, size, tags code, ..., and replace the tags code by its
    address. Entries with an address keep it; one that does not fit into the extension, or whose physical offset is in
    `unextended`, keeps its code.

    Raises OSError; the next call continues where it stopped.
    """
    for at in range(2, len(pending), 3):
        code = pending[at]
        if code > ADDRESS_MAX and (not unextended or (queue, pending[at - 2]) not in unextended):
            found = log.view(pending[at - 2])
            timestamp_ms = -1 if found is None else store_timestamp_at(*found)
            bits = b""
            if bit_map is not None:
                bits = bit_map(property_bytes(*found, pending[at - 1]) if found is not None else b"")
            address = ext.put(code, timestamp_ms, bits)
            if address is not None:
                pending[at] = address


_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
#: topic, queue id, next queue offset, tags code (None if the messages differ), store timestamp (ms).
DispatchListener = Callable[[str, int, int, "int | None", int], None]


@attrs.define
class _Place:
    """State of a queue while a run of messages is read back."""

    queue: ConsumeQueue
    next_offset: int
    pending: list[int]


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
        #: Queues with pending entries, and the store timestamp of the newest.
        self.touched: dict[ConsumeQueue, int] = {}
        # Entries to be written, flat: physical offset, size, tags code, ...
        self._pending: dict[ConsumeQueue, list[int]] = {}
        # Physical offsets of entries that get no extension unit.
        self._unextended: set[tuple[ConsumeQueue, int]] = set()

    def look_at(self, log_view: ILogView, on_damage: Callable[[Damage], None]) -> None:
        """Set where messages are read again (`log_view`), and the callback for records with impossible queue
        offsets."""
        self._log_view = log_view
        self._on_damage = on_damage

    def make_bit_maps(self, of_topic: Callable[[str], BitMap | None]) -> None:
        """Compute bit maps for extension units from now on, for topics for which `of_topic` returns a function."""
        self._bit_map_of = of_topic

    def dispatch(self, appends: Sequence[Dispatchable]) -> None:
        """Turn messages, appended one after another, into pending entries of their queues. Hot."""
        touched = self.touched
        all_pending = self._pending
        tags_code = self._tags_codes.of
        of_its_tag = self._tags_codes.of_its_tag
        for messages, appended, queues in appends:
            for message, (physical_offset, _, size, timestamp), queue in zip(messages, appended, queues, strict=True):
                if message[3] & 4:  # SysFlag.TRANSACTION_PREPARED, which _ROLLBACK includes
                    continue
                properties = message[9]
                code = tags_code(True, properties, timestamp) if queue.is_schedule else of_its_tag(properties)
                pending = all_pending.get(queue)
                if pending is None:
                    all_pending[queue] = [physical_offset, size, code]
                else:
                    pending += (physical_offset, size, code)
                touched[queue] = timestamp
        self.last_timestamp_ms = appends[-1][1][-1][3]

    def dispatch_run(self, run: Run) -> None:
        """As `dispatch`, for messages read back from the log. Those already in their queues are skipped. Hot in a
        recovery. Raises OSError: call again with the same arguments to continue."""
        touched = self.touched
        multi = self._multi
        tags_code = self._tags_codes.of
        of_its_tag = self._tags_codes.of_its_tag
        places: dict[tuple[bytes, int], _Place] = {}
        for row in run.rows:
            topic, queue_id, queue_offset, physical_offset, size, sys_flag, timestamp, properties = row
            if sys_flag & 4:  # SysFlag.TRANSACTION_PREPARED
                continue
            place = places.get((topic, queue_id))
            if place is None:
                place = places[topic, queue_id] = self._place_in(self._queues.open(topic, queue_id))
            if queue_offset < place.next_offset and multi is None:
                continue
            if queue_offset != place.next_offset or (multi is not None and NAMES_MARK in properties):
                self._dispatch_scanned(Scanned._make(row))
                places.clear()  # meanwhile more may have been dispatched or written
                continue
            is_schedule = place.queue.is_schedule
            code = tags_code(True, properties, timestamp) if is_schedule else of_its_tag(properties)
            place.pending += (physical_offset, size, code)
            place.next_offset = queue_offset + 1
            touched[place.queue] = timestamp
        self.last_timestamp_ms = max(self.last_timestamp_ms, run.newest_ms)

    def _place_in(self, queue: ConsumeQueue) -> _Place:
        pending = self._pending.setdefault(queue, [])
        return _Place(queue, queue.max_offset + len(pending) // 3, pending)

    def _dispatch_scanned(self, item: Scanned) -> None:
        queue = self._queues.open(item.topic, item.queue_id)
        code = self._tags_codes.of(queue.is_schedule, item.properties, item.store_timestamp_ms)
        if not self._enter(queue, item.queue_offset, item, code):
            end = item.physical_offset + item.size
            why = f"queue offset {item.queue_offset} where {queue.max_offset} follows"
            self._on_damage(Damage(self._log_view.path_of(end - 1), item.physical_offset, end, why))
        elif self._multi is not None and NAMES_MARK in item.properties:
            self._enter_named(self._multi, item, code)

    def _enter(
        self, queue: ConsumeQueue, queue_offset: int, item: Scanned, code: int, is_extended: bool = True
    ) -> bool:
        """Add a pending entry for a message read from the log, unless the queue has it; False if its queue offset is
        impossible."""
        expected = self._place_in(queue).next_offset
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
        self._pending.setdefault(queue, []).extend((item.physical_offset, item.size, code))
        self.touched[queue] = item.store_timestamp_ms
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
            "message at {offset} of the log is not put into queues that INNER_MULTI_DISPATCH names: {why}",
            offset=item.physical_offset, why=why,
        )  # fmt: skip

    def place_of(self, queue: ConsumeQueue, row: Row) -> tuple[int, int] | None:
        """The offset in `queue` and the tags code of a message read from the log; None if it does not belong to the
        queue."""
        topic, queue_id, queue_offset, _, _, sys_flag, timestamp, properties = row
        if sys_flag & 4:  # SysFlag.TRANSACTION_PREPARED
            return None
        code = self._tags_codes.of(topic == _SCHEDULE_TOPIC, properties, timestamp)
        if (topic, queue_id) == (queue.topic_bytes, queue.queue_id):
            return queue_offset, code
        if self._multi is not None and NAMES_MARK in properties:
            try:
                named = self._multi.entered(properties, queue_id)
            except ValueError:
                return None
            return next(((offset, code) for other, offset in named if other is queue), None)
        return None

    def write(self) -> None:
        """Write the pending entries and notify the listeners. Raises OSError: what was not written is written by the
        next call."""
        touched = self.touched
        listeners = self.listeners
        dirty = self._queues.dirty
        entered = self.entered
        while touched:
            queue, timestamp = touched.popitem()
            pending = self._pending.pop(queue)
            if queue.is_removed:
                continue
            before = queue.max_offset
            code = _common_code(pending) if listeners else None
            try:
                if queue not in dirty:
                    queue.read_end()
                if queue.ext is not None:
                    bit_map = self._bit_map_of(queue.topic) if self._bit_map_of is not None else None
                    extend_entries(self._log_view, queue, queue.ext, pending, self._unextended, bit_map)
                queue.write(pending)
            except OSError:
                touched[queue] = timestamp
                self._pending[queue] = pending
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
            if listeners:
                self._tell(queue, code, timestamp)
        self._pending.clear()  # of queues that were checked and had all entries

    def _forget_unextended(self, queue: ConsumeQueue, written: Sequence[int]) -> None:
        if self._unextended:
            self._unextended.difference_update([(queue, physical_offset) for physical_offset in written[::3]])

    def _tell(self, queue: ConsumeQueue, code: int | None, timestamp_ms: int) -> None:
        for listener in self.listeners:
            try:
                listener(queue.topic, queue.queue_id, queue.max_offset, code, timestamp_ms)
            except Exception:  # a listener's exception must not stop dispatch
                self.log.failure("listener of {topic} failed", topic=queue.topic)


def _common_code(pending: Sequence[int]) -> int | None:
    """The tags code common to all entries; None if they differ, or are addresses of units."""
    code = pending[2]
    return code if code > ADDRESS_MAX and len(set(pending[2::3])) == 1 else None
