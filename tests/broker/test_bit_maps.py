"""Bit maps of messages: what is written for whom, and how pulls use them."""

from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.broker.filter_table import FilterTable
from mqbroker.broker.subscription_resolver import ExpressionFilter
from mqbroker.filter import compile_expression
from mqbroker.filter.bloom import BloomData
from mqbroker.filter.sql92 import Expression
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.dispatch import IDLE_S
from tests.broker.bench import START, Bench, Client
from tests.broker.test_filtered_pulls import put, sql
from tests.broker.test_pull import beat, bodies

NOW = START * 1000


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(
        store={"enable_consume_queue_ext": True}, enable_property_filter=True, enable_calc_filter_bit_map=True
    )


def units(bench: Bench, topic: str = "T") -> list[ExtUnit]:
    bench.store.dispatch_now()
    queue = bench.store._queues.by_name[topic, 0]
    return [queue.ext.unit(queue.entry(offset)[2]) for offset in range(queue.max_offset)]


def test_the_bits_of_those_who_want_a_message_are_set(bench: Bench, client: Client) -> None:
    beat(client, sql("a > 5"))
    beat(client, sql("a < 8"), sql("a = 0", topic="U"), group="other")
    put(client, 1, 7, 9)
    put(client, 1, topic="V")
    bloom = bench.parts.filters.bloom
    first, second = bloom.of("CG#T").mask, bloom.of("other#T").mask
    assert len({0, first, second, first | second}) == 4
    bits = [second, first | second, first]
    assert [unit.bit_map for unit in units(bench)] == [number.to_bytes(14, "little") for number in bits]
    assert [unit.bit_map for unit in units(bench, "V")] == [b""]
    put(client, 1, topic="U")
    put(client, 0, topic="U")
    bench.turn(IDLE_S)
    assert [any(unit.bit_map) for unit in units(bench, "U")] == [False, True]


def test_those_who_are_gone_are_counted_on(bench: Bench, client: Client) -> None:
    beat(client, sql("a > 5"))
    client.peer.transport.loseConnection()
    client.link.pump()
    put(bench.client(), 7)
    assert any(units(bench)[0].bit_map)


def test_a_message_that_cannot_be_evaluated_has_no_bits(bench: Bench, client: Client) -> None:
    beat(client, sql("a > 5"))
    client.send(properties="a\x01x")
    client.send(properties="")
    assert [unit.bit_map for unit in units(bench)] == [bytes(14)] * 2


@pytest.mark.parametrize("off", [{"enable_calc_filter_bit_map": False}, {"store": {}}])
def test_without_the_settings_nothing_is_computed(
    make_bench: Callable[..., Bench], off: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FilterTable, "bit_maps_of", lambda *args: pytest.fail("bit maps are off"))
    on = {"store": {"enable_consume_queue_ext": True}, "enable_calc_filter_bit_map": True}
    bench = make_bench(enable_property_filter=True, **{**on, **off})
    client = bench.client()
    beat(client, sql("a > 5"))
    put(client, 7)
    bench.store.dispatch_now()
    if "store" not in off:
        assert units(bench)[0].bit_map == b""


def test_pulls_look_at_the_properties_only_where_the_bits_allow_it(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages from before the consumer, and with a map, and again without one."""
    put(client, 1, 9)
    bench.turn(1)
    beat(client, sql("a > 5"))
    bench.turn(1)
    put(client, 2, 8)
    bench.store.dispatch_now()
    bench.store.make_bit_maps(lambda topic: None)
    put(client, 3, 7)
    bench.store.dispatch_now()
    asked: list[Any] = []
    made = ExpressionFilter.__init__

    def make(property_filter: ExpressionFilter, expression: Expression, *more: Any) -> None:
        made(property_filter, expression, *more)
        property_filter.pick = lambda messages, most: (
            asked.extend(message[2:3] for message in messages),
            expression.pick(messages, most),
        )[1]

    monkeypatch.setattr(ExpressionFilter, "__init__", make)
    assert bodies(client.pull(sys_flag=0)) == [b"9", b"8", b"7"]
    assert asked == [b"1", b"9", b"8", b"3", b"7"]  # 2 was ruled out by its bits
    asked.clear()
    assert bodies(client.pull(subscription="a > 5", expression_type="SQL92")) == [b"9", b"8", b"7"]
    assert len(asked) == 6  # an expression in the pull has no bits


def property_filter(*positions: int, count: int = 16, born: int = NOW) -> ExpressionFilter:
    return ExpressionFilter(compile_expression("a > 5"), BloomData(positions, count), born)


@pytest.mark.parametrize(
    ("bit_map", "stored", "outcome"),
    [
        (b"\x02\x01", NOW + 1, True),  # bits 1 and 8
        (b"\xff\xff", NOW + 1, True),
        (b"\x02\x00", NOW + 1, False),
        (b"\x00\x01", NOW + 1, False),
        (b"\x00\x00", NOW + 1, False),
        (b"\x00\x00", NOW, True),  # from before the filter
        (b"", NOW + 1, True),  # not computed
        (b"\x00", NOW + 1, True),  # of another shape
        (b"\x00\x00\x00", NOW + 1, True),
    ],
)
def test_what_bits_say(bit_map: bytes, stored: int, outcome: bool) -> None:
    assert property_filter(1, 8).may_match(ExtUnit(0, stored, bit_map)) is outcome


def test_an_expression_without_bits_may_match_anything() -> None:
    assert ExpressionFilter(compile_expression("a > 5")).may_match(ExtUnit(0, NOW, b"\x00"))


def test_maps_survive_a_restart_and_are_not_made_again(
    make_bench: Callable[..., Bench], bench: Bench, client: Client
) -> None:
    beat(client, sql("a > 5"))
    put(client, 7)
    before = units(bench)
    bench.parts.filters.persist()
    bench.close()
    bench.close = lambda: None
    again = make_bench(
        store={"enable_consume_queue_ext": True}, enable_property_filter=True, enable_calc_filter_bit_map=True
    )
    assert units(again) == before
    client = again.client()
    beat(client, sql("a > 5"))
    assert bodies(client.pull(sys_flag=0)) == [b"7"]
    again.turn(1)
    put(client, 9)
    assert units(again)[1].bit_map == before[0].bit_map
