"""The lite pull consumer's core: a program polls the messages of queues that it names, or that its group shares.

What a poll has returned counts as consumed at the next one, so that a program that fails in between gets it again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, cast

from mqbroker.client.assigned_queues import AssignedQueue, AssignedQueues, committable
from mqbroker.client.errors import BadArgument, ClientClosed
from mqbroker.client.identity import Identity
from mqbroker.client.index_requests import Queries
from mqbroker.client.lag import Lag, lag_of
from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.member_observers import MemberObservers
from mqbroker.client.membership import LoopWatch, Membership
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import bare_message, bare_queue, check_group, check_topic, queue_within, within
from mqbroker.client.net import Ending, Net, Signal, Task, every
from mqbroker.client.offset_stores import LocalOffsets
from mqbroker.client.options import LitePullOptions, MessageModel, check_number, milliseconds
from mqbroker.client.process_queue import Polled, Portion, PulledBatch
from mqbroker.client.queue_requests import Offsets, Reads
from mqbroker.client.routes import Routes
from mqbroker.client.running_info import positions
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.errors import Refused
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode

log = logging.getLogger(__name__)

#: Called with the queues of a topic when they have changed.
QueuesChanged = Callable[[frozenset[MessageQueue]], Any]


class Place(Enum):
    """The beginning or the end of a queue, for `seek`."""

    BEGIN = "begin"
    END = "end"


class LitePullConsumerCore:
    """Reads queues for `group`: the ones that the program names (`assign`), or its share of topics (`subscribe`)."""

    def __init__(
        self, net: Net, name_servers: tuple[str, ...], group: str, options: LitePullOptions, identity: Identity
    ) -> None:
        self._net = net
        self._name_servers = name_servers
        self._namespace = options.namespace
        self.group = group = within(self._namespace, check_group(group))
        self._options = options
        self._identity = identity
        self._timeout_ms = milliseconds("request_timeout_s", options.request_timeout_s)
        timeout_ms = milliseconds("pull_timeout_s", options.pull_timeout_s)
        self._routes = Routes(net, name_servers, age_s=options.route_age_s, timeout_ms=self._timeout_ms)
        self.offsets = Offsets(net, self._routes, group, self._timeout_ms, namespace=self._namespace)
        self.queries = Queries(net, self._routes, self._timeout_ms, self._namespace)
        self._reads = Reads(net, self._routes, group, self.offsets, timeout_ms)
        is_broadcasting = options.model is MessageModel.BROADCASTING
        self._store = options.offset_store or (LocalOffsets() if is_broadcasting else self.offsets)
        self._membership = Membership(
            net, self._routes, identity, group, options, self._take_share, self._give_up, "CONSUME_ACTIVELY"
        )
        self._watch = LoopWatch(net, group, "that polls", options.heartbeat_s, self._come_back)
        self._assigned = AssignedQueues(net, self._routes, group, options, self._store, self.offsets, self._deliver)
        self._observers = MemberObservers(net, name_servers, group, options, identity)
        self._observe = self._observers.handing_out(group, lambda: identity.client_id)
        self._assigned.filters = self._observers.filters
        #: The expression for queues that the program assigned.
        self._expression: str | Sql = ALL
        self._polled = Polled(net.now, self._observe)
        self._asking: list[Signal] = []
        self._by_hand = self._joined = self._started = self._closed = False
        self._loops: list[Task] = []

    # which queues

    @property
    def client_id(self) -> str:
        """The id of this client, as brokers know it; empty before the start."""
        return self._identity.client_id

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues that it reads now."""
        return frozenset(bare_queue(self._namespace, queue) for queue in self._assigned)

    async def start(self) -> None:
        """Connect, and join the group if there are subscriptions. Raises NameServerUnreachable, BadOffsetFile, Refused
        if all brokers refuse the account, and ClientClosed if it was started before."""
        if self._started or self._closed:
            raise ClientClosed("a lite pull consumer can be started only once")
        await self._routes.check()
        self._identity.take()
        await self._store.open(self.group, self._name_servers)
        self._started = True
        options = self._options
        loops = [every(self._net, options.route_age_s, self._routes.refresh_all)]
        if options.auto_commit:
            loops.append(every(self._net, options.commit_s, self._commit_oneway))
        loops += self._observers.loops(self.lag)
        self._loops += [self._net.spawn(loop) for loop in loops]
        if self._by_hand:
            self._take([*self._membership.queues])
        elif self._membership.subscriptions:
            await self._join()
        if self._closed:
            raise ClientClosed("this lite pull consumer was closed while it started")

    async def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        """Read the group's share of `topic`: messages with one of the tags in "a || b", or all with "*", or those that
        `Sql("...")` picks. Raises BadArgument on a bad name or expression, or after `assign`."""
        self._check_open()
        if self._by_hand:
            raise BadArgument("subscribe", "left out after assign(): queues are shared, or named", topic)
        topic = within(self._namespace, check_topic(topic))
        self._membership.subscribe(topic, expression)
        if self._started and not self._joined:
            await self._join()
        elif self._started:
            await self._membership.apply(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading `topic`. Does nothing without a subscription to it."""
        self._check_open()
        topic = within(self._namespace, check_topic(topic))
        if self._membership.subscriptions.pop(topic, None) is not None and self._joined:
            await self._membership.apply(topic)

    async def assign(self, queues: Iterable[MessageQueue], expression: str | Sql = ALL) -> None:
        """Read exactly these queues, and leave the group out: others may read them too. Of their messages come those
        that `expression` picks, as of `subscribe`. Raises BadArgument, also after `subscribe`."""
        self._check_open()
        wanted = {self._within(queue) for queue in _several(queues)}
        subscribe_to("", expression, 0)
        if self._membership.subscriptions:
            raise BadArgument("assign", "left out after subscribe(): queues are shared, or named", sorted(wanted))
        self._by_hand = True
        self._membership.queues = wanted
        is_other, self._expression = expression != self._expression, expression
        if self._started:
            await self._give_up([queue for queue in self._assigned if queue not in wanted])
            for queue in [*self._assigned] if is_other else ():
                self._restart(queue, self._assigned[queue].committable)
            self._take([queue for queue in wanted if queue not in self._assigned])

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this lite pull consumer was closed")

    async def _join(self) -> None:
        self._joined = True
        try:
            settled = await self._membership.join()
        except BaseException:
            self._joined = False  # the next subscription tries again
            raise
        heartbeats = self._membership.heartbeats.keep_sending()
        for loop in (self._watch.run(), self._membership.keep_balanced(settled), heartbeats):
            self._loops.append(self._net.spawn(loop))

    def _take_share(self, queues: Sequence[MessageQueue], is_shared: bool) -> None:
        self._take(queues, self._options.takeover_pause_s if is_shared else 0.0)

    async def _give_up(self, queues: Sequence[MessageQueue]) -> None:
        # Before any wait: meanwhile they may be assigned again.
        given_up = {queue: self._assigned.pop(queue) for queue in queues}
        offsets = committable(given_up) if self._options.auto_commit else {}
        for assigned in given_up.values():
            assigned.drop()
        self._polled.paused.difference_update(queues)
        self._polled.forget_dropped()
        self._assigned.limit()
        for queue, offset in offsets.items():
            await self._store.commit_oneway(queue, offset)
        await self._store.flush()

    def _take(self, queues: Iterable[MessageQueue], pause_s: float = 0.0, promised: int | None = None) -> None:
        async def there(queue: MessageQueue) -> int:
            assert promised is not None
            return promised

        for queue in sorted(queues):
            begun = self._assigned.begin(
                queue,
                self._membership.subscriptions.get(queue.topic) or subscribe_to(queue.topic, self._expression, 0),
                pause_s=pause_s,
                promised=promised,
                find_start=None if promised is None else there,
            )
            if queue in self._polled.paused:
                begun.pause()
        self._assigned.limit()

    # messages

    def _deliver(self, assigned: AssignedQueue, batch: PulledBatch, took_s: float) -> None:
        if batch.messages:
            self._polled.waiting.append(Portion(assigned, batch, 0, len(batch.messages)))
            self._wake()

    def _wake(self) -> None:
        for signal in self._asking:
            signal.set()

    async def poll(self, timeout_s: float | timedelta = 5.0, max_count: int = 100) -> list[ReceivedMessage]:
        """Return up to `max_count` messages, as soon as there are any; none after `timeout_s`, or when the consumer is
        closed. The messages of the previous poll then count as consumed. Raises ClientClosed before the start."""
        wait_s = milliseconds("timeout_s", timeout_s, 0) / 1000
        check_number("max_count", max_count, 1)
        return await self.next_messages(max_count, self._net.steady() + wait_s)

    def next_at_once(self) -> ReceivedMessage | None:
        """As `next_messages(1)`, where it is in the portion that is iterated over, and nothing is to be done first."""
        # `was_away`, once for each message: without the calls of a property.
        return None if self._net.steady() > self._watch.away_at else self._polled.next_at_once()

    async def next_messages(self, count: int, until: float | None = None) -> list[ReceivedMessage]:
        """As `poll`, until a time of the clock that is never set; None waits for ever."""
        if not self._started and not self._closed:
            raise ClientClosed("a lite pull consumer is polled after its start")
        self._polled.settle()
        while not self._closed:
            if self._watch.was_away:
                await self._watch.ensure_member()
            if found := self._polled.take(count):
                return found
            left_s = None if until is None else until - self._net.steady()
            if left_s is not None and left_s <= 0:
                break
            signal = self._net.signal()
            self._asking.append(signal)
            try:
                await signal.wait(left_s)
            finally:
                self._asking.remove(signal)
        return []

    def take_back(self) -> None:
        """Return the messages of the last poll again: the program did not get them."""
        self._polled.take_back()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop reading these queues, by default all, until `resume`."""
        self._polled.end_iteration()
        for queue in self._checked(queues):
            self._polled.paused.add(queue)
            self._assigned[queue].pause()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Read queues again after `pause`, by default all."""
        resumed = self._checked(queues)
        if queues is None:  # also those that it has lost, and may get again
            self._polled.paused.clear()
        for queue in resumed:
            self._polled.paused.discard(queue)
            self._assigned[queue].resume()
        self._wake()

    def _checked(self, queues: Iterable[MessageQueue] | None) -> list[MessageQueue]:
        self._check_open()
        return [self._assigned_one(queue) for queue in (list(self._assigned) if queues is None else _several(queues))]

    def _assigned_one(self, queue: MessageQueue) -> MessageQueue:
        """The queue as brokers know it. Raises BadArgument if it is not assigned."""
        queue = self._within(queue)
        if queue not in self._assigned:
            raise BadArgument("queue", "one of those that are assigned", queue)
        return queue

    def _within(self, queue: MessageQueue) -> MessageQueue:
        return queue_within(self._namespace, queue)

    # offsets

    async def seek(self, queue: MessageQueue, to: int | Place | datetime) -> None:
        """Continue at an offset of an assigned queue, at its beginning or end, or at its first message stored at a time
        or later. Raises BadArgument, and MQError if the broker does not answer."""
        queue = self._assigned_one(queue)
        if isinstance(to, Place):
            offset = await (self.offsets.min(queue) if to is Place.BEGIN else self.offsets.max(queue))
        elif isinstance(to, datetime):
            found = await self.message_by_time(queue, to)
            offset = await self.offsets.max(queue) if found is None else found.queue_offset
        else:
            check_number("offset", to, 0, 2**63 - 1)
            offset = to
        self._assigned_one(queue)  # it may be revoked meanwhile
        self._restart(queue, offset)

    def _restart(self, queue: MessageQueue, offset: int | None) -> None:
        former = self._assigned[queue]
        former.drop()
        self._polled.forget_dropped()
        self._take([queue], promised=offset)

    async def message_by_time(self, queue: MessageQueue, time: datetime | int) -> ReceivedMessage | None:
        """The first message of a queue that was stored at `time` or later, exact on all brokers; None if no such
        message exists. `time` is a datetime with a time zone, or milliseconds since the epoch."""
        found = await self._reads.message_by_time(self._within(queue), time)
        return None if found is None else bare_message(self._namespace, found)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all messages that polls have returned, or these offsets. Raises the first error of a broker, and
        ClientClosed."""
        self._check_open()
        if offsets is None:
            self._polled.settle()
            offsets = committable(self._assigned)
        if not isinstance(cast(Any, offsets), Mapping):
            raise BadArgument("offsets", "a mapping of queues to offsets", offsets)
        named = {self._within(queue): offset for queue, offset in offsets.items()}
        for offset in named.values():
            check_number("offset", offset, 0, 2**63 - 1)
        for queue, offset in named.items():
            await self._store.commit(queue, offset)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The committed offset of a queue, or None if it has none."""
        return await self._store.committed(self._within(queue))

    async def lag(self) -> Lag:
        """Return how far the polls are behind the ends of the assigned queues."""
        return await lag_of(self._assigned, self.offsets, self._store, self._namespace, self._polled.returned())

    async def _commit_oneway(self) -> None:
        if not self._watch.was_away:
            await self._assigned.commit_oneway()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that can be read. Raises TopicNotFound and NameServerUnreachable."""
        route = await self._routes.get(within(self._namespace, check_topic(topic)))
        return [bare_queue(self._namespace, queue) for queue in route.subscribe_queues]

    async def watch_queues(self, topic: str, changed: QueuesChanged) -> None:
        """Call `changed` with the queues of `topic` whenever they change; they are checked every `route_age_s`. If it
        returns an awaitable, that is awaited. Raises TopicNotFound and NameServerUnreachable."""
        self._check_open()
        if not callable(changed):
            raise BadArgument("changed", "a function that takes the topic's queues", changed)
        known = frozenset(await self.queues(topic))

        async def look() -> None:
            nonlocal known
            found = frozenset(await self.queues(topic))
            if found != known:
                known = found
                told = changed(found)
                if inspect.isawaitable(told):
                    await told

        self._loops.append(self._net.spawn(every(self._net, self._options.route_age_s, look)))

    async def close(self) -> None:
        """Stop, commit what the polls before the last one returned, unless `auto_commit` is False, leave the group, and
        close the connections, within `close_timeout_s`."""
        if self._closed:
            return
        self._closed = self._membership.is_over = True
        for loop in self._loops:
            loop.cancel()
        self._wake()
        for assigned in self._assigned.values():
            assigned.stop()
        ending = Ending(self._net, self._options.close_timeout_s, self.group)
        self._polled.forget_returned(ConsumeResult.RETRY)
        await self._observers.close(ending, left=3)
        if self._joined:
            await ending.step("the rebalance listener", self._membership.tell_revoked(), left=2)
        if self._started and self._options.auto_commit and not self._watch.was_away:
            await ending.step("committing", self._store.commit_many(committable(self._assigned)), left=1)
        if self._joined:
            await ending.step("leaving the group", self._membership.heartbeats.unregister())
        self._assigned.drop()
        await ending.close_net()

    async def _come_back(self) -> None:
        self._assigned.drop()
        self._assigned.clear()
        self._polled.forget_returned(ConsumeResult.RETRY)
        self._polled.forget_dropped()
        await self._membership.lose()

    # what brokers ask

    def ids_changed(self, group: str) -> None:
        """A broker reports that members of `group` joined or left."""
        if group == self.group and self._joined:
            self._membership.has_changed.set()

    def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at an administrator's offsets."""
        for queue in [queue for queue in self._assigned if queue.topic == topic and queue in offsets]:
            self._restart(queue, offsets[queue])

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets that would be committed now, of one topic, or of all if `topic` is empty."""
        return positions(topic, self._assigned)

    def running_info(self) -> ConsumerRunningInfo:
        """Refused: a lite pull consumer has no listener to report on."""
        raise Refused(ResponseCode.SYSTEM_ERROR, "this consumer polls, and has no statistics of a listener")

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Refused: a lite pull consumer has no listener."""
        raise Refused(ResponseCode.SYSTEM_ERROR, "this consumer polls, and has no listener")


def _several(queues: Iterable[MessageQueue]) -> Iterable[MessageQueue]:
    """The queues. Raises BadArgument."""
    if not isinstance(cast(Any, queues), Iterable):
        raise BadArgument("queues", "several of MessageQueue", queues)
    return queues
