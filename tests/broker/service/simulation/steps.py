"""What a run of a group does, as data: options and a list of steps, both from one seed.

A step is its name, how many seconds pass after it, and a seed of its own for what it chooses while it runs: taking one
step out shifts none of the others.
"""

from __future__ import annotations

from random import Random
from typing import Any

from mqbroker.config import FlushDiskType

Step = list[Any]
Options = dict[str, Any]

STEPS_COUNT = 30
#: What may happen, and how often.
SHARES = {
    "send": 14, "consume": 6, "pause": 6, "kill": 2, "stop": 1, "start": 5, "freeze": 2, "thaw": 3, "power": 2,
    "power for a moment": 3, "power of all": 1, "cut": 2, "cut one way": 2, "cut etcd": 2, "cut name server": 1,
    "etcd down": 1, "heal": 5, "slow etcd": 1, "uneven etcd": 3, "slow links": 2, "isolate": 3,
}  # fmt: skip
PAUSES_S = (0, 0.1, 0.5, 2, 4, 7)


def options_of(seed: int) -> Options:
    """`chunk`: links carry so many bytes at a time."""
    rng = Random(f"{seed} options")
    flush = rng.choice([*FlushDiskType])
    return {"seed": rng.getrandbits(30), "flush": flush.value, "chunk": rng.choice([1 << 30, 1 << 30, 700])}


def steps_of(seed: int) -> list[Step]:
    rng = Random(f"{seed} steps")
    names = rng.choices(list(SHARES), list(SHARES.values()), k=STEPS_COUNT)
    return [[name, rng.choice(PAUSES_S), rng.getrandbits(30)] for name in names]
