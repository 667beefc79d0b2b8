"""Our broker under the Java name server, a Java broker under ours, and both kinds of broker in one cluster."""

from collections import Counter

import attrs
import pytest

from tests.interop.fleet import Broker, Fleet, Kind
from tests.interop.processes import eventually
from tests.interop.traffic import bodies, consumer, produce, pull, stop_consumer

MIXED: list[tuple[Kind, Kind]] = [("java", "ours"), ("ours", "java")]


@pytest.mark.parametrize(("namesrv_kind", "broker_kind"), MIXED)
def test_a_broker_under_the_other_name_server(fleet: Fleet, topic: str, namesrv_kind: Kind, broker_kind: Kind) -> None:
    namesrv = fleet.namesrv(namesrv_kind)
    broker = fleet.broker(broker_kind, namesrv)
    # A change of topics is registered at once, not only after 30 s.
    fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=3).finish()
    sent = produce(fleet, namesrv, topic, count=30)
    assert {event["queueId"] for event in sent} == {0, 1, 2}
    process = consumer(fleet, namesrv, topic, "mixed")
    process.wait_events("message", 30)
    assert bodies(stop_consumer(process)) == bodies(sent)

    def route() -> str:
        return fleet.mqadmin("topicRoute", "-n", namesrv.addr, "-t", topic)

    assert broker.name in route()
    broker.process.stop()
    # It leaves the routes when it stops; nobody waits 120 s for that.
    eventually("the route is gone", lambda: broker.name not in route(), patience_s=20)


@pytest.mark.parametrize("namesrv_kind", ["java", "ours"])
def test_both_kinds_of_broker_in_one_cluster(fleet: Fleet, topic: str, namesrv_kind: Kind) -> None:
    namesrv = fleet.namesrv(namesrv_kind)
    brokers = [fleet.broker(kind, namesrv) for kind in ("java", "ours")]
    for broker in brokers:
        fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=2).finish()
    sent = produce(fleet, namesrv, topic, count=40)
    assert {event["broker"] for event in sent} == {broker.name for broker in brokers}
    assert bodies(pull(fleet, namesrv, topic, count=len(sent))) == bodies(sent)

    one = consumer(fleet, namesrv, topic, "both", instance="one")
    one.wait_events("message", 40)
    brokers[0].process.kill()
    # The producer tries the other broker by itself.
    later = produce(fleet, namesrv, topic, prefix="later", count=10)
    assert {event["broker"] for event in later} == {brokers[1].name}
    one.wait_events("message", 50)
    assert bodies(stop_consumer(one)) == bodies(sent) + bodies(later)


def test_a_broker_registers_with_every_name_server(fleet: Fleet, topic: str) -> None:
    java, ours = fleet.namesrv("java"), fleet.namesrv("ours")
    fleet.broker("ours", java, namesrvAddr=f"{java.addr};{ours.addr}")
    sent = produce(fleet, java, topic, count=10)
    assert bodies(pull(fleet, ours, topic, count=10)) == bodies(sent)


def test_traffic_goes_on_while_brokers_and_name_servers_restart(quick_fleet: Fleet, topic: str) -> None:
    """Two of each, one of each Java's: whatever is acknowledged arrives, and nobody helps the clients."""
    fleet = quick_fleet
    namesrvs = [fleet.namesrv(kind) for kind in ("java", "ours")]
    both = attrs.evolve(namesrvs[0], addr=";".join(namesrv.addr for namesrv in namesrvs))
    brokers = [fleet.broker(kind, both, registerNameServerPeriod="10000") for kind in ("java", "ours")]
    for broker in brokers:
        fleet.peer("createtopic", both, topic=topic, broker=broker.addr, queues=2).finish()
    taking = consumer(fleet, both, topic, "restarts", instance="restarts", poll_ms=1000)
    sending = fleet.peer(
        "produce", both, topic=topic, count=10**6, interval_ms=10, timeout_ms=3000, instance="restarts", poll_ms=1000
    )

    def wait_sent(*to: Broker) -> None:
        """Wait for some more messages to each of these, sent from now on."""
        before = len(sending.events("sent"))
        names = {broker.name for broker in to}

        def holds(_: list[str]) -> bool:
            counts = Counter(event["broker"] for event in sending.events("sent")[before:])
            return all(counts[name] >= 20 for name in names)

        sending.wait_until(f"20 more messages to each of {names}", holds)

    wait_sent(*brokers)
    for namesrv, broker in zip(namesrvs, brokers, strict=True):
        namesrv.process.kill()
        wait_sent(*brokers)
        fleet.restart_namesrv(namesrv)
        broker.process.kill()
        wait_sent(*(other for other in brokers if other is not broker))
        fleet.restart(broker)
        wait_sent(*brokers)
    sending.close_stdin()
    sending.finish()
    sent = bodies(sending.events("sent"))
    taking.wait_until("all that was acknowledged", lambda _: not sent - bodies(taking.events("message")))
    stop_consumer(taking)
