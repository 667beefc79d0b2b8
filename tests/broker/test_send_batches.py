"""Batches: one send of several messages."""

import struct
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import BadFrame
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import HEADER_BYTES_MAX, FrameDecoder, RemotingCommand
from mqbroker.wire.ids import parse_offset_message_id
from tests.broker.bench import (
    Bench,
    Client,
    FakeConnection,
    send_command,
)
from tests.broker.sending import BATCH, V1, V2, one, raw
from tests.commands import decode_commands, decode_frame


def test_a_batch_is_stored_as_its_messages(bench: Bench, client: Client) -> None:
    entries = [BatchEntry(i, b"%d" % i, b"TAGS\x01t%d\x02WAIT\x01false" % i) for i in range(3)]
    properties = "UNIQ_KEY\x01U\x02WAIT\x01true"  # those of the batch itself are each message's too
    answer = one(client.send(body=encode_batch(entries), code=BATCH, queue_id=1, batch=True, properties=properties))
    assert answer.code == 0
    records = bench.records("T", 1)
    assert [record.body for record in records] == [b"0", b"1", b"2"]
    assert [record.flag for record in records] == [0, 1, 2]
    assert [record.properties for record in records] == [
        {"TAGS": f"t{i}", "UNIQ_KEY": "U", "WAIT": "true", "CLUSTER": "DefaultCluster"} for i in range(3)
    ]
    ids = answer.ext_fields["msgId"].split(",")
    assert [parse_offset_message_id(one_id)[1] for one_id in ids] == [record.physical_offset for record in records]
    assert answer.ext_fields["queueOffset"] == "0"


def test_the_long_header_says_batch_too(bench: Bench, client: Client) -> None:
    body = encode_batch([BatchEntry(0, b"x", b""), BatchEntry(0, b"y", b"")])
    for code in (V1, V2):
        assert one(client.send(body=body, code=code, batch=True)).code == 0
    assert [record.body for record in bench.records("T")] == [b"x", b"y"] * 2


def lying(**changes: int) -> bytes:
    parts = {"size": 20 + 4 + 2 + 3, "body_length": 4, "properties_length": 3, **changes}
    return (
        struct.pack(">iiiii", parts["size"], 0, 0, 0, parts["body_length"])
        + b"body"
        + struct.pack(">h", parts["properties_length"])
        + b"a\x01b"
    )


LYING = {
    "nothing": b"",
    "cut": lying()[:-1],
    "cut in the head": lying()[:10],
    "more after": lying() + b"x",
    "size 0": lying(size=0),
    "size negative": lying(size=-1),
    "size too small": lying(size=28),
    "size huge": lying(size=2**31 - 1),
    "body negative": lying(body_length=-1),
    "body huge": lying(body_length=2**31 - 1),
    "body into the properties": lying(body_length=6),
    "properties negative": lying(properties_length=-1),
    "properties huge": lying(properties_length=32767),
    "good, then bad": lying() + lying(size=1),
}


@pytest.mark.parametrize("name", LYING)
def test_a_batch_whose_sizes_lie_stores_nothing(bench: Bench, client: Client, name: str) -> None:
    answer = one(client.send(body=LYING[name], code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.records("T") == []


def test_a_good_batch_for_comparison(bench: Bench, client: Client) -> None:
    assert one(client.send(body=lying(), code=BATCH)).code == 0
    assert bench.records("T")[0].properties["a"] == "b"


@pytest.mark.parametrize(
    ("topic", "properties", "shared"),
    [("%RETRY%CG", b"", ""), ("T", b"DELAY\x013", ""), ("T", b"", "DELAY\x013")],
    ids=["retry topic", "one delayed", "all delayed"],
)
def test_what_a_batch_may_not_be(bench: Bench, client: Client, topic: str, properties: bytes, shared: str) -> None:
    body = encode_batch([BatchEntry(0, b"good", b""), BatchEntry(0, b"x", properties)])
    answer = one(client.send(topic, body=body, code=BATCH, properties=shared))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.records(topic) == []


def test_properties_in_a_batch_have_the_same_limit(bench: Bench, client: Client) -> None:
    entry = BatchEntry(0, b"x", b"KEYS\x01" + b"k" * 32_750)
    answer = one(client.send(body=encode_batch([entry]), code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.records("T") == []


@given(st.binary(max_size=200))
def test_any_batch_body_is_answered(module_bench: Bench, body: bytes) -> None:
    data = module_bench.send.send(BATCH, [raw(send_command("Known", body, BATCH))], FakeConnection())
    assert len(FrameDecoder().feed(cast(bytes, data))) == 1


def send_at_once(bench: Bench, command: RemotingCommand) -> bytes:
    return cast(bytes, bench.send.send(BATCH, [raw(command)], FakeConnection()))


@pytest.fixture
def roomy(make_bench: Callable[..., Bench]) -> Bench:
    """A bench that takes messages as large as usual."""
    bench = make_bench("roomy", store={"max_message_size": 1 << 22, "mapped_file_size_commit_log": 1 << 24})
    bench.client().send("T")  # makes it
    return bench


def test_the_answer_to_a_large_batch_has_all_ids_and_its_client_takes_it(roomy: Bench) -> None:
    entries = [BatchEntry(0, b"%d" % i, b"") for i in range(10_000)]
    command = send_command("T", encode_batch(entries), code=BATCH, batch=True)
    data = send_at_once(roomy, command)
    assert len(data) > HEADER_BYTES_MAX
    with pytest.raises(BadFrame):
        FrameDecoder().feed(data)
    decoder = FrameDecoder()
    decoder.expect_answer(command)
    (answer,) = decode_commands(decoder.feed(data))
    assert len(answer.ext_fields["msgId"].split(",")) == 10_000


@pytest.mark.parametrize("shared", ["", "a\x01" + "x" * 30_000])
def test_a_batch_whose_records_are_longer_than_a_message_may_be_stores_nothing(roomy: Bench, shared: str) -> None:
    bench = roomy
    before = bench.store.log_end
    most = 4 * 1024 * 1024 // (91 + 1 + len(shared) + len("CLUSTER\x01DefaultCluster") + bool(shared))
    for count in (190_000, most + 1, most - 10):
        command = send_command(
            "T", encode_batch([BatchEntry(0, b"", b"")]) * count, BATCH, batch=True, properties=shared
        )
        answer = send_at_once(bench, command)
        if count > most:
            assert decode_frame(answer).code == ResponseCode.MESSAGE_ILLEGAL
            assert bench.store.log_end == before
    assert 0.9 < (bench.store.log_end - before) / (4 * 1024 * 1024) <= 1
