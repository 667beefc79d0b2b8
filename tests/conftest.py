"""What holds for all tests."""

from __future__ import annotations

import pytest

#: A process has one file at a time: the slow ones come first, or one process ends long after the others.
_LONGEST = ("tests/spark/", "tests/store/simulation/", "tests/demo/", "tests/daemons/", "tests/filter/")


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(_LONGEST) if item.nodeid.startswith(folder)), len(_LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
