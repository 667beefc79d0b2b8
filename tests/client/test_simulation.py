"""Seeds of `tests.client.simulation`: MQBROKER_GROUP_SEEDS of them, and a few in each push."""

from __future__ import annotations

import os

import pytest

from tests.client.simulation import HARSH_FROM, run_seed

COUNT = int(os.environ.get("MQBROKER_GROUP_SEEDS", "4"))
#: Those beyond the first lose messages where offsets are committed too early, and have crashes and removed queues.
SEEDS = sorted({*range(COUNT), 5, 9, *range(HARSH_FROM, HARSH_FROM + COUNT // 2)})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_consumes_everything_whatever_happens(seed: int) -> None:
    counts = run_seed(seed)
    assert counts["consumed"] > 0
