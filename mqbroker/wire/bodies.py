"""The JSON bodies of requests and responses, as frozen values that check what they are read from.

A field's name in JSON is its camelCase form unless `wire(...)` says otherwise; unknown fields are skipped, as Fastjson
skips them. Reading raises BadBody where a field is missing without a default or is of another type.
Source of names and types: the classes of common/protocol in 4.9.7.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Self, get_args, get_origin

import attrs

from mqbroker.errors import MQError
from mqbroker.wire import fastjson
from mqbroker.wire.headers import camel_case, wire

_integer = re.compile(r"-?[0-9]{1,20}").fullmatch


#: A peer's body that is not strict JSON may be as long; the reading takes half a second then.
DIALECT_BYTES_MAX = 1024 * 1024


class BadBody(MQError):
    """A body that is not what its request or response must carry."""


class Body:
    """What all bodies are: values with a JSON form."""

    def to_value(self) -> dict[str, Any]:
        """The JSON object as a dict, for embedding; None is left out, as Fastjson leaves it out."""
        plan = _plan(type(self))
        if type(self) in _flat:
            return {key: value for name, key, _, _ in plan if (value := getattr(self, name)) is not None}
        return {key: _to_value(value) for name, key, _, _ in plan if (value := getattr(self, name)) is not None}

    def to_json(self) -> bytes:
        """The body's bytes."""
        return fastjson.dumps(self.to_value())

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Build from a decoded JSON object. Raises BadBody."""
        if isinstance(value, fastjson.JsonKey):
            value = value.as_dict()
        if not isinstance(value, Mapping):
            raise BadBody(f"{cls.__name__} must be an object, not {type(value).__name__}")
        found: dict[str, Any] = {}
        for name, key, kind, required in _plan(cls):
            item = value.get(key)
            if item is not None:
                found[name] = _from_value(kind, item, f"{cls.__name__}.{key}")
            elif required:
                raise BadBody(f"{cls.__name__}.{key} is missing")
        return cls(**found)

    @classmethod
    def from_json(cls, data: bytes, dialect_bytes_max: int | None = DIALECT_BYTES_MAX) -> Self:
        """Read a body. Raises BadBody. None takes any length, for files of one's own."""
        try:
            return cls.from_value(fastjson.loads(data, dialect_bytes_max))
        except fastjson.BadJson as error:
            raise BadBody(f"{cls.__name__}: {error}") from None


_plans: dict[type[Body], list[tuple[str, str, Any, bool]]] = {}
_SCALARS = (str, int, bool, float)
#: Classes of scalars alone, of which there may be many in one body.
_flat: set[type[Body]] = set()


def _plan(cls: type[Body]) -> list[tuple[str, str, Any, bool]]:
    """(field, name in JSON, type, must be there) for each field of `cls`, in order."""
    if cls not in _plans:
        plan = _plans[cls] = _make_plan(cls)
        if all(kind in _SCALARS for _, _, kind, _ in plan):
            _flat.add(cls)
    return _plans[cls]


def _make_plan(cls: type[Body]) -> list[tuple[str, str, Any, bool]]:
    hints = typing.get_type_hints(cls)
    fields = attrs.fields(cls)  # type: ignore[arg-type]
    return [
        (f.name, f.metadata.get("key") or camel_case(f.name), hints[f.name], f.default is attrs.NOTHING) for f in fields
    ]


def _to_value(value: Any) -> Any:
    if isinstance(value, Body):
        return value.to_value()
    if isinstance(value, Mapping):
        return {_to_key(key): _to_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return [_to_value(item) for item in sorted(value)]
    return value


def _to_key(key: Any) -> Any:
    return fastjson.JsonKey.of(key.to_value()) if isinstance(key, Body) else key


def _from_value(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _from_value(get_args(kind)[0], value, where)
    if origin is dict:
        key_kind, item_kind = get_args(kind)
        if not isinstance(value, Mapping):
            raise BadBody(f"{where} must be an object")
        return {_from_key(key_kind, k, where): _from_value(item_kind, v, where) for k, v in value.items()}
    if origin in (list, frozenset, tuple):
        if not isinstance(value, list):
            raise BadBody(f"{where} must be an array")
        return origin(_from_value(get_args(kind)[0], item, where) for item in value)
    if isinstance(kind, type) and issubclass(kind, Body):
        return kind.from_value(value)
    if kind is int and type(value) is str and _integer(value):
        return int(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise BadBody(f"{where} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _from_key(kind: Any, key: Any, where: str) -> Any:
    if kind is str:
        return str(key)
    return _from_value(kind, key, where)


@attrs.frozen(order=True)
class MessageQueue(Body):
    """One queue of a topic on one broker (set)."""

    topic: str
    broker_name: str
    queue_id: int


@attrs.frozen
class OffsetMovedEvent(Body):
    """A pull that was sent to another offset: the body of a message."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: int
    offset_new: int


@attrs.frozen
class DataVersion(Body):
    """Which state a table is in: `timestamp` is ms since the epoch, `counter` goes up with each change."""

    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1)


@attrs.frozen
class TopicConfig(Body):
    """A topic on one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False

    def to_value(self) -> dict[str, Any]:
        # Spelt out, for brokers with 100,000 of them.
        return {
            "topicName": self.topic_name,
            "readQueueNums": self.read_queue_nums,
            "writeQueueNums": self.write_queue_nums,
            "perm": self.perm,
            "topicFilterType": self.topic_filter_type,
            "topicSysFlag": self.topic_sys_flag,
            "order": self.order,
        }


@attrs.frozen
class TopicConfigSerializeWrapper(Body):
    """All topics of one broker; also config/topics.json."""

    topic_config_table: dict[str, TopicConfig] = attrs.field(factory=dict)
    data_version: DataVersion = DataVersion()


@attrs.frozen
class RegisterBrokerBody(Body):
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = attrs.field(factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = attrs.field(factory=list)


@attrs.frozen
class QueueData(Body):
    """A topic's queues on one broker."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@attrs.frozen
class BrokerData(Body):
    """A broker set: its addresses by broker id, 0 the master."""

    broker_name: str
    cluster: str | None = None
    broker_addrs: dict[int, str] = attrs.field(factory=dict)


@attrs.frozen
class TopicRouteData(Body):
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = attrs.field(factory=list)
    broker_datas: list[BrokerData] = attrs.field(factory=list)
    filter_server_table: dict[str, list[str]] = attrs.field(factory=dict)


@attrs.frozen
class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = attrs.field(factory=dict)
    cluster_addr_table: dict[str, frozenset[str]] = attrs.field(factory=dict)


@attrs.frozen
class TopicList(Body):
    topic_list: frozenset[str] = frozenset()
    broker_addr: str | None = None


@attrs.frozen
class KVTable(Body):
    table: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class SubscriptionData(Body):
    """What a consumer wants of one topic. `sub_version` is the ms time it was made."""

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@attrs.frozen
class ProducerData(Body):
    group_name: str


@attrs.frozen
class ConsumerData(Body):
    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = attrs.field(factory=list)
    unit_mode: bool = False


@attrs.frozen
class HeartbeatData(Body):
    client_id: str = wire("clientID")
    producer_data_set: list[ProducerData] = attrs.field(factory=list)
    consumer_data_set: list[ConsumerData] = attrs.field(factory=list)


@attrs.frozen
class GetConsumerListByGroupResponseBody(Body):
    consumer_id_list: list[str] = attrs.field(factory=list)


@attrs.frozen
class SubscriptionGroupConfig(Body):
    """A consumer group as one broker treats it."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@attrs.frozen
class SubscriptionGroupWrapper(Body):
    """All groups of one broker; also config/subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    data_version: DataVersion = DataVersion()


@attrs.frozen
class ConsumerOffsetSerializeWrapper(Body):
    """Committed offsets by "topic@group" and queue id; also config/consumerOffset.json."""

    offset_table: dict[str, dict[int, int]] = attrs.field(factory=dict)

    def to_json(self) -> bytes:
        """As of every body, in a part of the time: there may be millions, and they are written every few seconds."""
        return b'{"offsetTable":%b}' % _offsets_json(self.offset_table)


@attrs.frozen
class LmqConsumerOffsets(Body):
    """config/lmqConsumerOffset.json, which a broker with enableLmq has instead of consumerOffset.json: offsets of
    %LMQ% groups by "topic@group", and those of all others."""

    lmq_offset_table: dict[str, int] = attrs.field(factory=dict)
    offset_table: dict[str, dict[int, int]] = attrs.field(factory=dict)

    def to_json(self) -> bytes:
        lmq = fastjson.dumps(self.lmq_offset_table)
        return b'{"lmqOffsetTable":%b,"offsetTable":%b}' % (lmq, _offsets_json(self.offset_table))


def _offsets_json(table: dict[str, dict[int, int]]) -> bytes:
    """The object with its unquoted keys."""
    dumps = fastjson.dumps
    return b"{%b}" % b",".join(
        b"%b:{%b}" % (dumps(name), ",".join([f"{queue}:{offset}" for queue, offset in queues.items()]).encode())
        for name, queues in table.items()
    )


@attrs.frozen
class LockBatchRequestBody(Body):
    consumer_group: str
    client_id: str
    mq_set: frozenset[MessageQueue] = frozenset()


@attrs.frozen
class LockBatchResponseBody(Body):
    lock_ok_mq_set: frozenset[MessageQueue] = wire("lockOKMQSet", default=frozenset())


@attrs.frozen
class Connection(Body):
    client_id: str
    client_addr: str
    language: str
    version: int


@attrs.frozen
class ConsumerConnection(Body):
    connection_set: list[Connection] = attrs.field(factory=list)
    subscription_table: dict[str, SubscriptionData] = attrs.field(factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@attrs.frozen
class ProducerConnection(Body):
    connection_set: list[Connection] = attrs.field(factory=list)


@attrs.frozen
class CheckClientRequestBody(Body):
    """What a consumer asks before it subscribes: could this subscription be served?"""

    client_id: str
    group: str
    subscription_data: SubscriptionData | None = None


@attrs.frozen
class BrokerStatsItem(Body):
    """How much a count grew in a time: in all, per second, and each time something was counted."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@attrs.frozen
class BrokerStatsData(Body):
    """How much a count grew in the last minute, hour and day."""

    stats_minute: BrokerStatsItem = BrokerStatsItem()
    stats_hour: BrokerStatsItem = BrokerStatsItem()
    stats_day: BrokerStatsItem = BrokerStatsItem()
