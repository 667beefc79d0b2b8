"""Half messages and their ends: nobody sees one before it is committed, and each is settled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqbroker.broker.requests import end_transaction
from mqbroker.broker.transactions.half_message import committed, put_back
from mqbroker.errors import RecordTooLarge, StoreError, StoreUnwritable
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG
from mqbroker.wire.record import NewMessage, RawRecord, decode_raw, encode_host
from tests.broker.bench import HOST, STORE_HOST, Bench
from tests.broker.transacting import (
    COMMIT,
    HALF,
    OP,
    ROLLBACK,
    UNKNOWN,
    Transactor,
    bodies,
    end_command,
    round_of_checks,
)
from tests.fakes import SteppedWorker
from tests.remoting.logs import log_kept
from tests.store.harness import now


@pytest.fixture
def producer(bench: Bench) -> Transactor:
    bench.client().send(queue_id=1, body=b"plain")  # makes the topic
    return Transactor(bench)


def test_a_half_message_waits_where_the_java_broker_puts_it(bench: Bench, producer: Transactor) -> None:
    half = producer.half(
        b"one", properties={"TAGS": "a", "WAIT": "true", "REAL_TOPIC": "liar", "REAL_QID": "77"}, flag=5
    )
    (record,) = bench.records(HALF)
    assert (record.queue_id, record.queue_offset, record.body, record.flag) == (0, 0, b"one", 5)
    assert record.sys_flag == 0
    assert record.properties == {
        "UNIQ_KEY": "one", "TRAN_MSG": "true", "PGROUP": "PG", "TAGS": "a", "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "T", "REAL_QID": "1", "WAIT": "true",
    }  # fmt: skip
    assert (half.offset, half.physical_offset) == (0, record.physical_offset)
    assert bodies(bench, "T", 1) == [b"plain"]


def test_a_committed_message_comes_to_its_topic(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one", properties={"TAGS": "a"}, flag=5)
    assert producer.commit(half).code == ResponseCode.SUCCESS
    record = bench.records("T", 1)[-1]
    assert (record.body, record.flag, record.sys_flag, record.prepared_offset) == (b"one", 5, 8, half.physical_offset)
    assert record.born_timestamp == bench.records(HALF)[0].born_timestamp
    assert record.properties == bench.records(HALF)[0].properties
    (entry,) = bench.records(OP)
    assert (entry.body, entry.queue_id, entry.properties["TAGS"], entry.sys_flag) == (b"0", 0, "d", 0)
    assert encode_host(entry.born_host) == STORE_HOST


def test_a_rolled_back_message_comes_to_nobody(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one")
    assert producer.end(half, ROLLBACK).code == ResponseCode.SUCCESS
    assert bodies(bench, "T", 1) == [b"plain"]
    assert bodies(bench, OP) == [b"0"]


def test_what_its_producer_does_not_know_stays(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one")
    assert producer.end(half, UNKNOWN).code == ResponseCode.SUCCESS
    assert producer.end(half, UNKNOWN, from_transaction_check=True).code == ResponseCode.SUCCESS
    assert bodies(bench, OP) == []
    producer.commit(half)
    assert bodies(bench, "T", 1) == [b"plain", b"one"]


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_the_first_end_counts(bench: Bench, producer: Transactor, first: int, second: int) -> None:
    half = producer.half(b"one")
    producer.end(half, first)
    assert producer.end(half, second).code == ResponseCode.SUCCESS
    assert bodies(bench, "T", 1) == [b"plain", b"one"][: 2 if first == COMMIT else 1]
    assert bodies(bench, OP) == [b"0"]


def test_ends_of_one_read_are_stored_together_and_each_once(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [producer.half(b"%d" % n) for n in range(4)]
    appends = []
    append = bench.store.append
    monkeypatch.setattr(bench.store, "append", lambda messages: appends.append(len(messages)) or append(messages))
    ends = [COMMIT, ROLLBACK, COMMIT, COMMIT, COMMIT]
    commands = [end_command(half, end) for half, end in zip([*halves, halves[0]], ends, strict=True)]
    answers = producer.client.ask_all(*commands)
    assert [answer.code for answer in answers] == [0] * 5
    assert bodies(bench, "T", 1) == [b"plain", b"0", b"2", b"3"]
    assert appends == [7]
    settled = bench.parts.half_queue.settled
    assert (settled.progress, settled.op_progress, settled.next_op) == (4, 4, 4)


def test_ends_as_most_are_take_no_closer_look(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [producer.half(b"%d" % n) for n in range(4)]
    bench.store.dispatch_now()
    looks = []
    get = bench.store.get
    monkeypatch.setattr(bench.store, "get", lambda *args: looks.append(args[2]) or get(*args))
    ends = [end_command(half, end) for half, end in zip(halves, [COMMIT, ROLLBACK] * 2, strict=True)]
    assert [answer.code for answer in producer.client.ask_all(*ends)] == [0] * 4
    assert looks == []
    producer.commit(halves[1])
    assert looks == [1]
    assert bodies(bench, "T", 1) == [b"plain", b"0", b"2"]


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("unusual", [0, 1, None])
def test_of_two_ends_in_one_read_the_first_counts(
    bench: Bench, producer: Transactor, first: int, unusual: int | None
) -> None:
    half = producer.half(b"one")
    commands = [end_command(half, end) for end in (first, COMMIT + ROLLBACK - first)]
    if unusual is not None:
        commands[unusual].ext_fields["tranStateTableOffset"] = "+0"  # a number all the same
    answers = producer.client.ask_all(*commands)
    assert [answer.code for answer in answers] == [0, 0]
    assert bodies(bench, "T", 1) == [b"plain", b"one"][: 2 if first == COMMIT else 1]
    assert bodies(bench, OP) == [b"0"]


@pytest.mark.parametrize(
    "fields",
    [
        {"commitOrRollback": None},
        {"commitOrRollback": "eight"},
        {"tranStateTableOffset": None},
        {"tranStateTableOffset": ""},
        {"tranStateTableOffset": "0_1"},
        {"tranStateTableOffset": " 1"},
        {"tranStateTableOffset": "\u0661"},  # a one, of other digits
        {"commitLogOffset": None},
        {"commitLogOffset": "\u00b2"},
        {"commitLogOffset": "9" * 5000},
        {"producerGroup": None},
        {"producerGroup": "\u00e9"},
        {"msgId": None},
    ],
)
def test_one_that_cannot_be_read_is_refused_and_holds_nobody_up(
    bench: Bench, producer: Transactor, fields: dict[str, Any]
) -> None:
    halves = [producer.half(b"%d" % n) for n in range(3)]
    commands = [end_command(half, COMMIT) for half in halves]
    for name, value in fields.items():
        del commands[1].ext_fields[name]
        if value is not None:
            commands[1].ext_fields[name] = value
    answers = producer.client.ask_all(*commands)
    assert {answer.opaque: answer.code for answer in answers} == {
        command.opaque: int(command is commands[1]) for command in commands
    }
    assert bodies(bench, "T", 1) == [b"plain", b"0", b"2"]


def test_what_one_read_brings_is_stored_in_bounded_parts(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_transaction, "GATHERED_BYTES_MAX", 1000)
    halves = [producer.half(b"%d" % n * 300) for n in range(9)]
    appends = []
    append = bench.store.append
    monkeypatch.setattr(bench.store, "append", lambda messages: appends.append(len(messages)) or append(messages))
    answers = producer.client.ask_all(*[end_command(half, COMMIT) for half in halves])
    assert [answer.code for answer in answers] == [0] * 9
    assert appends == [4, 4, 4, 4, 2]
    assert bodies(bench, "T", 1) == [b"plain", *[b"%d" % n * 300 for n in range(9)]]


def test_a_oneway_end_is_not_answered(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one")
    command = end_command(half, COMMIT)
    command.flag |= ONEWAY_FLAG
    assert producer.client.ask_all(command) == []
    assert bodies(bench, "T", 1) == [b"plain", b"one"]


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 1}, "The transaction state table offset wrong"),
        ({"tran_state_table_offset": -1}, "The transaction state table offset wrong"),
        ({"tran_state_table_offset": 2**62}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 0}, "Find prepared transaction message failed"),  # a message, but no half one
        ({"commit_log_offset": 7}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 2**62}, "Find prepared transaction message failed"),
        ({"commit_or_rollback": 4}, "commitOrRollback field wrong"),
    ],
)
def test_what_is_not_true_of_it_is_refused(
    bench: Bench, producer: Transactor, fields: dict[str, Any], remark: str
) -> None:
    half = producer.half(b"one")
    producer.half(b"another")
    answer = producer.commit(half, **fields)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert bodies(bench, OP) == []
    assert bodies(bench, "T", 1) == [b"plain"]


def test_the_offset_of_another_half_message_in_the_log_is_refused(bench: Bench, producer: Transactor) -> None:
    half, other = producer.half(b"one"), producer.half(b"another")
    answer = producer.commit(half, commit_log_offset=other.physical_offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bodies(bench, OP) == []


@pytest.mark.parametrize("offset", [0, 1])
def test_a_record_inside_of_a_body_is_no_half_message(bench: Bench, producer: Transactor, offset: int) -> None:
    """Who knows where its message will stand could write one there."""
    whole = producer.half(b"one")
    size = bench.records(HALF)[0].store_size
    inside = bench.store.log_end + 88
    forged = bytearray(now(bench.store).record(whole.physical_offset))
    forged[20:36] = offset.to_bytes(8, "big") + inside.to_bytes(8, "big")
    producer.client.send(body=bytes(forged), queue_id=1)
    assert len(now(bench.store).record(inside)) == size
    answer = producer.commit(whole, tran_state_table_offset=offset, commit_log_offset=inside)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bodies(bench, OP) == []


def test_a_half_message_names_its_group_where_its_producer_does_not(bench: Bench, producer: Transactor) -> None:
    producer.half(b"one", properties={"PGROUP": ""}, producer_group="of the header")
    assert bench.records(HALF)[0].properties["PGROUP"] == "of the header"


def test_a_delayed_one_waits_after_its_commit(bench: Bench, producer: Transactor) -> None:
    bench.parts.delay.start()
    half = producer.half(b"one", properties={"DELAY": "99"})
    producer.commit(half)
    (record,) = bench.records("SCHEDULE_TOPIC_XXXX", 17)
    assert (record.properties["DELAY"], record.properties["REAL_TOPIC"], record.sys_flag) == ("18", "T", 8)
    assert bodies(bench, "T", 1) == [b"plain"]
    bench.parts.delay.stop()


def test_nothing_is_settled_that_the_store_refuses(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = producer.half(b"one")

    def refuse(_messages: Sequence[NewMessage]) -> None:
        raise StoreUnwritable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "append", refuse)
        answers = producer.client.ask_all(*[end_command(half, end) for end in (COMMIT, ROLLBACK)])
    assert [(answer.code, answer.remark) for answer in answers] == [
        (ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now. the disk is full")
    ] * 2
    producer.commit(half)
    assert bodies(bench, "T", 1) == [b"plain", b"one"]


def test_one_that_the_store_refuses_holds_nobody_up(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [producer.half(body) for body in (b"one", b"bad", b"two")]
    append = bench.store.append

    def refuse_one(messages: Sequence[NewMessage]) -> list[tuple[int, int, int, int]]:
        if any(message[8] == b"bad" for message in messages):
            raise RecordTooLarge("too large")
        return append(messages)

    monkeypatch.setattr(bench.store, "append", refuse_one)
    answers = producer.client.ask_all(*[end_command(half, COMMIT) for half in halves])
    assert [answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert bodies(bench, "T", 1) == [b"plain", b"one", b"two"]
    assert bodies(bench, OP) == [b"0", b"2"]


# --- over a restart


@pytest.fixture
def restart(bench: Bench, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Close the bench, and open another over its store."""
    opened: list[Any] = []

    def open_again(**changes: Any) -> Bench:
        (opened or [bench])[-1].close()
        opened.append(Bench(tmp_path / "store", **changes))
        return opened[-1]

    yield open_again
    if opened:
        bench.close = opened[-1].close


def test_what_was_settled_before_a_restart_is_settled_after_it(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench]
) -> None:
    first, second = producer.half(b"first"), producer.half(b"second")
    producer.commit(first)
    bench = restart()
    producer = Transactor(bench)
    producer.commit(first)
    producer.commit(second)
    assert bodies(bench, "T", 1) == [b"plain", b"first", b"second"]
    assert bench.parts.half_queue.settled.progress == 2


def raw_half(bench: Bench, offset: int) -> RawRecord:
    bench.store.dispatch_now()
    return decode_raw(b"".join(now(bench.store).get(HALF, 0, offset, 1).pieces))


@pytest.mark.parametrize("name", ["", "DELAY", "CHECK_IMMUNITY_TIME_IN_SECONDS"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_commit_goes_to_a_queue_that_consumers_read(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench], name: str, in_memory: bool
) -> None:
    """In Java it goes to the queue that the producer chose, whether that is read any more or not."""
    half = producer.half(b"one", queue_id=3, properties={name: "1"} if name else {})
    bench.topics.put(TopicConfig("T", 2, 2))
    if not in_memory:
        bench = restart()
        producer = Transactor(bench)
    bench.parts.delay.start()
    assert producer.commit(half).code == ResponseCode.SUCCESS
    bench.turn(2)
    assert [bodies(bench, "T", queue_id) for queue_id in range(4)] == [[], [b"plain", b"one"], [], []]
    bench.parts.delay.stop()


def test_a_delayed_commit_goes_to_its_level_whatever_queues_the_schedule_topic_has(
    bench: Bench, producer: Transactor
) -> None:
    bench.topics.put(TopicConfig("SCHEDULE_TOPIC_XXXX", 2, 2))
    producer.commit(producer.half(b"one", properties={"DELAY": "5"}))
    assert bodies(bench, "SCHEDULE_TOPIC_XXXX", 4) == [b"one"]


def test_a_message_committed_into_another_queue_without_its_op_message_is_not_stored_again(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench]
) -> None:
    half = producer.half(b"one", queue_id=3)
    message = committed(raw_half(bench, 0), 18)
    bench.topics.put(TopicConfig("T", 2, 2))
    bench.store.append([(message[0], 1, *message[2:])])
    bench = restart()
    assert bodies(bench, OP) == [b"0"]
    assert Transactor(bench).commit(half).code == ResponseCode.SUCCESS
    assert [bodies(bench, "T", queue_id) for queue_id in (1, 3)] == [[b"plain", b"one"], []]


@pytest.mark.parametrize("delay", ["", "3"])
def test_a_committed_message_without_its_op_message_is_not_stored_again(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench], delay: str
) -> None:
    """As where a log was cut, or a replica was elected, between the two."""
    halves = [producer.half(b"%d" % n, properties={"DELAY": delay} if delay else {}) for n in range(3)]
    topic, queue_id = ("SCHEDULE_TOPIC_XXXX", 2) if delay else ("T", 1)
    stored = bodies(bench, topic, queue_id)
    bench.store.append([committed(raw_half(bench, 1), 18)])
    bench = restart()
    producer = Transactor(bench)
    producer.beat()
    assert [record.body for record in bench.records(OP)] == [b"1"]
    bench.parts.checks.start()
    round_of_checks(bench)
    assert [record.body for _, record in producer.asked()] == [b"0", b"2"]
    assert [producer.commit(half).code for half in halves] == [ResponseCode.SUCCESS] * 3
    assert bodies(bench, topic, queue_id) == [*stored, b"1", b"0", b"2"]


def test_a_half_message_that_was_put_back_without_its_op_message_is_open_once(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench]
) -> None:
    half = producer.half(b"one")
    (record,) = bench.records(HALF)
    bench.store.append([put_back(record, record.properties)])
    bench = restart()
    producer = Transactor(bench)
    assert [record.body for record in bench.records(OP)] == [b"0"]
    assert producer.commit(half).code == ResponseCode.SUCCESS
    assert producer.commit(half).code == ResponseCode.SUCCESS
    assert bodies(bench, "T", 1) == [b"plain", b"one"]
    assert bench.parts.half_queue.settled.progress == 2
    bench = restart()
    assert [record.body for record in bench.records(OP)] == [b"0", b"1"]


def test_a_message_committed_where_its_half_message_was_before_is_not_stored_again(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench]
) -> None:
    producer.half(b"one")
    raw = raw_half(bench, 0)
    (record,) = bench.records(HALF)
    bench.parts.half_queue.put_back({0: put_back(record, record.properties)})
    bench.store.append([committed(raw, 18)])
    bench = restart()
    assert [record.body for record in bench.records(OP)] == [b"0", b"1"]
    assert bodies(bench, "T", 1) == [b"plain", b"one"]


def test_a_message_that_only_claims_to_be_committed_settles_nothing(
    bench: Bench, restart: Callable[..., Bench]
) -> None:
    """The half message at offset 0 of the log, and a message with the flag of a committed one, as Java stores it for
    anybody."""
    producer = Transactor(bench)
    producer.half(b"first")
    assert bench.records(HALF)[0].physical_offset == 0
    bench.store.append([(b"T", 1, 0, 8, 0, STORE_HOST, 0, 0, b"claims", b"")])
    bench = restart()
    assert bench.records(OP) == []


def test_progress_is_kept_as_the_java_broker_keeps_it(bench: Bench, producer: Transactor) -> None:
    halves = [producer.half(b"%d" % n) for n in range(4)]
    for n in (1, 0, 3):
        producer.commit(halves[n])
    bench.parts.half_queue.save_progress()
    bench.turn(2)
    bench.parts.half_queue.save_progress()
    assert bench.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 2
    assert bench.offsets.query("CID_RMQ_SYS_TRANS", OP, 0) == 2


def test_no_progress_is_kept_that_stands_on_what_is_not_on_the_disk(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(worker=SteppedWorker(at_once=False))
    bench.worker.work()
    bench.client().send(queue_id=1)
    producer = Transactor(bench)
    producer.commit(producer.half(b"one"))
    for _ in range(3):
        bench.parts.half_queue.save_progress()
    assert bench.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) is None
    bench.turn(1)
    bench.worker.work()
    bench.parts.half_queue.save_progress()
    assert bench.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 1
    bench.worker.work()


def test_ends_wait_until_it_is_known_what_is_settled(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench]
) -> None:
    halves = [producer.half(b"%d" % n) for n in range(300)]
    producer.client.ask_all(*[end_command(half, ROLLBACK) for half in halves[:-1]])
    bench = restart(reads_halves=False)
    producer = Transactor(bench)
    assert producer.client.ask_all(*[end_command(half, COMMIT) for half in (halves[0], halves[-1])]) == []
    bench.parts.half_queue.start()
    bench.turn()
    assert [answer.code for answer in producer.client.heard()] == [0, 0]
    assert bodies(bench, "T", 1) == [b"plain", b"299"]


def test_who_waits_for_that_is_told_when_the_broker_stops(
    bench: Bench, producer: Transactor, restart: Callable[..., Bench]
) -> None:
    half = producer.half(b"one")
    bench = restart(reads_halves=False)
    producer = Transactor(bench)
    producer.client.tell(end_command(half, COMMIT))
    bench.parts.half_queue.stop()
    assert [answer.remark for answer in producer.client.heard()] == ["the broker is stopping"]


def test_the_store_host_is_the_brokers(bench: Bench, producer: Transactor) -> None:
    producer.commit(producer.half(b"one"))
    assert bench.records(OP)[0].store_host == (HOST, 10911)


@pytest.mark.parametrize("error", [MemoryError(), ValueError("no"), StoreError("not now")])
def test_reading_what_is_settled_goes_on_after_each_failure(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench = make_bench("unread", reads_halves=False)
    halves, failures = bench.parts.half_queue, [error] * 3
    read = halves._read_entries

    async def fail() -> bool:
        if failures:
            raise failures.pop()
        return await read()

    monkeypatch.setattr(halves, "_read_entries", fail)
    with log_kept() as logged:
        halves.start()
        bench.turn(20)
    assert (failures, halves.is_ready) == ([], True)
    assert len([line for line in logged.lines if "op queue of transactions cannot be read" in line]) == 3
