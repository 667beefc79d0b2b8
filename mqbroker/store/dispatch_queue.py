"""Appends that wait in memory for dispatch, in the order of the log.

What exceeds the bound is dropped: the dispatcher reads it back from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.logscan import Run

#: topic, queue id, flag, sys flag, born timestamp (ms), born host (8 or 20 bytes), reconsume times, prepared offset,
#: body, properties.
NewMessage = tuple[bytes, int, int, int, int, bytes, int, int, bytes, bytes]
#: physical offset, queue offset, size, store timestamp (ms).
Appended = tuple[int, int, int, int]
#: One append, to be dispatched.
Dispatchable = tuple[Sequence[NewMessage], list[Appended], list[ConsumeQueue]]

#: Bytes of messages that may wait for the dispatcher in memory; it reads those beyond from the log.
QUEUED_BYTES_MAX = 16 * 1024 * 1024


class DispatchQueue:
    """The broker's own appends."""

    def __init__(self) -> None:
        self._appends: deque[Dispatchable] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._appends)

    @property
    def begin(self) -> int:
        """Log offset of the first append; there must be one."""
        return self._appends[0][1][0][0]

    def put(self, appends: Sequence[Dispatchable], size: int) -> None:
        """Add appends that are the next `size` bytes of the log."""
        if self._bytes > QUEUED_BYTES_MAX:
            self._appends.clear()
            self._bytes = 0
        self._appends += appends
        self._bytes += size

    def pop(self, count: int) -> tuple[list[Dispatchable], int]:
        """Remove contiguous appends of about `count` messages from the front; also returns the number of messages."""
        waiting = self._appends
        first = waiting.popleft()
        appends, taken, last = [first], len(first[1]), first[1][-1]
        while waiting and taken < count and waiting[0][1][0][0] == last[0] + last[2]:
            appends.append(waiting.popleft())
            taken += len(appends[-1][1])
            last = appends[-1][1][-1]
        self._bytes = self._bytes - (last[0] + last[2] - first[1][0][0]) if waiting else 0
        return appends, taken


class ScannedRuns:
    """Records that were scanned when they were appended, as a master has them: they are not scanned again."""

    def __init__(self) -> None:
        #: (where it begins, run).
        self._runs: deque[tuple[int, Run]] = deque()
        self._bytes = 0

    def put(self, run: Run, start: int, size: int) -> None:
        """Add a run that begins at `start` of the log and has `size` bytes."""
        if self._bytes > QUEUED_BYTES_MAX:
            self.clear()
        self._runs.append((start, run))
        self._bytes += size

    def pop(self, start: int) -> Run | None:
        """Remove and return the run that begins at `start`, and remove all before it; None if there is none."""
        runs = self._runs
        while runs and runs[0][0] < start:
            runs.popleft()
        if not runs:
            self._bytes = 0
            return None
        if runs[0][0] > start:
            return None
        _, run = runs.popleft()
        self._bytes = self._bytes - (run.end - start) if runs else 0
        return run

    def clear(self) -> None:
        self._runs.clear()
        self._bytes = 0
