"""The attempts to send one message: the choice of its queue, the brokers that are avoided for a while (Java's latency
fault tolerance), retries, and the time for all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import NoReturn

import attrs

from mqbroker.client.errors import ClientClosed, NoBrokerForTopic, SendFailed
from mqbroker.client.heartbeats import Heartbeats
from mqbroker.client.messages import SendResult, SendStatus
from mqbroker.client.net import Net
from mqbroker.client.options import ProducerOptions
from mqbroker.client.routes import Route, Routes
from mqbroker.client.send import STATUSES, Choose, Outgoing, Rotation, read_send_answer, send_request
from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import MASTER_ID, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.names import join_address, split_address

#: A broker that answers within this is not avoided, seconds.
QUICK_S = 0.55
#: For how many seconds a broker is avoided below each latency, and above the last one: MQFaultStrategy of 4.9.7.
_LATENCIES_S = (QUICK_S, 1.0, 2.0, 3.0, 15.0)
_AVOIDED_S = (0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
#: The latency that a failed attempt counts as, as in 4.9.7.
_FAILED_S = 30.0


class Availability:
    """The brokers that a producer avoids. If it would avoid all brokers of a topic, it avoids none.

    Java's client avoids a broker that has failed for ten minutes in any case; here a response to a heartbeat ends that,
    so that a restarted broker gets its share again within half a minute.
    """

    def __init__(self, now: Callable[[], float], *, is_enabled: bool) -> None:
        """`now` returns seconds of a clock that is never set."""
        self._now = now
        self._is_enabled = is_enabled
        #: By the broker's name, until when.
        self._until: dict[str, float] = {}

    def took(self, broker: str, seconds: float) -> None:
        """Called with the time that a broker took to respond to a send."""
        avoided_s = _AVOIDED_S[bisect_right(_LATENCIES_S, seconds)]
        if not avoided_s:
            self._until.pop(broker, None)
        elif self._is_enabled:
            self._until[broker] = self._now() + avoided_s

    def failed(self, broker: str) -> None:
        """Called when an attempt has failed for a reason that may be the broker's."""
        self.took(broker, _FAILED_S)

    def answered(self, brokers: Iterable[str]) -> None:
        """Called when brokers have answered a heartbeat."""
        for broker in brokers:
            self._until.pop(broker, None)

    @property
    def avoids_any(self) -> bool:
        """Whether some are avoided, or were until a short time ago; may be read on any thread."""
        return bool(self._until)

    def avoided(self) -> set[str]:
        """The names of the brokers that are avoided now; none in most cases."""
        if not self._until:
            return set()
        now = self._now()
        for broker in [broker for broker, until in self._until.items() if until <= now]:
            del self._until[broker]
        return set(self._until)


#: Response codes that may pass with time on the same broker.
_PASSING_CODES = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})

#: Attempts that are listed if all failed: the first and the last ones.
_ATTEMPTS_TOLD_MAX = 16

#: Attempts for a message that was refused for a reason that time does not change.
_REFUSALS_MAX = 3

#: The pause before a broker is tried a second time; it doubles, and varies by half.
_RETRY_PAUSE_S = 0.05
_RETRY_PAUSE_S_MAX = 0.4


@attrs.frozen
class FirstAttempt:
    """An attempt that has not sent the message of `msg_id`: where to, and the response or error. `began_at` is the time
    of day, `sent_at` that of the net's steady clock."""

    began_at: float
    sent_at: float
    msg_id: str
    queue: MessageQueue
    addr: str
    outcome: RemotingCommand | MQError


@attrs.frozen
class Chosen:
    """The queue of `route` that was chosen for a message, which was not sent."""

    queue: MessageQueue
    route: Route


class Trials:
    """The failed attempts to send one message, and the decision about another."""

    def __init__(self, topic: str, retries: int | None) -> None:
        self.attempts: list[tuple[str, str, MQError]] = []
        self.brokers: set[str] = set()
        self.pauses = 0
        #: The result of a broker that may lose the message, where another is asked then.
        self.unstored: SendResult | None = None
        self._topic = topic
        self._left = retries
        self._refusals_left = _REFUSALS_MAX

    def add(self, queue: MessageQueue, addr: str, error: MQError) -> None:
        self.attempts.append((queue.broker_name, addr, error))
        del self.attempts[_ATTEMPTS_TOLD_MAX // 2 : -_ATTEMPTS_TOLD_MAX // 2]
        self.brokers.add(queue.broker_name)
        if isinstance(error, Refused) and error.code not in _PASSING_CODES:
            self._refusals_left -= 1
        self._left = None if self._left is None else self._left - 1

    @property
    def is_last(self) -> bool:
        """Whether no attempt may follow the next one."""
        return self._left == 0

    @property
    def are_over(self) -> bool:
        return self._refusals_left <= 0 or (self._left is not None and self._left < 0)

    def outlast(self, error: MQError) -> bool:
        """Whether a missing route may be back in a moment: its broker is away, or was just lost."""
        return error.retriable and (bool(self.attempts) or (isinstance(error, NoBrokerForTopic) and error.is_away))

    def note_unstored(self, result: SendResult) -> NoReturn:
        """Note the result of a broker that does not promise all; another may. Raises Refused."""
        self.unstored = result
        raise Refused(result.status, "the broker has the message, but it may be lost")

    def failure(self) -> SendFailed:
        failure = SendFailed(self._topic, tuple(self.attempts))
        failure.__cause__ = self.attempts[-1][2]
        return failure


class Attempts:
    """Makes the attempts of one producer's sends."""

    def __init__(self, net: Net, routes: Routes, heartbeats: Heartbeats, group: str, options: ProducerOptions) -> None:
        self.routes = routes
        self.heartbeats = heartbeats
        self.options = options
        self.rotation = Rotation(net.rng)
        self.availability = Availability(net.steady, is_enabled=options.avoid_slow_brokers)
        heartbeats.on_answer = self._answered
        #: No attempt begins any more.
        self.is_closed = False
        self._net = net
        self._group = group

    async def send(
        self,
        outgoing: Outgoing,
        choose: Choose | None,
        until: float | None,
        first: FirstAttempt | None = None,
        chosen: Chosen | None = None,
    ) -> SendResult:
        """The result of a send that ends at `until`, by default when its usual time is over, after a `first` attempt or
        with the queue that was `chosen`. Raises as ProducerCore.send does."""
        trials = Trials(outgoing.topic, self.options.retries)
        if until is None:
            until = self._net.steady() + self.options.send_timeout_s
        try:
            return await self._tried(trials, outgoing, choose, until, first, chosen)
        except MQError:
            if trials.unstored is None:
                raise
            return trials.unstored

    async def send_oneway(self, outgoing: Outgoing, choose: Choose | None) -> None:
        """Make the one attempt of a send without a response."""
        queue, addr = await self._where(outgoing.topic, choose, self._net.steady() + self.options.send_timeout_s)
        await self._net.send_oneway(self._port_of(addr), self.request(outgoing, queue))

    async def writable(self, topic: str, timeout_s: float) -> Route:
        """The route of a topic that can be sent to. Raises ClientClosed, NoBrokerForTopic, and as Routes.get does."""
        if self.is_closed:
            raise ClientClosed("this producer was closed before the message was sent")
        route = await self.routes.get(topic, create=True, timeout_s=timeout_s)
        if not route.publish_queues:
            self.routes.mark_stale(topic)
            is_away = not any(route.master(name) for name in route.brokers)
            why = "no master of it is up" if is_away else "none of its masters lets it be written to"
            raise NoBrokerForTopic(topic, why, is_away)
        return route

    def request(self, outgoing: Outgoing, queue: MessageQueue) -> RemotingCommand:
        return send_request(outgoing, queue, self._group, self.options)

    def _answered(self, addr: str) -> None:
        """Called when a broker has answered a heartbeat."""
        self.availability.answered(
            name for name, addresses in self.routes.brokers().items() if addresses.get(MASTER_ID) == addr
        )

    async def _tried(
        self,
        trials: Trials,
        outgoing: Outgoing,
        choose: Choose | None,
        deadline: float,
        first: FirstAttempt | None,
        chosen: Chosen | None,
    ) -> SendResult:
        while True:
            if first is None:
                queue, addr, attempt_s = await self._target(trials, outgoing, choose, deadline, chosen)
            else:
                queue, addr, attempt_s = first.queue, first.addr, 0.0
            chosen = None
            try:
                return await self._attempt(trials, outgoing, queue, addr, attempt_s, first)
            except MQError as error:
                first = None
                if not self._is_worth_retrying(error):
                    raise
                self.availability.failed(queue.broker_name)
                self.routes.mark_stale(outgoing.topic)
                trials.add(queue, addr, error)
                # A connection that was closed for a frame's size will be closed each time.
                is_hopeless = outgoing.exceeds_frames and isinstance(error, ConnectionClosed)
                if trials.are_over or self.is_closed or is_hopeless:
                    raise trials.failure() from error

    async def _target(
        self, trials: Trials, outgoing: Outgoing, choose: Choose | None, deadline: float, chosen: Chosen | None
    ) -> tuple[MessageQueue, str, float]:
        """The queue of the next attempt, its broker's address, and the seconds for it."""
        topic, steady = outgoing.topic, self._net.steady
        while True:
            if trials.attempts and steady() >= deadline:
                raise trials.failure()
            try:
                queue, addr = await self._where(topic, choose, deadline, trials.brokers, chosen, outgoing.preferred)
            except MQError as error:
                if not trials.outlast(error):
                    raise
                await self._pause(trials, deadline, error)
                continue
            if queue.broker_name in trials.brokers:
                await self._pause(trials, deadline)
            attempt_s = deadline - steady()
            if attempt_s <= 0 and trials.attempts:
                raise trials.failure()
            if attempt_s <= 0:
                raise RequestTimedOut(f"the time of a send to topic {topic} was over before it could be sent")
            if choose is None and not trials.is_last and self._has_others(topic, queue, trials.brokers):
                attempt_s /= 2  # so that a silent broker leaves time for another
            return queue, addr, attempt_s

    def _is_worth_retrying(self, error: MQError) -> bool:
        if not isinstance(error, Refused):
            return error.retriable
        return error.code in self.options.retry_codes or error.code in STATUSES

    def _has_others(self, topic: str, queue: MessageQueue, tried: Collection[str]) -> bool:
        """Whether a message of `topic` could be sent to a broker that was not tried, beside that of `queue`."""
        route = self.routes.known(topic, create=True)
        names = {each.broker_name for each in route.publish_queues} if route is not None else set()
        return bool(names.difference(tried, (queue.broker_name,)))

    async def _attempt(
        self,
        trials: Trials,
        outgoing: Outgoing,
        queue: MessageQueue,
        addr: str,
        timeout_s: float,
        made: FirstAttempt | None,
    ) -> SendResult:
        """Send, or act on the result of an attempt that was made."""
        if made is None:
            began = self._net.steady()
            answer = await self._net.invoke(
                self._port_of(addr), self.request(outgoing, queue), max(1, int(timeout_s * 1000))
            )
            self.availability.took(queue.broker_name, self._net.steady() - began)
        elif isinstance(made.outcome, MQError):
            raise made.outcome
        else:
            answer = made.outcome
        result = read_send_answer(outgoing, queue, answer)
        if self.heartbeats.is_due(addr):
            await self.heartbeats.send_to(addr)
        if self.options.retry_unstored and result.status is not SendStatus.SEND_OK:
            trials.note_unstored(result)
        return result

    def _port_of(self, addr: str) -> str:
        """Where sends to the broker at `addr` go."""
        if not self.options.vip_channel:
            return addr
        host, port = split_address(addr)
        return join_address(host, port - 2)

    async def _where(
        self,
        topic: str,
        choose: Choose | None,
        until: float,
        tried: Collection[str] = (),
        chosen: Chosen | None = None,
        preferred: str | None = None,
    ) -> tuple[MessageQueue, str]:
        """The queue to send to, and its broker's address: the one that was `chosen`, if the route is still the same."""
        route = await self.writable(topic, max(0.0, until - self._net.steady()))
        queues = route.publish_queues
        if chosen is not None and chosen.route is route:
            queue = chosen.queue
        else:
            avoided = self.availability.avoided()
            if preferred is not None:
                avoided = {queue.broker_name for queue in queues}.difference((preferred,))
            queue = choose(queues) if choose else self.rotation.next(topic, queues, tried, avoided)
        addr = route.master(queue.broker_name)
        if addr is None:
            why = f"the name server knows no master of broker {queue.broker_name}"
            raise NoBrokerForTopic(queue.topic, why, is_away=True)
        return queue, addr

    async def _pause(self, trials: Trials, deadline: float, error: MQError | None = None) -> None:
        """Wait before the next attempt. If the time ends first, raises SendFailed, or `error` if nothing was sent."""
        pause_s = min(_RETRY_PAUSE_S * 2.0**trials.pauses, _RETRY_PAUSE_S_MAX) * self._net.rng.uniform(0.5, 1.0)
        trials.pauses = min(trials.pauses + 1, 10)
        if self._net.steady() + pause_s >= deadline:
            raise trials.failure() if trials.attempts or error is None else error
        await self._net.sleep(pause_s)
