"""The queues that a member of a group has: each pulled from where its offset is, and all of them together paused,
limited, and committed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from mqbroker.client.hooks import Filters
from mqbroker.client.listeners import TELL_EVERY_S
from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.client.net import Net
from mqbroker.client.offset_stores import OffsetStore
from mqbroker.client.options import MemberOptions, milliseconds
from mqbroker.client.process_queue import ProcessQueue, PulledBatch
from mqbroker.client.queue_requests import (
    Offsets,
    PulledMessages,
    pull_from,
    pull_request,
    read_messages,
    read_pull_answer,
)
from mqbroker.client.routes import Routes
from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.wire.admin_bodies import ProcessQueueInfo
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import MASTER_ID, ResponseCode
from mqbroker.wire.command import RemotingCommand

log = logging.getLogger(__name__)

#: Response codes of a broker that has not got this member's latest heartbeat, as after its restart.
_HEARTBEAT_HELPS = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})

_HALF_AN_HOUR_MS = 30 * 60 * 1000

#: Pulled from if the master does not respond; a set without this slave has others, or the master again.
SLAVE_ID = 1

#: A pull that finds nothing and is answered sooner was not held: the broker holds enough of them. The next one waits as
#: long as brokers hold a pull with longPollingEnable=false.
_HELD_S = 0.1
_NOT_HELD_PAUSE_S = 1.0
#: Requests say in whole milliseconds for how long to hold them.
_SUSPEND_S_MIN = 0.001

#: Pulls of a queue are restarted after this many seconds without one, if nothing prevents them.
_STUCK_S = 120.0

#: pull(queue, offset, broker id to ask first)
Pull = Callable[["AssignedQueue", int, int], Awaitable[RawPull]]


class PullFailures:
    """Which pulls of a member fail, so that brokers that are away are logged once each, not once a queue."""

    def __init__(self) -> None:
        #: Queues whose last pull failed, by the broker's name and the kind of error.
        self._failing: dict[tuple[str, type], set[MessageQueue]] = {}
        #: The keys of `_failing` that were logged since a pull from the broker worked.
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
        #: When the last pull was sent, by the clock that is never set.
        self._asked_at = net.steady()
        #: How long the pull took whose messages are taken, seconds.
        self._took_s = 0.0
        self._stopped = False
        self._limits = options.queue_messages_max, options.queue_bytes_max
        #: A pull of it, from which the others differ by the offset.
        self.first_pull: RemotingCommand | None = None
        self.filters: Filters | None = None
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
        """Limit the messages and bytes that are held."""
        self._limits = messages_max, bytes_max
        if self._process_queue is not None:
            self._process_queue.limit(messages_max, bytes_max)

    def pause(self) -> None:
        """Pause pulls until `resume`; responses to pulls already sent still arrive."""
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
        self._promised = None
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
                    "%s: pulling is paused until message %d is consumed: more than %d messages follow it "
                    "(queue_span_max)",
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
            self._pulled_at, self._asked_at = self._net.now(), self._net.steady()
            pulled = await self._pull(self, held.next_offset, self._broker_id)
            if not self._is_stopped():
                self._took_s = self._net.steady() - self._asked_at
                asked = held.next_offset
                self._add_pulled(held, pulled, self._read(held, pulled))
                if pulled.status is PullStatus.NO_NEW_MESSAGE:
                    suspend_s = self._options.suspend_s
                    if self._took_s < min(_HELD_S, suspend_s) or suspend_s < _SUSPEND_S_MIN:
                        await self._net.sleep(_NOT_HELD_PAUSE_S)
                elif pulled.next_offset <= asked:
                    await self._net.sleep(self._options.pull_error_pause_s)

    def goes_on(self, pulled: RawPull) -> bool:
        """Whether the next pull may follow one that has found messages, before `take` has them."""
        held = self._process_queue
        if held is None or pulled.broker_id != self._broker_id or self._is_paused or self._stopped:
            return False
        self._active_at = now = self._net.steady()
        if held.would_be_full(self._options.pull_batch, len(pulled.body)):
            return False
        self._took_s, self._pulled_at, self._asked_at = now - self._asked_at, self._net.now(), now
        return True

    def take(self, pulled: RawPull) -> bool:
        """Take what a pull has found, if that is read whole. Raises BadRecord and UnexpectedResponse."""
        held = self._process_queue
        if held is None or self._stopped:
            return True
        found = self._read(held, pulled)
        if found.next_offset != pulled.next_offset:
            return False
        self._add_pulled(held, pulled, found)
        return True

    def _read(self, held: ProcessQueue, pulled: RawPull) -> PulledMessages:
        return read_messages(pulled, self.queue, self.subscription, held.next_offset)

    def _add_pulled(self, held: ProcessQueue, pulled: RawPull, found: PulledMessages) -> None:
        messages, unreadable, next_offset = found
        self._no_failure()
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "%s: offset %d is not between %d and %d; continuing at %d",
                self.queue,
                held.next_offset,
                pulled.min_offset,
                pulled.max_offset,
                pulled.next_offset,
            )
        if self.filters is not None:
            messages = self.filters.accepted(messages)
        batch = held.add(messages, next_offset, unreadable)
        self._broker_id = pulled.broker_id
        self._answered = True
        if pulled.status is PullStatus.FOUND:
            self._deliver(self, batch, self._took_s)


def committable(queues: Mapping[MessageQueue, AssignedQueue]) -> dict[MessageQueue, int]:
    """The offsets to commit, of those queues that have begun."""
    offsets = {queue: assigned.committable for queue, assigned in queues.items()}
    return {queue: offset for queue, offset in offsets.items() if offset is not None}


class AssignedQueues(dict[MessageQueue, AssignedQueue]):
    """The queues of a member of `group`, whose offsets are in `store`; `offsets` are the broker's.

    `heartbeat` sends one to a broker that does not know the member; without it the pulls carry the subscription.
    """

    def __init__(
        self,
        net: Net,
        routes: Routes,
        group: str,
        options: MemberOptions,
        store: OffsetStore,
        offsets: Offsets,
        deliver: Callable[[AssignedQueue, PulledBatch, float], None],
        heartbeat: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self._net = net
        self._routes = routes
        self._group = group
        self._options = options
        self._store = store
        self._offsets = offsets
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._pull_timeout_ms = milliseconds("pull_timeout_s", options.pull_timeout_s)
        self._suspend_ms = milliseconds("suspend_s", options.suspend_s, 0)
        self._timestamp_ms = options.consume_from_time or int(net.now() * 1000) - _HALF_AN_HOUR_MS
        self._failures = PullFailures()
        #: The filters that run on pulled messages.
        self.filters: Filters | None = None

    def begin(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        pause_s: float = 0.0,
        promised: int | None = None,
        find_start: Callable[[MessageQueue], Awaitable[int]] | None = None,
    ) -> AssignedQueue:
        """Pull a queue, after a pause, from where the group's offset is, or from where `find_start` says."""
        begun = self[queue] = AssignedQueue(
            self._net,
            queue,
            subscription,
            self._options,
            pause_s=pause_s,
            find_start=find_start or self.find_start,
            pull=self._pull,
            deliver=self._deliver,
            failures=self._failures,
            promised=promised,
        )
        begun.filters = self.filters
        return begun

    async def find_start(self, queue: MessageQueue) -> int:
        """The group's offset in a queue, or where a group without one starts."""
        committed = await self._store.committed(queue)
        if committed is not None:
            return committed
        return await self._offsets.start(queue, self._options.consume_from, self._timestamp_ms)

    async def _pull(self, assigned: AssignedQueue, offset: int, broker_id: int) -> RawPull:
        queue = assigned.queue
        if assigned.first_pull is None:
            assigned.first_pull = pull_request(
                queue,
                offset,
                self._options.pull_batch,
                group=self._group,
                subscription=assigned.subscription,
                suspend_ms=self._suspend_ms,
                carry_subscription=self._heartbeat is None,
            )
        request = pull_from(assigned.first_pull, offset)
        addr = await self._routes.address(queue, broker_id)
        try:
            return read_pull_answer(await self._net.pull_on(addr, request, self._pull_timeout_ms, assigned))
        except Refused as refused:
            if refused.code in _HEARTBEAT_HELPS and self._heartbeat is not None:
                await self._heartbeat(addr)
            raise
        except Unreachable:
            self._routes.mark_stale(queue.topic)
            raise

    def limit(self) -> None:
        """Divide the limits of topics among their queues."""
        options = self._options
        if options.topic_messages_max is None and options.topic_bytes_max is None:
            return
        counts = Counter(queue.topic for queue in self)
        for queue, assigned in self.items():
            most, size = (
                limit if of_topic is None else min(limit, max(1, of_topic // counts[queue.topic]))
                for limit, of_topic in (
                    (options.queue_messages_max, options.topic_messages_max),
                    (options.queue_bytes_max, options.topic_bytes_max),
                )
            )
            assigned.limit(most, size)

    def drop(self) -> None:
        """Stop all pulls and ignore their results."""
        for assigned in self.values():
            assigned.drop()

    async def commit_oneway(self) -> None:
        for queue in list(self):
            # Looked up at its turn: the queue may be revoked by then, or reset.
            assigned = self.get(queue)
            if assigned is not None and (offset := assigned.committable) is not None:
                await self._store.commit_oneway(queue, offset)
        await self._store.flush()
