"""A broker that answers pulls with what was not asked for, or again and again with the same: its consumers use nothing
of that, and wait before they ask again."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.client import MessageQueue, PullOptions
from mqbroker.client.errors import UnexpectedResponse
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import encode_record
from tests.client.faults import Passage
from tests.client.member import A, Member, Q
from tests.client.records import a_record
from tests.client.world import World

PULL = RequestCode.PULL_MESSAGE
#: So many answers end a test that would go on for ever.
ENOUGH = 2000

Answers = Callable[[int, int], RemotingCommand]


def found(next_offset: int, *records: dict[str, Any], code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    fields = {"nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": 10**6, "suggestWhichBrokerId": 0}
    body = b"".join(encode_record(a_record(**{"physical_offset": 10**9, **record})) for record in records)
    return RemotingCommand(code, {name: str(value) for name, value in fields.items()}, body, flag=1)


def answering(world: World, answer: Answers, queue: MessageQueue = Q) -> None:
    """Answer the pulls of a queue by (offset, how many came before)."""
    count = 0

    def rule(passage: Passage) -> None:
        nonlocal count
        fields = passage.request.ext_fields
        if (fields["topic"], fields["queueId"]) != (queue.topic, str(queue.queue_id)):
            passage.pass_on()
        elif count < ENOUGH:
            count += 1
            passage.answer(answer(int(fields["queueOffset"]), count - 1))

    world.faults.refuse[A, PULL] = rule


def pulls(world: World) -> int:
    return len([each for each in world.faults.asked(PULL) if each.ext_fields["topic"] == "T"])


#: Nothing of these is for a listener.
UNASKED: dict[str, Answers] = {
    "the same offset again": lambda offset, n: found(offset + 1, {"queue_offset": 0 if n else 5}),
    "an offset twice": lambda offset, n: found(offset + 2, {"queue_offset": offset}, {"queue_offset": offset}),
    "descending offsets": lambda offset, n: found(offset + 2, {"queue_offset": offset + 1}, {"queue_offset": offset}),
    "another topic": lambda offset, n: found(offset + 1, {"queue_offset": offset, "topic": "U"}),
    "another queue": lambda offset, n: found(offset + 1, {"queue_offset": offset, "queue_id": 1}),
    "an offset after the next one": lambda offset, n: found(offset + 1, {"queue_offset": offset + 1}),
    "the last offset there is": lambda offset, n: found(2**63 - 1, {"queue_offset": 2**63 - 1}),
    "found, but not moved on": lambda offset, n: found(offset, {"queue_offset": offset}),
    "found, but moved back": lambda offset, n: found(0, {"queue_offset": offset}),
    "an offset below 0": lambda offset, n: found(-1, code=ResponseCode.PULL_OFFSET_MOVED),
    "another topic, compressed": lambda offset, n: found(
        offset + 1, {"queue_offset": offset, "topic": "U", "sys_flag": 1, "body": zlib.compress(b"x")}
    ),
}


@pytest.mark.parametrize("answer", UNASKED.values(), ids=UNASKED.keys())
def test_what_was_not_asked_for_reaches_no_listener_and_is_asked_for_again_after_a_pause(
    one_queue: World, name_server: str, answer: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    one_queue.cluster.offsets["g", Q] = 1
    answering(one_queue, answer)
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([0.125] * 84)
    assert member.got == []
    # Where messages came, the next pull has left before they are looked at.
    assert pulls(one_queue) in (11, 22)
    assert one_queue.cluster.offsets.get(("g", Q)) == 1
    (warning,) = [each.getMessage() for each in caplog.records if "Unexpected response" in each.getMessage()]
    assert "the broker" in warning


NOT_MOVED: dict[str, Answers] = {
    "filtered": lambda offset, n: found(offset, code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    "filtered and back": lambda offset, n: found(0, code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    "an illegal offset": lambda offset, n: found(offset, code=ResponseCode.PULL_OFFSET_MOVED),
    "to and fro": lambda offset, n: found(0 if n % 2 else 50, code=ResponseCode.PULL_OFFSET_MOVED),
    "nothing new": lambda offset, n: found(offset, code=ResponseCode.PULL_NOT_FOUND),
}


@pytest.mark.parametrize("answer", NOT_MOVED.values(), ids=NOT_MOVED.keys())
def test_a_pull_that_does_not_move_a_consumer_on_is_repeated_after_a_pause(
    one_queue: World, name_server: str, answer: Answers
) -> None:
    answering(one_queue, answer)
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([0.125] * 84)
    assert member.got == []
    assert 10 < pulls(one_queue) < 24


def test_messages_that_are_found_again_after_each_move_back_are_delivered_once_a_second(
    one_queue: World, name_server: str
) -> None:
    def answer(offset: int, n: int) -> RemotingCommand:
        return found(1, {"queue_offset": 0}) if offset == 0 else found(0, code=ResponseCode.PULL_OFFSET_MOVED)

    answering(one_queue, answer)
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([0.125] * 44)
    assert 0 < len(member.got) < 8


def test_a_consumer_goes_on_once_the_broker_answers_what_was_asked(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    answering(one_queue, lambda offset, n: found(offset + 1, {"queue_offset": offset, "topic": "U"}))
    member = Member(one_queue, name_server).start()
    one_queue.clock.advance(3)
    one_queue.faults.refuse.clear()
    one_queue.clock.advance(1)
    assert member.bodies == [b"0"]


@pytest.mark.parametrize("answer", UNASKED.values(), ids=UNASKED.keys())
def test_a_pull_consumer_is_told_of_what_was_not_asked_for(one_queue: World, name_server: str, answer: Answers) -> None:
    core = PullConsumerCore(one_queue.net(), (name_server,), "g", PullOptions())
    answering(one_queue, answer)
    with pytest.raises(UnexpectedResponse, match="Unexpected response to a pull of"):
        one_queue.result(core.pull(Q, 1))


def test_messages_of_a_light_queue_have_the_topic_and_offsets_that_they_were_sent_with(
    one_queue: World, name_server: str
) -> None:
    light = MessageQueue("%LMQ%x", "a", 0)
    one_queue.cluster.add_topic("%LMQ%x", queues=1, brokers=["a"])
    core = PullConsumerCore(one_queue.net(), (name_server,), "g", PullOptions())
    answering(one_queue, lambda offset, n: found(2, {"queue_offset": 77, "topic": "T"}, {"queue_offset": 5}), light)
    assert [each.queue_offset for each in one_queue.result(core.pull(light, 0)).messages] == [77, 5]
    answering(one_queue, lambda offset, n: found(0, {"queue_offset": 77}), light)
    with pytest.raises(UnexpectedResponse):
        one_queue.result(core.pull(light, 0))
