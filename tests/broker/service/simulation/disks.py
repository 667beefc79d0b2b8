"""What happens to the disks of stopped brokers: they are emptied, replaced, or set back to an older copy, all of the
store or a part of it. Must never know what the files mean, but for which belong to the log."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from mqbroker.store.disk import IDisk
from tests.store.simulation.disk import Directory, SimDisk

STORE = "/store"
LOG = "commitlog"
#: What was made from the log, which a person moves away where the log is gone.
FROM_LOG = ("consumequeue", "consumequeue_ext", "index", "checkpoint", "queueEnds", "queueEnds.last", "abort")
TABLES = "config"


def copied(disk: IDisk, rng: Random) -> SimDisk:
    """A copy of a disk, of which some process may make use at the moment."""
    return _simulated(disk).killed(rng).copied()


def emptied(disk: IDisk, *, is_booted: bool = False) -> SimDisk:
    """A new disk in the place of this one. `is_booted`: its machine has started again for that."""
    return _booted(SimDisk(), disk, is_booted)


def set_back(disk: IDisk, copy: SimDisk, names: tuple[str, ...] = (), *, is_booted: bool = False) -> SimDisk:
    """The disk with what the copy has of these files and directories of the store, by default of all."""
    if not names:
        made = copy.copied()
    else:
        made, older = _simulated(disk).copied(), copy.copied()
        store, source = _store(made), _store(older)
        for name in names:
            store.names.pop(name, None)
            if name in source.names:
                store.names[name] = source.names[name]
        store.durable = dict(store.names)
    return _booted(made, disk, is_booted)


def without(disk: IDisk, *names: str, is_booted: bool = False) -> SimDisk:
    """The disk without these files and directories of the store."""
    made = _simulated(disk).copied()
    store = _store(made)
    for name in names:
        store.names.pop(name, None)
    store.durable = dict(store.names)
    return _booted(made, disk, is_booted)


def with_zeros(disk: IDisk, numbers: Iterable[int], begin: int = 0, end: int | None = None) -> SimDisk:
    """The disk with zeros in segments of the log, counted from the first one: in all of each, or from `begin` to `end`
    of it."""
    made = _simulated(disk).copied()
    names = made.names(f"{STORE}/{LOG}")
    for number in numbers:
        inode = made.inode(f"{STORE}/{LOG}/{names[number]}")
        stop = inode.size if end is None else end
        inode.memory[begin:stop] = bytes(stop - begin)
        inode.sync()
    return made.copied()


def with_zeros_somewhere(disk: IDisk, rng: Random) -> SimDisk | None:
    """The disk with zeros in the place of some segments of the log, but not of the last; None if there are none."""
    count = len(disk.names(f"{STORE}/{LOG}")) - 1
    return with_zeros(disk, rng.sample(range(count), rng.randint(1, count))) if count > 0 else None


def with_segment_of(disk: IDisk, copy: SimDisk, number: int) -> SimDisk:
    """The disk with one segment of the log as an older copy has it, counted from the first one."""
    made, older = _simulated(disk).copied(), copy.copied()
    name = made.names(f"{STORE}/{LOG}")[number]
    log, source = made.directory(f"{STORE}/{LOG}"), older.directory(f"{STORE}/{LOG}")
    log.names[name] = source.names[name]
    log.durable = dict(log.names)
    return made


def _store(disk: SimDisk) -> Directory:
    found = disk.root.names.setdefault(STORE.strip("/"), Directory())
    disk.root.durable = dict(disk.root.names)
    assert isinstance(found, Directory)
    return found


def _simulated(disk: IDisk) -> SimDisk:
    assert isinstance(disk, SimDisk)
    return disk


def _booted(made: SimDisk, disk: IDisk, is_booted: bool) -> SimDisk:
    made._boots = _simulated(disk)._boots + is_booted
    return made
