"""The members of a group, from several brokers."""

import asyncio
from random import Random
from typing import Any

import pytest

from mqbroker.client import PushOptions
from mqbroker.client.membership import BROKERS_ASKED_MAX, Membership
from mqbroker.client.routes import route_of
from mqbroker.errors import Refused, Unreachable
from mqbroker.wire.bodies import BrokerData, GetConsumerListByGroupResponseBody, QueueData, TopicRouteData
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.client.world import FixedIdentity


class Brokers:
    """A net on which each broker knows some members; None stands for a broker that is away."""

    def __init__(self, known: Any) -> None:
        self.known = known
        self.rng = Random(1)
        self.asked: list[Any] = []
        self.is_stale: list[Any] = []

    async def invoke(self, addr: Any, request: Any, timeout_ms: Any) -> Any:
        self.asked.append(addr)
        members = self.known[addr]
        if members is None:
            raise Unreachable(f"{addr} is away")
        if not members:
            return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, "no consumer for this group, g")
        return RemotingCommand.response(request, body=GetConsumerListByGroupResponseBody(members).to_json())

    async def get(self, topic: Any) -> Any:
        data = TopicRouteData(
            queue_datas=[QueueData(addr, 2, 2, 6) for addr in self.known],
            broker_datas=[BrokerData(addr, "c", {0: addr}) for addr in self.known],
        )
        return route_of(topic, data)

    def signal(self) -> None:
        pass

    def steady(self) -> float:
        return 0.0

    def mark_stale(self, topic: Any) -> None:
        self.is_stale.append(topic)


def member(brokers: Any, me: Any, **options: Any) -> Membership:
    async def revoked(queues: object) -> None:
        """Nothing is revoked here."""

    return Membership(
        brokers, brokers, FixedIdentity(me), "g", PushOptions(**options), lambda queues, is_shared: None, revoked
    )


def share(brokers: Any, me: Any = "A") -> Any:
    return asyncio.run(member(brokers, me).share("T"))


def test_who_any_broker_knows_is_a_member() -> None:
    brokers = Brokers({"old:1": ["A", "B"], "restarted:1": ["A"]})
    found = share(brokers)
    assert found.is_shared
    assert len(found.queues) == 2


def test_both_members_agree_while_a_broker_knows_half_of_them() -> None:
    shares = [share(Brokers({"old:1": ["A", "B"], "restarted:1": [me]}), me).queues for me in ("A", "B")]
    assert len(shares[0] | shares[1]) == 4
    assert not shares[0] & shares[1]


@pytest.mark.parametrize("other", [None, []])
def test_a_broker_that_cannot_say_does_not_matter_while_another_can(other: Any) -> None:
    brokers = Brokers({"a:1": other, "b:1": ["A", "B"]})
    assert len(share(brokers).queues) == 2
    assert brokers.is_stale == []


@pytest.mark.parametrize(("known", "error"), [({"a:1": None}, Unreachable), ({"a:1": []}, Refused)])
def test_nobody_who_can_say_is_an_error_and_doubts_the_route(known: Any, error: Any) -> None:
    brokers = Brokers(known)
    with pytest.raises(error):
        share(brokers)
    assert brokers.is_stale == ["T"]


def test_of_many_brokers_a_few_are_asked() -> None:
    brokers = Brokers({f"b{n}:1": ["A"] for n in range(20)})
    assert len(share(brokers).queues) == 40
    assert len(brokers.asked) == BROKERS_ASKED_MAX


def test_a_group_of_as_many_members_as_a_broker_has_clients() -> None:
    members = [f"10.0.0.1@{n:06}#{'x' * 40}" for n in range(100_000)]
    assert len(GetConsumerListByGroupResponseBody(members).to_json()) > 5_000_000
    # There are two queues: the first members have them.
    assert [len(share(Brokers({"a:1": members}), me).queues) for me in members[:3]] == [1, 1, 0]
