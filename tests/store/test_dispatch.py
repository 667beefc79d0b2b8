"""Dispatch: turns of the clock, what listeners are told, tags codes, falling behind, a full disk."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from mqbroker.errors import StoreUnwritable
from mqbroker.store import GetMessageStatus, dispatch
from mqbroker.store import dispatch_queue as dispatch_queue_module
from mqbroker.store.logscan import Run
from mqbroker.store.message_store import MessageStore
from mqbroker.store.tags_codes import parse_delay_levels
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import NewMessage
from tests.remoting.logs import log_kept
from tests.store.harness import START_S, Bench, message, now, run_now, stop, tree, turns

NOW_MS = int(START_S * 1000)
Told = tuple[str, int, int, int | None, int]


def listen(store: MessageStore) -> list[Told]:
    told: list[Told] = []
    store.on_dispatch.append(lambda *what: told.append(what))
    return told


def code_of(store: MessageStore, topic: str = "T", queue_id: int = 0, offset: int = 0) -> int:
    """The tags code of an entry, as Java's store would read it."""
    return store._queues.by_name[topic, queue_id].entry(offset)[2]


def test_messages_can_be_got_in_the_turn_after_their_append(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message()])
    assert now(store).get("T", 0, 0, 32).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    bench.clock.advance(0)
    found = now(store).get("T", 0, 0, 32)
    assert (found.status, found.count, found.next_offset) == (GetMessageStatus.FOUND, 1, 1)


@attrs.define
class Appends:
    """A store that is appended to; where its queue ends is looked at without asking the store, which would dispatch."""

    bench: Bench
    store: MessageStore

    def dispatched_after(self, count: int, seconds: float = 0.0) -> int:
        for _ in range(count):
            self.store.append([message()])
        self.bench.clock.advance(seconds)
        return self.dispatched()

    def dispatched(self) -> int:
        _, end = self.store._queues.bounds("T", 0) or (0, 0)
        return end


@pytest.fixture
def appends(bench: Bench) -> Appends:
    store = bench.open()
    store.start()
    return Appends(bench, store)


def test_after_many_messages_the_next_turn_waits_for_more(appends: Appends) -> None:
    """A millisecond where somebody waits, as the Java system's dispatch does between any two rounds."""
    appends.store.is_awaited_by({("another", 1): "somebody"})
    many = dispatch.BUSY_MESSAGES
    for count in range(1, many):
        assert appends.dispatched_after(1) == count
    assert appends.dispatched_after(50) == many + 49
    for passed in (0.0, dispatch.BUSY_S / 2, dispatch.BUSY_S / 4):
        assert appends.dispatched_after(1, passed) == many + 49
    assert appends.dispatched_after(1, dispatch.BUSY_S / 4) == many + 53
    assert appends.dispatched_after(1) == many + 54  # few came meanwhile


def test_where_nobody_waits_a_turn_waits_until_many_came(appends: Appends) -> None:
    idle_s, many = dispatch.IDLE_S, dispatch.IDLE_MESSAGES
    assert appends.dispatched_after(1) == 1
    assert appends.dispatched_after(1, 0.75 * idle_s) == 1
    assert appends.dispatched_after(many - 1, 0.25 * idle_s) == (end := 1 + many)
    assert appends.dispatched_after(2 * many, 0.75 * idle_s) == end
    assert appends.dispatched_after(0, 0.25 * idle_s) == (end := end + 2 * many)
    # So many come in half the time.
    assert appends.dispatched_after(1, 0.375 * idle_s) == end
    assert appends.dispatched_after(0, 0.126 * idle_s) == end + 1
    assert appends.dispatched_after(1, 0.75 * idle_s) == end + 1
    assert appends.dispatched_after(0, 0.251 * idle_s) == end + 2


def test_however_many_come_a_turn_waits_for_some(appends: Appends) -> None:
    appends.dispatched_after(1)
    assert appends.dispatched_after(100 * dispatch.IDLE_MESSAGES, dispatch.IDLE_S) == 100 * dispatch.IDLE_MESSAGES + 1
    assert appends.dispatched_after(1, 0.75 * dispatch.BUSY_S) == 100 * dispatch.IDLE_MESSAGES + 1
    assert appends.dispatched_after(1, 0.25 * dispatch.BUSY_S) == 100 * dispatch.IDLE_MESSAGES + 3


def test_of_large_messages_a_turn_waits_for_fewer(appends: Appends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "IDLE_BYTES", 10_000)
    assert appends.dispatched_after(1) == 1
    appends.store.append([message(body=bytes(20_000))])
    assert appends.dispatched_after(0, dispatch.IDLE_S) == 2
    assert appends.dispatched_after(1, 0.4 * dispatch.IDLE_S) == 2
    assert appends.dispatched_after(0, 0.11 * dispatch.IDLE_S) == 3


def test_of_messages_whose_queues_are_known_those_that_somebody_waits_for_are_dispatched_soon(appends: Appends) -> None:
    store, waiting = appends.store, dict[tuple[str, int], str]()
    store.is_awaited_by({}, waiting)
    log, queues = store._commit_log, [store.open_queue(b"T", number) for number in range(3)]
    assert appends.dispatched_after(1) == 1
    for number, (who, told, is_soon) in enumerate(
        [
            ({}, None, False),
            ({}, queues, False),
            ({("T", 1): "somebody"}, queues[:1], False),
            ({("U", 0): "somebody"}, queues, False),
            ({("T", 1): "somebody"}, [], False),
            ({("T", 1): "somebody"}, queues[:2], True),
            ({("U", 0): "somebody"}, None, True),
        ]
    ):
        waiting.clear()
        waiting.update(who)
        for _ in range(2):
            appends.bench.clock.advance(dispatch.IDLE_S)
        log.append([message()])
        appends.bench.clock.advance(0)
        log.append([message()])  # this one waits for more
        store.appended(told)
        appends.bench.clock.advance(0)
        assert appends.dispatched() == 2 + 2 * number + is_soon


def test_who_begins_to_wait_has_at_once_what_was_put_off(appends: Appends) -> None:
    appends.store.dispatch_soon()  # there is nothing
    assert appends.dispatched_after(1) == 1
    assert appends.dispatched_after(1) == 1
    appends.store.dispatch_soon()
    assert appends.dispatched_after(0) == 2
    assert appends.dispatched_after(dispatch.BUSY_MESSAGES, dispatch.IDLE_S) == (end := 2 + dispatch.BUSY_MESSAGES)
    assert appends.dispatched_after(1, 0.5 * dispatch.BUSY_S) == end
    calls = list(appends.bench.clock.getDelayedCalls())
    appends.store.dispatch_soon()  # many were dispatched just now
    assert len(hastened := list(appends.bench.clock.getDelayedCalls())) == len(calls)
    appends.store.dispatch_soon()  # and another, who changes nothing
    assert list(appends.bench.clock.getDelayedCalls()) == hastened != calls
    assert appends.dispatched_after(0, 0.25 * dispatch.BUSY_S) == end
    assert appends.dispatched_after(0, 0.25 * dispatch.BUSY_S) == end + 1


def test_who_asks_for_messages_finds_what_was_put_off(appends: Appends) -> None:
    store = appends.store
    assert not store.dispatch_delayed()
    assert appends.dispatched_after(1) == 1
    assert not store.dispatch_delayed()
    assert appends.dispatched_after(1) == 1
    assert store.dispatch_delayed()
    assert not store.dispatch_delayed()
    assert appends.dispatched() == 2
    assert appends.dispatched_after(1) == 2
    assert (store.max_offset("T", 0), store.min_offset("T", 0), store.bounds("T", 0)) == (3, 0, (0, 3))
    assert appends.dispatched_after(dispatch.BUSY_MESSAGES, dispatch.IDLE_S) == (end := 3 + dispatch.BUSY_MESSAGES)
    assert appends.dispatched_after(1, 0.5 * dispatch.BUSY_S) == end
    assert not store.dispatch_delayed()  # many were dispatched just now: who can wait does
    assert not store.dispatch_queue("T", 1)  # nothing waits of this queue
    assert not store.dispatch_queue("U", 0)
    assert appends.dispatched() == end
    assert store.max_offset("T", 0) == end + 1
    assert appends.dispatched_after(1, dispatch.IDLE_S) == end + 2  # turns go on


def test_who_reads_a_queue_while_the_index_is_behind_finds_what_was_appended_to_it(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make("late")
    store = bench.open()
    store.start()
    with monkeypatch.context() as slow:
        # The index takes the whole time of each turn, and leaves something.
        take_long = lambda *_: bench.clock.pump([dispatch.TURN_S])  # noqa: E731
        slow.setattr(store._dispatcher._index_dispatcher, "index", take_long)
        store.append([message(properties=b"KEYS\x01k")])
        bench.clock.advance(0)
        store.append([message(properties=b"KEYS\x01l"), message(queue_id=1)])
        assert store.bounds("T", 0) == (0, 2)
        assert now(store).get("T", 1, 0, 32).max_offset == 1
    bench.clock.advance(dispatch.LATE_S)
    assert not store._dispatcher._is_index_behind


def test_who_reads_a_queue_from_a_listener_of_its_dispatch_begins_no_other(appends: Appends) -> None:
    found: list[int] = []

    def append_and_read(*_: object) -> None:
        if not found:
            appends.store.append([message()])
        found.append(appends.store.max_offset("T", 0))

    appends.store.on_dispatch.append(append_and_read)
    assert appends.dispatched_after(1) == 2
    assert found == [1, 2]


def test_who_asks_by_key_finds_what_was_put_off(appends: Appends) -> None:
    appends.store.append([message()])
    appends.bench.clock.advance(0)
    appends.store.append([message(properties=b"KEYS\x01k")])
    assert len(run_now(appends.store.query("T", "k", 32, 0, 2 * NOW_MS)).records) == 1


def test_who_asks_by_time_finds_what_was_put_off(appends: Appends) -> None:
    for _ in range(2):
        appends.store.append([message()])
        appends.bench.clock.advance(0)
    assert run_now(appends.store.offset_by_time("T", 0, NOW_MS + 1000)) == 2


def test_messages_appended_before_the_start_are_dispatched_by_it(bench: Bench) -> None:
    store = bench.open()
    store.append([message()])
    bench.clock.advance(1)
    assert store.max_offset("T", 0) == 0
    store.start()
    bench.clock.advance(0)
    assert store.max_offset("T", 0) == 1


def test_listeners_hear_once_of_each_queue_in_a_turn_and_can_get(bench: Bench) -> None:
    store = bench.open()
    store.start()
    told = listen(store)
    seen: list[int] = []
    store.on_dispatch.append(lambda topic, queue_id, end, *_: seen.append(now(store).get(topic, queue_id, 0, 32).count))
    store.append([message(), message(queue_id=1, properties=b""), message()])
    store.append([message(properties=b"TAGS\x01B"), message("U")])
    assert told == []
    bench.clock.advance(0)
    assert sorted(told, key=str) == [
        ("T", 0, 3, None, NOW_MS),
        ("T", 1, 1, 0, NOW_MS),
        ("U", 0, 1, java_hash("TagA"), NOW_MS),
    ]
    assert sorted(seen) == [1, 1, 3]
    bench.clock.advance(1)
    assert len(told) == 3


def test_a_listener_that_fails_stops_nobody(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.on_dispatch.append(lambda *_: 1 / 0)  # type: ignore[arg-type]
    told = listen(store)
    store.append([message(), message(queue_id=1)])
    bench.clock.advance(0)
    assert len(told) == 2
    store.append([message()])
    bench.clock.advance(dispatch.BUSY_S)
    assert store.max_offset("T", 0) == 2


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        (b"", ""),
        (b"TAGS\x01TagA", "TagA"),
        (b"K\x01v\x02TAGS\x01TagA\x02WAIT\x01true", "TagA"),
        (b"TAGS\x01TagA\x02", "TagA"),
        (b"TAGS\x01one\x02TAGS\x01two", "two"),
        (b"XTAGS\x01no", ""),
        (b"XTAGS\x01no\x02K\x01v", ""),
        (b"TAGS\x01yes\x02XTAGS\x01no", "yes"),
        (b"K\x01TAGS", ""),
        ("TAGS\x01día".encode(), "día"),
        ("TAGS\x01\U0001f600".encode(), "\U0001f600"),
    ],
)
def test_tags_codes_are_the_java_hash_of_the_tag(bench: Bench, properties: bytes, tag: str) -> None:
    store = bench.open()
    store.append([message(properties=properties)])
    store.dispatch_now()
    assert code_of(store) == java_hash(tag)
    assert now(store).get("T", 0, 0, 1, tags_codes=frozenset([java_hash(tag)])).count == 1


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"DELAY\x011", NOW_MS + 1000),
        (b"TAGS\x01A\x02DELAY\x0118", NOW_MS + 7_200_000),
        (b"DELAY\x0199", NOW_MS + 7_200_000),
        (b"DELAY\x010\x02TAGS\x01A", java_hash("A")),
        (b"DELAY\x01x\x02TAGS\x01A", java_hash("A")),
        (b"TAGS\x01A", java_hash("A")),
        (b"", 0),
    ],
)
def test_entries_of_delayed_messages_say_when_they_are_due(bench: Bench, properties: bytes, code: int) -> None:
    store = bench.open()
    store.append([message("SCHEDULE_TOPIC_XXXX", properties=properties), message(properties=properties)])
    store.dispatch_now()
    assert code_of(store, "SCHEDULE_TOPIC_XXXX") == code
    assert code_of(store) == java_hash("A" if b"A" in properties.replace(b"TAGS", b"").replace(b"DELAY", b"") else "")


@pytest.mark.parametrize(("text", "levels"), [("1s 5m 2h 1d", [1000, 300_000, 7_200_000, 86_400_000]), ("", [])])
def test_delay_levels(text: str, levels: list[int]) -> None:
    assert parse_delay_levels(text) == levels


@pytest.mark.parametrize("text", ["1", "s", "1x", "5 s"])
def test_bad_delay_levels(text: str) -> None:
    with pytest.raises(ValueError, match="levels are numbers"):
        parse_delay_levels(text)


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_halves_and_rollbacks_enter_no_queue(bench: Bench, sys_flag: int) -> None:
    store = bench.open()
    store.start()
    told = listen(store)
    store.append([message(sys_flag=sys_flag)])
    bench.clock.advance(0)
    assert told == []
    assert store.max_offset("T", 0) == 0
    assert store.stats.dispatched == store.log_end
    store.append([message(), message(sys_flag=8)])
    bench.clock.advance(dispatch.BUSY_S)
    assert store.max_offset("T", 0) == 2


@pytest.mark.parametrize(
    ("queued_bytes_max", "dispatched"),
    [
        (dispatch_queue_module.QUEUED_BYTES_MAX, 40),
        (0, 10),  # all but the last append are read from the log
    ],
)
def test_a_turn_takes_all_that_is_queued_and_little_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, queued_bytes_max: int, dispatched: int
) -> None:
    monkeypatch.setattr(dispatch, "TURN_MESSAGES", 10)
    monkeypatch.setattr(dispatch_queue_module, "QUEUED_BYTES_MAX", queued_bytes_max)
    store = bench.open()
    store.start()
    for _ in range(5):
        store.append([message()] * 8)
    after_one = []
    bench.clock.callLater(0, lambda: after_one.append((store._queues.by_name["T", 0].max_offset, store.stats.indexed)))
    bench.clock.advance(0)
    assert after_one == [(dispatched, store.log_end // 40 * dispatched)]
    assert store.max_offset("T", 0) == 40


def test_what_is_queued_is_taken_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TURN_MESSAGES", 10)
    store = bench.open()
    store.start()
    for _ in range(5):
        store.append([message()] * 8)
    told = listen(store)
    bench.clock.advance(0)
    assert [end for _, _, end, _, _ in told] == [16, 32, 40]


@pytest.mark.parametrize("queued_bytes_max", [dispatch_queue_module.QUEUED_BYTES_MAX, 0])
@pytest.mark.parametrize("count", [3, 4, 5, 7])
def test_no_message_is_left_out_where_a_turn_meets_the_end_of_a_segment(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, count: int, queued_bytes_max: int
) -> None:
    monkeypatch.setattr(dispatch, "TURN_MESSAGES", count)
    monkeypatch.setattr(dispatch_queue_module, "QUEUED_BYTES_MAX", queued_bytes_max)
    for size in range(5000, 8000, 1000):
        store = make(f"{size}").open()
        for _ in range(60):
            store.append([message(body=b"x" * size, properties=b"KEYS\x01k")])
        assert store.log_end > 2 * 131_072
        for _ in range(60):
            store._dispatcher.dispatch(count)
        assert store.max_offset("T", 0) == 60
        store._dispatcher.index_all()
        assert len(now(store).query("T", "k", 64, 0, 2 * NOW_MS)) == 60


def test_beyond_the_bound_of_the_dispatch_queue_the_log_is_read(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same appends, dispatched from memory and read back from the log: the same files."""
    monkeypatch.setattr(dispatch, "IDLE_S", 0.0)
    monkeypatch.setattr(dispatch, "BUSY_S", 0.0)
    batches = [
        [message(f"T{i % 3}", i % 5, b"%d" % i * i, b"KEYS\x01k%d k\x02TAGS\x01t%d" % (i, i % 4), sys_flag=i % 4 * 4)]
        * 3
        for i in range(200)
    ]
    benches = [make("memory"), make("log")]
    for bench in benches:
        if bench is benches[1]:
            monkeypatch.setattr(dispatch_queue_module, "QUEUED_BYTES_MAX", 3000)
        store = bench.open()
        store.start()
        for i, batch in enumerate(batches):
            store.append(batch)
            if i % 30 == 0 or (i < 60 and bench is benches[0]):
                bench.clock.advance(0)
        for _ in range(10):
            bench.clock.advance(0)
        assert store.stats.dispatched == store.stats.indexed == store.log_end
        stop(store)
    for part in ("commitlog", "consumequeue"):
        assert tree(benches[0].root / part) == tree(benches[1].root / part)
    assert list(tree(benches[0].root / "index").values()) == list(tree(benches[1].root / "index").values())


def test_what_the_dispatch_queue_forgot_is_indexed_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def keyed(key: str) -> NewMessage:
        return message(properties=b"KEYS\x01" + key.encode())

    store = bench.open()
    store.append([keyed("before")])
    store.dispatch_now()
    monkeypatch.setattr(dispatch_queue_module, "QUEUED_BYTES_MAX", 0)
    store.append([keyed("lost")])
    store.append([keyed("after")])
    store.dispatch_now()
    store.start()
    bench.clock.advance(0)
    assert [len(now(store).query("T", key, 9, 0, 2 * NOW_MS)) for key in ("before", "lost", "after")] == [1, 1, 1]


def test_what_is_not_in_its_queue_yet_is_not_indexed(bench: Bench) -> None:
    store = bench.open()
    store.start()
    bench.disk.faults.room = 0
    store.append([message()])
    bench.clock.advance(0)
    store._dispatcher.index_queued()  # and it ends
    assert store.stats.indexed == 0
    bench.disk.faults.room = None
    bench.clock.advance(1)
    assert store.stats.indexed == store.log_end


def test_dispatch_waits_for_a_full_disk_and_goes_on(bench: Bench) -> None:
    store = bench.open()
    store.start()
    told = listen(store)
    bench.disk.faults.room = 0
    store.append([message(), message(queue_id=1)])
    bench.clock.advance(0)
    assert store.max_offset("T", 0) == 0
    assert "No space left" in store._commit_log.why_refused
    assert told == []
    assert store.stats.dispatched == 0
    for _ in range(3):  # there is room in the log, but nobody could get what it holds
        with pytest.raises(
            StoreUnwritable,
            match=r"a consume queue or the index cannot be written: .* bytes used, \d+ free.*No space left",
        ):
            store.append([message()])
        bench.clock.advance(1)
    bench.disk.faults.room = None
    bench.clock.advance(1)
    store.append([message()])
    bench.clock.advance(1)
    assert (store.max_offset("T", 0), store.max_offset("T", 1)) == (2, 1)
    assert not store._commit_log.why_refused
    assert sorted(row[:3] for row in told) == [("T", 0, 1), ("T", 0, 2), ("T", 1, 1)]
    assert now(store).query("T", "7F0000010A2C18B4AAC27D0000000001", 10, 0, 2**62)


def test_after_an_unexpected_error_dispatch_goes_on_by_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    store.start()
    dispatch_run = store._cq_dispatcher.dispatch_run
    fails = [True]

    def failing(run: Run, is_over: Callable[[], bool]) -> tuple[int, int]:
        if fails:
            raise MemoryError
        return dispatch_run(run, is_over)

    monkeypatch.setattr(store._cq_dispatcher, "dispatch_run", failing)
    store.append([message()])
    with log_kept() as logged:
        bench.clock.advance(0)
    assert [failure.type for failure in logged.failures] == [MemoryError]
    store.append([message()])  # they are accepted meanwhile
    fails.clear()
    bench.clock.advance(dispatch.RETRY_S)
    assert store.max_offset("T", 0) == 2


def test_where_the_dispatcher_cannot_be_notified_the_next_append_does(bench: Bench) -> None:
    store = bench.open()
    store.start()
    log = store._commit_log
    listeners, log.on_dispatchable[:] = list(log.on_dispatchable), [lambda: 1 / 0]  # type: ignore[list-item]
    with pytest.raises(ZeroDivisionError):
        store.append([message()])
    log.on_dispatchable[:] = listeners
    store.append([message()])
    bench.clock.advance(0)
    assert now(store).get("T", 0, 0, 32).count == 2
    assert store._queues.open(b"T", 0).next_offset == 2


def fail_with(error: Exception, bad: bytes, put: Callable[..., Any], tries: list[int]) -> Callable[..., Any]:
    """`put`, which fails as long as the message with these properties is among those of the run."""

    def put_or_fail(run: Run, is_over: Callable[[], bool]) -> Any:
        tries.append(run.count)
        if any(row[7] == bad for row in run.rows):
            raise error
        return put(run, is_over)

    return put_or_fail


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError("a mistake"), AssertionError(), struct.error("a mistake")])
def test_a_message_that_cannot_be_dispatched_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception, bad: int
) -> None:
    store = bench.open()
    store.start()
    tries: list[int] = []
    dispatcher = store._cq_dispatcher
    monkeypatch.setattr(dispatcher, "dispatch_run", fail_with(error, b"K\x01bad", dispatcher.dispatch_run, tries))
    sent = [message(f"T{n}", properties=b"K\x01bad" if n == bad else b"K\x01good") for n in range(3)]
    with log_kept() as logged:
        appended = store.append(sent)
        turns(bench.clock)
        assert store.max_offset("T2", 0) == 0
        for _ in range(dispatch.TRIES_MAX):
            bench.clock.advance(dispatch.RETRY_S)
        assert [store.max_offset(f"T{n}", 0) for n in range(3)] == [n != bad for n in range(3)]
        assert sum("is not added to any queue" in line for line in logged.lines) == 1
    (damage,) = store.corrupt_ranges
    assert (damage.start, damage.end - damage.start) == (appended[bad][0], appended[bad][2])
    assert tries == [3] * dispatch.TRIES_MAX + [1] * 3
    # The next ones are dispatched at once, and another failure is tried as often.
    store.append([message("T3")])
    turns(bench.clock)
    assert store.max_offset("T3", 0) == 1
    with log_kept():
        store.append([message("T4", properties=b"K\x01bad"), message("T5")])
        turns(bench.clock)
        assert store.max_offset("T5", 0) == 0
        for _ in range(dispatch.TRIES_MAX):
            bench.clock.advance(dispatch.RETRY_S)
    assert (store.max_offset("T4", 0), store.max_offset("T5", 0)) == (0, 1)


@pytest.mark.parametrize("error", [ValueError("a mistake"), MemoryError(), OSError(5, "Input/output error")])
def test_no_message_is_left_out_for_what_is_no_fault_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = bench.open()
    store.start()
    with monkeypatch.context() as patch, log_kept():

        def fail(run: Run) -> None:
            raise error

        patch.setattr(store._cq_dispatcher, "dispatch_run", fail)
        store.append([message("T0"), message("T1")])
        turns(bench.clock)
        for _ in range(3 * dispatch.TRIES_MAX):
            bench.clock.advance(dispatch.RETRY_S)
    bench.clock.advance(dispatch.RETRY_S)
    assert [store.max_offset(f"T{n}", 0) for n in range(2)] == [1, 1]
    assert store.corrupt_ranges == ()


def test_a_message_that_cannot_be_indexed_stops_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    store.start()
    assert store._index is not None
    tries: list[int] = []
    error = ValueError("a mistake")
    monkeypatch.setattr(store._index, "add", fail_with(error, b"KEYS\x01bad", store._index.add, tries))
    with log_kept() as logged:
        store.append([message(body=key, properties=b"KEYS\x01" + key) for key in (b"first", b"bad", b"last")])
        for _ in range(dispatch.TRIES_MAX + 1):
            bench.clock.advance(dispatch.RETRY_S)
        assert sum("left out of the index" in line for line in logged.lines) == 1
    found = [run_now(store.query("T", key, 32, 0, 1 << 62)).records for key in ("first", "bad", "last")]
    assert [len(records) for records in found] == [1, 0, 1]
    assert store.max_offset("T", 0) == 3
