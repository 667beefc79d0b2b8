"""The same requests to a Java broker and to ours, each on its own copy of one store: the answers must be equal.

Where they differ on purpose, `DELIBERATE` says why; such a difference must be there, or its line goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import pytest

from mqbroker.wire.codes import UNIQUE_MSG_QUERY_FLAG, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import Record, decode_records
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.raw import Line, pull, request
from tests.interop.sample_store import (
    COUNTS,
    OLDEST,
    SEGMENT_BYTES,
    TOPICS,
    Sample,
    unique_key,
    without_oldest,
)

LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
DELAYED = ("SCHEDULE_TOPIC_XXXX", 17)
LIGHT = [("%LMQ%one", 0), ("%LMQ%two", 0)]
ALL_GONE = ("plain", 1)
QUEUES = [*((topic, queue) for topic, queues in TOPICS.items() for queue in range(queues)), DELAYED, *LIGHT]


@attrs.frozen
class Answer:
    """What of an answer is compared."""

    code: int
    remark: str
    fields: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.code} {self.remark[:100]!r} {self.fields} {len(self.body)} bytes"

    @property
    def offset(self) -> int:
        return int(self.fields.get("offset", -1))

    @property
    def is_exception(self) -> bool:
        """Java tells what it threw."""
        return self.code == ResponseCode.SYSTEM_ERROR and self.remark.startswith("java.lang.")


@attrs.frozen
class Case:
    """A request, and what two brokers answered."""

    request: RemotingCommand
    ours: Answer
    java: Answer

    @property
    def queue(self) -> tuple[str, int]:
        fields = self.request.ext_fields
        return fields.get("topic", ""), int(fields.get("queueId", -1))

    def field(self, name: str) -> int:
        return int(self.request.ext_fields[name])

    def __str__(self) -> str:
        unsaid = ("consumerGroup", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion", "expressionType")
        fields = {name: value for name, value in self.request.ext_fields.items() if name not in unsaid}
        return f"{RequestCode(self.request.code).name} {fields}\n  ours {self.ours}\n  java {self.java}"


@attrs.define
class Pair:
    """Two brokers on copies of one store, which `writer` wrote."""

    ours: Line
    java: Line

    def ask(self, requests: Iterable[RemotingCommand]) -> list[Case]:
        requests = list(requests)
        answers = [[_seen(answer, line) for answer in line.ask(requests)] for line in (self.ours, self.java)]
        return [Case(*row) for row in zip(requests, *answers, strict=True)]

    def differing(self, requests: Iterable[RemotingCommand]) -> list[Case]:
        return [case for case in self.ask(requests) if case.ours != case.java]


def _seen(answer: RemotingCommand, line: Line) -> Answer:
    remark = (answer.remark or "").replace(line.addr, "<client>")
    return Answer(answer.code, remark, answer.ext_fields, answer.body)


# --- deliberate differences


def of_a_queue_that_is_all_gone(case: Case) -> bool:
    """A queue whose messages are all deleted begins at its end; Java leaves its minimum at 0.

    Either way a consumer that asks for less than that is sent to the end.
    """
    count = COUNTS[ALL_GONE]
    if case.queue != ALL_GONE:
        return False
    if case.request.code != RequestCode.PULL_MESSAGE:
        return (case.ours.offset, case.java.offset) == (count, 0)
    if not 0 <= case.field("queueOffset") < count:
        return "minOffset" in case.ours.fields
    removing = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
    return (case.java.code, case.ours.code) == removing and case.ours.fields["nextBeginOffset"] == str(count)


def of_a_count_that_java_throws_at(case: Case) -> bool:
    """A pull for less than one message gets one, as Java's does for 0; a query finds none. Java throws.

    So it does, for want of memory, where the count is huge; here it is cut to the limits.
    """
    name = "maxMsgNums" if case.request.code == RequestCode.PULL_MESSAGE else "maxNum"
    return not 0 <= case.field(name) < 2**31 - 1 and case.java.is_exception and not case.ours.is_exception


def of_a_star_with_blanks(case: Case) -> bool:
    """Blanks around an expression do not count; to Java they make a tag of a star, and blanks alone match nothing."""
    expression = case.request.ext_fields.get("subscription", "")
    return expression != expression.strip() and expression.strip() in ("", "*")


def of_an_expression_without_tags(case: Case) -> bool:
    """An expression that names no tag is refused, whatever its blanks; to Java `|| ||` is one that matches nothing."""
    return (
        case.request.ext_fields.get("subscription") == "|| ||"
        and case.ours.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )


def of_a_place_where_no_message_begins(case: Case) -> bool:
    """Only a whole record is given; Java gives what stands there, or throws. For 0 it gives the oldest message."""
    remark = f"can not find message by the offset, {case.field('offset')}"
    return (case.ours.code, case.ours.remark) == (ResponseCode.SYSTEM_ERROR, remark) and case.java.remark != remark


def of_times_in_the_index(case: Case) -> bool:
    """Messages are within the asked times to the ms; Java compares seconds, counted from the index file's beginning."""
    begin, end = case.field("beginTimestamp"), case.field("endTimestamp")
    ours, java = ({r.physical_offset: r.store_timestamp for r in records_in(a)} for a in (case.ours, case.java))
    return all(begin <= time <= end for time in ours.values()) and all(
        not begin <= time <= end for offset, time in java.items() if offset not in ours
    )


Deliberate = Callable[[Case], bool]


def assert_same(differing: list[Case], *deliberate: Deliberate) -> None:
    """No difference but deliberate ones, and each of these."""
    unused = set(deliberate)
    others = []
    for case in differing:
        reasons = {reason for reason in deliberate if reason(case)}
        unused -= reasons
        if not reasons:
            others.append(case)
    assert not others, f"{len(others)} answers differ, such as\n" + "\n".join(map(str, others[:20]))
    assert not unused, f"not deliberate any more, for nothing differs so: {[reason.__name__ for reason in unused]}"


# --- the brokers


# A ratio of 0 makes messages count as far behind: other limits, and a slave is suggested.
@pytest.fixture(scope="module", params=[(Sample.OURS, "40"), (Sample.JAVA_FULL, "0")], ids=["ours", "java-full"])
def pair(
    request: pytest.FixtureRequest,
    shared_fleet: Fleet,
    our_namesrv: Namesrv,
    sample_stores: dict[Sample, Broker],
) -> Iterator[Pair]:
    sample, ratio = request.param
    written = sample_stores[sample]
    written.process.stop()
    lines, readers = [], []
    kinds: list[Kind] = ["ours", "java"]
    for kind in kinds:
        copy = without_oldest(written.store, written.store.with_name(f"{written.store.name}-{kind}"))
        settings = {**sample.settings, "accessMessageInMemoryMaxRatio": ratio}
        reader = shared_fleet.broker(kind, our_namesrv, copy, brokerName=written.name, **settings)
        readers.append(reader)
        lines.append(Line(reader.addr))
    yield Pair(*lines)
    for line in lines:
        line.close()
    for reader in readers:
        reader.process.kill()


def records_in(answer: Answer) -> list[Record]:
    return decode_records(answer.body)


# --- index: first, for a Java broker stores a message for each pull that it sends elsewhere


def queries(pair: Pair, counts: Iterable[int] = (1, 2, 32, 64, 65, 1000)) -> Iterator[RemotingCommand]:
    times = [record.store_timestamp for record in pair.ours.read("keys", 0)]
    windows = [(0, LONG_MAX), (times[0] - 5000, times[-1] + 5000), (LONG_MAX, 0), (times[-1] + 5000, LONG_MAX)]
    keys = [
        ("keys", "shared"), ("keys", "some"), ("keys", "one-3"), ("keys", unique_key("keys", 0, 7)),
        ("times", unique_key("times", 0, 3)), ("batch", unique_key("batch", 0, 9)),
        ("plain", unique_key("plain", 0, 200)), ("delayed", unique_key("delayed", 0, 2)),
        (DELAYED[0], unique_key("delayed", 0, 2)),
    ]  # fmt: skip
    for topic, key in keys:
        for begin, end in windows:
            for count in counts:
                yield query(topic, key, count, begin, end)
        for unique in ("true", "false"):
            yield query(topic, key, 1, **dict[str, Any]({UNIQUE_MSG_QUERY_FLAG: unique}))


def query(topic: str, key: str, count: int = 32, begin: int = 0, end: int = LONG_MAX, **more: Any) -> RemotingCommand:
    return request(
        RequestCode.QUERY_MESSAGE, topic=topic, key=key, maxNum=count, beginTimestamp=begin, endTimestamp=end, **more
    )


def test_queries_by_key(pair: Pair) -> None:
    found = pair.ask(queries(pair))
    assert sum(case.java.code == ResponseCode.SUCCESS for case in found) > 50
    assert_same([case for case in found if case.ours != case.java and case.java.code == ResponseCode.SUCCESS])


def test_queries_by_key_that_find_nothing(pair: Pair) -> None:
    requests = [
        query("plain", "shared"),
        query("nosuch", "shared"),
        query("keys", "unknown"),
        query("keys", "shared", 0),
    ]
    # One that is in the index, but no more in the log.
    requests.append(query("plain", unique_key("plain", 1, 0)))
    requests += [case.request for case in pair.ask(queries(pair)) if case.java.code != ResponseCode.SUCCESS]
    assert len(requests) > 50
    assert_same(pair.differing(requests))


def test_queries_for_impossible_counts(pair: Pair) -> None:
    requests = [query("keys", "shared", count) for count in (-1, -(2**31))]
    assert_same(pair.differing(requests), of_a_count_that_java_throws_at)


def test_times_of_queries(pair: Pair) -> None:
    records = pair.ours.read("keys", 0)
    first, last = records[0].store_timestamp, records[-1].store_timestamp
    requests = [
        query("keys", "shared", 64, begin, end)
        for begin in (0, first - 1000, first, last, last + 1)
        for end in (first - 1, first, last, last + 1000, LONG_MAX)
    ]
    found = pair.ask(requests)
    assert any(records_in(case.ours) for case in found)
    assert_same(
        [case for case in found if set(map(_place, records_in(case.ours))) != set(map(_place, records_in(case.java)))],
        of_times_in_the_index,
    )


def _place(record: Record) -> int:
    return record.physical_offset


# --- pulls


def test_pulls_of_every_offset(pair: Pair) -> None:
    offsets = {*range(-2, 230), 300, 799, 800, 801, *range(995, 1005), *range(1100, 1108), 2000}
    offsets |= {LONG_MIN, LONG_MAX, LONG_MAX - 1}
    found = pair.ask(pull(topic, queue, offset) for topic, queue in QUEUES for offset in sorted(offsets))
    remarks = {case.java.remark for case in found}
    assert remarks >= {"FOUND", "OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_ONE", "OFFSET_OVERFLOW_BADLY"}
    assert remarks >= {"NO_MESSAGE_IN_QUEUE", "MESSAGE_WAS_REMOVING"}
    low = pair.java.number(RequestCode.GET_MIN_OFFSET, "offset", topic="plain", queueId=0)
    assert 40 < low < COUNTS["plain", 0]
    assert_same([case for case in found if case.ours != case.java], of_a_queue_that_is_all_gone)


def places() -> Iterator[tuple[str, int, int]]:
    """Queues, and offsets in them to pull from: what begins a run, what ends it."""
    for topic, queue in [*COUNTS, ("empty", 0)]:
        count = COUNTS.get((topic, queue), 0)
        for offset in {0, 1, count // 2, count * 3 // 4, max(0, count - 33), max(0, count - 1)}:
            yield topic, queue, offset


@pytest.mark.parametrize("tags", ["*", "A"])
def test_pulls_of_every_count(pair: Pair, tags: str) -> None:
    counts = (0, 1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 100)
    assert_same(
        pair.differing(pull(*place, count, tags) for place in places() for count in counts),
        of_a_queue_that_is_all_gone,
    )


def test_pulls_of_impossible_counts(pair: Pair) -> None:
    requests = [pull("plain", 0, 200, count) for count in (-1, -1000, -(2**31), 2**31 - 1)]
    assert_same(pair.differing(requests), of_a_count_that_java_throws_at)


def test_pulls_for_more_than_a_get_looks_at(pair: Pair) -> None:
    requests = [pull("tags", 1, 0, count, tags) for count in (801, 1000, 1100, 5000) for tags in ("A", "B", "C", "*")]
    assert_same(pair.differing(requests))


EXPRESSIONS = ["*", "", "A", "B", "A||B", "A || B", " A|| ||B ", "A||B||C", "C", "a", "A B", "|", "||", "||*", "中"]


def test_pulls_by_tags(pair: Pair) -> None:
    found = pair.ask(pull(*place, count, tags) for place in places() for count in (1, 32, 100) for tags in EXPRESSIONS)
    codes = {case.java.code for case in found}
    assert codes >= {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SUBSCRIPTION_PARSE_FAILED}
    assert_same([case for case in found if case.ours != case.java], of_a_queue_that_is_all_gone)


def test_pulls_by_odd_expressions(pair: Pair) -> None:
    requests = [pull("tags", 0, 0, 32, tags) for tags in (" ", " * ", "* ", "|| ||", "*||A")]
    assert_same(pair.differing(requests), of_a_star_with_blanks, of_an_expression_without_tags)


def test_pulls_of_a_topic_that_is_not_there(pair: Pair) -> None:
    assert_same(pair.differing(pull("nosuch", 0, offset) for offset in (-1, 0, 1)))


def test_pulls_of_a_queue_that_its_topic_does_not_have(pair: Pair) -> None:
    assert_same(pair.differing(pull("plain", queue, 0) for queue in (-1, 4, 2**31 - 1)))


# --- offsets and times


def test_ends_and_beginnings_of_queues(pair: Pair) -> None:
    codes = (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME)
    places = [*QUEUES, ("plain", 4), ("plain", -1), ("nosuch", 0)]
    found = pair.ask(request(code, topic=topic, queueId=queue) for code in codes for topic, queue in places)
    assert len({case.java.offset for case in found}) > 8
    assert_same([case for case in found if case.ours != case.java], of_a_queue_that_is_all_gone)


def times_in(pair: Pair, topic: str, queue: int) -> dict[int, int]:
    """When the messages of a queue were stored, by their offsets, which in a light queue are not the record's."""
    low = pair.ours.number(RequestCode.GET_MIN_OFFSET, "offset", topic=topic, queueId=queue)
    return {low + i: record.store_timestamp for i, record in enumerate(pair.ours.read(topic, queue))}


def searches(topic: str, queue: int, times: Iterable[int]) -> Iterator[RemotingCommand]:
    asked = {time + step for time in times for step in (-1000, -2, -1, 0, 1, 2, 1000)} | {LONG_MIN, -1, 0, 1, LONG_MAX}
    for time in sorted(asked):
        yield request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=topic, queueId=queue, timestamp=time)


def test_offsets_by_time(pair: Pair) -> None:
    """Ours is the first message at or after the time, and the end where there is none. Java's is the nearest message,
    one in the middle of those of one millisecond, and within one file of the queue."""
    differing = 0
    for topic, queue in [*QUEUES, ("plain", 4), ("nosuch", 0)]:
        times = times_in(pair, topic, queue)
        end = pair.ours.max_offset(topic, queue)
        for case in pair.ask(searches(topic, queue, times.values())):
            wanted = min((offset for offset, time in times.items() if time >= case.field("timestamp")), default=end)
            assert (case.ours.code, case.ours.offset) == (ResponseCode.SUCCESS, wanted), str(case)
            assert case.java.code == case.ours.code
            differing += case.java.offset != wanted
    assert differing


# --- single messages


def view(offset: int) -> RemotingCommand:
    return request(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)


def test_messages_by_their_place(pair: Pair) -> None:
    offsets = [record.physical_offset for topic, queue in COUNTS for record in pair.ours.read(topic, queue)]
    found = pair.ask(map(view, offsets))
    assert {case.java.code for case in found} == {ResponseCode.SUCCESS}
    assert_same([case for case in found if case.ours != case.java])


def test_messages_by_places_that_hold_none(pair: Pair) -> None:
    first = OLDEST * SEGMENT_BYTES
    gone = [1, 100, SEGMENT_BYTES, first - 1]
    assert_same(pair.differing(map(view, [LONG_MIN, -1, 1000 * SEGMENT_BYTES, LONG_MAX, *gone])))
    [record, *_] = pair.ours.read("plain", 2)
    inside = [record.physical_offset + step for step in (1, 4, 100)]
    filler = first + SEGMENT_BYTES - 8
    assert_same(pair.differing(map(view, [0, filler, *inside])), of_a_place_where_no_message_begins)
