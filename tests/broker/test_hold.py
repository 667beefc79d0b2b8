"""Pulls that wait."""

import pytest

from mqbroker.broker import hold as module
from mqbroker.broker.hold import HeldPull, HeldPulls
from tests.broker.bench import FakeConnection


class Look:
    """Records how it was asked to look; answers as told, or moves the offset on."""

    def __init__(self):
        self.calls = []
        self.answers = True
        self.move_to = None

    def __call__(self, held, last):
        self.calls.append((held.offset, last))
        if not last and self.move_to is not None:
            held.offset = self.move_to
            return False
        return self.answers or last


@pytest.fixture
def held(clock):
    held = HeldPulls(clock)
    held.start()
    yield held
    held.stop()
    assert len(held) == 0
    assert held._counts == {}


@pytest.fixture
def look():
    return Look()


def wait(held, clock, look, *, topic="T", queue_id=0, offset=5, seconds=10.0, connection=None):
    pull = HeldPull(connection or FakeConnection(), topic, queue_id, offset, clock.seconds() + seconds, look)
    assert held.hold(pull)
    return pull


def test_it_is_woken_by_its_own_queue_only(held, clock, look):
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


def test_one_that_finds_nothing_waits_on_and_moves(held, clock, look):
    wait(held, clock, look)
    look.move_to = 8
    held.arrived("T", 0, 8)
    held.arrived("T", 0, 8)
    assert look.calls == [(5, False)]
    look.move_to = None
    held.arrived("T", 0, 9)
    assert look.calls == [(5, False), (8, False)]
    assert len(held) == 0


def test_time_up(held, clock, look):
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


def test_nobody_looks_for_a_closed_connection(held, clock, look):
    gone = FakeConnection()
    wait(held, clock, look, connection=gone)
    wait(held, clock, look, connection=gone, queue_id=1)
    gone.closed = True
    held.arrived("T", 0, 9)
    assert len(held) == 1
    clock.advance(0.5)
    assert look.calls == []
    assert len(held) == 0


def test_stopping_asks_all_for_the_last_time(held, clock, look):
    gone = FakeConnection()
    for queue_id in range(3):
        wait(held, clock, look, queue_id=queue_id)
    wait(held, clock, look, connection=gone)
    gone.closed = True
    held.stop()
    assert look.calls == [(5, True)] * 3
    held.start()


def test_each_connection_has_its_share(held, clock, look, monkeypatch):
    monkeypatch.setattr(module, "HELD_ON_CONNECTION_MAX", 2)
    greedy = FakeConnection()
    for queue_id in range(2):
        wait(held, clock, look, connection=greedy, queue_id=queue_id)
    refused = HeldPull(greedy, "T", 2, 5, clock.seconds() + 10, look)
    assert not held.hold(refused)
    wait(held, clock, look)  # another's
    held.arrived("T", 1, 9)
    assert held.hold(refused)
