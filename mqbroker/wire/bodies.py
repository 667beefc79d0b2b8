"""JSON bodies of requests and responses, except those of administration (`admin_bodies`).

Source of names and types: the classes of common/protocol in 4.9.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Self

import attrs

from mqbroker.wire import fastjson
from mqbroker.wire.body import BadBody, Body, Int
from mqbroker.wire.headers import wire


@attrs.frozen(order=True, cache_hash=True)
class MessageQueue(Body):
    """One queue of a topic on one broker (set)."""

    topic: str
    broker_name: str
    queue_id: Int


@attrs.frozen
class OffsetMovedEvent(Body):
    """A pull that was redirected to another offset: the body of a message."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: int
    offset_new: int


@attrs.frozen
class DataVersion(Body):
    """Version of a table: `timestamp` is ms since the epoch, `counter` is incremented by each change."""

    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1)


#: Maximum queues of a topic on one broker: each is a directory.
QUEUES_MAX: Final = 65_535


@attrs.frozen
class TopicConfig(Body):
    """A topic on one broker."""

    topic_name: str
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False

    def to_value(self) -> dict[str, Any]:
        # Written out, for brokers with 100,000 topics.
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
class RemovedQueue(Body):
    """A queue that a master has removed: its messages in the log below `until`. Created again, it begins at
    `next_offset`."""

    topic: str
    queue_id: Int
    next_offset: int
    until: int


@attrs.frozen
class TopicsForSlave(TopicConfigSerializeWrapper):
    """The topics of a master, for a slave of our kind: with the queues that were removed. None of a Java master."""

    removed_queues: list[RemovedQueue] | None = None


@attrs.frozen
class RegisterBrokerBody(Body):
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = attrs.field(factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = attrs.field(factory=list)


@attrs.frozen(cache_hash=True)
class QueueData(Body):
    """A topic's queues on one broker."""

    broker_name: str
    read_queue_nums: Int = 0
    write_queue_nums: Int = 0
    perm: Int = 0
    topic_sys_flag: Int = 0


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
    """A subscription to one topic. `sub_version` is its creation time, ms."""

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[Int] = frozenset()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@attrs.frozen
class ProducerData(Body):
    group_name: str


#: Java's enumerations, in their order: C++ clients send the ordinals.
_CONSUMER_WORDS = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    ),
}  # fmt: skip


@attrs.frozen
class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = attrs.field(factory=list)
    unit_mode: bool = False

    @classmethod
    def from_value(cls, value: Any) -> Self:
        if isinstance(value, dict):
            numbers = {key: item for key in _CONSUMER_WORDS if type(item := value.get(key)) is int}
            for key, number in numbers.items():
                if not 0 <= number < len(_CONSUMER_WORDS[key]):
                    raise BadBody(f"ConsumerData.{key} must be a word or the number of one, not {number}")
            value = value | {key: _CONSUMER_WORDS[key][number] for key, number in numbers.items()}
        return super().from_value(value)


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
    """Settings of a consumer group on one broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
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
        """As `Body.to_json`, but faster: there may be millions of offsets, which are written every few seconds."""
        return b"".join(self.json_pieces())

    def json_pieces(self) -> Iterator[bytes]:
        """As `Body.json_pieces`, but the table may change meanwhile: each of the initial entries is written with its
        value at that time."""
        yield b'{"offsetTable":'
        yield from _offsets_json(self.offset_table)
        yield b"}"


@attrs.frozen
class LmqConsumerOffsets(Body):
    """config/lmqConsumerOffset.json, which replaces consumerOffset.json on brokers with enableLmq: offsets of %LMQ%
    groups by "topic@group", and those of all others."""

    lmq_offset_table: dict[str, int] = attrs.field(factory=dict)
    offset_table: dict[str, dict[int, int]] = attrs.field(factory=dict)

    def to_json(self) -> bytes:
        return b"".join(self.json_pieces())

    def json_pieces(self) -> Iterator[bytes]:
        """As ConsumerOffsetSerializeWrapper.json_pieces."""
        yield b'{"lmqOffsetTable":%b,"offsetTable":' % fastjson.dumps(self.lmq_offset_table)
        yield from _offsets_json(self.offset_table)
        yield b"}"


def _offsets_json(table: dict[str, dict[int, int]]) -> Iterator[bytes]:
    """The object with its unquoted keys, in pieces of one "topic@group" each."""
    dumps = fastjson.dumps
    before = b""
    yield b"{"
    for name, queues in list(table.items()):
        offsets = ",".join([f"{queue}:{offset}" for queue, offset in queues.items()])
        yield b"%b%b:{%b}" % (before, dumps(name), offsets.encode())
        before = b","
    yield b"}"


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
    version: Int


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
    """A consumer's check before it subscribes that the subscription can be served."""

    client_id: str
    group: str
    subscription_data: SubscriptionData | None = None


@attrs.frozen
class BrokerStatsItem(Body):
    """Growth of a counter in a period: in total, per second, and per increment."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@attrs.frozen
class BrokerStatsData(Body):
    """Growth of a counter in the last minute, hour and day."""

    stats_minute: BrokerStatsItem = BrokerStatsItem()
    stats_hour: BrokerStatsItem = BrokerStatsItem()
    stats_day: BrokerStatsItem = BrokerStatsItem()


# config/consumerFilter.json, as ConsumerFilterManager of 4.9.7 writes it


@attrs.frozen
class BloomFilterData(Body):
    """A consumer's bits in maps of `bit_num` bits."""

    bit_pos: list[int]
    bit_num: int


@attrs.frozen
class ConsumerFilterData(Body):
    """A group's filter expression for a topic; times are ms, `client_version` is the subscription's."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: int
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomFilterData | None = None
    dead: bool = False


@attrs.frozen
class FilterDataMapByTopic(Body):
    group_filter_data: dict[str, ConsumerFilterData]
    topic: str = ""


@attrs.frozen
class ConsumerFilters(Body):
    """The whole file."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = attrs.field(factory=dict)
