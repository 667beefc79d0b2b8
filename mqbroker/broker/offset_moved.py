"""Telling of pulls that were sent to another offset: a message in the topic OFFSET_MOVED_EVENT for each.

Tag and key are the group, the body says where it asked and where it goes on. Source: PullMessageProcessor of 4.9.7. A
consumer whose offsets are wrong may pull as fast as it can, so that only so many a second are told of.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.errors import StoreError
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import MessageQueue, OffsetMovedEvent
from mqbroker.wire.codes import OFFSET_MOVED_EVENT, Prop, SysFlag
from mqbroker.wire.properties import reencode_properties

log = Logger()

EVENTS_PER_SECOND_MAX = 100


class OffsetMovedEvents:
    """Stores events.

    :param host: this broker's address as records keep it, 8 or 20 bytes.
    """

    def __init__(self, store: MessageStore, broker_name: str, host: bytes, clock: IReactorTime) -> None:
        self._store = store
        self._broker_name = broker_name
        self._host = host
        self._clock = clock
        self._second = 0
        self._told = 0

    def tell(self, group: str, topic: str, queue_id: int, asked: int, offset: int) -> None:
        """The pull of `group` at `asked` goes on at `offset`."""
        now = self._clock.seconds()
        if int(now) != self._second:
            self._second, self._told = int(now), 0
        if self._told >= EVENTS_PER_SECOND_MAX:
            return
        self._told += 1
        log.info(
            "{group} asked for offset {asked} of {topic} {queue}: it goes on at {offset}",
            group=group, asked=asked, topic=topic, queue=queue_id, offset=offset,
        )  # fmt: skip
        event = OffsetMovedEvent(group, MessageQueue(topic, self._broker_name, queue_id), asked, offset)
        properties = reencode_properties({Prop.KEYS: group, Prop.TAGS: group})
        flags = SysFlag.BORN_HOST_V6 if len(self._host) == 20 else 0
        message = (
            OFFSET_MOVED_EVENT.encode(), 0, 0, flags, int(now * 1000), self._host, 0, 0, event.to_json(), properties,
        )  # fmt: skip
        try:
            self._store.append([message])
        except StoreError as error:
            log.warn("no event of a moved offset is stored: {why}", why=str(error))
