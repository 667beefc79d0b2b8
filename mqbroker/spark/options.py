"""The options of the data source: their names, defaults and checks. No I/O except for an account's file.

Spark passes names in lower case; messages have them as in the documentation. Options with secrets have names that
Spark's own redaction covers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

from mqbroker.client.identity import BadAccount, read_account
from mqbroker.client.names import check_namespace
from mqbroker.client.options import parse_name_servers
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.client.tls import ClientTls
from mqbroker.errors import BadTls, MQError, Refused
from mqbroker.spark.choosing import WAYS, Selection, parse_selection
from mqbroker.spark.errors import BadOption
from mqbroker.spark.limits import Limits, parse_duration
from mqbroker.spark.offsets import EARLIEST, LATEST, OffsetSpec
from mqbroker.spark.schema import Column, kafka_columns, with_properties
from mqbroker.spark.starting import parse_bound
from mqbroker.wire.names import check_group
from mqbroker.wire.signature import Credentials

#: The group of the reads in the broker's statistics. It takes part in no rebalancing and commits nothing, so that all
#: queries may share it.
DEFAULT_GROUP = "spark-rocketmq"

NAMES = (
    "nameServer",
    "topic",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "tags",
    "sql92",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "schema",
    "consumerGroup",
    "commitOffsetsToBroker",
    "indexLookup",
    "propertyColumns",
    "namespace",
    "readFrom",
    "pullBatchSize",
    "retryTimeoutMs",
    "minPartitions",
    "maxRecordsPerPartition",
    "expectBrokers",
    "failOnDataLoss",
    "dataLossTo",
    "accountFile",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "tlsCa",
    "tlsServerName",
    "tlsInsecure",
    "tlsCert",
    "tlsKey",
    "tlsKeyPassword",
)


class ReadFrom(Enum):
    """Which brokers of a set are read from. Streams ask masters for the ends of queues, whatever this is."""

    MASTER = "master"
    SLAVE = "slave"
    ANY = "any"


@attrs.frozen
class SourceOptions:
    """Options of a query. `ending` is for batches, `max_offsets_per_trigger` for streams.

    `retry_timeout_ms` is how long a broker may return nothing before a read fails.
    """

    name_servers: tuple[str, ...]
    selection: Selection
    starting: OffsetSpec
    ending: OffsetSpec
    expression: str | Sql | None
    max_offsets_per_trigger: int | None
    limits: Limits
    columns: Mapping[str, Column]
    group: str
    commits: bool
    index_lookup: bool
    namespace: str
    read_from: ReadFrom
    is_stream: bool
    pull_batch: int
    retry_timeout_ms: int
    min_partitions: int
    max_records_per_partition: int
    expect_brokers: frozenset[str]
    fail_on_data_loss: bool
    data_loss_to: str | None
    credentials: Credentials | None
    tls: ClientTls | None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that options name."""
        return self.selection.topics


def parse_options(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check all options of a query. Raises BadOption at the first invalid one.

    `streaming` is None if it is not known yet whether a batch or a stream is read.
    """
    lower = {name.lower(): text.strip() for name, text in given.items()}
    is_kafka = lower.get("schema", "").lower() == "kafka"
    headers = lower.pop(_INCLUDE_HEADERS.lower(), "true") if is_kafka else "true"
    for name in lower:
        refuse_kafka(name, _OF_KAFKA, "source")
    options = {known(name, NAMES, WAYS): text.strip() for name, text in given.items() if name.lower() in lower}
    servers = name_servers_of(required(options, "nameServer", NAME_SERVER))
    selection = parse_selection(options)
    default = LATEST if streaming else EARLIEST
    fail_on_data_loss = _flag(options, "failOnDataLoss", "true")
    if options.get("dataLossTo") and fail_on_data_loss:
        raise BadOption("dataLossTo", "it records what failOnDataLoss=false skips; set that too, or leave this out")
    for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
        if streaming and name in options:
            raise BadOption(name, "a stream has no end; use it with spark.read, or leave it out")
    starting = parse_bound(options, "starting", default, selection.topics)
    ending = parse_bound(options, "ending", LATEST, selection.topics)
    if None not in (starting.time_ms, ending.time_ms) and starting.time_ms > ending.time_ms:  # type: ignore[operator]
        raise BadOption("endingTimestamp", "is before startingTimestamp")
    for name in _OF_TRIGGERS if streaming is False else ():
        if name in options:
            raise BadOption(name, "a batch has no triggers; use it with spark.readStream")
    max_offsets = _number_if_given(options, "maxOffsetsPerTrigger")
    commits = _flag(options, "commitOffsetsToBroker")
    if commits and "consumerGroup" not in options:
        raise BadOption("commitOffsetsToBroker", "needs consumerGroup: a group of this query alone")
    index_lookup = _flag(options, "indexLookup")
    if index_lookup and streaming:
        raise BadOption("indexLookup", "no filters are pushed down to streams; use it with spark.read, or leave it out")
    if commits and streaming is False:
        raise BadOption("commitOffsetsToBroker", "a batch commits nothing; use it with spark.readStream")
    one_of(options, "schema", ("rocketmq", "kafka"))
    return SourceOptions(
        name_servers=servers,
        selection=selection,
        starting=starting,
        ending=ending,
        expression=_expression(options),
        max_offsets_per_trigger=max_offsets,
        limits=_limits(options, max_offsets),
        columns=_columns(options, headers if is_kafka else None),
        group=_group(options.get("consumerGroup", DEFAULT_GROUP)),
        commits=commits,
        index_lookup=index_lookup,
        namespace=namespace_of(options),
        read_from=ReadFrom(one_of(options, "readFrom", [each.value for each in ReadFrom])),
        is_stream=bool(streaming),
        pull_batch=number_of(options, "pullBatchSize", 32, 1, 1024),
        retry_timeout_ms=number_of(options, "retryTimeoutMs", 60_000, 0, 24 * 3600 * 1000),
        min_partitions=number_of(options, "minPartitions", 1, 1, 100_000),
        max_records_per_partition=number_of(options, "maxRecordsPerPartition", 2**62, 1, 2**62),
        expect_brokers=_names(options, "expectBrokers"),
        fail_on_data_loss=fail_on_data_loss,
        data_loss_to=_directory(options, "dataLossTo"),
        credentials=credentials_of(options),
        tls=tls_of(options),
    )


_INCLUDE_HEADERS = "includeHeaders"

#: Options of Spark's Kafka source, and what to write here.
_OF_KAFKA = {
    "kafka.bootstrap.servers": "the address is nameServer=host:port, of a name server and not of a broker",
    "kafka.group.id": "the group is consumerGroup",
    "groupIdPrefix": "the group is consumerGroup, and all queries may share one",
    _INCLUDE_HEADERS: "the column properties always has them, and so has headers with schema=kafka",
    "kafkaConsumer.pollTimeoutMs": "how long a broker may return nothing is retryTimeoutMs",
    "fetchOffset.numRetries": "how long a broker may return nothing is retryTimeoutMs",
    "fetchOffset.retryIntervalMs": "how long a broker may return nothing is retryTimeoutMs",
    "kafka.request.timeout.ms": "how long a broker may return nothing is retryTimeoutMs",
    "kafka.default.api.timeout.ms": "how long a broker may return nothing is retryTimeoutMs",
    "kafka.max.poll.records": "the number of messages of a pull is pullBatchSize",
    "kafka.auto.offset.reset": "where a query starts is startingOffsets, and what it does without lost messages "
    "failOnDataLoss",
    "kafka.enable.auto.commit": "offsets are committed for tools by commitOffsetsToBroker",
    "kafka.key.deserializer": "the columns key and value of schema=kafka are bytes: use CAST",
    "kafka.value.deserializer": "the columns key and value of schema=kafka are bytes: use CAST",
}
#: Ignoring one of these would leave a query that was encrypted unencrypted.
_SECURITY = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")


def refuse_kafka(name: str, instead: Mapping[str, str], what: str) -> None:
    """Raises BadOption if it is an option of Spark's Kafka source or sink, `what`; `instead` has what to write."""
    right = next((each for each in instead if each.lower() == name.lower()), name)
    why = instead.get(right)
    if why is None and name.lower().startswith(_SECURITY):
        why = "connections are encrypted by tls=true with tlsCa, the account is accountFile, or accessKey and secretKey"
    if why is None and name.lower().startswith("kafka."):
        why = "a RocketMQ client has no settings of Kafka's client; leave it out"
    if why is not None:
        raise BadOption(right, f"is an option of Spark's Kafka {what}; {why}")


#: Prefix that Spark gives to the options of CREATE TABLE, which it drops before the table is read.
_OF_TABLES = "option."
_TABLES = "Tables in a catalog lose their options: write CREATE TEMPORARY VIEW ... USING rocketmq OPTIONS (...) instead"
NAME_SERVER = f"host:port, or several joined by ';'. {_TABLES}"


def known(name: str, names: Sequence[str] = NAMES, aliases: Sequence[str] = ()) -> str:
    """The option as the documentation spells it, of `names` or their `aliases`. Raises BadOption if there is none."""
    by_lower = {each.lower(): each for each in (*names, *aliases)}
    if name.lower().startswith(_OF_TABLES):
        short = name[len(_OF_TABLES) :]
        raise BadOption(by_lower.get(short.lower(), short), f"is lost. {_TABLES}")
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
    hint = f"did you mean {by_lower[near[0]]}? " if near else ""
    raise BadOption(name, f"there is no such option; {hint}All options: {', '.join(names)}")


def required(options: Mapping[str, str], name: str, right: str) -> str:
    """An option that must be there. Raises BadOption, as do all of these."""
    text = options.get(name, "")
    if not text:
        raise BadOption(name, f"is required: {right}")
    return text


def name_servers_of(text: str) -> tuple[str, ...]:
    """The addresses of name servers."""
    try:
        return parse_name_servers(text)
    except MQError as error:
        raise BadOption("nameServer", f"{error}; use host:port, or several joined by ';'") from None


def _columns(options: Mapping[str, str], headers: str | None) -> Mapping[str, Column]:
    """The columns of the schema; `headers` is that option's value with schema=kafka."""
    names = options.get("propertyColumns", "")
    if headers is not None:
        if names:
            raise BadOption("propertyColumns", "schema=kafka has the properties in headers: leave one of the two out")
        return kafka_columns(_flag({_INCLUDE_HEADERS: headers}, _INCLUDE_HEADERS))
    found = [name.strip() for name in names.split(",")] if names else []
    if not all(map(_property_name, found)) or len({name.lower() for name in found}) < len(found):
        right = "several names joined by commas, of letters, digits and _, that differ in more than their case"
        raise BadOption("propertyColumns", f"{names[:200]!r} is not the name of a property, or {right}")
    return with_properties(found)


_property_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def _expression(options: Mapping[str, str]) -> str | Sql | None:
    tags, sql = options.get("tags", ALL), options.get("sql92")
    if "tags" in options and sql is not None:
        raise BadOption("sql92", "tags and sql92 are two filters; in SQL92 tags are `TAGS IN ('a', 'b')`")
    try:
        if sql is not None:
            return Sql(sql)
        subscription = subscribe_to("", tags, 0)
    except MQError as error:
        raise BadOption("tags" if sql is None else "sql92", str(error)) from None
    return subscription.sub_string if subscription.tags_set else None


_OF_TRIGGERS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


def _limits(options: Mapping[str, str], max_offsets: int | None) -> Limits:
    least = _number_if_given(options, "minOffsetsPerTrigger")
    if least is not None and max_offsets is not None and least > max_offsets:
        raise BadOption("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {max_offsets}")
    if least is None and "maxTriggerDelay" in options:
        raise BadOption("maxTriggerDelay", "is used with minOffsetsPerTrigger: set that, too, or leave this out")
    delay_s = parse_duration("maxTriggerDelay", options.get("maxTriggerDelay", "15m"))
    return Limits(_number_if_given(options, "maxBytesPerTrigger"), least, delay_s)


def _number_if_given(options: Mapping[str, str], name: str) -> int | None:
    return number_of(options, name, 1, 1, 2**62) if name in options else None


def namespace_of(options: Mapping[str, str]) -> str:
    """The namespace; empty without one."""
    try:
        return check_namespace(options.get("namespace", ""))
    except MQError as error:
        raise BadOption("namespace", str(error)) from None


def one_of(options: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """One of `words`, the first by default, without regard to case."""
    text = options.get(name, words[0]).lower()
    if text not in words:
        raise BadOption(name, f"{text[:80]!r} is not one of {', '.join(words)}")
    return text


def _group(text: str) -> str:
    try:
        return check_group(text)
    except Refused as refused:
        raise BadOption("consumerGroup", f"{text!r}: {refused.remark}") from None


def credentials_of(options: Mapping[str, str]) -> Credentials | None:
    """The account; None without one."""
    path = options.get("accountFile")
    if path:
        try:
            return read_account(path)
        except BadAccount as error:
            raise BadOption("accountFile", str(error)) from None
    access_key, secret_key = options.get("accessKey"), options.get("secretKey")
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = "secretKey" if access_key else "accessKey"
        raise BadOption(missing, "is required: an account has both accessKey and secretKey")
    return Credentials(access_key, secret_key, options.get("securityToken") or None)


def tls_of(options: Mapping[str, str]) -> ClientTls | None:
    """How connections are encrypted; None if they are not."""
    texts = {
        "ca_file": options.get("tlsCa"),
        "server_name": options.get("tlsServerName"),
        "cert_file": options.get("tlsCert"),
        "key_file": options.get("tlsKey"),
        "key_password": options.get("tlsKeyPassword"),
    }
    insecure = _flag(options, "tlsInsecure")
    if not (_flag(options, "tls") or insecure or any(texts.values())):
        return None
    try:
        return ClientTls(insecure=insecure, **{name: text or None for name, text in texts.items()})
    except BadTls as error:
        raise BadOption("tls", str(error)) from None


def _names(options: Mapping[str, str], name: str) -> frozenset[str]:
    found = frozenset(part.strip() for part in options.get(name, "").split(",")) if options.get(name) else frozenset()
    if "" in found:
        raise BadOption(name, f"{options[name]!r} has an empty name; use a name, or several joined by commas")
    return found


def _directory(options: Mapping[str, str], name: str) -> str | None:
    text = options.get(name, "").removeprefix("file://")
    if "://" in text or (text and not text.startswith("/")):
        why = "is not the whole path of a directory; use one that the driver and all workers see, such as /data/lost"
        raise BadOption(name, f"{text[:200]!r} {why}")
    return text or None


def _flag(options: Mapping[str, str], name: str, default: str = "false") -> bool:
    text = options.get(name, default).lower()
    if text not in ("true", "false"):
        raise BadOption(name, f"{text[:80]!r} is neither true nor false")
    return text == "true"


def number_of(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number within bounds."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise BadOption(name, f"{text[:80]!r} is not a whole number from {least} to {most}")
    return int(text)
