"""A Java producer that sends all the time, and what it was told of each message."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.interop.peers import Peer
from tests.interop.processes import PATIENCE_S, Event, eventually


class Load:
    """What was acknowledged so far. Reads what is new only: there are tens of thousands of lines."""

    def __init__(self, producer: Peer) -> None:
        self._producer = producer
        self._read = 0
        self._grown_at = time.monotonic()
        self._longest_pause_s = 0.0
        self.acknowledged: list[Event] = []

    def count(self) -> int:
        """How many messages were acknowledged."""
        lines = self._producer.lines
        now, before = time.monotonic(), len(self.acknowledged)
        for line in lines[self._read : (end := len(lines))]:
            event = json.loads(line)
            if event["event"] == "sent" and event["status"] == "SEND_OK":
                self.acknowledged.append(event)
        self._read = end
        self._longest_pause_s = max(self._longest_pause_s, now - self._grown_at)
        if len(self.acknowledged) > before:
            self._grown_at = now
        return len(self.acknowledged)

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
        """Wait until 50 more are acknowledged."""
        before = self.count()
        self.wait("messages are acknowledged again", lambda: len(self.acknowledged) > before + 50, patience_s)

    def end(self) -> list[Event]:
        """Stop sending; returns what was acknowledged."""
        self._producer.close_stdin()
        self._producer.finish()
        self.count()
        return self.acknowledged
