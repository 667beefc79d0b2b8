"""Delayed messages of one level that become due in another order than they were stored: each is delivered on time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from mqbroker.broker.delay import DelayOffsets, DelayService
from mqbroker.broker.delay_cursors import CURSORS_MAX, TOLERANCE_MS, Level, decode_delivered, encode_delivered
from mqbroker.errors import StoreBusy, StoreUnwritable
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.record import NewMessage, decode_records
from tests.broker.test_delay import bodies, delayed_message, reopened, service, wait
from tests.store.harness import Bench, make_bench, now, stop, turns

FILE = ("config", "delayOffset.json")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path / "store")
    yield bench
    bench.close()


def again(bench: Bench, store: MessageStore, delay: DelayService, levels: str) -> tuple[MessageStore, DelayService]:
    """Stopped and started with other delays."""
    delay.stop()
    stop(store)
    bench.opened.clear()
    return reopened(bench, levels)


def killed(bench: Bench, levels: str) -> tuple[MessageStore, DelayService]:
    """Started after a kill: the offsets are those that were written last."""
    bench.close()
    bench.opened.clear()
    return reopened(bench, levels)


def all_bodies(store: MessageStore) -> list[bytes]:
    found: list[bytes] = []
    while more := decode_records(b"".join(now(store).get("T", 3, len(found), 32).pieces)):
        found += [record.body for record in more]
    return found


def shortened(bench: Bench, *waiting: bytes, levels: str = "1s 2s") -> tuple[MessageStore, DelayService]:
    """Messages wait for an hour in the level that then has the second one of `levels`."""
    store, delay = reopened(bench, "1s 1h")
    store.append([delayed_message(body, 2) for body in waiting])
    turns(bench.clock)
    return again(bench, store, delay, levels)


def offsets(bench: Bench) -> bytes:
    return bench.root.joinpath(*FILE).read_bytes()


def test_new_messages_do_not_wait_for_those_of_a_longer_delay(bench: Bench) -> None:
    store, delay = shortened(bench, b"old", b"old too")
    for number in range(3):
        store.append([delayed_message(b"%d" % number, 2)])
        wait(bench.clock, 1.9)
        assert len(bodies(store)) == number
        wait(bench.clock, 0.2)
    assert bodies(store) == [b"0", b"1", b"2"]
    # The file has the offset of the first that is not delivered, as Java needs it.
    delay.persist()
    assert delay.progress() == {2: (0, 5)}
    wait(bench.clock, 3590)
    assert bodies(store) == [b"0", b"1", b"2"]
    wait(bench.clock, 4)
    assert bodies(store) == [b"0", b"1", b"2", b"old", b"old too"]
    delay.persist()
    assert delay.progress() == {2: (5, 5)}
    assert offsets(bench) == b'{"offsetTable":{2:5}}'
    store.append([delayed_message(b"later", 2)])
    wait(bench.clock, 2.1)
    assert bodies(store)[5:] == [b"later"]


def test_a_retry_of_a_consumer_does_not_wait_either(bench: Bench) -> None:
    """They wait in the same queues."""
    store, _ = shortened(bench, b"old")
    store.append([delayed_message(b"retry", 2, b"REAL_TOPIC\x01%RETRY%CG\x02REAL_QID\x010")])
    wait(bench.clock, 2.1)
    assert bodies(store, "%RETRY%CG", 0) == [b"retry"]


def test_delays_that_are_changed_again_and_again(bench: Bench) -> None:
    store, delay = reopened(bench, "1s 300s")
    for number, delay_s in enumerate([300, 200, 100, 150, 20, 10]):
        store, delay = again(bench, store, delay, f"1s {delay_s}s")
        store.append([delayed_message(b"%d at %d" % (number, delay_s), 2), delayed_message(b"%d" % number, 2)])
        turns(bench.clock)
    store, delay = again(bench, store, delay, "1s 5s")
    expected: list[bytes] = []
    for number, after_s in ((5, 10), (4, 10), (2, 80), (3, 50), (1, 50), (0, 100)):
        wait(bench.clock, after_s - 0.5)
        assert bodies(store) == expected
        wait(bench.clock, 0.5)
        expected += [b"%d at %d" % (number, [300, 200, 100, 150, 20, 10][number]), b"%d" % number]
        assert bodies(store) == expected
    wait(bench.clock, 1)  # it is synced then
    delay.persist()
    assert offsets(bench) == b'{"offsetTable":{2:12}}'


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("lives", [1, 3])
def test_none_is_delivered_twice_nor_lost_by_restarts_while_an_older_one_waits(
    bench: Bench, how: str, lives: int
) -> None:
    store, delay = shortened(bench, b"old", b"old too")
    wanted = []
    for life in range(lives):
        wanted += [b"%d: %d" % (life, number) for number in range(40)] + [b"%d last" % life]
        store.append([delayed_message(body, 2) for body in wanted[-41:-1]])
        wait(bench.clock, 2.1)
        delay.persist()
        store.append([delayed_message(wanted[-1], 2)])  # which the restart interrupts
        wait(bench.clock, 1)
        store, delay = again(bench, store, delay, "1s 2s") if how == "stopped" else killed(bench, "1s 2s")
        wait(bench.clock, 1.1)
        assert all_bodies(store) == wanted
    for _ in range(2):
        store, delay = again(bench, store, delay, "1s 2s") if how == "stopped" else killed(bench, "1s 2s")
        wait(bench.clock, 3600)
        assert all_bodies(store) == [*wanted, b"old", b"old too"]


@pytest.mark.parametrize("how", ["none", "damaged", "of another queue", "of a master"])
def test_without_the_file_of_what_is_delivered_nothing_is_delivered_twice(bench: Bench, how: str) -> None:
    """As on a slave that is promoted an hour later: its master told it only the offset of the first one."""
    store, delay = shortened(bench, b"old", levels="1s 2s 3s")
    store.append([delayed_message(b"%d" % number, 2) for number in range(3)])
    wait(bench.clock, 1000)
    store.append([delayed_message(b"%d" % number, 2) for number in range(3, 6)])
    wait(bench.clock, 3)
    delay.persist()
    assert delivered_file(bench) == {"2": [[1, 7]]}
    wait(bench.clock, 1000)
    delay.stop()
    stop(store)
    bench.opened.clear()
    path = bench.root / "config" / "delayDelivered.json"
    if how == "none":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(b'{"2": [[1,')
    elif how == "of another queue":
        path.write_bytes(b'{"2": [[1, 8]], "3": [[0, 1]]}')
    else:
        store, delay = reopened(bench, "1s 2s 3s")
        delay.stop()
        delay.follow(DelayOffsets({2: 0}))  # one of Java, or of an older release
        delay.persist()
        assert delivered_file(bench) == {}
        stop(store)
        bench.opened.clear()
    store, delay = reopened(bench, "1s 2s 3s")
    store.append([delayed_message(b"level 3", 3)])
    wait(bench.clock, 3.1)
    assert all_bodies(store) == [b"0", b"1", b"2", b"3", b"4", b"5", b"level 3"]
    wait(bench.clock, 3600)
    assert all_bodies(store) == [b"0", b"1", b"2", b"3", b"4", b"5", b"level 3", b"old"]
    delay.persist()
    assert offsets(bench) == b'{"offsetTable":{2:7,3:1}}'


def test_a_slave_that_is_promoted_goes_on_where_each_part_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, delay = shortened(bench, b"old")
    store.append([delayed_message(b"%d" % number, 2) for number in range(3)])
    wait(bench.clock, 3)
    told = DelayOffsets.from_json(delay.snapshot(with_delivered=True).to_json())
    assert told == DelayOffsets({2: 0}, {2: [[1, 4]]})
    assert delay.snapshot() == DelayOffsets({2: 0})  # Java's slaves write into their file what they get
    bench.close()
    bench.opened.clear()
    slave, follower = reopened(bench, "1s 2s")
    follower.stop()
    for _ in range(2):
        follower.follow(told)
        follower.persist()
    stop(slave)
    bench.opened.clear()
    assert (offsets(bench), delivered_file(bench)) == (b'{"offsetTable":{2:0}}', {"2": [[1, 4]]})
    store, delay = reopened(bench, "1s 2s")
    with monkeypatch.context() as patch:
        patch.setattr(store.queries, "offset_by_time", None)  # by which copies are found
        wait(bench.clock, 60)
    wait(bench.clock, 3600)
    assert bodies(store) == [b"0", b"1", b"2", b"old"]


def delivered_file(bench: Bench) -> Any:
    return orjson.loads((bench.root / "config" / "delayDelivered.json").read_bytes())


def test_what_is_known_to_be_delivered_is_not_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, delay = shortened(bench, b"old")
    store.append([delayed_message(b"%d" % number, 2) for number in range(200)])
    wait(bench.clock, 3)
    store, delay = again(bench, store, delay, "1s 2s")
    with monkeypatch.context() as patch, capturedLogs() as events:
        patch.setattr(store.queries, "offset_by_time", None)  # by which copies are found
        wait(bench.clock, 60)
    assert [event for event in events if event["log_level"].name != "info"] == []
    wait(bench.clock, 3600)
    assert all_bodies(store) == [*(b"%d" % number for number in range(200)), b"old"]
    delay.persist()
    assert (offsets(bench), delivered_file(bench)) == (b'{"offsetTable":{2:201}}', {})


def test_no_file_is_made_where_nothing_is_delivered_before_others(bench: Bench) -> None:
    store, delay = reopened(bench, "1s 2s")
    store.append([delayed_message(b"%d" % level, level) for level in (1, 2, 1)])
    wait(bench.clock, 4)
    delay.persist()
    assert offsets(bench) == b'{"offsetTable":{1:2,2:1}}'
    assert not (bench.root / "config" / "delayDelivered.json").exists()


@pytest.mark.parametrize("count", [CURSORS_MAX // 2, CURSORS_MAX - 1, 200])
def test_entries_without_any_order_are_delivered_by_a_bounded_number_of_cursors(bench: Bench, count: int) -> None:
    """Beyond the bound some are late, none is lost."""
    store, delay = reopened(bench, "1s 10s")
    store.append([delayed_message(b"%d" % number, 2) for number in range(2 * count)])
    turns(bench.clock)
    delay.stop()
    queue = store._queues.by_name["SCHEDULE_TOPIC_XXXX", 1]
    for number in range(0, 2 * count, 2):
        physical_offset, size, code = queue.entry(number)
        queue.rewrite(number, ENTRY.pack(physical_offset, size, code + 600_000 - 3_000 * number))
    stop(store)
    bench.opened.clear()
    with capturedLogs() as events:
        store, delay = reopened(bench, "1s 10s")
        wait(bench.clock, 10.1)
        assert max(len(level.cursors) for level in delay._levels.values()) <= CURSORS_MAX
        assert set(all_bodies(store)) == {b"%d" % number for number in range(1, 2 * min(count, CURSORS_MAX - 1), 2)}
        wait(bench.clock, 700)
    assert sorted(all_bodies(store)) == sorted(b"%d" % number for number in range(2 * count))
    lines = [formatEvent(event) for event in events if event["log_level"].name == "warn"]
    assert len(lines) == (count >= CURSORS_MAX)
    assert all(line.startswith(f"delay level 2 has more than {CURSORS_MAX} parts that are due") for line in lines)


@pytest.mark.parametrize("code", [2**62, 0, -(2**62), 1])
def test_an_entry_that_is_damaged_holds_up_no_other(bench: Bench, code: int) -> None:
    store, delay = reopened(bench, "1s 5s")
    store.append([delayed_message(b"%d" % number, 2) for number in range(5)])
    turns(bench.clock)
    delay.stop()
    queue = store._queues.by_name["SCHEDULE_TOPIC_XXXX", 1]
    physical_offset, size, due_ms = queue.entry(2)
    # 1: by a month.
    queue.rewrite(2, ENTRY.pack(physical_offset, size, due_ms + 30 * 86_400_000 if code == 1 else code))
    stop(store)
    bench.opened.clear()
    store, delay = reopened(bench, "1s 5s")
    wait(bench.clock, 5.1)
    others = [b"0", b"1", b"3", b"4"]
    assert sorted(bodies(store)) == (others if code == 1 else sorted([*others, b"2"]))
    wait(bench.clock, 30 * 86_400)
    assert sorted(bodies(store)) == sorted([*others, b"2"])


def test_small_steps_of_the_clock_do_not_split_a_level() -> None:
    level = Level.starting_at(1, 0, [], 100)
    assert level.compare([5000, 4001, 4500, 4000, 6000, 5000, 7000], 0) == []
    assert len(level.cursors) == 1
    (added,) = level.compare([7000, 5999, 6998, 6000], 0)
    assert [(cursor.offset, cursor.end) for cursor in level.cursors] == [(0, 8), (8, None)]
    assert added is level.cursors[1]


def test_parts_are_in_order_and_together_the_whole_queue() -> None:
    for seed in range(500):
        check_parts(Random(seed))


def check_parts(rng: Random) -> None:
    first, end = rng.randrange(3), rng.randrange(8, 60)
    codes = [rng.choice([1_000, 3_000, 10_000, 100_000, 2**62, 1_500, 0]) for _ in range(end)]
    delivered = sorted(rng.sample(range(first, end + 1), 2 * rng.randrange(3)))
    ranges = list(zip(delivered[::2], delivered[1::2], strict=True))
    level = Level.starting_at(1, first, ranges, rng.choice([end, end, end // 2 if not ranges else end]))
    gone = {offset for begin, stop in ranges for offset in range(begin, stop)}
    left = [offset for offset in range(first, end) if offset not in gone]
    done: list[int] = []
    while level.compared < end:
        # Some are delivered while others are not compared yet.
        for cursor in [*level.cursors]:
            stop_at = end if cursor.end is None else cursor.end
            to = min(cursor.offset + rng.randrange(3), stop_at) if rng.random() < 0.2 else cursor.offset
            done += range(cursor.offset, to)
            level.move(cursor, to)
        at = level.compared = max(level.compared, level.cursors[0].offset)
        level.compare(codes[at : at + rng.randrange(1, 9)], 0)
        assert len(level.cursors) <= CURSORS_MAX
    parts = [range(cursor.offset, end if cursor.end is None else cursor.end) for cursor in level.cursors]
    assert sorted([*done, *(offset for part in parts for offset in part)]) == left
    known = [offset for begin, stop in level.delivered for offset in range(begin, stop)]
    assert set(known) == (gone | set(done)) & set(range(level.cursors[0].offset, level.cursors[-1].offset))
    assert decode_delivered(encode_delivered({1: level.delivered})) == ({1: level.delivered} if known else {})
    for cursor, part in zip(level.cursors, parts, strict=True):
        latest = 0
        for offset in part:
            if codes[offset] < 2**62 and not cursor.is_joined:
                assert codes[offset] >= latest - TOLERANCE_MS
                latest = max(latest, codes[offset])


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"null", b'{"a": [[1, 2]]}', b'{"1": 5}', b'{"1": [[2, 1]]}', b'{"1": [[1, 2], [2, 3]]}',
     b'{"1": [[1, 2, 3]]}', b'{"1": [["1", 2]]}', b'{"1": [[1.0, 2]]}', b'{"1": [[true, 2]]}', b'{"1": []}', b"{"],
)  # fmt: skip
def test_ranges_that_cannot_be_are_ignored(content: bytes) -> None:
    assert decode_delivered(content) == {}


def test_a_refusal_of_the_store_holds_up_all_parts_and_loses_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = shortened(bench, b"old")
    append = store.append
    store.append([delayed_message(b"new", 2)])
    wait(bench.clock, 1)

    def refuse(_messages: Sequence[NewMessage]) -> None:
        raise StoreUnwritable("the disk is full")

    with monkeypatch.context() as patch, capturedLogs() as events:
        patch.setattr(store, "append", refuse)
        wait(bench.clock, 3600)
        assert bodies(store) == []
    assert len([event for event in events if "delayed messages is suspended" in event["log_format"]]) == 1
    assert store.append == append
    wait(bench.clock, 1.1)
    assert sorted(bodies(store)) == [b"new", b"old"]


def test_entries_that_cannot_be_read_are_compared_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = shortened(bench, b"old")
    with monkeypatch.context() as patch, capturedLogs() as events:
        patch.setattr(Level, "compare", fail)
        store.append([delayed_message(b"new", 2)])
        wait(bench.clock, 3.5)
        assert bodies(store) == []
    assert len([event for event in events if "delay level 2 cannot be read: busy" in formatEvent(event)]) == 4
    wait(bench.clock, 1)
    assert bodies(store) == [b"new"]


def fail(*_: object) -> None:
    raise StoreBusy("busy")


def test_what_is_not_on_the_disk_is_not_said_to_be_delivered(bench: Bench) -> None:
    """After a power cut it is to be delivered again."""
    store, delay = shortened(bench, b"old")
    path = bench.root / "config" / "delayDelivered.json"
    for number in range(3):
        store.append([delayed_message(b"%d" % number, 2)])
        wait(bench.clock, 0.6)
    for number in range(3):
        bench.worker.at_once = False
        wait(bench.clock, 0.3)
        assert bodies(store) == [b"%d" % each for each in range(number + 1)]
        for _ in range(2):
            delay.persist()
        bench.worker.at_once = True
        while bench.worker.waiting:
            bench.worker.step()
        assert not path.exists() or delivered_file(bench)["2"][0][1] <= number + 1
        wait(bench.clock, 0.3)
    wait(bench.clock, 1)
    delay.persist()
    delay.persist()
    assert delivered_file(bench) == {"2": [[1, 4]]}


def test_a_file_of_a_store_that_has_more_delivers_what_this_one_has(bench: Bench) -> None:
    """As after a backup of the store was put back, but not of the files beside it."""
    store, delay = shortened(bench, b"old")
    store.append([delayed_message(b"%d" % number, 2) for number in range(3)])
    turns(bench.clock)
    delay.stop()
    stop(store)
    bench.opened.clear()
    (bench.root / "config").mkdir(exist_ok=True)
    (bench.root / "config" / "delayDelivered.json").write_bytes(b'{"2": [[1, 5]]}')
    store, _ = reopened(bench, "1s 2s")
    wait(bench.clock, 2.1)
    assert bodies(store) == [b"0", b"1", b"2"]
    wait(bench.clock, 3600)
    assert bodies(store) == [b"0", b"1", b"2", b"old"]


def test_a_part_that_is_split_while_it_is_read_is_delivered_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, delay = reopened(bench, "1s 10s")
    store.append([delayed_message(b"a", 2), delayed_message(b"b", 2)])
    turns(bench.clock)
    store, delay = again(bench, store, delay, "1s 2s")
    store.append([delayed_message(b"c", 2)])
    turns(bench.clock)
    delay.stop()
    stop(store)
    bench.opened.clear()
    bench.clock.advance(20)
    waiting = list[Callable[[], None]]()

    def get_slowly(get: Any) -> Any:
        def later(*args: Any) -> Deferred[Any]:
            done: Deferred[Any] = Deferred()
            waiting.append(lambda: done.callback(get(*args)))
            return done

        return later

    with monkeypatch.context() as patch:
        bench.changes["message_delay_level"] = "1s 2s"
        store = bench.open()
        store.start()
        patch.setattr(store, "get", get_slowly(store.get))
        delay = service(bench, store, [1000, 2000])
        delay.start()
        turns(bench.clock)  # it is compared, and the new part is read as well
        while waiting:
            waiting.pop()()
            turns(bench.clock)
    wait(bench.clock, 1)
    assert sorted(bodies(store)) == [b"a", b"b", b"c"]
    assert delay.progress() == {2: (3, 3)}


def test_parts_whose_messages_were_deleted_go_on_where_the_queue_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, delay = reopened(bench, "1s 300s")
    for number, delay_s in enumerate([300, 200, 100]):
        store, delay = again(bench, store, delay, f"1s {delay_s}s")
        store.append([delayed_message(b"%d%d" % (number, which), 2) for which in range(4)])
        turns(bench.clock)
    store, delay = again(bench, store, delay, "1s 50s")
    assert [(each.offset, each.end) for each in delay._levels[2].cursors] == [(0, 4), (4, 8), (8, None)]
    get = store.get

    def get_what_is_left(
        topic: str, queue_id: int, offset: int, count: int
    ) -> GetMessageResult | Deferred[GetMessageResult]:
        if topic == "SCHEDULE_TOPIC_XXXX" and offset < 6:
            return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, 6, 6, 12, [], 0, False)
        return get(topic, queue_id, offset, count)

    monkeypatch.setattr(store, "get", get_what_is_left)
    with capturedLogs() as events:
        wait(bench.clock, 301)
    assert bodies(store) == [b"20", b"21", b"22", b"23", b"12", b"13"]
    assert delay.progress() == {2: (12, 12)}
    assert len([event for event in events if event["log_level"].name == "warn"]) == 2
