"""The note of a store: what it says over kills, power cuts and damage."""

from __future__ import annotations

from random import Random
from struct import pack
from zlib import crc32

import attrs
import pytest
from hypothesis import given

from mqbroker.ha.group_keys import REPLICAS_MAX
from mqbroker.ha.member_note import NOTE_BYTES, MemberNote, NoteHeader, SeenInSync
from tests.numbers import numbers
from tests.store.simulation.disk import SimDisk

PATH = "/member"
NEW = NoteHeader(b"groupABC", b"n" * 16, 0, 3, 5, 77)


def opened(disk: SimDisk) -> MemberNote:
    return MemberNote.open(disk, PATH, attrs.evolve(NEW, name=b"o" * 16))


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    note = MemberNote.open(made, PATH, NEW)
    assert note.is_new
    note.close()
    return made


def test_it_says_what_was_written(disk: SimDisk) -> None:
    note = opened(disk)
    assert (note.is_new, note.header, note.committed, note.end) == (False, NEW, 0, 0)
    for generation in (1, 2, 3):
        note.write(attrs.evolve(NEW, generation=generation))
    note.moved(100, 200)
    note.moved(50, 150)
    assert (note.committed, note.end, note.is_dirty) == (100, 200, True)
    note.sync()
    assert not note.is_dirty
    note.close()
    again = opened(disk)
    assert (again.header.generation, again.committed, again.end) == (3, 100, 200)


def test_a_new_header_leaves_the_one_before_it(disk: SimDisk) -> None:
    note = opened(disk)
    last = NEW
    for generation in (1, 2, 3):
        header = attrs.evolve(NEW, generation=generation)
        note.write(header)
        data = disk.read(PATH)
        assert (last.encode() in data, header.encode() in data) == (True, True)
        last = header


def test_a_kill_loses_nothing_of_it(disk: SimDisk) -> None:
    note = opened(disk)
    note.moved(100, 200)
    again = opened(disk.killed(Random(1)))
    assert (again.committed, again.end) == (100, 200)


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_leaves_a_header_and_no_offset_that_never_was(disk: SimDisk, seed: int) -> None:
    rng = Random(seed)
    note = opened(disk)
    offsets = {0}
    for generation in range(1, 4):
        note.moved(generation * 100, generation * 100)
        offsets.add(generation * 100)
        disk.faults.end_in = rng.choice([None, None, 1])
        try:
            note.write(attrs.evolve(NEW, generation=generation))
        except BaseException:
            break
    again = opened(disk.crashed(rng))
    assert not again.is_new
    assert again.header.name == NEW.name
    assert {again.committed, again.end} <= offsets


@pytest.mark.parametrize(
    "data", [b"", b"\0" * NOTE_BYTES, b"\xff" * NOTE_BYTES, b"MQBmem\x00\x02".ljust(NOTE_BYTES, b"\0"), b"x" * 100]
)
def test_what_is_no_note_is_put_away_and_another_store_begins(disk: SimDisk, data: bytes) -> None:
    disk.replace(PATH, [data])
    note = opened(disk)
    assert (note.is_new, note.header.name) == (True, b"o" * 16)
    assert (note.committed, note.end) == (0, 0)


def test_what_is_about_to_be_cut_off_counts_no_more(disk: SimDisk) -> None:
    note = opened(disk)
    note.moved(100, 300)
    note.note_durable(250)
    note.lower(200)
    again = opened(disk.crashed(Random(1)))
    assert (again.committed, again.end, again.durable) == (100, 200, 200)


def test_numbers_that_no_log_has_are_none(disk: SimDisk) -> None:
    for header in (attrs.evolve(NEW, generation=-1), attrs.evolve(NEW, replica_id=-3), attrs.evolve(NEW, epoch=-1)):
        assert NoteHeader.decode(header.encode()) is None
    assert NoteHeader.decode(NEW.encode()[:-1]) is None


def test_the_in_sync_set_that_was_seen_stays(disk: SimDisk) -> None:
    note = opened(disk)
    assert note.seen == SeenInSync()
    for members in (range(1, REPLICAS_MAX + 1), [2**63 - 1], [3, 1]):
        note.note_seen(SeenInSync(5, 70, frozenset(members)))
        assert note.seen == SeenInSync(5, 70, frozenset(members))
    note.moved(100, 200)
    again = opened(disk.killed(Random(1)))
    assert (again.seen, again.committed, again.header) == (SeenInSync(5, 70, frozenset([1, 3])), 100, NEW)


@given(numbers(0, 43), numbers(1, 255))
def test_an_in_sync_set_that_is_damaged_was_not_seen(at: int, change: int) -> None:
    data = bytearray(SeenInSync(5, 70, frozenset([1, 3])).encode().ljust(1024, b"\0"))
    data[at] ^= change
    assert SeenInSync.decode(bytes(data)) == SeenInSync()


@pytest.mark.parametrize("count", [0, REPLICAS_MAX + 1, 2**62, -1])
def test_an_in_sync_set_of_no_size_that_there_is_was_not_seen(count: int) -> None:
    data = pack(">qqq", 5, 70, count) + bytes(8 * REPLICAS_MAX)
    assert SeenInSync.decode(data + crc32(data).to_bytes(4, "big") + bytes(64)) == SeenInSync()
