"""ProcessQueue and AssignedQueue: a message queue that this member consumes, with its start offset, flow control and
committable offset."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import attrs

from mqbroker.client.listeners import TELL_EVERY_S
from mqbroker.client.messages import PullStatus, RawPull, ReceivedMessage
from mqbroker.client.net import Net
from mqbroker.client.options import MemberOptions
from mqbroker.client.queue_requests import read_messages
from mqbroker.errors import MQError, Unreachable
from mqbroker.wire.admin_bodies import ProcessQueueInfo
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import MASTER_ID

log = logging.getLogger(__name__)


class PulledBatch:
    """The messages of one pull, None in the place of each that is done, and how many are left."""

    __slots__ = ("_held", "bytes", "first_number", "left", "messages", "unreadable")

    def __init__(
        self,
        held: ProcessQueue,
        messages: Sequence[ReceivedMessage],
        first_number: int,
        unreadable: Sequence[ReceivedMessage] = (),
    ) -> None:
        """`first_number` is how many came before, `unreadable` those whose bodies cannot be decompressed."""
        self.messages: list[ReceivedMessage | None] = [*messages]
        #: The indexes of those.
        self.unreadable: Sequence[int] = ()
        if unreadable:
            found = set(map(id, unreadable))
            self.unreadable = [index for index, message in enumerate(messages) if id(message) in found]
        self.left = len(messages)
        #: Of all their bodies.
        self.bytes = sum([len(message.body) for message in messages])
        self.first_number = first_number
        self._held = held

    @property
    def queue(self) -> MessageQueue:
        return self._held.queue

    def first_left(self) -> int:
        """The index of the first that is not done."""
        return next(index for index, message in enumerate(self.messages) if message is not None)

    def index(self, message: ReceivedMessage) -> int | None:
        """The index of a message that is not done."""
        return next((index for index, each in enumerate(self.messages) if each is message), None)

    def done(self, index: int, now: float) -> None:
        """Called when a message is consumed, or was sent back: it is no longer held."""
        if self.messages[index] is not None:
            self.messages[index] = None
            self.count_out(1, now)

    def count_out(self, count: int, now: float) -> None:
        """Called when so many messages have been replaced by None: they are no longer held."""
        if not count:
            return
        self.left -= count
        held = self._held
        held.consumed_at = now
        held.count -= count
        if not self.left:
            held.bytes -= self.bytes
        if not self.left or held.on_room is not None:
            held.released()


class Owner(Protocol):
    """The owner of a message: one assigned queue."""

    queue: MessageQueue
    #: True once the queue belongs to another member: the listener's result no longer counts.
    dropped: bool


@attrs.define(eq=False)
class Portion:
    """Messages of a batch that wait: from the index `next` on, up to `end`."""

    owner: Owner
    batch: PulledBatch
    next: int
    end: int

    def take(self, count: int) -> tuple[list[int], list[ReceivedMessage]]:
        """The next messages, `count` at most, and their indexes in the batch."""
        indexes: list[int] = []
        messages: list[ReceivedMessage] = []
        while self.next < self.end and len(messages) < count:
            message = self.batch.messages[self.next]
            if message is not None:
                indexes.append(self.next)
                messages.append(message)
            self.next += 1
        return indexes, messages


class ProcessQueue:
    """The pulled part of `queue`. Messages are added by the batch and removed in any order."""

    def __init__(
        self,
        queue: MessageQueue,
        next_offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        span_max: int,
        began: float = 0.0,
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._span_max = span_max
        #: The first has messages left.
        self._batches: deque[PulledBatch] = deque()
        self._last_offset = 0
        #: When a message was done last.
        self.consumed_at = began
        #: Called once when it is no longer full.
        self.on_room: Callable[[], None] | None = None
        #: Messages held, and the bytes of all bodies of the batches that they are of.
        self.count = 0
        self.bytes = 0
        self._came = 0

    def __len__(self) -> int:
        return self.count

    @property
    def is_full(self) -> bool:
        return self.would_be_full(0, 0)

    @property
    def is_stretched(self) -> bool:
        """Whether the first message keeps more than `span_max` others, consumed or not, from being committed.

        Java counts unconsumed messages only; behind a stuck one the others then grow without bound.
        """
        return self._would_be_stretched(0)

    def limit(self, messages_max: int, bytes_max: int) -> None:
        """Be full with so many messages, or bytes."""
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self.released()

    def would_be_full(self, messages: int, size: int) -> bool:
        """Whether it is full with so many more messages, and bytes."""
        is_full = self.count + messages >= self._messages_max or self.bytes + size >= self._bytes_max
        return is_full or self._would_be_stretched(messages)

    def _would_be_stretched(self, messages: int) -> bool:
        came = self._came + messages
        if not self._batches or came - self._batches[0].first_number <= self._span_max:
            return False
        first = self._batches[0]
        return came - first.first_number - first.first_left() - 1 > self._span_max

    @property
    def committable(self) -> int:
        """The lowest unconsumed offset: a consumer that starts there misses nothing."""
        return min(self.span[0], self.next_offset) if self._batches else self.next_offset

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last offset held; zeros if empty."""
        if not self._batches:
            return (0, 0)
        first = self._batches[0].messages[self._batches[0].first_left()]
        last = next(each for batch in reversed(self._batches) for each in reversed(batch.messages) if each is not None)
        assert first is not None
        return first.queue_offset, last.queue_offset

    def add(
        self, messages: Sequence[ReceivedMessage], next_offset: int, unreadable: Sequence[ReceivedMessage] = ()
    ) -> PulledBatch:
        """Add the messages of a pull; the next pull starts at `next_offset`."""
        batch = PulledBatch(self, messages, self._came, unreadable)
        if messages:
            if self._batches and messages[0].queue_offset <= self._last_offset:
                self._forget({message.queue_offset for message in messages})
            self._last_offset = max(self._last_offset, messages[-1].queue_offset)
            self._batches.append(batch)
        self._came += len(messages)
        self.count += len(messages)
        self.bytes += batch.bytes
        self.next_offset = next_offset
        return batch

    def _forget(self, offsets: set[int]) -> None:
        """Remove messages that came again."""
        for batch in list(self._batches):
            for index, message in enumerate(batch.messages):
                if message is not None and message.queue_offset in offsets:
                    batch.done(index, self.consumed_at)

    def released(self) -> None:
        """All of a batch is done, or some of it while `on_room` waits."""
        while self._batches and not self._batches[0].left:
            self._batches.popleft()
        if self.on_room is not None and not self.is_full:
            on_room, self.on_room = self.on_room, None
            on_room()

    def clear(self) -> None:
        """Remove all: a listener may hold one of the messages for ever, and must not keep the others in memory."""
        for batch in self._batches:
            batch.messages[:] = [None] * len(batch.messages)
        self._batches.clear()


#: Pulled from if the master does not respond; a set without this slave has others, or the master again.
SLAVE_ID = 1

#: A pull that finds nothing and is answered sooner was not held: the broker holds enough of them. The next one waits as
#: long as brokers hold a pull with longPollingEnable=false.
_HELD_S = 0.1
_NOT_HELD_PAUSE_S = 1.0

#: A queue that could be pulled and was not for so long is begun anew.
_STUCK_S = 120.0

#: pull(queue, offset, broker id to ask first)
Pull = Callable[["AssignedQueue", int, int], Awaitable[RawPull]]


class PullFailures:
    """Which pulls of a member fail, so that brokers that are away are logged once each, not once a queue."""

    def __init__(self) -> None:
        #: Queues whose last pull failed, by the broker's name and the kind of error.
        self._failing: dict[tuple[str, type], set[MessageQueue]] = {}
        #: Those kinds that were logged since a pull from the broker worked.
        self._told: set[tuple[str, type]] = set()

    def log(self, queue: MessageQueue, error: Exception, pause_s: float) -> None:
        """Log a failure, as a warning where the queue has not failed before, and no other one of its broker either
        since one worked."""
        kind = queue.broker_name, type(error)
        failing = self._failing.setdefault(kind, set())
        is_new = queue not in failing and kind not in self._told
        if queue not in failing:
            failing.add(queue)
            self._told.add(kind)
        if isinstance(error, MQError):
            log.log(
                logging.WARNING if is_new else logging.DEBUG,
                "%s: %s; trying it and the other queues of the broker every %g s",
                queue,
                error,
                pause_s,
            )
        elif is_new:
            log.error("%s: pulling failed", queue, exc_info=error)

    def worked(self, queue: MessageQueue) -> None:
        """Called when a pull of a queue that had failed has worked, or it is pulled no more."""
        for kind in [kind for kind in self._failing if kind[0] == queue.broker_name]:
            self._told.discard(kind)
            self._failing[kind].discard(queue)
            if not self._failing[kind]:
                del self._failing[kind]


class AssignedQueue:
    """Pulls `queue` from `find_start()` on until it is stopped or dropped, and delivers what matches.

    `promised` is an administrator's offset, to be committed until a broker has confirmed where the queue starts.
    """

    def __init__(
        self,
        net: Net,
        queue: MessageQueue,
        subscription: SubscriptionData,
        options: MemberOptions,
        *,
        pause_s: float,
        find_start: Callable[[MessageQueue], Awaitable[int]],
        pull: Pull,
        deliver: Callable[[AssignedQueue, PulledBatch, float], None],
        failures: PullFailures,
        promised: int | None = None,
    ) -> None:
        self.queue = queue
        self.dropped = False
        self.subscription = subscription
        self._net = net
        self._options = options
        self._find_start = find_start
        self._pull = pull
        self._deliver = deliver
        self._failures = failures
        self._broker_id = MASTER_ID
        self._process_queue: ProcessQueue | None = None
        self._answered = False
        self._has_failed = False
        #: When the next message that keeps this queue from being pulled is logged.
        self._warn_of_span_at = float("-inf")
        self._promised = promised
        self._pause_s = pause_s
        self._pulled_at = self._began_at = net.now()
        #: How long the pull took whose messages are taken, seconds.
        self._took_s = 0.0
        self._stopped = False
        self._limits = options.queue_messages_max, options.queue_bytes_max
        self._is_paused = False
        #: When it last did something, by the clock that is never set; None while it waits.
        self._active_at: float | None = None
        self._room = net.signal()
        self._task = net.spawn(self._run())

    @property
    def committable(self) -> int | None:
        """The offset to commit, or None until the broker has confirmed where this queue starts."""
        return self._process_queue.committable if self._process_queue is not None and self._answered else self._promised

    def info(self) -> ProcessQueueInfo:
        """Its state, for administrators."""
        held = self._process_queue
        first, last = (0, 0) if held is None else held.span
        committable = self.committable
        return ProcessQueueInfo(
            commit_offset=-1 if committable is None else committable,
            cached_msg_min_offset=first,
            cached_msg_max_offset=last,
            cached_msg_count=0 if held is None else len(held),
            cached_msg_size_in_mi_b=0 if held is None else held.bytes // (1024 * 1024),
            droped=self.dropped,
            last_pull_timestamp=int(self._pulled_at * 1000),
            last_consume_timestamp=int((self._began_at if held is None else held.consumed_at) * 1000),
        )

    def limit(self, messages_max: int, bytes_max: int) -> None:
        """Hold at most so many messages and bytes."""
        self._limits = messages_max, bytes_max
        if self._process_queue is not None:
            self._process_queue.limit(messages_max, bytes_max)

    def pause(self) -> None:
        """Pull no more until `resume`; what is on its way still comes."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._room.set()

    @property
    def is_stuck(self) -> bool:
        """Whether it does nothing, although it could pull: ProcessQueue.isPullExpired of 4.9.7."""
        return self._active_at is not None and self._net.steady() - self._active_at > _STUCK_S

    def _no_failure(self) -> None:
        if self._has_failed:
            self._has_failed = False
            self._failures.worked(self.queue)

    def stop(self) -> None:
        """Stop pulling; messages that were pulled still count."""
        self._stopped = True
        self._no_failure()
        self._task.cancel()

    def drop(self) -> None:
        """Stop, and ignore later results: another member continues from the committed offset."""
        self.dropped = True
        if self._process_queue is not None:
            self._process_queue.clear()
            self._process_queue = None
        self.stop()

    def _is_stopped(self) -> bool:
        return self._stopped

    async def _run(self) -> None:
        if self._pause_s:
            await self._net.sleep(self._pause_s)
        while not self._is_stopped():
            self._active_at = None if self._process_queue is None else self._net.steady()
            try:
                await self._step()
            except Exception as error:
                if self._is_stopped():
                    return
                if isinstance(error, Unreachable):
                    self._broker_id = MASTER_ID if self._broker_id else SLAVE_ID
                self._has_failed = True
                self._failures.log(self.queue, error, self._options.pull_error_pause_s)
                await self._net.sleep(self._options.pull_error_pause_s)
            else:
                self._no_failure()

    async def _step(self) -> None:
        held = self._process_queue
        if held is None:
            start = await self._find_start(self.queue)
            self._process_queue = ProcessQueue(
                self.queue,
                start,
                messages_max=self._limits[0],
                bytes_max=self._limits[1],
                span_max=self._options.queue_span_max,
                began=self._began_at,
            )
        elif held.is_full:
            if held.is_stretched and self._net.steady() >= self._warn_of_span_at:
                self._warn_of_span_at = self._net.steady() + TELL_EVERY_S
                log.warning(
                    "%s: not pulled on while message %d is not consumed: more than %d came after it (queue_span_max)",
                    self.queue,
                    held.span[0],
                    self._options.queue_span_max,
                )
            held.on_room = self._room.set
            self._active_at = None
            await self._room.wait()
        elif self._is_paused:
            self._active_at = None
            await self._room.wait()
        else:
            self._pulled_at = self._net.now()
            pulled = await self._pull(self, held.next_offset, self._broker_id)
            if not self._is_stopped():
                self._took_s = max(0.0, self._net.now() - self._pulled_at)
                asked = held.next_offset
                self._add_pulled(held, pulled)
                if pulled.status is PullStatus.NO_NEW_MESSAGE:
                    if self._took_s < min(_HELD_S, self._options.suspend_s):
                        await self._net.sleep(_NOT_HELD_PAUSE_S)
                elif pulled.next_offset <= asked:
                    await self._net.sleep(self._options.pull_error_pause_s)

    def goes_on(self, pulled: RawPull) -> bool:
        """Whether the next pull may follow one that has found messages, before `take` has them."""
        held = self._process_queue
        if held is None or pulled.broker_id != self._broker_id or self._is_paused:
            return False
        self._active_at = self._net.steady()
        if held.would_be_full(self._options.pull_batch, len(pulled.body)):
            return False
        now = self._net.now()
        self._took_s, self._pulled_at = max(0.0, now - self._pulled_at), now
        return True

    def take(self, pulled: RawPull) -> None:
        """Take what a pull has found. Raises BadRecord and UnexpectedResponse."""
        if self._process_queue is not None:
            self._add_pulled(self._process_queue, pulled)

    def _add_pulled(self, held: ProcessQueue, pulled: RawPull) -> None:
        messages, unreadable = read_messages(pulled, self.queue, self.subscription, held.next_offset)
        self._no_failure()
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "%s: offset %d is not between %d and %d; going on at %d",
                self.queue,
                held.next_offset,
                pulled.min_offset,
                pulled.max_offset,
                pulled.next_offset,
            )
        batch = held.add(messages, pulled.next_offset, unreadable)
        self._broker_id = pulled.broker_id
        self._answered = True
        if pulled.status is PullStatus.FOUND:
            self._deliver(self, batch, self._took_s)
