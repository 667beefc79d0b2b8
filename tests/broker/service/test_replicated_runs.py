"""A SYNC_MASTER and its slave through whatever happens to them, each run from one seed.

Links stall, are cut and split bytes; either broker is killed or stopped, and started again. MQBROKER_SEEDS chooses how
many runs there are; a failure names its seed and what was done.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from mqbroker.config import BrokerRole, FlushDiskType
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.headers import UpdateConsumerOffsetRequestHeader
from mqbroker.wire.record import decode_record
from tests.broker.bench import Client, send_command
from tests.broker.service.pair import Member, Pair
from tests.seeds import seeds_of_push

SEEDS = int(os.environ.get("MQBROKER_SEEDS", "30"))
STEPS_MAX = 40
SEGMENT_BYTES = 64 * 1024
#: What may happen, and how often.
STEPS = {
    "send": 12, "wait": 6, "commit": 2, "stall": 2, "go on": 3, "cut": 2,
    "kill slave": 1, "stop slave": 1, "kill master": 1, "stop master": 1,
}  # fmt: skip
#: Codes that promise nothing of a slave; the message is stored.
NO_PROMISE = {ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT}


class Run:
    """One run: what was acknowledged, by its offset in the log."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.flush = {"flush_disk_type": self.rng.choice([*FlushDiskType])}
        self.pair = Pair(root)
        self.sent = 0
        self.acknowledged: dict[int, bytes] = {}
        self.committed = 0
        self.seen_offset = 0
        self.bodies: dict[int, bytes] = {}
        self.start_master()
        self.start_slave()
        self.pair.turn(2)

    def start_master(self) -> None:
        self.master = self.pair.master(role=BrokerRole.SYNC_MASTER, store=self.flush)
        self.client: Client = self.master.client()
        self.bodies.clear()

    def start_slave(self) -> None:
        self.slave = self.pair.slave(store=self.flush)

    def send(self) -> None:
        commands = []
        for _ in range(self.rng.randint(1, 12)):
            self.sent += 1
            body = b"%06d" % self.sent + b"x" * self.rng.choice([0, 100, 9000])
            commands.append(send_command("T", body))
        self.client.tell(*commands)
        self.bodies |= {command.opaque: command.body for command in commands}

    def hear(self) -> None:
        """Read responses: what SUCCESS promises holds at that moment."""
        for answer in self.client.heard():
            body = self.bodies.pop(answer.opaque, None)
            if body is None:
                continue
            if answer.code == ResponseCode.SUCCESS:
                offset = int(answer.ext_fields["msgId"][-16:], 16)
                self.acknowledged[offset] = body
                if not self.slave.is_dead:
                    assert body_at(self.slave, offset) == body
            else:
                assert answer.code in NO_PROMISE

    def commit(self) -> None:
        self.committed = self.rng.randint(self.committed, self.master.store.max_offset("T", 0))
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group="CG", topic="T", queue_id=0, commit_offset=self.committed
        )
        self.master.client().ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def look(self) -> None:
        """Check what holds at every moment."""
        self.hear()
        if not self.slave.is_dead:
            offset = self.slave.parts.offsets.query("CG", "T", 0) or 0
            assert offset >= self.seen_offset
            assert offset <= self.slave.store.max_offset("T", 0)
            self.seen_offset = offset

    def step(self) -> str:
        """Do one thing; returns what."""
        rng, pair = self.rng, self.pair
        ha = self.master.addresses[1:]
        what = rng.choices(
            [
                "send",
                "wait",
                "commit",
                "stall",
                "go on",
                "cut",
                "kill slave",
                "stop slave",
                "kill master",
                "stop master",
            ],
            [12, 6, 2, 2, 3, 2, 1, 1, 1, 1],
        )[0]
        if what == "send":
            self.send()
        elif what == "commit":
            self.commit()
        elif what == "stall":
            pair.network.blocked.update(ha)
        elif what == "go on":
            pair.network.blocked.clear()
        elif what == "cut":
            pair.network.cut(*ha)
        elif what.endswith("slave"):
            (pair.kill if what.startswith("kill") else pair.stop)("slave1")
            self.look()
            self.start_slave()
        elif what.endswith("master"):
            pair.network.blocked.clear()
            (pair.kill if what.startswith("kill") else pair.stop)("master")
            self.look()
            self.start_master()
        pair.turn(rng.choice([0, 0, 0.5, 3, 12]))
        self.look()
        return what

    def end(self) -> None:
        """After all is well again messages are acknowledged, and both have the same, and all that ever was."""
        self.pair.network.blocked.clear()
        self.pair.turn(75)
        self.look()
        before = len(self.acknowledged)
        self.client = self.master.client()  # the former one may have been idle for too long
        self.bodies.clear()
        self.send()
        self.pair.turn(12)
        self.look()
        assert len(self.acknowledged) > before
        (start, log), (_, masters) = self.slave.log(), self.master.log()
        assert start % SEGMENT_BYTES == 0  # of an empty slave, where the master's last segment began
        assert log == masters[start:]
        for offset, body in self.acknowledged.items():
            assert body_at(self.slave, offset) == body
        assert self.slave.store.max_offset("T", 0) == self.master.store.max_offset("T", 0)
        # A master that is killed loses what was committed in the last seconds, and a slave may have it.
        assert self.seen_offset >= (self.master.parts.offsets.query("CG", "T", 0) or 0)
        assert self.slave.store.corrupt_ranges == ()


def body_at(member: Member, offset: int) -> bytes:
    """The body of the message at an offset of a log; empty if the log ends before."""
    if not member.store.log_min_offset <= offset < member.store.log_end:
        return b""
    found = member.log_from(offset)
    body: bytes = decode_record(found[: int.from_bytes(found[:4], "big")]).body
    return body


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_seeds(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path / "pair", seed)
    done: list[str] = []
    try:
        for _ in range(STEPS_MAX):
            done.append(run.step())
        run.end()
    except AssertionError as error:
        error.add_note(f"seed {seed}: {', '.join(done)}")
        raise
    run.pair.close()
