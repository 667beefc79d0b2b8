"""One run from one seed: does the steps, and says what went wrong and what was met."""

from __future__ import annotations

import gc
import json
import struct
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import attrs
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher

from mqbroker.store import checkpoint, commitlog, dispatch, segment
from tests.store.simulation.model import Violation
from tests.store.simulation.steps import Options, Step, options_of, steps_of
from tests.store.simulation.threads import Ended, Threads
from tests.store.simulation.world import World

#: What each long row of seeds must have met at least once.
SOMETIMES = (
    "LMQ queue rebuilt",
    "acknowledged as durable",
    "append refused",
    "clean stop",
    "clock jump",
    "consumequeue deleted",
    "damage found",
    "disk full refused",
    "end in the middle of an operation",
    "end while opening",
    "file in consumequeue after stop",
    "garbage in consumequeue after power",
    "garbage in consumequeue after stop",
    "hostile message",
    "index deleted",
    "index roll",
    "jobs of the worker overlapped",
    "kill during a deletion",
    "kernel's queue: event",
    "kernel's queue: get events",
    "kernel's queue: submit",
    "kernel's queue: word",
    "kill while the worker was busy",
    "opening refused by the disk",
    "opening refused by an unreadable page",
    "power cut after a stop",
    "power while the worker was busy",
    "read failed",
    "reads refused for want of descriptors",
    "record that fills its segment",
    "removal refused",
    "reopened after kill",
    "reopened after power",
    "reopened after stop",
    "rot of a table",
    "rot reported by a rebuild",
    "segment deleted",
    "segment roll",
    "short of descriptors",
    "short of descriptors but a few",
    "short of files of all",
    "short of memory",
    "short of names",
    "sync failed",
    "syncs that hang",
    "table not saved",
    "table saved",
    "tail cut",
    "threads switched",
    "topic removed",
    "uncommitted tail lost at a kill",
    "wait failed: FlushTimedOut",
    "wait failed: StoreUnwritable",
    "went on after faults",
    "zeros in consumequeue after kill",
    "zeros in consumequeue after stop",
)


#: Messages in a turn of the dispatch, in some runs: more wait for it then, and ends of segments are among them.
SHORT_TURN_MESSAGES = 3
_MISTAKES = (AttributeError, TypeError, LookupError, AssertionError, ValueError, struct.error)


@attrs.frozen
class Outcome:
    """`violation` is None where all promises were kept. `trace` is equal for equal runs."""

    violation: Violation | None
    counts: Counter[str]
    trace: int


@attrs.define
class _Log:
    """What the run logged that matters."""

    unhandled: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)

    def __call__(self, event: LogEvent) -> None:
        text = str(event.get("log_format") or "")
        if "all are rebuilt" in text:
            self.counts["all queues built anew"] += 1
        failure = event.get("log_failure")
        if failure is None:
            return
        is_mistake = text.startswith("Unhandled") or failure.check(*_MISTAKES) is not None
        if is_mistake and failure.check(Ended) is None:
            self.unhandled.append(f"{text}: {failure.getTraceback()}")


@contextmanager
def logged() -> Iterator[_Log]:
    """Collects what is logged meanwhile."""
    log = _Log()
    globalLogPublisher.addObserver(cast(ILogObserver, log))
    try:
        yield log
    finally:
        globalLogPublisher.removeObserver(cast(ILogObserver, log))


def run_steps(options: Options, steps: list[Step]) -> Outcome:
    """Do the steps to a new store, then heal and compare."""
    threads = Threads()  # who waits for a lock lets others have their turn
    turn = SHORT_TURN_MESSAGES if "short turns" in options.get("extras", ()) else dispatch.TURN_MESSAGES
    with (
        patch.object(checkpoint, "threading", threads),
        patch.object(segment, "threading", threads),
        patch.object(dispatch, "TURN_MESSAGES", turn),
        patch.multiple(segment, FILL_BYTES=1024, FILL_SYNC_BYTES=4096, FILL_AHEAD_BYTES=8192),
        patch.object(commitlog, "READIED_BYTES", 512),
    ):
        return _run_steps(options, steps)


def _run_steps(options: Options, steps: list[Step]) -> Outcome:
    counts: Counter[str] = Counter()
    trace = 0
    violation: Violation | None = None
    world: World | None = None
    with logged() as log:
        try:
            world = World(options)
            for step in steps:
                world.do(step)
                trace = zlib.crc32(json.dumps(_state(world)).encode(), trace)
            world.finish()
            trace = zlib.crc32(json.dumps([world.disk.trace, sorted(world.counts.items())]).encode(), trace)
        except Violation as broken:
            violation = broken
        except Exception:
            violation = Violation("no unhandled error", traceback.format_exc())
        if world is not None:
            world.worker.end()
            counts = world.counts
            counts["threads switched"] += world.switching.count
            counts.update({f"kernel's queue: {what}": count for what, count in world.disk.calls.aio.failed.items()})
        world = None
        if violation is None:
            gc.collect()  # a Deferred tells of its error when it goes
        counts.update(log.counts)
        if log.unhandled and violation is None:
            violation = Violation("no unhandled error", log.unhandled[0])
    return Outcome(violation, counts, trace)


def _state(world: World) -> list[Any]:
    store = world.store
    return [world.disk.trace, world.disk.operations, world.clock.rightNow, store.log_end, str(store.stats)]


def run_seed(seed: int) -> Outcome:
    options = options_of(seed)
    return run_steps(options, steps_of(seed, options))


def describe(seed: int, outcome: Outcome, options: Options, steps: list[Step]) -> str:
    """A failure as one can paste it into a file of `regressions/`."""
    assert outcome.violation is not None
    regression = {"invariant": outcome.violation.invariant, "options": options, "steps": steps}
    lines = ",\n  ".join(f"{json.dumps(key)}: {_json_of(value)}" for key, value in regression.items())
    return f"seed {seed}: {outcome.violation}\n{{\n  {lines}\n}}\n"


def _json_of(value: Any) -> str:
    if isinstance(value, list):
        return "[\n    " + ",\n    ".join(json.dumps(step) for step in value) + "\n  ]"
    return json.dumps(value)
