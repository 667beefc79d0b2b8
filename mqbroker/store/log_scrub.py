"""Log scrubbing: finds damage that the disk did to the log after it was written: zeros, older content, bit rot.

A start reads the first record of each segment, and the records at a few offsets that were marked while the log was
written. While the broker runs, the whole log is read over and over, slowly. Damaged ranges are hidden from readers, and
recorded until they can be read again:

    segments.json    {"marks": {"<offset>": <CRC32>, ...}, "damaged": [<offset>, ...], "at": <offset>}

The CRC covers the first bytes of the record at the offset; `at` is where scrubbing continues.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import attrs
import orjson
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.repeated_call import RepeatedCall
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.disk import IDisk, Outage, Unreadable
from mqbroker.store.logscan import Damage, Filler, Nothing, Scanned, find_next, scan
from mqbroker.store.recovery import Segments
from mqbroker.store.worker import IWorker
from mqbroker.wire.record import RECORD_BYTES_MIN

log = Logger()

TICK_SECONDS = 1.0
#: A short log is not read again before.
PASS_SECONDS = 60.0
#: A place is marked whenever this part of a segment, one fourth, was written.
MARKED_PART = 4
#: Damaged places that are remembered; those beyond are found again.
DAMAGED_MAX = 1000


@attrs.define
class _Looked:
    """What the worker has read: marks, damaged ranges, and where the next look begins."""

    at: int
    marks: dict[int, int] = attrs.field(factory=dict)
    damages: list[Damage] = attrs.field(factory=list)


class LogScrub:
    """Looks at an open log.

    :param flushed: returns the offset below which the log is on the disk.
    :param path: of the file with marks, which nothing but this writes.
    :param report: called with each damaged range.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        flushed: Callable[[], int],
        disk: IDisk,
        path: str,
        worker: IWorker,
        clock: IReactorTime,
        report: Callable[[Damage], None],
    ) -> None:
        self._log, self._flushed, self._report = commit_log, flushed, report
        self._disk, self._path, self._worker, self._clock = disk, path, worker, clock
        #: None: nothing is looked at.
        self.bytes_a_second: int | None = None
        self._marks: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._at = 0
        self._is_dirty = False
        #: Where a record begins, or will; where one began before; up to where there are marks.
        self._begins_at = self._began_at = self._marked_to = commit_log.readable_end
        self._next_pass_at = clock.seconds()
        self._reading = Outage(
            "the log is not scanned for damage (trying again)", "the log is scanned for damage again"
        )
        self._loop = RepeatedCall(self._tick, clock=clock)
        self._working: Deferred[None] = succeed(None)

    # --- at a start

    def look(self, known: Iterable[Damage], *, is_again: bool) -> None:
        """Check some records of each segment, and report those that changed. May wait. Raises OSError.

        :param known: damaged ranges that were found when the log was opened.
        :param is_again: check only ranges that were damaged before.
        """
        self._load()
        begin, end, size = self._log.min_offset, self._log.readable_end, self._log.segment_bytes
        marked = {at for at in self._marks if at >= begin and at + RECORD_BYTES_MIN <= end}
        damaged = {at for at in self._damaged | {damage.start for damage in known} if begin <= at < end}
        if len(marked) < len(self._marks) or not self._damaged <= damaged:  # what was cut off is written anew
            self._marks, self._damaged = {at: crc for at, crc in self._marks.items() if at in marked}, damaged
            self._disk.replace(self._path, [self._content()])
        self._damaged = set()
        for place in sorted(damaged if is_again else damaged | marked | {*range(begin, end, size)}):
            if (damage := self._look_at(place, self._marks.get(place))) is not None:
                self._damaged.add(damage.start)
                self._report(damage)
        self._is_dirty = bool(damaged or self._damaged)

    def _look_at(self, place: int, crc: int | None) -> Damage | None:
        segment = self._segment_of(place)
        item = _item_at(segment, place)
        if isinstance(item, Nothing):
            return _damage_at(segment, place, self._log.readable_end, item)
        if crc is None or not isinstance(item, Scanned) or _crc_at(segment, place) == crc:
            return None
        why = "another record than the one that was written there"
        return Damage(segment.path_of(place), place, place + item.size, why)

    def _load(self) -> None:
        try:
            said = orjson.loads(self._disk.read(self._path))
            marks = {int(place): int(crc) for place, crc in said["marks"].items()}
            damaged, at = {int(place) for place in said["damaged"]}, int(said["at"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warn("{path} cannot be read and is rewritten: {why}", path=self._path, why=str(error))
            return
        # A segment begins with a record, whatever was cut off meanwhile.
        self._marks, self._damaged, self._at = marks, damaged, at - at % self._log.segment_bytes

    def _content(self) -> bytes:
        begin = self._log.min_offset  # what was deleted is forgotten
        self._marks = {place: crc for place, crc in self._marks.items() if place >= begin}
        self._damaged = {place for place in self._damaged if place >= begin}
        marks = {str(place): crc for place, crc in self._marks.items()}
        return orjson.dumps({"marks": marks, "damaged": sorted(self._damaged)[:DAMAGED_MAX], "at": self._at})

    # --- while the broker runs

    def start(self) -> None:
        self._loop.start(TICK_SECONDS, now=False)

    def stop(self) -> Deferred[None]:
        """Save what was found. Fires when all reads and writes have ended."""
        if self._loop.running:
            self._loop.stop()
        stopped: Deferred[None] = Deferred()
        self._working.addBoth(lambda _: stopped.callback(None))
        return stopped.addCallback(lambda _: self._save())

    def _save(self) -> Deferred[None] | None:
        if not self._is_dirty:
            return None
        content, self._is_dirty = self._content(), False
        return self._worker.run(lambda: self._disk.replace(self._path, [content])).addErrback(self._failed)

    def confirm(self, damage: Damage, then: Callable[[Damage], None]) -> None:
        """Read a range that was reported once more; if it holds no record then either, remember it, and call `then`."""
        place = damage.start
        if self._log.min_offset <= place < self._log.readable_end:
            segment = self._segment_of(place)
            read = self._worker.run(lambda: _is_none(segment, place))

            def was_read(is_damaged: bool) -> None:
                if is_damaged:
                    self._damaged.add(place)
                    self._is_dirty = True
                    then(damage)

            read.addCallbacks(was_read, self._failed)

    def _tick(self) -> Deferred[None] | None:
        self._move_on()
        marks, stretch = self._new_marks(), self._stretch()
        content, self._is_dirty = self._content() if self._is_dirty else None, False

        def work() -> _Looked:
            if content is not None:
                self._disk.replace(self._path, [content])
            looked = _Looked(self._at) if stretch is None else self._read(*stretch)
            for each in marks:
                looked.marks |= _marks_of(*each)
            return looked

        if not marks and stretch is None and content is None:
            return None
        working = self._working = self._worker.run(work).addCallbacks(self._looked, self._failed)
        if stretch is not None:
            working.addErrback(self._skip, stretch[2])
        return working

    def _failed(self, failure: Failure) -> None:
        self._is_dirty = True
        failure.trap(OSError)  # type: ignore[no-untyped-call]
        self._reading.failed(failure.getErrorMessage())

    def _skip(self, failure: Failure, end: int) -> Failure:
        """After an unexpected failure, which the loop logs: the rest of the segment is read in the next pass, so that
        one record does not keep the others from being read."""
        self._at = end
        return failure

    def _move_on(self) -> None:
        """Start over when the end is reached, or the segment was deleted."""
        now = self._clock.seconds()
        if self._at < self._log.min_offset:
            self._at = self._log.min_offset
        elif self._at >= self._flushed() and now >= self._next_pass_at:
            self._at, self._next_pass_at = self._log.min_offset, now + PASS_SECONDS

    def _new_marks(self) -> list[tuple[Segments, int]]:
        """The places to be marked now: of records that are on the disk."""
        place, end, size = self._begins_at, self._log.readable_end, self._log.segment_bytes
        if self._flushed() < place + RECORD_BYTES_MIN:
            return []
        # What is at the first of them may be the rest of a segment.
        wanted = [place] if place // size == end // size else [place, self._began_at]
        self._began_at, self._begins_at = place, end
        if len(wanted) == 1 and place - self._marked_to < size // MARKED_PART:
            return []
        self._marked_to = place
        return [(self._segment_of(each), each) for each in wanted if each >= self._log.min_offset]

    def _stretch(self) -> tuple[Segments, int, int] | None:
        """The next range to read: within one segment, and durable."""
        end, size = self._flushed(), self._log.segment_bytes
        if not self.bytes_a_second or self._at >= end:
            return None
        return self._segment_of(self._at), self._at, min(end, self._at - self._at % size + size)

    def _segment_of(self, offset: int) -> Segments:
        """For the worker, which must not ask the log: segments may be deleted meanwhile."""
        file, at = self._log.place(offset)
        return Segments([file], offset - at, file.size)

    def _read(self, segment: Segments, at: int, end: int) -> _Looked:
        looked, last, most = _Looked(at), -1, (self.bytes_a_second or 0) * TICK_SECONDS
        try:
            for item in scan(segment, at, end, end - at):
                if isinstance(item, Damage):
                    looked.damages.append(item)
                    looked.at = item.end
                else:
                    looked.at, last = item.end, item.last
                if looked.at - at >= most:
                    return looked
        except Unreadable:
            _read_one_by_one(segment, looked, end)
            return looked
        except ValueError:  # it was deleted meanwhile, and closed
            return _Looked(segment.end)
        looked.at = end
        if end == segment.end and last >= 0:
            looked.marks = _marks_of(segment, last)
        return looked

    def _looked(self, looked: _Looked) -> None:
        self._reading.worked()
        begin, size = self._log.min_offset, self._log.segment_bytes
        new = {place: crc for place, crc in looked.marks.items() if self._marks.get(place) != crc}
        if new or looked.at // size != self._at // size:
            self._is_dirty = True
        self._marks |= new
        self._at = looked.at
        for damage in looked.damages:
            if damage.start >= begin:
                self._report(damage)


def _item_at(segment: Segments, place: int) -> Scanned | Filler | Nothing:
    """The bytes at an offset; empty if the disk cannot read them. Raises OSError for other reasons."""
    try:
        return segment.scan_at(place)
    except Unreadable as error:
        return Nothing(False, str(error))


def _damage_at(segment: Segments, place: int, end: int, item: Nothing) -> Damage:
    following = find_next(segment.files[0], place - segment.first_offset, segment.first_offset)
    after = segment.end if following is None else following.physical_offset
    return Damage(segment.path_of(place), place, min(after, end), item.why or "zeros, where a record was")


def _read_one_by_one(segment: Segments, looked: _Looked, end: int) -> None:
    """Go on to the end, or behind the first range without a record."""
    while looked.at < end:
        item = _item_at(segment, looked.at)
        if isinstance(item, Nothing):
            damage = _damage_at(segment, looked.at, end, item)
            looked.damages.append(damage)
            looked.at = damage.end
            return
        looked.at += item.size


def _crc_at(segment: Segments, place: int) -> int:
    file, at = segment.place(place)
    return zlib.crc32(file.view[at : at + RECORD_BYTES_MIN])


def _is_none(segment: Segments, place: int) -> bool:
    """Whether there is no valid record at an offset. Raises OSError."""
    try:
        return isinstance(_item_at(segment, place), Nothing)
    except ValueError:  # it was deleted meanwhile, and closed
        return False


def _marks_of(segment: Segments, place: int) -> dict[int, int]:
    """The mark of the record at an offset; None without a valid record. Raises OSError."""
    try:
        return {place: _crc_at(segment, place)} if isinstance(_item_at(segment, place), Scanned) else {}
    except ValueError:  # it was deleted meanwhile, and closed
        return {}
