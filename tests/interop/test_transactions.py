"""Transactions of the Java producer: on our broker as on Java's, and on one store that goes from one to the other."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from mqbroker.wire.record import Record, decode_record
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.processes import Event, eventually
from tests.interop.raw import Line, create_topic

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Ask soon, but not before a Java broker has warmed up: it asks about what it is just committing.
SOON: dict[str, Any] = {"transactionTimeOut": "3000", "transactionCheckInterval": "500", "transactionCheckMax": "4"}
NEVER: dict[str, Any] = {"transactionCheckInterval": "3600000"}
#: Who takes a store over counts the rounds in which it has not heard of the producer yet.
PATIENT = {**SOON, "transactionCheckMax": "12"}
#: What the producer says when it has sent, and when it is asked.
OUTCOMES, ANSWERS = "cruuu", "xxcru"
COUNT = 10


def indexes(records: list[Record]) -> list[int]:
    return sorted(int(record.properties["index"]) for record in records)


def asked_about(events: list[Event]) -> set[int]:
    return {event["index"] for event in events}


def shape(record: Record) -> tuple[object, ...]:
    """What must be the same whoever stores it."""
    properties = {**record.properties, "UNIQ_KEY": "?"}
    return record.topic, record.flag, record.sys_flag, record.reconsume_times, record.body, properties


def entries_of(broker: Broker) -> list[Record]:
    """What settles half messages: of its topic nobody may ask, for it is in no topic table."""
    data = (broker.store / "commitlog" / "00000000000000000000").read_bytes()
    found = []
    at = 0
    while at < len(data) and data[at : at + 4] != bytes(4):
        found.append(decode_record(data, at))
        at += found[-1].store_size
    return [record for record in found if record.topic == OP]


def run_all(fleet: Fleet, kind: Kind, namesrv: Namesrv, topic: str) -> dict[str, list[Record]]:
    """Transactions that end in each way; what is stored then, by topic."""
    broker = fleet.broker(kind, namesrv, brokerName=f"tx-{kind}", **SOON)
    with closing(Line(broker.addr)) as line:
        line.ask_well([create_topic(topic, 1)])
        peer = fleet.peer("transact", namesrv, topic=topic, count=COUNT, outcomes=OUTCOMES, answers=ANSWERS)
        peer.wait_events("all sent")
        assert [event["status"] for event in peer.events("sent")] == ["SEND_OK"] * COUNT
        # Half of the first, and of those that are asked about the first; the last is given up.
        eventually("the committed", lambda: len(line.read(topic, 0)) >= 4)
        eventually("the given up", lambda: len(line.read(GIVEN_UP, 0)) >= 2)
        asked = peer.events("asked")
        peer.close_stdin()
        assert asked_about(asked) == {2, 3, 4, 7, 8, 9}
        # Rounds in which the broker has not heard of the producer yet count too.
        times = [event["times"] for event in asked if event["index"] == 4]
        assert times == ["1", "2", "3", "4"][-len(times) :]
        assert {(event["topic"], event["queueId"]) for event in asked} == {(topic, 0)}
        return {name: line.read(name, 0) for name in (topic, GIVEN_UP, HALF)} | {OP: entries_of(broker)}


def test_transactions_end_as_on_the_java_broker(
    fleet: Fleet, our_namesrv: Namesrv, java_namesrv: Namesrv, topic: str
) -> None:
    ours = run_all(fleet, "ours", our_namesrv, topic)
    java = run_all(fleet, "java", java_namesrv, topic)
    for found in (ours, java):
        assert indexes(found[topic]) == [0, 2, 5, 7]
        assert indexes(found[GIVEN_UP]) == [4, 9]
    for name in (topic, GIVEN_UP):
        one, other = (sorted(found[name], key=lambda record: record.body) for found in (ours, java))
        # A half message that is put back loses its flag with Java.
        assert [shape(record)[2:] for record in one] == [shape(record)[2:] for record in other]
    for found in (ours, java):
        halves = {record.physical_offset: record for record in found[HALF]}
        for record in found[topic]:
            assert halves[record.prepared_offset].body == record.body
            assert record.sys_flag == 8
    sent_ours, sent_java = ({r.body: shape(r) for r in found[HALF][:COUNT]} for found in (ours, java))
    assert sent_ours == sent_java
    [entry, *_], [java_entry, *_] = ours[OP], java[OP]
    assert entry.properties == java_entry.properties
    assert (entry.sys_flag, entry.flag, entry.queue_id, entry.prepared_offset) == (0, 0, 0, 0)
    assert all(record.body.isdigit() for record in java[OP])


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        pytest.param("ours", "java", "stopped", marks=pytest.mark.thorough),
        ("ours", "java", "killed"),
        ("java", "ours", "killed"),
    ],
)
def test_a_store_changes_hands_in_the_middle_of_transactions(
    fleet: Fleet, our_namesrv: Namesrv, topic: str, first: Kind, second: Kind, how: str
) -> None:
    store = fleet.scratch / "store"
    broker = fleet.broker(first, our_namesrv, store, brokerName="tx-relay", **NEVER)
    with closing(Line(broker.addr)) as line:
        line.ask_well([create_topic(topic, 1)])
        peer = fleet.peer("transact", our_namesrv, topic=topic, count=COUNT, outcomes=OUTCOMES, answers=ANSWERS)
        peer.wait_events("all sent")
        eventually("the committed", lambda: indexes(line.read(topic, 0)) == [0, 5])
        eventually("what settles those and two rolled back", lambda: line.max_offset(OP, 0) == 4)
    broker.process.stop() if how == "stopped" else broker.process.kill()

    broker = fleet.broker(second, our_namesrv, store, brokerName="tx-relay", **PATIENT)
    with closing(Line(broker.addr)) as line:
        eventually("the given up", lambda: len(line.read(GIVEN_UP, 0)) >= 2)
        eventually("the committed", lambda: len(line.read(topic, 0)) >= 4)
        assert asked_about(peer.events("asked")) == {2, 3, 4, 7, 8, 9}
        assert indexes(line.read(topic, 0)) == [0, 2, 5, 7]
        assert indexes(line.read(GIVEN_UP, 0)) == [4, 9]
    peer.close_stdin()
