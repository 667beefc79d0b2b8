"""Pulls in a row, and those of the general path, in a world that changes between any two of them: the same messages at
the same time, by the same requests.

Two groups of consumers run the same generated history, each against servers of its own. MQBROKER_TWIN_SEEDS chooses how
many.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mqbroker.client import messages
from mqbroker.client.pull_run import PullRun
from tests.client.pulling_twins import QUEUES, Twin
from tests.seeds import seeds_of_push

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60")) // 2


def history(root: Path, seed: int, *, in_a_row: bool) -> list[Any]:
    twin = Twin(root, seed, in_a_row=in_a_row)
    steps = [twin.step()]
    for _ in range(12):
        for _ in range(twin.rng.choice([1, 2])):
            twin.store(twin.rng, twin.rng.choice(QUEUES))
        if twin.rng.random() < 0.5:
            steps.append(twin.step())
        for _ in range(twin.rng.choice([1, 2, 3])):
            twin.change(twin.rng)
        steps.append(twin.step())
    twin.calm_down()
    steps.append(twin.step())
    twin.check()
    steps.append(twin.close())
    return steps


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome_while_the_world_changes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = 0
    encode = PullRun._encode

    def counted(self: PullRun, offset: int, opaque: int) -> bytes:
        nonlocal followed
        followed += 1
        return encode(self, offset, opaque)

    monkeypatch.setattr(PullRun, "_encode", counted)
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 1000)
    in_a_row = history(tmp_path / "row", seed, in_a_row=True)
    assert followed or seed, "no pull followed another: the comparison says nothing"
    followed = 0
    general = history(tmp_path / "general", seed, in_a_row=False)
    assert not followed
    for number, (one, other) in enumerate(zip(in_a_row, general, strict=True)):
        assert one == other or one is None, f"at step {number}"
