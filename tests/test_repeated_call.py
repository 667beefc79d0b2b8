"""Calls that are repeated go on after each failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock

import mqbroker
from mqbroker.repeated_call import RepeatedCall
from tests.remoting.logs import log_kept


def raised() -> object:
    raise MemoryError


def failed() -> object:
    return fail(ValueError("no"))


@pytest.mark.parametrize("fails", [raised, failed])
def test_a_call_is_repeated_after_each_failure_and_the_first_in_a_row_is_logged(fails: Callable[[], object]) -> None:
    clock, outcomes = Clock(), iter("xx-x--xxx-")
    made: list[str] = []

    def call() -> object:
        made.append(next(outcomes))
        return fails() if made[-1] == "x" else None

    loop = RepeatedCall(call, clock=clock)
    with log_kept() as logged:
        loop.start(10, now=False)
        for _ in range(10):
            clock.advance(10)
    assert "".join(made) == "xx-x--xxx-"
    lines = [line.partition("<locals>.")[2] for line in logged.lines]
    assert lines == ["call failed and is called again every 10 s", "call works again"] * 3
    loop.stop()
    clock.advance(100)
    assert len(made) == 10


def test_a_call_that_takes_longer_than_its_interval_is_not_repeated_before_it_ends() -> None:
    clock, running = Clock(), list[Deferred[None]]()
    loop = RepeatedCall(lambda: running.append(Deferred()) or running[-1], clock=clock)
    loop.start(1, now=False)
    clock.pump([1] * 5)
    assert len(running) == 1
    for number in (1, 2, 3):
        running[-1].callback(None)
        clock.pump([1, 1])
        assert len(running) == number + 1


@pytest.mark.parametrize("takes_long", [False, True])
def test_one_that_is_stopped_and_started_again_during_a_call_is_one_loop(takes_long: bool) -> None:
    clock, made, ends = Clock(), list[float](), list[Deferred[None]]()

    def call() -> Deferred[None] | None:
        made.append(clock.seconds())
        if made == [10]:
            restart()
        if takes_long:
            ends.append(Deferred())
        return ends[-1] if takes_long else None

    def restart() -> None:
        loop.stop()
        loop.start(3, now=False)

    def advance(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1)
            while ends and len(made) > 1:
                ends.pop().callback(None)

    loop = RepeatedCall(call, clock=clock)
    loop.start(10, now=False)
    advance(10)
    if takes_long:
        restart()
        advance(4)
        ends.pop().callback(None)
    assert made == [10]
    assert len(clock.getDelayedCalls()) == 1
    advance(9)
    assert made == ([10, 16, 19, 22] if takes_long else [10, 13, 16, 19])
    loop.stop()
    assert clock.getDelayedCalls() == []
    loop.start(5, now=False)
    advance(5)
    assert len(made) == 5


def test_no_service_has_a_loop_that_a_failure_ends() -> None:
    """Twisted's LoopingCall never calls again what has failed once, and installs the global reactor: nobody else makes
    one, or a class of it."""
    sources = Path(mqbroker.__file__).parent
    texts = {str(path.relative_to(sources)): path.read_text() for path in sources.rglob("*.py")}
    assert {name for name, text in texts.items() if " LoopingCall(" in text} == set()
    assert {name for name, text in texts.items() if "import LoopingCall" in text} == {"repeated_call.py"}
