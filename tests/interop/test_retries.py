"""Retries that a Java broker left in queues that no consumer reads are served by ours."""

from contextlib import closing
from typing import Any

from mqbroker.wire.bodies import SubscriptionGroupConfig, TopicConfigSerializeWrapper
from mqbroker.wire.codes import RequestCode
from tests.interop.fleet import Fleet
from tests.interop.processes import eventually
from tests.interop.raw import GROUP, Line, create_topic, request, send

RETRY = f"%RETRY%{GROUP}"
QUEUES, RETRIES = 4, 40


def set_retry_queues(line: Line, count: int) -> None:
    body = SubscriptionGroupConfig(GROUP, retry_queue_nums=count).to_json()
    line.ask_well([request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)])


def send_back(line: Line, offset: int, times: int) -> None:
    """Send the message back, to be retried after a second."""
    fields: dict[str, Any] = {"offset": offset, "group": GROUP, "delayLevel": 1, "maxReconsumeTimes": 100}
    line.ask_well([request(RequestCode.CONSUMER_SEND_MSG_BACK, **fields) for _ in range(times)])


def retries(line: Line) -> list[int]:
    """The number of retries in each queue of the retry topic, whether it has the queue or not."""
    return [line.max_offset(RETRY, queue_id) for queue_id in range(QUEUES)]


def read_queues(line: Line) -> int:
    """The number of queues that consumers read."""
    (answer,) = line.ask_well([request(RequestCode.GET_ALL_TOPIC_CONFIG)])
    topics = TopicConfigSerializeWrapper.from_json(answer.body, dialect_bytes_max=None)
    return topics.topic_config_table[RETRY].read_queue_nums


def test_retries_that_a_java_broker_stranded_are_served(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    java = fleet.broker("java", namesrv)
    with closing(Line(java.addr)) as line:
        set_retry_queues(line, 1)
        line.ask_well([create_topic(topic, 1), send(topic, 0, b"x", {})])
        eventually("the message is there", lambda: line.max_offset(topic, 0))
        (message,) = line.read(topic, 0)
        send_back(line, message.physical_offset, 1)
        set_retry_queues(line, QUEUES)
        send_back(line, message.physical_offset, RETRIES - 1)
        eventually("all retries are due", lambda: sum(retries(line)) == RETRIES)
        stranded = retries(line)[1:]
        assert all(stranded)
        assert read_queues(line) == 1
        # Lowered again, so that the group does not tell of them.
        set_retry_queues(line, 1)
    java.process.stop()
    ours = fleet.broker("ours", namesrv, store=java.store)
    assert f"{RETRY} has {sum(stranded)} messages in queues that no consumer read" in ours.process.errors
    with closing(Line(ours.addr)) as line:
        assert read_queues(line) == QUEUES
        assert [len(line.read(RETRY, queue_id)) for queue_id in range(1, QUEUES)] == stranded
        # From here on retries are where consumers read them.
        set_retry_queues(line, QUEUES + 2)
        assert read_queues(line) == QUEUES + 2
