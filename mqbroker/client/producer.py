"""The producer's core: what its API does. Messages that are sent one by one go through `single_sends.py`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import attrs

from mqbroker.client.attempts import Attempts
from mqbroker.client.batches import Part, parts_of, send_parts
from mqbroker.client.errors import BadArgument, ClientClosed, SendFailed
from mqbroker.client.heartbeats import Heartbeats
from mqbroker.client.identity import Identity
from mqbroker.client.index_requests import IndexRequests, Queries
from mqbroker.client.messages import Message, ReceivedMessage, SendResult
from mqbroker.client.names import bare_queue, check_group, within
from mqbroker.client.net import Ending, Net, Task, decline, every
from mqbroker.client.observers import Observers, Send, SendKind, SendObserver
from mqbroker.client.options import ProducerOptions, milliseconds
from mqbroker.client.replies import Replies
from mqbroker.client.routes import Routes
from mqbroker.client.send import Outgoing, Selector, checked, chooser
from mqbroker.client.single_sends import MakePlainSends, SingleSends
from mqbroker.client.trace import Tracer
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand

log = logging.getLogger(__name__)

T = TypeVar("T")


class ProducerCore:
    """Sends for one group."""

    def __init__(
        self,
        net: Net,
        name_servers: tuple[str, ...],
        group: str,
        options: ProducerOptions,
        identity: Identity,
        plain_sends: MakePlainSends | None = None,
    ) -> None:
        """`plain_sends`: see SingleSends."""
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
        self.check = self._routes.check
        self._attempts = Attempts(net, self._routes, self.heartbeats, self._group, options)
        self._tracer = Tracer(net, options.trace_topic, self.send_unseen) if options.trace_topic else None
        observers = [each for each in (*options.observers, self._tracer) if isinstance(each, SendObserver)]
        self._observers = Observers(observers, net.steady) if observers else None
        #: The sends of one message each.
        self.sends = SingleSends(net, identity, self._attempts, plain_sends, is_observed=self._observers is not None)
        self._replies = Replies(net, options)
        #: Look-ups in the index of the brokers that it sends to.
        self.index = IndexRequests(net, self._routes, timeout_ms)
        self.queries = Queries(net, self._routes, timeout_ms, self._namespace)
        self._tasks: list[Task] = []
        self._is_started = False

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` go to. Raises TopicNotFound, NameServerUnreachable, NoBrokerForTopic."""
        route = await self._attempts.writable(within(self._namespace, topic), self._options.send_timeout_s)
        return [bare_queue(self._namespace, queue) for queue in route.publish_queues]

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
        turns, and a failed attempt is repeated, on another broker if there is one; with one of them the same queue is
        tried again. All attempts together end within `timeout_s`, which includes the wait for the send's turn; without
        it within `options.send_timeout_s` after that turn. Raises SendFailed if every attempt failed, Refused if the
        broker will never accept the message, BadMessage, TopicNotFound, NameServerUnreachable, NoBrokerForTopic, and
        ClientClosed if the producer was closed meanwhile.
        """
        choose, until = chooser(checked(message), queue, key, selector, self._namespace), self._until(timeout_s)
        if self._observers is None and not self._namespace:
            return await self.sends.send([message], choose, until)
        return await self._observed(SendKind.SEND, [message], self.sends.send, choose, until)

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

        `timeout_s` is the time for both. Raises RequestTimedOut if there is no reply in time (the request may have been
        processed), and as `send` does.
        """
        choose = chooser(checked(message), queue, key, selector, self._namespace)
        seconds = milliseconds("timeout_s", timeout_s) / 1000
        until = self._net.steady() + seconds

        async def send(request: Message) -> SendResult:
            route = await self._attempts.writable(
                within(self._namespace, message.topic), max(0.0, until - self._net.steady())
            )
            await self._replies.be_reachable(self._routes, route, until)
            await self.heartbeats.send_to_new()
            return await self._observed(SendKind.REQUEST, [request], self.sends.send, choose, until)

        return await self._replies.ask(message, self._identity.client_id, seconds, until, send)

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
        self, kind: SendKind, messages: list[Message], run: Callable[..., Awaitable[T]], *given: Any
    ) -> T:
        """Tell the observers of the messages, and send them: returns what `run` returns for them and `given`."""
        if self._namespace:
            messages = [attrs.evolve(each, topic=within(self._namespace, each.topic)) for each in messages]
            run, given = self._in_namespace, (run, *given)
        observers = self._observers
        if observers is None:
            return await run(messages, *given)
        send = Send(self._group, self._identity.client_id, kind, messages, self._now_ms())
        began = observers.begin(send)
        try:
            result = await run(send.messages, *given)
        except BaseException as error:
            observers.end(send, began, error, self._addr_of(error))
            raise
        outcome = [result] if isinstance(result, SendResult) else result or []
        observers.end(send, began, outcome, self._addr_of(outcome))
        return result

    async def _in_namespace(self, messages: list[Message], run: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """What `run` returns, with queues of topics as the user knows them."""
        found = await run(messages, *given)
        results = [found] if isinstance(found, SendResult) else found
        bared = results and [attrs.evolve(each, queue=bare_queue(self._namespace, each.queue)) for each in results]
        return bared[0] if isinstance(found, SendResult) else bared

    async def send_unseen(self, message: Message) -> SendResult:
        """Send a message that no observer sees."""
        return await self.sends.send([message], None, None)

    def _addr_of(self, outcome: object) -> str:
        """The address of the broker that was asked last in a send, or empty."""
        if isinstance(outcome, list) and outcome:
            queue = outcome[-1].queue
            route = self._routes.last(within(self._namespace, queue.topic) if self._namespace else queue.topic)
            return (route and route.master(queue.broker_name)) or ""
        return outcome.attempts[-1][1] if isinstance(outcome, SendFailed) and outcome.attempts else ""

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_s: float | timedelta | None = None,
    ) -> list[SendResult]:
        """Send any number of messages, and return the result of each, in the same order.

        It makes as few requests as their topics and the limit of a request's size (`message_bytes_max`) allow, one
        after the other. The messages of a request go to one queue, and either all or none are stored. Raises
        BadMessage, which has the index, if a message cannot be in a batch: then nothing was sent. Raises as `send` does
        if no message was stored, and BatchFailed if only some were; after a failure the others are not sent.
        """
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise BadArgument("messages", "several messages", messages)
        messages = list(messages)
        for message in messages:
            checked(message)
        choices = {
            within(self._namespace, topic): chooser(message, queue, key, None)
            for topic, message in {message.topic: message for message in messages}.items()
        }
        until = self._until(timeout_s)

        async def send(part: Part) -> Sequence[SendResult]:
            with await self.sends.slot(part.size, until):
                if part.is_batch(self._options):
                    outgoing = part.outgoing(self._identity.next_ids, self._now_ms())
                else:
                    outgoing = part.alone(await self.sends.prepared(part.messages[0]))
                return part.results(await self._attempts.send(outgoing, choices[part.messages[0].topic], until))

        async def run(messages: list[Message]) -> list[SendResult]:
            return await send_parts(parts_of(messages, self._options), send)

        return await self._observed(SendKind.BATCH, messages, run) if messages else []

    async def send_packed(
        self, outgoing: Outgoing, *, queue: MessageQueue | None = None, timeout_s: float | timedelta | None = None
    ) -> SendResult:
        """Send what was encoded elsewhere, and bounded: no place among the sends in flight is waited for, and no
        observer sees it. Raises as `send` does."""
        choose = None if queue is None else lambda queues: queue
        return await self._attempts.send(outgoing, choose, self._until(timeout_s))

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send without a response: returns when the bytes are written, whether or not they arrive.

        Waits while the connection is not writable, or the maximum of sends is in flight.
        """
        choose = chooser(checked(message), queue, key, selector, self._namespace)

        async def run(messages: list[Message]) -> None:
            with await self.sends.slot(len(messages[0].body)):
                outgoing = await self.sends.prepared(messages[0])
                await self._attempts.send_oneway(outgoing, choose)

        await self._observed(SendKind.ONEWAY, [message], run)

    def started(self) -> ProducerCore:
        """This producer. Raises ClientClosed if it is not started, or was closed."""
        if not self._tasks:
            raise ClientClosed("this producer is not started, or was closed")
        return self

    async def start(self) -> None:
        """Connect to a name server, and start heartbeats and the refresh of routes; brokers are connected to when they
        are needed. Raises NameServerUnreachable, TlsFailed, and ClientClosed if it was started or closed before."""
        await self.begin(self._routes.check)

    async def begin(self, connect: Callable[[], Awaitable[None]] | None = None) -> None:
        """As `start`, with `connect` called first; without it the first request connects, within its own time-out."""
        if self._is_started or self._attempts.is_closed:
            raise ClientClosed("a producer can be started only once")
        self._is_started = True
        self._identity.take()
        try:
            if connect is not None:
                await connect()
        except BaseException:
            self._is_started = False
            raise
        if self._attempts.is_closed:
            raise ClientClosed("this producer was closed while it started")
        loops = [self.heartbeats.keep_sending(), every(self._net, self._options.route_age_s, self._routes.refresh_all)]
        loops += [self._tracer.run()] if self._tracer is not None else []
        self._tasks = [self._net.spawn(loop) for loop in loops]
        self.sends.open()

    async def close(self) -> None:
        """Unregister and close the connections, within `close_timeout_s`. Sends in flight or waiting fail."""
        await self.close_within(self._options.close_timeout_s)

    async def close_within(self, seconds: float) -> None:
        """As `close`."""
        ending = Ending(self._net, seconds, self._group)
        self.sends.flush()
        if self._tracer is not None:
            await ending.step(self._tracer.unsent, self._tracer.flush(), left=1)
        self._attempts.is_closed = True
        self.sends.close()
        self._replies.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await ending.step("unregistering", self.heartbeats.unregister())
        await ending.close_net()

    def _now_ms(self) -> int:
        return int(self._net.now() * 1000)

    def _until(self, timeout_s: float | timedelta | None) -> float | None:
        """The deadline of a send with a time-out of its own; that of other sends starts when they get a slot."""
        return None if timeout_s is None else self._net.steady() + milliseconds("timeout_s", timeout_s) / 1000
