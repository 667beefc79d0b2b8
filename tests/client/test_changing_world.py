"""Sends that are encoded together, and those of the general path, in a world that changes between any two of them: the
same outcomes, and the same requests to the same servers.

Two producers run the same generated history, each against servers of its own. MQBROKER_TWIN_SEEDS chooses how many.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from mqbroker.client import Message, ProducerOptions, SendResult
from mqbroker.client.broker_requests import decline
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.plain_sends import PlainSends
from mqbroker.client.producer import ProducerCore
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.ids import UniqIdSource
from tests.client.faults import SILENT
from tests.client.own_cluster import NAME_SERVER, OwnCluster
from tests.client.world import FixedIdentity, World
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60")) // 2
SEND = RequestCode.SEND_MESSAGE_V2
BROKERS = {"a": "10.0.0.2:10911", "b": "10.0.0.3:10911"}
#: The id of a message, in its properties or in a list of a batch's: the two ways reserve them differently.
ID = re.compile("[0-9A-F]{32}")
REFUSALS = [
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.NO_PERMISSION,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.TOPIC_NOT_EXIST,
]


class Unvarying(random.Random):
    """Draws that do not depend on how many there were before: the order of retries is no part of the comparison."""

    def randrange(self, *args: Any, **kwargs: Any) -> int:
        return 0

    def uniform(self, a: float, b: float) -> float:
        return b


@attrs.define
class Twin:
    """One of the two producers, with its servers."""

    world: World
    core: ProducerCore
    rng: Random
    #: Where nothing fails several sends begin together; else retries would pass each other in another order.
    is_calm: bool
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
        twin = cls(world, core, rng, seed % 3 == 0, options.sends_in_flight_max)
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
        by_addr = [(addr, request.code, fields_of(request)) for addr, request in self.world.faults.requests[first:]]
        return [[outcome_of(each) for each in outcomes], sorted(by_addr, key=lambda each: each[0])]

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

    def change(self) -> None:
        """Change the world as administrators, the network, name servers or the time do."""
        rng, cluster = self.rng, self.world.cluster
        topic, name = rng.choice("TTTU"), rng.choice("ab")
        kind = rng.choice([0, 0, 10, 14]) if self.is_calm else rng.randrange(16)
        if kind < 3:
            brokers = rng.choice([["a"], ["b"], ["a", "b"]])
            cluster.add_topic(topic, rng.choice([1, 2, 4]), rng.choice([2, 4, 6, 6, 6]), brokers)
            if self.is_calm:
                cluster.advance(31)  # until the producer knows
        elif kind == 3:
            cluster.delete_topic(topic, rng.choice([["a"], ["b"], ["a", "b"]]))
        elif kind == 4:
            cluster.unregister(name)
        elif kind == 5 and cluster.parts(name).topics.get("T") is not None:
            cluster.register_again(name, "T")
        elif kind in (6, 7, 8, 11, 12):
            self._fail(kind, name)
        elif kind == 9:
            self.world.faults.cut(BROKERS[name])
        elif kind == 10:
            self.world.clock.set_forward += rng.choice([3600.0, -100.0])
        else:
            cluster.advance(rng.choice([0.5, 3.0, 31.0, 31.0, 61.0]))

    def _fail(self, kind: int, name: str) -> None:
        """Have servers fail, or none any more."""
        rng, cluster, faults, addr = self.rng, self.world.cluster, self.world.faults, BROKERS[name]
        if kind == 6:
            faults.refuse[rng.choice([addr, None]), SEND] = rng.choice(
                [SILENT, *((code, "no") for code in rng.sample(REFUSALS, 2))]
            )
        elif kind == 7:
            faults.refuse.clear()
            faults.down.clear()
        elif kind == 8:
            faults.down.add(rng.choice([addr, NAME_SERVER]))
        elif kind == 11:
            cluster.parts(name).live.change({"brokerPermission": rng.choice("246")})
        else:
            faults.refuse[addr, RequestCode.HEART_BEAT] = (ResponseCode.SYSTEM_ERROR, "no")
            cluster.advance(31)

    def stored(self) -> list[Any]:
        """What the brokers have, and where the next message goes."""
        cluster = self.world.cluster
        found = [
            (name, topic, number, [(r.body, ID.sub("ID", str(r.properties))) for r in cluster.stored(queue)])
            for name in BROKERS
            for topic in "TU"
            for number in range(4)
            for queue in [MessageQueue(topic, name, number)]
        ]
        in_flight: Any = self.core.sends._in_flight
        return [found, self.core._attempts.rotation._turns, (in_flight._count, in_flight._bytes, in_flight._granted)]

    def close(self) -> None:
        self.world.faults.down.clear()
        self.world.faults.refuse.clear()
        closing = self.world.run(self.core.close())
        self.world.cluster.advance(5)
        assert closing.called
        self.world.cluster.close()


def fields_of(request: Any) -> dict[str, str]:
    return {key: ID.sub("ID", value) for key, value in (request.ext_fields or {}).items()}


def outcome_of(found: Any) -> Any:
    if isinstance(found, list):
        return [outcome_of(each) for each in found]
    if isinstance(found, SendResult):
        return attrs.evolve(found, msg_id=ID.sub("ID", found.msg_id))
    if isinstance(found, Failure):
        return CancelledError if found.check(CancelledError) else (type(found.value), ID.sub("ID", str(found.value)))
    return found


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
    steps.append(twin.stored())
    twin.close()
    return steps, twin.plain


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome_while_the_world_changes(tmp_path: Path, seed: int) -> None:
    plain, taken = history(tmp_path / "plain", seed, is_plain=True)
    general, _ = history(tmp_path / "general", seed, is_plain=False)
    for number, (one, other) in enumerate(zip(plain, general, strict=True)):
        assert one == other, f"at step {number}"
    assert taken or seed, "no send was encoded with others: the comparison says nothing"
