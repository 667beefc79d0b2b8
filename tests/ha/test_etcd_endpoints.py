"""Which member of etcd is asked, and when the next one, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import Clock

from mqbroker.ha.etcd import Compare, EtcdError, KeyValue, Put, is_repeatable, outcome
from mqbroker.ha.etcd_endpoints import SILENT_SECONDS, Endpoints, NotDone, Reply


class World:
    """Three endpoints that answer when a test says so."""

    def __init__(self, first: int = 0) -> None:
        self.clock = Clock()
        self.moves = 0
        self.endpoints = Endpoints(self.clock, ["a", "b", "c"], first, 1.0, self._moved)
        self.asked: list[tuple[str, float]] = []
        self.cancelled: list[str] = []
        self.attempts: dict[str, Deferred[str]] = {}
        #: What those are answered with that do not wait for the test.
        self.at_once: dict[str, Any] = {}

    def _moved(self) -> None:
        self.moves += 1

    def ask(self, may_repeat: bool = True) -> Deferred[Reply[str]]:
        self.asked.clear()
        self.cancelled.clear()
        return self.endpoints.ask(self._send, may_repeat)

    def _send(self, endpoint: str) -> Deferred[str]:
        self.asked.append((endpoint, self.clock.seconds()))
        attempt = self.attempts[endpoint] = Deferred(lambda _: self.cancelled.append(endpoint))
        if (found := self.at_once.get(endpoint)) is not None:
            (attempt.errback if isinstance(found, Exception) else attempt.callback)(found)
        return attempt

    def answer(self, endpoint: str, answer: str = "yes") -> None:
        self.attempts[endpoint].callback(answer)

    @property
    def order(self) -> str:
        return "".join(endpoint for endpoint, _ in self.asked)


def result(asking: Deferred[Reply[str]]) -> Any:
    assert asking.called
    return asking.result


def failed(asking: Deferred[Reply[str]]) -> Exception:
    found: list[Any] = []
    asking.addErrback(found.append)
    assert found
    error: Exception = found[0].value
    return error


@pytest.mark.parametrize(("first", "order"), [(0, "abc"), (1, "bca"), (2, "cab"), (5, "cab")])
def test_brokers_begin_at_different_endpoints(first: int, order: str) -> None:
    world = World(first)
    asking = world.ask()
    world.clock.pump([0.25] * 3)
    assert world.order == order
    asking.addErrback(lambda _: None)
    world.clock.advance(1)


def test_the_next_endpoint_is_asked_when_one_is_silent_for_a_quarter_of_a_second() -> None:
    world = World()
    asking = world.ask()
    world.clock.advance(0.24)
    assert world.order == "a"
    world.clock.advance(0.01)
    assert world.asked == [("a", 0.0), ("b", 0.25)]
    world.answer("b")
    assert result(asking) == Reply("yes", is_repeated=True)
    assert not world.clock.getDelayedCalls()
    assert world.cancelled == ["a"]


def test_a_slow_endpoint_may_still_answer_after_the_next_was_asked() -> None:
    world = World()
    asking = world.ask()
    world.clock.advance(0.3)
    world.answer("a", "late")
    assert result(asking) == Reply("late", is_repeated=True)
    assert world.endpoints.current == "a"
    world.ask()
    assert world.order == "a"


def test_an_endpoint_that_was_silent_is_asked_last_for_a_while_and_the_other_first_from_now_on() -> None:
    world = World()
    world.ask()
    world.clock.advance(0.25)
    world.answer("b")
    assert (world.endpoints.current, world.moves) == ("b", 1)
    asking = world.ask()
    world.clock.pump([0.25] * 2)
    assert world.order == "bca"
    world.answer("b")
    assert result(asking)
    world.clock.advance(SILENT_SECONDS)
    world.at_once = {"b": "yes"}
    world.ask()
    assert world.order == "b"  # it stays there: nothing is gained by a move back
    world.at_once = {}
    asking = world.ask()
    world.clock.advance(0.25)
    world.answer("b")
    asking = world.ask()
    world.clock.pump([0.25] * 2)
    assert world.order == "bca"
    world.answer("a")
    assert world.endpoints.current == "a"


def test_an_endpoint_that_was_silent_is_asked_after_one_that_comes_later_in_the_list() -> None:
    world = World()
    world.ask()
    world.clock.pump([0.25] * 2)
    world.clock.advance(0.1)
    world.answer("a")  # late itself, but there; b has said nothing for longer than it may take, and c had less time
    assert (world.endpoints.current, world.moves) == ("a", 0)
    asking = world.ask()
    world.clock.pump([0.25] * 2)
    assert world.order == "acb"
    world.answer("a")
    assert result(asking)
    world.clock.advance(SILENT_SECONDS)
    world.ask()
    world.clock.pump([0.25] * 2)
    assert world.order == "abc"
    world.answer("a")


def test_an_endpoint_that_fails_is_followed_by_the_next_at_once() -> None:
    world = World()
    world.at_once = {"a": EtcdError("answers 503"), "b": NotDone("cannot be connected"), "c": "yes"}
    asking = world.ask()
    assert world.asked == [("a", 0.0), ("b", 0.0), ("c", 0.0)]
    assert result(asking) == Reply("yes", is_repeated=True)
    assert world.endpoints.current == "c"


def test_what_was_not_done_elsewhere_is_no_repetition() -> None:
    world = World()
    world.at_once = {"a": NotDone("cannot be connected"), "b": "yes"}
    assert result(world.ask()) == Reply("yes", is_repeated=False)
    assert result(world.ask(may_repeat=False)) == Reply("yes", is_repeated=False)


def test_what_must_not_be_repeated_is_sent_to_one_unless_that_did_not_do_it() -> None:
    world = World()
    world.at_once = {"a": NotDone("cannot be connected")}
    asking = world.ask(may_repeat=False)
    world.clock.advance(0.99)
    assert world.order == "ab"
    world.attempts["b"].errback(EtcdError("answers 503"))
    assert str(failed(asking)) == "etcd at a cannot be connected; etcd at b answers 503"
    assert world.order == "ab"


def test_a_request_that_nobody_answers_ends_after_its_time_and_its_attempts_are_cancelled() -> None:
    world = World()
    asking = world.ask()
    world.clock.pump([0.25] * 4)
    error = failed(asking)
    assert str(error) == "etcd at a, b, c does not answer within 1 s"
    assert not isinstance(error, NotDone)
    assert not world.clock.getDelayedCalls()
    assert world.cancelled == ["a", "b", "c"]


def test_a_request_that_all_refuse_was_not_done() -> None:
    world = World()
    world.at_once = dict.fromkeys("abc", NotDone("answers 403"))
    error = failed(world.ask())
    assert isinstance(error, NotDone)
    assert str(error) == "etcd at a, b, c answers 403"


def test_the_reasons_are_told_alike_in_whatever_order_they_come() -> None:
    world = World()
    world.at_once = {"a": NotDone("x"), "b": EtcdError("y"), "c": NotDone("x")}
    texts = {str(failed(world.ask())) for _ in range(3)}
    assert len(texts) == 1
    world.at_once["b"] = "yes"
    world.ask()  # b is the current one now
    world.at_once["b"] = EtcdError("y")
    texts.add(str(failed(world.ask())))
    assert world.order == "bca"
    assert texts == {"etcd at a, c x; etcd at b y"}


def test_a_cancelled_request_asks_nobody_any_more() -> None:
    world = World()
    asking = world.ask()
    world.clock.advance(0.25)
    asking.cancel()
    assert isinstance(failed(asking), CancelledError)
    assert not world.clock.getDelayedCalls()
    world.clock.advance(5)
    assert world.order == "ab"
    assert world.cancelled == ["a", "b"]


def test_an_error_that_nobody_expects_does_not_keep_the_request_waiting() -> None:
    world = World()
    answers = iter([fail(EtcdError("x")), fail(EtcdError("x")), fail(EtcdError("x"))])
    asking: Any = world.endpoints.ask(lambda endpoint: next(answers))
    assert str(failed(asking)) == "etcd at a, b, c x"


# --- transactions that were sent twice


def test_a_transaction_may_be_repeated_where_each_key_that_it_writes_is_compared() -> None:
    assert is_repeatable([Compare("/s", 3), Compare("/m", 0)], [Put("/s", b"x")])
    assert not is_repeatable([Compare("/m", 0)], [Put("/s", b"x")])
    assert not is_repeatable([], [Put("/s", b"x")])


def test_a_transaction_that_was_sent_once_and_whose_conditions_did_not_hold_was_not_done() -> None:
    assert outcome([Put("/s", b"x")], {}, is_repeated=False) is None
    assert outcome([Put("/s", b"x")], {"/s": KeyValue(b"x", 1, 9)}, is_repeated=False) is None


def test_a_transaction_that_was_done_by_the_member_that_did_not_answer_is_recognised() -> None:
    puts = [Put("/s", b"x"), Put("/m", b"y", 7)]
    done = {"/s": KeyValue(b"x", 1, 9), "/m": KeyValue(b"y", 1, 9, 7), "/other": KeyValue(b"z", 1, 3)}
    assert outcome(puts, done, is_repeated=True) == 9
    for key, item in {
        "/s": KeyValue(b"other", 1, 9),
        "/m": KeyValue(b"y", 1, 9, 8),
    }.items():
        with pytest.raises(EtcdError, match="did not say what became of it"):
            outcome(puts, {**done, key: item}, is_repeated=True)
    with pytest.raises(EtcdError):
        outcome(puts, {**done, "/m": KeyValue(b"y", 1, 8, 7)}, is_repeated=True)
    with pytest.raises(EtcdError):
        outcome(puts, {}, is_repeated=True)
