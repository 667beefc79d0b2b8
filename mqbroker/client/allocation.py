"""Which queues of a topic a member of a group takes: AllocateMessageQueueAveragely of 4.9.7.

Java and Python members share groups, so all must come to the same split from the same two lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqbroker.wire.bodies import MessageQueue


def _utf16(text: str) -> bytes:
    """A key that sorts as Java's compareTo does: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """By topic, broker name and queue id, as Java sorts them."""
    return sorted(queues, key=lambda q: (_utf16(q.topic), _utf16(q.broker_name), q.queue_id))


def allocate_averagely(me: str, queues: Iterable[MessageQueue], members: Iterable[str]) -> list[MessageQueue]:
    """The queues of `me`: consecutive, the first members take one more. None where `me` is not a member."""
    everyone: Sequence[str] = sorted(set(members), key=_utf16)
    if me not in everyone:
        return []
    ordered = sorted_queues(queues)
    share, more = divmod(len(ordered), len(everyone))
    index = everyone.index(me)
    start = index * share + min(index, more)
    return ordered[start : start + share + (1 if index < more else 0)]
