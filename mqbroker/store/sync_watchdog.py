"""Whether syncs of the log come to an end: says so where one does not, and has messages refused where much time's worth
of them is in memory only. Must never sync anything.

Time is counted in looks, one a second, so that a clock that is set forward makes no sync a long one.
"""

from __future__ import annotations

from collections import deque

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.flush import LogFlusher

LOOK_S = 1.0
#: A sync that takes longer is told of.
LONG_S = 5


class SyncWatchdog:
    """Looks at the log's syncs.

    :param unsynced_s_max: messages are refused while something waits for its sync for longer than this, seconds.
    """

    log = Logger()

    def __init__(self, commit_log: CommitLog, flusher: LogFlusher, clock: IReactorTime, unsynced_s_max: float) -> None:
        self._commit_log = commit_log
        self._flusher = flusher
        self._unsynced_s_max = unsynced_s_max
        self._looks = 0
        self._oldest: object | None = None
        self._oldest_since = 0
        # Where the log ended at which look, from the first that is not synced.
        self._ends: deque[tuple[int, int]] = deque()
        self._call = LoopingCall(self._look)
        self._call.clock = clock

    def start(self) -> None:
        if not self._call.running:
            self._call.start(LOOK_S, now=False)

    def stop(self) -> None:
        if self._call.running:
            self._call.stop()

    def _look(self) -> None:
        self._looks += 1
        self._look_at_oldest()
        self._look_at_age()

    def _look_at_oldest(self) -> None:
        """Tell of a sync that takes long, once, and of its end."""
        oldest, looks = self._flusher.oldest_sync, self._looks - self._oldest_since
        if oldest is not self._oldest:
            if looks > LONG_S:
                self.log.warn("a sync of the commit log to the disk took {looks} s", looks=looks)
            self._oldest, self._oldest_since = oldest, self._looks
        elif oldest is not None and looks == LONG_S:
            self.log.error(
                "{path}: a sync to the disk has not ended after {seconds} s, and {bytes} bytes of messages are in "
                "memory only: see what the system says of the disk (dmesg, iostat)",
                path=self._commit_log.segments[-1].path,
                seconds=LONG_S,
                bytes=self._commit_log.readable_end - self._flusher.flushed,
            )

    def _look_at_age(self) -> None:
        """Refuse messages, or take them again, by how long the oldest that is not synced waits."""
        commit_log, ends, end = self._commit_log, self._ends, self._commit_log.readable_end
        if end > self._flusher.flushed and (not ends or end > ends[-1][1]):
            ends.append((self._looks, end))
        while ends and ends[0][1] <= self._flusher.flushed:
            ends.popleft()
        waits_s = (self._looks - ends[0][0]) * LOOK_S if ends else 0
        if waits_s > self._unsynced_s_max:
            if not commit_log.why_unsynced:
                commit_log.why_unsynced = (
                    f"the disk of {commit_log.segments[-1].path} does not keep up: messages wait for their sync for "
                    f"more than {self._unsynced_s_max:g} s (unsyncedAgeMax), and would be lost with the power: see "
                    "what the system says of the disk (dmesg, iostat)"
                )
                self.log.error("messages are refused: {why}", why=commit_log.why_unsynced)
        elif commit_log.why_unsynced:
            commit_log.why_unsynced = ""
            self.log.info("messages are taken again: the commit log was synced to the disk")
