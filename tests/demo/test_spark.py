"""Spark's part: whether it can run here, and what the counting process tells."""

import asyncio
import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest

from mqbroker.spark.java import JavaMissing
from mqbroker_demo import spark_process as spark_module
from mqbroker_demo.corpus import Count
from mqbroker_demo.spark_process import SparkCount, what_is_missing


def test_packages_that_are_not_installed_are_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find_spec("json"))
    missing = what_is_missing()
    assert missing is not None
    assert missing.startswith("pyspark not installed. Install the extra `spark`")
    assert "pip install 'pyspark>=4.0,<5'" in missing


def test_a_pyspark_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.5.9")
    assert (what_is_missing() or "").startswith("pyspark is 3.5.9, and the demo needs 4.0 or later.")


def test_java_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.10.0.dev1")

    def no_java() -> int:
        raise JavaMissing("Java not found", "no `java` on the PATH", "Install it")

    monkeypatch.setattr(spark_module, "find_java", no_java)
    assert what_is_missing() == "Java not found: no `java` on the PATH. Install it"
    monkeypatch.setattr(spark_module, "find_java", lambda: 17)
    assert what_is_missing() is None


def feed(spark: SparkCount, *events: dict[str, object]) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(json.dumps(event).encode() + b"\n" for event in events))
        reader.feed_eof()
        await spark._read(reader)

    asyncio.run(read())


def test_the_latest_counts_are_kept_by_file(tmp_path: Path) -> None:
    progress: list[int] = []
    spark = SparkCount(tmp_path, progress.append)
    feed(
        spark,
        {"event": "session"},
        {"event": "counts", "rows": 3, "files": {"a%20b": [2, 5]}},
        {"event": "counts", "rows": 7, "files": {"a%20b": [3, 6], "c": [1, 0]}},
    )
    assert spark.files == {"a b": Count(3, 6), "c": Count(1, 0)}
    assert (spark.rows, spark.lines, progress) == (7, 4, [2, 4])


def test_an_end_before_it_is_asked_for_is_a_failure(tmp_path: Path) -> None:
    spark = SparkCount(tmp_path, lambda done: None)
    feed(spark, {"event": "session"})
    assert spark.failed == "it ended"


def test_the_first_failure_is_the_one_told(tmp_path: Path) -> None:
    spark = SparkCount(tmp_path, lambda done: None)
    feed(spark, {"event": "failed", "why": "no such topic"})
    assert spark.failed == "no such topic"


def test_a_process_that_never_was_is_closed_all_the_same(tmp_path: Path) -> None:
    SparkCount(tmp_path, lambda done: None).close()
