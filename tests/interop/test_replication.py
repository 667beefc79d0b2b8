"""Master and slave of either system: the slave's commit log is the master's, byte for byte, and consumers read from it
when the master is away."""

import random
import shutil
from contextlib import closing

import pytest

from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv, log_files
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, request, send
from tests.interop.traffic import bodies, consumer, produce, stop_consumer

#: Of the larger logs, as by default.
SEGMENT = 1 << 30
#: Master and slave.
PAIRS: list[tuple[Kind, Kind]] = [("ours", "java"), ("java", "ours")]
OURS = pytest.param("ours", "ours", marks=pytest.mark.thorough)
pairs = pytest.mark.parametrize(("master_kind", "slave_kind"), [*PAIRS, OURS])


def follows(slave: Broker, master: Broker) -> bool:
    """Whether the slave's log is the master's, from the slave's first segment on."""
    has, should = log_files(slave), log_files(master)
    return bool(has) and has == {name: data for name, data in should.items() if name >= min(has)}


def start_slave(fleet: Fleet, namesrv: Namesrv, master: Broker, kind: Kind, segment_bytes: int = 4 << 20) -> Broker:
    return fleet.broker(
        kind,
        namesrv,
        brokerName=master.name,
        brokerId="1",
        brokerRole="SLAVE",
        mappedFileSizeCommitLog=str(segment_bytes),
    )


@pairs
@pytest.mark.parametrize("namesrv_kind", [pytest.param("java", marks=pytest.mark.thorough), "ours"])
def test_a_slave_follows_and_serves_when_its_master_is_away(
    fleet: Fleet, topic: str, master_kind: Kind, slave_kind: Kind, namesrv_kind: Kind
) -> None:
    namesrv = fleet.namesrv(namesrv_kind)
    master = fleet.broker(master_kind, namesrv)
    sent = produce(fleet, namesrv, topic, count=200)
    slave = start_slave(fleet, namesrv, master, slave_kind)
    eventually("the slave has the log", lambda: follows(slave, master), patience_s=40)
    sent += produce(fleet, namesrv, topic, prefix="later", count=200)
    eventually("the slave has what came later", lambda: follows(slave, master), patience_s=40)
    if master_kind == "ours":
        status = fleet.mqadmin("brokerStatus", "-n", namesrv.addr, "-b", master.addr)
        [line] = [line for line in status.splitlines() if line.startswith("haSlave_127.0.0.1")]
        assert line.split(",")[1:3] == ["0", "0"]

    slave.process.kill()
    sent += produce(fleet, namesrv, topic, prefix="away", count=200)
    fleet.restart(slave)
    eventually("the slave has what came while it was away", lambda: follows(slave, master), patience_s=40)

    # Its tables come each 10 s; by then it may serve in the master's place.
    topics = slave.store / "config" / "topics.json"
    eventually("the slave has the topic", lambda: topic in topics.read_text(), patience_s=40)
    master.process.kill()
    process = consumer(fleet, namesrv, topic, "survivors")
    process.wait_events("message", len(sent))
    assert bodies(stop_consumer(process)) == bodies(sent)


@pairs
def test_a_slave_follows_over_many_segments_and_restarts_of_the_master(
    fleet: Fleet, topic: str, master_kind: Kind, slave_kind: Kind
) -> None:
    namesrv = fleet.namesrv("ours")
    master = fleet.broker(master_kind, namesrv, mappedFileSizeCommitLog="262144")
    slave = start_slave(fleet, namesrv, master, slave_kind, 262144)
    produce(fleet, namesrv, topic, count=1)
    eventually("the slave follows", lambda: follows(slave, master), patience_s=40)
    produce(fleet, namesrv, topic, prefix="large", count=300, size=4000)
    eventually("the slave has several segments", lambda: follows(slave, master), patience_s=40)
    assert len(log_files(slave)) >= 4
    for end in ("stop", "kill"):
        getattr(master.process, end)()
        fleet.restart(master)
        produce(fleet, namesrv, topic, prefix=end, count=50)
        eventually("the slave follows again", lambda: follows(slave, master), patience_s=60)


def end_of(broker: Broker) -> int:
    """Where its log ends; -1 while it does not say."""
    try:
        with closing(Line(broker.addr)) as line:
            [answer] = line.ask([request(RequestCode.GET_BROKER_RUNTIME_INFO)])
    except (OSError, AssertionError):  # it begins or ends
        return -1
    return -1 if answer.code else int(KVTable.from_json(answer.body).table["commitLogMaxOffset"])


def require_same_log(slave: Broker, master: Broker, end: int) -> None:
    """Compare the segments of the slave with the master's, up to the end of the log."""
    logs = [broker.store / "commitlog" for broker in (slave, master)]
    names = sorted(path.name for path in logs[0].iterdir() if int(path.name) < end)
    assert sum(1 for _ in names) >= 2
    for name in names:
        left = min(SEGMENT, end - int(name))
        with (logs[0] / name).open("rb") as ours, (logs[1] / name).open("rb") as theirs:
            while left > 0:
                size = min(left, 16 << 20)
                assert ours.read(size) == theirs.read(size), f"{name}, {left} bytes before the end"
                left -= size


@pytest.mark.thorough
@pytest.mark.parametrize(("master_kind", "slave_kind"), PAIRS)
def test_a_slave_gets_a_log_of_two_gibibytes(fleet: Fleet, topic: str, master_kind: Kind, slave_kind: Kind) -> None:
    """While messages go on to come, and through a kill of the slave and a stop of the master."""
    namesrv = fleet.namesrv("ours")
    master = fleet.broker(master_kind, namesrv, mappedFileSizeCommitLog=str(SEGMENT))
    slave = start_slave(fleet, namesrv, master, slave_kind, SEGMENT)
    produce(fleet, namesrv, topic, count=10)
    eventually("the slave follows", lambda: 0 < end_of(master) == end_of(slave), patience_s=40)
    slave.process.stop()
    body = random.Random(1).randbytes(1 << 20)
    with closing(Line(master.addr)) as line:
        while end_of(master) < 2 << 30:
            line.ask_well([send(topic, number % 4, body, {"KEYS": "k"}) for number in range(32)])

    fleet.restart(slave)
    eventually("the slave gets on", lambda: end_of(slave) > 200 << 20, patience_s=60)
    slave.process.kill()
    fleet.restart(slave)
    eventually("the slave gets on again", lambda: end_of(slave) > 1200 << 20, patience_s=60)
    produce(fleet, namesrv, topic, prefix="meanwhile", count=50)
    master.process.stop()
    fleet.restart(master)
    sent = produce(fleet, namesrv, topic, prefix="last", count=50)
    eventually("the slave has it all", lambda: end_of(master) == end_of(slave), patience_s=120)
    end = end_of(slave)
    assert end > 2 << 30
    require_same_log(slave, master, end)
    with closing(Line(master.addr)) as from_master, closing(Line(slave.addr)) as from_slave:
        for queue_id in range(4):
            last = from_master.max_offset(topic, queue_id)
            eventually(f"queue {queue_id}", lambda: from_slave.max_offset(topic, queue_id) == last)  # noqa: B023
    assert len(sent) == 50
    for broker in (slave, master):  # 4 GiB would be kept for days
        broker.process.kill()
        shutil.rmtree(broker.store)


@pairs
def test_a_sync_master_waits_for_its_slave(fleet: Fleet, topic: str, master_kind: Kind, slave_kind: Kind) -> None:
    namesrv = fleet.namesrv("ours")
    master = fleet.broker(master_kind, namesrv, brokerRole="SYNC_MASTER", syncFlushTimeout="2000")

    def statuses(prefix: str) -> set[str]:
        process = fleet.peer("produce", namesrv, topic=topic, prefix=prefix, count=3)
        process.finish()
        return {event["status"] for event in process.events("sent")}

    assert statuses("alone") == {"SLAVE_NOT_AVAILABLE"}
    slave = start_slave(fleet, namesrv, master, slave_kind)
    eventually("the slave confirms", lambda: statuses("both") == {"SEND_OK"}, patience_s=40)
    assert follows(slave, master)
    slave.process.suspend()
    assert statuses("stuck") == {"FLUSH_SLAVE_TIMEOUT"}
    slave.process.kill()
    eventually("the slave is gone", lambda: statuses("gone") == {"SLAVE_NOT_AVAILABLE"}, patience_s=40)


def test_a_slave_of_ours_stands_in_for_a_java_master_and_back(fleet: Fleet, topic: str) -> None:
    """What a Java store has, a slave of ours copies; what a store of ours has, a Java broker goes on with."""
    namesrv = fleet.namesrv("java")
    master = fleet.broker("java", namesrv)
    slave = start_slave(fleet, namesrv, master, "ours")
    sent = produce(fleet, namesrv, topic, count=100)
    topics = slave.store / "config" / "topics.json"
    eventually("the slave has it all", lambda: follows(slave, master) and topic in topics.read_text(), patience_s=40)
    for broker in (slave, master):
        broker.process.stop()
    successors: list[Kind] = ["ours", "java"]
    for number, kind in enumerate(successors):
        successor = fleet.broker(kind, namesrv, store=slave.store)
        sent += produce(fleet, namesrv, topic, prefix=f"successor{number}", count=50)
        process = consumer(fleet, namesrv, topic, f"readers{number}")
        process.wait_events("message", len(sent))
        assert bodies(stop_consumer(process)) == bodies(sent)
        successor.process.stop()


def has(line: Line, topic: str, *expected: bytes) -> bool:
    """Whether a broker knows a topic, and has these messages in its first queue."""
    topics = line.ask_well([request(RequestCode.GET_ALL_TOPIC_CONFIG)])[0].body
    return topic.encode() in topics and [record.body for record in line.read(topic, 0)] == list(expected)


@pytest.mark.parametrize("master_kind", ["java", "ours"])
def test_our_slave_removes_the_topics_that_its_master_removed(fleet: Fleet, topic: str, master_kind: Kind) -> None:
    namesrv = fleet.namesrv("ours")
    master = fleet.broker(master_kind, namesrv)
    slave = start_slave(fleet, namesrv, master, "ours")
    directory = slave.store / "consumequeue" / topic
    with closing(Line(master.addr)) as line, closing(Line(slave.addr)) as copy:

        def slave_has(*expected: bytes) -> bool:
            return has(copy, topic, *expected)

        def fill(*bodies: bytes) -> None:
            for command in (create_topic(topic, 1), *(send(topic, 0, body, {}) for body in bodies)):
                line.ask_well([command])

        fill(b"1", b"2", b"3")
        eventually("the slave has the messages", lambda: slave_has(b"1", b"2", b"3"), patience_s=40)
        line.ask_well([request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)])
        eventually("the slave has removed the queues", lambda: not directory.exists(), patience_s=40)
        # It notes where they begin again when their files are deleted, a moment later.
        end = 0 if master_kind == "java" else 3
        eventually("the slave knows where they begin", lambda: copy.max_offset(topic, 0) == end, patience_s=10)
        fill(b"4", b"5")
        eventually("the slave has the new ones", lambda: slave_has(b"4", b"5"), patience_s=40)
        assert copy.max_offset(topic, 0) == line.max_offset(topic, 0)
    slave.process.kill()
    fleet.restart(slave)
    with closing(Line(slave.addr)) as copy:  # the topic may not have been on its disk yet
        eventually("the slave has the new ones still", lambda: has(copy, topic, b"4", b"5"), patience_s=40)
    slave.process.kill()
    with closing(Line(master.addr)) as line:
        line.ask_well([request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)])
    fleet.restart(slave)
    eventually("the slave has removed what was removed meanwhile", lambda: not directory.exists(), patience_s=40)


def shown(master: Broker, prefix: str) -> list[str]:
    with closing(Line(master.addr)) as line:
        table = KVTable.from_json(line.one(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    return [value for key, value in table.items() if key.startswith(prefix)]


def test_a_java_slave_counts_if_its_log_is_its_masters_and_only_then(fleet: Fleet, topic: str) -> None:
    """The old Java master has one message more, and is started as the slave of its successor."""
    namesrv = fleet.namesrv("ours")
    old = fleet.broker("java", namesrv)
    slave = start_slave(fleet, namesrv, old, "ours")
    produce(fleet, namesrv, topic, count=20)
    eventually("the slave has it all", lambda: follows(slave, old), patience_s=40)
    slave.process.stop()
    produce(fleet, namesrv, topic, prefix="more", count=1)
    old.process.stop()
    master = fleet.broker(
        "ours", namesrv, store=slave.store, brokerName=old.name, brokerRole="SYNC_MASTER", syncFlushTimeout="2000"
    )

    def statuses(prefix: str) -> set[str]:
        process = fleet.peer("produce", namesrv, topic=topic, prefix=prefix, count=1)
        process.finish()
        return {event["status"] for event in process.events("sent")}

    assert end_of(master) > 0
    started = fleet.broker("java", namesrv, store=old.store, brokerName=old.name, brokerId="1", brokerRole="SLAVE")
    eventually("it is refused as longer", lambda: "never had" in "".join(shown(master, "haRefused_")), patience_s=40)
    assert statuses("other") == {"SLAVE_NOT_AVAILABLE"}
    assert statuses("others") == {"SLAVE_NOT_AVAILABLE"}
    eventually("it is refused as different", lambda: "differ at" in "".join(shown(master, "haRefused_")), patience_s=40)
    assert (statuses("still"), shown(master, "haSlave_")) == ({"SLAVE_NOT_AVAILABLE"}, [])

    started.process.stop()
    shutil.rmtree(old.store)
    fleet.restart(started)
    eventually("the slave with an empty store counts", lambda: statuses("both") == {"SEND_OK"}, patience_s=60)
    started.process.kill()
    fleet.restart(started)
    eventually("it counts again", lambda: statuses("again") == {"SEND_OK"}, patience_s=60)
    assert follows(started, master)
    assert shown(master, "haRefused_") == []
