"""Requests to brokers: the queues of topics, their bounds, and ranges of them as chunks of the commit log.

A range is read by pulls that are sent ahead. A queue's offsets have no gaps, so that all pulls of a window can be in
flight at once. Messages missing in responses, which are bounded in count and bytes, are pulled again; the size of
responses is learned. The next window is requested before the present one is returned. Time, sleep and the pulls
themselves are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from typing import Protocol

import attrs

from mqbroker.client.errors import Creates, TopicNotFound, is_about_account
from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.errors import MQError, Refused
from mqbroker.spark.choosing import Selection
from mqbroker.spark.errors import BadOption, DataLoss, Loss, NotReadable, explained
from mqbroker.spark.offsets import Bounds, QueueRange, TopicBounds, describe
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.record import RECORD_BYTES_MIN, fields_struct

#: A queue, an offset, and the number of messages from there.
Want = tuple[MessageQueue, int, int]

#: Maximum size of a window: about this many messages, or bytes of records.
WINDOW_MESSAGES = 8192
WINDOW_BYTES = 4 * 1024 * 1024
#: The first window is small, as the size of messages is unknown.
FIRST_PULLS = 16

OFFSET_MAX = 2**63 - 1

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0
#: Response codes of a broker that is starting, stopping or overloaded.
_PASSING = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})


class PullsAhead(Protocol):
    """Pulls in flight."""

    def finish(self) -> list[RawPull | MQError]: ...

    def abandon(self) -> None: ...


class PullSource(Protocol):
    """The target of pulls: a blocking PullConsumer."""

    def fetch_ahead(self, wants: Sequence[Want], *, tags: str | Sql = ALL) -> PullsAhead: ...


@attrs.frozen
class Chunk:
    """Records of `queue` from `start` up to, but without, `end`: all of them if `tags` is None, otherwise those that
    passed a broker's filter, of which only those with one of the tags are wanted, or all if `tags` is empty. `number`
    is the queue's number within its topic."""

    queue: MessageQueue
    start: int
    end: int
    records: bytes
    number: int = 0
    tags: frozenset[str] | None = None


@attrs.frozen
class _Piece:
    end: int
    records: bytes


@attrs.define
class RetryDeadline:
    """Deadline for progress of a read: `timeout_s` by the clock `now`."""

    timeout_s: float
    now: Callable[[], float]
    sleep: Callable[[float], None]
    _since: float | None = None
    _pause_s: float = _PAUSE_S_MIN

    def renew(self) -> None:
        """Reset the deadline after progress."""
        self._since = None
        self._pause_s = _PAUSE_S_MIN

    def wait(self, why: MQError) -> None:
        """Pause before another attempt; raises `why` after the deadline."""
        now = self.now()
        if self._since is None:
            self._since = now
        if now - self._since >= self.timeout_s:
            raise why
        self.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


@attrs.define
class _PullSize:
    """Learned number of messages per pull, up to `batch`, and bytes per message."""

    batch: int
    step: int
    message_bytes: float | None = None

    def window(self) -> int:
        if self.message_bytes is None:
            return min(WINDOW_MESSAGES, FIRST_PULLS * self.step)
        return max(1, min(WINDOW_MESSAGES, int(WINDOW_BYTES / self.message_bytes)))

    def learn(self, wants: Sequence[Want], pieces: Mapping[int, _Piece]) -> None:
        """Learn from the results of pulls."""
        if pieces:
            messages = sum(piece.end - at for at, piece in pieces.items())
            self.message_bytes = sum(len(piece.records) for piece in pieces.values()) / messages
        counts = [pieces[at].end - at for _, at, count in wants if at in pieces and count == self.step]
        if counts:
            brought = sum(counts) / len(counts)
            self.step = min(self.batch, 2 * self.step) if brought == self.step else max(1, int(brought))


def read_chunks(
    source: PullSource, todo: QueueRange, batch: int, deadline: RetryDeadline
) -> Generator[Chunk, None, None]:
    """Yield all records of `todo`, in order. `batch` is the number of messages per pull.

    Raises DataLoss if messages are lost, NotReadable if the broker returns nothing for too long, Refused if it never
    will. When the generator is closed early, pulls in flight are abandoned.
    """
    pace = _PullSize(batch, batch)
    at = todo.start
    wants = _split(todo.queue, at, min(todo.end, at + pace.window()), pace.step)
    ahead = _send(source, wants, deadline) if wants else None
    try:
        while ahead is not None:
            pieces: dict[int, _Piece] = {}
            _take(wants, ahead, pieces, deadline)
            pace.learn(wants, pieces)
            end = _cut(pieces, wants[-1][1] + wants[-1][2], at + pace.window())
            while gaps := _gaps(pieces, at, end):
                wants = [want for low, high in gaps for want in _split(todo.queue, low, high, pace.step)]
                ahead = _send(source, wants, deadline)
                _take(wants, ahead, pieces, deadline)
            chunk = Chunk(todo.queue, at, end, b"".join(pieces[n].records for n in sorted(pieces)), todo.number)
            at = end
            wants = _split(todo.queue, at, min(todo.end, at + pace.window()), pace.step)
            ahead = _send(source, wants, deadline) if wants else None
            yield chunk
    finally:
        if ahead is not None:
            ahead.abandon()


def read_filtered(
    source: PullSource, todo: QueueRange, batch: int, deadline: RetryDeadline, expression: str | Sql
) -> Generator[Chunk, None, None]:
    """As `read_chunks`, of the records that brokers find by `expression`. How far a pull gets is known by its response
    only, so that one is in flight."""
    tags = subscribe_to(todo.queue.topic, expression, 0).tags_set
    start = at = todo.start
    records: list[bytes] = []
    size = 0
    ahead = _send(source, [(todo.queue, at, batch)], deadline, expression) if at < todo.end else None
    try:
        while ahead is not None:
            (answer,) = ahead.finish()
            if isinstance(answer, MQError):
                deadline.wait(_passing(_why_not_filtered(answer, todo.queue, expression), (todo.queue, at, batch)))
            elif answer.status in _FILTERED and answer.next_offset > at >= answer.min_offset:
                body = answer.body if answer.next_offset <= todo.end else _before(answer.body, todo.end)
                records.append(body)
                size += len(body)
                at = min(answer.next_offset, todo.end)
                deadline.renew()
            else:
                deadline.wait(_nothing((todo.queue, at, batch), answer))
            ahead = _send(source, [(todo.queue, at, batch)], deadline, expression) if at < todo.end else None
            if ahead is None or size >= WINDOW_BYTES or len(records) >= WINDOW_MESSAGES // batch:
                yield Chunk(todo.queue, start, at, b"".join(records), todo.number, tags)
                start, records, size = at, [], 0
    finally:
        if ahead is not None:
            ahead.abandon()


_size, _queue_offset = (fields_struct(name).unpack_from for name in ("size", "queue_offset"))
_FILTERED = (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE)


def can_filter(source: PullSource, ranges: Sequence[QueueRange], expression: Sql) -> bool:
    """Whether all brokers of `ranges` filter by `expression`: a pull of each tells."""
    wants = list({each.queue.broker_name: (each.queue, each.start, 1) for each in ranges}.values())
    try:
        return bool(wants) and all(
            isinstance(answer, RawPull) for answer in source.fetch_ahead(wants, tags=expression).finish()
        )
    except MQError:
        return False


def _before(records: bytes, end: int) -> bytes:
    """The records of offsets below `end`; those behind it need not decode."""
    at = 0
    while at + RECORD_BYTES_MIN <= len(records):
        if _queue_offset(records, at)[0] >= end:
            return records[:at]
        at += max(RECORD_BYTES_MIN, _size(records, at)[0])
    return records


def _why_not_filtered(error: MQError, queue: MessageQueue, expression: str | Sql) -> MQError:
    if not isinstance(expression, Sql) or not isinstance(error, Refused) or error.code in _PASSING:
        return error
    why = (
        f"broker {queue.broker_name} refuses it: {error.remark}. Brokers filter by SQL92 with enablePropertyFilter=true"
    )
    return BadOption("sql92", f"{why}; without that, filter rows in Spark")


def _split(queue: MessageQueue, start: int, end: int, step: int) -> list[Want]:
    return [(queue, at, min(step, end - at)) for at in range(start, end, step)]


def _send(
    source: PullSource, wants: Sequence[Want], deadline: RetryDeadline, expression: str | Sql = ALL
) -> PullsAhead:
    while True:
        try:
            return source.fetch_ahead(wants, tags=expression)
        except MQError as error:
            deadline.wait(_passing(error, wants[0]))


def _cut(pieces: dict[int, _Piece], end: int, bound: int) -> int:
    """The end of a window that turned out too large: at `bound` or soon after. Messages beyond are dropped."""
    if bound >= end:
        return end
    for at in [at for at in pieces if at >= bound]:
        del pieces[at]
    return max([bound, *(piece.end for piece in pieces.values())])


def _gaps(pieces: Mapping[int, _Piece], start: int, end: int) -> list[tuple[int, int]]:
    gaps = []
    at = start
    for low in sorted(pieces):
        if low > at:
            gaps.append((at, low))
        at = pieces[low].end
    if at < end:
        gaps.append((at, end))
    return gaps


def _take(wants: Sequence[Want], ahead: PullsAhead, pieces: dict[int, _Piece], deadline: RetryDeadline) -> None:
    """Put the responses into `pieces`; wait a little if all are empty."""
    trouble: MQError | None = None
    found = False
    for want, answer in zip(wants, ahead.finish(), strict=True):
        if isinstance(answer, MQError):
            trouble = trouble or _passing(answer, want)
        elif answer.status is PullStatus.FOUND:
            pieces[want[1]] = _piece(want, answer)
            found = True
        else:
            trouble = trouble or _nothing(want, answer)
    if found:
        deadline.renew()
    elif trouble is not None:
        deadline.wait(trouble)


def _piece(want: Want, answer: RawPull) -> _Piece:
    queue, at, count = want
    if not at < answer.next_offset <= at + count:
        details = f"asked for {count} from {at}, the response continues at {answer.next_offset}"
        raise DataLoss(Loss.NOT_DENSE, queue, details, at, at + 1)
    return _Piece(answer.next_offset, answer.body)


def _nothing(want: Want, answer: RawPull) -> DataLoss:
    """The reason of an empty response; raises if waiting cannot help."""
    queue, at, _ = want
    if answer.min_offset > at:
        details = f"{at} is asked for, the first one left is {answer.min_offset}"
        raise DataLoss(Loss.AGED_OUT, queue, details, at, answer.min_offset)
    if answer.max_offset <= at:
        # A slave, or a broker that is starting, may still get the messages.
        return DataLoss(
            Loss.CUT_SHORT, queue, f"{at} was requested, and it ends at {answer.max_offset}", at, OFFSET_MAX
        )
    details = f"{at} is not given, though {answer.min_offset} to {answer.max_offset} are there: {answer.status.name}"
    return DataLoss(Loss.NOT_DENSE, queue, details, at, max(at + 1, answer.next_offset))


def _passing(error: MQError, want: Want) -> NotReadable:
    """The error to raise if `error` persists; raises `error` itself if it is permanent."""
    queue, at, _ = want
    if not (error.retriable or (isinstance(error, Refused) and error.code in _PASSING)):
        raise explained(error, f"{describe(queue)}, from offset {at} on")
    return NotReadable(f"{describe(queue)} returns nothing from offset {at} on: {type(error).__name__}: {error}")


class QueueSource(Protocol):
    """The source of bounds: a QueueClient."""

    def queues(self, topic: str) -> list[MessageQueue]: ...

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]: ...

    def bounds_by_topic(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]: ...


def fetch_bounds(
    source: QueueSource,
    topics: Sequence[str],
    deadline: RetryDeadline,
    *,
    wait_for_topics: bool = True,
    selection: Selection | None = None,
    by_topic: bool = True,
    may_be_gone: bool = False,
) -> TopicBounds:
    """Request the bounds once, waiting only if a topic has no queue at all. Raises TopicNotFound or
    NameServerUnreachable. `selection` chooses among the queues; topics of its pattern may be gone, and with
    `may_be_gone` all may. Without `by_topic` each queue is asked for, which an account without rights in the topic is
    refused.

    A queue whose broker does not respond, or refuses, has no bounds in the result; if it refuses the account,
    NotAllowed is raised.
    """
    may_be_gone = may_be_gone or (selection is not None and selection.pattern is not None)
    listed = [
        queue
        for topic in topics
        for queue in _queues(source, topic, deadline, wait_for_topics, may_be_gone=may_be_gone)
    ]
    chosen = selection.queues if selection is not None else frozenset()
    queues = [queue for queue in listed if queue in chosen] if chosen else listed
    bounds = {}
    ask = source.bounds_by_topic if by_topic else source.bounds
    for queue, found in zip(queues, ask(queues), strict=True):
        if not isinstance(found, MQError):
            bounds[queue] = Bounds(*found)
        elif is_about_account(found) or not (found.retriable or isinstance(found, Refused)):
            raise explained(found, describe(queue))
    return TopicBounds(frozenset(queues), bounds, frozenset(listed))


@attrs.frozen
class Expected:
    """Brokers and queues that must be there before a query is planned. A name server forgets a broker that restarts,
    and with it all of the broker's queues."""

    brokers: Set[str] = frozenset()
    queues: Set[MessageQueue] = frozenset()

    def is_of(self, topic: str) -> bool:
        return bool(self.brokers) or any(queue.topic == topic for queue in self.queues)

    def missing(self, seen: TopicBounds) -> str | None:
        """What is not listed, in words. A queue that is missing on a broker that has the topic does not exist."""
        listed = {(queue.topic, queue.broker_name) for queue in seen.all_queues}
        named = {queue.broker_name for queue in self.queues if (queue.topic, queue.broker_name) not in listed}
        absent = sorted(named | (self.brokers - {broker for _, broker in listed}))
        if not absent:
            return None
        there = ", ".join(sorted({broker for _, broker in listed})) or "none"
        return f"expected brokers are not registered with the name servers: {', '.join(absent)}; these are: {there}"


def fetch_all_bounds(
    source: QueueSource,
    topics: Sequence[str],
    deadline: RetryDeadline,
    name_server_deadline: RetryDeadline,
    expected: Expected | None = None,
    selection: Selection | None = None,
    *,
    may_be_gone: bool = False,
) -> TopicBounds:
    """As `fetch_bounds`, until every listed queue has responded, and all that is expected is listed. Raises NotReadable
    if that takes too long, NameServerUnreachable after `name_server_deadline`.

    A topic that does not exist raises TopicNotFound at once, unless there is no broker, or one is expected.
    """
    expected = expected or Expected()
    while True:
        try:
            seen = fetch_bounds(
                source,
                topics,
                name_server_deadline,
                wait_for_topics=False,
                selection=selection,
                by_topic=False,
                may_be_gone=may_be_gone,
            )
        except TopicNotFound as error:
            if error.creates is not Creates.NO_BROKER and not expected.is_of(error.topic):
                raise
            deadline.wait(error)
            continue
        why = expected.missing(seen)
        if why is None and not seen.silent():
            return seen
        if why is None:
            why = f"the broker of {describe(seen.silent()[0])} does not answer, or refuses"
        deadline.wait(NotReadable(why))


def _queues(
    source: QueueSource, topic: str, deadline: RetryDeadline, wait_for_topics: bool, *, may_be_gone: bool
) -> list[MessageQueue]:
    while True:
        try:
            return source.queues(topic)
        except MQError as error:
            if may_be_gone and isinstance(error, TopicNotFound):
                return []
            if not error.retriable or (isinstance(error, TopicNotFound) and not wait_for_topics):
                raise
            deadline.wait(error)
