"""What a replica whose log differs from its master's does to its own store, which must be stopped."""

from __future__ import annotations

from twisted.logger import Logger

from mqbroker.config import StoreSettings
from mqbroker.errors import MQError
from mqbroker.store.cut_tails import KEPT_MS_MAX, keep_tail
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import StorePaths
from mqbroker.store.stores_aside import DIVERGED, OUTLIVED
from mqbroker.store.stores_aside import put_store_aside as put_aside
from mqbroker.store.truncation import cut_log

log = Logger()


def put_store_aside(disk: IDisk, settings: StoreSettings, now_ms: int, *, is_outlived: bool = False) -> bool:
    """Rename the store, so that the next start begins with an empty one; returns whether that was done.

    :param is_outlived: the master has deleted by their age all messages that it has.
    """
    try:
        moved = put_aside(disk, paths_of(settings), OUTLIVED if is_outlived else DIVERGED, now_ms)
    except (OSError, MQError) as error:
        log.error("the store cannot be put aside: {why}", why=str(error))
        return False
    kept = (
        f"for {KEPT_MS_MAX // 86_400_000} days, of the log the last part"
        if is_outlived
        else "until it is deleted by hand"
    )
    log.warn("put aside, and kept {kept}: {paths}", kept=kept, paths=", ".join(moved))
    return True


def cut_store_back(disk: IDisk, settings: StoreSettings, end: int, log_end: int, now_ms: int) -> bool:
    """Truncate the log, which ends at `log_end`, at `end`, after the tail was put aside; returns whether it was done. A
    failure is logged, and nothing is truncated then."""
    paths, segment_bytes = paths_of(settings), settings.mapped_file_size_commit_log
    try:
        kept = keep_tail(disk, paths, segment_bytes, end, log_end, now_ms)
        cut_log(disk, paths, segment_bytes, end)
    except (OSError, MQError) as error:
        log.error("the log cannot be truncated to {end}: {why}", end=end, why=str(error))
        return False
    if kept.end < log_end:
        line = "of the {n} truncated bytes only the first {kept} are kept, because the disk has no room for more"
        log.warn(line, n=log_end - end, kept=kept.end - end)
    log.warn(
        "the truncated part of the log, from {start} to {end}, is kept for {days} days in {path}: `mq store dump` "
        "shows it",
        start=end,
        end=kept.end,
        days=KEPT_MS_MAX // 86_400_000,
        path=kept.path,
    )
    return True


def paths_of(settings: StoreSettings) -> StorePaths:
    """The paths of a broker's store."""
    return StorePaths(settings.store_path_root_dir, settings.store_path_commit_log)
