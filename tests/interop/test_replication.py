"""A Java slave follows our master: its commit log is the master's, byte for byte, and consumers can read from it."""

import pytest

from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.processes import eventually
from tests.interop.traffic import bodies, consumer, produce, stop_consumer


def log_files(broker: Broker) -> dict[str, bytes]:
    """The segments that have messages, by name."""
    segments = {path.name: path.read_bytes() for path in sorted((broker.store / "commitlog").iterdir())}
    return {name: data for name, data in segments.items() if data.strip(b"\0")}


def follows(slave: Broker, master: Broker) -> bool:
    """Whether the slave's log is the master's, from the slave's first segment on."""
    has, should = log_files(slave), log_files(master)
    return bool(has) and has == {name: data for name, data in should.items() if name >= min(has)}


def start_slave(fleet: Fleet, namesrv: Namesrv, master: Broker, segment_bytes: int = 4 << 20) -> Broker:
    return fleet.broker(
        "java",
        namesrv,
        brokerName=master.name,
        brokerId="1",
        brokerRole="SLAVE",
        mappedFileSizeCommitLog=str(segment_bytes),
    )


@pytest.mark.parametrize("namesrv_kind", ["java", "ours"])
def test_a_java_slave_follows_our_master(fleet: Fleet, topic: str, namesrv_kind: Kind) -> None:
    namesrv = fleet.namesrv(namesrv_kind)
    master = fleet.broker("ours", namesrv)
    sent = produce(fleet, namesrv, topic, count=200)
    slave = start_slave(fleet, namesrv, master)
    eventually("the slave has the log", lambda: follows(slave, master), patience_s=30)
    sent += produce(fleet, namesrv, topic, prefix="later", count=200)
    eventually("the slave has what came later", lambda: follows(slave, master), patience_s=30)
    status = fleet.mqadmin("brokerStatus", "-n", namesrv.addr, "-b", master.addr)
    [line] = [line for line in status.splitlines() if line.startswith("haSlave_127.0.0.1")]
    assert line.endswith(",0")

    slave.process.kill()
    sent += produce(fleet, namesrv, topic, prefix="away", count=200)
    fleet.restart(slave)
    eventually("the slave has what came while it was away", lambda: follows(slave, master), patience_s=30)

    # Its tables come each 10 s; by then it may serve in the master's place.
    topics = slave.store / "config" / "topics.json"
    eventually("the slave has the topic", lambda: topic in topics.read_text(), patience_s=30)
    master.process.kill()
    process = consumer(fleet, namesrv, topic, "survivors")
    process.wait_events("message", len(sent))
    assert bodies(stop_consumer(process)) == bodies(sent)


def test_a_java_slave_follows_over_many_segments_and_restarts_of_the_master(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    master = fleet.broker("ours", namesrv, mappedFileSizeCommitLog="262144")
    slave = start_slave(fleet, namesrv, master, 262144)
    produce(fleet, namesrv, topic, count=1)
    eventually("the slave follows", lambda: follows(slave, master), patience_s=30)
    produce(fleet, namesrv, topic, prefix="large", count=300, size=4000)
    eventually("the slave has several segments", lambda: follows(slave, master), patience_s=30)
    assert len(log_files(slave)) >= 4
    for end in ("stop", "kill"):
        getattr(master.process, end)()
        fleet.restart(master)
        produce(fleet, namesrv, topic, prefix=end, count=50)
        eventually("the slave follows again", lambda: follows(slave, master), patience_s=40)


def test_a_sync_master_waits_for_a_java_slave(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    master = fleet.broker("ours", namesrv, brokerRole="SYNC_MASTER", syncFlushTimeout="2000")

    def statuses(prefix: str) -> set[str]:
        process = fleet.peer("produce", namesrv, topic=topic, prefix=prefix, count=3)
        process.finish()
        return {event["status"] for event in process.events("sent")}

    assert statuses("alone") == {"SLAVE_NOT_AVAILABLE"}
    slave = start_slave(fleet, namesrv, master)
    eventually("the slave confirms", lambda: statuses("both") == {"SEND_OK"}, patience_s=30)
    assert follows(slave, master)
    slave.process.suspend()
    assert statuses("stuck") == {"FLUSH_SLAVE_TIMEOUT"}
    slave.process.kill()
    eventually("the slave is gone", lambda: statuses("gone") == {"SLAVE_NOT_AVAILABLE"}, patience_s=30)
