"""Copies that the broker makes of messages: each message that is accepted can be delayed, committed, checked, sent back
and given up, and one that was accepted elsewhere stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mqbroker.broker.system_topics import COPY_ROOM
from mqbroker.broker.transactions import transaction_checks
from mqbroker.errors import StoreUnwritable
from mqbroker.store.dispatch_queue import Appended
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.headers import ResumeCheckHalfMessageRequestHeader
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, encode_properties
from mqbroker.wire.record import NewMessage, Record
from tests.broker.bench import CLIENT_HOST, START, Bench, Client
from tests.broker.sending import BATCH, put_topic
from tests.broker.test_send_back import send_back
from tests.broker.transacting import GIVEN_UP, HALF, Half, Transactor, answered, bodies, round_of_checks
from tests.remoting.logs import Logged

TOPIC = "T" * 127
GROUP = "G" * 120
#: What the broker adds at the door.
CLUSTER = len("\x02CLUSTER\x01DefaultCluster")
QUEUE = 65_534
NAMES = ",".join(f"%LMQ%{n}" for n in range(50))


def filled(properties: dict[str, str], room: int = COPY_ROOM) -> dict[str, str]:
    """`properties` and one that leaves `room` bytes free, once the broker has added its own."""
    used = len(encode_properties(properties)) + CLUSTER + len("\x02PAD\x01")
    return {"PAD": "x" * (PROPERTIES_BYTES_MAX - room - used), **properties}


def longest(bench: Bench, client: Client, properties: dict[str, str], room: int = COPY_ROOM) -> Half:
    """Send the message with the most properties that is accepted, by each path."""
    if bench.topics.get(TOPIC) is None:
        put_topic(client, TOPIC, read_queue_nums=QUEUE + 1, write_queue_nums=QUEUE + 1)
    made = filled(properties, room)
    too_many = {**made, "PAD": made["PAD"] + "x"}
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        answers = [
            client.send(
                TOPIC,
                code=code,
                queue_id=QUEUE,
                born_timestamp=START * 1000,
                properties=encode_properties(each).decode(),
            )[0]
            for each in (too_many, made)
        ]
        assert [answer.code for answer in answers] == [ResponseCode.MESSAGE_ILLEGAL, 0], answers[1].remark
    fields = answers[1].ext_fields
    return Half(int(fields["queueOffset"]), int(fields["msgId"][-16:], 16), fields["msgId"])


def stored_elsewhere(bench: Bench, topic: str, properties: bytes, reconsume_times: int = 0) -> Record:
    """A message as a Java broker accepts it."""
    message = (topic.encode(), 0, 0, 0, START * 1000, CLIENT_HOST, reconsume_times, 0, b"body", properties)
    bench.store.append([message])
    return bench.records(topic)[-1]


def test_the_longest_message_can_be_delayed_and_delivered(bench: Bench, client: Client) -> None:
    longest(bench, client, {"DELAY": "18"})
    bench.parts.delay.start()
    bench.turn(7200)
    bench.turn(1)
    assert len(bench.records(TOPIC, QUEUE)) == 2


def test_the_longest_message_can_be_sent_back_until_it_is_a_dead_letter(bench: Bench, client: Client) -> None:
    longest(bench, client, {"KEYS": "k"})
    record = bench.records(TOPIC, QUEUE)[-1]
    bench.parts.delay.start()
    for times in range(16):
        assert send_back(bench.client(), record, group=GROUP).code == 0
        bench.turn(7200)
        bench.turn(1)
        record = bench.records(f"%RETRY%{GROUP}")[-1]
        assert record.reconsume_times == times + 1
        assert (record.properties["RETRY_TOPIC"], record.properties["PAD"][:1]) == (TOPIC, "x")
    assert send_back(bench.client(), record, group=GROUP).code == 0
    (dead,) = bench.records(f"%DLQ%{GROUP}")
    assert {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "PAD"} <= dead.properties.keys()


def test_a_java_consumer_can_send_the_longest_message_to_the_retry_topic_itself(bench: Bench, client: Client) -> None:
    longest(bench, client, {"KEYS": "k"})
    (record, _) = bench.records(TOPIC, QUEUE)
    added = {
        "RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": "F" * 56, "RECONSUME_TIME": "2147483647",
        "MAX_RECONSUME_TIMES": "2147483647", "MIN_OFFSET": "9" * 19, "MAX_OFFSET": "9" * 19,
        "CONSUME_START_TIME": "9" * 19, "DELAY": "3",
    }  # fmt: skip
    properties = encode_properties({**record.properties, **added}).decode()
    bench.groups.find(GROUP)
    (answer,) = client.send(f"%RETRY%{GROUP}", properties=properties, reconsume_times=1)
    assert answer.code == 0, answer.remark
    bench.parts.delay.start()
    bench.turn(60)
    assert len(bench.records(f"%RETRY%{GROUP}")) == 1


@pytest.mark.parametrize("named", ["", NAMES])
@pytest.mark.parametrize("delay", ["", "5"])
def test_the_longest_half_message_can_be_checked_given_up_resumed_and_committed(
    make_bench: Callable[..., Bench], named: str, delay: str
) -> None:
    bench = make_bench(
        transaction_check_max=2,
        transaction_check_interval_ms=60_000,
        store={"enable_lmq": True, "enable_multi_dispatch": True, "max_message_size": 64 * 1024},
    )
    client = bench.client()
    transactor = Transactor(bench, client)
    transactor.beat()
    properties = {"TRAN_MSG": "true", "PGROUP": "PG"}
    properties |= ({"INNER_MULTI_DISPATCH": named} if named else {}) | ({"DELAY": delay} if delay else {})
    room = COPY_ROOM + (len("INNER_MULTI_QUEUE_OFFSET") + 2 + 20 * 50 if named else 0)
    longest(bench, client, properties, room)
    bench.parts.checks.start()
    for _ in range(3):
        round_of_checks(bench)
    given_up = bench.records(GIVEN_UP)
    assert len(given_up) == 2
    assert given_up[0].properties["TRANSACTION_CHECK_TIMES"] == "2"
    msg_id = f"{CLIENT_HOST.hex()}{given_up[0].physical_offset:016X}"
    header = ResumeCheckHalfMessageRequestHeader(msg_id=msg_id.upper())
    assert client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header).code == 0
    transactor.asked()
    round_of_checks(bench)
    ((question, _),) = transactor.asked()
    assert transactor.commit(answered(question)).code == 0
    if delay:
        bench.parts.delay.start()
        bench.turn(60)
    (record,) = bench.records(TOPIC, QUEUE)
    assert record.properties["PAD"]
    assert len(bench.records("%LMQ%49")) == (bool(named) + (bool(named) and bool(delay)))


def test_messages_of_a_batch_leave_room_for_their_copies(bench: Bench, client: Client) -> None:
    client.send()
    for more, code in ((0, 0), (1, ResponseCode.MESSAGE_ILLEGAL)):
        made = filled({"KEYS": "k"})
        made["PAD"] += "x" * more
        batch = encode_batch([BatchEntry(0, b"body", encode_properties(made))])
        (answer,) = client.send(code=BATCH, body=batch, properties="", batch=True)
        assert answer.code == code
    record = bench.records("T")[-1]
    assert send_back(client, record).code == 0


# --- messages that were accepted by a Java broker, or by this one before


FULL = b"KEYS\x01k\x02PAD\x01" + b"x" * (PROPERTIES_BYTES_MAX - 11)


@pytest.mark.parametrize("reconsume_times", [0, 16])
def test_a_message_without_room_for_a_retry_becomes_a_dead_letter(
    bench: Bench, client: Client, logged: Logged, reconsume_times: int
) -> None:
    """Otherwise its consumer would handle it for ever, and commit no offset behind it."""
    client.send()
    record = stored_elsewhere(bench, "T", FULL, reconsume_times)
    assert send_back(client, record).code == 0
    (dead,) = bench.records("%DLQ%CG")
    assert dead.properties == record.properties
    assert dead.reconsume_times == reconsume_times + 1
    assert sum("becomes a dead letter" in line for line in logged.lines) == (not reconsume_times)
    assert bench.records("SCHEDULE_TOPIC_XXXX", 2) == []


@pytest.mark.parametrize("max_times", [None, 2**31 - 1])
def test_a_message_that_was_retried_as_often_as_can_be_counted_can_be_sent_back(
    bench: Bench, client: Client, max_times: int | None
) -> None:
    client.send()
    client.send(reconsume_times=2**31 - 1)
    record = bench.records("T")[-1]
    assert send_back(client, record, max_reconsume_times=max_times).code == 0
    assert bench.records("%DLQ%CG")[0].reconsume_times == 2**31 - 1


@pytest.mark.parametrize("times", [-1, -3, -(2**31)])
def test_a_message_with_a_negative_count_of_retries_is_retried_as_a_new_one(
    bench: Bench, client: Client, times: int
) -> None:
    """A Java broker makes 2^31 retries without a delay of it."""
    client.send()
    client.send(reconsume_times=times)
    record = bench.records("T")[-1]
    assert record.reconsume_times == times
    assert send_back(client, record).code == 0
    (again,) = bench.records("SCHEDULE_TOPIC_XXXX", 2)
    assert (again.reconsume_times, again.properties["DELAY"]) == (1, "3")


def test_a_half_message_without_room_for_its_count_is_asked_about_and_can_be_committed(
    make_bench: Callable[..., Bench], logged: Logged
) -> None:
    bench = make_bench(transaction_check_interval_ms=60_000)
    transactor = Transactor(bench)
    transactor.beat()
    head = b"TRAN_MSG\x01true\x02PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02PAD\x01"
    full = stored_elsewhere(bench, HALF, head + b"x" * (PROPERTIES_BYTES_MAX - len(head)))
    transactor.half(b"other")
    bench.parts.checks.start()
    round_of_checks(bench)
    asked = transactor.asked()
    assert sorted(record.body for _, record in asked) == [b"body", b"other"]
    assert sum("is not checked again" in line for line in logged.lines) == 1
    assert transactor.commit(answered(asked[0][0])).code == 0
    assert transactor.commit(answered(asked[1][0])).code == 0
    assert sorted(bodies(bench, "T") + bodies(bench, "T", 1)) == [b"body", b"other"]
    assert full.queue_offset == 0


def test_a_given_up_message_without_room_for_a_count_can_be_resumed(bench: Bench, client: Client) -> None:
    head = b"TRAN_MSG\x01true\x02PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02PAD\x01"
    record = stored_elsewhere(bench, GIVEN_UP, head + b"x" * (PROPERTIES_BYTES_MAX - len(head)))
    header = ResumeCheckHalfMessageRequestHeader(msg_id=f"{CLIENT_HOST.hex()}{record.physical_offset:016X}".upper())
    assert client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header).code == 0
    assert len(bench.records(HALF)) == 1


def test_a_question_about_a_message_with_a_separator_in_a_value_is_asked(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(transaction_check_interval_ms=60_000)
    transactor = Transactor(bench)
    transactor.beat()
    transactor.half(b"one", properties={"KEYS": "a\x01b"})
    bench.parts.checks.start()
    round_of_checks(bench)
    ((_, record),) = transactor.asked()
    assert record.properties["KEYS"] == "a\x01b"


# --- background services go on


def failing(bench: Bench, monkeypatch: pytest.MonkeyPatch, body: bytes, error: Exception) -> None:
    """Have the store fail with `error` as long as a message with `body` is among what is appended."""
    append = bench.store.append

    def fail(messages: Sequence[NewMessage]) -> list[Appended]:
        if any(message[8] == body for message in messages):
            raise error
        return append(messages)

    monkeypatch.setattr(bench.store, "append", fail)


@pytest.mark.parametrize("kind", ["asked", "given up"])
@pytest.mark.parametrize("error", [ValueError("a mistake"), TypeError("a mistake"), StoreUnwritable("the disk")])
def test_checks_go_on_with_the_other_half_messages(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, logged: Logged, kind: str, error: Exception
) -> None:
    bench = make_bench(transaction_check_interval_ms=60_000, store={"file_reserved_time_hours": 1})
    transactor = Transactor(bench)
    transactor.beat()
    for body in (b"first", b"bad", b"last"):
        transactor.half(body)
    with monkeypatch.context() as patch:
        failing(bench, patch, b"bad", error)
        bench.parts.checks.start()
        if kind == "given up":
            bench.clock.advance(3700)
        round_of_checks(bench)
    found = bodies(bench, GIVEN_UP) if kind == "given up" else [record.body for _, record in transactor.asked()]
    if isinstance(error, StoreUnwritable):
        assert found == []
    else:
        assert [body for body in found if body != b"bad"] == [b"first", b"last"]
        assert logged.failures
        logged.clear()
    for _ in range(2):
        round_of_checks(bench)
    found += bodies(bench, GIVEN_UP) if kind == "given up" else [record.body for _, record in transactor.asked()]
    assert b"bad" in found


@pytest.mark.parametrize("what", ["check_request", "put_back"])
def test_a_half_message_that_cannot_be_copied_stops_no_check_of_others(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, logged: Logged, what: str
) -> None:
    bench = make_bench(transaction_check_interval_ms=60_000)
    transactor = Transactor(bench)
    transactor.beat()
    for body in (b"first", b"bad", b"last"):
        transactor.half(body)
    make: Any = getattr(transaction_checks, what)

    def fail(record: Record, *rest: object) -> object:
        if record.body == b"bad":
            raise LookupError("a mistake")
        return make(record, *rest)

    monkeypatch.setattr(transaction_checks, what, fail)
    bench.parts.checks.start()
    for _ in range(2):
        round_of_checks(bench)
        assert [record.body for _, record in transactor.asked()] == [b"first", b"last"]
        assert len(logged.failures) == 1
        logged.clear()
