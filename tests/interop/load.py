"""Producers that send all the time, and what they were told of each message."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from mqbroker.client import Message, ProducerOptions, SendStatus
from mqbroker.client.blocking import Producer
from mqbroker.errors import MQError
from tests.interop.fleet import Fleet, Namesrv
from tests.interop.peers import Peer
from tests.interop.processes import PATIENCE_S, Event, eventually

#: Between two sends of a producer.
INTERVAL_MS = 4
SEND_TIMEOUT_MS = 3000


class Sender(Protocol):
    """A producer. `acknowledged`: its "sent" events with SEND_OK, with the time of the monotonic clock `at`; `failed`:
    what it was told of all others. Both grow when `look` is called."""

    acknowledged: list[Event]
    failed: list[str]

    def look(self) -> None:
        """Take what it was told since the last time."""

    def end(self) -> None:
        """Stop it, and take the last."""


class JavaSender:
    """Reads what is new only: there are tens of thousands of lines."""

    def __init__(self, producer: Peer) -> None:
        self._producer = producer
        self._read = 0
        self.acknowledged: list[Event] = []
        self.failed: list[str] = []

    @classmethod
    def start(cls, fleet: Fleet, namesrv: Namesrv, topic: str, **options: object) -> "JavaSender":
        options = {
            "prefix": "load",
            "interval_ms": INTERVAL_MS,
            "timeout_ms": SEND_TIMEOUT_MS,
            "poll_ms": 500,
        } | options
        return cls(fleet.peer("produce", namesrv, topic=topic, count=10_000_000, **options))

    def look(self) -> None:
        end = len(self._producer.lines)
        for line, at in zip(self._producer.lines[self._read : end], self._producer.at[self._read : end], strict=True):
            event = json.loads(line)
            if event["event"] == "sent" and event["status"] == "SEND_OK":
                self.acknowledged.append({**event, "at": at})
            elif event["event"] in ("sent", "failed"):
                self.failed.append(line)
        self._read = end

    def end(self) -> None:
        self._producer.close_stdin()
        self._producer.finish()
        self.look()


class OurSender:
    """The producer of this project, on a thread of its own."""

    def __init__(
        self, namesrv: Namesrv, topic: str, prefix: str, *, delay_level: int = 0, retries: int | None = None
    ) -> None:
        self.acknowledged: list[Event] = []
        self.failed: list[str] = []
        self._ended = threading.Event()
        self._topic, self._prefix, self._delay_level = topic, prefix, delay_level
        self._producer = Producer(namesrv.addr, f"{prefix}-producers", options=ProducerOptions(retries=retries))
        self._thread = threading.Thread(target=self._run, name=prefix, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        index = 0
        while not self._ended.wait(INTERVAL_MS / 1000):
            body = f"{self._prefix} {index} ".encode()
            index += 1
            try:
                result = self._producer.send(Message(self._topic, body, delay_level=self._delay_level))
            except MQError as error:
                self.failed.append(str(error))
                continue
            if result.status is not SendStatus.SEND_OK:
                self.failed.append(result.status.name)
                continue
            place = {"queueId": result.queue.queue_id, "queueOffset": result.queue_offset}
            digest = hashlib.sha256(body).hexdigest()
            self.acknowledged.append({"sha256": digest, **place, "at": time.monotonic()})

    def look(self) -> None:
        """Nothing is left to be taken."""

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._producer.close()


class Load:
    """What the producers were told so far; a peer is a Java one that was started."""

    def __init__(self, *senders: Sender | Peer) -> None:
        self.senders: list[Sender] = [JavaSender(each) if isinstance(each, Peer) else each for each in senders]
        self._count = 0
        self._grown_at = time.monotonic()
        self._longest_pause_s = 0.0

    def count(self) -> int:
        """How many messages were acknowledged."""
        for sender in self.senders:
            sender.look()
        now, before = time.monotonic(), self._count
        self._count = sum(len(sender.acknowledged) for sender in self.senders)
        self._longest_pause_s = max(self._longest_pause_s, now - self._grown_at)
        if self._count > before:
            self._grown_at = now
        return self._count

    def longest_pause_s(self) -> float:
        """The longest time without an acknowledgement since this was last asked."""
        self.count()
        found, self._longest_pause_s = self._longest_pause_s, 0.0
        return found

    def wait(self, what: str, holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """As `eventually`; and see what is acknowledged meanwhile."""
        return eventually(what, lambda: (self.count() and False) or holds(), patience_s)

    def wait_for(self, seconds: float) -> None:
        """Let the load go on."""
        end = time.monotonic() + seconds
        self.wait("time passes", lambda: time.monotonic() > end, patience_s=seconds + 10)

    def wait_until_it_goes_on(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until each producer has 50 more acknowledged."""
        self.count()
        wanted = [(sender, len(sender.acknowledged) + 50) for sender in self.senders]
        self.wait(
            "messages are acknowledged again",
            lambda: all(len(sender.acknowledged) > count for sender, count in wanted),
            patience_s,
        )

    def end(self) -> list[Event]:
        """Stop sending; returns what was acknowledged."""
        for sender in self.senders:
            sender.end()
        self.count()
        return [event for sender in self.senders for event in sender.acknowledged]
