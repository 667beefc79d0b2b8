"""The body of REGISTER_BROKER, in both forms, and what is refused."""

import contextlib
import struct
import zlib
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.wire import registration
from mqbroker.wire.bodies import QUEUES_MAX, DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.body import BadBody
from mqbroker.wire.registration import (
    PIECE_BYTES_MAX,
    STEP_BYTES,
    TOPIC_BYTES_MAX,
    BrokerTopics,
    QueueNumbers,
    body_crc32,
    encode_registration,
    read_registration,
)
from tests.commands import decode_registration

BODY = RegisterBrokerBody(
    TopicConfigSerializeWrapper(
        {"T": TopicConfig("T", 4, 3, 6, "SINGLE_TAG"), "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, 7, "MULTI_TAG")},
        DataVersion(1795255252579, 12),
    ),
    ["127.0.0.1:1"],
)
TOPICS = BrokerTopics(
    {"T": QueueNumbers(4, 3, 6, 0), "%RETRY%g": QueueNumbers(1, 1, 7, 0)},
    DataVersion(1795255252579, 12),
    ["127.0.0.1:1"],
)
# As Java's RegisterBrokerBody writes it, before the stream is compressed.
INFLATED = (
    b'\x00\x00\x00\x28{"timestamp":1795255252579,"counter":12}'
    b"\x00\x00\x00\x02"
    b"\x00\x00\x00\x12T 4 3 6 SINGLE_TAG\x00\x00\x00\x18%RETRY%g 1 1 7 MULTI_TAG"
    b'\x00\x00\x00\x0f["127.0.0.1:1"]'
)


@pytest.mark.parametrize("compressed", [False, True])
def test_both_forms_come_back(compressed: bool) -> None:
    data = encode_registration(BODY, compressed=compressed)
    assert decode_registration(data, compressed=compressed) == TOPICS


def test_the_compressed_form_byte_by_byte() -> None:
    assert zlib.decompress(encode_registration(BODY, compressed=True)) == INFLATED


@pytest.mark.parametrize("compressed", [False, True])
def test_no_body_is_no_topics(compressed: bool) -> None:
    assert decode_registration(b"", compressed=compressed) == BrokerTopics()


@pytest.mark.parametrize("size", range(len(INFLATED)))
def test_a_truncated_stream_is_refused(size: int) -> None:
    with pytest.raises(BadBody):
        decode_registration(zlib.compress(INFLATED[:size]), compressed=True)


@pytest.mark.parametrize(
    "topic", [b"T 4 3 6", b"T x 3 6 SINGLE_TAG", b"T -1 3 6 SINGLE_TAG", b"T 4 3 6 S S", b"\xff 1 1 1 S"]
)
def test_what_is_no_topic_is_refused(topic: bytes) -> None:
    version = b'{"counter":0,"timestamp":0}'
    pieces = struct.pack(">i", len(version)) + version + struct.pack(">ii", 1, len(topic)) + topic
    with pytest.raises(BadBody, match="is not a topic"):
        decode_registration(zlib.compress(pieces + b"\x00\x00\x00\x02[]"), compressed=True)


def pieces(*parts: bytes | int) -> bytes:
    return b"".join(part if isinstance(part, bytes) else struct.pack(">i", part) for part in parts)


VERSION = b'{"counter":0,"timestamp":0}'


def test_a_stream_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1000)
    topic = b"T 4 3 6 SINGLE_TAG"
    stream = pieces(len(VERSION), VERSION, 100, *(each for _ in range(100) for each in (len(topic), topic)), 2, b"[]")
    with pytest.raises(BadBody, match="inflates to more than 1000 bytes"):
        decode_registration(zlib.compress(stream), compressed=True)


@pytest.mark.parametrize(
    ("stream", "size", "size_max"),
    [
        (pieces(2**31 - 1), 2**31 - 1, PIECE_BYTES_MAX),
        (pieces(-1), -1, PIECE_BYTES_MAX),
        (pieces(len(VERSION), VERSION, 1, TOPIC_BYTES_MAX + 1, bytes(5000)), TOPIC_BYTES_MAX + 1, TOPIC_BYTES_MAX),
        (pieces(len(VERSION), VERSION, 0, PIECE_BYTES_MAX + 1), PIECE_BYTES_MAX + 1, PIECE_BYTES_MAX),
    ],
)
def test_a_piece_that_no_broker_sends_is_refused_before_it_is_inflated(stream: bytes, size: int, size_max: int) -> None:
    with pytest.raises(BadBody, match=f"a piece of {size} bytes in a compressed registration, {size_max} at most"):
        decode_registration(zlib.compress(stream + bytes(10_000_000)), compressed=True)


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
def test_a_count_that_no_broker_has_is_refused(count: int) -> None:
    with pytest.raises(BadBody, match=f"a registration of {count} topics"):
        decode_registration(zlib.compress(pieces(len(VERSION), VERSION, count)), compressed=True)


def test_what_follows_the_stream_is_passed_over() -> None:
    data = encode_registration(BODY, compressed=True)
    assert decode_registration(data + b"more", compressed=True) == TOPICS
    assert decode_registration(zlib.compress(INFLATED + b"more"), compressed=True) == TOPICS


def long_body(count: int = 5000, **more: Any) -> dict[str, Any]:
    table = {f"topic-{n}": {"topicName": f"topic-{n}", "perm": 6 + n % 2, "order": False} for n in range(count)}
    for topic in table.values():
        topic |= {"readQueueNums": 4, "writeQueueNums": 3, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 1, **more}
    wrapper = {"dataVersion": {"counter": 3, "timestamp": 2}, "topicConfigTable": table}
    return {"filterServerList": ["f:1"], "topicConfigSerializeWrapper": wrapper}


LONG = BrokerTopics({f"topic-{n}": QueueNumbers(4, 3, 6 + n % 2, 1) for n in range(5000)}, DataVersion(2, 3), ["f:1"])


def steps_of(data: bytes, *, compressed: bool = False) -> tuple[int, BrokerTopics]:
    steps = read_registration(data, compressed=compressed)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_a_long_body_is_read_in_steps() -> None:
    data = orjson.dumps(long_body())
    count, found = steps_of(data)
    assert found == LONG
    assert count == pytest.approx(len(data) / STEP_BYTES, abs=1)


def test_a_long_compressed_body_is_read_in_steps() -> None:
    table = {name: TopicConfig(name, 4, 3, numbers.perm) for name, numbers in LONG.queues.items()}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, LONG.data_version), LONG.filter_servers)
    count, found = steps_of(encode_registration(body, compressed=True), compressed=True)
    without_flags = {name: numbers._replace(topic_sys_flag=0) for name, numbers in LONG.queues.items()}
    assert found == attrs.evolve(LONG, queues=without_flags)
    assert count == 5


@pytest.mark.parametrize("more", [{"attributes": {}}, {"attributes": {"a": "b"}}, {"x": 'a},"b}}'}])
def test_a_long_body_of_another_form_is_read_at_once(more: dict[str, Any]) -> None:
    body = long_body(**more)
    assert steps_of(orjson.dumps(body))[1] == LONG
    count, found = steps_of(orjson.dumps(long_body(3000, **more), option=orjson.OPT_INDENT_2))
    assert (count, list(found.queues.items())) == (0, list(LONG.queues.items())[:3000])


def test_a_long_body_of_a_broker_of_5x_is_read_in_steps() -> None:
    body = long_body()
    table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
    table |= {name: {"attributes": {}, **topic} for name, topic in table.items()}
    data = orjson.dumps(body)
    assert steps_of(data) == (pytest.approx(len(data) / STEP_BYTES, abs=1), LONG)


LISTS = b"[" + b"[]," * 350_000 + b"[]]"


@pytest.mark.parametrize(
    "data",
    [
        b'{"x":%b}' % LISTS,
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"x":%b}}}}' % LISTS,
        b'{"x":%b,"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"}}}}' % LISTS,
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"}}},"x":%b}' % LISTS,
    ],
)
def test_bytes_that_would_take_long_are_refused_unread(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, sizes = orjson.loads, [0]

    def measured(text: bytes) -> Any:
        sizes.append(len(text))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", measured)
    with pytest.raises(BadBody, match="bytes of JSON that is not as brokers write it, 1048576 at most"):
        decode_registration(data, compressed=False)
    assert max(sizes) <= 3 * STEP_BYTES


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("count", [10, 5000])
def test_topics_with_more_queues_than_a_broker_may_have_are_left_out(compressed: bool, count: int) -> None:
    table = {f"topic-{n}": TopicConfig(f"topic-{n}", 4, 4) for n in range(count)}
    table |= {"R": TopicConfig("R", QUEUES_MAX, 1), "W": TopicConfig("W", 1, QUEUES_MAX)}
    good = {name: QueueNumbers(each.read_queue_nums, each.write_queue_nums, 6, 0) for name, each in table.items()}
    for name, read, write in (("X", QUEUES_MAX + 1, 1), ("Y", 1, QUEUES_MAX + 1), ("Z", 2**31 - 1, 2**31 - 1)):
        table[name] = TopicConfig(name, read, write)
    data = encode_registration(RegisterBrokerBody(TopicConfigSerializeWrapper(table)), compressed=compressed)
    found = decode_registration(data, compressed=compressed)
    assert found.queues == good
    assert found.illegal_count == 3


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("servers", [["f:1"] * 101, ["f" * 256]])
def test_more_filter_servers_than_a_broker_has_are_refused(servers: list[str], compressed: bool) -> None:
    data = encode_registration(RegisterBrokerBody(filter_server_list=servers), compressed=compressed)
    with pytest.raises(BadBody, match=f"{len(servers)} filter servers, 100 of 255 characters at most"):
        decode_registration(data, compressed=compressed)


def test_topics_that_lie_alike_share_one_value() -> None:
    _, found = steps_of(orjson.dumps(long_body()))
    assert len({id(numbers) for numbers in found.queues.values()}) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"perm": -1},
        {"readQueueNums": 2**31},
        {"writeQueueNums": "many"},
        {"topicSysFlag": None, "perm": [6]},
        {"topicName": 7},
        {"topicName": None},
    ],
)
@pytest.mark.parametrize("at", [0, 4999])
def test_a_long_body_with_one_wrong_topic_is_refused(wrong: dict[str, Any], at: int) -> None:
    body = long_body()
    body["topicConfigSerializeWrapper"]["topicConfigTable"][f"topic-{at}"] |= wrong
    with pytest.raises(BadBody):
        decode_registration(orjson.dumps(body), compressed=False)


@pytest.mark.parametrize("cut", [1, 100, 300_000])
def test_a_long_body_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BadBody):
        decode_registration(orjson.dumps(long_body())[:-cut], compressed=False)


@pytest.mark.parametrize("compressed", [False, True])
def test_illegal_names_are_counted_and_left_out(compressed: bool) -> None:
    names = ["T", "", "../x", "a" * 256, "%RETRY%" + "g" * 255, "%DLQ%" + "g" * 256, "a.b"]
    table = {name: TopicConfig(name) for name in names}
    data = encode_registration(RegisterBrokerBody(TopicConfigSerializeWrapper(table)), compressed=compressed)
    found = decode_registration(data, compressed=compressed)
    assert sorted(found.queues) == ["%RETRY%" + "g" * 255, "T"]
    assert found.illegal_count == 5


@given(st.binary(max_size=200), st.booleans())
def test_other_bytes_are_refused(data: bytes, wrap: bool) -> None:
    with contextlib.suppress(BadBody):
        decode_registration(zlib.compress(data) if wrap else data, compressed=True)


def test_the_check_value_is_never_negative() -> None:
    assert body_crc32(b"a") == zlib.crc32(b"a") & 0x7FFFFFFF == 0x68B7BE43


@pytest.mark.parametrize("compressed", [False, True])
def test_more_topics_than_a_broker_serves_are_refused(monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    monkeypatch.setattr(registration, "TOPICS_MAX", 2)
    table = {name: TopicConfig(name) for name in ("A", "B", "C")}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table))
    data = encode_registration(body, compressed=compressed)
    with pytest.raises(BadBody, match="3 topics, 2 at most"):
        decode_registration(data, compressed=compressed)
