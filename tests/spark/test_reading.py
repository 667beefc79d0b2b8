"""Reading a range by pulls sent ahead: everything once, in order, whatever the answers hold."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.spark.errors import DataLoss, Loss, NotAllowed, NotReadable
from mqbroker.spark.offsets import QueueRange
from mqbroker.spark.reading import WINDOW_BYTES, WINDOW_MESSAGES, Chunk, RetryDeadline, read_chunks
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.record import decode_records
from tests.numbers import numbers
from tests.spark.fake_log import FakeLog, FakeTime, Want

QUEUE = MessageQueue("orders", "broker-a", 1)


def read(log: FakeLog, start: int, end: int, batch: int = 32, time: FakeTime | None = None) -> list[Chunk]:
    time = time or FakeTime()
    return list(read_chunks(log, QueueRange(QUEUE, start, end), batch, RetryDeadline(10.0, time.now, time.sleep)))


def offsets(chunks: list[Chunk]) -> list[int]:
    return [record.queue_offset for chunk in chunks for record in decode_records(chunk.records)]


@given(
    start=numbers(0, 300),
    length=numbers(0, 700),
    batch=st.integers(1, 64),
    count_max=st.integers(1, 40),
    bytes_max=numbers(1, 4000),
)
def test_every_message_comes_once_and_in_order(
    start: int, length: int, batch: int, count_max: int, bytes_max: int
) -> None:
    log = FakeLog(count_max=count_max, bytes_max=bytes_max)
    log.add(QUEUE, 1000)
    chunks = read(log, start, start + length, batch)
    assert offsets(chunks) == list(range(start, start + length))
    assert [chunk.start for chunk in chunks[1:]] == [chunk.end for chunk in chunks[:-1]]
    assert log.flying == 0


def test_windows_are_large_but_bounded() -> None:
    log = FakeLog()
    log.add(QUEUE, 3 * WINDOW_MESSAGES)
    chunks = read(log, 0, 3 * WINDOW_MESSAGES)
    assert max(chunk.end - chunk.start for chunk in chunks) == WINDOW_MESSAGES
    assert len(chunks) == 4


@pytest.mark.parametrize("size", [50_000, 300_000])
def test_windows_of_large_messages_are_bounded_in_bytes(size: int) -> None:
    log = FakeLog()
    log.add(QUEUE, 200, b"x" * size)
    chunks = read(log, 0, 200)
    assert all(len(chunk.records) < 1.1 * WINDOW_BYTES for chunk in chunks)
    assert sum(count for _, _, count in log.pulls) < 4 * 200


def test_what_an_answer_holds_is_learned() -> None:
    log = FakeLog(count_max=8)
    log.add(QUEUE, 4000)
    read(log, 0, 4000, 32)
    assert len(log.pulls) < 4000 / 8 * 1.3
    # The first window, what it lacked, and all the rest.
    assert log.rounds == 3


def test_it_is_learned_again_when_messages_get_smaller() -> None:
    log = FakeLog()
    log.add(QUEUE, 300, b"x" * 20_000)
    log.add(QUEUE, 20_000, b"x")
    read(log, 0, 20_300)
    assert len(log.pulls) < 1.3 * (300 / 13 + 20_000 / 32)


def test_the_next_window_is_asked_for_before_one_is_handed_out() -> None:
    log = FakeLog()
    log.add(QUEUE, 20_000)
    time = FakeTime()
    chunks = read_chunks(log, QueueRange(QUEUE, 0, 20_000), 32, RetryDeadline(10, time.now, time.sleep))
    next(chunks)
    assert log.flying == 1
    chunks.close()
    assert log.flying == 0


def test_nothing_is_asked_for_an_empty_range() -> None:
    log = FakeLog()
    assert read(log, 5, 5) == []
    assert log.pulls == []


def test_a_broker_that_comes_back_is_waited_for() -> None:
    log = FakeLog()
    log.add(QUEUE, 100)
    time = FakeTime()
    log.faults.append(lambda want: Unreachable("restarting") if time.now() < 5 else None)
    assert offsets(read(log, 0, 100, time=time)) == list(range(100))
    assert 5 <= time.now() < 7


def test_a_broker_that_stays_away_is_given_up() -> None:
    log = FakeLog()
    log.add(QUEUE, 100)
    log.down.add("broker-a")
    time = FakeTime()
    with pytest.raises(
        NotReadable, match=r"queue 1 of topic orders on broker broker-a returns nothing from offset 0 on: .*down"
    ):
        read(log, 0, 100, time=time)
    assert 10 <= time.now() < 12


def test_patience_is_renewed_by_what_comes() -> None:
    log = FakeLog()
    log.add(QUEUE, 300)
    time = FakeTime()
    # After each answer the broker is away for 3 s: far longer in all than deadline lasts.
    back = [0.0]

    def one_at_a_time(want: Want) -> MQError | None:
        if time.now() < back[0]:
            return Unreachable("busy")
        back[0] = time.now() + 3
        return None

    log.faults.append(one_at_a_time)
    assert offsets(read(log, 0, 100, 8, time)) == list(range(100))
    assert time.now() > 30


def test_pauses_begin_anew_with_each_absence() -> None:
    time, pauses = FakeTime(), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    deadline = RetryDeadline(10.0, time.now, sleep)
    for _ in range(3):
        del pauses[:]
        for _ in range(4):
            deadline.wait(Unreachable("busy"))
        assert pauses == [0.02, 0.04, 0.08, 0.16]
        time.sleep(60)
        deadline.renew()


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_an_overloaded_broker_is_asked_again(code: int) -> None:
    log = FakeLog()
    log.add(QUEUE, 10)
    log.faults.append(lambda want: log.faults.clear() or Refused(code, "later"))
    assert offsets(read(log, 0, 10)) == list(range(10))


@pytest.mark.parametrize(
    ("refused", "kind", "said"),
    [
        (
            Refused(ResponseCode.NO_PERMISSION, "the group is not you"),
            NotAllowed,
            "queue 1 of topic orders on broker broker-a, from offset 4 on: refused by the broker: the group is",
        ),
        (Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "g not exist"), NotAllowed, "or set consumerGroup to one"),
        (Refused(ResponseCode.SYSTEM_ERROR, "AclException: No perm"), NotAllowed, "No perm. Check accessKey and secr"),
        (
            Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "not this"),
            NotAllowed,
            "queue 1 of topic orders on broker broker-a, from offset 4 on: refused by the broker: not this (code 23)",
        ),
    ],
)
def test_a_refusal_ends_the_read_at_once(refused: Refused, kind: type[MQError], said: str) -> None:
    log = FakeLog()
    log.add(QUEUE, 10)
    time = FakeTime()
    log.faults.append(lambda want: refused)
    with pytest.raises(kind, match=re.escape(said)):
        read(log, 4, 10, time=time)
    assert time.now() == 0
    assert log.flying == 0


def test_messages_deleted_by_age_are_a_loss() -> None:
    log = FakeLog()
    log.add(QUEUE, 100)
    log.first[QUEUE] = 50
    with pytest.raises(DataLoss, match=r"AGED_OUT.*queue 1.*32 is asked for, the first one left is 50") as caught:
        read(log, 32, 100)
    assert caught.value.loss is Loss.AGED_OUT


def test_a_queue_that_ends_too_soon_is_a_loss_after_patience() -> None:
    log = FakeLog()
    log.add(QUEUE, 60)
    time = FakeTime()
    with pytest.raises(DataLoss, match=r"CUT_SHORT.*60 was requested, and it ends at 60"):
        read(log, 0, 100, time=time)
    assert time.now() >= 10


def test_a_slave_that_is_behind_is_waited_for() -> None:
    log = FakeLog()
    log.add(QUEUE, 60)

    class Growing(FakeTime):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            log.add(QUEUE, 10)

    assert offsets(read(log, 0, 100, time=Growing())) == list(range(100))


def test_an_answer_beyond_what_was_asked_is_refused() -> None:
    log = FakeLog()
    log.add(QUEUE, 100)
    log.faults.append(lambda want: RawPull(PullStatus.FOUND, want[1] + 33, 0, 100, b""))
    with pytest.raises(DataLoss, match="NOT_DENSE"):
        read(log, 0, 100)


def test_messages_that_are_skipped_are_a_loss() -> None:
    log = FakeLog()
    log.add(QUEUE, 100)
    log.faults.append(lambda want: RawPull(PullStatus.NO_MATCHED_MESSAGE, 64, 0, 100, b"") if want[1] < 64 else None)
    with pytest.raises(DataLoss, match=r"NOT_DENSE.*0 is not given.*NO_MATCHED_MESSAGE"):
        read(log, 0, 100)
