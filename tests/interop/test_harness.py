"""Java against Java: that the harness itself tells the truth, so that a failure elsewhere is a failure of ours."""

import pytest

from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.processes import ProcessFailed
from tests.interop.traffic import assert_dense, bodies, consumer, positions, produce, pull, stop_consumer

pytestmark = pytest.mark.usefixtures("java_broker")


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch", "selector"])
def test_every_mode_of_sending_is_read_back(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, topic: str, mode: str
) -> None:
    shared_fleet.peer("createtopic", java_namesrv, topic=topic, broker=java_broker.addr, queues=4).finish()
    sent = produce(shared_fleet, java_namesrv, topic, mode=mode, count=50)
    found = pull(shared_fleet, java_namesrv, topic, count=len(sent))
    assert bodies(found) == bodies(sent)
    assert_dense(found)
    if mode in ("sync", "async", "selector"):
        assert positions(found) == positions(sent)


def test_a_push_consumer_gets_all(shared_fleet: Fleet, java_namesrv: Namesrv, topic: str) -> None:
    sent = produce(shared_fleet, java_namesrv, topic, count=20)
    process = consumer(shared_fleet, java_namesrv, topic, "harness")
    process.wait_events("message", 20)
    assert bodies(stop_consumer(process)) == bodies(sent)


def test_a_client_that_fails_is_reported_with_its_output(shared_fleet: Fleet, java_namesrv: Namesrv) -> None:
    with pytest.raises(ProcessFailed, match="No topic route info"):
        shared_fleet.peer("pull", java_namesrv, topic="absent").finish()
