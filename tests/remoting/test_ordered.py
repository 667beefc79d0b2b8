"""Starting in order and stopping in reverse, seen by recording the calls."""

from typing import Any

import pytest
from twisted.application.service import Service
from twisted.internet.defer import Deferred

from mqbroker.remoting.ordered import OrderedService
from tests.remoting.logs import log_kept


class Recorded(Service):
    """Records its calls in `calls`; `start` and `stop` are what they return, or raise."""

    def __init__(
        self,
        name: str,
        calls: list[Any],
        *,
        start: OSError | Deferred[Any] | None = None,
        stop: OSError | Deferred[Any] | None = None,
    ) -> None:
        self.label = name
        self.calls = calls
        self.results = {"start": start, "stop": stop}

    def startService(self) -> Deferred[Any] | None:
        return self._call("start")

    def stopService(self) -> Deferred[Any] | None:
        return self._call("stop")

    def _call(self, what: str) -> Deferred[Any] | None:
        self.calls.append(f"{what} {self.label}")
        result = self.results[what]
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def calls() -> list[Any]:
    return []


def failed(deferred: Deferred[Any]) -> list[OSError]:
    found = []
    deferred.addErrback(lambda failure: found.append(failure.value))
    return found


def test_starts_in_order_and_stops_in_reverse(calls: list[Any]) -> None:
    service = OrderedService([Recorded(name, calls) for name in "abc"])
    assert service.startService().called
    assert service.stopService().called
    assert calls == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


def test_each_waits_for_the_one_before_it(calls: list[Any]) -> None:
    starting, stopping = Deferred[Any](), Deferred[Any]()
    service = OrderedService([Recorded("a", calls, start=starting), Recorded("b", calls, stop=stopping)])
    started = service.startService()
    assert calls == ["start a"]
    starting.callback(None)
    assert started.called
    stopped = service.stopService()
    assert calls == ["start a", "start b", "stop b"]
    assert not stopped.called
    stopping.callback(None)
    assert stopped.called
    assert calls[3:] == ["stop a"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failed_start_stops_those_before_it(calls: list[Any], asynchronous: bool) -> None:
    trouble = Deferred[Any]() if asynchronous else OSError("no")
    children = [Recorded("a", calls), Recorded("b", calls, start=trouble), Recorded("c", calls)]
    service = OrderedService(children)
    found = failed(service.startService())
    if asynchronous:
        trouble.errback(OSError("no"))
    assert [str(error) for error in found] == ["no"]
    assert calls == ["start a", "start b", "stop a"]
    assert service.stopService().called
    assert calls == ["start a", "start b", "stop a"]


def test_a_failed_stop_is_logged_and_the_rest_stop(calls: list[Any]) -> None:
    with log_kept() as events:
        service = OrderedService([Recorded("a", calls), Recorded("b", calls, stop=OSError("stuck"))])
        service.startService()
        assert service.stopService().called
    assert calls[2:] == ["stop b", "stop a"]
    assert [str(failure.value) for failure in events.failures] == ["stuck"]


def test_stopping_while_starting_waits_for_the_one_that_starts(calls: list[Any]) -> None:
    starting = Deferred[Any]()
    service = OrderedService([Recorded("a", calls), Recorded("b", calls, start=starting), Recorded("c", calls)])
    service.startService()
    stopped = service.stopService()
    assert not stopped.called
    assert calls == ["start a", "start b"]
    starting.callback(None)
    assert stopped.called
    assert calls == ["start a", "start b", "stop b", "stop a"]


def test_stopping_twice_stops_once(calls: list[Any]) -> None:
    stopping = Deferred[Any]()
    service = OrderedService([Recorded("a", calls, stop=stopping)])
    service.startService()
    both = [service.stopService(), service.stopService()]
    stopping.callback(None)
    assert all(done.called for done in both)
    assert calls == ["start a", "stop a"]


def test_it_starts_again(calls: list[Any]) -> None:
    service = OrderedService([Recorded("a", calls)])
    service.startService()
    service.stopService()
    service.startService()
    service.stopService()
    assert calls == ["start a", "stop a"] * 2
