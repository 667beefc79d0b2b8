"""Looking at the queues: what is waited for, and what is not."""

from collections.abc import Sequence

import pytest

from mqbroker.client.errors import TopicNotFound
from mqbroker.errors import MQError, Refused
from mqbroker.spark.errors import NotReadable
from mqbroker.spark.offsets import Bounds
from mqbroker.spark.reading import RetryDeadline, fetch_all_bounds, fetch_bounds
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog, FakeTime

A0, B0 = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)


def two_queues() -> FakeLog:
    log = FakeLog()
    log.add(A0, 5)
    log.add(B0, 7)
    log.first[B0] = 2
    return log


class WakingTime(FakeTime):
    """Brings all brokers back at second 5."""

    def __init__(self, log: FakeLog) -> None:
        super().__init__()
        self._log = log

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.at >= 5:
            self._log.down.clear()


def deadline(time: FakeTime) -> RetryDeadline:
    return RetryDeadline(10.0, time.now, time.sleep)


def test_all_queues_and_their_bounds() -> None:
    seen = fetch_bounds(two_queues(), ["orders"], deadline(FakeTime()))
    assert seen.queues == {A0, B0}
    assert seen.bounds == {A0: Bounds(0, 5), B0: Bounds(2, 7)}


def test_a_broker_that_is_away_is_left_out() -> None:
    log = two_queues()
    log.down.add("a")
    seen = fetch_bounds(log, ["orders"], deadline(FakeTime()))
    assert (seen.queues, set(seen.bounds)) == ({A0, B0}, {B0})


def test_a_start_waits_for_all_brokers() -> None:
    log = two_queues()
    log.down.add("a")
    assert set(fetch_all_bounds(log, ["orders"], deadline(WakingTime(log))).bounds) == {A0, B0}


def test_a_start_does_not_wait_for_ever() -> None:
    log = two_queues()
    log.down.add("a")
    time = FakeTime()
    with pytest.raises(NotReadable, match="queue 0 of topic orders on broker a does not answer"):
        fetch_all_bounds(log, ["orders"], deadline(time))
    assert 10 <= time.now() < 12


def test_a_start_does_not_wait_for_a_topic_that_is_not_there() -> None:
    time = FakeTime()
    with pytest.raises(TopicNotFound):
        fetch_all_bounds(two_queues(), ["orders", "bills"], deadline(time))
    assert time.now() == 0


def test_a_stream_under_way_waits_for_its_topic() -> None:
    time = FakeTime()
    with pytest.raises(TopicNotFound):
        fetch_bounds(two_queues(), ["orders", "bills"], deadline(time))
    assert 10 <= time.now() < 12


def test_an_error_that_waiting_cannot_help_is_raised() -> None:
    class Broken(FakeLog):
        def queues(self, topic: str) -> list[MessageQueue]:
            raise MQError("broken")

    class BrokenBounds(FakeLog):
        def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
            return [MQError("broken")]

    class Guarded(FakeLog):
        def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
            return [Refused(1, "AclException: this account is broken")]

    time = FakeTime()
    for broken in (Broken(), BrokenBounds(), Guarded()):
        broken.add(A0, 5)
        with pytest.raises(MQError, match="broken"):
            fetch_bounds(broken, ["orders"], deadline(time))
    assert time.now() == 0
