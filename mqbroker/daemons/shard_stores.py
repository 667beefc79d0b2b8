"""Stores of shards on disk: a start refuses if it would leave messages unserved."""

from __future__ import annotations

import os
import re

from mqbroker.config import BrokerSettings
from mqbroker.config.shards import SHARD_DIRECTORY, shard_settings
from mqbroker.errors import MQError
from mqbroker.store.layout import SEGMENT_NAME

_BESIDE = re.compile(rf"-{SHARD_DIRECTORY.pattern}")


def check_shard_stores(settings: BrokerSettings) -> list[str]:
    """Warnings about messages that nobody serves, where that is allowed. Raises MQError if shards beyond those of the
    settings have messages, or a log has no place beside it, and OSError."""
    log_path = settings.store.store_path_commit_log
    if settings.shards > 1 and os.path.ismount(log_path) and log_path != settings.store.store_path_root_dir:
        raise MQError(
            f"storePathCommitLog: {log_path} is where a disk is mounted, and the other shards' logs would be on "
            "another; name a directory on that disk"
        )
    unserved = unserved_logs(settings)
    if not unserved:
        return []
    count = max(unserved) + 1
    why = f"shards={settings.shards}, and there are messages of others: {', '.join(unserved.values())}"
    if not settings.unserved_shards_enable:
        raise MQError(f"{why}; set shards={count} to serve them, or unservedShardsEnable=true to start without them")
    return [f"{why}, which are not served"]


def unserved_logs(settings: BrokerSettings) -> dict[int, str]:
    """By shard, the logs with messages of shards beyond the number in the settings. Raises OSError."""
    store = settings.store
    logs = {
        shard: shard_settings(settings, shard).store.store_path_commit_log
        for shard in {*shards_in(store.store_path_root_dir), *_logs_beside(store.store_path_commit_log)}
        if shard >= settings.shards
    }
    return {shard: path for shard, path in sorted(logs.items()) if _has_messages(path)}


def shards_in(root: str) -> list[int]:
    """The numbers of the shards that have a directory in `root`. Raises OSError."""
    found = (SHARD_DIRECTORY.fullmatch(name) for name in _names(root))
    return sorted(int(match[1]) for match in found if match)


def _logs_beside(path: str) -> list[int]:
    directory, name = os.path.split(path)
    rests = (other.removeprefix(name) for other in _names(directory) if other.startswith(name))
    return [int(match[1]) for match in map(_BESIDE.fullmatch, rests) if match]


def _has_messages(directory: str) -> bool:
    """Whether the first segment begins with a record: without one it is of zeros, and so are those made ahead."""
    first = next((name for name in sorted(_names(directory)) if SEGMENT_NAME.fullmatch(name)), None)
    if first is None:
        return False
    with open(os.path.join(directory, first), "rb") as file:
        return any(file.read(8))


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
