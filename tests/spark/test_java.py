"""Finding Java: which one, how old, and what is said when there is none."""

from pathlib import Path

import pytest

from mqbroker.spark.java import JavaMissing, check_version, find_java


def fake_java(directory: Path, script: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


SEVENTEEN = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ('java version "25-ea" 2025-09-16', 25),
    ],
)
def test_a_version_that_will_do(line: str, version: int) -> None:
    assert check_version("java", 0, line) == version


@pytest.mark.parametrize(("line", "version"), [('java version "1.8.0_292"', 8), ('openjdk version "11.0.2"', 11)])
def test_a_version_that_is_too_old(line: str, version: int) -> None:
    with pytest.raises(
        JavaMissing, match=f"Java is too old: java is version {version}, and Spark needs 17 or later. Install"
    ):
        check_version("java", 0, line)


@pytest.mark.parametrize(("status", "output"), [(1, 'version "17"'), (0, "hello"), (0, "")])
def test_a_program_that_is_no_java(status: int, output: str) -> None:
    with pytest.raises(JavaMissing, match="Java does not start: `java -version` ended with"):
        check_version("java", status, output)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "echo 'openjdk version \"21.0.1\"' >&2")
    on_path = fake_java(tmp_path / "other", SEVENTEEN)
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}) == 21
    assert find_java({"PATH": str(on_path.parent)}) == 17
    assert find_java({"JAVA_HOME": "", "PATH": str(on_path.parent)}) == 17


def test_no_java_at_all(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing) as caught:
        find_java({"PATH": str(tmp_path)})
    assert caught.value.what == "Java not found"
    assert "JAVA_HOME is not set" in caught.value.why
    assert "Install Java 17" in caught.value.todo


def test_a_java_home_without_java(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=f"JAVA_HOME is {tmp_path}, and there is no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_cannot_be_executed(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "")
    java.write_bytes(b"\x7fELF no more")
    with pytest.raises(JavaMissing, match="Java does not start"):
        find_java({"JAVA_HOME": str(tmp_path)})
