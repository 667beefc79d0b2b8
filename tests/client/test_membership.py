"""A member's queues as they come and go, and who is told of it."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import BadArgument, LitePullOptions, MessageQueue, PushOptions, RebalanceListener
from mqbroker.client.lite_pull import LitePullConsumerCore
from tests.client.member import RETRY, Member, Q
from tests.client.world import FixedIdentity, World


class Told(RebalanceListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[MessageQueue]]] = []

    def assigned(self, queues: frozenset[MessageQueue]) -> Any:
        self.calls.append(("assigned", queues))

    def revoked(self, queues: frozenset[MessageQueue]) -> Any:
        self.calls.append(("revoked", queues))

    def lost(self, queues: frozenset[MessageQueue]) -> Any:
        self.calls.append(("lost", queues))


def test_a_listener_is_told_what_comes_and_goes(one_queue: World, name_server: str) -> None:
    told = Told()
    member = Member(one_queue, name_server, me="c2", rebalance_listener=told).start()
    assert sorted(told.calls, key=str) == sorted(
        [("assigned", frozenset({Q})), ("assigned", frozenset({RETRY}))], key=str
    )
    told.calls.clear()
    one_queue.cluster.join("g", "c1")
    member.core.ids_changed("g")
    one_queue.cluster.settle()
    assert {name for name, _ in told.calls} == {"revoked"}
    assert frozenset().union(*(queues for _, queues in told.calls)) == {Q, RETRY}


def test_at_the_end_all_is_revoked_before_the_offsets_are_committed(one_queue: World, name_server: str) -> None:
    commits: list[Any] = []

    class Looks(Told):
        def revoked(self, queues: frozenset[MessageQueue]) -> Any:
            commits.append(one_queue.cluster.offsets.get(("g", Q)))
            super().revoked(queues)

    told = Looks()
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, rebalance_listener=told).start()
    one_queue.result(member.core.close())
    assert told.calls[-1] == ("revoked", frozenset({Q, RETRY}))
    assert commits == [None]
    assert one_queue.cluster.offsets["g", Q] == 1


def test_a_listener_is_awaited_but_not_for_ever(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Hangs(Told):
        def assigned(self, queues: frozenset[MessageQueue]) -> Any:
            super().assigned(queues)
            return Deferred()

    told = Hangs()
    member = Member(one_queue, name_server, rebalance_listener=told)
    one_queue.run(member.core.subscribe("T"))
    started = one_queue.run(member.core.start())
    assert not started.called
    one_queue.clock.pump([1] * 25)
    assert started.called
    assert len(told.calls) == 2
    assert "took more than 10 s" in caplog.text


def test_what_a_listener_raises_changes_nothing(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Told):
        def assigned(self, queues: frozenset[MessageQueue]) -> Any:
            raise LookupError("what is this queue?")

    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, rebalance_listener=Fails()).start()
    assert member.bodies == [b"0"]
    assert "what is this queue?" in caplog.text


def test_queues_of_a_member_that_was_away_are_lost(one_queue: World, name_server: str) -> None:
    told = Told()
    member = Member(one_queue, name_server, rebalance_listener=told).start()
    told.calls.clear()
    one_queue.cluster.reactor.rightNow += 140  # the loop does not run meanwhile
    one_queue.clock.pump([1] * 3)
    assert told.calls[0] == ("lost", frozenset({Q, RETRY}))
    assert {name for name, _ in told.calls[1:]} == {"assigned"}
    assert member.core.assigned == {Q, RETRY}


def test_a_function_is_no_rebalance_listener() -> None:
    with pytest.raises(BadArgument, match="rebalance_listener must be RebalanceListener"):
        PushOptions(rebalance_listener=print)  # type: ignore[arg-type]


def warnings_of_peers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mqbroker.client.peers"]


def test_members_of_a_process_with_different_subscriptions_are_warned_of_once(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    Member(one_queue, name_server, me="c1").start("a || b")
    member = Member(one_queue, name_server, me="c2").start("b||a || c")
    one_queue.clock.pump([1] * 61)
    (warning,) = warnings_of_peers(caplog)
    assert "group g has members with different subscriptions in this process: c1 has T (a || b), and c2" in warning

    one_queue.result(member.core.subscribe("T", "b||a"))
    one_queue.clock.pump([1] * 61)
    assert len(warnings_of_peers(caplog)) == 1
    one_queue.result(member.core.subscribe("U"))
    one_queue.clock.pump([1] * 61)
    assert "c2 has T (b||a), U (*)" in warnings_of_peers(caplog)[1]


def test_subscriptions_that_are_alike_or_of_others_are_not_warned_of(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = Member(one_queue, name_server, me="c1").start("a || b")
    second = Member(one_queue, name_server, me="c2").start("b||a")
    one_queue.clock.pump([1] * 19)
    one_queue.result(first.core.subscribe("U"))
    one_queue.clock.pump([1] * 4)  # the second one balances
    one_queue.result(second.core.subscribe("U"))
    one_queue.clock.pump([1] * 61)

    one_queue.result(second.core.close())
    one_queue.result(first.core.unsubscribe("U"))
    one_queue.result(first.core.subscribe("T", "c"))
    Member(one_queue, name_server, me="c3").start("c")
    other = LitePullConsumerCore(one_queue.net(), (name_server,), "h", LitePullOptions(), FixedIdentity("c4"))
    one_queue.result(other.subscribe("T"))
    one_queue.result(other.start())
    one_queue.clock.pump([1] * 61)
    assert warnings_of_peers(caplog) == []
