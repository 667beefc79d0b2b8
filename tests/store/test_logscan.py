"""Runs of records: what is read many at a time is what is read one by one."""

from __future__ import annotations

import itertools
import mmap
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from zope.interface import implementer

from mqbroker.store import logscan
from mqbroker.store.disk import IMappedFile
from mqbroker.store.logscan import (
    SECTOR_BYTES,
    Row,
    Run,
    Scanned,
    before_lost_sector,
    find_bytes,
    leaves_doubt,
    scan_at,
    scan_run,
)
from mqbroker.wire.properties import encode_properties
from mqbroker.wire.record import Record, encode_record

BASE = 3 * 1024 * 1024
V4 = ("127.0.0.1", 10911)
V6 = ("2001:db8::1", 10911)


@implementer(IMappedFile)
class Bytes:  # type: ignore[misc]
    """A segment, as far as it is read."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.buffer = mmap.mmap(-1, self.size)
        self.buffer[:] = data
        self.view = memoryview(self.buffer)

    def is_resident(self, offset: int, size: int) -> bool:
        return True


def records(changes: list[dict[str, Any]]) -> bytes:
    data = b""
    for number, change in enumerate(changes):
        record = Record(  # size and CRC are computed
            topic="T",
            queue_id=number % 3,
            flag=0,
            queue_offset=number,
            physical_offset=BASE + len(data),
            sys_flag=0,
            born_timestamp=1_795_255_600_000,
            born_host=V4,
            store_timestamp=1_795_255_600_000 + number % 4,
            store_host=V4,
            reconsume_times=0,
            prepared_offset=0,
            store_size=0,
            body_crc=0,
            body=b"body %d" % number,
            properties={"UNIQ_KEY": f"{number}"},
        )
        data += encode_record(attrs.evolve(record, **change))
    return data


MIXED = records(
    [
        {},
        {},
        {"topic": "Another"},
        {"body": b""},
        {"properties": {}},
        {"body": b"", "properties": {}, "sys_flag": 4},
        {"body": bytes(100)},
        {"born_host": V6},
        {"store_host": V6},
        {"queue_id": 2**31 - 1},
        {"properties": {"k": "v" * 200}},
        {},
        {},
    ]
)


def one_by_one(file: Bytes, end: int) -> list[Row]:
    rows: list[Row] = []
    at = 0
    while at < end:
        item = scan_at(file.view, at, BASE + at)
        if not isinstance(item, Scanned):
            break
        rows.append(item)
        at += item.size
    return rows


def in_runs(file: Bytes, end: int, count: int = logscan.RUN_RECORDS) -> list[Row]:
    rows: list[Row] = []
    at = 0
    while True:
        run = scan_run(file, at, BASE, end, count)
        assert run.newest_ms == max((row[6] for row in run.rows), default=0)
        assert len(run.rows) <= count
        rows += run.rows
        if not run.rows:
            assert run.end == BASE + at
            return rows
        at = run.end - BASE
        assert at == rows[-1][3] + rows[-1][4] - BASE


@pytest.mark.parametrize("run_bytes", [100, 333, 4096, 1 << 17])
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_records_of_all_kinds(monkeypatch: pytest.MonkeyPatch, run_bytes: int, count: int) -> None:
    monkeypatch.setattr(logscan, "RUN_BYTES", run_bytes)
    for room in (0, 1, 90, 5000):
        file = Bytes(MIXED + bytes(room))
        rows = in_runs(file, file.size, count)
        assert rows == one_by_one(file, file.size)
        assert len(rows) == 13


def test_none_is_read_beyond_the_end() -> None:
    file = Bytes(MIXED)
    ends = list(itertools.accumulate(row[4] for row in one_by_one(file, file.size)))
    for number, end in enumerate(ends, start=1):
        assert len(in_runs(file, end)) == number


def test_bytes_that_are_not_as_they_were_end_it_as_one_by_one() -> None:
    rng = Random(5)
    whole = 0
    for at in range(len(MIXED)):
        for byte in (MIXED[at] ^ 1 << rng.randrange(8), 0, 0xFF, rng.randrange(256)):
            data = bytearray(MIXED)
            data[at] = byte
            file = Bytes(bytes(data))
            rows = in_runs(file, file.size)
            assert rows == one_by_one(file, file.size)
            whole += len(rows) == 13
    assert 0 < whole < 4 * len(MIXED)  # no CRC covers some of it


@pytest.mark.parametrize("zeros", [1, 63, 64, 65, 200, 5000])
def test_zeros_in_properties_are_as_good_as_other_bytes(zeros: int) -> None:
    nuls = "\0" * zeros
    for properties in ({"k": nuls}, {"k": nuls, "l": "v"}, {nuls: "v"}):
        file = Bytes(records([{}, {"properties": properties}, {}]))
        assert in_runs(file, file.size) == one_by_one(file, file.size)
        assert [row[7] for row in in_runs(file, file.size)][1] == encode_properties(properties)


@pytest.mark.parametrize("shift", [0, 1, 3, 200, 409, 511])
def test_a_lost_sector_of_properties_is_found_and_no_other_zeros(shift: int) -> None:
    """Each sector that no CRC covers may be missing, with what follows the record in it."""
    data = records([{"body": bytes(shift)}, {"properties": {"k": "v" * 2000}}])
    size = len(data)
    image = data.ljust(-(-size // SECTOR_BYTES) * SECTOR_BYTES, b"\0")
    first = records([{"body": bytes(shift)}])
    run = Run.of_rows(in_runs(Bytes(image), size), BASE)
    assert before_lost_sector(Bytes(image), BASE, run, BASE) is run
    for sector in range(len(image) // SECTOR_BYTES):
        at = sector * SECTOR_BYTES
        lost = Bytes(image[:at] + bytes(SECTOR_BYTES) + image[at + SECTOR_BYTES :])
        rows = in_runs(lost, size)
        if len(rows) < 2 or rows[1][7] == run.rows[1][7]:
            continue
        found = before_lost_sector(lost, BASE, Run.of_rows(rows, BASE), BASE)
        assert (found.rows, found.end) == (rows[:1], BASE + len(first))
        assert before_lost_sector(lost, BASE, Run.of_rows(rows, BASE), BASE + size).rows == rows
        assert leaves_doubt(rows[1][7])


class Searched:
    """Bytes of a map that are never searched to their very end."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def find(self, wanted: bytes, start: int, end: int) -> int:
        assert end < len(self.data)
        return self.data.find(wanted, start, end)

    def __getitem__(self, place: slice) -> bytes:
        return self.data[place]


@given(st.binary(min_size=1, max_size=12), st.binary(min_size=1, max_size=3), st.integers(0, 12), st.integers(0, 12))
@example(b"xxab", b"ab", 0, 4)
@example(b"ab", b"ab", 0, 2)
@example(b"ab", b"ab", 1, 2)
def test_a_search_reads_nothing_behind_the_map(data: bytes, wanted: bytes, start: int, end: int) -> None:
    end = min(end, len(data))
    file: Any = SimpleNamespace(buffer=Searched(data), size=len(data))
    assert find_bytes(file, wanted, start, end) == data.find(wanted, start, end)


def test_one_that_is_larger_than_a_run() -> None:
    file = Bytes(records([{}, {"body": b"large" * 100_000}, {}]))
    assert len(in_runs(file, file.size)) == 3
