"""Sends that are encoded together, and those of the general path, in a world that changes between any two of them: the
same outcomes, and the same requests to the same servers.

Two producers run the same generated history, each against servers of its own. MQBROKER_TWIN_SEEDS chooses how many.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import Message, ProducerOptions
from mqbroker.client.broker_requests import decline
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.plain_sends import PlainSends
from mqbroker.client.producer import ProducerCore
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.ids import UniqIdSource
from tests.client.changing_world import BROKERS, ChangingWorld, Unvarying, by_server, fields_of, outcome_of
from tests.client.own_cluster import NAME_SERVER, OwnCluster
from tests.client.world import FixedIdentity, World
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60")) // 2


@attrs.define(kw_only=True)
class Twin(ChangingWorld):
    """One of the two producers, with its servers. Where nothing fails several sends begin together; else retries would
    pass each other in another order."""

    core: ProducerCore
    sends_max: int
    number: int = 0
    plain: int = 0

    @classmethod
    def start(cls, root: Path, seed: int, *, is_plain: bool) -> Twin:
        rng = Random(seed)
        world = World(OwnCluster(root, brokers=BROKERS))
        world.cluster.add_topic("T", queues=rng.choice([1, 2, 3]))
        net = DeferredNet(
            world.clock,
            decline,
            Unvarying(),
            connector=world.cluster.network.connector,
            steady=world.cluster.reactor.seconds,
        )
        next_id = UniqIdSource("10.0.0.9", 1, 2, net.now)
        options = ProducerOptions(
            compress_over_bytes=40,
            message_bytes_max=100,
            retries=rng.choice([0, 1, 3]),
            sends_in_flight_max=rng.choice([1, 3, 1000]),
            heartbeat_s=rng.choice([5.0, 30.0]),
            send_timeout_s=1,
        )
        identity = FixedIdentity("me", next_id)
        core = ProducerCore(
            net, (NAME_SERVER,), "pg", options, identity, partial(PlainSends, net) if is_plain else None
        )
        twin = cls(world=world, core=core, rng=rng, is_calm=seed % 3 == 0, sends_max=options.sends_in_flight_max)
        if is_plain:
            ended = net.sends_ended
            net.sends_ended = lambda sends: (twin.count(len(sends)), ended(sends))
        world.result(core.start())
        return twin

    def count(self, sends: int) -> None:
        self.plain += sends

    def send(self) -> list[Any]:
        """The outcomes of some sends that begin together, and what servers were asked meanwhile."""
        count = self.rng.choice([1, 2, 3, 5, 8]) if self.is_calm else 1
        first = len(self.world.faults.requests)
        # Several that begin together are of one kind: where another stands among them the two ways give queues, and
        # make retries, in another order.
        kind = self.rng.randrange(12) if count == 1 else self.rng.choice([4, 6, 8, 8])
        sends = [Deferred.fromCoroutine(self._begun(kind, is_alone=count == 1)) for _ in range(count)]
        outcomes: list[Any] = [None] * count
        for number, sent in enumerate(sends):
            sent.addBoth(partial(outcomes.__setitem__, number))
        self.world.cluster.settle()
        # A plain send that is cancelled keeps its slot until it is answered; others would wait for that.
        if not sends[0].called and self.sends_max == 1000 and self.rng.random() < 0.2:
            sends[0].cancel()
        for _ in range(60):
            if all(sent.called for sent in sends):
                break
            self.world.cluster.advance(0.25)
        requests = [(addr, request.code, fields_of(request)) for addr, request in self.world.faults.requests[first:]]
        return [[outcome_of(each) for each in outcomes], by_server(requests)]

    def _begun(self, kind: int, *, is_alone: bool) -> Coroutine[Any, Any, Any]:
        rng = self.rng
        self.number += 1
        message = Message(
            rng.choice("TTTTUV") if is_alone else "T",
            b"%d" % self.number + b"x" * (rng.choice([0, 0, 36, 37, 60, 96, 97]) if is_alone else 0),
            tags=rng.choice([None, "t", "é"]) if is_alone else rng.choice([None, "t"]),
            keys=rng.choice([(), ("k", "l")]),
            properties=rng.choice([{}, {"p": "1"}]),
            delay_level=rng.choice([0, 0, 0, 2]),
            flag=rng.choice([0, 7]),
        )
        if kind == 0:
            return self.core.send(message, timeout_s=0.7)
        if kind == 1:
            return self.core.send_batch([Message(message.topic, message.body)], key="k")
        if kind == 2:
            return self.core.send_oneway(message)
        if kind == 3:
            return self.core.send(message, queue=MessageQueue(message.topic, rng.choice("abz"), rng.choice([0, 1, 9])))
        if kind == 4:
            return self.core.send(message, selector=lambda queues, message: queues[len(message.body) % len(queues)])
        if kind == 5:
            return self.core.send(message, selector=lambda queues, message: queues[2])
        if kind < 8:
            return self.core.send(message, key=rng.choice("kl"))
        return self.core.send(message)

    def close(self) -> None:
        self.world.faults.down.clear()
        self.world.faults.refuse.clear()
        closing = self.world.run(self.core.close())
        self.world.cluster.advance(5)
        assert closing.called
        self.world.cluster.close()


def history(root: Path, seed: int, *, is_plain: bool) -> tuple[list[Any], int]:
    """What came of each step, and in the end what is stored; and the number of sends that were encoded together."""
    twin = Twin.start(root, seed, is_plain=is_plain)
    steps: list[Any] = []
    for _ in range(12):
        # The first may leave something to the second.
        for _ in range(twin.rng.choice([1, 2])):
            steps.append(twin.send())
        for _ in range(twin.rng.choice([0, 1, 1, 2])):
            twin.change()
    twin.world.cluster.advance(20)
    in_flight: Any = twin.core.sends._in_flight
    steps.append([twin.stored(), twin.core._attempts.rotation._turns])
    steps.append((in_flight._count, in_flight._bytes, in_flight._granted))
    twin.close()
    return steps, twin.plain


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome_while_the_world_changes(tmp_path: Path, seed: int) -> None:
    plain, taken = history(tmp_path / "plain", seed, is_plain=True)
    general, _ = history(tmp_path / "general", seed, is_plain=False)
    for number, (one, other) in enumerate(zip(plain, general, strict=True)):
        assert one == other, f"at step {number}"
    assert taken or seed, "no send was encoded with others: the comparison says nothing"
