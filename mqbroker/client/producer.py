"""The producer's core: selection of queues, retries on other brokers, and time-outs. Uses the network only through
Net."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import attrs

from mqbroker.client.availability import Availability
from mqbroker.client.batches import parts_of
from mqbroker.client.errors import (
    BadArgument,
    BadMessage,
    BatchFailed,
    ClientClosed,
    NoBrokerForTopic,
    SendFailed,
    short,
)
from mqbroker.client.heartbeats import Heartbeats
from mqbroker.client.identity import Identity
from mqbroker.client.index_requests import IndexRequests, Queries
from mqbroker.client.messages import Message, ReceivedMessage, SendResult, SendStatus
from mqbroker.client.names import bare, check_group, within
from mqbroker.client.net import Net, Task, decline, every
from mqbroker.client.observers import Observers, Send, SendKind
from mqbroker.client.options import ProducerOptions, milliseconds
from mqbroker.client.replies import Replies
from mqbroker.client.routes import Route, Routes
from mqbroker.client.send import (
    STATUSES,
    Choose,
    Outgoing,
    Rotation,
    Selector,
    SendsInFlight,
    Slot,
    Trials,
    chooser,
    prepare,
    read_send_answer,
    send_request,
)
from mqbroker.client.trace import FLUSH_S, Tracer
from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import MASTER_ID, REPLY_TOPIC_POSTFIX, RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.names import join_address, split_address

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Bodies of so many bytes are compressed on a thread: 64 KiB take about 2 ms, 4 MiB 0.2 to 0.4 s.
_LARGE_BYTES = 64 * 1024

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


class PlainSends(Protocol):
    """Takes sends that are plain, several together."""

    def suits(self, message: Message) -> bool:
        """Whether `message` may be plain."""

    def take(self, message: Message, choose: Choose | None = None) -> Any:
        """Send `message` soon, to the queue that `choose` returns or to the next, in a slot among those in flight that
        is acquired; returns an awaitable.

        The slot ends with a SendResult. Otherwise it is kept: with a FirstAttempt, or if the message was not sent with
        the queue that was Chosen, or None.
        """

    def give_up(self, message: Message, taken: Any) -> None:
        """What `take` has returned is no longer awaited."""

    def flush(self) -> None:
        """Send now what was taken: others must not go before it."""


class ProducerCore:
    """Sends for one group."""

    def __init__(
        self,
        net: Net,
        name_servers: tuple[str, ...],
        group: str,
        options: ProducerOptions,
        identity: Identity,
        plain_sends: Callable[..., PlainSends] | None = None,
    ) -> None:
        """`plain_sends` makes what takes plain sends, where the net has that."""
        self._net = net
        self._namespace = options.namespace
        self._group = within(self._namespace, check_group(group))
        self._options = options
        self._identity = identity
        timeout_ms = milliseconds("send_timeout_s", options.send_timeout_s)
        self._routes = Routes(
            net,
            name_servers,
            age_s=None,
            default_topic_queues=options.default_topic_queues,
            create_topic_key=options.create_topic_key,
            timeout_ms=timeout_ms,
        )
        self.heartbeats = Heartbeats(
            net,
            self._routes,
            identity,
            producer_group=self._group,
            heartbeat_s=options.heartbeat_s,
            timeout_ms=timeout_ms,
        )
        self.heartbeats.on_answer = self._answered
        self._rotation = Rotation(net.rng)
        self._availability = Availability(net.steady, is_enabled=options.avoid_slow_brokers)
        self._in_flight = SendsInFlight(net, options.sends_in_flight_max, options.sends_in_flight_bytes_max)
        self._tracer = Tracer(net, options.trace_topic, self.send_unseen) if options.trace_topic else None
        observers = (*options.observers, *filter(None, [self._tracer]))
        self._observers = Observers(observers, net.steady) if observers else None
        self._plain: PlainSends | None = None
        if plain_sends and not (self._observers or self._namespace or options.retry_unstored or options.vip_channel):
            self._plain = plain_sends(
                self._identity,
                self._routes,
                self._rotation,
                self._availability,
                self.heartbeats,
                self._in_flight,
                self._request,
                options,
            )
        self._requests = SendsInFlight(net, options.requests_in_flight_max, options.sends_in_flight_bytes_max)
        self._replies = Replies(net)
        #: Held by a send to a chosen queue while it is encoded; how many hold it, or wait for it.
        self._order, self._ordered = net.lock(), 0
        #: Look-ups in the index of the brokers that it sends to.
        self.index = IndexRequests(net, self._routes, timeout_ms)
        self.queries = Queries(net, self._routes, timeout_ms, self._namespace)
        self._tasks: list[Task] = []
        self._is_started = self._closed = False
        self._allowed_s = options.send_timeout_s

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` go to. Raises TopicNotFound, NameServerUnreachable, NoBrokerForTopic."""
        route = await self._writable(within(self._namespace, topic), self._allowed_s)
        return [self._bare(queue) for queue in route.publish_queues]

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | timedelta | None = None,
    ) -> SendResult:
        """Send one message and return the broker's result.

        Waits for its turn if the maximum of sends is in flight. Without `queue`, `key` or `selector` the queues take
        turns and a failed attempt is repeated, on another broker if there is one; with one of them the same queue is
        tried again. All attempts together end `timeout_s` after the send's turn. Raises SendFailed if every attempt
        failed, Refused if the broker will never accept the message, BadMessage, TopicNotFound, NameServerUnreachable,
        NoBrokerForTopic, and ClientClosed if it was closed meanwhile.
        """
        self.checked(message)
        choose = chooser(message, queue, key, selector)
        plain = self._plain
        if (
            plain is not None
            and timeout_s is None
            and not self._closed
            and plain.suits(message)
            and not (self._ordered and choose)
        ):
            size = len(message.body)
            if not self._in_flight.acquired(size):
                await self._in_flight.acquire(size)
            waiter = plain.take(message, choose)
            try:
                result = await waiter
            except BaseException:  # it was cancelled
                plain.give_up(message, waiter)
                raise
            return result if isinstance(result, SendResult) else await self.send_otherwise(message, result, choose)
        return await self._send_general(message, choose, self._until(timeout_s), SendKind.SEND)

    async def _send_general(
        self, message: Message, choose: Choose | None, until: float | None, kind: SendKind
    ) -> SendResult:
        async def run(messages: list[Message]) -> SendResult:
            with await self._slot(len(messages[0].body), until):
                return await self._send_otherwise(messages[0], choose, until, None)

        return await self._observed(kind, [message], run)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | timedelta = 3.0,
    ) -> ReceivedMessage:
        """Send a request and return the reply, which a consumer sends with `Message.reply_to`.

        `timeout_s` is the time for both. Raises RequestTimedOut if there is no reply in time, although the request may
        have been acted on, and as `send` does.
        """
        choose = chooser(self.checked(message), queue, key, selector)
        seconds = milliseconds("timeout_s", timeout_s) / 1000
        until = self._net.steady() + seconds
        await self._requests.acquire(len(message.body), seconds)
        with Slot(self._requests, len(message.body)):
            await self._be_known(message.topic, until)
            asked, correlation_id = self._replies.expect(message, self._identity.client_id, seconds)
            try:
                sent = await self._send_general(asked, choose, until, SendKind.REQUEST)
                reply = await self._replies.wait(correlation_id, until - self._net.steady())
            finally:
                self._replies.forget(correlation_id)
        if reply is None:
            raise RequestTimedOut(
                f"no reply to the request {sent.msg_id} to topic {message.topic} in {seconds:g} s: it may be acted on"
            )
        return reply

    async def _be_known(self, topic: str, until: float) -> None:
        """Have the brokers know this producer that replies to a request may come through."""
        route = await self._writable(within(self._namespace, topic), max(0.0, until - self._net.steady()))
        for cluster in route.clusters:
            reply_topic = f"{cluster}_{REPLY_TOPIC_POSTFIX}"
            if self._routes.known(reply_topic) is None:
                try:
                    await self._routes.get(reply_topic, timeout_s=max(0.0, until - self._net.steady()))
                except MQError as error:
                    log.info("replies may not come through all brokers of %s: %s", cluster, error)
        await self.heartbeats.send_to_new()

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """The response to a broker's request."""
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            response = self._replies.take(request)
            return None if request.is_oneway else response
        return await decline(request)

    def takes(self, request: RemotingCommand) -> bool:
        """Whether a broker's request is for this producer."""
        return request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self._replies.expects(request)

    async def _observed(
        self, kind: SendKind, messages: list[Message], run: Callable[[list[Message]], Awaitable[T]]
    ) -> T:
        """What `run`, which sends, returns for the messages, after the observers have seen them."""
        if self._namespace:
            messages = [attrs.evolve(each, topic=within(self._namespace, each.topic)) for each in messages]
            run = partial(self._in_namespace, run)
        if self._observers is None:
            return await run(messages)
        send = Send(self._group, self._identity.client_id, kind, messages, self._now_ms())
        return await self._observers.sending(send, run, self._addr_of)

    async def _in_namespace(self, run: Callable[[list[Message]], Awaitable[T]], messages: list[Message]) -> T:
        """What `run` returns, with queues of topics as the user knows them."""
        found: Any = await run(messages)
        results = [found] if isinstance(found, SendResult) else found
        bared = results and [attrs.evolve(each, queue=self._bare(each.queue)) for each in results]
        return cast(T, bared[0] if isinstance(found, SendResult) else bared)

    def _bare(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        return MessageQueue(bare(queue.topic, self._namespace), queue.broker_name, queue.queue_id)

    async def send_unseen(self, message: Message) -> SendResult:
        """Send a message that no observer sees."""
        with await self._slot(len(message.body)):
            return await self._send_otherwise(message, None, None, None)

    def _addr_of(self, outcome: object) -> str:
        """The address of the broker that was asked last in a send, or empty."""
        if isinstance(outcome, SendFailed) and outcome.attempts:
            return outcome.attempts[-1][1]
        if not isinstance(outcome, list) or not outcome:
            return ""
        queue = outcome[-1].queue
        route = self._routes.known(within(self._namespace, queue.topic), create=True)
        return (route and route.master(queue.broker_name)) or ""

    def take_plain(self, message: object = None) -> Any:
        """Begin a send to the next queue without a coroutine, where it may be plain and has its turn: returns what
        `PlainSends.take` does, else None. Where that comes to no SendResult, `send_otherwise` goes on; where it is
        cancelled, `give_up` is called."""
        plain = self._plain
        if plain is None or self._closed or not isinstance(message, Message) or not plain.suits(message):
            return None
        if not self._in_flight.acquired(len(message.body)):
            return None
        return plain.take(message)

    async def send_otherwise(
        self, message: Message, outcome: FirstAttempt | Chosen | None, choose: Choose | None = None
    ) -> SendResult:
        """Send what was no plain send after all; its slot ends with it."""
        with Slot(self._in_flight, len(message.body)):
            return await self._send_otherwise(message, choose, None, outcome)

    def give_up(self, message: Message, taken: Any) -> None:
        """What `take_plain` has returned is no longer awaited."""
        assert self._plain is not None
        self._plain.give_up(message, taken)

    async def _send_otherwise(
        self,
        message: Message,
        choose: Choose | None,
        until: float | None,
        outcome: FirstAttempt | Chosen | None,
    ) -> SendResult:
        if isinstance(outcome, FirstAttempt):
            outgoing = prepare(message, self._options, lambda: outcome.msg_id, int(outcome.began_at * 1000))
            return await self._attempts(outgoing, choose, outcome.sent_at + self._allowed_s, outcome)
        if choose is not None and (self._ordered or len(message.body) >= _LARGE_BYTES):
            # What follows a large one with the same key must not overtake it.
            self._ordered += 1
            try:
                async with self._order:
                    outgoing = await self._prepared(message)
            finally:
                self._ordered -= 1
        else:
            outgoing = await self._prepared(message)
        return await self._attempts(outgoing, choose, until, chosen=outcome)

    async def _prepared(self, message: Message) -> Outgoing:
        """The encoded message; a large body is compressed on a thread, so that it does not hold up the event loop."""
        compressed = None
        if max(_LARGE_BYTES, self._options.compress_over_bytes) <= len(message.body) <= self._options.message_bytes_max:
            compressed = await self._net.on_thread(partial(zlib.compress, message.body, self._options.compress_level))
        return prepare(message, self._options, self._identity.next_ids, self._now_ms(), compressed)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_s: float | timedelta | None = None,
    ) -> list[SendResult]:
        """Send any number of messages; return the result of each, in their order.

        They travel in as few requests as their topics and the limit of a request's size (`message_bytes_max`) allow,
        one after the other. A request's messages go to one queue, and are stored all or none. Raises BadMessage, with
        its index, for one that cannot be in a batch: then nothing was sent. Raises as `send` does if no message was
        stored, and BatchFailed if only some were; after a failure the others are not sent.
        """
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise BadArgument("messages", "several messages", messages)
        messages = list(messages)
        for message in messages:
            self.checked(message)
        choices = {
            within(self._namespace, topic): chooser(message, queue, key, None)
            for topic, message in {message.topic: message for message in messages}.items()
        }
        until = self._until(timeout_s)

        async def run(messages: list[Message]) -> list[SendResult]:
            parts = parts_of(messages, self._options)
            results: list[SendResult | MQError | None] = [None] * len(messages)
            for part in parts:
                choose = choices[part.messages[0].topic]
                try:
                    with await self._slot(part.size, until):
                        outgoing = part.outgoing(self._identity.next_ids, self._now_ms())
                        sent = part.results(await self._attempts(outgoing, choose, until))
                except MQError as error:
                    if part is parts[0]:
                        raise
                    raise BatchFailed([error if result is None else result for result in results]) from error
                for index, result in zip(part.indexes, sent, strict=True):
                    results[index] = result
            return cast(list[SendResult], results)

        return await self._observed(SendKind.BATCH, messages, run) if messages else []

    async def send_packed(
        self, outgoing: Outgoing, *, queue: MessageQueue | None = None, timeout_s: float | timedelta | None = None
    ) -> SendResult:
        """Send what was encoded elsewhere, and bounded: no place among the sends in flight is waited for, and no
        observer sees it. Raises as `send` does."""
        choose = None if queue is None else lambda queues: queue
        return await self._attempts(outgoing, choose, self._until(timeout_s))

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send without a response: returns when the bytes were written, whether or not they arrive.

        Waits while the connection is not writable, or the maximum of sends is in flight.
        """
        choose = chooser(self.checked(message), queue, key, selector)

        async def run(messages: list[Message]) -> None:
            with await self._slot(len(messages[0].body)):
                outgoing = await self._prepared(messages[0])
                until = self._net.steady() + self._allowed_s
                chosen, addr = await self._where(outgoing.topic, choose, until)
                await self._net.send_oneway(self._port_of(addr), self._request(outgoing, chosen))

        await self._observed(SendKind.ONEWAY, [message], run)

    def started(self) -> ProducerCore:
        """This producer. Raises ClientClosed if it is not started, or was closed."""
        if not self._tasks:
            raise ClientClosed("this producer is not started, or was closed")
        return self

    async def start(self) -> None:
        """Connect to a name server, and start heartbeats and the refresh of routes. Brokers are connected when they are
        needed.

        Raises NameServerUnreachable, TlsFailed, and ClientClosed if it was started or closed before.
        """
        if self._is_started or self._closed:
            raise ClientClosed("a producer is started once")
        self._is_started = True
        self._identity.take()
        try:
            await self._routes.check()
        except BaseException:
            self._is_started = False
            raise
        if self._closed:
            raise ClientClosed("this producer was closed while it started")
        self._tasks = [
            self._net.spawn(self.heartbeats.keep_sending()),
            self._net.spawn(every(self._net, self._options.route_age_s, self._routes.refresh_all)),
        ]
        if self._tracer is not None:
            self._tasks.append(self._net.spawn(every(self._net, FLUSH_S, self._tracer.flush)))

    async def close(self) -> None:
        """Unregister from the brokers and close the connections; sends in flight, and waiting ones, fail."""
        if self._plain is not None:
            self._plain.flush()
        if self._tracer is not None:
            await self._tracer.flush()
        self._closed = True
        self._replies.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await self.heartbeats.unregister()
        await self._net.close()

    @staticmethod
    def checked(message: Message) -> Message:
        """The message. Raises BadMessage if it is none."""
        if not isinstance(cast(Any, message), Message):
            raise BadMessage(f"a Message is sent, not {short(message)}: Message(topic, body)")
        return message

    def _now_ms(self) -> int:
        return int(self._net.now() * 1000)

    def _until(self, timeout_s: float | timedelta | None) -> float | None:
        """When the time of a send ends that was given with it; of others it begins with their turns."""
        if timeout_s is None:
            return None
        return self._net.steady() + milliseconds("timeout_s", timeout_s) / 1000

    def _answered(self, addr: str) -> None:
        """Called when a broker has answered a heartbeat."""
        self._availability.answered(
            name for name, addresses in self._routes.brokers().items() if addresses.get(MASTER_ID) == addr
        )

    async def _slot(self, size: int, until: float | None = None) -> Slot:
        """A slot among the sends in flight. A waiting message is not encoded yet, so that it costs little."""
        if self._plain is not None:
            self._plain.flush()
        if not self._in_flight.acquired(size):
            await self._in_flight.acquire(size, None if until is None else until - self._net.steady())
        return Slot(self._in_flight, size)

    async def _writable(self, topic: str, timeout_s: float) -> Route:
        if self._closed:
            raise ClientClosed("this producer was closed before the message was sent")
        route = await self._routes.get(topic, create=True, timeout_s=timeout_s)
        if not route.publish_queues:
            self._routes.mark_stale(topic)
            is_away = not any(route.master(name) for name in route.brokers)
            why = "no master of it is up" if is_away else "none of its masters lets it be written to"
            raise NoBrokerForTopic(topic, why, is_away)
        return route

    async def _attempts(
        self,
        outgoing: Outgoing,
        choose: Choose | None,
        until: float | None,
        first: FirstAttempt | None = None,
        chosen: Chosen | None = None,
    ) -> SendResult:
        trials = Trials(outgoing.topic, self._options.retries)
        try:
            return await self._tried(trials, outgoing, choose, until, first, chosen)
        except MQError:
            if trials.unstored is None:
                raise
            return trials.unstored

    async def _tried(
        self,
        trials: Trials,
        outgoing: Outgoing,
        choose: Choose | None,
        until: float | None,
        first: FirstAttempt | None,
        chosen: Chosen | None,
    ) -> SendResult:
        steady = self._net.steady
        deadline = steady() + self._allowed_s if until is None else until
        while True:
            attempt_s = deadline - steady()
            if first is not None:
                queue, addr = first.queue, first.addr
            else:
                if attempt_s <= 0 and trials.attempts:
                    raise trials.failure()
                try:
                    queue, addr = await self._where(
                        outgoing.topic, choose, deadline, trials.brokers, chosen, outgoing.preferred
                    )
                except MQError as error:
                    if not trials.outlast(error):
                        raise
                    await self._pause(trials, deadline, error)
                    continue
                if queue.broker_name in trials.brokers:
                    await self._pause(trials, deadline)
                attempt_s = deadline - steady()
                if attempt_s <= 0:
                    raise (
                        trials.failure()
                        if trials.attempts
                        else RequestTimedOut(
                            f"the time of a send to topic {outgoing.topic} was over before it could be sent"
                        )
                    )
                if choose is None and not trials.is_last and self._has_others(outgoing.topic, queue, trials.brokers):
                    attempt_s /= 2  # so that a silent broker leaves time for another
            chosen = None
            try:
                return await self._attempt(trials, outgoing, queue, addr, attempt_s, first)
            except MQError as error:
                first = None
                if not self._is_worth_retrying(error):
                    raise
                self._availability.failed(queue.broker_name)
                self._routes.mark_stale(outgoing.topic)
                trials.add(queue, addr, error)
                # A connection that was closed for a frame's size will be closed each time.
                is_hopeless = outgoing.exceeds_frames and isinstance(error, ConnectionClosed)
                if trials.are_over or self._closed or is_hopeless:
                    raise trials.failure() from error

    def _is_worth_retrying(self, error: MQError) -> bool:
        if not isinstance(error, Refused):
            return error.retriable
        return error.code in self._options.retry_codes or error.code in STATUSES

    def _has_others(self, topic: str, queue: MessageQueue, tried: Collection[str]) -> bool:
        """Whether a message of `topic` could be sent to a broker that was not tried, beside that of `queue`."""
        route = self._routes.known(topic, create=True)
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
        """Send, or act on what came of an attempt that was made."""
        if made is None:
            began = self._net.steady()
            answer = await self._net.invoke(
                self._port_of(addr), self._request(outgoing, queue), max(1, int(timeout_s * 1000))
            )
            self._availability.took(queue.broker_name, self._net.steady() - began)
        elif isinstance(made.outcome, MQError):
            raise made.outcome
        else:
            answer = made.outcome
        result = read_send_answer(outgoing, queue, answer)
        if self.heartbeats.is_due(addr):
            await self.heartbeats.send_to(addr)
        if self._options.retry_unstored and result.status is not SendStatus.SEND_OK:
            trials.note_unstored(result)
        return result

    def _port_of(self, addr: str) -> str:
        """Where sends to the broker at `addr` go."""
        if not self._options.vip_channel:
            return addr
        host, port = split_address(addr)
        return join_address(host, port - 2)

    def _request(self, outgoing: Outgoing, queue: MessageQueue) -> RemotingCommand:
        return send_request(outgoing, queue, self._group, self._options)

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
        route = await self._writable(topic, max(0.0, until - self._net.steady()))
        queues = route.publish_queues
        if chosen is not None and chosen.route is route:
            queue = chosen.queue
        else:
            avoided = self._availability.avoided()
            if preferred is not None:
                avoided = {queue.broker_name for queue in queues}.difference((preferred,))
            queue = choose(queues) if choose else self._rotation.next(topic, queues, tried, avoided)
        return queue, _master(route, queue)

    async def _pause(self, trials: Trials, deadline: float, error: MQError | None = None) -> None:
        """Wait before the next attempt. If the time ends first, raises SendFailed, or `error` if nothing was sent."""
        pause_s = min(_RETRY_PAUSE_S * 2.0**trials.pauses, _RETRY_PAUSE_S_MAX) * self._net.rng.uniform(0.5, 1.0)
        trials.pauses = min(trials.pauses + 1, 10)
        if self._net.steady() + pause_s >= deadline:
            raise trials.failure() if trials.attempts or error is None else error
        await self._net.sleep(pause_s)


def _master(route: Route, queue: MessageQueue) -> str:
    addr = route.master(queue.broker_name)
    if addr is None:
        why = f"the name server knows no master of broker {queue.broker_name}"
        raise NoBrokerForTopic(queue.topic, why, is_away=True)
    return addr
