"""The response table by itself: each request ends once, and time in which the loop did not turn is not counted."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock

from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.remoting.response_table import OPAQUE_MASK, ResponseTable, Timeout, extension_s, left_s
from mqbroker.wire.command import RESPONSE_FLAG, RemotingCommand


@pytest.fixture
def silences() -> list[Any]:
    return []


@pytest.fixture
def responses(clock: Clock, silences: list[Any]) -> ResponseTable:
    def call_later(seconds: float, what: Callable[[], None]) -> IDelayedCall:
        assert seconds >= 0, "as the reactor"
        return clock.callLater(seconds, what)

    return ResponseTable("10.0.0.1:1", clock.seconds, call_later, lambda: silences.append(clock.seconds()))


@pytest.fixture
def send(responses: ResponseTable) -> Callable[..., tuple[int, list[Any]]]:
    """Sends a request; the list that what became of it comes into."""

    def send(timeout_ms: int = 1000, body: bytes = b"") -> tuple[int, list[Any]]:
        found: list[Any] = []
        request = responses.add(responses.next_opaque(), RemotingCommand(10, body=body), timeout_ms, found.append)
        responses.written([request])
        return request.opaque, found

    return send


def answer(opaque: int) -> RemotingCommand:
    return RemotingCommand(0, opaque=opaque, flag=RESPONSE_FLAG)


def test_answers_find_their_requests_in_any_order_and_once(
    responses: ResponseTable, send: Callable[..., tuple[int, list[Any]]], clock: Clock
) -> None:
    requests = [send() for _ in range(3)]
    for opaque, found in reversed(requests):
        assert responses.answer(answer(opaque), clock.seconds())
        assert not responses.answer(answer(opaque), clock.seconds())
        assert [each.opaque for each in found] == [opaque]
    assert not clock.getDelayedCalls()


def test_opaques_begin_again_after_the_largest(responses: ResponseTable) -> None:
    responses._opaques.last = OPAQUE_MASK - 1
    assert [responses.next_opaque() for _ in range(3)] == [OPAQUE_MASK, 0, 1]


def test_each_has_its_own_time(send: Callable[..., tuple[int, list[Any]]], clock: Clock) -> None:
    (_, long), (_, short), (_, longer) = send(1000), send(200), send(1300)
    clock.advance(0.2)
    assert [len(each) for each in (long, short, longer)] == [0, 1, 0]
    assert str(short[0]) == "SEND_MESSAGE (10, opaque 0): no answer from 10.0.0.1:1 in 200 ms"
    clock.advance(0.8)
    clock.advance(0.3)
    assert [type(each[0]) for each in (long, longer)] == [RequestTimedOut] * 2
    assert not clock.getDelayedCalls()


def test_time_begins_when_it_is_written(responses: ResponseTable, clock: Clock) -> None:
    found: list[Any] = []
    request = responses.add(7, RemotingCommand(10), 1000, found.append)
    clock.advance(5)
    responses.written([request])
    clock.advance(0.99)
    assert not found
    clock.advance(0.01)
    assert isinstance(found[0], RequestTimedOut)


def test_what_is_written_when_it_is_over_waits_for_nothing(responses: ResponseTable, clock: Clock) -> None:
    request = responses.add(7, RemotingCommand(10), 1000, list[Any]().append)
    responses.forget(7)
    responses.written([request])
    assert not clock.getDelayedCalls()


def test_a_loop_that_is_always_late_times_out_nevertheless(
    responses: ResponseTable, send: Callable[..., tuple[int, list[Any]]], clock: Clock
) -> None:
    _, found = send()
    over: list[bool] = []
    Timeout(clock.seconds, clock.callLater, 3.0, lambda: over.append(True))
    for _ in range(12):
        clock.advance(0.9)
    assert isinstance(found[0], RequestTimedOut)
    assert over == [True]


def test_time_in_which_the_loop_did_not_turn_is_not_counted(
    responses: ResponseTable, send: Callable[..., tuple[int, list[Any]]], clock: Clock
) -> None:
    assert (extension_s(10.0, 10.001), extension_s(10.0, 10.06), extension_s(10.0, 17.0)) == (0.0, 0.5, 7.0)
    assert (left_s(10.0, 9.0), left_s(10.0, 17.0)) == (1.0, 0.5)
    opaque, found = send()
    clock.advance(8)
    assert not found
    responses.answer(answer(opaque), clock.seconds())
    _, never = send()
    clock.advance(8)
    clock.advance(6.9)
    assert not never
    clock.advance(0.1)
    assert isinstance(never[0], RequestTimedOut)


def test_silence_is_told_where_nothing_was_heard_since_the_request(
    responses: ResponseTable, send: Callable[..., tuple[int, list[Any]]], clock: Clock, silences: list[Any]
) -> None:
    send(1000)
    clock.advance(0.5)
    responses.heard_at = clock.seconds()
    clock.advance(0.5)
    assert silences == []
    send(1000)
    clock.advance(1)
    assert silences == [clock.seconds()]


def test_a_lost_connection_fails_all_that_are_not_forgotten_meanwhile(
    responses: ResponseTable, send: Callable[..., tuple[int, list[Any]]], clock: Clock
) -> None:
    _, first = send(body=bytes(10))
    opaque, second = send(body=bytes(1000))
    _, third = send()

    def why(largest: int) -> ConnectionClosed:
        responses.forget(opaque)
        return ConnectionClosed(f"{largest}")

    responses.lost(why)
    assert [[str(each) for each in found] for found in (first, second, third)] == [["1000"], [], ["1000"]]
    assert not clock.getDelayedCalls()


def test_ten_thousand_time_out_with_one_timer(send: Callable[..., tuple[int, list[Any]]], clock: Clock) -> None:
    found = [send()[1] for _ in range(10_000)]
    assert len(clock.getDelayedCalls()) == 1
    clock.advance(1)
    assert all(isinstance(each[0], RequestTimedOut) for each in found)


def test_a_request_whose_callback_fails_leaves_the_others_their_timeouts(
    responses: ResponseTable, send: Callable[..., tuple[int, list[Any]]], clock: Clock
) -> None:
    def fail(result: object) -> None:
        raise MemoryError

    for _ in range(2):
        responses.written([responses.add(responses.next_opaque(), RemotingCommand(10), 1000, fail)])
        _, over = send(timeout_ms=1000)
        _, found = send(timeout_ms=2000)
        with pytest.raises(MemoryError):
            clock.advance(1.05)
        assert over == found == []
        clock.advance(0)
        assert [type(each) for each in over] == [RequestTimedOut]
        assert found == []
        clock.advance(0.95)
        assert [type(each) for each in found] == [RequestTimedOut]
        assert not clock.getDelayedCalls()


def test_a_timeout_is_cancelled_or_over(clock: Clock) -> None:
    calls = []
    cancelled, over = (Timeout(clock.seconds, clock.callLater, 1, lambda: calls.append(1)) for _ in range(2))
    cancelled.cancel()
    clock.advance(3)
    assert calls == []
    clock.advance(2)
    assert (calls, over.is_over, cancelled.is_over) == ([1], True, False)
    over.cancel()
