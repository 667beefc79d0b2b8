"""Reads Java .properties files, keeping the line of each key. Knows nothing of what the keys mean."""

from __future__ import annotations

import attrs

from mqbroker.errors import BadSetting


@attrs.frozen
class Given:
    """One `key=value` as a user gave it. `origin`: the file's path, 'environment variable X' or 'option -o'."""

    key: str
    value: str
    origin: str
    line: int | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"

    def bad(self, why: str) -> BadSetting:
        """The error that says `why` this cannot be used."""
        return BadSetting(self.key, self.origin, self.line, why)


def read_conf(path: str) -> list[tuple[str, str, int]]:
    """The (key, value, line) of a file, in order, repeated keys included. Lines count from 1.

    Raises BadSetting where the file cannot be read or holds an escape that is none.
    """
    # A daemon without a file starts faster without the parser.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    found: list[tuple[str, str, int]] = []
    line = 1
    try:
        with open(path, encoding="iso-8859-1", newline="") as file:
            for element in parse(file):
                if isinstance(element, KeyValue):
                    found.append((element.key, element.value.strip(), line))
                line += _line_count(element.source)
    except OSError as error:
        raise BadSetting("-c", path, None, f"the file cannot be read: {error.strerror}") from error
    except InvalidUEscapeError as error:
        raise BadSetting("\\u", path, line, f"{error}; write four hexadecimal digits after \\u") from error
    return found


def _line_count(source: str) -> int:
    return source.replace("\r\n", "\n").replace("\r", "\n").count("\n")
