"""Collects the given values of each key: from the file, then the environment, then options; the last one counts. Knows
nothing of what a key means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches

import attrs

from mqbroker.config.conf_file import Given, read_conf
from mqbroker.errors import BadSetting, BadSettings

Warn = Callable[[str], None]

COMMAND_LINE = "command line"
_PREFIX = "ROCKETMQ_"
_VARIABLE = "environment variable "
#: As the Java system has them; its scripts set the second.
_NAMESRV_ADDR = "NAMESRV_ADDR"
_OTHERS = {_NAMESRV_ADDR: "namesrvAddr", "ROCKETMQ_HOME": "rocketmqHome"}
_SEEMS = 0.85
#: How many letters differ at most in a near spelling.
_LETTERS_MAX = 2
#: What the Java system does with a blank at the end of a value, by the value's type.
_BLANK_END_IN_JAVA = {"str": "takes it for part of the value", "bool": "takes 'true ' for false"}
#: Variables that Kubernetes and Docker set for services and containers named "rocketmq-...".
_is_a_services = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?$").search
_SERVICE_PORT = ("tcp://", "udp://")


class Faults:
    """Errors in settings, collected so that all are reported at once."""

    def __init__(self) -> None:
        self._found: list[BadSetting] = []

    def add(self, error: BadSetting) -> None:
        self._found.append(error)

    def check(self, check: Callable[[], object], *keys: str) -> None:
        """Collect an error of `check`; it is skipped if one of its settings is invalid already."""
        if any(error.key in keys for error in self._found):
            return
        try:
            check()
        except BadSetting as error:
            self._found.append(error)

    def raise_any(self, order: Iterable[str]) -> None:
        """Raise the collected errors, by the `order` of keys: BadSetting for one, BadSettings for several."""
        places = {key: place for place, key in enumerate(order)}
        found = sorted(self._found, key=lambda error: places.get(error.key, -1))
        if found:
            raise found[0] if len(found) == 1 else BadSettings(found)


@attrs.define
class Sources:
    """The given values of each key, in ascending precedence.

    `own`: a daemon's settings; `known`: with those that have no effect; `all_known`: with those of the other daemon, as
    one file and one environment may serve both.
    """

    _own: Collection[str]
    _known: Collection[str]
    _all_known: Collection[str]
    _warn: Warn
    _given: dict[str, list[Given]] = attrs.field(factory=dict, init=False)

    def add(self, item: Given) -> None:
        """Add a value, which overrides the earlier ones of its key."""
        self._given.setdefault(item.key, []).append(item)

    def add_file(self, path: str) -> None:
        """Raises BadSetting if the file cannot be read."""
        lines: dict[str, int | None] = {}
        for item in read_conf(path):
            key = item.key
            if key in lines:
                self._warn(f"{item.where}: {key} is given again; this one counts, not that of line {lines[key]}")
            if key not in self._all_known:
                self._warn(f"{item.where}: {key} is not a setting and has no effect{_closest_name(key, self._own)}")
            lines[key] = item.line
            self._given[key] = [item]

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """ROCKETMQ_BROKER_NAME is brokerName, and overrides the file; NAMESRV_ADDR and ROCKETMQ_HOME, which other
        programs have too, count only where the file says nothing, as in the Java system. Empty variables count as not
        set."""
        keys = {_folded(_PREFIX + key): key for key in self._all_known}
        for name, value in sorted(environ.items()):
            key = _OTHERS.get(name) or (keys.get(_folded(name)) if name.startswith(_PREFIX) else None)
            if key is not None:
                if key in self._known and value.strip():
                    item = Given(key, value.strip(), _VARIABLE + name)
                    if name in _OTHERS:
                        self._given.setdefault(key, []).insert(0, item)
                    else:
                        self.add(item)
            elif _is_meant_for_us(name, value):
                self._warn(f"{_VARIABLE}{name} is not a setting and has no effect{_meant_variable(name, self._own)}")

    def add_options(self, options: Iterable[tuple[str, str]], faults: Faults) -> None:
        """Values of the command line, where unknown keys are errors."""
        for key, value in options:
            item = Given(key, value.strip(), COMMAND_LINE)
            if key in self._known:
                self.add(item)
            else:
                hint = _closest_name(key, self._own) or "; -p prints all settings"
                faults.add(item.bad(f"no such setting{hint}"))

    def last(self, key: str) -> Given | None:
        """The effective value of a key so far."""
        items = self._given.get(key)
        return items[-1] if items else None

    def settle(self, is_same: Callable[[str, str, str], bool]) -> dict[str, Given]:
        """The effective value of each key. Warns if the environment or a special file overrides another value.
        `is_same(key, value, other)`: whether both texts mean the same."""
        for key, items in self._given.items():
            *_, former, item = [items[0], *items]
            is_expected = item.origin == COMMAND_LINE and not former.origin.startswith(_VARIABLE)
            if former is not item and not is_expected and not is_same(key, item.value, former.value):
                self._warn(f"{item.where} sets {key}{_in_place_of(item, former)}, {former.where}")
        return {key: items[-1] for key, items in self._given.items()}


def _in_place_of(item: Given, former: Given) -> str:
    is_secret = "password" in item.key.lower()
    return " in place of another" if is_secret else f"={item.value} in place of {former.value!r}"


def _variable(key: str) -> str:
    """The name of the environment variable for a key."""
    return _PREFIX + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).upper()


def _is_meant_for_us(name: str, value: str) -> bool:
    """Whether a variable seems to be meant for this system."""
    if not name.startswith(_PREFIX):
        return bool(get_close_matches(name, [_NAMESRV_ADDR], cutoff=_SEEMS))
    return not _is_a_services(name) and not value.startswith(_SERVICE_PORT)


def _folded(name: str) -> str:
    return name.upper().replace("_", "")


def _meant_variable(name: str, own: Iterable[str]) -> str:
    if not name.startswith(_PREFIX):
        return _closest_name(name, [_NAMESRV_ADDR])
    variables = [*map(_variable, own), *_OTHERS]
    # The common prefix is no similarity.
    hint = _closest_name(name.removeprefix(_PREFIX), [variable.removeprefix(_PREFIX) for variable in variables])
    return hint.replace("mean ", f"mean {_PREFIX}")


def _closest_name(text: str, known: Iterable[str]) -> str:
    """A hint at a known name of nearly the same spelling; empty without one: another setting's name would mislead."""
    by_folded = {re.sub("[_.-]", "", name).lower(): name for name in known}
    folded = re.sub("[_.-]", "", text).lower()
    for close in get_close_matches(folded, by_folded, n=3, cutoff=0.7):
        changed = SequenceMatcher(None, folded, close, autojunk=False).get_opcodes()
        letters = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in changed if tag != "equal")
        if letters <= min(_LETTERS_MAX, len(folded) // 4 or 1):
            return f"; did you mean {by_folded[close]}?"
    return ""


def doubts_about(item: Given, kind: str) -> Iterator[str]:
    """What may be meant otherwise in a value: warnings, with where it was set. They do not repeat the value, which may
    be a secret.

    :param kind: the type of the setting's value: bool, int, str, or the name of an enumeration.
    """
    if re.search(r"\s#", item.value):
        yield (
            f"{item.where}: the value of {item.key} has ' #' in it, which is part of the value, as in Java; "
            "a comment needs a line of its own"
        )
    if "${" in item.value:
        yield (
            f"{item.where}: the value of {item.key} has "
            f"'${{' in it, which is not replaced by a variable, as in Java; write the value itself"
        )
    if item.has_blank_end and not (kind == "bool" and item.value.lower() == "false"):
        java = _BLANK_END_IN_JAVA.get(kind, "ignores such a value and has its default")
        yield f"{item.where}: the blank at the end of {item.key} is dropped; the Java system {java}; remove it"
