"""Seeds of `tests.client.simulation`: MQBROKER_GROUP_SEEDS of them, and a few in each push."""

from __future__ import annotations

import os

import pytest

from tests.client.simulation import run_seed


@pytest.mark.parametrize("seed", range(int(os.environ.get("MQBROKER_GROUP_SEEDS", "4"))))
def test_a_group_consumes_everything_whatever_happens(seed: int) -> None:
    counts = run_seed(seed)
    assert counts["consumed"] > 0
