"""Groups that read too slowly."""

from collections.abc import Callable

import attrs
import pytest

from mqbroker.broker.slow_consumers import CHECK_SECONDS
from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import Bench, Client
from tests.broker.test_client_requests import beat, consumer
from tests.remoting.logs import Logged


@pytest.fixture
def slow(make_bench: Callable[..., Bench]) -> Callable[..., tuple[Bench, Client]]:
    """A bench whose group CG has all of T to read, 10 messages of 1000 bytes."""

    def make(**changes: int) -> tuple[Bench, Client]:
        bench = make_bench("slow", **changes)
        client = bench.client()
        for _ in range(10):
            client.send(body=bytes(1000))
        bench.store.dispatch_now()
        beat(client, consumers=[consumer("CG", "T", "Nowhere")])
        bench.offsets.commit("CG", "T", 0, 0)
        return bench, client

    return make


ON = {"disable_consume_if_consumer_read_slowly": True}


def look(bench: Bench) -> None:
    looked = bench.parts.slow_consumers.check()
    assert looked is None or looked.called


def test_a_group_too_far_behind_is_switched_off(slow: Callable[..., tuple[Bench, Client]], logged: Logged) -> None:
    bench, client = slow(**ON, consumer_fallbehind_threshold=10_000)
    assert client.pull().code == 0
    look(bench)
    answer = client.pull()
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "subscription group no permission, CG")
    (line,) = [line for line in logged.lines if "PROTECT_BROKER" in line]
    assert line == f"[PROTECT_BROKER] the consumer[CG] consume slowly, {bench.store.log_end} bytes, disable it"
    look(bench)
    assert len([line for line in logged.lines if "PROTECT_BROKER" in line]) == 1


@pytest.mark.parametrize(
    ("changes", "offset"),
    [
        ({"consumer_fallbehind_threshold": 1}, 0),
        ({**ON, "consumer_fallbehind_threshold": 100_000}, 0),
        ({**ON, "consumer_fallbehind_threshold": 2000}, 9),
        ({**ON, "consumer_fallbehind_threshold": 1}, 10),
        ({**ON, "consumer_fallbehind_threshold": 1}, 99),
        ({**ON, "consumer_fallbehind_threshold": 1}, -1),
    ],
    ids=["not wanted", "not so far", "near the end", "at the end", "beyond the end", "nowhere"],
)
def test_others_are_not(slow: Callable[..., tuple[Bench, Client]], changes: dict[str, int], offset: int) -> None:
    bench, client = slow(**changes)
    bench.offsets.commit("CG", "T", 0, offset)
    look(bench)
    assert client.pull().code == 0


def test_a_group_that_is_not_there_is_left_alone(slow: Callable[..., tuple[Bench, Client]]) -> None:
    bench, client = slow(**ON, consumer_fallbehind_threshold=1)
    bench.consumers.unregister(client.connection, "CG")
    look(bench)
    assert client.pull().code == 0


def test_it_is_looked_for_while_the_broker_runs(bench: Bench) -> None:
    assert (CHECK_SECONDS, bench.parts.slow_consumers.check) in bench.parts.periodic()


def test_a_group_that_cannot_be_checked_keeps_nobody_from_the_check(
    slow: Callable[..., tuple[Bench, Client]], logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, client = slow(**ON, consumer_fallbehind_threshold=10_000)
    # One group before that which cannot be checked, and one after it.
    beat(client, consumers=[consumer("CG", "T"), consumer("AG", "Lost"), consumer("DG", "T")])
    bench.offsets.commit("DG", "T", 0, 0)
    by_queue = bench.offsets.by_queue

    def fail(group: str, topic: str) -> dict[int, int]:
        if topic == "Lost":
            raise MemoryError
        return by_queue(group, topic)

    monkeypatch.setattr(bench.offsets, "by_queue", fail)
    for switched_off in range(1, 4):
        look(bench)
        assert len([line for line in logged.lines if "PROTECT_BROKER" in line]) == 2 * switched_off
        for name in ("CG", "DG"):
            group = bench.groups.find(name)
            assert not group.consume_enable
            bench.groups.put(attrs.evolve(group, consume_enable=True))
    assert len([line for line in logged.lines if "offsets of AG cannot be checked" in line]) == 3
