"""Syncs of log segments, which acknowledgements wait for: by Linux AIO or by a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import Interface, implementer

from mqbroker.store.disk import IMappedFile
from mqbroker.store.linux_aio import LinuxAio
from mqbroker.store.worker import IWorker


class ISyncs(Interface):
    """Syncs files."""

    def sync(files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        """Sync the files one after another, then call `then` away from the reactor's thread.

        Fires on the reactor's thread; fails with the first OSError.
        """

    def sync_beside(files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        """As `sync`, while others run, by descriptors of its own, which also report an error unless an earlier sync has
        reported it."""


@implementer(ISyncs)
class WorkerSyncs:
    """Syncs on a worker; `beside` runs what must not wait for it."""

    def __init__(self, worker: IWorker, beside: IWorker | None = None) -> None:
        self._worker = worker
        self._beside = beside or worker

    def sync(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        def work() -> None:
            for file in files:
                file.sync()
            if then is not None:
                then()

        return self._worker.run(work)

    def sync_beside(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        def work() -> None:
            for file in files:
                file.sync_apart()
            if then is not None:
                then()

        return self._beside.run(work)


@implementer(ISyncs)
class AioSyncs:
    """Syncs a single file, the usual case, by the kernel; all else by `others`.

    After the kernel has refused a request everything is: no sync is lost, as the refused one never began.
    """

    log = Logger()

    def __init__(self, queue: LinuxAio, others: ISyncs) -> None:
        self._queue: LinuxAio | None = queue
        self._others = others

    def sync(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        if self._queue is not None and then is None and len(files) == 1:
            fd = files[0].descriptor
            if fd is not None:
                try:
                    return self._queue.sync(fd, files[0].path)
                except OSError as error:
                    self._queue = None
                    self.log.warn(
                        "the kernel no longer accepts asynchronous syncs, a thread syncs instead: {error}", error=error
                    )
        return self._others.sync(files, then)

    def sync_beside(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        return self._others.sync_beside(files, then)
