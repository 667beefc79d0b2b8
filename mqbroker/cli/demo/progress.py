"""How far the long steps are: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


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
