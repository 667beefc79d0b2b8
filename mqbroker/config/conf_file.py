"""Parser of Java .properties files, with the line of each key. Knows nothing of what the keys mean."""

from __future__ import annotations

import codecs
import io

import attrs

from mqbroker.errors import BadSetting

UTF_8_MARK = codecs.BOM_UTF8.decode("iso-8859-1")
_UTF_16_MARKS = tuple(mark.decode("iso-8859-1") for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


@attrs.frozen
class Given:
    """One `key=value` as a user gave it. `origin`: the file's path, 'environment variable X' or 'option -o';
    `has_blank_end`: blanks at the end of its line were dropped."""

    key: str
    value: str
    origin: str
    line: int | None = None
    has_blank_end: bool = False

    @property
    def where(self) -> str:
        """For messages."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"

    def bad(self, why: str) -> BadSetting:
        """The error for this setting, with the reason `why`."""
        return BadSetting(self.key, self.origin, self.line, why)


def read_conf(path: str) -> list[Given]:
    """What a file gives, in order, repeated keys included. Lines count from 1.

    Raises BadSetting if the file cannot be read or has an invalid escape.
    """
    # A daemon without a file starts faster without the parser.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    found: list[Given] = []
    line = 1
    try:
        with open(path, encoding="iso-8859-1", newline="") as file:
            for element in parse(io.StringIO(without_mark(file.read(), path))):
                if isinstance(element, KeyValue):
                    value = element.value.strip()
                    found.append(Given(element.key, value, path, line, element.value.rstrip() != element.value))
                line += _line_count(element.source)
    except OSError as error:
        raise BadSetting("-c", path, None, f"the file cannot be read: {error.strerror}") from error
    except InvalidUEscapeError as error:
        raise BadSetting("\\u", path, line, f"{error}; write four hexadecimal digits after \\u") from error
    return found


def without_mark(text: str, path: str) -> str:
    """The text of a file without the byte order mark that some editors begin UTF-8 files with.

    Raises BadSetting if the mark is that of UTF-16.
    """
    if text.startswith(_UTF_16_MARKS):
        raise BadSetting("-c", path, 1, "the file is UTF-16 text; save it as UTF-8 or ASCII")
    return text.removeprefix(UTF_8_MARK)


def _line_count(source: str) -> int:
    return source.replace("\r\n", "\n").replace("\r", "\n").count("\n")
