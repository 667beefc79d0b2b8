"""Base of JSON bodies: frozen values that are encoded from their fields, and checked when they are decoded.

A field's name in JSON is its camelCase form unless `wire(...)` says otherwise; unknown fields are skipped, as Fastjson
skips them. Decoding raises BadBody if a field without a default is missing or is of another type.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Annotated, Any, Self, get_args, get_origin

import attrs

from mqbroker.errors import MQError
from mqbroker.wire import fastjson, strict_json
from mqbroker.wire.headers import camel_case

_integer = re.compile(r"-?[0-9]{1,20}").fullmatch

#: A Java int; all other integers are longs. Java peers could not read a larger one.
Int = Annotated[int, "32 bits"]

#: Maximum bytes of a peer's body; decoding takes 100 ms then.
JSON_BYTES_MAX = 1024 * 1024
#: Maximum bytes of a request's body that is not strict JSON; decoding takes 50 ms then.
DIALECT_BYTES_MAX = 64 * 1024
#: The same for a response's body: routes and clusters have keys that are not strict JSON.
ANSWERED_DIALECT_BYTES_MAX = 1024 * 1024


#: Elements of a set that are sorted; larger sets are not.
SORTED_MAX = 1000


class BadBody(MQError):
    """A body that is invalid for its request or response."""


class Body:
    """Base class of bodies: values with a JSON form."""

    def to_value(self) -> dict[str, Any]:
        """The JSON object as a dict, for embedding; None is omitted, as by Fastjson."""
        plan = _plan(type(self))
        if type(self) in _flat:
            return {key: value for name, key, _, _ in plan if (value := getattr(self, name)) is not None}
        return {key: _to_value(value) for name, key, _, _ in plan if (value := getattr(self, name)) is not None}

    def to_json(self) -> bytes:
        """The body's bytes."""
        return fastjson.dumps(self.to_value())

    def json_pieces(self) -> Iterator[bytes]:
        """The result of `to_json` in pieces, so that the caller can do other work in between: each is one scalar, or
        one body of scalars. The value must not change meanwhile."""
        return _pieces(self, b"")

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Make one from a decoded JSON object. Raises BadBody."""
        if isinstance(value, fastjson.JsonKey):
            value = value.as_dict()
        if not isinstance(value, Mapping):
            raise BadBody(f"{cls.__name__} must be an object, not {type(value).__name__}")
        found: dict[str, Any] = {}
        for name, key, kind, required in _plan(cls):
            item = value.get(key)
            # The common case, for bodies of ten thousand values.
            if type(item) is kind and kind in _AS_THEY_ARE:
                found[name] = item
            elif item is not None:
                found[name] = _from_value(kind, item, f"{cls.__name__}.{key}")
            elif required:
                raise BadBody(f"{cls.__name__}.{key} is missing")
        return cls(**found)

    @classmethod
    def from_json(cls, data: bytes, dialect_bytes_max: int | None = DIALECT_BYTES_MAX) -> Self:
        """Decode a body. Raises BadBody. None allows any length, for the broker's own files."""
        if dialect_bytes_max is not None and len(data) > JSON_BYTES_MAX:
            raise BadBody(f"{cls.__name__}: {len(data)} bytes, {JSON_BYTES_MAX} at most")
        try:
            return cls.from_value(fastjson.loads(data, dialect_bytes_max))
        except fastjson.BadJson as error:
            raise BadBody(f"{cls.__name__}: {error}") from None


_plans: dict[type[Body], list[tuple[str, str, Any, bool]]] = {}
_SCALARS = (str, int, Int, bool, float)
_AS_THEY_ARE = (str, bool)
#: Classes with only scalar fields, of which one body may have many.
_flat: set[type[Body]] = set()


def _plan(cls: type[Body]) -> list[tuple[str, str, Any, bool]]:
    """(field, name in JSON, type, must be there) for each field of `cls`, in order."""
    if cls not in _plans:
        plan = _make_plan(cls)
        if all(kind in _SCALARS for _, _, kind, _ in plan):
            _flat.add(cls)
        _plans[cls] = plan  # last: other threads use both at once
    return _plans[cls]


def _make_plan(cls: type[Body]) -> list[tuple[str, str, Any, bool]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = attrs.fields(cls)  # type: ignore[arg-type]
    return [
        (f.name, f.metadata.get("key") or camel_case(f.name), hints[f.name], f.default is attrs.NOTHING) for f in fields
    ]


def _to_value(value: Any) -> Any:
    if isinstance(value, Body):
        return value.to_value()
    if isinstance(value, Mapping):
        return {_to_key(key): _to_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = _in_order(value) if isinstance(value, set | frozenset) else value
        try:
            "".join(items)  # the fastest check that all are text: a TypeError if not
        except TypeError:
            return [_to_value(item) for item in items]
        return list(items)
    return value


def _in_order(values: Set[Any]) -> Collection[Any]:
    """Sort small sets, for readers and comparisons; sorting large ones would take longer than all the rest."""
    return sorted(values) if len(values) <= SORTED_MAX else values


def _to_key(key: Any) -> Any:
    return fastjson.JsonKey.of(key.to_value()) if isinstance(key, Body) else key


def _from_value(kind: Any, value: Any, where: str) -> Any:
    if kind is int or kind is Int:
        return _whole_number(kind, value, where)
    origin = get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _from_value(get_args(kind)[0], value, where)
    if origin is dict:
        key_kind, item_kind = get_args(kind)
        if not isinstance(value, Mapping):
            raise BadBody(f"{where} must be an object")
        return {_from_key(key_kind, k, where): _from_value(item_kind, v, where) for k, v in value.items()}
    if origin in (list, frozenset, tuple):
        if not isinstance(value, list):
            raise BadBody(f"{where} must be an array")
        return origin(_from_value(get_args(kind)[0], item, where) for item in value)
    if isinstance(kind, type) and issubclass(kind, Body):
        return kind.from_value(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise BadBody(f"{where} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _whole_number(kind: Any, value: Any, where: str) -> int:
    if type(value) is str and _integer(value):
        value = int(value)
    if type(value) is not int:
        raise BadBody(f"{where} must be int, not {type(value).__name__}")
    if -0x80000000 <= value <= 0x7FFFFFFF or (kind is int and -(2**63) <= value < 2**63):
        return value
    raise BadBody(f"{where} must be a {64 if kind is int else 32}-bit integer, not {value}")


def _from_key(kind: Any, key: Any, where: str) -> Any:
    if kind is str:
        return str(key)
    return _from_value(kind, key, where)


def _pieces(value: Any, lead: bytes) -> Iterator[bytes]:
    """The pieces of one value, `lead` before the first."""
    if isinstance(value, Body):
        plan = _plan(type(value))
        if type(value) in _flat:
            yield lead + strict_json.dumps(value.to_value())
            return
        fields = ((key, getattr(value, name)) for name, key, _, _ in plan)
        yield from _object(((strict_json.dumps(key), item) for key, item in fields if item is not None), lead)
    elif isinstance(value, Mapping):
        yield from _object(((_key(key), item) for key, item in value.items()), lead)
    elif isinstance(value, list | tuple | set | frozenset):
        before = lead + b"["
        for item in _in_order(value) if isinstance(value, set | frozenset) else value:
            yield from _pieces(item, before)
            before = b","
        yield b"]" if before == b"," else before + b"]"
    else:
        yield lead + strict_json.dumps(value)


def _object(items: Iterator[tuple[bytes, Any]], lead: bytes) -> Iterator[bytes]:
    before = lead + b"{"
    for key, item in items:
        yield from _pieces(item, before + key + b":")
        before = b","
    yield b"}" if before == b"," else before + b"}"


def _key(key: Any) -> bytes:
    """A key as Fastjson writes it: an object with its fields in order, a number unquoted."""
    return strict_json.dumps(dict(sorted(key.to_value().items())) if isinstance(key, Body) else key)
