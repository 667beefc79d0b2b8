"""A group of three that steps happen to, and what must hold of it at every moment.

Must never know of seeds: what happens is given.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from mqbroker.broker.offset_table import OffsetTable
from mqbroker.config import FlushDiskType
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import Record
from tests.broker.bench import send_command
from tests.broker.service.group import ETCD, NAMESRVS, Client, Group, Replica
from tests.broker.service.simulation.steps import Options, Step
from tests.store.simulation.disk import SimDisk
from tests.store.simulation.model import require

MIN_IN_SYNC = 2
SEGMENT_BYTES = 64 * 1024
HOSTS = [f"10.0.0.{number}" for number in (1, 2, 3)]
#: Codes that promise nothing of the replicas; the message may be stored.
NO_PROMISE = {
    *(ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT),
    *(ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY),
}
#: How old the offsets may be that a broker has after a kill: they are written each 5 s.
OFFSETS_AGE_S = 6.0


class Cluster:
    """Does steps, and raises Violation where a promise does not hold."""

    def __init__(self, root: Path, options: Options) -> None:
        self.rng = Random(options["seed"])
        self.counts: Counter[str] = Counter()
        self.flush = FlushDiskType(options["flush"])
        store = {"flush_disk_type": self.flush}
        self.group = Group(
            root, Random(options["seed"] + 1), is_disk_simulated=True, store=store, min_in_sync_replicas=MIN_IN_SYNC
        )
        self.group.chunk = options["chunk"]
        self.sent = 0
        #: What was acknowledged, by its offset in the log.
        self.acknowledged: dict[int, bytes] = {}
        #: The log up to the end of the last of these.
        self.agreed = bytearray()
        #: The queue's messages below are acknowledged.
        self.queue_end = 0
        self.delayed: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.clients: list[tuple[Client, dict[int, bytes], int]] = []
        #: Replicas that may lack what was acknowledged, since their machines lost power.
        self.lacking: set[int] = set()
        self.power_cuts = 0
        self.offsets: dict[int, Offsets] = {}
        for replica_id in (1, 2, 3):
            self.group.start(replica_id)
        self.wait(3)

    def do(self, step: Step) -> None:
        """Do a step, and let time pass. Raises Violation."""
        what, seconds, seed = step
        self.rng = Random(seed)
        self.counts[what] += getattr(self, what.replace(" ", "_"))() is not False
        self.wait(seconds)
        self.check_logs()

    def wait(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.05))):
            self.group.step()
            self.look()

    # --- what holds

    def look(self) -> None:
        """Check what holds at every moment."""
        masters = self.group.masters
        require(len(masters) <= 1, "one master", f"{[each.replica_id for each in masters]}")
        stays = [key for key, item in self.group.etcd.items.items() if "/members/" in key and not item.lease]
        require(not stays, "the key of a member goes with its lease", f"{stays}")
        for client, bodies, power_cuts in self.clients:
            for answer in client.heard():
                self.hear(client, answer, bodies.pop(answer.opaque), power_cuts == self.power_cuts)
        for entry in [entry for entry in self.clients if entry[0].link.lost or not entry[1]]:
            entry[0].peer.transport.loseConnection()
            self.clients.remove(entry)
        for master in masters:
            self.lacking.discard(master.replica_id)
            for member in self.running():
                if member.is_running and member.store.log_end == master.store.log_end:
                    self.lacking -= {member.replica_id} & self.group.in_sync()
        for replica in self.running():
            if replica.is_running:
                self.offsets.setdefault(replica.replica_id, Offsets()).look(replica, self.group.now, self.queue_end)

    def hear(self, client: Client, answer: RemotingCommand, body: bytes, has_had_power: bool) -> None:
        code = answer.code
        if code != ResponseCode.SUCCESS:
            require(code in NO_PROMISE, "answers are those of the documentation", str(answer))
            self.counts[f"answer {code}"] += 1
            return
        self.counts["acknowledged"] += 1
        offset = int(answer.ext_fields["msgId"][-16:], 16)
        holders = [replica for replica in self.group.replicas.values() if has(replica, offset, body)]
        wanted = MIN_IN_SYNC if has_had_power else 1
        require(len(holders) >= wanted, "acknowledged is on as many as promised", f"{offset} is on {len(holders)}")
        is_new = self.acknowledged.setdefault(offset, body) == body
        require(is_new, "an offset is acknowledged once", f"{offset}")
        if body not in self.delayed:
            self.queue_end = max(self.queue_end, int(answer.ext_fields["queueOffset"]) + 1)
        size = int.from_bytes(log_bytes(holders[0], offset, offset + 4), "big")
        end, agreed = offset + size, len(self.agreed)
        if end > agreed:
            self.agreed += log_bytes(client.replica if client.replica in holders else holders[0], agreed, end)
            self.check_logs(agreed)

    def check_logs(self, begin: int = 0) -> None:
        """The logs of those in sync agree up to what was acknowledged, of those that were killed as they were then."""
        for replica_id in self.group.in_sync() - self.lacking:
            found = log_bytes(self.group.replicas[replica_id], begin, len(self.agreed))
            what = f"the log of {replica_id} is another one between {begin} and {len(self.agreed)}"
            require(found == self.agreed[begin:], "logs agree up to what was acknowledged", what)

    def check_epochs(self) -> None:
        masters: dict[int, tuple[int, int]] = {}
        for _, key, value in self.group.etcd.history:
            if key.endswith("/state"):
                state = json.loads(value)
                who = (state["master"], state["lease"])
                require(masters.setdefault(state["epoch"], who) == who, "one master an epoch", f"{state}")
        self.counts["epochs"] += len(masters)

    def finish(self) -> None:
        """After all is well again, all have the same, and all that was acknowledged."""
        group = self.group
        self.heal()
        self.thaw()
        for replica in list(group.replicas.values()):
            if replica.is_dead:
                group.start(replica.replica_id)
        began = group.now
        while not (group.masters and group.in_sync() == {1, 2, 3}):
            why_not = [group.member(each).why_not for each in group.alive()]
            require(group.now - began < 120, "the group goes on when all is well", f"{why_not}")
            self.wait(0.5)
        self.wait(6)  # all of them are connected by then
        before = self.counts["acknowledged"]
        self.send_to(group.master())
        self.wait(15)
        require(self.counts["acknowledged"] > before, "the group acknowledges when all is well", "it does not")
        master = group.master()
        records = master.records()
        lost = {offset: body for offset, body in self.acknowledged.items() if body_of(records.get(offset)) != body}
        require(not lost, "nothing acknowledged is lost", f"{sorted(lost)}")
        self.check_logs()
        self.check_epochs()
        require(len({replica.log() for replica in group.alive()}) == 1, "all logs are equal in the end", "")
        ends = {replica.store.max_offset("T", 0) for replica in group.alive()}
        require(len(ends) == 1, "all queues are equal in the end", f"{ends}")
        acknowledged = set(self.acknowledged.values())
        undelivered = acknowledged - {record.body for record in records.values() if record.topic == "T"}
        require(not undelivered, "what is delayed is delivered", f"{numbers(undelivered)}")
        self.consume_at(master)
        require(acknowledged <= self.consumed, "consumers get all", f"{numbers(acknowledged - self.consumed)}")
        addresses = {table["broker-a"].broker_addrs.get(0) for table in group.broker_tables()}
        require(addresses == {f"{master.host}:10911"}, "all name servers have the master", f"{addresses}")
        group.close()

    # --- steps: False where there was nothing to do

    def choose(self, found: Iterable[Replica]) -> list[Replica]:
        """One of them, if there is one."""
        among = list(found)
        return [self.rng.choice(among)] if among else []

    def running(self) -> list[Replica]:
        return [each for each in self.group.alive() if not each.is_frozen]

    def send(self) -> None:
        for master in self.running():
            if master.is_master:
                self.send_to(master)

    def send_to(self, master: Replica) -> None:
        client = self.group.client(master)
        commands = []
        for _ in range(self.rng.randint(1, 8)):
            self.sent += 1
            body = b"<%06d>" % self.sent + b"x" * self.rng.choice([0, 100, 9000])
            level = self.rng.choice([0, 0, 0, 1, 2])
            if level:
                self.delayed.add(body)
            commands.append(send_command("T", body, properties=f"DELAY\x01{level}" if level else ""))
        client.tell(*commands)
        self.clients.append((client, {command.opaque: command.body for command in commands}, self.power_cuts))

    def pause(self) -> None:
        """Let time pass."""

    def consume(self) -> None:
        """Read what a consumer that starts now gets, from whoever takes itself for the master, and commit that."""
        for master in self.running():
            if master.is_master:
                self.consume_at(master)

    def consume_at(self, master: Replica) -> None:
        offsets, store = master.parts.offsets, master.store
        begin, end = offsets.query("CG", "T", 0) or 0, store.max_offset("T", 0)
        placed = [entry[0] for entry in queue_entries(store, begin, end)]
        records = master.records()
        self.consumed |= {records[offset].body for offset in placed}
        offsets.commit("CG", "T", 0, end)

    def kill(self) -> bool:
        return any(self.end(victim) for victim in self.choose(self.group.alive()))

    def end(self, victim: Replica, *, has_power: bool = True) -> bool:
        if not victim.is_dead:
            self.offsets.setdefault(victim.replica_id, Offsets()).ended(self.group.now)
        if victim.is_frozen:
            self.group.thaw(victim.replica_id)
        if has_power:
            self.group.kill(victim.replica_id)
        else:
            self.group.cut_power(victim.replica_id)
        return True

    def power(self) -> bool:
        return any(self.cut_power(victim) for victim in self.choose(self.group.replicas.values()))

    def power_for_a_moment(self) -> bool:
        """A machine starts again at once: its lease may still stand."""
        victims = [each for each in self.choose(self.group.masters or self.group.alive()) if self.cut_power(each)]
        for victim in victims:
            self.group.start(victim.replica_id)
        return bool(victims)

    def cut_power(self, victim: Replica) -> bool:
        """Without synchronous flushes only where another in sync keeps what may be lost; returns whether it was."""
        if self.flush is FlushDiskType.ASYNC_FLUSH:
            if not self.group.in_sync() - self.lacking - {victim.replica_id}:
                return False
            self.lacking.add(victim.replica_id)
        self.power_cuts += 1
        return self.end(victim, has_power=False)

    def power_of_all(self) -> None:
        """Without synchronous flushes nothing is promised then of what was acknowledged before."""
        self.power_cuts += 1
        for victim in self.group.replicas.values():
            self.end(victim, has_power=False)
        if self.flush is FlushDiskType.ASYNC_FLUSH:
            self.acknowledged.clear()
            self.agreed.clear()
            self.queue_end = 0
            self.lacking = {1, 2, 3}
            self.clients.clear()
            self.offsets.clear()

    def stop(self) -> bool:
        if self.group.wires.cut or self.group.etcd.is_down:
            return False
        victims = self.choose(self.running())
        for victim in victims:
            self.group.stop(victim.replica_id)
            self.look()
        return bool(victims)

    def start(self) -> bool:
        dead = self.choose(each for each in self.group.replicas.values() if each.is_dead)
        for replica in dead:
            self.group.start(replica.replica_id)
        return bool(dead)

    def freeze(self) -> bool:
        victims = self.choose(self.running())
        for victim in victims:
            self.group.freeze(victim.replica_id)
        return bool(victims)

    def thaw(self) -> None:
        for each in self.group.alive():
            if each.is_frozen:
                self.group.thaw(each.replica_id)

    def etcd_down(self) -> None:
        self.group.etcd.is_down = True

    def slow_etcd(self) -> None:
        for each in self.group.alive():
            each.etcd.out_s = self.rng.choice([0.005, 0.4, 1.5])

    def uneven_etcd(self) -> None:
        """Each request and each answer takes a time of its own: one overtakes another, or comes after a lease ended."""
        for each in self.group.alive():
            each.etcd.be_uneven(Random(self.rng.getrandbits(30)), self.rng.choice([0.2, 0.9, 1.5]))

    def slow_links(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            near, far = self.rng.sample([*HOSTS, *NAMESRVS], 2)
            self.group.wires.delays[near, far] = self.rng.choice([0.05, 0.2, 0.6, 2.0])

    def heal(self) -> None:
        self.group.wires.cut.clear()
        self.group.wires.delays.clear()
        self.group.etcd.is_down = False
        for replica in self.group.alive():
            replica.etcd.be_even()

    def cut(self) -> None:
        near, far = self.rng.sample(HOSTS, 2)
        self.group.wires.cut |= {(near, far), (far, near)}

    def cut_one_way(self) -> None:
        near, far = self.rng.sample(HOSTS, 2)
        self.group.wires.cut.add((near, far))

    def cut_name_server(self) -> None:
        near, far = self.rng.choice(HOSTS), self.rng.choice(NAMESRVS)
        self.group.wires.cut |= {(near, far), (far, near)}

    def isolate(self) -> bool:
        """Cut a master off from all others and from etcd, and let it take messages and serve consumers all the same."""
        for master in self.group.masters[:1]:
            others = [host for host in [*HOSTS, ETCD] if host != master.host]
            self.group.wires.cut |= {way for host in others for way in ((host, master.host), (master.host, host))}
            self.send_to(master)
            self.wait(self.rng.choice([0.1, 1.5, 2.5]))
            self.consume_at(master)
            return True
        return False

    def cut_etcd(self) -> None:
        ways = [(host := self.rng.choice(HOSTS), ETCD), (ETCD, host)]
        self.group.wires.cut.update(self.rng.choice([ways, ways[:1], ways[1:]]))


#: Where the queue ended when a replica looked at that to lower its offsets.
QUEUE_ENDS: WeakKeyDictionary[OffsetTable, int] = WeakKeyDictionary()


def note_queue_end(offsets: OffsetTable, max_of: Any) -> None:
    """In place of `OffsetTable.lower_to`: that, and a note of what it was told, which must be so by the log."""
    store: MessageStore = max_of.__self__
    end = max_of("T", 0)
    store.dispatch_now()
    require(max_of("T", 0) == end, "offsets are lowered to the end of a queue that is whole", f"{end}")
    QUEUE_ENDS[offsets] = end
    LOWER_TO(offsets, max_of)


LOWER_TO = OffsetTable.lower_to


class Offsets:
    """The offset that consumers have committed, at one broker. It goes back only with messages that were cut off, of
    which none was acknowledged, and when the process ends before it has written it."""

    def __init__(self) -> None:
        self._parts: object = None
        self._at_least = 0
        #: (time, offset) each time that it changed.
        self._seen: list[tuple[float, int]] = []

    def look(self, replica: Replica, now: float, queue_end: int) -> None:
        parts = replica.parts
        if parts is None:
            return
        offset = parts.offsets.query("CG", "T", 0) or 0
        if parts is not self._parts:
            # Since the broker was started, messages may have come that are not those that were consumed.
            begun_at = QUEUE_ENDS.pop(parts.offsets, replica.store.max_offset("T", 0))
            self._parts, self._at_least = parts, min(self._at_least, begun_at, queue_end)
        what = f"{offset} at broker {replica.replica_id} after {self._at_least}"
        require(offset >= self._at_least, "offsets of consumers never go back", what)
        self._at_least = offset
        if not self._seen or self._seen[-1][1] != offset:
            self._seen.append((now, offset))

    def ended(self, now: float) -> None:
        """The process ended without a stop: what it wrote last is there."""
        self._parts = None
        written = [row for row in self._seen if row[0] < now - OFFSETS_AGE_S][-1:]
        since = [row for row in self._seen if row[0] >= now - OFFSETS_AGE_S]
        self._at_least = min(offset for _, offset in [*written, *since]) if written else 0


def log_bytes(replica: Replica, begin: int, end: int) -> bytes:
    """A part of a broker's log as it is on its disk, or on its way there; what is not there is missing."""
    found, disk = b"", replica.disk
    assert isinstance(disk, SimDisk)
    for base in range(begin - begin % SEGMENT_BYTES, end, SEGMENT_BYTES):
        path = str(replica.root / "commitlog" / f"{base:020d}")
        if not disk.exists(path):
            break
        found += disk.content(path)[max(0, begin - base) : end - base]
    return found


def has(replica: Replica, offset: int, body: bytes) -> bool:
    """Whether a broker's log has the message, of one that was killed as it was then."""
    found = log_bytes(replica, offset, offset - offset % SEGMENT_BYTES + SEGMENT_BYTES)
    return body in found[: int.from_bytes(found[:4], "big")]


def queue_entries(store: MessageStore, begin: int, end: int) -> list[tuple[int, ...]]:
    """The entries begin..end of the queue."""
    [queue] = [queue for queue in store._queues if (queue.topic, queue.queue_id) == ("T", 0)] or [None]
    return [] if queue is None else [queue.entry_from_disk(offset) for offset in range(begin, end)]


def numbers(bodies: set[bytes]) -> list[int]:
    """Which messages they are."""
    return sorted(int(body[1:7]) for body in bodies)


def body_of(record: Record | None) -> bytes | None:
    return None if record is None else record.body
