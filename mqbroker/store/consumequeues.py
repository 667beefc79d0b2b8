"""The consume queues of a store: a directory per topic, with a directory per queue. Knows nothing of entries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mqbroker.errors import StoreDamaged
from mqbroker.store.consumequeue import MOVE_AWAY, ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY_BYTES, QueueEnd, ends_below
from mqbroker.store.consumequeue_ext import ConsumeQueueExt
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.file_cache import FileCache
from mqbroker.store.stepwise import Progress, Steps
from mqbroker.wire.names import LMQ_PREFIX, is_lmq

#: Trash directory beside the topics of consume queues and of extensions. No topic has such a name, and the Java broker
#: finds no queue in it.
TRASH = ".removed"
_TOPICS_A_STEP = 50
TOPIC_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")


class Removed(NamedTuple):
    """A removed queue. Created again it begins at `next_offset`, so that its former messages, which the log has below
    `until`, are never taken for messages of the new one."""

    next_offset: int
    until: int


class ConsumeQueues:
    """All queues, by topic (as bytes and as text) and queue id."""

    def __init__(self, disk: IDisk, root: str, file_bytes: int, ext: tuple[str, int] | None = None) -> None:
        """`ext`: directory of the extensions and their file size, if they are enabled."""
        self._disk = disk
        #: Cache of all their files, including extensions.
        self.cache = FileCache(disk, disk.cached_files_max())
        self.root = root
        self._ext = ext
        self._file_bytes = file_bytes - file_bytes % ENTRY_BYTES
        self.by_bytes: dict[tuple[bytes, int], ConsumeQueue] = {}
        self.by_name: dict[tuple[str, int], ConsumeQueue] = {}
        #: Number of %LMQ% queues.
        self.lmq_count = 0
        #: Queues written to since the last sync.
        self.dirty: dict[ConsumeQueue, None] = {}
        #: Whether files were left out when loading: queues may lack entries anywhere.
        self.is_whole = True
        self._new_names: set[str] = set()
        # None if it cannot be computed from what was written since.
        self._tally: tuple[int, int] | None = None
        # Each queue's part of the tally.
        self._tallied: dict[ConsumeQueue, int] = {}
        #: Removed queues, by topic and queue id.
        self.removed: dict[tuple[str, int], Removed] = {}
        #: Below it the log may have former messages of queues that began at 0 again.
        self.former_end = 0

    @property
    def roots(self) -> list[str]:
        """Parent directories of the topics: of consume queues, and of extensions if enabled."""
        return [self.root] if self._ext is None else [self.root, self._ext[0]]

    def forget(self, queue: ConsumeQueue) -> list[IMappedFile]:
        """Detach a queue; the caller removes its directory. Returns its files, still open."""
        del self.by_bytes[queue.topic_bytes, queue.queue_id]
        del self.by_name[queue.topic, queue.queue_id]
        self._tally = None
        self._tallied.clear()
        self.dirty.pop(queue, None)
        self.lmq_count -= queue.topic.startswith(LMQ_PREFIX)
        names = {os.path.join(root, queue.topic) for root in self.roots}
        self._new_names.difference_update(names, {os.path.join(name, str(queue.queue_id)) for name in names})
        self._new_names.update(name for name in names if self._disk.exists(name))
        return queue.detach_files()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.by_name.values())

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Min and max offset of a queue; for a removed one not written to since, the offset of its next message twice;
        None if it is unknown."""
        queue = self.by_name.get((topic, queue_id))
        if queue is not None:
            return queue.min_offset, queue.max_offset
        removed = self.removed.get((topic, queue_id))
        return None if removed is None else (removed.next_offset, removed.next_offset)

    def open(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """The queue, created if new; nothing is written to disk before its first message.

        Raises ValueError on an invalid topic: its name becomes a directory's.
        """
        queue = self.by_bytes.get((topic, queue_id))
        if queue is None:
            name = self.check(topic, queue_id)
            place = f"{name}/{queue_id}"
            removed = self.removed.get((name, queue_id))
            begins_at = removed.next_offset if removed is not None else 0
            ext: ConsumeQueueExt | None = None
            if self._ext is not None:
                root, file_bytes = self._ext
                ext = ConsumeQueueExt(self.cache, f"{root}/{place}", file_bytes, self._new_names)
            queue = ConsumeQueue(
                self.cache, f"{self.root}/{place}", name, queue_id, self._file_bytes, self._new_names, begins_at, ext
            )
            self.by_name[name, queue_id] = queue
            self.by_bytes[topic, queue_id] = queue  # last, as it is looked up there: it is in both, or made again
            self.lmq_count += name.startswith(LMQ_PREFIX)
        return queue

    def check(self, topic: bytes, queue_id: int) -> str:
        """The topic as text. Raises ValueError on an invalid topic or queue id."""
        name = topic.decode("utf-8", "replace")
        if not (TOPIC_NAME.fullmatch(name) or is_lmq(name)) or not 0 <= queue_id <= 0x7FFFFFFF:
            raise ValueError(f"{name[:255]!r} queue {queue_id}: not the name of a topic, or not the number of a queue")
        return name

    def load(
        self, is_clean: bool = True, is_intact: bool = True, ends: Mapping[tuple[str, int], QueueEnd] | None = None
    ) -> Steps[None]:
        """Open all queues on disk; `is_intact` and `ends` as in `ConsumeQueue.load`. Raises StoreDamaged."""
        ends = ends or {}
        topics = self._disk.names(self.root)
        for number, topic in enumerate(topics):
            if not number % _TOPICS_A_STEP:
                yield Progress("consume queues are opened", number, len(topics), "topics")
            path = f"{self.root}/{topic}"
            if topic == TRASH:
                continue
            if not self._disk.is_directory(path):
                raise StoreDamaged(path, 0, f"not a directory of a topic: {MOVE_AWAY}")
            is_topic = TOPIC_NAME.fullmatch(topic) or is_lmq(topic)
            for queue_id in self._disk.names(path):
                try:
                    if not is_topic or not queue_id.isdecimal():
                        raise NotADirectoryError
                    queue = self.open(topic.encode(), int(queue_id))
                    self.is_whole &= queue.load(is_clean, is_intact, ends.get((topic, queue.queue_id)))
                except NotADirectoryError:
                    why = f"not a directory of a queue: {MOVE_AWAY}"
                    raise StoreDamaged(os.path.join(path, queue_id), 0, why) from None
                if not is_clean:  # what a killed process removed may still be on disk
                    self._new_names.add(queue.directory)

    def note_cuts(self, is_clean: bool) -> None:
        """Schedule a sync of queues that were truncated while opening, now or by a killed process."""
        for queue in self:
            if queue.note_synced_cut() or not is_clean:
                self.dirty[queue] = None

    def tally(self) -> tuple[int, int]:
        """Number of queues on disk that have had messages, and the sum of their next offsets."""
        self._tallied = {queue: queue.max_offset for queue in self if queue.has_files and queue.max_offset}
        self._tally = len(self._tallied), sum(self._tallied.values())
        return self._tally

    def tally_now(self) -> tuple[int, int]:
        """As `tally`, computed from queues written to since the last sync."""
        if self._tally is None:
            return self.tally()
        _, total = self._tally
        for queue in self.dirty:
            total -= self._tallied.pop(queue, 0)
            if queue.has_files and queue.max_offset:
                self._tallied[queue] = queue.max_offset
                total += queue.max_offset
        self._tally = len(self._tallied), total
        return self._tally

    def share_of(self, queues: Iterable[ConsumeQueue], end: int) -> tuple[int, int] | None:
        """The part of some queues in the tally of the log below `end`; None if their files cannot be read."""
        count = total = 0
        for queue in queues:
            try:
                below = _count_below(queue, end)
            except OSError:
                return None
            total += below
            count += below > 0
        return count, total

    def drain_unsynced(self) -> list[IMappedFile]:
        """The files of queues written to since this was last called."""
        files = [file for queue in self.dirty for file in queue.drain_unsynced()]
        self.dirty.clear()
        return files

    def drain_new_names(self) -> list[str]:
        """The directories in which files were created since this was last called."""
        taken = sorted(self._new_names)
        self._new_names.clear()
        return taken

    def close(self) -> None:
        for queue in self:
            queue.close()


def _count_below(queue: ConsumeQueue, physical_end: int) -> int:
    """The next offset when the files had the log below `physical_end`; 0 if they had nothing. Raises Unreadable."""
    if queue.end_of_last() <= physical_end:
        return queue.max_offset if queue.has_files else 0
    found = queue.search(ends_below(physical_end), queue.first_offset, queue.max_offset, lost_are_below=True)
    return found if found > queue.begins_at else 0
