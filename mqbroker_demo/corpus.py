"""The text that the demo sends, as lines with keys, and the count of the lines that arrive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

import attrs

from mqbroker.errors import MQError

#: Larger files are data rather than text, and a line of theirs could be beyond what a broker takes.
FILE_BYTES_MAX = 1024 * 1024

#: Of a checkout of this project, what is worth sending; an installed package has only itself.
_OWN = ("README.rst", "conf", "docs", "mqbroker", "mqbroker_demo")
_NOT_TEXT = (".pyc", ".so", ".gz", ".zip", ".png", ".jpg", ".pdf")
_NOT_OURS = ("__pycache__", "node_modules", "build", "dist")


class NoText(MQError):
    """There is nothing to send under a directory."""


@attrs.frozen
class Count:
    """What a text has."""

    lines: int = 0
    words: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.lines + other.lines, self.words + other.words)


@attrs.frozen
class Line:
    """One line of `file`, `number` from 1 on; the `body` keeps its line end, so that none is empty."""

    file: str
    number: int
    body: bytes


@attrs.frozen
class Corpus:
    """The `files` by name, as bytes; `left_out` counts those that did not fit."""

    files: Mapping[str, bytes]
    left_out: int

    @property
    def line_count(self) -> int:
        return sum(count.lines for count in self.plain_count().values())

    def lines(self) -> Iterator[Line]:
        for file, data in self.files.items():
            *ended, rest = data.split(b"\n")
            for number, body in enumerate(ended, 1):
                yield Line(file, number, body + b"\n")
            if rest:
                yield Line(file, len(ended) + 1, rest)

    def plain_count(self) -> dict[str, Count]:
        """Lines and words of each file, counted without taking it apart."""
        return {
            file: Count(data.count(b"\n") + (not data.endswith(b"\n")), len(data.split()))
            for file, data in self.files.items()
        }


def read_corpus(root: Path | None, lines_max: int) -> Corpus:
    """The text files under `root`, or this project's own: whole files, up to `lines_max` lines. Raises NoText."""
    top, starts = (root, [root]) if root is not None else own_text()
    files: dict[str, bytes] = {}
    room, left_out = lines_max, 0
    for path in _walk(starts):
        data = _read_text(path)
        if data is None:
            continue
        count = data.count(b"\n") + 1
        if count > room:
            left_out += 1
            continue
        room -= count
        files[path.relative_to(top).as_posix()] = data
    if not files:
        why = f"{left_out} files, each longer than {lines_max} lines" if left_out else "no text file"
        raise NoText(f"{top} has {why}: name another directory, or raise --max-lines")
    return Corpus(files, left_out)


def own_text() -> tuple[Path, list[Path]]:
    """This project's own text: its top directory, and where to look in it."""
    package = Path(__file__).parent
    top = package.parent
    if (top / "setup.cfg").is_file() and (top / "docs").is_dir():
        return top, [top / name for name in _OWN]
    return top, [top / "mqbroker", package]


def _walk(starts: Iterable[Path]) -> Iterator[Path]:
    for start in starts:
        if start.is_file():
            yield start
        for folder, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in _NOT_OURS and not name.startswith("."))
            yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _read_text(path: Path) -> bytes | None:
    """The file's bytes, or None where it is not text, empty, too large or unreadable."""
    if path.suffix in _NOT_TEXT:
        return None
    try:
        if not path.is_file() or not 0 < path.stat().st_size <= FILE_BYTES_MAX:
            return None
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return data if data and b"\0" not in data else None


def file_key(file: str) -> str:
    """The name as a message key: keys hold no blanks."""
    return quote(file, safe="/")


def line_key(line: Line) -> str:
    """The key of the message of a line."""
    return f"{file_key(line.file)}:{line.number}"


def parse_line_key(key: str) -> tuple[str, int]:
    """File and number of a line key. Raises ValueError."""
    file, _, number = key.rpartition(":")
    return unquote(file), int(number)


def file_of_key(key: str) -> str:
    """The file that a key is of."""
    return unquote(key)


class Tally:
    """Lines by key. `arrived` counts all, `distinct` each line once."""

    def __init__(self) -> None:
        self.arrived = 0
        self._words: dict[str, int] = {}

    @property
    def distinct(self) -> int:
        return len(self._words)

    @property
    def duplicates(self) -> int:
        return self.arrived - self.distinct

    def add(self, key: str, body: bytes) -> None:
        self.arrived += 1
        if key not in self._words:
            self._words[key] = len(body.split())

    def counts(self) -> dict[str, Count]:
        """Lines and words of each file. Raises ValueError where a key is not a line's."""
        counts: dict[str, Count] = {}
        for key, words in self._words.items():
            file, _ = parse_line_key(key)
            counts[file] = counts.get(file, Count()) + Count(1, words)
        return counts
