"""Sends the rows of one task, and returns when all are acknowledged. Runs in Spark's Python workers; time, sleep and
the sends themselves are parameters.

With guarantee=effectively-once a task that ran before, in part or whole, is recognised by its first row: that is sent
alone, and acknowledged before any other, so that nothing of the task is in a topic whose index does not have it. Where
it is there, the index is asked for each row, and only those are sent that it does not have. Rows with keys of their
own, by idColumns or uniqKey, may be in another partition in another attempt: each of them is asked for.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import attrs
import numpy as np

from mqbroker.client.errors import NameServerUnreachable, NoBrokerForTopic, TopicNotFound
from mqbroker.client.messages import SendResult
from mqbroker.client.options import RETRIABLE_CODES
from mqbroker.client.send import Outgoing
from mqbroker.errors import MQError, Refused
from mqbroker.spark.errors import NotWritten, explained, refused_for_good
from mqbroker.spark.packing import Encoded, Packed, Packer
from mqbroker.spark.sink_options import Acks, Guarantee, SinkOptions
from mqbroker.wire.bodies import MessageQueue

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
#: The index follows the log within milliseconds, and a task of one row waits for it twice.
_INDEX_PAUSE_S_MIN, _INDEX_PAUSE_S_MAX = 0.005, 0.05
#: How long requests of an attempt that has ended may still be on their way into a broker's log. Java's broker refuses
#: those that waited for 0.2 s.
_SETTLE_S = 1.0
#: Time-out of a start, seconds: a user waits for it, and the address may be wrong.
_START_S = 3.0
#: How long a failing task waits for its sends under way, seconds.
_END_S = 10.0


class Sender(Protocol):
    """A client that sends, and looks keys up in the index of the brokers."""

    def start(self) -> None: ...

    def queues(self, topic: str) -> Sequence[MessageQueue]: ...

    def send(self, outgoing: Outgoing, queue: MessageQueue | None) -> Future[SendResult]: ...

    def find(self, topic: str, keys: Sequence[str]) -> list[bool]: ...

    def positions(self, topic: str) -> Mapping[str, tuple[int, int]]: ...


@attrs.define
class Written:
    """What a task has written: rows that were sent, and rows that were there already."""

    partition: int
    sent: int = 0
    found: int = 0


@attrs.define(eq=False)
class _Send:
    packed: Packed
    failed_at: float | None = None
    pause_s: float = _PAUSE_S_MIN


@attrs.define
class TaskWriter:
    """Writes one partition. `attempt` counts from 0; `now` returns seconds of a clock that is never set."""

    packer: Packer
    sender: Sender
    options: SinkOptions
    attempt: int
    now: Callable[[], float]
    sleep: Callable[[float], None]
    _under_way: dict[Future[SendResult], _Send] = attrs.field(factory=dict, init=False)
    #: Queues with a send under way that others must not overtake.
    _busy: set[MessageQueue] = attrs.field(factory=set, init=False)
    #: Whether rows are asked for before they are sent; None before the first row.
    _asks: bool | None = attrs.field(default=None, init=False)
    #: Topics whose index has come up to where the log was when this task began with them.
    _indexed: set[str] = attrs.field(factory=set, init=False)
    _written: Written = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._written = Written(self.packer.partition)

    def write(self, batches: Iterable[Any]) -> Written:
        """Send all rows of record batches. Raises BadRow, NotWritten, and errors of the client.

        After an error the sends under way have ended, or had their time for it: another attempt then finds their rows.
        """
        first = 0
        try:
            for batch in batches:
                # It is not retried, unlike requests: the address may be wrong.
                self.sender.start()
                for piece in self.packer.pieces(batch, first):
                    self._write(piece)
                first += batch.num_rows
            self._finish()
        except BaseException:
            concurrent.futures.wait(self._under_way, _END_S)
            for future in self._under_way:
                future.cancel()
            raise
        return self._written

    def _write(self, piece: Encoded) -> None:
        if self.options.guarantee is Guarantee.EFFECTIVELY_ONCE:
            piece = self._missing(piece)
        for packed in self.packer.cut(piece):
            self._send(_Send(packed))

    def _finish(self) -> None:
        while self._under_way:
            self._wait()

    # Sends

    def _send(self, send: _Send) -> None:
        queue = send.packed.queue
        while len(self._under_way) >= self.options.in_flight or queue in self._busy:
            self._wait()
        self._begin(send)

    def _begin(self, send: _Send) -> None:
        packed = send.packed
        if packed.queue is not None:
            self._busy.add(packed.queue)
        self._under_way[self.sender.send(packed.outgoing, packed.queue)] = send

    def _wait(self) -> None:
        """Wait for one of the sends under way at least. Raises NotWritten."""
        ended, _ = concurrent.futures.wait(self._under_way, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in ended:
            send = self._under_way.pop(future)
            try:
                result = future.result()
            except MQError as error:
                if not self._is_stored_after(error, send):
                    self._begin(send)
                    continue
            else:
                self._check_acknowledged(result, send.packed)
            if send.packed.queue is not None:
                self._busy.discard(send.packed.queue)
            self._written.sent += len(send.packed.rows)

    def _check_acknowledged(self, result: SendResult, packed: Packed) -> None:
        acks = self.options.acks
        if not acks.counts(result.status):
            needs = "its disk" if acks is Acks.FLUSHED else "its disk and a slave"
            raise NotWritten(
                f"{self._describe(packed)}: broker {result.queue.broker_name} has stored them with {result.status}, "
                f"and acks={acks.value} requires that {needs} has them. Check the broker's flushDiskType and "
                "brokerRole "
                "and its slaves, or set acks=stored"
            )

    def _is_stored_after(self, error: MQError, send: _Send) -> bool:
        """Whether the rows of a send that failed were stored all the same; False if they are to be sent again.

        Raises `error` if trying again cannot help, NotWritten after the time for it.
        """
        if not _may_pass(error):
            raise explained(error, self._describe(send.packed))
        now = self.now()
        send.failed_at = now if send.failed_at is None else send.failed_at
        if now - send.failed_at >= self.options.retry_timeout_ms / 1000:
            raise NotWritten(
                f"{self._describe(send.packed)}: not acknowledged within {self.options.retry_timeout_ms} ms "
                f"(retryTimeoutMs): {type(error).__name__}: {error}"
            )
        self.sleep(send.pause_s)
        send.pause_s = min(2 * send.pause_s, _PAUSE_S_MAX)
        if self.options.guarantee is Guarantee.AT_LEAST_ONCE:
            return False
        # It may have been stored though no answer came.
        self.sleep(_SETTLE_S)
        topic = send.packed.outgoing.topic
        found = self._found(topic, send.packed.key_texts(), anew=True)
        if any(found) and not all(found):
            raise NotWritten(f"{self._describe(send.packed)}: the broker has stored only some of them: {error}")
        return all(found)

    def _describe(self, packed: Packed) -> str:
        # In the order of their queue: the first and the last row that is meant.
        rows = packed.rows
        return f"topic {packed.outgoing.topic}, rows {rows.min()} to {rows.max()} of partition {self.packer.partition}"

    # Rows that are there already

    def _missing(self, piece: Encoded) -> Encoded:
        """The rows of a piece that no attempt has stored before."""
        if self._asks is None:
            if self.attempt:
                self.sleep(_SETTLE_S)
            self._asks = self._has_own_keys or self._was_begun(piece)
            if not self._asks:
                first = piece.take(np.array([0]))
                for packed in self.packer.cut(first):
                    self._send(_Send(packed))
                self._finish()
                self._check_index(first)
                piece = piece.take(np.arange(1, len(piece.rows)))
        if not self._asks:
            return piece
        keys, topics = piece.key_texts(), [piece.targets[lane][0] for lane in piece.lanes]
        is_missing = np.ones(len(keys), bool)
        for topic in dict.fromkeys(topics):
            places = [n for n, each in enumerate(topics) if each == topic]
            is_missing[places] = [not each for each in self._found(topic, [keys[n] for n in places])]
        self._written.found += int((~is_missing).sum())
        return piece if is_missing.all() else piece.take(np.flatnonzero(is_missing))

    @property
    def _has_own_keys(self) -> bool:
        return bool(self.packer.columns.ids) or "uniqKey" in self.packer.columns.places

    def _was_begun(self, piece: Encoded) -> bool:
        first = piece.take(np.array([0]))
        return self._found(first.targets[first.lanes[0]][0], first.key_texts())[0]

    def _check_index(self, first: Encoded) -> None:
        """Raises NotWritten unless the index has the first row, which was sent just now."""
        topic = first.targets[first.lanes[0]][0]
        until, pause_s = self.now() + _START_S, _INDEX_PAUSE_S_MIN
        # A topic that the row has created is known to the name server soon.
        while not self._found(topic, first.key_texts(), anew=True)[0]:
            if self.now() < until:
                self.sleep(pause_s)
                pause_s = min(2 * pause_s, _INDEX_PAUSE_S_MAX)
                continue
            raise NotWritten(
                f"topic {topic}: the broker's index does not have a row that it has just stored, so that "
                "guarantee=effectively-once cannot be kept. Set messageIndexEnable=true in the broker, or use "
                "guarantee=at-least-once"
            )

    def _found(self, topic: str, keys: Sequence[str], *, anew: bool = False) -> list[bool]:
        """Whether the index has each key, once it has come to where the log ends now, or at the first call of a topic
        unless `anew`."""
        if anew or topic not in self._indexed:
            self._wait_for_index(topic)
            self._indexed.add(topic)
        found: list[bool] = self._repeat(lambda: self.sender.find(topic, keys), topic)
        return found

    def _wait_for_index(self, topic: str) -> None:
        reached = self._repeat(lambda: self.sender.positions(topic), topic)
        goal = {name: end for name, (end, _) in reached.items()}
        began, pause_s = self.now(), _INDEX_PAUSE_S_MIN
        while True:
            behind = [name for name, end in goal.items() if name not in reached or reached[name][1] < end]
            if not behind:
                return
            if self.now() - began >= self.options.retry_timeout_ms / 1000:
                raise NotWritten(
                    f"topic {topic}: the index of broker {behind[0]} is behind its log, so that it is not known "
                    "which rows are there; write again when `mq cluster` shows that it has caught up"
                )
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, _INDEX_PAUSE_S_MAX)
            reached = self._repeat(lambda: self.sender.positions(topic), topic)

    def _repeat(self, ask: Callable[[], Any], topic: str) -> Any:
        """What `ask` returns, after attempts that fail in passing."""
        try:
            return repeat(ask, self.options.retry_timeout_ms / 1000, self.now, self.sleep)
        except MQError as error:
            what = f"the index of topic {topic}"
            if not _may_pass(error):
                raise explained(error, what) from None
            raise NotWritten(
                f"{what}, which tells what of partition {self.packer.partition} is stored: no answer within "
                f"{self.options.retry_timeout_ms} ms (retryTimeoutMs): {type(error).__name__}: {error}"
            ) from None


def queues_at_start(
    sender: Sender, options: SinkOptions, now: Callable[[], float], sleep: Callable[[float], None]
) -> Any:
    """A function that returns the queues of a topic, which are asked for once. It raises the client's errors soon."""
    known: dict[str, Sequence[MessageQueue]] = {}
    timeout_s = min(_START_S, options.retry_timeout_ms / 1000)

    def queues(topic: str) -> Sequence[MessageQueue]:
        if topic not in known:
            known[topic] = repeat(lambda: sender.queues(topic), timeout_s, now, sleep)
        return known[topic]

    return queues


def repeat(ask: Callable[[], Any], timeout_s: float, now: Callable[[], float], sleep: Callable[[float], None]) -> Any:
    """What `ask` returns; errors that may pass are raised after `timeout_s` only."""
    began, pause_s = now(), _PAUSE_S_MIN
    while True:
        try:
            return ask()
        except MQError as error:
            if not _may_pass(error) or now() - began >= timeout_s:
                raise
        sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _may_pass(error: MQError) -> bool:
    if isinstance(error, TopicNotFound) or refused_for_good(error) is not None:
        return False
    if isinstance(error, NoBrokerForTopic):
        return error.is_away
    return (
        error.retriable
        or isinstance(error, NameServerUnreachable)
        or (isinstance(error, Refused) and error.code in RETRIABLE_CODES)
    )
