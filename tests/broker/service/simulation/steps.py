"""What a run of a group does, as data: options and a list of steps, both from one seed.

A step is its name, how many seconds pass after it, and a seed of its own for what it chooses while it runs: taking one
step out shifts none of the others.
"""

from __future__ import annotations

import os
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
    "etcd down": 1, "heal": 5, "slow etcd": 1, "uneven etcd": 3, "slow links": 2, "isolate": 3, "switch": 4,
    "hang member": 3, "hang etcd": 1, "late member": 2, "etcd goes on": 3,
}  # fmt: skip
#: Of these, what happens where links are whole.
CALM = {
    "send", "consume", "pause", "kill", "stop", "start", "freeze", "thaw", "power", "power for a moment", "heal",
    "switch",
}  # fmt: skip
#: What may happen besides in some of the runs.
MORE = {
    "disks": {
        "snapshot": 6, "empty disk": 4, "replace log": 3, "set back store": 4, "set back tables": 2, "set back log": 2,
        "copy disk": 2, "zero segments": 4, "kill while catching up": 6, "narrow links": 1, "outage": 2, "outages": 1,
    },
    "etcd": {"back up etcd": 2, "restore etcd": 6, "outage": 4},
    "forgers": {"forge": 14},
    "readers": {"read": 24},
    "transactions": {"transact": 14, "end transactions": 8},
}  # fmt: skip
#: Which of them together, and how often: what is set back together with etcd has no promises.
KINDS = {
    (): 4, ("disks",): 6, ("etcd",): 3, ("forgers",): 2, ("readers",): 3, ("disks", "readers"): 2,
    ("etcd", "readers"): 1, ("disks", "forgers"): 1, ("disks", "etcd"): 1, ("transactions",): 5,
}  # fmt: skip
#: What of that brokers stand. "strict": they serve consumers what is confirmed, and no more.
STOOD = "disks etcd forgers readers strict transactions"
ENABLED = frozenset(os.environ.get("MQBROKER_KINDS", STOOD).replace(",", " ").split())
ARE_READERS_STRICT = "strict" in ENABLED
#: How fast clocks of brokers run, in every other run.
RATES = (0.99, 1.0, 1.01)
#: A replica is in sync for 2 s at most after it had all, one without a link for 1 s; leases live 3 s.
PAUSES_S = (0, 0.1, 0.1, 0.5, 0.5, 0.95, 1, 1.05, 1.95, 2, 2.05, 2.95, 3, 3.05, 4, 4, 7, 7)


def options_of(seed: int) -> Options:
    """`chunk`: links carry so many bytes at a time. `kinds`: what happens besides, see `MORE`. `readers`: what a
    consumer has read must stay. `calm`: links and etcd's are as they should be. `rates`: how fast the clocks of brokers
    run; by one that runs by 1 % too fast or too slow a lease has another length."""
    rng = Random(f"{seed} options")
    flush = rng.choice([*FlushDiskType])
    made = {
        "seed": rng.getrandbits(30),
        "flush": flush.value,
        "chunk": rng.choice([1 << 30, 1 << 30, 1 << 30, 700, 700, 13]),
    }
    [kinds] = rng.choices([*KINDS], [*KINDS.values()])
    kinds = tuple(kind for kind in kinds if kind in ENABLED)
    calm = bool(kinds) and rng.random() < 0.6
    rates = [rng.choice(RATES) for _ in range(3)] if rng.random() < 0.5 else [1.0] * 3
    return {**made, "kinds": kinds, "calm": calm, "readers": ARE_READERS_STRICT, "rates": rates}


def steps_of(seed: int) -> list[Step]:
    rng = Random(f"{seed} steps")
    options = options_of(seed)
    shares = {name: share for name, share in SHARES.items() if name in CALM or not options["calm"]}
    for kind in options["kinds"]:
        shares.update(MORE[kind])
    names = rng.choices(list(shares), list(shares.values()), k=STEPS_COUNT)
    return [[name, rng.choice(PAUSES_S), rng.getrandbits(30)] for name in names]
