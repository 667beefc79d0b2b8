"""A SYNC_MASTER and a slave as processes, ended and started again under load: the slave has what was acknowledged.

What happens comes from a seed, printed; MQBROKER_KILL_SEED chooses another, MQBROKER_KILL_ROUNDS how many times
something happens.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode
from tests.daemons.forks import ForkServer
from tests.daemons.history import Sender, check_store, log_end
from tests.daemons.processes import DEADLINE_SECONDS, Process, ask, wait_for

pytestmark = pytest.mark.daemons

ROUNDS = int(os.environ.get("MQBROKER_KILL_ROUNDS", "5"))
SENDERS = 2
SEGMENT_BYTES = 256 * 1024
EVENTS = ("kill slave", "stop slave", "suspend slave", "kill master", "stop master")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Pair:
    """A master and its slave, which may be ended and started again."""

    def __init__(self, daemon: Callable[..., Process], root: Path, rng: Random) -> None:
        self._daemon, self.root, self._rng = daemon, root, rng
        self._ha_port = free_port()
        self._secret = root / "ha.secret"
        self._secret.write_text("a secret of this test alone\n")
        self._secret.chmod(0o600)
        self.senders: list[Sender] = []
        self.start_master()
        self.start_slave()
        # A slave without a log begins with the master's last segment, which is the first one still.
        wait_for(lambda: slaves_of(self.port), "the slave to connect")

    def _start(self, name: str, **settings: object) -> tuple[Process, int]:
        settings = {
            "brokerName": "broker-a",
            "storePathRootDir": self.root / name,
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "maxMessageSize": 65_536,
            "syncFlushTimeout": 2000,
            # Without name servers only a secret lets a slave count that comes back with a part of the log.
            "haSecretFile": self._secret,
            **settings,
        }
        process = self._daemon("broker", *[part for key in settings for part in ("-o", f"{key}={settings[key]}")])
        return process, process.wait_for_port()

    def start_master(self) -> None:
        self.master, self.port = self._start("master", brokerRole="SYNC_MASTER", haListenPort=self._ha_port)

    def start_slave(self) -> None:
        self.slave, self.slave_port = self._start(
            "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress=f"127.0.0.1:{self._ha_port}", haListenPort=0
        )

    def send(self, label: str) -> list[Sender]:
        """Begin to send."""
        senders = [Sender(f"{label}-{n}", self.port, Random(self._rng.random())) for n in range(SENDERS)]
        self.senders += senders
        for sender in senders:
            sender.start()
        return senders

    def are_equal(self) -> bool:
        return end_of(self.port) == end_of(self.slave_port)

    def cause(self, event: str) -> None:
        """Have something happen to one of them, and start it again if it ended."""
        process = self.slave if event.endswith("slave") else self.master
        if event.startswith("suspend"):
            process.signal(signal.SIGSTOP)
            before = answered(self.senders)
            wait_for(lambda: answered(self.senders) > before, "an answer while the slave is suspended")
            process.signal(signal.SIGCONT)
        elif event.startswith("kill"):
            process.signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        else:
            assert process.stop() == 0
        if not event.startswith("suspend"):
            (self.start_slave if process is self.slave else self.start_master)()


def answered(senders: list[Sender]) -> int:
    return sum(len(sender.acked) + len(sender.refused) for sender in senders)


def end_of(port: int) -> int:
    """Where the log of a broker ends."""
    table = KVTable.from_json(ask(port, RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    return int(table["commitLogMaxOffset"])


def slaves_of(port: int) -> list[str]:
    """The slaves that a master says it has."""
    table = KVTable.from_json(ask(port, RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    return [key for key in table if key.startswith("haSlave_")]


def end_senders(senders: list[Sender]) -> None:
    for sender in senders:
        sender.is_ended = True
    for sender in senders:
        sender.join(DEADLINE_SECONDS)
        assert not sender.is_alive()


def test_what_is_acknowledged_is_on_the_slave(
    daemon: Callable[..., Process], forks: ForkServer, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MQBROKER_KILL_SEED", "17"))
    print(f"seed {seed}")
    rng = Random(seed)
    pair = Pair(partial(daemon, forks=forks), tmp_path, rng)
    acknowledged = 0
    for number in range(ROUNDS):
        senders = pair.send(str(number))
        point = rng.choice([rng.randint(1, 30), rng.randint(30, 400)])
        wait_for(lambda: sum(len(each.acked) for each in senders) >= point, f"{point} acknowledgements")  # noqa: B023
        event = rng.choice(EVENTS)
        pair.cause(event)
        end_senders(senders)
        wait_for(pair.are_equal, f"the slave to have the whole log after: {event}")
        acknowledged = sum(len(sender.acked) for sender in pair.senders)
        print(f"round {number}: {event} after {point}, {acknowledged} acknowledged in all")
    assert pair.slave.stop() == pair.master.stop() == 0

    logs = [tmp_path / name / "commitlog" for name in ("master", "slave")]
    assert log_end(logs[0]) == log_end(logs[1]) > 0
    segments = [sorted(path.name for path in log.iterdir() if path.read_bytes().strip(b"\0")) for log in logs]
    assert segments[0] == segments[1]
    assert all((logs[0] / name).read_bytes() == (logs[1] / name).read_bytes() for name in segments[0])

    sizes = {"mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 20_000}
    sizes |= {"max_hash_slot_num": 1000, "max_index_num": 4000}
    check_store(tmp_path / "slave", tmp_path / "copies", sizes, pair.senders)
