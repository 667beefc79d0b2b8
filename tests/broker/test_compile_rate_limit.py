"""How much of filter expressions a connection may have read, by each of the ways in which it brings them."""

from collections.abc import Callable
from typing import cast

import attrs
import pytest
from twisted.internet.task import Clock

from mqbroker.broker.filter_table import CHARACTERS_AT_ONCE, CHARACTERS_PER_SECOND, CompileRateLimit
from mqbroker.errors import Refused
from mqbroker.filter import Expression, sql92
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.bodies import CheckClientRequestBody, SubscriptionData
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.broker.bench import Bench, Client
from tests.broker.test_filtered_pulls import pull, put, sql
from tests.broker.test_pull import beat, bodies

LENGTH = 16_000


class Connection:
    """All that is asked of it is who it is."""


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    sql92._kept.clear()
    return make_bench(enable_property_filter=True)


def long(number: int | str) -> str:
    """An expression as long as they may be, which no other is."""
    text = f"a > 5 AND b{number} IS NULL"
    return text + " " * (LENGTH - len(text))


def use_up(client: Client) -> None:
    """Have so many expressions read that no other long one may be."""
    put(client, 9)
    for number in range(CHARACTERS_AT_ONCE // LENGTH):
        assert pull(client, long(number)).code != ResponseCode.SYSTEM_BUSY


def test_an_allowance_is_used_up_and_comes_back() -> None:
    clock, connection = Clock(), cast(IConnection, Connection())
    rate_limit = CompileRateLimit(clock.seconds)
    charge = rate_limit.of(connection)
    charge(CHARACTERS_AT_ONCE - 10)
    with pytest.raises(Refused, match="11 characters more") as refusal:
        charge(11)
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    charge(10)  # what is refused is not charged
    clock.advance(1)
    with pytest.raises(Refused):
        charge(CHARACTERS_PER_SECOND + 1)
    charge(CHARACTERS_PER_SECOND)
    clock.advance(3600)
    with pytest.raises(Refused):
        charge(CHARACTERS_AT_ONCE + 1)
    charge(CHARACTERS_AT_ONCE)


def test_each_connection_has_its_own_which_goes_with_it() -> None:
    rate_limit = CompileRateLimit(Clock().seconds)
    first, second = cast(IConnection, Connection()), cast(IConnection, Connection())
    rate_limit.of(first)(CHARACTERS_AT_ONCE)
    rate_limit.of(second)(CHARACTERS_AT_ONCE)
    assert len(rate_limit._left) == 2
    del first
    assert len(rate_limit._left) == 1


def test_pulls_that_bring_ever_new_expressions_are_told_to_come_later(bench: Bench, client: Client) -> None:
    use_up(client)
    refused = pull(client, long("x"))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark.startswith("filter expressions come too fast: 16000 characters more")
    assert bodies(pull(client, long(0))) == [b"9"]  # which is kept
    assert bodies(pull(bench.client(), long("x"))) == [b"9"]
    bench.clock.advance(LENGTH / CHARACTERS_PER_SECOND)
    assert bodies(pull(client, long("y"))) == [b"9"]


def test_of_a_heartbeat_only_so_much_is_read_and_the_rest_of_the_next(bench: Bench, client: Client) -> None:
    topics = [f"T{number}" for number in range(6)]
    wanted = [sql(long(topic), topic=topic) for topic in topics]
    beat(client, *wanted)
    read = [topic for topic in topics if bench.parts.filters.get(topic, "CG") is not None]
    assert read == topics[: CHARACTERS_AT_ONCE // LENGTH]
    bench.clock.advance(30)
    beat(client, *wanted)
    assert all(bench.parts.filters.get(topic, "CG") is not None for topic in topics)


def test_retries_are_filtered_by_as_many_expressions_of_the_file_as_may_be_read(
    make_bench: Callable[..., Bench],
) -> None:
    """The others are let through: they were wanted when they came first."""
    sql92._kept.clear()
    bench = make_bench(enable_property_filter=True, filter_support_retry=True)
    client = bench.client()
    topics = [f"T{number}" for number in range(6)]
    for topic in topics:
        beat(client, *(sql(long(known), topic=known) for known in topics))
        bench.clock.advance(LENGTH / CHARACTERS_PER_SECOND)
        client.send("%RETRY%CG", topic.encode(), properties=f"a\x011\x02RETRY_TOPIC\x01{topic}")
    filters = bench.parts.filters
    for topic in topics:  # as a start leaves them that has read enough
        one = filters.get(topic, "CG")
        filters._put(attrs.evolve(one, expression=Expression(one.expression.text, lambda: True), is_read=False))
    sql92._kept.clear()
    ask = bench.client().pull
    let_through = [topic.encode() for topic in topics[CHARACTERS_AT_ONCE // LENGTH :]]
    assert bodies(ask("%RETRY%CG", consumer_group="CG")) == let_through
    bench.clock.advance(len(let_through) * LENGTH / CHARACTERS_PER_SECOND)
    assert bodies(ask("%RETRY%CG", consumer_group="CG")) == []


def test_a_client_that_asks_whether_expressions_can_be_served_is_bounded_too(client: Client) -> None:
    use_up(client)
    body = CheckClientRequestBody("c1", "CG", SubscriptionData("T", long("x"), expression_type="SQL92"))
    answer = client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())
    assert answer.code == ResponseCode.SYSTEM_BUSY
