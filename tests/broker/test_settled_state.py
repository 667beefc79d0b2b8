"""The account of half messages, beside a plain set of what is settled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.broker.transactions import half_queue as module
from mqbroker.broker.transactions.half_queue import SPAN_MAX, SettledState


def test_progress_is_the_first_that_is_open() -> None:
    settled = SettledState(10, 5)
    for op, offset in enumerate([12, 11], 5):
        settled.settle(offset, op)
    assert (settled.progress, settled.op_progress) == (10, 5)
    settled.settle(10, 7)
    assert (settled.progress, settled.op_progress, settled.next_op) == (13, 8, 8)
    assert [settled.is_settled(offset) for offset in (9, 12, 13, 14)] == [True, True, False, False]


def test_an_entry_for_one_that_is_open_keeps_back_those_after_it() -> None:
    settled = SettledState(0, 0)
    for op, offset in enumerate([1, 0, 3]):
        settled.settle(offset, op)
    assert (settled.progress, settled.op_progress) == (2, 2)


def test_an_entry_is_taken_once() -> None:
    settled = SettledState(0, 3)
    settled.settle(1, 2)
    assert not settled.is_settled(1)
    settled.settle(0, 5)
    assert (settled.next_op, settled.op_progress) == (6, 6)


def test_what_is_far_off_takes_no_room() -> None:
    settled = SettledState(0, 0)
    assert not settled.is_possible(SPAN_MAX)
    assert not settled.is_possible(-1)
    settled.settle(2**62, 0)
    settled.settle(-1, 1)
    assert (settled.progress, settled.op_progress, settled.next_open(0)) == (0, 2, 0)


def test_moves_are_followed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOVES_MAX", 3)
    settled = SettledState(0, 0)
    settled.move(0, 5)
    settled.move(5, 9)
    assert [settled.where(offset) for offset in (0, 5, 9, 1)] == [9, 9, 9, 1]
    for n in range(10, 13):
        settled.move(n, n + 100)
    assert [settled.where(offset) for offset in (0, 5, 12)] == [0, 5, 112]


def test_what_is_open_can_be_settled() -> None:
    settled = SettledState(10, 0)
    settled.settle(12, 0)
    assert [settled.is_open(offset) for offset in (-1, 9, 10, 11, 12, 13, 9 + SPAN_MAX, 10 + SPAN_MAX)] == [
        False, False, True, True, False, True, True, False,
    ]  # fmt: skip


def test_of_many_those_that_are_far_off_take_no_room() -> None:
    settled = SettledState(5, 3)
    settled.settle_all([5, 2**62, -1, 4, 7], 3)
    assert (settled.progress, settled.op_progress, settled.next_op) == (6, 7, 8)
    assert [settled.is_settled(offset) for offset in (5, 6, 7)] == [True, False, True]


def test_many_entries_are_taken_once_and_what_is_between_says_nothing() -> None:
    settled = SettledState(0, 3)
    settled.settle_all([0, 1], 2)
    assert [settled.is_settled(offset) for offset in (0, 1)] == [False, True]
    settled.settle_all([0, 2], 7)
    assert (settled.progress, settled.next_op, settled.op_progress) == (3, 9, 9)


@given(
    st.lists(
        st.tuples(st.sampled_from(["settle", "many", "forget"]), st.integers(0, 60), st.integers(0, 5)), max_size=60
    )
)
def test_it_agrees_with_a_set(steps: list[tuple[str, int, int]]) -> None:
    """However little is trimmed at once."""
    trim, module._TRIM_MIN = module._TRIM_MIN, 4
    try:
        state, settled, ops = SettledState(3, 7), {0, 1, 2}, []
        for what, offset, length in steps:
            if what == "settle":
                ops.append(offset)
                state.settle(offset, 6 + len(ops))
                settled.add(offset)
            elif what == "many":
                offsets = [*range(offset + length, offset, -2), offset, offset + 3]
                state.settle_all(offsets, 7 + len(ops))
                ops += offsets
                settled |= set(offsets)
            else:
                settled |= set(range(max(offset, state.progress), offset + length))
                state.forget(offset, offset + length)
            progress = next(n for n in range(200) if n not in settled)
            assert state.progress == progress
            assert [state.is_settled(n) for n in range(80)] == [n in settled for n in range(80)]
            assert [state.is_open(n) for n in range(80)] == [n not in settled for n in range(80)]
            assert state.next_open(offset) == next(n for n in range(max(offset, progress), 200) if n not in settled)
            done = next((n for n, each in enumerate(ops) if each >= progress), len(ops))
            assert state.op_progress == 7 + done
    finally:
        module._TRIM_MIN = trim
