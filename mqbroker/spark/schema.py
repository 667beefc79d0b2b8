"""The columns of a message, and their selection by a user's schema. No I/O, and no import of PySpark."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import attrs

from mqbroker.spark.errors import BadSchema


@attrs.frozen
class Column:
    """`type` is Spark's name of it; `always`: every message has a value."""

    name: str
    type: str
    always: bool = True


#: All columns, in the order of the default schema. The four first queue columns together are a message's identity.
COLUMNS = (
    Column("topic", "string"),
    Column("brokerName", "string"),
    Column("queueId", "int"),
    Column("queueOffset", "bigint"),
    Column("commitLogOffset", "bigint"),
    Column("msgId", "string"),
    Column("uniqKey", "string", always=False),
    Column("tags", "string", always=False),
    Column("keys", "array<string>", always=False),
    Column("body", "binary", always=False),
    Column("properties", "map<string,string>"),
    Column("bornTimestamp", "timestamp"),
    Column("storeTimestamp", "timestamp"),
    Column("bornHost", "string"),
    Column("storeHost", "string"),
    Column("flag", "int"),
    Column("sysFlag", "int"),
    Column("reconsumeTimes", "int"),
    Column("bodyCrc", "int"),
    Column("storeSize", "int"),
    Column("preparedTransactionOffset", "bigint"),
    Column("delayTimeLevel", "int", always=False),
    Column("producerGroup", "string", always=False),
    Column("bodyError", "string", always=False),
    Column("storedBody", "binary", always=False),
)
#: Columns by their names in lower case.
BY_NAME: dict[str, Column] = {column.name.lower(): column for column in COLUMNS}
_KAFKA = (
    Column("key", "binary", always=False),
    Column("value", "binary", always=False),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int"),
    Column("headers", "array<struct<key:string,value:binary>>"),
)
_IDENTITY = ("topic", "brokerName", "queueId", "queueOffset")


def kafka_columns(has_headers: bool) -> Mapping[str, Column]:
    """The columns of Spark's Kafka source, by their names in lower case."""
    return {column.name.lower(): column for column in _KAFKA if has_headers or column.name != "headers"}


#: Prefix of the columns that `propertyColumns` adds.
PROPERTY_PREFIX = "prop_"


def with_properties(names: Iterable[str]) -> Mapping[str, Column]:
    """All columns, and one for each property of these names."""
    added = [Column(f"{PROPERTY_PREFIX}{name}", "string", always=False) for name in names]
    return BY_NAME | {column.name.lower(): column for column in added}


def is_kafka(columns: Mapping[str, Column]) -> bool:
    """Whether they are those of Spark's Kafka source."""
    return "value" in columns


def default_ddl(columns: Mapping[str, Column] = BY_NAME) -> str:
    """The default schema as Spark writes it."""
    is_own = not is_kafka(columns)
    return ", ".join(
        f"{c.name} {c.type}{' NOT NULL' if is_own and c.name in _IDENTITY else ''}" for c in columns.values()
    )


def choose_columns(fields: Iterable[tuple[str, str, bool]], columns: Mapping[str, Column] = BY_NAME) -> tuple[str, ...]:
    """The `columns` that a schema of (name, type, nullable) asks for, in its order. Raises BadSchema.

    Names are compared without regard to case, as Spark does.
    """
    chosen: list[str] = []
    for name, type_name, nullable in fields:
        column = columns.get(name.lower())
        if column is None:
            near = difflib.get_close_matches(name.lower(), columns, 1, 0.6)
            hint = f"did you mean {columns[near[0]].name}? " if near else ""
            every = ", ".join(f"{c.name} {c.type}" for c in columns.values())
            raise BadSchema(f"column {name}: messages have no such column; {hint}All columns: {every}")
        if type_name != column.type:
            raise BadSchema(
                f"column {name}: its type is {column.type}, not {type_name}; read it as it is, and cast after that"
            )
        if not (nullable or column.always):
            raise BadSchema(f"column {name}: not every message has a value; leave NOT NULL out")
        if column.name in chosen:
            raise BadSchema(f"column {name}: appears twice")
        chosen.append(column.name)
    if not chosen:
        raise BadSchema("the schema has no column; name one at least, such as body BINARY")
    return tuple(chosen)
