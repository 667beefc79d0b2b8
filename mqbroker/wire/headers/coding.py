"""Encoding of header classes as extFields, and decoding.

A field's name on the wire is its camelCase form unless `wire(...)` says otherwise. A field without a default is
required; Java's nullable fields default to None and its primitive ones to 0 or false, as Java decodes them.
`decode_header` checks presence, type and range; `encode_header` omits None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from mqbroker.errors import Refused
from mqbroker.wire.codes import ResponseCode

# The same Python type: the name in the annotation selects the range that is checked on decoding.
Int = int
Long = int


class Header:
    """Base class of all headers; it adds nothing."""


H = TypeVar("H", bound=Header)


def wire(key: str, **more: Any) -> Any:
    """A field whose name on the wire is `key`."""
    return attrs.field(metadata={"key": key}, **more)


_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_RANGES = {"Int": _INT32, "Long": _INT64}
# So many digits without a sign are always in range.
_PLAIN_DIGITS = {"Int": 9, "Long": 18}
_integer = re.compile(r"[+-]?[0-9]{1,20}").fullmatch
# field, name on the wire, kind, whether it is required
_Plan = list[tuple[str, str, str, bool]]
_plans: dict[type[Header], _Plan] = {}
_decoders: dict[type[Header], Callable[[Mapping[str, str]], Any]] = {}


def camel_case(name: str) -> str:
    """The name of a field on the wire."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _plan(cls: type[Header]) -> _Plan:
    """Field descriptions of `cls`, in order."""
    plan = _plans.get(cls)
    if plan is None:
        plan = []
        for field in attrs.fields(cls):  # type: ignore[arg-type]
            kind = str(field.type).split(" ")[0]
            key = field.metadata.get("key") or camel_case(field.name)
            plan.append((field.name, key, kind, field.default is attrs.NOTHING))
        _plans[cls] = plan  # when it is complete: other threads use it at once
    return plan


def decode_header(cls: type[H], ext_fields: Mapping[str, str]) -> H:
    """Decode a header. Raises Refused(SYSTEM_ERROR), naming the field, if one is missing or not of its type."""
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = _make_decoder(cls)
    try:
        return decoder(ext_fields)  # type: ignore[no-any-return]
    except KeyError as missing:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{missing.args[0]}> is null") from None


def _make_decoder(cls: type[H]) -> Callable[[Mapping[str, str]], H]:
    """Generate the decoder of `cls`, field by field, as attrs generates methods: hot, and a loop over the plan takes
    half as long again."""
    lines, arguments = ["def decode(ext):"], []
    for name, key, kind, is_required in _plan(cls):
        if kind in _RANGES:
            value = (
                f"int(text) if len(text) <= {_PLAIN_DIGITS[kind]} and text.isdigit() and text.isascii()"
                f" else _decode_integer({key!r}, text, {kind!r})"
            )
        else:
            value = "text" if kind == "str" else 'text.lower() == "true"'
        if is_required:
            lines.append(f"    text = ext[{key!r}]")
        else:
            lines.append(f"    text = ext.get({key!r})")
            value = f"defaults.{name}.default if text is None else {value}"
        lines.append(f"    {name} = {value}")
        arguments.append(f"{name}={name}")
    lines.append(f"    return cls({', '.join(arguments)})")
    names: dict[str, Any] = {"cls": cls, "defaults": attrs.fields(cls), "_decode_integer": _decode_integer}  # type: ignore[arg-type]
    exec("\n".join(lines), names)  # generated only from the names of header classes
    return names["decode"]  # type: ignore[no-any-return]


def _decode_integer(key: str, text: str, kind: str) -> int:
    low, high = _RANGES[kind]
    if not _integer(text) or not low <= (value := int(text)) <= high:
        bits = 32 if kind == "Int" else 64
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{key}> is not a {bits}-bit integer: {text[:40]!r}")
    return value


def encode_header(header: Header) -> dict[str, str]:
    """Return the extFields of `header`."""
    ext: dict[str, str] = {}
    for name, key, kind, _ in _plan(type(header)):
        value = getattr(header, name)
        if value is None:
            continue
        if kind == "bool":
            ext[key] = "true" if value else "false"
        else:
            ext[key] = str(value) if kind == "str" else str(int(value))
    return ext
