"""Removal of topics: of their consume queues and extensions; messages stay in the log until they expire.

A removal is recorded on disk first; then all directories are renamed in one turn of the reactor, and deleted by the
worker. A start finishes what was recorded but not done.

Removed queues are kept in a file of their own while the log has their messages, since they, unlike queues, cannot be
rebuilt from the log. A queue that is created again continues its offsets: no two messages of the log have the same, and
consumers' offsets stay right. (The Java broker begins at 0 again. A queue that does so here, because it follows a Java
master or a Java broker ran on the store, has a note that says so, by which a rebuild leaves out the former messages;
Java's rebuild hides the new messages behind them.)
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

#: Maximum number of removed queues in the table; the oldest are dropped first.
REMOVED_MAX = 100_000
_OFFSET_MAX = 2**63 - 1
QueueKey = tuple[str, int]


class RemovedQueues:
    """The table, shared with consume queues, and its file. `removing`: queues whose directories may still be there."""

    log = Logger()

    def __init__(self, disk: IDisk, path: str, queues: ConsumeQueues) -> None:
        self._disk = disk
        self._path = path
        self._queues = queues
        self.table = queues.removed
        self.removing: set[QueueKey] = set()
        #: Writes pending changes of the table, on the worker; raises OSError. Until then the checkpoint must not
        #: advance: a start continues the offsets of the file, and must read all messages from there on.
        self.unsaved: Callable[[], None] | None = None

    def saved(self, save: Callable[[], None] | None) -> None:
        """Called when `save` is done; newer changes may be pending."""
        if self.unsaved is save:
            self.unsaved = None

    def load(self) -> None:
        """Read the file, if it exists. Raises OSError.

        An unreadable content is logged and ignored: removed queues come back, nothing else is lost.
        """
        if not self._disk.exists(self._path):
            return
        try:
            table, removing = parse_removed(self._disk.read(self._path))
        except ValueError as error:
            self.log.error("{path} is damaged, removed topics may come back: {why}", path=self._path, why=str(error))
            return
        for key, note in table.items():
            self.note(key, note)
        self.removing = removing

    def put(self, queue: ConsumeQueue, until: int, begins_at: int | None = None) -> None:
        """Add a queue in its present state, whose messages are below `until` in the log. If it is created again, its
        offsets begin at `begins_at`; if that is None, they continue."""
        key = queue.topic, queue.queue_id
        self.note(key, Removed(queue.next_offset if begins_at is None else begins_at, until))

    def note(self, key: QueueKey, removed: Removed) -> None:
        """Add a removed queue."""
        self.table.pop(key, None)
        self.table[key] = removed
        if removed.next_offset == 0:
            self._queues.former_end = max(self._queues.former_end, removed.until)
        while len(self.table) > REMOVED_MAX:
            del self.table[next(iter(self.table))]

    def forget_aged(self, log_min: int, live: Iterable[ConsumeQueue]) -> None:
        """Drop queues that were created again, if the log has no messages from before."""
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
    """Parse the result of `encode`: the table, and the queues that are being removed. Raises ValueError."""
    try:
        content = json.loads(data)
        return dict(map(_parse_row, content["queues"])), set(map(_parse_key, content["removing"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse_key(row: Any) -> QueueKey:
    topic, queue_id = row
    if not isinstance(topic, str) or not TOPIC_NAME.fullmatch(topic):
        raise ValueError(f"{topic!r} is not the name of a topic")
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

    :param run_note: runs the function that records a removal on the worker, while no consume queue is being synced;
        gets the removed queues that the checkpoint still counts, None if unknown.
    :param log_bounds: start and end of the log.
    :param has_pending: whether messages were dispatched whose entries are not written yet.
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
        has_pending: Callable[[], bool],
    ) -> None:
        self._queues = queues
        self._removed = removed
        self._disk = disk
        self._worker = worker
        self._run_note = run_note
        self._log_bounds = log_bounds
        self._has_pending = has_pending
        self._lock = DeferredLock()
        self._trashed = 0

    def remove_topics(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove topics, except those of the system; fires with those that existed.

        Fails with OSError if the disk refuses: topics that could not be removed are unchanged.
        """
        return self._run(lambda queue: queue.topic in names)

    def keep_only(self, names: Collection[str]) -> Deferred[list[str]]:
        """Remove all topics but these, those of the system and light queues, as cleanUnusedTopic does in Java."""
        return self._run(lambda queue: queue.topic not in names and not queue.topic.startswith(LMQ_PREFIX))

    def remove_empty_queues(self) -> Deferred[list[str]]:
        """Remove queues all of whose messages are gone from the log, as cleanExpiredConsumerQueue does in Java."""
        return self._run(lambda queue: queue.has_files and queue.min_offset == queue.max_offset == queue.next_offset)

    def renumber(self, names: Collection[str]) -> Deferred[list[str]]:
        """As `remove_topics`, where a Java master has removed them: if they are created again they begin at 0."""
        return self._run(lambda queue: queue.topic in names, begins_at=0)

    def follow(self, notes: Mapping[QueueKey, Removed]) -> Deferred[list[str]]:
        """Remove the queues that a master has removed, by its notes: messages from before are hidden, and the directory
        of a queue that has no others is deleted.

        All messages below each note's `until` must have been dispatched. Fires with the topics whose queues were
        deleted. Fails with OSError if the disk refuses: call again.
        """
        return self._lock.run(lambda: Deferred.fromCoroutine(self._follow(notes)))

    async def _follow(self, notes: Mapping[QueueKey, Removed]) -> list[str]:
        new = []
        for key, note in notes.items():
            known, queue = self._removed.table.get(key), self._queues.by_name.get(key)
            if (known is None or known.next_offset < note.next_offset) and not is_system_topic(key[0]):
                self._removed.note(key, note)
                new.append(key)
                if queue is not None:
                    queue.number_from(note.next_offset)
                    queue.begin_at(note.next_offset)
        if new:
            await self._save(())
        keys = set(new)
        return await self._remove(
            lambda queue: (
                (queue.topic, queue.queue_id) in keys
                and queue.min_offset == queue.max_offset == queue.next_offset
                and not self._has_pending()
            )
        )

    def stop(self) -> Deferred[None]:
        """Fires when no removal runs any more."""
        return self._lock.run(lambda: None)

    def _run(self, is_meant: Callable[[ConsumeQueue], bool], begins_at: int | None = None) -> Deferred[list[str]]:
        return self._lock.run(lambda: Deferred.fromCoroutine(self._remove(is_meant, begins_at)))

    async def _remove(self, is_meant: Callable[[ConsumeQueue], bool], begins_at: int | None = None) -> list[str]:
        queues = [queue for queue in self._queues if is_meant(queue) and not is_system_topic(queue.topic)]
        if self._removed.unsaved is not None:
            await self._save(None)
        if not queues:
            return []
        former = await self._note(queues, begins_at)
        # From here until the second note is written no queue is synced or saved.
        gone, error = self._put_away(queues, is_meant, former, begins_at)
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

    async def _note(self, queues: list[ConsumeQueue], begins_at: int | None) -> dict[QueueKey, Removed]:
        """Record on the disk that these queues are being removed; returns the table as it was."""
        removed = self._removed
        log_min, log_end = self._log_bounds()
        removed.forget_aged(log_min, set(self._queues).difference(queues))
        former = dict(removed.table)
        for queue in queues:
            removed.put(queue, log_end, begins_at)
            removed.removing.add((queue.topic, queue.queue_id))
        try:
            await self._save(queues)
        except OSError:
            removed.table.clear()
            removed.table.update(former)
            removed.removing.clear()
            self._owe()
            raise
        return former

    async def _save(self, queues: Collection[ConsumeQueue] | None) -> None:
        """Write the note, after syncing the names that it is about. Raises OSError: it stays pending."""
        save = self._owe()
        await self._run_note(save, queues)
        self._removed.saved(save)

    def _owe(self) -> Callable[[], None]:
        """Mark the note as pending: it is written before the checkpoint advances."""
        data = self._removed.encode()
        roots = self._queues.roots

        def save() -> None:
            _sync_names(self._disk, roots, [TRASH])
            self._removed.write(data)

        self._removed.unsaved = save
        return save

    def _put_away(
        self,
        queues: list[ConsumeQueue],
        is_meant: Callable[[ConsumeQueue], bool],
        former: Mapping[QueueKey, Removed],
        begins_at: int | None,
    ) -> tuple[list[ConsumeQueue], OSError | None]:
        """Detach queues that are still meant and move their directories to the trash; returns which, and why not the
        others, whose `former` notes hold again."""
        gone: list[ConsumeQueue] = []
        error: OSError | None = None
        _, log_end = self._log_bounds()
        for queue in queues:
            key = queue.topic, queue.queue_id
            try:
                if not is_meant(queue):  # it got messages since
                    self._restore(key, former)
                    continue
                for root in reversed(self._queues.roots):  # the extension first: a queue is useless without it
                    self._put_in_trash(root, *key)
            except OSError as failed:
                self.log.error("{path} cannot be removed: {error}", path=queue.directory, error=failed)
                self._restore(key, former)
                error = failed
            else:
                self._removed.put(queue, log_end, begins_at)
                self._close(self._queues.forget(queue))
                gone.append(queue)
            finally:
                self._removed.removing.discard(key)
        return gone, error

    def _restore(self, key: QueueKey, former: Mapping[QueueKey, Removed]) -> None:
        self._removed.table.pop(key, None)
        if key in former:
            self._removed.table[key] = former[key]

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
            self.log.error("queues of removed topics use disk space until the next start: {error}", error=error)


def _sync_names(disk: IDisk, roots: Iterable[str], names: Iterable[str]) -> None:
    """Sync names: in the directories of queues, and in the given ones below. Raises OSError."""
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
    """Finish the removals that a process had recorded when it ended. Raises OSError.

    A queue with newer messages was created again since, and stays. So does one whose newest entry is garbage: it is
    rebuilt from the offset in its note.
    """
    if _note_renumbered(queues, removed, ends_well):
        removed.write(removed.encode())
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
    # A deletion that is not synced may be undone by another crash, when it is not recorded any more.
    _sync_names(disk, queues.roots, sorted({topic for topic, _ in removed.removing}))
    removed.removing.clear()
    removed.write(removed.encode())


def lower_numbers(queues: ConsumeQueues, removed: RemovedQueues, log_end: int) -> None:
    """Limit removed queues to a log that ends at `log_end`, and their next offsets to what messages above it can have:
    records with a higher one count as corrupt. They are too high if the log lost its end, or was replaced. Raises
    OSError."""
    highest = log_end // RECORD_BYTES_MIN
    too_high = [key for key, note in removed.table.items() if note.next_offset > highest or note.until > log_end]
    if not too_high:
        return
    queues.former_end = min(queues.former_end, log_end)
    for key in too_high:
        note = removed.table[key]
        removed.note(key, Removed(min(note.next_offset, highest), min(note.until, log_end)))
        queue = queues.by_name.get(key)
        if note.next_offset > highest and queue is not None and queue.is_empty:
            queue.restart_at(highest)
            queues.dirty[queue] = None
    removed.write(removed.encode())


def restore_next_offsets(
    queues: ConsumeQueues, removed: RemovedQueues, former: Mapping[tuple[str, int], int], log_end: int
) -> list[tuple[str, int]]:
    """Make queues without a message, which lost their files after they assigned `former` offsets, continue these like
    removed queues; returns which ones. Called when the queues have all of the log. Raises OSError."""
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
    """Record the earlier removal of a queue that stays, which the later note had replaced."""
    begin = queue.search(lambda offset, size: not offset and size == BLANK_SIZE, queue.first_offset, queue.max_offset)
    del removed.table[queue.topic, queue.queue_id]
    queue.assume_begin(begin)
    if begin:
        removed.table[queue.topic, queue.queue_id] = Removed(begin, queue.entry(begin)[0])


def _note_renumbered(queues: ConsumeQueues, removed: RemovedQueues, ends_well: Callable[[ConsumeQueue], bool]) -> bool:
    """Record which removed queues a Java broker created again, beginning at 0; returns whether there are any."""
    is_changed = False
    for key, note in list(removed.table.items()):
        queue = queues.by_name.get(key)
        if queue is None or not note.next_offset or queue.end_of_last() <= note.until:
            continue
        if queue.max_offset > note.next_offset:  # its offsets continued, or it has more messages than before
            last_former = note.next_offset - 1
            if last_former < queue.first_offset or queue.entry_from_disk(last_former)[0] < note.until:
                continue
        if ends_well(queue):
            removed.note(key, note._replace(next_offset=0))
            queue.assume_begin(0)
            is_changed = True
    return is_changed
