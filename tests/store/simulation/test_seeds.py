"""Runs of the store on the simulated disk, each from one seed, and those that once failed.

MQBROKER_STORE_SEEDS chooses how many runs there are.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import seeds_of_push
from tests.store.simulation.run import SOMETIMES, describe, run_seed, run_steps
from tests.store.simulation.shrink import shrink
from tests.store.simulation.steps import options_of, steps_of

ALL_SEEDS = 260
SEEDS = int(os.environ.get("MQBROKER_STORE_SEEDS", ALL_SEEDS))
#: A push runs one part of the seeds, in turn.
PARTS = 6
#: Those of any part, too: they meet each of SOMETIMES twice.
RARE = (3, 53, 63, 68, 74, 79, 86, 103, 142, 156, 159, 164, 189, 245)
REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Each run ends with a collection, which need not look at what was there before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_seeds() -> None:
    """One test, for what is met is counted over all seeds: a rare branch that none of them reaches is not tested."""
    met: Counter[str] = Counter()
    for seed in sorted({*seeds_of_push(SEEDS, PARTS), *RARE}):
        outcome = run_seed(seed)
        met.update(outcome.counts)
        if outcome.violation is not None:
            options = options_of(seed)
            steps = shrink(options, steps_of(seed, options), outcome.violation.invariant)
            pytest.fail(describe(seed, outcome, options, steps), pytrace=False)
    if SEEDS >= ALL_SEEDS:
        assert [name for name in SOMETIMES if not met[name]] == []


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_once_failed(path: Path) -> None:
    regression: dict[str, Any] = json.loads(path.read_text())
    assert run_steps(regression["options"], regression["steps"]).violation is None


@pytest.mark.parametrize("seed", [1, 42, 137])
def test_a_seed_does_the_same_twice(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.trace == second.trace
    assert first.counts == second.counts


def test_taking_a_fault_out_shifts_no_other_step() -> None:
    for seed in range(50):
        options = options_of(seed)
        steps = steps_of(seed, options)
        for fault in options["faults"]:
            fewer = steps_of(seed, {**options, "faults": [other for other in options["faults"] if other != fault]})
            kept = iter(steps)
            assert all(step in kept for step in fewer)
