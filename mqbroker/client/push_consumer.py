"""The push consumer's core: a member of a group that balances queues, pulls them, and commits what was consumed.

At least once: a message is delivered again if a member died, was slow to leave a queue, or its listener failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from mqbroker.client.assigned_queues import AssignedQueue, AssignedQueues, committable
from mqbroker.client.consume_service import LOOKS_MAX, ConsumeService, Listener
from mqbroker.client.errors import BadArgument, BadListener, ClientClosed
from mqbroker.client.identity import Identity
from mqbroker.client.index_requests import Queries
from mqbroker.client.iteration import Delivery, IterationService, by_iteration
from mqbroker.client.lag import Lag, lag_of
from mqbroker.client.listener_calls import LoopConsumeService
from mqbroker.client.listeners import Throttle
from mqbroker.client.member_observers import MemberObservers
from mqbroker.client.membership import LoopWatch, Membership
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import bare_queue, check_group, check_topic, within
from mqbroker.client.net import Ending, Net, Task, every
from mqbroker.client.offset_stores import LocalOffsets
from mqbroker.client.options import MessageModel, PushOptions, milliseconds
from mqbroker.client.orderly import LOCK_EVERY_S, LOCK_PAUSE_S, Order, QueueLocks
from mqbroker.client.process_queue import PulledBatch
from mqbroker.client.queue_requests import Offsets
from mqbroker.client.routes import Routes
from mqbroker.client.running_info import About, ConsumerStats, positions, running_info
from mqbroker.client.send_back import SendBack
from mqbroker.client.subscription import ALL, Sql
from mqbroker.errors import MQError, Refused
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RETRY_PREFIX, ResponseCode

log = logging.getLogger(__name__)

#: How long a queue whose offset is reset waits for listeners that hold its messages, as in Java.
RESET_WAIT_S = 10.0

#: The part of `takeover_pause_s` for which a revoked queue waits for its listeners: the next member reads the offset
#: when the whole pause is over.
_RELEASE_PART = 2 / 3
_RELEASE_CHECK_S = 0.05


class PushConsumerCore:
    """One member of `group`. `subscribe` before `start`, or at any time after."""

    def __init__(
        self,
        net: Net,
        name_servers: tuple[str, ...],
        group: str,
        listener: Listener,
        options: PushOptions,
        identity: Identity,
        consume: Callable[..., ConsumeService] = LoopConsumeService,
    ) -> None:
        """`consume` makes what calls the listener."""
        self._net = net
        self._identity = identity
        self._namespace = options.namespace
        self.group = group = within(self._namespace, check_group(group))
        self._about = About(group, name_servers, options, int(net.now() * 1000))
        self._stats = ConsumerStats(net.steady)
        self._options = options
        timeout_ms = self._timeout_ms = milliseconds("request_timeout_s", options.request_timeout_s)
        self._routes = Routes(net, name_servers, age_s=None, timeout_ms=timeout_ms)
        self._offsets = Offsets(net, self._routes, group, timeout_ms)
        self.queries = Queries(net, self._routes, timeout_ms, self._namespace)
        self._is_broadcasting = options.model is MessageModel.BROADCASTING
        self._store = options.offset_store or (LocalOffsets() if self._is_broadcasting else self._offsets)
        self._membership = Membership(net, self._routes, identity, group, options, self._take, self._give_up)
        self._locks, self._order = self._make_order()
        observers = self._observers = MemberObservers(net, name_servers, group, options, identity)
        most = options.concurrency
        if listener is by_iteration:
            consume, most = IterationService, options.unacked_max
            if options.orderly or options.batch_max is not None:
                raise BadArgument("PushOptions.orderly and batch_max", "left out without a listener", options)
        self.consuming = consume(
            net,
            listener if listener is by_iteration else observers.consuming(listener, group, lambda: identity.client_id),
            self._drop if self._is_broadcasting else SendBack(net, self._routes, group, options),
            self._stats,
            concurrency=most,
            local_retry_s=options.local_retry_s,
            batch_max=options.batch_max,
            order=self._order,
        )
        if isinstance(self.consuming, IterationService):
            self.consuming.observe = observers.handing_out(group, lambda: identity.client_id)
        self._watch = LoopWatch(net, group, self.consuming.listener_name, options.heartbeat_s, self._come_back)
        self.consuming.watch = self._watch
        if self._is_broadcasting:
            self.consuming.fate = "dropped"
        heartbeat = self._membership.heartbeats.send_to
        self._assigned = AssignedQueues(
            net, self._routes, group, options, self._store, self._offsets, self._deliver, heartbeat
        )
        self._assigned.filters = observers.filters
        #: Revoked ones that the listener still has a message of.
        self._releasing: dict[MessageQueue, AssignedQueue] = {}
        #: When the pulls were last looked at.
        self._looked_at = 0.0
        self._loops: list[Task] = []
        self._started = self._closed = self._ended = self._is_suspended = False
        self._closing = net.lock()
        self._dropped = Throttle(net.steady)
        if not self._is_broadcasting:
            self._membership.subscribe(RETRY_PREFIX + group)

    def _make_order(self) -> tuple[QueueLocks | None, Order | None]:
        options = self._options
        if not options.orderly:
            return None, None
        locks = None
        if not self._is_broadcasting:
            locks = QueueLocks(self._net, self._routes, self._identity, self.group, self._timeout_ms)
        order = Order(
            self._net,
            locks,
            attempts_max=None if options.max_reconsume_times < 0 else options.max_reconsume_times,
            suspend_s=options.suspend_queue_s,
            auto_commit=options.auto_commit,
        )
        return locks, order

    @property
    def client_id(self) -> str:
        """The id of this member, as brokers know it; empty before the start."""
        return self._identity.client_id

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues this member consumes now, its retry queues included."""
        return frozenset(bare_queue(self._namespace, queue) for queue in self._assigned)

    async def lag(self) -> Lag:
        """How many messages of its queues, its retry queues included, this member has not consumed yet."""
        return await lag_of(self._assigned, self._offsets, self._store, self._namespace)

    async def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        """Consume `topic`: messages with one of the tags in "a || b", or all with "*", or those that `Sql("...")`
        picks. Raises BadArgument on a bad name or expression, and ClientClosed."""
        self.add_subscription(topic, expression)
        if self._started:
            await self.apply_subscription(topic)

    def add_subscription(self, topic: str, expression: str | Sql = ALL) -> bool:
        """The immediate part of `subscribe`; True if `apply_subscription` must follow. Raises as that does."""
        self._check_open()
        self._membership.subscribe(within(self._namespace, check_topic(topic)), expression)
        return self._started

    async def apply_subscription(self, topic: str) -> None:
        """Apply an added or changed subscription to a running member."""
        await self._membership.apply(within(self._namespace, topic))

    async def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more: its queues are given up, with their offsets committed. Nothing happens if it was
        not subscribed to."""
        if self.remove_subscription(topic):
            await self.apply_subscription(topic)

    def remove_subscription(self, topic: str) -> bool:
        """The immediate part of `unsubscribe`; True if `apply_subscription` must follow."""
        self._check_open()
        removed = self._membership.subscriptions.pop(within(self._namespace, check_topic(topic)), None)
        return removed is not None and self._started

    def suspend(self) -> None:
        """Pause pulls until `resume`; messages already pulled still go to the listener."""
        self._check_open()
        self._is_suspended = True
        for assigned in self._assigned.values():
            assigned.pause()

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._check_open()
        self._is_suspended = False
        for assigned in self._assigned.values():
            assigned.resume()

    def next_at_once(self) -> Delivery | None:
        """The first of `next_messages`, if one waits and nothing else is to be done first."""
        service = self.consuming
        found = service.ready(1) if isinstance(service, IterationService) and self._started else ()
        return found[0] if found else None

    async def next_messages(self, count: int) -> list[Delivery]:
        """Up to `count` messages, at least one, of a member without a listener; none when it is closed. Raises
        ClientClosed before the start, and BadListener where a listener gets the messages."""
        if not isinstance(self.consuming, IterationService):
            raise BadListener("the messages of this consumer go to its listener", "Make it without one to iterate")
        if not self._started and not self._closed:
            raise ClientClosed("a push consumer is iterated over after its start")
        return self.consuming.ready(count) or await self.consuming.next(count)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this push consumer was closed")

    def check_startable(self) -> None:
        """Raises ClientClosed if it was started or closed, NoSubscription if it has no subscription."""
        if self._started or self._closed:
            raise ClientClosed("a push consumer can be started only once")
        self._membership.check_subscribed("push consumer")

    async def start(self) -> None:
        """Join the group. A topic that does not exist yet is waited for.

        Raises NoSubscription, NameServerUnreachable, and Refused if all brokers refuse the account.
        """
        self.check_startable()
        self._started = True
        self._looked_at = self._net.steady()
        await self._store.open(self.group, self._about.name_servers)
        settled = await self._membership.join()
        if self._closed:
            raise ClientClosed("this push consumer was closed while it started")
        options = self._options
        self._loops = [
            self._net.spawn(self._watch.run()),
            self._net.spawn(self._membership.keep_balanced(settled)),
            self._net.spawn(self._membership.heartbeats.keep_sending()),
            self._net.spawn(every(self._net, options.commit_s, self._commit_oneway)),
            self._net.spawn(every(self._net, options.consume_timeout_s / LOOKS_MAX, self.consuming.send_back_overdue)),
            self._net.spawn(every(self._net, options.route_age_s, self._routes.refresh_all)),
            self._net.spawn(every(self._net, options.rebalance_s, self._renew_stuck)),
        ]
        self._loops += [self._net.spawn(loop) for loop in self._observers.loops(self.lag)]
        if self._locks is not None:
            self._loops.append(self._net.spawn(every(self._net, LOCK_EVERY_S, self._lock_all)))

    async def close(self) -> None:
        """Let running listeners end, commit, leave the group and close the connections, within `close_timeout_s`.

        Inside a call of the listener, and in what a call has started while the listener has the next message from the
        same task, it starts this and returns: it completes after the call has ended.
        """
        if self.consuming.is_calling:
            self._stop()
            self._net.spawn(self._close())
        else:
            await self._close()

    async def _close(self) -> None:
        async with self._closing:
            if not self._ended:
                await self._leave()
                self._ended = True

    def _stop(self) -> None:
        """Stop pulling and calling the listener."""
        self._closed = self._membership.is_over = True
        for loop in self._loops:
            loop.cancel()
        for assigned in self._assigned.values():
            assigned.stop()
        self.consuming.stop()

    async def _leave(self) -> None:
        self._stop()
        timeout_s = self._options.close_timeout_s
        ending, listeners_s = Ending(self._net, timeout_s, self.group), timeout_s - min(3.0, timeout_s / 2)
        if not await self.consuming.close(listeners_s):
            log.warning(
                "listeners of %s still run after %g s, and their messages will come again: %s",
                self.group,
                listeners_s,
                self.consuming.still_running(),
            )
        await self._observers.close(ending, left=4)
        if self._started:
            await ending.step("the rebalance listener", self._membership.tell_revoked(), left=3)
            offsets = {} if self._watch.was_away else committable({**self._releasing, **self._assigned})
            await ending.step("committing", self._store.commit_many(offsets), left=2)
            await ending.step("leaving the group", self._membership.heartbeats.unregister(), left=1)
            if self._locks is not None:
                await ending.step("unlocking", self._locks.unlock([*self._assigned, *self._releasing]))
        for assigned in [*self._assigned.values(), *self._releasing.values()]:
            assigned.drop()
        await ending.close_net()

    def ids_changed(self, group: str) -> None:
        """A broker reports that members of `group` joined or left."""
        if group == self.group:
            self._membership.has_changed.set()

    def running_info(self) -> ConsumerRunningInfo:
        """This member's state, for administrators."""
        about = attrs.evolve(self._about, name_servers=self._routes.name_servers)
        return running_info(about, self._membership.subscriptions.values(), self._assigned, self._stats)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets that would be committed now, of one topic, or of all if `topic` is empty."""
        return positions(topic, self._assigned)

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Call the listener for an administrator's `message`; no offset moves. Raises Refused."""
        return await self.consuming.consume_directly(message)

    def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Reset queues of `topic` that this member has to `offsets`. Raises Refused.

        Messages pulled before are dropped at once; each queue then commits its new offset, waits until the listener has
        none of its former messages, for RESET_WAIT_S at most, and is pulled from there.
        """
        if self._closed:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this consumer is closing and commits what it has consumed")
        moved = [queue for queue in self._assigned if queue.topic == topic and queue in offsets]
        for queue in moved:
            self._assigned[queue].drop()
        self.consuming.forget_dropped()
        for queue in moved:
            log.info("%s continues at offset %d of %s", self.group, offsets[queue], queue)
            self._assign(queue, promised=offsets[queue])

    def _take(self, queues: Sequence[MessageQueue], is_shared: bool) -> None:
        for queue in queues:
            self._assign(queue, pause_s=self._options.takeover_pause_s if is_shared else 0.0)
        self._assigned.limit()

    async def _give_up(self, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            assigned = self._releasing[queue] = self._assigned.pop(queue)
            assigned.stop()
            self.consuming.finish(assigned)
            self._net.spawn(self._release(queue, assigned))
        self._assigned.limit()

    async def _renew_stuck(self) -> None:
        """Restart queues whose pulls have stopped without a reason. Does nothing if the loop itself did not run."""
        now = self._net.steady()
        former, self._looked_at = self._looked_at, now
        if now - former > 2 * self._options.rebalance_s:
            return
        for queue, assigned in list(self._assigned.items()):
            if assigned.is_stuck:
                log.error("%s was not pulled for two minutes, and pulling is restarted: please report this", queue)
                assigned.drop()
                self.consuming.forget_dropped()
                self._assign(queue)

    async def _release(self, queue: MessageQueue, assigned: AssignedQueue) -> None:
        """Let the listener end with a queue, commit what it has consumed, and unlock it. Without a lock others take it
        soon: what has not ended by then does not count."""
        sent, wait_s = None, None
        if self._locks is None:
            wait_s = self._options.takeover_pause_s * _RELEASE_PART
            if (sent := assigned.committable) is not None:
                # Java's members read the offset without a pause.
                await self._store.commit_oneway(queue, sent)
                await self._store.flush()
        await self.consuming.ended(queue, wait_s)
        offset = assigned.committable
        assigned.drop()
        self.consuming.forget_dropped()
        try:
            if offset is not None and offset != sent and not self._watch.was_away:
                await self._store.commit(queue, offset)
        except MQError as error:
            log.warning("offset %d of %s not committed: %s", offset, queue, error)
        if self._locks is not None:
            await self._locks.unlock([queue])
        if self._releasing.get(queue) is assigned:
            del self._releasing[queue]

    async def _lock_all(self) -> None:
        """Renew the locks; queues that others have locked are restarted once they can be locked."""
        assert self._locks is not None
        for queue in await self._locks.lock({*self._assigned, *self._releasing}):
            assigned = self._assigned.get(queue)
            if assigned is not None and assigned.committable is not None and not self._closed:
                log.warning("%s lost the lock of %s, and acquires it again", self.group, queue)
                assigned.drop()
                self.consuming.forget_dropped()
                self._assign(queue)

    def _assign(self, queue: MessageQueue, *, pause_s: float = 0.0, promised: int | None = None) -> None:
        begun = self._assigned.begin(
            queue,
            self._membership.subscriptions[queue.topic],
            pause_s=pause_s,
            promised=promised,
            find_start=self._find_start if promised is None else partial(self._start_over, offset=promised),
        )
        if self._is_suspended:
            begun.pause()

    def _deliver(self, assigned: AssignedQueue, batch: PulledBatch, took_s: float) -> None:
        self._stats.of(assigned.queue.topic).pulled(took_s * 1000, batch.left)
        self.consuming.put(assigned, batch)

    async def _find_start(self, queue: MessageQueue) -> int:
        while queue in self._releasing:  # what the listener has of it counts
            await self._net.sleep(_RELEASE_CHECK_S)
        if self._order is not None:
            while not await self.consuming.ended(queue, LOCK_PAUSE_S):
                await self._net.sleep(LOCK_PAUSE_S)
        while self._locks is not None and not self._locks.holds(queue):
            await self._locks.lock([queue])
            if not self._locks.holds(queue):
                await self._net.sleep(LOCK_PAUSE_S)
        return await self._assigned.find_start(queue)

    async def _start_over(self, queue: MessageQueue, *, offset: int) -> int:
        try:
            await self._store.commit(queue, offset)
        except MQError as error:
            log.warning("offset %d of %s not committed yet: %s", offset, queue, error)
        if not await self.consuming.ended(queue, RESET_WAIT_S):
            log.warning("%s continues while the listener still holds messages from before its reset", queue)
        return offset

    async def _drop(self, message: ReceivedMessage, delay_level: int) -> None:
        if (more := self._dropped.more()) is not None:
            log.warning(
                "message %s of %s was not consumed and is dropped, as always in broadcasting mode%s",
                message.msg_id,
                message.queue,
                more,
            )

    async def _come_back(self) -> None:
        """Restart all queues after this member was away: others may have consumed the messages held here. They are
        dropped and not committed, as that would set the group's offsets back."""
        if self._is_broadcasting:  # no other member takes them
            await self._membership.heartbeats.send_to_all()
            return
        log.warning("%s was silent for longer than brokers remember members: its queues are assigned again", self.group)
        self._assigned.drop()
        self._assigned.clear()
        if self._locks is not None:
            self._locks.forget()
        self.consuming.forget_dropped()
        await self._membership.lose()

    async def _commit_oneway(self) -> None:
        if not self._watch.was_away:
            await self._assigned.commit_oneway()
