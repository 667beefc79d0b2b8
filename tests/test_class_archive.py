"""The archives of classes with which the tests start JVMs: who writes one, and what happens where that fails."""

from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.class_archive import archive_options


def write(option: str) -> None:
    flag, _, path = option.partition("=")
    assert flag == "-XX:ArchiveClassesAtExit"
    Path(path).write_text("classes")


def fail(option: str) -> None:
    raise AssertionError(f"there is an archive: {option}")


def test_the_first_caller_has_it_written_and_the_others_use_it(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    options = archive_options(archive, write)
    assert options.split()[0] == f"-XX:SharedArchiveFile={archive}"
    assert archive.read_text() == "classes"
    assert archive_options(archive, fail) == options


def test_a_java_that_writes_none_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []
    for _ in range(2):
        assert archive_options(tmp_path / "classes.jsa", asked.append) == ""
    assert len(asked) == 1


def test_without_a_directory_to_write_to_there_is_none(tmp_path: Path) -> None:
    assert archive_options(tmp_path / "missing" / "classes.jsa", fail) == ""


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def break_off(option: str) -> None:
        write(option)
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        archive_options(tmp_path / "classes.jsa", break_off)
    assert [path.name for path in tmp_path.iterdir()] == ["classes.jsa.lock"]


def test_what_writes_the_archive_of_spark_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from tests.spark import session

    def wait() -> str:
        raise AssertionError("it waits for itself")

    monkeypatch.setattr("pyspark.sql.SparkSession.builder", MagicMock())
    monkeypatch.setattr(session, "short_lived_jvm", wait)
    session.start_session("scratch", more={"spark.executor.extraJavaOptions": ""})
    with pytest.raises(AssertionError, match="waits for itself"):
        session.start_session("scratch")
