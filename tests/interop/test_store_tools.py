"""`mq store` on directories that a Java broker wrote, and a Java broker on one that it mended."""

from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from mqbroker.cli import cli
from tests.interop.fleet import Fleet
from tests.interop.traffic import bodies, produce, pull
from tests.store.offline.stores import check, flip, kinds, picture

BROKER = "mended"


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["store", *map(str, args)])
    return result.exit_code, result.output


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_java_brokers_store_is_found_whole(fleet: Fleet, topic: str, how: Literal["stopped", "killed"]) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("java", namesrv, store, brokerName=BROKER)
    produce(fleet, namesrv, topic, count=200, size=300, keys=True, tags="A,B")
    produce(fleet, namesrv, topic, prefix="batch", mode="batch", count=30)
    code, output = run("check", store)
    assert code == 1
    assert f"process {broker.process.pid} has it open" in output
    broker.process.stop() if how == "stopped" else broker.process.kill()
    before = picture(store)
    report = check(store)
    assert report.findings.is_clean, report.findings.kept
    assert report.totals.records >= 201
    if how == "stopped":
        assert kinds(report) == {}
    assert picture(store) == before


def damage(store: Path, physical_offset: int) -> None:
    """Flip a bit of a body: the fixed part of a record is 88 bytes."""
    flip(store / "commitlog" / f"{0:020d}", physical_offset + 90)


def test_a_java_broker_goes_on_after_a_fence(fleet: Fleet, topic: str) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("java", namesrv, store, brokerName=BROKER)
    sent = produce(fleet, namesrv, topic, count=200, size=300, keys=True, tags="A,B")
    before = pull(fleet, namesrv, topic)
    broker.process.stop()
    lost = sorted(before, key=lambda event: event["physicalOffset"])[100]
    damage(store, lost["physicalOffset"])
    assert run("repair", store, "--fence")[0] == 1
    code, output = run("repair", store, "--fence", "--write")
    assert code == 0, output
    assert run("check", store)[0] == 0

    (store / "abort").write_bytes(b"")  # as if it had been killed: then the whole log is read and checked
    fleet.broker("java", namesrv, store, brokerName=BROKER)
    after = pull(fleet, namesrv, topic)
    whole = [event for event in before if event["physicalOffset"] != lost["physicalOffset"]]
    assert {event["sha256"] for event in after} == {event["sha256"] for event in whole}
    assert len(after) - len(whole) in (0, 1)  # the message after the lost one comes twice
    more = produce(fleet, namesrv, topic, prefix="more", count=20)
    found = pull(fleet, namesrv, topic)
    assert {*bodies(more)} <= {*bodies(found)}
    assert len({*bodies(sent)} - {*bodies(found)}) == 1
