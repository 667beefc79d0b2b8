"""The name server as a whole, on a fake clock: expiry, closed connections, its file, stopping."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.config import TlsSettings
from mqbroker.daemons import namesrv as daemon
from mqbroker.errors import StoreDamaged
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.namesrv.conftest import Peer, System
from tests.namesrv.test_every_request import register, route
from tests.remoting.certificates import Authority
from tests.remoting.logs import log_kept


def test_a_closed_connection_takes_its_broker_out(system: System) -> None:
    broker, client = system.connect(), system.connect()
    register(broker, "T")
    broker.close()
    assert route(client, "T").code == ResponseCode.TOPIC_NOT_EXIST


def test_another_connection_takes_nothing_out(system: System) -> None:
    former, broker, client = system.connect(), system.connect(), system.connect()
    register(former, "T")
    register(broker, "T")
    former.close()
    assert route(client, "T").code == ResponseCode.SUCCESS


def test_a_silent_broker_is_taken_out_after_two_minutes(system: System) -> None:
    broker, client = system.connect(), system.connect()
    register(broker, "T")
    for _ in range(12):
        system.reactor.advance(10)
        # Its connection carries other things: only registering counts.
        broker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert route(client, "T").code == ResponseCode.SUCCESS
    system.reactor.advance(10)
    assert route(client, "T").code == ResponseCode.TOPIC_NOT_EXIST
    assert not broker.aborted


def test_a_clock_set_forward_takes_no_broker_out_and_closes_no_connection(
    start_system: Callable[..., System],
) -> None:
    passed = [5.0]
    system = start_system(steady=lambda: passed[0])
    broker, client = system.connect(), system.connect()
    for _ in range(2):
        register(broker, "T")
        system.reactor.advance(3600)
        for _ in range(11):
            passed[0] += 10
            system.reactor.advance(10)
            assert route(client, "T").code == ResponseCode.SUCCESS
        assert not broker.aborted
    passed[0] += 20
    system.reactor.advance(10)
    assert route(client, "T").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_silent_broker_leaves_the_others_of_its_connection(system: System) -> None:
    shared, client = system.connect(), system.connect()
    for _ in range(2):
        register(shared, "Silent", brokerName="broker-b", brokerAddr="127.0.0.1:2")
        for _ in range(5):
            register(shared, "T")
            system.reactor.advance(30)
            client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert not shared.aborted
        assert route(client, "Silent").code == ResponseCode.TOPIC_NOT_EXIST
        assert route(client, "T").code == ResponseCode.SUCCESS


def test_an_idle_connection_is_closed(system: System) -> None:
    broker, client = system.connect(), system.connect()
    register(broker, "T")
    for _ in range(12):
        system.reactor.advance(10)
        client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert broker.aborted
    assert not client.aborted


def put(peer: Peer, value: str) -> RemotingCommand:
    return peer.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value=value)


def test_the_file_is_read_again(start_system: Callable[..., System]) -> None:
    first = start_system()
    put(first.connect(), "v")
    with open(first.settings.kv_config_path, "rb") as file:
        assert json.loads(file.read()) == {"configTable": {"N": {"k": "v"}}}
    second = start_system()
    assert second.connect().ask(RequestCode.GET_KV_CONFIG, namespace="N", key="k").ext_fields == {"value": "v"}


def test_a_file_that_cannot_be_written_fails_the_request(start_system: Callable[..., System], tmp_path: Path) -> None:
    system = start_system(kv_config_path=str(tmp_path / "file" / "kvConfig.json"))
    (tmp_path / "file").write_text("this is no directory")
    answer = put(system.connect(), "v")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the key-value configuration could not be written to the disk"


def test_a_damaged_file_is_not_passed_over(start_system: Callable[..., System], tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("[]")
    with pytest.raises(StoreDamaged, match="is damaged at byte 0"):
        start_system(kv_config_path=str(path))


def test_it_listens_where_it_is_told(system: System) -> None:
    port, _, backlog, interface = system.reactor.tcpServers[0]
    assert (port, backlog, interface) == (9876, 1024, "127.0.0.1")
    assert system.service.ports == {"remoting": 9876}


def test_stopping_closes_its_connections(system: System) -> None:
    peer = system.connect()
    stopped = system.service.stopService()
    assert peer.aborted
    assert not stopped.called
    peer.close()
    assert stopped.called


def test_certificates_are_looked_at_when_settings_are_read_anew(
    start_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    tls = TlsSettings(test_mode=False, server_cert_path=cert, server_key_path=key)
    system = start_system(tls=tls)
    monkeypatch.setattr("mqbroker.namesrv.namesrv_service.make_namesrv", lambda settings, reactor, **_: system.service)
    served = daemon.serve(system.settings, system.reactor)
    assert served.adopt is not None
    with log_kept() as logged:
        later = served.adopt(system.settings)
        authority.issue("server")
        served.adopt(system.settings)
    assert [line for line in logged.lines if "reloaded" in line] == [f"the certificate was reloaded from {cert}"]
    assert later == []
