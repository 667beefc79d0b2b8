"""Removing topics: their consume queues go, with the extensions; their messages stay in the log until they age.

What is to go is noted on the disk first; then all directories get other names in one turn, nothing else happening
meanwhile, and are deleted by the worker. A start finishes what was noted and not done.

What is remembered of removed queues while the log still has their messages is in a file of its own, since all else that
is known of queues can be built from the log again. A queue that is made again goes on with its numbers: no two messages
of the log ever have the same, and consumers' offsets stay right. (The Java broker begins at 0 again; what is built from
the log later then hides the new messages behind the old ones.) Must never know of messages.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import BLANK_SIZE
from mqbroker.store.consumequeues import TOPIC_NAME, TRASH, ConsumeQueues, Removed
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.worker import IWorker
from mqbroker.wire.codes import is_system_topic
from mqbroker.wire.names import LMQ_PREFIX
from mqbroker.wire.record import RECORD_BYTES_MIN

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
        """Write the encoded table atomically. For the worker. Raises OSError."""
        self._disk.replace(self._path, [data])


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


NoteFunction = Callable[[Callable[[], None], Collection[ConsumeQueue] | None], Deferred[None]]


class TopicRemover:
    """Removes topics and queues, one request at a time.

    :param run_note: runs on the worker what notes that queues go, while no file of theirs is being synced; gets which
        queues those are that the checkpoint has still counted, None where that is not known.
    :param log_bounds: where the log starts and ends.
    """

    log = Logger()

    def __init__(
        self,
        queues: ConsumeQueues,
        removed: RemovedQueues,
        disk: IDisk,
        worker: IWorker,
        run_note: NoteFunction,
        log_bounds: Callable[[], tuple[int, int]],
    ) -> None:
        self._queues = queues
        self._removed = removed
        self._disk = disk
        self._worker = worker
        self._run_note = run_note
        self._log_bounds = log_bounds
        self._lock = DeferredLock()
        self._trashed = 0

    def remove_topics(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove topics; fires with those that were there. Topics of the system are left alone.

        Fails with OSError where the disk refuses: topics that could not be removed are as before.
        """
        return self._run(lambda queue: queue.topic in names)

    def keep_only(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove all topics but these, those of the system and light queues, as cleanUnusedTopic does in Java."""
        return self._run(lambda queue: queue.topic not in names and not queue.topic.startswith(LMQ_PREFIX))

    def remove_empty_queues(self) -> Deferred[list[str]]:
        """Remove queues all of whose messages are gone from the log, as cleanExpiredConsumerQueue does in Java."""
        return self._run(lambda queue: queue.has_files and queue.min_offset == queue.max_offset == queue.next_offset)

    def stop(self) -> Deferred[None]:
        """Fires when nothing is removed any more."""
        return self._lock.run(lambda: None)

    def _run(self, is_meant: Callable[[ConsumeQueue], bool]) -> Deferred[list[str]]:
        def remove() -> Deferred[list[str]]:
            queues = [queue for queue in self._queues if is_meant(queue) and not is_system_topic(queue.topic)]
            return Deferred.fromCoroutine(self._remove(queues))

        return self._lock.run(remove)

    async def _remove(self, queues: list[ConsumeQueue]) -> list[str]:
        if self._removed.unsaved is not None:
            await self._save(None)
        if not queues:
            return []
        await self._note(queues)
        # From here to the end of the second note nothing of queues is synced or saved.
        gone, error = self._put_away(queues)
        try:
            await self._save(() if len(gone) == len(queues) else None)
        except OSError as failed:
            error = error or failed
        topics = sorted({queue.topic for queue in gone})
        self.log.info("topics were removed: {topics}", topics=topics)
        await self._empty_trash()
        if error is not None:
            raise error
        return topics

    async def _note(self, queues: list[ConsumeQueue]) -> None:
        """Record on the disk that these queues are being removed."""
        removed = self._removed
        log_min, log_end = self._log_bounds()
        removed.forget_aged(log_min, set(self._queues).difference(queues))
        former = dict(removed.table)
        for queue in queues:
            removed.put(queue, log_end)
            removed.removing.add((queue.topic, queue.queue_id))
        try:
            await self._save(queues)
        except OSError:
            removed.table.clear()
            removed.table.update(former)
            removed.removing.clear()
            self._owe()
            raise

    async def _save(self, queues: Collection[ConsumeQueue] | None) -> None:
        """Bring the note to the disk, after the names that it is about. Raises OSError: it is owed then."""
        save = self._owe()
        await self._run_note(save, queues)
        self._removed.saved(save)

    def _owe(self) -> Callable[[], None]:
        """Have the note, as it is now, written before the checkpoint goes on."""
        data = self._removed.encode()
        roots = self._queues.roots

        def save() -> None:
            _sync_names(self._disk, roots, [TRASH])
            self._removed.write(data)

        self._removed.unsaved = save
        return save

    def _put_away(self, queues: list[ConsumeQueue]) -> tuple[list[ConsumeQueue], OSError | None]:
        """Detach queues and move their directories to the trash; returns which, and why not the others."""
        gone: list[ConsumeQueue] = []
        error: OSError | None = None
        _, log_end = self._log_bounds()
        for queue in queues:
            key = queue.topic, queue.queue_id
            try:
                for root in reversed(self._queues.roots):  # the extension first: without it a queue is of no use
                    self._put_in_trash(root, *key)
            except OSError as failed:
                self.log.error("{path} cannot be removed: {error}", path=queue.directory, error=failed)
                self._removed.table.pop(key, None)
                error = failed
            else:
                self._removed.put(queue, log_end)
                self._close(self._queues.forget(queue))
                gone.append(queue)
            self._removed.removing.discard(key)
        return gone, error

    def _put_in_trash(self, root: str, topic: str, queue_id: int) -> None:
        directory = os.path.join(root, topic, str(queue_id))
        if self._disk.exists(directory):
            trash = os.path.join(root, TRASH)
            self._disk.make_directories(trash)
            self._trashed += 1
            self._disk.rename(directory, os.path.join(trash, str(self._trashed)))
            if not self._disk.names(os.path.join(root, topic)):
                self._disk.remove_tree(os.path.join(root, topic))

    def _close(self, files: Iterable[IMappedFile]) -> None:
        for file in files:
            file.close()

    async def _empty_trash(self) -> None:
        try:
            await self._worker.run(lambda: empty_trash(self._disk, self._queues.roots))
        except OSError as error:
            self.log.error("removed queues take room until the next start: {error}", error=error)


def _sync_names(disk: IDisk, roots: Iterable[str], names: Iterable[str]) -> None:
    """Bring names to the disk: in the directories of queues, and in those below that are named. Raises OSError."""
    for root in roots:
        for directory in (root, *(os.path.join(root, name) for name in names)):
            with contextlib.suppress(FileNotFoundError):
                disk.sync_directory(directory)


def empty_trash(disk: IDisk, roots: Iterable[str]) -> None:
    """Delete the trash directories. Raises OSError."""
    for root in roots:
        trash = os.path.join(root, TRASH)
        if disk.exists(trash):
            disk.remove_tree(trash)


def finish_removals(
    queues: ConsumeQueues, removed: RemovedQueues, disk: IDisk, ends_well: Callable[[ConsumeQueue], bool]
) -> None:
    """Remove the queues that a process was about to remove when it ended. Raises OSError.

    One that has newer messages was made again since; it stays. So does one whose newest entry is garbage: it is built
    anew, from where its note says.
    """
    _forget_renumbered(queues, removed, ends_well)
    if not removed.removing:
        return
    for key in removed.removing:
        queue = queues.by_name.get(key)
        note = removed.table.get(key)
        if queue is None or note is None:
            continue
        if queue.end_of_last() > note.until:
            if ends_well(queue):
                _note_earlier(queue, removed)
            continue
        for file in queues.forget(queue):
            file.close()
        for root in queues.roots:
            disk.remove_tree(os.path.join(root, queue.topic, str(queue.queue_id)))
    # What is gone for programs may come back in another crash, and is not noted any more then.
    _sync_names(disk, queues.roots, sorted({topic for topic, _ in removed.removing}))
    removed.removing.clear()
    removed.write(removed.encode())


def lower_numbers(queues: ConsumeQueues, removed: RemovedQueues, log_end: int) -> None:
    """Have removed queues begin at numbers that messages above `log_end` can have: nobody would take a record with a
    higher one for a record. There are such where the log has lost its end, or began anew. Raises OSError."""
    highest = log_end // RECORD_BYTES_MIN
    too_high = [key for key, note in removed.table.items() if note.next_offset > highest]
    if not too_high:
        return
    for key in too_high:
        removed.table[key] = removed.table[key]._replace(next_offset=highest)
        queue = queues.by_name.get(key)
        if queue is not None and queue.is_empty:
            queue.restart_at(highest)
            queues.dirty[queue] = None
    removed.write(removed.encode())


def restore_next_offsets(
    queues: ConsumeQueues, removed: RemovedQueues, former: Mapping[tuple[str, int], int], log_end: int
) -> list[tuple[str, int]]:
    """Have queues without a message, that have lost their files since they gave `former` numbers, go on with these as
    removed queues do; which ones. For when all that the log has is in the queues. Raises OSError."""
    highest = log_end // RECORD_BYTES_MIN
    found: list[tuple[str, int]] = []
    for key, number in former.items():
        queue, next_offset = queues.by_name.get(key), min(number, highest)
        if queue is not None and (queue.min_offset < queue.max_offset or queue.max_offset >= next_offset):
            continue
        if next_offset > 0 and key not in removed.table and TOPIC_NAME.fullmatch(key[0]):
            found.append(key)
            removed.table[key] = Removed(next_offset, 0)
            if queue is not None:
                queue.restart_at(next_offset)
                queues.dirty[queue] = None
    if found:
        removed.write(removed.encode())
    return found


def _note_earlier(queue: ConsumeQueue, removed: RemovedQueues) -> None:
    """Note of a queue that stays what was removed before it began: the later note has taken the place of that."""
    begin = queue.search(lambda offset, size: not offset and size == BLANK_SIZE, queue.first_offset, queue.max_offset)
    del removed.table[queue.topic, queue.queue_id]
    queue.assume_begin(begin)
    if begin:
        removed.table[queue.topic, queue.queue_id] = Removed(begin, queue.entry(begin)[0])


def _forget_renumbered(
    queues: ConsumeQueues, removed: RemovedQueues, ends_well: Callable[[ConsumeQueue], bool]
) -> None:
    """Forget what is remembered of queues that a Java broker made again: it began at 0."""
    for key, note in list(removed.table.items()):
        queue = queues.by_name.get(key)
        if queue is None or queue.end_of_last() <= note.until or queue.max_offset > note.next_offset:
            continue
        if ends_well(queue):
            del removed.table[key]
            queue.assume_begin(0)
