"""Syncs of the log: by the kernel's own queue, and by a worker where that is not to be had."""

import errno
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import Clock
from zope.interface import implementer
from zope.interface.verify import verifyObject

from mqbroker.store import linux_aio
from mqbroker.store.disk import IMappedFile
from mqbroker.store.linux_aio import LOOK_S, QUICK_SECONDS, LinuxAio
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.syncs import AioSyncs, ISyncs, WorkerSyncs
from mqbroker.store.worker import InlineWorker
from tests.fakes import FaultyDisk, SteppedWorker


class Readers:
    """A reactor that has readers only."""

    def __init__(self) -> None:
        self.readers: list[LinuxAio] = []

    def addReader(self, reader: LinuxAio) -> None:  # noqa: N802
        self.readers.append(reader)

    def removeReader(self, reader: LinuxAio) -> None:  # noqa: N802
        self.readers.remove(reader)

    def wait(self) -> None:
        """One turn: wait for something to read."""
        (reader,) = self.readers
        assert select.select([reader], [], [], 10)[0] == [reader]
        reader.doRead()


@pytest.fixture
def readers() -> Readers:
    return Readers()


@pytest.fixture
def queue(readers: Readers) -> Iterator[LinuxAio]:
    try:
        queue = LinuxAio(readers, lambda: 0.0)  # type: ignore[arg-type]
    except OSError as error:
        pytest.skip(f"this machine has no queue of the kernel's: {error}")
    yield queue
    if readers.readers:
        queue.stop()


@pytest.fixture
def make_file(tmp_path: Path) -> Iterator[Callable[[str], IMappedFile]]:
    made: list[IMappedFile] = []

    def make(name: str) -> IMappedFile:
        made.append(OsDisk().create_mapped(str(tmp_path / name), 8192, keep_open=True))
        return made[-1]

    yield make
    for file in made:
        file.close()


def told(deferred: Deferred[None]) -> list[object]:
    found: list[object] = []
    deferred.addCallback(found.append).addErrback(lambda failure: found.append(failure.value))
    return found


def descriptor(file: IMappedFile) -> int:
    assert file.descriptor is not None
    return file.descriptor


def test_a_sync_is_told_when_the_reactor_reads(
    queue: LinuxAio, readers: Readers, make_file: Callable[[str], IMappedFile]
) -> None:
    assert verifyObject(IReadDescriptor, queue)
    file = make_file("a")
    file.buffer[:4] = b"data"
    got = told(queue.sync(descriptor(file), file.path))
    assert got == []
    readers.wait()
    assert got == [None]
    queue.doRead()  # with nothing to read
    assert got == [None]


def test_many_at_once_are_each_told_once(
    queue: LinuxAio, readers: Readers, make_file: Callable[[str], IMappedFile]
) -> None:
    files = [make_file(name) for name in "abc"]
    got = [told(queue.sync(descriptor(file), file.path)) for file in files]
    while not all(got):
        readers.wait()
    assert got == [[None], [None], [None]]


def test_what_cannot_be_asked_is_raised(queue: LinuxAio) -> None:
    read, write = os.pipe()
    os.close(write)
    os.close(read)
    with pytest.raises(OSError, match="descriptor") as raised:
        queue.sync(read, "gone")
    assert raised.value.errno == errno.EBADF


def test_stopping_waits_and_tells_nobody(
    queue: LinuxAio, readers: Readers, make_file: Callable[[str], IMappedFile]
) -> None:
    file = make_file("a")
    got = told(queue.sync(descriptor(file), file.path))
    event_fd = queue.fileno()
    queue.stop()
    assert readers.readers == []
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(event_fd)
    assert got == []


def test_the_next_end_is_expected_where_the_last_sync_was_quick(
    readers: Readers, make_file: Callable[[str], IMappedFile]
) -> None:
    time = 100.0
    expected: list[float] = []
    try:
        queue = LinuxAio(readers, lambda: time, expected.append)  # type: ignore[arg-type]
    except OSError as error:
        pytest.skip(f"this machine has no queue of the kernel's: {error}")
    file = make_file("a")
    for seconds, told_before in [(0.001, 1), (QUICK_SECONDS / 2, 1), (0.005, 2), (0.005, 2), (QUICK_SECONDS / 2, 2)]:
        got = told(queue.sync(descriptor(file), file.path))
        assert expected == [QUICK_SECONDS] * told_before
        time += seconds
        readers.wait()
        assert got == [None]
    queue.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(readers: Readers, clock: Clock) -> Iterator[LinuxAio]:
    try:
        queue = LinuxAio(readers, lambda: 0.0, call_later=clock.callLater)  # type: ignore[arg-type]
    except OSError as error:
        pytest.skip(f"this machine has no queue of the kernel's: {error}")
    yield queue
    queue.stop()
    assert clock.getDelayedCalls() == []


def until_told(got: Sequence[object], clock: Clock) -> None:
    for _ in range(1000):
        if got:
            return
        clock.advance(LOOK_S)
        time.sleep(0.001)  # the kernel is at it
    raise AssertionError("nobody was told")


def test_an_end_that_the_reactor_does_not_hear_of_is_found_after_a_while(
    watched: LinuxAio, clock: Clock, make_file: Callable[[str], IMappedFile]
) -> None:
    file = make_file("a")
    got = told(watched.sync(descriptor(file), file.path))
    until_told(got, clock)
    assert got == [None]
    assert clock.getDelayedCalls() == []  # there is nothing to look for


def test_without_its_event_descriptor_what_runs_is_told_and_nothing_more_taken(
    watched: LinuxAio,
    readers: Readers,
    clock: Clock,
    make_file: Callable[[str], IMappedFile],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = make_file("a")
    got = told(watched.sync(descriptor(file), file.path))

    def broken(fd: int) -> int:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(os, "eventfd_read", broken)
    watched.doRead()
    assert readers.readers == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        watched.sync(descriptor(file), file.path)
    until_told(got, clock)
    assert got == [None]


def test_a_sync_that_failed_is_told_as_that(
    queue: LinuxAio, make_file: Callable[[str], IMappedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer is changed as a disk that fails would have it."""
    file = make_file("a")
    got = told(queue.sync(descriptor(file), file.path))
    real = linux_aio._call

    def failing(number: int, *arguments: Any) -> int:
        count = real(number, *arguments)
        if number == queue._get_events and count:
            event = linux_aio._IO_EVENT
            data, block, _, second = event.unpack_from(queue._events)
            event.pack_into(queue._events, 0, data, block, -errno.EIO, second)
        return count

    monkeypatch.setattr(linux_aio, "_call", failing)
    assert select.select([queue], [], [], 10)[0]
    queue.doRead()
    (error,) = got
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (errno.EIO, file.path)


def test_where_the_ends_cannot_be_asked_for_a_sync_has_failed(
    watched: LinuxAio, readers: Readers, make_file: Callable[[str], IMappedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells each descriptor once of an error of the disk: another sync would end well."""
    others = Others()
    syncs = AioSyncs(watched, others)
    file = make_file("a")
    got = told(syncs.sync([file], None))
    real = linux_aio._call

    def broken(number: int, *arguments: object) -> int:
        if number == watched._get_events:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(number, *arguments)

    monkeypatch.setattr(linux_aio, "_call", broken)
    watched.doRead() if select.select([watched], [], [], 10)[0] else None
    (error,) = got
    assert isinstance(error, OSError)
    assert (error.errno, error.filename, others.synced) == (errno.EIO, file.path, [])
    assert readers.readers == []
    assert told(syncs.sync([file], None)) == [None]
    assert others.synced == [([file.path], None)]


class Queue:
    """In a kernel queue's place."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.error: OSError | None = None

    def sync(self, fd: int, path: str) -> Deferred[None]:
        if self.error is not None:
            raise self.error
        os.fstat(fd)
        self.synced.append(path)
        return succeed(None)


@implementer(ISyncs)
class Others:
    def __init__(self) -> None:
        self.synced: list[tuple[list[str], object]] = []
        self.beside: list[list[str]] = []

    def sync(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        self.synced.append(([file.path for file in files], then))
        return succeed(None)

    def sync_beside(self, files: Sequence[IMappedFile], then: Callable[[], None] | None) -> Deferred[None]:
        self.beside.append([file.path for file in files])
        return succeed(None)


def test_the_kernel_syncs_one_open_file_and_a_worker_all_else(
    make_file: Callable[[str], IMappedFile], tmp_path: Path
) -> None:
    queue, others = Queue(), Others()
    syncs = AioSyncs(queue, others)  # type: ignore[arg-type]
    assert verifyObject(ISyncs, syncs)
    one, two = make_file("a"), make_file("b")
    closed = OsDisk().open_mapped(one.path, one.size)

    def then() -> None:
        raise AssertionError("not here")

    assert told(syncs.sync([one], None)) == [None]
    assert (queue.synced, others.synced) == ([one.path], [])
    syncs.sync([one, two], None)
    syncs.sync([two], then)
    syncs.sync([closed], None)
    closed.close()
    assert queue.synced == [one.path]
    assert others.synced == [([one.path, two.path], None), ([two.path], then), ([one.path], None)]
    syncs.sync_beside([one], None)
    assert (queue.synced, others.beside) == ([one.path], [[one.path]])


def test_what_the_kernel_does_not_take_a_worker_does_from_then_on(make_file: Callable[[str], IMappedFile]) -> None:
    queue, others = Queue(), Others()
    syncs = AioSyncs(queue, others)  # type: ignore[arg-type]
    file = make_file("a")
    queue.error = OSError(errno.EAGAIN, "no more")
    assert told(syncs.sync([file], None)) == [None]
    queue.error = None
    assert told(syncs.sync([file], None)) == [None]
    assert queue.synced == []
    assert len(others.synced) == 2


def test_a_worker_syncs_in_order_and_then_what_is_to_follow(tmp_path: Path) -> None:
    disk = FaultyDisk()
    faults = disk.faults
    files = [disk.create_mapped(str(tmp_path / name), 4096) for name in "ab"]
    done: list[int] = []
    syncs = WorkerSyncs(InlineWorker())
    assert verifyObject(ISyncs, syncs)
    assert told(syncs.sync(files, lambda: done.append(faults.syncs))) == [None]
    assert done == [2]
    faults.sync_error = errno.EIO
    (error,) = told(syncs.sync(files, lambda: done.append(0)))
    assert isinstance(error, OSError)
    assert done == [2]
    for file in files:
        file.close()


def test_a_sync_beside_others_has_a_worker_and_descriptors_of_its_own(tmp_path: Path) -> None:
    """The kernel tells each descriptor of an error once: the sync that runs must hear of it, too."""
    file = Told(FaultyDisk().create_mapped(str(tmp_path / "a"), 4096))
    files = cast(list[IMappedFile], [file])
    first, beside = SteppedWorker(), SteppedWorker()
    first.at_once = beside.at_once = False
    syncs = WorkerSyncs(first, beside)
    done: list[int] = []
    running = told(syncs.sync(files, None))
    other = told(syncs.sync_beside(files, lambda: done.append(1)))
    beside.step()
    assert (file.synced, done, running, other) == (["apart"], [1], [], [None])
    first.step()
    assert (file.synced, running) == (["apart", "here"], [None])
    file.close()


class Told:
    """A file that remembers how it was synced."""

    def __init__(self, inner: IMappedFile) -> None:
        self.synced: list[str] = []
        self.close = inner.close

    def sync(self) -> None:
        self.synced.append("here")

    def sync_apart(self) -> None:
        self.synced.append("apart")
