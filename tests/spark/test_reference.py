"""The page of the format against the source: each option, column and default is on it, and no other."""

import re
from pathlib import Path

import pytest

from mqbroker.spark.choosing import WAYS
from mqbroker.spark.options import NAMES
from mqbroker.spark.schema import COLUMNS, Column, kafka_columns
from mqbroker.spark.sink_options import ALIASES, TYPES
from mqbroker.spark.sink_options import NAMES as SINK_NAMES

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "spark.rst").read_text()


def section(title: str) -> str:
    (found,) = re.findall(rf"\n{title}\n-+\n(.*?)\n[^\n]+\n---+\n", PAGE, re.DOTALL)
    assert isinstance(found, str)
    return found


def terms(title: str) -> str:
    """The lines of a section that begin with a name, each with a definition below it."""
    return "\n".join(re.findall(r"^(``.*)\n    \S", section(title), re.MULTILINE))


def names(text: str) -> list[str]:
    """The names, without what is in brackets behind them: types and defaults."""
    return re.findall(r"``(\w+)``", re.sub(r" \((?!and )[^)]*\)", "", text))


def test_each_option_of_reads_is_there_once() -> None:
    assert sorted(names(terms("Options of reads"))) == sorted({*NAMES, *WAYS} - {"path", "paths"})


def test_each_option_of_writes_is_there_once() -> None:
    found = names(terms("Options of writes"))
    # The first one says that these are as for reads.
    shared = set(SINK_NAMES[SINK_NAMES.index("accountFile") :])
    assert sorted(found) == sorted(set(SINK_NAMES) - shared)
    text = section("Options of writes")
    for name in shared:
        assert f"``{name}``" in text or (name.startswith("tls") and "all options of TLS" in text), name


def test_each_column_of_reads_is_there_with_its_type() -> None:
    found: dict[str, str] = {}
    for line in terms("Columns of reads").splitlines():
        types = re.sub(r", not null\)$", ")", line).rpartition("(")[2].rstrip(")")
        each = names(line)
        kinds = types.split(", ") if len(each) > 1 and ", " in types else [types] * len(each)
        found |= dict(zip(each, kinds, strict=True))
    assert found == {column.name: column.type.replace("bigint", "long") for column in COLUMNS}


@pytest.mark.parametrize("column", COLUMNS)
def test_what_may_be_null_is_not_said_to_be_otherwise(column: Column) -> None:
    (line,) = [line for line in terms("Columns of reads").splitlines() if f"``{column.name}``" in line]
    assert ("not null" in line) <= column.always


def test_each_column_of_the_kafka_schema_is_named() -> None:
    text = section("Columns of reads")
    after = text[text.index("With ``schema=kafka``") :]
    assert [name for name in kafka_columns(True) if f"``{kafka_columns(True)[name].name}``" not in after] == []


def test_each_column_of_writes_is_there() -> None:
    assert sorted(names(terms("Columns of writes"))) == sorted({*TYPES, *ALIASES})


@pytest.mark.parametrize("title", ["Options of reads", "Options of writes"])
def test_defaults_are_those_of_the_source(title: str) -> None:
    from mqbroker.spark.options import parse_options
    from mqbroker.spark.sink_options import parse_sink_options

    given = {"nameServer": "a:1", "topic": "orders"}
    parse = parse_sink_options if title.endswith("writes") else lambda texts: parse_options(texts, streaming=None)
    defaults = re.findall(r"^``(\w+)`` \(``([^`]+)``|^``(\w+)`` \((\d+)\)", terms(title), re.MULTILINE)
    assert len(defaults) >= 4
    for name, text, other, number in defaults:
        option, value = name or other, text or number
        needed = {"maxTriggerDelay": {"minOffsetsPerTrigger": "1"}}.get(option, {})
        if option == "startingOffsetsByTimestampStrategy":
            needed = {"startingTimestamp": "1"}
        assert parse(given | needed | {option: value}) == parse(given | needed), option
