"""Topics, groups and queues that users pass: checked here, before any broker is asked."""

from __future__ import annotations

from mqbroker.client.errors import BadArgument
from mqbroker.errors import Refused
from mqbroker.wire import names
from mqbroker.wire.bodies import MessageQueue


def check_group(group: str) -> str:
    """Return `group`. Raises BadArgument if it is no name of a group."""
    return _checked("group", group, names.GROUP_LENGTH_MAX)


def check_topic(topic: str) -> str:
    """Return `topic`. Raises BadArgument if it is no name of a topic."""
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
