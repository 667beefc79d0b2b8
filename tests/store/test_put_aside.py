"""A store that is put aside: whole beside its place, or still in it, whatever happens meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqbroker.errors import StoreLocked
from mqbroker.store.layout import StorePaths, put_aside
from tests.fakes import Killed
from tests.store.harness import Bench, message, now, stop

SUFFIX = ".diverged-1"


def filled(bench: Bench) -> StorePaths:
    """The paths of a stopped store with messages and tables."""
    store = bench.open()
    store.append([message(body=b"%d" % n) for n in range(20)])
    store.dispatch_now()
    stop(store)
    config = bench.root / "config"
    config.mkdir()
    for name in (
        "consumerOffset.json",
        "consumerOffset.json.bak",
        "delayOffset.json",
        "delayDelivered.json",
        "topics.json",
    ):
        (config / name).write_text("{}")
    return StorePaths(str(bench.root), str(bench.root / "commitlog"))


def count(bench: Bench) -> int:
    store = bench.open()
    found = now(store).get("T", 0, 0, 32).count
    stop(store)
    return found


def test_nothing_is_left_but_topics_and_groups(bench: Bench) -> None:
    paths = filled(bench)
    moved = put_aside(bench.disk, paths, SUFFIX)
    assert {os.path.relpath(path, bench.root) for path in moved} >= {
        "commitlog" + SUFFIX, "consumequeue" + SUFFIX, "index" + SUFFIX, "checkpoint" + SUFFIX,
        "config/consumerOffset.json" + SUFFIX, "config/delayOffset.json" + SUFFIX,
        "config/delayDelivered.json" + SUFFIX,
    }  # fmt: skip
    assert all(Path(path).exists() for path in moved)
    assert [path.name for path in (bench.root / "config").iterdir() if not path.name.endswith(SUFFIX)] == [
        "topics.json"
    ]
    assert count(bench) == 0


def test_killed_at_any_point_the_store_is_whole_or_empty(bench: Bench) -> None:
    paths = filled(bench)
    found = []
    for lives in range(40):
        image = bench.image(f"image{lives}")
        image.disk.faults.lives = lives
        aside = StorePaths(str(image.root), str(image.root / "commitlog"))
        try:
            put_aside(image.disk, aside, SUFFIX)
        except Killed:
            image.disk.faults.lives = None
            found.append(count(image))
            continue
        image.disk.faults.lives = None
        assert count(image) == 0
        break
    assert paths.root
    assert found[:3] == [20, 20, 20]
    assert set(found) <= {20, 0}
    assert found == sorted(found, reverse=True)


def test_an_open_store_stays_where_it_is(bench: Bench) -> None:
    paths = filled(bench)
    store = bench.open()
    with pytest.raises(StoreLocked):
        put_aside(bench.disk, paths, SUFFIX)
    stop(store)
    assert count(bench) == 20
