"""What is on the disk for sure, compared with what the store says is; and what is there with what a rebuild makes."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from twisted.internet.task import Clock

from mqbroker.store.checkpoint import Checkpoint
from mqbroker.store.consumequeue_entry import ENTRY, ENTRY_BYTES
from mqbroker.store.consumequeue_ext import is_address, undecorate
from tests.store.simulation.disk import SimDisk
from tests.store.simulation.model import Entry, Model, require
from tests.store.simulation.steps import Options
from tests.store.simulation.worker import SimWorker

if TYPE_CHECKING:
    from tests.store.simulation.world import World

_INDEX_ENDS = struct.Struct(">qqqqii")
_TURNS = 2000


def log_is_durable(disk: SimDisk, log_directory: str, segment_bytes: int, entries: Iterable[Entry]) -> str:
    """Why some of these messages would not be there after a power cut; empty where all would."""
    images: dict[int, bytes | None] = {}
    for entry in entries:
        base = entry.start - entry.start % segment_bytes
        if base not in images:
            images[base] = disk.durable_bytes(os.path.join(log_directory, f"{base:020d}"))
        image = images[base]
        if image is None:
            return f"the name of segment {base} is not durable"
        at = entry.start - base
        if image[at : at + len(entry.record)] != entry.record and not entry.is_rotten:
            return f"the message at {entry.start} is not durable"
    return ""


def says_no_more(checkpoint: Checkpoint, before: Checkpoint) -> bool:
    """Whether a checkpoint covers no more than another did."""
    ends, known = ([one.log_offset or 0, one.queues_offset or 0, one.index_offset or 0] for one in (checkpoint, before))
    is_less = all(end <= other for end, other in zip(ends, known, strict=True))
    return is_less and checkpoint.tally in (None, before.tally)


def checkpoint_is_true(disk: SimDisk, root: str, options: Options, checkpoint: Checkpoint, model: Model) -> str:
    """Why a checkpoint says more than is durable; empty where it does not."""
    log_end = checkpoint.log_offset or 0
    covered = [entry for entry in model.entries if entry.end <= log_end and entry.start >= model.removed]
    problem = log_is_durable(disk, os.path.join(root, "commitlog"), options["segment_bytes"], covered)
    if problem:
        return f"log offset {log_end}: {problem}"
    queues_end = checkpoint.queues_offset or 0
    for (topic, queue_id), entries in sorted(model.queues.items()):
        directory = os.path.join(root, "consumequeue", topic, str(queue_id))
        if (topic, queue_id) in model.numbered:  # it was removed, and perhaps made again
            continue
        first = sum(entry.start < model.removed for entry in entries)
        problem = _queue_is_durable(
            disk, directory, options["queue_file_bytes"], entries, first, queues_end, model.spoilt
        )
        if problem:
            return f"queues offset {queues_end}: {topic} {queue_id}: {problem}"
    return _index_is_durable(disk, os.path.join(root, "index"), checkpoint.index_offset or 0)


def _queue_is_durable(
    disk: SimDisk,
    directory: str,
    file_bytes: int,
    entries: list[Entry],
    first: int,
    end: int,
    spoilt: Mapping[str, bytes],
) -> str:
    """`spoilt`: files as they were made while the store was stopped; of what is still so it need not know."""
    file_bytes -= file_bytes % ENTRY_BYTES
    image: bytes | None = None
    was: bytes | None = None
    for offset, entry in enumerate(entries[first:], first):
        if entry.end > end:
            break
        base, at = divmod(offset * ENTRY_BYTES, file_bytes)
        if not at or image is None:
            path = os.path.join(directory, f"{base * file_bytes:020d}")
            image, was = disk.durable_bytes(path), spoilt.get(path)
        if entry.is_rotten:  # it may have been left out when the queue was built anew
            continue
        if image is None:
            return f"the name of file {base * file_bytes} is not durable"
        if was is not None and image[at : at + 12] == was[at : at + 12]:
            continue
        if image[at : at + 12] != ENTRY.pack(entry.start, len(entry.record), 0)[:12]:
            return f"entry {offset} is not durable"
    return ""


def _index_is_durable(disk: SimDisk, directory: str, end: int) -> str:
    """Only files that are full and older than the newest, of which all must be durable that the checkpoint covers."""
    for name in disk.names(directory)[:-1]:
        path = os.path.join(directory, name)
        inode = disk.inode(path)
        if inode.size < _INDEX_ENDS.size or not 0 < _INDEX_ENDS.unpack_from(inode.image())[3] < end:
            continue
        if disk.durable_bytes(path) != inode.image():
            return f"index offset {end}: {name} is not durable"
    return ""


def files_below(disk: SimDisk, directory: str) -> dict[str, bytes]:
    return {os.path.relpath(path, directory): inode.image() for path, inode in disk.files(directory) if inode.size}


def compare_with_rebuild(world: World, root: str) -> dict[str, int]:
    """Have consume queues and index of a stopped store built anew on a copy of the disk, and compare."""
    disk = world.disk.copied()
    for part in ("consumequeue", "consumequeue_ext", "index"):
        disk.remove_tree(os.path.join(root, part))
    clock = Clock()
    clock.rightNow = world.clock.rightNow + 1
    worker = SimWorker()
    store = world.open(disk, clock, worker)
    rng = Random(0)
    store.start()
    for _ in range(_TURNS):
        if store.stats.dispatched >= store.log_end and store.stats.indexed >= store.log_end * world.options["index"]:
            break
        clock.advance(0)
        worker.step(rng)
    corrupt_ranges = store.corrupt_ranges
    if world.model.has_rot:
        for entry in world.model.entries:
            if entry.is_rotten and world.model.removed <= entry.start and entry.end < world.model.end:
                found = any(damage.start <= entry.start and entry.end <= damage.end for damage in corrupt_ranges)
                what = f"record {entry.start} to {entry.end} rotted, reported are {corrupt_ranges}"
                require(found, "rot is reported", what)
    stopped: list[None] = []
    store.stop().addCallback(stopped.append)
    for _ in range(_TURNS):
        worker.step(rng)
        clock.advance(0.01)
        if stopped:
            break
    require(bool(stopped), "stop comes to an end", "after a rebuild")
    if world.model.has_rot:  # queues keep their entries of messages that rotted later; a rebuild cannot know them
        return {"rot reported by a rebuild": len(corrupt_ranges)}
    if world.model.floor:
        require_equal_above_minimum(world.model, world.disk, disk, root)
        return {}
    if world.model.spoilt and world.settings().enable_consume_queue_ext:
        _require_same_without_units(world.disk, disk, root)
    else:
        _require_same_queues(world.disk, disk, root)
    return {} if world.model.keys_lost else {"index roll": _count_same_index(world.disk, disk, root) > 1}


def _count_same_index(disk: SimDisk, rebuilt: SimDisk, root: str) -> int:
    ours, theirs = (files_below(one, os.path.join(root, "index")) for one in (disk, rebuilt))
    # Files are named by the time they were made.
    _require_equal(dict(enumerate(ours.values())), dict(enumerate(theirs.values())), "index equals a rebuild")
    return len(ours)


def _require_same_queues(disk: SimDisk, rebuilt: SimDisk, root: str) -> None:
    ours, theirs = (files_below(one, os.path.join(root, "consumequeue")) for one in (disk, rebuilt))
    _require_equal(ours, theirs, "consume queues equal a rebuild")
    ours, theirs = (files_below(one, os.path.join(root, "consumequeue_ext")) for one in (disk, rebuilt))
    # Of a queue that lost all its messages the extension stays until there is a message again.
    queues = {os.path.dirname(name) for name in theirs}
    kept = {name: data for name, data in ours.items() if os.path.dirname(name) in queues}
    _require_equal(kept, theirs, "extensions equal a rebuild")


def _require_same_without_units(disk: SimDisk, rebuilt: SimDisk, root: str) -> None:
    """As `_require_same_queues`, but by what entries say: those that were mended have no unit, and lead to the same."""
    ours, theirs = (files_below(one, os.path.join(root, "consumequeue")) for one in (disk, rebuilt))
    require(list(ours) == list(theirs), "consume queues equal a rebuild", f"{list(ours)}, {list(theirs)}")
    for name in sorted({os.path.dirname(path) for path in ours}):
        mended, whole = ([_without_unit(row) for row in _entries_from(one, root, name, 0)] for one in (disk, rebuilt))
        require(mended == whole, "consume queues equal a rebuild", f"{name}: {mended}, {whole}")


def require_equal_above_minimum(model: Model, disk: SimDisk, rebuilt: SimDisk, root: str) -> None:
    """Compare consume queues entry by entry, and what their units say instead of where these are; where
    entries may have been mended, which have none then, the tags codes alone."""
    for (topic, queue_id), entries in sorted(model.queues.items()):
        first = sum(entry.is_gone for entry in entries)
        if (topic, queue_id) in model.numbered:
            continue
        if first < len(entries):
            name = os.path.join(topic, str(queue_id))
            ours, theirs = (_entries_from(one, root, name, first) for one in (disk, rebuilt))
            if model.spoilt:
                # What garbage put above the end of a queue that had nothing in the log is in nobody's way.
                ours = ours[: len(entries) - first]
                ours, theirs = list(map(_without_unit, ours)), list(map(_without_unit, theirs))
            what = f"{name} from {first} on: {len(ours)} entries and {len(theirs)}"
            require(ours == theirs and len(ours) == len(entries) - first, "consume queues equal a rebuild", what)


def _entries_from(disk: SimDisk, root: str, name: str, first: int) -> list[tuple[int, int, object]]:
    """Physical offset, size, and tags code or unit."""
    units = _flat(disk, os.path.join(root, "consumequeue_ext", name))
    found: list[tuple[int, int, object]] = []
    flat = _flat(disk, os.path.join(root, "consumequeue", name))
    for at in range(first * ENTRY_BYTES, len(flat) // ENTRY_BYTES * ENTRY_BYTES, ENTRY_BYTES):
        start, size, code = ENTRY.unpack_from(flat, at)
        if not size:
            break
        found.append((start, size, units[undecorate(code) :][:20] if is_address(code) else code))
    return found


def _without_unit(entry: tuple[int, int, object]) -> tuple[int, int, object]:
    """The same with the tags code of the unit."""
    start, size, code = entry
    return start, size, int.from_bytes(code[2:10], "big", signed=True) if isinstance(code, bytes) else code


def _flat(disk: SimDisk, directory: str) -> bytes:
    """All files of a directory at their places."""
    data = b""
    for path, inode in disk.files(directory):
        data = data.ljust(int(os.path.basename(path)), b"\0") + inode.image()
    return data


def _require_equal(ours: dict[str, bytes] | dict[int, bytes], theirs: object, invariant: str) -> None:
    assert isinstance(theirs, dict)
    require(list(ours) == list(theirs), invariant, f"files {list(ours)}, in a rebuild {list(theirs)}")
    for name, data in ours.items():
        other = theirs[name]
        at = next((i for i, (a, b) in enumerate(zip(data, other, strict=False)) if a != b), min(len(data), len(other)))
        require(data == other, invariant, f"{name} differs from byte {at} on")
