"""Transactions, requests and replies of our clients: on Java's broker, and between Java's clients and ours."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from mqbroker.client import (
    ConsumeFrom,
    Message,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
    TransactionState,
)
from mqbroker.client.blocking import Producer, PushConsumer, TransactionProducer
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic

#: Ask soon, and often enough for a producer that comes later.
SOON: dict[str, Any] = {
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "40",
}
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def asking(fleet: Fleet, java_namesrv: Namesrv) -> Broker:
    """A Java broker that asks soon."""
    return fleet.broker("java", java_namesrv, brokerName="asking", **SOON)


def indexes(line: Line, topic: str) -> list[int]:
    return sorted(int(record.properties["index"]) for record in line.read(topic, 0))


def half(topic: str, index: int) -> Message:
    return Message(topic, b"transaction %d" % index, properties={"index": str(index)})


def test_our_transactions_end_on_the_java_broker(java_namesrv: Namesrv, asking: Broker, topic: str) -> None:
    states = [COMMIT, ROLLBACK, UNKNOWN, UNKNOWN, UNKNOWN]
    asked: dict[int, int] = {}
    ids: dict[str, int] = {}

    def check(message: ReceivedMessage) -> TransactionState:
        index = int(message.properties["index"])
        assert (message.topic, ids[message.msg_id]) == (topic, index)
        asked[index] = asked.get(index, 0) + 1
        if asked[index] == 1 and index == 4:
            raise ValueError("as ordered")
        return [COMMIT, ROLLBACK, COMMIT, ROLLBACK, COMMIT][index]

    with closing(Line(asking.addr)) as line:
        line.ask_well([create_topic(topic, 1)])
        with TransactionProducer(java_namesrv.addr, "ours-tx", check) as producer:
            for index, state in enumerate(states):
                result = producer.send_in_transaction(half(topic, index), lambda message, state=state: state)  # type: ignore[misc]
                ids[result.sent.msg_id] = index
            eventually("the committed ones are there", lambda: indexes(line, topic) == [0, 2, 4])
            eventually("all are asked about", lambda: {2, 3, 4} <= set(asked))
        assert asked[4] >= 2
        assert not asked.keys() & {0, 1}


def test_ours_is_asked_about_what_java_sent(fleet: Fleet, java_namesrv: Namesrv, asking: Broker, topic: str) -> None:
    with closing(Line(asking.addr)) as line:
        line.ask_well([create_topic(topic, 1)])
        peer = fleet.peer("transact", java_namesrv, topic=topic, group="mixed-tx", count=4, outcomes="u", answers="u")
        peer.wait_events("all sent")
        peer.close_stdin()
        peer.wait()
        assert indexes(line, topic) == []

        def check(message: ReceivedMessage) -> TransactionState:
            assert message.tags == "A"
            return COMMIT if int(message.properties["index"]) % 2 else ROLLBACK

        with TransactionProducer(java_namesrv.addr, "mixed-tx", check, topics=[topic]):
            eventually("the committed ones are there", lambda: indexes(line, topic) == [1, 3])


def test_java_is_asked_about_what_ours_sent(fleet: Fleet, java_namesrv: Namesrv, asking: Broker, topic: str) -> None:
    with closing(Line(asking.addr)) as line:
        line.ask_well([create_topic(topic, 1)])
        with TransactionProducer(java_namesrv.addr, "mixed-tx", lambda message: UNKNOWN) as producer:
            for index in range(4):
                producer.send_in_transaction(half(topic, index), lambda message: UNKNOWN)
        assert indexes(line, topic) == []
        peer = fleet.peer("transact", java_namesrv, topic=topic, group="mixed-tx", count=1, outcomes="r", answers="cr")
        eventually("the committed ones are there", lambda: indexes(line, topic) == [0, 2])
        assert {event["index"] for event in peer.events("asked")} == {0, 1, 2, 3}
        peer.close_stdin()
        peer.wait()


def test_java_asks_and_ours_replies(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, topic: str
) -> None:
    with Producer(java_namesrv.addr, "ours") as producer:

        def listener(message: ReceivedMessage) -> None:
            producer.send(Message.reply_to(message, b"re: " + message.body, tags="ours"))

        options = PushOptions(consume_from=ConsumeFrom.FIRST)
        consumer = PushConsumer(java_namesrv.addr, "ours-replies", listener, options=options)
        consumer.subscribe(topic)
        peer = shared_fleet.peer("mode", java_namesrv, mode="ask", topic=topic, broker=java_broker.addr, count=3)
        with consumer:
            peer.wait_events("done")
        assert [(event["body"], event["tags"]) for event in peer.events("got")] == [
            (f"re: question {n}", "ours") for n in range(3)
        ]


def test_ours_asks_and_java_replies(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, topic: str
) -> None:
    peer = shared_fleet.peer("mode", java_namesrv, mode="answer", topic=topic, broker=java_broker.addr, count=3)
    peer.wait_events("ready")
    with Producer(java_namesrv.addr, "ours") as producer:
        replies = [producer.request(Message(topic, b"q%d" % n), timeout_s=30) for n in range(3)]
    assert [reply.body for reply in replies] == [b"reply to q0", b"reply to q1", b"reply to q2"]
    peer.wait_events("done")


def test_our_trace_is_read_by_the_java_tool(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, topic: str
) -> None:
    traces = f"{topic}-traces"
    for name in (topic, traces, f"%RETRY%{topic}-group"):
        shared_fleet.peer("createtopic", java_namesrv, topic=name, broker=java_broker.addr, queues=1).finish()
    options = ProducerOptions(trace_topic=traces)
    with TransactionProducer(java_namesrv.addr, f"{topic}-pg", lambda message: UNKNOWN, options=options) as producer:
        sent = producer.send(Message(topic, b"traced", tags="tag", keys=["key"]))
        committed = producer.send_in_transaction(Message(topic, b"half"), lambda message: COMMIT).sent
    got = threading.Semaphore(0)
    consumer = PushConsumer(
        java_namesrv.addr,
        f"{topic}-group",
        lambda message: got.release(),
        options=PushOptions(consume_from=ConsumeFrom.FIRST, trace_topic=traces),
    )
    consumer.subscribe(topic)
    with consumer:
        assert all(got.acquire(timeout=30) for _ in range(2))

    def shown(msg_id: str) -> str:
        return shared_fleet.mqadmin("queryMsgTraceById", "-i", msg_id, "-t", traces, "-n", java_namesrv.addr)

    def is_shown(msg_id: str, *parts: str) -> bool:
        text = shown(msg_id)
        return all(part in text for part in parts)

    group, consumers = f"{topic}-pg", f"{topic}-group"
    eventually("the trace of the message", lambda: is_shown(sent.msg_id, "Pub", group, consumers, "success"))
    eventually("the trace of the half message", lambda: is_shown(committed.msg_id, "Pub", group, consumers, "success"))
