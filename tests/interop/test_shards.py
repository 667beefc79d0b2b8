"""Java's clients and tools with a broker of several shards, one of which is killed under load."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from mqbroker.wire.bodies import GetConsumerListByGroupResponseBody, KVTable
from mqbroker.wire.codes import RequestCode
from tests.interop.fleet import HERE, Broker, Fleet, Namesrv
from tests.interop.processes import eventually, free_ports
from tests.interop.raw import Line
from tests.interop.traffic import bodies, consumer, produce, stop_consumer, wait_assigned

SHARDS = 3


def shard_pids(broker: Broker) -> list[int]:
    """The processes of the shards, by their numbers."""
    parent = broker.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return sorted(map(int, children), key=lambda pid: Path(f"/proc/{pid}/cmdline").read_bytes())


def names(broker: Broker) -> set[str]:
    return {broker.name, *(f"{broker.name}-{shard}" for shard in range(1, SHARDS))}


def mq_brokers(namesrv: Namesrv, *options: str) -> list[list[str]]:
    command = [sys.executable, "-m", "mqbroker.cli", "brokers", "-n", namesrv.addr, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return [line.split("\t") for line in done.stdout.splitlines()]


def start(fleet: Fleet, namesrv: Namesrv, topic: str) -> Broker:
    """A broker of three shards, with a topic that Java's mqadmin created on all of them."""
    broker = fleet.broker("ours", namesrv, shards=str(SHARDS))
    fleet.mqadmin("updateTopic", "-n", namesrv.addr, "-c", "Interop", "-t", topic, "-r", "2", "-w", "2")
    return broker


def test_shards_are_brokers_of_a_cluster_to_java(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("java")
    broker = start(fleet, namesrv, topic)
    sent = produce(fleet, namesrv, topic, count=30)
    assert {event["broker"] for event in sent} == names(broker)
    listed = fleet.mqadmin("clusterList", "-n", namesrv.addr)
    status = fleet.mqadmin("topicStatus", "-n", namesrv.addr, "-t", topic)
    for name in names(broker):
        assert f"{name} " in listed
        assert sum(line.split()[:1] == [name] for line in status.splitlines()) == 2
    host, _, port = broker.addr.rpartition(":")
    for shard in range(SHARDS):
        with closing(Line(f"{host}:{int(port) + 10 * shard}")) as line:
            info = KVTable.from_json(line.one(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
        told = tuple(info[key] for key in ("shardOf", "shard", "shards"))
        assert told == (broker.name, str(shard), str(SHARDS))
    [row] = mq_brokers(namesrv)
    assert [*row[:4], *row[-3:]] == ["Interop", broker.name, "0", broker.addr, "30", "0", "3 shards"]
    assert [row[1] for row in mq_brokers(namesrv, "--shards")] == sorted(names(broker))
    assert broker.process.stop() == 0
    assert not list(broker.store.glob("**/abort"))


def test_a_topic_that_nobody_created_is_spread(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("ours", namesrv, shards=str(SHARDS))
    sent = produce(fleet, namesrv, topic, count=60)
    assert {event["broker"] for event in sent} == names(broker)


def test_a_broker_that_gets_shards_keeps_its_messages_and_spreads_what_comes(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    port = free_ports(SHARDS)

    def start_grown(**more: str) -> Broker:
        store, ports = fleet.scratch / "grown", {"listenPort": str(port), "haListenPort": str(port + 1)}
        return fleet.broker("ours", namesrv, store, None, HERE, brokerName="grown", **ports, **more)

    one = start_grown()
    fleet.mqadmin("updateTopic", "-n", namesrv.addr, "-c", "Interop", "-t", topic, "-r", "2", "-w", "2")
    first = produce(fleet, namesrv, topic, count=10)
    assert one.process.stop() == 0
    several = start_grown(shards=str(SHARDS))
    later = produce(fleet, namesrv, topic, count=30, prefix="later")
    assert {event["broker"] for event in later} == names(several)
    taking = consumer(fleet, namesrv, topic, "grown")
    taking.wait_events("message", 40)
    assert bodies(stop_consumer(taking)) == bodies(first) + bodies(later)


def member_counts(broker: Broker, group: str) -> list[int]:
    """How many members each shard counts."""
    host, _, port = broker.addr.rpartition(":")
    counts = []
    for shard in range(SHARDS):
        with closing(Line(f"{host}:{int(port) + 10 * shard}")) as line:
            answer = line.one(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
            counts.append(len(GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_id_list))
    return counts


def test_the_members_of_a_group_go_on_after_a_restart(fleet: Fleet, topic: str) -> None:
    """Java's send their next heartbeat up to 30 s later: until then the broker expects them."""
    namesrv = fleet.namesrv("ours")
    broker = start(fleet, namesrv, topic)
    members = [consumer(fleet, namesrv, topic, "group", instance=f"member{n}") for n in range(2)]
    eventually("both members on all shards", lambda: member_counts(broker, "group") == [2] * SHARDS)
    for member in members:
        wait_assigned(member, SHARDS)
    assert broker.process.stop() == 0
    fleet.restart(broker)
    assert member_counts(broker, "group") == [2] * SHARDS
    sent = bodies(produce(fleet, namesrv, topic, count=60))
    got = lambda: bodies(members[0].events("message")) + bodies(members[1].events("message"))  # noqa: E731
    eventually("all messages", lambda: not sent - got())
    assert got() == sent
    for member in members:
        stop_consumer(member)


def test_a_shard_that_is_killed_under_load_loses_nothing(quick_fleet: Fleet, topic: str) -> None:
    fleet = quick_fleet
    namesrv = fleet.namesrv("ours")
    broker = start(fleet, namesrv, topic)
    taking = consumer(fleet, namesrv, topic, "shards", instance="shards", poll_ms=1000)
    sending = fleet.peer(
        "produce", namesrv, topic=topic, count=10**6, interval_ms=5, timeout_ms=3000, instance="shards", poll_ms=1000
    )

    def wait_sent(to: set[str]) -> None:
        before = len(sending.events("sent"))

        def holds(_: list[str]) -> bool:
            counts = Counter(event["broker"] for event in sending.events("sent")[before:])
            return all(counts[name] >= 20 for name in to)

        sending.wait_until(f"20 more messages to each of {to}", holds)

    wait_sent(names(broker))
    pids = shard_pids(broker)
    for shard, pid in enumerate(pids):
        os.kill(pid, signal.SIGKILL)
        killed = f"{broker.name}-{shard}" if shard else broker.name
        wait_sent(names(broker) - {killed})
        wait_sent(names(broker))  # the supervisor has it back
    assert not set(pids) & set(shard_pids(broker))
    [row] = eventually("all shards", lambda: [row for row in mq_brokers(namesrv) if row[-1] == "3 shards"])
    assert row[1] == broker.name
    sending.close_stdin()
    sending.finish()
    sent = bodies(sending.events("sent"))
    taking.wait_until("all that was acknowledged", lambda _: not sent - bodies(taking.events("message")))
    stop_consumer(taking)
    last = shard_pids(broker)
    assert broker.process.stop() == 0
    assert not [pid for pid in last if Path(f"/proc/{pid}").exists()]
    assert not list(broker.store.glob("**/abort"))
