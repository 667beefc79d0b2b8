"""How members share queues: the strategies, and what comes of a user's function."""

import asyncio
import random
from typing import Any

import pytest

from mqbroker.client import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    BadArgument,
    MessageQueue,
    PushOptions,
    allocate_averagely,
    allocate_by_circle,
)
from mqbroker.client.allocation import allocated
from tests.client.member import Member
from tests.client.test_rebalance import Brokers, member


def queues(count: int, broker: str = "a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, n) for n in range(count)]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def room_of_member(client_id: str) -> str:
    return client_id.split("@")[0]


nearby = AllocateNearby(room_of_queue, room_of_member)


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (4, 3, [[0, 1], [2], [3]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, 3, [[0], [1], []]),
        (0, 2, [[], []]),
    ],
)
def test_averagely_the_first_members_take_one_more(count: int, members: int, expected: list[list[int]]) -> None:
    ids = [f"10.0.0.1@{n}" for n in range(members)]
    assert [[q.queue_id for q in allocate_averagely(me, queues(count), ids)] for me in ids] == expected


def test_by_circle_each_takes_one_in_turn() -> None:
    ids = ["a", "b", "c"]
    shares = [[q.queue_id for q in allocate_by_circle(me, queues(8), ids)] for me in ids]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize(
    "allocation",
    [allocate_averagely, allocate_by_circle, AllocateByConsistentHash(), AllocateByMachineRoom(["r"]), nearby],
)
def test_every_queue_has_exactly_one_owner_and_a_stranger_none(allocation: Any) -> None:
    rng = random.Random(1)
    for _ in range(50):
        ids = sorted({f"r@{rng.randrange(1000)}" for _ in range(rng.randint(1, 9))})
        all_queues = queues(rng.randint(0, 20), "r@1")
        assert sorted(q for me in ids for q in allocation(me, all_queues, ids)) == all_queues
        assert list(allocation("stranger@1", all_queues, ids)) == []


def test_a_ring_keeps_most_queues_where_they_are_when_a_member_joins() -> None:
    hashed, before = AllocateByConsistentHash(100), ["a", "b", "c", "d"]
    kept = [
        q for me in before for q in hashed(me, queues(1000), before) if q in hashed(me, queues(1000), [*before, "e"])
    ]
    assert len(kept) > 600


def test_a_machine_room_without_members_is_shared_by_all() -> None:
    here, there = queues(4, "here@1"), queues(4, "there@1")
    assert nearby("here@a", here + there, ["here@a", "there@b"]) == here
    assert nearby("here@a", here + there, ["here@a", "here@b"]) == here[:2] + there[:2]


def test_brokers_outside_the_rooms_are_not_consumed() -> None:
    everything = queues(2, "r@1") + queues(2, "s@1") + queues(2, "plain") + queues(2, "r@1@2")
    assert AllocateByMachineRoom({"r"})("a", everything, ["a"]) == queues(2, "r@1")


def test_a_configured_member_takes_its_queues_and_its_share_of_retries() -> None:
    config = AllocateByConfig(queues(2))
    assert list(config("a", queues(4), ["a", "b"])) == queues(2)
    assert list(config("a", queues(4, topic="U"), ["a", "b"])) == []
    assert list(config("a", queues(2, topic="%RETRY%g"), ["a", "b"])) == queues(1, topic="%RETRY%g")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AllocateByConsistentHash(0), "virtual_nodes must be a whole number"),
        (lambda: AllocateByConsistentHash(True), "virtual_nodes must be a whole number"),
        (lambda: AllocateByMachineRoom("room"), "rooms must be several texts"),
        (lambda: AllocateByMachineRoom([1]), "rooms must be several texts"),  # type: ignore[list-item]
        (lambda: AllocateByConfig(["T"]), "queues must be several MessageQueues"),  # type: ignore[list-item]
        (lambda: AllocateNearby("x", room_of_member), "room_of_queue must be a function"),  # type: ignore[arg-type]
        (lambda: PushOptions(allocation="averagely"), "PushOptions.allocation must be a function"),  # type: ignore[arg-type]
        (lambda: PushOptions(allocation=AllocateByConsistentHash), "PushOptions.allocation must be a function"),  # type: ignore[arg-type]
    ],
)
def test_what_no_strategy_can_be_made_of_is_refused(make: Any, text: str) -> None:
    with pytest.raises(BadArgument, match=text):
        make()


@pytest.mark.parametrize(
    ("allocation", "text"),
    [
        (lambda *_: None, "not TypeError"),
        (lambda *_: queues(1, "other"), "some of the queues that it gets"),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (lambda *_: [[]], "not TypeError"),
        (AllocateNearby(lambda _: "", room_of_member), "the name of a machine room"),
    ],
)
def test_what_a_users_function_does_wrong_is_told(allocation: Any, text: str) -> None:
    with pytest.raises(BadArgument, match=text):
        allocated(allocation, "a", queues(2), ["a"])


def test_a_strategy_gets_queues_and_members_in_the_order_of_java() -> None:
    calls: list[Any] = []

    def noted(client_id: str, given: Any, members: Any) -> Any:
        calls.append((client_id, [(q.broker_name, q.queue_id) for q in given], list(members)))
        return given

    # By UTF-16 code units a surrogate pair sorts before U+FFFD; by code points it would sort after.
    brokers: Any = Brokers({"b:1": ["\ufffd", "A"], "a:1": ["\U0001f600"]})
    asyncio.run(member(brokers, "A", allocation=noted).share("T"))
    assert calls == [("A", [("a:1", 0), ("a:1", 1), ("b:1", 0), ("b:1", 1)], ["A", "\U0001f600", "\ufffd"])]


def test_a_member_whose_allocation_fails_keeps_its_queues_and_says_so(
    one_queue: Any, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails: list[bool] = []

    def sometimes(_: str, given: Any, __: Any) -> Any:
        if fails:
            raise LookupError("no such room")
        return given

    member = Member(one_queue, name_server, allocation=sometimes).start()
    held = member.core.assigned
    assert held
    fails.append(True)
    member.core.ids_changed("g")
    one_queue.cluster.advance(1)
    assert member.core.assigned == held
    assert "no such room" in caplog.text
    one_queue.run(member.core.close())
