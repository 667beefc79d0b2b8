"""A world that changes between any two requests of a client, by generated sequences: what twins of clients share."""

from __future__ import annotations

import random
import re
from random import Random
from typing import Any

import attrs
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from mqbroker.client import SendResult
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.faults import SILENT
from tests.client.own_cluster import NAME_SERVER
from tests.client.world import World

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
class ChangingWorld:
    """Two brokers whose topics, permissions and registrations change, which fail, and a network that is cut."""

    world: World
    rng: Random
    #: Nothing fails, and a client knows of a change before it sends again.
    is_calm: bool
    #: Requests that fail.
    sends: tuple[int, ...] = (SEND,)

    def advance(self, seconds: float) -> None:
        self.world.cluster.advance(seconds)

    def change(self) -> None:
        """Change the world as administrators, the network, name servers or the time do."""
        rng, cluster = self.rng, self.world.cluster
        topic, name = rng.choice("TTTU"), rng.choice("ab")
        kind = rng.choice([0, 0, 10, 14]) if self.is_calm else rng.randrange(16)
        if kind < 3:
            brokers = rng.choice([["a"], ["b"], ["a", "b"]])
            cluster.add_topic(topic, rng.choice([1, 2, 4]), rng.choice([2, 4, 6, 6, 6]), brokers)
            if self.is_calm:
                self.advance(31)  # until the producer knows
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
            self.advance(rng.choice([0.5, 3.0, 31.0, 31.0, 61.0]))

    def _fail(self, kind: int, name: str) -> None:
        """Have servers fail, or none any more."""
        rng, cluster, faults, addr = self.rng, self.world.cluster, self.world.faults, BROKERS[name]
        if kind == 6:
            rule = rng.choice([SILENT, *((code, "no") for code in rng.sample(REFUSALS, 2))])
            at = rng.choice([addr, None])
            faults.refuse.update({(at, code): rule for code in self.sends})
        elif kind == 7:
            faults.refuse.clear()
            faults.down.clear()
        elif kind == 8:
            faults.down.add(rng.choice([addr, NAME_SERVER]))
        elif kind == 11:
            cluster.parts(name).live.change({"brokerPermission": rng.choice("246")})
        else:
            faults.refuse[addr, RequestCode.HEART_BEAT] = (ResponseCode.SYSTEM_ERROR, "no")
            self.advance(31)

    def stored(self) -> list[Any]:
        """What each queue has."""
        cluster = self.world.cluster
        return [
            (name, topic, number, [(r.body, ID.sub("ID", str(r.properties))) for r in cluster.stored(queue)])
            for name in BROKERS
            for topic in "TU"
            for number in range(4)
            for queue in [MessageQueue(topic, name, number)]
        ]


def fields_of(request: Any) -> dict[str, str]:
    return {key: ID.sub("ID", value) for key, value in (request.ext_fields or {}).items()}


def by_server(requests: list[Any]) -> list[Any]:
    """Requests, of each its address and code first, by server. Heartbeats come last: where one stands among sends that
    leave together is no part of the comparison."""
    return sorted(requests, key=lambda each: (each[0], each[1] == RequestCode.HEART_BEAT))


def outcome_of(found: Any) -> Any:
    if isinstance(found, list):
        return [outcome_of(each) for each in found]
    if isinstance(found, SendResult):
        return attrs.evolve(found, msg_id=ID.sub("ID", found.msg_id))
    if isinstance(found, Failure):
        return CancelledError if found.check(CancelledError) else (type(found.value), ID.sub("ID", str(found.value)))
    return found
