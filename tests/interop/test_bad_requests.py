"""Requests with a field that is wrong, to a Java broker and to ours: the same codes, or a difference on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import RemotingCommand
from tests.broker.every_request import (
    HEADERS,
    Field,
    answer_to,
    fields_of,
    good_request,
    prepare,
    text_for,
    wrong_values,
)
from tests.interop.fleet import Fleet, Kind
from tests.interop.raw import Line

#: Without access control Java never answers these.
UNANSWERED = {Code.GET_BROKER_CLUSTER_ACL_INFO, Code.GET_BROKER_CLUSTER_ACL_CONFIG}
SENDS = {
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
}  # fmt: skip
ILLEGAL_NAMES = {"empty", "blank", "a way out", "a control", "not ascii", "300 long", "100,000 long"}
NO_NUMBERS_OF_SOME = {"negative", "least int", "most int"}

Answer = tuple[int, str]


def answers(fleet: Fleet, kind: Kind) -> Iterator[tuple[Field, str, Answer]]:
    """What a new broker answers to each wrong value of each field."""
    broker = fleet.broker(kind, fleet.namesrv(kind), brokerName="broker-a", brokerClusterName="DefaultCluster")
    line = Line(broker.addr, answer_to)

    def ask(request: RemotingCommand) -> RemotingCommand:
        return line.ask([request])[0]

    prepared = prepare(ask)
    for code in HEADERS.keys() - UNANSWERED:
        ask(good_request(code, prepared))
    for field in [field for code in HEADERS for field in fields_of(code)]:
        for how, text in wrong_values(field):
            request = good_request(field.code, prepared)
            del request.ext_fields[field.key]
            if text is not None:
                request.ext_fields[field.key] = text_for(field, how, text)
            answer = ask(request)
            yield field, how, (answer.code, answer.remark or "")
    line.close()


# --- deliberate differences


def of_a_field_that_cannot_be_read(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Java passes over what it cannot read, which is null or 0 then; here it is refused."""
    return ours[0] == 1 and ours[1].startswith(f"the custom field <{field.key}> is ")


def of_flags_of_a_transaction_without_one(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Java stores such a message where nobody finds it."""
    return field.code in SENDS and field.key in ("f", "sysFlag") and ours[0] == 16


def of_a_group_that_may_not_be(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Java makes it, and keeps offsets for it."""
    keys = {
        (Code.CONSUMER_SEND_MSG_BACK, "group"),
        (Code.PULL_MESSAGE, "consumerGroup"),
        (Code.UPDATE_CONSUMER_OFFSET, "consumerGroup"),
        (Code.CLONE_GROUP_OFFSET, "destGroup"),
    }
    return (field.code, field.key) in keys and how in ILLEGAL_NAMES and ours[0] in (1, 26)


def of_an_offset_that_may_not_be(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Java keeps offsets of topics and queues that are not there, and negative ones."""
    keys = ("topic", "queueId", "commitOffset")
    return field.code == Code.UPDATE_CONSUMER_OFFSET and field.key in keys and (ours[0], java[0]) == (1, 0)


def of_a_topic_that_may_not_be(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Java makes topics of less than no queues, of more than may be, or of a perm that there is not."""
    keys = ("readQueueNums", "writeQueueNums", "perm")
    is_it = field.code == Code.UPDATE_AND_CREATE_TOPIC and field.key in keys
    return is_it and how in NO_NUMBERS_OF_SOME and (ours[0], java[0]) == (1, 0)


def of_a_count_that_java_throws_at(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Less than one message, or more than the memory holds."""
    keys = {(Code.PULL_MESSAGE, "maxMsgNums"), (Code.QUERY_MESSAGE, "maxNum")}
    return (field.code, field.key) in keys and how in NO_NUMBERS_OF_SOME and java[1].startswith("java.lang.")


def of_a_blank_subscription(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Blanks do not count; to Java they are a tag."""
    return (field.code, field.key, how) == (Code.PULL_MESSAGE, "subscription", "blank")


def of_a_queue_that_is_not_there(field: Field, how: str, ours: Answer, java: Answer) -> bool:
    """Java makes it, and says that its entry is not there."""
    return (field.code, field.key) == (Code.QUERY_CONSUME_QUEUE, "queueId") and how in NO_NUMBERS_OF_SOME


DELIBERATE: list[Callable[[Field, str, Answer, Answer], bool]] = [
    of_a_field_that_cannot_be_read,
    of_flags_of_a_transaction_without_one,
    of_a_group_that_may_not_be,
    of_an_offset_that_may_not_be,
    of_a_topic_that_may_not_be,
    of_a_count_that_java_throws_at,
    of_a_blank_subscription,
    of_a_queue_that_is_not_there,
]


def test_wrong_fields_are_answered_with_the_same_codes(fleet: Fleet) -> None:
    ours, java = (list(answers(fleet, kind)) for kind in reversed(get_args(Kind)))
    unexplained, used = [], set()
    for (field, how, our_answer), (_, _, java_answer) in zip(ours, java, strict=True):
        if our_answer[0] == java_answer[0]:
            continue
        reason = next((each for each in DELIBERATE if each(field, how, our_answer, java_answer)), None)
        if reason is None:
            unexplained.append((Code(field.code).name, field.key, how, our_answer, java_answer))
        used.add(reason)
    assert not unexplained, "\n".join(map(str, unexplained))
    assert used >= set(DELIBERATE)
    assert len(ours) > 2000
