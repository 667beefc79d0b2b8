"""The compressed form of RegisterBrokerBody: one zlib stream of parts, each with its length in 4 bytes before it.

    data version (JSON); number of topics (4 bytes, no length); each topic as "name readQueues writeQueues perm
    filterType"; the filter servers (JSON)

Source: RegisterBrokerBody.encode of 4.9.7. The stream is hostile until read: what it inflates to is bounded.
"""

from __future__ import annotations

import struct
import zlib

from mqbroker.wire import fastjson
from mqbroker.wire.bodies import (
    BadBody,
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

#: 100,000 topics take about 5 MiB.
INFLATED_BYTES_MAX = 256 * 1024 * 1024

_LENGTH = struct.Struct(">i")


def encode_compressed(body: RegisterBrokerBody) -> bytes:
    """Return the compressed form; a topic's sysFlag and order are not in it."""
    wrapper = body.topic_config_serialize_wrapper
    parts = [_part(wrapper.data_version.to_json()), _LENGTH.pack(len(wrapper.topic_config_table))]
    for topic in wrapper.topic_config_table.values():
        fields = (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type)
        parts.append(_part(" ".join(map(str, fields)).encode()))
    parts.append(_part(fastjson.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(parts), 9)


def decode_compressed(data: bytes) -> RegisterBrokerBody:
    """Read the compressed form. Raises BadBody on anything that is not it."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BadBody(f"register body does not inflate: {error}") from None
    if not inflater.eof:
        raise BadBody(f"register body is cut short or inflates beyond {INFLATED_BYTES_MAX} bytes")
    parts = _Parts(plain)
    version = DataVersion.from_json(parts.next())
    topics = [_topic(parts.next()) for _ in range(parts.number())]
    try:
        servers = fastjson.loads(parts.next())
    except fastjson.BadJson as error:
        raise BadBody(f"filter server list: {error}") from None
    if not isinstance(servers, list) or not all(isinstance(server, str) for server in servers):
        raise BadBody("filter server list must be an array of text")
    table = {topic.topic_name: topic for topic in topics}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, version), servers)


def _part(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


class _Parts:
    """Cuts parts off the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if len(self._data) - self._at < 4:
            raise BadBody("register body is cut short")
        (number,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += 4
        if not 0 <= number <= len(self._data) - self._at:
            raise BadBody(f"register body: {number} where {len(self._data) - self._at} bytes are left")
        return int(number)

    def next(self) -> bytes:
        length = self.number()
        begin, self._at = self._at, self._at + length
        return self._data[begin : self._at]


def _topic(data: bytes) -> TopicConfig:
    try:
        name, read_queues, write_queues, perm, kind = data.decode().split(" ")
        return TopicConfig(name, int(read_queues), int(write_queues), int(perm), kind)
    except ValueError:
        raise BadBody(f"register body: {data[:80]!r} is not a topic") from None
