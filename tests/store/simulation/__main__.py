"""`python -m tests.store.simulation --seeds N [--from S]`: runs seeds, prints what breaks, shrunk."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import cast

from twisted.logger import ILogObserver, globalLogBeginner

from tests.store.simulation.run import SOMETIMES, describe, run_seed, run_steps
from tests.store.simulation.shrink import shrink
from tests.store.simulation.steps import options_of, steps_of


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.store.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (1000)")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first (0)")
    parser.add_argument("--no-shrink", action="store_true", help="print failing steps as they were made")
    parser.add_argument("--stop-after", type=int, default=5, metavar="N", help="give up after so many failures (5)")
    chosen = parser.parse_args(arguments)
    globalLogBeginner.beginLoggingTo([cast(ILogObserver, lambda event: None)], redirectStandardIO=False)
    counts: Counter[str] = Counter()
    failures = 0
    for done, seed in enumerate(range(chosen.first, chosen.first + chosen.seeds), 1):
        outcome = run_seed(seed)
        counts.update(outcome.counts)
        if outcome.violation is not None:
            failures += 1
            options = options_of(seed)
            steps = steps_of(seed, options)
            if not chosen.no_shrink:
                steps = shrink(options, steps, outcome.violation.invariant)
                again = run_steps(options, steps)
                outcome = again if again.violation is not None else outcome
            print(describe(seed, outcome, options, steps), flush=True)
            if failures >= chosen.stop_after:
                break
        if done % 100 == 0:
            print(f"{done} seeds, {failures} failures", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    for name in SOMETIMES:
        if not counts[name]:
            print(f"never met: {name}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
