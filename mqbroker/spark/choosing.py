"""Which queues a query reads: topics by name or by a pattern, or queues one by one. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import attrs

from mqbroker.errors import Refused
from mqbroker.spark.errors import BadOption
from mqbroker.spark.offsets import read_json
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from mqbroker.wire.names import check_topic

#: Several names of one option, in the order of the documentation, and the other two ways to choose.
WAYS = ("topic", "subscribe", "path", "paths", "subscribePattern", "assign")
#: The arguments of `load()`: a text, or a list as JSON.
_PATHS = ("path", "paths")
_ASSIGN_EXAMPLE = '{"orders":{"broker-a":[0,1]}}'


@attrs.frozen
class Selection:
    """`topics`, or those that `pattern` matches when a batch is planned or a trigger fires; with `queues`, only these
    of them."""

    topics: tuple[str, ...]
    pattern: str | None = None
    queues: frozenset[MessageQueue] = frozenset()

    def matching(self, listed: Iterable[str], internal: Iterable[str]) -> tuple[str, ...]:
        """Those of the `listed` topics that the pattern matches. Retry topics, dead letters, and topics of the system,
        which include `internal`, must be in the pattern's text by prefix or name."""
        assert self.pattern is not None
        matches, hidden = re.compile(self.pattern).fullmatch, frozenset(internal)
        return tuple(sorted(topic for topic in listed if matches(topic) and self._names(topic, hidden)))

    def _names(self, topic: str, internal: frozenset[str]) -> bool:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if topic.startswith(prefix):
                return prefix in str(self.pattern)
        is_hidden = topic in internal or is_system_topic(topic)
        return not is_hidden or topic in str(self.pattern)


def parse_selection(options: Mapping[str, str]) -> Selection:
    """Read the one of `WAYS` that is given. Raises BadOption."""
    given = [name for name in WAYS if options.get(name)]
    if not given:
        right = "a topic, or several joined by commas; or subscribePattern, or assign"
        raise BadOption("topic", f"is required: {right}")
    if len(given) > 1:
        names = [("what stands in load()" if name in _PATHS else name) for name in given]
        raise BadOption(given[0], f"set one of {' and '.join(names)}: each says what is read")
    name, text = given[0], options[given[0]]
    if name == "subscribePattern":
        return Selection((), _pattern(text))
    if name == "assign":
        return _assigned(text)
    topics = tuple(dict.fromkeys(part.strip() for part in (json.loads(text) if name == "paths" else text.split(","))))
    name = "topic" if name in _PATHS else name
    if "" in topics:
        raise BadOption(name, f"{text!r} has an empty name; use a topic, or several joined by commas")
    for topic in topics:
        _check_topic(name, text, topic)
    return Selection(topics)


def _check_topic(option: str, text: str, topic: str) -> None:
    try:
        check_topic(topic)
    except Refused as refused:
        raise BadOption(option, f"{text[:200]!r}: {refused.remark}") from None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadOption("subscribePattern", f"{text[:200]!r} is not a regular expression of Python: {error}") from None
    return text


def _assigned(text: str) -> Selection:
    try:
        value = read_json(text)
    except ValueError as error:
        raise BadOption("assign", f"{text[:200]!r} is not JSON like {_ASSIGN_EXAMPLE}: {error}") from None
    queues = set()
    is_right = isinstance(value, dict) and all(isinstance(brokers, dict) and brokers for brokers in value.values())
    for topic, brokers in value.items() if is_right else ():
        _check_topic("assign", text, topic)
        for broker, numbers in brokers.items():
            is_right = is_right and isinstance(numbers, list) and bool(numbers)
            for number in numbers if is_right else ():
                is_right = is_right and type(number) is int and number >= 0
                queues.add(MessageQueue(topic, broker, number))
    if not is_right or not queues:
        raise BadOption("assign", f"{text[:200]!r} is not topics, brokers and lists of queues like {_ASSIGN_EXAMPLE}")
    return Selection(tuple(value), queues=frozenset(queues))
