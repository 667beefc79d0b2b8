"""Broker statistics: messages put into topics, delivered to groups, and sent back by them.

Counts only grow. A window samples them at a fixed interval, and computes the growth within the last minute, hour or day
from the newest sample and the one a window length older. Frequent events are counted in plain dicts, once per pull and
per queue that a turn of dispatch touched, and collected once a second. Names, keys, intervals and window lengths are
those of BrokerStatsManager and StatsItem of 4.9.7, which also assumes a new count to have been 0 one step before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.store.get_message_result import GetMessageResult
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import BrokerStatsData, BrokerStatsItem
from mqbroker.wire.codes import SCHEDULE_TOPIC, TRANS_OP_HALF_TOPIC
from mqbroker.wire.names import LMQ_PREFIX

#: Keys in one table at most; beyond that, the least recently counted key is evicted.
KEYS_MAX = 20_000
_Sample = tuple[int, list[int]]
#: The group under which the Java broker counts the delivery of delayed messages.
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"


@attrs.define(eq=False)
class Counts:
    """The counts of one key: the number of events, and one or several amounts."""

    #: The number of events, then the amounts.
    numbers: list[int]
    #: By window: (sample number, `numbers` at that time) of each sample that found a change.
    samples: tuple[list[_Sample], ...] = attrs.field(init=False, factory=lambda: ([], [], []))


class Window:
    """One window of all counts of a broker.

    :param number: the window's index in `Counts.samples`.
    :param samples_max: the number of samples kept; the window spans one step less.
    """

    def __init__(self, number: int, step_s: float, samples_max: int) -> None:
        self.step_s = step_s
        self._number = number
        self._steps = samples_max - 1
        self._times: deque[float] = deque(maxlen=samples_max)
        self._last = 0
        #: Counts that changed since the last sample.
        self.waiting: dict[Counts, None] = {}

    def sample(self, now: float) -> None:
        """Take a sample of the counts that changed. `now` is in seconds."""
        self._last += 1
        self._times.append(now)
        changed, self.waiting = self.waiting, {}
        for counts in changed:
            samples = counts.samples[self._number]
            if not samples:
                samples.append((self._last - 1, [0] * len(counts.numbers)))
            samples.append((self._last, counts.numbers.copy()))
            while samples[1][0] <= self._last - self._steps:
                del samples[0]

    def growth(self, counts: Counts, amount: int) -> BrokerStatsItem:
        """The growth of an amount (1 is the first); zero before the first sample."""
        samples = counts.samples[self._number]
        if not samples:
            return BrokerStatsItem()
        first = max(samples[0][0], self._last - self._steps)
        before = next(numbers for sample, numbers in reversed(samples) if sample <= first)
        numbers = samples[-1][1]
        total = numbers[amount] - before[amount]
        times = numbers[0] - before[0]
        seconds = self._seconds_since(first)
        return BrokerStatsItem(total, total / seconds if seconds > 0 else 0.0, total / times if times > 0 else 0.0)

    def _seconds_since(self, sample: int) -> float:
        steps = self._last - sample
        if steps < len(self._times):
            return self._times[-1] - self._times[-1 - steps]
        return self._times[-1] - self._times[0] + self.step_s


class Windows:
    """The windows of a minute, an hour and a day. Call `tick` about once a second; `now` returns seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.minute = Window(0, 10.0, 7)
        self.hour = Window(1, 600.0, 7)
        self.day = Window(2, 3600.0, 25)
        self.all = (self.minute, self.hour, self.day)
        began = now()
        self._next = [began + window.step_s for window in self.all]

    def tick(self) -> None:
        """Sample the windows whose step is over."""
        now = self._now()
        for i, window in enumerate(self.all):
            if now >= self._next[i]:
                window.sample(now)
                missed = (now - self._next[i]) // window.step_s
                self._next[i] += (missed + 1) * window.step_s

    def changed(self, counts: Counts) -> None:
        for window in self.all:
            window.waiting[counts] = None

    def forget(self, counts: Counts) -> None:
        for window in self.all:
            window.waiting.pop(counts, None)


class CountTable:
    """Counts by key."""

    def __init__(self, windows: Windows, amounts: int = 1, keys_max: int = KEYS_MAX) -> None:
        self._windows = windows
        self._amounts = amounts
        self._keys_max = keys_max
        # Least recently changed first.
        self._counts: dict[str, Counts] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def get(self, key: str) -> Counts | None:
        return self._counts.get(key)

    def add(self, key: str, times: int, *amounts: int) -> None:
        """Add `times` events and their `amounts` to a key's counts."""
        counts = self._counts.pop(key, None) or self._new()
        self._counts[key] = counts
        numbers = counts.numbers
        numbers[0] += times
        for i, amount in enumerate(amounts, 1):
            numbers[i] += amount
        self._windows.changed(counts)

    def _new(self) -> Counts:
        if len(self._counts) >= self._keys_max:
            self._forget(next(iter(self._counts)))
        return Counts([0] * (self._amounts + 1))

    def remove(self, is_meant: Callable[[Sequence[str]], bool]) -> None:
        """Remove the keys for which `is_meant` returns True, called with the key's parts (split at @)."""
        for key in [key for key in self._counts if is_meant(key.split("@"))]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._windows.forget(self._counts.pop(key))


@attrs.define
class PullCounts:
    """Pulls since the last collection.

    `found`: [pulls that got messages, messages, bytes, total ms] by topic, group and queue id. `missed`: pulls that
    found nothing.
    """

    found: dict[tuple[str, str, int], list[int]] = attrs.field(factory=dict)
    missed: int = 0
    longest_ms: int = 0

    def count(self, topic: str, group: str, queue_id: int, result: GetMessageResult) -> None:
        """Count a pull that got messages."""
        key = topic, group, queue_id
        try:
            counts = self.found[key]
        except KeyError:
            counts = self.found[key] = [0, 0, 0, 0]
        counts[0] += 1
        counts[1] += result.count
        counts[2] += sum(map(len, result.pieces))


@attrs.frozen
class DayTotals:
    """Messages put and got from the start until the last midnight, and until the one before."""

    put_today: int = 0
    got_today: int = 0
    put_yesterday: int = 0
    got_yesterday: int = 0


class BrokerStats:
    """All counts of one broker. `now` returns seconds since the epoch."""

    def __init__(self, store: MessageStore, live: LiveSettings, now: Callable[[], float]) -> None:
        settings = live.current
        self._store = store
        self._live = live
        self._now = now
        self._cluster = settings.broker_cluster_name
        self._has_lmq = settings.store.enable_lmq
        self._has_details = settings.enable_detail_stat
        self.gets = PullCounts()
        #: Messages sent minus send requests, by topic.
        self._sent_together: dict[str, int] = {}
        #: Messages that entered topics without being sent by producers.
        self._not_sent = 0
        self._windows = windows = Windows(now)
        self._topic_puts = CountTable(windows, 2)
        self._queue_puts = CountTable(windows, 2)
        self._group_gets = CountTable(windows, 2)
        self._queue_gets = CountTable(windows, 2)
        self._latencies = CountTable(windows)
        self._sent_back = CountTable(windows)
        self._broker_puts = CountTable(windows)
        self._broker_gets = CountTable(windows)
        self._by_name = {
            "TOPIC_PUT_NUMS": (self._topic_puts, 1),
            "TOPIC_PUT_SIZE": (self._topic_puts, 2),
            "GROUP_GET_NUMS": (self._group_gets, 1),
            "GROUP_GET_SIZE": (self._group_gets, 2),
            "GROUP_GET_LATENCY": (self._latencies, 1),
            "SNDBCK_PUT_NUMS": (self._sent_back, 1),
            "BROKER_PUT_NUMS": (self._broker_puts, 1),
            "BROKER_GET_NUMS": (self._broker_gets, 1),
            "QUEUE_PUT_NUMS": (self._queue_puts, 1),
            "QUEUE_PUT_SIZE": (self._queue_puts, 2),
            "QUEUE_GET_NUMS": (self._queue_gets, 1),
            "QUEUE_GET_SIZE": (self._queue_gets, 2),
        }
        self.totals = DayTotals()
        self._day = self._local_day()

    # Counting

    def sent_together(self, topic: str, count: int) -> None:
        """Count one send request with `count` messages."""
        self._sent_together[topic] = self._sent_together.get(topic, 0) + count - 1

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message of `topic` that a group sent back, once it is stored."""
        self._sent_back.add(f"{self._short(topic)}@{self._short(group)}", 1, 1)
        self._not_sent += 1

    def stored_again(self, count: int) -> None:
        """Note `count` messages stored in another queue that were already counted when they were sent."""
        self._not_sent += count

    def delivered(self, queue_id: int, count: int, size: int) -> None:
        """Count delayed messages delivered from a queue of the schedule topic."""
        if self._live.current.store.enable_schedule_message_stats:
            self._group_gets.add(f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}", count, count, size)
            if self._has_details:
                self._queue_gets.add(f"{SCHEDULE_TOPIC}@{queue_id}@{SCHEDULE_GROUP}", count, count, size)
        else:
            self._not_sent += count

    def _short(self, name: str) -> str:
        """Shorten %LMQ% names: all light queues and their groups are counted as one."""
        return LMQ_PREFIX if self._has_lmq and name.startswith(LMQ_PREFIX) else name

    # Once a second

    def tick(self) -> None:
        """Collect the counts and sample the windows."""
        self.collect()
        self._store.statistics.sample()
        self._windows.tick()
        if (day := self._local_day()) != self._day:
            self._day = day
            statistics, totals = self._store.statistics, self.totals
            self.totals = DayTotals(statistics.puts, statistics.got, totals.put_today, totals.got_today)

    def _local_day(self) -> tuple[int, int]:
        now = time.localtime(self._now())
        return now.tm_year, now.tm_yday

    def collect(self) -> None:
        """Bring the counts up to date."""
        self._collect_puts()
        self._collect_gets()

    def _collect_puts(self) -> None:
        entered = self._store.entered
        by_topic: dict[str, list[int]] = {}
        for queue, (count, size) in entered.items():
            if self._has_lmq and queue.topic.startswith(LMQ_PREFIX):
                continue
            puts = by_topic.setdefault(queue.topic, [0, 0])
            puts[0] += count
            puts[1] += size
            if queue.is_schedule and self._has_details:
                self._queue_puts.add(f"{queue.topic}@{queue.queue_id}", count, count, size)
        entered.clear()
        sent = 0
        statistics = self._store.statistics
        for topic, (count, size) in by_topic.items():
            statistics.puts += count
            statistics.put_bytes += size
            times = max(1, count - self._sent_together.pop(topic, 0))
            self._topic_puts.add(topic, times, count, size)
            sent += count if topic != TRANS_OP_HALF_TOPIC else 0
        # A message that was sent back may enter its queue only in the next second.
        not_sent = min(sent, self._not_sent)
        self._not_sent -= not_sent
        if sent > not_sent:
            self._broker_puts.add(self._cluster, 0, sent - not_sent)

    def _collect_gets(self) -> None:
        statistics = self._store.statistics
        got = 0
        for (topic, group, queue_id), (times, count, size, ms) in self.gets.found.items():
            key = f"{self._short(topic)}@{self._short(group)}"
            self._group_gets.add(key, times, count, size)
            self._latencies.add(f"{queue_id}@{key}" if self._has_details else key, times, ms)
            statistics.found += times
            got += count
        self.gets.found.clear()
        statistics.missed += self.gets.missed
        statistics.longest_get_ms = max(statistics.longest_get_ms, self.gets.longest_ms)
        self.gets.missed = self.gets.longest_ms = 0
        if got:
            statistics.got += got
            self._broker_gets.add(self._cluster, 0, got)

    # Asking

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """The growth of a count; None if nothing was counted."""
        table, amount = self._by_name.get(name, (None, 0))
        counts = table.get(key) if table is not None else None
        if counts is None:
            return None
        return BrokerStatsData(*(window.growth(counts, amount) for window in self._windows.all))

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages of a topic delivered to a group per second, in the last minute."""
        counts = self._group_gets.get(f"{self._short(topic)}@{self._short(group)}")
        return self._windows.minute.growth(counts, 1).tps if counts is not None else 0.0

    # Forgetting

    def topic_removed(self, topic: str) -> None:
        """Remove the counts of a topic if autoDeleteUnusedStats is set."""
        if self._live.current.auto_delete_unused_stats:
            for table in (self._topic_puts, self._queue_puts, self._group_gets, self._queue_gets, self._sent_back):
                table.remove(lambda key: key[0] == topic)
            self._latencies.remove(lambda key: key[-2] == topic)

    def group_removed(self, group: str) -> None:
        """Remove the counts of a group if autoDeleteUnusedStats is set."""
        if self._live.current.auto_delete_unused_stats:
            for table in (self._group_gets, self._queue_gets, self._latencies, self._sent_back):
                table.remove(lambda key: key[-1] == group)
