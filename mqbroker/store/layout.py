"""Telling the directories of a 4.9 store from those of other systems, by names alone. Must never change anything."""

from __future__ import annotations

import os
import re

from mqbroker.errors import StoreUnknown
from mqbroker.store.disk import IDisk

SEGMENT_NAME = re.compile(r"\d{20}")
INDEX_NAME = re.compile(r"\d{17}")

#: What the Java broker 4.9 and ours keep in a store directory.
PARTS = (
    "commitlog", "consumequeue", "consumequeue_ext", "index", "config", "checkpoint", "abort", "lock",
    "removedQueues.json", "queueEnds", "queueEnds.last",
)  # fmt: skip
_DIRECTORIES = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config")

#: Record magic of 5.x, with two bytes for the length of the topic.
MAGIC_V2 = 0xDAA320AB

#: Names only later versions make -> what they are. Source: StorePathConfigHelper of 5.x.
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


def other_layout(disk: IDisk, root: str) -> str:
    """Why `root` is not a directory of a 4.9 store, and what to do; empty where it is one, or not there yet."""
    if not disk.exists(root):
        return ""
    if not disk.is_directory(root):
        return "it is no directory; name the one that holds commitlog/"
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
            return f"{name} is no directory; move it away, or name another directory"
    queues = os.path.join(root, "consumequeue")
    if disk.is_directory(queues) and any(_ROCKSDB.fullmatch(name) for name in disk.names(queues)):
        return "consumequeue/ is a RocksDB of RocketMQ 5.x, not files of queues; use a broker of that version"
    return ""


def is_store(disk: IDisk, root: str) -> bool:
    """Whether anything of a store is there."""
    return any(name in PARTS for name in disk.names(root))


def strangers(disk: IDisk, root: str) -> list[str]:
    """Directories in `root` that nobody puts beside a store; hidden ones and what file systems make do not count."""
    names = [name for name in disk.names(root) if name not in PARTS and not name.startswith((".", "repair-"))]
    return [name for name in names if name != "lost+found" and disk.is_directory(os.path.join(root, name))]


def _inner_file(disk: IDisk, root: str) -> str:
    """The name of a file that stands deeper in a store, such as a segment; empty where there is none."""
    inner = (name for name in disk.names(root) if name in _TABLES or _INNER.fullmatch(name))
    return next(inner, "")


def refuse_other(disk: IDisk, root: str) -> None:
    """Raises StoreUnknown where a broker must not make or open a store."""
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
