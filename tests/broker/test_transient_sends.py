"""With the transient store pool: what the broker acknowledged it finds, although readers do not see it yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG
from mqbroker.wire.headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from mqbroker.wire.record import decode_record
from tests.broker.bench import START, Bench, Client
from tests.broker.test_send_back import send_back
from tests.broker.transacting import COMMIT, HALF, ROLLBACK, Transactor, bodies, end_command


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    # A commit is not due by itself while a test runs.
    store = {
        "transient_store_pool_enable": True, "transient_store_pool_size": 2,
        "commit_interval_commit_log_ms": 60_000, "commit_commit_log_thorough_interval_ms": 60_000,
    }  # fmt: skip
    bench = make_bench(store=store)
    bench.client().send()
    assert bench.store.log_end == 0
    return bench


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("is_oneway", [False, True])
def test_a_transaction_can_be_ended_right_after_its_half_message_was_acknowledged(
    bench: Bench, outcome: int, is_oneway: bool
) -> None:
    """Clients send it oneway: if it was refused, it would be lost until a check."""
    transactor = Transactor(bench)
    for number in range(3):  # also when others were committed before
        half = transactor.half(b"%d" % number)
        command = end_command(half, outcome)
        command.flag |= ONEWAY_FLAG * is_oneway
        answers = transactor.client.ask_all(command)
        assert [answer.code for answer in answers] == ([] if is_oneway else [0])
        assert bench.parts.half_queue.settled.progress == number + 1
    assert transactor.end(half, outcome).code == 0  # once again
    bench.turn(61)
    assert len(bodies(bench, HALF)) == 3
    assert bodies(bench, "T", 1) == ([b"0", b"1", b"2"] if outcome == COMMIT else [])


def test_what_never_was_a_half_message_is_refused_as_before(bench: Bench) -> None:
    transactor = Transactor(bench)
    half = transactor.half()
    half.offset += 1
    answer = transactor.commit(half)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    half.physical_offset += 1 << 30
    answer = transactor.commit(half)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")


def place(client: Client, body: bytes) -> int:
    (answer,) = client.send(body=body, properties="UNIQ_KEY\x01u\x02KEYS\x01" + body.decode())
    return int(answer.ext_fields["msgId"][-16:], 16)


def test_a_message_can_be_viewed_by_its_id_right_after_it_was_acknowledged(bench: Bench) -> None:
    client = bench.client()
    for body in (b"first", b"second"):
        answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=place(client, body)))
        assert decode_record(answer.body).body == body


def test_a_message_can_be_sent_back_right_after_it_was_acknowledged(bench: Bench) -> None:
    client = bench.client()
    for number in range(2):
        assert send_back(client, place(client, b"body")).code == 0
        bench.turn(61)
        assert len(bench.records("SCHEDULE_TOPIC_XXXX", 2)) == number + 1


def test_a_message_can_be_found_by_its_key_right_after_it_was_acknowledged(bench: Bench) -> None:
    client = bench.client()
    for key in (b"first", b"second"):
        place(client, key)
        header = QueryMessageRequestHeader(
            topic="T", key=key.decode(), max_num=32, begin_timestamp=0, end_timestamp=2 * START * 1000
        )
        answer = client.ask(RequestCode.QUERY_MESSAGE, header)
        assert answer.code == 0, answer.remark
        assert decode_record(answer.body).body == key
