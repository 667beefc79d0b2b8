"""`python -m tests.broker.service.simulation --seeds N [--from S]`: runs groups of brokers from seeds on all cores,
prints what breaks, shrunk."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import cast

from twisted.logger import ILogObserver, globalLogBeginner

from tests.broker.service.simulation.run import SOMETIMES, counts_and_story


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.broker.service.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (1000)")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first (0)")
    parser.add_argument("--no-shrink", action="store_true", help="print failing steps as they were made")
    parser.add_argument("--stop-after", type=int, default=5, metavar="N", help="give up after so many failures (5)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="at a time (one a core)")
    chosen = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    failures = 0
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    with ProcessPoolExecutor(chosen.processes, initializer=_log_nothing) as pool:
        told = pool.map(partial(counts_and_story, is_shrunk=not chosen.no_shrink), seeds)
        for done, (met, found) in enumerate(told, 1):
            counts.update(met)
            if found:
                failures += 1
                print(found, flush=True)
                if failures >= chosen.stop_after:
                    pool.shutdown(cancel_futures=True)
                    break
            if done % 100 == 0:
                print(f"{done} seeds, {failures} failures", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    for name in SOMETIMES:
        if not counts[name]:
            print(f"never met: {name}")
    return 1 if failures else 0


def _log_nothing() -> None:
    globalLogBeginner.beginLoggingTo([cast(ILogObserver, lambda event: None)], redirectStandardIO=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
