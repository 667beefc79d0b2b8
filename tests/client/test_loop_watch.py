"""A member whose event loop did not run: it says so, and hands out and commits nothing that others may have taken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mqbroker.wire.codes import RequestCode
from tests.client.member import Member, Q
from tests.client.world import World


def blocked(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "did not run for" in record.getMessage()]


def block(world: World, seconds: float) -> None:
    """Let time pass without a turn of the loop."""
    world.cluster.reactor.rightNow += seconds


class Blocking:
    """Messages 0 to 7 of a queue; the listener blocks the loop with the first, while `meanwhile` happens elsewhere."""

    def __init__(self, world: World, name_server: str, seconds: float, meanwhile: Any = None) -> None:
        self.world = world
        for n in range(8):
            world.cluster.store(Q, b"%d" % n)

        def listener(message: Any) -> None:
            if message.body == b"0" and len(self.member.got) == 1:
                block(world, seconds)
                if meanwhile:
                    meanwhile()

        self.member = Member(world, name_server, listener=listener, concurrency=1)
        self.member.start()
        world.clock.pump([0.5] * 12)

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(body) for body in self.member.bodies]


def test_a_loop_that_a_listener_blocks_is_told_once_with_its_name(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocking = Blocking(one_queue, name_server, 30.0)
    (line,) = blocked(caplog)
    assert re.search(r"did not run for (29|30) s: group g sent no heartbeat", line)
    assert "Member.listen" in line
    assert blocking.bodies == [b"%d" % n for n in range(8)]
    block(one_queue, 10)
    one_queue.clock.pump([0.5] * 4)
    assert len(blocked(caplog)) == 1, "once a minute"
    one_queue.result(blocking.member.core.close())


def test_a_member_that_was_away_takes_its_queues_anew_before_it_hands_out_what_it_held(
    one_queue: World, name_server: str
) -> None:
    def another_member_consumes() -> None:
        one_queue.cluster.offsets["g", Q] = 6

    blocking = Blocking(one_queue, name_server, 140.0, another_member_consumes)
    # The first is what the listener was blocked with; the others up to the sixth went to the other member.
    assert blocking.bodies == [b"0", b"6", b"7"]
    one_queue.clock.pump([1.0] * 6)
    assert one_queue.cluster.offsets["g", Q] == 8
    one_queue.result(blocking.member.core.close())


@pytest.mark.parametrize("seconds", [60.0, 79.0])
def test_a_member_that_was_blocked_for_less_keeps_what_it_holds(
    one_queue: World, name_server: str, seconds: float
) -> None:
    blocking = Blocking(one_queue, name_server, seconds)
    assert blocking.bodies == [b"%d" % n for n in range(8)]
    one_queue.result(blocking.member.core.close())


def test_an_idle_member_that_was_away_joins_again_each_time(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    for number in range(1, 4):
        before = len(one_queue.faults.asked(RequestCode.HEART_BEAT))
        block(one_queue, 200)
        one_queue.clock.pump([0.5] * 6)
        assert len(one_queue.faults.asked(RequestCode.HEART_BEAT)) > before
        assert Q in member.core.assigned
        one_queue.cluster.store(Q, b"%d" % number)
        one_queue.clock.pump([0.5] * 6)
        assert len(member.got) == number
    one_queue.result(member.core.close())


def test_a_close_after_such_a_time_commits_nothing(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([0.5] * 4)
    assert member.bodies == [b"0"]
    one_queue.cluster.offsets["g", Q] = 7
    block(one_queue, 200)
    one_queue.result(member.core.close())
    assert one_queue.cluster.offsets["g", Q] == 7


def test_such_a_member_commits_nothing_before_it_is_back(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([0.5] * 4)
    for seconds, offset in ((10, 1), (200, 7), (200, 7)):
        one_queue.cluster.offsets["g", Q] = 7
        block(one_queue, seconds)
        one_queue.result(member.core._commit_oneway())
        assert one_queue.cluster.offsets["g", Q] == offset
    one_queue.result(member.core.close())
