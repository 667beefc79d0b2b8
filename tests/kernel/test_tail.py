"""The end of the commit log: what the compiled module appends itself, and what it leaves to the general path."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from mqbroker.kernel import compiled
from mqbroker.store.commitlog import READIED_BYTES, READIED_MS, CommitLog, Refusal
from mqbroker.store.dispatch_queue import QUEUED_BYTES_MAX
from mqbroker.store.logscan import Run, scan
from mqbroker.wire.record import NewMessage, record_parts
from tests.store.harness import HOST, START_S, Bench, make_bench, message, now

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

NOW_MS = int(START_S * 1000)
#: Before the next segment is wanted, which the general path says.
SEGMENT = 64 * 1024


@attrs.define
class Tail:
    """A log, and the appends that it left to the general path."""

    bench: Bench
    log: CommitLog
    left: list[int] = attrs.field(factory=list)

    def append(self, *messages: NewMessage, size: int = 0, now_ms: int = NOW_MS) -> bytes:
        """Append encoded records; returns them."""
        timestamp, begin, _ = self.log.next_place(now_ms)
        records: list[bytes] = []
        for number, each in enumerate(messages or [message(body=b"x" * size)]):
            parts, _ = record_parts(each, number, begin + sum(map(len, records)), timestamp, HOST)
            records.append(b"".join(parts))
        data = b"".join(records)
        self.log.append_encoded(data, len(records), len(data) - len(records[-1]), timestamp, [])
        return data


@pytest.fixture
def make_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tail]:
    appended = CommitLog.append_unready
    lefts: dict[int, list[int]] = {}

    def append_unready(log: CommitLog, data: bytes, *rest: Any) -> None:
        lefts[id(log)].append(len(data))
        appended(log, data, *rest)

    def make(name: str = "store", **settings: Any) -> Tail:
        bench = make_bench(tmp_path / name, mapped_file_size_commit_log=SEGMENT, **settings)
        tail = Tail(bench, bench.open()._commit_log)
        lefts[id(tail.log)] = tail.left
        return tail

    monkeypatch.setattr(CommitLog, "append_unready", append_unready)
    return make


@pytest.fixture
def tail(make_tail: Callable[..., Tail]) -> Tail:
    """After the first append, which has made the pages ready."""
    made = make_tail()
    made.append()
    assert len(made.left) == 1
    made.left.clear()
    return made


def fields(run: Run) -> list[Any]:
    return [getattr(run, name) for name in Run.__slots__]


def test_what_is_appended_is_what_the_general_path_appends(make_tail: Callable[..., Tail]) -> None:
    tails = [make_tail("compiled"), make_tail("general")]
    for tail in tails:
        tail.append()
    tails[1].log._readied_until = 0
    batches = [[message(body=b"y" * size)] * count for size, count in ((0, 1), (1, 3), (4000, 2), (77, 1))]
    for number, batch in enumerate(batches):
        for tail in tails:
            tail.append(*batch, now_ms=NOW_MS + number - 1)
            tail.log._readied_until *= tail is tails[0]
    assert [len(tail.left) for tail in tails] == [1, 5]
    logs = [tail.log for tail in tails]
    first, second = [(log.end, log.last_timestamp_ms, list(map(fields, log.dispatch_queue))) for log in logs]
    assert first == second
    assert bytes(logs[0].segments[0].view) == bytes(logs[1].segments[0].view)


def test_records_stand_where_the_log_ended(tail: Tail) -> None:
    begin = tail.log.end
    data = tail.append(message(), message(body=b"more"), now_ms=NOW_MS + 1)
    assert tail.log.next_place(NOW_MS) == (NOW_MS + 1, begin + len(data), SEGMENT - begin - len(data) - 8)
    assert bytes(tail.log.segments[0].view[begin : tail.log.end + 8]) == data + bytes(8)
    assert tail.left == []


def test_the_timestamp_of_the_log_never_goes_back(tail: Tail) -> None:
    """Not even for a batch of a time before that of the one in front of it."""
    for later in (5, 9, 12):
        tail.append(now_ms=NOW_MS + later)
        parts, _ = record_parts(message(), 0, tail.log.end, NOW_MS + later - 3, HOST)
        tail.log.append_encoded(b"".join(parts), 1, 0, NOW_MS + later - 3, [])
        assert tail.log.last_timestamp_ms == NOW_MS + later
    assert tail.left == []


def test_the_dispatcher_is_notified_where_it_has_nothing_to_do_and_others_each_time(tail: Tail) -> None:
    told: list[str] = []
    tail.log.on_dispatchable.append(lambda: told.append("more"))
    tail.log.on_growth.append(lambda: told.append(f"end {tail.log.end - begin}"))
    begin = tail.log.end
    one = len(tail.append())
    assert told == [f"end {one}"]
    tail.log.dispatch_queue.clear()
    tail.append()
    tail.append()
    assert told[1:] == ["more", f"end {2 * one}", f"end {3 * one}"]
    assert tail.left == []


def test_where_the_dispatcher_cannot_be_notified_nothing_is_appended(tail: Tail) -> None:
    tail.log.dispatch_queue.clear()
    before = tail.log.end, bytes(tail.log.segments[0].view)
    tail.log.on_dispatchable.append(lambda: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        tail.append()
    assert (tail.log.end, bytes(tail.log.segments[0].view)) == before
    assert not tail.log.dispatch_queue
    tail.log.on_dispatchable.clear()
    tail.append()
    assert len(tail.log.dispatch_queue) == 1


def test_while_messages_are_refused_none_is_appended(tail: Tail) -> None:
    end = tail.log.end
    tail.log.refuse(Refusal.DISK_FULL, "full")
    assert tail.log.next_place(NOW_MS) == (NOW_MS, end, 0)
    tail.log.allow(Refusal.DISK_FULL)
    tail.append()
    assert (tail.log.end > end, tail.left) == (True, [])


@pytest.mark.parametrize(
    "make_unready",
    [
        lambda tail: setattr(tail.log, "_readied_until", NOW_MS),
        lambda tail: setattr(tail.log, "_readied_to", tail.log.end),
        lambda tail: setattr(tail.log, "_next_wanted_at", tail.log.end),
    ],
)
def test_what_is_not_ready_is_left(tail: Tail, make_unready: Callable[[Tail], None]) -> None:
    make_unready(tail)
    data = tail.append()
    assert tail.left == [len(data)]
    assert bytes(tail.log.segments[0].view[tail.log.end - len(data) : tail.log.end]) == data


def test_pages_are_made_ready_now_and_then(make_tail: Callable[..., Tail]) -> None:
    tail = make_tail()
    assert READIED_BYTES > SEGMENT
    for passed in (0, 1, READIED_MS - 1, READIED_MS, READIED_MS + 1, 2 * READIED_MS):
        tail.append(now_ms=NOW_MS + passed)
    assert len(tail.left) == 3


def test_what_waits_for_a_commit_is_left(make_tail: Callable[..., Tail]) -> None:
    tail = make_tail(transient_store_pool_enable=True)
    for _ in range(3):
        tail.append()
    assert len(tail.left) == 3


def test_too_much_for_the_dispatcher_is_left(tail: Tail) -> None:
    [waiting] = tail.log.dispatch_queue
    waiting.start = tail.log.end - QUEUED_BYTES_MAX
    tail.append()
    assert (len(tail.log.dispatch_queue), tail.left) == (2, [])
    tail.append()
    assert (len(tail.log.dispatch_queue), len(tail.left)) == (1, 1)


def test_what_is_no_memory_is_left(tail: Tail) -> None:
    tail.log._buffer = numbers = [0] * SEGMENT
    data = tail.append()
    assert tail.left == [len(data)]
    assert bytes(numbers[tail.log.end - len(data) : tail.log.end]) == data


@pytest.mark.parametrize("buffer", [bytes(SEGMENT), b"", None])
def test_what_is_no_memory_to_write_to_is_no_log(tail: Tail, buffer: Any) -> None:
    end = tail.log.end
    tail.log._buffer = buffer
    with pytest.raises((TypeError, BufferError)):
        tail.append()
    assert (tail.log.end, len(tail.log.dispatch_queue)) == (end, 1)


def test_nothing_is_written_behind_the_segment(tail: Tail) -> None:
    end = tail.log.end
    tail.log._buffer = buffer = bytearray(end + 100)
    tail.log._readied_to = tail.log._limit = tail.log._next_wanted_at = 1 << 62
    with pytest.raises(ValueError, match="bytes at"):
        tail.append()
    assert buffer == bytes(end + 100)
    assert tail.log.end == end
    tail.log._base = end + 1  # where nothing may begin
    tail.append()
    assert len(tail.left) == 1


@pytest.mark.parametrize("data", [b"", b"1234567"])
def test_what_is_no_record_is_left(tail: Tail, data: bytes) -> None:
    with pytest.raises(IndexError):
        tail.log.append_encoded(data, 1, 0, NOW_MS, [])
    assert tail.left == [len(data)]


@pytest.mark.parametrize(
    "wrong",
    [
        *[(None, 1, 0, 1, []), ("text", 1, 0, 1, []), (b"x" * 99, 1, 1 << 64, 1, []), (b"x" * 99, 1, 0, "1", [])],
        *[(b"x" * 99, 1, 0, 1, ()), (b"x" * 99, 1, 0, 1, None)],
    ],
)
def test_wrong_types_are_refused(tail: Tail, wrong: Any) -> None:
    end = tail.log.end
    with pytest.raises((TypeError, OverflowError)):
        tail.log.append_encoded(*wrong)
    assert tail.log.end == end


def test_the_memory_of_a_segment_is_not_held(tail: Tail) -> None:
    tail.log._buffer = memory = mmap.mmap(-1, SEGMENT)
    tail.append()
    memory.close()


def test_sends_are_appended_by_it(make_tail: Callable[..., Tail], tmp_path: Path) -> None:
    """So that it is no dead code: plain sends of a broker, but for the first."""
    from tests.broker.bench import Bench as BrokerBench

    bench = BrokerBench(tmp_path / "broker")
    client = bench.client()
    log = bench.store._commit_log
    client.send("T")  # by all rules, which makes the topic's row
    appends: list[int] = []
    log.on_growth.append(lambda: appends.append(log.end))
    log.append_unready = None
    for _ in range(3):
        client.send("T", body=b"plain")
    assert len(appends) == 3
    assert now(bench.store).record(appends[1])
    bench.close()


def test_of_plain_sends_those_that_somebody_waits_for_are_dispatched_soon(tmp_path: Path) -> None:
    from tests.broker.bench import Bench as BrokerBench

    bench = BrokerBench(tmp_path / "broker")
    client, consumer = bench.client(), bench.client()
    client.send("T", queue_id=1)
    client.send("T", queue_id=0)
    bench.turn(1)
    assert consumer.pull(queue_id=1, queue_offset=1, sys_flag=6, suspend_timeout_millis=20_000) is None
    bench.turn(1)
    client.send("T", queue_id=0)  # at once, as none came before
    bench.store._commit_log.append_unready = None  # all others are plain
    for _ in range(3):
        client.send("T", queue_id=0)
        assert bench.store._queues.bounds("T", 0) == (0, 2)
    client.send("T", b"wanted", queue_id=1)
    [answer] = consumer.heard()
    assert b"wanted" in answer.body
    assert bench.store._queues.bounds("T", 0) == (0, 5)
    bench.close()


def test_queue_offsets_are_given_out_once_though_something_fails_behind_an_append(tmp_path: Path) -> None:
    from tests.broker.bench import Bench as BrokerBench

    bench = BrokerBench(tmp_path / "broker")
    client = bench.client()
    log = bench.store._commit_log
    client.send("T")
    log.on_growth.append(lambda: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):  # the reactor closes its connection
        client.send("T")
    log.on_growth.clear()
    client = bench.client()
    client.send("T")
    bench.store.dispatch_now()
    rows = [row for run in scan(log, 0, log.end, 100) for row in cast(Run, run).rows]
    assert [row[2] for row in rows] == [0, 1, 2]
    bench.close()
