"""Syncs of the log, of which the model is told how long each took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.store.disk import IMappedFile, is_shortage
from mqbroker.store.flush import RUNNING_MAX
from mqbroker.store.syncs import ISyncs
from tests.store.simulation.model import Model, SyncSpan


@implementer(ISyncs)
class TimedSyncs:
    """Has `inner` sync."""

    def __init__(self, inner: ISyncs, model: Model) -> None:
        self._inner = inner
        self._model = model

    def sync(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        return self._timed(self._inner.sync(files, then))

    def sync_beside(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        return self._timed(self._inner.sync_beside(files, then), is_note=not files)

    def _timed(self, running: Deferred[None], is_note: bool = False) -> Deferred[None]:
        model = self._model
        span = SyncSpan(model.exposed_s, is_note=is_note)
        span.is_last_place = sum(other.end_s is None for other in model.sync_spans) >= RUNNING_MAX - 1
        model.sync_spans.append(span)

        def ended(result: Any) -> Any:
            span.end_s = model.exposed_s
            if isinstance(result, Failure) and result.check(OSError) and not is_shortage(cast(OSError, result.value)):
                model.unsynced_may_go = True  # also where it is the kernel's queue that does not say how it ended
            return result

        return running.addBoth(ended)
