"""What the store's tests share: a store on a fake clock, a disk that can fail, a worker that waits to be told."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import shutil
import tarfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqbroker.config import StoreSettings
from mqbroker.store import MessageStore, open_store
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.disk import IMappedFile, read_before_touch
from mqbroker.store.entry_repair import EntryRepair
from mqbroker.store.get_message_result import GetMessageResult
from mqbroker.store.page_loader import PageLoader
from mqbroker.store.syncs import ISyncs
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.record import NewMessage
from tests.fakes import Faults, FaultyDisk, SteppedWorker

T = TypeVar("T")

DATA = Path(__file__).parent.parent / "data"
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
BORN = b"\x7f\0\0\1\0\0\x30\x39"
START_S = 1_795_255_600.5
#: As the golden stores were written.
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 131072,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


@attrs.define
class Bench:
    """A store directory with a clock, a disk and a worker."""

    root: Path
    clock: Clock
    disk: FaultyDisk
    worker: SteppedWorker
    changes: dict[str, Any]
    store_host: bytes = HOST
    opened: list[MessageStore] = attrs.field(factory=list)

    def settings(self) -> StoreSettings:
        return StoreSettings(store_path_root_dir=str(self.root), **{**SMALL, **self.changes})

    def open(self, log_syncs: ISyncs | None = None) -> MessageStore:
        store = open_store(
            self.settings(),
            disk=self.disk,
            clock=self.clock,
            worker=self.worker,
            store_host=self.store_host,
            log_syncs=log_syncs,
        )
        self.opened.append(store)
        return store

    def image(self, name: str) -> Bench:
        """The directory as it is now, as a kill would leave it, to be opened by another process."""
        root = self.root.parent / name
        shutil.copytree(self.root, root)
        clock = Clock()
        clock.advance(self.clock.seconds() + 5)
        return Bench(root, clock, FaultyDisk(), SteppedWorker(), self.changes, self.store_host)

    def close(self) -> None:
        self.disk.faults = Faults()
        self.worker.at_once = True
        for store in self.opened:
            stop(store)


def make_bench(root: Path, **changes: Any) -> Bench:
    clock = Clock()
    clock.advance(START_S)
    return Bench(root, clock, FaultyDisk(), SteppedWorker(), changes)


def stop(store: MessageStore) -> None:
    stopped: list[None] = []
    store.stop().addCallback(stopped.append)
    assert stopped == [None]


class TouchingPages:
    """`Pages` for whoever may wait for the disk where it stands."""

    async def ready(self, file: IMappedFile, at: int, size: int) -> None:
        read_before_touch(file, at, size)


def run_now(steps: Coroutine[Any, Any, T]) -> T:
    """The result of what waits for nothing."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


class _LoadsNow(PageLoader):
    """Has pages read where they are asked for."""

    def __init__(self) -> None:
        super().__init__(InlineWorker())


def repair_now(entry_repair: EntryRepair, queue: ConsumeQueue, offset: int) -> None:
    """As EntryRepair.repair, without its worker."""
    entry_repair._store(queue, entry_repair._find(queue, offset, queue.min_offset, queue.max_offset))


@attrs.frozen
class _RepairsNow:
    entry_repair: EntryRepair

    def repair(self, queue: ConsumeQueue, offset: int) -> Deferred[bool]:
        repair_now(self.entry_repair, queue, offset)
        return succeed(True)


class now:  # noqa: N801
    """What is read of a store, at once: from the disk where it stands, whatever its worker does."""

    def __init__(self, store: MessageStore) -> None:
        entry_repair = store._reader._entry_repair

        async def repair(queue: ConsumeQueue, offset: int) -> bool:
            repair_now(entry_repair, queue, offset)
            return True

        self._reader = copy.copy(store._reader)
        self._reader._page_loader = _LoadsNow()
        self._reader._entry_repair = _RepairsNow(entry_repair)  # type: ignore[assignment]
        self._store = store
        self._queries = copy.copy(store.queries)
        self._queries._pages = TouchingPages()
        self._queries._repair = repair

    def get(self, *arguments: Any, **named: Any) -> GetMessageResult:
        found = self._reader.get(*arguments, **named)
        assert not isinstance(found, Deferred)
        return found

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return run_now(self._queries.offset_by_time(topic, queue_id, timestamp_ms))

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        return run_now(self._queries.store_timestamp(topic, queue_id, offset))

    def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        return run_now(self._queries.earliest_timestamp(topic, queue_id))

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        return run_now(self._queries.physical_offset(topic, queue_id, offset))

    def record(self, physical_offset: int, size: int | None = None) -> bytes | None:
        if physical_offset >= self._store.log_end:  # it may be in the transient store, which it would be committed from
            return None
        return run_now(self._queries.record(physical_offset, size))

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        with contextlib.suppress(OSError):
            self._store._dispatcher.index_queued()
        return run_now(self._queries.by_key(topic, key, max_count, begin_ms, end_ms)).records


def after_restart(bench: Bench, store: MessageStore) -> MessageStore:
    """Stop the store and open it again: what it has is from before the start."""
    stop(store)
    return bench.open()


def turns(clock: Clock, seconds: float = 0.0) -> None:
    """Let some time pass, and all turns due in it be taken."""
    for _ in range(50):
        clock.advance(seconds / 50)


def message(
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"body",
    properties: bytes = b"UNIQ_KEY\x017F0000010A2C18B4AAC27D0000000001\x02TAGS\x01TagA",
    *,
    sys_flag: int = 0,
    born_host: bytes = BORN,
    flag: int = 7,
) -> NewMessage:
    return (topic.encode(), queue_id, flag, sys_flag, 1795255515190, born_host, 2, 9, body, properties)


def unpack(archive: str, to: Path) -> None:
    """Unpack an archive of recorded data."""
    with tarfile.open(DATA / archive) as opened:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on, and from 3.14 on the default
            opened.extraction_filter = tarfile.data_filter
        opened.extractall(to)


def unpack_golden(name: str, to: Path) -> Path:
    """One of the two store directories recorded from the Java broker."""
    unpack("store-4.9.7.tar.gz", to)
    return to / name


def golden_messages() -> list[dict[str, Any]]:
    """What the Java decoder says is in the golden store."""
    with gzip.open(DATA / "store-4.9.7.messages.jsonl.gz") as lines:
        return [json.loads(line) for line in lines]


def tree(directory: Path) -> dict[str, bytes]:
    """All files below a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }
