"""Entries of consume queues: code 321."""

import json
from collections.abc import Callable

import pytest

from mqbroker.broker.requests import query_message
from mqbroker.broker.requests.query_message import passes
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.wire.admin_bodies import QueryConsumeQueueResponseBody
from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import QueryConsumeQueueRequestHeader
from mqbroker.wire.names import java_hash
from tests.broker.bench import START, Bench, Client
from tests.broker.test_client_requests import OTHER, consumer, heartbeat
from tests.store.harness import now


def ask(
    client: Client,
    index: int = 0,
    count: int = 10,
    *,
    topic: str | None = "T",
    queue_id: int = 0,
    group: str | None = None,
) -> RemotingCommand:
    header = QueryConsumeQueueRequestHeader(
        topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
    )
    return client.ask(RequestCode.QUERY_CONSUME_QUEUE, header)


def read(answer: RemotingCommand) -> QueryConsumeQueueResponseBody:
    assert answer.code == 0
    return QueryConsumeQueueResponseBody.from_json(answer.body)


def send(bench: Bench, client: Client, *tags: str) -> None:
    for tag in tags:
        client.send("T", properties=f"TAGS\x01{tag}" if tag else "")
    bench.turn(1)


def test_entries(bench: Bench, client: Client) -> None:
    send(bench, client, "A", "", "B")
    answer = ask(client, 1)
    body = read(answer)
    assert (body.min_queue_index, body.max_queue_index) == (0, 3)
    assert (body.subscription_data, body.filter_data, answer.remark) == (None, None, None)
    assert [entry.tags_code for entry in body.queue_data] == [0, java_hash("B")]
    first = now(bench.store).physical_offset("T", 0, 1)
    assert (body.queue_data[0].physic_offset, body.queue_data[0].eval) == (first, False)
    assert body.queue_data[1].physic_offset == first + body.queue_data[0].physic_size
    # The Java peer finds no field where there is nothing to say.
    assert b'{"physicOffset":%d,' % first in answer.body
    assert b"null" not in answer.body


@pytest.mark.parametrize(("index", "count", "wanted"), [(0, 2, 2), (2, 5, 1), (0, 0, 0), (0, -1, 0), (0, 2**31 - 1, 3)])
def test_so_many_entries(bench: Bench, client: Client, index: int, count: int, wanted: int) -> None:
    send(bench, client, "A", "A", "A")
    assert len(read(ask(client, index, count)).queue_data) == wanted


def test_never_too_many(bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_message, "ENTRIES_MAX", 2)
    send(bench, client, "A", "A", "A")
    assert len(read(ask(client)).queue_data) == 2


@pytest.mark.parametrize("index", [-1, 3, 2**63 - 1, -(2**63)])
def test_no_such_index(bench: Bench, client: Client, index: int) -> None:
    send(bench, client, "A", "A", "A")
    answer = ask(client, index)
    assert answer.remark == f"Index {index} of 0@T is not exist!"
    assert read(answer).queue_data == []


@pytest.mark.parametrize(("topic", "queue_id"), [("None", 0), ("T", 9), ("T", -1), (None, 0), ("../x", 0)])
def test_no_such_queue(bench: Bench, client: Client, topic: str | None, queue_id: int) -> None:
    send(bench, client, "A")
    answer = ask(client, topic=topic, queue_id=queue_id)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic or ''} is not exist!")


def test_a_group_that_is_away(bench: Bench, client: Client) -> None:
    send(bench, client, "A")
    assert read(ask(client, group="CG")).filter_data == "CG@T is not online!"


def test_of_entries_without_units_nothing_is_said(bench: Bench, client: Client) -> None:
    other = bench.client(OTHER)
    other.ask(RequestCode.HEART_BEAT, body=heartbeat(consumers=[consumer("CG", "T")]))
    send(bench, client, "A")
    assert [entry.eval for entry in read(ask(client, group="CG")).queue_data] == [False]  # as with Java


def test_units_and_what_a_group_would_be_given(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"enable_consume_queue_ext": True})
    client, other = bench.client(), bench.client(OTHER)
    wanted = SubscriptionData("T", "A||C", frozenset("AC"), frozenset(map(java_hash, "AC")))
    data = consumer("CG")
    data.subscription_data_set.append(wanted)
    other.ask(RequestCode.HEART_BEAT, body=heartbeat(consumers=[data]))
    send(bench, client, "A", "B")
    body = read(ask(client, group="CG"))
    assert (body.subscription_data, body.filter_data) == (wanted, "null")
    assert [entry.eval for entry in body.queue_data] == [True, False]
    assert [entry.tags_code < -(2**31) for entry in body.queue_data] == [True, True]
    assert json.loads(body.queue_data[0].extend_data_json) == {
        "msgStoreTime": START * 1000, "size": 20, "tagsCode": java_hash("A")
    }  # fmt: skip
    assert [entry.eval for entry in read(ask(client)).queue_data] == [False, False]


def test_a_unit_that_is_not_there(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(store={"enable_consume_queue_ext": True})
    client = bench.client()
    send(bench, client, "A")
    ext = bench.store._queues.by_name["T", 0].ext
    monkeypatch.setattr(ext, "unit", lambda address: None)
    (entry,) = read(ask(client)).queue_data
    assert entry.msg == f"Cq extend not exist!addr: {entry.tags_code}"
    assert (entry.extend_data_json, entry.eval) == (None, False)


def test_bit_maps_as_java_shows_them() -> None:
    unit = ExtUnit(7, 9, bytes([0b101, 0x80]))
    assert query_message._bits(unit.bit_map) == "1000000000000101\n"
    assert json.loads(query_message._unit_json(unit)) == {
        "filterBitMap": "BYA=", "msgStoreTime": 9, "size": 22, "tagsCode": 7
    }  # fmt: skip


def test_what_passes_by_an_expression(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"enable_consume_queue_ext": True}, enable_property_filter=True)
    client, other = bench.client(), bench.client(OTHER)
    wanted = SubscriptionData("T", "a > 1", sub_version=1, expression_type="SQL92")
    data = consumer("CG")
    data.subscription_data_set.append(wanted)
    assert other.ask(RequestCode.HEART_BEAT, body=heartbeat(consumers=[data])).code == 0
    send(bench, client, "A")
    body = read(ask(client, group="CG"))
    assert json.loads(body.filter_data)["expression"] == "a > 1"
    assert [entry.eval for entry in body.queue_data] == [True]  # no bit map says otherwise
    registered = bench.parts.filters.get("T", "CG")
    is_given = passes(wanted, registered)
    empty = bytes(registered.bloom.bit_count // 8)
    assert not is_given(7, ExtUnit(7, registered.born_ms + 1, empty))
    assert is_given(7, ExtUnit(7, registered.born_ms, empty))  # a message from before it
    assert passes(wanted, None)(7, ExtUnit(7, registered.born_ms + 1, empty))


def test_who_takes_everything() -> None:
    assert passes(SubscriptionData("T"), None)(5, None)
    assert passes(SubscriptionData("T", "A", class_filter_mode=True), None)(5, None)
    assert not passes(SubscriptionData("T", "A", code_set=frozenset([6])), None)(5, None)
