"""Messages that a consumer could not consume."""

from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.wire.bodies import SubscriptionGroupConfig, TopicConfig
from mqbroker.wire.codes import Perm, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import ConsumerSendMsgBackRequestHeader
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.record import Record, decode_records
from tests.broker.bench import Bench, Client
from tests.broker.test_client_requests import beat, consumer
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged


def send_back(client: Client, record: int | Record, **fields: Any) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(
        **{"offset": getattr(record, "physical_offset", record), "group": "CG", "delay_level": 0, **fields}
    )
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def stored(bench: Bench, client: Client, **fields: Any) -> Record:
    client.send(body=b"body", **{"properties": "TAGS\x01A\x02KEYS\x01k", "flag": 7, "sys_flag": 1, **fields})
    return bench.records("T")[-1]


def test_it_waits_for_its_next_try(bench: Bench, client: Client) -> None:
    record = stored(bench, client)
    assert send_back(client, record).code == 0
    (again,) = bench.records("SCHEDULE_TOPIC_XXXX", 2)  # level 3: 10 s
    assert again.properties == {
        "TAGS": "A",
        "KEYS": "k",
        "CLUSTER": "DefaultCluster",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": offset_message_id(record.store_host, record.physical_offset),
        "DELAY": "3",
        "WAIT": "false",
        "REAL_TOPIC": "%RETRY%CG",
        "REAL_QID": "0",
    }
    assert (again.body, again.flag, again.sys_flag) == (b"body", 7, 1)
    assert (again.born_host, again.born_timestamp) == (record.born_host, record.born_timestamp)
    assert again.reconsume_times == 1
    assert bench.topics.get("%RETRY%CG").read_queue_nums == 1


def test_each_try_waits_longer_and_remembers_where_it_came_from(bench: Bench, client: Client) -> None:
    record = stored(bench, client)
    send_back(client, record)
    first = bench.records("SCHEDULE_TOPIC_XXXX", 2)[0]
    send_back(client, first)
    (second,) = bench.records("SCHEDULE_TOPIC_XXXX", 3)
    assert second.reconsume_times == 2
    assert second.properties["RETRY_TOPIC"] == "T"
    assert second.properties["ORIGIN_MESSAGE_ID"] == first.properties["ORIGIN_MESSAGE_ID"]


@pytest.mark.parametrize(("level", "queue"), [(1, 0), (18, 17), (19, 17), (2**31 - 1, 17)])
def test_the_consumer_may_choose_the_delay(bench: Bench, client: Client, level: int, queue: int) -> None:
    assert send_back(client, stored(bench, client), delay_level=level).code == 0
    assert len(bench.records("SCHEDULE_TOPIC_XXXX", queue)) == 1


@pytest.mark.parametrize("how", ["too often", "too often by its own count", "negative level"])
def test_after_the_last_try_it_is_a_dead_letter(bench: Bench, client: Client, how: str) -> None:
    record = stored(bench, client, reconsume_times=16 if how == "too often" else 2)
    fields = {"negative level": {"delay_level": -1}, "too often by its own count": {"max_reconsume_times": 2}}
    assert send_back(client, record, **fields.get(how, {})).code == 0
    (dead,) = bench.records("%DLQ%CG")
    assert dead.body == b"body"
    assert (dead.properties["DELAY"], dead.properties["WAIT"]) == ("0", "false")  # as in Java
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert bench.topics.get("%DLQ%CG").write_queue_nums == 1


def test_a_group_with_a_maximum_of_its_own(bench: Bench, client: Client) -> None:
    bench.groups.put(SubscriptionGroupConfig("CG", retry_max_times=1))
    record = stored(bench, client)
    send_back(client, record)
    send_back(client, bench.records("SCHEDULE_TOPIC_XXXX", 2)[0])
    assert len(bench.records("%DLQ%CG")) == 1


def test_a_group_without_retries_forgets_it(bench: Bench, client: Client) -> None:
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=0))
    end = bench.store.log_end
    record = stored(bench, client)
    end = bench.store.log_end
    assert send_back(client, record).code == 0
    assert bench.store.log_end == end


def test_refusals(bench: Bench, client: Client, make_bench: Callable[..., Bench]) -> None:
    record = stored(bench, client)
    for offset in (-1, 7, 2**62):
        answer = send_back(client, offset)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {offset}",
        )
    for group in ("../x", "", "g" * 256):
        assert send_back(client, record, group=group).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.topics.put(TopicConfig("%RETRY%CG", 1, 1, Perm.READ))
    assert send_back(client, record).code == ResponseCode.NO_PERMISSION
    closed = make_bench("closed", broker_permission=Perm.READ)
    assert send_back(closed.client(), 0).code == ResponseCode.NO_PERMISSION
    strict = make_bench("strict", auto_create_subscription_group=False)
    assert send_back(strict.client(), 0).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_unit_marks_its_retry_topic(bench: Bench, client: Client) -> None:
    record = stored(bench, client)
    assert send_back(client, record, unit_mode=True).code == 0
    assert bench.topics.get("%RETRY%CG").topic_sys_flag == 2
    assert send_back(client, record, unit_mode=True, delay_level=-1).code == 0
    assert bench.topics.get("%DLQ%CG").topic_sys_flag == 0


def test_dead_letters_are_consumed(bench: Bench, client: Client) -> None:
    assert send_back(client, stored(bench, client), delay_level=-1).code == 0
    bench.store.dispatch_now()
    answer = client.pull("%DLQ%CG", consumer_group="Undertaker")
    (record,) = decode_records(answer.body)
    assert (record.body, record.reconsume_times, record.properties["RETRY_TOPIC"]) == (b"body", 1, "T")


def test_a_group_too_long_for_a_retry_topic_is_refused(bench: Bench, client: Client) -> None:
    record = stored(bench, client)
    answer = send_back(client, record, group="g" * 200)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "longer than topic max length" in (answer.remark or "")
    assert not [name for name in bench.topics.names() if len(name) > 127]


def test_separators_in_a_value_come_through(bench: Bench, client: Client) -> None:
    record = stored(bench, client, properties="KEYS\x01a\x01b")
    assert record.properties["KEYS"] == "a\x01b"
    assert send_back(client, record).code == 0
    assert bench.records("SCHEDULE_TOPIC_XXXX", 2)[0].properties["KEYS"] == "a\x01b"


def test_a_store_that_takes_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(worker=SteppedWorker(at_once=False))
    client = bench.client()
    record = stored(bench, client)
    bench.turn(1)
    bench.worker.fail(OSError(5, "Input/output error"))
    answer = send_back(client, record)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in (answer.remark or "")


def queues_of(bench: Bench, topic: str) -> tuple[int, int]:
    found = bench.topics.get(topic)
    return found.read_queue_nums, found.write_queue_nums


def delayed_queues(bench: Bench) -> set[str]:
    """The queues that retries of the first level go to."""
    return {record.properties["REAL_QID"] for record in bench.records("SCHEDULE_TOPIC_XXXX", 2)}


def test_a_retry_topic_is_extended_with_its_group(bench: Bench, client: Client) -> None:
    record = stored(bench, client)
    send_back(client, record)
    for queues in (3, 5):
        bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=queues))
        assert queues_of(bench, "%RETRY%CG") == (queues, queues)
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=2))
    assert queues_of(bench, "%RETRY%CG") == (5, 5)
    for _ in range(60):
        assert send_back(client, record).code == 0
    assert delayed_queues(bench) == set("01234")
    # A group without a retry topic gets one when it needs it.
    bench.groups.put(SubscriptionGroupConfig("Other", retry_queue_nums=2))
    assert bench.topics.get("%RETRY%Other") is None


@pytest.mark.parametrize("how", ["heartbeat", "send back"])
def test_retries_go_to_queues_that_consumers_read(bench: Bench, client: Client, how: str) -> None:
    record = stored(bench, client)
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=2))
    # An administrator has closed most of them.
    for read, write, queues in ((1, 1, (2, 2)), (3, 1, (3, 1)), (0, 0, (2, 2)), (1, 8, (2, 8))):
        bench.topics.put(TopicConfig("%RETRY%CG", read, write))
        if how == "heartbeat":
            beat(client, consumers=[consumer("CG")])
        else:
            before = len(bench.records("SCHEDULE_TOPIC_XXXX", 2))
            for _ in range(40):
                assert send_back(client, record).code == 0
            retries = bench.records("SCHEDULE_TOPIC_XXXX", 2)[before:]
            assert {int(each.properties["REAL_QID"]) for each in retries} == set(range(queues[0]))
        assert queues_of(bench, "%RETRY%CG") == queues


def test_the_topics_of_a_group_without_retries_have_a_queue(bench: Bench, client: Client) -> None:
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=0))
    beat(client, consumers=[consumer("CG")])
    assert queues_of(bench, "%RETRY%CG") == (1, 1)


@pytest.mark.parametrize("queues", [-5, 2**31 - 1])
def test_a_retry_topic_has_no_number_of_queues_that_nobody_can_serve(bench: Bench, client: Client, queues: int) -> None:
    """A file of the Java broker may have any number."""
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=queues))
    beat(client, consumers=[consumer("CG")])
    assert 1 <= queues_of(bench, "%RETRY%CG")[0] <= 65_535


def strand(bench: Bench, client: Client) -> None:
    """Retries as a Java broker leaves them: in queues that the topic does not have."""
    for group, queues in {"CG": 3, "Done": 2, "Gone": 2, "Fine": 1}.items():
        bench.topics.put(TopicConfig(f"%RETRY%{group}", queues, queues))
        for queue_id in range(queues):
            for _ in range(2 + queue_id):
                assert client.send(f"%RETRY%{group}", queue_id=queue_id)[0].code == 0
        bench.topics.put(TopicConfig(f"%RETRY%{group}", 1, 1))
    bench.store.dispatch_now()
    bench.offsets.commit("CG", "%RETRY%CG", 1, 1)
    bench.offsets.commit("Done", "%RETRY%Done", 1, 3)
    bench.topics.remove("%RETRY%Gone")
    bench.offsets.persist()


def test_stranded_retries_are_served_after_a_start(make_bench: Callable[..., Bench], logged: Logged) -> None:
    bench = make_bench()
    strand(bench, bench.client())
    bench.close()
    logged.clear()
    bench = make_bench()
    assert queues_of(bench, "%RETRY%CG") == (3, 3)
    assert queues_of(bench, "%RETRY%Done") == queues_of(bench, "%RETRY%Fine") == (1, 1)
    assert bench.topics.get("%RETRY%Gone") is None
    lines = [line for line in logged.lines if "%RETRY%" in line and "no consumer" in line]
    assert lines == [
        "%RETRY%CG has 6 messages in queues that no consumer read, because the topic had fewer queues; it has 3 now, "
        "so that consumers get them"
    ]
    answer = bench.client().pull("%RETRY%CG", queue_id=2, subscription="*")
    assert len(decode_records(answer.body)) == 4


def test_a_retry_topic_with_fewer_queues_than_its_group_is_extended_at_the_start(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    bench.topics.put(TopicConfig("%RETRY%CG", 1, 1))
    bench.groups.on_change.clear()  # as a Java broker
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=4))
    bench.close()
    bench = make_bench()
    assert queues_of(bench, "%RETRY%CG") == (4, 4)


def waiting_retries(bench: Bench, client: Client, count: int = 20) -> set[bytes]:
    """Retries that wait for three queues of the retry topic."""
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=3))
    for number in range(count):
        client.send(body=b"%d" % number)
    for record in bench.records("T"):
        assert send_back(client, record).code == 0
    assert delayed_queues(bench) == set("012")
    return {b"%d" % number for number in range(count)}


def delivered(bench: Bench, topic: str, queues: int) -> list[set[bytes]]:
    return [{record.body for record in bench.records(topic, queue_id)} for queue_id in range(queues)]


@pytest.mark.parametrize("how", ["fewer queues", "made again", "no queues to read"])
def test_waiting_retries_go_to_queues_that_the_topic_has_when_they_are_due(
    bench: Bench, client: Client, how: str
) -> None:
    bodies = waiting_retries(bench, client)
    bench.parts.delay.start()
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=1))
    if how == "made again":
        bench.topics.remove("%RETRY%CG")
    bench.topics.put(TopicConfig("%RETRY%CG", 0, 0) if how == "no queues to read" else TopicConfig("%RETRY%CG", 1, 1))
    bench.turn(11)
    assert delivered(bench, "%RETRY%CG", 3) == [bodies, set(), set()]
    bench.parts.delay.stop()


def test_retries_of_a_topic_that_is_gone_go_to_the_queues_that_they_were_for(bench: Bench, client: Client) -> None:
    """As in Java: the start of the broker, and not a delivery, makes topics."""
    bodies = waiting_retries(bench, client)
    bench.parts.delay.start()
    bench.topics.remove("%RETRY%CG")
    bench.turn(11)
    found = delivered(bench, "%RETRY%CG", 3)
    assert set().union(*found) == bodies
    assert all(found)
    assert bench.topics.get("%RETRY%CG") is None
    bench.parts.delay.stop()


@pytest.mark.parametrize(
    ("read", "write", "queues"),
    [(8, 8, range(8)), (4, 4, [0, 1, 2, 3, 2, 2, 3, 3]), (8, 4, range(8)), (0, 8, range(8))],
)
def test_delayed_messages_go_to_queues_that_consumers_read(
    bench: Bench, client: Client, read: int, write: int, queues: Any
) -> None:
    """Java stores them in queues that nobody reads. A topic that is not read at all now keeps them where they were."""
    bench.topics.put(TopicConfig("T", 8, 8))
    for queue_id in range(8):
        client.send(queue_id=queue_id, body=b"%d" % queue_id, properties="DELAY\x011")
    bench.parts.delay.start()
    bench.topics.put(TopicConfig("T", read, write))
    bench.turn(2)
    found = delivered(bench, "T", 8)
    assert [next(n for n in range(8) if b"%d" % body in found[n]) for body in range(8)] == list(queues)
    bench.parts.delay.stop()


@pytest.mark.parametrize("queues", [1, 2, 3])
def test_a_retry_in_another_queue_is_found_after_a_kill_and_not_delivered_again(
    make_bench: Callable[..., Bench], queues: int
) -> None:
    bench = make_bench()
    bodies = waiting_retries(bench, bench.client())
    bench.parts.delay.start()
    bench.topics.put(TopicConfig("%RETRY%CG", 1, 1))
    bench.turn(11)
    assert delivered(bench, "%RETRY%CG", 1) == [bodies]
    bench.close()  # without its offsets, as after a kill
    bench = make_bench()
    bench.topics.put(TopicConfig("%RETRY%CG", queues, queues))
    bench.parts.delay.start()
    bench.turn(11)
    assert len(bench.records("%RETRY%CG", 0)) == len(bodies)
    assert delivered(bench, "%RETRY%CG", 3) == [bodies, set(), set()]
    bench.parts.delay.stop()
