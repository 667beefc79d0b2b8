"""A good request of every code that a broker serves, and what can be wrong with each field of its header.

They are about what `prepare` makes: a topic T with messages, groups with offsets, a client that is online. What changes
something has an object of its own, so that one request does not spoil the next. The same are put to a Java broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import VERSION, PullSysFlag, RequestCode
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import Header, camel_case
from mqbroker.wire.ids import offset_message_id, parse_offset_message_id
from mqbroker.wire.record import decode_records
from mqbroker.wire.requests import REQUESTS
from tests.broker.test_every_code import CODES

TOPIC, GROUP, ONLINE, CLIENT_ID = "T", "CG", "OnlineGroup", "client-1"
BORN_MS = 1_600_000_000_000

#: By code the header that its handler reads; None where it reads none. Offsets of groups with names of all kinds are
#: put last: Java's broker answers some others with an exception afterwards.
HEADERS: dict[int, type[Header] | None] = {
    code: REQUESTS[code].header for code in sorted(CODES, key=lambda code: (code == Code.UPDATE_CONSUMER_OFFSET, code))
}
#: What is changed by each of its requests: it is wanted anew for the next.
SPENT = {Code.END_TRANSACTION, Code.RESUME_CHECK_HALF_MESSAGE, Code.UNREGISTER_CLIENT}

# --- what may be wrong with a field

NOT_NUMBERS = ["", "x", "-", "1.5", "0x1", "1e3", " 1", "1 ", "NaN", "null", "9" * 400, "-" + "9" * 40]
NUMBERS = {
    "negative": "-1",
    "least int": str(-(2**31)),
    "most int": str(2**31 - 1),
    "over int": str(2**31),
    "least long": str(-(2**63)),
    "most long": str(2**63 - 1),
    "over long": str(2**63),
    "10**30": str(10**30),
}
TEXTS = {
    "empty": "",
    "blank": " ",
    "unknown": "Nobody",
    "a way out": "../x",
    "a control": "a\x01b\x02c",
    "not ascii": "\u00e9\u4e2d",
    "300 long": "n" * 300,
    "100,000 long": "n" * 100_000,
}
BOOLS = {"no bool": "maybe", "empty": "", "unknown": "TRUE "}


@attrs.frozen
class Field:
    """A field of a header: its name on the wire, and Int, Long, bool or str."""

    code: int
    key: str
    kind: str
    is_required: bool

    @property
    def is_number(self) -> bool:
        return self.kind in ("Int", "Long")


def fields_of(code: int) -> list[Field]:
    """The fields of the header of a code."""
    header = HEADERS[code]
    return [
        Field(
            code,
            field.metadata.get("key") or camel_case(field.name),
            str(field.type).removesuffix(" | None"),
            field.default is attrs.NOTHING,
        )
        for field in (attrs.fields(header) if header is not None else ())  # type: ignore[arg-type]
    ]


def wrong_values(field: Field) -> Iterator[tuple[str, str | None]]:
    """How it may be wrong, and its value then; None where it is missing."""
    yield "missing", None
    if field.is_number:
        for text in NOT_NUMBERS:
            yield f"no number: {text[:8]!r}", text
    yield from (NUMBERS if field.is_number else BOOLS if field.kind == "bool" else TEXTS).items()


def text_for(field: Field, how: str, text: str) -> str:
    """The wrong text for a field. Unknown to all is what no other request was about."""
    return f"{text}-{field.code}-{field.key}" if how == "unknown" and not field.is_number else text


# --- good requests


@attrs.frozen
class Half:
    """A half message, and where it is."""

    message_id: str
    queue_offset: int
    physical_offset: int


@attrs.frozen
class Prepared:
    """What is there that requests are about: a message of T, and how to get a new half message."""

    message_id: str
    physical_offset: int
    send_half: Callable[[], Half]


def send_fields(topic: str, properties: str, **more: object) -> dict[str, str]:
    """The fields of a send in their long names."""
    fields: dict[str, object] = {
        "producerGroup": "PG", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 0, "properties": properties, "reconsumeTimes": 0,
        "unitMode": "false", "batch": "false", "maxReconsumeTimes": 3, "bname": "broker-a",
    }  # fmt: skip
    return {key: str(value) for key, value in {**fields, **more}.items()}


_SHORT = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
    "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j", "unitMode": "k",
    "maxReconsumeTimes": "l", "batch": "m", "bname": "n",
}  # fmt: skip


def short(fields: dict[str, str]) -> dict[str, str]:
    return {_SHORT[key]: value for key, value in fields.items()}


def heartbeat(client_id: str = CLIENT_ID) -> bytes:
    """Of a client that consumes T in ONLINE, and produces."""
    subscription = {"topic": TOPIC, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    consumer = {
        "groupName": ONLINE, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    data = {"clientID": client_id, "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": [consumer]}
    return json.dumps(data).encode()


def prepare(ask: Callable[[RemotingCommand], RemotingCommand]) -> Prepared:
    """Make what the requests are about, of a broker that is new."""

    def well(code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        answer = ask(RemotingCommand(code, {key: str(value) for key, value in fields.items()}, body, version=VERSION))
        assert answer.code == 0, answer
        return answer

    def send_half() -> Half:
        answer = well(Code.SEND_MESSAGE_V2, b"half", **short(send_fields(TOPIC, "TRAN_MSG\x01true\x02PGROUP\x01PG")))
        message_id = answer.ext_fields["msgId"]
        return Half(message_id, int(answer.ext_fields["queueOffset"]), parse_offset_message_id(message_id)[1])

    for topic in (TOPIC, "Changed", "Deleted"):
        well(Code.UPDATE_AND_CREATE_TOPIC, **topic_fields(topic))
    for number in range(3):
        well(Code.SEND_MESSAGE_V2, b"%d" % number, **short(send_fields(TOPIC, f"KEYS\x01k{number}")))
    for group in (GROUP, "Committing", "Cloned"):
        well(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group_body(group))
        commit: dict[str, Any] = {"consumerGroup": group, "topic": TOPIC, "commitOffset": 1}
        for queue_id in range(4):
            well(Code.UPDATE_CONSUMER_OFFSET, queueId=queue_id, **commit)
    well(Code.HEART_BEAT, heartbeat())
    for queue_id in range(4):
        well(Code.UPDATE_CONSUMER_OFFSET, consumerGroup=ONLINE, topic=TOPIC, queueId=queue_id, commitOffset=0)
    # A Java broker answers who sends before a message is in its queue.
    for _ in range(20_000):
        if well(Code.GET_MAX_OFFSET, topic=TOPIC, queueId=0).ext_fields["offset"] == "3":
            break
    else:
        raise AssertionError("what was sent enters no queue")
    message = decode_records(well(Code.PULL_MESSAGE, **pull_fields(TOPIC)).body)[1]
    return Prepared(offset_message_id(message.store_host, message.physical_offset), message.physical_offset, send_half)


def topic_fields(topic: str) -> dict[str, Any]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


def group_body(group: str, **more: Any) -> bytes:
    config = {
        "groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
        "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True, **more,
    }  # fmt: skip
    return json.dumps(config).encode()


def pull_fields(topic: str) -> dict[str, Any]:
    return {
        "consumerGroup": GROUP, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": str(int(PullSysFlag.SUBSCRIPTION)), "commitOffset": "0", "suspendTimeoutMillis": "1000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", "bname": "broker-a",
    }  # fmt: skip


_QUEUE = {"topic": TOPIC, "queueId": "0", "bname": "broker-a"}
_LOCKS = {
    "consumerGroup": ONLINE, "clientId": CLIENT_ID,
    "mqSet": [{"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}],
}  # fmt: skip
_CHECK = {
    "clientId": CLIENT_ID, "group": ONLINE,
    "subscriptionData": {"topic": TOPIC, "subString": "a", "expressionType": "TAG"},
}  # fmt: skip
_ACCOUNT = {
    "accessKey": "somebody", "secretKey": "87654321", "whiteRemoteAddress": "", "admin": "false",
    "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB", "topicPerms": "T=PUB", "groupPerms": "CG=SUB",
}  # fmt: skip


def good_request(code: int, prepared: Prepared) -> RemotingCommand:
    """A request of `code` with all fields of its header, and each of them right."""
    fields, body = _good(code, prepared)
    return RemotingCommand(code, fields, body, version=VERSION)


def _good(code: int, prepared: Prepared) -> tuple[dict[str, str], bytes]:
    if code in _OF_MESSAGES:
        return _OF_MESSAGES[RequestCode(code)](prepared)
    fields, value = _PLAIN.get(RequestCode(code), ({}, None))
    return dict(fields), value if isinstance(value, bytes) else json.dumps(value).encode() if value else b""


def _send(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    return send_fields(TOPIC, "KEYS\x01sent"), b"body"


def _reply(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    properties = f"REPLY_TO_CLIENT\x01{CLIENT_ID}\x02CORRELATION_ID\x01c"
    return send_fields("DefaultCluster_REPLY_TOPIC", properties), b"reply"


def _batch(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    body = encode_batch([BatchEntry(0, b"one", b""), BatchEntry(0, b"two", b"TAGS\x01a")])
    return short(send_fields(TOPIC, "", batch="true")), body


def _end(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    half = prepared.send_half()
    return {
        "producerGroup": "PG", "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset), "commitOrRollback": "8", "fromTransactionCheck": "false",
        "msgId": "anything", "transactionId": "t", "bname": "broker-a",
    }, b""  # fmt: skip


def _resume(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    return {"msgId": prepared.send_half().message_id}, b""


def _back(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    return {
        "offset": str(prepared.physical_offset), "group": GROUP, "delayLevel": "0", "originMsgId": "m",
        "originTopic": TOPIC, "unitMode": "false", "maxReconsumeTimes": "16", "bname": "broker-a",
    }, b""  # fmt: skip


def _directly(prepared: Prepared) -> tuple[dict[str, str], bytes]:
    return {
        "consumerGroup": ONLINE, "clientId": CLIENT_ID, "msgId": prepared.message_id, "brokerName": "broker-a",
    }, b""  # fmt: skip


_OF_MESSAGES: dict[RequestCode, Callable[[Prepared], tuple[dict[str, str], bytes]]] = {
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: lambda prepared: (short(_send(prepared)[0]), b"body"),
    Code.SEND_BATCH_MESSAGE: _batch,
    Code.SEND_REPLY_MESSAGE: _reply,
    Code.SEND_REPLY_MESSAGE_V2: lambda prepared: (short(_reply(prepared)[0]), b"reply"),
    Code.CONSUMER_SEND_MSG_BACK: _back,
    Code.END_TRANSACTION: _end,
    Code.RESUME_CHECK_HALF_MESSAGE: _resume,
    Code.CONSUME_MESSAGE_DIRECTLY: _directly,
    Code.VIEW_MESSAGE_BY_ID: lambda prepared: ({"offset": str(prepared.physical_offset)}, b""),
}
_PLAIN: dict[RequestCode, tuple[dict[str, str], Any]] = {
    Code.SWITCH_GROUP_MASTER: ({}, b"1"),
    Code.REMOVE_GROUP_MEMBER: ({}, b"1"),
    Code.PULL_MESSAGE: (pull_fields(TOPIC), None),
    Code.QUERY_MESSAGE: (
        {"topic": TOPIC, "key": "k1", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}, None,
    ),
    Code.QUERY_CONSUMER_OFFSET: ({"consumerGroup": GROUP, **_QUEUE}, None),
    Code.UPDATE_CONSUMER_OFFSET: ({"consumerGroup": "Committing", "commitOffset": "2", **_QUEUE}, None),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: ({"timestamp": str(BORN_MS), **_QUEUE}, None),
    Code.GET_MAX_OFFSET: (_QUEUE, None),
    Code.GET_MIN_OFFSET: (_QUEUE, None),
    Code.GET_EARLIEST_MSG_STORETIME: (_QUEUE, None),
    Code.HEART_BEAT: ({}, heartbeat()),
    Code.UNREGISTER_CLIENT: ({"clientID": "gone", "producerGroup": "GonePG", "consumerGroup": "GoneCG"}, None),
    Code.CHECK_CLIENT_CONFIG: ({}, _CHECK),
    Code.GET_CONSUMER_LIST_BY_GROUP: ({"consumerGroup": ONLINE}, None),
    Code.LOCK_BATCH_MQ: ({}, _LOCKS),
    Code.UNLOCK_BATCH_MQ: ({}, _LOCKS),
    Code.UPDATE_AND_CREATE_TOPIC: (topic_fields("Changed"), None),
    Code.DELETE_TOPIC_IN_BROKER: ({"topic": "Deleted"}, None),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, group_body("ChangedGroup")),
    Code.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "DeletedGroup", "removeOffset": "true"}, None),
    Code.GET_CONSUMER_CONNECTION_LIST: ({"consumerGroup": ONLINE}, None),
    Code.GET_PRODUCER_CONNECTION_LIST: ({"producerGroup": "PG"}, None),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: (_ACCOUNT, None),
    Code.DELETE_ACL_CONFIG: ({"accessKey": "somebody"}, None),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ({"globalWhiteAddrs": "10.0.0.9", "aclFileFullPath": ""}, None),
    Code.GET_TOPIC_STATS_INFO: ({"topic": TOPIC}, None),
    Code.QUERY_CONSUME_TIME_SPAN: ({"topic": TOPIC, "group": GROUP}, None),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: ({"topic": TOPIC}, None),
    Code.GET_CONSUME_STATS: ({"consumerGroup": GROUP, "topic": TOPIC}, None),
    Code.QUERY_CORRECTION_OFFSET: ({"filterGroups": "X", "compareGroup": GROUP, "topic": TOPIC}, None),
    Code.QUERY_CONSUME_QUEUE: (
        {"topic": TOPIC, "queueId": "0", "index": "0", "count": "2", "consumerGroup": ONLINE}, None,
    ),
    Code.CLONE_GROUP_OFFSET: ({"srcGroup": GROUP, "destGroup": "Cloned", "topic": TOPIC, "offline": "true"}, None),
    Code.GET_CONSUMER_RUNNING_INFO: (
        {"consumerGroup": ONLINE, "clientId": CLIENT_ID, "jstackEnable": "false"}, None,
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (
        {"topic": TOPIC, "group": ONLINE, "timestamp": "0", "isForce": "true"}, None,
    ),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (
        {"topic": TOPIC, "group": ONLINE, "clientAddr": CLIENT_ID}, None,
    ),
    Code.UPDATE_BROKER_CONFIG: ({}, b"traceOn=true"),
    Code.VIEW_BROKER_STATS_DATA: ({"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}, None),
    Code.GET_BROKER_CONSUME_STATS: ({"isOrder": "false"}, None),
}  # fmt: skip


# --- as a consumer answers what the broker asks it


def answer_to(request: RemotingCommand) -> RemotingCommand:
    """What the client that is online says to a request of the broker's."""
    bodies = {Code.GET_CONSUMER_STATUS_FROM_CLIENT: b'{"messageQueueTable":{}}'}
    return RemotingCommand.response(request, body=bodies.get(RequestCode(request.code), b"{}"))
