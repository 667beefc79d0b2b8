"""The committed offsets of consumer groups: config/consumerOffset.json, or lmqConsumerOffset.json with enableLmq."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings, full
from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import ConsumerOffsetSerializeWrapper, LmqConsumerOffsets
from mqbroker.wire.names import is_lmq

log = Logger()


#: Offsets by topic@group and queue id.
Offsets = dict[str, dict[int, int]]


def decode_offsets(data: bytes) -> Offsets:
    """The offsets of a file, or of a master's response, with those of %LMQ% groups under queue 0. Raises MQError."""
    found = LmqConsumerOffsets.from_json(data, dialect_bytes_max=None)
    return found.offset_table | {key: {0: at} for key, at in found.lmq_offset_table.items()}


class OffsetTable:
    """Committed offsets, kept in memory and written by `persist` if anything changed.

    At most offsetsMax are kept; those of the file count, and are kept beyond that. With enableLmq, %LMQ% groups read
    one queue of a topic: their offsets are kept under queue 0, and in a separate table in the file.
    """

    def __init__(self, file: JsonFile, live: LiveSettings, lmq_file: JsonFile | None = None) -> None:
        """Load the table. Raises StoreDamaged.

        :param lmq_file: with %LMQ% groups, used instead of `file`, which is only read if `lmq_file` does not exist.
        """
        self._file = lmq_file or file
        self._live = live
        self._has_lmq = lmq_file is not None
        #: Whether the groups and topics are those of the master's table that was followed last, or fewer.
        self.is_copy = False
        #: Called before a group or topic is added that may not be the master's.
        self.on_own: list[Callable[[], None]] = []
        loaded = lmq_file.load(decode_offsets) if lmq_file else None
        if loaded is None:
            loaded = file.load(decode_offsets)
        self._offsets: Offsets = loaded or {}
        self._count = sum(map(len, self._offsets.values()))
        #: The number of topics in which each group has offsets.
        self._topics_of = Counter(group for _, group in self._keys())

    def _is_lmq(self, group: str) -> bool:
        return self._has_lmq and is_lmq(group)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, is_own: bool = False) -> None:
        """Set the committed offset of `group`. Moving back is allowed (a reset does so, and a consumer to which a queue
        is assigned anew may) and logged.

        Raises Refused if there are too many offsets to add one, unless it is the broker's own (`is_own`).
        """
        key = f"{topic}@{group}"
        if self._is_lmq(group):
            queue_id = 0
        queues = self._offsets.get(key)
        known = queues.get(queue_id) if queues is not None else None
        if known == offset:
            return
        if known is not None and offset < known:
            log.info("{group} commits a lower offset in {topic} {queue}: {offset} after {known}",
                     group=group, topic=topic, queue=queue_id, known=known, offset=offset)  # fmt: skip
        if known is None:
            self._make_room(1, is_own)
            if queues is None:
                queues = self._offsets[key] = {}
                self._topics_of[group] += 1
                self._has_own()
        assert queues is not None
        queues[queue_id] = offset
        self._file.is_dirty = True

    def _has_own(self) -> None:
        self.is_copy = False
        for callback in self.on_own:
            callback()

    def follow(self, master: Offsets, before: Offsets) -> None:
        """Take over a master's offsets; `before`: those taken over last.

        What was committed here, while the master was away, stays where it is higher; what the master has moved back
        since `before` is moved back, and what it has removed since is removed.
        """
        for key in before.keys() & self._offsets.keys() - master.keys():
            self._remove(key, key.partition("@")[2])
        for key, queues in master.items():
            own = self._offsets.get(key)
            if own is None:
                own = self._offsets[key] = {}
                self._topics_of[key.partition("@")[2]] += 1
            last = before.get(key, {})
            for queue_id, offset in queues.items():
                known = own.get(queue_id)
                if known is None:
                    self._count += 1
                elif known == offset or (known > offset >= last.get(queue_id, offset)):
                    continue
                own[queue_id] = offset
                self._file.is_dirty = True
        self.is_copy = self._offsets.keys() <= master.keys()

    def lower_to(self, max_of: Callable[[str, int], int]) -> None:
        """Lower offsets that are above the end of their queue, because messages that were consumed have been cut off.

        :param max_of: the next offset of a topic's queue.
        """
        for key, queues in self._offsets.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                if (end := max_of(topic, queue_id)) < offset:
                    queues[queue_id] = end
                    self._file.is_dirty = True

    def _make_room(self, more: int, is_own: bool = False) -> None:
        """Count offsets about to be added. Raises Refused if there are too many."""
        if more > 0 and not is_own and self._count + more > self._live.current.offsets_max:
            raise full("committed offsets", self._count, "offsetsMax")
        self._count += more

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset; None without one."""
        return self._offsets.get(f"{topic}@{group}", {}).get(0 if self._is_lmq(group) else queue_id)

    def has_group(self, group: str) -> bool:
        """Whether a group has offsets."""
        return group in self._topics_of

    def topics_of(self, group: str) -> list[str]:
        """The topics in which a group has offsets."""
        end = f"@{group}"
        length = len(end)
        return [key[:-length] for key in self._offsets if key.endswith(end) and key.index("@") == len(key) - length]

    def topics_by_group(self) -> dict[str, list[str]]:
        """The topics in which each group has offsets."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._keys():
            topics.setdefault(group, []).append(topic)
        return topics

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        begin = f"{topic}@"
        return [] if "@" in topic else [key[len(begin) :] for key in self._offsets if key.startswith(begin)]

    def _keys(self) -> list[tuple[str, str]]:
        """(topic, group) of all committed offsets."""
        return [(topic, group) for topic, at, group in (key.partition("@") for key in self._offsets) if at]

    def by_queue(self, group: str, topic: str) -> dict[int, int]:
        """A copy of a group's offsets in a topic, by queue id."""
        return dict(self._offsets.get(f"{topic}@{group}", {}))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Replace the offsets of `target` in a topic by those of `source`; no effect if `source` has none.

        Raises Refused if there are too many offsets to add them.
        """
        offsets = self.by_queue(source, topic)
        if not offsets:
            return
        if self._is_lmq(target):
            offsets = {0: min(offsets.values())}
        known = len(self.by_queue(target, topic))
        self._make_room(len(offsets) - known)
        self._topics_of[target] += not known
        if not known:
            self._has_own()
        self._offsets[f"{topic}@{target}"] = offsets
        self._file.is_dirty = True

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        topics = self.topics_of(group)
        for topic in topics:
            self._remove(f"{topic}@{group}", group)
        if topics:
            log.info("the offsets of {group} in {n} topics are removed", group=group, n=len(topics))

    def _remove(self, key: str, group: str) -> None:
        self._count -= len(self._offsets.pop(key))
        self._file.is_dirty = True
        self._topics_of[group] -= 1
        if not self._topics_of[group]:
            del self._topics_of[group]

    def snapshot(self) -> ConsumerOffsetSerializeWrapper | LmqConsumerOffsets:
        if not self._has_lmq:
            return ConsumerOffsetSerializeWrapper(self._offsets)
        lmq = {
            key: queues[0]
            for key, queues in self._offsets.items()
            if queues.keys() == {0} and is_lmq(key.partition("@")[2])
        }
        return LmqConsumerOffsets(lmq, {key: queues for key, queues in self._offsets.items() if key not in lmq})

    def persist(self) -> Deferred[bool]:
        """Write the file if anything changed; fires True when it is on the disk."""
        return self._file.save_changes(lambda: self.snapshot().json_pieces())
