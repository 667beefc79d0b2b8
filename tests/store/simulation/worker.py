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
from tests.store.simulation.threads import Ended, Strand

THREADS = 3


@attrs.define
class Switching:
    """At what share of the system calls another thread goes on, and by what chance."""

    share: float = 0.0
    rng: Random = attrs.field(factory=lambda: Random(0))
    count: int = 0

    def is_due(self) -> bool:
        return self.share > 0 and self.rng.random() < self.share


@attrs.define(eq=False)
class Job:
    """`is_kernels`: it takes no thread of the process."""

    function: Callable[[], Any]
    deferred: Deferred[Any]
    strand: Strand
    is_kernels: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it has run to its end, be it while somebody waited for a lock that it held."""
        return self.strand.is_done

    def go_on(self, in_pieces: bool) -> None:
        strand = self.strand
        if in_pieces or strand.is_begun:
            strand.resume()
            return
        strand.is_done = True
        try:
            strand.result = self.function()
        except Exception:  # what is no Exception is the end of the run
            strand.result = Failure()


@implementer(IWorker)
class SimWorker:
    """Runs nothing until `step`. A function runs as one piece, or with `switching` in pieces between two system calls,
    among those of the reactor and of other threads; its result is delivered by another step.

    `begun`: threads that functions have begun by themselves. What the kernel does by itself are jobs here as well, none
    of which ends while it `hangs`.
    """

    def __init__(self, switching: Switching | None = None, begun: list[Strand] | None = None) -> None:
        self.jobs: list[Job] = []
        self._switching = switching or Switching()
        self._begun = [] if begun is None else begun
        self.hangs = False

    def run(self, function: Callable[[], Any]) -> Deferred[Any]:
        return self._add(Job(function, Deferred(), Strand(function)))

    def run_in_kernel(self, function: Callable[[], Any]) -> Deferred[Any]:
        return self._add(Job(function, Deferred(), Strand(function), is_kernels=True))

    def _add(self, job: Job) -> Deferred[Any]:
        self.jobs.append(job)
        return job.deferred

    @property
    def is_idle(self) -> bool:
        return all(job.is_kernels for job in self.jobs)

    def _at_work(self) -> list[Job]:
        """The jobs that threads are at, and those of the kernel."""
        found: list[Job] = []
        threads = THREADS
        for job in self.jobs:
            if job.is_kernels:
                if job.is_done or not self.hangs:
                    found.append(job)
            elif threads:
                threads -= 1
                found.append(job)
        return found

    def step(self, rng: Random) -> None:
        """Run, or deliver, one of the jobs that threads or the kernel are at."""
        at_work: list[Job | Strand] = [*self._at_work(), *self._waiting()]
        if not at_work:
            return
        found = rng.choice(at_work)
        if isinstance(found, Strand):
            found.resume()
        elif found.is_done:
            self.jobs.remove(found)
            if isinstance(found.strand.result, Failure):
                found.deferred.errback(found.strand.result)
            else:
                found.deferred.callback(found.strand.result)
        else:
            found.go_on(self._switching.share > 0 and not found.is_kernels)

    def _waiting(self) -> list[Strand]:
        return [strand for strand in self._begun if not strand.is_done]

    def switch(self) -> None:
        """Before a system call: another thread may go on instead. Raises Ended where the process is gone."""
        running = Strand.running
        if running is not None:
            if running.is_ended:
                raise Ended("a system call after the end")
            if self._switching.is_due():
                self._switching.count += 1
                running.pause()
        elif self._switching.is_due():
            jobs = [job for job in self._at_work() if not job.is_done]
            found: list[Job | Strand] = [*jobs, *self._waiting()]
            if found:
                self._switching.count += 1
                chosen = self._switching.rng.choice(found)
                chosen.resume() if isinstance(chosen, Strand) else chosen.go_on(not chosen.is_kernels)

    def end(self) -> None:
        """Have all end where they are: their process is gone."""
        for strand in [*(job.strand for job in self.jobs), *self._begun]:
            strand.end()
        self.jobs.clear()
        self._begun.clear()
