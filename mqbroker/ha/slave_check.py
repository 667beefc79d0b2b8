"""Comparison of the log of a slave that connects with this master's, before the slave counts.

A slave of the Java system reports only the end of its log. That must be the end of a record of this log, and the record
must be the slave's last, too: it is requested from the slave's broker, whose address the name servers have. A slave
that knows the secret of the link has sent the digest of that record, so that no request is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mqbroker.errors import MQError, Refused
from mqbroker.ha.divergence import log_bounds, record_at
from mqbroker.ha.link import NEVER_HAD, BadPeer
from mqbroker.ha.link_secret import Last
from mqbroker.remoting.client import RemotingClient, succeeded
from mqbroker.wire.bodies import ClusterInfo
from mqbroker.wire.body import ANSWERED_DIALECT_BYTES_MAX
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.names import is_ip, split_address
from mqbroker.wire.record import BLANK_MAGIC, MAGIC_BYTES, SIZE_AND_MAGIC, BadRecord, decode_raw

TIMEOUT_MS = 3_000
#: Bytes of the log that are read to find the record that ends at an offset: more each time, within its segment.
_WINDOWS = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)
#: Places that look like a record and are tried in one iteration of the reactor.
_TRIED_AT_ONCE = 2_000
#: Brokers at one address that are asked.
ASKED_MAX = 8


class NotCompared(MQError):
    """The slave's log could not be compared; the text says why. `goes_on`: the log is to be sent nevertheless: it never
    can be, or only then."""

    def __init__(self, why: str, *, goes_on: bool = False) -> None:
        super().__init__(why)
        self.goes_on = goes_on


class IReadLog(Protocol):
    """The part of `mqbroker.ha.master.ILog` that the check reads."""

    segment_bytes: int

    @property
    def start(self) -> int:
        """Where the log begins."""

    def read(self, offset: int, size: int) -> Deferred[bytes] | memoryview:
        """Bytes of one segment."""


class Ending(NamedTuple):
    """The last whole record up to an offset, and whether it, or the filler behind it, ends there."""

    offset: int
    record: bytes
    is_at_end: bool


async def find_ending(log: IReadLog, end: int, clock: IReactorTime) -> Ending | None:
    """The last whole record of the log up to `end`; None if it has none. Fails with StoreError."""
    high = end
    while high > log.start:
        low = max(log.start, (high - 1) - (high - 1) % log.segment_bytes)
        for size in (*_WINDOWS, log.segment_bytes):
            begin = max(low, high - size)
            read = log.read(begin, high - begin)
            data = bytes(await read if isinstance(read, Deferred) else read)
            found = await _last_in(data, begin, clock)
            if found is not None:
                offset, record = found
                rest = data[offset + len(record) - begin :]
                is_filler = len(rest) >= SIZE_AND_MAGIC.size and not high % log.segment_bytes
                is_filler = is_filler and SIZE_AND_MAGIC.unpack_from(rest) == (len(rest), BLANK_MAGIC)
                return Ending(offset, record, high == end and (not rest or is_filler))
            if begin == low:
                break
        high = low
    return None


async def _last_in(data: bytes, begin: int, clock: IReactorTime) -> tuple[int, bytes] | None:
    """Offset and bytes of the last record in a part of the log that starts at `begin`."""
    stop, tried = len(data), 0
    while (at := data.rfind(MAGIC_BYTES, 4, stop)) >= 0:
        try:
            return begin + at - 4, data[at - 4 :][: decode_raw(data, at - 4, begin + at - 4)[0]]
        except BadRecord:
            stop, tried = at + len(MAGIC_BYTES) - 1, tried + 1
        if tried % _TRIED_AT_ONCE == 0:
            await deferLater(clock, 0)
    return None


@attrs.frozen
class SlaveCheck:
    """Compares slaves' logs with `log`.

    :param registered: fires with the addresses of this broker's slaves, as name servers have them; None if there is no
        name server to ask.
    """

    _log: IReadLog
    _client: RemotingClient
    _clock: IReactorTime
    _registered: Callable[[], Awaitable[Sequence[str] | None]]

    async def check_ending(self, offset: int, last: Last | None, *, is_proven: bool) -> Ending | None:
        """The record that the slave must have at the end of its log; None if no request is needed.

        :param last: the slave's last record as it reported it, if it `is_proven`.

        Raises BadPeer where the slave has another log, StoreError where this one cannot be read.
        """
        start = self._log.start
        if offset == start:
            return None
        ending = await find_ending(self._log, offset, self._clock)
        if not is_proven:
            return ending or Ending(start, b"", False)
        if ending is None or not ending.is_at_end:
            raise BadPeer(f"its log ends at {offset}, where no record of this one does: {NEVER_HAD}")
        if last != Last(ending.offset, sha256(ending.record).digest()):
            raise BadPeer(_differ(ending.offset))
        return None

    async def ask(
        self, host: str, ending: Ending, offset: int, sent: Callable[[], int], acknowledged: Callable[[], int]
    ) -> None:
        """Compare the slave's record: the slave at `host` has reported `offset`, was sent the log up to `sent()`, and
        has it up to `acknowledged()`.

        Raises BadPeer where it has another one, and NotCompared where that cannot be found out.
        """
        addresses = await self._registered()
        if addresses is None:
            why = "there is no name server (namesrvAddr) to find its broker"
            raise NotCompared(why, goes_on=True)
        there = [address for address in addresses if split_address(address)[0] == host]
        there = there or [address for address in addresses if not is_ip(split_address(address)[0])]
        if not there:
            raise NotCompared("the name servers know no slave of this broker at its address")
        asked, other_ends = 0, []
        for address in there[:ASKED_MAX]:
            try:
                begin, end, _ = await log_bounds(self._client, address, TIMEOUT_MS)
                if not offset <= end <= sent():  # another slave on its machine
                    other_ends.append(f"{address} says that its log ends at {end}")
                    continue
                if ending.offset < begin:
                    raise NotCompared(f"its broker at {address} has no message below {begin}")
                found = await self._record(address, ending.offset) if ending.record else b""
            except NotCompared:
                raise
            except MQError as error:
                raise NotCompared(f"its broker at {address} cannot be asked: {error}") from None
            if found != ending.record:
                raise BadPeer(_differ(ending.offset))
            if not ending.is_at_end:
                await self._ask_following(address, ending.offset + len(ending.record), acknowledged())
            asked += 1
        if not asked:
            raise NotCompared(f"it reports {offset}, and {'; '.join(other_ends)}")

    async def _ask_following(self, address: str, at: int, acknowledged: int) -> None:
        """Of a slave that ended within the record at `at`, as those of the Java system may: it must not have another
        one there, and have this one once it has the rest."""
        size, _ = SIZE_AND_MAGIC.unpack(await self._read(at, SIZE_AND_MAGIC.size))
        found = await self._record(address, at)
        if acknowledged >= at + size:
            if found != await self._read(at, size):
                raise BadPeer(_differ(at))
        elif found:
            raise BadPeer(_differ(at))
        else:
            raise NotCompared(f"it ends within the message at {at}, and gets the rest first", goes_on=True)

    async def _read(self, offset: int, size: int) -> bytes:
        read = self._log.read(offset, size)
        return bytes(await read if isinstance(read, Deferred) else read)

    async def _record(self, address: str, offset: int) -> bytes:
        try:
            return await record_at(self._client, address, offset, TIMEOUT_MS)
        except Refused as error:
            if error.code == ResponseCode.SYSTEM_ERROR:  # it has none there
                return b""
            raise


async def registered_slaves(
    client: RemotingClient, name_servers: Sequence[str], broker_name: str
) -> Sequence[str] | None:
    """The addresses of the slaves of `broker_name` at the first name server that answers. Raises NotCompared where
    none does."""
    if not name_servers:
        return None
    why = ""
    for address in name_servers:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            answer = succeeded(await client.invoke_sync(address, request, TIMEOUT_MS))
            known = ClusterInfo.from_json(answer.body, ANSWERED_DIALECT_BYTES_MAX).broker_addr_table.get(broker_name)
        except MQError as error:
            why = f"the name server at {address} does not say where its broker can be asked: {error}"
            continue
        return [] if known is None else [addr for broker_id, addr in known.broker_addrs.items() if broker_id > 0]
    raise NotCompared(why)


def _differ(offset: int) -> str:
    return f"its log and this one differ at {offset}: {NEVER_HAD}"
