"""On which ports a broker listens."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.python.failure import Failure

from mqbroker.access.addresses import BadAddress
from mqbroker.broker.broker_service import BrokerService, make_broker
from mqbroker.config import TlsMode, TlsSettings
from mqbroker.wire.codes import RequestCode
from tests.broker.bench import make_settings
from tests.broker.service.running import Reactor, Running
from tests.remoting.logs import Logged


def test_the_vip_port_serves_the_same(make: Callable[..., Running], reactor: Reactor) -> None:
    running = make(vip_port_enable=True).start()
    assert [server[0] for server in reactor.tcpServers] == [10911, 10909, 10912]
    assert running.service.ports == {"remoting": 10911, "vip": 10909, "ha": 10912}
    assert reactor.tcpServers[0][1] is reactor.tcpServers[1][1]
    assert running.client().send()[0].code == 0
    running.stop()
    assert reactor.heard.count("port closed") == 3


def test_it_starts_without_a_vip_port_that_somebody_has(
    make: Callable[..., Running], reactor: Reactor, logged: Logged
) -> None:
    running = make(vip_port_enable=True)
    reactor.taken_ports = {10909}
    running.start()
    assert running.service.ports == {"remoting": 10911, "ha": 10912}
    assert "cannot listen on port 10909 in addition to 10911: [Errno 98] Address already in use" in logged.lines
    assert running.client().send()[0].code == 0


@pytest.mark.parametrize(("port", "vip"), [(0, None), (1, None), (2, None), (3, 1), (10911, 10909)])
def test_which_port_is_the_vip_port(tmp_path: Path, port: int, vip: int | None) -> None:
    settings = make_settings(tmp_path)
    assert attrs.evolve(settings, server=attrs.evolve(settings.server, listen_port=port)).vip_port == vip


def test_a_port_may_be_chosen_by_the_system(make: Callable[..., Running], reactor: Reactor) -> None:
    made = make_broker(make().settings, reactor, Random(1))
    assert isinstance(made, BrokerService)
    assert made.port == 0


def registered(reactor: Reactor) -> list[str]:
    """The addresses for slaves that were registered."""
    return [request.ext_fields["haServerAddr"] for request in reactor.registered]


def test_the_address_for_slaves_is_registered(make: Callable[..., Running], reactor: Reactor) -> None:
    make().start()
    assert registered(reactor) == ["10.0.0.1:10912"]


def test_a_port_for_slaves_that_somebody_has_is_not_registered(
    make: Callable[..., Running], reactor: Reactor, logged: Logged
) -> None:
    reactor.taken_ports = {10912}
    running = make().start()
    assert running.service.ports == {"remoting": 10911}
    assert registered(reactor) == [""]
    why = "Couldn't listen on any:10912: [Errno 98] Address already in use."
    assert f"no slave can connect: {why}; set another haListenPort" in logged.lines
    assert running.client().send()[0].code == 0


@pytest.mark.parametrize("white", ["", "10.0.0.2"])
def test_a_protected_broker_serves_the_slaves_that_its_settings_name(
    make: Callable[..., Running], reactor: Reactor, logged: Logged, white: str
) -> None:
    tls = TlsSettings(mode=TlsMode.ENFORCING)
    running = make(tls=tls, ha_white_remote_addresses=white).start()
    assert registered(reactor) == (["10.0.0.1:10912"] if white else [""])
    assert ("ha" in running.service.ports) == bool(white)
    assert any("no slave can connect" in line for line in logged.lines) != bool(white)
    if white:
        factory = reactor.tcpServers[-1][1]
        assert factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 1)) is None
        assert factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 1)) is not None


def test_bad_addresses_of_slaves_end_the_start(make: Callable[..., Running]) -> None:
    running = make(ha_white_remote_addresses="10.0.0.{")
    starting = running.service.startService()
    failures: list[Failure] = []
    starting.addErrback(failures.append)
    assert [type(failure.value) for failure in failures] == [BadAddress]


def test_a_slave_that_cannot_connect_is_told_of_once(
    make: Callable[..., Running], reactor: Reactor, logged: Logged
) -> None:
    reactor.taken_ports = {10912}
    client = make().start().client()
    for _ in range(3):
        client.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert len([line for line in logged.lines if line.startswith("the slave at 10.0.0.2 fetches tables")]) == 1


def test_a_slave_that_can_connect_is_not_told_of(make: Callable[..., Running], logged: Logged) -> None:
    make().start().client().ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert not [line for line in logged.lines if "fetches tables" in line]
