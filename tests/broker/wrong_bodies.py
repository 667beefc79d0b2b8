"""What can be wrong with the JSON body of a request: as a whole, and with each thing that is in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from mqbroker.wire.codes import RequestCode as Code

#: The codes whose requests bring JSON, and what Java calls it.
NAMES = {
    Code.HEART_BEAT: "HeartbeatData",
    Code.CHECK_CLIENT_CONFIG: "CheckClientRequestBody",
    Code.LOCK_BATCH_MQ: "LockBatchRequestBody",
    Code.UNLOCK_BATCH_MQ: "LockBatchRequestBody",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "SubscriptionGroupConfig",
}
#: None is an object.
NO_OBJECTS = {
    "missing": b"",
    "cut": b"{",
    "an array": b"[]",
    "null": b"null",
    "a number": b"1",
    "a text": b'"x"',
    "no text": b"\xff\xfe",
    "no JSON": b"body",
    "more than one": b"{} {}",
    "deep arrays": b"[" * 5000,
    "deep objects": b'{"a":' * 5000,
    "deep and whole": b"[" * 1000 + b"]" * 1000,
    "deep in it": b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "long and no JSON": b"[1," * 400_000,
    "NaN": b"NaN",
}
WRONG: dict[str, Any] = {
    "null": None,
    "text": "x",
    "empty text": "",
    "number": 1,
    "negative": -1,
    "fraction": 1.5,
    "over int": 2**31,
    "over long": 2**63,
    "true": True,
    "array": [],
    "array of null": [None],
    "array of texts": ["x"],
    "array of arrays": [[[]]],
    "object": {},
    "object of objects": {"x": {"y": {}}},
    "300 long": "n" * 300,
    "100,000 long": "n" * 100_000,
    "a way out": "../x",
}


def wrong_bodies(good: bytes) -> Iterator[tuple[str, str, bytes]]:
    """What of a good body is wrong (its path), in which way, and the body then."""
    whole = json.loads(good)
    for path in _paths(whole):
        where = ".".join(map(str, path))
        yield where, "missing", _changed(whole, path)
        for how, value in WRONG.items():
            yield where, how, _changed(whole, path, value)


def _paths(value: Any) -> Iterator[list[Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield [key]
        for more in _paths(item):
            yield [key, *more]


def _changed(whole: Any, path: list[Any], *value: Any) -> bytes:
    """`whole` with `value` at `path`, or without what is there."""
    changed = copy.deepcopy(whole)
    at = changed
    for key in path[:-1]:
        at = at[key]
    if value:
        at[path[-1]] = value[0]
    else:
        del at[path[-1]]
    return json.dumps(changed).encode()
