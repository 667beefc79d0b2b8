"""Requests that waited too long to be taken."""

from collections.abc import Callable

import pytest
from twisted.internet.task import Clock

from mqbroker.broker.fast_failure import TickingTurnClock
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand
from tests.broker.bench import Bench, Client, send_command
from tests.broker.test_client_requests import beat
from tests.broker.test_send_back import send_back

BUSY = ResponseCode.SYSTEM_BUSY


def waited(bench: Bench, seconds: float) -> None:
    """Let what comes now have waited for so long."""
    bench.turns.turn_began = bench.clock.seconds() - seconds


def remark(ms: int, size: int = 1, why: str = "TIMEOUT_CLEAN_QUEUE") -> str:
    return f"[{why}]broker busy, start flow control for a while, period in queue: {ms}ms, size of queue: {size}"


def send(client: Client) -> RemotingCommand:
    return client.send()[0]


KINDS = {
    "send": (send, 0.125, 0.25),
    "send v1": (lambda client: client.send(code=RequestCode.SEND_MESSAGE)[0], 0.125, 0.25),
    "batch": (lambda client: client.send(code=RequestCode.SEND_BATCH_MESSAGE)[0], 0.125, 0.25),
    "send back": (lambda client: send_back(client, 0), 0.125, 0.25),
    "pull": (lambda client: client.pull(queue_offset=0), 4.75, 5.25),
    "heartbeat": (lambda client: beat(client, producers=["PG"]), 30.75, 31.25),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_waited_too_long_is_refused(bench: Bench, client: Client, kind: str) -> None:
    ask, in_time, late = KINDS[kind]
    client.send()
    waited(bench, in_time)
    assert ask(client).code != BUSY
    waited(bench, late)
    answer = ask(client)
    assert answer.code == BUSY
    why = "PCBUSY_CLEAN_QUEUE" if "pull" not in kind and late >= 1 and kind != "heartbeat" else "TIMEOUT_CLEAN_QUEUE"
    assert answer.remark == remark(int(late * 1000), why=why)
    waited(bench, 0)
    assert ask(client).code != BUSY


def test_all_of_one_read_are_refused_and_nothing_is_stored(bench: Bench, client: Client) -> None:
    client.send()
    waited(bench, 0.5)
    answers = client.ask_all(*[send_command() for _ in range(3)])
    assert [(answer.code, answer.remark) for answer in answers] == [(BUSY, remark(500, 3))] * 3
    quiet = send_command()
    quiet.flag |= ONEWAY_FLAG
    assert client.ask_all(quiet) == []
    assert len(bench.records("T")) == 1


def test_what_took_so_long_is_named(bench: Bench, client: Client) -> None:
    """The log, where sends were taken in this turn and those after them had to wait."""
    client.send()
    waited(bench, 0)
    client.send()
    bench.clock.advance(1.25)
    assert send(client).remark == remark(1250, why="PCBUSY_CLEAN_QUEUE")
    waited(bench, 0.5)
    assert send(client).remark == remark(500)


def test_others_are_served_however_long_they_waited(bench: Bench, client: Client) -> None:
    waited(bench, 1000)
    assert client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).code == 0


def test_it_may_be_switched_off(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("patient", broker_fast_failure_enable=False)
    client = bench.client()
    waited(bench, 1000)
    assert send(client).code == 0
    assert beat(client, producers=["PG"]).code == 0


def test_the_times_are_settings(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("hasty", wait_time_ms_in_send_queue=50, wait_time_ms_in_pull_queue=100,
                       wait_time_ms_in_heartbeat_queue=100)  # fmt: skip
    client = bench.client()
    waited(bench, 0.125)
    assert [send(client).code, client.pull().code, beat(client, producers=["PG"]).code] == [BUSY] * 3


def test_they_may_be_changed_while_it_runs(bench: Bench, client: Client) -> None:
    client.send()
    waited(bench, 0.25)
    assert send(client).code == BUSY
    bench.parts.live.change({"waitTimeMillsInSendQueue": "300"})
    assert send(client).code == 0
    bench.parts.live.change({"brokerFastFailureEnable": "false"})
    waited(bench, 100)
    assert send(client).code == 0


def test_a_reactor_that_does_not_tell_is_watched_by_a_timer(clock: Clock) -> None:
    turns = TickingTurnClock(clock.seconds)
    assert clock.seconds() - turns.turn_began < 0
    turns.tick()
    clock.advance(TickingTurnClock.SECONDS)
    assert clock.seconds() - turns.turn_began < 0.001  # it slept, nobody waited
    clock.advance(1)
    assert clock.seconds() - turns.turn_began >= 0.999
