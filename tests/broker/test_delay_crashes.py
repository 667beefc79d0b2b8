"""Delayed messages over machines that lose their power at any step, and over changes of the delays: none is lost, none
comes before its time, nor much later because of others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from twisted.internet.task import Clock

from mqbroker.config import FlushDiskType
from mqbroker.store.tags_codes import parse_delay_levels
from tests.broker.bench import START, Bench
from tests.fakes import SteppedWorker
from tests.store.simulation.disk import DiskFaults, SimDisk
from tests.store.simulation.threads import Ended

LIVES = 4
#: How late messages are delivered in the last life: the clock moves by half a second, and others of about the same time
#: may be before them.
LATE_MS_MAX = 1500
SETTINGS = {
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "mapped_file_size_commit_log": 16 * 1024,
    "max_message_size": 4096,
}
#: Levels of one life after the other, chosen by chance.
UNCHANGED, CHANGED = ["1s 3s"], ["1s 3s", "2s 30s", "1s 8s", "5s 5s"]


class World:
    def __init__(self, root: Path, seed: int, how: str, levels: list[str]) -> None:
        self.root, self.how, self.levels = root, how, levels
        self.delays_min_ms = [min(column) for column in zip(*map(parse_delay_levels, levels), strict=True)]
        self.rng = Random(seed)
        self.disk = SimDisk()
        self.now: float = START
        #: When a message is due at the earliest, ms.
        self.sent: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()
        self.early: list[bytes] = []
        self.late: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.clock = Clock()  # nobody of the life before is on it
        self.clock.advance(self.now)
        levels = self.rng.choice(self.levels)
        store = {**SETTINGS, "message_delay_level": levels}
        self.bench = Bench(self.root / "store", disk=self.disk, clock=self.clock, worker=SteppedWorker(), store=store)
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
        # Times of storing are whole ms, cut.
        self.sent[body] = int(self.clock.seconds() * 1000) + self.delays_min_ms[level - 1]
        answers = self.client.send(body=body, properties=f"DELAY\x01{level}")
        if answers and answers[0].code == 0:
            self.acknowledged.add(body)

    def wait(self) -> None:
        self.bench.turn(self.rng.choice([0, 0.2, 0.5, 1]))

    def persist(self) -> None:
        self.bench.parts.delay.persist()

    def look(self) -> None:
        """A crash may lose entries of a queue, which are made again with the delays of the next life."""
        schedule = [self.bench.store.queues_by_name.get(("SCHEDULE_TOPIC_XXXX", number)) for number in range(2)]
        entries = [queue.entry(n) for queue in schedule if queue for n in range(queue.min_offset, queue.max_offset)]
        due_ms = {physical_offset: code for physical_offset, _, code in entries}
        begin_ms = self.now * 1000
        for record in self.bench.records("T"):
            if record.store_timestamp > begin_ms:
                due = due_ms[-1 - record.prepared_offset]
                self.late += [record.body] * (record.store_timestamp > max(due, begin_ms) + LATE_MS_MAX)
            else:
                due = self.sent[record.body]
            self.early += [record.body] * (record.store_timestamp < due)

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


@pytest.mark.parametrize("levels", [UNCHANGED, CHANGED], ids=["unchanged", "changed"])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("how", ["kill", "power"])
def test_each_comes_at_its_time_or_later(tmp_path: Path, seed: int, how: str, levels: list[str]) -> None:
    world = World(tmp_path, seed, how, levels)
    for _ in range(LIVES):
        world.live()
        world.die()
    world.bench.turn(35)
    world.look()
    found = Counter(record.body for record in world.bench.records("T"))
    assert world.acknowledged <= set(found)
    assert set(found) <= set(world.sent)
    assert max(found.values(), default=0) <= 1
    assert world.early == []
    assert world.late == []
    world.bench.parts.delay.stop()
    world.bench.close()
