"""What is remembered of queues that were removed while the log still has their messages: a file of its own, since all
else that is known of queues can be built from the log again.

A queue that is made again goes on with its numbers: no two messages of the log ever have the same, and consumers'
offsets stay right. (The Java broker begins at 0 again; what is built from the log later then hides the new messages
behind the old ones.) Must never know how a queue is removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from twisted.logger import Logger

from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeues import TOPIC_NAME, Removed
from mqbroker.store.disk import IDisk

#: How many are remembered; the oldest are forgotten first.
REMOVED_MAX = 100_000
_OFFSET_MAX = 2**63 - 1
QueueKey = tuple[str, int]


class RemovedQueues:
    """The table, shared with consume queues, and its file. `removing`: queues whose directories may still be there."""

    log = Logger()

    def __init__(self, disk: IDisk, path: str, table: dict[QueueKey, Removed]) -> None:
        self._disk = disk
        self._path = path
        self.table = table
        self.removing: set[QueueKey] = set()
        #: Writes what the file does not say yet, on the worker; raises OSError. Until it has, the checkpoint must stay:
        #: a start takes up the numbers where the file says, and must find all messages from there on.
        self.unsaved: Callable[[], None] | None = None

    def saved(self, save: Callable[[], None] | None) -> None:
        """`save` was done; there may be newer to write."""
        if self.unsaved is save:
            self.unsaved = None

    def load(self) -> None:
        """Read the file, if there is one. Raises OSError.

        One that cannot be understood is told and passed over: what was removed comes back, nothing else is lost.
        """
        if not self._disk.exists(self._path):
            return
        try:
            table, removing = parse_removed(self._disk.read(self._path))
        except ValueError as error:
            self.log.error("{path} is damaged, removed topics may come back: {why}", path=self._path, why=str(error))
            return
        self.table.update(table)
        self.removing = removing

    def put(self, queue: ConsumeQueue, until: int) -> None:
        """Remember a queue as it is now, as removed from the log below `until`."""
        key = queue.topic, queue.queue_id
        self.table.pop(key, None)
        self.table[key] = Removed(queue.next_offset, until)
        while len(self.table) > REMOVED_MAX:
            del self.table[next(iter(self.table))]

    def forget_aged(self, log_min: int, live: Iterable[ConsumeQueue]) -> None:
        """Forget queues that were made again, and of which the log has nothing from before."""
        for queue in live:
            removed = self.table.get((queue.topic, queue.queue_id))
            if removed is not None and removed.until <= log_min and queue.has_files:
                del self.table[queue.topic, queue.queue_id]

    def encode(self) -> bytes:
        rows = [[*key, removed.next_offset, removed.until] for key, removed in self.table.items()]
        return json.dumps({"queues": rows, "removing": sorted(self.removing)}).encode()

    def write(self, data: bytes) -> None:
        """Bring what `encode` gave to the disk, whole or not at all. For the worker. Raises OSError."""
        fresh = self._path + ".new"
        if self._disk.exists(fresh):
            self._disk.remove(fresh)
        self._disk.write(fresh, data)
        self._disk.rename(fresh, self._path)
        self._disk.sync_directory(os.path.dirname(self._path))


def parse_removed(data: bytes) -> tuple[dict[QueueKey, Removed], set[QueueKey]]:
    """What `encode` gave: the table, and the queues that are being removed. Raises ValueError."""
    try:
        content = json.loads(data)
        return dict(map(_parse_row, content["queues"])), set(map(_parse_key, content["removing"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse_key(row: Any) -> QueueKey:
    topic, queue_id = row
    if not isinstance(topic, str) or not TOPIC_NAME.fullmatch(topic):
        raise ValueError(f"{topic!r} is no name of a topic")
    return topic, _whole(queue_id, 0x7FFFFFFF)


def _parse_row(row: Any) -> tuple[QueueKey, Removed]:
    topic, queue_id, next_offset, until = row
    return _parse_key((topic, queue_id)), Removed(_whole(next_offset, _OFFSET_MAX), _whole(until, _OFFSET_MAX))


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number from 0 to {most}")
    return value
