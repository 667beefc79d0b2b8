"""The broker in memory that applications test with, with what contract tests use of `Loopback`."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import attrs
from twisted.internet.task import Clock

from mqbroker.client import testing
from mqbroker.client.memory_links import Accepted
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.record import Record
from tests.client.faults import Faults, TappedConnection
from tests.client.own_cluster import sent_back, stored
from tests.remoting.link import Network


def open_files() -> set[str]:
    """What the process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:  # that of the listing itself
            continue
    return found


class ClientClock(Clock):
    """The clock of Twisted clients, which the broker's thread calls."""

    def __init__(self) -> None:
        super().__init__()
        self.rightNow = time.time()
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def callFromThread(self, call: Callable[[], object]) -> None:  # noqa: N802
        self._calls.put(call)

    def turn(self) -> None:
        """Make the calls that have come, or that come in a moment, and what is due."""
        try:
            call = self._calls.get(timeout=0.002)
            while True:
                call()
                call = self._calls.get_nowait()
        except queue.Empty:
            self.advance(0)


class Tap(Faults):
    """`Faults` before the broker's port."""

    def __init__(self, broker: testing.InMemoryBroker) -> None:
        super().__init__()
        self.broker = broker
        broker._do(self._place)

    def _place(self) -> None:
        accept = self.broker.accept

        def tapped(addr: str, accepted: Accepted) -> bool:
            is_open = accept(addr, accepted)
            if is_open and addr == self.broker._addr:
                self._tap(accepted)
            return is_open

        self.broker.accept = tapped

    def _tap(self, accepted: Accepted) -> None:
        tapped = TappedConnection(accepted.protocol, self.broker._addr, self)
        tapped.transport = accepted
        tapped.transport.closing = None  # what ends of links in memory have
        self.connections.append(tapped)
        accepted.protocol = tapped


class InMemory:
    """An `InMemoryBroker` named "a"."""

    def __init__(self) -> None:
        before = open_files()
        self.broker = testing.InMemoryBroker()
        self.broker.start()
        assert not open_files() - before
        self.name_server = self.addr = self.broker.name_servers
        self.broker_addr = self.broker._addr
        self.reactor, self.network = ClientClock(), Network()
        self.faults = Tap(self.broker)

    def parts(self) -> Any:
        return self.broker._service._assembly

    def settle(self) -> None:
        self.reactor.turn()

    def advance(self, seconds: float) -> None:
        self.broker.advance(seconds)
        self.reactor.advance(seconds)
        self.settle()

    def add_topic(self, topic: str) -> None:
        self.broker.create_topic(topic, 2)

    def stored(self, queue: MessageQueue) -> list[Record]:
        return self.broker._do(lambda: stored(self.parts()._store, queue))

    @property
    def sent_back(self) -> Any:
        return sent_back(self.faults)

    def ask_client(self, requests: Sequence[RemotingCommand]) -> SimpleQueue[RemotingCommand]:
        """As `Loopback.ask_client`."""
        answers: SimpleQueue[RemotingCommand] = SimpleQueue()
        asked = [attrs.evolve(request, opaque=1000 + n) for n, request in enumerate(requests)]
        self.faults.answers = answers.put
        self.broker._do(lambda: self.faults.connections[-1].write(b"".join(map(encode_command, asked))))
        return answers

    def close(self) -> None:
        self.broker.close()
