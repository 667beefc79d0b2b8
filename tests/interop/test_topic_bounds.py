"""Offsets of all queues of a topic by one request, as Spark's streams ask: those of each queue, on each broker."""

from functools import partial

import pytest

from mqbroker.client import Message, MessageQueue, ProducerOptions, PullOptions
from mqbroker.client.blocking import Producer, PullConsumer
from mqbroker.client.faces import core
from mqbroker.client.thread_clients import parts
from mqbroker.errors import MQError
from mqbroker.wire.signature import Credentials
from tests.interop.fleet import Fleet, Kind
from tests.interop.processes import eventually
from tests.interop.test_access import ACCOUNTS
from tests.interop.test_replication import follows, start_slave

kinds = pytest.mark.parametrize("kind", ["java", "ours"])


def knows(producer: Producer, queues: list[MessageQueue]) -> bool:
    return producer.queues(queues[0].topic) == queues


def has(consumer: PullConsumer, queues: list[MessageQueue], wanted: list[tuple[int, int]]) -> bool:
    return consumer.bounds(queues) == wanted


def by_topic(consumer: PullConsumer, queues: list[MessageQueue]) -> list[tuple[int, int] | MQError]:
    thread, client = parts(consumer)
    return thread.run(core(client).offsets.bounds_by_topic(queues))


@kinds
def test_bounds_of_a_topic_are_those_of_its_queues(fleet: Fleet, topic: str, kind: Kind) -> None:
    namesrv = fleet.namesrv(kind)
    master = fleet.broker(kind, namesrv, enableLmq="true", enableMultiDispatch="true")
    fewer = f"{topic}-fewer"
    with Producer(namesrv.addr, "ours") as producer:
        for name in (topic, fewer):
            fleet.mqadmin("updateTopic", "-n", namesrv.addr, "-b", master.addr, "-t", name, "-r", "4", "-w", "4")
            queues = [MessageQueue(name, master.name, n) for n in range(4)]
            eventually("the topic is known", partial(knows, producer, queues))
            for queue in queues[1:]:
                for n in range(3 + queue.queue_id):
                    producer.send(Message(name, b"%d" % n), queue=queue)
        producer.send(Message(topic, b"in two hours", delay_level=18))
        producer.send(Message(topic, b"x").to_light_queues("%LMQ%a"), queue=MessageQueue(topic, master.name, 0))
    fleet.mqadmin("updateTopic", "-n", namesrv.addr, "-b", master.addr, "-t", fewer, "-r", "4", "-w", "2")
    slave = start_slave(fleet, namesrv, master, kind)
    eventually("the slave has all", lambda: follows(slave, master), patience_s=60)
    wanted = [(0, 1), (0, 4), (0, 5), (0, 6), (0, 0), (0, 4), (0, 5), (0, 6)]
    queues = [MessageQueue(name, master.name, n) for name in (topic, fewer) for n in range(4)]
    hidden = [MessageQueue(name, master.name, 0) for name in ("%LMQ%a", "SCHEDULE_TOPIC_XXXX", "nobody-made-it")]
    for read_from in (0, 1):
        with PullConsumer(namesrv.addr, "ours", options=PullOptions(read_from=read_from)) as consumer:
            eventually("the queues are filled", partial(has, consumer, queues, wanted))
            assert by_topic(consumer, queues) == wanted
            for queue in hidden:
                (one,), (other,) = consumer.bounds([queue]), by_topic(consumer, [queue])
                assert one == other or (isinstance(one, MQError) and type(one) is type(other)), (queue, one, other)


@kinds
def test_an_account_without_a_right_to_a_topic_may_ask_for_its_bounds(fleet: Fleet, kind: Kind) -> None:
    """So that a query asks for each queue at its start, where our broker refuses it."""
    namesrv = fleet.namesrv(kind)
    broker = fleet.broker(kind, namesrv, home=fleet.home(ACCOUNTS), aclEnable="true")
    admin, alice = Credentials("the-admin", "secret-of-admin"), Credentials("alice-key", "secret-of-alice")
    with Producer(namesrv.addr, "ours", options=ProducerOptions(credentials=admin)) as producer:
        producer.create_topic("Other", 2)
        queues = [MessageQueue("Other", broker.name, n) for n in range(2)]
        eventually("the topic is known", partial(knows, producer, queues))
        producer.send(Message("Other", b"x"), queue=queues[1])
    with PullConsumer(namesrv.addr, "CG", options=PullOptions(credentials=alice)) as consumer:
        assert by_topic(consumer, queues) == [(0, 0), (0, 1)]
        found = consumer.bounds(queues)
    assert found == [(0, 0), (0, 1)] if kind == "java" else all(isinstance(each, MQError) for each in found)
