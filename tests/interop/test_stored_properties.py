"""What becomes of a message's properties when it is stored and when the broker stores it again, and of a topic's
offsets when it is made again: on a Java broker and on ours."""

from __future__ import annotations

from contextlib import closing
from itertools import product

import pytest

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.properties import encode_properties
from mqbroker.wire.record import Record, decode_records
from tests.interop.fleet import Broker
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, request, send, send_batch

WAITS = (None, "true", "false")


def properties_of(wait: str | None, **others: str) -> dict[str, str]:
    return others | ({"WAIT": wait} if wait is not None else {})


def stored(broker: Broker, topic: str) -> list[dict[str, str]]:
    """The properties of all that is sent with each value of WAIT: alone, and in batches that have one of their own."""
    with closing(Line(broker.addr)) as line:
        line.ask_well([create_topic(topic, 1)])
        sent = len(WAITS)
        line.ask_well([send(topic, 0, b"alone", properties_of(wait, TAGS="a")) for wait in WAITS])
        for of_batch, of_first in product(WAITS, WAITS):
            batch = send_batch(topic, 0, [(b"1", properties_of(of_first, KEYS="k")), (b"2", {"TAGS": "b"})])
            batch.ext_fields["i"] = encode_properties(properties_of(of_batch)).decode()
            line.ask_well([batch])
            sent += 2
        eventually("all of them", lambda: line.max_offset(topic, 0) == sent)
        return [dict(record.properties) for record in line.read(topic, 0)]


def test_properties_are_stored_as_by_the_java_broker(our_broker: Broker, java_broker: Broker, topic: str) -> None:
    cluster = {"CLUSTER": "DefaultCluster"}
    ours, java = ([each | cluster for each in stored(broker, topic)] for broker in (our_broker, java_broker))
    assert ours == java
    # Alone they lose it, in a batch they keep it.
    assert ["WAIT" in each for each in ours[:3]] == [False, False, False]
    assert ours[3 + 2 * 2]["WAIT"] == "false"


def stored_again(broker: Broker, topic: str) -> dict[str, list[dict[str, str]]]:
    """The properties of messages that the broker stores again: what they are sent with, and each copy."""
    found: dict[str, list[dict[str, str]]] = {}
    group = f"g-{topic}"[:100]
    with closing(Line(broker.addr)) as line:

        def of(answer: RemotingCommand) -> Record:
            offset = int(answer.ext_fields["msgId"][-16:], 16)
            return decode_records(line.ask_well([request(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)])[0].body)[0]

        def next_in(name: str, queue_id: int, count: int) -> Record:
            eventually(f"message {count} of {name}", lambda: line.max_offset(name, queue_id) >= count)
            return line.read(name, queue_id)[count - 1]

        def sent(name: str, **properties: str) -> tuple[int, Record]:
            line.ask_well([create_topic(f"{topic}-{name}", 1)])
            [answer] = line.ask_well([send(f"{topic}-{name}", 0, b"x", properties)])
            record = of(answer)
            found[f"{name}, stored"] = [dict(record.properties)]
            return int(answer.ext_fields["queueOffset"]), record

        for wait in WAITS:
            name = f"delayed-{wait}"
            sent(name, **properties_of(wait, TAGS="a", KEYS="k", DELAY="1"))
            found[name] = [dict(next_in(f"{topic}-{name}", 0, 1).properties)]
        for level in ("-1", "0"):
            sent(f"level{level}", **properties_of("true", DELAY=level))
        for wait in WAITS:
            name = f"half-{wait}"
            offset, half = sent(name, **properties_of(wait, TAGS="a", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="u"))
            end = request(
                RequestCode.END_TRANSACTION, producerGroup="P", tranStateTableOffset=offset,
                commitLogOffset=half.physical_offset, commitOrRollback=8, fromTransactionCheck="false", msgId="u",
                transactionId="u",
            )  # fmt: skip
            line.ask_well([end])
            found[name] = [dict(next_in(f"{topic}-{name}", 0, 1).properties)]
        retries, dead = f"%RETRY%{group}", f"%DLQ%{group}"
        for number, properties in enumerate([{"TAGS": "a"}, {"DELAY": "1", "WAIT": "true"}, {"WAIT": "false"}]):
            _, record = sent(f"back{number}", **properties)
            copies = found[f"back{number}"] = []
            # The first delay is of the message itself; the last try becomes a dead letter.
            tries = ((1, retries, 2 * number + 1), (1, retries, 2 * number + 2), (-1, dead, number + 1))
            for delay_level, name, count in tries:
                back = request(RequestCode.CONSUMER_SEND_MSG_BACK, offset=record.physical_offset, group=group,
                               delayLevel=delay_level, unitMode="false")  # fmt: skip
                line.ask_well([back])
                record = next_in(name, 0, count)
                copies.append(dict(record.properties))
        line.ask_well([send(retries, 0, b"x", {"DELAY": "1", "RETRY_TOPIC": topic}, reconsume_times=16)])
        found["dead by its own count"] = [dict(next_in(dead, 0, 4).properties)]
    return found


def test_properties_of_copies_are_those_of_the_java_brokers(
    our_broker: Broker, java_broker: Broker, topic: str
) -> None:
    topic = topic[:40]
    ours, java = (stored_again(broker, topic) for broker in (our_broker, java_broker))
    for each in (ours, java):
        for copies in each.values():
            for properties in copies:
                if "ORIGIN_MESSAGE_ID" in properties:  # where the broker is
                    properties["ORIGIN_MESSAGE_ID"] = "an id"
                properties["CLUSTER"] = "a cluster"
    # A dead letter is stored at once; Java's is delayed first, if it has a level.
    for name in ("REAL_TOPIC", "REAL_QID"):
        del java["dead by its own count"][0][name]
    assert ours == java
    assert {"DELAY", "WAIT"} <= ours["delayed-true"][0].keys()


@pytest.mark.parametrize("kind", ["ours", "java"])
def test_a_topic_made_again_gives_the_offset_that_it_shows(
    kind: str, our_broker: Broker, java_broker: Broker, topic: str
) -> None:
    with closing(Line((our_broker if kind == "ours" else java_broker).addr)) as line:
        line.ask_well([create_topic(topic, 1), *[send(topic, 0, b"old", {}) for _ in range(5)]])
        eventually("all of them", lambda: line.max_offset(topic, 0) == 5)
        line.ask_well([request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic), create_topic(topic, 1)])
        shown = line.max_offset(topic, 0)
        assert line.number(RequestCode.GET_MIN_OFFSET, "offset", topic=topic, queueId=0) == shown
        [answer] = line.ask_well([send(topic, 0, b"new", {})])
        assert int(answer.ext_fields["queueOffset"]) == shown
        eventually("it", lambda: line.max_offset(topic, 0) == shown + 1)
        assert [record.body for record in line.read(topic, 0)] == [b"new"]
