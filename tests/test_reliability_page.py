"""The page of guarantees names tests: each is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explanation" / "reliability.rst").read_text()
NAMED = sorted(set(re.findall(r"``(tests/[\w/]+\.py)::(test_\w+)``", PAGE)))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_each_event_but_the_loss_of_the_disk_names_a_test() -> None:
    rows = PAGE.partition("     - Shown by\n")[2].partition("\nDuplicates")[0].split("   * - ")[1:]
    assert [row.partition("\n")[0] for row in rows if "::test_" not in row] == ["The disk is lost"]
    assert len(rows) > 10


def test_each_event_of_replicas_names_a_test() -> None:
    for table in ("A master and its slave\n", "Brokers that elect their master\n"):
        part = PAGE.partition(table)[2]
        rows = part[: re.search(r"\n\n[^\n]+\n---+\n", part).start()].split("   * - ")[2:]
        assert [row.partition("\n")[0] for row in rows if "::test_" not in row] == []
        assert len(rows) >= 8


def test_whatever_is_written_as_a_test_has_a_name() -> None:
    assert len(re.findall(r"tests/[\w/]+\.py::", PAGE)) == len(re.findall(r"``tests/[\w/]+\.py::test_\w+``", PAGE))
