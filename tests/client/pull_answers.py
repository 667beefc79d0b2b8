"""What pulls meet in place of a broker's response: each function gets the request on its way to the broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import encode_record
from tests.client.faults import Passage
from tests.client.records import a_record

Way = Callable[[Passage], object]


def asked_for(passage: Passage) -> tuple[MessageQueue, int]:
    """The queue and the offset of a pull."""
    fields = passage.request.ext_fields
    return MessageQueue(fields["topic"], fields["bname"], int(fields["queueId"])), int(fields["queueOffset"])


def answer(passage: Passage, code: int, next_offset: int, body: bytes = b"") -> None:
    fields = {"nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": 1000, "suggestWhichBrokerId": 0}
    passage.answer(RemotingCommand(code, {name: str(value) for name, value in fields.items()}, body, flag=1))


def refused(code: int, passage: Passage) -> None:
    passage.answer(RemotingCommand(code, {}, flag=1, remark="no"))


def nothing_new(passage: Passage) -> None:
    """As of a broker that does not hold pulls."""
    answer(passage, ResponseCode.PULL_NOT_FOUND, asked_for(passage)[1])


def none_matches(passage: Passage) -> None:
    answer(passage, ResponseCode.PULL_RETRY_IMMEDIATELY, asked_for(passage)[1])


def moved(back: int, passage: Passage) -> None:
    answer(passage, ResponseCode.PULL_OFFSET_MOVED, max(0, asked_for(passage)[1] - back))


def _record_of(topic: str, passage: Passage) -> bytes:
    queue, offset = asked_for(passage)
    return encode_record(a_record(topic=topic, queue_id=queue.queue_id, queue_offset=offset, body=b"0 made up"))


def not_moved(passage: Passage) -> None:
    """Messages are found, and the next offset is the one that was asked for."""
    queue, offset = asked_for(passage)
    answer(passage, ResponseCode.SUCCESS, offset, _record_of(queue.topic, passage))


def not_readable(passage: Passage) -> None:
    answer(passage, ResponseCode.SUCCESS, asked_for(passage)[1] + 3, b"no record")


def of_another_topic(passage: Passage) -> None:
    answer(passage, ResponseCode.SUCCESS, asked_for(passage)[1] + 1, _record_of("U", passage))


def no_fields(passage: Passage) -> None:
    passage.answer(RemotingCommand(ResponseCode.SUCCESS, {}, flag=1))


def response_is_lost(passage: Passage) -> None:
    passage.pass_on()
    passage.cut()


def rubbish(passage: Passage) -> None:
    passage.connection.write(b"\0\0\0\1rubbish")


def silence(passage: Passage) -> None:
    """Nobody answers."""


WAYS: Final[list[Way]] = [
    partial(refused, ResponseCode.SYSTEM_ERROR),
    partial(refused, ResponseCode.SYSTEM_BUSY),
    partial(refused, ResponseCode.NO_PERMISSION),
    partial(refused, ResponseCode.TOPIC_NOT_EXIST),
    partial(refused, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    partial(refused, ResponseCode.SUBSCRIPTION_NOT_LATEST),
    partial(refused, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    nothing_new,
    none_matches,
    partial(moved, 0),
    partial(moved, 2),
    partial(moved, 1000),
    not_moved,
    not_moved,
    no_fields,
    silence,
    rubbish,
    response_is_lost,
    Passage.cut,
]
#: Messages that cannot be taken. Where pulls follow each other, the next one has left by then.
IN_VAIN: Final[list[Way]] = [not_readable, of_another_topic]
