"""What becomes of a message's properties when it is stored, and of a topic's offsets when it is made again: on a Java
broker and on ours."""

from __future__ import annotations

from contextlib import closing
from itertools import product

import pytest

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.properties import encode_properties
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
