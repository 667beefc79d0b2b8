"""Topics whose messages have values of one type: what a body and its key are made of, and what a body is read as."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

import attrs

from mqbroker.client.errors import BadMessage, short
from mqbroker.client.messages import Message, ReceivedMessage

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Converts values to bodies and back. Its exceptions are raised as BadMessage."""

    def dump(self, value: T, /) -> bytes: ...

    def load(self, body: bytes, /) -> T: ...


class Json(Generic[T]):
    """Values as JSON in UTF-8: those of `json`, or objects of a class of attrs or dataclasses.

    `Json(Order)` reads an object of JSON as `Order(**fields)`, or by `load`, a function that is given it; it writes the
    object's fields, nested ones as well.
    """

    @overload
    def __init__(self: Json[Any], kind: None = None) -> None: ...
    @overload
    def __init__(self, kind: type[T], load: Callable[[Any], T] | None = None) -> None: ...
    def __init__(self, kind: type[T] | None = None, load: Callable[[Any], T] | None = None) -> None:
        self._kind = kind
        self._load: Callable[[Any], Any] = load or (lambda found: found if kind is None else kind(**found))

    def dump(self, value: T) -> bytes:
        if self._kind is not None and not isinstance(value, self._kind):
            raise TypeError(f"{self._kind.__name__} is sent, not {short(value)}")
        return json.dumps(value, default=_fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def load(self, body: bytes) -> T:
        found: T = self._load(json.loads(body))
        return found


def _fields(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class Topic(Generic[T]):
    """A topic whose messages have values of one type, which `serializer` writes and reads.

    An order is sent, and read again::

        orders = Topic("orders", Json(Order), key=lambda order: order.id)
        producer.send(orders.message(Order("o-1", 3)))
        order = orders.value(received)  # an Order, for mypy as well
    """

    def __init__(self, name: str, serializer: Serializer[T], *, key: Callable[[T], str | None] | None = None) -> None:
        """`key` returns what finds the message of a value in the broker's index, or None."""
        self.name = name
        self._serializer = serializer
        self._key = key

    def message(self, value: T, **fields: Any) -> Message:
        """A message with this value; `fields` are those of Message. Raises BadMessage."""
        try:
            key = None if self._key is None else self._key(value)
            body = self._serializer.dump(value)
        except Exception as error:
            raise BadMessage(f"message to topic {self.name}: the value cannot be written: {error}") from error
        if key is not None:
            fields.setdefault("keys", (key,))
        return Message(self.name, body, **fields)

    def value(self, message: ReceivedMessage) -> T:
        """The value of a message. Raises BadMessage, with which a listener has it come again, and at last be a dead
        letter."""
        try:
            if message.body_error is not None:
                raise BadMessage(message.body_error)
            return self._serializer.load(message.body)
        except Exception as error:
            why = f"message {message.msg_id} of topic {message.topic}: the value cannot be read: {error}"
            raise BadMessage(why) from error
