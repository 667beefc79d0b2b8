"""Every field of every request that a broker serves, wrong in each way, and every body: what is answered, and that
nothing comes of what was refused.

`EXPECTED` says what is answered where a field is what it should be and yet no good; codes and remarks are those of the
Java broker, but where `tests/interop/test_bad_requests.py` has them among what differs on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.broker.requests.replica_requests import NO_GROUP
from mqbroker.remoting.handlers import UNEXPECTED_ERROR
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import JSON, ONEWAY_FLAG, ROCKETMQ, RemotingCommand, encode_command
from tests.broker.bench import Bench, Client
from tests.broker.every_request import (
    BOOLS,
    CLIENT_ID,
    GROUP,
    HEADERS,
    NUMBERS,
    ONLINE,
    TEXTS,
    TOPIC,
    Field,
    answer_to,
    fields_of,
    good_request,
    prepare,
    pull_fields,
    text_for,
    wrong_values,
)
from tests.broker.test_every_code import CODES
from tests.broker.wrong_bodies import NAMES, NO_OBJECTS, wrong_bodies
from tests.remoting.logs import Logged

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
NOBODYS = [how for how in TEXTS if how not in ("empty", "blank")]
BELOW, ABOVE = ["negative", "least int", "least long"], ["most int", "over int", "most long"]
FAR = [*BELOW, *ABOVE]


def names(of_what: str, length: str) -> dict[str, tuple[int, str]]:
    """What is answered to names that may not be."""
    letters = f"The specified {of_what} contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return {
        **dict.fromkeys(["empty", "blank"], (1, f"The specified {of_what} is blank.")),
        **dict.fromkeys(["a way out", "a control", "not ascii"], (1, letters)),
        **dict.fromkeys(["300 long", "100,000 long"], (1, f"The specified {of_what} is longer than {length}.")),
    }


def each(hows: list[str], code: int, remark: str) -> dict[str, tuple[int, str]]:
    return dict.fromkeys(hows, (code, remark))


def any_text(code: int, remark: str) -> dict[str, tuple[int, str]]:
    return each(list(TEXTS), code, remark)


TOPIC_NAMES = names("topic", "topic max length")
GROUP_NAMES = names("group", "group max length 255")
NO_QUEUE = (
    "request queueId[{}] is illegal, TopicConfig [topicName=%s, readQueueNums=%d, writeQueueNums=%d, perm=RW-, "
    "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: 10.0.0.2:40000"
)
IN_T = each(["most int"], 1, NO_QUEUE % ("T", 4, 4))
IN_REPLIES = each(["most int"], 1, NO_QUEUE % ("DefaultCluster_REPLY_TOPIC", 1, 1))
NO_TRANSACTION = each(["negative", "most int"], 16, "the broker[10.0.0.1] sending transaction message is forbidden")
NO_ASKER = any_text(1, "reply message properties[REPLY_TO_CLIENT] is null")
NOT_FOUND = "can not find message, maybe time range not correct"
ACL = "this broker controls no access: set aclEnable=true"

#: By code and field: how it is wrong, and the code and remark then. {} stands for the value, {:.255} for its beginning.
#: What is not here is taken.
EXPECTED: dict[tuple[int, str], dict[str, tuple[int, str]]] = {
    (Code.SEND_MESSAGE, "topic"): TOPIC_NAMES,
    (Code.SEND_MESSAGE, "queueId"): IN_T,
    (Code.SEND_MESSAGE, "sysFlag"): NO_TRANSACTION,
    (Code.SEND_MESSAGE_V2, "b"): TOPIC_NAMES,
    (Code.SEND_MESSAGE_V2, "e"): IN_T,
    (Code.SEND_MESSAGE_V2, "f"): NO_TRANSACTION,
    (Code.SEND_BATCH_MESSAGE, "b"): TOPIC_NAMES,
    (Code.SEND_BATCH_MESSAGE, "e"): IN_T,
    (Code.SEND_BATCH_MESSAGE, "f"): NO_TRANSACTION,
    (Code.SEND_REPLY_MESSAGE, "topic"): TOPIC_NAMES,
    (Code.SEND_REPLY_MESSAGE, "queueId"): IN_REPLIES,
    (Code.SEND_REPLY_MESSAGE, "sysFlag"): NO_TRANSACTION,
    (Code.SEND_REPLY_MESSAGE, "properties"): {"missing": NO_ASKER["empty"], **NO_ASKER},
    (Code.SEND_REPLY_MESSAGE_V2, "b"): TOPIC_NAMES,
    (Code.SEND_REPLY_MESSAGE_V2, "e"): IN_REPLIES,
    (Code.SEND_REPLY_MESSAGE_V2, "f"): NO_TRANSACTION,
    (Code.SEND_REPLY_MESSAGE_V2, "i"): {"missing": NO_ASKER["empty"], **NO_ASKER},
    (Code.CONSUMER_SEND_MSG_BACK, "offset"): each(FAR, 1, "look message by offset failed, {}"),
    (Code.CONSUMER_SEND_MSG_BACK, "group"): dict.fromkeys(GROUP_NAMES, (26, "subscription group not exist, {} " + FAQ)),
    (Code.END_TRANSACTION, "producerGroup"): any_text(1, "The producer group wrong"),
    (Code.END_TRANSACTION, "tranStateTableOffset"): each(FAR, 1, "The transaction state table offset wrong"),
    (Code.END_TRANSACTION, "commitLogOffset"): each(FAR, 1, "Find prepared transaction message failed"),
    (Code.END_TRANSACTION, "commitOrRollback"): each(
        ["negative", "least int", "most int"], 1, "commitOrRollback field wrong"
    ),
    (Code.RESUME_CHECK_HALF_MESSAGE, "msgId"): each(
        ["missing", *TEXTS], 1, "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
    ),
    (Code.PULL_MESSAGE, "consumerGroup"): dict.fromkeys(
        GROUP_NAMES, (26, "subscription group [{:.255}] does not exist, " + FAQ)
    ),
    (Code.PULL_MESSAGE, "topic"): any_text(17, "topic[{:.255}] not exist, apply first please! " + FAQ),
    (Code.PULL_MESSAGE, "queueId"): each(
        ["negative", "least int", "most int"],
        1,
        "queueId[{}] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/10.0.0.2:40000]",
    ),
    (Code.PULL_MESSAGE, "queueOffset"): each(BELOW, 21, "OFFSET_TOO_SMALL") | each(ABOVE, 21, "OFFSET_OVERFLOW_BADLY"),
    (Code.PULL_MESSAGE, "sysFlag"): each(["least int"], 24, "the consumer's group info not exist" + FAQ),
    (Code.PULL_MESSAGE, "subscription"): each(NOBODYS, 20, "NO_MATCHED_MESSAGE"),
    (Code.PULL_MESSAGE, "expressionType"): each(
        ["blank", *NOBODYS], 1, "The broker does not support consumer to filter message by {:.80}"
    ),
    (Code.QUERY_MESSAGE, "topic"): any_text(22, NOT_FOUND),
    (Code.QUERY_MESSAGE, "key"): any_text(22, NOT_FOUND),
    (Code.QUERY_MESSAGE, "maxNum"): each(["negative", "least int"], 22, NOT_FOUND),
    (Code.QUERY_MESSAGE, "beginTimestamp"): each(["most long"], 22, NOT_FOUND),
    (Code.QUERY_MESSAGE, "endTimestamp"): each([*BELOW, "most int", "over int"], 22, NOT_FOUND),
    (Code.VIEW_MESSAGE_BY_ID, "offset"): each(FAR, 1, "can not find message by the offset, {}"),
    (Code.UPDATE_CONSUMER_OFFSET, "consumerGroup"): GROUP_NAMES,
    (Code.UPDATE_CONSUMER_OFFSET, "topic"): TOPIC_NAMES
    | each(["unknown"], 1, "no offset 2 can be committed for queue 0 of {}: the topic does not exist here"),
    (Code.UPDATE_CONSUMER_OFFSET, "queueId"): each(
        ["negative", "least int", "most int"],
        1,
        "no offset 2 can be committed for queue {} of T: the numbers are out of range",
    ),
    (Code.UPDATE_CONSUMER_OFFSET, "commitOffset"): each(
        BELOW, 1, "no offset {} can be committed for queue 0 of T: the numbers are out of range"
    ),
    (Code.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"): any_text(1, "no consumer for this group, {}"),
    (Code.UPDATE_AND_CREATE_TOPIC, "topic"): TOPIC_NAMES,
    (Code.UPDATE_AND_CREATE_TOPIC, "readQueueNums"): each(
        ["negative", "least int", "most int"], 1, "{} queues: it must be 0 to 65535"
    ),
    (Code.UPDATE_AND_CREATE_TOPIC, "writeQueueNums"): each(
        ["negative", "least int", "most int"], 1, "{} queues: it must be 0 to 65535"
    ),
    (Code.UPDATE_AND_CREATE_TOPIC, "perm"): each(
        ["negative", "least int", "most int"], 1, "the permission {} is not known: it must be 0 to 15"
    ),
    (Code.UPDATE_AND_CREATE_TOPIC, "topicFilterType"): any_text(1, "topicFilterType = [{:.40}] value invalid"),
    (Code.DELETE_TOPIC_IN_BROKER, "topic"): TOPIC_NAMES,
    (Code.GET_CONSUMER_CONNECTION_LIST, "consumerGroup"): any_text(206, "the consumer group[{}] not online"),
    (Code.GET_PRODUCER_CONNECTION_LIST, "producerGroup"): any_text(1, "the producer group[{}] not exist"),
    (Code.GET_TOPIC_STATS_INFO, "topic"): any_text(17, "topic[{}] not exist"),
    (Code.QUERY_CONSUME_TIME_SPAN, "topic"): any_text(17, "topic[{}] not exist"),
    (Code.QUERY_CONSUME_QUEUE, "topic"): {"missing": (1, "0@ is not exist!"), **any_text(1, "0@{:.255} is not exist!")},
    (Code.QUERY_CONSUME_QUEUE, "queueId"): each(["negative", "least int", "most int"], 1, "{}@T is not exist!"),
    (Code.CLONE_GROUP_OFFSET, "destGroup"): GROUP_NAMES,
    (Code.GET_CONSUMER_RUNNING_INFO, "consumerGroup"): any_text(1, f"The Consumer <{{}}> <{CLIENT_ID}> not online"),
    (Code.GET_CONSUMER_RUNNING_INFO, "clientId"): any_text(1, f"The Consumer <{ONLINE}> <{{}}> not online"),
    (Code.CONSUME_MESSAGE_DIRECTLY, "consumerGroup"): any_text(1, f"The Consumer <{{}}> <{CLIENT_ID}> not online"),
    (Code.CONSUME_MESSAGE_DIRECTLY, "clientId"): {
        "missing": (1, f"The Consumer <{ONLINE}> <> not online"),
        **any_text(1, f"The Consumer <{ONLINE}> <{{}}> not online"),
    },
    (Code.CONSUME_MESSAGE_DIRECTLY, "msgId"): {
        "missing": (1, "'' is not a message id of 32 or 56 hex digits"),
        **any_text(1, "{} is not a message id of 32 or 56 hex digits"),
    },
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, "topic"): any_text(
        1, "[reset-offset] reset offset failed, no topic in this broker. topic={}"
    ),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, "group"): any_text(1, "THe consumer group <{}> not exist"),
    (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, "group"): any_text(
        1, "No Any Consumer online in the consumer group: [{}]"
    ),
    (Code.VIEW_BROKER_STATS_DATA, "statsName"): any_text(1, f"The stats <{{:.255}}> <{TOPIC}> not exist"),
    (Code.VIEW_BROKER_STATS_DATA, "statsKey"): any_text(1, "The stats <TOPIC_PUT_NUMS> <{:.512}> not exist"),
}  # fmt: skip
#: What is refused whatever it says, for nothing is configured that it is about.
ALWAYS = {
    Code.UPDATE_AND_CREATE_ACL_CONFIG: (209, ACL),
    Code.DELETE_ACL_CONFIG: (210, ACL),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: (211, ACL),
    Code.GET_BROKER_CLUSTER_ACL_INFO: (1, ACL),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: (1, ACL),
    Code.SWITCH_GROUP_MASTER: (1, NO_GROUP),
    Code.REMOVE_GROUP_MEMBER: (1, NO_GROUP),
}
#: Refused, and yet something comes of it, as in the Java broker: a reply that was not taken is stored, and so is what
#: tells of a pull that was sent elsewhere.
LEAVES_TRACES = {
    (Code.SEND_REPLY_MESSAGE, "properties"), (Code.SEND_REPLY_MESSAGE_V2, "i"), (Code.PULL_MESSAGE, "queueOffset"),
}  # fmt: skip
#: A Java tool leaves it out: what is missing is asked for where it is needed.
OPTIONAL = {(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, "aclFileFullPath")}


class Asker:
    """A broker of its own, and a client that asks it, and answers what it is asked."""

    def __init__(self, root: Path) -> None:
        self.bench = Bench(root)
        self.client = self.bench.client()
        self.prepared = prepare(self.ask)
        self.bench.parts.stats.collect()

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The one answer."""
        heard = self.client.ask_all(command)
        answers = []
        for _ in range(20):
            answers += [each for each in heard if each.is_response]
            if answers:
                break
            asked = [each for each in heard if not each.is_oneway]
            self.client.peer.transport.write(b"".join(encode_command(answer_to(each)) for each in asked))
            self.client.link.pump()
            self.bench.turn()
            heard = self.client.heard()
        assert [answer.opaque for answer in answers] == [command.opaque]
        self.bench.store.dispatch_now()
        return answers[0]

    def state(self) -> tuple[Any, ...]:
        """All that requests could have changed."""
        bench = self.bench
        store = bench.store
        return (
            store.log_end,
            bench.topics.snapshot(),
            bench.groups.snapshot(),
            bench.offsets.snapshot(),
            {name: set(clients) for name, clients in bench.producers.groups().items()},
            {name: repr(bench.consumers.group(name)) for name in (ONLINE, GROUP, "x")},
            bench.parts.live.current,
            len(bench.held),
        )


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    asker = Asker(tmp_path_factory.mktemp("bad") / "store")
    yield asker
    asker.bench.close()


def expected(field: Field, how: str, value: str | None) -> tuple[int, str | None]:
    """The code, and the remark where it is not success."""
    code = RequestCode(field.code)
    if value is None:
        if field.is_required and (code, field.key) not in OPTIONAL:
            return ResponseCode.SYSTEM_ERROR, f"the custom field <{field.key}> is null"
    elif field.is_number:
        bits = 32 if field.kind == "Int" else 64
        if how not in NUMBERS or not -(2 ** (bits - 1)) <= int(value) < 2 ** (bits - 1):
            remark = f"the custom field <{field.key}> is not a {bits}-bit integer: {value[:40]!r}"
            return ResponseCode.SYSTEM_ERROR, remark
    if code in ALWAYS:
        return ALWAYS[code]
    answered, remark = EXPECTED.get((code, field.key), {}).get(how, (ResponseCode.SUCCESS, None))
    if "message id" in (remark or "") and value is not None:
        value = repr(value[:80])
    return answered, None if remark is None else remark.format(value)


def test_every_code_is_here() -> None:
    assert HEADERS.keys() == CODES
    known = {(field.code, field.key) for code in HEADERS for field in fields_of(code)}
    assert known >= EXPECTED.keys() | OPTIONAL
    assert {how for rows in EXPECTED.values() for how in rows} <= {"missing", *NUMBERS, *TEXTS, *BOOLS}


@pytest.mark.parametrize("code", sorted(HEADERS), ids=lambda code: RequestCode(code).name)
@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_a_good_request_is_taken(asker: Asker, code: int, serialize_type: int) -> None:
    command = good_request(code, asker.prepared)
    assert command.ext_fields.keys() == {field.key for field in fields_of(code)}
    command.serialize_type = serialize_type
    answer = asker.ask(command)
    assert answer.code == ALWAYS.get(RequestCode(code), (ResponseCode.SUCCESS,))[0]
    assert answer.serialize_type in (serialize_type, JSON)


@pytest.mark.parametrize(
    "field",
    [field for code in HEADERS for field in fields_of(code)],
    ids=lambda f: f"{RequestCode(f.code).name}-{f.key}",
)
def test_a_wrong_field(asker: Asker, logged: Logged, field: Field) -> None:
    for how, text in wrong_values(field):
        value = text if text is None else text_for(field, how, text)
        command = good_request(field.code, asker.prepared)
        del command.ext_fields[field.key]
        if value is not None:
            command.ext_fields[field.key] = value
        before = asker.state()
        answer = asker.ask(command)
        code, remark = expected(field, how, value)
        assert (answer.code, answer.remark if answer.code else None) == (code, None if not code else remark), how
        if answer.code and (field.code, field.key) not in LEAVES_TRACES:
            assert asker.state() == before, how
    assert logged.failures == []


@pytest.mark.parametrize("how", NUMBERS)
def test_a_pull_is_held_for_no_longer_than_it_may(bench: Bench, client: Client, how: str) -> None:
    client.send()
    fields = {**pull_fields(TOPIC), "queueId": "1", "suspendTimeoutMillis": NUMBERS[how]}
    fields["sysFlag"] = str(int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND))
    answers = client.ask_all(RemotingCommand(RequestCode.PULL_MESSAGE, fields))
    for _ in range(21):
        bench.turn(30.0)
        client.tell(RemotingCommand(9999, flag=ONEWAY_FLAG))  # it is there still
        answers += client.heard()
    is_no_number = how in ("over long", "10**30")
    wanted = ResponseCode.SYSTEM_ERROR if is_no_number else ResponseCode.PULL_NOT_FOUND
    assert [answer.code for answer in answers] == [wanted]
    assert len(bench.held) == 0


# --- bodies


def put(asker: Asker, code: int, body: bytes) -> RemotingCommand:
    command = good_request(code, asker.prepared)
    command.body = body
    before = asker.state()
    answer = asker.ask(command)
    remark = answer.remark or ""
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    assert not re.search(r"Traceback|Error\b|Exception|Bad[A-Z]", remark)
    assert remark != UNEXPECTED_ERROR
    assert len(remark) < 1000
    if answer.code:
        assert remark
        assert asker.state() == before
    return answer


@pytest.mark.parametrize("code", NAMES, ids=lambda code: code.name)
@pytest.mark.parametrize("how", NO_OBJECTS)
def test_a_body_that_is_no_object(asker: Asker, logged: Logged, code: int, how: str) -> None:
    answer = put(asker, code, NO_OBJECTS[how])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert re.match(
        NAMES[RequestCode(code)] + r"(: | must be an object, not )|a body of 1200000 bytes: ", answer.remark
    )
    assert logged.failures == []


#: Of things in bodies: what of WRONG is right for them.
TAKEN = {
    "clientID": {"text", "a way out"},
    "clientId": {"text", "a way out"},
    "producerDataSet": {"missing", "null", "array"},
    "producerDataSet.0": {"missing"},
    "groupName": {"text"},
    "group": {"text", "empty text", "300 long", "100,000 long", "a way out"},
    "consumerDataSet": {"missing", "null", "array"},
    "consumerDataSet.0": {"missing"},
    "consumeType": {"missing", "null", "text", "empty text", "a way out", "number"},
    "messageModel": {"missing", "null", "text", "empty text", "a way out", "number"},
    "consumeFromWhere": {"missing", "null", "text", "empty text", "a way out", "number"},
    "subscriptionDataSet": {"missing", "null", "array"},
    "subscriptionDataSet.0": {"missing"},
    "topic": {"text"},
    "subString": {"missing", "null", "text", "empty text", "300 long", "a way out"},
    "tagsSet": {"missing", "null", "array", "array of texts"},
    "codeSet": {"missing", "null", "array"},
    "subVersion": {"missing", "null", "number", "negative", "over int"},
    "unitMode": {"missing", "null", "true"},
    "consumerGroup": {"text"},
    "mqSet": {"missing", "null", "array"},
    "mqSet.0": {"missing"},
    "brokerName": {"text", "empty text", "a way out"},
    "queueId": {"number"},
    "subscriptionData": {"missing", "null"},
    "expressionType": {"missing", "null", "empty text"},
    "retryQueueNums": {"missing", "null", "number"},
    "retryMaxTimes": {"missing", "null", "number", "negative"},
    "brokerId": {"missing", "null", "number", "negative", "over int"},
    "whichBrokerWhenConsumeSlowly": {"missing", "null", "number", "negative", "over int"},
    "consumeEnable": {"missing", "null", "true"},
    "consumeFromMinEnable": {"missing", "null", "true"},
    "consumeBroadcastEnable": {"missing", "null", "true"},
    "notifyConsumerIdsChangedEnable": {"missing", "null", "true"},
}  # fmt: skip
#: What is only asked about and not kept may be of any length.
NOT_KEPT = {(Code.CHECK_CLIENT_CONFIG, key) for key in ("clientId", "group", "topic", "subString")}


@pytest.mark.parametrize("code", NAMES, ids=lambda code: code.name)
def test_a_thing_in_a_body_that_is_wrong(asker: Asker, logged: Logged, code: int) -> None:
    good = good_request(code, asker.prepared).body
    for where, how, body in wrong_bodies(good):
        last = where.split(".")[-1] if not where.endswith(".0") else ".".join(where.split(".")[-2:])
        taken = TAKEN[last]
        if (code, last) in NOT_KEPT:
            taken = taken | {"empty text", "text", "300 long", "100,000 long", "a way out"}
        answer = put(asker, code, body)
        assert (answer.code == ResponseCode.SUCCESS) == (how in taken), (where, how, answer.remark)
    put(asker, code, good)
    assert logged.failures == []


BATCH = encode_batch([BatchEntry(0, b"one", b""), BatchEntry(0, b"two", b"KEYS\x01k")])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", BATCH[:-1], BATCH[:10], BATCH[3:], BATCH + b"\x00", b"\xff" * 40, b"\x7f" * 40, b"\x00" * 40,
        BATCH[:16] + b"\x7f\xff\xff\xff" + BATCH[20:], BATCH[:16] + b"\xff\xff\xff\xff" + BATCH[20:],
    ],
)  # fmt: skip
def test_a_batch_that_is_none(asker: Asker, logged: Logged, body: bytes) -> None:
    command = good_request(RequestCode.SEND_BATCH_MESSAGE, asker.prepared)
    command.body = body
    before = asker.state()
    answer = asker.ask(command)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark.startswith("the message is illegal")
    assert asker.state() == before
    assert logged.failures == []


@pytest.mark.parametrize(
    "code",
    [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE],
    ids=lambda code: code.name,
)
def test_a_message_that_is_too_long(asker: Asker, code: int) -> None:
    command = good_request(code, asker.prepared)
    command.body = bytes(64 * 1024 + 1)
    before = asker.state()
    answer = asker.ask(command)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "msg body length limit 65536B" in (answer.remark or "")
    assert asker.state() == before


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xff=1", 1),
        (b"traceOn", 1),
        (b"traceOn=perhaps", 1),
        (b"traceOn=\\u12", 1),
        (b"brokerPermission=-1", 1),
        (b"brokerPermission=" + b"9" * 400, 1),
        (b"nothing=1", 16),
        (b"storePathRootDir=/", 16),
        (b"x" * 70_000, 1),
        (b"traceOn=true\n" * 6000, 1),
    ],
)
def test_settings_that_are_none(asker: Asker, logged: Logged, body: bytes, code: int) -> None:
    command = good_request(RequestCode.UPDATE_BROKER_CONFIG, asker.prepared)
    command.body = body
    before = asker.state()
    answer = asker.ask(command)
    assert answer.code == code
    assert answer.remark
    assert answer.remark != UNEXPECTED_ERROR
    assert asker.state() == before
    assert logged.failures == []


@pytest.mark.parametrize("code", sorted(CODES - NAMES.keys()), ids=lambda code: RequestCode(code).name)
def test_a_body_that_nobody_asked_for(asker: Asker, logged: Logged, code: int) -> None:
    """Where a body is a message's it may be anything; where there is none to be, it is passed over."""
    command = good_request(code, asker.prepared)
    if code not in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.UPDATE_BROKER_CONFIG):
        command.body = b"[" * 5000
    answer = asker.ask(command)
    assert answer.code == ALWAYS.get(RequestCode(code), (ResponseCode.SUCCESS,))[0]
    assert logged.failures == []
