"""The small files of a store directory: checkpoint, abort file, what is noted of removed queues, and the tables in
config/. Must never change them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from datetime import UTC, datetime

import attrs

from mqbroker.errors import MQError
from mqbroker.store.checkpoint import TALLY_AT, Checkpoint, decode_checkpoint
from mqbroker.store.consumequeues import TRASH, Removed
from mqbroker.store.disk import IDisk
from mqbroker.store.offline.findings import Findings
from mqbroker.store.offline.layout import Layout, listed
from mqbroker.store.removed_queues import QueueKey, parse_removed
from mqbroker.wire.fastjson import loads

#: A table in config/ larger than this is not read.
TABLE_BYTES_MAX = 256 * 1024 * 1024
#: The kind of finding where it is not known which queues were removed.
REMOVED_UNREADABLE = "removed queues unreadable"
_CHECKPOINT_READ_MAX = 1024 * 1024
_YEAR_MS = 366 * 24 * 3600 * 1000


@attrs.frozen
class SmallFiles:
    """is_stopped: whether there is no abort file. topics: names in topics.json, None where it cannot be read.
    removed: queues that were removed as a whole.
    """

    is_stopped: bool
    checkpoint: Checkpoint | None
    topics: frozenset[str] | None
    removed: Mapping[QueueKey, Removed]


def when(timestamp_ms: int) -> str:
    """A time in ms as text, in UTC, whatever number it is."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (OverflowError, OSError, ValueError):
        return f"{timestamp_ms} ms"


def read_checkpoint(disk: IDisk, path: str) -> Checkpoint | None:
    """None where there is none, or one too short to be one."""
    if not disk.exists(path) or disk.is_directory(path) or not 24 <= disk.file_size(path) <= _CHECKPOINT_READ_MAX:
        return None
    return decode_checkpoint(disk.read(path))


def read_small_files(disk: IDisk, layout: Layout, findings: Findings) -> SmallFiles:
    is_stopped = not disk.exists(layout.path("abort"))
    if not is_stopped:
        findings.note("not stopped", layout.path("abort"), 0, "a broker has it open, or was killed")
    path = layout.path("checkpoint")
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is None:
        what = "there is none, or it is too short: after a crash the whole log is read"
        if is_stopped:
            findings.broken("checkpoint missing", path, 0, what, "nothing: the next broker to run writes it anew")
        else:
            findings.note("checkpoint missing", path, 0, what)
    topics = _check_tables(disk, layout.path("config"), findings)
    return SmallFiles(is_stopped, checkpoint, topics, _read_removed(disk, layout, findings))


def _read_removed(disk: IDisk, layout: Layout, findings: Findings) -> Mapping[QueueKey, Removed]:
    for kind in ("consumequeue", "consumequeue_ext"):
        if listed(disk, trash := layout.path(kind, TRASH)):
            findings.note("removal unfinished", trash, 0, "queues that were removed; the next start deletes them")
    path = layout.path("removedQueues.json")
    if not disk.exists(path):
        return {}
    why = "it is no file" if disk.is_directory(path) else ""
    if not why and disk.file_size(path) > TABLE_BYTES_MAX:
        why = f"{disk.file_size(path)} bytes are more than such a table has"
    if not why:
        try:
            removed, removing = parse_removed(disk.read(path))
        except ValueError as error:
            why = f"it is damaged: {' '.join(str(error).split())[:100]}"
        else:
            if removing:
                what = f"{len(removing)} queues were about to be removed; the next start removes them"
                findings.note("removal unfinished", path, 0, what)
            return removed
    advice = (
        "restore it from a copy, or move it away: then topics that were removed come back when consume queues are "
        "built anew, and are to be removed again"
    )
    findings.broken(REMOVED_UNREADABLE, path, 0, f"{why}; which queues were removed is not known", advice)
    return {}


def check_checkpoint(
    path: str, checkpoint: Checkpoint, newest_ms: int, log_end: int, is_stopped: bool, findings: Findings
) -> None:
    """Compare what the checkpoint says with what the log has."""
    times = {"log": checkpoint.log_ms, "consume queues": checkpoint.queues_ms, "index": checkpoint.index_ms}
    for at, (name, time_ms) in enumerate(times.items()):
        # Java stamps what it flushes with the newest message it knows, and that is in the log.
        if time_ms < 0 or time_ms > newest_ms:
            what = (
                f"it says that the {name} is on the disk up to {when(time_ms)}, "
                f"and the newest message is of {when(newest_ms)}"
            )
            advice = "after a crash too little would be read: `mq store repair` writes it anew"
            findings.broken("checkpoint ahead", path, 8 * at, what, advice)
    offsets = (checkpoint.log_offset, checkpoint.queues_offset, checkpoint.index_offset)
    for at, (name, offset) in enumerate(zip(times, offsets, strict=True)):
        if offset is not None and offset > log_end:
            what = f"it says that the {name} is on the disk up to {offset}, and the log ends at {log_end}"
            advice = "messages that were on the disk are gone: restore the log from a copy or a slave"
            if name == "log":
                findings.lost("checkpoint ahead", path, 32 + 8 * at, what, advice)
            else:
                findings.broken("checkpoint ahead", path, 32 + 8 * at, what, advice)


def check_tally(path: str, noted: tuple[int, int] | None, found: tuple[int, int], findings: Findings) -> None:
    """Compare what the last stop noted of the consume queues with those that are there."""
    if noted is None or noted == found:
        return
    what = (
        f"it says that {noted[0]} consume queues were left, with {noted[1]} messages up to their ends; "
        f"there are {found[0]}, with {found[1]}"
    )
    advice = "the next start builds all consume queues anew from the log, and so does `mq store repair`"
    findings.broken("queues changed", path, TALLY_AT, what, advice)


def _check_tables(disk: IDisk, directory: str, findings: Findings) -> frozenset[str] | None:
    names = listed(disk, directory)
    if not names:
        what = "no tables of topics, groups and offsets: consumers would begin anew"
        findings.broken("config missing", directory, 0, what, "restore config/ from a copy")
    tables = sorted({name.removesuffix(".bak") for name in names if name.endswith((".json", ".json.bak"))})
    topics: frozenset[str] | None = None
    for name in tables:
        path = os.path.join(directory, name)
        content, why = _read_table(disk, path)
        if why:
            content, why_backup = _read_table(disk, path + ".bak")
            if why_backup:
                what = f"{why}; its .bak: {why_backup}"
                findings.broken("table unreadable", path, 0, what, "restore it from a copy; brokers start without it")
            else:
                what = f"{why}; its .bak can be read, and brokers use that"
                findings.broken("table unreadable", path, 0, what, f"cp {name}.bak {name}, or let the broker do it")
        if name == "topics.json" and isinstance(content, dict):
            found = content.get("topicConfigTable")
            topics = frozenset(str(topic) for topic in found) if isinstance(found, dict) else None
    return topics


def _read_table(disk: IDisk, path: str) -> tuple[object, str]:
    """The content and why there is none."""
    if not disk.exists(path) or disk.is_directory(path):
        return None, "it is missing"
    size = disk.file_size(path)
    if size > TABLE_BYTES_MAX:
        return None, f"{size} bytes are more than such a table has"
    try:
        content = loads(disk.read(path))
    except (MQError, ValueError, RecursionError, struct.error) as error:
        return None, f"it is no JSON: {' '.join(str(error).split())[:100]}"
    if not isinstance(content, dict):
        return None, "it is no JSON object"
    return content, ""
