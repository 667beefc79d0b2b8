"""Looking at the queues: what is waited for, and what is not."""

from collections.abc import Sequence

import pytest

from mqbroker.client.errors import Creates, NameServerUnreachable, TopicNotFound
from mqbroker.errors import MQError, Refused
from mqbroker.spark.errors import NotReadable
from mqbroker.spark.offsets import Bounds
from mqbroker.spark.reading import Expected, RetryDeadline, fetch_all_bounds, fetch_bounds
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


def test_a_trigger_asks_for_topics_and_a_start_for_each_queue() -> None:
    """So that a start is refused where the account has no right to a topic."""

    class Noting(FakeLog):
        def bounds_by_topic(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
            asked.append("topics")
            return super().bounds_by_topic(queues)

    asked: list[str] = []
    log, time = Noting(), FakeTime()
    log.add(A0, 5)
    assert fetch_bounds(log, ["orders"], deadline(time)).bounds == {A0: Bounds(0, 5)}
    assert asked == ["topics"]
    assert fetch_all_bounds(log, ["orders"], deadline(time), deadline(time)).bounds == {A0: Bounds(0, 5)}
    assert asked == ["topics"]


def test_a_broker_that_is_away_is_left_out() -> None:
    log = two_queues()
    log.down.add("a")
    seen = fetch_bounds(log, ["orders"], deadline(FakeTime()))
    assert (seen.queues, set(seen.bounds)) == ({A0, B0}, {B0})


def test_a_start_waits_for_all_brokers() -> None:
    log = two_queues()
    log.down.add("a")
    assert set(fetch_all_bounds(log, ["orders"], deadline(WakingTime(log)), deadline(FakeTime())).bounds) == {A0, B0}


def test_a_start_does_not_wait_for_ever() -> None:
    log = two_queues()
    log.down.add("a")
    time = FakeTime()
    with pytest.raises(NotReadable, match="queue 0 of topic orders on broker a does not answer"):
        fetch_all_bounds(log, ["orders"], deadline(time), deadline(time))
    assert 10 <= time.now() < 12


def test_a_start_does_not_wait_for_a_topic_that_is_not_there() -> None:
    time = FakeTime()
    with pytest.raises(TopicNotFound):
        fetch_all_bounds(two_queues(), ["orders", "bills"], deadline(time), deadline(time))
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


class Registering(FakeTime):
    """Registers broker b with the name server at second 5."""

    def __init__(self, log: FakeLog) -> None:
        super().__init__()
        self._log = log
        self._away = log.records.pop(B0)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.at >= 5:
            self._log.records[B0] = self._away


@pytest.mark.parametrize("expected", [Expected(frozenset({"b"})), Expected(queues=frozenset({B0}))])
def test_a_broker_that_the_name_server_forgot_is_waited_for_where_it_is_expected(expected: Expected) -> None:
    log = two_queues()
    time = Registering(log)
    seen = fetch_all_bounds(log, ["orders"], deadline(time), deadline(FakeTime()), expected)
    assert set(seen.bounds) == {A0, B0}
    log = two_queues()
    time = Registering(log)
    del log.records[A0]
    assert set(fetch_all_bounds(log, ["orders"], deadline(time), deadline(FakeTime()), expected).bounds) == {B0}


def test_an_expected_broker_that_stays_away_is_named_with_those_that_are_there() -> None:
    with pytest.raises(NotReadable, match="not registered with the name servers: c, d; these are: a, b"):
        fetch_all_bounds(
            two_queues(), ["orders"], deadline(FakeTime()), deadline(FakeTime()), Expected(frozenset({"a", "c", "d"}))
        )


def test_a_queue_that_its_broker_does_not_have_is_not_waited_for() -> None:
    time = FakeTime()
    expected = Expected(queues=frozenset({MessageQueue("orders", "a", 9)}))
    fetch_all_bounds(two_queues(), ["orders"], deadline(time), deadline(time), expected)
    assert time.now() == 0


def test_a_topic_is_waited_for_where_the_name_server_knows_no_broker() -> None:
    class Lone(FakeLog):
        def queues(self, topic: str) -> list[MessageQueue]:
            if time.now() < 5:
                raise TopicNotFound(topic, ["here:1"], "nor any broker", Creates.NO_BROKER)
            return super().queues(topic)

    log, time = Lone(), FakeTime()
    log.add(A0, 5)
    assert set(fetch_all_bounds(log, ["orders"], deadline(time), deadline(FakeTime())).bounds) == {A0}


def test_a_name_server_that_is_not_there_is_told_soon() -> None:
    class Nobody(FakeLog):
        def queues(self, topic: str) -> list[MessageQueue]:
            raise NameServerUnreachable([("here:1", "refused")])

    time = FakeTime()
    with pytest.raises(NameServerUnreachable):
        fetch_all_bounds(Nobody(), ["orders"], deadline(time), RetryDeadline(2.0, time.now, time.sleep))
    assert 2 <= time.now() < 3
