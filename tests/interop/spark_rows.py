"""Rows of Spark, in the form of what a Java consumer prints of the same messages."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqbroker.spark.api import TELLS_START
from tests.daemons.processes import PATIENCE_SECONDS
from tests.interop.traffic import Event

#: By a row's columns, the expression that makes them of a message, and the name in the line of a Java consumer.
_COLUMNS = {
    "topic": "topic",
    "brokerName": "broker",
    "queueId": "queueId",
    "queueOffset": "queueOffset",
    "commitLogOffset": "physicalOffset",
    "length(body)": "size",
    "sha2(body, 256)": "sha256",
    "uniqKey": "msgId",
    "tags": "tags",
    "array_join(`keys`, ' ')": "keys",
    "flag": "flag",
    "sysFlag": "sysFlag",
    "reconsumeTimes": "reconsumeTimes",
    "unix_millis(bornTimestamp)": "bornTimestamp",
    "unix_millis(storeTimestamp)": "storeTimestamp",
    "properties": "properties",
}
#: What a Java consumer adds to each message that it pulls.
_OF_CONSUMERS = frozenset({"MIN_OFFSET", "MAX_OFFSET"})
Place = tuple[str, int, int]


def rows_of(frame: Any) -> list[Event]:
    """All columns that both have, by place."""
    found = frame.selectExpr(*(f"{column} AS `{name}`" for column, name in _COLUMNS.items())).collect()
    return sorted((row.asDict() for row in found), key=place_of)


def view_of(events: Iterable[Event]) -> list[Event]:
    """As `rows_of`, of what a Java consumer has printed."""
    seen = [{name: event.get(name) for name in _COLUMNS.values()} for event in events]
    for event in seen:
        kept = {name: text for name, text in event["properties"].items() if name not in _OF_CONSUMERS}
        event["properties"] = kept
    return sorted(seen, key=place_of)


def place_of(event: Mapping[str, Any]) -> Place:
    return (event["broker"], event["queueId"], event["queueOffset"])


def places_of(frame: Any) -> list[Place]:
    """Where each message is, a repeated one twice."""
    return sorted(tuple(row) for row in frame.select("brokerName", "queueId", "queueOffset").collect())


def options_for(name_server: str, **options: str) -> dict[str, str]:
    return {"nameServer": name_server, **options}


def run_available(
    spark: Any, options: Mapping[str, str], folder: Path, process: Callable[[Any, int], None] | None = None
) -> None:
    """Run a stream of what is available, with its checkpoint below `folder`, into files there or by `process`.

    Raises what Spark raises."""
    # Before PySpark 4.2 a run of what is available is one batch, whatever its limit.
    is_run = TELLS_START or "maxOffsetsPerTrigger" not in options
    frame = spark.readStream.format("rocketmq").options(**options).load()
    writer = frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    if is_run:
        writer = writer.trigger(availableNow=True)
    if process is not None:
        writer = writer.foreachBatch(process)
    else:
        writer = writer.format("parquet").option("path", f"{folder}/rows")
    query = writer.start()
    if is_run:
        assert query.awaitTermination(PATIENCE_SECONDS)
        return
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@contextmanager
def running(spark: Any, options: Mapping[str, str], folder: Path) -> Any:
    """A stream that runs on, with its checkpoint and its files below `folder`."""
    frame = spark.readStream.format("rocketmq").options(**options).load()
    writer = frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.format("parquet").option("path", f"{folder}/rows").start()
    try:
        yield query
    finally:
        query.stop()


def kept(spark: Any, folder: Path) -> list[Place]:
    """The places of all messages in the files of a stream below `folder`."""
    columns = "brokerName STRING, queueId INT, queueOffset BIGINT"
    return places_of(spark.read.schema(columns).parquet(f"{folder}/rows"))
