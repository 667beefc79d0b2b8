"""The supervisor of shards, with processes that the test starts and ends, on a clock that it moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.daemons import supervisor
from mqbroker.daemons.supervisor import (
    END_FD,
    PIECE_BYTES,
    SERVED_SECONDS,
    STATUS_FD,
    STOP_SECONDS_MAX,
    ShardSupervisor,
)
from mqbroker.errors import MQError
from tests.remoting.logs import log_kept


class FakeProcess:
    """A process that was started, and what was done to it."""

    def __init__(self, protocol: ProcessProtocol, shard: int, pid: int) -> None:
        self.protocol: Any = protocol
        self.shard = shard
        self.pid = pid
        self.done: list[Any] = []
        #: Whether it has exited, and some pipe of it is still open.
        self.is_ending = False
        protocol.transport = cast(Any, self)

    def signalProcess(self, signal: str) -> None:  # noqa: N802
        if self.is_ending:
            raise ProcessExitedAlready
        self.done.append(signal)

    def writeToChild(self, fd: int, data: bytes) -> None:  # noqa: N802
        if self.is_ending:
            raise KeyError(fd)
        self.done.append((fd, data))

    def closeChildFD(self, fd: int) -> None:  # noqa: N802
        self.done.append(fd)

    def says(self, fd: int, data: bytes) -> None:
        self.protocol.childDataReceived(fd, data)

    def serves(self) -> None:
        status = {"boot_line": f"shard {self.shard} boot success", "ports": {"remoting": 100 + self.shard}}
        self.says(STATUS_FD, json.dumps(status).encode() + b"\n")

    def creates(self, topic: str) -> None:
        self.says(STATUS_FD, json.dumps({"topic": {"topicName": topic}}).encode() + b"\n")

    def heard(self) -> list[str]:
        """The topics that it was told of since it was last asked."""
        told, self.done = self.done, []
        assert all(fd == END_FD for fd, _ in told)
        return [json.loads(line)["topic"]["topicName"] for _, line in told]

    def ends(self, code: int = 0, signal: int | None = None) -> None:
        reason = ProcessTerminated(code or None, signal, 0) if code or signal else ProcessDone(0)
        self.protocol.processEnded(Failure(reason))


class Shards:
    """A supervisor with its processes: all that were started, and those of each shard."""

    def __init__(self, count: int) -> None:
        self.clock = Clock()
        self.all: list[FakeProcess] = []
        self.refused: Exception | None = None
        self.supervisor = ShardSupervisor(count, cast(Any, self._spawn), self.clock)
        self.started: list[Any] = []
        self.supervisor.started.addBoth(self.started.append)
        self.supervisor.startService()

    def _spawn(self, protocol: ProcessProtocol, shard: int) -> FakeProcess:
        if self.refused is not None:
            raise self.refused
        self.all.append(FakeProcess(protocol, shard, 1000 + len(self.all)))
        return self.all[-1]

    def last(self, shard: int) -> FakeProcess:
        return [process for process in self.all if process.shard == shard][-1]

    def stop(self) -> Deferred[None]:
        return self.supervisor.stopService()


@pytest.fixture
def serving() -> Callable[[int], Shards]:
    def make(count: int) -> Shards:
        shards = Shards(count)
        for process in shards.all:
            process.serves()
        assert shards.started == [None]
        return shards

    return make


def test_all_start_at_once_and_it_serves_when_all_do() -> None:
    shards = Shards(3)
    assert [process.shard for process in shards.all] == [0, 1, 2]
    shards.all[2].serves()
    shards.all[0].serves()
    assert shards.started == []
    shards.all[1].serves()
    assert shards.started == [None]
    assert shards.supervisor.boot_lines == "\n".join(f"shard {shard} boot success" for shard in range(3))
    each = [{"remoting": 100}, {"remoting": 101}, {"remoting": 102}]
    assert shards.supervisor.ports == {"remoting": 100, "shards": each}


def test_one_that_cannot_start_ends_the_start_with_its_own_error() -> None:
    shards = Shards(3)
    shards.all[0].serves()
    shards.all[1].says(STATUS_FD, json.dumps({"why_not": "cannot listen on *:80: Address already in use"}).encode())
    shards.all[1].says(STATUS_FD, b"\n")
    assert shards.started == []  # not before it has ended
    shards.all[1].ends(1)
    [failure] = shards.started
    assert failure.type is MQError
    assert failure.getErrorMessage() == "shard 1: cannot listen on *:80: Address already in use"
    stopped = shards.stop()
    assert [process.done for process in shards.all] == [[END_FD], [], [END_FD]]
    with log_kept() as logged:
        shards.all[0].ends()
        shards.all[2].ends(1)
    assert stopped.called
    assert logged.lines == []
    assert shards.clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ({"signal": 9}, "shard 0: it was killed by SIGKILL while it started"),
        ({"signal": 40}, "shard 0: it was killed by signal 40 while it started"),
        ({"code": 1}, "shard 0: it ended with exit code 1 while it started: see its lines in the log"),
        ({}, "shard 0: it ended with exit code 0 while it started"),
    ],
)
def test_one_that_dies_while_all_start(end: dict[str, int], says: str) -> None:
    shards = Shards(2)
    shards.all[0].ends(**end)
    assert says in shards.started[0].getErrorMessage()
    shards.all[1].ends(1)  # another does so too
    assert shards.clock.getDelayedCalls() == []
    assert shards.stop().called


def test_one_that_dies_later_is_started_again_and_the_others_go_on(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    with log_kept() as logged:
        shards.last(1).ends(signal=9)
        assert len(shards.all) == 2
        shards.clock.advance(1)
        shards.last(1).serves()
    assert logged.lines == [
        "shard 1 exited: it was killed by SIGKILL; restarting it in 1 s",
        "shard 1 runs as process 1002",
        "shard 1 serves again",
    ]
    assert [process.shard for process in shards.all] == [0, 1, 1]
    assert shards.last(0).done == []


def test_it_waits_longer_each_time_until_it_has_served_for_a_minute(serving: Callable[[int], Shards]) -> None:
    shards = serving(1)

    def waited() -> float:
        count = len(shards.all)
        shards.last(0).ends(1)
        [call] = shards.clock.getDelayedCalls()
        wait = call.getTime() - shards.clock.seconds()
        shards.clock.advance(wait)
        assert len(shards.all) == count + 1
        return wait

    assert [waited() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    shards.last(0).serves()
    shards.clock.advance(SERVED_SECONDS - 1)
    assert waited() == 30
    shards.clock.advance(SERVED_SECONDS)  # without serving
    assert waited() == 30
    for _ in range(3):
        shards.last(0).serves()
        shards.clock.advance(SERVED_SECONDS)
        assert [waited(), waited(), waited()] == [1, 2, 4]


def test_why_one_does_not_start_again_is_logged(serving: Callable[[int], Shards]) -> None:
    shards = serving(1)
    shards.last(0).ends(1)
    shards.clock.advance(1)
    shards.last(0).says(STATUS_FD, b'{"why_not": "/s/lock is locked"}\n')
    with log_kept() as logged:
        shards.last(0).ends(1)
    assert logged.lines == ["shard 0 exited: /s/lock is locked; restarting it in 2 s"]


def test_where_no_process_can_be_started_it_is_tried_again(serving: Callable[[int], Shards]) -> None:
    shards = serving(1)
    shards.refused = BlockingIOError(11, "Resource temporarily unavailable")
    shards.last(0).ends(1)
    with log_kept() as logged:
        shards.clock.advance(1)
    assert logged.lines == [
        "shard 0 exited: no process can be started: Resource temporarily unavailable; restarting it in 2 s"
    ]
    shards.refused = None
    shards.clock.advance(2)
    assert len(shards.all) == 2


def test_one_whose_start_fails_unexpectedly_is_started_again(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    shards.last(0).ends(1)
    for wait_s, error in ((1, MemoryError()), (2, ValueError("embedded null byte"))):
        shards.refused = error
        with log_kept() as logged:
            shards.clock.advance(wait_s)
        assert [failure.value for failure in logged.failures] == [error]
    assert logged.lines[-1] == ("shard 0 exited: no process can be started: embedded null byte; restarting it in 4 s")
    shards.refused = None
    shards.clock.advance(4)
    shards.last(0).serves()
    assert len(shards.all) == 3
    assert shards.supervisor.boot_lines.count("boot success") == 2


def test_one_that_has_exited_but_is_not_reaped_does_not_keep_others_from_what_they_are_told(
    serving: Callable[[int], Shards],
) -> None:
    shards = serving(3)
    shards.last(0).is_ending = True
    shards.supervisor.reload()
    assert [process.done for process in shards.all] == [[], ["HUP"], ["HUP"]]
    for process in shards.all:
        process.done.clear()
    shards.last(1).creates("T")
    assert shards.last(2).heard() == ["T"]
    shards.last(0).ends(signal=9)
    shards.clock.advance(1)
    shards.last(0).serves()
    assert shards.last(0).heard() == ["T"]


def test_a_report_that_cannot_be_read_does_not_end_the_others(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    with log_kept() as logged:
        shards.last(0).says(STATUS_FD, b'{"topic": {}}\nno JSON\n{"topic": {"topicName": "T"}}\n')
    assert [failure.type for failure in logged.failures] == [KeyError, json.JSONDecodeError]
    assert shards.last(1).heard() == ["T"]


def test_each_is_told_once_to_stop_and_all_are_waited_for(serving: Callable[[int], Shards]) -> None:
    shards = serving(3)
    shards.last(2).ends(signal=11)  # and waits to be started again
    first, second = shards.stop(), shards.stop()
    assert [process.done for process in shards.all] == [[END_FD], [END_FD], []]
    shards.last(0).ends()
    assert not first.called
    shards.last(1).ends()
    assert first.called
    assert second.called
    assert shards.stop().called
    assert shards.clock.getDelayedCalls() == []
    assert len(shards.all) == 3


def test_one_that_does_not_stop_is_killed_and_told(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    stopped = shards.stop()
    shards.last(0).ends()
    with log_kept() as logged:
        shards.clock.advance(STOP_SECONDS_MAX)
        assert shards.last(1).done == [END_FD, "KILL"]
        assert not stopped.called
        shards.last(1).ends(signal=9)
    assert stopped.called
    assert logged.lines == [
        "shard 1 did not stop within 80 s and is killed",
        "shard 1 did not stop cleanly: it was killed by SIGKILL",
    ]


def test_one_that_could_not_keep_all_is_told(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    shards.stop()
    with log_kept() as logged:
        shards.last(1).ends(1)
        shards.last(0).ends()
    assert logged.lines == ["shard 1 did not stop cleanly: it ended with exit code 1"]


def test_stopped_while_it_starts_it_never_serves() -> None:
    shards = Shards(2)
    shards.all[0].serves()
    stopped = shards.stop()
    shards.all[1].serves()
    shards.all[1].ends()
    shards.all[0].ends()
    assert stopped.called
    assert shards.started == []


def test_those_that_serve_read_the_settings_again(serving: Callable[[int], Shards]) -> None:
    shards = serving(3)
    shards.last(1).ends(1)
    shards.last(2).ends(1)
    shards.clock.advance(1)
    shards.last(2).serves()
    shards.supervisor.reload()
    # One that starts has no handler for the signal yet, and reads them anyway.
    assert [shards.last(shard).done for shard in range(3)] == [["HUP"], [], ["HUP"]]


def test_lines_are_whole_and_none_is_lost(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    long = b"x" * PIECE_BYTES
    with log_kept() as logged:
        shards.last(0).says(2, b"one\ntw")
        shards.last(1).says(2, b"other\n")
        shards.last(0).says(1, b"printed\n")
        shards.last(0).says(2, b"o\n\xff\n")
        shards.last(0).says(2, long)
        shards.last(0).says(2, b"\nFatal Python error")
        shards.last(0).ends(signal=6)
    lines = [line for line in logged.lines if not line.startswith("shard 0 exited")]
    assert lines == [
        *("shard 0: one", "shard 1: other", "shard 0: printed", "shard 0: two", "shard 0: \\xff"),
        *(f"shard 0: {long.decode()}", "shard 0: ", "shard 0: Fatal Python error"),
    ]


def test_a_topic_that_one_creates_is_told_to_all_others_at_once(serving: Callable[[int], Shards]) -> None:
    shards = serving(3)
    for source in (1, 0, 1):
        shards.last(source).creates(f"T{source}")
        told = [shards.last(shard).heard() for shard in range(3)]
        assert told == [[] if shard == source else [f"T{source}"] for shard in range(3)]


def test_one_that_is_away_is_told_when_it_serves_again(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    for _ in range(2):
        shards.last(1).ends(signal=9)
        shards.last(0).creates("T")
        shards.last(0).creates("U")
        shards.last(0).creates("T")
        shards.clock.advance(60)
        assert shards.last(1).heard() == []
        shards.last(1).serves()
        assert shards.last(1).heard() == ["T", "U"]
    assert shards.last(0).heard() == []


def test_one_that_never_comes_back_costs_a_bounded_memory(
    serving: Callable[[int], Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "UNTOLD_MAX", 2)
    shards = serving(2)
    shards.last(1).ends(signal=9)
    for topic in ("T", "U", "V"):
        shards.last(0).creates(topic)
    shards.clock.advance(1)
    shards.last(1).serves()
    assert shards.last(1).heard() == ["T", "U"]


def test_topics_that_are_created_while_all_stop_are_told_to_nobody(serving: Callable[[int], Shards]) -> None:
    shards = serving(2)
    shards.stop()
    shards.last(0).creates("T")
    assert [process.done for process in shards.all] == [[END_FD], [END_FD]]
