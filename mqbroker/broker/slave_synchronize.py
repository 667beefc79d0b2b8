"""The tables of a slave: topics, groups and offsets, fetched from its master every 10 seconds.

Source of the requests: SlaveSynchronize of 4.9.7. Unlike there an older table never replaces a newer one, and offsets
are taken over only once the messages below them are on the slave's disk, so that a consumer finds what it has not
consumed.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import attrs
from twisted.logger import Logger

from mqbroker.broker.delay import DelayOffsets, DelayService
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import Offsets, OffsetTable, decode_offsets
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError
from mqbroker.ha.divergence import log_bounds
from mqbroker.remoting.client import RemotingClient, succeeded
from mqbroker.wire.bodies import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from mqbroker.wire.body import Body
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand

log = Logger()

B = TypeVar("B", bound=Body)
R = TypeVar("R")

TIMEOUT_MS = 5_000


@attrs.define(eq=False)
class SlaveSynchronize:
    """Copies a master's tables.

    :param flushed: returns the offset below which the slave's log is on disk.
    """

    _client: RemotingClient
    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _delay: DelayService
    _flushed: Callable[[], int]
    #: Offsets that were fetched, and the end in the log of the messages that they refer to.
    _waiting: tuple[Offsets | None, DelayOffsets | None, int] | None = attrs.field(init=False, default=None)
    #: Of the running fetch: the tables that cannot be taken over, and why.
    _failures: list[str] = attrs.field(init=False, factory=list)
    #: The offsets taken over last from `_master`, as it runs since `_booted`. What is lower after it was started
    #: again was not moved back: it had not been written.
    _before: Offsets = attrs.field(init=False, factory=dict)
    _master: str = attrs.field(init=False, default="")
    _booted: str = attrs.field(init=False, default="")
    #: Of the tables fetched last, by request: a large one takes long to decode.
    _digests: dict[RequestCode, bytes] = attrs.field(init=False, factory=dict)

    async def fetch(self, address: str) -> int:
        """Fetch all tables of the master at `address`; returns where its log ends. Raises MQError.

        A table that cannot be taken over does not keep the others from being: the error is raised in the end.
        """
        if address != self._master:
            self._master, self._before, self._waiting = address, {}, None
            self._digests.clear()
        self._failures = []
        await self._copy(RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper, self._topics.follow)
        await self._copy(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper, self._groups.follow)
        # Not before: Java's says nothing of a log that is empty, and the tables above are wanted all the same.
        booted = (await log_bounds(self._client, address)).booted
        offsets = await self._read(RequestCode.GET_ALL_CONSUMER_OFFSET, decode_offsets)
        delay = await self._read(RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsets.from_json)
        # Asked last: all that the offsets refer to is below.
        bounds = await log_bounds(self._client, address)
        if bounds.booted != booted:
            raise MQError("it was started again meanwhile")
        self.look()  # what was fetched before may not wait for longer
        if booted != self._booted:
            self._booted, self._before = booted, {}
        self._waiting = offsets, delay, bounds.end
        self.look()
        if self._failures:
            raise MQError("; ".join(self._failures))
        return bounds.end

    def look(self) -> None:
        """Take over the offsets fetched last, if the log is on disk so far."""
        if self._waiting is None or self._flushed() < self._waiting[2]:
            return
        (offsets, delay, _), self._waiting = self._waiting, None
        if offsets is not None:
            self._offsets.follow(offsets, self._before)
            self._before = offsets
            self._offsets.persist()
        if delay is not None:
            self._delay.follow(delay)
            self._delay.persist()

    async def _copy(self, code: RequestCode, kind: type[B], follow: Callable[[B], None]) -> None:
        """Fetch a table, and take it over unless it is the one of the last time. Raises MQError."""

        def take_over(body: bytes) -> None:
            digest = sha256(body).digest()
            if self._digests.get(code) != digest:
                follow(kind.from_json(body, dialect_bytes_max=None))
                self._digests[code] = digest

        await self._read(code, take_over)

    async def _read(self, code: RequestCode, read: Callable[[bytes], R]) -> R | None:
        """Fetch a table and return what `read` makes of it; None, with a note, if that fails. Raises MQError if the
        master does not answer."""
        body = await self._body(code)
        try:
            return read(body)
        except MQError as error:
            self._failures.append(f"{code.name}: {error}")
        except Exception as error:
            log.failure("the answer to {code} cannot be taken over", code=code.name)
            self._failures.append(f"{code.name}: {type(error).__name__}")
        return None

    async def _body(self, code: RequestCode) -> bytes:
        answer = await self._client.invoke_sync(self._master, RemotingCommand.request(code), TIMEOUT_MS)
        return succeeded(answer).body
