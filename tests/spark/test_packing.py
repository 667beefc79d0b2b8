"""Rows as bodies of sends: byte for byte what the client makes of the same messages, and each refusal with its row."""

import random
import zlib
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.client import Message
from mqbroker.client.batches import parts_of
from mqbroker.client.options import ProducerOptions
from mqbroker.client.send import Outgoing, prepare, queue_for_key
from mqbroker.spark.errors import BadOption, BadRow, BadSchema
from mqbroker.spark.packing import FreshIds, Packed, Packer, RowIds
from mqbroker.spark.sink_options import choose_sink_columns, parse_sink_options
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import Prop, SysFlag
from mqbroker.wire.ids import UniqIdSource
from mqbroker.wire.properties import decode_properties
from tests.numbers import numbers

NOW_MS = 1_700_000_000_000
QUEUES = [MessageQueue("T", broker, n) for broker in ("a", "b") for n in range(4)]
TYPES = {
    "body": (pa.binary(), "binary"),
    "value": (pa.string(), "string"),
    "topic": (pa.string(), "string"),
    "tags": (pa.string(), "string"),
    "keys": (pa.list_(pa.string()), "array<string>"),
    "key": (pa.string(), "string"),
    "properties": (pa.map_(pa.string(), pa.string()), "map<string,string>"),
    "headers": (
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "array<struct<key:string,value:binary>>",
    ),
    "shardingKey": (pa.string(), "string"),
    "brokerName": (pa.string(), "string"),
    "queueId": (pa.int32(), "int"),
    "delayTimeLevel": (pa.int32(), "int"),
    "flag": (pa.int32(), "int"),
    "uniqKey": (pa.string(), "string"),
    "order": (pa.int64(), "bigint"),
}


def ids() -> UniqIdSource:
    return UniqIdSource("10.1.2.3", 4, 5, lambda: NOW_MS / 1000)


def packed(
    rows: Mapping[str, Any],
    first: int = 0,
    types: dict[str, Any] | None = None,
    partition: int = 3,
    **options: Any,
) -> list[Packed]:
    given = {"nameServer": "a:1", "topic": "T"} | {n: v for n, v in options.items() if v is not None}
    if given["topic"] == "":
        del given["topic"]
    checked = parse_sink_options(given)
    arrow = TYPES | (types or {})
    arrays = [v if isinstance(v, pa.Array) else pa.array(v, arrow[n][0]) for n, v in rows.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(rows))
    columns = choose_sink_columns([(n, arrow[n][1]) for n in rows], checked)
    once = "guarantee" in given
    packer = Packer(
        columns=columns,
        topic=checked.topic,
        batch_bytes=checked.batch_bytes,
        partition=partition,
        write_id="w",
        ids=RowIds("w", partition) if once else FreshIds(ids()),
        queues=lambda topic: [MessageQueue(topic, q.broker_name, q.queue_id) for q in QUEUES],
        now_ms=lambda: NOW_MS,
    )
    return [each for piece in packer.pieces(batch, first) for each in packer.cut(piece)]


def same(found: Outgoing, wanted: Outgoing) -> None:
    """Compare what is sent; the packer leaves the ids of a result out."""
    for name in ("topic", "body", "properties", "born_timestamp_ms", "sys_flag", "flag", "is_batch"):
        assert getattr(found, name) == getattr(wanted, name), name


text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
key = text.filter(lambda each: len(each.split()) == 1)
tag = text.filter(lambda each: each == each.strip() and each != "*" and "||" not in each)
name = text.filter(lambda each: each not in {v for n, v in vars(Prop).items() if not n.startswith("_")})
message = st.builds(
    Message,
    st.just("T"),
    st.binary(min_size=1, max_size=300),
    tags=st.none() | tag,
    keys=st.lists(key, max_size=3),
    properties=st.dictionaries(name, text, max_size=3),
    flag=numbers(-(2**31), 2**31 - 1),
    unique_key=st.none() | text,
)


def columns_of(messages: list[Message]) -> dict[str, list[Any]]:
    return {
        "body": [m.body for m in messages],
        "tags": [m.tags for m in messages],
        "keys": [list(m.keys) or None for m in messages],
        "properties": [list(m.properties.items()) for m in messages],
        "flag": [m.flag for m in messages],
        "uniqKey": [m.unique_key for m in messages],
    }


@given(st.lists(message, min_size=1, max_size=8))
def test_a_batch_is_what_the_client_makes_of_the_messages(messages: list[Message]) -> None:
    (found,) = packed(columns_of(messages))
    # An id is taken for each row, whether or not it has its own.
    source = ids()
    made = [source() for _ in messages]
    taken = iter([n for n, m in zip(made, messages, strict=True) if m.unique_key is None])
    (part,) = parts_of(messages, ProducerOptions())
    same(found.outgoing, part.outgoing(lambda: next(taken), NOW_MS))
    assert found.queue is None
    assert found.key_texts() == [m.unique_key or n for m, n in zip(messages, made, strict=True)]


@given(message, st.integers(1, 18))
def test_a_delayed_row_is_a_message_of_its_own(message: Message, level: int) -> None:
    (found,) = packed(columns_of([message]) | {"delayTimeLevel": [level]})
    same(found.outgoing, prepare(attrs.evolve(message, delay_level=level), ProducerOptions(), ids(), NOW_MS))


def test_a_row_that_is_larger_than_a_batch_is_a_message_of_its_own() -> None:
    small, large = packed({"body": [b"small", b"l" * 4000]}, batchBytes="1000")
    assert (small.outgoing.is_batch, large.outgoing.is_batch) == (True, False)
    source = ids()
    source()
    same(large.outgoing, prepare(Message("T", b"l" * 4000), ProducerOptions(), source, NOW_MS))


def test_long_bodies_are_compressed_as_by_the_client_and_have_batches_of_their_own() -> None:
    short, long = packed({"body": [b"x" * 5000, b"short", b"y" * 4096]})
    assert (short.outgoing.sys_flag, long.outgoing.sys_flag) == (0, SysFlag.COMPRESSED)
    assert [zlib.decompress(entry.body) for entry in decode_batch(long.outgoing.body)] == [b"x" * 5000, b"y" * 4096]
    assert [each.rows.tolist() for each in (short, long)] == [[1], [0, 2]]
    random_bytes = random.Random(1).randbytes(5000)
    (one,) = packed({"body": [b"short", random_bytes]})
    assert one.outgoing.sys_flag == 0
    assert bodies(one) == [b"short", random_bytes]
    (alone,) = packed({"body": [b"x" * 5000], "delayTimeLevel": [1]})
    same(alone.outgoing, prepare(Message("T", b"x" * 5000, delay_level=1), ProducerOptions(), ids(), NOW_MS))


def bodies(each: Packed) -> list[bytes]:
    return [entry.body for entry in decode_batch(each.outgoing.body)]


@given(st.lists(st.none() | st.sampled_from(["k1", "k2", "größe", "x" * 40]), min_size=1, max_size=40))
def test_one_sharding_key_has_the_queue_that_javas_selector_chooses_and_keeps_its_order(keys: list[str | None]) -> None:
    rows = {"body": [f"{n}".encode() for n in range(len(keys))], "shardingKey": keys}
    found = packed(rows, batchBytes="200")
    order: dict[str | None, list[int]] = {}
    for each in found:
        for body in bodies(each):
            of = keys[int(body)]
            assert each.queue == (None if of is None else queue_for_key(QUEUES, of))
            order.setdefault(of, []).append(int(body))
    assert sum(map(len, order.values())) == len(keys)
    assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.parametrize(
    ("number", "kind", "java_hash"),
    # Integer.hashCode and Long.hashCode of Java.
    [
        (7, "int", 7),
        (-7, "int", -7),
        (7, "bigint", 7),
        (-7, "bigint", 6),
        (2**33 + 5, "bigint", 7),
        (-(2**31), "int", 2**31),
    ],
)
def test_whole_numbers_are_sharded_by_their_hashes_in_java(number: int, kind: str, java_hash: int) -> None:
    arrow = pa.int32() if kind == "int" else pa.int64()
    (found,) = packed({"body": [b"x"], "shardingKey": [number]}, types={"shardingKey": (arrow, kind)})
    assert found.queue == QUEUES[abs(java_hash) % 8]


def test_order_holds_where_long_and_short_bodies_of_a_queue_mix() -> None:
    rows = {"body": [b"1", b"2" * 5000, b"3", b"4" * 5000], "shardingKey": ["k"] * 4}
    assert [each.rows.tolist() for each in packed(rows)] == [[0], [1], [2], [3]]


def test_rows_name_their_queues() -> None:
    rows = {"body": [b"1", b"2", b"3"], "brokerName": ["b", None, "b"], "queueId": [2, None, 2]}
    found = {None if each.queue is None else each.queue.queue_id: bodies(each) for each in packed(rows)}
    assert found == {None: [b"2"], 2: [b"1", b"3"]}


def test_rows_name_their_topics_unless_the_option_does() -> None:
    rows = {"body": [b"1", b"2", b"3"], "topic": ["A", "B", "A"]}
    assert {each.outgoing.topic: bodies(each) for each in packed(rows, topic="")} == {"A": [b"1", b"3"], "B": [b"2"]}
    assert [each.outgoing.topic for each in packed(rows, topic="C")] == ["C"]


def test_sends_to_several_queues_take_turns() -> None:
    rows = {"body": [b"x" * 90] * 8, "shardingKey": ["k1", "k2"] * 4}
    queues = [each.queue for each in packed(rows, batchBytes="200")]
    assert len(queues) == 8
    assert queues[0::2] == [queues[0]] * 4
    assert queues[1::2] == [queues[1]] * 4
    assert queues[0] != queues[1]


def test_batches_have_the_bytes_that_the_option_says() -> None:
    found = packed({"body": [b"x" * 100] * 1000}, batchBytes="5000")
    assert all(len(each.outgoing.body) <= 5000 for each in found)
    assert all(len(each.outgoing.body) > 4700 for each in found[:-1])
    assert [n for each in found for n in each.rows.tolist()] == list(range(1000))


def test_names_of_spark_s_kafka_sink_are_understood() -> None:
    rows = {"value": ["v"], "key": ["k"], "headers": [[{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]]}
    (found,) = packed(rows)
    (entry,) = decode_batch(found.outgoing.body)
    assert entry.body == b"v"
    properties = decode_properties(entry.properties)
    assert {name: properties[name] for name in ("a", "b", "KEYS")} == {"a": "1", "b": "2", "KEYS": "k"}


def test_keys_as_one_text_are_split_at_blanks() -> None:
    (found,) = packed({"body": [b"x", b"y"], "keys": [" a  b ", "  "]}, types={"keys": (pa.string(), "string")})
    texts = [decode_properties(entry.properties).get("KEYS") for entry in decode_batch(found.outgoing.body)]
    assert texts == ["a b", None]


def test_slices_of_record_batches_are_packed_as_such() -> None:
    whole = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"0", b"1", b"2"], pa.binary()),
            "keys": pa.array([["a"], ["b", "c"], None], pa.list_(pa.string())),
            "properties": pa.array([[("p", "0")], [("p", "1")], []], pa.map_(pa.string(), pa.string())),
        }
    )
    options = parse_sink_options({"nameServer": "a:1", "topic": "T"})
    columns = choose_sink_columns(
        [("body", "binary"), ("keys", "array<string>"), ("properties", "map<string,string>")], options
    )
    packer = Packer(columns, "T", 1000, 0, "w", FreshIds(ids()), lambda topic: QUEUES, lambda: NOW_MS)
    (piece,) = packer.pieces(whole.slice(1), 10)
    (found,) = packer.cut(piece)
    entries = decode_batch(found.outgoing.body)
    assert [entry.body for entry in entries] == [b"1", b"2"]
    assert [decode_properties(entry.properties).get("p") for entry in entries] == ["1", None]
    assert [decode_properties(entry.properties).get("KEYS") for entry in entries] == ["b c", None]
    assert found.rows.tolist() == [10, 11]


ONCE: dict[str, Any] = {"guarantee": "effectively-once"}


def test_unique_keys_of_a_row_are_the_same_in_each_attempt() -> None:
    (whole,) = packed({"body": [b"x"] * 5}, **ONCE)
    (part,) = packed({"body": [b"x"] * 2}, first=3, **ONCE)
    assert whole.key_texts()[3:] == part.key_texts()
    assert len(set(whole.key_texts())) == 5
    assert all(len(each) == 32 for each in whole.key_texts())
    assert RowIds("w", 3).of(2**40, 1).tobytes() != RowIds("w", 4).of(2**40, 1).tobytes()
    assert RowIds("w", 3).of(2**40, 1).tobytes()[20:] == b"010000000000"


@pytest.mark.parametrize("first", [0, 1, 2**16 - 2, 2**16, 2**32 - 1, 2**47])
@pytest.mark.parametrize("count", [1, 3, 2**16 + 3])
def test_ids_of_rows_end_with_their_numbers(first: int, count: int) -> None:
    found = RowIds("w", 3).of(first, count)
    assert found.shape == (count, 32)
    assert {key.tobytes()[:20] for key in found} == {RowIds("w", 3).of(0, 1).tobytes()[:20]}
    assert [int(key.tobytes()[20:], 16) for key in found] == list(range(first, first + count))


def test_unique_keys_by_columns_do_not_depend_on_the_row() -> None:
    (whole,) = packed({"body": [b"x"] * 3, "order": [1, 2, None]}, idColumns="order", **ONCE)
    (turned,) = packed({"body": [b"y"] * 3, "order": [None, 2, 1]}, first=7, idColumns="order", **ONCE)
    assert whole.key_texts() == turned.key_texts()[::-1]
    assert len(set(whole.key_texts())) == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"body": [b"x", None]}, "row 101 of partition 3, column body: is null"),
        ({"body": [b"x", b""]}, "row 101 of partition 3, column body: is empty"),
        ({"body": [b"x", b"x" * (4 * 1024 * 1024 + 1)]}, "row 101 .* is 4194305 bytes, the limit is 4194304"),
        ({"body": [b"x", b"y"], "tags": ["ok", "a || b"]}, "row 101 .*column tags: 'a || b' is not a tag"),
        ({"body": [b"x", b"y"], "tags": ["ok", "a\x01"]}, r"row 101 .*column tags: holds \\x01"),
        ({"body": [b"x", b"y"], "keys": [["a"], ["b", "c d"]]}, "row 101 .*column keys: 'c d' holds blanks"),
        ({"body": [b"x", b"y"], "keys": [["a"], ["b", None]]}, "row 101 .*column keys: has a null"),
        ({"body": [b"x", b"y"], "keys": [["a"], [""]]}, "row 101 .*column keys: has an empty one"),
        ({"body": [b"x", b"y"], "key": ["a", "b\u3000c"]}, "row 101 .*column key: .* holds blanks"),
        ({"body": [b"x", b"y"], "properties": [[], [("a", "1"), ("TAGS", "2")]]}, "row 101 .*TAGS is the system's own"),
        ({"body": [b"x", b"y"], "properties": [[], [("a", None)]]}, "row 101 .*empty or null"),
        ({"body": [b"x", b"y"], "properties": [[], [("a\x02", "1")]]}, r"row 101 .*properties: holds \\x01"),
        ({"body": [b"x", b"y"], "properties": [[], [("a", "1" * 33000)]]}, "row 101 .*the limit is 32767"),
        ({"body": [b"x", b"y"], "delayTimeLevel": [None, 19]}, "row 101 .*delayTimeLevel: 19 is not from 0 to 18"),
        ({"body": [b"x", b"y"], "brokerName": [None, "c"], "queueId": [None, 0]}, "row 101 .*no queue 0 on c"),
        ({"body": [b"x", b"y"], "brokerName": [None, "a"], "queueId": [None, None]}, "row 101 .*queueId: is null"),
        (
            {"body": [b"x", b"y"], "brokerName": [None, "a"], "queueId": [None, 0], "shardingKey": ["k", "k"]},
            "row 101 .*shardingKey: and brokerName name two queues",
        ),
        ({"body": [b"x", b"y"], "uniqKey": ["a", "b\x01"]}, "row 101 .*uniqKey"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(rows: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(BadRow, match=message):
        packed(rows, first=100)


@pytest.mark.parametrize("topic", [None, "no topic!", "%RETRY%g"])
def test_a_row_without_a_topic_that_can_be_written_to_is_named(topic: str | None) -> None:
    with pytest.raises(BadRow, match="row 1 of partition 3, column topic"):
        packed({"body": [b"x", b"y"], "topic": ["T", topic]}, topic="")


def test_text_that_is_not_utf_8_is_named() -> None:
    # As Spark's CAST(body AS STRING) makes it.
    raw = pa.array([b"ok", b"\xff"], pa.binary())
    tags = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    with pytest.raises(BadRow, match="row 1 of partition 3, column tags: is not UTF-8"):
        packed({"body": [b"x", b"y"], "tags": tags})


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ([("body", "binary"), ("tag", "string")], {}, "column tag: messages have no such column; did you mean tags"),
        ([("body", "int")], {}, "column body: its type is int, and must be binary or string"),
        ([("tags", "string")], {}, "column body: is missing"),
        ([("body", "binary"), ("value", "string")], {}, "there are two columns for body"),
        ([("body", "binary")], {"topic": None}, "column topic: is missing"),
        ([("body", "binary"), ("queueId", "int")], {}, "column brokerName: is missing"),
        ([("body", "binary"), ("partition", "int")], {}, "column partition: cannot be written; name the queue by"),
        ([("body", "binary"), ("storeTimestamp", "timestamp")], {}, "the broker sets it"),
        ([("body", "binary"), ("delayTimeLevel", "int")], ONCE, "column delayTimeLevel: a delayed message"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(
    fields: list[tuple[str, str]], options: dict[str, Any], message: str
) -> None:
    given = {"nameServer": "a:1", "topic": "T"} | options
    checked = parse_sink_options({name: value for name, value in given.items() if value is not None})
    with pytest.raises(BadSchema, match=message):
        choose_sink_columns(fields, checked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "x"}, "option nameServer: is required: .*Tables in a catalog lose their options: write CREATE TEMP"),
        ({"nameserver": "a:1", "acks": "all"}, "option acks: 'all' is not one of stored, flushed, replicated"),
        ({"nameserver": "a:1", "guarantee": "exactly-once"}, "option guarantee: 'exactly-once' is not one of"),
        ({"nameserver": "a:1", "startingoffsets": "latest"}, "option startingOffsets: is an option of reads"),
        ({"nameserver": "a:1", "ack": "stored"}, "did you mean acks"),
        ({"kafka.bootstrap.servers": "a:1"}, "of Spark's Kafka sink; the address is nameServer=host:port"),
        ({"kafka.acks": "all"}, "option kafka.acks: .*Kafka sink; which results of a broker count is acks"),
        ({"kafka.linger.ms": "5"}, "no settings of Kafka's client; leave it out"),
        ({"kafka.transactional.id": "t"}, "Kafka sink; rows that are there already are left out with guarantee=eff"),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            "Kafka sink; connections are encrypted by tls=true with tlsCa, the account ",
        ),
        ({"includeheaders": "true"}, "option includeHeaders: .*Kafka sink; a column headers is written"),
        ({"nameserver": "a:1", "topic": "a", "path": "b"}, "option topic: is 'a', and save"),
        ({"nameserver": "a:1", "topic": "no topic!"}, "option topic: 'no topic!'"),
        ({"nameserver": "a:1", "topic": "%RETRY%g"}, "brokers take no batches for retry topics"),
        ({"nameserver": "a:1", "batchbytes": "0"}, "option batchBytes"),
        ({"nameserver": "a:1", "namespace": "a%b"}, "option namespace"),
        ({"nameserver": "a:1", "producergroup": "no group!"}, "option producerGroup"),
        ({"nameserver": "a:1", "idcolumns": "order"}, "option idColumns: is used with guarantee=effectively-once"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_sink_options(options)


def test_id_columns_must_be_there_and_tell_rows_apart() -> None:
    options = parse_sink_options(
        {"nameServer": "a:1", "path": "T", "idColumns": "order", "checkpointLocation": "/x"} | ONCE
    )
    assert options.topic == "T"
    with pytest.raises(BadOption, match="there is no column order"):
        choose_sink_columns([("body", "binary")], options)
    with pytest.raises(BadOption, match="cannot identify a row"):
        choose_sink_columns([("body", "binary"), ("order", "double")], options)


def far(kind: Any, values: list[bytes], before: int = 2**31 + 5) -> Any:
    """Values in a column with a first one of `before` bytes, all of them NUL, that memory does not hold."""
    data = np.zeros(before + sum(map(len, values)), np.uint8)
    data[before:] = np.frombuffer(b"".join(values), np.uint8)
    offsets = np.cumsum([0, before, *map(len, values)], dtype=np.int64)
    return pa.Array.from_buffers(kind, len(values) + 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def test_columns_of_more_than_2_gib_are_packed_as_small_ones() -> None:
    texts = {"body": [b"x", b"yy"], "tags": [b"a", b"b"], "uniqKey": [b"u1", b"u2"], "shardingKey": [b"s", b"t"]}
    kinds = {name: pa.large_string() for name in texts} | {"body": pa.large_binary()}
    lists = pa.ListArray.from_arrays([0, 1, 2], far(pa.large_string(), [b"k1", b"k2"])[1:])
    entries = far(pa.large_string(), [b"n1", b"n2"])[1:], far(pa.large_string(), [b"v1", b"v2"])[1:]
    properties = pa.MapArray.from_arrays([0, 1, 2], *entries)
    large = {name: far(kinds[name], values)[1:] for name, values in texts.items()}
    small = {name: [value if name == "body" else value.decode() for value in values] for name, values in texts.items()}
    found = packed(large | {"keys": lists, "properties": properties}, idColumns="uniqKey", **ONCE)
    same_rows = {"keys": [["k1"], ["k2"]], "properties": [[("n1", "v1")], [("n2", "v2")]]}
    wanted = packed(small | same_rows, idColumns="uniqKey", **ONCE)
    assert [each.key_texts() for each in found] == [each.key_texts() for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        same(one.outgoing, other.outgoing)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("body", "column body: is 2147483653 bytes, the limit is 4194304"),
        ("tags", "column tags: is 2147483653 bytes, the limit is 32767"),
        ("shardingKey", "column shardingKey: is 2147483653 bytes, the limit is 32767"),
    ],
)
def test_a_value_of_2_gib_is_refused(name: str, why: str) -> None:
    kind = pa.large_binary() if name == "body" else pa.large_string()
    rows = {"body": [b"x", b"y"]} | {name: far(kind, [b"z"])}
    with pytest.raises(BadRow, match=f"^row 0 of partition 3, {why}"):
        packed(rows)
