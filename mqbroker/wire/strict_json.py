"""Strict JSON, by orjson where it is installed and else by Python's json, as in Spark's workers with a bundle.

`loads` raises ValueError, `dumps` TypeError: also for keys that are not text, and for text that is not Unicode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["dumps", "loads", "plain_dumps", "plain_loads"]

_INT_MIN, _INT_MAX = -(2**63), 2**64


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def plain_loads(text: bytes | bytearray | memoryview | str) -> Any:
    """As orjson.loads."""
    if not isinstance(text, str):
        text = bytes(text).decode()
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def plain_dumps(value: Any) -> bytes:
    """As orjson.dumps."""
    _check(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise TypeError(str(error)) from None


def _check(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"a key is {type(key).__name__}, not text")
            if type(item) is not str:
                _check(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item)
    elif isinstance(value, int) and not _INT_MIN <= value < _INT_MAX:
        raise TypeError("an integer is beyond 64 bits")


try:
    from orjson import dumps, loads
except ImportError:
    dumps, loads = plain_dumps, plain_loads  # type: ignore[assignment]
