"""Sends and pulls where one allocation after another fails: what is acknowledged is stored, and what is stored can be
pulled, all messages once, in the order of their queues. Without the general path's JSON parser, which crashes.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes import ArgumentError
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.python.failure import Failure

from mqbroker.client.messages import Message
from mqbroker.client.send import SendsInFlight
from mqbroker.config import FlushDiskType
from mqbroker.kernel import compiled
from mqbroker.wire.command import FrameDecoder, encode_frame
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench
from tests.commands import decode_commands
from tests.kernel.test_pulls import BASE, filled, pulled
from tests.kernel.test_sends import FIELDS
from tests.remoting.link import CLIENT, SERVER, End, take_together
from tests.sources import ROOT
from tests.store.harness import message

testcapi = pytest.importorskip("_testcapi")

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(compiled is None, reason="the compiled module is not there"),
    # A Deferred that ends while memory is out cannot say what it was left with.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

QUEUES = 4
SENDS = 6
#: More than a read of sends takes.
ALLOCATIONS = 220


#: Fails each allocation of some calls in turn. CPython 3.12.1 and 3.13.0 crash.
CALLS = """
import _testcapi

class Context:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return None

def inner(*numbers):
    def doubled(number):
        return [number for _ in range(2)], {number: 1}
    with Context():
        return sum(map(lambda each: each, doubled(numbers[0])[0])) + len(sorted(numbers, key=lambda each: -each))

def generated():
    for number in range(5):
        yield inner(number, 2)

for failing in range(120):
    _testcapi.set_nomemory(failing, failing + 1)
    try:
        list(generated())
    except MemoryError:
        pass
    finally:
        _testcapi.remove_mem_hooks()
"""


@pytest.fixture(scope="module", autouse=True)
def sound_python() -> None:
    """Skips the tests on a Python that crashes by itself where an allocation fails."""
    if subprocess.run([sys.executable, "-c", CALLS], check=False).returncode < 0:
        pytest.skip(f"Python {sys.version.split()[0]} crashes by itself where an allocation fails")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here."""
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda fd: None)


@pytest.fixture(autouse=True)
def garbage() -> Iterator[None]:
    """What Deferreds say at their end belongs to the test that left them."""
    yield
    gc.collect()


def send_frame(opaque: int) -> bytes:
    ext = FIELDS | {"a": "PG", "b": "T", "c": "TBW102", "e": str(opaque % QUEUES), "i": "WAIT\x01true"}
    header = {"code": 310, "extFields": ext | {"k": "false", "m": "false"}, "flag": 0, "opaque": opaque}
    return encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), b"%d" % opaque)


def without(number: int, act: Callable[[], object], failing: int = 1) -> bool:
    """Call `act` with allocations failing, `failing` from that number on; returns whether there were so many."""
    failed = False
    testcapi.set_nomemory(number, number + failing)
    try:
        act()
    except (MemoryError, ArgumentError):  # ctypes makes one of the other
        failed = True
    finally:
        testcapi.remove_mem_hooks()
    return failed


class Connected:
    """A broker with one topic, and connections to it: the next one where the last one has ended."""

    def __init__(self, root: Path, flush: FlushDiskType) -> None:
        self.bench = Bench(root, store={"flush_disk_type": flush})
        assert self.bench.client().send("T", body=b"0")[0].code == 0
        #: Of the messages that were acknowledged.
        self.acknowledged: set[int] = set()
        self._connect()

    def _connect(self) -> None:
        self.end = End(CLIENT, SERVER)
        self.protocol: Any = self.bench.factory.buildProtocol(CLIENT)
        self.protocol.makeConnection(self.end)

    def take(self, data: bytes) -> None:
        """Handle a read."""
        [rest] = take_together(self.bench.factory, [self.protocol], [data])
        if rest:  # sends are refused
            self.protocol.dataReceived(rest)

    def take_without(self, number: int, data: bytes) -> bool:
        """Handle a read while the allocation of that number fails, which ends the connection, unless the failure is
        handled; returns whether it has ended."""
        failed = without(number, lambda: self.take(data))
        self.read()
        if failed:
            self.protocol.connectionLost(Failure(MemoryError()))
            self._connect()
        return failed

    def read(self) -> None:
        """Read the answers that are there when nothing waits any more."""
        self.bench.turn(1)
        for answer in decode_commands(FrameDecoder(1 << 30).feed(self.end.taken(1 << 30))):
            if answer.code == 0:
                self.acknowledged.add(answer.opaque)

    def close(self) -> None:
        """Stop the broker. What was acknowledged must be there, and the messages of each queue in order."""
        stored = numbers_of(self.bench)
        assert all(numbers == sorted(set(numbers)) for numbers in stored)
        assert self.acknowledged <= {number for numbers in stored for number in numbers}
        self.bench.close()


def numbers_of(bench: Bench) -> list[list[int]]:
    """The messages of each queue, whose bodies are numbers. Their queue offsets must have no gap."""
    queues = [bench.records("T", queue_id) for queue_id in range(QUEUES)]
    for records in queues:
        assert [record.queue_offset for record in records] == list(range(len(records)))
    return [[int(record.body) for record in records] for records in queues]


@pytest.mark.parametrize("flush", [*FlushDiskType])
def test_sends(tmp_path: Path, flush: FlushDiskType) -> None:
    brokers = (Connected(tmp_path / str(number), flush) for number in count())
    connected = next(brokers)
    ended = opaque = 0
    for number in range(ALLOCATIONS):
        ended += connected.take_without(number, sends(opaque + 1))
        opaque += 2 * SENDS
        connected.take(sends(opaque - SENDS + 1))  # when nothing fails any more
        connected.read()
        if flush is FlushDiskType.ASYNC_FLUSH:  # a Deferred may lose its callbacks
            assert connected.bench.factory.load.requests == 0
        if not connected.bench.store._commit_log.why_refused:
            assert connected.acknowledged >= set(range(opaque - SENDS + 1, opaque + 1))
        else:  # what becomes of a sync is not known: a restart is wanted
            assert flush is FlushDiskType.SYNC_FLUSH
            connected.close()
            connected = next(brokers)
    assert 10 < ended < ALLOCATIONS
    connected.close()


@pytest.mark.parametrize("failing", [1, 2, 10])
def test_appends_of_the_general_path(tmp_path: Path, failing: int) -> None:
    bench = Bench(tmp_path)
    stored = ended = 0
    for number in range(ALLOCATIONS):
        before = bench.store.log_end
        batch = [message("T", n % QUEUES, b"%d" % (stored + n)) for n in range(SENDS)]
        ended += without(number, lambda batch=batch: bench.store.append(batch), failing)  # type: ignore[misc]
        if bench.store.log_end > before:
            stored += SENDS
        bench.turn(1)
    bench.store.append([message("T", 0, b"%d" % stored)])  # also has what was stored before dispatched, if need be
    bench.turn(1)
    assert sorted(number for numbers in numbers_of(bench) for number in numbers) == list(range(stored + 1))
    assert 10 < ended < ALLOCATIONS
    bench.close()


def test_pulls(tmp_path: Path) -> None:
    bench, client = filled(tmp_path)
    header = {"code": 11, "extFields": BASE | {"queueOffset": "0", "maxMsgNums": "8"}, "flag": 0, "opaque": 5}
    data = encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), b"")
    ended = 0
    for number in range(ALLOCATIONS):
        protocol = client.link.protocols[1]
        failed = without(number, lambda protocol=protocol: take_together(bench.factory, [protocol], [data]))  # type: ignore[misc]
        for answer in client.heard():
            assert [record.queue_offset for record in decode_records(answer.body)] == [*range(8)]
        if failed:
            ended += 1
            client.link.cut()
            client = bench.client()
            assert pulled(bench, client, 0) == (True, [*range(8)], 8)
    assert 10 < ended < ALLOCATIONS
    bench.close()


def test_polls() -> None:
    """What was found and cannot be returned is found again."""
    with select.epoll() as epoll, socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            epoll.register(each, select.EPOLLOUT)
        found: list[Any] = []
        for number in range(ALLOCATIONS):
            if not without(number, lambda: found.append(compiled.poll_until(epoll.fileno(), float("inf"), 10))):
                break
        assert 0 < number < ALLOCATIONS - 1
        assert [sorted(fd for fd, _ in ready) for ready in found] == [sorted([one.fileno(), other.fileno()])]


def sends(first: int) -> bytes:
    return b"".join(map(send_frame, range(first, first + SENDS)))


def test_a_send_that_finds_no_memory_is_not_in_a_batch() -> None:
    assert compiled is not None
    in_flight = SendsInFlight(cast(Any, None), 10_000, 10**6)
    batches = compiled.OpenBatches(None, in_flight, list, Message, 4096, 10**7, 256)
    batch = batches.open["T"] = compiled.OpenBatch()
    for sent in range(200):  # so that lists must grow
        for number in count():
            if not without(number, lambda: batches.take(Message("T", b"12"))):
                break
            assert (len(batch.messages), len(batch.waiters), in_flight._count) == (sent, sent, sent)
        assert number
        assert (len(batch.messages), len(batch.waiters), batch.body_bytes) == (sent + 1, sent + 1, 2 * sent + 2)
        assert (in_flight._count, in_flight._bytes) == (sent + 1, 2 * sent + 2)


def test_no_comprehension_makes_what_it_lists() -> None:
    """Cython 3.3 gives such an object up twice where the list cannot grow; Python 3.14 crashes of it later."""
    made = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "mqbroker" / "kernel").glob("*.pxi"))
        for line in path.read_text().splitlines()
        if (found := re.search(r"\[([^[]+?) for .+ in .+\]", line)) and not re.fullmatch(r"(<\w+\?> )?\w+", found[1])
    ]
    assert made == []
