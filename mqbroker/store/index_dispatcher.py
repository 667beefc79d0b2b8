"""The way of messages into the index, once they are in consume queues.

They come from memory, where so many are kept as may be, and from the log what was not kept. Must never know of turns,
nor of the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mqbroker.store.commitlog import PILE_BYTES_MAX, CommitLog, Dispatchable
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.index import Index, KeyHasher
from mqbroker.store.index_file import IndexRow
from mqbroker.store.logscan import Run, scan

#: How long what was in memory when it was looked at counts as that, seconds: entries go all over the file.
MOMENT_S = 0.5
#: After so many messages without a key it is taken that a file begins where the one before has ended.
_LOOKS_MAX = 1000


class IndexDispatcher:
    """Feeds the index. `end`, as its methods get it: all of the log below is in the consume queues.

    :param now: seconds.
    """

    def __init__(self, index: Index, commit_log: CommitLog, queues: ConsumeQueues, now: Callable[[], float]) -> None:
        self._now = now
        # When the pages that entries touch were looked at last.
        self._looked = 0.0
        self._index = index
        self._commit_log = commit_log
        self._queues = queues
        self._waiting: deque[Dispatchable] = deque()
        self._waiting_bytes = 0

    def is_dirty(self, end: int) -> bool:
        return self._index.offset < end

    def keep(self, appends: Sequence[Dispatchable], size: int) -> None:
        """Have appends of `size` bytes in the log, the next that enter consume queues, wait here."""
        if self._waiting_bytes > PILE_BYTES_MAX:
            self._waiting.clear()
            self._waiting_bytes = 0
        self._waiting += appends
        self._waiting_bytes += size

    def index(self, end: int, count: int) -> None:
        """Index about `count` messages. Raises OSError."""
        index = self._index
        waiting = self._waiting
        now = self._now()
        if not self._looked <= now < self._looked + MOMENT_S:
            index.read()
            self._looked = now
        while count > 0 and waiting:
            begin = waiting[0][1][0][0]
            if index.offset < begin:
                count -= self._index_from_log(begin, count)
                continue
            appends, taken = pop_adjoining(waiting, count)
            index.add(appends)
            self._waiting_bytes -= index.offset - begin
            count -= taken
        if not waiting:
            self._waiting_bytes = 0
            if index.offset < end and count > 0:
                self._index_from_log(end, count)
        index.write_header()

    def index_all(self, end: int, count: int) -> None:
        """Index all there is, about `count` messages at a time. Raises OSError."""
        while self.is_dirty(end):
            self.index(end, count)

    def index_queued(self, end: int, count: int) -> None:
        """Index what waits here, about `count` messages at a time, unless older ones must be indexed from the log
        first. Raises OSError."""
        while self._waiting and self._index.offset >= self._waiting[0][1][0][0]:
            self.index(end, count)

    def _index_from_log(self, end: int, count: int) -> int:
        """Index at most `count` messages below `end` read back from the log; says how many there were."""
        index = self._index
        rows: list[IndexRow] = []
        indexed = 0
        indexed_to = index.offset
        queues, rows_of = self._queues, index.rows_of
        for found in scan(self._commit_log, index.offset, end, count):
            if isinstance(found, Run):
                for topic, queue_id, _, physical_offset, _, sys_flag, timestamp_ms, properties in found.rows:
                    rows += rows_of(queues.open(topic, queue_id), sys_flag, properties, physical_offset, timestamp_ms)
                indexed += len(found.rows)
            else:
                indexed += 1
            indexed_to = found.end
        index.put(rows, end if indexed < count else indexed_to)
        return indexed


def has_keys_between(log: CommitLog, before: int, end: int) -> bool:
    """Whether messages in the log behind the one at `before` (-1 for none) and below `end` have keys: a file of the
    index that had them is lost then. May wait. Raises Unreadable."""
    hasher = KeyHasher()
    for found in scan(log, max(before, log.min_offset), end, _LOOKS_MAX):
        for row in found.rows if isinstance(found, Run) else ():
            _, _, _, physical_offset, _, sys_flag, _, properties = row
            if physical_offset > before and hasher.of_record(0, sys_flag, properties):
                return True
    return False


def pop_adjoining(dispatch_queue: deque[Dispatchable], count: int) -> tuple[list[Dispatchable], int]:
    """Take appends of about `count` messages off the front, none missing between them; and how many messages."""
    appends = [dispatch_queue.popleft()]
    taken = len(appends[0][1])
    while dispatch_queue and taken < count:
        last = appends[-1][1][-1]
        if dispatch_queue[0][1][0][0] != last[0] + last[2]:
            break
        appends.append(dispatch_queue.popleft())
        taken += len(appends[-1][1])
    return appends, taken
