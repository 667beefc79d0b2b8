"""Plain sends on an event loop, which are most: the compiled module encodes those of one turn together, and reads their
responses. Other sends, and all failures, are left to the general path (`client/attempts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

from mqbroker.client.attempts import Attempts, Chosen, FirstAttempt
from mqbroker.client.connection import Connection, Place, Sent
from mqbroker.client.direct_sends import DirectSends
from mqbroker.client.identity import Identity
from mqbroker.client.loop import Future, Loop
from mqbroker.client.loop_net import LoopNet
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.options import milliseconds
from mqbroker.client.routes import Route
from mqbroker.client.send import Choose, Outgoing, SendsInFlight
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import Prop
from mqbroker.wire.command import RemotingCommand, json_head

if TYPE_CHECKING:
    from mqbroker.kernel.compiled import OpenBatches

#: The fields of a send's header that are the message's own.
_OWN_FIELDS = ("f", "g", "h", "i")

#: Topics of which the heads of headers are kept.
_TOPICS_MAX = 1024

#: This many sends leave before their turn of the loop ends: the broker has work while the others are encoded. Measured
#: with one core for each, 64 senders get half as much again as if all left at the end, 256 a seventh.
_TOGETHER_MAX = 32

#: Equal for sends that go to the same queues with the same request code.
_kind = attrgetter("topic", "preferred")
_is_done = methodcaller("done")


class PlainSends:
    """Takes sends; those of a turn of the loop leave at its end, or earlier if they are many, in the order of the
    calls."""

    #: Whether `take` accepts a time-out.
    takes_times = True
    #: The compiled module's part of `take`, if any, which takes sends to the next queue first, and their slots.
    joined: OpenBatches | None = None

    def __init__(self, net: LoopNet, identity: Identity, attempts: Attempts, in_flight: SendsInFlight) -> None:
        """`attempts` are those of the general path."""
        options = attempts.options
        self._net = net
        net.sends_ended = self._ended
        self._routes = attempts.routes
        self._rotation = attempts.rotation
        self._availability = attempts.availability
        self._heartbeats = attempts.heartbeats
        self._in_flight = in_flight
        self._request = attempts.request
        self._timeout_ms = milliseconds("send_timeout_s", options.send_timeout_s)
        self._first_timeout_ms = self._timeout_ms if options.retries == 0 else max(1, self._timeout_ms // 2)
        self._is_only = options.retries == 0
        self._identity = identity
        self._size_max = min(options.compress_over_bytes - 1, options.message_bytes_max)
        self._loop: Loop | None = None
        self._messages: list[Message] = []
        self._choices: list[Choose | None] = []
        self._waiters: list[Future] = []
        self._targets: dict[tuple[str, bool], _Targets] = {}
        #: The time-out of the messages taken so far; None for the default.
        self._given_ms: int | None = None

    def direct(self) -> DirectSends | None:
        """The sends of threads on sockets of their own."""
        return DirectSends(self._net, self, self._identity, self._availability)

    def suits(self, message: Message) -> bool:
        """Whether `message` may be plain."""
        is_half = type(message) is not Message and Prop.TRANSACTION_PREPARED in message.properties
        return 0 < len(message.body) <= self._size_max and not is_half

    def take(
        self, message: Message, choose: Choose | None = None, timeout_ms: int | None = None, waiter: Any = None
    ) -> Future:
        """Send `message` soon, to the queue that `choose` returns or to the next. The caller has acquired its slot.
        Returns `waiter`, which has `done` and `set_result`, or a future of the loop.

        The slot ends with a SendResult. Otherwise it is kept: with a FirstAttempt, or if the message was not sent with
        the queue that was Chosen, or None.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = self._net.loop
        taken: Future = waiter or loop.create_future()
        if timeout_ms != self._given_ms:  # messages that leave together have one time-out
            self.flush()
            self._given_ms = timeout_ms
        if not self._messages:
            loop.call_soon(self.flush)
        self._messages.append(message)
        self._choices.append(choose)
        self._waiters.append(taken)
        if len(self._messages) >= _TOGETHER_MAX:
            self.flush()
        return taken

    def take_all(self, messages: list[Message], waiters: Sequence[Any]) -> None:
        """Call `take` for each message with its waiter."""
        self.take(messages[0], waiter=waiters[0])
        for at in range(1, len(messages), _TOGETHER_MAX):
            self._messages += messages[at : at + _TOGETHER_MAX]
            self._waiters += waiters[at : at + _TOGETHER_MAX]
            self._choices += repeat(None, len(self._messages) - len(self._choices))
            if len(self._messages) >= _TOGETHER_MAX:
                self.flush()

    def place(self, message: Message) -> tuple[Place, Connection, int] | None:
        """Where the next send goes: its place, the connection, and the time-out of its response, ms; None if it must be
        sent on the loop. May be called on any thread, as `take_turn`."""
        topic, preferred = _kind(message)
        targets = None if preferred else self._targets.get((topic, False))
        if targets is None or self._availability.avoids_any or not self.suits(message):
            return None
        if targets.route is not self._routes.known(message.topic, create=True):
            return None
        number = self._rotation.turn_after(message.topic) % len(targets.places)
        addr = targets.addrs[number]
        connection = None if addr is None else self._net.free_connection(addr)
        if connection is None or self._heartbeats.is_due(connection.addr):
            return None
        timeout_ms = self._timeout_ms if len(targets.by_addr) == 1 else self._first_timeout_ms
        return targets.places[number], connection, timeout_ms

    def take_turn(self, topic: str) -> None:
        """Take the turn that `place` returned. Threads that call it at the same time may send to the same queue."""
        self._rotation.turns(topic, 1, 1)

    def give_up(self, message: Message, taken: Future) -> None:
        """Called when what `take` returned is no longer awaited."""
        # The slot of a cancelled one ends with its response; with another outcome than a SendResult it was kept.
        if not taken.done():  # it is awaited on another loop than its own
            taken.cancel()
        elif not taken.cancelled() and not isinstance(taken.result(), SendResult):
            self._in_flight.release(len(message.body))

    def flush(self) -> None:
        """Send the messages taken so far now, so that no later one overtakes them."""
        messages, self._messages = self._messages, []
        choices, self._choices = self._choices, []
        waiters, self._waiters = self._waiters, []
        if any(map(_is_done, waiters)):  # they were cancelled
            for n in range(len(waiters) - 1, -1, -1):
                if waiters[n].done():
                    self._in_flight.release(len(messages[n].body))
                    del messages[n], choices[n], waiters[n]
        at = 0
        for (topic, _), group in groupby(messages, _kind):
            of_topic = list(group)
            end = at + len(of_topic)
            route = self._routes.known(topic, create=True)
            if route is None or not route.publish_queues:
                self._give_back(of_topic, waiters[at:end])
            else:
                self._send_to(route, of_topic, choices[at:end], waiters[at:end])
            at = end

    def _send_to(
        self, route: Route, messages: list[Message], choices: list[Choose | None], waiters: list[Future]
    ) -> None:
        """Send messages of one topic, which has queues."""
        topic, preferred = _kind(messages[0])
        key = topic, preferred is not None
        targets = self._targets.get(key)
        if targets is None or targets.route is not route:
            if len(self._targets) >= _TOPICS_MAX:
                self._targets.clear()
            targets = self._targets[key] = _Targets(route, self._request, is_reply=key[1])
        try:
            numbers = self._queue_numbers(topic, targets, choices, preferred)
        except Exception:  # the general path tells the sender that the choice is invalid
            self._give_back(messages, waiters)
            return
        given_ms = self._given_ms or self._timeout_ms
        if len(targets.by_addr) == 1:
            places = [targets.places[number] for number in numbers]
            self._send(targets.addrs[0], route, messages, places, waiters, given_ms)
            return
        # As in Attempts: a silent broker leaves time for another, unless the sender chose its queue.
        is_only = self._is_only or choices.count(None) < len(choices)
        timeout_ms = given_ms if is_only else max(1, given_ms // 2)
        for addr, of_addr in targets.by_addr.items():
            mine = [n for n, number in enumerate(numbers) if number in of_addr]
            places = [targets.places[numbers[n]] for n in mine]
            self._send(addr, route, [messages[n] for n in mine], places, [waiters[n] for n in mine], timeout_ms)

    def _queue_numbers(
        self, topic: str, targets: _Targets, choices: list[Choose | None], preferred: str | None
    ) -> list[int]:
        """The number of the queue for each message: the one that its sender chooses, or the next."""
        queues, free = targets.route.publish_queues, choices.count(None)
        avoided = self._availability.avoided().intersection(targets.names) if free else None
        if preferred is not None:
            avoided = targets.names.difference((preferred,))
        # Before a turn is taken: a choice may fail, and then the general path gives the turns.
        chosen = [] if free == len(choices) else [targets.numbers[choose(queues)] for choose in choices if choose]
        if avoided:
            return self._numbers_past(topic, targets, choices, chosen, avoided)
        turn = self._rotation.turns(topic, len(queues), free) if free else 0
        if not chosen:
            return [turn % len(queues) for turn in range(turn, turn + free)]
        numbers = []
        following = iter(chosen)
        for choose in choices:
            if choose is None:
                numbers.append(turn % len(queues))
                turn += 1
            else:
                numbers.append(next(following))
        return numbers

    def _numbers_past(
        self, topic: str, targets: _Targets, choices: list[Choose | None], chosen: list[int], avoided: set[str]
    ) -> list[int]:
        """As `_queue_numbers`, with brokers to avoid."""
        following, queues = iter(chosen), targets.route.publish_queues
        return [
            targets.numbers[self._rotation.next(topic, queues, (), avoided)] if choose is None else next(following)
            for choose in choices
        ]

    def _send(
        self,
        addr: str | None,
        route: Route,
        messages: list[Message],
        places: list[Place],
        waiters: list[Future],
        timeout_ms: int,
    ) -> None:
        connection = None if addr is None else self._net.free_connection(addr)
        sent = 0
        # A send of the general path is followed by a heartbeat where one is due.
        if connection is not None and messages and not self._heartbeats.is_due(connection.addr):
            now = self._net.now()
            ids = self._identity.next_ids.reserve(len(messages))
            sent = connection.send_run(messages, places, waiters, now, timeout_ms, *ids, self._net)
        if sent < len(messages):
            # What follows one that is not plain must not overtake it. A second turn would skip queues.
            self._give_back(messages[sent:], waiters[sent:], [Chosen(queue, route) for queue, _ in places[sent:]])

    def _give_back(
        self, messages: list[Message], waiters: list[Future], chosen: Iterable[Chosen | None] = repeat(None)
    ) -> None:
        for message, waiter, queue in zip(messages, waiters, chosen, strict=False):
            if waiter.done():  # it was cancelled
                self._in_flight.release(len(message.body))
            else:
                waiter.set_result(queue)

    def _ended(self, sends: list[tuple[Sent, SendResult | RemotingCommand | MQError]]) -> None:
        """Called when sends were answered or failed."""
        count = size = 0
        for (waiter, message, queue, msg_id, run), result in sends:
            run.left -= 1
            if not run.left:
                run.forget()
                if isinstance(result, SendResult):
                    self._availability.took(queue.broker_name, self._net.steady() - run.sent_at)
            if not waiter.done():  # else it was cancelled
                if not isinstance(result, SendResult):
                    waiter.set_result(FirstAttempt(run.began, run.sent_at, msg_id, queue, run.addr, result))
                    continue
                waiter.set_result(result)
            count += 1
            size += len(message.body)
        if count:
            self._in_flight.release(size, count)


class _Targets:
    """Where the messages of a topic go: the place of each queue, and by address the numbers of the queues."""

    def __init__(
        self, route: Route, request: Callable[[Outgoing, MessageQueue], RemotingCommand], *, is_reply: bool
    ) -> None:
        self.route = route
        self.addrs = [route.master(queue.broker_name) for queue in route.publish_queues]
        self.places: list[Place] = [
            (queue, head_of(request, queue, is_reply=is_reply)) for queue in route.publish_queues
        ]
        self.numbers = {queue: number for number, queue in enumerate(route.publish_queues)}
        self.names = {queue.broker_name for queue in route.publish_queues}
        self.by_addr: dict[str | None, set[int]] = {}
        for number, addr in enumerate(self.addrs):
            self.by_addr.setdefault(addr, set()).add(number)


def head_of(
    request: Callable[[Outgoing, MessageQueue], RemotingCommand], queue: MessageQueue, *, is_reply: bool = False
) -> bytes:
    """The beginning of the header of sends to `queue`, up to the fields that are the message's own."""
    command = request(Outgoing(queue.topic, b"", "", "", 0, is_reply=is_reply), queue)
    return json_head(command, without=_OWN_FIELDS)
