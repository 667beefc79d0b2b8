"""What retention may take of the log: whole segments, oldest first, none that is younger than the rule says unless the
disk is full; and that the minimum offsets follow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mqbroker.store.disk import DiskSpace
from mqbroker.store.disk_watch import Room, RoomLimits
from tests.store.simulation.model import Entry, Violation, require

if TYPE_CHECKING:
    from tests.store.simulation.life import Life


class RetentionCheck:
    """Watches the disk of a world for segments that go."""

    def __init__(self, world: Life) -> None:
        self._world = world
        settings = world.settings()
        self._directory = os.path.join(settings.store_path_root_dir, "commitlog")
        self._segment_bytes = settings.mapped_file_size_commit_log
        self._reserved_ms = settings.file_reserved_time_hours * 3_600_000
        self._limits = RoomLimits.of(settings)
        self._is_forced = settings.clean_file_forcibly_enable
        self._interval_ms = settings.clean_resource_interval_ms
        #: The so many-th operation after a segment's name was removed is to be the last.
        self.end_in: int | None = None
        #: The next sync after that is to fail.
        self.fails = False
        self._may_force = False  # the disk was seen to be full since the last segment went

    def start(self) -> None:
        """Watch the store's disk: what goes from now on goes by the rules."""
        self._world.disk.on_remove = self._removing
        self._world.disk.on_look = self._looked

    def stop(self) -> None:
        """What is removed now is a tail that recovery cuts."""
        self._world.disk.on_remove = lambda path: None
        self.forget_faults()

    def forget_faults(self) -> None:
        self.end_in, self.fails = None, False

    def _looked(self, space: DiskSpace) -> None:
        self._may_force |= self._is_forced and self._limits.judge(space) >= Room.URGENT

    def _removing(self, path: str) -> None:
        world, model = self._world, self._world.model
        directory, name = os.path.split(path)
        if directory != self._directory or int(name) >= world.store.log_end:  # one made ahead
            return
        base = int(name)
        if base != model.removed:
            self._broken("whole segments go, oldest first", f"{name} where {model.removed} is the oldest")
        elif self._may_force:
            self._may_force = False
            world.counts["segment deleted for want of room"] += 1
        else:
            self._check_age(base, path)
        model.removed = base + self._segment_bytes
        if self.end_in is not None:
            world.disk.faults.end_in, self.end_in = self.end_in, None
        if self.fails:
            world.disk.faults.fail_sync_in, self.fails = 1, False

    def _check_age(self, base: int, path: str) -> None:
        world = self._world
        now_ms = 1000 * max(world.clock.rightNow, world.high_s)
        modified_ms = world.disk.inode(path).modified_ms
        inside = [entry for entry in world.model.entries if base <= entry.start < base + self._segment_bytes]
        if inside and not world.high_s:
            modified_ms = max(modified_ms, inside[-1].store_ms)
        if now_ms < modified_ms + self._reserved_ms:
            what = f"{path}, of {modified_ms}, at {now_ms}"
            self._broken("nothing goes that is younger than the rule", what)

    def _broken(self, invariant: str, what: str) -> None:
        self._world.violations.append(Violation(invariant, what))  # the worker would keep what is raised

    def follow(self) -> None:
        """See what the store has forgotten. Raises Violation."""
        world, model = self._world, self._world.model
        floor = world.store.log_min_offset
        while model.floor < floor:
            path = os.path.join(self._directory, f"{model.floor:020d}")
            what = f"{path} is forgotten, and may be there after a power cut"
            require(world.disk.is_gone_for_good(path), "no hole in the log", what)
            world.counts["segment deleted"] += 1
            model.let_go(model.floor + self._segment_bytes)

    def check_recovered(self) -> None:
        """The log begins where it began, or above what was being deleted. Raises Violation."""
        model = self._world.model
        floor = self._world.store.log_min_offset
        what = f"the log begins at {floor}, {model.floor} to {model.removed} was deleted"
        require(model.floor <= floor <= model.removed, "what was not deleted is there", what)
        model.let_go(floor)
        model.removed = floor

    def check_minimums(self) -> None:
        """Queues begin with the oldest message there is. Raises Violation."""
        world, model = self._world, self._world.model
        if model.has_rot or not model.floor:
            return

        def behind() -> list[tuple[str, int]]:
            wrong = []
            for (topic, queue_id), entries in sorted(model.queues.items()):
                if (topic, queue_id) in model.numbered:
                    continue
                if world.store.min_offset(topic, queue_id) != _first_there(entries):
                    wrong.append((topic, queue_id))
            return wrong

        world.wait_until(lambda: not behind(), self._interval_ms)
        for topic, queue_id in behind():
            found, first = world.store.min_offset(topic, queue_id), _first_there(model.queues[topic, queue_id])
            require(False, "minimum offsets follow", f"{topic} {queue_id} begins at {found}, not {first}")


def _first_there(entries: list[Entry]) -> int:
    return next((offset for offset, entry in enumerate(entries) if not entry.is_gone), len(entries))
