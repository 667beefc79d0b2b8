"""A group of three through whatever happens to it, each run from one seed, and runs that once failed.

Brokers are killed, stopped, held as by SIGSTOP, and lose power; links between them, to name servers and to etcd are
slow or cut, either way alone, too; etcd is away, loses answers, and lets leases expire late. MQBROKER_SEEDS chooses how
many runs there are; ``.ci/run`` has half as many for each commit, of three times as many in turn. A failure names its
seed, and prints the shortest story.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.broker.service.simulation.run import run_seed, run_steps, story
from tests.broker.service.simulation.steps import STEPS_COUNT, steps_of
from tests.seeds import block_of_push

SEEDS = int(os.environ.get("MQBROKER_SEEDS", "100"))
REGRESSIONS = sorted((Path(__file__).parent / "simulation" / "regressions").glob("*.json"))


@pytest.mark.parametrize("seed", block_of_push(SEEDS))
def test_seeds(seed: int) -> None:
    outcome = run_seed(seed)
    if outcome.violation is not None:
        pytest.fail(story(seed, outcome), pytrace=False)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_once_failed(path: Path) -> None:
    regression: dict[str, Any] = json.loads(path.read_text())
    assert run_steps(regression["options"], regression["steps"]).violation is None


@pytest.mark.parametrize("seed", [1, 42])
def test_a_seed_does_the_same_twice(seed: int) -> None:
    assert run_seed(seed) == run_seed(seed)
    assert len(steps_of(seed)) == STEPS_COUNT
