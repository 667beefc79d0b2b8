"""A name server for cluster tests: what it does not have, it asks of production's name servers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.errors import Unreachable
from mqbroker.namesrv import namesrv_service, route_requests
from mqbroker.wire.bodies import BrokerData, QueueData, TopicRouteData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.namesrv.conftest import Peer, System
from tests.namesrv.test_every_request import put_order, register, route

A, B = "10.0.0.8:9876", "10.0.0.9:9876"
THERE = TopicRouteData(None, [QueueData("far", 4, 4, 6)], [BrokerData("far", "P", {0: "f:1"})])


class FakeClient:
    """Keeps what is asked until the test answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asked: list[Any] = []
        self.closed = False

    def invoke_async(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[Any]:
        done = Deferred[Any]()
        self.asked.append((address, command, timeout_ms, done))
        return done

    def close(self) -> Deferred[Any]:
        self.closed = True
        done = Deferred[Any]()
        done.callback(None)
        return done

    def answer(self, code: int = ResponseCode.SUCCESS, body: bytes = b"") -> None:
        _, command, _, done = self.asked.pop(0)
        done.callback(RemotingCommand.response(command, code, body=body))

    def fail(self) -> None:
        self.asked.pop(0)[3].errback(Unreachable("connection refused"))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr(namesrv_service, "RemotingClient", lambda *args, **kwargs: client)
    return client


@pytest.fixture
def peer(client: FakeClient, start_system: Callable[..., System]) -> Peer:
    return start_system(cluster_test=True, namesrv_addr=(A, B)).connect()


def begin(peer: Peer, topic: str, version: int = 407, **more: str) -> list[RemotingCommand]:
    request = RemotingCommand(105, {"topic": topic, **more}, opaque=9, version=version)
    return peer.send(encode_command(request))


def test_what_is_here_is_not_asked_for(peer: Peer, client: FakeClient) -> None:
    put_order(peer)
    register(peer, "T")
    # Order is told of though orderMessageEnable is off.
    assert json.loads(route(peer, "T").body)["orderTopicConf"] == "broker-a:4"
    assert client.asked == []


@pytest.mark.parametrize(("version", "addrs"), [(407, b'{"0":"f:1"}'), (400, b'{0:"f:1"}')])
def test_what_is_not_here_is_asked_for(peer: Peer, client: FakeClient, version: int, addrs: bytes) -> None:
    assert begin(peer, "Far", version) == []
    ((address, command, timeout_ms, _),) = client.asked
    assert (address, command.code, command.ext_fields["topic"], timeout_ms) == (A, 105, "Far", 5000)
    client.answer(body=THERE.to_json())
    (answer,) = peer.received()
    assert (answer.opaque, answer.code) == (9, ResponseCode.SUCCESS)
    assert addrs in answer.body


def test_the_next_is_asked_where_one_is_away(peer: Peer, client: FakeClient) -> None:
    begin(peer, "Far")
    client.fail()
    assert client.asked[0][0] == B
    client.answer(body=THERE.to_json())
    assert peer.received()[0].code == ResponseCode.SUCCESS


def nobody(client: FakeClient) -> None:
    client.fail()
    client.fail()


@pytest.mark.parametrize(
    "happens",
    [
        nobody,
        lambda client: client.answer(ResponseCode.TOPIC_NOT_EXIST),
        lambda client: client.answer(ResponseCode.SYSTEM_BUSY),
        lambda client: client.answer(body=b"{"),
        lambda client: client.answer(body=b'{"queueDatas":7}'),
    ],
)
def test_what_is_not_there_either_has_no_route(peer: Peer, client: FakeClient, happens: Callable[..., Any]) -> None:
    begin(peer, "Far")
    happens(client)
    (answer,) = peer.received()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("No topic route info in name server for the topic: Far")


def test_name_servers_that_name_each_other_do_not_ask_in_a_circle(peer: Peer, client: FakeClient) -> None:
    begin(peer, "Far")
    passed_on = client.asked[0][1].ext_fields
    (answer,) = begin(peer, **passed_on)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_questions_are_bounded(peer: Peer, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_requests, "ASKED_MAX", 2)
    begin(peer, "One")
    begin(peer, "Two")
    assert begin(peer, "Three")[0].code == ResponseCode.SYSTEM_BUSY
    client.fail()
    client.asked.pop()[3].callback(RemotingCommand(0, body=THERE.to_json()))
    assert begin(peer, "Three") == []


def test_the_connections_close_with_it(start_system: Callable[..., System], client: FakeClient) -> None:
    start_system(cluster_test=True, namesrv_addr=(A,)).service.stopService()
    assert client.closed


def test_other_requests_are_answered_as_ever(peer: Peer) -> None:
    assert peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
