"""Java clients that a test drives: many of them in one JVM, for a JVM's start is dear.

The Java side is `java/src/main/java/mqbroker/interop/Host.java`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.interop.java import SMALL, JavaSystem
from tests.interop.processes import PATIENCE_S, Event, EventOutput, Process


class Peer(EventOutput):
    """One client in the host."""

    def __init__(self, name: str, host: "PeerHost") -> None:
        super().__init__(name)
        self._host = host

    def take(self, line: str, event: Event) -> None:
        """What the host has read for it."""
        self._take(line)
        if event["event"] == "exit":
            self._end()

    def lost(self) -> None:
        """The host ended."""
        self._end()

    def close_stdin(self) -> None:
        """Have it leave in good order."""
        self._host.order(self.name, "end")

    def interrupt(self) -> None:
        """Break its sleep: for commands that would never end."""
        self._host.order(self.name, "interrupt")

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit status."""
        status: int = self.wait_events("exit", 1, patience_s)[0]["status"]
        return status

    def story(self) -> list[str]:
        """Its events, each as it was printed but for its name; without what other code printed, and its end."""
        aside = ("stdout", "stderr", "exit")
        events = [json.loads(line) for line in list(self.lines)]
        return [
            json.dumps({name: value for name, value in event.items() if name != "id"}, ensure_ascii=False)
            for event in events
            if event["event"] not in aside
        ]

    def text(self, stream: str = "stdout") -> str:
        """What Java code that knows nothing of events printed there."""
        return "\n".join(event["text"] for event in self.events(stream))


class PeerHost(Process):
    """The JVM that the clients run in."""

    def __init__(self, name: str, java: JavaSystem, scratch: Path, jvm: Sequence[str] = ()) -> None:
        self._peers: dict[str, Peer] = {}
        super().__init__(name, java.command(scratch, "mqbroker.interop.Peer", "host", jvm=(*SMALL, *jvm)), scratch)

    def start(self, name: str, args: Sequence[str]) -> Peer:
        """Start a client with the command line `args`; `name` is unique in this host."""
        peer = Peer(f"{name}~{len(self._peers)}", self)
        self._peers[peer.name] = peer
        self.write_line(json.dumps({"id": peer.name, "args": args}))
        return peer

    def order(self, name: str, order: str) -> None:
        self.write_line(json.dumps({"id": name, "order": order}))

    def _take(self, line: str) -> None:
        if line.startswith('{"id":'):
            event = json.loads(line)
            self._peers[event["id"]].take(line, event)
        else:
            super()._take(line)

    def _end(self) -> None:
        super()._end()
        for peer in self._peers.values():
            peer.lost()
