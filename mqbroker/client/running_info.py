"""ConsumerRunningInfo of a push consumer, for administrators, with its statistics.

Minute and hour are those of ConsumerStatsManager of 4.9.7: counted in steps, so that they are up to a step longer.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import FrameType, TracebackType

import attrs

from mqbroker.client.assigned_queues import AssignedQueue
from mqbroker.client.options import PushOptions
from mqbroker.wire.admin_bodies import ConsumerRunningInfo, ConsumeStatus
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import VERSION_NAME

#: (length of a step in seconds, steps)
_MINUTE = (10.0, 6)
_HOUR = (600.0, 6)


class Sums:
    """Sums of three amounts over the last `steps` steps of `step_s` seconds, and the current one."""

    def __init__(self, step_s: float, steps: int, began: float) -> None:
        self._step_s = step_s
        self._back = steps
        self._began = began
        #: (number of the step, sums within it)
        self._steps: deque[tuple[int, list[float]]] = deque(maxlen=steps + 1)
        self._ends = 0.0
        self._newest: list[float] = []

    def add(self, now: float, first: float, second: float, third: float) -> None:
        if now >= self._ends:
            self._begin(int(now // self._step_s))
        sums = self._newest
        sums[0] += first
        sums[1] += second
        sums[2] += third

    def _begin(self, step: int) -> None:
        self._newest = [0.0, 0.0, 0.0]
        self._steps.append((step, self._newest))
        self._ends = (step + 1) * self._step_s

    def totals(self, now: float) -> list[float]:
        """The sums over the period."""
        first = int(now // self._step_s) - self._back
        found = [sums for step, sums in self._steps if step >= first]
        return [sum(column) for column in zip((0.0, 0.0, 0.0), *found, strict=True)]

    def seconds(self, now: float) -> float:
        """Length of the period of `totals`; a step at least, so that a start shows no high rates."""
        first = (now // self._step_s - self._back) * self._step_s
        return max(now - max(first, self._began), self._step_s)


class TopicStats:
    """Counts for one topic. Times are ms."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        began = now()
        self._pulls = Sums(*_MINUTE, began)
        self._consumed = Sums(*_MINUTE, began)
        self._consumed_hour = Sums(*_HOUR, began)

    def pulled(self, took_ms: float, messages: int) -> None:
        """Count a pull that found messages, and how many of these are for the listener."""
        self._pulls.add(self._now(), 1, took_ms, messages)

    def consumed(self, took_ms: float, ok: int, failed: int) -> None:
        """Count messages that the listener has finished."""
        now = self._now()
        self._consumed.add(now, ok, failed, took_ms)
        self._consumed_hour.add(now, ok, failed, took_ms)

    def status(self) -> ConsumeStatus:
        now = self._now()
        pulls, pull_ms, pulled = self._pulls.totals(now)
        ok, failed, took_ms = self._consumed.totals(now)
        hour_ok, hour_failed, hour_ms = self._consumed_hour.totals(now)
        seconds = self._pulls.seconds(now)
        return ConsumeStatus(
            pull_rt=_each(pull_ms, pulls),
            pull_tps=pulled / seconds,
            consume_rt=_each(took_ms, ok + failed) or _each(hour_ms, hour_ok + hour_failed),
            consume_ok_tps=ok / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=int(hour_failed),
        )


class ConsumerStats:
    """A meter for each topic that this consumer reads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._topics: dict[str, TopicStats] = {}

    def of(self, topic: str) -> TopicStats:
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = TopicStats(self._now)
        return meter


def _each(total: float, count: float) -> float:
    return total / count if count else 0.0


#: Maximum number of queues in a response, which is built in one iteration of the loop.
QUEUES_TOLD_MAX = 4096


@attrs.frozen
class About:
    """Constants of a running consumer, and its start time, ms."""

    group: str
    name_servers: tuple[str, ...]
    options: PushOptions
    started_ms: int


def running_info(
    about: About,
    subscriptions: Iterable[SubscriptionData],
    assigned: Mapping[MessageQueue, AssignedQueue],
    stats: ConsumerStats,
) -> ConsumerRunningInfo:
    """The response, without stacks."""
    wanted = sorted(subscriptions, key=lambda subscription: subscription.topic)
    return ConsumerRunningInfo(
        properties=_properties(about),
        subscription_set=wanted,
        mq_table={queue: assigned[queue].info() for queue in islice(sorted(assigned), QUEUES_TOLD_MAX)},
        status_table={subscription.topic: stats.of(subscription.topic).status() for subscription in wanted},
    )


def positions(topic: str, assigned: Mapping[MessageQueue, AssignedQueue]) -> dict[MessageQueue, int]:
    """The offsets that the consumer would commit now in its queues of `topic`, or in all if that is empty."""
    of_topic = (queue for queue in sorted(assigned) if topic in ("", queue.topic))
    known = ((queue, assigned[queue].committable) for queue in islice(of_topic, QUEUES_TOLD_MAX))
    return {queue: offset for queue, offset in known if offset is not None}


def _properties(about: About) -> dict[str, str]:
    options = about.options
    return {
        "consumerGroup": about.group,
        "messageModel": options.model.value,
        "consumeFromWhere": options.consume_from.value,
        "consumeThreadMin": str(options.concurrency),
        "consumeThreadMax": str(options.concurrency),
        "consumeMessageBatchMaxSize": str(options.batch_max or 1),
        "consumeConcurrentlyMaxSpan": str(options.queue_span_max),
        "consumeTimeout": str(int(options.consume_timeout_s // 60)),
        "maxReconsumeTimes": str(options.max_reconsume_times),
        "pullBatchSize": str(options.pull_batch),
        "pullThresholdForQueue": str(options.queue_messages_max),
        "pullThresholdSizeForQueue": str(options.queue_bytes_max // (1024 * 1024)),
        "PROP_NAMESERVER_ADDR": "".join(f"{addr};" for addr in about.name_servers),
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": VERSION_NAME,
        "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
        "PROP_CONSUMER_START_TIMESTAMP": str(about.started_ms),
    }


TEXT_CHARACTERS_MAX = 1024


def describe_frame(frame: FrameType, line: int) -> str:
    """A frame, as in "shop.orders.take(orders.py:12)"."""
    code = frame.f_code
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}({file}:{line})"


def describe_error(error: BaseException) -> str:
    """An exception and its innermost frame, as Java's tools show it."""
    text = f"{type(error).__name__}: {error}"[:TEXT_CHARACTERS_MAX]
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return text if at is None else f"{text}, {describe_frame(at.tb_frame, at.tb_lineno)}"


#: The rest is left out: a response must have room for other things.
FRAMES_MAX = 100
CHARACTERS_MAX = 256 * 1024


def thread_stacks() -> str:
    """The stacks of all threads, innermost call first. Reads no source files."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    parts: list[str] = []
    room = CHARACTERS_MAX
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented
        thread = threads.get(ident)
        part = _stack(thread.name if thread else str(ident), (thread and thread.native_id) or ident, frame)
        room -= len(part)
        if room < 0:
            parts.append("further threads are left out\n")
            break
        parts.append(part)
    return "".join(parts)


def _stack(name: str, number: int, innermost: FrameType) -> str:
    lines = [f"{name:<40}TID: {number}"]
    frame: FrameType | None = innermost
    while frame is not None and len(lines) <= FRAMES_MAX:
        lines.append(f"{name:<40}{describe_frame(frame, frame.f_lineno)}")
        frame = frame.f_back
    return "\n".join(lines) + "\n\n"
