"""Clients that have an account sign all that they ask for, on each face."""

import asyncio
import logging
import pickle
import random
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    Credentials,
    CredentialsFile,
    Message,
    MessageQueue,
    ProducerOptions,
    PullOptions,
    PushOptions,
    aio,
    blocking,
)
from mqbroker.client.broker_requests import decline
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.identity import BadAccount
from mqbroker.client.net import signed
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.signature import ACCESS_KEY, is_signed
from tests.client.loopback import Loopback
from tests.client.world import World

ME = Credentials("shop-orders", "a long random text")
Q = MessageQueue("T", "a", 0)


@pytest.fixture
def topic(server: Loopback) -> Any:
    server.add_topic("T", queues=1)
    server.add_topic("%RETRY%g", queues=1)
    return server


@pytest.fixture
def heard(topic: Loopback) -> Any:
    """Every request that the server was sent."""
    return topic.faults.requests


def check(heard: Any, *codes: Any) -> None:
    assert set(codes) <= {request.code for _, request in heard}
    for _, request in heard:
        assert request.ext_fields[ACCESS_KEY] == ME.access_key
        assert is_signed(request.ext_fields, request.body, ME.secret_key)


def test_on_plain_sockets(topic: Loopback, heard: Any) -> None:
    with blocking.Producer(topic.addr, "pg", options=ProducerOptions(credentials=ME)) as producer:
        producer.send(Message("T", b"1"))
        producer.send_batch([Message("T", b"2"), Message("T", b"3")])
        producer.send_oneway(Message("T", b"4"))
    with blocking.PullConsumer(topic.addr, "cg", options=PullOptions(credentials=ME)) as consumer:
        assert consumer.pull(Q, 0).messages
        consumer.fetch_many([(Q, 0, 1)] * 3)
        consumer.commit(Q, 1)
    check(heard, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE,
          RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_ROUTEINFO_BY_TOPIC)  # fmt: skip


def test_on_asyncio(topic: Loopback, heard: Any) -> None:
    async def main() -> None:
        async with aio.Producer(topic.addr, "pg", options=ProducerOptions(credentials=ME)) as producer:
            await producer.send(Message("T", b"1"))
            await producer.send_oneway(Message("T", b"2"))
        async with aio.PullConsumer(topic.addr, "cg", options=PullOptions(credentials=ME)) as consumer:
            assert (await consumer.pull(Q, 0)).messages
        got = asyncio.Event()
        push = aio.PushConsumer(topic.addr, "g", lambda message: got.set(), options=PushOptions(credentials=ME))
        await push.subscribe("T")
        await push.start()
        await push.close()

    asyncio.run(main())
    check(heard, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT)


def test_on_a_reactor(world: World) -> None:
    net = DeferredNet(world.clock, decline, random.Random(1), ME, world.cluster.network.connector)
    command = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "T"})
    world.run(net.invoke("10.0.0.2:10911", command, 1000))
    world.run(net.send_oneway("10.0.0.2:10911", command))
    assert len(world.faults.requests) == 2
    check(world.faults.requests, RequestCode.GET_MAX_OFFSET)
    assert command.ext_fields == {"topic": "T"}
    world.run(net.close())


def test_without_an_account_nothing_is_signed() -> None:
    command = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "T"})
    assert signed(command, None) is command


@pytest.mark.parametrize("name", ["Producer", "PullConsumer"])
def test_an_account_is_read_again_when_its_file_changes(
    face: Any, cluster: Loopback, tmp_path: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqbroker.client.identity")
    path = tmp_path / "account.yml"

    def accounts() -> set[tuple[str, bool]]:
        """Those that the latest requests are signed by, and whether the latest secret is right."""
        if name == "Producer":
            client.send(Message("T", b"x"))
        else:
            client.max_offset(Q)
        found = {
            (request.ext_fields.get(ACCESS_KEY, ""), is_signed(request.ext_fields, request.body, secret))
            for _, request in cluster.faults.requests
        }
        cluster.faults.requests.clear()
        return found

    def write(key: str, to: str) -> None:
        other = tmp_path / "other"
        other.write_text(f"accessKey: {key}\nsecretKey: {to}\n")
        other.rename(path)

    secret = "first"
    write("one", secret)
    cluster.add_topic("T", queues=1)
    kind: Any = ProducerOptions if name == "Producer" else PullOptions
    client = face.make(name, "g", options=kind(credentials=CredentialsFile(path)))
    with client:
        assert accounts() == {("one", True)}
        secret = "second"
        write("two", secret)
        assert ("two", True) in accounts()
        path.write_text("accessKey: [")
        assert accounts() == {("two", True)}
        path.unlink()
        assert accounts() == {("two", True)}
        secret = "third"
        write("three", secret)
        assert ("three", True) in accounts()
    lines = [each.getMessage() for each in caplog.records if each.name == "mqbroker.client.identity"]
    assert [line.partition(":")[0] for line in lines] == [
        "the account is read again",
        "keeping the former account",
        "keeping the former account",
        "the account is read again",
    ]
    assert "first" not in caplog.text


def test_a_file_that_holds_no_account_is_refused_at_once(tmp_path: Any) -> None:
    with pytest.raises(BadAccount, match="No such file"):
        CredentialsFile(tmp_path / "none")
    path = tmp_path / "account.yml"
    path.write_text("accessKey: a\nsecretKey: b\n")
    found = CredentialsFile(path)
    assert found == pickle.loads(pickle.dumps(found)) == CredentialsFile(str(path))
    assert ProducerOptions(credentials=found).credentials is found
    with pytest.raises(BadArgument, match="CredentialsFile"):
        ProducerOptions(credentials=str(path))  # type: ignore[arg-type]
