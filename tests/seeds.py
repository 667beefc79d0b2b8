"""Which seeds the tests of generated histories run.

``.ci/run`` sets MQBROKER_THIRD to 0, 1 or 2, in turn from commit to commit.
"""

from __future__ import annotations

import os


def seeds_of_push(count: int) -> range:
    """The seeds below `count`: all of them, or the third that MQBROKER_THIRD selects."""
    third = os.environ.get("MQBROKER_THIRD")
    return range(count) if third is None else range(int(third), count, 3)


def block_of_push(count: int) -> range:
    """`count` seeds: the first ones, or the first, second or third block that MQBROKER_THIRD selects."""
    first = int(os.environ.get("MQBROKER_THIRD", "0")) * count
    return range(first, first + count)
