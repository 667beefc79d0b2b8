"""When a mistake counts as noticed, what must pass without it, and which mistakes are chosen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutations import __main__ as program
from tests.mutations import trials
from tests.mutations.mutation import Mutation
from tests.mutations.trials import FAILURES, RUNS_MAX, Outcome, Trial, see_them_pass

TESTS = ("tests/test_one.py", "tests/test_two.py")
PASSED, HUNG = Outcome(True), Outcome(False, "the tests hung")


def failed(test: str) -> Outcome:
    return Outcome(False, test, test)


def mistake(name: str = "a mistake", file: str = "wire/record.py", *, with_compiled: bool = False) -> Mutation:
    return Mutation(name, file, "old", "new", TESTS, with_compiled)


class Script:
    """Runs of tests that end as a script says; each is polled once before it ends."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, ...]] = []

    def start(self, tests: Sequence[str], copy: Path, *, with_compiled: bool) -> Any:
        self.asked.append(tuple(tests))
        ends = iter((None, self.outcomes.pop(0)))

        class ScriptedRun:
            def outcome(self) -> Outcome | None:
                return next(ends)

        return ScriptedRun()


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, Trial, Script]]:
    """Put a mistake on trial with these outcomes: whether it is noticed, the trial, and what was run."""

    def tried(*outcomes: Outcome) -> tuple[bool, Trial, Script]:
        script = Script(*outcomes)
        monkeypatch.setattr(trials, "Run", script)
        trial = Trial(mistake(), tmp_path / "copy")
        while (noticed := trial.step()) is None:
            pass
        assert script.outcomes == []
        return noticed, trial, script

    return tried


def test_a_test_that_fails_twice_has_noticed_a_mistake(tried: Callable[..., Any]) -> None:
    noticed, trial, script = tried(failed("a"), failed("a"))
    assert noticed
    assert trial.failed == "a"
    assert script.asked == [TESTS, ("a",)]


def test_what_passes_survives(tried: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    noticed, _, script = tried(PASSED)
    assert not noticed
    assert script.asked == [TESTS]
    assert capsys.readouterr().out.startswith("SURVIVED")


@pytest.mark.parametrize("rest", [[PASSED], [failed("b"), PASSED, PASSED]])
def test_two_tests_that_fail_once_have_not_noticed_it(
    tried: Callable[..., Any], rest: list[Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    noticed, _, script = tried(failed("a"), PASSED, *rest)
    assert not noticed
    assert script.asked[:3] == [TESTS, ("a",), TESTS]
    assert f"failed once and not again: {'a, b' if len(rest) > 1 else 'a'}" in capsys.readouterr().out


def test_one_that_fails_twice_among_the_others_counts_though_it_passes_by_itself(tried: Callable[..., Any]) -> None:
    noticed, trial, script = tried(failed("a"), PASSED, failed("b"), PASSED, failed("a"))
    assert noticed
    assert trial.failed == "a"
    assert script.asked == [TESTS, ("a",), TESTS, ("b",), TESTS]


def test_tests_that_hang_twice_have_noticed_it(tried: Callable[..., Any]) -> None:
    noticed, trial, script = tried(HUNG, HUNG)
    assert noticed
    assert trial.failed == ""
    assert script.asked == [TESTS, TESTS]
    assert not tried(HUNG, PASSED)[0]
    assert not tried(HUNG, failed("a"), PASSED, PASSED)[0]


def test_a_trial_ends_though_another_test_fails_each_time(tried: Callable[..., Any]) -> None:
    outcomes = [each for number in range(RUNS_MAX // 2) for each in (failed(f"test {number}"), PASSED)]
    assert not tried(*outcomes)[0]
    assert FAILURES == 2


@pytest.mark.parametrize("with_compiled", [False, True])
def test_what_failed_with_mistakes_must_pass_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_compiled: bool
) -> None:
    asked: list[tuple[list[str], bool]] = []

    def run_unchanged(tests: Sequence[str], sources: Path, *options: str, with_compiled: bool) -> None:
        asked.append((list(tests), with_compiled))

    monkeypatch.setattr(trials, "run_unchanged", run_unchanged)
    one = Trial(mistake(with_compiled=with_compiled), tmp_path, failed="a")
    hung = Trial(mistake(with_compiled=with_compiled), tmp_path)
    other = Trial(mistake(with_compiled=not with_compiled), tmp_path, failed="b")
    see_them_pass([one, hung], tmp_path)
    assert asked == [(["a", *TESTS], with_compiled)]
    see_them_pass([one, other], tmp_path)
    assert sorted(asked[1:]) == [(["a"], with_compiled), (["b"], not with_compiled)]
    see_them_pass([], tmp_path)
    assert len(asked) == 3


def chosen(*name: str, part: str | None = None, push: bool = False) -> list[Mutation]:
    return program.choose(argparse.Namespace(name=list(name), part=part, push=push))


def test_mistakes_are_chosen_by_name_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [mistake(f"mistake {number}") for number in range(40)]
    monkeypatch.setattr(program, "KNOWN", known)
    assert chosen() == known
    assert chosen("mistake", "7") == [known[7]]
    with pytest.raises(SystemExit, match="no known mistake has 'nothing' in its name:\n  mistake 0\n"):
        chosen("nothing")
    parts = [chosen(part=f"{number}/3") for number in (1, 2, 3)]
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in known)
    assert all(parts)


@pytest.mark.parametrize(("changed", "least", "most"), [(10, 10, 10), (200, program.CHANGED_MIN, program.PUSH_MAX)])
def test_a_push_takes_those_of_changed_files_and_a_part_of_the_others(
    monkeypatch: pytest.MonkeyPatch, changed: int, least: int, most: int
) -> None:
    known = [mistake(f"changed {number}", "wire/changed.py") for number in range(changed)]
    others = [mistake(f"other {number}") for number in range(100)]
    monkeypatch.setattr(program, "KNOWN", known + others)
    monkeypatch.setattr(program, "changed_files", lambda: {"wire/changed.py"})
    taken = set[str]()
    for turn in range(program.ROTATION):
        monkeypatch.setattr(program, "git", lambda *arguments, turn=turn: [str(turn)])
        names = {each.name for each in chosen(push=True)}
        assert least <= len([name for name in names if name.startswith("changed")]) <= most
        taken |= names
    assert {each.name for each in others} <= taken
