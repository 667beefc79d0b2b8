"""Addresses under which brokers are registered, as the unmodified Java clients dial them."""

import socket

import pytest

from tests.interop.fleet import Fleet, Place
from tests.interop.traffic import bodies, consumer, produce, pull, stop_consumer


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize("written", ["[::1]", "::1"])
def test_java_clients_dial_an_ipv6_address(fleet: Fleet, topic: str, written: str) -> None:
    """They send, pull, and are told of messages by the broker, whose address is registered in brackets."""
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("ours", namesrv, place=Place("[::1]"), bindAddress="::1", brokerIP1=written, brokerIP2="::1")
    fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=2).finish()
    sent = produce(fleet, namesrv, topic, count=20)
    assert bodies(pull(fleet, namesrv, topic, count=len(sent))) == bodies(sent)
    reading = consumer(fleet, namesrv, topic, "readers")
    reading.wait_events("message", len(sent))
    assert bodies(stop_consumer(reading)) == bodies(sent)
