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

TIMEOUT_MS = 5_000


@attrs.frozen
class _Fetched:
    """Offsets that refer to messages below `log_end`."""

    offsets: Offsets
    delay: DelayOffsets
    log_end: int


class SlaveSynchronize:
    """Copies a master's tables.

    :param flushed: returns the offset below which the slave's log is on disk.
    """

    def __init__(
        self,
        client: RemotingClient,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delay: DelayService,
        flushed: Callable[[], int],
    ) -> None:
        self._client = client
        self._topics, self._groups, self._offsets, self._delay = topics, groups, offsets, delay
        self._flushed = flushed
        self._waiting: _Fetched | None = None
        #: The offsets taken over last from `_master`, as it runs since `_booted`. What is lower after it was started
        #: again was not moved back: it had not been written.
        self._before: Offsets = {}
        self._master = self._booted = ""
        #: Of the tables fetched last, by request: a large one takes long to decode.
        self._digests: dict[RequestCode, bytes] = {}

    async def fetch(self, address: str) -> int:
        """Fetch all tables of the master at `address`; returns where its log ends. Raises MQError."""
        if address != self._master:
            self._master, self._before, self._waiting = address, {}, None
            self._digests.clear()
        await self._copy(RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper, self._topics.follow)
        await self._copy(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper, self._groups.follow)
        # Not before: Java's says nothing of a log that is empty, and the tables above are wanted all the same.
        booted = (await log_bounds(self._client, address)).booted
        offsets = decode_offsets(await self._body(RequestCode.GET_ALL_CONSUMER_OFFSET))
        delay = DelayOffsets.from_json(await self._body(RequestCode.GET_ALL_DELAY_OFFSET))
        # Asked last: all that the offsets refer to is below.
        bounds = await log_bounds(self._client, address)
        if bounds.booted != booted:
            raise MQError("it was started again meanwhile")
        self.look()  # what was fetched before may not wait for longer
        if booted != self._booted:
            self._booted, self._before = booted, {}
        self._waiting = _Fetched(offsets, delay, bounds.end)
        self.look()
        return bounds.end

    def look(self) -> None:
        """Take over the offsets fetched last, if the log is on disk so far."""
        fetched = self._waiting
        if fetched is None or self._flushed() < fetched.log_end:
            return
        self._waiting = None
        self._offsets.follow(fetched.offsets, self._before)
        self._before = fetched.offsets
        self._offsets.persist()
        self._delay.follow(fetched.delay)
        self._delay.persist()

    async def _copy(self, code: RequestCode, kind: type[B], follow: Callable[[B], None]) -> None:
        """Fetch a table, and take it over unless it is the one of the last time."""
        body = await self._body(code)
        digest = sha256(body).digest()
        if self._digests.get(code) != digest:
            follow(kind.from_json(body, dialect_bytes_max=None))
            self._digests[code] = digest

    async def _body(self, code: RequestCode) -> bytes:
        answer = await self._client.invoke_sync(self._master, RemotingCommand.request(code), TIMEOUT_MS)
        return succeeded(answer).body
