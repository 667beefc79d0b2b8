"""What a replica whose log differs from its master's does to its own store, which must be stopped."""

from __future__ import annotations

from twisted.logger import Logger

from mqbroker.config import StoreSettings
from mqbroker.errors import MQError
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import StorePaths, put_aside
from mqbroker.store.truncation import cut_log

log = Logger()


def put_store_aside(disk: IDisk, settings: StoreSettings, now_ms: int) -> bool:
    """Rename the store, so that the next start begins with an empty one; returns whether that was done."""
    try:
        moved = put_aside(disk, _paths(settings), f".diverged-{now_ms}")
    except (OSError, MQError) as error:
        log.error("the store cannot be put aside: {why}", why=str(error))
        return False
    log.warn("put aside, to be deleted by hand: {paths}", paths=", ".join(moved))
    return True


def cut_store_back(disk: IDisk, settings: StoreSettings, end: int) -> None:
    """Cut the log back to `end`. A failure is logged: the logs are compared again after the next start."""
    try:
        cut_log(disk, _paths(settings), settings.mapped_file_size_commit_log, end)
    except (OSError, MQError) as error:
        log.error("the log cannot be cut back to {end}: {why}", end=end, why=str(error))


def _paths(settings: StoreSettings) -> StorePaths:
    return StorePaths(settings.store_path_root_dir, settings.store_path_commit_log)
