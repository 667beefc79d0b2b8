"""What a stream records beside its offsets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.spark.errors import DataLoss, Loss
from mqbroker.spark.offsets import Mark, from_json
from mqbroker.spark.progress import StreamOffset
from mqbroker.wire.bodies import MessageQueue
from tests.numbers import numbers

QUEUES = [MessageQueue(topic, broker, n) for topic in ("orders", "%RETRY%g") for broker in "ab" for n in (0, 11)]
offsets = st.dictionaries(st.sampled_from(QUEUES), numbers(0, 2**63 - 1))
marks = st.dictionaries(st.sampled_from(QUEUES), st.builds(Mark, numbers(0, 2**63 - 1), numbers(0, 2**63 - 1)))


@given(offsets, marks, offsets, offsets, numbers(0, 2**63 - 1), offsets)
def test_an_offset_survives_the_checkpoint(
    positions: dict[MessageQueue, int],
    last: dict[MessageQueue, Mark],
    resumed: dict[MessageQueue, int],
    skipped: dict[MessageQueue, int],
    size: int,
    left: dict[MessageQueue, int],
) -> None:
    offset = StreamOffset(positions, last, resumed, skipped, size, left)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text
    assert from_json(json.loads(text)) == positions


def test_losses_add_up() -> None:
    queue = QUEUES[0]
    first = StreamOffset({queue: 5}).start_after([DataLoss(Loss.AGED_OUT, queue, "", 5, 8)])
    second = StreamOffset(first.positions, {}, {}, first.skipped).start_after(
        [DataLoss(Loss.AGED_OUT, queue, "", 8, 9)]
    )
    assert (first.positions, first.skipped) == ({queue: 8}, {queue: 3})
    assert (second.positions, second.skipped) == ({queue: 9}, {queue: 4})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", "the whole is not an object but 5"),
        ('["orders"]', "the whole is not an object"),
        ('{"orders": 5}', "topic 'orders' is not an object but 5"),
        ('{"orders": {"a": {"0": -3}}}', "the offset of queue 0 of topic orders on broker a is -3"),
        ('{"orders": {"a": {"0": 9223372036854775808}}}', "the offset of queue 0 of .* is 9223372036854775808"),
        ('{"orders": {"a": {"0": NaN}}}', "offset nan of queue 0 of broker 'a' is not an integer"),
        ('{"#last": {"orders": {"a": {"0": [1, 2, 3]}}}}', r"#last: \[1, 2, 3\] is not \[commitLogOffset, storeTimest"),
        ('{"#last": {"orders": {"a": {"0": 5}}}}', "#last: 5 is not"),
        ('{"#last": [1]}', r"#last: the whole is not an object but \[1\]"),
        ('{"#from": {"orders": {"a": {"0": -1}}}}', "#from: a count of queue 0 of topic orders on broker a is -1"),
        ('{"#skipped": {"orders": 1}}', "#skipped: topic 'orders' is not an object but 1"),
        ('{"#left": null}', "#left: the whole is not an object but null"),
        ('{"#bytes": "many"}', "#bytes is not a number of bytes but 'many'"),
        ('{"orders": {"0": 23}}', "broker '0' of topic 'orders' is not an object but 23"),
    ],
)
def test_what_is_no_offset_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        StreamOffset.from_json(json.loads(text))
