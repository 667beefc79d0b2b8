"""Name servers and brokers that accept connections and answer nothing: what a send costs, and whom it blames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import Message, MessageQueue, NameServerUnreachable, ProducerOptions, SendFailed
from mqbroker.client.plain_sends import PlainSends
from mqbroker.client.producer import ProducerCore
from mqbroker.client.send import prepare
from mqbroker.errors import RequestTimedOut
from mqbroker.kernel import compiled
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.ids import UniqIdSource
from tests.client.faults import SILENT
from tests.client.own_cluster import NAME_SERVER
from tests.client.world import FixedIdentity, World

SEND, ROUTE, BEAT = RequestCode.SEND_MESSAGE_V2, RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT
A, B = "10.0.0.2:10911", "10.0.0.3:10911"
OTHER_SERVER = "10.0.0.9:9876"
PATHS = [False, pytest.param(True, marks=pytest.mark.skipif(compiled is None, reason="there is no compiled module"))]


@pytest.fixture
def two_brokers(world: World) -> World:
    world.cluster.add_topic("T")
    return world


def make(world: World, servers: Sequence[str] = (NAME_SERVER,), *, is_plain: bool = False, **options: Any) -> Any:
    net = world.net()
    return ProducerCore(
        net,
        tuple(servers),
        "pg",
        ProducerOptions(**options),
        FixedIdentity("me", UniqIdSource("10.0.0.9", 1, 2, net.now) if is_plain else None),
        partial(PlainSends, net) if is_plain else None,
    )


def end_of(world: World, coroutine: Any, seconds: float = 8.0) -> tuple[Any, float]:
    """What a coroutine returns or fails with, and after how many seconds."""
    found: list[tuple[Any, float]] = []
    began = world.clock.seconds()
    world.run(coroutine).addBoth(lambda outcome: found.append((outcome, world.clock.seconds() - began)))
    while not found and world.clock.seconds() - began < seconds:
        world.clock.advance(0.02)
    outcome, took_s = found[0]
    return getattr(outcome, "value", outcome), round(took_s, 3)


# --- name servers


@pytest.mark.parametrize("timeout_s", [0.1, 0.5, 2.0])
def test_the_time_of_a_send_includes_that_of_silent_name_servers(two_brokers: World, timeout_s: float) -> None:
    two_brokers.cluster.serve_also_at(OTHER_SERVER, NAME_SERVER)
    for addr in (NAME_SERVER, OTHER_SERVER):
        two_brokers.faults.refuse[addr, ROUTE] = SILENT
    producer = make(two_brokers, (NAME_SERVER, OTHER_SERVER))
    error, took_s = end_of(two_brokers, producer.send(Message("T", b"x"), timeout_s=timeout_s))
    assert isinstance(error, NameServerUnreachable)
    assert [addr for addr, _ in error.tried] == [NAME_SERVER, OTHER_SERVER]
    assert timeout_s <= took_s <= timeout_s + 0.1


def test_a_send_that_gives_up_leaves_the_question_to_the_others(two_brokers: World) -> None:
    kept: list[Any] = []
    two_brokers.faults.refuse[None, ROUTE] = kept.append
    producer, found = make(two_brokers), []
    two_brokers.run(producer.send(Message("T", b"0"), timeout_s=0.5)).addErrback(lambda f: found.append(f.type))
    for n in range(1, 4):
        two_brokers.run(producer.send(Message("T", b"%d" % n))).addCallback(lambda r: found.append(r.msg_id))
    two_brokers.clock.pump([0.1] * 8)
    assert found == [NameServerUnreachable]
    two_brokers.faults.refuse.clear()
    (passage,) = kept
    passage.pass_on()
    two_brokers.cluster.settle()
    assert sorted(found[1:]) == ["U1", "U2", "U3"]


@pytest.mark.parametrize("seed", range(4))
def test_one_silent_name_server_of_two_costs_a_moment_and_only_once(two_brokers: World, seed: int) -> None:
    two_brokers.cluster.serve_also_at(OTHER_SERVER, NAME_SERVER)
    two_brokers.faults.refuse[OTHER_SERVER, ROUTE] = SILENT
    producer = make(two_brokers, (OTHER_SERVER, NAME_SERVER))
    producer._routes._first = 0
    result, took_s = end_of(two_brokers, producer.send(Message("T", b"x")))
    assert (result.msg_id, took_s <= 0.4) == ("U0", True)
    two_brokers.cluster.add_topic("U")
    assert end_of(two_brokers, producer.send(Message("U", b"x")))[1] < 0.1


# --- brokers


@pytest.mark.parametrize("is_plain", PATHS)
def test_with_a_silent_broker_of_two_no_send_fails_and_it_is_left_out(two_brokers: World, is_plain: bool) -> None:
    producer = make(two_brokers, is_plain=is_plain)
    for _ in range(8):
        two_brokers.result(producer.send(Message("T", b"before")))
    for code in (SEND, BEAT):
        two_brokers.faults.refuse[A, code] = SILENT
    times = []
    for _ in range(40):
        result, took_s = end_of(two_brokers, producer.send(Message("T", b"x")))
        assert result.queue.broker_name == "b"
        times.append(took_s)
    assert sum(took_s > 0.1 for took_s in times) == 1  # the first one that went there
    assert 1.5 <= max(times) <= 1.7


@pytest.mark.parametrize("is_plain", PATHS)
def test_a_broker_that_answers_a_heartbeat_has_its_share_again(two_brokers: World, is_plain: bool) -> None:
    producer = make(two_brokers, is_plain=is_plain, heartbeat_s=30.0)
    two_brokers.result(producer.start())
    for _ in range(8):
        two_brokers.result(producer.send(Message("T", b"before")))
    for code in (SEND, BEAT):
        two_brokers.faults.refuse[A, code] = SILENT
    for _ in range(8):
        assert end_of(two_brokers, producer.send(Message("T", b"x")))[0].queue.broker_name == "b"
    two_brokers.faults.refuse.clear()
    two_brokers.clock.advance(30)
    names = {two_brokers.result(producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}
    assert names == {"a", "b"}
    two_brokers.result(producer.close())


@pytest.mark.parametrize("is_plain", PATHS)
def test_a_slow_broker_is_left_out_for_a_while(two_brokers: World, is_plain: bool) -> None:
    producer = make(two_brokers, is_plain=is_plain)
    for _ in range(8):
        two_brokers.result(producer.send(Message("T", b"before")))
    slow: list[Any] = []
    two_brokers.faults.refuse[A, SEND] = slow.append
    sends = [two_brokers.run(producer.send(Message("T", b"x"))) for _ in range(8)]
    two_brokers.clock.pump([0.1] * 7)
    for passage in slow:
        passage.pass_on()
    two_brokers.cluster.settle()
    assert all(send.called for send in sends)
    two_brokers.faults.refuse.clear()

    def names() -> set[str]:
        return {two_brokers.result(producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}

    assert names() == {"b"}
    two_brokers.clock.advance(29)
    assert names() == {"b"}
    two_brokers.clock.advance(2)
    assert names() == {"a", "b"}


def test_where_all_brokers_are_avoided_none_is(two_brokers: World) -> None:
    producer = make(two_brokers)
    for name in ("a", "b"):
        producer._attempts.availability.failed(name)
    # The one that it goes to has answered, and is avoided no longer.
    name = two_brokers.result(producer.send(Message("T", b"x"))).queue.broker_name
    assert producer._attempts.availability.avoided() == {"a", "b"} - {name}


def test_nothing_is_avoided_where_that_is_off(two_brokers: World) -> None:
    producer = make(two_brokers, avoid_slow_brokers=False)
    producer._attempts.availability.failed("a")
    names = {two_brokers.result(producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}
    assert names == {"a", "b"}


def test_a_failure_names_the_attempts_that_were_made_alone(two_brokers: World) -> None:
    two_brokers.faults.refuse[A, SEND] = SILENT
    error, took_s = end_of(two_brokers, make(two_brokers).send(Message("T", b"x"), queue=MessageQueue("T", "a", 0)))
    assert isinstance(error, SendFailed)
    assert [(name, addr, type(why)) for name, addr, why in error.attempts] == [("a", A, RequestTimedOut)]
    assert B not in str(error)
    assert 3.0 <= took_s <= 3.1


def test_a_time_that_is_given_includes_the_wait_for_a_turn(two_brokers: World) -> None:
    two_brokers.faults.refuse[None, SEND] = SILENT
    producer = make(two_brokers, sends_in_flight_max=1, send_timeout_s=30)
    two_brokers.run(producer.send(Message("T", b"first"))).addErrback(lambda failure: None)
    error, took_s = end_of(two_brokers, producer.send(Message("T", b"x"), timeout_s=0.5))
    assert isinstance(error, RequestTimedOut)
    assert 0.5 <= took_s <= 0.6
    assert producer.sends._in_flight._count == 1


def test_a_send_whose_turn_comes_when_its_time_is_over_says_so_and_sends_nothing(two_brokers: World) -> None:
    producer = make(two_brokers)
    two_brokers.result(producer.queues("T"))
    outgoing = prepare(Message("T", b"x"), ProducerOptions(), lambda: "U", 0)
    for late_s in (0.0, 1.0):
        until = two_brokers.clock.seconds() - late_s
        with pytest.raises(RequestTimedOut, match="the time of a send to topic T was over before it could be sent"):
            two_brokers.result(producer._attempts.send(outgoing, None, until))
    assert two_brokers.faults.asked(SEND) == []


def test_the_time_of_a_request_includes_that_of_its_connection(two_brokers: World) -> None:
    net = two_brokers.net()
    never: Any = SimpleNamespace(connect=lambda factory: Deferred())
    net._connector = lambda host, port: never
    error, took_s = end_of(two_brokers, net.invoke(A, RemotingCommand.request(BEAT), 700))
    assert isinstance(error, RequestTimedOut)
    assert 0.7 <= took_s <= 0.8


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION])
def test_a_broker_that_refuses_for_the_moment_is_left_out(two_brokers: World, code: int) -> None:
    producer = make(two_brokers)
    two_brokers.faults.refuse[A, SEND] = (code, "not now")
    for _ in range(20):
        assert two_brokers.result(producer.send(Message("T", b"x"))).queue.broker_name == "b"
    assert two_brokers.faults.asked_of(SEND).count(A) == 1
