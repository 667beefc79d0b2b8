"""What the user sees: progress of the long steps, the table of the counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mqbroker.cli.lines import escape_controls
from mqbroker_demo.corpus import Count


class Steps(Protocol):
    """The long steps, by name; `say` is for what happens beside them."""

    def add(self, name: str, total: int) -> None: ...

    def at(self, name: str, done: int) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_steps(console: Console) -> Steps:
    """What shows the steps, in a terminal or elsewhere."""
    return BarSteps(console) if console.is_terminal else PlainSteps(console)


class BarSteps:
    """A bar for each step."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._tasks: dict[str, TaskID] = {}

    def add(self, name: str, total: int) -> None:
        self._tasks[name] = self._progress.add_task(name, total=total)

    def at(self, name: str, done: int) -> None:
        self._progress.update(self._tasks[name], completed=done)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class PlainSteps:
    """A line at each quarter of a step."""

    PARTS = 4

    def __init__(self, console: Console) -> None:
        self._console = console
        self._totals: dict[str, int] = {}
        self._parts: dict[str, int] = {}

    def add(self, name: str, total: int) -> None:
        self._totals[name] = total
        self._parts[name] = 0

    def at(self, name: str, done: int) -> None:
        total = self._totals[name]
        part = done * self.PARTS // total
        if part > self._parts[name]:
            self._parts[name] = part
            self.say(f"{name}: {done:,} of {total:,}")

    def say(self, text: str) -> None:
        self._console.file.write(f"{text}\n")
        self._console.file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


#: So many files get a row of their own; the others share one.
ROWS_MAX = 8

Counts = Mapping[str, Count]


@attrs.frozen
class Row:
    """One file, or several: `counted` is None where Spark was left out."""

    name: str
    plain: Count
    published: Count
    consumed: Count
    counted: Count | None

    @property
    def equal(self) -> bool:
        return self.plain == self.published == self.consumed and self.counted in (None, self.plain)


@attrs.frozen
class Comparison:
    """A row for each file, those that differ first and then by size."""

    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        return _sum("total", self.rows)

    @property
    def different(self) -> int:
        return sum(not row.equal for row in self.rows)

    @property
    def equal(self) -> bool:
        return bool(self.rows) and self.different == 0


def compare(plain: Counts, published: Counts, consumed: Counts, counted: Counts | None) -> Comparison:
    """Put the counts side by side. A file that only one of them knows counts as well: as a difference."""
    files = {*plain, *published, *consumed, *(counted or ())}
    rows = [
        Row(
            file,
            plain.get(file, Count()),
            published.get(file, Count()),
            consumed.get(file, Count()),
            counted.get(file, Count()) if counted is not None else None,
        )
        for file in files
    ]
    rows.sort(key=lambda row: (row.equal, -row.plain.words, row.name))
    return Comparison(tuple(rows))


def _sum(name: str, rows: Iterable[Row]) -> Row:
    total = Row(name, Count(), Count(), Count(), None)
    for row in rows:
        counted = total.counted
        if row.counted is not None:
            counted = (counted or Count()) + row.counted
        total = Row(
            name,
            total.plain + row.plain,
            total.published + row.published,
            total.consumed + row.consumed,
            counted,
        )
    return total


def rows_to_show(comparison: Comparison) -> list[Row]:
    """Some files, the others together, and the total."""
    shown, others = comparison.rows[:ROWS_MAX], comparison.rows[ROWS_MAX:]
    rows = list(shown)
    if others:
        rows.append(_sum(f"{len(others)} other files", others))
    return [*rows, comparison.total]


def print_table(comparison: Comparison, console: Console) -> None:
    """A table on a terminal; elsewhere the same rows with tabs between the columns."""
    rows = rows_to_show(comparison)
    if not console.is_terminal:
        for cells in [_titles(), *(_cells(row) for row in rows)]:
            # rich would make blanks of the tabs.
            console.file.write("\t".join(cell.replace("\n", " ") for cell in cells) + "\n")
        return
    table = Table(title="lines and words, by file")
    for number, title in enumerate(_titles()):
        table.add_column(title, justify="right" if number else "left", overflow="fold" if not number else "ellipsis")
    *parts, total = rows
    for row in parts:
        table.add_row(*map(Text, _cells(row)), style=None if row.equal else "red")
    table.add_section()
    table.add_row(*map(Text, _cells(total)), style="bold")
    console.print(table)


def _titles() -> list[str]:
    return ["file", "lines\nin file", "published", "consumed", "Spark", "words\nin file", "consumed", "Spark", ""]


def _cells(row: Row) -> list[str]:
    spark = row.counted
    return [
        escape_controls(row.name),
        f"{row.plain.lines:,}",
        f"{row.published.lines:,}",
        f"{row.consumed.lines:,}",
        f"{spark.lines:,}" if spark is not None else "-",
        f"{row.plain.words:,}",
        f"{row.consumed.words:,}",
        f"{spark.words:,}" if spark is not None else "-",
        "equal" if row.equal else "DIFFERENT",
    ]
