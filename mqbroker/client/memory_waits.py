"""Waits of tests until the broker in memory has what they expect, on each API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import check_group, check_topic
from mqbroker.client.options import check_number
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RETRY_PREFIX, SCHEDULE_TOPIC, Prop

_PAUSE_S: Final = 0.005

T = TypeVar("T", covariant=True)
#: A pause between two looks at the broker. Ends with TimeoutError.
Looks = Iterator[None]


class Broker(Protocol):
    """What is waited for."""

    def messages(self, topic: str) -> list[ReceivedMessage]: ...

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]: ...


class Waits(Generic[T]):
    """Methods that wait until the broker has what a test expects. Those of the broker itself block, those of its `aio`
    are coroutines, and those of its `deferred` return Deferreds."""

    def __init__(self, broker: Broker, wait: Callable[[Looks], T]) -> None:
        self._broker, self._wait = broker, wait

    def wait_for_messages(self, topic: str, count: int, timeout_s: float = 10.0) -> T:
        """Wait until a topic has at least `count` messages. Raises TimeoutError, which says how many it has."""
        check_topic(topic)
        check_number("count", count, 1)
        return self._until(lambda: self._lacks(topic, count), timeout_s)

    def wait_until_consumed(self, group: str, topic: str, timeout_s: float = 10.0) -> T:
        """Wait until a group has committed all messages of a topic, including retries. Raises TimeoutError, which says
        what is left.

        Consumers commit every 5 s: set a shorter `commit_s` in tests. `advance` delivers messages that wait for a
        retry. Dead letters count as consumed.
        """
        check_topic(topic)
        check_group(group)
        return self._until(lambda: self._unconsumed(group, topic), timeout_s)

    def _until(self, look: Callable[[], str], timeout_s: float) -> T:
        check_number("timeout_s", timeout_s, 0, kind=float)
        return self._wait(_looks(look, timeout_s))

    def _lacks(self, topic: str, count: int) -> str:
        found = len(self._broker.messages(topic))
        return f"{topic} has {found} of {count} messages" if found < count else ""

    def _unconsumed(self, group: str, topic: str) -> str:
        retries = RETRY_PREFIX + group
        came_again = self._broker.messages(retries)
        delayed = [
            each for each in self._broker.messages(SCHEDULE_TOPIC) if each.properties.get(Prop.REAL_TOPIC) == retries
        ]
        left = [f"{len(delayed) - len(came_again)} wait for their retry"] if len(delayed) > len(came_again) else []
        stored = self._broker.messages(topic)
        if not stored:
            left.append(f"{topic} has no messages")
        for name, messages in ((topic, stored), (retries, came_again)):
            offsets = self._broker.committed(group, name)
            for queue in sorted({each.queue for each in messages}):
                count = sum(each.queue == queue for each in messages)
                if (committed := offsets.get(queue, 0)) < count:
                    left.append(f"queue {queue.queue_id} of {name} is committed up to {committed} of {count}")
        return f"group {group} has not consumed all: {'; '.join(left)}" if left else ""


def _looks(look: Callable[[], str], timeout_s: float) -> Looks:
    ends_at = time.monotonic() + timeout_s
    while lacks := look():
        if time.monotonic() >= ends_at:
            raise TimeoutError(f"after {timeout_s:g} s {lacks}")
        yield


def wait_on_thread(looks: Looks) -> None:
    """Wait on a thread that may block."""
    for _ in looks:
        time.sleep(_PAUSE_S)


async def wait_on_asyncio(looks: Looks) -> None:
    """Wait on the running loop."""
    for _ in looks:
        await asyncio.sleep(_PAUSE_S)


def wait_on_twisted(looks: Looks) -> Deferred[None]:
    """Wait on the global reactor."""
    from twisted.internet import reactor
    from twisted.internet.task import deferLater

    async def wait() -> None:
        for _ in looks:
            await deferLater(reactor, _PAUSE_S)

    return Deferred.fromCoroutine(wait())
