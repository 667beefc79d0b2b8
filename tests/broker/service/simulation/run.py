"""One run of a group from one seed: does the steps, heals everything, and says what went wrong and what was met."""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from pathlib import Path
from unittest.mock import patch

from mqbroker.broker import replica_store
from mqbroker.broker.offset_table import OffsetTable
from tests.broker.service.simulation.cluster import Cluster
from tests.broker.service.simulation.logs import note_cut
from tests.broker.service.simulation.offsets import note_queue_end
from tests.broker.service.simulation.steps import Options, Step, options_of, steps_of
from tests.store.simulation.model import Violation
from tests.store.simulation.run import Outcome, describe, logged
from tests.store.simulation.shrink import Trials, without_chunks

SHRINK_RUNS_MAX = 200
#: What each long row of seeds must have met at least once.
SOMETIMES = (
    "acknowledged",
    "clocks of other rates",
    "epochs",
    "hang etcd",
    "hang member",
    "isolate",
    "late member",
    "power",
    "power for a moment",
    "power of all",
    "slow links",
    "stop",
    "switch",
    "switched",
    "uneven etcd",
)


def run_steps(options: Options, steps: list[Step]) -> Outcome:
    """Do the steps to a new group, then heal and compare."""
    violation: Violation | None = None
    counts: Counter[str] = Counter()
    noted = patch.object(OffsetTable, "lower_to", note_queue_end)
    cuts = patch.object(replica_store, "cut_log", note_cut)
    with logged() as log, noted, cuts, tempfile.TemporaryDirectory(prefix="mqbroker-group-") as root:
        try:
            cluster = Cluster(Path(root) / "group", options)
            counts = cluster.counts
            for step in steps:
                cluster.do(step)
            cluster.finish()
        except Violation as broken:
            violation = broken
        except Exception:
            violation = Violation("no unhandled error", traceback.format_exc())
        if log.unhandled and violation is None:
            violation = Violation("no unhandled error", log.unhandled[0])
    return Outcome(violation, counts, 0)


def run_seed(seed: int) -> Outcome:
    return run_steps(options_of(seed), steps_of(seed))


def shrink(options: Options, steps: list[Step], invariant: str) -> list[Step]:
    """Fewer steps that break the same promise, where there are."""
    return without_chunks(steps, Trials(lambda part: run_steps(options, part).violation, invariant, SHRINK_RUNS_MAX))


def story(seed: int, outcome: Outcome, *, is_shrunk: bool = True) -> str:
    """A failing run as one can paste it into a file of `regressions/`, with the fewest steps."""
    assert outcome.violation is not None
    options, steps = options_of(seed), steps_of(seed)
    if is_shrunk:
        steps = shrink(options, steps, outcome.violation.invariant)
        again = run_steps(options, steps)
        outcome = again if again.violation is not None else outcome
    return describe(seed, outcome, options, steps)


def counts_and_story(seed: int, is_shrunk: bool) -> tuple[Counter[str], str]:
    """What a run met, and the story of its failure; empty if there was none."""
    outcome = run_seed(seed)
    return outcome.counts, "" if outcome.violation is None else story(seed, outcome, is_shrunk=is_shrunk)
