"""The makers of the settings' attrs fields: each carries its key in the file, its parser and what it is for.

The key is the field's name in camelCase without the unit; the few of Java's that are spelled otherwise say so.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import attrs

from mqbroker.config.kinds import (
    INT_MAX,
    LONG_MAX,
    OneOf,
    Parser,
    Whole,
    parse_boolean,
    parse_text,
    show,
)

E = TypeVar("E", bound=Enum)

_NOTE = "setting"


@attrs.frozen
class Note:
    """What a field knows beside its default. `clamp`: out of the range a value is moved to its end, as Java does."""

    parse: Parser
    show: Callable[[Any], str] = show
    key: str | None = None
    unit: str = ""
    important: bool = False
    clamp: tuple[int, int] | None = None


@attrs.frozen
class Setting:
    """One setting: its key in the file, the field that holds it, and its note."""

    key: str
    field: str
    note: Note


def settings_of(cls: type) -> tuple[Setting, ...]:
    """The settings of a settings class, in order; fields made otherwise are left out."""
    notes = ((field.name, field.metadata.get(_NOTE)) for field in attrs.fields(cls))
    return tuple(Setting(_key(name, note), name, note) for name, note in notes if note is not None)


def _key(name: str, note: Note) -> str:
    if note.key:
        return note.key
    first, *rest = name.removesuffix(f"_{note.unit}" if note.unit else "").split("_")
    return first + "".join(word.capitalize() for word in rest)


def whole(
    default: int,
    low: int = 0,
    high: int = INT_MAX,
    *,
    unit: str = "",
    key: str | None = None,
    important: bool = False,
    clamp: tuple[int, int] | None = None,
) -> int:
    note = Note(Whole(low, high), key=key, unit=unit, important=important, clamp=clamp)
    return attrs.field(default=default, metadata={_NOTE: note})


def long(default: int, low: int = 0, *, unit: str = "", key: str | None = None, important: bool = False) -> int:
    return whole(default, low, LONG_MAX, unit=unit, key=key, important=important)


def boolean(default: bool, *, key: str | None = None, important: bool = False) -> bool:
    return attrs.field(default=default, metadata={_NOTE: Note(parse_boolean, key=key, important=important)})


def choice(default: E) -> E:
    note = Note(OneOf(type(default)), important=True)
    return attrs.field(default=default, metadata={_NOTE: note})


def text(
    default: Any = attrs.NOTHING,
    parse: Parser = parse_text,
    *,
    shown: Callable[[Any], str] = show,
    key: str | None = None,
    unit: str = "",
    important: bool = False,
) -> Any:
    note = Note(parse, shown, key=key, unit=unit, important=important)
    return attrs.field(default=default, metadata={_NOTE: note})
