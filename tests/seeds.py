"""Which seeds the tests of generated histories run.

``.ci/run`` sets MQBROKER_TURN to the number of the commit, so that all have their turn.
"""

from __future__ import annotations

import os


def seeds_of_push(count: int, parts: int = 3) -> range:
    """The seeds below `count`: all of them, or the share of them that MQBROKER_TURN selects."""
    turn = os.environ.get("MQBROKER_TURN")
    return range(count) if turn is None else range(int(turn) % parts, count, parts)


def block_of_push(count: int) -> range:
    """The first `count` seeds; or one of six blocks of half as many, which MQBROKER_TURN selects."""
    turn = os.environ.get("MQBROKER_TURN")
    if turn is None:
        return range(count)
    half = count // 2
    return range(int(turn) % 6 * half, (int(turn) % 6 + 1) * half)
