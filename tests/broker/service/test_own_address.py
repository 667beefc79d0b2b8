"""What a broker tells others of its own address: brokerIP1 and brokerIP2 as names, and as IPv6 addresses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv6Address
from twisted.python.failure import Failure

from mqbroker.broker.ports import own_address
from mqbroker.errors import MQError
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.record import decode_records
from tests.broker.bench import make_settings
from tests.broker.service.running import Reactor, Running
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged

NAMES = {"broker-0": "10.0.0.7", "localhost": "127.0.0.1", "six": "2001:db8::7"}


@pytest.fixture
def start(make: Callable[..., Running]) -> Callable[..., Running]:
    """Start a broker with these names."""

    def start(ip1: str, ip2: str, **more: Any) -> Running:
        running = make(resolve=NAMES.__getitem__, **more)
        running.service.settings = attrs.evolve(running.settings, broker_ip1=ip1, broker_ip2=ip2)
        return running.start()

    return start


def sent_ids(running: Running) -> tuple[str, str]:
    """The addresses in the id of a sent message, and in its record."""
    client = running.client()
    answer = client.send()[0]
    assert answer.code == 0, answer.remark
    host, _ = parse_offset_message_id(answer.ext_fields["msgId"])
    [record] = decode_records(client.pull("T", queue_id=0).body)
    return host[0], record.store_host[0]


@pytest.mark.parametrize(
    ("ip1", "ip2", "broker", "ha", "stored"),
    [
        ("10.0.0.1", "10.0.0.2", "10.0.0.1:10911", "10.0.0.2:10912", "10.0.0.1"),
        ("broker-0", "broker-0", "broker-0:10911", "broker-0:10912", "10.0.0.7"),
        ("localhost", "10.0.0.2", "localhost:10911", "10.0.0.2:10912", "127.0.0.1"),
        ("::1", "2001:db8::1", "[::1]:10911", "[2001:db8::1]:10912", "::1"),
        ("six", "six", "six:10911", "six:10912", "2001:db8::7"),
    ],
)
def test_a_name_stays_in_routes_and_its_address_is_in_messages(
    start: Callable[..., Running], reactor: Reactor, ip1: str, ip2: str, broker: str, ha: str, stored: str
) -> None:
    running = start(ip1, ip2)
    [registered] = reactor.registered
    assert (registered.ext_fields["brokerAddr"], registered.ext_fields["haServerAddr"]) == (broker, ha)
    assert sent_ids(running) == (stored, stored)


def test_where_a_name_leads_is_told(start: Callable[..., Running], logged: Logged) -> None:
    start("broker-0", "broker-0")
    told = "brokerIP1=broker-0 is 10.0.0.7 here: clients connect to that name, and by the ids of messages to 10.0.0.7"
    assert told in logged.lines


def test_nothing_is_told_of_an_address(start: Callable[..., Running], logged: Logged) -> None:
    start("10.0.0.1", "10.0.0.1")
    assert not any("brokerIP1" in line for line in logged.lines)


def test_a_name_without_an_address_ends_the_start(make: Callable[..., Running], root: Path) -> None:
    running = make()
    running.service.settings = attrs.evolve(running.settings, broker_ip1="nowhere")
    failures: list[Failure] = []
    running.service.startService().addErrback(failures.append)
    assert [str(failure.value) for failure in failures] == [
        "brokerIP1: no address of 'nowhere' is known to this machine: Name or service not known; set it to a name that "
        "can be resolved, or to an address"
    ]
    assert not root.exists()


def test_no_connection_is_served_while_a_name_is_asked_about(make: Callable[..., Running], reactor: Reactor) -> None:
    worker = SteppedWorker(at_once=False)
    running = make(resolve=NAMES.__getitem__, worker=worker)
    running.service.settings = attrs.evolve(running.settings, broker_ip1="broker-0")
    starting = running.service.startService()
    assert reactor.heard == ["pause"]
    assert not starting.called
    worker.at_once = True
    worker.work()
    running.turn()
    assert "resume" in reactor.heard


def test_a_broker_is_stopped_while_a_name_is_asked_about(make: Callable[..., Running]) -> None:
    worker = SteppedWorker(at_once=False)
    running = make(resolve=NAMES.__getitem__, worker=worker)
    running.service.settings = attrs.evolve(running.settings, broker_ip1="broker-0")
    running.service.startService()
    worker.at_once = True
    done = running.stop()
    worker.work()
    running.turn()
    assert done.called


def test_a_name_with_no_address_but_one_of_ipv6_needs_an_ipv6_port(tmp_path: Path) -> None:
    settings = attrs.evolve(make_settings(tmp_path), broker_ip1="six")
    assert "serves no IPv6; set bindAddress=::" in own_address(settings, NAMES.__getitem__)[1]
    both = attrs.evolve(settings, server=attrs.evolve(settings.server, bind_address="::"))
    assert "serves no IPv6" not in own_address(both, NAMES.__getitem__)[1]


@pytest.mark.parametrize("error", [OSError(1, "no"), UnicodeError("label too long")])
def test_any_failure_to_resolve_is_an_error_with_advice(tmp_path: Path, error: Exception) -> None:
    def resolve(name: str) -> str:
        raise error

    with pytest.raises(MQError, match="set it to a name that can be resolved, or to an address"):
        own_address(attrs.evolve(make_settings(tmp_path), broker_ip1="x"), resolve)


def test_a_slave_over_ipv4_on_a_port_for_both_is_known_by_its_ipv4_address(
    make: Callable[..., Running], reactor: Reactor
) -> None:
    make(ha_white_remote_addresses="10.0.0.2").start()
    factory = reactor.tcpServers[-1][1]
    assert factory.buildProtocol(IPv6Address("TCP", "::ffff:10.0.0.3", 1)) is None
    assert factory.buildProtocol(IPv6Address("TCP", "::ffff:10.0.0.2", 1)) is not None
