"""The body of REGISTER_BROKER in its two forms: JSON, and compressed.

Compressed, it is a zlib stream of pieces with a 4-byte length before each, and a 4-byte count before the topics:

    data version, JSON | topics: "name readQueues writeQueues perm filterType" each | filter servers, JSON
"""

from __future__ import annotations

import struct
import zlib

import attrs

from mqbroker.wire import fastjson
from mqbroker.wire.bodies import BadBody, DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper

#: 100,000 topics are some 5 MiB.
INFLATED_BYTES_MAX = 64 * 1024 * 1024

#: Far more than a broker can serve; each costs the reader some hundred bytes and microseconds.
TOPICS_MAX = 200_000

_INT = struct.Struct(">i")


def body_crc32(body: bytes) -> int:
    """The check value that `bodyCrc32` carries, over the body as it is sent."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_registration(body: RegisterBrokerBody, *, compressed: bool) -> bytes:
    """Return the request's body. The compressed form has no room for a topic's flags."""
    if not compressed:
        return body.to_json()
    topics = body.topic_config_serialize_wrapper
    pieces = [_with_length(topics.data_version.to_json()), _INT.pack(len(topics.topic_config_table))]
    pieces += [_with_length(_topic_text(topic).encode()) for topic in topics.topic_config_table.values()]
    pieces.append(_with_length(fastjson.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(pieces), 9)


def decode_registration(data: bytes, *, compressed: bool) -> RegisterBrokerBody:
    """Read the request's body; none at all is a broker without topics. Raises BadBody."""
    if not data:
        return RegisterBrokerBody()
    if not compressed:
        body = RegisterBrokerBody.from_json(data)
        _checked_count(len(body.topic_config_serialize_wrapper.topic_config_table))
        return body
    reader = _Reader(_inflate(data))
    version = DataVersion.from_json(reader.piece())
    topics = [_topic(reader.piece()) for _ in range(_checked_count(reader.integer()))]
    try:
        servers = fastjson.loads(reader.piece())
    except fastjson.BadJson as error:
        raise BadBody(f"filter servers: {error}") from None
    body = RegisterBrokerBody.from_value({"filterServerList": servers})
    wrapper = TopicConfigSerializeWrapper({topic.topic_name: topic for topic in topics}, version)
    return attrs.evolve(body, topic_config_serialize_wrapper=wrapper)


def _checked_count(topics: int) -> int:
    if topics > TOPICS_MAX:
        raise BadBody(f"a registration of {topics} topics, {TOPICS_MAX} at most")
    return topics


def _with_length(piece: bytes) -> bytes:
    return _INT.pack(len(piece)) + piece


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BadBody(f"the compressed registration is no zlib stream: {error}") from None
    if inflater.unconsumed_tail:
        raise BadBody(f"the registration inflates to more than {INFLATED_BYTES_MAX} bytes")
    return inflated


class _Reader:
    """Takes pieces off a buffer, each checked to be there whole."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise BadBody(f"the registration ends within {size} bytes at byte {self._at} of {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]

    def integer(self) -> int:
        value: int = _INT.unpack(self._take(4))[0]
        return value

    def piece(self) -> bytes:
        return self._take(self.integer())


def _topic_text(topic: TopicConfig) -> str:
    fields = (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type)
    return " ".join(map(str, fields))


def _topic(piece: bytes) -> TopicConfig:
    try:
        name, read_queues, write_queues, perm, filter_type = piece.decode().split(" ")
        return TopicConfig(name, _small(read_queues), _small(write_queues), _small(perm), filter_type)
    except ValueError:
        raise BadBody(f"{piece[:80]!r} is not a topic") from None


def _small(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(text)
    return int(text)
