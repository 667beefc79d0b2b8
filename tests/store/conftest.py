"""Stores in temporary directories, closed at the end of the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.harness import Bench, make_bench


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make a bench with changed settings in its own directory."""
    made: list[Bench] = []

    def make_one(name: str = "store", **changes: Any) -> Bench:
        bench = make_bench(tmp_path / name, **changes)
        made.append(bench)
        return bench

    yield make_one
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hours of the day are those of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
