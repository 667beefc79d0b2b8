"""Comparison of a slave's log with its master's, before the slave follows.

Lengths say nothing of contents: the record that ends the slave's log must be at the same place of the master's, byte
for byte. It has its store time and its physical offset in it; logs that agree in it have the same history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from mqbroker.errors import MQError, Refused
from mqbroker.remoting.client import RemotingClient, succeeded
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand

TIMEOUT_MS = 5_000

#: What to do with a store that cannot follow: it may have the only copy of something.
START_ANEW = "stop this broker, move its store's directory aside (keep it), and start the broker again"


class Diverged(MQError):
    """The slave's log is not the beginning of its master's; the text says how they differ and what to do."""


class FallenBehind(Diverged):
    """The master has deleted what would follow the slave's log."""

    @classmethod
    def of(cls, end: int, begin: int, advice: str = "") -> FallenBehind:
        """For a log that ends at `end`, when the master's begins at `begin`."""
        return cls(
            f"this log ends at {end}, and the master's begins at {begin}: this broker was down for longer than its "
            f"master keeps messages (fileReservedTime){advice}"
        )


class IComparedLog(Protocol):
    """The parts of a slave's log that are compared."""

    @property
    def start(self) -> int:
        """Where the log begins."""

    @property
    def end(self) -> int:
        """Where the log ends."""

    def last_record(self) -> tuple[int, bytes] | None:
        """Offset and bytes of the last record; None without records, or where other bytes follow. Raises OSError."""


class LogBounds(NamedTuple):
    """Where a broker's log begins and ends, and since when the broker runs, as it says itself."""

    begin: int
    end: int
    booted: str


async def log_bounds(client: RemotingClient, address: str, timeout_ms: int = TIMEOUT_MS) -> LogBounds:
    """The bounds of its log that the broker at `address` reports. Raises MQError."""
    answer = await client.invoke_sync(address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_ms)
    table = KVTable.from_json(succeeded(answer).body).table
    try:
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        if max(abs(begin), abs(end)) >= 2**64:
            raise ValueError
        return LogBounds(begin, end, table.get("bootTimestamp", ""))
    except (KeyError, ValueError):
        raise MQError(f"the broker at {address} does not say where its commit log begins and ends") from None


async def record_at(client: RemotingClient, address: str, offset: int, timeout_ms: int = TIMEOUT_MS) -> bytes:
    """The record at `offset` of the log of the broker at `address`. Raises Refused without a record there, and
    MQError."""
    command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, h.ViewMessageRequestHeader(offset=offset))
    return succeeded(await client.invoke_sync(address, command, timeout_ms)).body


class LogComparison:
    """Compares a slave's log with that of the broker at `master_addr`.

    :param is_told: whether name servers say where the master is: until then nothing is followed. Without them it never
        is known, and nothing compared.
    """

    def __init__(self, raw: IComparedLog, client: RemotingClient, *, is_told: Callable[[], bool]) -> None:
        self._raw, self._client, self._is_told = raw, client, is_told
        self.master_addr = ""

    def check_begin(self, begin: int) -> None:
        """Raises FallenBehind where the master's log begins where this one ends, or later."""
        if 0 < self._raw.end <= begin:
            advice = f"; set haResyncEnable=true, so that it copies the master's log again, or {START_ANEW}"
            raise FallenBehind.of(self._raw.end, begin, advice)

    async def master_begin(self, bounds: tuple[int, int] | None) -> int:
        """Where the master's log begins; 0 if it does not say. Raises MQError."""
        if bounds is not None:
            return bounds[0]
        return max(0, (await log_bounds(self._client, self.master_addr)).begin) if self.master_addr else 0

    async def check(self, bounds: tuple[int, int] | None = None) -> None:
        """`bounds`: where the master's log begins and ends, if it has said so on the link.

        Raises Diverged, MQError where the master does not answer, OSError where this log cannot be read."""
        if bounds is not None:
            self.check_begin(bounds[0])
        last = self._raw.last_record()
        if last is None:
            if self._raw.end > self._raw.start:
                raise Diverged(
                    "this log ends with bytes that are not a message: one of its files was damaged, or restored from "
                    "an older copy; nothing is copied from the master: {START_ANEW}"
                )
            return
        if not self.master_addr:
            if self._is_told():
                raise MQError("no name server has reported yet where the master is, whose log must be compared")
            return
        offset, record = last
        try:
            found = await record_at(self._client, self.master_addr, offset)
        except Refused:
            found = b""
        if found == record:
            return
        start, end, _ = await log_bounds(self._client, self.master_addr)
        self.check_begin(start)
        if self._raw.end > end:
            how = f"this log ends at {self._raw.end}, the master's at {end}: it has messages that the master never had"
        elif offset < start:
            how = (
                f"the master's log begins at {start}, and the last message of this one, at {offset}, was deleted there"
            )
        else:
            how = f"the two logs differ at {offset}"
        raise Diverged(
            f"{how}; nothing is copied from the master. Compare the two logs; if the master's is the right one, "
            f"{START_ANEW}"
        )
