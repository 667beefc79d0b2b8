"""What the clients encode and decode in the compiled module, and in Python: the same, whatever the bytes.

MQBROKER_TWIN_SEEDS chooses how many rounds are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import attrs
import pytest

from mqbroker.client import batches, messages
from mqbroker.client.batches import Part
from mqbroker.client.errors import UnexpectedResponse
from mqbroker.client.messages import Message, ReceivedMessage, SendResult, SendStatus, SystemMessage
from mqbroker.client.options import ProducerOptions
from mqbroker.client.plain_sends import head_of
from mqbroker.client.send import Outgoing, encoded_properties, prepare, read_send_answer, send_request
from mqbroker.errors import MQError
from mqbroker.kernel import compiled
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.command import (
    AFTER_OPAQUE,
    BEFORE_OPAQUE,
    HEADER_BYTES_MAX,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    encode_frame,
    take_responses,
)
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX
from mqbroker.wire.record import HEADS, MAGIC, RECORD_BYTES_MIN, BadRecord, body_crc, decode_records, encode_record
from tests.client.records import a_record as a_plain_record
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60"))
QUEUE = MessageQueue("T", 'a "broker"', 3)
OPTIONS = ProducerOptions()
PAIRS = [
    b"TAGS\1t",
    b"KEYS\1k1 k2",
    b"KEYS\1",
    b"KEYS\1 ",
    b"UNIQ_KEY\1U",
    b"a\1b\1c",
    "é\1中😀".encode(),
    b"\1v",
    b"x",
    b"",
]
PAIRS += [b"RETRY_TOPIC\1Origin", b"TAGS\1other", b"\0\1\0"]
BAD_UTF8 = [b"a\1\xff", b"\xed\xa0\x80\1v", b"TAGS\1\xc3"]


def spoilt(rng: Random, data: bytes) -> bytes:
    """Bytes like `data`, some of which may be others, or missing."""
    made = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        if made:
            made[rng.randrange(len(made))] = rng.choice([0, 1, 0x22, 0x5C, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(made[: rng.choice([len(made)] * 5 + [rng.randrange(len(made) + 1)])])


# --- pulled messages


def a_record(rng: Random) -> bytes:
    v6 = rng.choice([0, 0, 0, 0x10, 0x20, 0x30])
    born, store = bytes([10, 0, 0, 1] * (4 if v6 & 0x10 else 1)), bytes([10, 0, 0, 2] * (4 if v6 & 0x20 else 1))
    body = rng.randbytes(rng.choice([0, 1, 30]))
    topic = rng.choice([b"T", b"T", b"%RETRY%g", b"%RETRY", b"", b"x" * 126, b"x" * 127, "é".encode(), b"\xff", b"a b"])
    properties = b"\2".join(
        rng.choices(PAIRS, k=rng.randrange(6)) + ([rng.choice(BAD_UTF8)] if rng.random() < 0.1 else [])
    )
    flags = rng.choice([0, 0, 0, 0, 0, 1, 4, 8, 1 << 31, 0x100]) | v6
    edge = [0, 1, 5, -1, 2**63 - 1, -(2**63), 2**31 - 1, 2**31, -(2**31) - 1]
    offset = rng.choice([10_000, *edge])
    head = HEADS[v6]
    size = head.size + len(body) + 3 + len(topic) + len(properties)
    packed = head.pack(
        size, rng.choice([MAGIC] * 9 + [1]), body_crc(body), rng.choice([0, 3, 2**31 - 1, -1]),
        rng.choice([0, -1, 7]), rng.choice([0, 1, 100, *edge]), offset, flags - (1 << 32) * (flags >> 31),
        rng.choice([1, *edge]), born + (5).to_bytes(4, "big"), rng.choice([2, *edge]),
        store + rng.choice([10911, 2**32 - 1]).to_bytes(4, "big"), rng.choice([0, 16, -1]), 0, len(body),
    )  # fmt: skip
    return packed + body + bytes((len(topic),)) + topic + len(properties).to_bytes(2, "big") + properties


Read = tuple[list[ReceivedMessage], list[ReceivedMessage], int | None]


def read(data: bytes, queue: MessageQueue | None = None, offset: int = 0) -> Read | str:
    try:
        return ReceivedMessage.read(data, "broker", queue, offset)
    except BadRecord as error:
        return str(error)
    except UnexpectedResponse as error:
        return f"unexpected: {error}"


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_pulled_messages_are_those_that_are_read_in_python(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    bodies = [b"".join(a_record(rng) for _ in range(rng.choice([1, 3, 8]))) for _ in range(30)]
    bodies = [spoilt(rng, body) if rng.random() < 0.5 else body for body in bodies]
    asked = [(rng.choice([None, MessageQueue("T", "broker", 3)]), rng.choice([0, 0, 1, 2**63 - 1])) for _ in bodies]
    found = [read(body, *each) for body, each in zip(bodies, asked, strict=True)]
    for each in found:
        for message in [] if isinstance(each, str) else each[0]:
            rng.choice([lambda m: m.tags, lambda m: m.body, lambda m: m.store_size, repr])(message)
    with monkeypatch.context() as patch:
        patch.setattr(messages, "compiled", None)
        expected = [read(body, *each) for body, each in zip(bodies, asked, strict=True)]
    # An error names a place within what was given to it.
    texts = [[str(each) if isinstance(each, str) else each for each in one] for one in (found, expected)]
    for one, other in zip(*texts, strict=True):
        assert isinstance(one, str) == isinstance(other, str)
        assert isinstance(one, str) or one == other


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_what_was_not_asked_for_is_refused_as_in_python(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    refused = 0
    for _ in range(30):
        offset = start = rng.choice([0, 1, 100])
        records = []
        for _ in range(rng.choice([1, 3, 8])):
            offset += rng.choice([0, 0, 1, 5])
            record = a_plain_record(topic="T", queue_id=3, queue_offset=offset, physical_offset=10_000)
            if rng.random() < 0.1:
                odd = {"topic": "TT", "queue_id": 0, "queue_offset": offset - 1}
                record = attrs.evolve(record, **dict([rng.choice(list(odd.items()))]))
            records.append(encode_record(record))
            offset += 1
        data, queue = b"".join(records), MessageQueue("T", "broker", 3)
        found = read(data, queue, start)
        with monkeypatch.context() as patch:
            patch.setattr(messages, "compiled", None)
            expected = read(data, queue, start)
        assert found == expected
        refused += isinstance(found, str)
    assert 0 < refused < 30


def test_a_plain_message_is_decoded_when_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    record = encode_record(a_plain_record(properties={"TAGS": "t"}))
    (expected,) = [ReceivedMessage.of_record(each, "broker") for each in decode_records(record)]
    monkeypatch.setattr(messages, "decode_record", None)
    for look in (lambda m: m.tags == "t", lambda m: m == expected, lambda m: pickle.loads(pickle.dumps(m)) == expected):
        (message,), *_ = ReceivedMessage.read(record, "broker")
        assert look(message)
    for each in (message, expected):
        with pytest.raises(AttributeError):
            _ = each.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_places_in_what_is_left_of_a_record_are_checked(seed: int) -> None:
    assert compiled is not None
    rng = Random(seed)
    for _ in range(200):
        rest = spoilt(rng, rng.choice([a_record(rng), rng.randbytes(rng.randrange(2 * RECORD_BYTES_MIN))]))
        message = object.__new__(ReceivedMessage)
        with contextlib.suppress(ValueError, UnicodeDecodeError):
            compiled.fill_message(message, rest, "b", lambda host: (host.hex(), 1), MessageQueue)


# --- sends

TEXTS = ["a", "k-1", "", "é", 'say "hi"', "back\\slash", "\t", "\x7f", "x" * 200]


def a_message(rng: Random) -> Message:
    texts = [text for text in TEXTS if text]
    names = {f"p{n}": rng.choice(texts) for n in range(rng.choice([0, 0, 1, 3]))}
    return Message(
        "T",
        rng.randbytes(rng.choice([1, 20, 3000])),
        tags=rng.choice([None, None, *(text for text in TEXTS if text == text.strip())]),
        keys=rng.choice([(), (), ("k",), ("a", "b"), ("é",)]),
        properties=names if rng.random() < 0.9 else {"big": "x" * rng.randrange(32_600, 32_770)},
        delay_level=rng.choice([0, 0, 1, 18]),
        wait_stored=rng.random() < 0.8,
        flag=rng.choice([0, 0, 1, -1, 2**31 - 1, -(2**31)]),
        unique_key=rng.choice([None, None, None, "", "mine", "é"]),
    )


def request_of(outgoing: Outgoing, queue: MessageQueue) -> RemotingCommand:
    return send_request(outgoing, queue, 'the "group"', OPTIONS)


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_plain_sends_are_encoded_as_in_python(seed: int) -> None:
    assert compiled is not None
    rng = Random(seed)
    for _ in range(30):
        made = [a_message(rng) for _ in range(rng.randrange(1, 5))]
        queues = [rng.choice([QUEUE, MessageQueue("T", "b", 0)]) for _ in made]
        places = [(queue, head_of(request_of, queue)) for queue in queues]
        pending: dict[int, Any] = {}
        opaque, number, born_ms = rng.choice([1, 2**31 - 9]), rng.choice([0, 0xFFFE]), rng.choice([0, 1700000000000])
        waiters: list[Any] = [object() for _ in made]
        frames = compiled.encode_sends(
            made, places, waiters, "run", opaque, born_ms, "AB", number, BEFORE_OPAQUE, AFTER_OPAQUE, pending
        )
        assert len(pending) == len(frames)
        for n, frame in enumerate(frames):
            msg_id = made[n].unique_key or f"AB{(number + n) & 0xFFFF:04X}"
            outgoing = prepare(made[n], OPTIONS, lambda msg_id=msg_id: msg_id, born_ms)  # type: ignore[misc]
            (parts,) = FrameDecoder().feed(frame)
            expected = FrameDecoder().feed(encode_command(request_of(outgoing, queues[n]), opaque + n))
            assert decode_command(*parts) == decode_command(*expected[0])
            assert pending[opaque + n] == (waiters[n], made[n], queues[n], msg_id, "run")
        if len(frames) < len(made):  # the next one is not plain, or too large
            rest = made[len(frames)]
            texts = [rest.tags or "", rest.unique_key or "", *rest.keys, *rest.properties.values()]
            is_plain = all(text.isascii() and not set(text) & {'"', "\\", "\t"} for text in texts)
            assert not is_plain or sum(map(len, texts)) > 32_000


def encoded(message: Message) -> tuple[list[bytes], Any]:
    """A message as a send of its own, and as a batch."""
    assert compiled is not None
    place = [(QUEUE, head_of(request_of, QUEUE))]
    frames = compiled.encode_sends([message], place, [None], "run", 1, 1, "AB", 0, BEFORE_OPAQUE, AFTER_OPAQUE, {})
    return frames, compiled.encode_batch([message], "AB", 0)


def test_properties_are_as_long_as_a_record_can_have() -> None:
    short = len(encoded_properties(Message("T", b"x", properties={"p": "v"}), "AB0000")) - 1
    for more in (0, 1):
        frames, batch = encoded(Message("T", b"x", properties={"p": "v" * (PROPERTIES_BYTES_MAX + more - short)}))
        assert (len(frames), batch is None) == ((0, True) if more else (1, False))


def test_a_frame_is_as_long_as_a_frame_may_be() -> None:
    ([frame], _) = encoded(Message("T", b"x"))
    room = 16 * 1024 * 1024 - len(frame) + 1
    ([frame], _) = encoded(Message("T", bytes(room)))
    assert len(frame) == 16 * 1024 * 1024
    assert len(FrameDecoder().feed(frame)) == 1
    assert encoded(Message("T", bytes(room + 1)))[0] == []


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_batches_are_encoded_as_in_python(seed: int) -> None:
    assert compiled is not None
    rng = Random(seed)
    for _ in range(30):
        made = [a_message(rng) for _ in range(rng.randrange(1, 5))]
        number = rng.choice([0, 0xFFFE])
        found = compiled.encode_batch(made, "AB", number)
        ids = [each.unique_key or f"AB{(number + n) & 0xFFFF:04X}" for n, each in enumerate(made)]
        if found is None:
            texts = [text for m in made for text in (m.tags or "", m.unique_key or "", *m.keys, *m.properties.values())]
            is_plain = all(text.isascii() and not set(text) & {'"', "\\", "\t"} for text in texts)
            assert not is_plain or sum(map(len, texts)) > 32_000
            continue
        entries = [
            BatchEntry(each.flag, each.body, encoded_properties(each, msg_id))
            for each, msg_id in zip(made, ids, strict=True)
        ]
        assert found == (encode_batch(entries), ids)


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_the_results_of_a_batch_are_as_in_python(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    for _ in range(30):
        ids = [f"id{n}" for n in range(rng.randrange(1, 40))]
        offset_ids = ",".join(f"0A{n}" for n in range(rng.choice([len(ids), len(ids), 1, 50])))
        first = rng.choice([0, 7, 2**63 - 1])
        whole = SendResult(
            rng.choice(list(SendStatus)), "all", offset_ids, QUEUE, first, is_traced=rng.choice([True, False])
        )
        part = Part(ids=ids)
        found = part.results(whole)
        with monkeypatch.context() as patch:
            patch.setattr(batches, "compiled", None)
            expected = part.results(whole)
        assert [*map(attrs.astuple, found)] == [*map(attrs.astuple, expected)]
        assert {type(each) for each in found} == {SendResult}


def test_results_of_a_batch_need_an_offset_id_for_each_id() -> None:
    assert compiled is not None
    whole = SendResult(SendStatus.SEND_OK, "all", "0A", QUEUE, 0)
    with pytest.raises(ValueError, match="offset id for each"):
        compiled.BatchResults(["a", "b"], ["0A"], whole, SendResult)


def test_a_message_of_topic_and_bytes_is_as_in_python() -> None:
    assert compiled is not None
    plain_init = Message.__init__.__wrapped__  # type: ignore[attr-defined]
    expected = Message.__new__(Message)
    plain_init(expected, "T", b"body")
    found = Message("T", b"body")
    assert (found, hash(found), repr(found)) == (expected, hash(expected), repr(expected))
    assert attrs.asdict(found) == attrs.asdict(expected)
    assert found.properties is not Message("T", b"body").properties
    assert pickle.loads(pickle.dumps(found)) == found
    for given in [("T",), ("", b"x"), ("a b", b"x"), (7, b"x"), ("T", 7), ("T", b"x", "tags")]:
        with pytest.raises((TypeError, MQError)) as quick:
            Message(*given)  # type: ignore[arg-type]
        with pytest.raises(quick.type):
            plain_init(Message.__new__(Message), *given)
    assert Message("T", "text").body == Message(body=bytearray(b"text"), topic="T").body == b"text"
    assert type(SystemMessage("T", b"x")) is SystemMessage


def test_only_fields_of_its_class_are_set() -> None:
    assert compiled is not None
    fields = compiled.Fields(SendResult, ("msg_id", "queue"))
    with pytest.raises(TypeError, match="not an object of the class"):
        fields(Message("T", b"x"), ("id", QUEUE))
    with pytest.raises(TypeError, match="value for each field"):
        fields(SendResult.__new__(SendResult), ("id",))
    with pytest.raises(ValueError, match="too many"):
        compiled.Fields(SendResult, ("msg_id",) * 17)
    with pytest.raises(TypeError, match="no slot"):
        compiled.Fields(SendResult, ("__init__",))


# --- what is answered


def a_plain_answer(rng: Random) -> bytes:
    fields = {"msgId": "0A00", "queueId": "3", "TRACE_ON": "true", "queueOffset": str(rng.choice([0, 5, 2**63 - 1]))}
    header = {
        "code": 0,
        "extFields": fields,
        "flag": 1,
        "language": "JAVA",
        "opaque": rng.randrange(1, 8),
        "version": 1,
    }
    return encode_frame(0, json.dumps(header, separators=(",", ":")).encode())


def an_answer(rng: Random) -> bytes:
    if rng.random() < 0.6:
        return a_plain_answer(rng)
    fields: list[tuple[str, Any]] = [("queueId", rng.choice(["3", "3", "3", "0", "+3", "x"]))]
    numbers = ["0", "17", "007", str(2**63 - 1), str(2**63), "-1", "", "٣"]
    fields += [
        ("msgId", rng.choice(["0A00", "0A00", "é", 'x"y', ""])),
        ("queueOffset", rng.choice(["5", "5", *numbers])),
    ]
    fields += rng.choice(
        [[], [], [("MSG_REGION", "r"), ("TRACE_ON", "true")], [("msgId", "again")], [("queueId", "3")]]
    )
    rng.shuffle(fields)
    if rng.random() < 0.1:
        fields.pop()
    ext = ",".join(f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=False)}" for name, value in fields)
    code = rng.choice([0, 0, 0, 0, 0, 10, 14])
    flag = rng.choice([1, 1, 1, 1, 1, 0, 3])
    more = rng.choice(["", "", '"remark":"r",', '"remark":null,', '"language":"JAVA",', '"opaque":1,'])
    opaque = rng.choice([1, 2, 3, 4, 5, 6, 99, -1])
    space = rng.choice(["", "", "", " "])
    text = f'{{"code":{code},{space}"extFields":{{{ext}}},"flag":{flag},{more}"opaque":{opaque},"version":401}}'
    serialize_type = 0 if rng.random() < 0.95 else 1
    return encode_frame(serialize_type, text.encode(), rng.choice([b"", b"", b"body"]))


def frames_of(data: bytes) -> Iterator[bytes]:
    """Pieces that end where frames do, as far as lengths say."""
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        yield data[:end]
        data = data[end:]


def in_python(data: bytes, pending: dict[int, str]) -> tuple[dict[str, SendResult], list[Any], str]:
    """The results, by id, of what was answered, each frame in a read of its own; the other commands; the error."""
    results: dict[str, SendResult] = {}
    others: list[Any] = []
    decoder = FrameDecoder()
    try:
        for frame in frames_of(data):
            for command in [decode_command(*parts) for parts in decoder.feed(frame)]:
                msg_id = pending.pop(command.opaque, None) if command.is_response else None
                if msg_id is None:
                    others.append(command)
                    continue
                try:
                    results[msg_id] = read_send_answer(Outgoing("T", b"", "", msg_id, 0), QUEUE, command)
                except MQError as error:
                    others.append(str(error))
    except MQError as error:
        return results, others, str(error)
    return results, others, ""


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_what_is_answered_is_read_as_in_python(seed: int) -> None:
    assert compiled is not None
    rng = Random(seed)
    taken = 0
    for _ in range(100):
        data = b"".join(an_answer(rng) for _ in range(rng.randrange(1, 5)))
        data = spoilt(rng, data) if rng.random() < 0.5 else data
        pending = {opaque: (None, None, QUEUE, f"id{opaque}", None) for opaque in range(1, 7)}
        stored, at = compiled.take_stored(data, pending, SendResult, SendStatus.SEND_OK)
        taken += len(stored)
        left = {opaque: entry[3] for opaque, entry in pending.items()}
        results, others, error = in_python(data[at:], left)
        for entry, result in stored:
            assert entry[3] not in results
            results[entry[3]] = result
        expected_left = {opaque: f"id{opaque}" for opaque in range(1, 7)}
        assert (results, others, error) == in_python(data, expected_left)
        assert left == expected_left
    assert taken > 10


PLAIN = {
    "code": 0,
    "extFields": {"nextBeginOffset": "32", "minOffset": "0", "maxOffset": "99", "suggestWhichBrokerId": "0"},
    "flag": 1,
    "language": "JAVA",
    "opaque": 5,
    "remark": "FOUND",
    "serializeTypeCurrentRPC": "JSON",
    "version": 399,
}
MEMBERS = [*PLAIN, "more"]
VALUES = [
    0,
    1,
    3,
    -1,
    -(2**31),
    2**31 - 1,
    2**31,
    1.5,
    None,
    True,
    "",
    "GO",
    "NONE",
    'a "b"',
    "é",
    "x" * 300,
    {},
    [],
    {"a": 1},
]
TWICE = ['"language":"GO",', '"remark":"",', '"version":7,', '"extFields":{"a":"b","a":"c"},', '"code":1,']
NAMES = ["nextBeginOffset", "i", "", "é", "a b", "remark"]


def a_response(rng: Random) -> bytes:
    """A response as brokers send it, with up to two changes."""
    fields: dict[str, Any] = {**PLAIN, "extFields": dict(PLAIN["extFields"])}  # type: ignore[call-overload]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        kind = rng.randrange(4)
        if kind == 0:
            fields[rng.choice(MEMBERS)] = rng.choice(VALUES)
        elif kind == 1:
            fields.pop(rng.choice(list(fields)))
        elif type(fields.get("extFields")) is dict and kind == 2:
            fields["extFields"] = {**fields["extFields"], rng.choice(NAMES): rng.choice(VALUES)}
        else:
            fields = dict(rng.sample(list(fields.items()), len(fields)))
    text = json.dumps(fields, separators=(",", ":") if rng.random() < 0.95 else None, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1:
        twice = rng.choice(
            ['"language":"GO",', '"remark":"","', '"version":7,', '"extFields":{"a":"b","a":"c"},', '"code":1,']
        )
        text = "{" + twice.rstrip('"') + text[1:]
    return encode_frame(0 if rng.random() < 0.95 else 1, text.encode(), rng.choice([b"", b"body", b"\0" * 70]))


def heard(data: bytes) -> tuple[list[Any], str]:
    """The commands of whole frames, and the error that ends them."""
    found: list[Any] = []
    decoder = FrameDecoder()
    try:
        for frame in frames_of(data):
            found += [decode_command(*parts) for parts in decoder.feed(frame)]
    except MQError as error:
        return found, str(error)
    return found, ""


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_responses_are_read_as_in_python(seed: int) -> None:
    rng = Random(seed)
    count = 0
    for _ in range(100):
        data = b"".join(a_response(rng) for _ in range(rng.randrange(1, 5)))
        data = spoilt(rng, data) if rng.random() < 0.5 else data
        taken, at = take_responses(b"before" + data, 6)
        others, error = heard(data[at - 6 :])
        assert ([*taken, *others], error) == heard(data)
        assert [type(each.ext_fields) for each in taken] == [dict] * len(taken)
        assert all(each.is_response for each in taken)
        count += len(taken)
    assert count > 50


def test_plain_responses_are_taken() -> None:
    texts = [json.dumps(PLAIN | more, separators=(",", ":")).encode() for more in ({}, {"code": 21})]
    frames = [encode_frame(0, text, b"x") for text in texts]
    ours = encode_command(RemotingCommand(0, {"a": "b"}, b"body", opaque=7, flag=1))
    data = b"".join([*frames, ours])
    taken, at = take_responses(data, 0)
    assert (len(taken), at) == (3, len(data))
    assert taken == heard(data)[0]
    # What is no response, is not whole, or is too large to be a frame, is left.
    request = encode_command(RemotingCommand(0, {"a": "b"}, b"body", opaque=7))
    for rest in (request, ours[:-1], ours[:7], b"\x7f" + ours[1:], b""):
        assert take_responses(data + rest, 0) == (taken, at)
    for at in (-1, len(data) + 1, 1 << 62):
        with pytest.raises(ValueError, match="bytes "):
            take_responses(data, at)


STORED = {**PLAIN, "extFields": {"msgId": "0A", "queueId": "3", "queueOffset": "99"}}


def taken_of(frame: bytes) -> tuple[int, int]:
    """How many responses are taken from a frame, of any kind and of sends."""
    assert compiled is not None
    stored, _ = compiled.take_stored(frame, {5: (None, None, QUEUE, "id", None)}, SendResult, SendStatus.SEND_OK)
    return len(take_responses(frame, 0)[0]), len(stored)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("}", "} "),
        ("}", "}}"),
        ("}", "}x"),
        ("}", "}\0\0\0\0"),
        ("}", ",}"),
        ('"code":0', '"code":00'),
        ('"opaque":5', '"opaque":05'),
        ('"flag":1', '"flag":01'),
        ('"version":399', '"version":0399'),
        ('"opaque":5', '"opaque":-05'),
        ('"opaque":5', '"opaque":5,"opaque":5'),
        ('"flag":1', '"flag":1,"code":0'),
    ],
)
def test_headers_that_are_not_plain_json_are_left(right: str, wrong: str) -> None:
    text = json.dumps(STORED, separators=(",", ":"))
    assert taken_of(encode_frame(0, text.encode(), b"")) == (1, 1)
    head, _, tail = text.rpartition(right)
    assert taken_of(encode_frame(0, f"{head}{wrong}{tail}".encode(), b"")) == (0, 0)


@pytest.mark.parametrize("fewer", range(1, 9))
def test_a_header_that_is_longer_than_its_frame_is_left(fewer: int) -> None:
    """Its end is in the bytes of the next frame; the body would have less than none."""
    text = json.dumps(STORED, separators=(",", ":")).encode()
    frame = struct.pack(">II", 4 + len(text) - fewer, len(text)) + text
    assert taken_of(frame + bytes(64)) == (0, 0)


@pytest.mark.parametrize("more", [0, 1])
def test_responses_with_a_header_above_its_bound_are_left_to_be_refused(more: int) -> None:
    size = HEADER_BYTES_MAX + more
    text = json.dumps(PLAIN | {"remark": ""}, separators=(",", ":"))
    text = text.replace('"remark":""', f'"remark":"{"x" * (size - len(text))}"')
    frame = struct.pack(">II", 4 + size, size) + text.encode()
    assert take_responses(frame, 0)[1] == (0 if more else len(frame))
    stored = {**PLAIN, "extFields": {"msgId": "0A", "queueId": "3", "queueOffset": "99"}, "remark": ""}
    text = json.dumps(stored, separators=(",", ":"))
    text = text.replace('"remark":""', f'"remark":"{"x" * (size - len(text))}"')
    frame = struct.pack(">II", 4 + size, size) + text.encode()
    pending = {5: (None, None, QUEUE, "id", None)}
    assert compiled is not None
    assert len(compiled.take_stored(frame, pending, SendResult, SendStatus.SEND_OK)[0]) == 1 - more


@pytest.mark.parametrize(
    ("said", "is_traced"), [({}, True), ({"TRACE_ON": "true"}, True), ({"TRACE_ON": "false"}, False)]
)
def test_a_result_says_whether_the_broker_wants_a_trace(said: dict[str, str], is_traced: bool) -> None:
    fields = {"msgId": "0A", "queueId": "3", "queueOffset": "99", **said}
    text = json.dumps({**PLAIN, "extFields": fields}, separators=(",", ":")).encode()
    frame = struct.pack(">II", 4 + len(text), len(text)) + text
    assert compiled is not None
    [[(_, result)], _] = compiled.take_stored(
        frame, {5: (None, None, QUEUE, "id", None)}, SendResult, SendStatus.SEND_OK
    )
    assert result.is_traced is is_traced
    assert result == attrs.evolve(result)
