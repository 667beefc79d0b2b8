"""The checkpoint file: Java's three times, our offsets, and which of them count."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.store.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from tests.numbers import numbers

FULL = Checkpoint(11_000, 12_000, 13_000, 140, 150, 160, (3, 40))
offsets = numbers(0, 2**63 - 1)


def test_java_reads_the_three_times_of_a_page() -> None:
    data = encode_checkpoint(FULL)
    assert len(data) == 4096
    assert struct.unpack_from(">qqq", data) == (11_000, 12_000, 13_000)


@given(offsets, offsets, offsets, offsets, offsets, st.none() | offsets, st.none() | st.tuples(offsets, offsets))
@settings(derandomize=True, database=None, deadline=None)
def test_what_is_written_is_read(
    log_ms: int, queues_ms: int, index_ms: int, log: int, queues: int, index: int, tally: tuple[int, int] | None
) -> None:
    checkpoint = Checkpoint(log_ms, queues_ms, index_ms, log, queues, index, tally)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@pytest.mark.parametrize("at", range(24))
def test_offsets_do_not_count_once_java_wrote_other_times(at: int) -> None:
    data = bytearray(encode_checkpoint(FULL))
    data[at] ^= 1
    found = decode_checkpoint(bytes(data))
    assert (found.log_offset, found.queues_offset, found.index_offset) == (None, None, None)
    assert found.tally is None
    assert (found.log_ms, found.queues_ms, found.index_ms) == struct.unpack_from(">qqq", data)


@pytest.mark.parametrize("size", [0, 1, 23])
def test_a_file_cut_short_says_nothing(size: int) -> None:
    assert decode_checkpoint(encode_checkpoint(FULL)[:size]) == Checkpoint()


@pytest.mark.parametrize("size", [24, 30, 59])
def test_a_file_cut_in_our_part_says_the_times(size: int) -> None:
    assert decode_checkpoint(encode_checkpoint(FULL)[:size]) == Checkpoint(11_000, 12_000, 13_000)


def test_java_times_are_good_but_for_the_last_seconds() -> None:
    assert Checkpoint(11_000, 12_000, 1).safe_ms == 8000
    assert Checkpoint(12_000, 11_000, 1).safe_ms == 8000
    assert Checkpoint(2000, 12_000, 1).safe_ms == 0
