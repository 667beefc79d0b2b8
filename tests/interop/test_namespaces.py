"""Namespaces: names as Java's jar makes them, and our consumers in one group with a Java member."""

import random
import subprocess
from pathlib import Path

from mqbroker.client import (
    ConsumeFrom,
    LitePullOptions,
    Message,
    MessageQueue,
    ProducerOptions,
    PullOptions,
    blocking,
)
from mqbroker.client.names import bare, within
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.java import JavaSystem
from tests.interop.processes import eventually
from tests.interop.traffic import assigned, bodies, consumer, stop_consumer, wait_assigned

CASES = 5000
PIECES = ["%", "%RETRY%", "%DLQ%", "one", "two", "one%", "x", "-", "_", "TBW102", "rmq_sys_", "CID_RMQ_SYS_", "T"]
PROGRAM = """
import java.util.Scanner;
import org.apache.rocketmq.common.protocol.NamespaceUtil;

public class Names {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] parts = lines.nextLine().split(" ", 2);
            String bare = NamespaceUtil.withoutNamespace(parts[1]);
            String found = NamespaceUtil.withoutNamespace(parts[1], parts[0]);
            System.out.println(NamespaceUtil.wrapNamespace(parts[0], parts[1]) + " " + bare + " " + found);
        }
    }
}
"""


def a_name(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 4)))


def test_names_are_those_of_java(java: JavaSystem, tmp_path: Path) -> None:
    rng = random.Random(5)
    cases = [(rng.choice(["one", "two", "o-n_e"]), a_name(rng)) for _ in range(CASES)]
    source = tmp_path / "Names.java"
    source.write_text(PROGRAM)
    command = [java.java, "-cp", f"{java.cache}/lib/*", f"-Duser.home={tmp_path}", str(source)]
    given = "".join(f"{namespace} {name}\n" for namespace, name in cases)
    said = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=120).stdout
    ours = [f"{within(space, name)} {bare(name)} {bare(name, space)}" for space, name in cases]
    assert [pair for pair in zip(cases, said.splitlines(), ours, strict=True) if pair[1] != pair[2]] == []


def test_pull_and_lite_pull_consumers_share_a_namespace_with_java(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker
) -> None:
    whole, group = "one%NamespacedTopic", "one%namespaced-group"
    with blocking.Producer(java_namesrv.addr, "pg", options=ProducerOptions(namespace="one")) as producer:
        producer.create_topic("NamespacedTopic", 4)
        queues = [MessageQueue("NamespacedTopic", java_broker.name, n) for n in range(4)]
        eventually("the topic is there", lambda: set(producer.queues("NamespacedTopic")) == set(queues))
        theirs = consumer(shared_fleet, java_namesrv, whole, group, persist_ms=100)
        wait_assigned(theirs, queues=4)
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, suspend_s=1, namespace="one")
        with blocking.LitePullConsumer(java_namesrv.addr, "namespaced-group", options=options) as reader:
            reader.subscribe("NamespacedTopic")
            wait_assigned(theirs, queues=2, patience_s=15)
            eventually("two queues are ours", lambda: len(reader.assigned) == 2, patience_s=15)
            assert {queue.topic for queue in reader.assigned} == {"NamespacedTopic"}
            assert assigned(theirs).isdisjoint({f"{queue.broker_name}:{queue.queue_id}" for queue in reader.assigned})
            for queue in queues:
                for n in range(5):
                    producer.send(Message("NamespacedTopic", b"%d" % n), queue=queue)
            theirs.wait_events("message", 10)
            found: list[tuple[str, MessageQueue]] = []

            def poll() -> bool:
                found.extend((message.topic, message.queue) for message in reader.poll(1))
                return len(found) >= 10

            eventually("they are polled", poll)
            assert set(found) == {("NamespacedTopic", queue) for queue in reader.assigned}
            reader.commit()
            mine = {queue: reader.committed(queue) for queue in reader.assigned}
            assert set(mine.values()) == {5}
        assert sum(bodies(stop_consumer(theirs)).values()) == 10
    options_of_pull = PullOptions(namespace="one")
    with blocking.PullConsumer(java_namesrv.addr, "namespaced-group", options=options_of_pull) as consumer_of_all:
        assert {queue: consumer_of_all.committed(queue) for queue in queues} == dict.fromkeys(queues, 5)
        assert consumer_of_all.pull(queues[0], 0).messages[0].topic == "NamespacedTopic"
