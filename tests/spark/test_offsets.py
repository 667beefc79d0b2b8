"""Positions and their JSON, and what offset options resolve to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.spark.errors import BadOption, DataLoss
from mqbroker.spark.offsets import EARLIEST, LATEST, Bounds, OffsetSpec, from_json, to_json
from mqbroker.wire.bodies import MessageQueue
from tests.numbers import numbers

A0, A1, B0 = (MessageQueue("orders", broker, n) for broker, n in [("a", 0), ("a", 1), ("b", 0)])
BOUNDS = {A0: Bounds(5, 10), A1: Bounds(0, 0), B0: Bounds(2, 7)}

queues = st.builds(MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b"]), st.integers(0, 20))


@given(st.dictionaries(queues, numbers(0, 2**62)), st.randoms())
def test_the_json_does_not_depend_on_the_order_and_comes_back(positions: dict[MessageQueue, int], rng: object) -> None:
    shuffled = list(positions.items())
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert json.dumps(to_json(dict(shuffled))) == json.dumps(to_json(positions))
    assert from_json(json.loads(json.dumps(to_json(positions)))) == positions


def test_the_form_is_that_of_the_older_connector() -> None:
    assert to_json({B0: 7, A1: 0, A0: 5}) == {"orders": {"a": {"0": 5, "1": 0}, "b": {"0": 7}}}


@pytest.mark.parametrize(
    ("spec", "positions"),
    [
        (OffsetSpec("startingOffsets", EARLIEST), {A0: 5, A1: 0, B0: 2}),
        (OffsetSpec("startingOffsets", LATEST), {A0: 10, A1: 0, B0: 7}),
        (OffsetSpec("startingOffsets", LATEST, {A0: 7, B0: EARLIEST}), {A0: 7, A1: 0, B0: 2}),
        (OffsetSpec("startingOffsets", EARLIEST, {A0: 10, B0: LATEST}), {A0: 10, A1: 0, B0: 7}),
        (OffsetSpec("startingOffsets", LATEST, {A0: 5}), {A0: 5, A1: 0, B0: 7}),
    ],
)
def test_resolving(spec: OffsetSpec, positions: dict[MessageQueue, int]) -> None:
    assert spec.resolve(BOUNDS) == positions


def test_a_queue_that_does_not_exist_is_named_with_those_that_do() -> None:
    spec = OffsetSpec("startingOffsets", LATEST, {MessageQueue("orders", "a", 2): 0})
    with pytest.raises(BadOption, match=r'queue 2 of topic orders on broker a does not exist; .*"a":{"0":-1,"1":-1}'):
        spec.resolve(BOUNDS)


def test_an_offset_beyond_the_end_is_named_with_the_end() -> None:
    with pytest.raises(BadOption, match=r"endingOffsets: 11 is beyond the end of queue 0 .* which is 10"):
        OffsetSpec("endingOffsets", LATEST, {A0: 11}).resolve(BOUNDS)


def test_an_offset_that_is_deleted_is_a_loss() -> None:
    with pytest.raises(DataLoss, match=r"AGED_OUT.*startingOffsets says 4, the first one left is 5"):
        OffsetSpec("startingOffsets", LATEST, {A0: 4}).resolve(BOUNDS)
