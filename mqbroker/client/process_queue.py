"""The pulled messages of a queue: those held, whether more may be pulled, and the offset that may be committed; also
for programs that poll."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs

from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.observers import HandingOut
from mqbroker.wire.bodies import MessageQueue


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
        #: Size of all their bodies.
        self.bytes = sum([len(message.body) for message in messages])
        self.first_number = first_number
        self._held = held

    @property
    def queue(self) -> MessageQueue:
        return self._held.queue

    def first_left(self) -> int:
        """The index of the first that is not done; beyond the last if all are, and not counted out yet."""
        found = (index for index, message in enumerate(self.messages) if message is not None)
        return next(found, len(self.messages))

    def index(self, message: ReceivedMessage) -> int | None:
        """The index of a message that is not done."""
        return next((index for index, each in enumerate(self.messages) if each is message), None)

    def done(self, index: int, now: float) -> None:
        """Called when a message is consumed, or was sent back: it is no longer held."""
        if self.messages[index] is not None:
            self.messages[index] = None
            self.count_out(1, now)

    def remove(self, indexes: Sequence[int], now: float) -> None:
        """As `done`, for several messages."""
        for index in indexes:
            self.messages[index] = None
        self.count_removed(now)

    def count_removed(self, now: float) -> None:
        """Called when messages have been replaced by None: they are no longer held."""
        self.count_out(self.left - len(self.messages) + self.messages.count(None), now)

    def count_out(self, count: int, now: float) -> None:
        """Called when `count` messages have been replaced by None: they are no longer held."""
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


@attrs.frozen
class _Returned:
    """Messages of a batch that a poll has returned."""

    owner: Owner
    batch: PulledBatch
    indexes: Sequence[int]
    #: Called with what becomes of them.
    ends: Sequence[Callable[[ConsumeResult], None]] = ()


class Polled:
    """Portions that wait for polls, and the messages that the last poll has returned."""

    def __init__(self, now: Callable[[], float], observe: HandingOut | None) -> None:
        """`observe` sees the messages returned."""
        self._now = now
        self._observe = observe
        self.waiting: deque[Portion] = deque()
        #: Queues whose messages are kept.
        self.paused: set[MessageQueue] = set()
        self._returned: list[_Returned] = []
        #: The portion that is iterated over: all before the message that was returned last are consumed.
        self._iterated: Portion | None = None

    def take(self, count: int) -> list[ReceivedMessage]:
        """Return up to `count` messages."""
        self.end_iteration()  # of another task
        found: list[ReceivedMessage] = []
        for _ in range(len(self.waiting)):
            portion = self.waiting.popleft()
            if portion.owner.dropped:
                continue
            if portion.owner.queue in self.paused:
                self.waiting.append(portion)
                continue
            indexes, messages = portion.take(count - len(found))
            if count == 1 and messages and self._observe is None:
                self._iterated = portion
                return messages
            ends: list[Callable[[ConsumeResult], None]] = []
            if self._observe is not None:
                observed = [self._observe(message) for message in messages]
                messages, ends = [shown for shown, _ in observed], [end for _, end in observed]
            found += messages
            if indexes:
                self._returned.append(_Returned(portion.owner, portion.batch, indexes, ends))
            if portion.next < portion.end:
                self.waiting.appendleft(portion)
            if len(found) == count:
                break
        return found

    def next_at_once(self) -> ReceivedMessage | None:
        """Count what `take(1)` returned as consumed, and return the next message of the same portion; None if there is
        none, or `settle` and `take` are to be called."""
        portion = self._iterated
        if portion is None:
            return None
        messages, at, end = portion.batch.messages, portion.next, portion.end
        messages[at - 1] = None
        while at < end:
            message = messages[at]
            at += 1
            if message is not None:
                portion.next = at
                return message
        portion.next = at
        return None

    def end_iteration(self) -> None:
        """Have the rest of the portion that is iterated over wait with the others."""
        portion, self._iterated = self._iterated, None
        if portion is not None:
            self._returned.append(_Returned(portion.owner, portion.batch, [portion.next - 1]))
            if portion.next < portion.end:
                self.waiting.appendleft(portion)

    def settle(self) -> None:
        """Count what the last poll has returned as consumed."""
        self.end_iteration()
        now = self._now()
        for each in self._returned:
            each.batch.remove(each.indexes, now)
        self.forget_returned(ConsumeResult.SUCCESS)

    def forget_returned(self, result: ConsumeResult) -> None:
        """Report the outcome of the messages that were returned last to the observers."""
        self.end_iteration()
        returned, self._returned = self._returned, []
        for each in returned:
            for end in each.ends:
                end(result)

    def take_back(self) -> None:
        """Have the messages that were returned last wait again: the program did not get them."""
        self.end_iteration()
        former = [Portion(each.owner, each.batch, each.indexes[0], each.indexes[-1] + 1) for each in self._returned]
        self.waiting.extendleft(reversed(former))
        self.forget_returned(ConsumeResult.RETRY)

    def returned(self) -> Counter[MessageQueue]:
        """How many messages the last poll has returned of each queue, unless that was dropped since."""
        self.end_iteration()
        held = (each for each in self._returned for index in each.indexes if each.batch.messages[index] is not None)
        return Counter(each.batch.queue for each in held)

    def forget_dropped(self) -> None:
        self.waiting = deque(portion for portion in self.waiting if not portion.owner.dropped)


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
        """Set the limits of messages and bytes."""
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self.released()

    def would_be_full(self, messages: int, size: int) -> bool:
        """Whether it would be full with these additional messages and bytes."""
        is_full = self.count + messages >= self._messages_max or self.bytes + size >= self._bytes_max
        return is_full or self._would_be_stretched(messages)

    def _would_be_stretched(self, messages: int) -> bool:
        came = self._came + messages
        if not self._batches:
            return messages - 1 > self._span_max
        if came - self._batches[0].first_number <= self._span_max:
            return False
        first = self._batches[0]
        return came - first.first_number - first.first_left() - 1 > self._span_max

    @property
    def committable(self) -> int:
        """The lowest unconsumed offset: a consumer that starts there misses nothing."""
        first = self._first(self._batches)
        return self.next_offset if first is None else min(first.queue_offset, self.next_offset)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last offset held; zeros if empty."""
        first, last = self._first(self._batches), self._first(reversed(self._batches), -1)
        return (0, 0) if first is None or last is None else (first.queue_offset, last.queue_offset)

    @staticmethod
    def _first(batches: Iterable[PulledBatch], step: int = 1) -> ReceivedMessage | None:
        return next((each for batch in batches for each in batch.messages[::step] if each is not None), None)

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
