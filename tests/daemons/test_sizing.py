"""The figures of docs/howto/sizing.rst, measured on a broker that runs."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.client import Message
from mqbroker.client.blocking import Producer
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode
from tests.daemons.permits import need
from tests.daemons.processes import Process, ask, wait_for

pytestmark = pytest.mark.daemons

PAGE = (Path(__file__).parent.parent.parent / "docs" / "howto" / "sizing.rst").read_text()
MESSAGES = 2000
SEGMENT_BYTES = 128 * 1024
FILES_MAX = 400


def figures(pattern: str) -> list[int]:
    """The numbers that the page has where the pattern has its groups; in the pattern a blank stands for any space."""
    found = re.search(pattern.replace(" ", r"\s+"), PAGE)
    assert found is not None, pattern
    return [int(group.replace(",", "")) for group in found.groups()]


def descriptors(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def log_end(port: int) -> int:
    return int(KVTable.from_json(ask(port, RequestCode.GET_BROKER_RUNTIME_INFO).body).table["commitLogMaxOffset"])


def test_what_a_message_takes_and_how_many_files_are_open(daemon: Callable[..., Process], tmp_path: Path) -> None:
    limit = [f"--nofile={FILES_MAX}:{FILES_MAX}"]
    need("limits of a process", ["prlimit", *limit, "true"])
    namesrv = daemon("namesrv")
    address = f"127.0.0.1:{namesrv.wait_for_port()}"
    settings = {
        "namesrvAddr": address,
        "brokerIP1": "127.0.0.1",
        "haListenPort": 0,
        "storePathRootDir": tmp_path / "store",
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
    }
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    broker = daemon("broker", *options, wrapper=lambda _: ["prlimit", *limit])
    port = broker.wait_for_port()
    at_start = descriptors(broker)
    with Producer(address, "sizing") as producer:
        for _ in range(MESSAGES):
            producer.send(Message("orders", bytes(128)))
    [in_log, in_all] = figures(r"is (\d+) bytes in the log and (\d+) in all")
    # Some of the log is what fills the ends of segments.
    segments = log_end(port) // SEGMENT_BYTES + 1
    assert 0 <= log_end(port) - MESSAGES * in_log < segments * 1000
    assert in_all == in_log + sum(
        figures(r"besides topic, body and properties, (\d+) in its consume queue, and (\d+) in the index")
    )
    [per_second, hours, million_tenths, millions, gb, with_room] = figures(
        r"([\d,]+) a second, kept for (\d+) hours, are (\d+)\.(\d+) million messages, or (\d+) GB\..*?: (\d+) GB"
    )
    assert per_second * hours * 3600 == million_tenths * 1_000_000 + millions * 100_000
    assert gb == round(per_second * hours * 3600 * in_all / 1e9)
    assert with_room == round(per_second * hours * 3600 * in_all / 1e9 / 0.75)

    files = len(list((tmp_path / "store" / "commitlog").iterdir()))
    [others] = figures(r"1 GiB by default\), and about (\d+) others")
    wait_for(lambda: descriptors(broker) == at_start + files - 1, "one descriptor for each file of the log")
    assert abs(at_start - 1 - others) <= 2
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(FILES_MAX)]
    try:
        broker.wait_for_line("connections are open, and no more files may be")
        [accepted] = [int(n) for n in re.findall(r"(\d+) connections are open, and no more", broker.err)][:1]
        assert abs(accepted - (FILES_MAX * 3 // 4 - files - others)) <= 3
    finally:
        for each in connections:
            each.close()
