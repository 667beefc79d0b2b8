"""A planned change of the master of a group, `mq ha switch`, while a producer of the Java system sends that stays with
the former master for as long as it does by default, and one of this project beside it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Fleet
from tests.interop.group import Machine, Three
from tests.interop.load import JavaSender, Load, OurSender

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server, or build it with Go")
POLL_MS = 30_000
SWITCHES = 2


def test_no_send_of_either_producer_fails(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    three = Three(fleet, namesrv, etcd, [Machine()] * 3)
    java = JavaSender.start(fleet, namesrv, topic, poll_ms=POLL_MS)
    ours = OurSender(namesrv, topic, "ours")
    load = Load(java, ours)
    load.wait_until_it_goes_on()
    for _ in range(SWITCHES):
        to = three.master % 3 + 1
        load.longest_pause_s()
        command = [sys.executable, "-m", "mqbroker.cli", "ha", "switch", "group-a", "--to", str(to), "-n", namesrv.addr]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        load.wait_until_it_goes_on()
        print(f"{done.stdout.strip()}: {load.longest_pause_s():.2f} s without an acknowledgement", flush=True)
        assert three.master == to
        load.wait("all three are in sync", lambda: three.is_whole)
    load.end()
    assert (java.failed, ours.failed) == ([], [])
    assert min(len(java.acknowledged), len(ours.acknowledged)) > 100 * SWITCHES
    fleet.check_logs()
