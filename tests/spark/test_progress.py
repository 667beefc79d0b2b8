"""What a stream records beside its offsets."""

import json

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
