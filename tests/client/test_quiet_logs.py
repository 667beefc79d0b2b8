"""What a listener that fails, and a broker that is away, write into a program's log: the cause once, then counts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mqbroker.client.listeners import ListenerFailures
from mqbroker.client.messages import ReceivedMessage
from mqbroker.errors import Unreachable
from mqbroker.wire.codes import RequestCode
from tests.client.member import A, Member, Q
from tests.client.records import a_record
from tests.client.world import World


def failing(message: ReceivedMessage) -> None:
    raise ValueError(f"no stock for {message.body!r}")


@pytest.fixture(autouse=True)
def _warnings_and_above(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_a_listener_that_always_fails_has_one_traceback_a_minute_of_its_own_frames(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(200):
        one_queue.cluster.store(Q, b"%d" % n)
    member = Member(one_queue, name_server, listener=failing).start()
    one_queue.clock.pump([0.1] * 10)
    assert len(member.got) >= 200
    about = [record for record in caplog.records if "the listener" in record.getMessage()]
    assert len(about) == 1
    lines = caplog.text.splitlines()
    assert len(lines) < 20
    assert not any("mqbroker/client" in line for line in lines)
    assert "in failing" in caplog.text
    assert "ValueError: no stock for b'0'" in caplog.text
    one_queue.result(member.core.close())


def test_failures_are_counted_by_kind_and_told_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = [0.0]
    failures = ListenerFailures("shop.take", lambda: times[0])
    message = ReceivedMessage.of_record(a_record(), "a")

    def fail(kind: type[Exception]) -> None:
        try:
            raise kind("x")
        except Exception as error:
            failures.log(error, message)

    for _ in range(3):
        fail(ValueError)
        fail(KeyError)  # another kind has a traceback of its own
    assert len(caplog.records) == 2
    for round_ in (1, 2):
        times[0] += 60.0
        caplog.clear()
        for _ in range(3):
            fail(ValueError)
        (record,) = caplog.records
        assert "(and on 2 others in the same way since the last such line)" in record.getMessage(), round_


def test_kinds_of_failures_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    failures = ListenerFailures("shop.take", lambda: 0.0)
    message = ReceivedMessage.of_record(a_record(), "a")
    for n in range(1000):
        failures.log(type(f"Error{n}", (Exception,), {})("x"), message)
    assert len(failures._kinds) <= 64


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "trying it and the other queues" in record.getMessage()]


def test_a_broker_that_is_away_is_one_line_for_all_of_its_queues(
    world: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.add_topic("T", queues=16)
    world.cluster.add_topic("%RETRY%g", queues=1)
    member = Member(world, name_server, pull_error_pause_s=0.5).start()
    assert len(member.core.assigned) == 34
    for number in range(1, 4):  # it is away again, and said again
        caplog.clear()
        world.faults.down.add(A)
        world.faults.cut(A)
        world.clock.pump([0.25] * 8)
        kinds = {line.split(": ")[1].split(" ")[0] for line in warned(caplog)}
        assert 1 <= len(warned(caplog)) == len(kinds) <= 2, (number, warned(caplog))
        world.faults.down.clear()
        world.clock.pump([0.25] * 8)
        world.cluster.store(Q, b"%d" % number)  # one of its pulls is answered
        world.clock.pump([0.25] * 4)
    world.result(member.core.close())


def test_what_a_route_is_kept_for_has_no_advice_to_create_its_topic(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(one_queue, name_server).start()
    one_queue.faults.refuse[None, RequestCode.GET_ROUTEINFO_BY_TOPIC] = (17, "No topic route info")
    one_queue.clock.pump([1.0] * 31)
    lines = [record.getMessage() for record in caplog.records]
    why = f"No route info of this topic: T, asked {name_server}: they do not know it"
    assert [line for line in lines if "route of T" in line] == [f"keeping the former route of T: {why}"]
    one_queue.faults.refuse.clear()
    one_queue.result(member.core.close())


def test_an_error_that_is_no_refusal_is_logged_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    from mqbroker.client.assigned_queues import PullFailures

    failures = PullFailures()
    error: Any = ZeroDivisionError("bug")
    for _ in range(3):
        failures.log(Q, error, 1.0)
    failures.log(Q, Unreachable("away"), 1.0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    failures.worked(Q)
    assert failures._failing == {}
