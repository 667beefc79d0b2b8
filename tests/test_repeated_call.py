"""Calls that are repeated go on after each failure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
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


SOURCES = Path(mqbroker.__file__).parent


def texts() -> dict[str, str]:
    return {str(path.relative_to(SOURCES)): path.read_text() for path in SOURCES.rglob("*.py")}


def test_no_service_has_a_loop_that_a_failure_ends() -> None:
    """Twisted's LoopingCall never calls again what has failed once, and installs the global reactor: nobody else makes
    one, or a class of it."""
    assert {name for name, text in texts().items() if " LoopingCall(" in text} == set()
    assert {name for name, text in texts().items() if "import LoopingCall" in text} == {"repeated_call.py"}


#: Delayed calls that schedule themselves again, and what makes them go on after a failure that nobody expects. Of a new
#: one that is to be shown here, unless it becomes a RepeatedCall.
CHAINS = {
    "broker/broker_service.py BrokerService._start_again": "once for each change; a start that fails ends the process",
    "broker/broker_slave.py BrokerSlave._fetch_now": "scheduled by a RepeatedCall, too",
    "broker/client_registry.py Notifications._turn": "scheduled in `finally`",
    "broker/delay.py DelayService._compare": "an errback for all failures schedules it",
    "broker/delay.py DelayService._turn": "an errback for all failures schedules it",
    "broker/long_polling.py HeldPulls._turn": "run by a RepeatedCall, too",
    "broker/name_servers.py NameServer._retry_now": "registered by a RepeatedCall, too",
    "broker/transactions/half_queue.py HalfQueue._turn": "an errback for all failures schedules it",
    "broker/transactions/transaction_checks.py TransactionChecks._begin": "scheduled after an errback for all failures",
    "client/thread_calls.py ThreadConsumeService._start_more": "scheduled by what arrives, too",
    "client/thread_calls.py ThreadConsumeService._try_again": "what arrives starts threads, too",
    "daemons/supervisor.py ShardSupervisor._begin": "each exception of the start schedules it",
    "ha/acknowledgements.py Acknowledgements._give_up": "only fires Deferreds",
    "ha/etcd_endpoints.py _Asking._next": "a deadline ends the request",
    "remoting/fair_scheduler.py FairScheduler._turn": "each exception of a connection is caught",
    "remoting/response_table.py ResponseTable._expire": "scheduled in `finally`",
    "remoting/response_table.py Timeout._expire": "of one request",
    "store/dispatch.py Dispatcher._turn": "each exception schedules it",
    "store/flush.py CacheFlusher._tick": "schedules itself first",
    "store/flush.py LogFlusher._give_up": "only fires Deferreds, after it is scheduled",
    "store/flush.py LogFlusher._tick": "schedules itself first",
    "store/linux_aio.py LinuxAio._look": "scheduled by the next sync, too",
    "store/transient.py TransientStore._commit": "each exception of a listener is caught",
}

#: Where a failure of another kind passes on, and who has it then.
TRAPS = {
    "broker/broker_service.py": "a start that is cancelled; the others are logged where it was begun",
    "broker/requests/send_message.py": "the request is answered with the others",
    "store/log_scrub.py": "a RepeatedCall, or the stop of the store, logs the others",
}


def self_names(node: ast.AST) -> set[str]:
    """The names of attributes of `self` in some code."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def is_delayed_call(node: ast.AST) -> bool:
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name.strip("_").replace("_l", "L") == "callLater"


def chains(text: str) -> Iterator[str]:
    """The methods that are called later by themselves, or by a method that they refer to."""
    for owner in ast.walk(ast.parse(text)):
        if not isinstance(owner, ast.ClassDef):
            continue
        methods = {each.name: each for each in owner.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        refers = {name: self_names(method) & methods.keys() for name, method in methods.items()}
        schedules = {
            name: {
                found
                for call in ast.walk(method)
                if isinstance(call, ast.Call) and is_delayed_call(call) and len(call.args) > 1
                for found in self_names(call.args[1]) & methods.keys()
            }
            for name, method in methods.items()
        }
        for name in set().union(*schedules.values()):
            reached, left = set[str](), {name}
            while left:
                reached |= left
                left = set().union(*(refers[each] for each in left)) - reached
            if any(name in schedules[each] for each in reached):
                yield f"{owner.name}.{name}"


def test_each_call_that_schedules_itself_is_known_to_go_on_after_a_failure() -> None:
    found = {f"{name} {chain}" for name, text in texts().items() for chain in chains(text)}
    assert found == CHAINS.keys(), "make a RepeatedCall of it, or say in CHAINS why a failure does not end it"
    assert {name for name, text in texts().items() if ".trap(" in text} == TRAPS.keys()


def test_a_call_that_schedules_itself_over_other_methods_is_found() -> None:
    text = """
class Scrub:
    def start(self): self._next = self._clock.callLater(1, self._tick)
    def _tick(self): self._worker.run(work).addCallback(self._go_on)
    def _go_on(self, _): self.start()

class Once:
    def start(self): self._clock.call_later(1, self._end)
    def _end(self): self.ended = True
"""
    assert list(chains(text)) == ["Scrub._tick"]
