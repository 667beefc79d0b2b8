"""A worker of three threads that are all steps of one seeded run: what runs when, and when its result arrives."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.store.worker import IWorker

THREADS = 3


@attrs.define(eq=False)
class Job:
    function: Callable[[], Any]
    deferred: Deferred[Any]
    is_done: bool = False
    result: Any = None


@implementer(IWorker)
class SimWorker:
    """Runs nothing until `step`. A function runs as one piece; its result is delivered by another step."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, function: Callable[[], Any]) -> Deferred[Any]:
        job = Job(function, Deferred())
        self.jobs.append(job)
        return job.deferred

    @property
    def is_idle(self) -> bool:
        return not self.jobs

    def step(self, rng: Random) -> None:
        """Run, or deliver, one of the jobs that threads are at."""
        if not self.jobs:
            return
        job = rng.choice(self.jobs[:THREADS])
        if job.is_done:
            self.jobs.remove(job)
            if isinstance(job.result, Failure):
                job.deferred.errback(job.result)
            else:
                job.deferred.callback(job.result)
            return
        job.is_done = True
        try:
            job.result = job.function()
        except Exception:  # what is no Exception is the end of the run
            job.result = Failure()
