from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from mqbroker.wire import codes
from mqbroker.wire.codes import LanguageCode, Perm, Prop, PullSysFlag, RequestCode, ResponseCode, SysFlag

# Ours, where the name is not Java's without its prefix or suffix.
SYS_FLAG_NAMES = {
    "BORNHOST_V6_FLAG": "BORN_HOST_V6",
    "STOREHOSTADDRESS_V6_FLAG": "STORE_HOST_V6",
    "COMPRESSION_TYPE_COMPARATOR": "COMPRESSION_MASK",
}
TOPIC_NAMES = {
    "AUTO_CREATE_TOPIC_KEY_TOPIC": "AUTO_CREATE_TOPIC",
    "RMQ_SYS_OFFSET_MOVED_EVENT": "OFFSET_MOVED_EVENT",
    "SYSTEM_TOPIC_PREFIX": "SYSTEM_TOPIC_PREFIX",
}
CONSTANT_NAMES = {
    "RETRY_GROUP_TOPIC_PREFIX": "RETRY_PREFIX",
    "DLQ_GROUP_TOPIC_PREFIX": "DLQ_PREFIX",
    "UNIQUE_MSG_QUERY_FLAG": "UNIQUE_MSG_QUERY_FLAG",
}


#: Of requests that only our brokers answer.
OURS = {"SWITCH_GROUP_MASTER": 29_001, "REMOVE_GROUP_MEMBER": 29_002}


def constants(owner: type) -> dict[str, object]:
    return {name: value for name, value in vars(owner).items() if name.isupper()}


@pytest.mark.parametrize("enum", [RequestCode, ResponseCode, LanguageCode])
def test_every_code_has_its_value_and_there_are_no_others(
    protocol: dict[str, dict[str, Any]], enum: type[IntEnum]
) -> None:
    ours = OURS if enum is RequestCode else {}
    assert {member.name: member.value for member in enum} == {**protocol["codes"][enum.__name__], **ours}
    assert all(0 < value < 2**15 for value in ours.values())  # as the binary header has room for


def test_message_sys_flags(protocol: dict[str, dict[str, Any]]) -> None:
    wanted = {
        SYS_FLAG_NAMES.get(name, name.removesuffix("_FLAG").removesuffix("_TYPE")): value
        for name, value in protocol["codes"]["MessageSysFlag"].items()
    }
    found = constants(SysFlag)
    assert found.pop("TRANSACTION_MASK") == wanted["TRANSACTION_ROLLBACK"]
    assert found == wanted


def test_pull_sys_flags(protocol: dict[str, dict[str, Any]]) -> None:
    wanted = {name.removeprefix("FLAG_"): value for name, value in protocol["codes"]["PullSysFlag"].items()}
    assert constants(PullSysFlag) == wanted


def test_permissions(protocol: dict[str, dict[str, Any]]) -> None:
    wanted = {name.removeprefix("PERM_"): value for name, value in protocol["codes"]["PermName"].items()}
    assert constants(Perm) == wanted


def test_property_keys(protocol: dict[str, dict[str, Any]]) -> None:
    wanted = dict(protocol["codes"]["MessageConst"])
    assert wanted.pop("KEY_SEPARATOR") == codes.KEY_SEPARATOR
    ours = constants(Prop)
    # Of 5.x clients; they are refused.
    later = {name: ours.pop(name) for name in list(ours) if name.startswith("TIMER_")}
    assert later == {name: name for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS")}
    assert ours == {name.removeprefix("PROPERTY_"): value for name, value in wanted.items()}


def test_system_topics(protocol: dict[str, dict[str, Any]]) -> None:
    wanted = dict(protocol["codes"]["TopicValidator"])
    assert wanted.pop("TOPIC_MAX_LENGTH") == 127
    for name, value in wanted.items():
        ours = TOPIC_NAMES.get(name, name.removeprefix("RMQ_SYS_"))
        assert vars(codes)[ours] == value, name
    assert {value for name, value in wanted.items() if name != "SYSTEM_TOPIC_PREFIX"} == codes.SYSTEM_TOPICS


def test_other_system_names(protocol: dict[str, dict[str, Any]]) -> None:
    for name, value in protocol["codes"]["MixAll"].items():
        assert vars(codes)[CONSTANT_NAMES.get(name, name)] == value, name


def test_topics_that_only_the_broker_writes_to() -> None:
    assert {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    } == codes.NO_SEND_TOPICS


@pytest.mark.parametrize("topic", ["TBW102", "SELF_TEST_TOPIC", "rmq_sys_anything", "rmq_sys_"])
def test_system_topics_are_told(topic: str) -> None:
    assert codes.is_system_topic(topic)


@pytest.mark.parametrize("topic", ["", "TopicTest", "tbw102", "RMQ_SYS_", "%RETRY%rmq_sys_x"])
def test_other_topics_are_not_system_topics(topic: str) -> None:
    assert not codes.is_system_topic(topic)
