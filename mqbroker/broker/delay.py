"""Delivery of delayed messages. Those of level n wait in queue n-1 of SCHEDULE_TOPIC_XXXX.

A message is due at the time that is the tags code of its queue entry: store time and delay as they were when it was
stored. It is stored again in its real topic and queue, which its properties name, or in another queue of the topic if
consumers do not read that one now. The next offset of each level is kept in config/delayOffset.json, written once a
second and never ahead of the log's synced end, and a slave fetches it every 10 seconds. What was delivered since is
found after a start by the copies in the log, which say what they are copies of; only copies by a Java broker do not, so
that these are delivered again. Source: ScheduleMessageService of 4.9.7, which polls ten times a second; here each level
has one timer, or more if its queue has parts that become due independently: see `delay_cursors`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.delay_cursors import Cursor, Delivered, Level, decode_delivered, delivered_of, encode_delivered
from mqbroker.broker.former_deliveries import FormerDeliveries
from mqbroker.broker.stored_copies import origin
from mqbroker.broker.system_topics import (
    NoRealTarget,
    as_delivered,
    real_target,
    schedule_level,
    schedule_queue,
    stored_again,
    without,
)
from mqbroker.errors import MessageRefused, MultiDispatchRefused, StoreError
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.body import Body
from mqbroker.wire.codes import SCHEDULE_TOPIC, Prop
from mqbroker.wire.record import BadRecord, NewMessage, RawRecord, decode_raw

log = Logger()

#: Field of a slave's request for the offsets that asks for the deliveries after them, too.
WITH_DELIVERED = "withDelivered"
#: Messages of a level stored in one turn, at most.
TURN_MESSAGES_MAX = 32
#: Due times of a level that are compared in one turn.
TURN_COMPARED_MAX = 2048
#: Delay before a level is retried after the store failed.
RETRY_SECONDS = 1.0
#: Attempts to store a message that the store neither takes nor refuses.
TRIES_MAX = 10
#: A timer's longest wait, because the clock may be set.
SECONDS_MAX = 3600.0


@attrs.frozen
class DelayOffsets(Body):
    """config/delayOffset.json: the next offset to deliver, by level. A slave of our kind also gets what is delivered
    after it: see `Delivered`."""

    offset_table: dict[int, int] = attrs.field(factory=dict)
    delivered_table: dict[int, list[list[int]]] | None = None


class DelayService:
    """Delivers delayed messages when they are due. `delays_ms` are the delays of the levels, from level 1."""

    def __init__(
        self,
        store: MessageStore,
        files: tuple[JsonFile, JsonFile],
        clock: IReactorTime,
        delays_ms: list[int],
        stats: BrokerStats,
        readable_queue: Callable[[str, int], int],
    ) -> None:
        """Load the offsets. Raises StoreDamaged. `files`: delayOffset.json, and delayDelivered.json. `readable_queue`:
        see TopicTable."""
        self._store = store
        self._stats = stats
        self._readable_queue = readable_queue
        self._file, self._delivered_file = files
        self._clock = clock
        self._delays_ms = delays_ms
        loaded = self._file.load(partial(DelayOffsets.from_json, dialect_bytes_max=None))
        #: By level: the offset of the first undelivered message, and the ranges delivered after it.
        self._offsets: dict[int, int] = dict(loaded.offset_table) if loaded is not None else {}
        self._delivered: Delivered = self._delivered_file.load(decode_delivered) or {}
        self._levels: dict[int, Level] = {}
        self._running = False
        #: Both as the files have them; and the next ones to write, with the log offset that must be synced first.
        self._kept = dict(self._offsets)
        self._kept_delivered = dict(self._delivered)
        self._candidate: tuple[dict[int, int], Delivered, int] | None = None
        self._moved = False
        #: The log offset at which the message delivered last ends.
        self._log_end = 0
        self._is_refused = False
        self._former: FormerDeliveries | None = None

    def start(self) -> None:
        self._store.dispatch_now()  # before: what arrives sets the timers of levels that run
        self._running = True
        levels = len(self._delays_ms)
        former = sorted(
            schedule_level(queue_id)
            for topic, queue_id in self._store.queues_by_name
            if topic == SCHEDULE_TOPIC and schedule_level(queue_id) > levels
        )
        self._former = FormerDeliveries(self._store, self._clock, self._levels)
        for number in (*range(1, levels + 1), *former):
            level = self._level(number)
            for cursor in level.cursors:
                self._schedule(level, cursor, 0)
            if self._count_waiting(number) > 0:
                self._compare_soon(level)
        waiting = {level: count for level in former if (count := self._count_waiting(level)) > 0}
        if waiting:
            log.warn(
                "messageDelayLevel has {levels} levels, but {n} messages wait for levels that no longer exist: "
                "{which}; they are delivered at the times that were set when they were stored",
                levels=levels, n=sum(waiting.values()), which=", ".join(map(str, waiting)),
            )  # fmt: skip

    def _count_waiting(self, level: int) -> int:
        low, high = self._store.bounds(SCHEDULE_TOPIC, schedule_queue(level)) or (0, 0)
        return high - max(low, self._offsets.get(level, 0))

    def stop(self) -> Deferred[bool]:
        """Stop delivering; fires when the delivered messages and the offsets are on the disk."""
        self._running = False
        for level in self._levels.values():
            level.cancel()
        self._levels.clear()
        durable = self._store.durable(self._log_end)
        # Messages that cannot be synced are delivered again after the next start.
        durable.addErrback(
            lambda failure: log.warn(
                "delivered delayed messages could not be synced, and may be delivered again: {why}",
                why=failure.getErrorMessage(),
            )
        )
        return durable.addCallback(lambda _: self.persist())

    def snapshot(self, with_delivered: bool = False) -> DelayOffsets:
        """The offsets, without deliveries that a replica which must have them may lack."""
        offsets, delivered = self._offsets, self._delivered
        if self._log_end > self._store.replicated():
            offsets, delivered = self._kept, self._kept_delivered
        table = {level: [list(each) for each in ranges] for level, ranges in delivered.items()}
        return DelayOffsets(dict(offsets), table if with_delivered else None)

    def follow(self, master: DelayOffsets) -> None:
        """Replace the offsets by those of the master, which delivers. A Java master does not tell what it delivered
        after them."""
        delivered = delivered_of(master.delivered_table or {})
        if (self._offsets, self._delivered) != (master.offset_table, delivered):
            self._offsets = dict(master.offset_table)
            self._delivered = delivered
            self._moved = True

    def progress(self) -> dict[int, tuple[int, int]]:
        """By level: the next offset to deliver, and the end of its queue."""
        return {
            level: (offset, self._store.max_offset(SCHEDULE_TOPIC, schedule_queue(level)))
            for level, offset in sorted(self._offsets.items())
        }

    def persist(self) -> Deferred[bool]:
        """Write the offsets if any moved, up to messages that are settled; fires True when they are written.

        Later offsets wait for the next call: messages lost in a power cut, or cut off, must be delivered again.
        """
        self._keep_candidate()
        if self._candidate is None and self._moved:
            self._moved = False
            self._candidate = dict(self._offsets), dict(self._delivered), self._log_end
            self._keep_candidate()
        written = [
            self._file.save_changes(lambda: DelayOffsets(self._kept).to_json()),
            self._delivered_file.save_changes(lambda: encode_delivered(self._kept_delivered)),
        ]
        return gatherResults(written).addCallback(all)

    def _keep_candidate(self) -> None:
        if self._candidate is not None and self._candidate[2] <= self._store.settled:
            offsets, delivered, _ = self._candidate
            self._candidate = None
            self._file.is_dirty |= offsets != self._kept
            self._delivered_file.is_dirty |= delivered != self._kept_delivered
            self._kept, self._kept_delivered = offsets, delivered

    def arrived(self, topic: str, queue_id: int) -> None:
        """Called when a queue has new messages; schedules the last cursor of its level if that is idle."""
        if topic != SCHEDULE_TOPIC or not self._running:
            return
        level = self._level(schedule_level(queue_id))
        last = level.cursors[-1]
        if last.timer is None and not last.is_reading:
            self._schedule(level, last, 0)
        self._compare_soon(level)

    def _level(self, number: int) -> Level:
        level = self._levels.get(number)
        if level is None:
            first_new = self._store.next_offset(SCHEDULE_TOPIC, schedule_queue(number))
            offset, delivered = self._offsets.get(number, 0), self._delivered.get(number, ())
            level = self._levels[number] = Level.starting_at(number, offset, delivered, first_new)
        return level

    def _compare_soon(self, level: Level, seconds: float = 0) -> None:
        if not level.is_compared and level.timer is None and not level.is_comparing:
            level.timer = self._clock.callLater(seconds, self._compare, level)

    def _compare(self, level: Level) -> None:
        """Look for messages that become due before others that are before them, and give them cursors of their own."""
        level.timer = None
        level.is_comparing = True
        Deferred.fromCoroutine(self._compare_some(level)).addErrback(self._not_compared, level)

    async def _compare_some(self, level: Level) -> None:
        queue_id = schedule_queue(level.number)
        level.compared = max(level.compared, level.cursors[0].offset, self._store.min_offset(SCHEDULE_TOPIC, queue_id))
        codes = await self._store.queries.tags_codes(SCHEDULE_TOPIC, queue_id, level.compared, TURN_COMPARED_MAX)
        level.is_comparing = False
        if not self._running:
            return
        for cursor in level.compare(codes, self._clock.seconds() * 1000):
            self._schedule(level, cursor, 0)
        if codes:
            self._compare_soon(level)

    def _not_compared(self, failure: Failure, level: Level) -> None:
        level.is_comparing = False
        if self._running:
            self._log_failure(failure, level)
            self._compare_soon(level, RETRY_SECONDS)

    async def _read(self, level: Level, cursor: Cursor) -> tuple[GetMessageResult, list[RawRecord], dict[int, int]]:
        """The next messages of a cursor, and the tags codes of their entries by queue offset. Raises StoreError."""
        queue_id, offset = schedule_queue(level.number), cursor.offset
        found = self._store.get(SCHEDULE_TOPIC, queue_id, offset, TURN_MESSAGES_MAX)
        if isinstance(found, Deferred):
            found = await found
        records = self._decode(level, offset, found) if found.status is GetMessageStatus.FOUND else []
        count = records[-1].queue_offset + 1 - offset if records else 0
        codes = await self._store.queries.tags_codes(SCHEDULE_TOPIC, queue_id, offset, count)
        return found, records, dict(enumerate(codes, offset))

    def _schedule(self, level: Level, cursor: Cursor, seconds: float) -> None:
        cursor.timer = self._clock.callLater(min(seconds, SECONDS_MAX), self._turn, level, cursor)

    def _turn(self, level: Level, cursor: Cursor) -> None:
        """Deliver the due messages of one cursor, and set its timer for the next."""
        cursor.timer = None
        cursor.is_reading = True
        Deferred.fromCoroutine(self._deliver_next(level, cursor)).addErrback(self._failed, level, cursor)

    async def _deliver_next(self, level: Level, cursor: Cursor) -> None:
        """Raises StoreError where the level cannot be read."""
        found, records, codes = await self._read(level, cursor)
        now_ms, number = self._clock.seconds() * 1000, level.number
        delay_ms = self._delays_ms[number - 1] if number <= len(self._delays_ms) else 0
        queue_end = partial(self._store.max_offset, SCHEDULE_TOPIC, schedule_queue(number))

        def due_ms(record: RawRecord) -> float:
            return cursor.due_ms(record, codes.get(record.queue_offset), delay_ms, now_ms, queue_end)

        due = list(takewhile(lambda record: due_ms(record) <= now_ms, records))
        copied = set[int]()
        if due and self._former is not None:
            copied = await self._former.among(due, level, cursor, min(map(due_ms, due)))
        cursor.is_reading = False
        if not self._running:
            return
        if found.status is not GetMessageStatus.FOUND:
            self._correct(level, cursor, found.next_offset)
            return
        read_to = records[-1].queue_offset + 1 if records else cursor.offset + 1
        if cursor.end is not None:  # perhaps only since they were read
            read_to = min(read_to, cursor.end)
            records = [record for record in records if record.queue_offset < read_to]
            due = due[: len(records)]
        if copied:
            log.info("delay level {delay}: {n} messages had been delivered before", delay=level.number, n=len(copied))
        delivered = self._deliver(due, level, cursor, copied)
        if delivered < len(due):
            if delivered:
                self._move(level, cursor, due[delivered].queue_offset)
            self._schedule(level, cursor, RETRY_SECONDS)
            return
        # By queue offset and not by count, since damaged messages were skipped.
        if len(due) < len(records):
            if due:
                self._move(level, cursor, records[len(due)].queue_offset)
            self._schedule(level, cursor, max(0.0, due_ms(records[len(due)]) - now_ms) / 1000)
        else:
            self._move(level, cursor, read_to)
            if read_to != cursor.end:
                self._schedule(level, cursor, 0)

    def _failed(self, failure: Failure, level: Level, cursor: Cursor) -> None:
        cursor.is_reading = False
        if not self._running:
            return
        self._log_failure(failure, level)
        if cursor.timer is None:
            self._schedule(level, cursor, RETRY_SECONDS)

    def _log_failure(self, failure: Failure, level: Level) -> None:
        if failure.check(StoreError):  # type: ignore[no-untyped-call]
            log.error("delay level {delay} cannot be read: {why}", delay=level.number, why=failure.getErrorMessage())
        else:
            log.failure("delay level {delay} waits {s} s", failure, delay=level.number, s=RETRY_SECONDS)

    def _decode(self, level: Level, offset: int, found: GetMessageResult) -> list[RawRecord]:
        """Decode the messages found, up to the first damaged one. Returns none, and logs it, if that is the first."""
        data = memoryview(b"".join(found.pieces))
        records: list[RawRecord] = []
        at = 0
        try:
            while at < len(data):
                records.append(decode_raw(data, at))
                at += records[-1].size
        except BadRecord as error:
            if not records:
                log.error(
                    "delay level {delay} skips a damaged message at {n}: {why}",
                    delay=level.number, n=offset, why=str(error),
                )  # fmt: skip
        return records

    def _correct(self, level: Level, cursor: Cursor, next_offset: int) -> None:
        """Handle a read that found nothing: wait for messages, or continue where the queue's messages are."""
        if next_offset == cursor.offset:
            if cursor.end is not None:
                self._schedule(level, cursor, RETRY_SECONDS)
            return
        log.warn(
            "delay level {delay} continues at {next} instead of {n}",
            delay=level.number, next=next_offset, n=cursor.offset,
        )  # fmt: skip
        level.compared = min(level.compared, next_offset)
        self._move(level, cursor, next_offset)
        if cursor in level.cursors:
            self._schedule(level, cursor, 0)
        self._compare_soon(level)

    def _move(self, level: Level, cursor: Cursor, offset: int) -> None:
        level.move(cursor, offset)
        self._offsets[level.number] = level.cursors[0].offset
        self._delivered.pop(level.number, None)
        if delivered := level.delivered:
            self._delivered[level.number] = delivered
        self._moved = True

    def _deliver(self, records: list[RawRecord], level: Level, cursor: Cursor, copied: set[int]) -> int:
        """Store due messages in their real topics, except those that are there. Returns how many are done with: fewer
        where the store failed."""
        messages = [None if record.physical_offset in copied else self._real_message(record) for record in records]
        try:
            if any(messages):
                self._append([message for message in messages if message is not None], level)
        except StoreError as error:
            if not isinstance(error, MessageRefused):
                self._note_failure(error)
                return 0
            return self._deliver_each(records, messages, level, cursor)
        except MemoryError as error:
            self._note_failure(error)
            return 0
        except Exception:
            log.failure("delayed messages are delivered one by one")
            return self._deliver_each(records, messages, level, cursor)
        self._is_refused = False
        return len(records)

    def _note_failure(self, error: Exception) -> None:
        if not self._is_refused:
            log.warn("delivery of delayed messages is suspended: {why}", why=str(error) or type(error).__name__)
        self._is_refused = True

    def _append(self, messages: list[NewMessage], level: Level) -> None:
        appended = self._store.append(messages)
        self._log_end = appended[-1][0] + appended[-1][2]
        self._stats.delivered(schedule_queue(level.number), len(appended), sum(size for _, _, size, _ in appended))

    def _deliver_each(
        self, records: list[RawRecord], messages: list[NewMessage | None], level: Level, cursor: Cursor
    ) -> int:
        """As `_deliver`, one by one, since one of them cannot be stored.

        A message refused for its multi-dispatch queues is stored without them; other refused messages are dropped, and
        so is, after some tries, one for which the store fails unexpectedly.
        """
        for count, (record, message) in enumerate(zip(records, messages, strict=True)):
            if message is None:
                continue
            topic = message[0].decode()
            try:
                try:
                    self._append([message], level)
                except MultiDispatchRefused as error:
                    log.error(
                        "a delayed message for {topic} is not added to its other queues (INNER_MULTI_DISPATCH): {why}",
                        topic=topic,
                        why=str(error),
                    )
                    self._append([(*message[:9], without(message[9], Prop.INNER_MULTI_DISPATCH))], level)
            except MessageRefused as error:
                log.error("a delayed message for {topic} is dropped: {why}", topic=topic, why=str(error))
            except (StoreError, MemoryError) as error:
                self._note_failure(error)
                return count
            except Exception:
                place, tries = cursor.tries
                tries = tries + 1 if place == record.physical_offset else 1
                cursor.tries = record.physical_offset, tries
                line = "the delayed message at {n} of the log cannot be delivered to {topic}: try {tries} of {max}"
                log.failure(line, n=record.physical_offset, topic=topic, tries=tries, max=TRIES_MAX)
                if tries < TRIES_MAX:
                    return count
        self._is_refused = False
        return len(messages)

    def _real_message(self, record: RawRecord) -> NewMessage | None:
        """The message for its real topic, and its real queue or one that consumers read instead; None, with a log line,
        if its properties do not name them."""
        try:
            topic, queue_id = real_target(record.properties)
            queue_id = self._readable_queue(topic.decode(), queue_id)
            properties = as_delivered(record.properties)
            return stored_again(record, topic, queue_id, properties, prepared_offset=origin(record.physical_offset))
        except NoRealTarget as error:
            log.error("the delayed message at {n} is dropped: {why}", n=record.physical_offset, why=str(error))
        except MemoryError:
            raise
        except Exception:
            log.failure("the delayed message at {n} is dropped", n=record.physical_offset)
        return None
