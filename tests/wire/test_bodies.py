from __future__ import annotations

import json
import types
import typing
from typing import Any, cast, get_args, get_origin

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject

from mqbroker.wire import admin_bodies, bodies, fastjson
from mqbroker.wire import body as body_module
from mqbroker.wire.admin_bodies import (
    ConsumeStats,
    GetConsumerStatusBody,
    GroupList,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
    read_offsets,
    topic_bounds,
)
from mqbroker.wire.bodies import (
    QUEUES_MAX,
    BrokerData,
    CheckClientRequestBody,
    ClusterInfo,
    ConsumerConnection,
    ConsumerData,
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerConnection,
    QueueData,
    RegisterBrokerBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from mqbroker.wire.body import BadBody, Body, Int
from mqbroker.wire.headers import camel_case
from tests.commands import decode_frame
from tests.numbers import numbers
from tests.wire.conftest import GoldenFrame

CLASSES = {
    name: value
    for name, value in {**vars(bodies), **vars(admin_bodies)}.items()
    if isinstance(value, type) and issubclass(value, Body) and value is not Body
}
# (request code, side) of the golden frames whose body is of a class.
GOLDEN = {
    (21, "response"): TopicConfigSerializeWrapper,
    (28, "response"): KVTable,
    (34, "request"): HeartbeatData,
    (38, "response"): GetConsumerListByGroupResponseBody,
    (41, "request"): LockBatchRequestBody,
    (41, "response"): LockBatchResponseBody,
    (42, "request"): LockBatchRequestBody,
    (43, "response"): ConsumerOffsetSerializeWrapper,
    (46, "request"): CheckClientRequestBody,
    (103, "request"): RegisterBrokerBody,
    (105, "response"): TopicRouteData,
    (106, "response"): ClusterInfo,
    (200, "request"): SubscriptionGroupConfig,
    (201, "response"): SubscriptionGroupWrapper,
    (202, "response"): TopicStatsTable,
    (203, "response"): ConsumerConnection,
    (204, "response"): ProducerConnection,
    (206, "response"): TopicList,
    (208, "response"): ConsumeStats,
    (224, "response"): TopicList,
    (300, "response"): GroupList,
    (304, "response"): TopicList,
    (305, "response"): TopicList,
    (321, "response"): QueryConsumeQueueResponseBody,
    (328, "response"): ProducerTableInfo,
}


def key_of(field: attrs.Attribute) -> str:
    return field.metadata.get("key") or camel_case(field.name)


def smallest(cls: type[Any]) -> dict[str, Any]:
    """The fields that must be there, and no other."""
    fields = [field for field in attrs.fields(cls) if field.default is attrs.NOTHING]
    samples = {
        "int": 1,
        "Int": 1,
        "MessageQueue": {"topic": "x", "brokerName": "x", "queueId": 1},
        "list": [],
        "dict": {},
    }
    return {key_of(field): samples.get(field.type.partition("[")[0], "x") for field in fields}


def unordered(value: Any) -> Any:
    """Arrays in one order, since Java's sets have none; map keys as text, since some are written both ways."""
    if isinstance(value, dict):
        return {str(key): unordered(item) for key, item in sorted(value.items(), key=repr)}
    if isinstance(value, list):
        return sorted((unordered(item) for item in value), key=repr)
    return value


def test_the_fields_are_those_of_java(protocol: dict[str, dict[str, Any]]) -> None:
    whole_bodies = set(CLASSES) & set(protocol["bodies"])
    assert len(whole_bodies) > 12  # the other classes are parts, which the recorded frames hold
    for name in whole_bodies:
        wanted = [field["name"] for field in protocol["bodies"][name]]
        assert [key_of(field) for field in attrs.fields(cast(Any, CLASSES[name]))] == wanted, name


def test_bounds_of_a_topic_are_those_of_its_table(golden_frame: GoldenFrame) -> None:
    if (golden_frame.code, golden_frame.side) != (202, "response"):
        return
    body = decode_frame(golden_frame.data).body
    table = TopicStatsTable.from_json(body).offset_table
    (topic,) = {queue.topic for queue in table}
    wanted = {queue.queue_id: (found.min_offset, found.max_offset) for queue, found in table.items()}
    assert topic_bounds(body, topic) == topic_bounds(TopicStatsTable(table).to_json(), topic) == wanted
    # As of 5.x, which adds a field.
    assert topic_bounds(body[:-1] + b',"topicPutTps":0.5}', topic) == wanted
    assert topic_bounds(body, "other") == {}


def test_bounds_of_many_queues_and_of_none_are_read() -> None:
    many = {MessageQueue("T", "a", n): TopicOffset(n, 2**63 - 1 - n, n) for n in range(4000)}
    assert topic_bounds(TopicStatsTable(many).to_json(), "T") == {n: (n, 2**63 - 1 - n) for n in range(4000)}
    assert topic_bounds(TopicStatsTable().to_json(), "T") == {}
    assert topic_bounds(b'{"offsetTable":null}', "T") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":1}}}',
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":1.5,"minOffset":0}}}',
        b'{"offsetTable":{{"brokerName":"a","queueId":true,"topic":"T"}:{"maxOffset":1,"minOffset":0}}}',
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":1,"minOffset":0}',
        b" " * 2**20 + b'{"offsetTable":{}}',
    ],
)
def test_bounds_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(BadBody, match="TopicStatsTable"):
        topic_bounds(body, "T")


def test_golden_bodies_come_back_as_they_were(golden_frame: GoldenFrame) -> None:
    cls: type[Any] | None = GOLDEN.get((golden_frame.code, golden_frame.side))
    command = decode_frame(golden_frame.data)
    if cls is None or not command.body:
        return
    body = cls.from_json(command.body)
    assert unordered(fastjson.loads(body.to_json())) == unordered(fastjson.loads(command.body))
    assert cls.from_json(body.to_json()) == body


def test_every_class_of_a_whole_body_was_recorded(golden_frames: list[GoldenFrame]) -> None:
    seen = {(frame.code, frame.side) for frame in golden_frames if decode_frame(frame.data).body}
    recorded = {cls for key, cls in GOLDEN.items() if key in seen}
    assert recorded == set(GOLDEN.values())


def strategy_for(kind: Any) -> st.SearchStrategy:
    origin = get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return st.none() | strategy_for(get_args(kind)[0])
    if origin is dict:
        return st.dictionaries(*map(strategy_for, get_args(kind)), max_size=3)
    if origin is frozenset:
        return st.frozensets(strategy_for(get_args(kind)[0]), max_size=3)
    if origin is list:
        return st.lists(strategy_for(get_args(kind)[0]), max_size=3)
    if kind in CLASSES.values():
        return any_of(kind)
    return {
        int: numbers(-(2**63), 2**63 - 1),
        Int: numbers(-(2**31), 2**31 - 1),
        str: st.text(max_size=6),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }[kind]


def any_of(cls: type[Any]) -> st.SearchStrategy:
    hints = typing.get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{field.name: strategy_for(hints[field.name]) for field in attrs.fields(cls)})


@settings(max_examples=500)
@given(st.sampled_from(list(CLASSES.values())).flatmap(any_of))
def test_any_body_survives(body: Body) -> None:
    assert type(body).from_json(body.to_json()) == body


_KINDS = (ResetOffsetBody, "offset_table"), (GetConsumerStatusBody, "message_queue_table")
#: As Java's consumers write them, and as nobody does.
_FORMS = (
    (b',"consumerTable":{}}', b"}"),
    (b'{"messageQ', b'{"consumerTable":{},"messageQ'),
    (b"}:", b"} :"),
)


@given(st.sampled_from(_KINDS), strategy_for(dict[MessageQueue, int]), numbers(0, len(_FORMS)))
def test_offsets_by_queue_are_those_of_the_whole_body(
    of: tuple[Any, str], offsets: dict[MessageQueue, int], forms: int
) -> None:
    kind, field = of
    data = kind(**{field: offsets}).to_json()
    for old, new in _FORMS[:forms]:
        data = data.replace(old, new)
    assert read_offsets(data, kind) == getattr(kind.from_json(data), field)


@pytest.mark.parametrize(("kind", "field"), _KINDS)
def test_offsets_of_as_many_queues_as_a_topic_may_have_are_read(kind: Any, field: str) -> None:
    offsets = {MessageQueue("t" * 127, "broker", number): number for number in range(QUEUES_MAX)}
    data = kind(**{field: offsets}).to_json()
    assert read_offsets(data, kind) == offsets
    offsets[MessageQueue("u", "broker", 0)] = 0
    with pytest.raises(BadBody, match=f"{kind.__name__}: offsets of more than {QUEUES_MAX} queues"):
        read_offsets(kind(**{field: offsets}).to_json(), kind)
    of_one = b'{"brokerName":"","queueId":0,"topic":""}:0'
    many = b'{"%s":{%s}}' % (data.partition(b'":{')[0][2:], b",".join([of_one] * (QUEUES_MAX + 1)))
    with pytest.raises(BadBody, match="offsets of more than"):
        read_offsets(many, kind)
    for broken in (data[:-1], data + b"}", data.replace(b'"t', b'"\xff', 1), data.replace(b'"queueId":7,', b"", 1)):
        with pytest.raises(BadBody):
            read_offsets(broken, kind)


def test_what_is_of_scalars_alone_is_written_as_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [
        MessageQueue("T", "b", 1), admin_bodies.TopicOffset(1, 2, 3), SubscriptionGroupConfig("g"),
        admin_bodies.MessageQueueForC("T", "b", 1, 2), DataVersion(1, 2),
    ]  # fmt: skip
    fast = [value.to_value() for value in values]
    assert {type(value) for value in values} <= body_module._flat
    monkeypatch.setattr(body_module, "_flat", set())
    assert fast == [value.to_value() for value in values]


@settings(max_examples=500)
@given(st.sampled_from(list(CLASSES.values())).flatmap(any_of))
def test_a_body_in_pieces_is_the_same(body: Body) -> None:
    assert b"".join(body.json_pieces()) == body.to_json()


@given(st.one_of(any_of(ConsumerOffsetSerializeWrapper), any_of(bodies.LmqConsumerOffsets)))
def test_offsets_are_written_as_any_body_is(body: Body) -> None:
    assert body.to_json() == fastjson.dumps(body.to_value())


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_a_field_without_a_default_must_be_there(cls: type[Body]) -> None:
    whole = smallest(cls)
    assert isinstance(cls.from_value(whole), cls)
    for key in whole:
        for bad in ({name: item for name, item in whole.items() if name != key}, {**whole, key: None}):
            with pytest.raises(BadBody, match=f"{cls.__name__}.{key} is missing"):
                cls.from_value(bad)


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"1", b'"x"', b"true", b"{", b"\xff", b"[" * 100_000, b"{1:" * 9999]
)
def test_what_is_no_object_is_refused(cls: type[Body], data: bytes) -> None:
    with pytest.raises(BadBody, match=cls.__name__):
        cls.from_json(data)


WRONG = {
    int: [1.5, True, "x", "", [], {}],
    str: [1, True, [], {}],
    bool: [0, 1.5, "true", [], {}],
    float: [True, "x", [], {}],
    dict: [1, "x", True, []],
    list: [1, "x", True, {}, [{1: 1.5}], [[]]],
    frozenset: [1, "x", True, {}, [1.5], [[]]],
    Body: [1, "x", True, []],
}


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_a_field_of_another_type_is_refused(cls: type[Any]) -> None:
    hints = typing.get_type_hints(cls)
    whole = smallest(cls)
    for field in attrs.fields(cls):
        kind = hints[field.name]
        kind = get_args(kind)[0] if get_origin(kind) in (types.UnionType, typing.Union) else kind
        kind = Body if kind in CLASSES.values() else get_origin(kind) or kind
        for wrong in WRONG[kind]:
            if (cls, wrong) == (ConsumerData, 1) and key_of(field) in bodies._CONSUMER_WORDS:
                continue
            with pytest.raises(BadBody, match=r"( must be | is missing)"):
                cls.from_value({**whole, key_of(field): wrong})


def test_how_a_group_consumes_may_be_said_by_numbers() -> None:
    data = {"groupName": "G", "consumeType": 0, "messageModel": 0, "consumeFromWhere": 4}
    found = ConsumerData.from_value(data)
    assert found == ConsumerData("G", "CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")
    for key in ("consumeType", "messageModel", "consumeFromWhere"):
        for number in (-1, 6, 2**70):
            with pytest.raises(BadBody, match=f"ConsumerData.{key} must be a word or the number of one"):
                ConsumerData.from_value({**data, key: number})


@pytest.mark.parametrize(("key", "bits"), [("queueId", 32), ("counter", 64)])
def test_numbers_are_no_larger_than_java_reads(key: str, bits: int) -> None:
    def read(number: int | str) -> int | None:
        if key == "counter":
            return DataVersion.from_value({key: number}).counter
        return MessageQueue.from_value({"topic": "T", "brokerName": "b", key: number}).queue_id

    most = 2 ** (bits - 1)
    for number in (most - 1, -most):
        assert read(number) == read(str(number)) == number
    for number in (most, -most - 1, 10**30):
        with pytest.raises(BadBody, match=f"{key} must be a {bits}-bit integer|{key} must be int"):
            read(number)


@pytest.mark.parametrize(
    "text", ["", "-", "--5", "+5", " 5", "5 ", "5\n", "1.0", "1e3", "0x1", "\xb2", "\u0661", "9" * 21]
)
def test_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadBody, match=r"DataVersion\.counter must be int"):
        DataVersion.from_value({"counter": text})
    with pytest.raises(BadBody):
        BrokerData.from_value({"brokerName": "b", "brokerAddrs": {text: "1.2.3.4:5"}})


def test_numbers_may_be_text_as_fastjson_takes_them() -> None:
    assert DataVersion.from_value({"timestamp": "-12", "counter": "007"}) == DataVersion(-12, 7)


def test_keys_may_be_quoted_or_bare() -> None:
    wanted = BrokerData("b", "c", {0: "1.2.3.4:10911", 1: "1.2.3.4:10921"})
    for addresses in ('{"0":"1.2.3.4:10911","1":"1.2.3.4:10921"}', '{0:"1.2.3.4:10911",1:"1.2.3.4:10921"}'):
        data = f'{{"brokerAddrs":{addresses},"brokerName":"b","cluster":"c"}}'.encode()
        assert BrokerData.from_json(data) == wanted
    assert b'{0:"1.2.3.4:10911",1:"1.2.3.4:10921"}' in wanted.to_json()


def test_an_object_as_map_key() -> None:
    queue = MessageQueue("T", "b", 1)
    key = fastjson.JsonKey.of(queue.to_value())
    assert MessageQueue.from_value(key) == queue
    with pytest.raises(BadBody):
        BrokerData.from_value({"brokerName": "b", "brokerAddrs": {key: "x"}})


def test_nulls_and_unknown_fields_are_skipped() -> None:
    data = b'{"orderTopicConf":null,"queueDatas":null,"unknown":[{}],"brokerDatas":[]}'
    assert TopicRouteData.from_json(data) == TopicRouteData()
    assert json.loads(TopicRouteData().to_json()) == {"queueDatas": [], "brokerDatas": [], "filterServerTable": {}}


def test_a_null_inside_an_array_or_a_map_is_refused() -> None:
    for data in (b'{"queueDatas":[null]}', b'{"filterServerTable":{"a":[null]}}', b'{"filterServerTable":{"a":null}}'):
        with pytest.raises(BadBody):
            TopicRouteData.from_json(data)


def test_sets_are_written_in_one_order() -> None:
    queues = [MessageQueue("T", broker, number) for broker in "ba" for number in (2, 1)]
    data = LockBatchResponseBody(frozenset(queues)).to_json()
    assert [(q["brokerName"], q["queueId"]) for q in json.loads(data)["lockOKMQSet"]] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]
    assert data == LockBatchResponseBody(frozenset(reversed(queues))).to_json()


def test_the_next_data_version() -> None:
    assert DataVersion(5, 7).next(99) == DataVersion(99, 8)


def test_the_defaults_of_java() -> None:
    assert TopicConfig("T").to_value() == {
        "topicName": "T",
        "readQueueNums": 16,
        "writeQueueNums": 16,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    assert SubscriptionGroupConfig("G").to_value() == {
        "groupName": "G",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    assert SubscriptionData("T").to_value() == {
        "topic": "T",
        "subString": "*",
        "tagsSet": [],
        "codeSet": [],
        "subVersion": 0,
        "expressionType": "TAG",
        "classFilterMode": False,
    }
    assert QueueData("b").to_value()["brokerName"] == "b"


def reads_or_is_refused(cls: type[Body], data: bytes) -> None:
    try:
        body = cls.from_json(data)
    except BadBody:
        return
    hash(repr(body))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=500)
@given(st.sampled_from(list(CLASSES.values())), st.data())
def test_any_json_raises_nothing_but_bad_body(cls: type[Any], data: DataObject) -> None:
    names = st.sampled_from([key_of(field) for field in attrs.fields(cls)])
    value = data.draw(st.dictionaries(names, json_values))
    reads_or_is_refused(cls, json.dumps(value).encode())


@given(st.sampled_from(list(CLASSES.values())), st.binary(max_size=40))
def test_random_bytes_raise_nothing_but_bad_body(cls: type[Body], data: bytes) -> None:
    reads_or_is_refused(cls, data)


@given(st.data())
def test_mutated_golden_bodies_raise_nothing_but_bad_body(golden_frames: list[GoldenFrame], data: DataObject) -> None:
    frames = [frame for frame in golden_frames if (frame.code, frame.side) in GOLDEN]
    frame = data.draw(st.sampled_from(frames))
    body = bytearray(decode_frame(frame.data).body)
    if not body:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.sampled_from(b'{}[]:,"0-ax\\\xff'))
    reads_or_is_refused(GOLDEN[frame.code, frame.side], bytes(body))
