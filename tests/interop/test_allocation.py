"""Allocation of queues: the strategies of Java's jar and ours get the same random inputs."""

import json
import random
from pathlib import Path
from typing import Any

from mqbroker.client import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    MessageQueue,
    allocate_averagely,
    allocate_by_circle,
)
from mqbroker.client.allocation import Allocation
from mqbroker.client.routes import java_order, sorted_queues
from tests.interop.peers import PeerHost

CASES = 4000
ROOMS = ["r1", "r2", "r3", "\u4e2d", ""]
LETTERS = ["a", "B", "-", "_", "0", "\u00e4", "\ufffd", "\U0001f600"]


def a_case(rng: random.Random) -> dict[str, Any]:
    def name() -> str:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 6)))

    rooms = ROOMS[: rng.randint(1, 4)]
    strategy = rng.choice(["averagely", "circle", "hash", "room", "config", "nearby"])
    shapes = [
        "{room}@{name}",
        "{room}@{name}",
        "{room}@{name}",
        "{name}",
        "{room}@{name}@",
        "{room}@{name}@x",
        "@{name}",
    ]
    shape = shapes[:3] if strategy == "nearby" else shapes
    brokers = sorted({rng.choice(shape).format(room=rng.choice(rooms), name=name()) for _ in range(rng.randint(1, 5))})
    queues = [["T", broker, n] for broker in brokers for n in range(rng.randint(1, 8))]
    rng.shuffle(queues)
    members = list({f"{rng.choice(rooms)}@{name()}{rng.randrange(1000)}" for _ in range(rng.randint(1, 9))})
    return {
        "strategy": strategy,
        "inner": rng.choice(["averagely", "circle", "hash"]),
        "nodes": rng.choice([1, 2, 10, 50]),
        "rooms": rng.sample(ROOMS, rng.randint(1, 3)),
        "configured": rng.sample(queues, rng.randint(0, len(queues))),
        "queues": queues,
        "members": members,
    }


def strategy(case: dict[str, Any], name: str) -> Allocation:
    if name == "nearby":
        return AllocateNearby(
            lambda queue: queue.broker_name.split("@")[0],
            lambda client_id: client_id.split("@")[0],
            strategy(case, case["inner"]),
        )
    if name == "room":
        return AllocateByMachineRoom(case["rooms"])
    if name == "config":
        return AllocateByConfig(MessageQueue(*each) for each in case["configured"])
    if name == "hash":
        return AllocateByConsistentHash(case["nodes"])
    return allocate_averagely if name == "averagely" else allocate_by_circle


def ours(case: dict[str, Any]) -> list[list[str]]:
    queues = sorted_queues(MessageQueue(*each) for each in case["queues"])
    members = sorted(case["members"], key=java_order)
    allocation = strategy(case, case["strategy"])
    return [
        sorted((f"{q.broker_name} {q.queue_id}" for q in allocation(me, queues, members)), key=java_order)
        for me in members
    ]


def test_every_strategy_shares_random_queues_as_java_does(host: PeerHost, tmp_path: Path) -> None:
    rng = random.Random(42)
    cases = [a_case(rng) for _ in range(CASES)]
    given, results = tmp_path / "cases", tmp_path / "results"
    given.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    assert host.start("allocate", ["allocate", "--cases", str(given), "--results", str(results)]).wait() == 0
    theirs = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert len(theirs) == CASES
    for case, share in zip(cases, theirs, strict=True):
        assert ours(case) == share, case
