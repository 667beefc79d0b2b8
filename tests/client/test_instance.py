"""Clients of a process and an event loop share connections, client id and heartbeats, the same on each face."""

import asyncio
import json
import threading
from typing import Any

import pytest

from mqbroker.broker.requests.client_requests import GROUPS_OF_CLIENT_MAX
from mqbroker.client import ConsumeFrom, Message, MessageQueue, ProducerOptions, PushOptions, heartbeats, instance
from mqbroker.client.aio import Producer
from mqbroker.client.subscription import subscribe_to
from mqbroker.errors import ConnectionClosed
from mqbroker.wire.bodies import ConsumerData, HeartbeatData
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.faults import SILENT
from tests.client.loopback import Loopback

Q = MessageQueue("T", "a", 0)
FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0)
BEAT, LEAVE, SEND = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.SEND_MESSAGE_V2


def groups(beat: Any) -> tuple[set[str], set[str]]:
    """The groups of producers and consumers in a heartbeat."""
    data = json.loads(beat.body)
    producers, consumers = data["producerDataSet"], data["consumerDataSet"]
    return {each["groupName"] for each in producers}, {each["groupName"] for each in consumers}


def to_broker(cluster: Loopback) -> int:
    """How many connections to the broker are open."""
    with cluster.lock:
        return sum(each.addr == cluster.broker_addr for each in cluster.faults.connections)


def consumers_of(face: Any, names: Any) -> list[Any]:
    found = [face.make("PushConsumer", name, lambda message: None, options=FROM_FIRST) for name in names]
    for consumer in found:
        consumer.subscribe("T")
        consumer.start()
    return found


def test_clients_of_different_groups_share_a_connection_and_heartbeats(face: Any, cluster: Loopback) -> None:
    producing, consuming = [f"p{n}" for n in range(10)], [f"c{n}" for n in range(10)]
    producers = [face.make("Producer", name) for name in producing]
    for producer in producers:
        producer.start()
        producer.send(Message("T", b"x"))
    consumers = consumers_of(face, consuming)
    assert len({consumer.client_id for consumer in consumers}) == 1
    assert to_broker(cluster) == 1
    assert groups(cluster.faults.asked(BEAT)[-1]) == (set(producing), set(consuming))

    producers.pop().close()
    consumers.pop().close()
    left = [request.ext_fields for request in cluster.faults.asked(LEAVE)]
    assert [(each.get("producerGroup"), each.get("consumerGroup")) for each in left] == [("p9", None), (None, "c9")]
    for producer in producers:
        producer.send(Message("T", b"y"))
    assert to_broker(cluster) == 1
    for client in [*producers, *consumers]:
        client.close()
    assert len(cluster.faults.asked(LEAVE)) == 20


def test_one_heartbeat_is_sent_in_a_period(world: Any) -> None:
    from mqbroker.client.deferred import Producer

    world.cluster.add_topic("T", queues=1, brokers=["a"])
    network = world.cluster.network.connector
    producers = [Producer(world.clock, "10.0.0.1:9876", f"p{n}", connector=network) for n in range(10)]
    for n, producer in enumerate(producers):
        producer.start()
        world.cluster.settle()
        producer.send(Message("T", b"%d" % n))
        world.clock.pump([1.0] * 2)
    before = len(world.faults.asked(BEAT))
    world.clock.pump([1.0] * 120)
    assert len(world.faults.asked(BEAT)) - before == 4
    assert groups(world.faults.asked(BEAT)[-1])[0] == {f"p{n}" for n in range(10)}
    for producer in producers:
        producer.close()
    world.cluster.settle()


@pytest.mark.parametrize("refused", [False, True])
def test_a_heartbeat_of_many_subscriptions_is_several(
    face: Any, cluster: Loopback, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Each within what a broker reads, and all groups in them."""
    cluster.add_topic("T", queues=1)
    consumers = consumers_of(face, [f"c{n}" for n in range(5)])
    monkeypatch.setattr(heartbeats, "SUBSCRIPTION_BYTES_MAX", 900)  # each has one, and that of its retries
    if refused:
        cluster.faults.refuse[cluster.broker_addr, BEAT] = (ResponseCode.SYSTEM_ERROR, "no")
    before = len(cluster.faults.asked(BEAT))
    with face.make("Producer", "p") as producer:
        producer.send(Message("T", b"x"))
    beats = [groups(beat) for beat in cluster.faults.asked(BEAT)[before:]]
    wanted = [({"p"}, {"c0", "c1"}), ({"p"}, {"c2", "c3"}), ({"p"}, {"c4"})]
    assert beats == (wanted[:1] * len(beats) if refused else wanted)
    assert beats
    cluster.faults.refuse.clear()
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize(("topic", "tags"), [("t", []), ("t" * 127, []), ("t", [f"tag{n:04}" for n in range(20)])])
def test_the_size_of_a_subscription_in_a_heartbeat(topic: str, tags: list[str]) -> None:
    """It is no less than four fifths of what is sent: a request may have two thirds of what brokers read."""
    one = subscribe_to(topic, " || ".join(tags) or "*", 1 << 40)
    sent = [len(HeartbeatData("c", [], [ConsumerData("g", subscription_data_set=[one] * n)]).to_json()) for n in (1, 2)]
    assert sent[1] - sent[0] <= heartbeats._size(one) * 5 / 4


def test_two_members_of_a_group_have_two_client_ids_and_connections(face: Any, cluster: Loopback) -> None:
    cluster.add_topic("T", queues=2)
    members = consumers_of(face, ["g", "g", "h"])
    assert len({member.client_id for member in members}) == 2
    assert members[0].client_id == members[2].client_id
    assert to_broker(cluster) == 2
    for member in members:
        member.close()


def test_other_accounts_units_and_loops_share_nothing(cluster: Loopback) -> None:
    ids: list[str] = []

    async def use(options: ProducerOptions | None = None) -> None:
        async with Producer(cluster.addr, "pg", options=options) as producer:
            await producer.send(Message("T", b"x"))
            ids.append(producer._core._identity.client_id)
            if options is None:
                await use(ProducerOptions(unit_name="u"))

    cluster.add_topic("T", queues=1)
    asyncio.run(use())
    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    thread.join(20)
    assert len(set(ids)) == 4


def test_a_send_of_a_client_that_is_closed_ends_and_those_of_others_go_on(cluster: Loopback) -> None:
    cluster.add_topic("T", queues=1)

    async def main() -> None:
        first, second = Producer(cluster.addr, "p1"), Producer(cluster.addr, "p2")
        for producer in (first, second):
            await producer.start()
            await producer.send(Message("T", b"x"))
            await producer.send(Message("T", b"x"))
        cluster.faults.refuse[None, SEND] = SILENT
        sends = [
            asyncio.create_task(producer.send(Message("T", b"y"), timeout_s=how))
            for producer in (first, second)
            for how in (None, 60.0)
        ]
        while len(cluster.faults.asked(SEND)) < 8:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        await first.close()
        done, open_ = await asyncio.wait(sends[:2], timeout=10)
        assert not open_
        assert all(isinstance(each.exception(), Exception) for each in done)
        assert [each.done() for each in sends] == [True, True, False, False]
        cluster.faults.refuse.clear()
        await second.send(Message("T", b"z"))
        await second.close()
        await asyncio.gather(*sends, return_exceptions=True)
        with pytest.raises(ConnectionClosed):
            await first._net.invoke(cluster.addr, None, 1000)

    asyncio.run(main())


def test_a_client_is_made_where_no_loop_runs(cluster: Loopback) -> None:
    from mqbroker.client import aio, blocking

    for face in (aio, blocking):
        face.Producer(cluster.addr, "pg")
        face.PullConsumer(cluster.addr, "cg")
        face.PushConsumer(cluster.addr, "g", print).subscribe("T")
        face.LitePullConsumer(cluster.addr, "g")


class Program:
    """A program's producers on Twisted, and a clock that it moves."""

    def __init__(self, world: Any) -> None:
        world.cluster.add_topic("T", queues=1, brokers=["a"])
        self.world = world

    def producer(self, group: str) -> Any:
        from mqbroker.client.deferred import Producer

        producer = Producer(self.world.clock, "10.0.0.1:9876", group, connector=self.world.cluster.network.connector)
        producer.start()
        self.world.cluster.settle()
        return producer

    def send(self, *producers: Any) -> None:
        for producer in producers:
            producer.send(Message("T", b"x"))
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.cluster.settle()

    def close(self, *producers: Any) -> None:
        for producer in producers:
            producer.close()
        self.wait(0.0)

    @property
    def beats(self) -> list[list[str]]:
        """The groups of producers in each heartbeat that was sent."""
        return [sorted(groups(beat)[0]) for beat in self.world.faults.asked(BEAT)]


@pytest.fixture
def program(world: Any) -> Program:
    return Program(world)


def test_many_that_send_for_the_first_time_cost_one_heartbeat(program: Program) -> None:
    producers = [program.producer(f"p{n % 20}") for n in range(200)]
    program.send(*producers)
    assert program.beats == [sorted(f"p{n}" for n in range(20))]
    program.wait(30.0)
    assert len(program.beats) == 2
    program.close(*producers)


def test_one_more_producer_of_a_group_costs_no_heartbeat(program: Program) -> None:
    first = program.producer("p")
    program.send(first)
    second = program.producer("p")
    program.send(second)
    assert program.beats == [["p"]]
    program.close(first)
    third = program.producer("p")
    program.send(second, third)
    assert program.beats == [["p"]]
    program.close(second)
    assert not program.world.faults.asked(LEAVE)
    program.wait(30.0)
    assert program.beats == [["p"]] * 2
    program.close(third)
    assert len(program.world.faults.asked(LEAVE)) == 1
    again, other = program.producer("p"), program.producer("q")
    program.send(again)
    assert program.beats == [["p"]] * 2 + [["p", "q"]]
    program.close(again, other)


def test_a_refused_heartbeat_is_not_repeated_after_each_send(program: Program, caplog: Any) -> None:
    program.world.faults.refuse[None, BEAT] = (ResponseCode.SYSTEM_ERROR, "boo")
    producers = [program.producer(f"p{n}") for n in range(10)]
    for _ in range(10):
        program.send(*producers)
    assert len(program.beats) == 1
    program.wait(4.0)
    program.send(*producers)
    assert len(program.beats) == 1
    program.wait(1.5)
    program.send(*producers)
    assert len(program.beats) == 2
    assert caplog.text.count("heartbeat to") == 2
    program.world.faults.refuse.clear()
    program.wait(5.5)
    program.send(*producers)
    program.send(*producers)
    assert len(program.beats) == 3
    program.close(*producers)


def test_a_client_id_has_no_more_groups_than_brokers_take(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert instance.GROUPS_MAX == GROUPS_OF_CLIENT_MAX
    monkeypatch.setattr(instance, "GROUPS_MAX", 2)
    producers = [program.producer(f"p{n}") for n in range(5)]
    producers += [program.producer(f"p{n}") for n in range(5)]
    program.send(*producers)
    assert sorted(program.beats) == [["p0", "p1"], ["p2", "p3"], ["p4"]]
    for producer in producers[::5]:  # both of p0
        program.close(producer)
    another = program.producer("p5")
    program.send(another)
    assert program.beats[-1] == ["p1", "p5"]
    program.close(*producers[1:5], *producers[6:], another)


def test_those_that_join_while_a_heartbeat_is_under_way_share_the_next_one(program: Program) -> None:
    held: list[Any] = []
    program.world.faults.refuse[None, BEAT] = held.append
    producers = [program.producer(f"p{n}") for n in range(3)]
    program.send(producers[0])
    for n in range(3, 10):
        producers.append(program.producer(f"p{n}"))
        program.send(producers[-1])
    assert [len(beat) for beat in program.beats] == [3]
    held.pop().pass_on()
    program.wait(0.0)
    assert [len(beat) for beat in program.beats] == [3, 10]
    held.pop().pass_on()
    program.wait(0.0)
    assert [len(beat) for beat in program.beats] == [3, 10]
    program.world.faults.refuse.clear()
    program.close(*producers)


def test_one_that_is_cancelled_with_its_heartbeat_leaves_it_to_the_next(server: Loopback) -> None:
    async def main() -> None:
        async with Producer(server.addr, "p") as first, Producer(server.addr, "q") as second:
            await first.send(Message("T", b"x"))
            await second.queues("T")
            beats = [producer._core.heartbeats for producer in (first, second)]
            held: list[Any] = []
            server.faults.refuse[None, BEAT] = held.append
            before = len(server.faults.asked(BEAT))
            sending = [asyncio.create_task(each.send_to_all()) for each in (*beats, beats[1])]
            while not held:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
            server.faults.refuse.clear()
            sending[0].cancel()
            assert (await asyncio.gather(*sending, return_exceptions=True))[1:] == [{}, {}]
            assert sending[0].cancelled()
            assert len(server.faults.asked(BEAT)) - before == 2

    server.add_topic("T", queues=1)
    asyncio.run(main())


def test_producers_that_are_used_without_a_start_are_in_heartbeats_too(server: Loopback) -> None:
    from mqbroker.client import blocking

    server.add_topic("T", queues=1)
    producers = [blocking.Producer(server.addr, group) for group in ("p", "q")]
    for producer in producers:
        producer.send(Message("T", b"x"))
    assert groups(server.faults.asked(BEAT)[-1])[0] == {"p", "q"}
    for producer in producers:
        producer.close()
