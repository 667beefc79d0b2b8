"""Pulls that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.base import DelayedCall
from twisted.internet.task import Clock

from mqbroker.broker import long_polling as module
from mqbroker.broker.long_polling import HeldPull, HeldPulls
from mqbroker.remoting.limits import Shares
from mqbroker.store.dispatch import BUSY_MESSAGES, BUSY_S, IDLE_S
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench, Client, FakeConnection, live_settings, pull_header
from tests.remoting.logs import Logged


class Look:
    """Records how it was asked to look; answers as told, or moves the offset on."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.answers = True
        self.move_to: int | None = None

    def __call__(self, held: HeldPull, last: bool) -> bool:
        self.calls.append((held.offset, last))
        if not last and self.move_to is not None:
            held.offset = self.move_to
            return False
        return self.answers or last


@pytest.fixture
def held(clock: Clock) -> Iterator[HeldPulls]:
    held = HeldPulls(clock, live_settings())
    held.start()
    yield held
    held.stop()
    assert len(held) == 0
    assert held._shares == Shares()


@pytest.fixture
def look() -> Look:
    return Look()


def wait(
    held: HeldPulls,
    clock: Clock,
    look: Look | Order,
    *,
    topic: str = "T",
    queue_id: int = 0,
    offset: int = 5,
    seconds: float = 10.0,
    connection: FakeConnection | None = None,
) -> HeldPull:
    pull = HeldPull(connection or FakeConnection(), topic, queue_id, offset, clock.seconds() + seconds, look)
    assert held.hold(pull)
    return pull


def test_it_is_woken_by_its_own_queue_only(held: HeldPulls, clock: Clock, look: Look) -> None:
    wait(held, clock, look)
    held.arrived("Other", 0, 9)
    held.arrived("T", 1, 9)
    held.arrived("T", 0, 5)  # nothing at 5 yet
    assert look.calls == []
    held.arrived("T", 0, 6)
    assert look.calls == [(5, False)]
    held.arrived("T", 0, 7)
    assert look.calls == [(5, False)]
    assert len(held) == 0


def test_one_that_finds_nothing_waits_on_and_moves(held: HeldPulls, clock: Clock, look: Look) -> None:
    wait(held, clock, look)
    look.move_to = 8
    held.arrived("T", 0, 8)
    held.arrived("T", 0, 8)
    assert look.calls == [(5, False)]
    look.move_to = None
    held.arrived("T", 0, 9)
    assert look.calls == [(5, False), (8, False)]
    assert len(held) == 0


def test_time_up(held: HeldPulls, clock: Clock, look: Look) -> None:
    wait(held, clock, look, seconds=2)
    wait(held, clock, look, seconds=4, offset=6)
    for _ in range(3):
        clock.advance(0.5)
    assert look.calls == []
    clock.advance(0.5)
    assert look.calls == [(5, True)]
    assert len(held) == 1
    for _ in range(4):
        clock.advance(0.5)
    assert look.calls == [(5, True), (6, True)]


def test_nobody_looks_for_a_closed_connection(held: HeldPulls, clock: Clock, look: Look) -> None:
    gone = FakeConnection()
    wait(held, clock, look, connection=gone)
    wait(held, clock, look, connection=gone, queue_id=1)
    gone.closed = True
    held.arrived("T", 0, 9)
    assert len(held) == 1
    clock.advance(0.5)
    assert look.calls == []
    assert len(held) == 0


def test_stopping_asks_all_for_the_last_time(held: HeldPulls, clock: Clock, look: Look) -> None:
    gone = FakeConnection()
    for queue_id in range(3):
        wait(held, clock, look, queue_id=queue_id)
    wait(held, clock, look, connection=gone)
    gone.closed = True
    held.stop()
    assert look.calls == [(5, True)] * 3
    held.start()


def test_each_connection_has_its_share(
    held: HeldPulls, clock: Clock, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_ON_CONNECTION_MAX", 2)
    greedy = FakeConnection()
    for queue_id in range(2):
        wait(held, clock, look, connection=greedy, queue_id=queue_id)
    refused = HeldPull(greedy, "T", 2, 5, clock.seconds() + 10, look)
    assert not held.hold(refused)
    wait(held, clock, look)  # another's
    held.arrived("T", 1, 9)
    assert held.hold(refused)


def test_all_connections_together_have_so_many(clock: Clock, look: Look, logged: Logged) -> None:
    held = HeldPulls(clock, live_settings(held_pulls_max=3))
    held.start()
    for queue_id in range(3):
        wait(held, clock, look, connection=FakeConnection(), queue_id=queue_id)
    for _ in range(5):
        assert not held.hold(HeldPull(FakeConnection(), "T", 7, 5, clock.seconds() + 10, look))
    told = [line for line in logged.lines if "heldPullsMax" in line]
    why = "10.0.0.2:40000 has reached its share and is answered at once"
    assert told == [f"3 pulls wait, with heldPullsMax=3: {why}"]
    held.arrived("T", 1, 9)
    wait(held, clock, look, queue_id=1)
    clock.pump([0.5] * 121)
    assert logged.lines[-1] == "pulls not held: 4 more within a minute"
    assert len(held) == 0
    held.stop()


def test_what_keeps_more_counts_for_more(clock: Clock, look: Look) -> None:
    held = HeldPulls(clock, live_settings(held_pulls_max=100))
    heavy = HeldPull(FakeConnection(), "T", 0, 5, clock.seconds() + 10, look, weight=99)
    assert held.hold(heavy)
    other = bytes([10, 0, 0, 3, 0, 0, 0, 1])
    wait(held, clock, look, connection=FakeConnection(host=other))
    more = HeldPull(FakeConnection(host=other), "T", 0, 5, clock.seconds() + 10, look)
    assert not held.hold(more)
    heavy.connection.closed = True
    held.sweep()
    assert held.hold(more)


class TestOfABroker:
    def test_one_too_many_is_told_that_there_is_nothing(self, make_bench: Callable[..., Bench]) -> None:
        bench = make_bench(held_pulls_max=1)
        clients = [bench.client(), bench.client()]
        clients[0].send()
        suspending: dict[str, Any] = {"sys_flag": 6, "queue_offset": 1}
        assert clients[0].pull(**suspending) is None
        answer = clients[1].pull(**suspending)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
        assert clients[1].ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"heldPullsMax=2").code == ResponseCode.SUCCESS
        assert clients[1].pull(**suspending) is None
        bench.client().send()
        assert [answer.remark for client in clients for answer in client.heard()] == ["FOUND"] * 2

    def test_long_texts_count(self, make_bench: Callable[..., Bench]) -> None:
        bench = make_bench(held_pulls_max=2000)
        client = bench.client()
        client.send()
        command = pull_header(sys_flag=6, queue_offset=1, subscription="t" * 100_000)
        assert client.ask(RequestCode.PULL_MESSAGE, command) is None
        assert client.ask(RequestCode.PULL_MESSAGE, command).code == ResponseCode.PULL_NOT_FOUND
        command = pull_header(sys_flag=6, queue_offset=1, bname="n" * 100_000)
        assert client.ask(RequestCode.PULL_MESSAGE, command).code == ResponseCode.PULL_NOT_FOUND
        other = bench.client(IPv4Address("TCP", "10.0.0.3", 40000))
        assert other.pull(sys_flag=6, queue_offset=1) is None


# --- many at once


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two look in each turn."""
    monkeypatch.setattr(module, "CHECKS_MAX", 2)


class Order(list):
    """The offsets that looked, in order. Those in `unwanted` go on waiting from there on."""

    unwanted: dict[int, int] = {}

    def __call__(self, held: HeldPull, last: bool) -> bool:
        self.append((held.offset, last))
        if held.offset in self.unwanted and not last:
            held.offset = self.unwanted[held.offset]
            return False
        return True


def step(clock: Clock) -> None:
    """One turn of the clock."""
    (call,) = (cast(DelayedCall, call) for call in clock.getDelayedCalls() if call.getTime() <= clock.seconds())
    clock.calls.remove(call)
    call.called = 1
    call.func()


def test_many_of_one_queue_are_woken_in_turns_in_their_order(held: HeldPulls, clock: Clock, turns: None) -> None:
    order = Order()
    for offset in range(5):
        wait(held, clock, order, offset=offset)
    held.arrived("T", 0, 9)
    assert order == [(0, False), (1, False)]
    assert len(held) == 3
    step(clock)
    assert len(order) == 4
    step(clock)
    assert order == [(offset, False) for offset in range(5)]
    assert len(held) == 0


def test_pulls_of_another_queue_do_not_wait_for_many_of_one(held: HeldPulls, clock: Clock, turns: None) -> None:
    order, other = Order(), Order()
    for offset in range(8):
        wait(held, clock, order, offset=offset)
        wait(held, clock, other, queue_id=1, offset=offset)
    wait(held, clock, few := Order(), topic="U")
    held.arrived("T", 0, 9)
    held.arrived("T", 1, 9)
    held.arrived("U", 0, 9)
    assert len(few) == 1
    step(clock)
    step(clock)
    assert (len(order), len(other)) == (4, 2)


def test_what_comes_while_many_look_is_seen_by_those_that_went_on_waiting(
    held: HeldPulls, clock: Clock, turns: None
) -> None:
    order = Order()
    order.unwanted = {0: 9, 1: 9}
    for offset in range(4):
        wait(held, clock, order, offset=offset)
    held.arrived("T", 0, 9)
    assert order == [(0, False), (1, False)]  # and wait at 9
    wait(held, clock, order, offset=9)
    held.arrived("T", 0, 10)
    for _ in range(3):
        step(clock)
    assert order[2:] == [(2, False), (3, False), (9, False), (9, False), (9, False)]
    assert len(held) == 0


def test_one_that_waits_at_the_end_is_not_woken_with_many(held: HeldPulls, clock: Clock, turns: None) -> None:
    order = Order()
    for offset in (1, 9, 2, 3):
        wait(held, clock, order, offset=offset)
    held.arrived("T", 0, 9)
    step(clock)
    assert order == [(1, False), (2, False), (3, False)]
    assert len(held) == 1


def test_many_whose_time_is_up_are_answered_in_turns(held: HeldPulls, clock: Clock, turns: None) -> None:
    order = Order()
    for offset in range(5):
        wait(held, clock, order, offset=offset, seconds=0.25)
    clock.rightNow += 0.25
    held.sweep()
    assert order == [(0, True), (1, True)]
    held.sweep()
    assert len(order) == 2
    step(clock)
    step(clock)
    assert order == [(offset, True) for offset in range(5)]


def test_those_that_are_to_look_are_answered_where_it_stops(held: HeldPulls, clock: Clock, turns: None) -> None:
    order = Order()
    for offset in range(5):
        wait(held, clock, order, offset=offset)
    held.arrived("T", 0, 9)
    held.stop()
    assert order[2:] == [(2, True), (3, True), (4, True)]
    assert len(held) == 0
    assert not [call for call in clock.getDelayedCalls() if call.getTime() <= clock.seconds()]


def pull(consumer: Client, suspend: bool = True, offset: int = 0) -> list[bytes] | None:
    """The bodies of the messages of a queue from an offset on; None if it is held."""
    sys_flag = PullSysFlag.SUSPEND * suspend | PullSysFlag.SUBSCRIPTION
    answer = consumer.pull(queue_offset=offset, sys_flag=sys_flag, suspend_timeout_millis=10_000)
    return None if answer is None else bodies(answer)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


def test_who_waits_for_messages_has_them_without_delay_though_many_came(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    client, consumer = bench.client(), bench.client()
    for _ in range(2 * BUSY_MESSAGES):
        client.send("T", queue_id=1)
    client.send("T", b"last", queue_id=1)
    assert pull(consumer) is None
    assert len(bench.parts.held) == 1
    bench.clock.advance(BUSY_S)
    client.send("T", b"wanted", queue_id=0)
    assert [bodies(answer) for answer in consumer.heard()] == [[b"wanted"]]
    bench.close()


def test_who_begins_to_wait_has_soon_what_waits_for_its_dispatch(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    client, consumer = bench.client(), bench.client()
    for _ in range(2 * BUSY_MESSAGES):
        client.send("T", queue_id=1)
    bench.clock.advance(IDLE_S)
    client.send("T", b"wanted", queue_id=0)
    assert pull(consumer) is None  # many were dispatched just now
    bench.clock.advance(BUSY_S)
    assert [bodies(answer) for answer in consumer.heard()] == [[b"wanted"]]
    bench.close()


def test_a_pull_finds_what_waits_for_its_dispatch(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    client, consumer = bench.client(), bench.client()
    assert pull(consumer, suspend=False) == []
    for number in range(3):
        client.send("T", b"%d" % number, queue_id=0)
        assert pull(consumer, suspend=number > 1, offset=number) == [b"%d" % number]
    bench.close()
