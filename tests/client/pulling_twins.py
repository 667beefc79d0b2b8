"""Groups of consumers that run a generated history, each against servers of its own, with pulls in a row or without."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zlib import compress

from twisted.internet.task import deferLater

from mqbroker.client import ConsumeFrom, LitePullOptions, PushOptions
from mqbroker.client.broker_requests import MemberRequests
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.net import Puller
from mqbroker.client.pull_run import RUN_S
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue, SubscriptionGroupConfig
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.client.changing_world import BROKERS
from tests.client.faults import Passage
from tests.client.own_cluster import NAME_SERVER, OwnCluster
from tests.client.pull_answers import IN_VAIN, WAYS, Way, asked_for
from tests.client.world import FixedIdentity, World
from tests.remoting.link import UNREAD_MAX

#: Other addresses of the same brokers: of a slave, and where a master has moved to.
SLAVES = {"a": "10.0.0.4:10911", "b": "10.0.0.5:10911"}
MOVED = {"a": "10.0.0.6:10911", "b": "10.0.0.7:10911"}
ADDRESSES = [*BROKERS.values(), *SLAVES.values(), *MOVED.values()]
QUEUES = [MessageQueue("T", name, number) for name in BROKERS for number in range(2)]
RETRIES = [MessageQueue("%RETRY%g", name, 0) for name in BROKERS]
#: The seeds of a push, in which each step is compared.
EXACT_SEEDS = 30
EXPRESSIONS = ["*", "a || c"]
#: What brokers refuse for a while.
REFUSED = [
    RequestCode.HEART_BEAT,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.QUERY_CONSUMER_OFFSET,
]


class GeneralNet(DeferredNet):
    """Each pull goes the general path."""

    async def pull_on(self, addr: str, command: RemotingCommand, timeout_ms: int, puller: Puller) -> RemotingCommand:
        return await self.invoke(addr, command, timeout_ms)


class Twin:
    """A group of consumers, with servers of its own."""

    def __init__(self, root: Path, seed: int, *, in_a_row: bool) -> None:
        rng = self.rng = Random(102 + seed)
        self.world = World(OwnCluster(root, brokers=BROKERS, is_eager=False))
        self.cluster, self.faults = self.world.cluster, self.world.faults
        self.kind = rng.choice(["push", "push", "orderly", "lite", "lite"])
        #: Pulls in a row ask once more where messages cannot be taken, and where bodies are larger than they came.
        self.is_plain = rng.random() < 0.7
        self.expression = rng.choice(EXPRESSIONS)
        self._net = DeferredNet if in_a_row else GeneralNet
        self.options = self._options_of(rng)
        self._fails, self._slow = rng.choice([0, 3, 7]), rng.choice([0, 2, 5])
        is_shared = self._slow and self.kind != "lite" and self.options.concurrency < 1000
        # Of more seeds a few differ for a while, by what a run asks in the turn in which its queue is left.
        self.is_exact = not is_shared and seed < EXACT_SEEDS
        #: The numbers of the messages that each queue has, and of those that are to be consumed.
        self.numbers: dict[MessageQueue, list[int]] = {queue: [] for queue in QUEUES}
        self.wanted: dict[MessageQueue, list[int]] = {queue: [] for queue in QUEUES}
        self._number = 0
        self.tagged: set[int] = set()
        #: What each queue's next pulls meet, and those that were kept back.
        self.ways: dict[MessageQueue, list[Way]] = defaultdict(list)
        self.late: list[Passage] = []
        self.got: dict[MessageQueue, list[tuple[str, int, int]]] = defaultdict(list)
        self.pulls: dict[MessageQueue, list[tuple[str, int]]] = defaultdict(list)
        self.outcomes: list[Any] = []
        self._looked_up_at: dict[MessageQueue, float] = defaultdict(float)
        self.has_gone_on = self._is_under_way = False
        self.cluster.add_topic("T", queues=2)
        self.cluster.add_topic("%RETRY%g", queues=1)
        for name, addr in BROKERS.items():
            self.cluster.serve_also_at(SLAVES[name], addr)
            self.cluster.serve_also_at(MOVED[name], addr)
        self.faults.refuse[None, RequestCode.PULL_MESSAGE] = self._meet
        self.members: dict[str, Any] = {}
        self._sub_version = 0
        self._begin("m")

    def _options_of(self, rng: Random) -> Any:
        options: dict[str, Any] = {
            "consume_from": ConsumeFrom.FIRST,
            "pull_batch": rng.choice([1, 2, 3, 8]),
            "queue_messages_max": rng.choice([3, 20, 1000, 1000]),
            # Bodies may be larger than they came: pulls in a row then notice one pull later that the queue is full.
            "queue_bytes_max": rng.choice([60, 2000, 2**20, 2**20]) if self.is_plain else 2**20,
            "queue_span_max": rng.choice([2, 20, 2000, 2000]),
            "topic_messages_max": rng.choice([None, None, 20]),
            "suspend_s": rng.choice([0.5, 3.0, 15.0, 15.0]),
            "pull_timeout_s": rng.choice([16.0, 30.0]),
            "route_age_s": rng.choice([1.5, 1.5, 30.0]),
        }
        if self.kind == "lite":
            return LitePullOptions(**options)
        return PushOptions(
            orderly=self.kind == "orderly",
            concurrency=rng.choice([1, 20, 1000]),
            batch_max=rng.choice([None, None, 3]),
            max_reconsume_times=1,
            **options,
        )

    # the consumers

    def _begin(self, me: str) -> None:
        requests = MemberRequests(lambda: self.members[me], lambda: "")
        net = self._net(
            self.world.clock,
            requests.answer,
            random.Random(1),
            connector=self.cluster.network.connector,
            steady=self.cluster.reactor.seconds,
        )
        identity = FixedIdentity(me)
        core: Any
        if self.kind == "lite":
            core = LitePullConsumerCore(net, (NAME_SERVER,), "g", self.options, identity)
        else:
            listener = partial(self._listen if self.options.batch_max is None else self._listen_to_some, me)
            core = PushConsumerCore(net, (NAME_SERVER,), "g", listener, self.options, identity)
        self.members[me] = core
        self._subscribe_one(core)
        self._run(core.start())

    def _subscribe_one(self, core: Any) -> None:
        # Or brokers would keep the subscription of a member that could not leave, if the clock is set back.
        core._membership._sub_version = self._sub_version
        self._run(core.subscribe("T", self.expression))
        self._sub_version = core._membership._sub_version

    def _run(self, coroutine: Any) -> None:
        """Have it done; what comes of it is part of the history."""
        at = len(self.outcomes)
        self.outcomes.append(None)
        self.world.run(coroutine).addBoth(lambda found: self.outcomes.__setitem__(at, outcome_of(found)))

    def _listen(self, me: str, message: Any) -> Any:
        number = self._note(me, message)
        if self._fails and number % self._fails == 1 and message.reconsume_times < 1:
            raise ValueError("no")
        if self._slow and number % self._slow == 1:
            return deferLater(self.world.clock, 0.1 * (number % 4), bool)  # type: ignore[arg-type]
        return None

    def _listen_to_some(self, me: str, several: list[Any]) -> bool:
        numbers = [(self._note(me, message), message.reconsume_times) for message in several]
        return not self._fails or all(times or number % self._fails != 1 for number, times in numbers)

    def _note(self, me: str, message: Any) -> int:
        number = int(message.body.split()[0])
        self.got[message.queue].append((me, number, message.reconsume_times))
        return number

    def _poll(self, count: int = 100) -> int:
        """How many messages polls have returned."""
        before = sum(map(len, self.got.values()))
        for me, core in {**self.members}.items() if self.kind == "lite" else ():
            # One that was away comes back first.
            self.world.run(core.poll(0, count)).addCallback(partial(map, partial(self._note, me))).addCallback(list)
        return sum(map(len, self.got.values())) - before

    # what happens

    def store(self, rng: Random, queue: MessageQueue) -> None:
        for _ in range(rng.choice([1, 2, 5, 12, 25])):
            self._number += 1
            number, sys_flag, kind, tag = (
                self._number,
                0,
                rng.randrange(3 if self.is_plain else 0, 12),
                rng.choice("aab"),
            )
            body = b"%d " % number
            if kind == 0:
                sys_flag = 1  # it cannot be decompressed
            elif kind < 3:
                body, sys_flag = compress(body + bytes(rng.choice([10, 700, 1500]))), 1
            elif kind == 3:
                body += b"x" * rng.choice([20, 500, 20000])
            self.numbers[queue].append(number)
            if tag == "a":
                self.tagged.add(number)
            # While a subscription is not made yet, the former one may count.
            is_matching = tag == "a" or (self.expression == "*" and None not in self.outcomes)
            if is_matching and (kind or self.kind == "lite"):
                self.wanted[queue].append(number)
            self.cluster.store(queue, body, sys_flag=sys_flag, TAGS=tag, UNIQ_KEY=str(number))

    def _skip(self, queue: MessageQueue, count: int) -> None:
        """The first messages of a queue need not be consumed any more."""
        skipped = self.numbers[queue][:count]
        self.wanted[queue] = [number for number in self.wanted[queue] if number not in skipped]

    def change(self, rng: Random) -> None:
        """Change the world as administrators, the network, name servers, the program, or the time do."""
        changes: list[Callable[[Random], object]] = [
            *[self._have_pulls_fail] * 6, *[self._change_topic] * 3, *[self._change_route] * 3, *[self._suggest] * 3,
            self._fail, self._fail, self._reset, self._reset, self._seek, self._join_or_leave, self._pause,
            self._resume, self._resume, self._subscribe, self._pass_late_ones, *[self._let_time_pass] * 6,
        ]  # fmt: skip
        rng.choice(changes)(rng)

    def _have_pulls_fail(self, rng: Random) -> None:
        """Have some of the pulls fail that find the messages stored now."""
        ways: list[Way] = [*WAYS, *(() if self.is_plain else IN_VAIN), self.late.append]
        queue = rng.choice(QUEUES)
        for _ in range(rng.choice([1, 2, 3, 5])):
            change = partial(self._meanwhile, rng.randrange(2**32))
            passed = [Passage.pass_on] * rng.choice([0, 1, 1, 2])
            self.ways[queue] += [*passed, change if rng.random() < 0.4 else rng.choice(ways)]
        self.store(rng, queue)

    def _meanwhile(self, seed: int, passage: Passage) -> None:
        """Change the world while a pull is on its way."""
        self._is_under_way = True
        self.change(Random(seed))
        self._is_under_way = False
        self._pass(passage)

    def _meet(self, passage: Passage) -> None:
        queue, offset = asked_for(passage)
        if self._is_in_vain(queue, offset):
            passage.pass_on()
            return
        self.pulls[queue].append((passage.connection.addr, offset))
        self._note_route(queue, passage.connection.addr)
        ways = self.ways[queue]
        (ways.pop(0) if ways else Passage.pass_on)(passage)

    def _note_route(self, queue: MessageQueue, addr: str) -> None:
        """Without a look at the route, pulls in a row may go where others do not go any more, for a while."""
        looked_up = {
            route.any_address(queue.broker_name, core._assigned[queue]._broker_id)
            for core in [*self.members.values()]
            if queue in core._assigned and (route := core._routes.known("T")) is not None
        }
        now = self.cluster.reactor.seconds()
        if addr in looked_up:
            self._looked_up_at[queue] = now
        elif now - self._looked_up_at[queue] <= RUN_S:
            self.has_gone_on = True

    def _is_in_vain(self, queue: MessageQueue, offset: int) -> bool:
        """Whether it was sent before its queue was left, or the messages in front of it could not be taken."""
        found = [core._assigned[queue]._process_queue for core in self.members.values() if queue in core._assigned]
        return any(held is not None for held in found) and all(
            held is None or held.next_offset < offset for held in found
        )

    def _pass(self, passage: Passage) -> None:
        if passage.connection.transport.closing is None:
            passage.pass_on()

    def _pass_late_ones(self, rng: Random) -> None:
        late, self.late = self.late, []
        for passage in late:
            self._pass(passage)

    def _change_topic(self, rng: Random) -> None:
        name, kind = rng.choice("ab"), rng.randrange(8)
        if kind < 2:
            self.cluster.delete_topic("T", [name])
        elif kind == 2:
            self.cluster.remove_topic("T", name)
            for queue in QUEUES:
                if queue.broker_name == name:
                    self._skip(queue, len(self.numbers[queue]))
        else:
            self.cluster.add_topic("T", rng.choice([1, 2]), rng.choice([2, 4, 6, 6]), [name])

    def _change_route(self, rng: Random) -> None:
        name, kind = rng.choice("ab"), rng.randrange(4)
        topic = self.cluster.parts(name).topics.get("T")
        if kind == 0:
            self.cluster.unregister(name)
        elif kind == 1 and topic is not None:
            self.cluster.register_again(name, "T")
        elif topic is not None:  # the master has another address until it registers again
            self.cluster.register(name, MOVED[name], 0, [topic])
            self._have_it_noticed(rng, name)

    def _suggest(self, rng: Random) -> None:
        """Have a broker suggest to pull from its slave, or from itself."""
        name = rng.choice("ab")
        parts = self.cluster.parts(name)
        self.cluster.register(name, SLAVES[name], 1)
        parts.groups.put(SubscriptionGroupConfig("g", broker_id=rng.choice([0, 1, 1])))
        parts.live.change({"slaveReadEnable": rng.choice(["true", "true", "false"])})
        self._have_it_noticed(rng, name)

    def _have_it_noticed(self, rng: Random, name: str) -> None:
        """Let members ask for routes again, and find messages at a broker after that."""
        if not self._is_under_way:
            self.cluster.advance(3.0)
            self.store(rng, rng.choice([queue for queue in QUEUES if queue.broker_name == name]))

    def _fail(self, rng: Random) -> None:
        addr, kind = (
            rng.choice([*BROKERS.values(), *BROKERS.values(), *SLAVES.values(), *MOVED.values()]),
            rng.randrange(5),
        )
        if kind == 0:
            self.faults.cut(addr)
        elif kind == 4:
            self._stop_reading(addr)
        elif kind == 1:
            self.faults.down.add(addr)
        elif kind == 2:
            self.faults.refuse[addr, rng.choice(REFUSED)] = (ResponseCode.SYSTEM_ERROR, "no")
        else:
            self._stop_failing()

    def _stop_reading(self, addr: str) -> None:
        """Have a broker not read what it is sent, which is more than fits the sockets' buffers."""
        for connection in self.faults.connections:
            if connection.addr == addr:
                connection.transport.pauseProducing()
        for core in [*self.members.values()]:
            self._run(core._net.send_oneway(addr, RemotingCommand(9999, {}, bytes(UNREAD_MAX))))

    def _stop_failing(self) -> None:
        self.faults.down.clear()
        for connection in self.faults.connections:
            if connection.transport.closing is None:
                connection.transport.resumeProducing()
        for code in REFUSED:
            for addr in ADDRESSES:
                self.faults.refuse.pop((addr, code), None)

    def _reset(self, rng: Random) -> None:
        queue, number = rng.choice(QUEUES), rng.randrange(40)
        offset = min(number, len(self.numbers[queue]))
        for core in [*self.members.values()]:
            core.reset("T", {queue: offset})
        self._skip(queue, offset)

    def _seek(self, rng: Random) -> None:
        queue, number, me = rng.choice(QUEUES), rng.randrange(40), rng.choice("mn")
        offset = min(number, len(self.numbers[queue]))
        if self.kind == "lite" and me in self.members:
            self._run(self.members[me].seek(queue, offset))
            self._skip(queue, offset)

    def _join_or_leave(self, rng: Random) -> None:
        me = rng.choice("mn")
        if me in self.members:
            self._run(self.members.pop(me).close())
        else:
            self._begin(me)

    def _pause(self, rng: Random) -> None:
        core = self.members.get(rng.choice("mn"))
        if core is not None:
            (core.pause if self.kind == "lite" else core.suspend)()

    def _resume(self, rng: Random) -> None:
        for core in [*self.members.values()]:
            core.resume()

    def _subscribe(self, rng: Random) -> None:
        """Subscribe anew: messages of tag a match before and after."""
        self.expression = rng.choice(EXPRESSIONS)
        for queue in QUEUES:
            self.wanted[queue] = [n for n in self.wanted[queue] if n in self.tagged]
        for core in [*self.members.values()]:
            self._subscribe_one(core)

    def _let_time_pass(self, rng: Random) -> None:
        kind = rng.randrange(8)
        if kind == 1 and rng.random() < 0.2:
            self.cluster.advance(100)  # others may have had the queues meanwhile
        elif kind == 0:
            self.world.clock.set_forward += rng.choice([3600.0, -100.0])
        else:
            self.cluster.advance(rng.choice([0.05, 0.5, 0.9, 1.1, 3.0, 12.0, 31.0]))

    # what is compared

    def step(self) -> Any:
        """What came of all that happened since the last step; None if that may be something else without runs."""
        self.cluster.settle()
        self._poll(self.rng.choice([1, 3, 100]))
        pulls, self.pulls = self.pulls, defaultdict(list)
        # Not of retry topics: messages of several queues are sent back in any order.
        got = {queue: list(self.got[queue]) for queue in QUEUES}
        pulls = {queue: list(pulls[queue]) for queue in QUEUES}
        infos = {
            (me, queue): assigned.info()
            for me, core in self.members.items()
            for queue, assigned in core._assigned.items()
            if queue in QUEUES
        }
        pending = [
            sum(len(connection._responses) for connection in core._net.lines.connections.values())
            for core in self.members.values()
        ]
        unsent = sorted(len(link.ends[0].outbox) for link in self.cluster.network.links)
        is_exact = self.is_exact and not self.has_gone_on
        return [got, pulls, infos, list(self.outcomes), pending, unsent] if is_exact else None

    def calm_down(self) -> None:
        """Have no more faults, all messages consumed, and all offsets committed."""
        self.ways.clear()
        self._stop_failing()
        for name in BROKERS:
            self.cluster.add_topic("T", 2, 6, [name])
            self.cluster.parts(name).groups.put(SubscriptionGroupConfig("g"))
        self._resume(self.rng)
        if not self.members:
            self._begin("m")
        for seconds in (0, 11, 11, 31, 6):
            self.cluster.advance(seconds)
            for _ in range(400):
                while self._poll():
                    self.cluster.settle()
                if self._is_drained():
                    break
                self.cluster.advance(0.4)

    def _is_drained(self) -> bool:
        """Whether the members have consumed all that is stored."""
        positions = {queue: at for core in self.members.values() for queue, at in core.positions("").items()}
        return all(
            positions.get(queue) == self.cluster.parts(queue.broker_name)._store.max_offset(queue.topic, queue.queue_id)
            for queue in [*QUEUES, *(() if self.kind == "lite" else RETRIES)]
        )

    def check(self) -> None:
        """What is true of each way alone, in the end."""
        assert self._is_drained()
        for queue in QUEUES:
            first = list(dict.fromkeys(number for _, number, _ in self.got[queue]))
            wanted = self.wanted[queue]
            assert [number for number in first if number in wanted] == wanted, queue
        for core in [*self.members.values()]:
            for assigned in core._assigned.values():
                held = assigned._process_queue
                assert (len(held), held.bytes, len(held._batches)) == (0, 0, 0), assigned.queue

    def close(self) -> Any:
        """Returns what is committed."""
        for core in [*self.members.values()]:
            self._run(core.close())
        self.cluster.advance(1)
        self.cluster.close()
        return {queue: self.cluster.offsets.get(("g", queue)) for queue in QUEUES}


def outcome_of(found: Any) -> Any:
    value = getattr(found, "value", found)
    return (type(value), str(value)) if isinstance(value, MQError) else repr(value)
