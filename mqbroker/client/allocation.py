"""Allocation: how a group's members share the queues of a topic. As the strategies of Java's 4.9.7, with the same
results for the same inputs, since members of both kinds share groups.

A strategy is a function of this member's client id, the topic's queues and the group's client ids, both sorted. All
members of a group must have the same one.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import attrs

from mqbroker.client.errors import BadArgument
from mqbroker.client.routes import java_order
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RETRY_PREFIX

T = TypeVar("T")

#: The queues of the member `client_id`: allocation(client_id, queues, client_ids).
Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], Iterable[MessageQueue]]


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> Sequence[MessageQueue]:
    """Consecutive queues to each member; the first members may get one more. Java's AllocateMessageQueueAveragely."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return queues[start : start + share + (1 if index < more else 0)]


def allocate_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> Sequence[MessageQueue]:
    """A queue to each member in turn, so that each has queues of all brokers. Java's
    AllocateMessageQueueAveragelyByCircle."""
    return queues[client_ids.index(client_id) :: len(client_ids)] if client_id in client_ids else []


def _frozen(name: str, values: Iterable[T], kind: type[T]) -> frozenset[T]:
    right = "several texts" if kind is str else "several MessageQueues"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise BadArgument(name, right, values)
    found = frozenset(values)
    for each in found:
        if not isinstance(each, kind):
            raise BadArgument(name, right, each)
    return found


def _rooms(values: Iterable[str]) -> frozenset[str]:
    return _frozen("rooms", values, str)


def _queues(values: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
    return _frozen("queues", values, MessageQueue)


@attrs.frozen
class AllocateByConsistentHash:
    """Few queues move when members join or leave. Java's AllocateMessageQueueConsistentHash, with its MD5."""

    #: Places of each member on the ring.
    virtual_nodes: int = attrs.field(default=10)

    @virtual_nodes.validator
    def _check(self, _: object, value: object) -> None:
        if type(value) is not int or not 1 <= value <= 10_000:
            raise BadArgument("virtual_nodes", "a whole number from 1 to 10000", value)

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        # Of members with an equal place the later one has it.
        ring = {_md5(f"{each}-{n}"): each for each in client_ids for n in range(self.virtual_nodes)}
        places = sorted(ring)
        found = []
        for queue in queues:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect_left(places, _md5(text))
            if places and ring[places[at % len(places)]] == client_id:
                found.append(queue)
        return found


def _md5(text: str) -> int:
    digest = hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


@attrs.frozen
class AllocateByMachineRoom:
    """Queues of brokers that are named "room@name", of these `rooms` only. Java's AllocateMessageQueueByMachineRoom."""

    rooms: frozenset[str] = attrs.field(converter=_rooms)

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        near = [queue for queue in queues if _room(queue.broker_name) in self.rooms]
        index, count = client_ids.index(client_id), len(client_ids)
        share, more = divmod(len(near), count)
        last = near[index + share * count : index + share * count + 1] if more > index else []
        return near[share * index : share * (index + 1)] + last


def _room(broker_name: str) -> str | None:
    # As Java splits: without what is empty at the end.
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


@attrs.frozen
class AllocateNearby:
    """The queues of a machine room to the members in that room, and those of rooms without members to all members.
    Java's AllocateMachineRoomNearby.

    `room_of_queue` and `room_of_member` return the room of a queue's broker and of a client id, as non-empty strings.
    `inner` shares the queues of a room.
    """

    room_of_queue: Callable[[MessageQueue], str] = attrs.field()
    room_of_member: Callable[[str], str] = attrs.field()
    inner: Allocation = attrs.field(default=allocate_averagely)

    @room_of_queue.validator
    @room_of_member.validator
    @inner.validator
    def _check(self, field: attrs.Attribute[object], value: object) -> None:
        check_allocation(field.name, value)

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_filled("room_of_queue", queue, self.room_of_queue(queue)), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for each in client_ids:
            members_of.setdefault(_filled("room_of_member", each, self.room_of_member(each)), []).append(each)
        mine = next(room for room, members in members_of.items() if client_id in members)
        found = list(self.inner(client_id, queues_of.pop(mine), members_of[mine])) if mine in queues_of else []
        for room in sorted(queues_of, key=java_order):
            if room not in members_of:
                found += self.inner(client_id, queues_of[room], client_ids)
        return found


def _filled(name: str, of: object, room: object) -> str:
    if not isinstance(room, str) or not room:
        raise BadArgument(f"what {name} returns for {of}", "the name of a machine room", room)
    return room


@attrs.frozen
class AllocateByConfig:
    """These `queues`, regardless of the other members. Java's AllocateMessageQueueByConfig.

    Retry queues that it does not name are shared as by `allocate_averagely`; in Java, no member consumes them.
    """

    queues: frozenset[MessageQueue] = attrs.field(converter=_queues)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        found = [queue for queue in queues if queue in self.queues]
        if not found and queues and queues[0].topic.startswith(RETRY_PREFIX):
            return allocate_averagely(client_id, queues, client_ids)
        return found


class RebalanceListener:
    """Is called when the queues of a member change; override the methods that you need. If one returns an awaitable,
    that is awaited, for 10 s at most.

    The methods are called on the event loop's thread, and must not block; in the blocking API on a thread of their own.
    """

    def assigned(self, queues: frozenset[MessageQueue]) -> object:
        """Called when this member has got `queues`."""

    def revoked(self, queues: frozenset[MessageQueue]) -> object:
        """Called before this member gives up `queues` and commits their offsets, because others get them or it
        leaves."""

    def lost(self, queues: frozenset[MessageQueue]) -> object:
        """Called when this member was away for so long that others may have `queues`; nothing is committed."""


def check_allocation(name: str, value: object) -> None:
    """Raises BadArgument unless it can be called."""
    if not callable(value) or isinstance(value, type):
        raise BadArgument(name, "a function, or an object that can be called", value)


def allocated(
    allocation: Allocation, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> frozenset[MessageQueue]:
    """The queues that a strategy assigns to `client_id`. Raises BadArgument if it raises, or returns anything but a
    subset of the queues."""
    name = getattr(allocation, "__qualname__", None) or repr(allocation)
    try:
        found = frozenset(allocation(client_id, queues, client_ids))
    except BadArgument:
        raise
    except Exception as error:
        raise BadArgument(
            f"the allocation {name}", "a function that returns some of the queues it gets", error
        ) from error
    other = found.difference(queues)
    if other:
        right = "some of the queues that it gets"
        raise BadArgument(f"what the allocation {name} returns", right, min(map(str, other)))
    return found
