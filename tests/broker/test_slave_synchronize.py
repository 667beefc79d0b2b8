"""A slave's tables over changes of its master: what was fetched from a former one is not taken for the new one's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from mqbroker.broker.slave_synchronize import SlaveSynchronize
from mqbroker.broker.topic_repair import MasterRun
from mqbroker.errors import MQError, Unreachable
from mqbroker.wire.bodies import KVTable, SubscriptionGroupWrapper, TopicConfig, TopicsForSlave
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand

A, B = "10.0.0.1:10911", "10.0.0.2:10911"
END = 1000


class Masters:
    """Answers with the same tables at each address; `fails`: those of a code."""

    def __init__(self) -> None:
        self.fails: set[RequestCode] = set()
        self.spoilt: set[RequestCode] = set()
        self.booted = {A: "1", B: "2"}

    def invoke_sync(self, address: str, request: RemotingCommand, _: int) -> Deferred[RemotingCommand]:
        code = RequestCode(request.code)
        if code in self.fails:
            return fail(Unreachable("it is away"))
        numbers = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(END), "bootTimestamp": self.booted[address]}
        bodies = {
            RequestCode.GET_ALL_TOPIC_CONFIG: TopicsForSlave({"T": TopicConfig("T")}).to_json(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper().to_json(),
            RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@%s":{0:5}}}' % address[:8].encode(),
            RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:7}}',
            RequestCode.GET_BROKER_RUNTIME_INFO: KVTable(numbers).to_json(),
        }
        body = b"spoilt" if code in self.spoilt else bodies[code]
        return succeed(RemotingCommand.response(request, body=body))


class Table:
    """Notes what it is to follow."""

    def __init__(self) -> None:
        self.followed: list[Any] = []
        self.on_own: list[Any] = []

    def names(self) -> list[str]:
        return []

    def is_system(self, name: str) -> bool:
        return name != "T"

    def follow(self, *what: Any) -> None:
        self.followed.append(what)

    def persist(self) -> Deferred[bool]:
        return succeed(True)

    def copied(self, log_end: int) -> None:
        """Topics are there up to it."""

    run: MasterRun | None = None
    is_copy = True

    def synchronized(self, run: MasterRun) -> None:
        self.run = run


class Slave:
    def __init__(self) -> None:
        self.masters = Masters()
        self.topics, self.groups, self.offsets, self.delay = Table(), Table(), Table(), Table()
        self.store = SimpleNamespace(flushed=0, dispatched=0, log_end=0, removed_queues=dict)
        self.copied = Table()
        parts = self.masters, self.topics, self.groups, self.offsets, self.delay, self.store, self.copied
        self.tables = SlaveSynchronize(*cast(Any, parts))

    def fetch(self, address: str) -> BaseException | None:
        """Fetch all tables; returns why that failed."""
        found: list[Any] = []
        Deferred.fromCoroutine(self.tables.fetch(address)).addBoth(found.append)
        [result] = found
        return result.value if isinstance(result, Failure) else None


@pytest.fixture
def slave() -> Slave:
    return Slave()


def test_offsets_of_a_former_master_are_never_taken_over(slave: Slave) -> None:
    for former, master in ((A, B), (B, A), (A, B)):
        slave.store.flushed = 0
        assert slave.fetch(former) is None
        assert slave.offsets.followed == [], "the messages below them are not on the disk"
        slave.masters.fails = {RequestCode.GET_ALL_CONSUMER_OFFSET}
        assert isinstance(slave.fetch(master), Unreachable)
        slave.store.flushed = END
        slave.tables.look()
        assert slave.offsets.followed == slave.delay.followed == []
        slave.masters.fails.clear()
        for _ in range(2):
            assert slave.fetch(master) is None
        [(first, before), (second, known)] = slave.offsets.followed
        assert (first, before, known) == (second, {}, first), "what the former one had says nothing of this one"
        slave.offsets.followed.clear()
        slave.delay.followed.clear()


def test_a_table_is_taken_over_once_from_each_master_though_it_is_the_same(slave: Slave) -> None:
    for count, master in enumerate((A, B, A), start=1):
        for _ in range(3):
            assert slave.fetch(master) is None
        assert len(slave.topics.followed) == len(slave.groups.followed) == count


def test_a_table_that_cannot_be_taken_over_again_fails_the_fetch_again_and_no_later_one(slave: Slave) -> None:
    for number in range(1, 4):
        for code in (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_DELAY_OFFSET):
            slave.masters.spoilt = {code}
            for _ in range(2):
                error = slave.fetch(A)
                assert isinstance(error, MQError)
                assert str(error).startswith(code.name)
                assert ";" not in str(error)
        slave.masters.spoilt.clear()
        assert slave.fetch(A) is None, number


def test_offsets_of_a_master_that_was_started_again_are_not_compared_with_those_before(slave: Slave) -> None:
    slave.store.flushed = END
    for number in range(3):
        slave.masters.booted[A] = f"start {number}"
        for _ in range(2):
            assert slave.fetch(A) is None
        assert [before == {} for _, before in slave.offsets.followed] == [True, False]
        slave.offsets.followed.clear()


def test_a_master_that_does_not_say_since_when_it_runs_has_no_run(slave: Slave) -> None:
    slave.store.flushed = END
    for booted in ("", "1", "", "2"):
        slave.copied.run = None
        slave.masters.booted[A] = booted
        for _ in range(2):
            assert slave.fetch(A) is None
        assert slave.copied.run == (MasterRun(A, booted, True) if booted else None)
