"""Delayed messages: each on time, in order, once; after a restart from where it was; never lost to a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from mqbroker.broker import delay as delay_module
from mqbroker.broker import stored_copies, system_topics
from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.delay import DelayService
from mqbroker.errors import StoreUnwritable
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.tags_codes import parse_delay_levels
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.properties import decode_properties
from mqbroker.wire.record import NewMessage, Record, decode_records
from tests.broker.bench import live_settings
from tests.store.harness import Bench, make_bench, message, now, stop, turns

LEVELS_MS = [1000, 5000]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path / "store")
    yield bench
    bench.close()


def delay_files(folder: Path) -> tuple[JsonFile, JsonFile]:
    def file(name: str) -> JsonFile:
        return JsonFile(str(folder / name), InlineWorker(), OsDisk())

    return file("delayOffset.json"), file("delayDelivered.json")


def service(bench: Bench, store: MessageStore, levels_ms: Sequence[int] = LEVELS_MS) -> DelayService:
    files = delay_files(bench.root / "config")
    stats = BrokerStats(store, live_settings(), bench.clock.seconds)
    delay = DelayService(store, files, bench.clock, list(levels_ms), stats, lambda topic, queue_id: queue_id)
    store.on_dispatch.append(lambda topic, queue_id, *_: delay.arrived(topic, queue_id))
    return delay


def opened(bench: Bench) -> tuple[MessageStore, DelayService]:
    store = bench.open()
    store.start()
    delay = service(bench, store)
    delay.start()
    turns(bench.clock)
    return store, delay


def delayed_message(body: bytes, level: int = 1, real: bytes = b"REAL_TOPIC\x01T\x02REAL_QID\x013") -> NewMessage:
    properties = b"KEYS\x01k\x02DELAY\x01%d\x02%s" % (level, real)
    return message("SCHEDULE_TOPIC_XXXX", level - 1, body, properties)


def delivered(store: MessageStore, topic: str = "T", queue_id: int = 3) -> list[Record]:
    return decode_records(b"".join(now(store).get(topic, queue_id, 0, 32).pieces))


def wait(clock: Clock, seconds: float) -> None:
    turns(clock, seconds)
    turns(clock)


def test_a_message_comes_at_its_time_to_its_real_queue(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"one")])
    wait(bench.clock, 0.9)
    assert delivered(store) == []
    wait(bench.clock, 0.2)
    (record,) = delivered(store)
    assert (record.topic, record.queue_id, record.body) == ("T", 3, b"one")
    assert record.properties == {"KEYS": "k", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert record.reconsume_times == 2
    assert record.born_timestamp == 1795255515190


def test_levels_do_not_wait_for_each_other(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"long", 2), delayed_message(b"short", 1)])
    wait(bench.clock, 1.1)
    assert [record.body for record in delivered(store)] == [b"short"]
    wait(bench.clock, 4)
    assert [record.body for record in delivered(store)] == [b"short", b"long"]


def test_many_come_in_order(bench: Bench) -> None:
    store, _ = opened(bench)
    bodies = [b"%d" % n for n in range(100)]
    store.append([delayed_message(body) for body in bodies])
    wait(bench.clock, 1.5)
    found = [*delivered(store)]
    while len(found) < store.max_offset("T", 3):
        found += decode_records(b"".join(now(store).get("T", 3, len(found), 32).pieces))
    assert [record.body for record in found] == bodies


def test_messages_of_all_lengths_are_delivered_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(bench)
    bodies = [b"x" * n for n in (3, 500, 40, 1, 7)]
    store.append([delayed_message(body) for body in bodies])
    append, counts = store.append, list[int]()
    monkeypatch.setattr(store, "append", lambda messages: counts.append(len(messages)) or append(messages))
    wait(bench.clock, 1.5)
    assert ([record.body for record in delivered(store)], counts) == (bodies, [5])


def test_one_that_arrives_while_another_waits_comes_too(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"first")])
    wait(bench.clock, 0.6)
    store.append([delayed_message(b"second")])
    wait(bench.clock, 0.6)
    assert [record.body for record in delivered(store)] == [b"first"]
    wait(bench.clock, 0.6)
    assert [record.body for record in delivered(store)] == [b"first", b"second"]


def test_a_restart_goes_on_where_it_was(bench: Bench) -> None:
    store, delay = opened(bench)
    store.append([delayed_message(b"before")])
    wait(bench.clock, 1.1)
    store.append([delayed_message(b"after")])
    delay.stop()
    bench.close()
    bench.opened.clear()
    bench.clock.advance(10)
    store, _ = opened(bench)
    wait(bench.clock, 0.5)
    assert [record.body for record in delivered(store)] == [b"before", b"after"]


def killed(bench: Bench) -> tuple[MessageStore, DelayService]:
    """As after kill -9: the offsets are those that were written last."""
    bench.close()
    bench.opened.clear()
    return opened(bench)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 3) -> list[bytes]:
    return [record.body for record in delivered(store, topic, queue_id)]


def test_a_copy_says_what_it_is_a_copy_of(bench: Bench) -> None:
    store, _ = opened(bench)
    placed = store.append([delayed_message(b"first"), delayed_message(b"second")])
    wait(bench.clock, 1.1)
    assert [record.prepared_offset for record in delivered(store)] == [-1 - place for place, *_ in placed]


@pytest.mark.parametrize("seconds", [0, 3, 3600])
def test_what_was_delivered_after_the_offsets_were_written_is_not_delivered_again(bench: Bench, seconds: int) -> None:
    store, delay = opened(bench)
    store.append([delayed_message(b"one"), delayed_message(b"long", 2), delayed_message(b"two")])
    wait(bench.clock, 1.1)
    delay.persist()
    other = delayed_message(b"other", 1, b"REAL_TOPIC\x01U\x02REAL_QID\x010")
    store.append([delayed_message(b"three"), other, delayed_message(b"three again", 2)])
    wait(bench.clock, 4.1)
    bench.clock.advance(seconds)
    store, _ = killed(bench)
    store.append([delayed_message(b"new")])
    wait(bench.clock, 9)
    assert bodies(store) == [b"one", b"two", b"three", b"long", b"three again", b"new"]
    assert bodies(store, "U", 0) == [b"other"]


def test_what_was_appended_just_before_the_start_comes_once(bench: Bench) -> None:
    store = bench.open()
    store.start()
    delay = service(bench, store)
    store.append([delayed_message(b"one")])
    delay.start()
    wait(bench.clock, 3)
    assert bodies(store) == [b"one"]


def test_offsets_that_are_lost_deliver_nothing_twice(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"%d" % number) for number in range(20)])
    wait(bench.clock, 1.1)
    (bench.root / "config" / "delayOffset.json").unlink(missing_ok=True)
    for _ in range(2):
        store, _ = killed(bench)
        wait(bench.clock, 5)
    assert bodies(store) == [b"%d" % number for number in range(20)]


def test_a_master_whose_clock_is_behind_delivers_nothing_twice(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"one", 2)])
    wait(bench.clock, 5.1)
    former = bench.clock
    bench.clock = Clock()
    bench.clock.advance(former.seconds() - 3)
    store, _ = killed(bench)
    wait(bench.clock, 10)
    assert bodies(store) == [b"one"]


def test_copies_of_a_java_broker_which_do_not_say_so_are_delivered_again(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([delayed_message(b"one"), message("T", 3, b"one")])
    store, _ = killed(bench)
    wait(bench.clock, 2)
    assert bodies(store) == [b"one", b"one"]


def test_copies_beyond_the_bounds_are_looked_for_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_copies, "QUEUES_MAX", 2)
    store, _ = opened(bench)
    reals = [b"REAL_TOPIC\x01T\x02REAL_QID\x01%d" % number for number in range(5)] * 2
    store.append([delayed_message(b"%d" % number, 1, real) for number, real in enumerate(reals)])
    wait(bench.clock, 1.1)
    store, _ = killed(bench)
    wait(bench.clock, 5)
    assert [bodies(store, "T", number) for number in range(5)] == [[b"%d" % n, b"%d" % (n + 5)] for n in range(5)]


def test_a_stopped_service_delivers_nothing(bench: Bench) -> None:
    store, delay = opened(bench)
    store.append([delayed_message(b"one")])
    turns(bench.clock)
    delay.stop()
    wait(bench.clock, 3)
    assert delivered(store) == []


def test_a_refusal_of_the_store_delays_and_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"one")])
    append = store.append

    def refuse(_messages: Sequence[NewMessage]) -> None:
        raise StoreUnwritable("the disk is full")

    monkeypatch.setattr(store, "append", refuse)
    with capturedLogs() as events:
        wait(bench.clock, 9)
    assert delivered(store) == []
    assert len([event for event in events if "delayed messages is suspended" in event["log_format"]]) == 1
    monkeypatch.setattr(store, "append", append)
    wait(bench.clock, 1.5)
    assert [record.body for record in delivered(store)] == [b"one"]


@pytest.mark.parametrize(
    "real",
    [
        b"REAL_QID\x013",
        b"REAL_TOPIC\x01../../etc\x02REAL_QID\x013",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01-1",
        b"REAL_TOPIC\x01T\x02REAL_QID\x0199999999",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010",
    ],
)
def test_one_that_cannot_be_delivered_holds_nobody_up(bench: Bench, real: bytes) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"bad", real=real), delayed_message(b"good")])
    wait(bench.clock, 1.1)
    assert [record.body for record in delivered(store)] == [b"good"]


def test_an_offset_beyond_the_queue_is_corrected(bench: Bench) -> None:
    config = bench.root / "config"
    config.mkdir(parents=True)
    (config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:700}}')
    store, _ = opened(bench)
    store.append([delayed_message(b"one")])
    wait(bench.clock, 1.1)
    assert [record.body for record in delivered(store)] == [b"one"]


def test_the_file_is_the_java_brokers(bench: Bench) -> None:
    store, delay = opened(bench)
    store.append([delayed_message(b"one"), delayed_message(b"two", 2)])
    wait(bench.clock, 6)
    delay.persist()
    assert (bench.root / "config" / "delayOffset.json").read_bytes() == b'{"offsetTable":{1:1,2:1}}'


def test_of_many_messages_only_the_damaged_is_skipped(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"message %d" % n) for n in range(5)])
    segment = bench.root / "commitlog" / "00000000000000000000"
    at = segment.read_bytes().index(b"message 2")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"massage 2")
    wait(bench.clock, 1.5)
    assert [record.body for record in delivered(store)] == [b"message 0", b"message 1", b"message 3", b"message 4"]


def test_a_separator_in_a_value_comes_through(bench: Bench) -> None:
    store, _ = opened(bench)
    store.append([delayed_message(b"one", real=b"KEYS\x01a\x01b\x02REAL_TOPIC\x01T\x02REAL_QID\x013")])
    wait(bench.clock, 1.5)
    assert [record.properties["KEYS"] for record in delivered(store)] == ["a\x01b"]


def test_one_that_cannot_stand_in_the_queues_it_names_comes_to_its_own(bench: Bench) -> None:
    """It was stored when nobody looked at the names, and is promised since."""
    names = b"INNER_MULTI_DISPATCH\x01../x\x02"
    good = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    real = b"REAL_TOPIC\x01T\x02REAL_QID\x013"
    store, delay = opened(bench)
    store.append(
        [delayed_message(b"0"), delayed_message(b"1", real=names + real), delayed_message(b"2", real=good + real)]
    )
    delay.stop()
    stop(store)
    bench.changes |= {"enable_multi_dispatch": True, "enable_lmq": True}
    store, _ = opened(bench)
    wait(bench.clock, 1.1)
    assert [record.body for record in delivered(store)] == [b"0", b"1", b"2"]
    (named,) = delivered(store, "%LMQ%a", 0)
    assert (named.body, dict(named.properties)["INNER_MULTI_QUEUE_OFFSET"]) == (b"2", "0")
    assert "INNER_MULTI_DISPATCH" not in dict(delivered(store)[1].properties)


def test_messages_delivered_one_by_one_come_once_though_the_store_fails_between_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that names a queue that cannot be has the others of its turn stored one by one."""
    real = b"REAL_TOPIC\x01T\x02REAL_QID\x013"
    bad = b"INNER_MULTI_DISPATCH\x01../x\x02" + real
    store, delay = opened(bench)
    store.append([delayed_message(b"none", real=b"REAL_QID\x013"), delayed_message(b"0")])
    store.append([delayed_message(b"1", real=bad), delayed_message(b"2"), delayed_message(b"3")])
    delay.stop()
    stop(store)
    bench.changes |= {"enable_multi_dispatch": True, "enable_lmq": True}
    store = bench.open()
    store.start()
    append = store.append

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        bodies = [each[8] for each in messages]
        if b"2" in bodies and b"1" not in bodies:
            raise StoreUnwritable("the disk is full")
        return append(messages)

    monkeypatch.setattr(store, "append", refuse)
    with capturedLogs() as events:
        service(bench, store).start()
        wait(bench.clock, 9)
    assert [record.body for record in delivered(store)] == [b"0", b"1"]
    assert len([event for event in events if "delayed messages is suspended" in event["log_format"]]) == 1
    monkeypatch.setattr(store, "append", append)
    wait(bench.clock, 1.5)
    assert [record.body for record in delivered(store)] == [b"0", b"1", b"2", b"3"]


def test_a_delayed_message_stands_in_the_queues_it_names_twice(bench: Bench) -> None:
    """As in the Java broker: when it is stored, and when it comes."""
    bench.changes |= {"enable_multi_dispatch": True, "enable_lmq": True}
    store, _ = opened(bench)
    store.append([delayed_message(b"0", real=b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02REAL_TOPIC\x01T\x02REAL_QID\x013")])
    wait(bench.clock, 1.1)
    found = delivered(store, "%LMQ%a", 0)
    assert [record.topic for record in found] == ["SCHEDULE_TOPIC_XXXX", "T"]
    assert [dict(record.properties)["INNER_MULTI_QUEUE_OFFSET"] for record in found] == ["0", "1"]


def test_no_offset_is_written_of_what_is_not_on_the_disk(bench: Bench) -> None:
    """After a power cut it is to be delivered again."""
    worker = bench.worker
    store, delay = opened(bench)
    store.append([delayed_message(b"one"), message("U", 0, b"before" * 1000)])
    wait(bench.clock, 0.9)
    assert store.settled == store.log_end > 6000
    worker.at_once = False
    wait(bench.clock, 0.2)
    assert [record.body for record in delivered(store)] == [b"one"]
    file = bench.root / "config" / "delayOffset.json"
    for _ in range(3):
        delay.persist()
    assert not file.exists()
    worker.at_once = True
    while worker.waiting:
        worker.step()
    wait(bench.clock, 1)
    delay.persist()
    assert file.read_bytes() == b'{"offsetTable":{1:1}}'


def test_one_that_seems_older_than_the_one_before_it_waits_for_that(bench: Bench) -> None:
    """As a Java broker stores them whose clock was set back."""
    store, _ = opened(bench)
    now_ms = int(bench.clock.seconds() * 1000)
    numbers = iter([now_ms + 900, now_ms, now_ms + 900])
    get = store.get

    def with_other_times(*args: Any) -> GetMessageResult | Deferred[GetMessageResult]:
        found = get(*args)
        if isinstance(found, Deferred) or found.status is not GetMessageStatus.FOUND:
            return found
        data = bytearray(b"".join(found.pieces))
        at = 0
        for _ in range(found.count):
            data[at + 56 : at + 64] = times[int.from_bytes(data[at + 20 : at + 28], "big")].to_bytes(8, "big")
            at += int.from_bytes(data[at : at + 4], "big")
        return found._replace(pieces=[memoryview(bytes(data))])

    times = list(numbers)

    async def codes(*_: Any) -> list[int]:
        return [each + LEVELS_MS[0] for each in times]

    store.get = with_other_times  # type: ignore[assignment]
    store.queries.tags_codes = codes  # type: ignore[assignment]
    store.append([delayed_message(body) for body in (b"0", b"1", b"2")])
    wait(bench.clock, 1.2)
    assert delivered(store) == []
    wait(bench.clock, 0.8)
    assert [record.body for record in delivered(store)] == [b"0", b"1", b"2"]


def test_a_clock_that_was_set_back_keeps_nobody_waiting_for_what_it_was(bench: Bench) -> None:
    store, delay = opened(bench)
    store.append([delayed_message(b"%d" % n, 2) for n in range(3)])
    delay.stop()
    stop(store)
    bench.opened.clear()
    bench.clock.rightNow -= 3600
    store, _ = opened(bench)
    wait(bench.clock, 4.5)
    store.append([delayed_message(b"later", 2)])
    assert delivered(store) == []
    wait(bench.clock, 1)
    assert [record.body for record in delivered(store)] == [b"0", b"1", b"2"]
    wait(bench.clock, 5.5)
    assert [record.body for record in delivered(store)] == [b"0", b"1", b"2", b"later"]


@pytest.mark.parametrize(
    ("properties", "left"),
    [
        (b"DELAY\x011\x02%s\x02A\x01b", b"DELAY\x011\x02%s\x02A\x01b"),
        (b"%s\x02WAIT\x01false\x02DELAY\x011", b"%s\x02WAIT\x01false\x02DELAY\x011"),
        (b"INNER_MULTI_QUEUE_OFFSET\x011\x02%s\x02DELAY\x011", b"%s\x02DELAY\x011"),
    ],
)
def test_it_keeps_all_but_its_offsets_while_it_waited(bench: Bench, properties: bytes, left: bytes) -> None:
    real = b"REAL_TOPIC\x01T\x02REAL_QID\x013"
    store, _ = opened(bench)
    store.append([message("SCHEDULE_TOPIC_XXXX", 0, b"one", properties % real)])
    wait(bench.clock, 1.1)
    (record,) = delivered(store)
    assert dict(record.properties) == decode_properties(left % real)


def reopened(bench: Bench, levels: str) -> tuple[MessageStore, DelayService]:
    """The store started again, with another messageDelayLevel."""
    bench.changes["message_delay_level"] = levels
    store = bench.open()
    store.start()
    delay = service(bench, store, parse_delay_levels(levels))
    delay.start()
    turns(bench.clock)
    return store, delay


def restarted(bench: Bench, before: str, after: str, levels: Sequence[int]) -> tuple[MessageStore, DelayService]:
    """Messages of some `levels` of `before`, whose bodies are the levels, wait when `after` is set."""
    store, delay = reopened(bench, before)
    store.append([delayed_message(b"%d" % level, level) for level in levels])
    turns(bench.clock)
    delay.stop()
    stop(store)
    bench.opened.clear()
    return reopened(bench, after)


@pytest.mark.parametrize("ext", [False, True])
@pytest.mark.parametrize("after", ["1s 60s", "1s 2s", "1s 1h"])
def test_a_message_is_due_when_it_was_said_to_be_whatever_its_level_is_now(bench: Bench, after: str, ext: bool) -> None:
    bench.changes["enable_consume_queue_ext"] = ext
    store, _ = restarted(bench, "1s 10s", after, [2])
    wait(bench.clock, 9.5)
    assert delivered(store) == []
    wait(bench.clock, 1)
    assert [record.body for record in delivered(store)] == [b"2"]
    store.append([delayed_message(b"new", 2)])
    wait(bench.clock, parse_delay_levels(after)[1] / 1000 - 0.5)
    assert len(delivered(store)) == 1
    wait(bench.clock, 1)
    assert [record.body for record in delivered(store)] == [b"2", b"new"]


def test_messages_of_levels_that_went_are_delivered_when_they_were_due_and_told_of(bench: Bench) -> None:
    with capturedLogs() as events:
        store, delay = restarted(bench, "1s 2s 10s 20s", "1s", [4, 3, 3])
    (line,) = [formatEvent(event) for event in events if event["log_level"].name == "warn"]
    assert "3 messages wait for levels that no longer exist: 3, 4;" in line
    wait(bench.clock, 9.5)
    assert delivered(store) == []
    wait(bench.clock, 1)
    assert [record.body for record in delivered(store)] == [b"3", b"3"]
    delay.stop()
    stop(store)
    bench.opened.clear()
    with capturedLogs() as events:
        store, delay = reopened(bench, "1s")
    assert [formatEvent(event) for event in events if "1 messages" in formatEvent(event)]
    wait(bench.clock, 10)
    assert [record.body for record in delivered(store)] == [b"3", b"3", b"4"]
    delay.stop()
    stop(store)
    bench.opened.clear()
    with capturedLogs() as events:
        reopened(bench, "1s")
    assert [event for event in events if event["log_level"].name == "warn"] == []


@pytest.mark.parametrize("code", [2**62, 0, -(2**62), 7])
def test_an_entry_whose_time_is_damaged_holds_nobody_up(bench: Bench, code: int) -> None:
    """One of the past is due at once, as in Java; one that can be none counts as missing."""
    store, delay = opened(bench)
    store.append([delayed_message(b"0", 2), delayed_message(b"1", 2)])
    turns(bench.clock)
    delay.stop()
    queue = store._queues.by_name["SCHEDULE_TOPIC_XXXX", 1]
    physical_offset, size, _ = queue.entry(0)
    queue.rewrite(0, ENTRY.pack(physical_offset, size, code))
    service(bench, store).start()
    wait(bench.clock, 0.5)
    assert len(delivered(store)) == (code in (0, 7))
    wait(bench.clock, 5)
    assert [record.body for record in delivered(store)] == [b"0", b"1"]


@pytest.mark.parametrize("error", [ValueError("a mistake"), LookupError("a mistake"), MemoryError()])
def test_a_message_that_the_store_fails_for_unexpectedly_is_tried_again_and_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store, _ = opened(bench)
    append = store.append

    def fail(messages: Sequence[NewMessage]) -> list[Appended]:
        if any(each[8] == b"1" and each[0] == b"T" for each in messages):
            raise error
        return append(messages)

    monkeypatch.setattr(store, "append", fail)
    with capturedLogs() as events:
        store.append([delayed_message(b"%d" % n) for n in range(3)])
        store.append([delayed_message(b"other level", 2)])
        wait(bench.clock, 5.5)
        assert [record.body for record in delivered(store)] == ([b"0"] * (not isinstance(error, MemoryError))) + [
            b"other level"
        ]
        for _ in range(10):
            wait(bench.clock, 1)
    found = [record.body for record in delivered(store)]
    if isinstance(error, MemoryError):  # memory comes back
        assert found == [b"other level"]
        monkeypatch.setattr(store, "append", append)
        wait(bench.clock, 1.5)
        assert [record.body for record in delivered(store)] == [b"other level", b"0", b"1", b"2"]
    else:
        assert found == [b"0", b"other level", b"2"]
        assert sum("try 10 of 10" in formatEvent(event) for event in events) == 1


@pytest.mark.parametrize("error", [LookupError("a mistake"), MemoryError()])
def test_a_message_that_cannot_be_copied_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store, _ = opened(bench)
    real_target = system_topics.real_target

    def fail(properties: bytes) -> tuple[bytes, int]:
        if b"bad" in properties:
            raise error
        return real_target(properties)

    with monkeypatch.context() as patch, capturedLogs() as events:
        patch.setattr(delay_module, "real_target", fail)
        store.append([delayed_message(b"0", real=b"REAL_TOPIC\x01bad\x02REAL_QID\x013"), delayed_message(b"1")])
        wait(bench.clock, 3.5)
        assert next(event["log_failure"].type for event in events if "log_failure" in event) is type(error)
    wait(bench.clock, 1.5)
    assert [record.body for record in delivered(store)] == [b"1"]
    assert len(delivered(store, "bad")) == isinstance(error, MemoryError)
