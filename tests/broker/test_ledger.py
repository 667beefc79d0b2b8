"""The account of half messages, beside a plain set of what is settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqbroker.broker.transactions import ledger as ledger_module
from mqbroker.broker.transactions.ledger import SPAN_MAX, Ledger


def test_progress_is_the_first_that_is_open():
    ledger = Ledger(10, 5)
    for op, offset in enumerate([12, 11], 5):
        ledger.settle(offset, op)
    assert (ledger.progress, ledger.op_progress) == (10, 5)
    ledger.settle(10, 7)
    assert (ledger.progress, ledger.op_progress, ledger.next_op) == (13, 8, 8)
    assert [ledger.is_settled(offset) for offset in (9, 12, 13, 14)] == [True, True, False, False]


def test_an_entry_for_one_that_is_open_keeps_back_those_after_it():
    ledger = Ledger(0, 0)
    for op, offset in enumerate([1, 0, 3]):
        ledger.settle(offset, op)
    assert (ledger.progress, ledger.op_progress) == (2, 2)


def test_an_entry_is_taken_once():
    ledger = Ledger(0, 3)
    ledger.settle(1, 2)
    assert not ledger.is_settled(1)
    ledger.settle(0, 5)
    assert (ledger.next_op, ledger.op_progress) == (6, 6)


def test_what_is_far_off_takes_no_room():
    ledger = Ledger(0, 0)
    assert not ledger.is_possible(SPAN_MAX)
    assert not ledger.is_possible(-1)
    ledger.settle(2**62, 0)
    ledger.settle(-1, 1)
    assert (ledger.progress, ledger.op_progress, ledger.next_open(0)) == (0, 2, 0)


def test_moves_are_followed_and_bounded(monkeypatch):
    monkeypatch.setattr(ledger_module, "MOVES_MAX", 3)
    ledger = Ledger(0, 0)
    ledger.move(0, 5)
    ledger.move(5, 9)
    assert [ledger.where(offset) for offset in (0, 5, 9, 1)] == [9, 9, 9, 1]
    for n in range(10, 13):
        ledger.move(n, n + 100)
    assert [ledger.where(offset) for offset in (0, 5, 12)] == [0, 5, 112]


def test_what_is_open_can_be_settled():
    ledger = Ledger(10, 0)
    ledger.settle(12, 0)
    assert [ledger.is_open(offset) for offset in (-1, 9, 10, 11, 12, 13, 9 + SPAN_MAX, 10 + SPAN_MAX)] == [
        False, False, True, True, False, True, True, False,
    ]  # fmt: skip


def test_of_many_those_that_are_far_off_take_no_room():
    ledger = Ledger(5, 3)
    ledger.settle_all([5, 2**62, -1, 4, 7], 3)
    assert (ledger.progress, ledger.op_progress, ledger.next_op) == (6, 7, 8)
    assert [ledger.is_settled(offset) for offset in (5, 6, 7)] == [True, False, True]


def test_many_entries_are_taken_once_and_what_is_between_says_nothing():
    ledger = Ledger(0, 3)
    ledger.settle_all([0, 1], 2)
    assert [ledger.is_settled(offset) for offset in (0, 1)] == [False, True]
    ledger.settle_all([0, 2], 7)
    assert (ledger.progress, ledger.next_op, ledger.op_progress) == (3, 9, 9)


@given(
    st.lists(
        st.tuples(st.sampled_from(["settle", "many", "forget"]), st.integers(0, 60), st.integers(0, 5)), max_size=60
    )
)
def test_it_agrees_with_a_set(steps):
    """However little is trimmed at once."""
    trim, ledger_module._TRIM_MIN = ledger_module._TRIM_MIN, 4
    try:
        ledger, settled, ops = Ledger(3, 7), {0, 1, 2}, []
        for what, offset, length in steps:
            if what == "settle":
                ops.append(offset)
                ledger.settle(offset, 6 + len(ops))
                settled.add(offset)
            elif what == "many":
                offsets = [*range(offset + length, offset, -2), offset, offset + 3]
                ledger.settle_all(offsets, 7 + len(ops))
                ops += offsets
                settled |= set(offsets)
            else:
                settled |= set(range(max(offset, ledger.progress), offset + length))
                ledger.forget(offset, offset + length)
            progress = next(n for n in range(200) if n not in settled)
            assert ledger.progress == progress
            assert [ledger.is_settled(n) for n in range(80)] == [n in settled for n in range(80)]
            assert [ledger.is_open(n) for n in range(80)] == [n not in settled for n in range(80)]
            assert ledger.next_open(offset) == next(n for n in range(max(offset, progress), 200) if n not in settled)
            done = next((n for n, each in enumerate(ops) if each >= progress), len(ops))
            assert ledger.op_progress == 7 + done
    finally:
        ledger_module._TRIM_MIN = trim
