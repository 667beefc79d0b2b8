"""Sends that wait for the disk."""

from collections.abc import Callable, Sequence

import pytest

from mqbroker.errors import StoreBusy
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.record import NewMessage
from tests.broker.bench import Bench, Client, send_command
from tests.broker.sending import BATCH, V1, V2, one
from tests.fakes import SteppedWorker


@pytest.fixture
def sync_bench(make_bench: Callable[..., Bench]) -> Bench:
    bench = make_bench(worker=SteppedWorker(at_once=False), store={"flush_disk_type": "SYNC_FLUSH"})
    bench.worker.work()
    return bench


WAITING = "UNIQ_KEY\x01U\x02WAIT\x01true"
NOT_WAITING = "UNIQ_KEY\x01U\x02WAIT\x01false"


@pytest.mark.parametrize("known", [False, True], ids=["slow way", "fast way"])
@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_under_sync_flush_a_send_is_answered_when_it_is_on_the_disk(sync_bench: Bench, code: int, known: bool) -> None:
    client = sync_bench.client()
    if known:
        client.send(properties=NOT_WAITING)
        sync_bench.turn(1)
        sync_bench.worker.work()
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    assert client.send(code=code, body=body, properties=WAITING) == []
    assert [record.body for record in sync_bench.records("T")][-1] == b"x"
    sync_bench.worker.work()
    assert one(client.heard()).code == 0
    assert sync_bench.store.flushed == sync_bench.store.log_end


@pytest.mark.parametrize("code", [V1, V2])
@pytest.mark.parametrize("text", ["false", "FALSE", "False"])
def test_a_message_that_does_not_want_to_wait_does_not(sync_bench: Bench, code: int, text: str) -> None:
    client = sync_bench.client()
    for _ in range(2):
        properties = f"UNIQ_KEY\x01U\x02WAIT\x01{text}"
        assert one(client.send(code=code, properties=properties)).code == 0
    assert all("WAIT" not in record.properties for record in sync_bench.records("T"))


def test_what_is_waited_for_is_the_end_of_all_that_was_sent(sync_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, durable = [], sync_bench.store.durable
    monkeypatch.setattr(sync_bench.store, "durable", lambda end: ends.append(end) or durable(end))
    sync_bench.client().tell(*[send_command(properties=WAITING) for _ in range(3)])
    assert ends == [sync_bench.store.log_end]


def test_without_the_property_it_waits(sync_bench: Bench) -> None:
    client = sync_bench.client()
    assert client.send(properties="UNIQ_KEY\x01U") == []
    sync_bench.worker.work()
    assert one(client.heard()).code == 0


def test_under_async_flush_nobody_waits(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(worker=SteppedWorker(at_once=False))
    client = bench.client()
    for _ in range(2):
        assert one(client.send(properties=WAITING)).code == 0
    assert bench.store.flushed < bench.store.log_end


def test_who_does_not_wait_is_answered_before_a_neighbour_who_does(sync_bench: Bench) -> None:
    client = sync_bench.client()
    client.tell(
        send_command(properties=WAITING),
        send_command(properties=NOT_WAITING, queue_id=1),
        send_command(queue_id=99),
        send_command(properties=WAITING, queue_id=2),
    )
    now = client.heard()
    assert [(answer.opaque, answer.code) for answer in now] == [(2, 0), (3, ResponseCode.SYSTEM_ERROR)]
    assert now[0].ext_fields["queueId"] == "1"
    sync_bench.worker.work()
    later = client.heard()
    assert [(answer.opaque, answer.code, answer.ext_fields["queueId"]) for answer in later] == [
        (1, 0, "0"),
        (4, 0, "2"),
    ]


def test_a_disk_that_takes_too_long_is_answered_as_such(sync_bench: Bench) -> None:
    client = sync_bench.client()
    client.tell(send_command(properties=WAITING))
    sync_bench.turn(4.9)
    assert client.heard() == []
    sync_bench.turn(0.5)
    answer = one(client.heard())
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT == 10
    assert answer.ext_fields["queueOffset"] == "0"
    sync_bench.worker.work()
    assert client.heard() == []


def test_a_failed_sync_refuses_all_who_wait_and_all_who_come(sync_bench: Bench) -> None:
    client, other = sync_bench.client(), sync_bench.client()
    client.tell(send_command(properties=WAITING), send_command(properties=WAITING))
    other.tell(send_command(properties=WAITING))
    sync_bench.worker.fail(OSError(5, "Input/output error"))
    answers = client.heard() + other.heard()
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
    assert "Input/output error" in (answers[0].remark or "")
    assert sync_bench.store._commit_log.why_refused
    for properties in (WAITING, NOT_WAITING):
        late = one(client.send(properties=properties))
        assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert one(client.send(code=V1)).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_full_transient_pool_asks_for_patience(bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.send()

    def full(messages: Sequence[NewMessage]) -> None:
        raise StoreBusy("all buffers of the transient store pool wait to be written")

    monkeypatch.setattr(bench.store, "append", full)
    bench.table.plain.clear()
    answer = one(client.send())
    assert answer.code == ResponseCode.SYSTEM_BUSY == 2
    assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"


def test_a_refused_neighbour_is_not_given_an_answer_twice(sync_bench: Bench) -> None:
    client = sync_bench.client()
    client.tell(send_command(properties=WAITING), send_command(queue_id=99), send_command(properties=WAITING))
    refused = client.heard()
    sync_bench.worker.work()
    answers = refused + client.heard()
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, 0, 0]
    assert [answer.opaque for answer in answers] == [2, 1, 3]
