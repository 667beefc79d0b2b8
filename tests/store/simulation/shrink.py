"""Makes a failing list of steps short, by running parts of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.store.simulation.model import Violation
from tests.store.simulation.run import run_steps
from tests.store.simulation.steps import Options, Step

RUNS_MAX = 400


def shrink(options: Options, steps: list[Step], invariant: str) -> list[Step]:
    """Fewer steps that break the same promise, where there are."""
    trials = Trials(lambda part: run_steps(options, part).violation, invariant, RUNS_MAX)
    return _with_smaller_batches(without_chunks(steps, trials), trials)


class Trials:
    """Runs parts of a list of steps, `runs_max` times at most.

    :param run: does the steps, and returns which promise was broken.
    :param invariant: the promise that the whole list breaks.
    """

    def __init__(self, run: Callable[[list[Step]], Violation | None], invariant: str, runs_max: int) -> None:
        self._run, self._invariant, self._left = run, invariant, runs_max

    @property
    def may_go_on(self) -> bool:
        return self._left > 0

    def fails(self, part: list[Step]) -> bool:
        """Whether the part breaks the same promise."""
        self._left -= 1
        violation = self._run(part)
        return violation is not None and violation.invariant == self._invariant


def without_chunks(steps: list[Step], trials: Trials) -> list[Step]:
    """The method of ddmin: leave out halves, quarters, ... as long as it still fails."""
    chunk = max(1, len(steps) // 2)
    while trials.may_go_on:
        at = 0
        is_shorter = False
        while at < len(steps) and trials.may_go_on:
            part = steps[:at] + steps[at + chunk :]
            if trials.fails(part):
                steps, is_shorter = part, True
            else:
                at += chunk
        if chunk == 1 and not is_shorter:
            break
        if not is_shorter or chunk > len(steps):
            chunk = max(1, chunk // 2)
    return steps


def _with_smaller_batches(steps: list[Step], trials: Trials) -> list[Step]:
    for i, step in enumerate(steps):
        at = 0
        while step[0] == "append" and at < len(step[2]) > 1 and trials.may_go_on:
            smaller = [step[0], step[1], step[2][:at] + step[2][at + 1 :]]
            part = [*steps[:i], smaller, *steps[i + 1 :]]
            if trials.fails(part):
                steps, step = part, smaller
            else:
                at += 1
    return steps
