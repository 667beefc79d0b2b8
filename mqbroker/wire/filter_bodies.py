"""The JSON of config/consumerFilter.json, as ConsumerFilterManager of 4.9.7 writes it."""

from __future__ import annotations

import attrs

from mqbroker.wire.body import Body


@attrs.frozen
class BloomFilterData(Body):
    """A consumer's bits in maps of `bit_num` bits."""

    bit_pos: list[int]
    bit_num: int


@attrs.frozen
class ConsumerFilterData(Body):
    """What a group wants of a topic by an expression; times are ms, `client_version` is the subscription's."""

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
