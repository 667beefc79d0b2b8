"""A group of three through whatever happens to it, each run from one seed.

Brokers are killed, stopped, and held as by SIGSTOP; links between them and to etcd are cut, either way alone, too; etcd
is away, loses answers, and lets leases expire late. MQBROKER_SEEDS chooses how many runs there are; a failure names its
seed and what was done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from mqbroker.config import FlushDiskType
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import Record
from tests.broker.bench import send_command
from tests.broker.service.group import ETCD, Client, Group, Replica

SEEDS = int(os.environ.get("MQBROKER_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("MQBROKER_FIRST_SEED", "0"))
STEPS_MAX = 30
MIN_IN_SYNC = 2
SEGMENT_BYTES = 64 * 1024
HOSTS = [f"10.0.0.{number}" for number in (1, 2, 3)]
#: What may happen, and how often.
STEPS = {
    "send": 14, "consume": 6, "pause": 6, "kill": 2, "stop": 1, "start": 4, "freeze": 2, "thaw": 3,
    "cut": 2, "cut one way": 2, "cut etcd": 2, "etcd down": 1, "heal": 5, "slow etcd": 1, "isolate": 3,
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
        #: Of the messages with a delay, which are delivered to their topic later.
        self.delayed: set[bytes] = set()
        self.consumed: set[bytes] = set()
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

    def hear(self, answer: RemotingCommand, body: bytes) -> None:
        code = answer.code
        if code != ResponseCode.SUCCESS:
            assert code in NO_PROMISE, answer
            return
        offset = int(answer.ext_fields["msgId"][-16:], 16)
        holders = [replica for replica in self.group.replicas.values() if self.has(replica, offset, body)]
        assert len(holders) >= MIN_IN_SYNC
        assert self.acknowledged.setdefault(offset, body) == body

    def has(self, replica: Replica, offset: int, body: bytes) -> bool:
        """Whether a broker's log has the message, of one that was killed as it was then."""
        base = offset - offset % SEGMENT_BYTES
        path = replica.root / "commitlog" / f"{base:020d}"
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(offset - base)
            found = file.read(20_000)
        return body in found[: int.from_bytes(found[:4], "big")]

    def step(self) -> str:
        """Do one thing; returns what."""
        [what] = self.rng.choices(list(STEPS), list(STEPS.values()))
        told = getattr(self, what.replace(" ", "_"))() or ""
        seconds = self.rng.choice([0, 0.1, 0.5, 2, 4, 7])
        self.wait(seconds)
        return f"{what} {told}({seconds} s)"

    def choose(self, found: Iterable[Replica]) -> list[Replica]:
        """One of them, if there is one."""
        among = list(found)
        return [self.rng.choice(among)] if among else []

    def running(self) -> list[Replica]:
        return [each for each in self.group.alive() if not each.is_frozen]

    def send(self) -> None:
        for master in self.running():
            if master.is_master:
                self.send_to(master)

    def pause(self) -> None:
        """Let time pass."""

    def consume(self) -> None:
        """Read what a consumer that starts now gets, from whoever takes itself for the master, and commit that."""
        for master in self.running():
            if master.is_master:
                self.consume_at(master)

    def consume_at(self, master: Replica) -> None:
        offsets, store = master.parts.offsets, master.store
        begin, end = offsets.query("CG", "T", 0) or 0, store.max_offset("T", 0)
        placed = [entry[0] for entry in queue_entries(store, begin, end)]
        records = master.records()
        self.consumed |= {records[offset].body for offset in placed}
        offsets.commit("CG", "T", 0, end)

    def kill(self) -> str:
        for victim in self.choose(self.group.alive()):
            if victim.is_frozen:
                self.group.thaw(victim.replica_id)
            self.group.kill(victim.replica_id)
            return f"{victim.replica_id} "
        return ""

    def stop(self) -> str:
        if self.group.wires.cut or self.group.etcd.is_down:
            return ""
        for victim in self.choose(self.running()):
            self.group.stop(victim.replica_id)
            return f"{victim.replica_id} "
        return ""

    def start(self) -> str:
        for dead in [each for each in self.group.replicas.values() if each.is_dead][:1]:
            self.group.start(dead.replica_id)
            return f"{dead.replica_id} "
        return ""

    def freeze(self) -> str:
        for victim in self.choose(self.running()):
            self.group.freeze(victim.replica_id)
            return f"{victim.replica_id} "
        return ""

    def thaw(self) -> None:
        for each in self.group.alive():
            if each.is_frozen:
                self.group.thaw(each.replica_id)

    def etcd_down(self) -> None:
        self.group.etcd.is_down = True

    def slow_etcd(self) -> None:
        for each in self.group.alive():
            each.etcd.out_s = self.rng.choice([0.005, 0.4, 1.5])

    def heal(self) -> None:
        self.group.wires.cut.clear()
        self.group.etcd.is_down = False
        for replica in self.group.alive():
            replica.etcd.out_s = 0.005

    def cut(self) -> str:
        near, far = self.rng.sample(HOSTS, 2)
        return self.cut_ways([(near, far), (far, near)])

    def cut_one_way(self) -> str:
        near, far = self.rng.sample(HOSTS, 2)
        return self.cut_ways([(near, far)])

    def isolate(self) -> str:
        """Cut a master off from all others and from etcd, and let it take messages and serve consumers all the same."""
        for master in self.group.masters[:1]:
            others = [host for host in [*HOSTS, ETCD] if host != master.host]
            self.cut_ways([way for host in others for way in ((host, master.host), (master.host, host))])
            self.send_to(master)
            self.wait(self.rng.choice([0.1, 1.5, 2.5]))
            self.consume_at(master)
            return f"{master.replica_id} "
        return ""

    def cut_etcd(self) -> str:
        ways = [(host := self.rng.choice(HOSTS), ETCD), (ETCD, host)]
        return self.cut_ways(self.rng.choice([ways, ways[:1], ways[1:]]))

    def cut_ways(self, ways: list[tuple[str, str]]) -> str:
        self.group.wires.cut.update(ways)
        return f"{ways} "

    def send_to(self, master: Replica) -> None:
        client = self.group.client(master)
        commands = []
        for _ in range(self.rng.randint(1, 8)):
            self.sent += 1
            body = b"<%06d>" % self.sent + b"x" * self.rng.choice([0, 100, 9000])
            level = self.rng.choice([0, 0, 0, 1, 2])
            if level:
                self.delayed.add(body)
            commands.append(send_command("T", body, properties=f"DELAY\x01{level}" if level else ""))
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
        self.send_to(group.master())
        self.wait(15)
        logs = {replica.log() for replica in group.alive()}
        assert len(logs) == 1
        records = group.master().records()
        lost = {offset: body for offset, body in self.acknowledged.items() if body_of(records.get(offset)) != body}
        assert not lost
        ends = {replica.store.max_offset("T", 0) for replica in group.alive()}
        assert len(ends) == 1
        self.check_epochs()
        delivered = {record.body for record in records.values() if record.topic == "T"}
        acknowledged = set(self.acknowledged.values())
        assert not acknowledged - delivered
        self.consume_at(group.master())
        assert not acknowledged - self.consumed

    def check_epochs(self) -> None:
        """Each epoch had one master."""
        masters: dict[int, tuple[int, int]] = {}
        for _, key, value in self.group.etcd.history:
            if key.endswith("/state"):
                state = json.loads(value)
                who = (state["master"], state["lease"])
                assert masters.setdefault(state["epoch"], who) == who


def queue_entries(store: MessageStore, begin: int, end: int) -> list[tuple[int, ...]]:
    """The entries begin..end of the queue."""
    [queue] = [queue for queue in store._queues if (queue.topic, queue.queue_id) == ("T", 0)] or [None]
    return [] if queue is None else [queue.entry_from_disk(offset) for offset in range(begin, end)]


def body_of(record: Record | None) -> bytes | None:
    return None if record is None else record.body


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
