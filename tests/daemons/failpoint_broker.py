"""The broker, killed by itself at one point of its work: `python -m tests.daemons.failpoint_broker POINT N [options]`.

Everything is the broker's own, but that a function at the point is wrapped here, and that its Nth passage is the
process's last act: SIGKILL, which nothing can tidy up after. `POINTS` is what there is.
"""

import os
import signal
import sys
import threading
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from mqbroker.store.commitlog import CommitLog


class Passages:
    """Counts passages of the point over all threads; the Nth does not return."""

    def __init__(self, last: Any) -> None:
        self._left = last
        self._lock = threading.Lock()

    def pass_one(self) -> None:
        if self.is_last():
            os.kill(os.getpid(), signal.SIGKILL)

    def is_last(self) -> Any:
        with self._lock:
            self._left -= 1
            return self._left == 0


def always(*_arguments: Any, **_options: Any) -> Any:
    return True


def before(owner: types.ModuleType | type[Any], name: str, when: Callable[..., Any] = always) -> Callable[..., Any]:
    """Pass each time `owner.name`, which has to be there, is called, where `when` is true of the arguments."""
    real = getattr(owner, name)

    def install(passages: Any) -> None:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if when(*arguments, **options):
                passages.pass_one()
            return real(*arguments, **options)

        setattr(owner, name, wrapped)

    return install


def after(owner: type[Any], name: str, when: Callable[..., Any] = always) -> Callable[..., Any]:
    """Pass each time `owner.name`, which has to be there, has returned."""
    real = getattr(owner, name)

    def install(passages: Any) -> None:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if when(*arguments, **options):
                passages.pass_one()
            return result

        setattr(owner, name, wrapped)

    return install


class HalfBuffer:
    """A mapped file's bytes; of what is stored at the last passage, only the first half is."""

    def __init__(self, buffer: Any, passages: Any) -> None:
        self._buffer = buffer
        self._passages = passages

    def __setitem__(self, place: slice, data: Any) -> None:
        if self._passages.is_last():
            self._buffer[place.start : place.start + len(data) // 2] = bytes(data)[: len(data) // 2]
            os.kill(os.getpid(), signal.SIGKILL)
        self._buffer[place] = data


def half_stored(owner: type[CommitLog]) -> Callable[..., Any]:
    """Pass each time something is stored in the file that `owner` appends to."""

    def install(passages: Any) -> None:
        real = owner._activate

        def wrapped(self: Any) -> None:
            real(self)
            self._buffer = HalfBuffer(self._buffer, passages)

        owner._activate = wrapped

    return install


def half_entries(passages: Any) -> None:
    """Pass each time entries are stored in a file of a consume queue."""
    from mqbroker.store.file_cache import CachedFile

    real = cast(property, CachedFile.buffer).fget
    assert real is not None

    def wrapped(self: Any) -> Any:
        buffer = real(self)
        return HalfBuffer(buffer, passages) if "/consumequeue/" in self.path else buffer

    CachedFile.buffer = property(wrapped)  # type: ignore[assignment]


def half_checkpoint(passages: Any) -> None:
    """A checkpoint of which the timestamps are the new ones, the offsets the former."""
    from mqbroker.store.os_disk import OsDisk

    real = OsDisk.write

    def wrapped(self: Any, path: str, data: Any) -> None:
        if path.endswith("/checkpoint") and passages.is_last():
            with open(path, "r+b" if os.path.exists(path) else "wb") as file:
                file.write(data[:24])
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, path, data)

    OsDisk.write = wrapped


def half_zeros(passages: Any) -> None:
    """A segment made ahead of time, of which half is written through."""
    from mqbroker.store.os_disk import OsMappedFile

    real = OsMappedFile.write_zeros

    def wrapped(self: Any, offset: int, size: int) -> None:
        if passages.is_last():
            with open(self.path, "r+b") as file:
                file.write(bytes(self.size // 2))
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, offset, size)

    OsMappedFile.write_zeros = wrapped


def in_json(name: str, place: Callable[..., Callable[..., Any]], when: Callable[..., Any]) -> Callable[..., Any]:
    """Before or after a call of the os module's function `name` by the module that replaces JSON files."""

    def install(passages: Any) -> None:
        from mqbroker.store import os_disk

        own_os = SimpleNamespace(**vars(os))
        place(own_os, name, when)(passages)
        os_disk.os = own_os  # type: ignore[assignment, attr-defined]

    return install


def to_open(end: str) -> Any:
    """Of a descriptor: whether its file's name ends so."""
    return lambda fd: os.readlink(f"/proc/self/fd/{fd}").endswith(end)


def of_folder(folder: str) -> Callable[..., Any]:
    """Of a mapped file: whether it is below the folder of that name."""
    return lambda file, *_: f"/{folder}/" in file.path


def to_path(end: str) -> Callable[..., Any]:
    return lambda _disk, path, *_arguments, **_options: path.endswith(end)


def in_path(part: str) -> Callable[..., Any]:
    return lambda _disk, path, *_arguments, **_options: part in path


def points() -> dict[str, Callable[..., Any]]:
    from mqbroker.store.commitlog import CommitLog
    from mqbroker.store.consumequeue import ConsumeQueue
    from mqbroker.store.dispatch import Dispatcher, IndexDispatcher
    from mqbroker.store.index import Index
    from mqbroker.store.opening import Opening
    from mqbroker.store.os_disk import OsDisk, OsMappedFile
    from mqbroker.store.segment import SegmentSource
    from mqbroker.store.store_files import StoreFiles

    return {
        "append.before": before(CommitLog, "append"),
        "append.half": half_stored(CommitLog),
        "append.stored": before(Dispatcher, "_schedule_more"),
        "append.after": after(CommitLog, "append"),
        # roll
        "roll.before": before(CommitLog, "_roll_to"),
        "roll.after": after(CommitLog, "_roll_to"),
        "roll.segment_without_size": before(os, "ftruncate"),
        "roll.segment_without_name": before(os, "link"),
        "roll.segment_created": after(OsDisk, "create_mapped", in_path("/commitlog/")),
        "roll.segment_allocated": after(OsMappedFile, "allocate", of_folder("commitlog")),
        "roll.segment_half_written_through": half_zeros,
        "roll.segment_acquired": after(SegmentSource, "acquire"),
        # dispatch
        "dispatch.before_queue": before(ConsumeQueue, "write"),
        "dispatch.half_queue": half_entries,
        "dispatch.after_queue": after(ConsumeQueue, "write"),
        "dispatch.queue_file_created": after(OsDisk, "create_mapped", in_path("/consumequeue/")),
        "dispatch.queue_file_made": after(ConsumeQueue, "_add_file"),
        "dispatch.before_index": before(IndexDispatcher, "index"),
        "dispatch.index_without_header": before(Index, "write_header"),
        "dispatch.index_rows": after(Index, "add"),
        "dispatch.index_file_created": after(OsDisk, "create_mapped", in_path("/index/")),
        "dispatch.index_file_made": after(Index, "_add_file"),
        # flush
        "flush.before_log": before(OsMappedFile, "sync", of_folder("commitlog")),
        "flush.after_log": after(OsMappedFile, "sync", of_folder("commitlog")),
        "flush.names": after(SegmentSource, "sync_names"),
        "flush.before_queue": before(OsMappedFile, "sync", of_folder("consumequeue")),
        "flush.after_queue": after(OsMappedFile, "sync", of_folder("consumequeue")),
        "flush.after_index": after(OsMappedFile, "sync", of_folder("index")),
        # checkpoint
        "checkpoint.before": before(OsDisk, "write", to_path("/checkpoint")),
        "checkpoint.half": half_checkpoint,
        "checkpoint.after": after(OsDisk, "write", to_path("/checkpoint")),
        # delete
        "delete.before_segment": before(OsDisk, "remove", in_path("/commitlog/")),
        "delete.segment_removed": after(OsDisk, "remove", in_path("/commitlog/")),
        "delete.segment_forgotten": after(CommitLog, "drop_first"),
        "delete.before_queue_file": before(OsDisk, "remove", in_path("/consumequeue/")),
        "delete.queue_file_removed": after(OsDisk, "remove", in_path("/consumequeue/")),
        "delete.queue_file_forgotten": after(ConsumeQueue, "drop_first_file"),
        "delete.before_index_file": before(OsDisk, "remove", in_path("/index/")),
        "delete.index_file_removed": after(OsDisk, "remove", in_path("/index/")),
        # tables
        "json.before_sync": in_json(
            "fsync", before, lambda fd: os.readlink(f"/proc/self/fd/{fd}").endswith("json.tmp")
        ),
        "json.before_backup": in_json("replace", before, lambda _, to: to.endswith(".bak")),
        "json.before_rename": in_json("replace", before, lambda _, to: to.endswith(".json")),
        "json.after_rename": in_json("replace", after, lambda _, to: to.endswith(".json")),
        # start and stop
        "open.marked": after(OsDisk, "write", to_path("/abort")),
        "open.before_log": before(Opening, "_open_log"),
        "open.after_log": after(Opening, "_open_log"),
        "open.queues_built": after(Opening, "_build_queues"),
        "stop.before_mark": before(StoreFiles, "_note_clean_stop"),
        "stop.after_mark": after(StoreFiles, "_note_clean_stop"),
    }


def main() -> None:
    point, last, *options = sys.argv[1:]
    points()[point](Passages(int(last)))
    from mqbroker.daemons.broker import main as broker

    broker(options)


if __name__ == "__main__":
    main()
