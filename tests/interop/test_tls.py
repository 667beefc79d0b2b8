"""Encrypted connections with certificates of both ends: daemons and clients of both kinds, by one settings file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import attrs
import pytest

from mqbroker.client import ClientTls, Message, ProducerOptions, PullOptions, aio, blocking
from mqbroker.errors import MQError, Unreachable
from tests.interop.encrypted import encrypted_fleet
from tests.interop.fleet import Fleet, Kind, Namesrv
from tests.interop.java import JavaSystem
from tests.interop.processes import eventually
from tests.remoting.certificates import Authority

#: By the name server's kind, that of the broker that is registered there: so each kind meets the other.
PAIRS: dict[Kind, Kind] = {"ours": "java", "java": "ours"}
COUNT = 20


@attrs.frozen
class Doors:
    fleet: Fleet
    authority: Authority
    client: ClientTls
    namesrvs: dict[Kind, Namesrv]


@pytest.fixture(scope="module")
def doors(java: JavaSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with encrypted_fleet(java, tmp_path_factory.mktemp("tls")) as encrypted:
        namesrvs: dict[Kind, Namesrv] = {}
        for namesrv_kind, broker_kind in PAIRS.items():
            namesrvs[namesrv_kind] = encrypted.fleet.namesrv(namesrv_kind)
            encrypted.fleet.broker(broker_kind, namesrvs[namesrv_kind])
        yield Doors(encrypted.fleet, encrypted.authority, encrypted.client, namesrvs)


@pytest.mark.parametrize("kind", PAIRS)
def test_java_clients(doors: Doors, kind: Kind, topic: str) -> None:
    namesrv = doors.namesrvs[kind]
    producer = doors.fleet.peer("produce", namesrv, topic=topic, count=COUNT)
    producer.wait()
    assert [event["status"] for event in producer.events("sent")] == ["SEND_OK"] * COUNT
    consumer = doors.fleet.peer("consume", namesrv, topic=topic, group=f"{topic}-g", count=COUNT, instance=topic)
    assert len({event["msgId"] for event in consumer.wait_events("message", COUNT)}) == COUNT
    assert "broker-" in doors.fleet.mqadmin("clusterList", "-n", namesrv.addr)


@pytest.mark.parametrize("kind", PAIRS)
def test_our_clients(doors: Doors, kind: Kind, topic: str) -> None:
    addr, tls = doors.namesrvs[kind].addr, doors.client
    bodies = [b"%d" % n for n in range(COUNT)]

    async def send_all() -> None:
        async with aio.Producer(addr, "pg", options=ProducerOptions(tls=tls)) as producer:
            await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))

    asyncio.run(send_all())
    with blocking.PullConsumer(addr, "cg", options=PullOptions(tls=tls)) as consumer:
        queues = consumer.queues(topic)

        def ends_of_all() -> list[int]:
            ends = [consumer.max_offset(queue) for queue in queues]
            return ends if sum(ends) == COUNT else []

        ends = eventually("all can be read", ends_of_all)
        pulled = [consumer.pull(queue, 0, suspend_s=1) for queue, end in zip(queues, ends, strict=True) if end]
    assert sorted(message.body for result in pulled for message in result.messages) == sorted(bodies)


@pytest.mark.parametrize("kind", PAIRS)
def test_who_is_not_let_in(doors: Doors, kind: Kind) -> None:
    nobody = ClientTls(ca_file=doors.authority.path)
    for tls, why in ((None, "it may take only encrypted ones"), (nobody, "certificate of the client")):
        with (
            pytest.raises(MQError, match=why) as caught,
            blocking.PullConsumer(doors.namesrvs[kind].addr, "cg", options=PullOptions(tls=tls)) as consumer,
        ):
            consumer.queues("TBW102")
        assert isinstance(caught.value, Unreachable) or "No name server answers" in str(caught.value)
