"""Appends that wait in memory for dispatch, in the order of the log.

What exceeds the bound is dropped: the dispatcher reads it back from the log.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

from mqbroker.store.logscan import Damage, ILogView, Run, scan

#: physical offset, queue offset, size, store timestamp (ms).
Appended = tuple[int, int, int, int]
#: Bytes of messages that may wait for the dispatcher in memory; it reads those beyond from the log.
QUEUED_BYTES_MAX = 16 * 1024 * 1024
#: Runs of at most so many bytes are joined.
JOINED_BYTES_MAX = 32 * 1024
#: About as many bytes are joined: what is left of them when time is over is copied.
TAKEN_BYTES_MAX = 1024 * 1024


class DispatchQueue(deque[Run]):
    """Runs of records in the order of the log."""

    @property
    def begin(self) -> int:
        """Log offset of the first run; there must be one."""
        return self[0].start

    def put(self, run: Run) -> None:
        """Add a run that follows all others."""
        if self and run.start - self.begin > QUEUED_BYTES_MAX:
            self.clear()
        self.append(run)

    def put_back(self, run: Run) -> None:
        """Add the rest of a run that was taken, before all others."""
        self.appendleft(run)

    def take(self, start: int, count: int, limit: int = sys.maxsize) -> Run | None:
        """Remove and return the run that begins at `start`, joined with those that follow it and end at or below
        `limit` up to about `count` records; None if there is none. Runs before `start` are removed, too."""
        while self and self.begin < start:
            self.popleft()
        if not self or self.begin > start:
            return None
        taken = [last := self.popleft()]
        records = last.count
        stop = start + TAKEN_BYTES_MAX
        while self and records < count and self.begin == last.end < stop and _can_join(last) and _can_join(self[0]):
            if self[0].end > limit:
                break
            taken.append(last := self.popleft())
            records += last.count
        return taken[0] if len(taken) == 1 else _joined(taken, records)


def _can_join(run: Run) -> bool:
    """Whether the run holds exactly its own bytes; large runs are not copied."""
    return run.data is not None and len(run.data) == run.end - run.start <= JOINED_BYTES_MAX


def _joined(runs: Sequence[Run], count: int) -> Run:
    data = b"".join([cast(bytes, run.data) for run in runs])
    newest_ms = max([run.newest_ms for run in runs])
    first, last = runs[0], runs[-1]
    return Run(first.start, last.end, count, last.last, newest_ms, data, appended_ms=first.appended_ms)


def read_back(
    log: ILogView, queue: DispatchQueue, start: int, end: int, count: int, limit: int = sys.maxsize
) -> Iterator[Run | Damage]:
    """As `scan`, with the runs that are in the queue; it becomes empty below where this ends. The last one that is
    yielded ends at `end`, unless there are more than `count`; fillers are empty runs, and count as one record. Runs of
    the queue are not joined across `limit`."""
    while start < end and count > 0:
        run = queue.take(start, count, limit)
        if run is None:
            stop = min(end, queue.begin) if queue else end
            for found in scan(log, start, stop, count):
                yield found
                start = found.end
                count -= max(1, found.count) if isinstance(found, Run) else 1
            if count <= 0 or start >= stop:
                continue
            run = Run(start, stop, 0, start, 0, rows=())  # the filler at the end of a segment
        yield run
        start, count = run.end, count - max(1, run.count)
