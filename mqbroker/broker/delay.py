"""Delivery of delayed messages. Those of level n wait in queue n-1 of SCHEDULE_TOPIC_XXXX, in the order they are due.

A message is due at the time that is the tags code of its queue entry: store time and delay as they were when it was
stored. It is stored again in its real topic and queue, which its properties name, or in another queue of the topic if
consumers do not read that one now. The next offset of each level is kept in config/delayOffset.json, written once a
second and never ahead of the log's synced end, and a slave fetches it every 10 seconds. What was delivered since is
found after a start by the copies in the log, which say what they are copies of; only copies by a Java broker do not, so
that these are delivered again. Source: ScheduleMessageService of 4.9.7, which polls ten times a second; here each level
has one timer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.stored_copies import SKEW_MS, StoredCopies, origin
from mqbroker.broker.system_topics import (
    NoRealTarget,
    as_delivered,
    real_target,
    schedule_level,
    schedule_queue,
    stored_again,
    without,
)
from mqbroker.broker.topic_table import halved
from mqbroker.errors import MessageRefused, MultiDispatchRefused, StoreError
from mqbroker.store.consumequeue_ext import is_address
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.body import Body
from mqbroker.wire.codes import SCHEDULE_TOPIC, Prop
from mqbroker.wire.record import BadRecord, NewMessage, RawRecord, decode_raw

log = Logger()

#: Messages of a level stored in one turn, at most.
TURN_MESSAGES_MAX = 32
#: Delay before a level is retried after the store failed.
RETRY_SECONDS = 1.0
#: So often a message is tried that the store neither takes nor refuses.
TRIES_MAX = 10
#: No message waits longer: an entry that says so is damaged.
DELAY_MS_MAX = 400 * 86_400_000
#: A timer's longest wait, because the clock may be set.
SECONDS_MAX = 3600.0


@attrs.frozen
class DelayOffsets(Body):
    """config/delayOffset.json: the next offset to deliver, by level."""

    offset_table: dict[int, int] = attrs.field(factory=dict)


class DelayService:
    """Delivers delayed messages when they are due. `delays_ms` are the delays of the levels, from level 1."""

    def __init__(
        self,
        store: MessageStore,
        file: JsonFile,
        clock: IReactorTime,
        delays_ms: list[int],
        stats: BrokerStats,
        readable_queue: Callable[[str, int], int],
    ) -> None:
        """Load the offsets. Raises StoreDamaged. `readable_queue`: see TopicTable."""
        self._store = store
        self._stats = stats
        self._readable_queue = readable_queue
        self._file = file
        self._clock = clock
        self._delays_ms = delays_ms
        loaded = file.load(partial(DelayOffsets.from_json, dialect_bytes_max=None))
        self._offsets: dict[int, int] = dict(loaded.offset_table) if loaded is not None else {}
        self._timers: dict[int, IDelayedCall] = {}
        #: Levels whose next messages are being read from the disk.
        self._reading: set[int] = set()
        self._running = False
        #: The offsets to write to the file; and the next ones, with the log offset that must be synced first.
        self._kept = dict(self._offsets)
        self._candidate: tuple[dict[int, int], int] | None = None
        self._moved = False
        #: The log offset at which the message delivered last ends.
        self._log_end = 0
        #: By level: (queue offset, time in ms): messages below it with a store time in the future are due by then.
        self._ahead: dict[int, tuple[int, float]] = {}
        self._is_refused = False
        #: By level: the message that the store failed for last, and how often.
        self._tries: dict[int, tuple[int, int]] = {}
        #: What former runs or a former master may have delivered after the offsets were written is due by that time.
        self._copies: StoredCopies | None = None
        self._copied_until_ms = 0.0
        #: The levels that have such messages.
        self._unchecked = set[int]()

    def start(self) -> None:
        self._store.dispatch_now()  # before: what arrives sets the timers of levels that run
        self._running = True
        levels = len(self._delays_ms)
        former = sorted(
            schedule_level(queue_id)
            for topic, queue_id in self._store.queues_by_name
            if topic == SCHEDULE_TOPIC and schedule_level(queue_id) > levels
        )
        self._copies = StoredCopies(self._store, self._clock, self._store.log_end)
        self._copied_until_ms = self._clock.seconds() * 1000 + SKEW_MS
        for level in (*range(1, levels + 1), *former):
            if self._count_waiting(level) > 0:
                self._unchecked.add(level)
            self._schedule(level, 0)
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
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        durable = self._store.durable(self._log_end)
        # Messages that cannot be synced are delivered again after the next start.
        durable.addErrback(
            lambda failure: log.warn(
                "delivered delayed messages could not be synced, and may be delivered again: {why}",
                why=failure.getErrorMessage(),
            )
        )
        return durable.addCallback(lambda _: self.persist())

    def snapshot(self) -> DelayOffsets:
        """The offsets, without deliveries that a replica which must have them may lack."""
        return DelayOffsets(dict(self._offsets if self._log_end <= self._store.replicated() else self._kept))

    def follow(self, master: DelayOffsets) -> None:
        """Replace the offsets by those of the master, which delivers."""
        if self._offsets != master.offset_table:
            self._offsets = dict(master.offset_table)
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
            self._candidate = dict(self._offsets), self._log_end
            self._keep_candidate()
        return self._file.save_changes(lambda: DelayOffsets(self._kept).to_json())

    def _keep_candidate(self) -> None:
        if self._candidate is not None and self._candidate[1] <= self._store.settled:
            self._kept, _ = self._candidate
            self._candidate = None
            self._file.is_dirty = True

    def arrived(self, topic: str, queue_id: int) -> None:
        """Called when a queue has new messages; schedules its level if that is idle."""
        level = schedule_level(queue_id)
        if topic == SCHEDULE_TOPIC and self._running and level not in self._timers and level not in self._reading:
            self._schedule(level, 0)

    def _schedule(self, level: int, seconds: float) -> None:
        self._timers[level] = self._clock.callLater(min(seconds, SECONDS_MAX), self._turn, level)

    def _turn(self, level: int) -> None:
        """Deliver the due messages of one level, and set its timer for the next."""
        del self._timers[level]
        self._reading.add(level)
        Deferred.fromCoroutine(self._deliver_level(level)).addErrback(self._failed, level)

    async def _deliver_level(self, level: int) -> None:
        """Raises StoreError where the level cannot be read."""
        queue_id, offset = schedule_queue(level), self._offsets.get(level, 0)
        found = self._store.get(SCHEDULE_TOPIC, queue_id, offset, TURN_MESSAGES_MAX)
        if isinstance(found, Deferred):
            found = await found
        records, codes = [], list[int]()
        if found.status is GetMessageStatus.FOUND:
            records = self._decode(level, offset, found)
            count = records[-1].queue_offset + 1 - offset if records else 0
            codes = await self._store.queries.tags_codes(SCHEDULE_TOPIC, queue_id, offset, count)
        now_ms = self._clock.seconds() * 1000
        codes_of = dict(enumerate(codes, offset))

        def due_ms(record: RawRecord) -> float:
            return self._due_ms(record, codes_of.get(record.queue_offset), level, now_ms)

        due = list(takewhile(lambda record: due_ms(record) <= now_ms, records))
        copied = await self._copied(due, level, due_ms(due[0])) if due else set[int]()
        self._reading.discard(level)
        if not self._running:
            return
        if found.status is not GetMessageStatus.FOUND:
            self._correct(level, offset, found.next_offset)
            return
        if copied:
            log.info("delay level {delay}: {n} messages had been delivered before", delay=level, n=len(copied))
        delivered = self._deliver(due, level, copied)
        if delivered < len(due):
            if delivered:
                self._move(level, due[delivered].queue_offset)
            self._schedule(level, RETRY_SECONDS)
            return
        # By queue offset and not by count, since damaged messages were skipped.
        if len(due) < len(records):
            if due:
                self._move(level, records[len(due)].queue_offset)
            self._schedule(level, max(0.0, due_ms(records[len(due)]) - now_ms) / 1000)
        else:
            self._move(level, records[-1].queue_offset + 1 if records else offset + 1)
            self._schedule(level, 0)

    async def _copied(self, records: list[RawRecord], level: int, since_ms: float) -> set[int]:
        """The physical offsets of those records that were delivered before the start, since `since_ms`. Raises
        StoreError."""
        copies = self._copies
        if copies is None or level not in self._unchecked:
            return set()
        if records[0].physical_offset >= copies.end or since_ms > self._copied_until_ms:
            self._unchecked.remove(level)
            if not self._unchecked:
                self._copies = None
            return set()
        copied = set[int]()
        for record in records:
            try:
                topic, queue_id = real_target(record.properties)
            except NoRealTarget:
                continue
            for possible in halved(queue_id):
                if record.physical_offset in await copies.of_queue(topic.decode(), possible, since_ms):
                    copied.add(record.physical_offset)
                    break
        return copied

    def _failed(self, failure: Failure, level: int) -> None:
        self._reading.discard(level)
        if not self._running:
            return
        if failure.check(StoreError):  # type: ignore[no-untyped-call]
            log.error("delay level {delay} cannot be read: {why}", delay=level, why=failure.getErrorMessage())
        else:
            log.failure("delay level {delay} waits {s} s", failure, delay=level, s=RETRY_SECONDS)
        if level not in self._timers:
            self._schedule(level, RETRY_SECONDS)

    def _decode(self, level: int, offset: int, found: GetMessageResult) -> list[RawRecord]:
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
                    "delay level {delay} skips a damaged message at {n}: {why}", delay=level, n=offset, why=str(error)
                )
        return records

    def _due_ms(self, record: RawRecord, code: int | None, level: int, now_ms: float) -> float:
        """When a message is due, in ms since the epoch: at the time that is its tags code, whatever the delay of its
        level is now. A code that can be none, such as the address of a unit that is lost, counts as missing.

        A message with a store time in the future (the clock was set back) waits no longer than its delay from when
        that was detected, and so do the messages that were behind it then.
        """
        stored_ms = record.store_timestamp
        if code is None or is_address(code) or code - stored_ms > DELAY_MS_MAX:
            code = stored_ms + (self._delays_ms[level - 1] if level <= len(self._delays_ms) else 0)
        if stored_ms <= now_ms:
            return code
        delay_ms = max(0, code - stored_ms)
        end, due_ms = self._ahead.get(level, (0, 0.0))
        if record.queue_offset >= end or due_ms > now_ms + delay_ms:
            end, due_ms = self._store.max_offset(SCHEDULE_TOPIC, schedule_queue(level)), now_ms + delay_ms
            self._ahead[level] = end, due_ms
        return min(code, due_ms)

    def _correct(self, level: int, offset: int, next_offset: int) -> None:
        """Handle a read that found nothing at `offset`: wait there, or continue where the queue's messages are."""
        if next_offset != offset:
            log.warn("delay level {delay} continues at {next} instead of {n}", delay=level, next=next_offset, n=offset)
            self._move(level, next_offset)
            self._schedule(level, 0)

    def _move(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._moved = True

    def _deliver(self, records: list[RawRecord], level: int, copied: set[int]) -> int:
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
            return self._deliver_each(records, messages, level)
        except MemoryError as error:
            self._note_failure(error)
            return 0
        except Exception:
            log.failure("delayed messages are delivered one by one")
            return self._deliver_each(records, messages, level)
        self._is_refused = False
        return len(records)

    def _note_failure(self, error: Exception) -> None:
        if not self._is_refused:
            log.warn("delivery of delayed messages is suspended: {why}", why=str(error) or type(error).__name__)
        self._is_refused = True

    def _append(self, messages: list[NewMessage], level: int) -> None:
        appended = self._store.append(messages)
        self._log_end = appended[-1][0] + appended[-1][2]
        self._stats.delivered(schedule_queue(level), len(appended), sum(size for _, _, size, _ in appended))

    def _deliver_each(self, records: list[RawRecord], messages: list[NewMessage | None], level: int) -> int:
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
                place, tries = self._tries.get(level, (-1, 0))
                tries = tries + 1 if place == record.physical_offset else 1
                self._tries[level] = record.physical_offset, tries
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
