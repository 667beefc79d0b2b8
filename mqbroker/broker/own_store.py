"""Whether the store of a broker in a group is complete: its log has all messages that this broker ever acknowledged.

It is incomplete after a power cut without synchronous flushes, on an empty disk, and if the store, its log or its
tables were replaced or restored from an older copy. The file `lossy` in the store records this. It is written before
anything else, and removed once the broker has followed a master and has all of its messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import orjson
from twisted.logger import Logger

from mqbroker.ha.candidacy import Holdings
from mqbroker.ha.epochs import EpochHistory
from mqbroker.ha.group_keys import Conflict, GroupError, Identity
from mqbroker.ha.member_note import MemberNote, NoteHeader, SeenInSync
from mqbroker.store.disk import IDisk
from mqbroker.store.layout import StorePaths
from mqbroker.store.logscan import Damage

log = Logger()

LOST_POWER = "its machine lost power or crashed while it ran"
_MARK_BYTES = 512


class OwnStore:
    """The store of a broker. Methods that write raise OSError.

    :param group: a digest of the group's name.
    :param randbytes: returns unguessable random bytes.
    """

    def __init__(
        self, disk: IDisk, paths: StorePaths, group: bytes, replica_id: int, randbytes: Callable[[int], bytes]
    ) -> None:
        self._disk, self._paths, self._randbytes = disk, paths, randbytes
        self._group, self._replica_id = group, replica_id
        self._mark_path = os.path.join(paths.root, "lossy")
        self._note: MemberNote | None = None
        self._log_end: Callable[[], int] = lambda: 0
        self.history = EpochHistory()
        self.why_not_whole = ""
        #: Ranges of the log that hold no record.
        self.gaps: Sequence[Damage] = ()
        #: The log has all that was acknowledged, once it ends there: the master's did when they were compared.
        self.whole_at: int | None = None
        #: Whether this start was compared with the last one that etcd knows of, and counted.
        self.has_begun = False
        #: With the master that was compared last.
        self.conflict: Conflict | None = None

    # --- at the start

    def look_for_power_cut(self) -> None:
        """Called before the store is opened, where not all that is acknowledged is on the disk."""
        disk, abort = self._disk, self._paths.abort
        if not disk.exists(abort):  # it was stopped in order, or is new
            return
        boot, found = disk.boot_id(), disk.read(abort)
        # An empty one is left by a log that was cut back, on a machine that has boot ids.
        if (not boot or found not in (boot, b"")) and not self._read_mark():
            self._mark(LOST_POWER)

    def open(self, history: EpochHistory, log_end: Callable[[], int], gaps: Sequence[Damage] = ()) -> None:
        """Called when the store is open: compare its log and its tables with its note. `gaps`: ranges of the log that
        were found to hold no record."""
        self.history, self._log_end, self.whole_at, self.has_begun = history, log_end, None, False
        self.why_not_whole = self._read_mark()
        new = NoteHeader(self._group, self._randbytes(16), 0, self._replica_id, history.last, self.history.lease)
        note = self._note = MemberNote.open(self._disk, os.path.join(self._paths.root, "member"), new)
        why = self._why_changed(note, log_end())
        self.gaps = gaps
        # A power cut leaves none: what was not on the disk then is cut off when the log is read back.
        if not why and gaps:
            why = why_damaged(gaps)
        if why:
            self.lose(why)

    def _why_changed(self, note: MemberNote, end: int) -> str:
        header, had = note.header, max(note.end, note.committed)
        if header.group != self._group:
            return "it is a copy of another group's store"
        if header.replica_id != self._replica_id:
            return f"it is a copy of the store of broker {header.replica_id}"
        # A power cut may have taken the end of the log, but nothing that was on the disk.
        if end < (note.durable if self.has_lost_power else had):
            return (
                f"its log ends at {end}, and had {had} before: it was replaced, emptied or restored from an older copy"
            )
        newest = self.history.last, self.history.lease
        if newest[0] < header.epoch or (newest[0] == header.epoch and newest != (header.epoch, header.lease)):
            return f"its epochs.json ends with epoch {newest[0]}, and had {header.epoch} before"
        if note.is_new and self.history.epochs and self.history.epochs[-1].start > 0 and not end:
            return "its log is gone"
        return ""

    def _next_generation(self, name: bytes) -> None:
        generation = self.note.header.generation + 1
        header = NoteHeader(self._group, name, generation, self._replica_id, self.history.last, self.history.lease)
        self.note.write(header)

    def close(self) -> None:
        """Called before the store is closed."""
        note, self._note = self._note, None
        if note is not None:
            try:
                note.sync()
            except OSError as error:
                log.error("the file that identifies the store cannot be written: {why}", why=str(error))
            note.close()

    # --- identity

    @property
    def note(self) -> MemberNote:
        if self._note is None:
            raise GroupError("the store is closed at the moment")
        return self._note

    @property
    def is_open(self) -> bool:
        """Whether the note is open: while the broker stops and starts it is not."""
        return self._note is not None

    @property
    def is_new(self) -> bool:
        """Whether this start found no note."""
        return self.note.is_new

    @property
    def identity(self) -> Identity:
        header = self.note.header
        return Identity(header.name.hex(), header.generation, self.committed, self.history.last)

    @property
    def committed(self) -> int:
        """The log may not be truncated below this offset: the group has acknowledged it."""
        return min(self.note.committed, self._log_end())

    @property
    def has_lost_power(self) -> bool:
        return self.why_not_whole == LOST_POWER

    @property
    def holdings(self) -> Holdings:
        """What the store has now."""
        self.look()
        return Holdings(
            self.history,
            self._log_end(),
            self.committed,
            self.why_not_whole,
            self.has_lost_power,
            self.conflict,
            bool(self.gaps),
        )

    @property
    def seen(self) -> SeenInSync:
        """The in-sync set of the log's newest epoch, as this broker saw it last."""
        return self.note.seen

    def note_seen(self, seen: SeenInSync) -> None:
        if seen != self.note.seen:
            self.note.note_seen(seen)

    def new_nonce(self) -> str:
        """An unguessable text."""
        return self._randbytes(16).hex()

    # --- what changes

    def begin(self) -> None:
        """Count this start, once it was compared with the last one that etcd knows of. Not before: a copy of the store
        from before that must not catch up with it."""
        if not self.has_begun:
            self.has_begun = True
            self._next_generation(self.note.header.name)

    def lose(self, why: str) -> None:
        """Mark the store as incomplete, and then give it a new identity, so that the group does not take it for the
        former."""
        self._mark(why)
        self._next_generation(self._randbytes(16))

    def saved(self, history: EpochHistory) -> None:
        """Called when the history of epochs was written to its file."""
        self.history = history
        self._next_generation(self.note.header.name)

    def moved(self, committed: int, end: int) -> None:
        """Note the commit point, and up to where this broker has acknowledged the log. Hot."""
        if self._note is not None:
            self._note.moved(committed, end)

    def look(self) -> None:
        """Trust the log again, once it has all that its master had."""
        if self.why_not_whole and self.whole_at is not None and self._log_end() >= self.whole_at:
            self.be_whole()

    def be_whole(self) -> None:
        """The log has all that the group has acknowledged."""
        self.conflict = None
        if self.why_not_whole:
            self.note.forget_above(self._log_end())
            self._disk.remove(self._mark_path)
            self._disk.sync_directory(self._paths.root)
            self.why_not_whole = ""
            log.info("the log has all that the group has acknowledged")

    def _read_mark(self) -> str:
        if not self._disk.exists(self._mark_path):
            return ""
        try:
            return str(orjson.loads(self._disk.read(self._mark_path))["why"])
        except (ValueError, KeyError, TypeError):  # before it said why, there was one reason
            return LOST_POWER

    def _mark(self, why: str) -> None:
        self.why_not_whole = why
        self._disk.write(self._mark_path, orjson.dumps({"why": why}).ljust(_MARK_BYTES))
        log.warn(
            "this broker's store is incomplete: {why}. It cannot be elected, and does not count as in sync, until it "
            "has copied the missing messages from a master of its group",
            why=why,
        )


def why_damaged(gaps: Sequence[Damage]) -> str:
    """Why a store with these gaps is not whole; empty without any."""
    if not gaps:
        return ""
    return f"its log has no message from {gaps[0].start} to {gaps[0].end}: a file of it was damaged or set back"
