"""A group of three through whatever happens to it, each run from one seed.

Brokers are killed, stopped, and held as by SIGSTOP; links between them and to etcd are cut, either way alone, too; etcd is
away, loses answers, and lets leases expire late. MQBROKER_SEEDS chooses how many runs there are; a failure names its seed
and what was done.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest

from mqbroker.config import FlushDiskType
from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import send_command
from tests.broker.service.group import ETCD, Client, Group

SEEDS = int(os.environ.get("MQBROKER_SEEDS", "30"))
FIRST_SEED = int(os.environ.get("MQBROKER_FIRST_SEED", "0"))
STEPS_MAX = 30
MIN_IN_SYNC = 2
#: What may happen, and how often.
STEPS = {
    "send": 14, "wait": 6, "kill": 2, "stop": 1, "start": 4, "freeze": 2, "thaw": 3,
    "cut": 2, "cut one way": 2, "cut etcd": 2, "etcd down": 1, "heal": 4, "slow etcd": 1,
}  # fmt: skip
#: Codes that promise nothing of the replicas; the message may be stored.
NO_PROMISE = {
    *(ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT),
    *(ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY),
}


class Run:
    """One run: what was acknowledged, by its offset in the log."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = Random(seed)
        flush = self.rng.choice([*FlushDiskType])
        self.group = Group(root, Random(seed + 1), store={"flush_disk_type": flush}, min_in_sync_replicas=MIN_IN_SYNC)
        self.group.chunk = self.rng.choice([1 << 30, 1 << 30, 700])
        self.sent = 0
        self.acknowledged: dict[int, bytes] = {}
        self.clients: list[tuple[Client, dict[int, bytes]]] = []
        for replica_id in (1, 2, 3):
            self.group.start(replica_id)
        self.wait(3)

    def wait(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.05))):
            self.group.step()
            self.look()

    def look(self) -> None:
        """Check what holds at every moment."""
        assert len(self.group.masters) <= 1
        for client, bodies in self.clients:
            for answer in client.heard():
                self.hear(answer, bodies.pop(answer.opaque))

    def hear(self, answer: object, body: bytes) -> None:
        code = answer.code  # type: ignore[attr-defined]
        if code != ResponseCode.SUCCESS:
            assert code in NO_PROMISE, answer
            return
        offset = int(answer.ext_fields["msgId"][-16:], 16)  # type: ignore[attr-defined]
        holders = [replica for replica in self.group.replicas.values() if self.has(replica, offset, body)]
        assert len(holders) >= MIN_IN_SYNC
        assert self.acknowledged.setdefault(offset, body) == body

    def has(self, replica: object, offset: int, body: bytes) -> bool:
        """Whether a broker's log, or that of its files, has the message: a read of the store that it ran with last."""
        raw = replica.store._commit_log  # type: ignore[attr-defined]
        if not raw.min_offset <= offset < raw.end:
            return False
        at = offset - raw.min_offset
        segment = raw.segments[at // raw.segment_bytes]
        found = bytes(segment.view[at % raw.segment_bytes :][:20_000])
        return body in found[: int.from_bytes(found[:4], "big")]

    def step(self) -> str:
        """Do one thing; returns what."""
        rng, group = self.rng, self.group
        [what] = rng.choices(list(STEPS), list(STEPS.values()))
        alive = [each for each in group.replicas.values() if not each.is_dead]
        running = [each for each in alive if not each.is_frozen]
        dead = [each for each in group.replicas.values() if each.is_dead]
        told = what
        if what == "send":
            masters = [each for each in running if each.is_master]
            for master in masters:
                self.send(master)
        elif what == "kill" and alive:
            victim = rng.choice(alive)
            told = f"kill {victim.replica_id}"
            if victim.is_frozen:
                group.thaw(victim.replica_id)
            group.kill(victim.replica_id)
        elif what == "stop" and running and not group.wires.cut and not group.etcd.is_down:
            victim = rng.choice(running)
            told = f"stop {victim.replica_id}"
            group.stop(victim.replica_id)
        elif what == "start" and dead:
            group.start(dead[0].replica_id)
            told = f"start {dead[0].replica_id}"
        elif what == "freeze" and running:
            victim = rng.choice(running)
            group.freeze(victim.replica_id)
            told = f"freeze {victim.replica_id}"
        elif what == "thaw":
            for each in alive:
                if each.is_frozen:
                    group.thaw(each.replica_id)
        elif what.startswith("cut"):
            told = self.cut(what)
        elif what == "etcd down":
            group.etcd.is_down = True
        elif what == "slow etcd":
            for each in alive:
                each.etcd.out_s = rng.choice([0.005, 0.4, 1.5])
        elif what == "heal":
            self.heal()
        seconds = rng.choice([0, 0.1, 0.5, 2, 4, 7])
        self.wait(seconds)
        return f"{told} ({seconds} s)"

    def cut(self, what: str) -> str:
        hosts = [f"10.0.0.{n}" for n in (1, 2, 3)]
        near, far = self.rng.sample(hosts, 2)
        if what == "cut etcd":
            far = ETCD
        ways = [(near, far), (far, near)]
        chosen = ways if what == "cut" or self.rng.random() < 0.3 else [self.rng.choice(ways)]
        self.group.wires.cut.update(chosen)
        return f"cut {chosen}"

    def heal(self) -> None:
        self.group.wires.cut.clear()
        self.group.etcd.is_down = False
        for replica in self.group.alive():
            replica.etcd.out_s = 0.005

    def send(self, master: object) -> None:
        client = self.group.client(master)  # type: ignore[arg-type]
        commands = []
        for _ in range(self.rng.randint(1, 8)):
            self.sent += 1
            body = b"<%06d>" % self.sent + b"x" * self.rng.choice([0, 100, 9000])
            commands.append(send_command("T", body))
        client.tell(*commands)
        self.clients.append((client, {command.opaque: command.body for command in commands}))

    def end(self) -> None:
        """After all is well again, all have the same, and all that was acknowledged."""
        group = self.group
        self.heal()
        for replica in list(group.replicas.values()):
            if replica.is_frozen:
                group.thaw(replica.replica_id)
            if replica.is_dead:
                group.start(replica.replica_id)
        began = group.now
        while not (group.masters and group.in_sync() == {1, 2, 3}):
            assert group.now - began < 120, [group.member(each).why_not for each in group.alive()]
            self.wait(0.5)
        self.send(group.master())
        self.wait(15)
        logs = {replica.log() for replica in group.alive()}
        assert len(logs) == 1
        records = group.master().records()
        lost = {offset: body for offset, body in self.acknowledged.items() if body_of(records.get(offset)) != body}
        assert not lost
        ends = {replica.store.max_offset("T", 0) for replica in group.alive()}
        assert len(ends) == 1
        self.check_epochs()

    def check_epochs(self) -> None:
        """Each epoch had one master."""
        masters: dict[int, tuple[int, int]] = {}
        for _, key, value in self.group.etcd.history:
            if key.endswith("/state"):
                state = json.loads(value)
                who = (state["master"], state["lease"])
                assert masters.setdefault(state["epoch"], who) == who


def body_of(record: object) -> bytes | None:
    return None if record is None else record.body  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_seeds(tmp_path: Path, seed: int) -> None:
    done: list[str] = []
    try:
        run = Run(tmp_path / "group", seed)
        for _ in range(STEPS_MAX):
            done.append(run.step())
        run.end()
    except Exception as error:
        error.add_note(f"seed {seed}: {', '.join(done)}")
        raise
    assert run.acknowledged
    run.group.close()
