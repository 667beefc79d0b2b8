"""The options and the columns of the sink: their names, defaults and checks. No I/O except for an account's file, and
no import of PySpark or Arrow."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from mqbroker.client.messages import SendStatus
from mqbroker.client.tls import ClientTls
from mqbroker.errors import Refused
from mqbroker.spark import options as of_reads
from mqbroker.spark.errors import BadOption, BadSchema
from mqbroker.spark.options import (
    NAME_SERVER,
    credentials_of,
    known,
    name_servers_of,
    namespace_of,
    number_of,
    one_of,
    refuse_kafka,
    required,
    tls_of,
)
from mqbroker.wire.codes import RETRY_PREFIX
from mqbroker.wire.names import check_group, check_topic
from mqbroker.wire.signature import Credentials

DEFAULT_GROUP = "spark-rocketmq-sink"

_ACCOUNT_NAMES = of_reads.NAMES[of_reads.NAMES.index("accountFile") :]
NAMES = (
    "nameServer",
    "topic",
    "guarantee",
    "idColumns",
    "writeId",
    "acks",
    "batchBytes",
    "batchesInFlight",
    "retryTimeoutMs",
    "producerGroup",
    "namespace",
    *_ACCOUNT_NAMES,
)
#: Brokers limit what they store of a batch, which is up to four times as much where topics are long and bodies short.
BATCH_BYTES_MAX = 512 * 1024

#: Options that Spark itself passes to a sink: `path` is what stands in save() or start().
_SPARKS = frozenset({"path", "checkpointlocation"})


class Guarantee(Enum):
    """How often a row can be in the topic."""

    AT_LEAST_ONCE = "at-least-once"
    EFFECTIVELY_ONCE = "effectively-once"


class Acks(Enum):
    """Which results of a broker count as acknowledged."""

    STORED = "stored"
    FLUSHED = "flushed"
    REPLICATED = "replicated"

    def counts(self, status: SendStatus) -> bool:
        """Whether a send with this result is acknowledged."""
        if self is Acks.STORED:
            return True
        if self is Acks.FLUSHED:
            return status is not SendStatus.FLUSH_DISK_TIMEOUT
        return status is SendStatus.SEND_OK


@attrs.frozen
class SinkOptions:
    """Options of a write. `topic` is None if a column has it; `write_id` distinguishes writes in unique keys and is
    None if none was given. `retry_timeout_ms` is how long a batch may find no broker before the write fails."""

    name_servers: tuple[str, ...]
    topic: str | None
    guarantee: Guarantee
    id_columns: tuple[str, ...]
    write_id: str | None
    acks: Acks
    batch_bytes: int
    in_flight: int
    retry_timeout_ms: int
    group: str
    namespace: str
    credentials: Credentials | None
    tls: ClientTls | None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check all options of a write. Raises BadOption at the first invalid one."""
    options = {_known(name): text.strip() for name, text in given.items() if name.lower() not in _SPARKS}
    path = next((text.strip() for name, text in given.items() if name.lower() == "path"), "")
    guarantee = Guarantee(one_of(options, "guarantee", [each.value for each in Guarantee]))
    id_columns = tuple(name.strip() for name in options.get("idColumns", "").split(",") if name.strip())
    if id_columns and guarantee is not Guarantee.EFFECTIVELY_ONCE:
        raise BadOption("idColumns", "is used with guarantee=effectively-once only: set that, or leave idColumns out")
    return SinkOptions(
        name_servers=name_servers_of(required(options, "nameServer", NAME_SERVER)),
        topic=_topic(options.get("topic", ""), path),
        guarantee=guarantee,
        id_columns=id_columns,
        write_id=options.get("writeId") or None,
        acks=Acks(one_of(options, "acks", [each.value for each in Acks])),
        batch_bytes=number_of(options, "batchBytes", 128 * 1024, 1, BATCH_BYTES_MAX),
        in_flight=number_of(options, "batchesInFlight", 8, 1, 1024),
        retry_timeout_ms=number_of(options, "retryTimeoutMs", 60_000, 0, 24 * 3600 * 1000),
        group=_group(options.get("producerGroup", DEFAULT_GROUP)),
        namespace=namespace_of(options),
        credentials=credentials_of(options),
        tls=tls_of(options),
    )


#: Options of Spark's Kafka sink, and what to write here.
_OF_KAFKA = {
    "kafka.bootstrap.servers": "the address is nameServer=host:port, of a name server and not of a broker",
    "kafka.acks": "which results of a broker count is acks",
    "kafka.batch.size": "the bytes of a batch are batchBytes",
    "kafka.max.request.size": "the bytes of a batch are batchBytes",
    "kafka.max.in.flight.requests.per.connection": "the number of batches under way is batchesInFlight",
    "kafka.delivery.timeout.ms": "how long a batch is sent again is retryTimeoutMs",
    "kafka.request.timeout.ms": "how long a batch is sent again is retryTimeoutMs",
    "kafka.retries": "how long a batch is sent again is retryTimeoutMs",
    "kafka.enable.idempotence": "rows that are there already are left out with guarantee=effectively-once",
    "kafka.transactional.id": "rows that are there already are left out with guarantee=effectively-once",
    "kafka.compression.type": "bodies of 4 KiB and more are compressed without an option; leave it out",
    "includeHeaders": "a column headers is written wherever it is there",
}


def _known(name: str) -> str:
    refuse_kafka(name, _OF_KAFKA, "sink")
    reads = {each.lower(): each for each in of_reads.NAMES}
    if name.lower() in reads and reads[name.lower()] not in NAMES:
        right = ", ".join(NAMES)
        raise BadOption(reads[name.lower()], f"is an option of reads, and this is a write. Options of writes: {right}")
    return known(name, NAMES)


def _topic(text: str, path: str) -> str | None:
    if text and path and text != path:
        raise BadOption("topic", f"is {text!r}, and save() or start() names {path!r}: name one of them")
    topic = text or path
    if not topic:
        return None
    why = why_not_topic(topic)
    if why:
        raise BadOption("topic", why)
    return topic


def why_not_topic(topic: str) -> str:
    """Why rows cannot be written to `topic`; empty if they can."""
    try:
        check_topic(topic)
    except Refused as refused:
        return f"{topic[:80]!r}: {refused.remark}"
    if topic.startswith(RETRY_PREFIX):
        return f"{topic!r}: brokers take no batches for retry topics; write to the topic itself"
    return ""


def _group(text: str) -> str:
    try:
        return check_group(text)
    except Refused as refused:
        raise BadOption("producerGroup", f"{text!r}: {refused.remark}") from None


_TEXT = frozenset({"string"})
_INTS = frozenset({"tinyint", "smallint", "int"})
_BYTES = frozenset({"binary", "string"})

#: The purposes of columns, and the types that each may have.
TYPES: Mapping[str, frozenset[str]] = {
    "body": _BYTES,
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": frozenset({"string", "array<string>"}),
    "properties": frozenset({"map<string,string>", "array<struct<key:string,value:binary>>"}),
    "shardingKey": frozenset({"string", "bigint"}) | _INTS,
    "brokerName": _TEXT,
    "queueId": _INTS,
    "delayTimeLevel": _INTS,
    "flag": _INTS,
    "uniqKey": _TEXT,
}
#: Names of Spark's Kafka sink.
ALIASES = {"value": "body", "key": "keys", "headers": "properties"}
_INSTEAD = {
    "partition": "name the queue by brokerName and queueId, or choose it by shardingKey",
    "timestamp": "the broker sets the time of storing; put yours into properties",
    **dict.fromkeys(
        ("queueoffset", "commitlogoffset", "msgid", "borntimestamp", "storetimestamp", "bornhost", "storehost"),
        "the broker sets it: leave it out, or put it into properties",
    ),
}


@attrs.frozen
class SinkColumns:
    """Where the columns of a write are. `places` has the position of each that is there, by what it is for; `ids` are
    the positions of `idColumns`. `is_key` says that keys come from a column `key`, of one key each."""

    places: Mapping[str, int]
    ids: tuple[int, ...]
    is_key: bool


def choose_sink_columns(fields: Iterable[tuple[str, str]], options: SinkOptions) -> SinkColumns:
    """The columns of a schema of (name, type). Raises BadSchema, or BadOption if idColumns does not fit it.

    Names are compared without regard to case, as Spark does. A column that idColumns names may have any name.
    """
    all_names = [*TYPES, *ALIASES]
    by_lower = {name.lower(): name for name in all_names}
    ids = {name.lower(): name for name in options.id_columns}
    places: dict[str, int] = {}
    id_places: dict[str, int] = {}
    is_key = False
    for place, (name, type_name) in enumerate(fields):
        lower = name.lower()
        if lower in ids:
            _check_id_type(name, type_name)
            id_places[lower] = place
        if lower not in by_lower:
            if lower not in ids:
                raise BadSchema(_unknown(name, by_lower))
            continue
        role = ALIASES.get(lower, by_lower[lower])
        if role in places:
            raise BadSchema(f"column {name}: there are two columns for {role}; leave one out")
        if type_name not in TYPES[role]:
            raise BadSchema(
                f"column {name}: its type is {type_name}, and must be {' or '.join(sorted(TYPES[role]))}; use CAST"
            )
        is_key = is_key or lower == "key"
        places[role] = place
    _check_together(places, options)
    missing = [name for lower, name in ids.items() if lower not in id_places]
    if missing:
        raise BadOption("idColumns", f"there is no column {missing[0]} in what is written")
    return SinkColumns(places, tuple(id_places[lower] for lower in ids), is_key)


def _unknown(name: str, by_lower: Mapping[str, str]) -> str:
    if name.lower() in _INSTEAD:
        return f"column {name}: cannot be written; {_INSTEAD[name.lower()]}"
    near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
    hint = f"did you mean {by_lower[near[0]]}? " if near else ""
    return (
        f"column {name}: messages have no such column; {hint}put it into properties with map('{name}', ...), or leave "
        f"it out with select(). All columns: {', '.join(by_lower.values())}"
    )


def _check_id_type(name: str, type_name: str) -> None:
    if type_name.startswith(("array", "map", "struct", "float", "double", "variant", "interval")):
        raise BadOption("idColumns", f"column {name} has the type {type_name}, which cannot identify a row; use CAST")


def _check_together(places: Mapping[str, int], options: SinkOptions) -> None:
    if "body" not in places:
        raise BadSchema("column body: is missing; a message needs one, of type string or binary")
    if "topic" not in places and options.topic is None:
        raise BadSchema("column topic: is missing, and there is no option topic either: give one of them")
    if ("brokerName" in places) != ("queueId" in places):
        there, missing = ("brokerName", "queueId") if "brokerName" in places else ("queueId", "brokerName")
        raise BadSchema(f"column {missing}: is missing; with {there} it names the queue")
    if options.guarantee is Guarantee.EFFECTIVELY_ONCE and "delayTimeLevel" in places:
        raise BadSchema(
            "column delayTimeLevel: a delayed message is in the index only after its delay, so that "
            "guarantee=effectively-once cannot find it; use at-least-once"
        )
