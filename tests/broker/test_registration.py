"""What name servers are told, and when. The client here records requests and answers them when told to."""

import pytest
from twisted.internet.defer import Deferred

from mqbroker.broker.registration import BrokerIdentity, Registration
from mqbroker.errors import Unreachable
from mqbroker.wire.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.codes import Perm, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.registration import QueueNumbers, body_crc32, decode_registration
from tests.broker.bench import make_settings

A, B = "10.0.0.8:9876", "10.0.0.9:9876"
IDENTITY = BrokerIdentity("10.0.0.1:10911", "broker-a", "DefaultCluster", 0, "10.0.0.1:10912")


class FakeClient:
    def __init__(self):
        self.requests = []

    def invoke_sync(self, address, command, timeout_ms):
        done = Deferred()
        self.requests.append((address, command, timeout_ms, done))
        return done

    def answer(self, code=0, address=None):
        """Answer all that wait, or those to `address`."""
        waiting = [r for r in self.requests if address in (None, r[0])]
        self.requests = [r for r in self.requests if r not in waiting]
        for _, command, _, done in waiting:
            done.callback(RemotingCommand.response(command, code, "no" if code else None))

    def fail(self, address=None):
        waiting = [r for r in self.requests if address in (None, r[0])]
        self.requests = [r for r in self.requests if r not in waiting]
        for _, _, _, done in waiting:
            done.errback(Unreachable("connection refused"))

    @property
    def told(self):
        return [(address, command.code) for address, command, _, _ in self.requests]


@pytest.fixture
def network():
    return FakeClient()


@pytest.fixture
def topics():
    return {"T": TopicConfig("T", 4, 4)}


@pytest.fixture
def make(network, topics, clock, tmp_path):
    def make(addresses=(A, B), **changes):
        settings = make_settings(tmp_path, **changes)
        wrapper = lambda: TopicConfigSerializeWrapper(dict(topics), DataVersion(7, 3))  # noqa: E731
        return Registration(network, addresses, IDENTITY, wrapper, settings, clock)

    return make


REGISTER = RequestCode.REGISTER_BROKER


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_told(make, network, compressed):
    make([A], compressed_register=compressed, register_broker_timeout_ms=1234).start()
    ((address, command, timeout_ms, _),) = network.requests
    assert (address, command.code, timeout_ms) == (A, REGISTER, 1234)
    assert command.ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
        "compressed": "true" if compressed else "false",
        "bodyCrc32": str(body_crc32(command.body)),
    }
    body = decode_registration(command.body, compressed=compressed)
    assert body.queues == {"T": QueueNumbers(4, 4, 6, 0)}
    assert body.data_version == DataVersion(7, 3)


def test_every_name_server_is_told_at_the_start(make, network):
    told = make().start()
    assert network.told == [(A, REGISTER), (B, REGISTER)]
    network.answer(address=A)
    assert not told.called
    network.fail(B)
    assert told.called


def test_it_is_told_again_each_period(make, network, clock):
    make(register_name_server_period_ms=30_000).start()
    network.answer()
    clock.advance(29)
    assert network.told == []
    clock.advance(1)
    assert network.told == [(A, REGISTER), (B, REGISTER)]


def test_changes_of_one_turn_are_told_together(make, network, clock, topics):
    registration = make([A])
    registration.start()
    network.answer()
    for n in range(5):
        topics[f"N{n}"] = TopicConfig(f"N{n}")
        registration.changed(f"N{n}")
    assert network.told == []
    clock.advance(0)
    ((_, command, _, _),) = network.requests
    body = decode_registration(command.body, compressed=False)
    assert set(body.queues) == {"T", "N0", "N1", "N2", "N3", "N4"}
    network.answer()
    clock.advance(0)
    assert network.told == []


def test_a_change_during_a_registration_is_told_after_it(make, network, clock, topics):
    registration = make([A])
    registration.start()
    topics["New"] = TopicConfig("New")
    registration.changed("New")
    clock.advance(0)
    assert len(network.requests) == 1
    network.answer()
    clock.advance(0)
    ((_, command, _, _),) = network.requests
    assert b'"New"' in command.body


def test_one_registration_at_a_time(make, network, clock):
    registration = make([A], register_name_server_period_ms=10_000)
    registration.start()
    network.answer()
    registration.changed("T")
    clock.advance(0)
    clock.advance(10)  # the period is over, and the one for the change is not answered yet
    assert len(network.requests) == 1
    network.answer()
    clock.advance(10)
    assert len(network.requests) == 1


def test_a_name_server_that_stays_away_is_one_line_and_its_return_another(make, network, clock, logged):
    make(register_name_server_period_ms=10_000).start()
    for _ in range(3):
        network.answer(address=A)
        network.fail(B)
        clock.advance(10)
    network.answer()
    assert logged.lines == [
        f"register broker to name server {A} OK",
        f"name server {B} is not told of this broker: connection refused",
        f"register broker to name server {B} OK",
    ]


def test_an_error_code_is_no_registration(make, network, logged):
    make([A]).start()
    network.answer(ResponseCode.SYSTEM_ERROR)
    assert logged.lines == [f"name server {A} is not told of this broker: code 1: no"]


def test_topics_have_at_most_the_permission_of_the_broker(make, network):
    make([A], broker_permission=Perm.READ).start()
    ((_, command, _, _),) = network.requests
    body = decode_registration(command.body, compressed=False)
    assert body.queues["T"].perm == Perm.READ


def test_goodbye(make, network, clock):
    registration = make()
    registration.start()
    network.answer()
    registration.changed("T")  # too late to be told
    gone = registration.stop()
    assert network.told == [(A, RequestCode.UNREGISTER_BROKER), (B, RequestCode.UNREGISTER_BROKER)]
    assert network.requests[0][1].ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    network.answer(address=A)
    assert not gone.called
    network.fail(B)
    assert gone.called
    clock.advance(100)
    assert network.told == []
    assert clock.getDelayedCalls() == []
