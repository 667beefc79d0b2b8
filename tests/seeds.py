"""Which seeds tests of generated histories run."""

from __future__ import annotations

import os


def seeds_of_push(count: int) -> range:
    """The first so many; where MQBROKER_THIRD is 0, 1 or 2, a third of them: that of a commit, see `.ci/run`."""
    third = os.environ.get("MQBROKER_THIRD")
    return range(count) if third is None else range(int(third), count, 3)
