"""Automatic batches: sends that are under way at the same time travel in one request for each queue, and each gets its
own result. What cannot be in a batch, and all that goes wrong, is left to the general path (`client/attempts.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import attrs

from mqbroker.client.attempts import Attempts, Chosen, FirstAttempt
from mqbroker.client.batches import RECORD_BYTES, Part
from mqbroker.client.errors import BadMessage
from mqbroker.client.identity import Identity
from mqbroker.client.loop import Future, Loop
from mqbroker.client.loop_net import LoopNet
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.options import ProducerOptions
from mqbroker.client.plain_sends import PlainSends
from mqbroker.client.routes import Route
from mqbroker.client.send import Choose, Outgoing, SendsInFlight, read_send_answer
from mqbroker.errors import MQError, Refused
from mqbroker.kernel import compiled
from mqbroker.remoting.response_table import Timer
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RETRY_PREFIX
from mqbroker.wire.command import RemotingCommand, encode_command

if TYPE_CHECKING:
    from mqbroker.kernel.compiled import OpenBatch

_waits = attrgetter("wait_stored")


@attrs.define(eq=False)
class _Batch(Part):
    """Sends to one queue, which `choose` returns if it is not None, and the futures of their callers."""

    waiters: list[Any] = attrs.field(factory=list)
    choose: Choose | None = None
    #: The compiled module's batch of the same sends, if it made the waiters.
    joined: OpenBatch | None = None

    def end(self, outcomes: Sequence[SendResult] | MQError | None) -> tuple[int, int]:
        """Complete the futures: each with its result; or all with an error; or with None, so that each message is sent
        alone. Returns the size and number of the bodies whose slots have ended."""
        if outcomes is not None and not isinstance(outcomes, MQError):
            if self.joined is not None:
                cast(Any, outcomes).give_to(self.waiters)
                return self.joined.body_bytes, len(self.messages)
            for waiter, result in zip(self.waiters, outcomes, strict=True):
                if not waiter.done():
                    waiter.set_result(result)
            return sum(len(message.body) for message in self.messages), len(self.messages)
        ended = []
        for message, waiter in zip(self.messages, self.waiters, strict=True):
            if waiter.done():  # it was cancelled
                ended.append(len(message.body))
            else:
                waiter.set_result(outcomes)
        return sum(ended), len(ended)


class AutomaticBatches(PlainSends):
    """Takes sends, as PlainSends do; those for one queue leave together after `linger_s`, or when they are enough."""

    takes_times = False

    def __init__(self, net: LoopNet, identity: Identity, attempts: Attempts, in_flight: SendsInFlight) -> None:
        super().__init__(net, identity, attempts, in_flight)
        self._attempts = attempts
        self._linger_s = attempts.options.linger_s or 0.0
        self._bytes_max = min(attempts.options.batch_bytes_max, attempts.options.message_bytes_max)
        self._bytes = 0
        self._timer: Timer | None = None
        self._joins = compiled is not None and net.has_tasks

    def direct(self) -> None:
        """None: sends leave together."""

    def suits(self, message: Message) -> bool:
        # The checks of `may_be_in_batch`, inlined: it would be another call for each send.
        return (
            type(message) is Message
            and 0 < len(message.body) <= self._size_max
            and not message.delay_level
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def take(
        self, message: Message, choose: Choose | None = None, timeout_ms: int | None = None, waiter: Any = None
    ) -> Future:
        loop = self._loop
        if loop is None:
            loop = self._loop = self._net.loop
        if self._joins and waiter is None and choose is None and message.wait_stored:
            return self._take_joined(loop, message)
        taken: Future = waiter or loop.create_future()
        is_short = not (message.properties or message.keys)
        size = RECORD_BYTES + len(message.topic) + len(message.body) if is_short else size_of(message)
        if self._bytes + size > self._bytes_max:
            self.flush()
        if self._timer is None:
            if self._routes.known(message.topic, create=True) is None:
                taken.set_result(None)
                return taken
            self._timer = loop.call_later(self._linger_s, self.flush)
        self._messages.append(message)
        self._choices.append(choose)
        self._waiters.append(taken)
        self._bytes += size
        if self._in_flight.is_full:  # no more can come
            self.flush()
        return taken

    def take_all(self, messages: list[Message], waiters: Sequence[Any]) -> None:
        for message, waiter in zip(messages, waiters, strict=True):
            self.take(message, waiter=waiter)

    def _take_joined(self, loop: Loop, message: Message) -> Future:
        """As `take`, into a batch of the compiled module."""
        assert compiled is not None
        joined = self.joined
        if joined is None:
            limits = self._size_max, self._bytes_max, RECORD_BYTES
            joined = self.joined = compiled.OpenBatches(loop, self._in_flight, self.flush, Message, *limits)
        taken: Any = joined.add(message)
        if taken is None:
            if message.topic in joined.open:  # it is full
                self.flush()
            if self._routes.known(message.topic, create=True) is None:
                unknown = loop.create_future()
                unknown.set_result(None)
                return unknown
            if self._timer is None:
                self._timer = loop.call_later(self._linger_s, self.flush)
            joined.open[message.topic] = compiled.OpenBatch()
            taken = joined.add(message)
        if self._in_flight.is_full:
            self.flush()
        waiter: Future = taken
        return waiter

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bytes = 0
        if self.joined is not None and self.joined.open:
            opened = self.joined.open.copy()
            self.joined.open.clear()
            for topic, batch in opened.items():
                self._leave_joined(topic, batch)
        topics = [message.topic for message in self._messages]
        if len(set(topics)) > 1:  # the messages of a topic leave together
            order = sorted(range(len(topics)), key=topics.__getitem__)
            self._messages = [self._messages[n] for n in order]
            self._choices = [self._choices[n] for n in order]
            self._waiters = [self._waiters[n] for n in order]
        super().flush()

    def _leave_joined(self, topic: str, opened: OpenBatch) -> None:
        cancelled = opened.cancelled()
        if cancelled:
            self._in_flight.release(sum(len(message.body) for message in cancelled), len(cancelled))
        route = self._routes.known(topic, create=True)
        if route is None or not route.publish_queues:
            self._give_back(opened.messages, cast(list[Future], opened.waiters))
        elif opened.messages:
            self._leave(_Batch(opened.messages, waiters=opened.waiters, joined=opened), None, route)

    def _send_to(
        self, route: Route, messages: list[Message], choices: list[Choose | None], waiters: list[Future]
    ) -> None:
        if not any(choices) and all(map(_waits, messages)):
            self._leave(_Batch(messages, waiters=waiters), None, route)
            return
        batches: dict[tuple[MessageQueue | None, bool], _Batch] = {}
        for message, choose, waiter in zip(messages, choices, waiters, strict=True):
            try:
                queue = choose and choose(route.publish_queues)
            except Exception:  # the general path tells the sender that the choice is invalid
                self._give_back([message], [waiter])
                continue
            batch = batches.get((queue, message.wait_stored))
            if batch is None:
                batch = batches[queue, message.wait_stored] = _Batch(choose=choose)
            batch.messages.append(message)
            batch.waiters.append(waiter)
        for (queue, _), batch in batches.items():
            self._leave(batch, queue, route)

    def _leave(self, batch: _Batch, chosen: MessageQueue | None, route: Route) -> None:
        """Send a batch, to the next queue if none is chosen."""
        now = self._net.now()
        try:
            outgoing = self._encode(batch, int(now * 1000))
        except BadMessage:  # each says what is wrong with it, or is sent
            self._end(batch, None)
            return
        queues = route.publish_queues
        queue = chosen or self._rotation.next(outgoing.topic, queues, (), self._availability.avoided())
        addr = route.master(queue.broker_name)
        connection = None if addr is None else self._net.free_connection(addr)
        # As in PlainSends: a send of the general path is followed by a heartbeat where one is due.
        if connection is None or self._heartbeats.is_due(connection.addr):
            self._net.spawn(self._go_on(batch, outgoing, chosen=Chosen(queue, route)))
            return
        has_others = chosen is None and any(each.broker_name != queue.broker_name for each in queues)
        command = self._request(outgoing, queue)
        made = partial(FirstAttempt, now, self._net.steady(), outgoing.msg_id, queue, connection.addr)
        connection.post(
            command,
            self._first_timeout_ms if has_others else self._timeout_ms,
            partial(self._answered, batch, outgoing, made),
            partial(encode_command, command),
            self._net,
        )

    def _encode(self, batch: _Batch, now_ms: int) -> Outgoing:
        if compiled is not None:
            found = compiled.encode_batch(batch.messages, *self._identity.next_ids.reserve(len(batch.messages)))
            if found is not None:
                body, batch.ids = found
                return batch.outgoing_of(body, now_ms)
        return batch.outgoing(self._identity.next_ids, now_ms)

    def _answered(
        self,
        batch: _Batch,
        outgoing: Outgoing,
        made: Callable[[RemotingCommand | MQError], FirstAttempt],
        outcome: RemotingCommand | MQError,
    ) -> None:
        first = made(outcome)
        if isinstance(outcome, RemotingCommand):
            try:
                result = read_send_answer(outgoing, first.queue, outcome)
            except MQError:
                pass
            else:
                self._availability.took(first.queue.broker_name, self._net.steady() - first.sent_at)
                self._end(batch, batch.results(result))
                return
        self._net.spawn(self._go_on(batch, outgoing, first=first))

    async def _go_on(
        self, batch: _Batch, outgoing: Outgoing, first: FirstAttempt | None = None, chosen: Chosen | None = None
    ) -> None:
        """Send a batch on the general path, after a first attempt or without one."""
        until = None if first is None else first.sent_at + self._attempts.options.send_timeout_s
        outcomes: Sequence[SendResult] | MQError | None = None
        try:
            outcomes = batch.results(await self._attempts.send(outgoing, batch.choose, until, first, chosen))
        except Refused:  # perhaps because of one of them
            pass
        except MQError as error:
            outcomes = error
        finally:
            self._end(batch, outcomes)

    def _end(self, batch: _Batch, outcomes: Sequence[SendResult] | MQError | None) -> None:
        size, count = batch.end(outcomes)
        if count:
            self._in_flight.release(size, count)


def size_of(message: Message) -> int:
    """The largest size of a message in a batch, bytes, if its properties are ASCII."""
    size = RECORD_BYTES + len(message.topic) + len(message.body)
    if message.properties or message.keys:
        size += sum(map(len, message.keys)) + sum(len(name) + len(value) for name, value in message.properties.items())
    return size


def sends_together(
    net: LoopNet, options: ProducerOptions
) -> Callable[[Identity, Attempts, SendsInFlight], PlainSends] | None:
    """What makes the PlainSends of a producer; None if each of its sends is a request of the general path."""
    if options.linger_s is not None:
        return partial(AutomaticBatches, net)
    return None if compiled is None else partial(PlainSends, net)
