"""One run of the demo before the user's eyes: its work directory, its interruption, its table and its verdict."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import click
from rich.console import Console

from mqbroker_demo.corpus import Corpus
from mqbroker_demo.report import Comparison, Steps, make_steps, print_table
from mqbroker_demo.scenario import run_story
from mqbroker_demo.spark_process import what_is_missing

T = TypeVar("T")


def show(corpus: Corpus, console: Console, *, with_spark: bool, keep: bool) -> bool:
    """Run it and print the table; return whether all counts are equal. Raises MQError, or KeyboardInterrupt."""
    began = time.monotonic()
    missing = what_is_missing() if with_spark else "--no-spark was given"
    with WorkDirectory(keep) as work:
        with make_steps(console) as steps:
            _introduce(corpus, work.path, missing, steps)
            with clients_log(work.path / "clients.log"):
                outcome = run_interruptibly(run_story(corpus, work.path, steps, with_spark=not missing))
        print_table(outcome.comparison, console)
        for note in outcome.notes:
            click.echo(note)
        if missing:
            click.echo(f"not counted by Spark: {missing}")
        click.echo(verdict(outcome.comparison, time.monotonic() - began))
        work.keep |= not outcome.comparison.equal
    return outcome.comparison.equal


def _introduce(corpus: Corpus, work: Path, missing: str | None, steps: Steps) -> None:
    left_out = f", {corpus.left_out:,} more left out by --max-lines" if corpus.left_out else ""
    steps.say(f"{len(corpus.files):,} files with {corpus.line_count:,} lines{left_out}; work directory {work}")
    if missing:
        steps.say(f"without Spark: {missing}. All the rest runs")


def verdict(comparison: Comparison, seconds: float) -> str:
    """The last line."""
    if comparison.equal:
        return f"all counts are equal, {seconds:.0f} s"
    return f"{comparison.different:,} files DIFFER, {seconds:.0f} s"


class WorkDirectory:
    """A temporary directory that stays where `keep` is set or something failed; then it says where it is."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.path = Path()

    def __enter__(self) -> Self:
        self.path = Path(tempfile.mkdtemp(prefix="mq-demo-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.keep or isinstance(error, Exception):
            click.echo(f"settings, logs and messages are in {self.path}", err=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def clients_log(path: Path) -> Iterator[None]:
    """Write what the clients of this process log to a file: a broker that goes away is no news here."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [%(name)s] %(message)s"))
    logger = logging.getLogger("mqbroker")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; SIGINT, SIGTERM and SIGHUP cancel it, and once it has cleaned up KeyboardInterrupt is raised."""
    try:
        return asyncio.run(_cancelled_by_signals(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
