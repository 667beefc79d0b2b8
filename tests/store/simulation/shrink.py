"""Makes a failing list of steps short, by running parts of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.store.simulation.run import run_steps
from tests.store.simulation.steps import Options, Step

RUNS_MAX = 400


def shrink(options: Options, steps: list[Step], invariant: str) -> list[Step]:
    """Fewer steps that break the same promise, where there are."""
    runs = 0

    def fails(part: list[Step]) -> bool:
        nonlocal runs
        runs += 1
        violation = run_steps(options, part).violation
        return violation is not None and violation.invariant == invariant

    shorter = _without_chunks(steps, fails, lambda: runs < RUNS_MAX)
    return _with_smaller_batches(shorter, fails, lambda: runs < RUNS_MAX)


def _without_chunks(
    steps: list[Step], fails: Callable[[list[Step]], bool], may_go_on: Callable[[], bool]
) -> list[Step]:
    """The method of ddmin: leave out halves, quarters, ... as long as it still fails."""
    chunk = max(1, len(steps) // 2)
    while may_go_on():
        at = 0
        is_shorter = False
        while at < len(steps) and may_go_on():
            part = steps[:at] + steps[at + chunk :]
            if fails(part):
                steps, is_shorter = part, True
            else:
                at += chunk
        if chunk == 1 and not is_shorter:
            break
        if not is_shorter or chunk > len(steps):
            chunk = max(1, chunk // 2)
    return steps


def _with_smaller_batches(
    steps: list[Step], fails: Callable[[list[Step]], bool], may_go_on: Callable[[], bool]
) -> list[Step]:
    for i, step in enumerate(steps):
        at = 0
        while step[0] == "append" and at < len(step[2]) > 1 and may_go_on():
            smaller = [step[0], step[1], step[2][:at] + step[2][at + 1 :]]
            part = [*steps[:i], smaller, *steps[i + 1 :]]
            if fails(part):
                steps, step = part, smaller
            else:
                at += 1
    return steps
