"""Deleting files of the store: segments of the log, then what stood for their messages in consume queues and index.

One at a time and oldest first, so that a crash at any moment leaves no hole. A file's name goes first, and the store
forgets the file when that is on the disk. Who holds slices of it keeps them: its blocks are let go when the last is
gone. It is never truncated, since touching a mapping where its file has ended kills the process. Must never know why a
file goes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.index import Index
from mqbroker.store.worker import IWorker

#: How many queues are looked at in one turn of the clock.
QUEUES_A_TURN = 200

RunFunction = Callable[[Callable[[], Any]], Deferred[Any]]
#: Waits so many milliseconds.
PauseFunction = Callable[[float], Awaitable[None]]


class Remover:
    """Deletes files. One that cannot be deleted is tried again after `retry_s`, and told of once.

    :param now: seconds.
    """

    log = Logger()

    def __init__(self, disk: IDisk, now: Callable[[], float], retry_s: float) -> None:
        self._disk = disk
        self._now = now
        self._retry_s = retry_s
        self._due: dict[str, float] = {}

    def is_due(self, path: str) -> bool:
        """Whether a file is to be tried: it did not fail, or long enough ago."""
        return self._due.get(path, 0.0) <= self._now()

    async def remove(self, path: str, run: RunFunction) -> bool:
        """Delete a file and bring that to the disk, by `run`; False where it cannot be."""
        if not self.is_due(path):
            return False

        def work() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(path)
            with contextlib.suppress(FileNotFoundError):
                self._disk.sync_directory(os.path.dirname(path))

        try:
            await run(work)
        except OSError as error:
            if path not in self._due:
                self.log.error(
                    "{path} cannot be deleted, which is tried again every {s} s: {error}",
                    path=path, s=self._retry_s, error=error,
                )  # fmt: skip
            self._due[path] = self._now() + self._retry_s
            return False
        self._due.pop(path, None)
        return True


class LogCleaner:
    """Deletes the oldest segments of the log.

    :param safe_end: all that was made of the log below it is on the disk.
    """

    log = Logger()

    def __init__(
        self, commit_log: CommitLog, remover: Remover, disk: IDisk, worker: IWorker, safe_end: Callable[[], int]
    ) -> None:
        self._commit_log = commit_log
        self._remover = remover
        self._disk = disk
        self._worker = worker
        self._safe_end = safe_end
        self.deleted = 0

    @property
    def minimum(self) -> int:
        """Where the log starts."""
        return self._commit_log.min_offset

    def oldest(self) -> IMappedFile | None:
        """The segment that goes next; None where none may: the last one, or what is not on the disk everywhere."""
        commit_log = self._commit_log
        if len(commit_log.segments) < 2 or commit_log.min_offset + commit_log.segment_bytes > self._safe_end():
            return None
        segment = commit_log.segments[0]
        return segment if self._remover.is_due(segment.path) else None

    async def modified_ms(self, segment: IMappedFile) -> int | None:
        """When a segment was last written to, ms; None where the disk cannot tell."""
        try:
            modified: int = await self._worker.run(lambda: self._disk.modified_ms(segment.path))
        except FileNotFoundError:  # deleted by someone else: as old as can be
            return 0
        except OSError:
            return None
        return modified

    async def delete(self, segment: IMappedFile) -> bool:
        """Delete what `oldest` gave."""
        if not await self._remover.remove(segment.path, self._worker.run):
            return False
        gone = self._commit_log.drop_first()
        assert gone is segment
        self.deleted += 1
        self.log.info("{path} was deleted, the log starts at {n}", path=gone.path, n=self._commit_log.min_offset)
        # Its blocks are let go by this, or by the last reader's slice: a gigabyte of them takes a while.
        await self._worker.run(gone.close)
        return True


class CacheCleaner:
    """Lets consume queues and index follow the log's minimum.

    :param run_alone: runs on the worker while none of their files is being synced.
    """

    log = Logger()

    def __init__(
        self,
        queues: ConsumeQueues,
        index: Index | None,
        remover: Remover,
        worker: IWorker,
        run_alone: RunFunction,
    ) -> None:
        self._queues = queues
        self._index = index
        self._remover = remover
        self._worker = worker
        self._run_alone = run_alone
        #: Files of extensions that are forgotten and not deleted yet.
        self._orphans: list[str] = []
        self.deleted = 0

    async def follow(self, minimum: int, pause: PauseFunction, interval_ms: int) -> bool:
        """Move the queues' minimum offsets to what the log has, and delete files of what it has no more.

        False where not all could be deleted."""
        is_done = True
        queues = list(self._queues)
        for start in range(0, len(queues), QUEUES_A_TURN):
            await pause(0)
            for queue in queues[start : start + QUEUES_A_TURN]:
                if queue.min_offset < queue.max_offset and queue.oldest()[0] < minimum:
                    self._orphans += queue.correct_min(minimum)
        for start in range(0, len(queues), QUEUES_A_TURN):
            await pause(0)
            for queue in queues[start : start + QUEUES_A_TURN]:
                if queue.removable_files():
                    is_done &= await self._clean_queue(queue)
                    await pause(interval_ms)
        is_done &= await self._clean_orphans(pause, interval_ms)
        return await self._clean_index(minimum) and is_done

    async def _clean_orphans(self, pause: PauseFunction, interval_ms: int) -> bool:
        while self._orphans:
            if not await self._remover.remove(self._orphans[0], self._run_alone):
                return False
            del self._orphans[0]
            self.deleted += 1
            await pause(interval_ms)
        return True

    async def _clean_queue(self, queue: ConsumeQueue) -> bool:
        while files := queue.removable_files():
            if not await self._remover.remove(files[0].path, self._run_alone):
                return False
            if not queue.is_removed:
                await self._worker.run(queue.drop_first_file().close)
                self.deleted += 1
        return not queue.has_old_files

    async def _clean_index(self, minimum: int) -> bool:
        index = self._index
        if index is None:
            return True
        while (file := index.oldest_below(minimum)) is not None:
            if not index.is_synced(file) or not await self._remover.remove(file.file.path, self._run_alone):
                return False
            index.drop_first_file()
            await self._worker.run(file.file.close)
            self.deleted += 1
            self.log.info("{path} was deleted: the log has none of its messages", path=file.file.path)
        return True
