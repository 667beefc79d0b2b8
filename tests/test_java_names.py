"""The page of Java's names: what it names on this side is there, on each face."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from mqbroker import client
from mqbroker.client import aio, blocking, deferred
from tests.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "java-names.rst"


def rows() -> list[tuple[str, str]]:
    """Java's names of a row, and what is said of them."""
    cells = re.findall(
        r"^   \* - (.*?)\n     - (.*?)(?=\n   \* - |\n\n|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return [(java, ours) for java, ours in cells if java != "Java"]


def has(face: Any, name: str) -> bool:
    owner, _, member = name.partition(".")
    kind = getattr(client, owner, None) or getattr(face, owner, None)
    if kind is None or not member:
        return kind is not None
    return hasattr(kind, member) or (attrs.has(kind) and member in {field.name for field in attrs.fields(kind)})


@pytest.mark.parametrize("face", [aio, blocking, deferred], ids=["asyncio", "blocking", "twisted"])
def test_what_the_page_of_javas_names_names_here_is_there(face: Any) -> None:
    found = [name for _, ours in rows() for name in re.findall(r"``([A-Z]\w+(?:\.\w+)?)``", ours)]
    assert len(found) > 60
    assert [name for name in found if not has(face, name)] == []


def test_each_row_says_what_to_use_or_why_there_is_nothing() -> None:
    for java, ours in rows():
        assert re.search(r"``|nothing|the argument", ours), java
