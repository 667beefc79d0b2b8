"""Transactions over processes and machines that end at any step: each ends as its producer says, and is not lost.

Sends are acknowledged when they are on the disk, ends are not waited for. A process that is killed leaves each
transaction to end once; after a power cut one of which the message is on the disk and the entry that settles it is not
ends once more.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.config import FlushDiskType
from tests.broker.bench import START, Bench
from tests.broker.transacting import (
    COMMIT,
    GIVEN_UP,
    HALF,
    ROLLBACK,
    UNKNOWN,
    Half,
    Transactor,
    answered,
    bodies,
    end_command,
)
from tests.fakes import SteppedWorker
from tests.store.simulation.disk import DiskFaults, SimDisk
from tests.store.simulation.threads import Ended

LIVES = 4
STEPS = 25
SETTINGS: dict[str, Any] = {
    "transaction_check_interval_ms": 10_000,
    "transaction_check_max": 1000,
    "store": {
        "flush_disk_type": FlushDiskType.SYNC_FLUSH,
        "mapped_file_size_commit_log": 16 * 1024,
        "max_message_size": 4096,
    },
}


class World:
    """A broker that dies again and again, and its producer, who knows how each transaction is to end."""

    def __init__(self, root: Path, seed: int, how: str) -> None:
        self.root, self.how = root, how
        self.rng = Random(seed)
        self.disk = SimDisk()
        self.sent: dict[bytes, int] = {}
        self.acknowledged: set[Any] = set()
        self.halves: list[Any] = []
        self.now: float = START
        self.open()

    def open(self) -> None:
        self.clock = Clock()  # nobody of the life before is on it
        self.clock.advance(self.now)
        self.bench = Bench(self.root / "store", disk=self.disk, clock=self.clock, worker=SteppedWorker(), **SETTINGS)
        self.disk.now_ms = lambda: int(self.clock.seconds() * 1000)
        self.bench.parts.checks.start()
        self.producer = Transactor(self.bench)
        self.producer.beat()

    def die(self) -> None:
        self.now = self.clock.seconds()
        self.disk = self.disk.crashed(self.rng) if self.how == "power" else self.disk.killed(self.rng)
        self.disk.faults = DiskFaults()
        self.open()

    def step(self) -> None:
        sends, ends = [self.send] * 4, [self.end, self.end_some, self.end_some]
        act = self.rng.choice([*sends, *ends, self.check, self.wait, self.save])
        act()

    def send(self) -> None:
        body = b"%d " % len(self.sent) + b"x" * self.rng.randrange(300)
        outcome = self.rng.choice([COMMIT, ROLLBACK])
        self.sent[body] = outcome
        half = self.producer.half(body, properties={"UNIQ_KEY": str(len(self.sent))})
        self.acknowledged.add(body)
        self.halves.append((half, outcome))
        self.end_one(half, self.rng.choice([outcome, UNKNOWN]))

    def end(self) -> None:
        """Late, and maybe once more."""
        if self.halves:
            half, outcome = self.rng.choice(self.halves)
            self.end_one(half, outcome)

    def end_some(self) -> None:
        """In one read, some of them twice."""
        if self.halves:
            chosen = self.rng.choices(self.halves[-8:], k=self.rng.randrange(2, 12))
            self.producer.client.ask_all(*[end_command(half, outcome) for half, outcome in chosen])

    def end_one(self, half: Half, outcome: int) -> None:
        self.producer.end(half, outcome)

    def check(self) -> None:
        self.producer.beat()
        self.bench.turn(11)
        for header, record in self.producer.asked():
            if record.body in self.sent and self.rng.random() < 0.7:
                self.producer.end(answered(header), self.sent[record.body], from_transaction_check=True)

    def wait(self) -> None:
        self.bench.turn(self.rng.choice([0, 0.5, 1]))

    def save(self) -> None:
        self.bench.parts.half_queue.save_progress()
        self.bench.offsets.persist()

    def live(self) -> None:
        """Some steps, in the middle of one of which it may be over."""
        if self.rng.random() < 0.7:
            self.disk.faults.end_in = self.rng.randrange(1, 200)
        try:
            for _ in range(self.rng.randrange(STEPS)):
                self.step()
                if self.disk.is_off:
                    return
        except (Ended, ValueError, AssertionError):
            if not self.disk.is_off:
                raise

    def settle_all(self) -> None:
        settled = self.bench.parts.half_queue.settled
        for _ in range(60):
            self.check()
            if settled.progress == self.bench.store.max_offset(HALF, 0):
                return
        raise AssertionError(f"half messages stay from {settled.progress} on")


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("how", ["kill", "power"])
def test_each_transaction_ends_as_its_producer_says(tmp_path: Path, seed: int, how: str) -> None:
    world = World(tmp_path, seed, how)
    world.producer.client.send(queue_id=1, body=b"plain")
    for _ in range(LIVES):
        world.live()
        world.die()
    world.settle_all()
    found = Counter(bodies(world.bench, "T", 1))
    for body, outcome in world.sent.items():
        if outcome == ROLLBACK:
            assert found[body] == 0
        else:
            assert found[body] >= (body in world.acknowledged)
            assert found[body] <= (1 if how == "kill" else LIVES + 1)
    assert bodies(world.bench, GIVEN_UP) == []
    world.bench.close()
