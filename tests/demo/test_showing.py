"""A run before the user: exit codes, what is kept, and what an interruption does."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqbroker.cli import cli
from mqbroker.errors import MQError
from mqbroker_demo import session as showing
from mqbroker_demo.corpus import Corpus, Count
from mqbroker_demo.report import compare
from mqbroker_demo.scenario import Outcome
from mqbroker_demo.session import WorkDirectory, run_interruptibly


@pytest.fixture
def text(tmp_path: Path) -> Path:
    directory = tmp_path / "text"
    directory.mkdir()
    (directory / "a").write_bytes(b"one two\nthree\n")
    return directory


@pytest.fixture
def run_demo(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `mq demo` with a story that ends as it is told."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(story: Any, *options: str) -> tuple[int, str, list[Path]]:
        monkeypatch.setattr(showing, "run_story", story)
        result = CliRunner().invoke(cli, ["demo", str(text), *options])
        return result.exit_code, result.output, sorted(tmp_path.glob("mq-demo-*"))

    return run


def ends_with(words: int | None, consumed_words: int = 3) -> Any:
    async def story(corpus: Corpus, directory: Path, steps: Any, *, with_spark: bool) -> Outcome:
        plain = corpus.plain_count()
        counted = None if words is None else {"a": Count(2, words)}
        return Outcome(compare(plain, plain, {"a": Count(2, consumed_words)}, counted), ("a note",))

    return story


def test_equal_counts_end_well_and_leave_nothing(run_demo: Any) -> None:
    code, output, kept = run_demo(ends_with(3))
    assert (code, kept) == (0, [])
    assert "a note\n" in output
    assert output.splitlines()[-1].startswith("all counts are equal")


@pytest.mark.parametrize("story", [ends_with(4), ends_with(3, 2), ends_with(None, 2)])
def test_a_wrong_count_fails_and_keeps_the_logs(run_demo: Any, story: Any) -> None:
    code, output, kept = run_demo(story)
    assert code == 1
    assert "1 files DIFFER" in output
    assert len(kept) == 1
    assert f"settings, logs and messages are in {kept[0]}" in output


def test_an_error_is_told_and_keeps_the_logs(run_demo: Any) -> None:
    async def story(*args: Any, **kwargs: Any) -> Outcome:
        raise MQError("broker-a ended with 1 at its start: why")

    code, output, kept = run_demo(story)
    assert code == 1
    assert "Error: broker-a ended with 1 at its start: why" in output
    assert str(kept[0]) in output


def test_an_interruption_has_its_exit_code_and_leaves_nothing(run_demo: Any) -> None:
    async def story(*args: Any, **kwargs: Any) -> Outcome:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError

    code, _, kept = run_demo(story)
    assert (code, kept) == (130, [])


def test_keep_keeps(run_demo: Any) -> None:
    code, output, kept = run_demo(ends_with(3), "--keep")
    assert code == 0
    assert str(kept[0]) in output


def test_without_spark_it_says_so_and_still_ends_well(run_demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "what_is_missing", lambda: "Java not found: install it")
    code, output, _ = run_demo(ends_with(None))
    assert code == 0
    assert "without Spark: Java not found: install it. All the rest runs" in output
    assert "not counted by Spark: Java not found: install it" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_work_clean_up(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work())
    assert cleaned == [number]


def test_a_work_directory_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with WorkDirectory(keep=False) as work:
        (work.path / "file").touch()
    assert list(tmp_path.iterdir()) == []
