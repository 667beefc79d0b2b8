"""Java's .properties syntax, with the line of each key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.config import read_conf
from mqbroker.errors import BadSetting


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[tuple[str, str, int | None]]]:
    def read_text(text: str, encoding: str = "iso-8859-1") -> list[tuple[str, str, int | None]]:
        path = tmp_path / "a.conf"
        path.write_bytes(text.encode(encoding))
        found = read_conf(str(path))
        assert {item.origin for item in found} <= {str(path)}
        return [(item.key, item.value, item.line) for item in found]

    return read_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a=b", [("a", "b", 1)]),
        ("a=b\n", [("a", "b", 1)]),
        ("# x\n! y\n\n a = b \n c: d\n e f\n", [("a", "b", 4), ("c", "d", 5), ("e", "f", 6)]),
        ("a=b\\\n  c\nd=e\n", [("a", "bc", 1), ("d", "e", 3)]),
        ("a=1\r\nb=2\r\n", [("a", "1", 1), ("b", "2", 2)]),
        ("a=1\rb=2", [("a", "1", 1), ("b", "2", 2)]),
        ("a=1\na=2\n", [("a", "1", 1), ("a", "2", 2)]),
        ("a=\\u0041\\t.", [("a", "A\t.", 1)]),
        ("a=", [("a", "", 1)]),
        ("a", [("a", "", 1)]),
        ("a=é", [("a", "é", 1)]),
        ("a=b=c;d", [("a", "b=c;d", 1)]),
    ],
)
def test_what_is_read(
    read: Callable[..., list[tuple[str, str, int | None]]], text: str, found: list[tuple[str, str, int]]
) -> None:
    assert read(text) == found


def test_a_wrong_escape_names_its_line(read: Callable[..., list[tuple[str, str, int | None]]]) -> None:
    with pytest.raises(BadSetting, match=r"a\.conf:2: \\u: .*four hexadecimal digits"):
        read("a=b\nc=\\u00zz\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="the file cannot be read: No such file or directory"):
        read_conf(str(tmp_path / "missing.conf"))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="the file cannot be read: Is a directory"):
        read_conf(str(tmp_path))
