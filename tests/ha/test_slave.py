"""The slave's end: what it reports, when it connects again, and what it takes from no master."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mqbroker.errors import DiskFull, FlushTimedOut, MQError, StoreBusy
from mqbroker.ha.divergence import Diverged
from mqbroker.ha.link import COMMITTED, GREETING, HEADER, PIECE_BYTES_MAX, REPORT, Greeting, encode_confirmation
from mqbroker.ha.slave import (
    CONNECT_SECONDS_MAX,
    RETRY_SECONDS,
    MasterConnection,
    MasterStatus,
    SlaveService,
    SlaveSettings,
)
from mqbroker.wire.record import BadRecord
from tests.remoting.logs import Logged

ADDRESS = "10.0.0.1:10912"


@attrs.define
class Log:
    """A slave's log: whole bytes are whole records. `errors` are raised by the next appends."""

    data: bytes = b""
    flushed: int = 0
    errors: list[Exception] = attrs.field(factory=list)
    restarts: int = 0
    _taken: bytes = b""
    syncs: list[tuple[int, Deferred[None]]] = attrs.field(factory=list)

    @property
    def end(self) -> int:
        return len(self.data)

    def take(self, offset: int, data: bytes | memoryview) -> None:
        if offset != len(self.data + self._taken):
            raise BadRecord(f"the piece at {offset} does not continue the log")
        self._taken += data

    def append(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.data += self._taken
        self._taken = b""

    def restart(self) -> None:
        self.restarts += 1
        self._taken = b""

    def last_record(self) -> tuple[int, bytes] | None:
        return (0, self.data) if self.data else None

    def durable(self, end: int) -> Deferred[None]:
        if end <= self.flushed:
            return succeed(None)
        self.syncs.append((end, Deferred()))
        return self.syncs[-1][1]

    def sync(self) -> None:
        self.flushed = self.end
        syncs, self.syncs = self.syncs, []
        for _, waiter in syncs:
            waiter.callback(None)


class Transport(StringTransport):
    """`reports`: what the slave reported since it was last asked."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def reports(self) -> list[int]:
        found = [offset for (offset,) in REPORT.iter_unpack(self.value())]
        self.clear()
        return found


class World:
    """A slave, whose attempts to connect a test answers."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.log = Clock(), Log()
        self.attempts: list[tuple[float, str, IProtocolFactory, Deferred[Any]]] = []
        self.comparing: list[Deferred[None]] = []
        self.compares_at_once = True
        self.service = SlaveService(self.clock, self.log, SlaveSettings(**settings), self.connector, self.compare)
        self.service.follow(ADDRESS)
        self.service.startService()

    def connector(self, host: str, port: int) -> Any:
        world = self

        class Endpoint:
            def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
                attempt: Deferred[Any] = Deferred()
                world.attempts.append((world.clock.seconds(), f"{host}:{port}", factory, attempt))
                return attempt

        return Endpoint()

    async def compare(self, connection: object) -> None:
        if not self.compares_at_once:
            self.comparing.append(Deferred())
            await self.comparing[-1]

    def accept(self) -> tuple[Any, Transport]:
        """Accept the last attempt: the connection, and its transport."""
        _, _, factory, attempt = self.attempts[-1]
        connection: Any = factory.buildProtocol(None)
        transport = Transport()
        connection.makeConnection(transport)
        attempt.callback(connection)
        return connection, transport

    def lose(self, connection: Any) -> None:
        connection.connectionLost(Failure(ConnectionRefusedError()))

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.25] * int(seconds * 4))

    @property
    def times(self) -> list[float]:
        return [at for at, *_ in self.attempts]


@pytest.fixture
def world() -> World:
    return World()


def piece(offset: int, data: bytes) -> bytes:
    return HEADER.pack(offset, len(data)) + data


def test_it_reports_what_it_has_after_each_read(world: World) -> None:
    world.log.data = b"x" * 100
    connection, transport = world.accept()
    assert transport.reports() == [100]
    connection.dataReceived(piece(100, b"abc") + piece(103, b"de")[:-1])
    assert transport.reports() == [104]
    connection.dataReceived(b"e" + HEADER.pack(105, 0))
    assert transport.reports() == [105]
    assert world.log.data[100:] == b"abcde"
    assert world.service.status == MasterStatus(ADDRESS, 105, None, "")


def test_with_sync_flush_it_reports_what_is_on_its_disk() -> None:
    world = World(reports_flushed=True)
    world.log.data = b"x" * 100
    connection, transport = world.accept()
    assert transport.reports() == []
    world.log.sync()
    assert transport.reports() == [100]
    connection.dataReceived(piece(100, b"abc"))
    assert transport.reports() == []
    world.log.sync()
    assert transport.reports() == [103]


def test_a_flush_that_fails_ends_the_connection() -> None:
    world = World(reports_flushed=True)
    connection, transport = world.accept()
    connection.dataReceived(piece(0, b"abc"))
    world.log.syncs[0][1].errback(FlushTimedOut("the disk is slow"))
    assert transport.disconnecting
    assert transport.reports() == [0]


def test_heartbeats_repeat_the_last_report_and_a_silent_master_is_left(world: World) -> None:
    connection, transport = world.accept()
    connection.dataReceived(piece(0, b"abc"))
    assert transport.reports() == [0, 3]
    world.wait(6)
    assert transport.reports() == [3]
    connection.dataReceived(HEADER.pack(3, 0))
    world.wait(20)
    assert not transport.disconnecting
    world.wait(2)
    assert transport.disconnecting


def test_attempts_come_later_and_later(world: World) -> None:
    for _ in range(6):
        world.attempts[-1][3].errback(ConnectionRefusedError("nobody there"))
        world.wait(5)
    assert world.times == [0, 1, 7, 14, 20, 25, 30]


def test_an_attempt_that_hangs_is_given_up(world: World) -> None:
    world.wait(CONNECT_SECONDS_MAX + 1.5)
    assert len(world.attempts) == 2
    assert "no connection" in world.service.status.why_not


def test_after_a_connection_that_followed_the_next_attempt_is_soon(world: World) -> None:
    for _ in range(4):
        world.attempts[-1][3].errback(ConnectionRefusedError("nobody there"))
        world.wait(5)
    connection, _ = world.accept()
    before = world.clock.seconds()
    world.lose(connection)
    world.wait(1.5)
    assert world.times[-1] - before == 1


def test_each_outage_has_its_own_attempts_and_its_own_line(world: World, logged: Logged) -> None:
    for outage in range(1, 4):
        waits = []
        for _ in range(3):
            world.attempts[-1][3].errback(ConnectionRefusedError("nobody there"))
            count, before = len(world.attempts), world.clock.seconds()
            while len(world.attempts) == count:
                world.wait(0.25)
            waits.append(world.clock.seconds() - before)
        # After a connection was lost the first attempt has failed its second after that.
        assert waits == list(RETRY_SECONDS[:3] if outage == 1 else RETRY_SECONDS[1:4])
        assert len([line for line in logged.lines if ": no connection" in line]) == outage
        assert "no connection" in world.service.status.why_not
        connection, _ = world.accept()
        assert world.service.status.why_not == ""
        world.wait(3)
        world.lose(connection)
        assert len([line for line in logged.lines if "12: Connection was refused" in line]) == outage
        world.wait(RETRY_SECONDS[0])


def test_a_master_that_is_lost_again_for_the_same_reason_has_a_line_again(world: World, logged: Logged) -> None:
    for loss in range(1, 4):
        connection, _ = world.accept()
        world.wait(3)
        world.lose(connection)
        assert len([line for line in logged.lines if "not replicating from master" in line]) == loss
        world.wait(RETRY_SECONDS[0])


def test_how_far_a_slave_is_behind_its_former_master_is_forgotten_with_it(world: World) -> None:
    for host in (7, 8, 9):
        world.service.master_end = 1000
        assert world.service.status.behind == 1000
        world.service.follow(f"10.0.0.{host}:10912")
        assert world.service.status.behind is None
        world.wait(2)


def test_an_unreachable_master_is_told_of_once(world: World, logged: Logged) -> None:
    for _ in range(5):
        world.attempts[-1][3].errback(ConnectionRefusedError("nobody there"))
        world.wait(5)
    assert len([line for line in logged.lines if ": no connection" in line]) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HEADER.pack(0, -1), "announces -1 bytes"),
        (HEADER.pack(0, PIECE_BYTES_MAX + 1), "announces"),
        (HEADER.pack(-8, 4), "announces"),
        (piece(7, b"x"), "does not continue the log"),
        (HEADER.pack(2**63 - 1, 0), "does not continue the log"),
    ],
)
def test_what_does_not_continue_the_log_ends_the_connection_for_a_minute(world: World, data: bytes, why: str) -> None:
    connection, transport = world.accept()
    connection.dataReceived(data)
    assert transport.disconnecting
    connection.dataReceived(piece(0, b"more"))
    world.lose(connection)
    assert why in world.service.status.why_not
    assert world.log.data == b""
    world.wait(59)
    assert len(world.attempts) == 1
    world.wait(2)
    assert len(world.attempts) == 2


@pytest.mark.parametrize(("error", "delay"), [(StoreBusy("busy"), 1), (DiskFull("full"), 10), (BadRecord("no"), 60)])
def test_an_append_that_fails_is_tried_again(world: World, error: Exception, delay: float) -> None:
    connection, transport = world.accept()
    world.log.errors.append(error)
    connection.dataReceived(piece(0, b"abc"))
    assert transport.disconnecting
    world.lose(connection)
    world.wait(delay + 0.5)
    assert world.times == [0, delay]
    connection, transport = world.accept()
    connection.dataReceived(piece(0, b"abc"))
    assert world.log.data == b"abc"
    assert world.log.restarts == 2


def test_nothing_is_reported_before_the_logs_were_compared() -> None:
    world = World()
    world.compares_at_once = False
    world.attempts[-1][3].errback(ConnectionRefusedError("nobody there"))
    world.wait(1)
    _, transport = world.accept()
    assert transport.reports() == []
    world.comparing[0].callback(None)
    assert transport.reports() == [0]


@pytest.mark.parametrize(("error", "delay"), [(Diverged("they differ"), 60), (MQError("no answer"), 1)])
def test_a_comparison_that_fails_takes_nothing(error: Exception, delay: float) -> None:
    world = World()
    world.compares_at_once = False
    connection, transport = world.accept()
    world.comparing[0].errback(error)
    assert transport.disconnecting
    assert transport.reports() == []
    world.lose(connection)
    assert world.service.status.why_not == str(error)
    world.wait(delay + 0.5)
    assert world.times == [0, delay]


class Replica:
    """A replica that has greeted, and follows; `progress`: what it noted."""

    def __init__(self) -> None:
        self.log, self.progress = Log(), list[tuple[int, int]]()
        self.connection = MasterConnection(
            self.log, SlaveSettings(), lambda: 0.0, self._compare, lambda: None, lambda *at: self.progress.append(at)
        )
        self.transport = Transport()
        self.connection.makeConnection(self.transport)

    async def _compare(self, connection: MasterConnection) -> None:
        await connection.greet(Greeting(bytes(8), 1, 1))
        connection.confirm(bytes(32))


def committed(at: int) -> bytes:
    return HEADER.pack(COMMITTED, 8) + REPORT.pack(at)


def test_a_replica_confirms_its_greeting_before_it_reports() -> None:
    replica = Replica()
    greeting = Greeting(bytes(8), 1, 1).encode()
    assert replica.transport.value() == greeting
    replica.connection.dataReceived(HEADER.pack(GREETING, 7) + b"history")
    assert replica.transport.value() == greeting + encode_confirmation(bytes(32)) + REPORT.pack(0)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([5, 4], "its commit point goes back from 5 to 4"),
        ([5, 0], "its commit point goes back from 5 to 0"),
        ([-1], "its commit point goes back from 0 to -1"),
        ([2**63 - 1, 5], "its commit point goes back from 9223372036854775807 to 5"),
        ([-(2**63)], "its commit point goes back from 0"),
    ],
)
def test_a_commit_point_that_goes_back_ends_the_link(points: list[int], why: str) -> None:
    replica = Replica()
    replica.connection.dataReceived(HEADER.pack(GREETING, 7) + b"history" + piece(0, b"abcde"))
    for point in points[:-1]:
        replica.connection.dataReceived(committed(point))
    assert not replica.transport.disconnecting
    noted = list(replica.progress)
    replica.connection.dataReceived(committed(points[-1]))
    assert replica.transport.disconnecting
    assert replica.progress == noted
    ended: list[Any] = []
    replica.connection.ended.addCallback(ended.append)
    replica.connection.connectionLost(Failure(ConnectionRefusedError()))
    assert why in ended[0].why


def test_a_master_that_sends_unasked_is_left() -> None:
    world = World()
    world.compares_at_once = False
    connection, transport = world.accept()
    connection.dataReceived(piece(0, b"abc"))
    assert transport.disconnecting
    assert world.log.data == b""
    world.lose(connection)
    assert world.comparing[0].called  # cancelled


def test_a_new_address_is_followed_at_once(world: World) -> None:
    connection, transport = world.accept()
    world.service.follow("10.0.0.7:1")
    assert transport.disconnecting
    world.lose(connection)
    world.wait(1.5)
    assert world.attempts[-1][1] == "10.0.0.7:1"
    world.service.follow("10.0.0.8:1")  # while the attempt hangs
    world.wait(0.25)
    assert world.attempts[-1][1] == "10.0.0.8:1"
    world.service.follow("")
    assert world.service.address == "10.0.0.8:1"


def test_without_an_address_it_waits_for_one(logged: Logged) -> None:
    clock = Clock()
    service = SlaveService(clock, Log(), SlaveSettings(), lambda host, port: pytest.fail("no address"), World().compare)
    service.startService()
    clock.pump([1.0] * 30)
    assert "not known" in service.status.why_not
    done: list[None] = []
    service.stopService().addCallback(done.append)
    assert done == [None]


@pytest.mark.parametrize("state", ["connecting", "following", "waiting"])
def test_a_stop_ends_the_connection_and_all_attempts(world: World, state: str) -> None:
    connection = None
    if state == "following":
        connection, _ = world.accept()
    if state == "waiting":
        world.attempts[-1][3].errback(ConnectionRefusedError("nobody there"))
    done: list[None] = []
    world.service.stopService().addCallback(done.append)
    if connection is not None:
        assert done == []
        world.lose(connection)
    assert done == [None]
    assert not world.clock.getDelayedCalls()
    assert len(world.attempts) == 1


def test_a_master_that_is_elected_again_is_tried_at_once(world: World) -> None:
    for _ in range(4):
        world.attempts[-1][3].errback(ConnectionRefusedError())
        world.wait(5)
    count = len(world.attempts)
    world.attempts[-1][3].errback(ConnectionRefusedError())
    world.service.follow(ADDRESS)
    assert len(world.attempts) == count
    world.service.follow(ADDRESS, at_once=True)
    assert len(world.attempts) == count + 1
    connection, _ = world.accept()
    world.service.follow(ADDRESS, at_once=True)
    assert connection.transport.connected
    assert len(world.attempts) == count + 1
