"""The stream reader as Spark drives it: fresh starts, restarts at every moment, triggers. Without Java."""

import json
import pickle
import re
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from mqbroker.client.errors import NameServerUnreachable, TopicNotFound
from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.spark import api, source
from mqbroker.spark.api import ReadAllAvailable, ReadMaxRows
from mqbroker.spark.errors import BadOption, BadSchema, DataLoss, NotOnExecutors, NotReadable
from mqbroker.spark.progress import StreamOffset, plan
from mqbroker.spark.source import RocketMQDataSource, StreamReader
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog, replace_sleep

A0, A1, B0 = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1), MessageQueue("orders", "b", 0)
NOT_READ = "not read now, because their brokers do not respond or the name server does not list them: queues of "
SCHEMA = StructType().add("queueOffset", LongType()).add("body", BinaryType())
Make = Callable[..., StreamReader]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    log = FakeLog()
    log.add(A0, 10)
    log.add(A1, 4)
    monkeypatch.setattr(source, "_client", lambda options: log)
    return log


@pytest.fixture
def make(log: FakeLog) -> Make:
    def make(**options: str) -> StreamReader:
        given = {"nameserver": "here:1", "topic": "orders", "retrytimeoutms": "0"} | options
        reader = RocketMQDataSource(given).streamReader(SCHEMA)
        assert isinstance(reader, StreamReader)
        return reader

    return make


class Engine:
    """Spark's part: a log of offsets and one of commits; `run` is a trigger. What is read is kept by batch."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.committed = 0
        self.sink: dict[int, list[tuple[str, int]]] = {}

    def run(self, reader: StreamReader, *, die_before: str = "", limit: Any = None) -> bool:
        """Return False where there is no new data. `die_before` "read" or "commit" leaves off there."""
        if self.committed == len(self.offsets):
            start = self.offsets[-1] if self.offsets else json.dumps(reader.initialOffset())
            end = json.dumps(reader.latestOffset(json.loads(start), limit or reader.getDefaultReadLimit()))
            if self.offsets and end == start:
                return False
            self.offsets.append(end)
        batch = len(self.offsets) - 1
        start = self.offsets[batch - 1] if batch else json.dumps(reader.initialOffset())
        partitions = reader.partitions(json.loads(start), json.loads(self.offsets[batch]))
        if die_before == "read":
            return True
        self.sink[batch] = [
            (f"{partition.value.queue.queue_id}", offset)
            for partition in partitions
            for record_batch in reader.read(partition)
            for offset in record_batch.column(0).to_pylist()
        ]
        if die_before != "commit":
            self.committed = batch + 1
        return True

    def drain(self, reader: StreamReader) -> None:
        while self.run(reader):
            pass

    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.sink.values() for row in rows)


def rows(a0: range, a1: range) -> list[tuple[str, int]]:
    return [("0", n) for n in a0] + [("1", n) for n in a1]


def test_everything_from_the_earliest_once(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest")
    engine.drain(reader)
    log.add(A0, 5)
    engine.drain(reader)
    assert engine.rows() == rows(range(15), range(4))
    assert not engine.run(reader)


def test_the_first_batch_reads_nothing_and_writes_the_start_down(make: Make) -> None:
    engine = Engine()
    engine.run(make(startingoffsets="earliest"))
    assert engine.sink == {0: []}
    assert json.loads(engine.offsets[0]) == {"orders": {"a": {"0": 0, "1": 0}}}


@pytest.mark.parametrize("die_before", ["read", "commit"])
def test_a_restart_in_the_first_batch_starts_where_the_query_did(log: FakeLog, make: Make, die_before: str) -> None:
    engine = Engine()
    engine.run(make(), die_before=die_before)
    log.add(A0, 5)
    engine.drain(make())
    assert engine.rows() == rows(range(10, 15), range(0))


def test_a_restart_in_the_first_batch_goes_on_in_the_same_run(make: Make) -> None:
    # With AvailableNow a trigger without data ends the query: the first one after the replay must find it.
    engine = Engine()
    engine.run(make(startingoffsets="earliest"), die_before="commit")
    engine.drain(make(startingoffsets="earliest"))
    assert engine.rows() == rows(range(10), range(4))


def test_the_start_stays_the_same_while_messages_come_in(log: FakeLog, make: Make) -> None:
    reader = make()
    first = reader.initialOffset()
    log.add(A0, 5)
    assert reader.initialOffset() == first
    assert first["orders"] == {"a": {"0": 10, "1": 4}}


@pytest.mark.parametrize("die_before", ["read", "commit"])
def test_a_restart_in_a_later_batch_repeats_that_batch_as_it_was(log: FakeLog, make: Make, die_before: str) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest")
    engine.drain(reader)
    log.add(A1, 3)
    engine.run(reader, die_before=die_before)
    log.add(A1, 3)
    engine.drain(make(startingoffsets="earliest"))
    assert engine.rows() == rows(range(10), range(10))
    assert engine.sink[2] == [("1", n) for n in range(4, 7)]


def test_nothing_new_is_the_same_offset(make: Make) -> None:
    reader = make()
    start = {"orders": {"a": {"0": 10, "1": 4}}}
    assert reader.latestOffset(start, ReadAllAvailable()) is start


def test_a_limit_spreads_the_backlog_over_batches(make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest", maxoffsetspertrigger="7")
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    engine.drain(reader)
    assert engine.rows() == rows(range(10), range(4))
    assert max(len(found) for found in engine.sink.values()) == 7


def test_a_batch_takes_about_as_many_bytes_as_it_may(log: FakeLog, make: Make) -> None:
    log.records.clear()
    log.add(A0, 10, b"x" * 1000)
    log.add(A1, 10)
    engine, reader = Engine(), make(startingoffsets="earliest", maxbytespertrigger="6000")
    engine.drain(reader)
    assert engine.rows() == rows(range(10), range(10))
    sizes = [len(engine.sink[n]) for n in sorted(engine.sink)]
    assert sizes[0] == 0
    assert all(8 <= size <= 10 for size in sizes[1:-1]), sizes


def test_a_batch_of_few_bytes_takes_one_message_of_each_queue_at_least(make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest", maxbytespertrigger="1")
    engine.drain(reader)
    assert max(map(len, engine.sink.values())) == 2
    assert engine.rows() == rows(range(10), range(4))


def test_a_trigger_waits_for_enough_messages_but_not_for_ever(
    log: FakeLog, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reader = make(minoffsetspertrigger="5", maxtriggerdelay="90s")
    start = reader.initialOffset()
    assert reader.latestOffset(start) == start
    reader.partitions(start, start)
    log.add(A0, 4)
    assert reader.latestOffset(start) == start
    log.add(A1, 1)
    end = reader.latestOffset(start)
    assert end["orders"]["a"] == {"0": 14, "1": 5}
    log.add(A1, 1)
    now += 89
    assert reader.latestOffset(end) == end
    now += 1
    last = reader.latestOffset(end)
    assert last["orders"]["a"] == {"0": 14, "1": 6}
    log.add(A1, 1)
    assert reader.latestOffset(last) == last
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(last) != last


def test_a_run_of_what_is_available_ends_where_it_began(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    log.add(A0, 5)
    log.add(MessageQueue("orders", "a", 2), 3)
    engine.drain(reader)
    assert engine.rows() == rows(range(10), range(4))
    again = make(startingoffsets="earliest")
    again.prepareForTriggerAvailableNow()
    engine.drain(again)
    assert engine.rows() == rows(range(15), range(4)) + [("2", n) for n in range(3)]


def test_a_new_queue_is_read_from_its_beginning_over_a_restart(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make()
    engine.drain(reader)
    log.add(MessageQueue("orders", "a", 2), 3)
    engine.run(reader, die_before="commit")
    log.add(MessageQueue("orders", "a", 2), 2)
    engine.drain(make())
    assert engine.rows() == [("2", n) for n in range(5)]


def test_a_broker_that_is_away_holds_up_only_its_own_queues(
    log: FakeLog, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    log.add(B0, 2)
    engine, reader = Engine(), make()
    engine.drain(reader)
    log.add(B0, 2)
    log.add(A0, 1)
    log.down.add("b")
    engine.drain(reader)
    assert engine.rows() == [("0", 10)]
    log.down.clear()
    engine.drain(reader)
    engine.drain(reader)
    assert caplog.messages == [NOT_READ + "orders on b: 1", "all queues are read again"]
    assert engine.rows() == [("0", 2), ("0", 3), ("0", 10)]


@pytest.mark.parametrize("going_on", ["true", "false"])
def test_queues_of_a_broker_that_the_name_server_forgot_are_told_once(
    log: FakeLog, make: Make, caplog: pytest.LogCaptureFixture, going_on: str
) -> None:
    log.add(B0, 2)
    engine, reader = Engine(), make(failondataloss=going_on)
    engine.drain(reader)
    away = log.records.pop(B0)
    for _ in range(2):
        log.add(A0, 1)
        engine.run(reader)
    log.records[B0] = away
    log.add(B0, 1)
    engine.drain(reader)
    assert caplog.messages == [NOT_READ + "orders on b: 1", "all queues are read again"]
    assert engine.rows() == [("0", 2), ("0", 10), ("0", 11)]


def test_a_topic_that_is_deleted_ends_a_query_unless_it_goes_on(
    log: FakeLog, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    bills = MessageQueue("bills", "a", 0)
    log.add(bills, 3)
    engine = Engine()
    engine.drain(make(topic="orders,bills"))
    deleted = log.records.pop(bills)
    log.add(A0, 1)
    with pytest.raises(TopicNotFound, match="No route info of this topic: bills"):
        engine.run(make(topic="orders,bills"))
    reader = make(topic="orders,bills", failondataloss="false")
    with pytest.raises(TopicNotFound):  # a new query reads it: its name may be wrong
        reader.initialOffset()
    engine.drain(reader)
    reader = make(topic="orders,bills", failondataloss="false")
    reader.prepareForTriggerAvailableNow()
    log.add(A0, 1)
    engine.drain(reader)
    assert engine.rows() == [("0", 10)]
    assert set(caplog.messages) == {NOT_READ + "bills on a: 1"}
    log.records[bills] = deleted
    log.add(bills, 1)
    engine.drain(make(topic="orders,bills"))
    assert engine.rows() == [("0", 3), ("0", 10), ("0", 11)]


def test_a_run_of_what_is_available_waits_for_a_broker_that_was_read_before(
    log: FakeLog, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log.add(B0, 2)
    engine = Engine()
    engine.drain(make())
    log.add(B0, 3)
    log.add(A0, 1)
    away, pauses = log.records.pop(B0), list[float]()

    def run(**options: str) -> None:
        reader = make(**options)
        reader.prepareForTriggerAvailableNow()
        log.add(A0, 1)  # what comes later is not read
        engine.drain(reader)

    with pytest.raises(NotReadable, match="expected brokers are not registered with the name servers: b; these are: a"):
        run()
    # Where a new query would start does not matter now.
    run(failondataloss="false", startingoffsets='{"orders":{"b":{"0":0}}}')
    assert engine.rows() == [("0", 10), ("0", 11)]
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "this run reads without brokers that were read before",
        NOT_READ.partition(":")[0],
    ]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            log.records[B0] = away

    replace_sleep(monkeypatch, sleep)
    run(retrytimeoutms="60000")
    assert len(pauses) == 3
    assert engine.rows() == [("0", 2), ("0", 3), ("0", 4), ("0", 10), ("0", 11), ("0", 12)]


@pytest.mark.parametrize("starts", ['{"orders":{"b":{"0":1}}}', "earliest"])
def test_a_new_run_of_what_is_available_waits_for_brokers_that_are_named_or_for_any(
    log: FakeLog, make: Make, monkeypatch: pytest.MonkeyPatch, starts: str
) -> None:
    log.add(B0, 5)
    pauses, before = list[float](), log.records
    log.records = {} if starts == "earliest" else {A0: before[A0]}

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            log.records = before

    replace_sleep(monkeypatch, sleep)
    engine, reader = Engine(), make(retrytimeoutms="60000", startingoffsets=starts)
    reader.prepareForTriggerAvailableNow()
    engine.drain(reader)
    assert len(pauses) == 3
    assert set(engine.rows()) >= {("0", n) for n in range(1, 5)}


def test_a_truncated_queue_fails_the_query(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make()
    engine.drain(reader)
    del log.records[A0][5:]
    with pytest.raises(DataLoss, match=r"CUT_SHORT.*read up to 10, it ends at 5"):
        engine.run(reader)


def test_messages_deleted_before_they_were_read_fail_the_query(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest")
    engine.run(reader)
    log.first[A0] = 3
    with pytest.raises(DataLoss, match="AGED_OUT"):
        engine.run(reader)


A2 = MessageQueue("orders", "a", 2)


def going_on(make: Make, folder: Path | None = None) -> StreamReader:
    return make(startingoffsets="earliest", failondataloss="false", **({"datalossto": str(folder)} if folder else {}))


def lost(folder: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=lambda row: row["queueId"])


def test_a_query_can_go_on_after_retention_has_passed_it_by_an_option_at_its_restart(
    log: FakeLog, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    engine.run(make(startingoffsets="earliest"))
    log.first[A0] = 3
    with pytest.raises(DataLoss, match=r"AGED_OUT.*start the query again with failOnDataLoss=false; a stream keeps"):
        engine.run(make(startingoffsets="earliest"))
    engine.drain(going_on(make, tmp_path / "lost"))
    assert engine.rows() == rows(range(3, 10), range(4))
    assert len(caplog.messages) == 1
    assert "skipped: topic orders, broker a, queue 0, from 0 to 3, 3 messages: AGED_OUT" in caplog.messages[0]
    (row,) = lost(tmp_path / "lost")
    del row["details"], row["noticedAt"]
    assert row == {
        "topic": "orders", "brokerName": "a", "queueId": 0, "fromOffset": 0, "toOffset": 3, "count": 3,
        "kind": "AGED_OUT",
    }  # fmt: skip
    assert json.loads(engine.offsets[-1])["#skipped"] == {"orders": {"a": {"0": 3}}}


@pytest.mark.parametrize("die_before", ["read", "commit"])
def test_a_batch_that_skipped_is_repeated_as_it_was(log: FakeLog, make: Make, die_before: str) -> None:
    engine = Engine()
    engine.run(going_on(make))
    log.first[A0] = 3
    engine.run(going_on(make), die_before=die_before)
    log.add(A0, 2)
    engine.drain(going_on(make))
    assert engine.rows() == rows(range(3, 12), range(4))


def test_a_repeated_batch_begins_behind_what_it_skipped() -> None:
    end = StreamOffset({A0: 10}, resumed={A0: 3})
    assert [(each.start, each.end) for each in plan(StreamOffset({A0: 0}), end, None)] == [(3, 10)]


def test_messages_deleted_between_the_plan_and_the_read_are_skipped(log: FakeLog, make: Make, tmp_path: Path) -> None:
    engine = Engine()
    engine.run(going_on(make))
    engine.run(going_on(make), die_before="read")
    log.first[A0] = 6
    engine.drain(going_on(make, tmp_path))
    assert engine.rows() == rows(range(6, 10), range(4))
    assert [(row["fromOffset"], row["toOffset"]) for row in lost(tmp_path)] == [(0, 6)]


def test_a_topic_made_again_is_read_from_its_first_message(log: FakeLog, make: Make, tmp_path: Path) -> None:
    engine, reader = Engine(), going_on(make, tmp_path)
    engine.drain(reader)
    log.make_again(A0, 6)
    engine.drain(reader)
    assert engine.sink[2] == [("0", n) for n in range(6)]
    assert [(row["kind"], row["fromOffset"], row["count"]) for row in lost(tmp_path)] == [("CUT_SHORT", None, None)]


@pytest.mark.parametrize("count", [11, 25])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_topic_made_again_that_has_passed_the_old_offsets_is_noticed(
    log: FakeLog, make: Make, count: int, is_restarted: bool
) -> None:
    engine, reader = Engine(), going_on(make)
    engine.drain(reader)
    log.make_again(A0, count)
    with pytest.raises(DataLoss, match=r"RECREATED.*read up to 10; the message before was"):
        engine.run(make(startingoffsets="earliest"))
    engine.drain(going_on(make) if is_restarted else reader)
    assert engine.sink[2] == [("0", n) for n in range(count)]


def test_a_topic_made_again_just_as_long_is_noticed_at_a_restart(log: FakeLog, make: Make) -> None:
    engine = Engine()
    engine.drain(going_on(make))
    log.make_again(A0, 10)
    engine.drain(going_on(make))
    assert engine.sink[2] == [("0", n) for n in range(10)]


def test_a_topic_made_again_between_the_plan_and_the_read_is_noticed(log: FakeLog, make: Make) -> None:
    engine = Engine()
    engine.run(going_on(make))
    engine.run(going_on(make), die_before="read")
    log.make_again(A0, 10)
    with pytest.raises(DataLoss, match="RECREATED"):
        engine.run(make(startingoffsets="earliest"))


@pytest.mark.parametrize("answer", [Unreachable("restarting"), Refused(1, "AclException: no")])
def test_a_batch_that_was_planned_without_the_marks_of_its_last_messages_is_no_loss(
    log: FakeLog, make: Make, answer: MQError
) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest", maxoffsetspertrigger="4")
    engine.run(reader)
    engine.run(reader)
    # Planning a batch pulls its last messages; reading it answers again.
    log.faults.append(lambda want: answer if want[2] == 1 else None)
    engine.run(reader, die_before="read")
    log.faults.clear()
    engine.drain(make(startingoffsets="earliest"))
    assert engine.rows() == rows(range(10), range(4))


def test_a_checkpoint_of_an_earlier_version_goes_on(log: FakeLog, make: Make) -> None:
    engine = Engine()
    engine.offsets, engine.committed = ['{"orders": {"a": {"0": 4, "1": 4}}}'], 1
    engine.drain(make())
    assert engine.rows() == rows(range(4, 10), range(0))


def test_queues_that_vanished_keep_their_place_and_are_told_once(
    log: FakeLog, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    engine, reader = Engine(), going_on(make)
    engine.drain(reader)
    away = log.records.pop(A1)
    log.add(A0, 1)
    engine.drain(reader)
    log.add(A0, 1)
    engine.drain(reader)
    assert sum("QUEUE_GONE" in message for message in caplog.messages) == 1
    log.records[A1] = away
    log.add(A1, 1)
    engine.drain(reader)
    assert engine.rows() == rows(range(12), range(5))


def test_an_offset_says_about_how_many_bytes_were_planned(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make(startingOffsets="earliest")
    engine.drain(reader)
    first = sum(len(record) for records in log.records.values() for record in records)
    assert json.loads(engine.offsets[-1])["#bytes"] == first
    log.add(A0, 3, b"x" * 100)
    engine.drain(make())
    assert json.loads(engine.offsets[-1])["#bytes"] == first + 3 * len(log.records[A0][-1])


def test_exactly_the_message_that_does_not_decode_is_skipped(log: FakeLog, make: Make, tmp_path: Path) -> None:
    log.add(A2, 1000)
    for bad in (0, 500, 501, 999):
        data = bytearray(log.records[A2][bad])
        data[data.index(b"body")] ^= 1
        log.records[A2][bad] = bytes(data)
    engine = Engine()
    with pytest.raises(DataLoss, match=r"CORRUPT: topic orders, broker a, queue 2.*offset 0 does not have its CRC"):
        engine.drain(make(startingoffsets="earliest"))
    engine.drain(going_on(make, tmp_path))
    good = [n for n in range(1000) if n not in (0, 500, 501, 999)]
    assert engine.rows() == rows(range(10), range(4)) + [("2", n) for n in good]
    assert sorted((row["fromOffset"], row["toOffset"]) for row in lost(tmp_path)) == [
        (0, 1), (500, 501), (501, 502), (999, 1000),
    ]  # fmt: skip


def test_a_queue_can_be_read_by_several_tasks(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest", maxrecordsperpartition="3", minpartitions="9")
    engine.run(reader)
    engine.run(reader)
    assert len(reader.partitions(json.loads(engine.offsets[0]), json.loads(engine.offsets[1]))) >= 9
    assert engine.rows() == rows(range(10), range(4))


def test_a_batch_goes_on_at_what_is_left(log: FakeLog, tmp_path: Path) -> None:
    log.first[A0] = 3
    given = {
        "nameserver": "here:1", "topic": "orders", "failondataloss": "false", "datalossto": str(tmp_path),
        "startingoffsets": '{"orders":{"a":{"0":1}}}', "retrytimeoutms": "0",
    }  # fmt: skip
    reader = RocketMQDataSource(given).reader(SCHEMA)
    assert [partition.value.start for partition in reader.partitions()] == [3, 0]
    assert [(row["fromOffset"], row["toOffset"]) for row in lost(tmp_path)] == [(1, 3)]


@pytest.mark.parametrize("starts", ['{"orders":{"a":{"0":1}}}', "earliest"])
def test_a_batch_that_ends_before_what_is_left_reads_nothing_of_that_queue(
    log: FakeLog, tmp_path: Path, starts: str
) -> None:
    log.first[A0] = 6
    given = {
        "nameserver": "here:1", "topic": "orders", "startingoffsets": starts, "retrytimeoutms": "0",
        "endingoffsets": '{"orders":{"a":{"0":4}}}',
    }  # fmt: skip
    with pytest.raises(DataLoss, match=r"AGED_OUT.*queue 0.*(starting|ending)Offsets says \d, the first one left is 6"):
        RocketMQDataSource(given).reader(SCHEMA).partitions()
    given |= {"failondataloss": "false", "datalossto": str(tmp_path)}
    reader = RocketMQDataSource(given).reader(SCHEMA)
    assert [(part.value.queue, part.value.start, part.value.end) for part in reader.partitions()] == [(A1, 0, 4)]
    first, count = (1, 3) if starts != "earliest" else (None, None)
    assert [(row["fromOffset"], row["toOffset"], row["count"]) for row in lost(tmp_path)] == [(first, 4, count)]


def test_a_directory_for_losses_that_cannot_be_written_fails_the_query(log: FakeLog, make: Make) -> None:
    engine = Engine()
    engine.run(going_on(make))
    log.first[A0] = 3
    with pytest.raises(BadOption, match="option dataLossTo: /dev/null/lost: Not a directory"):
        engine.run(going_on(make, Path("/dev/null/lost")))


def test_the_progress_shows_the_ends(make: Make) -> None:
    reader = make(startingoffsets="earliest", maxoffsetspertrigger="2")
    assert reader.reportLatestOffset() is None
    # From 4.2 on the first batch has no rows, and is behind by all there is.
    reader.initialOffset()
    assert reader.reportLatestOffset() == {"orders": {"a": {"0": 10, "1": 4}}}
    Engine().drain(reader)
    assert reader.reportLatestOffset() == {"orders": {"a": {"0": 10, "1": 4}}}


class OldEngine(Engine):
    """Spark before 4.2: it asks for an end without saying where the query stands, after it has asked a reader that is
    new for the partitions between the last offset of its log and the same one."""

    def __init__(self) -> None:
        super().__init__()
        self._reader: StreamReader | None = None

    def run(self, reader: StreamReader, *, die_before: str = "", limit: Any = None) -> bool:
        if reader is not self._reader and self.offsets:
            assert reader.partitions(json.loads(self.offsets[-1]), json.loads(self.offsets[-1])) == []
        self._reader = reader
        if self.committed == len(self.offsets):
            end = json.dumps(reader.latestOffset())
            if self.offsets and end == self.offsets[-1]:
                return False
            self.offsets.append(end)
        super().run(reader, die_before=die_before)
        return True


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> OldEngine:
    monkeypatch.setattr(api, "TELLS_START", False)
    return OldEngine()


def test_an_older_spark_reads_in_its_first_batch(log: FakeLog, make: Make, old: OldEngine) -> None:
    old.run(make(startingoffsets="earliest"))
    assert old.rows() == rows(range(10), range(4))
    log.add(A0, 5)
    old.run(make(startingoffsets="earliest"))
    assert old.rows() == rows(range(15), range(4))
    assert not old.run(make(startingoffsets="earliest"))


@pytest.mark.parametrize("die_before", ["read", "commit"])
@pytest.mark.parametrize(
    ("start", "expected"),
    [("latest", rows(range(10, 20), range(0))), ('{"orders":{"a":{"0":2,"1":-1}}}', rows(range(2, 20), range(0)))],
)
def test_an_older_spark_that_starts_at_the_end_writes_the_start_down(
    log: FakeLog, make: Make, old: OldEngine, die_before: str, start: str, expected: Any
) -> None:
    old.run(make(startingoffsets=start), die_before=die_before)
    assert old.rows() == []
    log.add(A0, 5)
    old.run(make(startingoffsets=start))
    old.drain(make(startingoffsets=start))
    log.add(A0, 5)
    reader = make(startingoffsets=start)
    old.run(reader, die_before=die_before)
    old.drain(make(startingoffsets=start))
    assert old.rows() == expected


@pytest.mark.parametrize("die_before", ["read", "commit"])
def test_an_older_spark_repeats_its_first_batch(log: FakeLog, make: Make, old: OldEngine, die_before: str) -> None:
    old.run(make(startingoffsets="earliest", maxoffsetspertrigger="7"), die_before=die_before)
    log.add(A0, 5)
    reader = make(startingoffsets="earliest", maxoffsetspertrigger="7")
    old.drain(reader)
    assert old.rows() == rows(range(15), range(4))
    assert [len(some) for some in old.sink.values()] == [7, 7, 5]


def test_an_older_spark_is_told_what_a_limit_leaves(log: FakeLog, make: Make, old: OldEngine) -> None:
    reader = make(startingoffsets="earliest", maxoffsetspertrigger="7")
    old.run(reader)
    log.add(A1, 3)
    old.run(reader)
    old.drain(reader)
    left = [sum(StreamOffset.from_json(json.loads(text)).left.values()) for text in old.offsets]
    # Of 14, and then of 10 messages.
    assert left == [7, 3, 0]
    assert old.rows() == rows(range(10), range(7))


def test_a_spark_that_asks_for_the_ends_is_not_told_again(log: FakeLog, make: Make) -> None:
    engine, reader = Engine(), make(startingoffsets="earliest", maxoffsetspertrigger="7")
    engine.drain(reader)
    assert not any(StreamOffset.from_json(json.loads(text)).left for text in engine.offsets)


def test_an_older_spark_that_repeats_its_first_batch_waits_for_brokers_of_it(
    log: FakeLog, make: Make, old: OldEngine
) -> None:
    of_b = MessageQueue("orders", "b", 0)
    log.add(of_b, 3)
    old.run(make(startingoffsets="earliest"), die_before="commit")
    found = log.records.pop(of_b)
    with pytest.raises(NotReadable, match="expected brokers are not registered with the name servers: b"):
        old.run(make(startingoffsets="earliest"))
    log.records[of_b] = found
    old.drain(make(startingoffsets="earliest"))
    assert len(old.rows()) == 17


def test_an_older_spark_reads_queues_that_appear_before_its_first_batch_ends(
    log: FakeLog, make: Make, old: OldEngine
) -> None:
    reader = make(startingoffsets="earliest")
    reader.initialOffset()
    added = MessageQueue("orders", "a", 2)
    log.add(added, 3)
    end = reader.latestOffset()
    assert end["orders"]["a"] == {"0": 10, "1": 4, "2": 0}
    # As an earlier version wrote it, or a restart at which the queue is not known yet.
    end["orders"]["a"]["2"] = 3
    ranges = [part.value for part in reader.partitions(reader.initialOffset(), end)]
    assert [(each.queue.queue_id, each.start, each.end) for each in ranges] == [(0, 0, 10), (1, 0, 4), (2, 0, 3)]


def test_a_batch_reads_what_is_there(log: FakeLog) -> None:
    given = {"nameserver": "here:1", "topic": "orders", "endingoffsets": '{"orders":{"a":{"0":3}}}'}
    reader = RocketMQDataSource(given).reader(SCHEMA)
    found = [
        (str(partition.value.queue.queue_id), offset)
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for offset in batch.column(0).to_pylist()
    ]
    assert found == rows(range(3), range(4))


def test_a_batch_of_nothing_has_no_partitions_and_spark_asks_for_one(log: FakeLog) -> None:
    given = {"nameserver": "here:1", "topic": "orders", "startingoffsets": "latest"}
    reader = RocketMQDataSource(given).reader(SCHEMA)
    assert reader.partitions() == []
    from pyspark.sql.datasource import InputPartition

    assert list(reader.read(InputPartition(None))) == []


def test_mistakes_are_found_before_anything_is_asked() -> None:
    with pytest.raises(BadOption, match="startingOffsets"):
        RocketMQDataSource({"nameserver": "here:1", "topic": "t", "startingoffset": "latest"}).schema()
    with pytest.raises(BadSchema, match="column body: its type is binary"):
        RocketMQDataSource({"nameserver": "here:1", "topic": "t"}).reader(StructType().add("body", StringType()))


@pytest.mark.parametrize(
    "method", [lambda source: source.schema(), lambda s: s.reader(SCHEMA), lambda s: s.streamReader(SCHEMA)]
)
def test_the_traceback_of_a_mistake_is_short(method: Callable[[RocketMQDataSource], object]) -> None:
    with pytest.raises(BadOption) as caught:
        method(RocketMQDataSource({"nameserver": "here", "topic": "t"}))
    assert [frame.path.name for frame in caught.traceback if "mqbroker/spark" in str(frame.path)] == ["source.py"]
    assert caught.value.__suppress_context__


def test_readers_can_be_pickled(make: Make) -> None:
    reader = pickle.loads(pickle.dumps(make(startingoffsets="earliest")))
    assert reader.initialOffset() == {"orders": {"a": {"0": 0, "1": 0}}}


def test_workers_load_neither_twisted_nor_at_the_look_up_arrow() -> None:
    script = (
        "import sys, pyspark_rocketmq; assert pyspark_rocketmq.DefaultSource.name() == 'rocketmq';"
        "print([m for m in ('numpy', 'pyarrow', 'twisted', 'asyncio') if m in sys.modules]);"
        "import mqbroker.spark.decode, mqbroker.spark.reading; print('twisted' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]


def test_the_traceback_of_an_error_at_a_trigger_or_in_a_worker_is_short(log: FakeLog, make: Make) -> None:
    reader = make(startingoffsets="earliest")
    start = reader.initialOffset()
    reader.partitions(start, start)
    (part, _) = reader.partitions(start, reader.latestOffset(start))
    log.first[A0] = 4
    for fails in (lambda: reader.latestOffset(start), lambda: list(reader.read(part))):
        with pytest.raises(DataLoss, match="AGED_OUT") as caught:
            fails()
        assert len(traceback.extract_tb(caught.value.__traceback__)) <= 4
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_a_package_that_a_worker_lacks_is_named_with_its_python(
    log: FakeLog, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make(startingoffsets="earliest")
    start = reader.initialOffset()
    reader.partitions(start, start)
    (part, _) = reader.partitions(start, reader.latestOffset(start))
    for module in ("mqbroker.spark.decode", "mqbroker.spark.rows"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    why = f"the Python of the executors ({sys.executable}) cannot import pyarrow: install it there with `pip install"
    with pytest.raises(NotOnExecutors, match=re.escape(why)):
        list(reader.read(part))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_name_server_that_does_not_listen_is_told_within_3_seconds(is_stream: bool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        given = {"nameServer": f"127.0.0.1:{unused.getsockname()[1]}", "topic": "orders"}
        source_of = RocketMQDataSource(given)
        asks = source_of.streamReader(SCHEMA).initialOffset if is_stream else source_of.reader(SCHEMA).partitions
        began = time.monotonic()
        with pytest.raises(NameServerUnreachable, match="Check the address"):
            asks()
        assert time.monotonic() - began < 3
