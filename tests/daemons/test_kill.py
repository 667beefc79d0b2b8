"""A broker that is killed in the middle of a stream of sends, again and again: what it acknowledged is there.

Each acknowledged message is in the log and in its queue once, where the acknowledgement said, and in the order it was
sent in. The points of killing come from a seed, printed; MQBROKER_KILL_SEED chooses another.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.daemons.history import QUEUES, Sender, check_history, pull_all, scan_log
from tests.daemons.processes import DEADLINE_SECONDS, Process, wait_for

pytestmark = pytest.mark.daemons

ROUNDS = 5
SENDERS = 3
# Less than the fewest messages take at which all rounds together may kill.
SEGMENT_BYTES = 256 * 1024


@pytest.fixture
def broker(daemon: Callable[..., Process], tmp_path: Path) -> Callable[..., tuple[Process, int]]:
    def start_broker(flush: str) -> tuple[Process, int]:
        settings = {
            "brokerName": "broker-a",
            "storePathRootDir": tmp_path / "store",
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "maxMessageSize": 65_536,
            "flushDiskType": flush,
        }
        process = daemon("broker", *[part for key, value in settings.items() for part in ("-o", f"{key}={value}")])
        return process, process.wait_for_port()

    return start_broker


def kill_in_the_stream(
    broker: Callable[..., tuple[Process, int]], flush: str, rng: Random, round_number: int
) -> list[Sender]:
    """Start a broker, let senders stream to it, kill it at a random point; the senders, ended."""
    process, port = broker(flush)
    point = rng.choice([rng.randint(1, 30), rng.randint(30, 300), rng.randint(300, 1500)])
    senders = [Sender(f"{round_number}-{n}", port, Random(rng.random())) for n in range(SENDERS)]
    for sender in senders:
        sender.start()
    wait_for(lambda: sum(len(sender.acked) for sender in senders) >= point, f"{point} acknowledgements")
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for sender in senders:
        sender.join(DEADLINE_SECONDS)
        assert not sender.is_alive()
    print(f"round {round_number}: killed after {point}, {sum(len(s.acked) for s in senders)} acknowledged in all")
    return senders


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_acknowledged_message_is_there_once_and_in_order(
    broker: Callable[..., tuple[Process, int]], tmp_path: Path, flush: str
) -> None:
    seed = int(os.environ.get("MQBROKER_KILL_SEED", "497"))
    print(f"seed {seed}")
    rng = Random(f"{seed} {flush}")
    senders = [sender for n in range(ROUNDS) for sender in kill_in_the_stream(broker, flush, rng, n)]
    process, port = broker(flush)
    queues = {queue: pull_all(port, queue) for queue in range(QUEUES)}
    assert process.stop() == 0
    check_history(scan_log(tmp_path / "store" / "commitlog"), queues, senders)
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 1
