"""`mq pub`: how lines become messages, and what is printed."""

from collections.abc import Callable, Sequence

import pytest

from mqbroker.cli.pub import BATCH_BYTES_MAX, BATCH_LINES_MAX, Sender, cut, line_batches
from mqbroker.client import Message, MessageQueue, SendResult, SendStatus
from mqbroker.errors import Unreachable


class FakeProducer:
    """Stores what is sent; fails from the `fails_at`-th message on."""

    def __init__(self, fails_at: int | None = None, status: SendStatus = SendStatus.SEND_OK) -> None:
        self.calls: list[list[Message]] = []
        self._fails_at = fails_at
        self._status = status

    def send(self, message: Message) -> SendResult:
        return self._take([message])[0]

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        return self._take(list(messages))

    def _take(self, messages: list[Message]) -> list[SendResult]:
        offset = sum(map(len, self.calls))
        if self._fails_at is not None and offset + len(messages) >= self._fails_at:
            raise Unreachable("gone")
        self.calls.append(messages)
        queue = MessageQueue("t", "broker-a", 3)
        numbers = range(offset, offset + len(messages))
        return [SendResult(self._status, f"id{n}", f"id{n}", queue, n) for n in numbers]


def reader(*pieces: bytes) -> Callable[[int], bytes]:
    left = iter(pieces)
    return lambda size: next(left, b"")


def sender(producer: FakeProducer) -> Sender:
    return Sender(producer, "t", "paid", ("k1", "k2"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pieces", "groups"),
    [
        ([b"a\nb\n"], [[b"a", b"b"]]),
        ([b"a\nb"], [[b"a"], [b"b"]]),
        ([b"a", b"b\n", b"c\n"], [[b"ab"], [b"c"]]),
        ([b"\n"], [[b""]]),
        ([], []),
        ([b"a\r\n"], [[b"a\r"]]),
    ],
)
def test_lines_go_out_as_they_come(pieces: list[bytes], groups: list[list[bytes]]) -> None:
    assert list(line_batches(reader(*pieces))) == groups


def test_groups_are_bounded_in_lines_and_bytes() -> None:
    lines = [b"x"] * (2 * BATCH_LINES_MAX + 1)
    assert [len(group) for group in cut(lines)] == [BATCH_LINES_MAX, BATCH_LINES_MAX, 1]
    half, large = b"x" * (BATCH_BYTES_MAX // 2), b"x" * (BATCH_BYTES_MAX + 1)
    assert list(cut([half, half, b"y", large, b"z"])) == [[half, half], [b"y"], [large], [b"z"]]


def test_a_text_goes_with_its_tag_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    sender(producer).send([b"hi"])
    ((message,),) = producer.calls
    assert (message.topic, message.body, message.tags, message.keys) == ("t", b"hi", "paid", ("k1", "k2"))
    assert capsys.readouterr().out == "id0\tbroker-a\t3\t0\n"


def test_each_message_of_a_batch_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    sender(producer).send_lines(reader(b"a\nb\n\nc\n", b"d"))
    assert [[m.body for m in call] for call in producer.calls] == [[b"a", b"b", b"c"], [b"d"]]
    captured = capsys.readouterr()
    assert captured.out == "".join(f"id{n}\tbroker-a\t3\t{n}\n" for n in range(4))
    assert captured.err == "1 empty lines left out: brokers take no empty message\n"


def test_a_failure_in_the_middle_says_how_far_it_got(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unreachable):
        sender(FakeProducer(fails_at=3)).send_lines(reader(b"a\nb\n", b"c\nd\n"))
    assert capsys.readouterr().err == "2 messages were stored before this:\n"


def test_a_status_that_promises_less_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    sender(FakeProducer(status=SendStatus.FLUSH_DISK_TIMEOUT)).send([b"a"])
    assert "FLUSH_DISK_TIMEOUT" in capsys.readouterr().err
