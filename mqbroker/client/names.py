"""Topics, groups and queues that users pass: checked here, before any broker is asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeGuard

import attrs

from mqbroker.client.errors import BadArgument
from mqbroker.errors import Refused
from mqbroker.wire import names
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import (
    CID_RMQ_SYS_PREFIX,
    CLIENT_INNER_PRODUCER_GROUP,
    DLQ_PREFIX,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    TOOLS_CONSUMER_GROUP,
    is_system_topic,
)
from mqbroker.wire.names import LMQ_PREFIX

if TYPE_CHECKING:
    from mqbroker.client.messages import ReceivedMessage


def check_group(group: str) -> str:
    """Return `group`. Raises BadArgument if it is no name of a group."""
    return _checked("group", group, names.GROUP_LENGTH_MAX)


def check_topic(topic: str) -> str:
    """Return `topic`. Raises BadArgument if it is not the name of a topic."""
    return _checked("topic", topic, names.TOPIC_LENGTH_MAX)


def _checked(what: str, name: str, length_max: int) -> str:
    check = names.check_group if what == "group" else names.check_topic
    try:
        if isinstance(name, str):
            return check(name)
    except Refused:
        pass
    right = f"text of at most {length_max} characters from a to z, A to Z, 0 to 9, and %, |, _, -"
    raise BadArgument(what, right, name)


def check_queue(queue: object, topic: str | None = None) -> None:
    """Raises BadArgument unless it is a queue, of `topic` if that is given."""
    is_queue = isinstance(queue, MessageQueue) and type(queue.queue_id) is int and queue.queue_id >= 0
    if not is_queue or (topic is not None and queue.topic != topic):  # type: ignore[attr-defined]
        of_topic = "" if topic is None else f" of topic {topic}"
        raise BadArgument("queue", f"a MessageQueue{of_topic} with a queue_id of at least 0", queue)


def check_namespace(namespace: object) -> str:
    """Return `namespace`, which may be empty. Raises BadArgument."""
    if not isinstance(namespace, str) or (namespace and not _legal_namespace(namespace)):
        raise BadArgument("namespace", "text of characters from a to z, A to Z, 0 to 9, and |, _, -", namespace)
    return namespace


def within(namespace: str, name: str) -> str:
    """The topic or group `name` as brokers know it: with the namespace, as Java's clients write it."""
    if not namespace:
        return name
    prefix, rest = _parts(name)
    if _is_system(name) or rest.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{rest}"


def bare(name: str, namespace: str | None = None) -> str:
    """The topic or group `name` without its namespace, or without this one if it is given."""
    if "%" not in name:
        return name
    prefix, rest = _parts(name)
    found, separator, inside = rest.partition("%")
    if not separator or not found or _is_system(name) or (namespace is not None and found != namespace):
        return name
    return prefix + inside


def queue_within(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue as brokers know it. Raises BadArgument if it is none."""
    check_queue(queue)
    return _renamed(queue, within(namespace, queue.topic)) if namespace else queue


def bare_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue as the user knows it."""
    return _renamed(queue, bare(queue.topic, namespace)) if namespace else queue


def bare_message(namespace: str, message: ReceivedMessage) -> ReceivedMessage:
    """The message as the user knows it."""
    if not namespace:
        return message
    return attrs.evolve(message, topic=bare(message.topic, namespace), queue=bare_queue(namespace, message.queue))


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text that UTF-8 can encode: without lone surrogates."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _renamed(queue: MessageQueue, topic: str) -> MessageQueue:
    return MessageQueue(topic, queue.broker_name, queue.queue_id)


def _parts(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system(name: str) -> bool:
    is_group = name.startswith(CID_RMQ_SYS_PREFIX) or name in (TOOLS_CONSUMER_GROUP, CLIENT_INNER_PRODUCER_GROUP)
    return is_group or is_system_topic(name) or name.endswith(f"_{REPLY_TOPIC_POSTFIX}") or name.startswith(LMQ_PREFIX)


_legal_namespace = re.compile(r"[|a-zA-Z0-9_-]+").fullmatch
