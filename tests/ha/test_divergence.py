"""The comparison of two logs: what a slave's last record is compared with, and what each answer means."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, succeed

from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.ha.divergence import Diverged, LogComparison, log_bounds
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.store.harness import run_now


@attrs.define
class Log:
    """A slave's log, which ends with `last`."""

    end: int
    last: tuple[int, bytes] | None
    start: int = 0

    def last_record(self) -> tuple[int, bytes] | None:
        return self.last


@attrs.define
class Master:
    """Answers requests: `record` to VIEW_MESSAGE_BY_ID, `bounds` as runtime info."""

    record: bytes | MQError
    bounds: tuple[Any, Any] = (0, 5000)
    asked: list[tuple[str, int, dict[str, str]]] = attrs.field(factory=list)

    def invoke_sync(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        self.asked.append((address, command.code, command.ext_fields))
        if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
            if isinstance(self.record, Refused):
                return succeed(RemotingCommand(self.record.code, remark="no"))
            if isinstance(self.record, MQError):
                return fail(self.record)
            return succeed(RemotingCommand(0, body=self.record))
        table = {"commitLogMinOffset": str(self.bounds[0]), "commitLogMaxOffset": str(self.bounds[1])}
        return succeed(RemotingCommand(0, body=KVTable(table).to_json()))


NOT_THERE = Refused(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")


def compare(log: Log, master: Master, address: str = "10.0.0.1:10911", *, is_told: bool = False) -> None:
    comparison = LogComparison(log, cast(Any, master), is_told=lambda: is_told)
    comparison.master_addr = address
    run_now(comparison.check())


def test_the_same_record_at_the_same_place_is_the_same_log() -> None:
    master = Master(b"record")
    compare(Log(1006, (1000, b"record")), master)
    assert master.asked == [("10.0.0.1:10911", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "1000"})]


@pytest.mark.parametrize(("log", "address"), [(Log(0, None), "10.0.0.1:10911"), (Log(9, (3, b"record")), "")])
def test_nothing_to_compare_or_nobody_to_ask(log: Log, address: str) -> None:
    master = Master(b"other")
    compare(log, master, address)
    assert master.asked == []


def test_a_log_that_ends_with_what_is_no_record_is_not_continued() -> None:
    with pytest.raises(Diverged, match="this log ends with bytes that are not a message"):
        compare(Log(1006, None, start=1000), Master(b"record"))
    compare(Log(1000, None, start=1000), Master(b"record"))  # it has just begun there


def test_a_master_that_name_servers_have_not_told_of_yet_is_not_followed() -> None:
    compare(Log(0, None), Master(b""), "", is_told=True)
    with pytest.raises(MQError, match="no name server has reported yet"):
        compare(Log(9, (3, b"record")), Master(b"record"), "", is_told=True)


@pytest.mark.parametrize(
    ("record", "bounds", "says"),
    [
        (b"other!", (0, 5000), "the two logs differ at 1000"),
        (b"", (0, 5000), "the two logs differ at 1000"),
        (b"record+", (0, 5000), "the two logs differ at 1000"),
        (
            NOT_THERE,
            (0, 1005),
            "this log ends at 1006, the master's at 1005: it has messages that the master never had",
        ),
        (
            NOT_THERE,
            (1001, 5000),
            "the master's log begins at 1001, and the last message of this one, at 1000, was deleted",
        ),
    ],
)
def test_how_the_logs_differ_is_told(record: bytes | MQError, bounds: tuple[int, int], says: str) -> None:
    with pytest.raises(Diverged, match=f"^{says}.*move its store's directory aside .keep it., and start"):
        compare(Log(1006, (1000, b"record")), Master(record, bounds))


def test_a_master_that_does_not_answer_proves_nothing() -> None:
    with pytest.raises(Unreachable):
        compare(Log(1006, (1000, b"record")), Master(Unreachable("nobody there")))


@pytest.mark.parametrize("bounds", [("x", "5"), ("", ""), ("0x1", "5"), ("0", "9" * 20), ("-" + "9" * 4000, "5")])
def test_bounds_that_are_no_numbers(bounds: tuple[str, str]) -> None:
    with pytest.raises(MQError, match="does not say where its commit log begins and ends"):
        run_now(log_bounds(cast(Any, Master(b"", bounds)), "10.0.0.1:10911"))
