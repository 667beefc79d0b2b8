"""Delayed messages over machines that lose their power at any step: none is lost, none comes before its time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from twisted.internet.task import Clock

from mqbroker.config import FlushDiskType
from tests.broker.bench import START, Bench
from tests.fakes import SteppedWorker
from tests.store.simulation.disk import DiskFaults, SimDisk
from tests.store.simulation.threads import Ended

LIVES = 4
SETTINGS = {
    "message_delay_level": "1s 3s",
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "mapped_file_size_commit_log": 16 * 1024,
    "max_message_size": 4096,
}
DELAYS_S = {1: 1, 2: 3}


class World:
    def __init__(self, root: Path, seed: int, how: str) -> None:
        self.root, self.how = root, how
        self.rng = Random(seed)
        self.disk = SimDisk()
        self.now: float = START
        self.sent: dict[bytes, tuple[float, int]] = {}
        self.acknowledged: set[bytes] = set()
        self.early: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.clock = Clock()  # nobody of the life before is on it
        self.clock.advance(self.now)
        self.bench = Bench(
            self.root / "store", disk=self.disk, clock=self.clock, worker=SteppedWorker(), store=SETTINGS
        )
        self.disk.now_ms = lambda: int(self.clock.seconds() * 1000)
        self.client = self.bench.client()
        self.bench.parts.delay.start()

    def die(self) -> None:
        self.now = self.clock.seconds()
        self.disk = self.disk.crashed(self.rng) if self.how == "power" else self.disk.killed(self.rng)
        self.disk.faults = DiskFaults()
        self.open()

    def send(self) -> None:
        level = self.rng.choice([1, 2])
        body = b"%d " % len(self.sent) + b"x" * self.rng.randrange(300)
        self.sent[body] = self.clock.seconds(), level
        answers = self.client.send(body=body, properties=f"DELAY\x01{level}")
        if answers and answers[0].code == 0:
            self.acknowledged.add(body)

    def wait(self) -> None:
        self.bench.turn(self.rng.choice([0, 0.2, 0.5, 1]))

    def persist(self) -> None:
        self.bench.parts.delay.persist()

    def look(self) -> None:
        for record in self.bench.records("T"):
            sent_at, level = self.sent[record.body]
            # Times of storing are whole ms, cut.
            if record.store_timestamp < int(sent_at * 1000) + DELAYS_S[level] * 1000:
                self.early.append(record.body)

    def live(self) -> None:
        if self.rng.random() < 0.7:
            self.disk.faults.end_in = self.rng.randrange(1, 100)
        try:
            for _ in range(self.rng.randrange(25)):
                self.rng.choice([self.send, self.send, self.wait, self.wait, self.persist])()
                if self.disk.is_off:
                    return
        except (Ended, AssertionError):
            if not self.disk.is_off:
                raise


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("how", ["kill", "power"])
def test_each_comes_at_its_time_or_later(tmp_path: Path, seed: int, how: str) -> None:
    world = World(tmp_path, seed, how)
    for _ in range(LIVES):
        world.live()
        world.die()
    world.bench.turn(5)
    world.look()
    found = Counter(record.body for record in world.bench.records("T"))
    assert world.acknowledged <= set(found)
    assert set(found) <= set(world.sent)
    assert max(found.values(), default=0) <= LIVES + 1
    assert world.early == []
    world.bench.parts.delay.stop()
    world.bench.close()
