"""Orderly consumption: the messages of a queue go to the listener one after the other, under a lock at the broker.

As ConsumeMessageOrderlyService of 4.9.7: a message that is not consumed keeps its queue waiting, and comes again after
a pause. Only the member that has locked a queue hands out its messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import attrs

from mqbroker.client.identity import Identity
from mqbroker.client.listeners import OrderlyResult
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import Net, Task, checked
from mqbroker.client.process_queue import Owner, Portion, PulledBatch
from mqbroker.client.routes import Routes
from mqbroker.errors import MQError
from mqbroker.wire.bodies import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand

log = logging.getLogger(__name__)

#: A lock is renewed after, and counts for: ProcessQueue of 4.9.7. Brokers give a lock up after 60 s.
LOCK_EVERY_S = 20.0
LOCK_S = 30.0
#: Others may have had a queue whose lock was not renewed for longer after it had expired here.
_LAPSED_S = 25.0
#: The pause before another attempt to lock a queue.
LOCK_PAUSE_S = 1.0
#: Queues of one request: the response, which lists them, has half a MiB at most.
QUEUES_TOGETHER_MAX = 1000


class QueueLocks:
    """The locks of a group's member on its queues."""

    def __init__(self, net: Net, routes: Routes, identity: Identity, group: str, timeout_ms: int) -> None:
        self._net = net
        self._routes = routes
        self._identity = identity
        self._group = group
        self._timeout_ms = timeout_ms
        #: When the lock of a queue ends, by the clock that is never set.
        self._until: dict[MessageQueue, float] = {}

    def holds(self, queue: MessageQueue) -> bool:
        until = self._until.get(queue)
        return until is not None and self._net.steady() < until

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues, or renew their locks. Returns those that others have, or may have had meanwhile. Those whose
        brokers do not answer stay as they are."""
        lost: set[MessageQueue] = set()
        began = self._net.steady()
        for ours, answer in await self._ask(RequestCode.LOCK_BATCH_MQ, queues):
            granted = LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set
            for queue in ours:
                until = self._until.get(queue)
                if queue not in granted:
                    self._until.pop(queue, None)
                    lost.add(queue)
                    continue
                if until is not None and began - until > _LAPSED_S:
                    lost.add(queue)
                self._until[queue] = began + LOCK_S
        return lost

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks up; those whose brokers do not answer expire."""
        held = [queue for queue in queues if self._until.pop(queue, None) is not None]
        await self._ask(RequestCode.UNLOCK_BATCH_MQ, held)

    def forget(self) -> None:
        """Take all for expired."""
        self._until.clear()

    async def _ask(
        self, code: RequestCode, queues: Iterable[MessageQueue]
    ) -> list[tuple[list[MessageQueue], RemotingCommand]]:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        asked, requests = [], []
        for of_broker in by_broker.values():
            try:
                addr = await self._routes.address(of_broker[0], master_only=True)
            except MQError as error:
                log.info("queues of broker %s are not locked now: %s", of_broker[0].broker_name, error)
                continue
            for at in range(0, len(of_broker), QUEUES_TOGETHER_MAX):
                ours = of_broker[at : at + QUEUES_TOGETHER_MAX]
                body = LockBatchRequestBody(self._group, self._identity.client_id, frozenset(ours))
                asked.append(ours)
                requests.append((addr, RemotingCommand.request(code, body=body.to_json())))
        found = []
        for ours, answer in zip(asked, await self._net.invoke_many(requests, self._timeout_ms), strict=True):
            try:
                found.append((ours, checked(answer)))
            except MQError as error:
                log.info("queues of broker %s are not locked now: %s", ours[0].broker_name, error)
        return found


@attrs.define(eq=False)
class _Line:
    """The messages of an assigned queue that wait for their turn."""

    portions: deque[Portion] = attrs.Factory(deque)
    #: The one that is handed out, or paused.
    current: Portion | None = None
    #: How long it pauses before it is handed out again.
    pause_s: float | None = None
    pause: Task | None = None
    #: Consumed, and not committed yet.
    uncommitted: list[tuple[PulledBatch, int]] = attrs.Factory(list)


class Order:
    """Hands out the messages of each queue in their order."""

    def __init__(
        self, net: Net, locks: QueueLocks | None, *, attempts_max: int | None, suspend_s: float, auto_commit: bool
    ) -> None:
        """`locks` is None where the queues are not shared, `attempts_max` where a message is tried for ever."""
        self._net = net
        self._locks = locks
        self._attempts_max = attempts_max
        self._suspend_s = suspend_s
        self.auto_commit = auto_commit
        self._lines: dict[Owner, _Line] = {}
        #: Hands out the rest of a portion.
        self.hand_out: Callable[[Portion], None] = lambda _: None

    def add(self, portion: Portion) -> None:
        """Hand out a portion after those of its queue that came before."""
        line = self._lines.setdefault(portion.owner, _Line())
        line.portions.append(portion)
        if line.current is None:
            self._next(line)

    def may_hand_out(self, portion: Portion) -> bool:
        """Whether the lock on its queue counts; if not, the queue pauses until it does."""
        if self._locks is None or self._locks.holds(portion.owner.queue):
            return True
        if (line := self._lines.get(portion.owner)) is not None:
            line.pause_s = 0.0
        return False

    def is_paused(self, portion: Portion) -> bool:
        line = self._lines.get(portion.owner)
        return line is None or line.pause_s is not None

    def is_busy(self, queue: MessageQueue) -> bool:
        """Whether the listener has messages of a queue, or what it said of them is still settled."""
        return any(
            line.current is not None and line.pause is None
            for owner, line in self._lines.items()
            if owner.queue == queue
        )

    def consumed(self, portion: Portion, indexes: Sequence[int], result: object) -> None:
        """Called when the listener has consumed messages of a portion."""
        line = self._lines.get(portion.owner)
        if line is None:
            return
        line.uncommitted += [(portion.batch, index) for index in indexes]
        if self.auto_commit or result is OrderlyResult.COMMIT:
            now = self._net.now()
            for batch, index in line.uncommitted:
                batch.done(index, now)
            line.uncommitted.clear()

    def failed(
        self, portion: Portion, left: Sequence[tuple[int, ReceivedMessage]], result: object, pause_s: float | None
    ) -> list[tuple[int, ReceivedMessage]]:
        """Called when messages of a portion were not consumed: the queue pauses, and they come again.

        Returns them where all were tried so often that they go to the dead letters, and the queue goes on.
        """
        line = self._lines.get(portion.owner)
        if line is None:
            return []
        if result is OrderlyResult.ROLLBACK and not self.auto_commit:
            again = [*line.uncommitted, *((portion.batch, index) for index, _ in left)]
            line.uncommitted = []
            parts = [Portion(portion.owner, batch, index, index + 1) for batch, index in again]
            rest = Portion(portion.owner, portion.batch, portion.next, portion.end)
            line.portions.extendleft(reversed([*parts, rest]))
            portion.end = portion.next
            line.pause_s = self._suspend_s if pause_s is None else pause_s
            return []
        dead = [
            (i, message)
            for i, message in left
            if self._attempts_max is not None and message.reconsume_times >= self._attempts_max
        ]
        if len(dead) == len(left):
            return dead
        for index, message in left:
            portion.batch.messages[index] = attrs.evolve(message, reconsume_times=message.reconsume_times + 1)
        self.pause(portion, left[0][0], pause_s)
        return []

    def pause(self, portion: Portion, index: int, pause_s: float | None = None) -> None:
        """Have a portion go on at `index` after a pause."""
        portion.next = index
        if (line := self._lines.get(portion.owner)) is not None:
            line.pause_s = self._suspend_s if pause_s is None else pause_s

    def give_back(self, portion: Portion) -> None:
        """Called when a portion is no longer with a call of the listener."""
        line = self._lines.get(portion.owner)
        if line is None or line.current is not portion:
            return
        if portion.owner.dropped:
            del self._lines[portion.owner]
        elif line.pause_s is not None:
            line.pause = self._net.spawn(self._go_on_later(line, portion, line.pause_s))
        elif portion.next < portion.end:
            self.hand_out(portion)
        else:
            self._next(line)

    async def _go_on_later(self, line: _Line, portion: Portion, pause_s: float) -> None:
        queue = portion.owner.queue
        await self._net.sleep(pause_s)
        while self._locks is not None and not self._locks.holds(queue):
            try:
                await self._locks.lock([queue])
            except Exception as error:  # or the queue would stand still
                if self._net.is_cancelled(error):
                    raise
                log.warning(
                    "%s cannot be locked; trying again: %s", queue, error, exc_info=not isinstance(error, MQError)
                )
            if not self._locks.holds(queue):
                await self._net.sleep(LOCK_PAUSE_S)
        line.pause = line.pause_s = None
        if self._lines.get(portion.owner) is not line:
            return
        if portion.next < portion.end:
            self.hand_out(portion)
        else:
            self._next(line)

    def _next(self, line: _Line) -> None:
        line.current = line.portions.popleft() if line.portions else None
        if line.current is not None:
            self.hand_out(line.current)

    def finish(self, owner: Owner) -> None:
        """Hand out nothing more of a queue than what the listener has."""
        line = self._lines.get(owner)
        if line is None:
            return
        line.portions.clear()
        if line.current is not None:
            line.current.end = line.current.next
        if line.pause is not None or line.current is None:
            self._end(owner)

    def forget_dropped(self) -> None:
        """Forget queues that were dropped."""
        for owner in [owner for owner in self._lines if owner.dropped]:
            self._end(owner)

    def stop(self) -> None:
        """Hand out nothing more."""
        for owner in list(self._lines):
            self.finish(owner)

    def _end(self, owner: Owner) -> None:
        line = self._lines[owner]
        if line.pause is not None:
            line.pause.cancel()
        if line.pause is not None or line.current is None or owner.dropped:
            del self._lines[owner]
