"""Consumers that read a topic from its beginning on while brokers fail, each with the offsets of its own group."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage
from mqbroker.client.blocking import PushConsumer
from tests.interop.fleet import Fleet, Namesrv
from tests.interop.history import place_of, skipped_by
from tests.interop.processes import PATIENCE_S, Event, ProcessFailed, eventually
from tests.interop.traffic import consumer


class Reader(Protocol):
    """A push consumer, alone in its group. `read`: what it got, as "message" events; grows when `look` is called."""

    name: str
    read: list[Event]

    def look(self) -> None:
        """Take what it got since the last time."""

    def end(self) -> None:
        """Have it leave its group, and take the last."""


class JavaReader:
    def __init__(self, fleet: Fleet, namesrv: Namesrv, topic: str) -> None:
        self.name = "the Java push consumer"
        self.read: list[Event] = []
        self._lines_read = 0
        self._peer = consumer(fleet, namesrv, topic, "java-readers", poll_ms=500)

    def look(self) -> None:
        end = len(self._peer.lines)
        events = map(json.loads, self._peer.lines[self._lines_read : end])
        self.read += [event for event in events if event["event"] == "message"]
        self._lines_read = end

    def end(self) -> None:
        self._peer.close_stdin()
        self._peer.finish()
        self.look()


class OurReader:
    def __init__(self, namesrv: Namesrv, topic: str) -> None:
        self.name = "the Python push consumer"
        self.read: list[Event] = []
        options = PushOptions(consume_from=ConsumeFrom.FIRST, rebalance_s=2, route_age_s=2)
        self._consumer = PushConsumer(namesrv.addr, "our-readers", self._take, options=options)
        self._consumer.subscribe(topic)
        self._consumer.start()

    def _take(self, message: ReceivedMessage) -> None:
        place = {"queueId": message.queue.queue_id, "queueOffset": message.queue_offset}
        self.read.append({"sha256": hashlib.sha256(message.body).hexdigest(), **place})

    def look(self) -> None:
        """Nothing is left to be taken."""

    def end(self) -> None:
        self._consumer.close()


def both_readers(fleet: Fleet, namesrv: Namesrv, topic: str, open_ones: ExitStack) -> list[Reader]:
    """One of each kind; they end with `open_ones`."""
    readers: list[Reader] = []
    for make in (lambda: JavaReader(fleet, namesrv, topic), lambda: OurReader(namesrv, topic)):
        reader: Reader = make()
        open_ones.callback(reader.end)
        readers.append(reader)
    return readers


def wait_for_all(readers: Sequence[Reader], acknowledged: Sequence[Event], patience_s: float = PATIENCE_S) -> None:
    """Return when each has read all that was acknowledged, or `patience_s` have passed."""
    places = {place_of(event) for event in acknowledged}

    def have_all() -> bool:
        for reader in readers:
            reader.look()
            if len(reader.read) < len(places) or skipped_by(reader.read, acknowledged):
                return False
        return True

    try:
        eventually("all was read", have_all, patience_s)
    except ProcessFailed:
        return
