"""The tables of a slave: topics, groups and offsets, fetched from its master every 10 seconds.

Source of the requests: SlaveSynchronize of 4.9.7. Unlike there an older table never replaces a newer one, and offsets
are taken over only once the messages below them are on the slave's disk, so that a consumer finds what it has not
consumed.

And unlike there, queues that the master has removed are removed, once the messages from before the removal are there:
else the slave would serve them, and those of a new topic of that name, as one queue. A master of our kind names them,
with the offsets at which they continue; for a Java master they are those of topics that left its table during one run.
It is recorded which run the tables on disk were copied from, so that a slave that was away removes what its master has
removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.delay import WITH_DELIVERED, DelayOffsets, DelayService
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import Offsets, OffsetTable, decode_offsets
from mqbroker.broker.requests.topic_requests import WITH_REMOVED_QUEUES
from mqbroker.broker.topic_repair import CopiedTopics, MasterRun
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError, Refused
from mqbroker.ha.divergence import log_bounds
from mqbroker.remoting.client import RemotingClient, succeeded
from mqbroker.store.consumequeues import TOPIC_NAME, Removed
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import SubscriptionGroupWrapper, TopicsForSlave
from mqbroker.wire.body import Body
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import RECORD_BYTES_MIN

log = Logger()

B = TypeVar("B", bound=Body)
R = TypeVar("R")

TIMEOUT_MS = 5_000
_NONE = Removed(0, 0)


@attrs.define(eq=False)
class SlaveSynchronize:
    """Copies a master's tables, and removes what it has removed."""

    _client: RemotingClient
    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _delay: DelayService
    _store: MessageStore
    _copied: CopiedTopics
    #: Queues that the master has removed, which were not followed yet.
    _removed: dict[tuple[str, int], Removed] = attrs.field(init=False, factory=dict)
    #: Topics that a Java master has no longer, and the end in the log of their messages.
    _gone: tuple[set[str], int] = attrs.field(init=False, factory=lambda: (set(), 0))
    _removing: Deferred[None] | None = attrs.field(init=False, default=None)
    #: The offsets that were fetched, the end of the master's log then, and the master's run if all of its topics and
    #: groups were taken over, otherwise None.
    _waiting: tuple[Offsets | None, DelayOffsets | None, int, MasterRun | None] | None = attrs.field(
        init=False, default=None
    )
    #: The tables of the running fetch that cannot be taken over, and why.
    _failures: list[str] = attrs.field(init=False, factory=list)
    #: The topics of the table fetched last, those that left it since all tables were fetched, and whether it was a Java
    #: master's.
    _names: set[str] = attrs.field(init=False, factory=set)
    _left: set[str] = attrs.field(init=False, factory=set)
    _is_java: bool = attrs.field(init=False, default=False)
    #: The offsets taken over last from `_master`, as it runs since `_booted`. What is lower after it was started
    #: again was not moved back: it had not been written.
    _before: Offsets = attrs.field(init=False, factory=dict)
    _master: str = attrs.field(init=False, default="")
    _booted: str = attrs.field(init=False, default="")
    #: Digests of the tables fetched last, by request: a large one takes long to decode.
    _digests: dict[RequestCode, bytes] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._offsets.on_own.append(self._has_own_offsets)
        run = self._copied.run
        if run is not None:
            self._master, self._booted = run.address, run.booted
            self._names = set(self._topics.names())
            self._offsets.is_copy = run.has_offsets
            if run.has_offsets:
                # Without the offsets themselves: higher ones may have been committed here.
                by_group = self._offsets.topics_by_group().items()
                self._before = {f"{topic}@{group}": {} for group, topics in by_group for topic in topics}

    async def fetch(self, address: str) -> int:
        """Fetch all tables of the master at `address`; returns where its log ends. Raises MQError.

        A table that cannot be taken over does not keep the others from being: the error is raised in the end.
        """
        if address != self._master:
            self._master, self._before, self._waiting = address, {}, None
            self._removed, self._gone, self._names, self._left = {}, (set(), 0), set(), set()
            self._booted = ""
            self._digests.clear()
        self._failures = []
        log_end = self._store.log_end  # the master had these messages, and so their topics, before it is asked
        await self._copy(RequestCode.GET_ALL_TOPIC_CONFIG, TopicsForSlave, self._follow_topics)
        if not self._failures:
            self._copied.copied(log_end)
        await self._copy(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper, self._groups.follow)
        # Not before: Java's says nothing of its log in its first seconds, and the tables above are wanted all the same.
        try:
            booted = (await log_bounds(self._client, address)).booted
        except Refused:
            # It has just started, and may have lost what it lacks. What leaves the table from now on was removed.
            if self._booted:
                self._booted, self._left = "", set()
            raise
        offsets = await self._read(RequestCode.GET_ALL_CONSUMER_OFFSET, decode_offsets)
        delay = await self._read(RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsets.from_json)
        # Asked last: all that the offsets refer to is below.
        bounds = await log_bounds(self._client, address)
        if bounds.booted != booted:
            raise MQError("it was started again meanwhile")
        self.look()  # what was fetched before may not wait for longer
        if booted != self._booted:
            # What it lacks after a start it may have lost, not removed.
            self._before = {}
            if self._booted:
                self._left = set()
            self._booted = booted
        # A table that is newer than the master's was not replaced, and may have what the master lost.
        own = set(self._topics.names()) - self._names
        is_copy = booted != "" and not self._failures and all(map(self._topics.is_system, own))
        self._waiting = offsets, delay, bounds.end, MasterRun(address, booted, False) if is_copy else None
        if self._is_java and self._left:
            self._gone = self._gone[0] | self._left, bounds.end
        self._gone, self._left = (self._gone[0] - self._names, self._gone[1]), set()
        self.look()
        if self._failures:
            raise MQError("; ".join(self._failures))
        return bounds.end

    def look(self) -> None:
        """Take over the offsets fetched last, if the log is on disk so far, and remove queues, if that has all of their
        messages."""
        self._look_at_removals()
        if self._waiting is None or self._store.flushed < self._waiting[2]:
            return
        (offsets, delay, _, run), self._waiting = self._waiting, None
        if offsets is not None:
            self._offsets.follow(offsets, self._before)
            self._before = offsets
            self._offsets.persist()
        if delay is not None:
            self._delay.follow(delay)
            self._delay.persist()
        if run is not None and attrs.evolve(run, has_offsets=self._offsets.is_copy) != self._copied.run:
            Deferred.fromCoroutine(self._note(run))

    def _has_own_offsets(self) -> None:
        """Record that not all offsets are the master's, before the others are on disk."""
        noted = self._copied.run
        if noted is not None and noted.has_offsets:
            self._copied.synchronized(attrs.evolve(noted, has_offsets=False))

    async def _note(self, run: MasterRun) -> None:
        """Record which run of the master the tables are from, once they are on disk."""
        if await self._topics.persist() and await self._offsets.persist():
            self._copied.synchronized(attrs.evolve(run, has_offsets=self._offsets.is_copy))

    def _follow_topics(self, master: TopicsForSlave) -> None:
        self._topics.follow(master)
        names = set(master.topic_config_table)
        self._left = (self._left | self._names) - names
        self._names, self._is_java = names, master.removed_queues is None
        known = self._store.removed_queues()
        for each in master.removed_queues or ():
            key, note = (each.topic, each.queue_id), Removed(each.next_offset, each.until)
            # A message has some bytes, so that the log has no room for more.
            is_possible = each.queue_id >= 0 and 0 <= note.next_offset <= note.until // RECORD_BYTES_MIN
            if is_possible and TOPIC_NAME.fullmatch(each.topic) and known.get(key, _NONE)[0] < note.next_offset:
                self._removed[key] = note

    def _look_at_removals(self) -> None:
        end = min(self._store.flushed, self._store.dispatched)
        notes = {key: note for key, note in self._removed.items() if note.until <= end}
        names, until = self._gone
        if self._removing is None and (notes or (names and until <= end)):
            self._removing = Deferred.fromCoroutine(self._remove(notes, names if until <= end else set()))
            self._removing.addErrback(
                lambda failure: log.failure("removing queues that the master removed failed", failure)
            )
            self._removing.addBoth(self._ended)

    async def _remove(self, notes: dict[tuple[str, int], Removed], names: set[str]) -> None:
        try:
            if notes:
                await self._store.follow_removals(notes)
            if names:
                await self._store.renumber_topics(names)
        except (OSError, MQError) as error:
            log.error("queues that the master removed could not be removed yet: {why}", why=str(error))
            return
        for key, note in notes.items():
            if self._removed.get(key) == note:
                del self._removed[key]
        self._gone = self._gone[0] - names, self._gone[1]

    def _ended(self, _: object) -> None:
        self._removing = None

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
            log.failure("the response to {code} could not be applied", code=code.name)
            self._failures.append(f"{code.name}: {type(error).__name__}")
        return None

    async def _body(self, code: RequestCode) -> bytes:
        command = RemotingCommand.request(code)
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            command.ext_fields[WITH_REMOVED_QUEUES] = "true"
        elif code == RequestCode.GET_ALL_DELAY_OFFSET:
            command.ext_fields[WITH_DELIVERED] = "true"
        answer = await self._client.invoke_sync(self._master, command, TIMEOUT_MS)
        return succeeded(answer).body
