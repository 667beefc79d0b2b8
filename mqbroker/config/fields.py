"""The settings' attrs fields: each carries its key in the file, its parser and its limits.

The key is the field's name in camelCase without the unit; Java's exceptions are given explicitly. A parser takes the
text and returns the value, or raises ValueError that says what would be valid.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import attrs

from mqbroker.errors import MQError
from mqbroker.wire.names import is_ip, split_address

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Parser = Callable[[str], Any]


def parse_boolean(text: str) -> bool:
    """Read true or false. Raises ValueError."""
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return word == "true"


def check_range(value: int, low: int, high: int) -> int:
    """Return the value. Raises ValueError if it is out of the range."""
    if not low <= value <= high:
        raise ValueError(f"{value} is out of range: it goes from {low} to {high}")
    return value


def whole_number(low: int, high: int) -> Parser:
    """The parser of a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
            raise ValueError(f"{text!r} is not a whole number: it goes from {low} to {high}")
        return check_range(int(text), low, high)

    return parse


def one_of(enum: type[StrEnum], fold: Callable[[str], str] = str) -> Parser:
    """The parser of a member of `enum`, after `fold`."""

    def parse(text: str) -> StrEnum:
        try:
            return enum(fold(text))
        except ValueError:
            raise ValueError(f"{text!r} is not one of {', '.join(enum)}") from None

    return parse


def parse_text(text: str) -> str:
    """Any text."""
    return text


def parse_name(text: str) -> str:
    """A name that is used in topics, file names and routes."""
    if not re.fullmatch(r"[%|a-zA-Z0-9_.-]{1,255}", text):
        raise ValueError(f"{text!r} is not a name: 1 to 255 letters, digits and any of . _ - % |")
    return text


def parse_path(text: str) -> str:
    """Make a path absolute. Raises ValueError if it is empty."""
    if not text or "\0" in text:
        raise ValueError("it must name a file or a directory")
    return os.path.abspath(os.path.expanduser(text))


def parse_log_path(text: str) -> str:
    """As `parse_path`; the several paths of Java's MultiPathMappedFileQueue are refused."""
    if "," in text:
        raise ValueError(
            "a log in several directories is not supported; move the segments (the files named by 20 digits) of all of "
            "them into one, and name that"
        )
    return parse_path(text)


def parse_optional_path(text: str) -> str:
    """As `parse_path`; an empty text stays empty."""
    return parse_path(text) if text else ""


def parse_relative_path(text: str) -> str:
    """A path relative to another setting's directory, unless it is absolute."""
    if not text or "\0" in text:
        raise ValueError("it must name a file")
    return os.path.normpath(text)


def parse_bind_address(text: str) -> str:
    """A numeric address of this machine; empty for all."""
    if text in ("", "0.0.0.0", "::") or is_ip(text):
        return text
    raise ValueError(f"{text!r} is not an address: write one such as 127.0.0.1, or nothing for all of this machine")


def parse_own_host(text: str) -> str:
    """As `parse_host`; an IPv6 address may be in brackets, and loses them."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
    if "%" in host and is_ip(host):
        raise ValueError(f"{text!r} has a zone, which is of this machine alone; name an address without one")
    return parse_host(host)


def parse_host(text: str) -> str:
    """An address or a host name that other machines can reach."""
    is_name = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})", text) and not re.fullmatch(r"[\d.]+", text)
    if not (is_ip(text) or is_name):
        raise ValueError(f"{text!r} is neither an address such as 192.168.0.1 nor a host name")
    return text


def parse_optional_address(text: str) -> str:
    """`host:port`; an empty text stays empty."""
    return _parse_address(text.strip()) if text.strip() else ""


def parse_extensions(text: str) -> tuple[str, ...]:
    """`name,name`, each once; an empty text gives an empty tuple."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if len(set(names)) < len(names):
        raise ValueError("it names one extension twice")
    return names


def parse_addresses(text: str) -> tuple[str, ...]:
    """`host:port;host:port`; an empty text gives an empty tuple."""
    return tuple(_parse_address(part.strip()) for part in text.split(";") if part.strip())


def parse_urls(text: str) -> tuple[str, ...]:
    """`http://host:port;http://host:port`, or with commas; an empty text gives an empty tuple."""
    return tuple(_parse_url(part.strip()) for part in re.split("[;,]", text) if part.strip())


def _parse_url(text: str) -> str:
    found = re.fullmatch(r"https?://([^/]+)/?", text)
    if found is None:
        raise ValueError(f"{text!r} is not a URL of etcd; write for example http://127.0.0.1:2379")
    _parse_address(found[1])
    return text.rstrip("/")


def _parse_address(text: str) -> str:
    try:
        host, _ = split_address(text)
    except MQError:
        raise ValueError(f"{text!r} is not host:port; write for example 127.0.0.1:9876;192.168.0.1:9876") from None
    try:
        parse_host(host)
    except ValueError as error:
        raise ValueError(f"in {text!r}, {error}") from None
    return text


def parse_hours(text: str) -> tuple[int, ...]:
    """Hours of the day: `04` or `04;16`."""
    hour = whole_number(0, 23)
    try:
        return tuple(hour(part.strip()) for part in text.split(";"))
    except ValueError:
        raise ValueError(f"{text!r} is not hours of the day; write for example 04 or 04;16") from None


def parse_delays(text: str) -> str:
    """Delays such as `1s 5s 10m 2h`, kept as text."""
    parts = text.split()
    if not parts or not all(re.fullmatch(r"[0-9]{1,9}[smhd]", part) for part in parts):
        raise ValueError(f"{text!r} is not a list of delays; write for example 1s 10s 5m 2h")
    return " ".join(parts)


def show(value: Any) -> str:
    """The text that is parsed to `value`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return str(value)


def show_hours(hours: tuple[int, ...]) -> str:
    """Hours as Java's files have them."""
    return ";".join(f"{hour:02d}" for hour in hours)


E = TypeVar("E", bound=StrEnum)

_NOTE = "setting"


@attrs.frozen
class SettingSpec:
    """Metadata of a field. `clamp`: values out of the range are clamped, as in Java."""

    parse: Parser
    show: Callable[[Any], str] = show
    key: str | None = None
    unit: str = ""
    important: bool = False
    clamp: tuple[int, int] | None = None


@attrs.frozen
class Setting:
    """One setting: its key in the file, the field that holds it, its note, and the type of its value: bool, int, str,
    which is also that of lists, or the name of an enumeration."""

    key: str
    field: str
    note: SettingSpec
    kind: str


def settings_of(cls: type) -> tuple[Setting, ...]:
    """The settings of a settings class, in order; other fields are left out."""
    notes = ((field, field.metadata.get(_NOTE)) for field in attrs.fields(cls))
    return tuple(
        Setting(_key(field.name, note), field.name, note, re.sub(r"tuple\[.*", "str", str(field.type)))
        for field, note in notes
        if note is not None
    )


def _key(name: str, note: SettingSpec) -> str:
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
    """A field of whole numbers from `low` to `high`; `unit` is shown with it."""
    note = SettingSpec(whole_number(low, high), key=key, unit=unit, important=important, clamp=clamp)
    return attrs.field(default=default, metadata={_NOTE: note})


def long(default: int, low: int = 0, *, unit: str = "", key: str | None = None, important: bool = False) -> int:
    """A field of the range of Java's long."""
    return whole(default, low, LONG_MAX, unit=unit, key=key, important=important)


def boolean(default: bool, *, key: str | None = None, important: bool = False) -> bool:
    """A field that is true or false."""
    return attrs.field(default=default, metadata={_NOTE: SettingSpec(parse_boolean, key=key, important=important)})


def choice(default: E) -> E:
    """A field with a member of an enumeration."""
    note = SettingSpec(one_of(type(default)), important=True)
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
    """A field with the parser `parse` and the formatter `shown`."""
    note = SettingSpec(parse, shown, key=key, unit=unit, important=important)
    return attrs.field(default=default, metadata={_NOTE: note})
