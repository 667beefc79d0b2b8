"""Topics whose messages have values of one type."""

import dataclasses
from queue import SimpleQueue
from typing import Any, assert_type

import attrs
import pytest

from mqbroker.client import BadMessage, Json, Topic
from tests.client.test_contract import FROM_FIRST

ON_EACH_BROKER = True


@attrs.frozen
class Line:
    item: str
    count: int


@dataclasses.dataclass
class Order:
    id: str
    lines: list[Line]


def read_order(found: Any) -> Order:
    return Order(found["id"], [Line(**line) for line in found["lines"]])


LINES = Topic("T", Json(Line), key=lambda line: line.item)
ORDERS = Topic("T", Json(Order, read_order), key=lambda order: order.id or None)


class Shouted:
    def dump(self, value: str, /) -> bytes:
        return value.upper().encode()

    def load(self, body: bytes, /) -> str:
        return body.decode().lower()


def test_a_value_comes_back_as_it_was_on_each_api(face: Any, producer: Any) -> None:
    order = Order("o-1", [Line("pear \u00e4", 3)])
    got: SimpleQueue[Any] = SimpleQueue()
    member = face.make("PushConsumer", "g", got.put, options=FROM_FIRST)
    member.subscribe("T")
    with member:
        producer.send(ORDERS.message(order, tags="new"))
        received = face.get(got)
    assert (received.keys, received.tags) == (("o-1",), "new")
    value = ORDERS.value(received)
    assert_type(value, Order)
    assert value == order


def test_values_of_users_classes_and_plain_json() -> None:
    shouted, anything = Topic("T", Shouted()), Topic("T", Json())
    assert_type(shouted, Topic[str])
    assert shouted.message("hello").body == b"HELLO"
    assert anything.message({"a": [1, None]}).body == b'{"a":[1,null]}'
    assert LINES.message(Line("x", 2)).body == b'{"item":"x","count":2}'
    assert LINES.message(Line("x", 2), keys=("other",)).keys == ("other",)
    assert ORDERS.message(Order("", [])).keys == ()


class Received:
    topic, msg_id = "T", "ID"

    def __init__(self, body: bytes) -> None:
        self.body = body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"item": 1}', b"\xff", b"[" * 100_000, b'{"x": NaN}'])
def test_a_body_that_has_no_value_says_which_message(body: bytes) -> None:
    with pytest.raises(BadMessage, match="message ID of topic T: the value cannot be read: "):
        LINES.value(Received(body))  # type: ignore[arg-type]


UNWRITABLE: Any = object(), float("nan")


@pytest.mark.parametrize("value", [None, "text", Order("x", []), *(Line("x", count) for count in UNWRITABLE)])
def test_a_value_of_another_type_is_not_sent(value: Any) -> None:
    with pytest.raises(BadMessage, match="message to topic T: the value cannot be written: "):
        LINES.message(value)
