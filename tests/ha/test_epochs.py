"""The epochs of a log: where two histories part, and what is no history."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.ha.epochs import EPOCHS_MAX, BadHistory, Epoch, EpochHistory
from tests.numbers import numbers


def epoch(number: int, start: int, lease: int = 0) -> Epoch:
    return Epoch(number, start, lease or 100 + number)


def history(*epochs: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(epoch(number, start) for number, start in epochs))


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "common"),
    [
        # The same epoch: the shorter one is the beginning of the other.
        ([(1, 0)], 100, [(1, 0)], 150, 100),
        ([(1, 0)], 150, [(1, 0)], 100, 100),
        # A former master has more of epoch 1 than the one that was elected after it.
        ([(1, 0)], 150, [(1, 0), (2, 100)], 300, 100),
        # It was away for several elections.
        ([(1, 0), (2, 100)], 150, [(1, 0), (3, 120), (4, 130)], 200, 100),
        ([(1, 0), (2, 100)], 110, [(1, 0), (3, 120)], 200, 100),
        # An epoch in which nothing was written.
        ([(1, 0), (2, 100)], 100, [(1, 0), (3, 100)], 200, 100),
        # A log that is shorter than the last epoch of which it knows.
        ([(1, 0), (2, 100)], 60, [(1, 0), (2, 100)], 200, 60),
        # Retention took the first epochs of one.
        ([(2, 100), (3, 200)], 250, [(1, 0), (2, 100), (3, 200), (4, 240)], 400, 240),
        ([(1, 0)], 150, [(2, 100)], 300, None),
        ([], 150, [(1, 0)], 300, None),
    ],
)
def test_where_two_logs_part(ours: list, our_end: int, theirs: list, their_end: int, common: int | None) -> None:
    assert history(*ours).common_end(our_end, history(*theirs), their_end) == common
    assert history(*theirs).common_end(their_end, history(*ours), our_end) == common


def test_a_new_epoch_follows_the_others() -> None:
    assert EpochHistory().begin(epoch(1, 0)).begin(epoch(4, 100)).epochs == (epoch(1, 0), epoch(4, 100))
    assert EpochHistory().last == 0
    with pytest.raises(BadHistory, match="epoch 1 cannot follow epoch 1"):
        history((1, 0)).begin(epoch(1, 100))


def test_epochs_of_deleted_segments_are_forgotten() -> None:
    kept = history((1, 0), (2, 100), (3, 200)).begin(epoch(4, 300), log_min=150)
    assert [each.number for each in kept.epochs] == [2, 3, 4]
    # One without a message may be all that a former master has.
    assert [each.number for each in history((1, 0)).begin(epoch(2, 0)).epochs] == [1, 2]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0", b"[]", b"{}", b'{"epochs":1}', b'{"epochs":[1]}', b'{"epochs":[[1]]}', b'{"epochs":[[1,0]]}'),
        *(b'{"epochs":[[1,2,3,4]]}', b'{"epochs":[["1",0,1]]}', b'{"epochs":[[1,0.5,1]]}', b'{"epochs":[[true,0,1]]}'),
        *(b'{"epochs":[[2,0,1],[1,5,1]]}', b'{"epochs":[[1,5,1],[2,0,1]]}', b'{"epochs":[[1,-1,1]]}'),
        *(b'{"epochs":[[0,0,1]]}', b'{"epochs":[[1,9223372036854775808,1]]}', b'{"epochs":[[null,0,1]]}'),
        *(b'{"epochs":[[1,0,-1]]}', b'{"epochs":[[1,0,[]]]}', b'{"epochs":{"a":1}}', b'{"epochs":["abc"]}'),
        json.dumps({"epochs": [[n + 1, n, 1] for n in range(EPOCHS_MAX + 1)]}).encode(),
    ],
)
def test_what_is_no_history(data: bytes) -> None:
    with pytest.raises(BadHistory):
        EpochHistory.from_json(data)


@given(st.lists(st.tuples(st.integers(1, 5), numbers(0, 1 << 60)), max_size=20))
def test_a_history_is_read_as_it_was_written(steps: list[tuple[int, int]]) -> None:
    made, number, start = EpochHistory(), 0, 0
    for more, further in steps:
        number, start = number + more, min(start + further, (1 << 63) - 1)
        made = made.begin(epoch(number, start, further + 1))
    assert EpochHistory.from_json(made.to_json()) == made


def test_an_epoch_of_which_a_power_cut_left_nothing_is_forgotten_by_the_next() -> None:
    lost = history((1, 0), (2, 100), (3, 200))
    again = lost.begin(epoch(4, 150))
    assert again == history((1, 0), (2, 100), (4, 150))
    assert EpochHistory.from_json(again.to_json()) == again
    # A replica that has what was lost keeps what the two share.
    assert lost.common_end(250, again, 400) == 150
    assert [lost.epoch_at(end) for end in (99, 100, 150, 200)] == [1, 2, 2, 3]


def test_epochs_of_other_groups_are_not_shared() -> None:
    other = EpochHistory((epoch(1, 0, 7),))
    assert history((1, 0)).common_end(100, other, 100) is None
