"""Planning: every message between two offsets once, and nothing lost without a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.spark.errors import BadOption, DataLoss, Loss
from mqbroker.spark.offsets import (
    Bounds,
    Mark,
    Positions,
    QueueRange,
    TopicBounds,
    advance,
    cap,
    find_losses,
    limit_rows,
    plan_batch,
    plan_stream,
    split_ranges,
)
from mqbroker.wire.bodies import MessageQueue
from tests.numbers import numbers

A0, A1, B0, B1 = (MessageQueue("orders", broker, n) for broker in "ab" for n in (0, 1))


def seen(bounds: dict[MessageQueue, tuple[int, int]], *silent: MessageQueue) -> TopicBounds:
    return TopicBounds(frozenset(bounds) | set(silent), {q: Bounds(*b) for q, b in bounds.items()})


def test_a_batch_has_a_range_for_each_queue_that_holds_something() -> None:
    assert plan_batch({B0: 0, A0: 5, A1: 3}, {B0: 4, A0: 9, A1: 3}) == [QueueRange(A0, 5, 9), QueueRange(B0, 0, 4)]


@given(st.lists(numbers(1, 500), max_size=4), numbers(1, 40), numbers(1, 600))
def test_ranges_are_cut_into_parts_that_have_every_message_once(
    counts: list[int], min_partitions: int, max_records: int
) -> None:
    mark = Mark(1, 2)
    ranges = [QueueRange(queue, 7, 7 + count, mark) for queue, count in zip((A0, A1, B0, B1), counts, strict=False)]
    parts = split_ranges(ranges, min_partitions, max_records)
    assert [(p.queue, n) for p in parts for n in range(p.start, p.end)] == [
        (each.queue, n) for each in ranges for n in range(each.start, each.end)
    ]
    assert len(parts) >= min(min_partitions, sum(counts))
    assert all(0 < p.end - p.start <= max_records for p in parts)
    assert [(p.queue, p.end) for p in parts if p.last == mark] == [(each.queue, each.end) for each in ranges]


def test_without_limits_each_queue_is_one_part() -> None:
    ranges = [QueueRange(A0, 5, 9), QueueRange(B0, 0, 4000)]
    assert split_ranges(ranges, 1, 2**62) == ranges


def test_a_batch_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(BadOption, match="endingOffsets: 4 is before the start, 5, of queue 0 of topic orders"):
        plan_batch({A0: 5}, {A0: 4})


def test_a_stream_reads_between_its_offsets() -> None:
    assert plan_stream({A0: 5, A1: 1}, {A0: 9, A1: 1}, None) == [QueueRange(A0, 5, 9)]


def test_a_queue_that_is_new_is_read_from_the_batch_after_it_appears() -> None:
    here: Positions = {A0: 5}
    first = advance(here, seen({A0: (0, 9), A1: (3, 8)}))
    assert first == {A0: 9, A1: 3}
    assert plan_stream(here, first, None) == [QueueRange(A0, 5, 9)]
    second = advance(first, seen({A0: (0, 9), A1: (3, 8)}))
    assert plan_stream(first, second, None) == [QueueRange(A1, 3, 8)]


def test_the_first_batch_once_more_reads_nothing_wherever_the_queues_are_now() -> None:
    written_down: Positions = {A0: 5, A1: 1}
    now: Positions = {A0: 9, A1: 1, B0: 4}
    assert plan_stream(now, written_down, now) == []


def test_the_batch_after_the_first_is_read_where_it_starts_at_the_same_place() -> None:
    initial: Positions = {A0: 5}
    assert plan_stream(dict(initial), {A0: 9}, initial) == [QueueRange(A0, 5, 9)]


@pytest.mark.parametrize(("end", "loss"), [({A1: 1}, Loss.QUEUE_GONE), ({A0: 4, A1: 1}, Loss.CUT_SHORT)])
def test_a_stream_never_goes_back(end: Positions, loss: Loss) -> None:
    with pytest.raises(DataLoss) as caught:
        plan_stream({A0: 5, A1: 1}, end, {A0: 0})
    assert caught.value.loss is loss


@pytest.mark.parametrize(
    ("seen", "loss"),
    [
        (seen({A0: (0, 4), A1: (0, 9)}), Loss.CUT_SHORT),
        (seen({A0: (6, 9), A1: (0, 9)}), Loss.AGED_OUT),
        (seen({A1: (0, 9)}), Loss.QUEUE_GONE),
        (seen({}, A1), Loss.QUEUE_GONE),
    ],
)
def test_messages_that_are_gone_are_a_loss(seen: TopicBounds, loss: Loss) -> None:
    with pytest.raises(DataLoss) as caught:
        advance({A0: 5}, seen)
    assert caught.value.loss is loss


@pytest.mark.parametrize("seen", [seen({B0: (0, 9)}), seen({B0: (0, 9)}, A0)])
def test_the_queues_of_a_broker_that_is_away_stay_where_they_are(seen: TopicBounds) -> None:
    assert advance({A0: 5, B0: 3}, seen) == {A0: 5, B0: 9}


def test_a_target_is_not_passed() -> None:
    start: Positions = {A0: 5, A1: 5, B0: 5}
    end: Positions = {A0: 20, A1: 7, B0: 9, B1: 0}
    assert cap(start, end, {A0: 10, A1: 10}) == {A0: 10, A1: 7, B0: 5}
    assert cap(start, end, {A0: 3, B1: 4}) == {A0: 5, A1: 5, B0: 5, B1: 0}


backlogs = st.dictionaries(st.sampled_from([A0, A1, B0, B1]), st.tuples(numbers(0, 10**6), numbers(0, 10**6)))


@given(backlogs, numbers(1, 10**6))
def test_a_limit_holds_and_starves_no_queue(backlog: dict[MessageQueue, tuple[int, int]], rows: int) -> None:
    start = {queue: at for queue, (at, _) in backlog.items()}
    end = {queue: at + waiting for queue, (at, waiting) in backlog.items()}
    limited = limit_rows(start, end, rows)
    assert limited.keys() == end.keys()
    assert sum(limited[q] - start[q] for q in start) <= max(rows, len(start))
    for queue in start:
        assert min(start[queue] + 1, end[queue]) <= limited[queue] <= end[queue]


def test_a_limit_is_shared_by_what_waits() -> None:
    assert limit_rows({A0: 0, A1: 0}, {A0: 900, A1: 100}, 100) == {A0: 90, A1: 10}


def test_a_limit_leaves_new_queues_in() -> None:
    assert limit_rows({A0: 0}, {A0: 900, A1: 4}, 100) == {A0: 100, A1: 4}


def test_a_queue_that_is_listed_is_not_compared_with_all_others() -> None:
    class Watched(frozenset[MessageQueue]):
        looks = 0

        def __iter__(self):  # type: ignore[no-untyped-def] # of a set
            self.looks += 1
            return super().__iter__()

    queues = Watched(MessageQueue("t", "a", n) for n in range(50))
    seen = TopicBounds(queues, {queue: Bounds(0, 0) for queue in queues})
    looks = queues.looks
    assert list(find_losses(dict.fromkeys(seen.bounds, 0), seen)) == []
    assert queues.looks == looks
    gone = MessageQueue("t", "a", 50)
    assert [loss.queue for loss in find_losses({gone: 3}, seen)] == [gone]
    assert list(find_losses({MessageQueue("t", "b", 50): 3, MessageQueue("u", "a", 50): 3}, seen)) == []
