"""A group of three that steps happen to, and what must hold of it at every moment.

Must never know of seeds: what happens is given.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from twisted.python.failure import Failure

from mqbroker.config import FlushDiskType
from mqbroker.errors import MQError
from mqbroker.ha.group_keys import Identity
from mqbroker.ha.member_note import MemberNote, NoteHeader
from mqbroker.store.disk import IDisk
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import RECORD_BYTES_MIN, Record
from tests.broker.bench import send_command
from tests.broker.service.group import ETCD, HA_PORT, NAMESRVS, PORT, Client, Group, Replica
from tests.broker.service.simulation import transactions
from tests.broker.service.simulation.disks import FROM_LOG, LOG, TABLES, copied, set_back, with_zeros_somewhere, without
from tests.broker.service.simulation.disks import emptied as emptied_disk
from tests.broker.service.simulation.forger import Forger, made_up_greeting, recorded_sessions
from tests.broker.service.simulation.logs import CUTS, SEGMENT_BYTES, body_of, has, log_bytes, numbers, queue_entries
from tests.broker.service.simulation.offsets import Offsets
from tests.broker.service.simulation.readers import Readers
from tests.broker.service.simulation.steps import Options, Step
from tests.broker.service.simulation.switches import asked_for_another, still_open
from tests.ha.etcd_model import EMPTY, MEMBERS, Backup
from tests.store.simulation.disk import SimDisk
from tests.store.simulation.model import require

MIN_IN_SYNC = 2
HOSTS = [f"10.0.0.{number}" for number in (1, 2, 3)]
#: Codes that promise nothing of the replicas; the message may be stored.
NO_PROMISE = {
    *(ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT),
    *(ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY),
}
#: maxMessageSize of the group, and what a record of it has besides its body.
BODY_MAX, RECORD_BYTES_OVERHEAD = 16 * 1024, 114
#: What a record must leave of a segment.
END_BYTES = 8
NO_CUT = "nobody cuts what was acknowledged"
READERS = 2
#: So long a replica must have all that its master has, to be counted again, seconds.
WELL_S = 1.0


class Cluster:
    """Does steps, and raises Violation where a promise does not hold."""

    def __init__(self, root: Path, options: Options) -> None:
        self.rng = Random(options["seed"])
        self.counts: Counter[str] = Counter()
        self.flush = FlushDiskType(options["flush"])
        self.has_transactions = "transactions" in options.get("kinds", ())
        self.group = Group(
            root,
            Random(options["seed"] + 1),
            is_disk_simulated=True,
            store={"flush_disk_type": self.flush},
            min_in_sync_replicas=MIN_IN_SYNC,
            **(transactions.SETTINGS if self.has_transactions else {}),
        )
        self.transactions = transactions.Transactions(self.group)
        self.group.chunk = options["chunk"]
        self.group.rates = dict(enumerate(options.get("rates", ()), 1))
        self.counts["clocks of other rates"] += len(set(self.group.rates.values())) > 1
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
        self.switches: list[Client] = []  #: Who has asked for another master.
        #: Replicas that may lack what was acknowledged, since their machines lost power.
        self.lacking: set[int] = set()
        self.power_cuts = 0
        self.offsets: defaultdict[int, Offsets] = defaultdict(Offsets)
        #: The replicas whose disks were destroyed or set back, until they are again as their master is; since when.
        self.touched: dict[int, float | None] = {}
        #: Of those that refused to start since, how often they have.
        self.refused: Counter[int] = Counter()
        #: What each of the others has of what is agreed, bytes.
        self.held: dict[int, int] = {}
        self.agreed_ends: list[int] = []
        self.copies: dict[int, list[SimDisk]] = {}
        self.backups = [EMPTY]
        self.is_etcd_older = False
        #: Whether there need be no master: nobody is whole of those that were in sync.
        self.may_wait = False
        #: Whether nothing is promised of what is acknowledged: etcd and a disk were set back.
        self.is_lawless = False
        self.forgers: list[Forger] = []
        self.readers = Readers(self.group, READERS, is_strict=options.get("readers", False))
        self.epoch_looked_at = 0
        CUTS.clear()
        self.group.may_refuse = self.may_refuse
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
        masters, in_sync = self.group.masters, self.group.in_sync()
        self.look_for_cuts()
        require(len(masters) <= 1, "one master", f"{[each.replica_id for each in masters]}")
        stays = [key for key, item in self.group.etcd.items.items() if "/members/" in key and not item.lease]
        require(not stays, "the key of a member goes with its lease", f"{stays}")
        for client, bodies, power_cuts in self.clients:
            for answer in client.heard():
                self.hear(client, answer, bodies.pop(answer.opaque), power_cuts == self.power_cuts)
        for entry in [entry for entry in self.clients if entry[0].link.lost or not entry[1]]:
            entry[0].peer.transport.loseConnection()
            self.clients.remove(entry)
        self.switches = still_open(self.switches, self.counts)
        for forger in self.forgers:
            forger.look()
        self.readers.look()
        self.transactions.look(self.rng)
        for master in masters:
            self.look_at_master(master)
            self.lacking.discard(master.replica_id)
            for member in self.running():
                has_all = member.is_running and member.store.log_end == master.store.log_end
                if has_all and not member.why_not_whole:  # it may have all before it knows that
                    self.lacking -= {member.replica_id} & in_sync
            if self.touched:
                self.look_at_touched(master, in_sync)
        for replica in self.running():
            if replica.is_running:
                self.offsets[replica.replica_id].look(replica, self.group.now, self.queue_end)

    def look_at_master(self, master: Replica) -> None:
        """Whoever becomes master has all that was acknowledged.

        Where etcd was set back to a state in which a broker was in sync that has been away since, and only that one
        comes back, it is elected, and cannot know; `hear` checks that it acknowledges nothing then.
        """
        epoch = self.group.member(master).role.epoch
        if epoch != self.epoch_looked_at and not self.is_etcd_older:
            what = f"{master.replica_id} has {self.common(master)} of {len(self.agreed)}"
            require(self.common(master) == len(self.agreed), "a master has all that was acknowledged", what)
        if epoch != self.epoch_looked_at:
            self.back_up_etcd()
        self.epoch_looked_at = epoch

    def look_at_touched(self, master: Replica, in_sync: set[int]) -> None:
        """Count those whose disks were destroyed among the others again when they have had all for a while."""
        now = self.group.now
        for replica_id, since in list(self.touched.items()):
            replica = self.group.replicas[replica_id]
            is_well = replica_id in in_sync and replica.is_running and replica.store.log_end == master.store.log_end
            if not is_well or replica.is_frozen or replica.why_not or replica.why_not_whole:
                self.touched[replica_id] = None
            elif since is None:
                self.touched[replica_id] = now
            elif now - since >= WELL_S and self.common(replica) == len(self.agreed):
                del self.touched[replica_id]
                self.refused.pop(replica_id, None)

    def look_for_cuts(self) -> None:
        """Nobody whose disk is its own cuts what was acknowledged."""
        for ended in self.group.ended:
            require(ended in self.touched, "brokers end when they are told to", f"{ended} has ended")
        self.group.ended.clear()
        for disk, end, removed in CUTS:
            for replica in self.group.replicas.values():
                if replica.disk is disk and replica.replica_id in self.whole():
                    agreed = self.agreed[end : end + len(removed)]
                    what = f"{replica.replica_id} is cut back to {end}, and {len(self.agreed)} are agreed"
                    require(not agreed or not removed.startswith(agreed[:RECORD_BYTES_MIN]), NO_CUT, what)
        CUTS.clear()

    def whole(self) -> set[int]:
        """The replicas whose disks keep what they were given."""
        return {1, 2, 3} - self.lacking - self.touched.keys()

    def common(self, replica: Replica) -> int:
        """How much a broker's log has of what is agreed, bytes."""
        found = log_bytes(replica, 0, len(self.agreed))
        if found == self.agreed:
            return len(found)
        return next((end for end in self.agreed_ends[::-1] if found[:end] == self.agreed[:end]), 0)

    def hear(self, client: Client, answer: RemotingCommand, body: bytes, has_had_power: bool) -> None:
        code = answer.code
        is_too_large = len(body) > BODY_MAX
        require(is_too_large == (code == ResponseCode.MESSAGE_ILLEGAL) or code in NO_PROMISE, "sizes are limited", "")
        if code != ResponseCode.SUCCESS:
            require(is_too_large or code in NO_PROMISE, "answers are those of the documentation", str(answer))
            self.counts[f"answer {code}"] += 1
            return
        self.counts["acknowledged"] += 1
        if self.is_lawless:
            return
        offset = int(answer.ext_fields["msgId"][-16:], 16)
        holders = [replica for replica in self.group.replicas.values() if has(replica, offset, body)]
        if not has_had_power and not holders and self.touched:
            return  # on its way when the disks were destroyed
        wanted = MIN_IN_SYNC if has_had_power else 1
        require(len(holders) >= wanted, "acknowledged is on as many as promised", f"{offset} is on {len(holders)}")
        is_new = self.acknowledged.setdefault(offset, body) == body
        require(is_new, "an offset is acknowledged once", f"{offset}")
        if body in self.transactions.outcomes:
            self.transactions.was_stored(body, answer)
        elif body not in self.delayed:
            self.queue_end = max(self.queue_end, int(answer.ext_fields["queueOffset"]) + 1)
        size = int.from_bytes(log_bytes(holders[0], offset, offset + 4), "big")
        end, agreed = offset + size, len(self.agreed)
        is_agreed = self.agreed[offset:end] == log_bytes(holders[0], offset, min(end, agreed))
        require(is_agreed, "nothing is acknowledged in the place of what was", f"{offset} of {agreed}")
        if end > agreed:
            self.agreed += log_bytes(client.replica if client.replica in holders else holders[0], agreed, end)
            self.agreed_ends.append(len(self.agreed))
            self.check_logs(agreed)

    def check_logs(self, begin: int = 0) -> None:
        """The logs of those in sync agree up to what was acknowledged, of those that were killed as they were then."""
        in_sync, whole = self.group.in_sync(), self.whole()
        for replica_id in in_sync & whole if not self.is_etcd_older else ():
            found = log_bytes(self.group.replicas[replica_id], begin, len(self.agreed))
            what = f"the log of {replica_id} is another one between {begin} and {len(self.agreed)}"
            require(found == self.agreed[begin:], "logs agree up to what was acknowledged", what)
        if begin:
            return
        for replica_id in {1, 2, 3} - whole:
            self.held.pop(replica_id, None)
        for replica_id in whole:
            had, has_now = self.held.get(replica_id, 0), self.common(self.group.replicas[replica_id])
            require(has_now >= min(had, len(self.agreed)), NO_CUT, f"{replica_id} had {had} of it, and has {has_now}")
            self.held[replica_id] = has_now

    def check_epochs(self) -> None:
        masters: dict[int, tuple[int, int]] = {}
        for _, key, value in self.group.etcd.history:
            if key.endswith("/state"):
                state = json.loads(value)
                who = (state["master"], state["lease"])
                is_first = masters.setdefault(state["epoch"], who) == who
                require(is_first or self.is_etcd_older, "one master an epoch", f"{state}")
        self.counts["epochs"] += len(masters)

    def finish(self) -> None:
        """After all is well again, all have the same, and all that was acknowledged."""
        group = self.group
        self.heal()
        self.thaw()
        for replica in list(group.replicas.values()):
            if replica.is_dead:
                self.bring_back(replica)
        if not self.go_on():
            return
        self.wait(6)  # all of them are connected by then
        before = self.counts["acknowledged"]
        self.send_to(group.master())
        self.send_to(group.master(), [0])
        self.wait(15)
        if self.is_lawless:
            group.close()
            return
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
        records = self.check_copies(master)
        acknowledged = self.wanted()
        self.consume_at(master)
        require(acknowledged <= self.consumed, "consumers get all", f"{numbers(acknowledged - self.consumed)}")
        self.finish_reading(master)
        addresses = {table["broker-a"].broker_addrs.get(0) for table in group.broker_tables()}
        require(addresses == {f"{master.host}:10911"}, "all name servers have the master", f"{addresses}")
        group.close()

    def check_copies(self, master: Replica) -> dict[int, Record]:
        """What is delayed is delivered once, and so is what was committed; returns the records of the log."""
        began = self.group.now
        while not self.transactions.is_settled(master):
            require(self.group.now - began < 60, "half messages are ended when all is well", f"{master.replica_id}")
            self.transactions.end(master, self.rng)
            self.wait(1)
        records = master.records()
        self.transactions.check(records.values())
        delivered = Counter(record.body for record in records.values() if record.topic == "T")
        undelivered = self.wanted() - delivered.keys()
        require(not undelivered, "what is delayed is delivered", f"{numbers(undelivered)}")
        # Elsewhere disks are set back, and with them what tells which copies there are.
        twice = {body for body, count in delivered.items() if count > 1 and self.has_transactions}
        require(not twice, "what is delayed is delivered once", f"{numbers(twice)}")
        self.counts["questions about transactions"] += self.transactions.asked
        return records

    def wanted(self) -> set[bytes]:
        """What consumers must get."""
        return set(self.acknowledged.values()) - self.transactions.rolled_back

    def go_on(self) -> bool:
        """Wait until all are in sync; returns whether they are, or that there is no master with a good reason."""
        group, began, emptied = self.group, self.group.now, False
        while self.touched or not (group.masters and group.in_sync() == {1, 2, 3}):
            waited = group.now - began
            if self.is_lawless and waited > 60:
                group.close()
                return False
            if self.may_wait and waited > 30 and not group.masters:
                why_not = {each.replica_id: each.why_not for each in group.alive()}
                require(all(why_not.values()), "who waits says why", f"{why_not}")
                self.check_logs()
                self.check_epochs()
                self.counts["waits"] += 1
                group.close()
                return False
            if self.touched and waited > 60 and not emptied:
                # A person gives those an empty disk whose logs have nothing in common with the master's any more.
                emptied = True
                for replica_id in sorted(self.touched):
                    self.damage(group.replicas[replica_id], emptied_disk(group.replicas[replica_id].disk))
                    group.start(replica_id)
                self.counts["emptied in the end"] += 1
            why_not = {each.replica_id: group.member(each).why_not for each in group.alive()}
            require(waited < 120, "the group goes on when all is well", f"{group.in_sync()} {why_not}")
            for replica in list(group.replicas.values()):
                if replica.is_dead:
                    self.bring_back(replica)
            self.wait(0.5)
        return True

    def finish_reading(self, master: Replica) -> None:
        """All consumers go on to the end, and have all that was acknowledged by then."""
        if not self.readers.is_strict:
            return
        end, began = master.store.max_offset("T", 0), self.group.now
        while any(reader.offset < end for reader in self.readers.readers):
            require(self.group.now - began < 60, "consumers come to the end", f"{end}")
            self.readers.read(self.rng)
            self.wait(0.2)
        for reader in self.readers.readers:
            missing = self.wanted() - reader.bodies
            require(not missing, "no consumer skips what was acknowledged", f"{numbers(missing)}")

    # --- disks, and etcd's

    def may_refuse(self, replica_id: int, why: Failure) -> bool:
        """A broker may refuse to start with a part of its store."""
        if replica_id not in self.touched or not why.check(MQError, OSError):
            return False
        self.refused[replica_id] += 1
        self.counts["refused to start"] += 1
        return True

    def bring_back(self, replica: Replica) -> None:
        """Start a broker that is dead. One that has refused to start gets what its message asks for: it may begin a new
        log, and if it does not do that either, an empty disk."""
        refused = self.refused[replica.replica_id]
        if refused:
            keeps_nothing = refused > 1
            self.damage(replica, emptied_disk(replica.disk) if keeps_nothing else without(replica.disk, *FROM_LOG))
        self.group.start(replica.replica_id)

    def damage(self, victim: Replica, disk: SimDisk) -> None:
        """Put another disk into a broker's machine."""
        if not victim.is_dead:
            self.end(victim)
        victim.disk = disk
        self.touched[victim.replica_id] = None
        self.offsets.pop(victim.replica_id, None)
        self.power_cuts += 1
        self.recount()
        if self.is_unnoticed(victim):
            self.may_wait = True
            self.counts["set back unnoticed"] += 1
            self.forget(self.common(victim))

    def is_unnoticed(self, victim: Replica) -> bool:
        """Whether nothing shows that a broker's disk is older: the copy was made while the same process ran, and etcd,
        which is told each second, did not know yet what was acknowledged since."""
        disk, path = victim.disk, str(victim.root / "member")
        found = [
            item for key, item in self.group.etcd.items.items() if key.endswith(f"/identities/{victim.replica_id}")
        ]
        has = self.common(victim)
        if not found or has == len(self.agreed) or not disk.exists(path):
            return False
        assert isinstance(disk, SimDisk)
        header = MemberNote.open(disk.copied(), path, NoteHeader(bytes(8), bytes(16), 0, 0)).header
        known = Identity.from_json(found[0].value)
        is_same = known.name == header.name.hex() and known.generation <= header.generation
        return is_same and known.committed <= has

    def recount(self) -> None:
        """Find out what is left of what was acknowledged."""
        in_sync, whole = self.group.in_sync(), self.whole()
        self.may_wait |= not in_sync & whole or self.is_etcd_older
        self.is_lawless |= self.is_etcd_older and bool(self.touched)
        standing = max((self.common(self.group.replicas[replica_id]) for replica_id in whole), default=0)
        if standing < len(self.agreed):
            self.counts["all copies destroyed"] += 1
            self.forget(standing)

    def forget(self, standing: int = 0) -> None:
        """Nothing is promised any more of what was acknowledged from there on."""
        self.agreed_ends = [end for end in self.agreed_ends if end <= standing]
        del self.agreed[max(self.agreed_ends, default=0) :]
        self.acknowledged = {at: body for at, body in self.acknowledged.items() if at < len(self.agreed)}
        self.queue_end = 0
        self.held.clear()
        self.clients.clear()
        self.offsets.clear()
        self.readers.forget()

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

    def send_to(self, master: Replica, sizes: Sequence[int] = ()) -> None:
        client = self.group.client(master)
        commands = []
        for _ in range(self.rng.randint(1, 8)):
            self.sent += 1
            body = b"<%06d>" % self.sent
            body += b"x" * (self.rng.choice(sizes or self.sizes(master)) - len(body))
            level = self.rng.choice([0, 0, 0, 1, 2])
            if level:
                self.delayed.add(body)
            commands.append(send_command("T", body, properties=f"DELAY\x01{level}" if level else ""))
        client.tell(*commands)
        self.clients.append((client, {command.opaque: command.body for command in commands}, self.power_cuts))

    def sizes(self, master: Replica) -> list[int]:
        """Of bodies, bytes: some that are usual, the largest one and its neighbours, and those with which the next
        record leaves as much of a segment as must be left, or a byte less or more, or nothing."""
        rest = SEGMENT_BYTES - master.store.log_end % SEGMENT_BYTES - RECORD_BYTES_OVERHEAD
        edges = [BODY_MAX - 1, BODY_MAX, BODY_MAX + 1] if self.rng.random() < 0.1 else []
        if 0 < rest <= BODY_MAX:
            edges += [rest - left for left in (0, END_BYTES - 1, END_BYTES, END_BYTES + 1)]
        return [0, 0, 9, 108, 108, 9008, *edges]

    def transact(self) -> bool:
        """Send half messages, and be there to be asked about them."""
        for master in self.running():
            if master.is_master:
                self.transactions.connect(master)
                bodies = [b"<%06d>" % (self.sent + number) for number in range(1, self.rng.randint(2, 6))]
                self.sent += len(bodies)
                commands = self.transactions.make(bodies, self.rng)
                client = self.group.client(master)
                client.tell(*commands)
                self.clients.append((client, {each.opaque: each.body for each in commands}, self.power_cuts))
                return True
        return False

    def end_transactions(self) -> bool:
        return any(each.is_master and self.transactions.end(each, self.rng) for each in self.running())

    def pause(self) -> None:
        """Let time pass."""

    def switch(self) -> bool:
        """Ask the master that another be it, whatever state that is in, with messages before and after."""
        for master in [each for each in self.group.masters[:1] if not each.is_frozen]:
            self.send_to(master)
            self.switches.append(asked_for_another(self.group, master, self.rng.choice([1, 2, 3])))
            self.wait(self.rng.choice([0.05, 0.1, 0.5]))
            if f"{master.host}:{PORT}" in self.group.wires.servers:
                self.send_to(master)
            return True
        return False

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
            self.offsets[victim.replica_id].ended(self.group.now)
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
            others = (self.group.in_sync() & self.whole()) - {victim.replica_id}
            if len(self.agreed) not in [self.common(self.group.replicas[other]) for other in others]:
                return False  # etcd, which was set back, may call in sync who was away
            self.lacking.add(victim.replica_id)
        self.power_cuts += 1
        return self.end(victim, has_power=False)

    def power_of_all(self) -> None:
        """Without synchronous flushes nothing is promised then of what was acknowledged before."""
        self.power_cuts += 1
        for victim in self.group.replicas.values():
            self.end(victim, has_power=False)
        if self.flush is FlushDiskType.ASYNC_FLUSH:
            self.lacking = {1, 2, 3}
            self.forget()
            self.may_wait |= bool(self.touched)

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
            self.bring_back(replica)
        return bool(dead)

    def outage(self) -> None:
        """All are killed, and come back in any order."""
        self.kill_all()
        self.come_back()

    def outages(self) -> None:
        """That again and again, before all are back, or in sync."""
        for _ in range(self.rng.choice([2, 3])):
            self.outage()
            self.wait(self.rng.choice([0, 0.5, 4]))
            self.send()

    def kill_all(self) -> None:
        for victim in self.group.alive():
            self.end(victim)

    def come_back(self) -> None:
        for replica_id in self.rng.sample([1, 2, 3], self.rng.choice([2, 3])):
            self.wait(self.rng.choice([0, 1, 3, 5, 10]))
            if self.group.replicas[replica_id].is_dead:
                self.bring_back(self.group.replicas[replica_id])

    def kill_while_catching_up(self) -> bool:
        """Kill the master a moment after a replica begins to get what it lacks."""
        for master in self.group.masters[:1]:
            for replica in self.choose(each for each in self.group.replicas.values() if each.is_dead):
                self.group.wires.widths[master.host, replica.host] = self.rng.choice([300, 3_000, 20_000])
                self.bring_back(replica)
                self.wait(self.rng.choice([0.5, 1.5, 3, 5]))
                return self.end(master)
        return False

    def read(self) -> bool:
        return self.readers.read(self.rng)

    def snapshot(self) -> bool:
        """Copy a broker's disk, whether it runs or not."""
        for replica in self.choose(self.group.replicas.values()):
            self.copies.setdefault(replica.replica_id, []).append(copied(replica.disk, self.rng))
        return True

    def lose_disks(self, changed: Callable[[IDisk, SimDisk | None], SimDisk | None]) -> bool:
        """Do that to the disks of one or two brokers, given a copy of each; None leaves it as it is."""
        is_done = False
        for victim in self.rng.sample(list(self.group.replicas.values()), self.rng.choice([1, 1, 1, 2])):
            copies = self.copies.get(victim.replica_id)
            if not victim.is_dead:
                self.end(victim)
            disk = changed(victim.disk, self.rng.choice(copies) if copies else None)
            if disk is not None:
                is_done = True
                self.damage(victim, disk)
            if self.rng.random() < 0.6:
                self.bring_back(victim)
        return is_done

    def empty_disk(self) -> bool:
        return self.lose_disks(lambda disk, _: emptied_disk(disk, is_booted=self.rng.random() < 0.5))

    def replace_log(self) -> bool:
        names = [(LOG,), (LOG, *FROM_LOG)]
        return self.lose_disks(lambda disk, _: without(disk, *self.rng.choice(names)))

    def set_back_store(self) -> bool:
        return self.lose_disks(lambda disk, copy: copy and set_back(disk, copy, is_booted=self.rng.random() < 0.5))

    def set_back_tables(self) -> bool:
        return self.lose_disks(lambda disk, copy: copy and set_back(disk, copy, (TABLES,)))

    def set_back_log(self) -> bool:
        names = [(LOG,), (LOG, *FROM_LOG)]
        return self.lose_disks(lambda disk, copy: copy and set_back(disk, copy, self.rng.choice(names)))

    def zero_segments(self) -> bool:
        """Segments of the log that are not the last one read as zeros."""
        return self.lose_disks(lambda disk, _: with_zeros_somewhere(disk, self.rng))

    def copy_disk(self) -> bool:
        """Give one broker a copy of the disk of another."""
        source = self.rng.choice(list(self.group.replicas.values()))
        copy = copied(source.disk, self.rng)
        for victim in self.choose(each for each in self.group.replicas.values() if each is not source):
            self.damage(victim, copy)
            self.group.start(victim.replica_id)
        return True

    def back_up_etcd(self) -> None:
        self.backups.append(self.group.etcd.backup())

    def restore_etcd(self) -> bool:
        """Set etcd back to an earlier state, or to none: that takes longer than any lease lives."""
        etcd, backup = self.group.etcd, self.rng.choice(self.backups)
        are_down = self.rng.random() < 0.6
        if are_down:
            self.kill_all()
        etcd.is_down = True
        self.wait(self.rng.choice([5, 8]))
        self.restore(backup)
        etcd.is_down = False
        if are_down:
            self.come_back()
        return True

    def restore(self, backup: Backup) -> None:
        """Set etcd back to an earlier state."""
        self.group.etcd.restore(backup)
        self.is_etcd_older = self.may_wait = True
        self.is_lawless |= bool(self.touched)

    def forge(self) -> bool:
        """Connect to the master as one of the replicas, without its proof, or with one that was recorded."""
        if not self.forgers:
            for master in self.running():
                if f"{master.host}:{HA_PORT}" in self.group.wires.servers:
                    found = self.rng.choice([each for each in (1, 2, 3) if each != master.replica_id])
                    recorded = recorded_sessions(self.group, are_old=self.rng.random() < 0.5)
                    made_up = made_up_greeting(self.group.member(master).role.epoch, found)
                    said = self.rng.choice(recorded) if recorded and self.rng.random() < 0.7 else made_up
                    self.forgers.append(Forger(self.group, master, said))
                    if self.rng.random() < 0.7:
                        self.send_to(master)
                    return True
        return False

    def narrow_links(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            near, far = self.rng.sample(HOSTS, 2)
            self.group.wires.widths[near, far] = self.rng.choice([1, 300, 3_000])

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

    def hang_member(self) -> None:
        """One member of etcd does what it is asked when it goes on."""
        self.group.etcd.hang(self.rng.choice(MEMBERS))

    def hang_etcd(self) -> None:
        """All hang, as for clients each does where two of three do."""
        for member in MEMBERS:
            self.group.etcd.hang(member)

    def late_member(self) -> None:
        """One member of etcd is late with all that it does, and others are asked meanwhile."""
        self.group.etcd.late[self.rng.choice(MEMBERS)] = self.rng.choice([0.1, 0.2, 0.25, 0.3, 0.8])

    def etcd_goes_on(self) -> bool:
        etcd = self.group.etcd
        found = bool(etcd.hung or etcd.late)
        etcd.late.clear()
        for member in list(etcd.hung):
            etcd.go_on(member)
        return found

    def slow_etcd(self) -> None:
        for each in self.group.alive():
            each.etcd.out_s = self.rng.choice([0.005, 0.4, 0.95, 1, 1.05, 1.5])

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
        self.group.wires.widths.clear()
        for forger in self.forgers:
            forger.leave()
        self.forgers.clear()
        self.group.etcd.is_down = False
        self.etcd_goes_on()
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
            self.wait(self.rng.choice([0.1, 1.5, 2.5, 2.7, 2.75]))
            self.consume_at(master)
            return True
        return False

    def cut_etcd(self) -> None:
        ways = [(host := self.rng.choice(HOSTS), ETCD), (ETCD, host)]
        self.group.wires.cut.update(self.rng.choice([ways, ways[:1], ways[1:]]))
