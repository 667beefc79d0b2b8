"""A broker's queues in memory: what the readers ask of a client, with limits and faults to order."""

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

import pytest

from mqbroker.client.errors import Creates, TopicNotFound
from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.filter import compile_expression
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import Record, decode_record, encode_record

Want = tuple[MessageQueue, int, int]
Fault = Callable[[Want], "RawPull | MQError | None"]


def record(queue: MessageQueue, offset: int, body: bytes = b"body", **fields: object) -> Record:
    """A record with everything that a test does not care about."""
    values: dict[str, object] = {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "queue_offset": offset,
        "physical_offset": 1000 * offset,
        "store_size": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000 + offset,
        "born_host": ("127.0.0.1", 40000),
        "store_timestamp": 1_700_000_000_001 + offset,
        "store_host": ("127.0.0.1", 10911),
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": body,
        "body_crc": 0,
        "properties": {"TAGS": "a", "UNIQ_KEY": f"U{offset}"},
    }
    return Record(**(values | fields))  # type: ignore[arg-type]


def packed(properties: Mapping[str, str]) -> bytes:
    """Properties as they are stored."""
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()


class Flight:
    def __init__(self, log: "FakeLog", wants: Sequence[Want], tags: str | Sql) -> None:
        self._log = log
        self._tags = tags
        self._wants = list(wants)
        self._open = True
        log.flying += 1

    def finish(self) -> list[RawPull | MQError]:
        self._land()
        return [self._log.answer(want, self._tags) for want in self._wants]

    def abandon(self) -> None:
        self._land()

    def _land(self) -> None:
        if self._open:
            self._open = False
            self._log.flying -= 1


class FakeLog:
    """`count_max` and `bytes_max` bound each answer, as a broker's do."""

    def __init__(self, *, count_max: int = 32, bytes_max: int = 1 << 18) -> None:
        self.records: dict[MessageQueue, list[bytes]] = {}
        self.first: dict[MessageQueue, int] = {}
        self.down: set[str] = set()
        self.faults: list[Fault] = []
        self.group: dict[MessageQueue, int] = {}
        self.internal: set[str] = set()
        self.index_is_behind = False
        self.filters_by_sql = False
        self.flying = 0
        self.pulls: list[Want] = []
        self.rounds = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def add(self, queue: MessageQueue, count: int, body: bytes = b"body", **fields: object) -> None:
        """Append `count` messages."""
        found = self.records.setdefault(queue, [])
        crc = zlib.crc32(body) & 0x7FFFFFFF
        places = range(len(found), len(found) + count)
        found += [encode_record(record(queue, n, body, body_crc=crc, **fields)) for n in places]

    def make_again(self, queue: MessageQueue, count: int) -> None:
        """Delete the queue and append `count` other messages to a new one."""
        self.records[queue] = [
            encode_record(record(queue, n, store_timestamp=1_800_000_000_000 + n, physical_offset=1_000_000 + n))
            for n in range(count)
        ]

    def queues(self, topic: str) -> list[MessageQueue]:
        found = sorted(queue for queue in self.records if queue.topic == topic)
        if not found:
            creates = Creates.PERHAPS if self.records else Creates.NO_BROKER
            raise TopicNotFound(topic, ["here:1"], "gone", creates)
        return found

    def topics(self) -> tuple[set[str], set[str]]:
        return {queue.topic for queue in self.records} | self.internal, self.internal

    def committed(self, queues: Sequence[MessageQueue]) -> list[int | None]:
        return [self.group.get(queue) for queue in queues]

    def at_times(self, times: Sequence[tuple[MessageQueue, int]]) -> list[int | None]:
        return [
            next((r.queue_offset for r in self.decoded(queue) if r.store_timestamp >= at), None) for queue, at in times
        ]

    def places(self, topic: str, key: str, *, is_unique: bool = True) -> list[tuple[MessageQueue, int]] | None:
        """What the index finds; with `index_is_behind` it cannot tell."""
        if self.index_is_behind:
            return None
        return [
            (queue, record.queue_offset)
            for queue in self.queues(topic)
            for record in self.decoded(queue)
            if (key in record.properties.get("UNIQ_KEY" if is_unique else "KEYS", "").split(" "))
        ]

    def decoded(self, queue: MessageQueue) -> list[Record]:
        first = self.first.get(queue, 0)
        return [decode_record(data) for data in self.records[queue][first:]]

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        return [
            Unreachable("down") if q.broker_name in self.down else (self.first.get(q, 0), len(self.records[q]))
            for q in queues
        ]

    def bounds_by_topic(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        return self.bounds(queues)

    def fetch_ahead(self, wants: Sequence[Want], *, tags: str | Sql = ALL) -> Flight:
        self.rounds += 1
        return Flight(self, wants, tags)

    def answer(self, want: Want, tags: str | Sql = ALL) -> RawPull | MQError:
        self.pulls.append(want)
        queue, offset, count = want
        for fault in list(self.faults):
            if (found := fault(want)) is not None:
                return found
        if queue.broker_name in self.down:
            return Unreachable("down")
        first, end = self.first.get(queue, 0), len(self.records[queue])
        if not first <= offset < end:
            status = PullStatus.NO_NEW_MESSAGE if offset == end else PullStatus.OFFSET_ILLEGAL
            return RawPull(status, max(first, min(offset, end)), first, end, b"")
        subscription = subscribe_to(queue.topic, tags, 0)
        if isinstance(tags, Sql):
            if not self.filters_by_sql:
                return Refused(1, "The broker does not support consumer to filter message by SQL92")
            pick = compile_expression(tags.expression).pick
            return self._filtered(want, lambda found: bool(pick([packed(found.properties)], 1)))
        if subscription.code_set:
            codes = subscription.code_set
            return self._filtered(want, lambda found: java_hash(found.properties.get("TAGS", "")) in codes)
        taken: list[bytes] = []
        for data in self.records[queue][offset : offset + min(count, self._count_max)]:
            if taken and sum(map(len, taken)) + len(data) > self._bytes_max:
                break
            taken.append(data)
        return RawPull(PullStatus.FOUND, offset + len(taken), first, end, b"".join(taken))

    def _filtered(self, want: Want, matches: Callable[[Record], bool]) -> RawPull:
        """A pull looks at `count_max` messages."""
        queue, offset, count = want
        first, end = self.first.get(queue, 0), len(self.records[queue])
        taken: list[bytes] = []
        at = offset
        while at < min(end, offset + self._count_max) and len(taken) < count:
            found = decode_record(self.records[queue][at], check_crc=False)
            taken += [self.records[queue][at]] if matches(found) else []
            at += 1
        status = PullStatus.FOUND if taken else PullStatus.NO_MATCHED_MESSAGE
        return RawPull(status, at, first, end, b"".join(taken))


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def replace_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Replace time.sleep() by `sleep` for this thread. Other threads, as those of Spark, still sleep."""
    ours, real = threading.get_ident(), time.sleep
    monkeypatch.setattr("time.sleep", lambda seconds: (sleep if threading.get_ident() == ours else real)(seconds))
