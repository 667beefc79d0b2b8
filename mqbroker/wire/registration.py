"""The body of REGISTER_BROKER in its two forms: JSON, and compressed.

The compressed form is a zlib stream of parts with a 4-byte length before each, and a 4-byte count before the topics:

    data version, JSON | topics: "name readQueues writeQueues perm filterType" each | filter servers, JSON

A broker may have 100,000 topics, which are 15 MB of JSON and would take a third of a second to decode. So it is decoded
in steps, and only the fields of routes are kept of each topic.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

import attrs

from mqbroker.wire import fastjson, strict_json
from mqbroker.wire.bodies import QUEUES_MAX, DataVersion, RegisterBrokerBody, TopicConfig
from mqbroker.wire.body import BadBody

T = TypeVar("T")

#: 100,000 topics are some 5 MiB.
INFLATED_BYTES_MAX = 64 * 1024 * 1024

#: Far more than a broker can serve; each costs some hundred bytes and microseconds to decode.
TOPICS_MAX = 200_000

#: A topic's name may have 255 characters besides its prefix.
TOPIC_BYTES_MAX = 1024
PIECE_BYTES_MAX = 64 * 1024
#: A Java broker has a few filter servers, of addresses.
FILTER_SERVERS_MAX = 100
FILTER_SERVER_LENGTH_MAX = 255

#: Bytes of JSON, or topics of the compressed form, that are decoded in one step: a few ms.
STEP_BYTES = 128 * 1024
#: JSON that is not as brokers write it is decoded in one step: some 8,000 topics, 100 ms.
OTHER_JSON_BYTES_MAX = 1024 * 1024
#: Braces that are tried as the end of a step's bytes: one may be within a topic, as a 5.x broker has an object in each.
_CUTS_MAX = 8
STEP_TOPICS = 1000
_INFLATE_BYTES = 64 * 1024
_DEFLATED_BYTES = 16 * 1024

_INT = struct.Struct(">i")
_INT32_MAX = 2**31 - 1

_table = re.compile(rb'"topicConfigTable"\s*:\s*\{')
# Retry and DLQ topics are as long as groups may be, whose limit is the longer one.
_legal = re.compile(r"(?:%RETRY%)?(?:%DLQ%)?[%|a-zA-Z0-9_-]{1,255}").fullmatch


class QueueNumbers(NamedTuple):
    """Queue numbers and permission of a topic on one broker."""

    read_queues: int
    write_queues: int
    perm: int
    topic_sys_flag: int


@attrs.frozen
class BrokerTopics:
    """The content of a registration's body. `illegal_count`: topics left out because no broker may have them: of
    invalid names, or of more than QUEUES_MAX queues."""

    queues: Mapping[str, QueueNumbers] = attrs.field(factory=dict)
    data_version: DataVersion = DataVersion()
    filter_servers: list[str] = attrs.field(factory=list)
    illegal_count: int = 0


#: A decoding that yields now and then, so that other work can run.
Steps = Generator[None, None, T]


def body_crc32(body: bytes) -> int:
    """The value of `bodyCrc32`, over the body as it is sent."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_registration(body: RegisterBrokerBody, *, compressed: bool, permission: int | None = None) -> bytes:
    """Return the request's body, see `write_registration`."""
    return b"".join(write_registration(body, compressed=compressed, permission=permission))


def write_registration(
    body: RegisterBrokerBody, *, compressed: bool, permission: int | None = None
) -> Generator[bytes, None, None]:
    """Encode the request's body in pieces of some hundred topics. The compressed form has no room for a topic's flags.

    :param permission: limits those of all topics; None if it does not.
    """
    topics = list(body.topic_config_serialize_wrapper.topic_config_table.values())
    if compressed:
        yield from _write_compressed(body, topics, permission)
        return
    # In Fastjson's order: a reader in pieces gets the version first.
    version = body.topic_config_serialize_wrapper.data_version.to_json()
    servers = fastjson.dumps(body.filter_server_list)
    wrapper = b'"topicConfigSerializeWrapper":{"dataVersion":%b,"topicConfigTable":{' % version
    yield b'{"filterServerList":%b,%b' % (servers, wrapper)
    for at in range(0, len(topics), STEP_TOPICS):
        table = {topic.topic_name: _topic_value(topic, permission) for topic in topics[at : at + STEP_TOPICS]}
        yield (b"," if at else b"") + strict_json.dumps(table)[1:-1]
    yield b"}}}"


def _write_compressed(
    body: RegisterBrokerBody, topics: list[TopicConfig], permission: int | None
) -> Generator[bytes, None, None]:
    deflater = zlib.compressobj()
    version = body.topic_config_serialize_wrapper.data_version.to_json()
    yield deflater.compress(_with_length(version) + _INT.pack(len(topics)))
    for at in range(0, len(topics), STEP_TOPICS):
        pieces = [_with_length(_topic_text(topic, permission).encode()) for topic in topics[at : at + STEP_TOPICS]]
        yield deflater.compress(b"".join(pieces))
    yield deflater.compress(_with_length(fastjson.dumps(body.filter_server_list))) + deflater.flush()


def read_registration(data: bytes, *, compressed: bool) -> Steps[BrokerTopics]:
    """Decode the request's body in steps; an empty one is a broker without topics. Raises BadBody."""
    if not data:
        return BrokerTopics()
    if compressed:
        return (yield from _read_compressed(data))
    if len(data) > 2 * STEP_BYTES:
        found = yield from _read_long_json(data)
        if found is not None:
            return found
    return _read_json(data, _Topics())


def _read_json(data: bytes, topics: _Topics) -> BrokerTopics:
    if len(data) > OTHER_JSON_BYTES_MAX:
        raise BadBody(f"{len(data)} bytes of JSON that is not as brokers write it, {OTHER_JSON_BYTES_MAX} at most")
    body = RegisterBrokerBody.from_json(data)
    wrapper = body.topic_config_serialize_wrapper
    topics.check_count(len(wrapper.topic_config_table))
    for topic in wrapper.topic_config_table.values():
        topics.add_config(topic)
    return topics.done(wrapper.data_version, body.filter_server_list)


def _read_long_json(data: bytes) -> Steps[BrokerTopics | None]:
    """Decode the JSON that peers write: topics are objects of scalars without blanks between them, and may have flat
    objects in them that are not the last. None for other JSON."""
    found = _table.search(data)
    if found is None:
        return None
    topics = _Topics()
    start = at = found.end()
    end = -1
    while end < 0:
        table, cut, end = _step_of(data, at)
        if table is None:
            return None
        topics.add_table(table)
        at = cut + 2
        yield
    return _read_json(data[:start] + data[end + 1 :], topics)


def _step_of(data: bytes, at: int) -> tuple[dict[str, Any] | None, int, int]:
    """The topics of one step from `at` on, where they end, and where all end, which is below 0 if there are more. None
    for other JSON than peers write."""
    cut = at + STEP_BYTES
    for _ in range(_CUTS_MAX):
        cut = data.find(b'},"', cut + 1, at + 2 * STEP_BYTES)
        # The brace of the last topic, and that of the table.
        end = data.find(b"}}", at, cut + 1 if cut >= 0 else at + 2 * STEP_BYTES)
        cut = end if end >= 0 else cut
        if cut < 0:
            break
        try:
            return strict_json.loads(b"{%b}}" % data[at:cut]), cut, end
        except ValueError:
            if end >= 0:
                break
    return None, -1, -1


def _read_compressed(data: bytes) -> Steps[BrokerTopics]:
    reader = _Inflated(data)
    version = DataVersion.from_json(reader.piece(PIECE_BYTES_MAX))
    topics = _Topics()
    count = reader.integer()
    topics.check_count(count)
    for number in range(count):
        topics.add_text(reader.piece(TOPIC_BYTES_MAX))
        if number % STEP_TOPICS == STEP_TOPICS - 1:
            yield
    try:
        servers = fastjson.loads(reader.piece(PIECE_BYTES_MAX), PIECE_BYTES_MAX)
    except fastjson.BadJson as error:
        raise BadBody(f"filter servers: {error}") from None
    return topics.done(version, RegisterBrokerBody.from_value({"filterServerList": servers}).filter_server_list)


def _is_possible(numbers: QueueNumbers) -> bool:
    return numbers.read_queues <= QUEUES_MAX and numbers.write_queues <= QUEUES_MAX


class _Topics:
    """Collects topics; equal queue numbers share one value."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueNumbers] = {}
        self._illegal_count = 0
        self._known: dict[tuple[Any, ...], QueueNumbers] = {}
        self._known_texts: dict[bytes, QueueNumbers] = {}

    def done(self, version: DataVersion, filter_servers: list[str]) -> BrokerTopics:
        """Everything that was collected. Raises BadBody if there are too many filter servers."""
        if len(filter_servers) > FILTER_SERVERS_MAX or max(map(len, filter_servers), default=0) > (
            FILTER_SERVER_LENGTH_MAX
        ):
            most = f"{FILTER_SERVERS_MAX} of {FILTER_SERVER_LENGTH_MAX} characters at most"
            raise BadBody(f"{len(filter_servers)} filter servers, {most}")
        return BrokerTopics(self._queues, version, filter_servers, self._illegal_count)

    def check_count(self, more: int) -> None:
        """Raise BadBody if `more` topics are too many."""
        count = len(self._queues) + self._illegal_count + more
        if not 0 <= count <= TOPICS_MAX:
            raise BadBody(f"a registration of {count} topics, {TOPICS_MAX} at most")

    def add_table(self, table: dict[str, Any]) -> None:
        """Add topics by name, from JSON."""
        self.check_count(len(table))
        known, queues = self._known, self._queues
        for value in table.values():
            try:
                numbers = known[
                    value["readQueueNums"], value["writeQueueNums"], value["perm"], value.get("topicSysFlag", 0)
                ]
                name = value["topicName"]
                if _legal(name):
                    queues[name] = numbers
                    continue
            except (KeyError, TypeError, AttributeError):
                pass  # the first of its kind, or invalid
            self.add_config(TopicConfig.from_value(value))

    def add_config(self, topic: TopicConfig) -> None:
        numbers = QueueNumbers(topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        if not all(0 <= number <= _INT32_MAX for number in numbers):
            raise BadBody(f"topic {topic.topic_name[:80]!r}: queues, permission and flag cannot be {tuple(numbers)}")
        if _is_possible(numbers):
            self._put(topic.topic_name, self._known.setdefault(numbers, numbers))
        else:
            self._illegal_count += 1

    def add_text(self, piece: bytes) -> None:
        """Add a topic of the compressed form."""
        name, _, rest = piece.partition(b" ")
        numbers = self._known_texts.get(rest)
        try:
            if numbers is None:
                read_queues, write_queues, perm, _ = rest.decode().split(" ")
                numbers = QueueNumbers(_small(read_queues), _small(write_queues), _small(perm), 0)
                if not _is_possible(numbers):
                    self._illegal_count += 1
                    return
                numbers = self._known_texts[rest] = self._known.setdefault(numbers, numbers)
            self._put(name.decode(), numbers)
        except ValueError:
            raise BadBody(f"{piece[:80]!r} is not a topic") from None

    def _put(self, name: str, numbers: QueueNumbers) -> None:
        if _legal(name):
            self._queues[name] = numbers
        else:
            self._illegal_count += 1


class _Inflated:
    """Reads parts of a zlib stream, which is inflated only as far as needed."""

    def __init__(self, data: bytes) -> None:
        self._inflater = zlib.decompressobj()
        self._data = data
        self._data_at = 0
        self._buffer = b""
        self._at = 0
        self._taken = 0

    def integer(self) -> int:
        value: int = _INT.unpack(self._read(4))[0]
        return value

    def piece(self, size_max: int) -> bytes:
        size = self.integer()
        if not 0 <= size <= size_max:
            raise BadBody(f"a piece of {size} bytes in a compressed registration, {size_max} at most")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        self._taken += size
        if self._taken > INFLATED_BYTES_MAX:
            raise BadBody(f"the registration inflates to more than {INFLATED_BYTES_MAX} bytes")
        while len(self._buffer) - self._at < size:
            more = self._more()
            if not more:
                raise BadBody(f"the compressed registration ends within {size} bytes at byte {self._taken - size}")
            self._buffer = self._buffer[self._at :] + more
            self._at = 0
        self._at += size
        return self._buffer[self._at - size : self._at]

    def _more(self) -> bytes:
        """Inflate some bytes; empty at the end of the stream."""
        inflater = self._inflater
        while not inflater.eof:
            deflated = inflater.unconsumed_tail
            if not deflated:
                deflated = self._data[self._data_at : self._data_at + _DEFLATED_BYTES]
                self._data_at += len(deflated)
            try:
                more = inflater.decompress(deflated, _INFLATE_BYTES)
            except zlib.error as error:
                raise BadBody(f"the compressed registration is not a zlib stream: {error}") from None
            if more or not deflated:
                return more
        return b""


def _with_length(piece: bytes) -> bytes:
    return _INT.pack(len(piece)) + piece


def _topic_value(topic: TopicConfig, permission: int | None) -> dict[str, Any]:
    return topic.to_value() if permission is None else topic.to_value() | {"perm": topic.perm & permission}


def _topic_text(topic: TopicConfig, permission: int | None) -> str:
    perm = topic.perm if permission is None else topic.perm & permission
    fields = (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, perm, topic.topic_filter_type)
    return " ".join(map(str, fields))


def _small(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > _INT32_MAX:
        raise ValueError(text)
    return int(text)
