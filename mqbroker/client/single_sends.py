"""Sends of single messages: on the plain path if possible, otherwise by `attempts.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mqbroker.client.attempts import Attempts, Chosen, FirstAttempt
from mqbroker.client.identity import Identity
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.net import Net
from mqbroker.client.send import Choose, Outgoing, SendsInFlight, Slot, prepare
from mqbroker.errors import MQError
from mqbroker.wire.compression import compress_body

if TYPE_CHECKING:
    from mqbroker.client.direct_sends import DirectSends
    from mqbroker.client.plain_sends import PlainSends

MakePlainSends = Callable[[Identity, Attempts, SendsInFlight], "PlainSends"]

#: Bodies from this size on, bytes, are compressed on a thread: 64 KiB take about 2 ms, 4 MiB 0.2 to 0.4 s.
_LARGE_BYTES = 64 * 1024


class SingleSends:
    """A producer's sends of one message each, and the slots of all that are in flight."""

    def __init__(
        self,
        net: Net,
        identity: Identity,
        attempts: Attempts,
        plain_sends: MakePlainSends | None,
        *,
        is_observed: bool,
    ) -> None:
        """`plain_sends` makes the plain path, if the net has one. `take` takes no sends if they are observed."""
        options = self._options = attempts.options
        self._net = net
        self._identity = identity
        self._attempts = attempts
        self._in_flight = SendsInFlight(net, options.sends_in_flight_max, options.sends_in_flight_bytes_max)
        self._plain: PlainSends | None = None
        if plain_sends and not (options.namespace or options.retry_unstored or options.vip_channel):
            self._plain = plain_sends(identity, attempts, self._in_flight)
        self._unobserved = None if is_observed else self._plain
        #: `_unobserved` between `open` and `close`.
        self._taking: PlainSends | None = None
        #: Held by a send to a chosen queue while it is encoded; how many hold it, or wait for it.
        self._order, self._ordered = net.lock(), 0

    def open(self) -> None:
        """Called at the start: sends may be taken."""
        self._taking = self._unobserved

    def close(self) -> None:
        """Called at the end: no more sends are taken."""
        self._taking = None

    def flush(self) -> None:
        """Send the messages taken so far now."""
        if self._plain is not None:
            self._plain.flush()

    async def send(self, messages: list[Message], choose: Choose | None, until: float | None) -> SendResult:
        """Send the message, on the plain path if possible."""
        message, plain = messages[0], self._plain
        if (
            plain is None
            or self._attempts.is_closed
            or not plain.suits(message)
            or (self._ordered and choose)
            or (until is not None and not plain.takes_times)
        ):
            with await self.slot(len(message.body), until):
                return await self._send_generally(message, choose, until, None)
        size = len(message.body)
        if not self._in_flight.acquired(size):
            await self._in_flight.acquire(size, None if until is None else until - self._net.steady())
        left_s = None if until is None else until - self._net.steady()
        if left_s is not None and left_s <= 0:
            return await self.go_on(message, None, choose, until)  # which raises the error
        left_ms = None if left_s is None else max(1, int(left_s * 1000))  # as in Attempts
        waiter = plain.take(message, choose, left_ms)
        try:
            await waiter
        except BaseException:  # it was cancelled
            plain.give_up(message, waiter)
            raise
        result = waiter.result()
        return result if isinstance(result, SendResult) else await self.go_on(message, result, choose, until)

    def take(self, message: object = None) -> Any:
        """Begin a send to the next queue without a coroutine, if it may be plain, has a slot, and is not observed:
        returns what `PlainSends.take` does, otherwise None. If its outcome is not a SendResult, the caller continues
        with `go_on`; if it is cancelled, with `give_up`."""
        plain = self._taking
        if plain is None:
            return None
        if plain.joined is not None and (taken := plain.joined.take(message)) is not None:
            return taken
        if not isinstance(message, Message) or not plain.suits(message):
            return None
        if not self._in_flight.acquired(len(message.body)):
            return None
        return plain.take(message)

    def take_all(self, messages: list[Message], waiters: Sequence[Any]) -> bool:
        """Begin sends as `take` does, if all may be plain and have slots; returns whether they do."""
        plain = self._taking
        if plain is None or not all(map(plain.suits, messages)):
            return False
        has_room = self._in_flight.acquired(sum([len(message.body) for message in messages]), len(messages))
        if has_room:
            plain.take_all(messages, waiters)
        return has_room

    async def go_on(
        self,
        message: Message,
        outcome: FirstAttempt | Chosen | MQError | None,
        choose: Choose | None = None,
        until: float | None = None,
    ) -> SendResult:
        """Send a message by the general path after the plain one gave up; releases its slot. Raises `outcome` if that
        is an error."""
        with Slot(self._in_flight, len(message.body)):
            return await self._send_generally(message, choose, until, outcome)

    def direct(self) -> DirectSends | None:
        """The sends of threads on sockets of their own, if they are possible."""
        return None if self._unobserved is None else self._unobserved.direct()

    async def send_after(self, message: Message, first: FirstAttempt) -> SendResult:
        """Continue a send whose `first` attempt was made elsewhere. Raises as `send` does."""
        with await self.slot(len(message.body)):
            return await self._send_generally(message, None, None, first)

    def give_up(self, message: Message, taken: Any) -> None:
        """Called when what `take` returned is no longer awaited."""
        assert self._plain is not None
        self._plain.give_up(message, taken)

    async def _send_generally(
        self,
        message: Message,
        choose: Choose | None,
        until: float | None,
        outcome: FirstAttempt | Chosen | MQError | None,
    ) -> SendResult:
        if isinstance(outcome, MQError):
            raise outcome.with_traceback(None)  # several senders may raise the same error
        if isinstance(outcome, FirstAttempt):
            outgoing = prepare(message, self._options, lambda: outcome.msg_id, int(outcome.began_at * 1000))
            until = outcome.sent_at + self._options.send_timeout_s if until is None else until
            return await self._attempts.send(outgoing, choose, until, outcome)
        if choose is not None and (self._ordered or len(message.body) >= _LARGE_BYTES):
            # What follows a large one with the same key must not overtake it.
            self._ordered += 1
            try:
                async with self._order:
                    outgoing = await self.prepared(message)
            finally:
                self._ordered -= 1
        else:
            outgoing = await self.prepared(message)
        return await self._attempts.send(outgoing, choose, until, chosen=outcome)

    async def prepared(self, message: Message) -> Outgoing:
        """The encoded message; a large body is compressed on a thread, so that it does not hold up the event loop."""
        compressed = None
        if max(_LARGE_BYTES, self._options.compress_over_bytes) <= len(message.body) <= self._options.message_bytes_max:
            compressed = await self._net.on_thread(partial(compress_body, message.body, self._options.compress_level))
        return prepare(message, self._options, self._identity.next_ids, int(self._net.now() * 1000), compressed)

    async def slot(self, size: int, until: float | None = None) -> Slot:
        """A slot among the sends in flight. A waiting message is not encoded yet, so that it costs little."""
        self.flush()
        if not self._in_flight.acquired(size):
            await self._in_flight.acquire(size, None if until is None else until - self._net.steady())
        return Slot(self._in_flight, size)
