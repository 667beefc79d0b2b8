"""A table in one JSON file, which is replaced atomically.

The new content is written beside the file, synced, and renamed over it; the former content is kept as `.bak`, which is
read if the file is missing or damaged. If that is damaged, too, the unfinished next content is read. Java deletes
before it renames and syncs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.errors import MQError, StoreDamaged
from mqbroker.store.disk import IDisk, Outage
from mqbroker.store.layout import make_durable_directories
from mqbroker.store.worker import IWorker

log = Logger()

T = TypeVar("T")

#: How many pieces of a content are collected in one turn of the reactor.
PIECES_PER_TURN = 1000
#: Returns a content, whole or in pieces, which may be read in later turns.
Content = Callable[[], bytes | Iterator[bytes]]


class JsonFile:
    """One file. `save` may be called at any time: while a write is under way, only the last content waits.

    :param turn: calls a function in the reactor's next turn; without it a content in pieces is collected at once.
    """

    def __init__(
        self,
        path: str,
        worker: IWorker,
        disk: IDisk,
        turn: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.path = path
        self._disk = disk
        self._has_directory = False  # for certain, whatever crashes
        #: Whether the file is unreadable and its `.bak` was read, which must not be overwritten by it.
        self._is_damaged = False
        self._worker = worker
        self._turn = turn
        self._succeeded = True
        self._saving = Outage(f"{path} could not be written", f"{path} is written again")
        self._next: Content | None = None
        self._newest: Content | None = None
        self._writing: Deferred[bool] | None = None
        #: For tables that are saved periodically: set when the table has changed; see `save_changes`.
        self.is_dirty = False

    def load(self, read: Callable[[bytes], T]) -> T | None:
        """Return `read` of the content, else of `.bak`, else of the unfinished next content; None if there is no
        content.

        Raises StoreDamaged if none of the existing contents can be read, and OSError.
        """
        damage = None
        backup, unfinished = self.path + ".bak", self.path + ".tmp"
        # If a process ended while it replaced the file, both names may refer to one file, and a newer one be whole.
        for path in (self.path, backup, unfinished) if self._disk.exists(backup) else (self.path,):
            try:
                data = self._disk.read(path)
            except FileNotFoundError:
                continue
            try:
                value = read(data)
            except MQError as error:
                damage = damage or StoreDamaged(path, 0, str(error))
                log.error("{path} cannot be read: {why}", path=path, why=str(error))
                continue
            if path != self.path:
                self._is_damaged = damage is not None and path == backup
                log.warn("{path} is used instead of {missing}", path=path, missing=self.path)
                if path == unfinished:
                    self._disk.rename(path, self.path)
                # A process that was killed between the renames did not sync them: the damaged file alone could reach
                # the disk.
                self._disk.sync_directory(os.path.dirname(path))
            return value
        if damage is not None:
            raise damage
        return None

    def save(self, content: Content) -> Deferred[bool]:
        """Write what `content` returns, on the worker. Fires True when it is on disk, False if that failed."""
        self._next = self._newest = content
        writing = self._writing or self._write()
        done: Deferred[bool] = Deferred()
        if writing is None:
            done.callback(self._succeeded)
        else:
            _follow(writing, done)
        return done

    def save_changes(self, content: Content) -> Deferred[bool]:
        """As `save`, but only if `is_dirty`, which is set again if that fails."""
        if not self.is_dirty:
            return succeed(True)
        self.is_dirty = False
        return self.save(content).addCallback(self._saved_changes)

    def _saved_changes(self, succeeded: bool) -> bool:
        self.is_dirty |= not succeeded
        return succeeded

    def saved(self) -> Deferred[bool] | None:
        """Fires as the last `save` does, for others who wait for it; None if it is over."""
        if self._writing is None:
            return None
        done: Deferred[bool] = Deferred()
        _follow(self._writing, done)
        return done

    def retry(self) -> None:
        """Retry a failed save: the disk may have space again."""
        if not self._succeeded and self._writing is None and self._newest is not None:
            self.save(self._newest)

    def _write(self) -> Deferred[bool] | None:
        """Start writing the waiting content; None if nothing waits, or it is being written."""
        content, self._next = self._next, None
        if content is None:
            return None
        finished: Deferred[bool] = Deferred()
        self._writing = finished
        try:
            data = content()
        except Exception:
            self._written(self._failed(Failure()), finished)  # type: ignore[no-untyped-call]
            return self._writing
        if isinstance(data, bytes):
            self._replace([data], finished)
        else:
            self._gather(data, [], finished)
        return self._writing

    def _gather(self, pieces: Iterator[bytes], parts: list[bytes], finished: Deferred[bool]) -> None:
        """Collect some more pieces; write them when all are there."""
        before = len(parts)
        try:
            parts += pieces if self._turn is None else islice(pieces, PIECES_PER_TURN)
        except Exception:
            self._written(self._failed(Failure()), finished)  # type: ignore[no-untyped-call]
            return
        if self._turn is None or len(parts) < before + PIECES_PER_TURN:
            self._replace(parts, finished)
        else:
            self._turn(lambda: self._gather(pieces, parts, finished))

    def _replace(self, pieces: list[bytes], finished: Deferred[bool]) -> None:
        work = self._worker.run(lambda: self._bring(pieces))
        work.addCallbacks(lambda _: True, self._failed).addCallback(self._written, finished)

    def _bring(self, pieces: list[bytes]) -> None:
        """On the worker."""
        directory = os.path.dirname(self.path)
        if not (self._has_directory and self._disk.exists(directory)):  # it may have been removed
            make_durable_directories(self._disk, directory)
            self._has_directory = True
        if self._is_damaged:
            self._disk.rename(self.path, self.path + ".damaged")
            self._is_damaged = False
        self._disk.replace(self.path, pieces)

    def _failed(self, failure: Failure) -> bool:
        self._saving.failed(failure.getErrorMessage())
        return False

    def _written(self, succeeded: bool, finished: Deferred[bool]) -> None:
        self._succeeded = succeeded
        if succeeded:
            self._saving.worked()
        self._writing = None
        following = self._write()
        if following is None:
            finished.callback(self._succeeded)
        else:
            _follow(following, finished)


def _follow(first: Deferred[bool], then: Deferred[bool]) -> None:
    """Fire `then` with the result of `first`, which keeps it for others who follow."""

    def pass_on(succeeded: bool) -> bool:
        then.callback(succeeded)
        return succeeded

    first.addCallback(pass_on)
