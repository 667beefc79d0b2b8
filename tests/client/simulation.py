"""A whole group on one clock and links in memory: `python -m tests.client.simulation --seeds N [--from M]`.

Members join, leave, die, are stopped and continued; queues are added, brokers move to other addresses, requests and
answers are lost, delayed and doubled, listeners are slow and fail, and clocks are set. With seeds from 1000 on, brokers
also crash, and queues are closed and removed. Nothing may be lost.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import AlreadyCalled
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from mqbroker.broker.assembly import EXPIRY_CHECK_SECONDS
from mqbroker.broker.client_registry import CLIENT_EXPIRY_SECONDS
from mqbroker.client import ConsumeFrom, Message, ProducerOptions, PushOptions
from mqbroker.client.broker_requests import MemberRequests, decline
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.net import RequestHandler
from mqbroker.client.producer import ProducerCore
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.store import dispatch
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from tests.client.faults import Passage
from tests.client.own_cluster import NAME_SERVER, OwnCluster
from tests.client.world import FixedIdentity
from tests.remoting.link import Link, Peer

GROUP, TOPIC = "g", "T"
MEMBERS_MAX = 5
STEPS = 25
#: After so long without a disturbance each queue has one member: two rebalances and the time-outs of their requests.
SETTLED_S = 90.0
#: After so long brokers have given up a member that died without a word.
LOST_S = CLIENT_EXPIRY_SECONDS + EXPIRY_CHECK_SECONDS
#: Seeds from here on crash brokers and remove queues.
HARSH_FROM = 1000
#: By when all is consumed once nothing disturbs any more: lost members are given up, delayed retries are due.
END_S = 900


class Violation(Exception):
    """An invariant that does not hold."""


class Call:
    """A delayed call of a member, which waits while the member is stopped."""

    def __init__(self, clock: MemberClock, delay: float, call: Callable[[], object]) -> None:
        self._clock, self._call, self._is_over = clock, call, False
        self._inner = clock.reactor.callLater(delay, self.run)

    def run(self) -> None:
        if self._clock.is_stopped:
            self._clock.held.append(self.run)
        elif not self._is_over and not self._clock.is_dead:
            self._is_over = True
            self._call()

    def active(self) -> bool:
        return not self._is_over

    def cancel(self) -> None:
        if self._is_over:
            raise AlreadyCalled
        self._is_over = True
        if self._inner.active():
            self._inner.cancel()


class MemberClock:
    """The clock of one process."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.set_forward = 0.0
        self.is_stopped = self.is_dead = False
        self.stopped_at = float("-inf")
        self.held: list[Callable[[], object]] = []

    def seconds(self) -> float:
        return float(self.reactor.seconds()) + self.set_forward

    def callLater(self, delay: float, call: Any, *args: Any, **fields: Any) -> Any:
        return Call(self, delay, lambda: call(*args, **fields))


class Process:
    """A client's process: its clock, its connections, and its end."""

    def __init__(self, cluster: OwnCluster, rng: random.Random, on_request: RequestHandler = decline) -> None:
        self._cluster = cluster
        self.clock = MemberClock(cluster.reactor)
        self.links: list[Link] = []
        self.net = DeferredNet(
            self.clock,
            on_request,
            random.Random(rng.random()),
            connector=lambda host, port: _Endpoint(self, f"{host}:{port}"),  # type: ignore[arg-type,return-value]
            steady=cluster.reactor.seconds,
        )

    def connect(self, addr: str, factory: Any, connected: Deferred[Any]) -> None:
        network = self._cluster.network

        def note(near: Any) -> Any:
            self.links += [link for link in network.links if link.protocols[0] is near]
            return near

        if not self.clock.is_dead:
            network.connect(addr, factory).addCallback(note).chainDeferred(connected)

    def stop(self) -> None:
        """As SIGSTOP."""
        self.clock.is_stopped, self.clock.stopped_at = True, self.clock.reactor.seconds()
        for link in self.links:
            link.paused = True

    def go_on(self) -> None:
        self.clock.is_stopped = False
        held, self.clock.held = self.clock.held, []
        for call in held:
            call()
        for link in self.links:
            link.paused = False
        self._cluster.settle()

    def kill(self, *, is_heard: bool) -> None:
        """As SIGKILL, or as a machine that loses its power: nobody hears of that."""
        self.clock.is_dead = True
        for link in self.links:
            link.protocols = (Peer(), link.protocols[1])
            if not link.lost and is_heard:
                link.cut()
            link.paused = True


@attrs.frozen
class _Endpoint:
    process: Process
    addr: str

    def connect(self, factory: Any) -> Deferred[Any]:
        connected: Deferred[Any] = Deferred()
        clock = self.process.clock
        if clock.is_stopped:
            clock.held.append(lambda: self.process.connect(self.addr, factory, connected))
        else:
            self.process.connect(self.addr, factory, connected)
        return connected


class Member(Process):
    """A push consumer in a process of its own."""

    def __init__(self, world: Group, name: str) -> None:
        super().__init__(world.cluster, world.rng, MemberRequests(lambda: self.core, str).answer)
        self.world, self.name = world, name
        rng = world.rng
        options = PushOptions(
            consume_from=ConsumeFrom.FIRST,
            orderly=world.is_orderly,
            concurrency=rng.choice([1, 4, 20]),
            pull_batch=rng.choice([1, 8, 32]),
            queue_messages_max=rng.choice([2, 10, 1000]),
        )
        self.core = PushConsumerCore(self.net, (NAME_SERVER,), GROUP, self.listen, options, FixedIdentity(name))
        self.core.add_subscription(TOPIC)
        self.started = world.run(self.core.start())

    def may_have_lost(self, since: float) -> bool:
        """Whether its locks may have ended in the middle of a message: it had no chance to renew them, or was closed
        while its listener was running, which it says."""
        closed = [at for member, _, at in self.world.closing if member is self]
        return self.clock.is_dead or self.clock.stopped_at >= since or bool(closed)

    async def listen(self, message: Any) -> bool:
        world, rng = self.world, self.world.rng
        world.began(self, message)
        pause_s = rng.choice(world.pauses_s)
        if pause_s:
            await deferLater(self.clock, pause_s)  # type: ignore[arg-type]
        return world.ended(self, message, is_consumed=world.is_ending or rng.random() > world.fails)


class Group:
    """The world of one seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.is_orderly = rng.random() < 0.5
        self.pauses_s = rng.choice([[0.0], [0.0, 0.1], [0.0, 0.0, 1.0, 5.0], [0.0] * 9 + [40.0]])
        self.fails = rng.choice([0.0, 0.05, 0.3])
        self.counts: Counter[str] = Counter()
        self.hosts = {"a": 2, "b": 3}
        self.folders = {name: root / name for name in self.hosts}
        self.cluster = OwnCluster(root, brokers={name: self._address(name) for name in self.hosts})
        self.is_harsh = seed >= HARSH_FROM
        self.root = root
        #: How many are read, and written.
        self.queues = self.open_queues = 2
        self.cluster.add_topic(TOPIC, self.queues)
        self.members: list[Member] = []
        self.stopped: list[Member] = []
        self.closing: list[tuple[Member, Deferred[Any], float]] = []
        self.is_ending = False
        self.disturbed_at = self.lost_until = self.now
        self.fault_rate = 0.0
        self.sent = 0
        self.accepted: set[bytes] = set()
        self.consumed: set[bytes] = set()
        #: Who has a message of a queue since when, where order is kept; and how far each is consumed.
        self.holders: dict[MessageQueue, tuple[Member, float]] = {}
        self.done: Counter[MessageQueue] = Counter()
        self.errors: list[str] = []
        self.cluster.faults.refuse[None, None] = self._meet
        self.process = Process(self.cluster, rng)
        self.producer = ProducerCore(
            self.process.net, (NAME_SERVER,), "pg", ProducerOptions(), FixedIdentity("p", None)
        )
        self.run(self.producer.start())

    def _address(self, name: str) -> str:
        return f"10.0.0.{self.hosts[name]}:10911"

    @property
    def now(self) -> float:
        return float(self.cluster.reactor.seconds()) if hasattr(self, "cluster") else 0.0

    def run(self, coroutine: Any) -> Deferred[Any]:
        started = Deferred.fromCoroutine(coroutine)
        self.cluster.settle()
        return started

    # --- what listeners tell

    def began(self, member: Member, message: Any) -> None:
        queue = message.queue
        if self.is_orderly and queue.topic == TOPIC:
            other = self.holders.get(queue)
            if other is not None and other[0] is not member and not other[0].may_have_lost(other[1]):
                raise self._broken(f"{queue} is consumed by {other[0].name} and by {member.name}")
            self.holders[queue] = member, self.now

    def ended(self, member: Member, message: Any, *, is_consumed: bool) -> bool:
        queue = message.queue
        if self.is_orderly and self.holders.get(queue, (None, 0.0))[0] is member:
            del self.holders[queue]
        if is_consumed:
            self.counts["consumed again" if message.body in self.consumed else "consumed"] += 1
            self.consumed.add(message.body)
            if self.is_orderly and message.queue_offset >= self.done[queue]:
                if message.queue_offset > self.done[queue]:
                    raise self._broken(f"{queue}: {message.queue_offset} is consumed before {self.done[queue]}")
                self.done[queue] += 1
        return is_consumed

    def _broken(self, what: str) -> Violation:
        self.errors.append(what)  # the client catches what its listener raises
        return Violation(what)

    # --- steps

    def _meet(self, passage: Passage) -> None:
        rng = self.rng
        if rng.random() >= self.fault_rate:
            passage.pass_on()
            return
        kind = rng.choice(["lost", "answer lost", "doubled", "delayed", "delayed", "cut", "busy"])
        self.counts[f"requests {kind}"] += 1
        match kind:
            case "answer lost":
                request = attrs.evolve(passage.request, flag=passage.request.flag | ONEWAY_FLAG)
                passage.connection.server.dataReceived(encode_command(request))
            case "doubled":
                passage.pass_on()
                if passage.connection.transport.closing is None:
                    passage.pass_on()
            case "delayed":

                def later() -> None:
                    if passage.connection in self.cluster.faults.connections:
                        passage.pass_on()
                        self.cluster.settle()

                self.cluster.reactor.callLater(rng.choice([0.01, 0.5, 2.0, 10.0]), later)
            case "cut":
                passage.cut()
            case "busy":
                passage.answer(RemotingCommand.response(passage.request, ResponseCode.SYSTEM_BUSY, "busy"))

    def send(self) -> None:
        for _ in range(self.rng.choice([1, 5, 40])):
            body = b"%d" % self.sent
            self.sent += 1
            sent = self.run(self.producer.send(Message(TOPIC, body), key=self.rng.choice([None, "k", "l"])))
            sent.addCallbacks(lambda _, body=body: self.accepted.add(body), lambda _: None)

    def join(self) -> None:
        if len(self.members) < MEMBERS_MAX:
            self.counts["joins"] += 1
            member = Member(self, f"m{self.counts['joins']}")
            self.members.append(member)
            member.started.addErrback(lambda failure: self._not_started(member))

    def _not_started(self, member: Member) -> None:
        """No name server has answered, or all brokers have refused it: its program ends."""
        if member in self.members:
            self.members.remove(member)
            self.stopped = [each for each in self.stopped if each is not member]
            self.closing.append((member, self.run(member.core.close()), self.now))
            self.counts["starts failed"] += 1

    def leave(self) -> None:
        if self.members:
            member = self.rng.choice(self.members)
            if member in self.stopped:
                return
            self.members.remove(member)
            self.closing.append((member, self.run(member.core.close()), self.now))
            self.counts["leaves"] += 1

    def die(self) -> None:
        if self.members:
            member = self.members.pop(self.rng.randrange(len(self.members)))
            self.stopped = [each for each in self.stopped if each is not member]
            is_heard = self.rng.random() < 0.5
            member.kill(is_heard=is_heard)
            if not is_heard:
                self.lost_until = self.now + LOST_S
            self.holders = {queue: held for queue, held in self.holders.items() if held[0] is not member}
            self.counts["deaths"] += 1

    def stop_or_go_on(self) -> None:
        if self.stopped:
            self.stopped.pop().go_on()
        elif self.members:
            self.stopped.append(self.rng.choice(self.members))
            self.stopped[-1].stop()
            self.counts["stops"] += 1

    def add_queues(self) -> None:
        if self.queues < 6:
            self.queues += self.rng.choice([1, 2])
            self.open_queues = self.queues
            self.cluster.add_topic(TOPIC, self.queues)
            self.counts["queues added"] += 1

    def close_queues(self) -> None:
        """Queues get no more messages."""
        if self.open_queues > 1:
            self.open_queues -= 1
            self.cluster.add_topic(TOPIC, self.queues, write_queues=self.open_queues)
            self.counts["queues closed"] += 1

    def remove_queues(self) -> None:
        """Closed queues are removed where all is consumed."""
        if self.open_queues == self.queues or any(map(self.left_in, self.hosts)):
            return
        self.counts["queues removed"] += self.queues - self.open_queues
        self.queues = self.open_queues
        self.cluster.add_topic(TOPIC, self.queues)

    def left_in(self, name: str) -> int:
        """Messages of the closed queues of a broker that are not committed."""
        parts = self.cluster.parts(name)
        offsets = parts.offsets.by_queue(GROUP, TOPIC)
        closed = range(self.open_queues, self.queues)
        return sum(parts._store.max_offset(TOPIC, number) - offsets.get(number, 0) for number in closed)

    def set_clock(self) -> None:
        for member in self.members:
            member.clock.set_forward += self.rng.choice([-7200.0, -10.0, 10.0, 7200.0])
        self.counts["clocks set"] += 1

    def fail_over(self) -> None:
        """A broker stops, and another one with its disk starts at another address, as the next master of its group."""
        name = self.rng.choice(sorted(self.hosts))
        self.cluster.network.servers.pop(self._address(name))
        stopped = maybeDeferred(self.cluster.brokers[name].stopService)
        self.advance(self.rng.choice([6.0, 40.0]))
        if not stopped.called:
            raise Violation("the broker does not stop")
        self.hosts[name] += 10
        self.cluster._start_broker(name, self._address(name), self.folders[name].name)
        self.counts["failovers"] += 1

    def crash(self) -> None:
        """A broker is killed, and another one starts with what is on its disk: offsets of the last seconds and locks of
        queues are lost."""
        name = self.rng.choice(sorted(self.hosts))
        former = self._address(name)
        self.cluster.network.servers.pop(former)
        self.cluster.faults.cut(former)
        self.counts["crashes"] += 1
        left = f"{name}-{self.counts['crashes']}"
        shutil.copytree(self.folders[name], self.root / left)
        stopped = maybeDeferred(self.cluster.brokers[name].stopService)  # what it still writes is not read again
        self.holders = {queue: held for queue, held in self.holders.items() if queue.broker_name != name}
        self.advance(self.rng.choice([6.0, 40.0]))
        if not stopped.called:
            raise Violation("the broker does not stop")
        self.hosts[name] += 10
        self.folders[name] = self.root / left
        self.cluster._start_broker(name, self._address(name), left)

    def change_faults(self) -> None:
        self.fault_rate = 0.0 if self.fault_rate else self.rng.choice([0.01, 0.1, 0.5])

    def step(self) -> None:
        steps = [self.send] * 6 + [self.join] * 3 + [self.leave, self.die, self.stop_or_go_on, self.stop_or_go_on]
        steps += [self.add_queues, self.set_clock, self.fail_over, self.change_faults, self.change_faults]
        if self.is_harsh:
            steps += [self.crash, self.crash, self.close_queues, self.close_queues, *[self.remove_queues] * 4]
        act = self.rng.choice(steps)
        if act != self.send:
            self.disturbed_at = self.now
        act()
        self.advance(self.rng.choice([0.0, 0.3, 3.0, 25.0, 130.0]))

    # --- invariants

    def advance(self, seconds: float) -> None:
        while seconds > 0:
            if self.fault_rate or self.stopped:
                self.disturbed_at = self.now
            self.cluster.advance(min(seconds, 1.0))
            seconds -= 1.0
            self.check()

    def check(self) -> None:
        if self.errors:
            raise Violation(self.errors[0])
        for member, closed, since in self.closing:
            if not closed.called and self.now - since > 18.0 and not member.clock.is_stopped:
                raise Violation(f"close() of {member.name} has not ended after {self.now - since:g} s")
        if self.now - max(self.disturbed_at, self.lost_until) > SETTLED_S:
            held = Counter(queue for member in self.members for queue in member.core.assigned)
            if twice := [queue for queue, count in held.items() if count > 1]:
                raise Violation(f"{twice[0]} is held by two members {SETTLED_S:g} s after the last disturbance")

    def end(self) -> None:
        self.fault_rate, self.is_ending = 0.0, True
        self.pauses_s = [0.0]
        while self.stopped:
            self.stopped.pop().go_on()
        self.disturbed_at = self.now
        self.send()  # in some histories all others were refused
        for _ in range(END_S):
            if not self.members:
                self.join()
            self.advance(1.0)
            # A queue changes hands at any time until the last lost member is given up.
            assigned = {queue for member in self.members for queue in member.core.assigned if queue.topic == TOPIC}
            is_settled = self.now - self.disturbed_at > SETTLED_S and len(assigned) == 2 * self.queues
            if not self.unconsumed() and is_settled:
                break
        else:
            raise Violation(f"not consumed: {self.unconsumed()}; {len(assigned)} of {2 * self.queues} queues are held")
        for member in self.members:
            self.closing.append((member, self.run(member.core.close()), self.now))
        self.members = []
        self.advance(15.0)
        for name in self.hosts:
            parts = self.cluster.parts(name)
            offsets = parts.offsets.by_queue(GROUP, TOPIC)
            for number in range(self.queues):
                size = parts._store.max_offset(TOPIC, number)
                if offsets.get(number, 0) != size:
                    raise Violation(f"{offsets.get(number)} of {size} is committed in queue {number} of {name}")
            if GROUP in parts.consumers.names():
                left = parts.consumers.group(GROUP).client_ids()
                raise Violation(f"members have not left {name}: {left}")

    def unconsumed(self) -> list[bytes]:
        return sorted(self.accepted - self.consumed)

    def close(self) -> None:
        for process in [self.process, *(member for member, *_ in self.closing), *self.members]:
            process.kill(is_heard=True)
        self.cluster.close()


@implementer(ILogObserver)
class _Errors(logging.Handler):
    """Notes what clients and brokers log as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RuntimeError) and "already awaited coroutine" in str(error):
            return  # of a killed member, whose coroutines are collected
        if record.name != "mqbroker.client.listeners":  # of listeners that are cancelled when their member is closed
            self.found.append(self.format(record))

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_failure") is not None:
            self.found.append(event["log_failure"].getTraceback())


def run_seed(seed: int) -> Counter[str]:
    """What was met. Raises Violation."""
    errors = _Errors()
    logging.getLogger("mqbroker.client").addHandler(errors)
    globalLogPublisher.addObserver(errors)
    former = dispatch.BUSY_S, dispatch.IDLE_S
    dispatch.BUSY_S = dispatch.IDLE_S = 0.0
    with tempfile.TemporaryDirectory() as root:
        group = Group(Path(root), seed)
        try:
            for _ in range(STEPS):
                group.step()
            group.end()
        finally:
            group.close()
            dispatch.BUSY_S, dispatch.IDLE_S = former
            globalLogPublisher.removeObserver(errors)
            logging.getLogger("mqbroker.client").removeHandler(errors)
    if errors.found:
        raise Violation(f"logged as an error: {errors.found[0]}")
    counts = group.counts
    del group
    gc.collect()  # what killed members were doing ends now, and not while another seed notes errors
    return counts


_WITH_HASH_SEED = {**os.environ, "PYTHONHASHSEED": "0"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.client.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--from", type=int, default=0, metavar="M", dest="first", help="the first (0)")
    chosen = parser.parse_args(arguments)
    if "PYTHONHASHSEED" not in os.environ:  # the order of sets is part of a run
        os.execve(sys.executable, [sys.executable, "-m", "tests.client.simulation", *arguments], _WITH_HASH_SEED)
    counts: Counter[str] = Counter()
    failed = 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        try:
            counts += run_seed(seed)
        except Violation as violation:
            failed += 1
            print(f"seed {seed}: {violation}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
