"""Changes of settings while a daemon runs: parsed from a request, checked, and written to its file.

Only settings in the caller's list can be changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import attrs

from mqbroker.config.conf_file import UTF_8_MARK, Given
from mqbroker.config.fields import Setting, check_range, settings_of
from mqbroker.config.load import check_unused, is_without_effect, values_of
from mqbroker.config.sources import Faults
from mqbroker.config.system import open_own
from mqbroker.errors import BadSetting

T = TypeVar("T")

#: All settings together have a tenth of it.
CHANGES_BYTES_MAX = 64 * 1024

_REQUEST = "the request"


class NotChangeable(BadSetting):
    """A setting that cannot be changed while a daemon runs, or that does not exist."""


def read_changes(body: bytes) -> dict[str, str]:
    """Parse the keys and values of a request's body, a Java .properties text. Raises BadSetting."""
    from javaproperties import InvalidUEscapeError, loads

    if len(body) > CHANGES_BYTES_MAX:
        raise BadSetting("settings", _REQUEST, None, f"{len(body)} bytes, {CHANGES_BYTES_MAX} at most")
    try:
        found = loads(body.decode())
    except UnicodeDecodeError:
        raise BadSetting("settings", _REQUEST, None, "they are not UTF-8 text") from None
    except InvalidUEscapeError as error:
        raise BadSetting("\\u", _REQUEST, None, f"{error}; write four hexadecimal digits after \\u") from None
    return {key: value.strip() for key, value in found.items()}


def with_effect(changes: Mapping[str, str]) -> dict[str, str]:
    """The changes without those of keys that have no effect here. Raises BadSetting if one of these is invalid."""
    faults = Faults()
    check_unused((Given(key, value, _REQUEST) for key, value in changes.items()), faults)
    faults.raise_any(changes)
    return {key: value for key, value in changes.items() if not is_without_effect(key)}


def change_settings(settings: T, changes: Mapping[str, str], allowed: Collection[str]) -> T:
    """`settings` with all of the changes. Raises NotChangeable if one is not `allowed`, BadSetting if a value is
    invalid."""
    for key in changes:
        if key not in allowed:
            may_be = ", ".join(sorted(allowed))
            how = "change it in the daemon's settings file and start it again"
            why = f"it cannot be changed while the daemon runs; {how}. Of those that can there are {may_be}"
            raise NotChangeable(key, _REQUEST, None, why)
    return _evolved(settings, changes)


def differing_values(old: Any, new: Any) -> dict[str, str]:
    """The values of `new`, by key, that differ from `old`."""
    before = values_of(old)
    return {key: value for key, value in values_of(new).items() if value != before.get(key)}


def rewrite_conf(path: str, changes: Mapping[str, str]) -> None:
    """Write the changes into the file at `path`, created if missing; its other lines stay. Raises OSError.

    Atomic; symbolic links and permissions are preserved. Several processes, the shards of a broker, may do it at once.
    """
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = path + ".tmp"
    fd = _open_locked(temporary)
    with open(fd, "w", encoding="iso-8859-1", newline="") as file:
        former = ""
        with contextlib.suppress(FileNotFoundError), open(path, encoding="iso-8859-1", newline="") as present:
            former = present.read()
            os.fchmod(fd, os.fstat(present.fileno()).st_mode & 0o777)
        file.truncate(0)
        file.write(conf_with(former, changes))
        file.flush()
        os.fsync(fd)
        os.replace(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _open_locked(path: str) -> int:
    """Open a file for writing, created if missing, once no other process writes it; others then have theirs at `path`
    no longer."""
    while True:
        fd = open_own(path, 0o600)
        if os.fstat(fd).st_uid != os.geteuid():  # who made it could write it also when it is the settings file
            os.close(fd)
            raise OSError(errno.EPERM, "it is another user's; remove it", path)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)


def conf_with(text: str, changes: Mapping[str, str]) -> str:
    """A file's text with the changes: at the last line that sets a key, which is the one that counts, or at the end."""
    from javaproperties import KeyValue, join_key_value, parse

    mark = UTF_8_MARK if text.startswith(UTF_8_MARK) else ""
    elements = list(parse(io.StringIO(text.removeprefix(mark))))
    last = {element.key: n for n, element in enumerate(elements) if isinstance(element, KeyValue)}
    lines = [element.source for element in elements]
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += "\n"
    for key, value in changes.items():
        line = f"{join_key_value(key, value)}\n"
        if key in last:
            lines[last[key]] = line
        else:
            lines.append(line)
    return mark + "".join(lines)


def _evolved(settings: T, changes: Mapping[str, str]) -> T:
    own = settings_of(type(settings))
    values = {setting.field: _value(setting, changes[setting.key]) for setting in own if setting.key in changes}
    for field in attrs.fields(type(settings)):  # type: ignore[arg-type]
        part = getattr(settings, field.name)
        if attrs.has(type(part)):
            values[field.name] = _evolved(part, changes)
    return attrs.evolve(settings, **values)  # type: ignore[misc]


def _value(setting: Setting, text: str) -> Any:
    try:
        value = setting.note.parse(text)
        if setting.note.clamp is not None:
            check_range(value, *setting.note.clamp)
    except ValueError as error:
        raise BadSetting(setting.key, _REQUEST, None, str(error)) from None
    return value
