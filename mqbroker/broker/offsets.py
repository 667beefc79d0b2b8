"""Where each consumer group stands in each queue (config/consumerOffset.json)."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import ConsumerOffsetSerializeWrapper

log = Logger()


class OffsetTable:
    """Committed offsets, kept in memory and written when asked, where anything changed."""

    def __init__(self, file: JsonFile) -> None:
        """Load the table. Raises StoreDamaged."""
        self._file = file
        loaded = file.load(partial(ConsumerOffsetSerializeWrapper.from_json, dialect_bytes_max=None))
        self._offsets: dict[str, dict[int, int]] = loaded.offset_table if loaded is not None else {}
        self._changed = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember that `group` goes on at `offset`. Going back is allowed (a reset does) and logged."""
        queues = self._offsets.setdefault(f"{topic}@{group}", {})
        known = queues.get(queue_id)
        if known == offset:
            return
        if known is not None and offset < known:
            log.warn("{group} goes back in {topic} {queue}: {known} to {offset}",
                     group=group, topic=topic, queue=queue_id, known=known, offset=offset)  # fmt: skip
        queues[queue_id] = offset
        self._changed = True

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, None where there is none."""
        return self._offsets.get(f"{topic}@{group}", {}).get(queue_id)

    def snapshot(self) -> ConsumerOffsetSerializeWrapper:
        return ConsumerOffsetSerializeWrapper(self._offsets)

    def persist(self) -> Deferred[bool]:
        """Write the file where anything changed since; fires True when it is on the disk."""
        if not self._changed:
            return succeed(True)
        self._changed = False
        return self._file.save(lambda: self.snapshot().to_json()).addCallback(self._persisted)

    def _persisted(self, succeeded: bool) -> bool:
        self._changed |= not succeeded
        return succeeded
