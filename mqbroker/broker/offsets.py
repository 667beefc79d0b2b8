"""Where each consumer group stands in each queue: config/consumerOffset.json, with enableLmq lmqConsumerOffset.json."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import ConsumerOffsetSerializeWrapper, LmqConsumerOffsets
from mqbroker.wire.names import is_lmq

log = Logger()


class OffsetTable:
    """Committed offsets, kept in memory and written when asked, where anything changed."""

    def __init__(self, file: JsonFile, lmq_file: JsonFile | None = None) -> None:
        """Load the table. Raises StoreDamaged.

        :param lmq_file: where there are %LMQ% groups: it takes the place of `file`, which is read where it is missing.
        """
        self._file = lmq_file or file
        self._has_lmq = lmq_file is not None
        #: Offsets of %LMQ% groups, which read one queue of a topic.
        self._lmq_offsets: dict[str, int] = {}
        self._offsets: dict[str, dict[int, int]] = {}
        self._changed = False
        with_lmq = lmq_file.load(partial(LmqConsumerOffsets.from_json, dialect_bytes_max=None)) if lmq_file else None
        if with_lmq is not None:
            self._offsets, self._lmq_offsets = with_lmq.offset_table, with_lmq.lmq_offset_table
        elif (
            loaded := file.load(partial(ConsumerOffsetSerializeWrapper.from_json, dialect_bytes_max=None))
        ) is not None:
            self._offsets = loaded.offset_table

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember that `group` goes on at `offset`. Going back is allowed (a reset does) and logged."""
        if self._has_lmq and is_lmq(group):
            self._lmq_offsets[f"{topic}@{group}"] = offset
            self._changed = True
            return
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
        if self._has_lmq and is_lmq(group):
            return self._lmq_offsets.get(f"{topic}@{group}")
        return self._offsets.get(f"{topic}@{group}", {}).get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """The topics in which a group has offsets."""
        return [topic for topic, of_group in self._keys() if of_group == group]

    def topics_by_group(self) -> dict[str, list[str]]:
        """The topics in which each group has offsets."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._keys():
            topics.setdefault(group, []).append(topic)
        return topics

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        return [group for of_topic, group in self._keys() if of_topic == topic]

    def _keys(self) -> list[tuple[str, str]]:
        """(topic, group) of all that is kept."""
        keys = [*self._offsets, *self._lmq_offsets]
        return [(topic, group) for topic, at, group in (key.partition("@") for key in keys) if at]

    def by_queue(self, group: str, topic: str) -> dict[int, int]:
        """A copy of a group's offsets in a topic, by queue id."""
        if self._has_lmq and is_lmq(group):
            offset = self._lmq_offsets.get(f"{topic}@{group}")
            return {} if offset is None else {0: offset}
        return dict(self._offsets.get(f"{topic}@{group}", {}))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give `target` the offsets of `source` in a topic, in place of its own; nothing where there are none."""
        offsets = self.by_queue(source, topic)
        if not offsets:
            return
        if self._has_lmq and is_lmq(target):
            self._lmq_offsets[f"{topic}@{target}"] = min(offsets.values())
        else:
            self._offsets[f"{topic}@{target}"] = offsets
        self._changed = True

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for topic in self.topics_of(group):
            self._offsets.pop(f"{topic}@{group}", None)
            self._lmq_offsets.pop(f"{topic}@{group}", None)
            self._changed = True
            log.info("the offsets of {group} in {topic} are removed", group=group, topic=topic)

    def snapshot(self) -> ConsumerOffsetSerializeWrapper | LmqConsumerOffsets:
        if self._has_lmq:
            return LmqConsumerOffsets(self._lmq_offsets, self._offsets)
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
