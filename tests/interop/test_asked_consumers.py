"""The Java mqadmin looks at consumers of ours on brokers of both kinds, has them consume by hand, sets them back."""

import re
import threading
from collections import Counter
from collections.abc import Generator
from typing import Any, get_args

import attrs
import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from mqbroker.client import ConsumeFrom, Message, PushOptions, ReceivedMessage, blocking, deferred
from mqbroker.wire.admin_bodies import GetConsumerStatusBody
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.processes import PATIENCE_S, eventually
from tests.interop.raw import Line

QUEUES, COUNT = 2, 8
FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, commit_s=0.2)


class Listener:
    """Counts what comes; fails on bodies that are in `refused`."""

    def __init__(self) -> None:
        self.refused: set[bytes] = set()
        self.got: Counter[bytes] = Counter()
        self.thread = ""
        self._changed = threading.Condition()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.got[message.body] += 1
            self.thread = threading.current_thread().name
            self._changed.notify_all()
        if message.body in self.refused:
            raise ValueError("it is refused by hand")

    def wait(self, each: int) -> None:
        """Until every message came so often."""
        with self._changed:
            there = self._changed.wait_for(lambda: all(self.got[b"%d" % n] == each for n in range(COUNT)), PATIENCE_S)
            assert there, self.got


@attrs.frozen
class Situation:
    """A consumer of ours that has consumed all messages of a topic."""

    fleet: Fleet
    namesrv: Namesrv
    broker: Broker
    topic: str
    group: str
    offset_id: str
    listener: Listener = attrs.field(factory=Listener)
    client_id: str = ""

    def mqadmin(self, command: str, *args: str) -> str:
        return self.fleet.mqadmin(command, "-n", self.namesrv.addr, *args)


def prepare(fleet: Fleet, kind: Kind, topic: str) -> Situation:
    """Start daemons, send messages; the consumer is still to be started."""
    namesrv = fleet.namesrv(kind)
    broker = fleet.broker(kind, namesrv)
    group = f"asked-{kind}"
    for name, queues in ((topic, QUEUES), (f"%RETRY%{group}", 1)):
        fleet.peer("createtopic", namesrv, topic=name, broker=broker.addr, queues=queues).finish()
    with blocking.Producer(namesrv.addr, "ours") as producer:
        results = [producer.send(Message(topic, b"%d" % n)) for n in range(COUNT)]
    return Situation(fleet, namesrv, broker, topic, group, results[0].offset_msg_id)


def offsets(situation: Situation) -> dict[int, int]:
    """The committed offsets, as the broker has them."""
    line = Line(situation.broker.addr)
    try:
        return {
            n: line.number(
                RequestCode.QUERY_CONSUMER_OFFSET,
                "offset",
                consumerGroup=situation.group,
                topic=situation.topic,
                queueId=n,
            )
            for n in range(QUEUES)
        }
    finally:
        line.close()


def told_offsets(situation: Situation) -> dict[int, int]:
    """What the broker says that the consumer says."""
    line = Line(situation.broker.addr)
    try:
        answer = line.one(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=situation.topic, group=situation.group
        )
    finally:
        line.close()
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    table = GetConsumerStatusBody.from_json(answer.body).consumer_table
    assert set(table) == {situation.client_id}
    return {queue.queue_id: offset for queue, offset in table[situation.client_id].items()}


def check(situation: Situation) -> None:
    """All that mqadmin asks."""
    listener, client_id, group = situation.listener, situation.client_id, situation.group
    listener.wait(1)
    eventually("all is committed", lambda: sum(offsets(situation).values()) == COUNT)
    settled = offsets(situation)

    status = situation.mqadmin("consumerStatus", "-g", group)
    assert re.search(rf"^1 +{re.escape(client_id)} +V4_9_7 ", status, re.MULTILINE), status
    assert "Rebalance OK" in status
    assert "can't consume" not in status

    one = situation.mqadmin("consumerStatus", "-g", group, "-i", client_id, "-s")
    for key, value in (("PROP_CONSUME_TYPE", "CONSUME_PASSIVELY"), ("PROP_NAMESERVER_ADDR", situation.namesrv.addr)):
        assert re.search(rf"^{key} +: {value}", one, re.MULTILINE), one
    assert re.search(rf"Topic: {situation.topic} .*SubExpression: \*", one)
    for queue_id, offset in settled.items():
        assert re.search(rf"^{situation.topic} +{situation.broker.name} +{queue_id} +{offset} *$", one, re.MULTILINE)
        assert f"ProcessQueueInfo [commitOffset={offset}, cachedMsgMinOffset=0" in one
    # It has consumed this minute.
    assert re.search(rf"^{situation.topic} +\d+\.\d\d +0\.\d\d +\d+\.\d\d +0\.\d\d +0\.00 +0$", one, re.MULTILINE), one
    stacks = one.partition("#Consumer jstack#")[2]
    assert f"{listener.thread} " in stacks
    assert "threading.Thread." in stacks

    progress = situation.mqadmin("consumerProgress", "-g", group)
    assert "Diff Total: 0" in progress, progress
    assert told_offsets(situation) == settled

    by_hand = ("queryMsgById", "-i", situation.offset_id, "-g", group, "-d", client_id)
    assert "consumeResult=CR_SUCCESS, remark=null" in situation.mqadmin(*by_hand)
    listener.refused.add(b"0")
    refused = situation.mqadmin(*by_hand)
    assert "consumeResult=CR_THROW_EXCEPTION, remark=ValueError: it is refused by hand, " in refused, refused
    listener.refused.clear()
    assert (listener.got.pop(b"0"), offsets(situation)) == (3, settled)
    listener.got[b"0"] = 1

    reset = situation.mqadmin("resetOffsetByTime", "-g", group, "-t", situation.topic, "-s", "1000")
    assert re.search(rf"^{situation.broker.name} +1 +0 *$", reset, re.MULTILINE), reset
    listener.wait(2)
    eventually("all is committed again", lambda: offsets(situation) == settled)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_blocking_face(fleet: Fleet, kind: Kind, topic: str) -> None:
    at = prepare(fleet, kind, topic)
    consumer = blocking.PushConsumer(at.namesrv.addr, at.group, at.listener, options=FROM_FIRST)
    consumer.subscribe(topic)
    with consumer:
        check(attrs.evolve(at, client_id=consumer.client_id))


@pytest_twisted.inlineCallbacks
def test_the_deferred_face(fleet: Fleet, topic: str) -> Generator[Deferred[Any], Any, None]:
    at: Situation = yield deferToThread(prepare, fleet, "ours", topic)
    consumer = deferred.PushConsumer(reactor, at.namesrv.addr, at.group, at.listener, options=FROM_FIRST)
    yield consumer.subscribe(topic)
    yield consumer.start()
    yield deferToThread(check, attrs.evolve(at, client_id=consumer.client_id))
    yield consumer.close()
