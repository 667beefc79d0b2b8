"""Conversion of delayed and half messages for the system topics they wait in, and back to the real topic.

A message with delay level n waits in queue n-1 of SCHEDULE_TOPIC_XXXX, a half message of a transaction in queue 0 of
RMQ_SYS_TRANS_HALF_TOPIC. Its properties keep its real topic and queue. Properties and rules are those of
SendMessageProcessor, ScheduleMessageService and TransactionalMessageBridge of 4.9.7.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mqbroker.errors import MQError, Refused
from mqbroker.wire.codes import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, Prop, ResponseCode
from mqbroker.wire.names import TOPIC_LENGTH_MAX, check_topic
from mqbroker.wire.properties import decode_properties, find_property, reencode_properties
from mqbroker.wire.record import NewMessage, RawRecord, Record, encode_host

QUEUE_ID_MAX = 65_535

#: Bytes of properties that a send leaves free, so that each later copy of the message fits a record: the real topic and
#: queue, the delay, the origin of a retry, the number of checks (about 400 bytes), and what a Java consumer adds when
#: it sends a message to the retry topic itself (about 200).
COPY_ROOM = 1024
#: Digits, and a comma, of a message's offset in one of the queues that it names.
_OFFSET_BYTES_MAX = 20
#: Properties that copies have, and delayed and half messages from the beginning.
_OVERWRITTEN = {Prop.REAL_TOPIC, Prop.REAL_QUEUE_ID, Prop.WAIT_STORE_MSG_OK}
_INT_MAX = 0x7FFFFFFF
_is_integer = re.compile(r"[+-]?\d{1,20}").fullmatch
#: Delays that only brokers of 5.x know.
_TIMERS = {Prop.TIMER_DELAY_SEC, Prop.TIMER_DELAY_MS, Prop.TIMER_DELIVER_MS}

_REAL_TOPIC = f"{Prop.REAL_TOPIC}\x01".encode()
_REAL_QUEUE_ID = f"{Prop.REAL_QUEUE_ID}\x01".encode()
_INNER_OFFSET = Prop.INNER_MULTI_QUEUE_OFFSET.encode()


# --- whether a response waits for the disk


def waits(value: str | None) -> bool:
    """Whether the response to a send with this value of WAIT waits until the message is on the disk."""
    return value is None or value.lower() != "false"


# --- into the system topics


def copy_room(properties: dict[str, str]) -> int:
    """Bytes of properties that a message leaves free for its copies."""
    names = properties.get(Prop.INNER_MULTI_DISPATCH)
    room = COPY_ROOM
    if names is not None:
        room += len(_INNER_OFFSET) + 2 + _OFFSET_BYTES_MAX * (names.count(",") + 1)
    for name in _OVERWRITTEN & properties.keys():
        room -= len(name) + len(properties[name].encode()) + 2
    return room


def half_target(properties: dict[str, str], group: str, topic: str, queue_id: int) -> tuple[str, int]:
    """(topic, queue) where a half message is stored. Adds its real topic and queue, and the producer group to check
    with, to its properties. A delayed message is delayed when it is committed."""
    properties.setdefault(Prop.PRODUCER_GROUP, group)
    _keep_real_target(properties, topic, queue_id)
    return TRANS_HALF_TOPIC, 0


def delay_level(properties: dict[str, str]) -> int:
    """The delay level that a message asks for; 0 or less for none. Raises Refused if it is not a number of Java's."""
    text = properties.get(Prop.DELAY_TIME_LEVEL)
    if text is None:
        return 0
    level = int(text) if _is_integer(text) else _INT_MAX + 1
    if not -_INT_MAX - 1 <= level <= _INT_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: delay level {text[:20]!r} is not a number"
        )
    return level


def refuse_timers(properties: dict[str, str]) -> None:
    """Raise Refused, as a broker of 5.3 does whose timers are off, if a message asks for a delay that is no level. A
    delay level counts instead of it, which is dropped."""
    asked = _TIMERS & properties.keys()
    if not asked:
        return
    if delay_level(properties) <= 0:
        if Prop.TIMER_OUT_MS in properties:  # it was delayed so, by a broker that can do it
            return
        remark = "accurate timer message is not enabled, timerWheelEnable is false"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    for name in asked:
        del properties[name]


def delayed_target(properties: dict[str, str], topic: str, queue_id: int, level_max: int) -> tuple[str, int]:
    """(topic, queue) where a message with these properties is stored. Adds the real topic and queue to the properties
    of a delayed message. Raises Refused if the delay level is not a number."""
    level = min(delay_level(properties), level_max)
    if level <= 0:
        return topic, queue_id
    properties[Prop.DELAY_TIME_LEVEL] = str(level)
    _keep_real_target(properties, topic, queue_id)
    return SCHEDULE_TOPIC, schedule_queue(level)


def schedule_queue(level: int) -> int:
    """The queue of the schedule topic for a delay level, as in ScheduleMessageService of 4.9.7."""
    return level - 1


def schedule_level(queue_id: int) -> int:
    """The delay level of a queue of the schedule topic."""
    return queue_id + 1


def _keep_real_target(properties: dict[str, str], topic: str, queue_id: int) -> None:
    properties[Prop.REAL_TOPIC] = topic
    properties[Prop.REAL_QUEUE_ID] = str(queue_id)


# --- back to the real topic


class NoRealTarget(MQError):
    """A message's properties do not name a valid real topic and queue."""


def real_target(properties: bytes) -> tuple[bytes, int]:
    """The real (topic, queue) of a message in a system topic, from its properties. Raises NoRealTarget."""
    return _target(find_property(properties, _REAL_TOPIC), find_property(properties, _REAL_QUEUE_ID))


def real_target_of(record: Record) -> tuple[bytes, int]:
    """As `real_target`, for a decoded record."""
    topic, queue_id = record.properties.get(Prop.REAL_TOPIC, ""), record.properties.get(Prop.REAL_QUEUE_ID, "")
    return _target(topic.encode(), queue_id.encode())


def _target(topic: bytes, number: bytes) -> tuple[bytes, int]:
    queue_id = int(number) if number.isdigit() and len(number) <= 9 else -1
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise NoRealTarget(f"it is for queue {number[:20]!r} of {topic[:255]!r}")
    return _checked(topic) if len(topic) <= TOPIC_LENGTH_MAX else _check(topic), queue_id


def _check(name: bytes) -> bytes:
    """Return `name`; raise NoRealTarget if it is not a topic that a message can be for."""
    try:
        topic = check_topic(name.decode("utf-8", "replace"))
    except MQError as error:
        raise NoRealTarget(str(error)) from None
    if topic == TRANS_HALF_TOPIC:
        raise NoRealTarget(f"it is for {topic}")
    return name


_checked = lru_cache(1024)(_check)


def as_delivered(properties: bytes) -> bytes:
    """The properties of a delayed message once it is delivered: as in Java all but its offsets in other queues while it
    waited. Hot path."""
    return without(properties, Prop.INNER_MULTI_QUEUE_OFFSET) if _INNER_OFFSET in properties else properties


def without(properties: bytes, *names: str) -> bytes:
    """The properties without those of these names."""
    found = decode_properties(properties)
    return reencode_properties({name: value for name, value in found.items() if name not in names})


def stored_again(
    record: RawRecord | Record,
    topic: bytes,
    queue_id: int,
    properties: bytes,
    *,
    sys_flag: int | None = None,
    prepared_offset: int = 0,
    more_reconsumed: int = 0,
) -> NewMessage:
    """Build a message from a record, for another topic and queue and with other properties."""
    host = record.born_host
    return (
        topic,
        queue_id,
        record.flag,
        record.sys_flag if sys_flag is None else sys_flag,
        record.born_timestamp,
        host if isinstance(host, bytes) else encode_host(host),
        min(record.reconsume_times + more_reconsumed, _INT_MAX),
        prepared_offset,
        record.body,
        properties,
    )
