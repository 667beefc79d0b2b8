"""etcd as its documentation promises it, in memory, behind links that lose requests or answers.

What a client is told: its request was done, was not done, or nothing: then it may have been done, or be done later
still, after what was asked later. Leases never expire early, and sometimes late; watches lag. Each of three members
may hang: what it was asked meanwhile is done when it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from mqbroker.ha.etcd import (
    TIMEOUT_SECONDS,
    Compare,
    EtcdError,
    KeyValue,
    Put,
    Snapshot,
    is_repeatable,
    outcome,
)
from mqbroker.ha.etcd_endpoints import Endpoints, Reply
from tests.fakes import QuickClock

MEMBERS = ("m1", "m2", "m3")


@attrs.define
class Lease:
    ttl_s: int
    expires_at: float


@attrs.frozen
class Backup:
    """What a snapshot of etcd has in it. `leases`: time to live by lease, seconds."""

    revision: int
    items: dict[str, KeyValue]
    leases: dict[int, int]


#: What an etcd with new, empty data directories has.
EMPTY = Backup(1, {}, {})


class EtcdModel:
    """One etcd, whose members have the same, if they do not hang. `clock` is its own."""

    def __init__(self, rng: Random) -> None:
        self.clock, self.rng = QuickClock(), rng
        self.revision = 1
        self.items: dict[str, KeyValue] = {}
        self.leases: dict[int, Lease] = {}
        self.is_down = False
        #: The members that hang, and what they do when they go on.
        self.hung: dict[str, list[Callable[[], None]]] = {}
        #: The members that are late, and by how much either way, seconds.
        self.late: dict[str, float] = {}
        #: Every state that was written, by key: (revision, value).
        self.history: list[tuple[int, str, bytes]] = []
        self._watches: list[tuple[str, int, Callable[[], None], Callable[[], None]]] = []
        self._last_lease = rng.randrange(1 << 40)

    def hang(self, member: str) -> None:
        self.hung.setdefault(member, [])

    def go_on(self, member: str) -> None:
        for act in self.hung.pop(member, []):
            act()

    def run(self, member: str, act: Callable[[], None]) -> None:
        """Have a member do something, now or when it goes on."""
        if member in self.hung:
            self.hung[member].append(act)
        else:
            act()

    def look(self) -> None:
        """End the leases that have expired."""
        for lease, held in list(self.leases.items()):
            if held.expires_at <= self.clock.seconds():
                self.revoke(lease)

    def backup(self) -> Backup:
        return Backup(self.revision, dict(self.items), {lease: held.ttl_s for lease, held in self.leases.items()})

    def restore(self, backup: Backup) -> None:
        """Begin again with what a backup has, as an administrator does who stops all members for that: watches end, and
        leases get their whole time to live anew. Leases of later ids than those in it are given out still."""
        self.revision, self.items = backup.revision, dict(backup.items)
        self.hung.clear()
        now = self.clock.seconds()
        self.leases = {lease: Lease(ttl_s, now + ttl_s) for lease, ttl_s in backup.leases.items()}
        watches, self._watches[:] = list(self._watches), []
        for _, _, _, on_end in watches:
            on_end()

    def read(self, prefix: str) -> Snapshot:
        return Snapshot(self.revision, {key: item for key, item in self.items.items() if key.startswith(prefix)})

    def txn(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int | None:
        for compare in compares:
            found = self.items.get(compare.key)
            if (found.modified if found is not None else 0) != compare.modified:
                return None
        if any(put.lease and put.lease not in self.leases for put in puts):
            raise EtcdError("etcdserver: requested lease not found")
        self.revision += 1
        for put in puts:
            self._put(put)
        return self.revision

    def _put(self, put: Put) -> None:
        before = self.items.get(put.key)
        created = before.created if before is not None else self.revision
        self.items[put.key] = KeyValue(put.value, created, self.revision, put.lease)
        self.history.append((self.revision, put.key, put.value))
        self._tell(put.key)

    def put(self, key: str, value: bytes) -> None:
        """What an administrator writes."""
        self.revision += 1
        self._put(Put(key, value))

    def delete(self, key: str) -> None:
        del self.items[key]
        self.revision += 1
        self._tell(key)

    def grant(self, ttl_s: int) -> tuple[int, int]:
        self._last_lease += 1
        self.leases[self._last_lease] = Lease(ttl_s, 0.0)
        self.keep_alive(self._last_lease)
        return self._last_lease, ttl_s

    def keep_alive(self, lease: int) -> int:
        held = self.leases.get(lease)
        if held is None:
            return 0
        late_s = self.rng.choice([0.0, 0.3, 0.5])
        held.expires_at = max(held.expires_at, self.clock.seconds() + held.ttl_s + late_s)
        return held.ttl_s

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        for key in [key for key, item in self.items.items() if item.lease == lease]:
            self.delete(key)

    def _tell(self, key: str) -> None:
        told = [watch for watch in self._watches if key.startswith(watch[0])]
        for prefix, revision, on_change, _ in told:
            if self.revision > revision:
                self.clock.callLater(self.rng.choice([0.01, 0.01, 0.4]), on_change)
            assert prefix

    def watch(
        self, prefix: str, revision: int, on_change: Callable[[], None], on_end: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        entry = (prefix, revision, on_change, on_end)
        self._watches.append(entry)

        def stop() -> None:
            if entry in self._watches:
                self._watches.remove(entry)

        return stop


class ModelClient:
    """An `IEtcd` of one broker.

    :param clock: the broker's.
    :param passes: says whether something gets through, "out" to etcd or "in" from it.
    :param first: index of the member that is asked first.
    """

    def __init__(
        self,
        model: EtcdModel,
        clock: IReactorTime,
        passes: Callable[[str], bool] = lambda way: True,
        first: int = 0,
        members: Sequence[str] = MEMBERS,
    ) -> None:
        self.model, self._clock, self._passes = model, clock, passes
        self.endpoints = Endpoints(clock, members, first, TIMEOUT_SECONDS, self._moved)
        #: The watches, and the member of each.
        self.watches: dict[Deferred[None], str] = {}
        #: Requests take so long to etcd, seconds.
        self.out_s = 0.005
        #: How long a request takes to etcd, and its answer back, by what is asked: one may overtake another.
        self.delays_of: Callable[[str], tuple[float, float]] = lambda what: (self.out_s, 0.005)
        #: How often each was asked.
        self.count = Counter[str]()

    def be_uneven(self, rng: Random, longest_s: float) -> None:
        """Let each request and each answer take a time of its own."""
        times = [0.001, 0.005, 0.005, 0.05, 0.3 * longest_s, 0.6 * longest_s, longest_s]
        self.delays_of = lambda what: (rng.choice(times), rng.choice(times))

    def be_even(self) -> None:
        self.out_s, self.delays_of = 0.005, lambda what: (self.out_s, 0.005)

    def _ask(self, what: str, act: Callable[[], Any], may_repeat: bool = True) -> Deferred[Reply[Any]]:
        return self.endpoints.ask(lambda member: self._send(member, what, act), may_repeat)

    def _send(self, member: str, what: str, act: Callable[[], Any]) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        late_s = self.model.late.get(member, 0.0)
        out_s, back_s = (delay_s + late_s for delay_s in self.delays_of(what))
        self.count[what] += 1

        def arrive() -> None:
            if not self.model.is_down and self._passes("out"):
                self.model.run(member, do)

        def do() -> None:
            try:
                found = act()
            except EtcdError as error:
                found = error
            self.model.clock.callLater(back_s, self.model.run, member, lambda: back(found))

        def back(found: Any) -> None:
            # The broker's own clock runs it, so that one that is stopped hears nothing.
            if self._passes("in"):
                self._clock.callLater(0, end, found)

        def end(found: Any) -> None:
            if not answer.called:
                (answer.errback if isinstance(found, EtcdError) else answer.callback)(found)

        self.model.clock.callLater(out_s, arrive)
        return answer

    async def read(self, prefix: str) -> Snapshot:
        reply: Reply[Snapshot] = await self._ask("read", lambda: self.model.read(prefix))
        return reply.answer

    async def txn(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int | None:
        def act() -> tuple[int | None, Snapshot]:
            return self.model.txn(compares, puts), self.model.read("")

        reply = await self._ask("txn", act, is_repeatable(compares, puts))
        revision, found = reply.answer
        return outcome(puts, found.items, reply.is_repeated) if revision is None else cast(int, revision)

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        reply: Reply[tuple[int, int]] = await self._ask("grant", lambda: self.model.grant(ttl_s))
        return reply.answer

    async def keep_alive(self, lease: int) -> int:
        reply: Reply[int] = await self._ask("keep_alive", lambda: self.model.keep_alive(lease))
        return reply.answer

    async def revoke(self, lease: int) -> None:
        await self._ask("revoke", lambda: self.model.revoke(lease))

    async def close(self) -> None:
        """Nothing is open."""

    def watch(self, prefix: str, revision: int, on_change: Callable[[], None]) -> Deferred[None]:
        member = self.endpoints.current

        def tell() -> None:
            if self._passes("in") and not ended.called:
                self._clock.callLater(0, on_change)

        def close() -> None:
            self._clock.callLater(0, fail)

        def fail() -> None:
            if not ended.called:
                ended.errback(EtcdError("etcd has closed the connection"))

        stop = self.model.watch(prefix, revision, lambda: self.model.run(member, tell), close)
        ended: Deferred[None] = Deferred(lambda _: None)
        self.watches[ended] = member

        def end(result: Any) -> Any:
            del self.watches[ended]
            stop()
            return result

        return ended.addBoth(end)

    def _moved(self) -> None:
        for ended in list(self.watches):
            ended.callback(None)
