"""Asking producers about half messages: when, whom, how often, and what becomes of those that nobody settles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mqbroker.broker.transactions.transaction_checks import Step, TransactionCheckRules
from mqbroker.errors import RecordTooLarge, StoreUnwritable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import ResumeCheckHalfMessageRequestHeader
from mqbroker.wire.record import NewMessage, Record
from tests.broker.bench import Bench
from tests.broker.transacting import COMMIT, GIVEN_UP, HALF, OP, ROLLBACK, Transactor, answered, bodies, round_of_checks
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged

HOUR_MS = 3_600_000


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    bench = make_bench(transaction_check_max=3)
    bench.client().send(queue_id=1, body=b"plain")
    bench.parts.checks.start()
    return bench


@pytest.fixture
def producer(bench: Bench) -> Transactor:
    producer = Transactor(bench)
    producer.beat()
    return producer


def beat_and_check(producer: Transactor, seconds: int = 60) -> None:
    """A round of checks, before which the producer lets hear of itself."""
    producer.beat()
    round_of_checks(producer.bench, seconds)


def half_record(age_ms: int, now_ms: int = 10**12, **properties: str) -> Record:
    return Record(
        HALF, 0, 0, 0, 0, 0, 0, now_ms - age_ms, ("10.0.0.1", 1), now_ms, ("10.0.0.1", 1), 0, 0, b"", 0, properties
    )


@pytest.mark.parametrize(
    ("age_ms", "properties", "step"),
    [
        (0, {}, Step.WAIT),
        (5999, {}, Step.WAIT),
        (6000, {}, Step.ASK),
        (-1, {}, Step.ASK),  # of a producer whose clock is ahead
        (-1, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, Step.SPARE),
        (999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, Step.SPARE),
        (1000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, Step.ASK),
        (59_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, Step.SPARE),
        (5999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, Step.WAIT),
        (5999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, Step.WAIT),
        (6000, {"TRANSACTION_CHECK_TIMES": "2"}, Step.ASK),
        (6000, {"TRANSACTION_CHECK_TIMES": "3"}, Step.GIVE_UP),
        (6000, {"TRANSACTION_CHECK_TIMES": "?"}, Step.ASK),
        (72 * HOUR_MS, {}, Step.ASK),
        (72 * HOUR_MS + 1, {}, Step.GIVE_UP),
        (72 * HOUR_MS + 1, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "999999999"}, Step.GIVE_UP),
    ],
)
def test_the_step_for_each(age_ms: int, properties: dict[str, Any], step: Step) -> None:
    assert TransactionCheckRules(6000, 3, 72 * HOUR_MS).step(half_record(age_ms, **properties), 10**12) is step


def test_a_producer_is_asked_about_what_it_did_not_end(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one", properties={"TAGS": "a"})
    bench.turn(50)
    assert producer.asked() == []
    beat_and_check(producer, 10)
    ((header, record),) = producer.asked()
    copy = bench.records(HALF)[1]
    assert (header.tran_state_table_offset, header.commit_log_offset) == (1, copy.physical_offset)
    assert (header.msg_id, header.transaction_id) == ("one", "one")
    assert header.offset_msg_id == f"{half.msg_id[:16]}{copy.physical_offset:016X}"
    assert (record.topic, record.queue_id, record.body) == ("T", 1, b"one")
    assert (record.queue_offset, record.physical_offset) == (1, copy.physical_offset)
    assert record.properties == copy.properties
    assert copy.properties == {**bench.records(HALF)[0].properties, "TRANSACTION_CHECK_TIMES": "1"}
    assert bodies(bench, OP) == [b"0"]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_what_it_answers_counts(bench: Bench, producer: Transactor, outcome: int) -> None:
    producer.half(b"one")
    beat_and_check(producer)
    ((header, _),) = producer.asked()
    producer.end(answered(header), outcome, from_transaction_check=True)
    assert bodies(bench, "T", 1) == [b"plain", b"one"][: 2 if outcome == COMMIT else 1]
    beat_and_check(producer)
    assert producer.asked() == []
    assert bodies(bench, OP) == [b"0", b"1"]


def test_an_end_that_comes_late_settles_it_where_it_is_now(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one")
    beat_and_check(producer)
    beat_and_check(producer)
    asked = producer.asked()
    producer.commit(half)
    for header, _ in asked:
        producer.commit(answered(header))
    beat_and_check(producer)
    assert bodies(bench, "T", 1) == [b"plain", b"one"]
    assert producer.asked() == []
    assert bodies(bench, OP) == [b"0", b"1", b"2"]


def test_what_is_ended_or_young_is_left_alone(bench: Bench, producer: Transactor) -> None:
    old, young = producer.half(b"old"), None
    producer.half(b"ended")
    producer.end(type(old)(1, bench.records(HALF)[1].physical_offset, ""), ROLLBACK)
    bench.turn(55)
    young = producer.half(b"young")
    beat_and_check(producer, 5)
    assert [record.body for _, record in producer.asked()] == [b"old"]
    assert bodies(bench, HALF) == [b"old", b"ended", b"young", b"old"]
    producer.commit(young)
    assert bodies(bench, "T", 1) == [b"plain", b"young"]


def test_it_is_given_up_after_the_last_check(bench: Bench, producer: Transactor) -> None:
    producer.half(b"one", flag=5)
    for _ in range(3):
        beat_and_check(producer)
        assert [record.body for _, record in producer.asked()] == [b"one"]
    assert bench.topics.get(GIVEN_UP) is None
    beat_and_check(producer)
    assert producer.asked() == []
    (record,) = bench.records(GIVEN_UP)
    assert (record.body, record.flag, record.sys_flag) == (b"one", 5, 0)
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert record.properties["REAL_TOPIC"] == "T"
    assert bench.topics.get(GIVEN_UP).write_queue_nums == 1
    beat_and_check(producer)
    assert len(bench.records(HALF)) == 4
    assert len(bench.records(GIVEN_UP)) == 1


def test_one_older_than_messages_are_kept_is_given_up(bench: Bench, producer: Transactor) -> None:
    producer.half(b"one", born_timestamp=int(bench.clock.seconds() * 1000) - 73 * HOUR_MS)
    beat_and_check(producer)
    assert bodies(bench, GIVEN_UP) == [b"one"]


def test_one_that_is_immune_is_put_back_and_not_counted(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"immune", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "400"})
    producer.half(b"other")
    beat_and_check(producer)
    assert [record.body for _, record in producer.asked()] == [b"other"]
    for _ in range(5):
        beat_and_check(producer)
    immune = [record for record in bench.records(HALF) if record.body == b"immune"]
    assert len(immune) > 4
    assert all("TRANSACTION_CHECK_TIMES" not in record.properties for record in immune)
    producer.commit(half)
    assert bodies(bench, "T", 1) == [b"plain", b"immune"]
    beat_and_check(producer, 120)
    assert b"immune" not in [record.body for _, record in producer.asked()]


def test_producers_of_the_group_take_turns(bench: Bench, producer: Transactor) -> None:
    others = [Transactor(bench) for _ in range(2)]
    for other in others:
        other.beat()
    stranger = Transactor(bench)
    stranger.beat("strangers")
    for n in range(6):
        producer.half(b"%d" % n)
    for other in [*others, stranger]:
        other.beat("strangers")
        other.beat()
    stranger_asked = stranger.asked()
    beat_and_check(producer)
    counts = [len(each.asked()) for each in (producer, *others, stranger)]
    assert sorted(counts) == [1, 1, 2, 2]
    assert stranger_asked == []


def test_without_a_producer_it_is_counted_all_the_same(bench: Bench, logged: Logged) -> None:
    Transactor(bench).half(b"one")
    for _ in range(4):
        round_of_checks(bench)
    assert bodies(bench, GIVEN_UP) == [b"one"]
    assert len([line for line in logged.lines if line.startswith("no producer of PG is connected")]) == 3


def test_many_take_many_turns(bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(100):
        producer.half(b"%d" % n)
    appends = []
    append = bench.store.append
    monkeypatch.setattr(bench.store, "append", lambda messages: appends.append(len(messages)) or append(messages))
    beat_and_check(producer)
    assert appends == [64, 64, 64, 8]  # each with what settles it
    assert len(producer.asked()) == 100
    assert bodies(bench, HALF)[100:] == bodies(bench, HALF)[:100]


def test_the_refusal_of_the_store_ends_a_round_and_loses_nothing(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    producer.half(b"one")

    def refuse(_messages: Sequence[NewMessage]) -> None:
        raise StoreUnwritable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "append", refuse)
        beat_and_check(producer)
    assert "transactions are not checked now: the disk is full" in logged.lines
    assert producer.asked() == []
    beat_and_check(producer)
    assert [record.body for _, record in producer.asked()] == [b"one"]


def test_one_that_is_too_large_to_be_put_back_is_asked_about_where_it_is(
    bench: Bench, producer: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    big, small = producer.half(b"big"), producer.half(b"small")
    append = bench.store.append

    def refuse_big(messages: Sequence[NewMessage]) -> list[tuple[int, int, int, int]]:
        if any(message[8] == b"big" and message[0] == HALF.encode() for message in messages):
            raise RecordTooLarge("too large")
        return append(messages)

    monkeypatch.setattr(bench.store, "append", refuse_big)
    beat_and_check(producer)
    asked = {record.body: header for header, record in producer.asked()}
    assert asked[b"big"].tran_state_table_offset == big.offset
    assert asked[b"small"].tran_state_table_offset == 2
    producer.commit(answered(asked[b"big"]))
    producer.commit(small)
    assert bodies(bench, "T", 1) == [b"plain", b"big", b"small"]


def test_a_damaged_one_is_passed_over(bench: Bench, producer: Transactor) -> None:
    for body in (b"first", b"damaged", b"last"):
        producer.half(body)
    segment = bench.settings.store.store_path_commit_log + "/00000000000000000000"
    with open(segment, "r+b") as file:
        at = file.read().index(b"damaged")
        file.seek(at)
        file.write(b"d\xffmaged")
    beat_and_check(producer)
    assert [record.body for _, record in producer.asked()] == [b"first", b"last"]
    assert bench.parts.half_queue.settled.progress == 3


def test_the_half_topic_is_there_after_the_first_round(bench: Bench) -> None:
    assert bench.topics.get(HALF) is None
    round_of_checks(bench)
    assert bench.topics.get(HALF).read_queue_nums == 1


def test_a_round_that_waits_for_the_disk_ends_with_the_broker(make_bench: Callable[..., Bench], logged: Logged) -> None:
    bench = make_bench("held", worker=SteppedWorker(at_once=False))
    bench.worker.work()
    bench.parts.checks.start()
    Transactor(bench).half(b"one")
    round_of_checks(bench)
    bench.parts.checks.stop()
    round_of_checks(bench)
    assert logged.failures == []
    bench.worker.work()


# --- asked about once more


def resume(producer: Transactor, msg_id: str | None) -> RemotingCommand:
    return producer.client.ask(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(msg_id=msg_id)
    )


def test_what_was_given_up_can_be_asked_about_again(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one")
    for _ in range(4):
        beat_and_check(producer)
    producer.asked()
    (record,) = bench.records(GIVEN_UP)
    msg_id = f"{half.msg_id[:16]}{record.physical_offset:016X}"
    assert resume(producer, msg_id).code == ResponseCode.SUCCESS
    assert bench.records(HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    beat_and_check(producer)
    ((header, record),) = producer.asked()
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
    producer.commit(answered(header))
    assert bodies(bench, "T", 1) == [b"plain", b"one"]


def test_the_checks_of_a_half_message_can_be_counted_anew(bench: Bench, producer: Transactor) -> None:
    half = producer.half(b"one")
    assert resume(producer, half.msg_id).code == ResponseCode.SUCCESS
    assert bodies(bench, OP) == [b"0"]
    producer.commit(half)
    assert resume(producer, half.msg_id).code == ResponseCode.SYSTEM_ERROR
    assert bodies(bench, "T", 1) == [b"plain", b"one"]
    assert bodies(bench, HALF) == [b"one", b"one"]


@pytest.mark.parametrize("msg_id", [None, "", "ABC", "0" * 32, "F" * 32, "z" * 32])
def test_what_is_no_such_message_is_not_put_back(bench: Bench, producer: Transactor, msg_id: str | None) -> None:
    answer = resume(producer, msg_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC.")
    assert bodies(bench, HALF) == []
