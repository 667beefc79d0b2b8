"""What of one message queue has been pulled and not yet consumed, and the offset that may be committed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mqbroker.client.messages import ReceivedMessage
from mqbroker.wire.bodies import MessageQueue


class ProcessQueue:
    """The pulled part of `queue`. Messages come in by offset and leave in any order."""

    def __init__(
        self, queue: MessageQueue, next_offset: int, *, messages_max: int, bytes_max: int, span_max: int
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._span_max = span_max
        #: By offset, with the number of each among all that came.
        self._held: OrderedDict[int, tuple[int, ReceivedMessage]] = OrderedDict()
        self._held_bytes = 0
        self._came = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        return len(self._held) >= self._messages_max or self._held_bytes >= self._bytes_max or self.is_stretched

    @property
    def is_stretched(self) -> bool:
        """Whether the first message held keeps more than `span_max` others, consumed or not, from being committed.

        Java looks at those alone that are not consumed; one that is stuck then lets the others grow without an end.
        """
        return bool(self._held) and self._came - next(iter(self._held.values()))[0] > self._span_max

    @property
    def committable(self) -> int:
        """The lowest offset that is not consumed: a consumer that starts there misses nothing."""
        if not self._held:
            return self.next_offset
        return min(next(iter(self._held)), self.next_offset)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last offset of what is held; zeros where nothing is."""
        return (next(iter(self._held)), next(reversed(self._held))) if self._held else (0, 0)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Take in what a pull brought; the next one starts at `next_offset`."""
        for message in messages:
            self._forget(message.queue_offset)
            self._came += 1
            self._held[message.queue_offset] = self._came, message
            self._held_bytes += len(message.body)
        self.next_offset = next_offset

    def done(self, message: ReceivedMessage) -> None:
        """The message at this offset needs no more work."""
        self._forget(message.queue_offset)

    def _forget(self, offset: int) -> None:
        held = self._held.pop(offset, None)
        if held is not None:
            self._held_bytes -= len(held[1].body)
