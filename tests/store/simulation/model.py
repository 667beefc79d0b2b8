"""What a store must hold, by its promises: the messages that were appended, and which of them may go when."""

from __future__ import annotations

from collections import Counter

import attrs

from mqbroker.wire.codes import SysFlag
from mqbroker.wire.names import LMQ_PREFIX
from mqbroker.wire.properties import DISPATCH_MARK
from mqbroker.wire.record import RECORD_BYTES_MIN, NewMessage

SLACK_S = 0.000_001


class Violation(AssertionError):
    """A promise that was broken; `invariant` names it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def require(holds: bool, invariant: str, what: str) -> None:
    if not holds:
        raise Violation(invariant, what)


@attrs.define(eq=False)
class Entry:
    """An appended message. `exposed_s` and `waiting_s`: what the model's clocks said then, or when it was committed."""

    message: NewMessage
    record: bytes
    start: int
    queue_offset: int
    store_ms: int
    exposed_s: float
    waiting_s: float
    is_durable: bool = False
    is_rotten: bool = False
    is_committed: bool = False  # it is in the log's file, and what readers see
    is_gone: bool = False  # it aged, or had to make room
    removed_from: set[tuple[str, int]] = attrs.field(factory=set)  # queues that were removed with it, or may have been

    def is_gone_from(self, queue: tuple[str, int]) -> bool:
        return self.is_gone or queue in self.removed_from

    @property
    def end(self) -> int:
        return self.start + len(self.record)

    @property
    def queue(self) -> tuple[str, int]:
        return self.message[0].decode(), self.message[1]

    @property
    def places(self) -> list[tuple[tuple[str, int], int]]:
        """Queues and the offsets it has in them: its own, and those that it names."""
        if not self.is_queued:
            return []
        found = {self.queue: self.queue_offset}
        if DISPATCH_MARK in self.message[9]:
            properties = self.record[self.record.index(self.message[9]) :]
            pairs = dict(pair.partition(b"\x01")[::2] for pair in properties.split(b"\x02"))
            offsets = pairs[b"INNER_MULTI_QUEUE_OFFSET"].split(b",")
            for name, offset in zip(pairs[b"INNER_MULTI_DISPATCH"].decode().split(","), offsets, strict=True):
                found.setdefault((name, 0 if name.startswith(LMQ_PREFIX) else self.message[1]), int(offset))
        return list(found.items())

    @property
    def is_queued(self) -> bool:
        return not self.message[3] & SysFlag.TRANSACTION_PREPARED

    @property
    def is_indexed(self) -> bool:
        return self.message[3] & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK

    @property
    def keys(self) -> list[str]:
        found = []
        for pair in self.message[9].decode("utf-8", "replace").split("\x02"):
            name, _, value = pair.partition("\x01")
            if name in ("UNIQ_KEY", "KEYS"):
                found += value.split(" ")
        return found


@attrs.define(eq=False)
class SyncSpan:
    """When a sync of the log was asked for, and when the store heard of its end; None where it did not yet."""

    begin_s: float
    end_s: float | None = None
    is_last_place: bool = False  # no other could begin before one ended
    is_note: bool = False  # it syncs no file, but notes in the checkpoint that what was synced is not to be doubted

    def seconds(self, now_s: float) -> float:
        return (now_s if self.end_s is None else self.end_s) - self.begin_s


@attrs.define
class Model:
    """`exposed_s` is the time that the process has run: what was appended longer ago by it than the flush interval and
    one sync must be on the disk; `sync_spans` has when syncs of the log began and ended. `waiting_s` is the same but
    stands while the worker has something to do, and is what commits go by. `unsynced_may_go` after a sync failed: what
    was not acknowledged as durable may be lost by any end of the process. The log begins at `floor`; the names of
    segments below `removed` were removed, though that may not be on the disk. `caches_lost` once consume queues were
    deleted: those without a message begin at 0 again. `spoilt`: files as they were made while the store was stopped.
    What is not committed may be lost by any end, but is after `commit_s`. `removals` counts the removals of a topic
    that are under way: all that there is may go; messages with offsets below `removed_below` were removed; those below
    `numbered` are not given again, though a crash took the messages. `stopped_at`: where queues ended at the last
    orderly stop, which they may go on from though the newest messages rotted and were forgotten since. `files_from`:
    where the first files of queues began that the last end left: where those before are lost, queues may go on from
    there. `keys_lost` once a page of the index was spoilt: queries by key may find less, though nothing else.
    """

    flush_s: float
    entries: list[Entry] = attrs.field(factory=list)
    queues: dict[tuple[str, int], list[Entry]] = attrs.field(factory=dict)
    in_flight: list[NewMessage] = attrs.field(factory=list)
    exposed_s: float = 0.0
    waiting_s: float = 0.0
    sync_spans: list[SyncSpan] = attrs.field(factory=list)
    unsynced_may_go: bool = False
    has_rot: bool = False
    last_ms: int = 0
    floor: int = 0
    removed: int = 0
    caches_lost: bool = False
    keys_lost: bool = False
    spoilt: dict[str, bytes] = attrs.field(factory=dict)
    removals: Counter[str] = attrs.field(factory=Counter)
    removed_below: dict[tuple[str, int], int] = attrs.field(factory=dict)
    numbered: dict[tuple[str, int], int] = attrs.field(factory=dict)
    stopped_at: dict[tuple[str, int], int] = attrs.field(factory=dict)
    files_from: dict[tuple[str, int], int] = attrs.field(factory=dict)
    commit_s: float = 0.0

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else self.floor

    def let_go(self, floor: int) -> None:
        """Forget what is below `floor`; queues keep their entries, whose places are numbers."""
        count = next((i for i, entry in enumerate(self.entries) if entry.start >= floor), len(self.entries))
        for entry in self.entries[:count]:
            entry.is_gone = True
        del self.entries[:count]
        self.floor = floor

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.last_ms = entry.store_ms
        for queue, offset in entry.places:
            self._pad(queue, offset, entry).append(entry)
            if self.removals[queue[0]]:
                entry.removed_from.add(queue)
                self.numbered[queue] = max(offset + 1, self.numbered.get(queue, 0))

    def commit(self, end: int) -> None:
        """All below `end` is in the log's file. Raises Violation where something waits too long."""
        for entry in reversed(self.entries):
            if entry.is_committed:
                break
            if entry.end <= end:
                entry.is_committed = True
                entry.exposed_s = self.exposed_s
            else:
                waited_s = self.waiting_s - entry.waiting_s
                what = f"{entry.start} after {waited_s:.3f} s"
                require(waited_s <= self.commit_s + SLACK_S, "what is appended is committed in time", what)

    def next_offsets(self, queue: tuple[str, int]) -> range:
        """What the next offset of a queue may be: what rotted at its end may have been forgotten."""
        entries = self.queues.get(queue, [])
        lowest = len(entries)
        while lowest and (entries[lowest - 1].is_rotten or (entries[lowest - 1].is_gone and self.caches_lost)):
            lowest -= 1
        numbers = (known.get(queue, 0) for known in (self.numbered, self.stopped_at, self.files_from))
        highest = max(len(entries), *numbers)
        return range(lowest, highest + 1)

    def begin_removal(self, topic: str) -> dict[tuple[str, int], int]:
        """From now on what queues of a topic have may be gone; returns how many messages each is known to have had: of
        those that rotted at its end nobody may know."""
        counts = {queue: self.next_offsets(queue).start for queue in self.queues if queue[0] == topic}
        for queue in counts:
            entries = self.queues[queue]
            self.numbered[queue] = max(len(entries), self.numbered.get(queue, 0))
            for entry in entries:
                entry.removed_from.add(queue)
        self.removals[topic] += 1
        return counts

    def end_removal(self, topic: str, counts: dict[tuple[str, int], int], is_done: bool) -> None:
        """One removal less is under way; `is_done` where those that `begin_removal` counted are sure to be."""
        self.removals[topic] -= 1
        for queue, count in counts.items():
            if is_done:
                self.removed_below[queue] = max(count, self.removed_below.get(queue, 0))

    def forget_numbers_above(self, log_end: int) -> None:
        """The log ends here now: numbers of removed messages that none below can have had are of such as it lost, and
        are given again, since none above could have a higher one either."""
        highest = log_end // RECORD_BYTES_MIN
        self.removed_below = {queue: min(below, highest) for queue, below in self.removed_below.items()}

    def _pad(self, queue: tuple[str, int], offset: int, entry: Entry) -> list[Entry]:
        """The queue, in which numbers below `offset` are of messages that a crash took, and will not be given again."""
        entries = self.queues.setdefault(queue, [])
        while len(entries) < offset:
            entries.append(attrs.evolve(entry, is_gone=True, removed_from={queue}))
        return entries

    def give_up(self, entry: Entry) -> None:
        """Forget an entry that is the newest of the log."""
        assert self.entries[-1] is entry
        self.entries.pop()
        for name, _ in entry.places:
            queue = self.queues.get(name, [])
            if queue and queue[-1] is entry:  # one that rotted may have been forgotten before
                queue.pop()

    def acknowledge(self, end: int) -> list[Entry]:
        """All below `end` is durable: returns those that were not known to be."""
        fresh = []
        for entry in reversed(self.entries):
            if entry.is_durable:
                break
            if entry.end <= end:
                entry.is_durable = True
                fresh.append(entry)
        return fresh

    def may_lose(self, entry: Entry, end: str) -> bool:
        """Whether an end of the process ("stop", "kill") or of the machine ("power") may take this message away."""
        if entry.is_rotten:
            return True
        if entry.is_durable:
            return False
        if self.unsynced_may_go or not entry.is_committed:
            return True
        return end == "power" and self.exposed_s - entry.exposed_s <= self._unsynced_s_max(entry)

    def _unsynced_s_max(self, entry: Entry) -> float:
        """How long a message may be in memory only, by the syncs that there were since it came."""
        spans = [span for span in self.sync_spans if span.end_s is None or span.end_s > entry.exposed_s]
        slowest_s = max((span.seconds(self.exposed_s) for span in spans if not span.is_note), default=0.0)
        begins_s = self.flush_s + (slowest_s if any(span.is_last_place for span in spans) else 0)
        # What recovery would doubt is noted in the checkpoint once it is on the disk; that may fail, and is repeated.
        notes_s = sum(self.flush_s + span.seconds(self.exposed_s) for span in spans if span.is_note)
        return begins_s + slowest_s + notes_s + SLACK_S

    def check_exposure(self, flushed: int) -> None:
        """What is above `flushed` has not been there for too long. Raises Violation."""
        for entry in self.entries:
            if entry.end > flushed and entry.is_committed and not entry.is_durable:
                exposed_s = self.exposed_s - entry.exposed_s
                what = f"{entry.start} after {exposed_s:.3f} s"
                require(exposed_s <= self._unsynced_s_max(entry), "what is stored is synced in time", what)
                return
