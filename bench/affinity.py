"""On which cores processes run, where more of them than there are cores would otherwise take turns."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def pin(pid: int, cores: Iterable[int]) -> None:
    """Have all threads of a process run on these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), set(cores))


@contextmanager
def starting_on(cores: Iterable[int]) -> Iterator[None]:
    """Have what is started meanwhile, and this thread, run on these cores."""
    former = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)


def first_and_others() -> tuple[list[int], list[int]]:
    """The first core, and all others; on a machine with one it is both."""
    first, *others = sorted(os.sched_getaffinity(0))
    return [first], others or [first]
