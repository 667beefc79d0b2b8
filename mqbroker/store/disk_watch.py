"""Disk usage watch: whether old files must be deleted, and whether messages are refused. Deletes nothing itself.

The bounds are those of DefaultMessageStore.CleanCommitLogService of 4.9.7, where two of them are system properties.
Java ignores a full disk of consume queues while that of the log has room; here the fuller of the two decides.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.store.commitlog import CommitLog, Refusal
from mqbroker.store.disk import DiskSpace, IDisk, Outage
from mqbroker.store.worker import IWorker


class Room(enum.IntEnum):
    """Levels of free space, from best to worst."""

    ENOUGH = 0
    #: Files older than fileReservedTime are deleted at any hour.
    SCARCE = 1
    #: Files are deleted whatever their age.
    URGENT = 2
    #: Messages are refused, too.
    FULL = 3


@attrs.frozen
class RoomLimits:
    """Used ratios at which each level begins. A ratio must be exceeded, not only reached."""

    scarce_percent: int
    urgent_percent: int
    full_percent: int
    free_bytes_min: int

    @classmethod
    def of(cls, settings: StoreSettings) -> RoomLimits:
        return cls(
            settings.disk_max_used_space_ratio,
            settings.disk_space_clean_forcibly_ratio,
            settings.disk_space_warning_level_ratio,
            settings.disk_free_bytes_min,
        )

    def judge(self, space: DiskSpace) -> Room:
        percent = space.used_percent
        if percent > self.full_percent or space.available_bytes < self.free_bytes_min:
            return Room.FULL
        if percent > self.urgent_percent:
            return Room.URGENT
        return Room.SCARCE if percent > self.scarce_percent else Room.ENOUGH

    def why_full(self, path: str, space: DiskSpace) -> str:
        """The error for a full disk, with advice."""
        if space.used_percent > self.full_percent:
            limit = f"above {self.full_percent} % (diskSpaceWarningLevelRatio)"
        else:
            limit = f"with less than {self.free_bytes_min} bytes free (diskFreeBytesMin)"
        return (
            f"{path} is on a disk of which {space.used_percent} % are used and {space.available_bytes} bytes free; "
            f"{limit} messages are refused: free space, or keep messages for a shorter time (fileReservedTime)"
        )


class DiskWatch:
    """Checks the disks, and refuses or allows appends to the log.

    :param paths: the directories of the log, of consume queues and of the index, in this order.
    """

    log = Logger()

    def __init__(
        self, commit_log: CommitLog, disk: IDisk, worker: IWorker, paths: Sequence[str], limits: RoomLimits
    ) -> None:
        self._commit_log = commit_log
        self._disk = disk
        self._worker = worker
        self._paths = paths
        self.limits = limits
        self._looking = Outage(
            "the free space of the disk cannot be read", "the free space of the disk can be read again"
        )
        self.room = Room.ENOUGH
        #: By path, as last checked.
        self.spaces: dict[str, DiskSpace] = {}

    @property
    def used_percents(self) -> list[int]:
        """Of each path's disk the space in use, percent, as last checked; 0 if not checked yet."""
        return [self.spaces[path].used_percent if path in self.spaces else 0 for path in self._paths]

    @property
    def log_space(self) -> DiskSpace | None:
        """The space of the log's disk, as last checked."""
        return self.spaces.get(self._paths[0])

    def look(self) -> Deferred[Room]:
        """Check the space. Fires with the room that there is, or was when the disk could be read last."""

        def spaces() -> dict[str, DiskSpace]:
            return {path: self._space(path) for path in self._paths}

        return self._worker.run(spaces).addCallbacks(self._seen, self._not_seen)

    def _space(self, path: str) -> DiskSpace:
        try:
            return self._disk.space(path)
        except FileNotFoundError:  # made with the first message
            return self._disk.space(os.path.dirname(path))

    def _seen(self, spaces: dict[str, DiskSpace]) -> Room:
        self._looking.worked()
        self.spaces = spaces
        worst = max(self._paths, key=lambda path: self.limits.judge(spaces[path]))
        room = self.limits.judge(spaces[worst])
        commit_log = self._commit_log
        if room is Room.FULL:
            ratios = [spaces[path].used_percent / 100 for path in self._paths]
            # Ratios as the Java broker gives them in its answer to a send.
            shown = "CL: {:5.2f} CQ: {:5.2f} INDEX: {:5.2f}".format(*ratios)
            why = f"the broker's disk is full [{shown}]: {self.limits.why_full(worst, spaces[worst])}"
            if commit_log.refuse(Refusal.DISK_FULL, why):
                self.log.error("messages are refused: {why}", why=why)
        elif commit_log.allow(Refusal.DISK_FULL):
            self.log.info("messages are accepted again: {path} has room", path=worst)
        elif room > self.room:
            self.log.warn(
                "{path} is on a disk of which {percent} % are used: old messages are deleted",
                path=worst, percent=spaces[worst].used_percent,
            )  # fmt: skip
        self.room = room
        return room

    def _not_seen(self, failure: Failure) -> Room:
        self._looking.failed(failure.getErrorMessage())
        return self.room
