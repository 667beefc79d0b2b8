"""Brokers and name servers of another environment that are lost and come back: each time is as the first one."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from mqbroker.errors import Unreachable
from mqbroker.namesrv.route_requests import ProductEnvironment
from mqbroker.wire.bodies import TopicRouteData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.namesrv.conftest import System
from tests.namesrv.test_every_request import BROKER, register, route
from tests.remoting.logs import log_kept

ROUNDS = range(1, 4)


@pytest.mark.parametrize("way", ["closed", "unregistered", "silent"])
def test_a_broker_that_is_lost_again_leaves_the_routes_again_and_comes_back(system: System, way: str) -> None:
    staying, client = system.connect(), system.connect()
    register(staying, "T", brokerName="broker-b", brokerAddr="10.0.0.9:10911")

    def addresses() -> list[str]:
        found = json.loads(route(client, "T", acceptStandardJsonOnly="true").body)["brokerDatas"]
        return sorted(address for data in found for address in data["brokerAddrs"].values())

    for number in ROUNDS:
        broker, addr = system.connect(), f"10.0.0.1:{10_000 + number % 2}"  # where it was before, and another
        register(broker, "T", "U", brokerAddr=addr)
        assert addresses() == sorted(["10.0.0.9:10911", addr])
        assert route(client, "U").code == ResponseCode.SUCCESS
        for _ in range(10 if way == "silent" else 1):
            system.reactor.advance(10)
            register(staying, "T", brokerName="broker-b", brokerAddr="10.0.0.9:10911")
            assert route(client, "U").code == ResponseCode.SUCCESS
        if way == "closed":
            broker.close()
        elif way == "unregistered":
            broker.ask(RequestCode.UNREGISTER_BROKER, **{**BROKER, "brokerAddr": addr})
        for _ in range(3 if way == "silent" else 0):
            register(staying, "T", brokerName="broker-b", brokerAddr="10.0.0.9:10911")
            system.reactor.advance(10)
            client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert addresses() == ["10.0.0.9:10911"]
        assert route(client, "U").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_slave_that_comes_and_goes_again_is_in_routes_while_it_is_there(system: System) -> None:
    master, client = system.connect(), system.connect()
    register(master, "T")
    before = route(client, "T").body
    for number in ROUNDS:
        slave = system.connect()
        register(slave, brokerAddr=f"10.0.0.2:{number}", brokerId=1)
        assert f"10.0.0.2:{number}".encode() in route(client, "T").body
        slave.close()
        assert route(client, "T").body == before


def test_a_name_server_of_the_environment_that_is_silent_again_has_a_line_again() -> None:
    silent: set[str] = set()

    class Client:
        def invoke_async(self, address: str, request: RemotingCommand, _: int) -> Deferred[RemotingCommand]:
            if address in silent:
                return fail(Unreachable(f"connect to {address} failed"))
            return succeed(RemotingCommand.response(request, body=TopicRouteData().to_json()))

    environment = ProductEnvironment(cast(Any, Client()), ["a:1", "b:1"], "center")
    with log_kept() as logged:
        for number in ROUNDS:
            silent |= {"a:1", "b:1"}
            for _ in range(3):
                assert result(environment) is None
            silent.discard("b:1")
            for _ in range(3):
                assert result(environment) == TopicRouteData()
            silent.clear()
            assert result(environment) == TopicRouteData()
            for address in ("a:1", "b:1"):
                lines = [line for line in logged.lines if f"connect to {address} failed" in line]
                assert len(lines) == number


def result(environment: ProductEnvironment) -> TopicRouteData | None:
    found: list[TopicRouteData | None] = []
    Deferred.fromCoroutine(environment.route("T")).addCallback(found.append)
    return found[0]
