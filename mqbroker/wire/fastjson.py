"""The JSON that Java's Fastjson writes and reads: strict JSON, plus unquoted numeric keys and objects as map keys.

    {0:"127.0.0.1:10911"}                          a map with Long keys
    {{"brokerName":"a","queueId":1}:12}            a map whose keys are objects

Strict JSON is read and written by `strict_json`. The depth of nesting is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from mqbroker.errors import MQError
from mqbroker.wire import strict_json

DEPTH_MAX = 64

#: And the end of the text.
_BLANKS = frozenset(["", " ", "\t", "\r", "\n"])
_space = re.compile(r"[ \t\r\n]*")
_scalar = re.compile(r"-?[0-9][0-9.eE+-]*|[A-Za-z_$][A-Za-z0-9_$]*")
# Possessive: without backtracking a string takes no memory for each of its characters.
_string = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"', re.DOTALL)
_flat = re.compile(r'\{(?:"[^"\\\x00-\x1f]*+":(?:"[^"\\\x00-\x1f]*+"|-?[0-9]++|true|false|null)(?:,|(?=\})))++\}')
_numeric = re.compile(r"-?[0-9]+").fullmatch
_words = {"true": True, "false": False, "null": None}


class BadJson(MQError):
    """Text that is not valid JSON, nor this dialect."""


@attrs.frozen
class JsonKey:
    """An object used as a map key: its fields, sorted by name, so that equal objects are equal keys."""

    fields: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> JsonKey:
        """The key for `mapping`, whose values must be hashable."""
        return cls(tuple(sorted(mapping.items())))

    def as_dict(self) -> dict[str, Any]:
        return dict(self.fields)


def loads(text: bytes | str, dialect_bytes_max: int | None = None) -> Any:
    """Read one value. Raises BadJson. Numeric keys become int, object keys JsonKey.

    The dialect is read at 2 to 10 MB a second: `dialect_bytes_max` bounds that for texts of peers.
    """
    try:
        value = strict_json.loads(text)
    except ValueError as error:
        if dialect_bytes_max is not None and len(text) > dialect_bytes_max:
            raise BadJson(f"{len(text)} bytes that are not strict JSON ({error})") from None
        return _loads_dialect(text)
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Refuse what orjson accepts, but is nested too deep for Python to print or compare."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(DEPTH_MAX + 1):
        if not level:
            return
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
    if level:
        raise BadJson(f"nested deeper than {DEPTH_MAX}")


def _loads_dialect(text: bytes | str) -> Any:
    try:
        source = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise BadJson(f"not UTF-8: {error}") from None
    reader = _Reader(source)
    value = reader.value(0)
    reader.end()
    return value


def dumps(value: Any) -> bytes:
    """Write `value`: dict, list, text, numbers, booleans and None; int and JsonKey keys as in the dialect."""
    parts: list[bytes] = []
    _write(value, parts)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(value: Any, parts: list[bytes]) -> None:
    """Write as much as possible at once as strict JSON."""
    try:
        parts.append(strict_json.dumps(value))
        return
    except TypeError:
        if not isinstance(value, Mapping | list | tuple):
            raise
    if isinstance(value, Mapping):
        parts.append(b"{")
        for count, (key, item) in enumerate(value.items()):
            if count:
                parts.append(b",")
            parts.append(strict_json.dumps(key.as_dict() if isinstance(key, JsonKey) else key))
            parts.append(b":")
            _write(item, parts)
        parts.append(b"}")
        return
    parts.append(b"[")
    for count, item in enumerate(value):
        if count:
            parts.append(b",")
        _write(item, parts)
    parts.append(b"]")


class _Reader:
    """Recursive descent parser of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _peek(self) -> str:
        if (first := self._text[self._at : self._at + 1]) not in _BLANKS:
            return first
        found = _space.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._text[self._at : self._at + 1]

    def _expect(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise BadJson(
                f"{wanted!r} expected at character {self._at}, found {self._text[self._at : self._at + 10]!r}"
            )
        self._at += 1

    def end(self) -> None:
        if self._peek():
            raise BadJson(f"text after the value at character {self._at}")

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BadJson(f"nested deeper than {DEPTH_MAX}")
        first = self._peek()
        if first == "{":
            return self._flat_object() or self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._quoted()
        return self._bare()

    def _flat_object(self) -> dict[str, Any] | None:
        """The object here if it is strict JSON and holds no other, such as the keys and values of large tables; else
        None."""
        found = _flat.match(self._text, self._at)
        if found is None:
            return None
        try:
            value: dict[str, Any] = strict_json.loads(found.group())
        except ValueError:
            return None
        self._at = found.end()
        return value

    def _object(self, depth: int) -> dict[Any, Any]:
        self._expect("{")
        found: dict[Any, Any] = {}
        while self._peek() != "}":
            if found:
                self._expect(",")
            key = self._key(depth)
            self._expect(":")
            found[key] = self.value(depth + 1)
        self._expect("}")
        return found

    def _key(self, depth: int) -> Any:
        first = self._peek()
        if first == '"':
            return self._quoted()
        if first == "{":
            try:
                key = JsonKey.of(self.value(depth + 1))
                hash(key)
            except TypeError:
                raise BadJson(f"the object key before character {self._at} holds a list or an object") from None
            return key
        found = _scalar.match(self._text, self._at)
        if not found:
            raise BadJson(f"no key at character {self._at}")
        self._at = found.end()
        word = found.group()
        if not _numeric(word):
            return word
        # Java's widest integer key is a long; the length is checked first, as int() of many digits is slow.
        if len(word) > 20 or not -(2**63) <= (number := int(word)) < 2**63:
            raise BadJson(f"the numeric key before character {self._at} is beyond 64 bits")
        return number

    def _array(self, depth: int) -> list[Any]:
        self._expect("[")
        found: list[Any] = []
        while self._peek() != "]":
            if found:
                self._expect(",")
            found.append(self.value(depth + 1))
        self._expect("]")
        return found

    def _quoted(self) -> str:
        found = _string.match(self._text, self._at)
        if not found:
            raise BadJson(f"unfinished string at character {self._at}")
        self._at = found.end()
        try:
            return str(strict_json.loads(found.group()))
        except ValueError as error:
            raise BadJson(f"bad string before character {self._at}: {error}") from None

    def _bare(self) -> Any:
        found = _scalar.match(self._text, self._at)
        if not found:
            raise BadJson(f"no value at character {self._at}")
        self._at = found.end()
        word = found.group()
        if word in _words:
            return _words[word]
        try:
            return strict_json.loads(word)
        except ValueError:
            raise BadJson(f"{word[:40]!r} is not a value") from None
