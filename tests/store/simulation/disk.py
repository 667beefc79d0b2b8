"""A disk in memory that does to the store's files all that disks, kernels and power cuts do.

The store's own module for disks runs on it, by the calls of `calls`.

A name (made, removed or changed) is durable after its directory was synced, the bytes of a file after the file was;
what was not synced a crash keeps or not, at random. Every act counts as an operation, at any of which the process or
the machine may be made to end. Must never know what the files mean.
"""

from __future__ import annotations

import errno
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs
from zope.interface import implementer

from mqbroker.errors import StoreLocked
from mqbroker.store.disk import DiskSpace, IDisk, ILockedFile, IMappedFile
from tests.store.simulation.calls import MEMORY_BYTES, Calls, error_of, load
from tests.store.simulation.inode import PAGE_BYTES, Inode, pages_of
from tests.store.simulation.threads import Ended

#: So few that files of consume queues come and go all the time.
CACHED_FILES = 2
#: So few that files are synced by several threads.
ITEMS_A_THREAD = 2


class UnallocatedStore(AssertionError):
    """Something was stored where no block is: on a full disk the process would have died of SIGBUS."""


@attrs.define
class Directory:
    """`names` as programs see them, `durable` as a power cut leaves them."""

    names: dict[str, Inode | Directory] = attrs.field(factory=dict)
    durable: dict[str, Inode | Directory] = attrs.field(factory=dict)


def _files_below(directory: Directory, path: str) -> Iterator[tuple[str, Inode]]:
    for name, node in sorted(directory.names.items(), key=_name_of):
        below = os.path.join(path, name)
        if isinstance(node, Directory):
            yield from _files_below(node, below)
        else:
            yield below, node


def _name_of(item: tuple[str, object]) -> str:
    return item[0]


@attrs.frozen(eq=False)
class Change:
    """Names that come and go in one act: directory, name, and what it is from now on."""

    parts: tuple[tuple[Directory, str, Inode | Directory | None], ...]

    def apply(self) -> None:
        for directory, name, node in self.parts:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


@attrs.define
class DiskFaults:
    """What the disk does wrong from now on.

    `room_bytes`: what can still be allocated. `fail_sync_in`: the so many-th sync from now fails, and `forgets` says
    whether the kernel then takes what it could not write for written. `end_in`: the so many-th operation from now is
    the last. `refused`: the calls ("open" of anything, "create", "mmap", "mkdir") that end in an error, in which, and a
    share of how many. With `parts` an allocation that fails has taken some of the room. Of the calls that need
    something from the disk `reads_to_fail` fail, from the `fail_read_in`-th on from now. No more than
    `descriptors_max` can be open.
    """

    room_bytes: int | None = None
    fail_sync_in: int | None = None
    forgets: bool = True
    sync_rng: Random = attrs.field(factory=lambda: Random(0))
    end_in: int | None = None
    refused: dict[str, int] = attrs.field(factory=dict)
    refused_share: float = 1.0
    refuse_rng: Random = attrs.field(factory=lambda: Random(0))
    parts: bool = False
    descriptors_max: int | None = None
    fail_read_in: int | None = None
    reads_to_fail: int = 1


@implementer(ILockedFile)
class SimLock:
    def __init__(self, locks: dict[str, SimLock], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


@implementer(IDisk)
class SimDisk:
    """See the module. `on_write` is told of each small file that was written and synced."""

    def __init__(self) -> None:
        self.calls = Calls(self)
        module = load("mqbroker.store.os_disk", self.calls)
        module._ITEMS_A_THREAD = ITEMS_A_THREAD
        self._disk: IDisk = module.OsDisk()
        self.root = Directory()
        self.faults = DiskFaults()
        self.is_off = False
        #: Dates files: when they are made, and when a sync finds something new in them.
        self.now_ms: Callable[[], int] = lambda: 0
        self.operations = 0
        self.trace = 0
        self.syncs_failed = 0
        self.refusals = 0
        self.reads_failed = 0
        #: Where something was stored without a block, found in the middle of something else.
        self.hazards: list[str] = []
        self.on_write: Callable[[str], None] = lambda path: None
        #: Called before each system call: other threads may make theirs meanwhile.
        self.on_call: Callable[[], None] = lambda: None
        #: Told of each file that is about to be removed, and of each look at the room there is.
        self.on_remove: Callable[[str], None] = lambda path: None
        self.on_look: Callable[[DiskSpace], None] = lambda space: None
        self._locks: dict[str, SimLock] = {}
        self._changes: list[Change] = []
        self._with_bad_pages: list[Inode] = []
        self.used_bytes = 0
        self._boots = 1

    # Acts and what goes wrong with them

    def act(self, name: str, path: str) -> None:
        """Count an operation; raises Ended where it is the one that is not done any more."""
        if self.is_off:
            raise Ended(f"{name} of {path} after the end")
        self.operations += 1
        self.trace = zlib.crc32(f"{name} {path}\n".encode(), self.trace)
        if self.faults.end_in is not None:
            self.faults.end_in -= 1
            if self.faults.end_in <= 0:
                self.is_off = True
                raise Ended(f"in {name} of {path}")

    def refuse(self, name: str, path: str) -> None:
        """Raises OSError where such calls are refused now."""
        number = self.faults.refused.get(name)
        if number is not None and self.faults.refuse_rng.random() < self.faults.refused_share:
            self.refusals += 1
            raise error_of(number, path)

    @property
    def is_short(self) -> bool:
        """Whether calls are refused for a while."""
        return bool(self.faults.refused) or self.faults.descriptors_max is not None

    def check_descriptors(self, count: int, path: str) -> None:
        """Raises OSError where no more than `count` descriptors can be open."""
        limit = self.faults.descriptors_max
        if limit is not None and count >= limit:
            self.refusals += 1
            raise error_of(errno.EMFILE, path)

    def take_blocks(self, inode: Inode, offset: int, size: int) -> None:
        missing = [page for page in pages_of(offset, size) if not inode.blocks[page]]
        room = self.faults.room_bytes
        if room is not None and len(missing) * PAGE_BYTES > room:
            self.refusals += 1
            if self.faults.parts and room >= PAGE_BYTES:
                self._take(inode, missing[: room // PAGE_BYTES])
            raise error_of(errno.ENOSPC)
        self._take(inode, missing)

    def _take(self, inode: Inode, pages: list[int]) -> None:
        for page in pages:
            inode.blocks[page] = 1
        self.used_bytes += len(pages) * PAGE_BYTES
        if self.faults.room_bytes is not None:
            self.faults.room_bytes -= len(pages) * PAGE_BYTES

    def give_blocks(self, count: int) -> None:
        self.used_bytes -= count * PAGE_BYTES
        if self.faults.room_bytes is not None:
            self.faults.room_bytes += count * PAGE_BYTES

    def _fails(self) -> bool:
        faults = self.faults
        if faults.fail_sync_in is not None:
            faults.fail_sync_in -= 1
            if faults.fail_sync_in <= 0:
                faults.fail_sync_in = None
                self.syncs_failed += 1
                return True
        return False

    def sync_inode(self, inode: Inode, path: str) -> None:
        self.act("sync", path)
        self._check_stores(inode, path)
        if self._fails():
            inode.fail_sync(self.faults.sync_rng, self.faults.forgets)
            raise error_of(errno.EIO, path)
        before = inode.durable
        inode.sync()
        if inode.durable != before:
            inode.modified_ms = self.now_ms()

    def _check_stores(self, inode: Inode, path: str) -> None:
        at = inode.unallocated_store()
        if at is not None:
            self.hazards.append(f"{path}: stored at {at}, where no block is")
            raise UnallocatedStore(self.hazards[-1])
        at = inode.unread_store()
        if at is not None:
            self.hazards.append(f"{path}: stored at {at}, which nobody has read")
            raise UnallocatedStore(self.hazards[-1])

    def check_all_stores(self) -> None:
        """Raises UnallocatedStore."""
        for path, inode in self.files():
            self._check_stores(inode, path)

    # Finding things

    def _find(self, path: str) -> Inode | Directory:
        node: Inode | Directory = self.root
        for name in path.strip("/").split("/"):
            if not name:
                continue
            if not isinstance(node, Directory):
                raise error_of(errno.ENOTDIR, path)
            if name not in node.names:
                raise error_of(errno.ENOENT, path)
            node = node.names[name]
        return node

    def directory(self, path: str) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise error_of(errno.ENOTDIR, path)
        return node

    def find(self, path: str) -> Inode | Directory | None:
        """What there is at a path."""
        try:
            return self._find(path)
        except OSError:
            return None

    @property
    def boot(self) -> bytes:
        return b"boot %d" % self._boots

    @property
    def free_bytes(self) -> int:
        room = self.faults.room_bytes
        return 100 * MEMORY_BYTES if room is None else room

    def inode(self, path: str) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise error_of(errno.EISDIR, path)
        return node

    def content(self, path: str) -> bytes:
        """All of a file as programs see it, by no act of theirs."""
        inode = self.inode(path)
        return inode.image()

    def files(self, under: str = "/") -> Iterator[tuple[str, Inode]]:
        """All files by path, in order."""
        node = self.find(under)
        if isinstance(node, Directory):
            yield from _files_below(node, under)

    def durable_bytes(self, path: str) -> bytes | None:
        """What of a file is sure to be there after a power cut; None where not even its name is."""
        unsure = {(id(directory), name) for change in self._changes for directory, name, _ in change.parts}
        node: Inode | Directory = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Directory) or name not in node.durable:
                return None
            if (id(node), name) in unsure:
                return None  # it may also be gone, or be another
            node = node.durable[name]
        return node.durable if isinstance(node, Inode) else None

    def is_gone_for_good(self, path: str) -> bool:
        """Whether no power cut brings a name back."""
        directory, name = self.directory(os.path.dirname(path)), os.path.basename(path)
        is_sure = all(part[:2] != (directory, name) for change in self._changes for part in change.parts)
        return is_sure and name not in directory.durable

    def _change(self, *parts: tuple[Directory, str, Inode | Directory | None]) -> None:
        for directory, name, node in parts:
            if node is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = node
        self._changes.append(Change(parts))

    def lose(self, path: str) -> None:
        """Have a file or directory gone for good, though nobody removed it."""
        directory, name = self.directory(os.path.dirname(path)), os.path.basename(path)
        directory.names.pop(name, None)
        directory.durable.pop(name, None)
        self._changes = [
            change for change in self._changes if all(part[:2] != (directory, name) for part in change.parts)
        ]

    # What calls do

    def create(self, path: str) -> Inode:
        self.refuse("create", path)
        self.act("create", path)
        inode = Inode()
        self._change((self.directory(os.path.dirname(path)), os.path.basename(path), inode))
        return inode

    def make_directory(self, path: str) -> None:
        parent = self.directory(os.path.dirname(path))
        self.act("make_directory", path)
        self._change((parent, os.path.basename(path), Directory()))

    def link(self, inode: Inode, other: str) -> None:
        """Give a file one more name."""
        self.act("link", other)
        if self.find(other) is not None:
            raise error_of(errno.EEXIST, other)
        inode.links += 1
        self._change((self.directory(os.path.dirname(other)), os.path.basename(other), inode))

    def unlink(self, path: str) -> None:
        self.act("remove", path)
        inode = self.inode(path)
        self.on_remove(path)
        self._change((self.directory(os.path.dirname(path)), os.path.basename(path), None))
        self._lose_link(inode)

    def _lose_link(self, node: Inode | Directory | None) -> None:
        if isinstance(node, Inode):
            node.links -= 1
            if not node.links:
                self.give_blocks(sum(node.blocks))

    def remove_directory(self, path: str) -> None:
        self.act("remove_directory", path)
        if self.directory(path).names:
            raise error_of(errno.ENOTEMPTY, path)
        self._change((self.directory(os.path.dirname(path)), os.path.basename(path), None))

    def move(self, old: str, new: str) -> None:
        self.act("rename", old)
        node, former = self._find(old), self.find(new)
        if node is former:
            return
        self._change(
            (self.directory(os.path.dirname(old)), os.path.basename(old), None),
            (self.directory(os.path.dirname(new)), os.path.basename(new), node),
        )
        self._lose_link(former)

    def read_bytes(self, inode: Inode, path: str, offset: int, size: int) -> bytes:
        self.bring(inode, path, offset, size)
        return inode.memory[offset : offset + size] if size else b""

    def bring(self, inode: Inode, path: str, offset: int, size: int) -> None:
        """Have bytes read from the disk that are not in memory. Raises OSError."""
        missing = inode.unread.intersection(pages_of(offset, size)) if inode.unread and size else ()
        if missing and (self._fails_to_read() or inode.bad.intersection(missing)):
            self.reads_failed += 1
            raise error_of(errno.EIO)
        inode.bring(pages_of(offset, size))

    def is_unreadable(self, inode: Inode, offset: int) -> bool:
        number = offset // PAGE_BYTES
        return number in inode.bad and number in inode.unread

    def _fails_to_read(self) -> bool:
        faults = self.faults
        if faults.fail_read_in is not None:
            faults.fail_read_in -= 1
            if faults.fail_read_in <= 0:
                faults.reads_to_fail -= 1
                faults.fail_read_in = 1 if faults.reads_to_fail > 0 else None
                return True
        return False

    def drop(self, rng: Random, share: float) -> None:
        """Have pages leave memory, and be read again where they are wanted."""
        for _, inode in self.files():
            inode.drop(rng, share)

    def make_bad(self, inode: Inode, number: int) -> None:
        """Have reads of a page fail until `mend_pages`, be the file removed meanwhile."""
        inode.bad.add(number)
        self._with_bad_pages.append(inode)

    @property
    def has_bad_pages(self) -> bool:
        return any(inode.bad for inode in self._with_bad_pages)

    def mend_pages(self) -> None:
        """Have the disk read all of its pages again."""
        for inode in self._with_bad_pages:
            inode.bad.clear()
        self._with_bad_pages.clear()

    def sync_names(self, directory: Directory, path: str) -> None:
        self.act("sync_directory", path)
        if self._fails():
            raise error_of(errno.EIO)
        kept: list[Change] = []
        for change in self._changes:
            if any(part[0] is directory for part in change.parts):
                change.apply()
            else:
                kept.append(change)
        self._changes = kept

    # IDisk

    def make_directories(self, path: str) -> None:
        self._disk.make_directories(path)

    def names(self, path: str) -> list[str]:
        return self._disk.names(path)

    def is_directory(self, path: str) -> bool:
        return self._disk.is_directory(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def file_size(self, path: str) -> int:
        return self._disk.file_size(path)

    def modified_ms(self, path: str) -> int:
        return self._disk.modified_ms(path)

    def create_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        return self._disk.create_mapped(path, size, keep_open=keep_open)

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        return self._disk.open_mapped(path, size, keep_open=keep_open, read_only=read_only)

    def make_buffer(self, size: int) -> mmap.mmap:
        return self._disk.make_buffer(size)

    def pin_buffer(self, buffer: mmap.mmap) -> None:
        self._disk.pin_buffer(buffer)

    def space(self, path: str) -> DiskSpace:
        found = self._disk.space(path)
        self.on_look(found)
        return found

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        return self._disk.read_part(path, offset, size)

    def write_part(self, path: str, offset: int, data: memoryview) -> None:
        self._disk.write_part(path, offset, data)

    def write(self, path: str, data: bytes) -> None:
        self._disk.write(path, data)
        self.on_write(path)

    def replace(self, path: str, pieces: Sequence[bytes]) -> None:
        self._disk.replace(path, pieces)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def remove_tree(self, path: str) -> None:
        self._disk.remove_tree(path)

    def together(self, act: Callable[[Any], None], items: Sequence[Any]) -> list[OSError | None]:
        return self._disk.together(act, items)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def lock(self, path: str) -> ILockedFile:
        self.act("lock", path)
        if path in self._locks:
            raise StoreLocked(path, "another has it open")
        if self.find(path) is None:
            self._change((self.directory(os.path.dirname(path)), os.path.basename(path), Inode()))
        lock = self._locks[path] = SimLock(self._locks, path)
        return lock

    def boot_id(self) -> bytes:
        return self._disk.boot_id()

    def memory_bytes(self) -> int:
        return self._disk.memory_bytes()

    def cached_files_max(self) -> int:
        return CACHED_FILES

    # Ends

    def killed(self, rng: Random) -> SimDisk:
        """The disk as the next process finds it."""
        made: dict[int, Inode | Directory] = {}

        def next_of(node: Inode | Directory) -> Inode | Directory:
            if id(node) not in made:
                if isinstance(node, Inode):
                    made[id(node)] = node.killed(rng)
                else:
                    directory = made[id(node)] = Directory()
                    for name, below in node.names.items():
                        directory.names[name] = next_of(below)
                    for name, below in node.durable.items():
                        directory.durable[name] = next_of(below)
            return made[id(node)]

        disk = self._next(self._boots)
        root = next_of(self.root)
        assert isinstance(root, Directory)
        disk.root = root
        for change in self._changes:
            parts = []
            for directory, name, node in change.parts:
                parent = next_of(directory)
                assert isinstance(parent, Directory)
                parts.append((parent, name, next_of(node) if node is not None else None))
            disk._changes.append(Change(tuple(parts)))
        return disk

    def crashed(self, rng: Random) -> SimDisk:
        """The disk as the next boot finds it. All that was dirty may be lost, or kept, or anything between."""
        luck = rng.choice([0.0, 0.3, 0.5, 0.8, 1.0])
        if rng.random() < 0.5:  # a journal: all changes of names up to one of them
            kept = self._changes[: rng.randint(0, len(self._changes))]
        else:
            kept = [change for change in self._changes if rng.random() < 0.5]
        for change in kept:
            change.apply()

        def next_of(node: Inode | Directory) -> Inode | Directory:
            if isinstance(node, Inode):
                return node.crashed(rng, luck)
            directory = Directory()
            for name in sorted(node.durable):
                directory.names[name] = next_of(node.durable[name])
            directory.durable = dict(directory.names)
            return directory

        disk = self._next(self._boots + 1)
        root = next_of(self.root)
        assert isinstance(root, Directory)
        disk.root = root
        return disk

    def copied(self) -> SimDisk:
        """A disk with the same files, all durable, and nothing wrong with it."""

        def next_of(node: Inode | Directory) -> Inode | Directory:
            if isinstance(node, Inode):
                return node.copied()
            directory = Directory({name: next_of(below) for name, below in node.names.items()})
            directory.durable = dict(directory.names)
            return directory

        disk = SimDisk()
        root = next_of(self.root)
        assert isinstance(root, Directory)
        disk.root = root
        return disk

    def _next(self, boots: int) -> SimDisk:
        disk = SimDisk()
        disk.faults = attrs.evolve(self.faults, end_in=None if self.is_off else self.faults.end_in)
        disk.operations, disk.trace = self.operations, self.trace
        disk.syncs_failed, disk.refusals = self.syncs_failed, self.refusals
        disk.reads_failed = self.reads_failed
        disk.calls.aio.failed = self.calls.aio.failed
        disk._boots = boots
        return disk
