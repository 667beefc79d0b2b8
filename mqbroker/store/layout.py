"""The store directory: its layout, whether it is that of a 4.9 store, its lock, and durable creation and removal of
files.

One process, Java or ours, opens it at a time: the Java broker takes a POSIX record lock on byte 0 of `lock`. An
open-file-description lock conflicts with that, and is neither shared inside this process nor lost when another
descriptor of the file is closed. Knows nothing of the content of files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Sequence

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from mqbroker.config.shards import SHARD_DIRECTORY
from mqbroker.errors import StoreLocked, StoreUnknown
from mqbroker.store.disk import IDisk, ILockedFile

SEGMENT_NAME = re.compile(r"\d{20}")
INDEX_NAME = re.compile(r"\d{17}")

#: What the Java broker 4.9 and ours keep in a store directory.
PARTS = (
    "commitlog", "consumequeue", "consumequeue_ext", "index", "config", "checkpoint", "abort", "lock",
    "removedQueues.json", "queueEnds", "queueEnds.last",
)  # fmt: skip
_DIRECTORIES = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config")

#: Record magic of 5.x, whose topic length has two bytes.
MAGIC_V2 = 0xDAA320AB

#: Names that only later versions create -> what they are. Source: StorePathConfigHelper of 5.x.
_LATER = {
    "timerwheel": "its timer wheel",
    "timerlog": "its timer log",
    "batchconsumequeue": "its batch consume queues",
    "compactionLog": "its compacted topics",
    "compactionCq": "its compacted topics",
    "epochFileCheckpoint": "its controller's epochs",
    "brokerIdentity": "its controller's identity",
    "rocksdb": "its RocksDB tables",
    "consumequeue_rocksdb": "its consume queues in RocksDB",
    "tieredStore": "its tiered store",
}
#: Files of the log, queues and index, and tables of config/.
_INNER = re.compile(f"{SEGMENT_NAME.pattern}|{INDEX_NAME.pattern}")
_TABLES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")
_ROCKSDB = re.compile(r"CURRENT|MANIFEST-\d+|\d+\.sst")


#: Tables in `config` that refer to messages by their offsets.
#: Tables that refer to the log.
_OFFSET_FILES = (
    "consumerOffset.json",
    "lmqConsumerOffset.json",
    "delayOffset.json",
    "delayDelivered.json",
    "epochs.json",
)


@attrs.frozen
class StorePaths:
    """Paths of the parts of a store, as in the Java broker."""

    root: str
    commit_log: str

    @property
    def consume_queues(self) -> str:
        return os.path.join(self.root, "consumequeue")

    @property
    def consume_queues_ext(self) -> str:
        return os.path.join(self.root, "consumequeue_ext")

    @property
    def removed_queues(self) -> str:
        """Ours; the Java broker ignores it."""
        return os.path.join(self.root, "removedQueues.json")

    @property
    def queue_ends(self) -> str:
        """As above."""
        return os.path.join(self.root, "queueEnds")

    @property
    def segments(self) -> str:
        """As above: see `log_scrub`."""
        return os.path.join(self.root, "segments.json")

    @property
    def index(self) -> str:
        return os.path.join(self.root, "index")

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.root, "checkpoint")

    @property
    def abort(self) -> str:
        return os.path.join(self.root, "abort")

    @property
    def lock(self) -> str:
        return os.path.join(self.root, "lock")


def put_aside(disk: IDisk, paths: StorePaths, suffix: str) -> list[str]:
    """Rename the log, what was made from it, and the offsets that refer to it, by adding `suffix`: the store is empty
    then, but for topics and groups. Returns the new paths. Raises StoreLocked, OSError.

    The log is renamed last: until then a start finds it, and builds the rest again.
    """
    config = os.path.join(paths.root, "config")
    offsets = [os.path.join(config, name) for name in _OFFSET_FILES]
    parts = [
        paths.queue_ends,
        paths.checkpoint,
        paths.index,
        paths.consume_queues,
        paths.consume_queues_ext,
        paths.removed_queues,
        paths.segments,
        *(name for path in offsets for name in (path, path + ".bak")),
        paths.commit_log,
    ]
    lock = disk.lock(paths.lock)
    try:
        moved = [path for path in parts if disk.exists(path)]
        for path in moved:
            disk.rename(path, path + suffix)
            disk.sync_directory(os.path.dirname(path))
    finally:
        lock.release()
    return [path + suffix for path in moved]


def other_layout(disk: IDisk, root: str) -> str:
    """Why `root` is not the directory of a 4.9 store, and what to do; empty if it is one, or does not exist yet."""
    if not disk.exists(root):
        return ""
    if not disk.is_directory(root):
        return "it is not a directory; name the one that holds commitlog/"
    names = disk.names(root)
    for name in names:
        if name.startswith("dledger-") and disk.is_directory(os.path.join(root, name)):
            return (
                f"{name}/ is the log of a DLedger group, which has a format of its own; "
                "read it with the Java broker that wrote it, enableDLegerCommitLog=true"
            )
        if name in _LATER:
            return f"{name} is from RocketMQ 5.x ({_LATER[name]}); use a broker of that version"
    for name in _DIRECTORIES:
        path = os.path.join(root, name)
        if disk.exists(path) and not disk.is_directory(path):
            return f"{name} is not a directory; move it away, or name another directory"
    queues = os.path.join(root, "consumequeue")
    if disk.is_directory(queues) and any(_ROCKSDB.fullmatch(name) for name in disk.names(queues)):
        return "consumequeue/ is a RocksDB of RocketMQ 5.x, not files of queues; use a broker of that version"
    return ""


def is_store(disk: IDisk, root: str) -> bool:
    """Whether any part of a store exists."""
    return any(name in PARTS for name in disk.names(root))


def strangers(disk: IDisk, root: str) -> list[str]:
    """Unexpected directories in `root`, other than hidden ones, other shards', and those that file systems create."""
    names = [name for name in disk.names(root) if name not in PARTS and not name.startswith((".", "repair-"))]
    names = [name for name in names if not SHARD_DIRECTORY.fullmatch(name)]
    return [name for name in names if name != "lost+found" and disk.is_directory(os.path.join(root, name))]


def _inner_file(disk: IDisk, root: str) -> str:
    """The name of a file deeper in a store, such as a segment; empty if there is none."""
    inner = (name for name in disk.names(root) if name in _TABLES or _INNER.fullmatch(name))
    return next(inner, "")


def refuse_other(disk: IDisk, root: str) -> None:
    """Raises StoreUnknown if a broker must not create or open a store there."""
    why = other_layout(disk, root)
    if not why and not is_store(disk, root) and (inner := _inner_file(disk, root)):
        why = f"{inner} belongs into a directory of a store; set storePathRootDir to the one that holds commitlog/"
    if not why and not is_store(disk, root) and (found := strangers(disk, root)):
        shown = ", ".join(f"{name}/" for name in found[:3])
        why = (
            f"it holds {shown}{' and more' if found[3:] else ''} and nothing of a store; "
            "set storePathRootDir to a directory of its own"
        )
    if why:
        raise StoreUnknown(root, why)


log = Logger()

_SEGMENT_NAME = re.compile(r"\d{20}")


def make_durable_directories(disk: IDisk, path: str) -> None:
    """Create `path` and its parents if missing, and sync their names. Raises OSError.

    An existing directory may have been created by a process that was killed before it synced the name.
    """
    made = [path]
    while not disk.exists(made[-1]) and os.path.dirname(made[-1]) != made[-1]:
        made.append(os.path.dirname(made[-1]))
    disk.make_directories(path)
    for directory in made:
        with contextlib.suppress(PermissionError):  # a directory may be searchable without being readable
            disk.sync_directory(os.path.dirname(directory) or ".")


def remove_last_first(disk: IDisk, paths: Sequence[str]) -> None:
    """Delete a sequence of files from its end, each durably before the one in front of it: a crash leaves no gap.
    Raises OSError."""
    for path in reversed(paths):
        disk.remove(path)
        disk.sync_directory(os.path.dirname(path))


def remove_unfinished_segments(disk: IDisk, directory: str, durable_end: int | None) -> None:
    """Delete a segment that has a name but no size, and those after it: nothing in them was ever acknowledged.

    Does nothing if there are other files than segments, or no directory. Raises OSError.

    :param durable_end: the log was synced below it; None if unknown: then only the last may be deleted.
    """
    if not disk.exists(directory):
        return
    disk.sync_directory(directory)  # a segment that was deleted must not come back before younger ones
    names = disk.names(directory)
    if not all(_SEGMENT_NAME.fullmatch(name) for name in names):
        return
    paths = [os.path.join(directory, name) for name in names]
    first = next((i for i, path in enumerate(paths) if not disk.file_size(path)), len(names))
    if first < len(names) and int(names[first]) >= (durable_end if durable_end is not None else int(names[-1])):
        for path in paths[first:]:
            log.warn("{path} is incomplete: removed", path=path)
        remove_last_first(disk, paths[first:])


#: What the Java broker writes into the file; we append our process id, for others to report.
_CONTENT = b"lock"
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_BUSY = (errno.EACCES, errno.EAGAIN)


@implementer(ILockedFile)
class LockedFile:
    """A file that this process has locked."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def lock_file(path: str) -> LockedFile:
    """Lock `path`, created if missing. Raises StoreLocked, with the holder's process id if known."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        os.pwrite(fd, _CONTENT, 0)
        os.ftruncate(fd, len(_CONTENT))
        os.pwrite(fd, b"\n%d\n" % os.getpid(), len(_CONTENT))
    except OSError as error:
        why = _holder(fd) if error.errno in _BUSY else None
        os.close(fd)
        if why is not None:
            raise StoreLocked(path, why) from None
        raise
    return LockedFile(fd)


def lock_holder(path: str) -> str:
    """The holder of the lock; empty if it is free, or the file does not exist. Takes no lock and changes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        return "" if _FLOCK.unpack(found)[0] == fcntl.F_UNLCK else _holder(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    pid = _FLOCK.unpack(found)[4]
    if pid <= 0:  # the holder is an mqbroker process: it wrote its id into the file
        match = re.fullmatch(rb"lock\n(\d+)\n", os.pread(fd, 64, 0))
        pid = int(match[1]) if match else 0
    return f"process {pid} has it open" if pid > 0 else "another process has it open"
