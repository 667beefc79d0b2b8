"""Whether this broker's log may lack messages that the broker has acknowledged to its group: its machine stopped before
they were on the disk. That stands in a file, from before the store is opened until the log is as its master's again."""

from __future__ import annotations

import os

from twisted.logger import Logger

from mqbroker.store.disk import IDisk
from mqbroker.store.layout import StorePaths

log = Logger()


class LossyLog:
    """The file of one store."""

    def __init__(self, disk: IDisk, paths: StorePaths) -> None:
        self._disk, self._paths = disk, paths
        self._path = os.path.join(paths.root, "lossy")

    def look(self) -> None:
        """Find out before the store is opened. Raises OSError."""
        disk, abort = self._disk, self._paths.abort
        if not disk.exists(abort):  # it was stopped in order, or is new
            return
        boot, found = disk.boot_id(), disk.read(abort)
        # An empty one is left by a log that was cut back, on a machine that has boot ids.
        if not boot or found not in (boot, b""):
            log.warn(
                "the machine stopped while this broker ran: its log may lack what was acknowledged, and it is elected "
                "only where all in sync may, until its log is as its master's again"
            )
            disk.write(self._path, b"")

    @property
    def is_noted(self) -> bool:
        return self._disk.exists(self._path)

    def clear(self) -> None:
        """The log has all. Raises OSError."""
        self._disk.remove(self._path)
        self._disk.sync_directory(self._paths.root)
