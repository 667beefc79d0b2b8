"""Sends, over connections and by the bytes: what is stored, what is answered."""

import json
import struct
from datetime import datetime

import pytest
from hypothesis import assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from twisted.internet.address import IPv6Address

from mqbroker.errors import StoreBusy
from mqbroker.remoting.handlers import failure_response
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import VERSION, Perm, RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand
from mqbroker.wire.frame import ROCKETMQ, FrameDecoder
from mqbroker.wire.headers import CreateTopicRequestHeader
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.names import check_topic
from mqbroker.wire.record import decode_record
from tests.broker.bench import (
    BODY_MAX,
    CLIENT_HOST,
    HOST,
    START,
    FakeConnection,
    HeldWorker,
    send_command,
)

V1, V2, BATCH = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def one(answers):
    (answer,) = answers
    return answer


def put_topic(client, name, **fields):
    header = CreateTopicRequestHeader(
        **{"topic": name, "default_topic": "TBW102", "read_queue_nums": 4, "write_queue_nums": 4, "perm": 6,
           "topic_filter_type": "SINGLE_TAG", "order": False, **fields}
    )  # fmt: skip
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header).code == 0


# --- what is stored


@pytest.mark.parametrize("code", [V1, V2])
def test_a_message_is_stored_as_it_was_sent(bench, client, code):
    for i in range(2):  # the second goes the fast way
        answer = one(
            client.send(body=b"hello %d" % i, code=code, queue_id=3, flag=7, sys_flag=1, reconsume_times=2,
                        properties="UNIQ_KEY\x01U\x02WAIT\x01true\x02TAGS\x01A")
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS
        assert answer.remark is None
        record = bench.records("T", 3)[i]
        assert record.body == b"hello %d" % i
        assert (record.topic, record.queue_id, record.queue_offset) == ("T", 3, i)
        assert (record.flag, record.sys_flag, record.reconsume_times) == (7, 1, 2)
        assert (record.born_timestamp, record.store_timestamp) == (1_600_000_000_000, START * 1000)
        assert (record.born_host, record.store_host) == (("10.0.0.2", 40000), (HOST, 10911))
        assert record.properties == {"UNIQ_KEY": "U", "TAGS": "A", "CLUSTER": "DefaultCluster"}
        assert answer.ext_fields["queueId"] == "3"
        assert answer.ext_fields["queueOffset"] == str(i)
        host, offset = parse_offset_message_id(answer.ext_fields["msgId"])
        assert (host, offset) == ((HOST, 10911), record.physical_offset)
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        assert answer.ext_fields["TRACE_ON"] == "true"
        assert answer.version == VERSION


def test_many_sends_of_one_read_are_answered_in_order(bench, client):
    client.send()
    commands = [send_command(body=b"%d" % i, queue_id=i % 4) for i in range(40)]
    answers = client.ask_all(*commands)
    assert [answer.opaque for answer in answers] == [command.opaque for command in commands]
    assert {answer.code for answer in answers} == {0}
    for i in range(4):
        stored = [record.body for record in bench.records("T", i)][i == 0 :]
        assert stored == [b"%d" % n for n in range(i, 40, 4)]


def test_an_ipv6_producer(bench):
    client = bench.client(IPv6Address("TCP", "2001:db8::7", 5))
    for i in range(2):
        assert one(client.send()).code == 0
        assert bench.records("T")[i].born_host == ("2001:db8::7", 5)


def test_region_and_trace_are_the_settings(make_bench):
    bench = make_bench(region_id="100%sure", trace_on=False)
    client = bench.client()
    for _ in range(2):
        fields = one(client.send()).ext_fields
        assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("100%sure", "false")


# --- the fast way and the slow way


def both_ways(bench, command):
    """(answer, record or None) by way of the hot path and by way of the rules, with what must differ taken out."""
    found = []
    for slow in (False, True):
        bench.rules.plain_topics.clear()
        if not slow:
            # What any plain send before has left.
            bench.send.take_v2([raw(send_command("Known"))], FakeConnection())
        take = (lambda run, c: bench.send._take_slowly(V2, run, c)) if slow else bench.send.take_v2
        try:
            data = take([raw(command)], FakeConnection())
        except Exception as error:
            answer, record = failure_response(command, error), None
        else:
            (frame,) = FrameDecoder().feed(data)
            fields = json.loads(frame[1])
            answer = {"code": fields["code"], "remark": fields.get("remark"), "ext": fields.get("extFields", {})}
            record = None
            if answer["code"] == 0:
                _, offset = parse_offset_message_id(answer["ext"].pop("msgId"))
                answer["ext"].pop("queueOffset")
                stored = decode_record(bench.store.read_record(offset))
                record = {name: getattr(stored, name) for name in
                          ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times",
                           "body", "properties")}  # fmt: skip
        found.append((answer, record))
    return found


def raw(command):
    return (command.ext_fields, command.opaque, command.flag, command.body, command.serialize_type)


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory):
    from tests.broker.bench import Bench

    bench = Bench(tmp_path_factory.mktemp("send"), store={"mapped_file_size_commit_log": 64 * 1024 * 1024})
    yield bench
    bench.close()


_numbers = st.one_of(
    st.integers(-3, 12).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        ["", " 1", "1 ", "1_0", "+1", "-0", "007", "1.0", "0x1", "\u0661", "true", "2147483648", "-2147483648"]
    ),
)
_words = st.text(st.sampled_from("aXé\x01\x02=,|中"), max_size=4)
_pairs = st.lists(
    st.tuples(
        st.sampled_from(["WAIT", "XWAIT", "WAITX", "TAGS", "KEYS", "CLUSTER", "TRAN_MSG", "DELAY", "a", ""]),
        st.sampled_from(["true", "false", "False", "0", "1", "99", "", "é"]) | _words,
    ),
    max_size=5,
)
_properties = st.builds(
    lambda pairs, end: "\x02".join(f"{name}\x01{value}" for name, value in pairs) + end,
    _pairs,
    st.sampled_from(["", "\x02", "\x02\x02", "\x02x", "\x01"]),
) | st.sampled_from(["", "\x02", "\x01", "WAIT", "WAIT\x01"])  # fmt: skip


@hypothesis_settings(max_examples=400)
@given(
    usual=st.dictionaries(st.sampled_from("efghjl"), st.integers(0, 3).map(str), max_size=3),
    odd=st.dictionaries(st.sampled_from("efghj"), _numbers, max_size=1),
    properties=_properties | st.none(),
    missing=st.sets(st.sampled_from("efghijkln"), max_size=1),
    batch=st.sampled_from(["false", "true", "True", "", "x", None]),
    body=st.binary(max_size=20),
)
@example({}, {"e": "1_0"}, "", set(), None, b"")
@example({}, {"g": str(2**63)}, "", set(), None, b"")
@example({}, {"h": str(2**31)}, "", set(), None, b"")
@example({}, {}, "XWAIT\x01a\x02WAIT\x01false", set(), None, b"")
@example({}, {}, "WAIT\x01true\x02WAIT\x01false", set(), None, b"")
@example({}, {}, "a\x01b\x01c", set(), None, b"")
@example({}, {}, "a\x01b", {"i"}, None, b"")
def test_both_ways_store_and_answer_the_same(module_bench, usual, odd, properties, missing, batch, body):
    command = send_command("Known", body)
    command.ext_fields |= usual | odd
    command.ext_fields["m"] = batch
    command.ext_fields["i"] = properties
    command.ext_fields = {k: v for k, v in command.ext_fields.items() if k not in missing and v is not None}
    (fast, fast_record), (slow, slow_record) = both_ways(module_bench, command)
    if command.ext_fields.get("e", "").startswith("-") and isinstance(fast, dict) and fast["code"] == 0:
        # the queue is random
        assume(False)
    assert fast == slow
    assert fast_record == slow_record


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"e": "003"},  # as some producers pad it
        {"h": "2147483647"},
        {"f": "1"},
        {"j": "16"},
        {"i": "WAIT\x01true\x02TAGS\x01A\x02"},
    ],
)
def test_a_plain_send_does_not_go_by_the_rules(bench, client, monkeypatch, changed):
    client.send()

    def check(*_):
        raise AssertionError("a plain send took the long way")

    monkeypatch.setattr(bench.rules, "check", check)
    command = send_command()
    command.ext_fields.update(changed)
    assert one(client.ask_all(command)).code == 0


@given(_properties)
def test_both_ways_agree_on_waiting_for_the_disk(properties):
    from mqbroker.broker.processors.send import _without_wait
    from mqbroker.wire.properties import decode_properties

    try:
        _, wait = _without_wait(properties)
    except ValueError:
        return  # left to the slow way
    found = decode_properties(properties.encode())
    assert wait == (found.get("WAIT", "true").lower() != "false")


def test_one_bad_send_does_not_fail_its_neighbours(bench, client):
    client.send()
    good = [send_command(body=b"%d" % i) for i in range(4)]
    bad = send_command()
    bad.ext_fields["h"] = str(2**31)
    answers = client.ask_all(good[0], good[1], bad, good[2], good[3])
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_ERROR, 0, 0]
    assert "<h>" in answers[2].remark
    assert [record.body for record in bench.records("T")][1:] == [b"0", b"1", b"2", b"3"]


# --- topics


@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_what_is_sent_to_a_new_topic_is_answered_when_the_topic_is_on_the_disk(make_bench, tmp_path, code):
    """A message whose topic is forgotten by a broker that is killed is one that nobody finds."""
    worker = HeldWorker()
    bench = make_bench(table_worker=worker)
    first, second, third = bench.client(), bench.client(), bench.client()
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    assert first.send("New", code=code, body=body) == []
    assert second.send("New", code=code, body=body) == []
    assert third.send("", body=b"refused")[0].code != 0
    assert len(bench.records("New")) == 2
    worker.work()
    assert one(first.heard()).code == 0
    assert one(second.heard()).code == 0
    assert b'"New"' in (tmp_path / "store" / "config" / "topics.json").read_bytes()
    assert one(second.send("New", code=code, body=body)).code == 0


def test_where_topics_cannot_be_written_a_send_is_answered_all_the_same(make_bench):
    worker = HeldWorker()
    client = make_bench(table_worker=worker).client()
    assert client.send("New") == []
    worker.fail(OSError(28, "No space left on device"))
    assert one(client.heard()).code == 0
    assert one(client.send("New")).code == 0


def test_an_unknown_topic_is_made_from_the_template(bench, client):
    assert one(client.send("New", default_topic_queue_nums=5)).code == 0
    topic = bench.topics.get("New")
    assert (topic.read_queue_nums, topic.write_queue_nums) == (5, 5)
    assert topic.perm == Perm.READ | Perm.WRITE  # no INHERIT: it is no template itself
    assert one(client.send("Capped", default_topic_queue_nums=100)).code == 0
    assert bench.topics.get("Capped").write_queue_nums == 8


def test_without_automatic_creation_an_unknown_topic_is_refused(make_bench):
    bench = make_bench(auto_create_topic_enable=False)
    answer = one(bench.client().send("New"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("topic[New] not exist, apply first please!")
    assert bench.topics.get("New") is None


@pytest.mark.parametrize("template", ["", "NoSuchTopic", "SELF_TEST_TOPIC", "../x"])
def test_only_a_topic_that_may_be_inherited_is_a_template(bench, client, template):
    assert one(client.send("New", default_topic=template)).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("count", [-1, -(2**31), 0])
def test_no_topic_has_fewer_than_no_queues(bench, client, count):
    client.send("New", default_topic_queue_nums=count)
    topic = bench.topics.get("New")
    assert topic is None or topic.write_queue_nums >= 0


HOSTILE_NAMES = ["", " ", ".", "..", "../x", "a/b", "a\0b", "é", "中", "%RETRY%../x", "x" * 128, "a b", "a.b"]


@pytest.mark.parametrize("code", [V1, V2, BATCH])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_illegal_name_is_refused(bench, client, tmp_path, code, name):
    before = set(bench.topics.names())
    answer = one(client.send(name, code=code, body=encode_batch([BatchEntry(0, b"x", b"")])))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "The specified topic" in answer.remark or "is null" in answer.remark
    assert set(bench.topics.names()) == before
    for made in bench.topics.names():
        check_topic(made)


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT"])
def test_topics_of_the_system_take_no_sends(client, name):
    answer = one(client.send(name))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        f"Sending message to topic[{name}] is forbidden.",
    )


def test_permissions(bench, client, make_bench):
    put_topic(client, "ReadOnly", perm=Perm.READ)
    answer = one(client.send("ReadOnly"))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic[ReadOnly] sending message is forbidden",
    )


def test_a_broker_that_is_being_emptied_takes_all_but_what_must_stay_in_order(make_bench):
    bench = make_bench("read-only", broker_permission=Perm.READ)
    client = bench.client()
    assert one(client.send()).code == 0
    bench.topics.put(TopicConfig("Ordered", 4, 4, order=True))
    for _ in range(2):
        answer = one(client.send("Ordered"))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == f"the broker[{HOST}] sending message is forbidden"


def test_sends_are_taken_from_a_moment_on(make_bench):
    bench = make_bench("later", start_accept_send_request_timestamp_ms=START * 1000 + 1500)
    client = bench.client()
    until = datetime.fromtimestamp(START + 1).strftime("%Y-%m-%d %H:%M:%S") + ",500"
    for code in (V1, V2, BATCH):
        answer = one(client.send(code=code))
        expected = (ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        assert (answer.code, answer.remark) == expected
    assert bench.topics.get("T") is None
    bench.turn(1.5)
    assert one(client.send()).code == 0


def test_the_moment_may_be_one_that_no_calendar_has(make_bench):
    client = make_bench("never", start_accept_send_request_timestamp_ms=2**63 - 1).client()
    assert one(client.send()).remark == f"broker unable to service, until {2**63 - 1}"


@pytest.mark.parametrize(("name", "flag"), [("T", 1), ("%RETRY%CG", 2)])
def test_topics_of_a_unit_say_so(bench, client, name, flag):
    client.send(name, unit_mode=True)
    client.send("Plain")
    assert bench.topics.get(name).topic_sys_flag == flag
    assert bench.topics.get("Plain").topic_sys_flag == 0


def test_a_change_of_the_topic_counts_for_the_next_send(client):
    put_topic(client, "T")
    assert [one(client.send(queue_id=3)).code for _ in range(2)] == [0, 0]
    put_topic(client, "T", read_queue_nums=2, write_queue_nums=2)
    assert one(client.send(queue_id=3)).code == ResponseCode.SYSTEM_ERROR
    assert [one(client.send(queue_id=1)).code for _ in range(2)] == [0, 0]
    put_topic(client, "T", perm=Perm.READ)
    assert one(client.send(queue_id=1)).code == ResponseCode.NO_PERMISSION


def test_a_multi_tag_topic_marks_its_messages(bench, client):
    put_topic(client, "T", topic_filter_type="MULTI_TAG")
    for _ in range(2):
        client.send(sys_flag=1)
    assert [record.sys_flag for record in bench.records("T")] == [3, 3]


@pytest.mark.parametrize("queue_id", [4, 100, 2**31 - 1])
def test_a_queue_id_out_of_range_is_refused(bench, client, queue_id):
    client.send()
    answer = one(client.send(queue_id=queue_id))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        f"request queueId[{queue_id}] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, "
        "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: 10.0.0.2:40000"
    )


def test_queues_that_are_only_read_take_sends_too(client):
    """As in Java: a topic that is made smaller is first closed for its producers, who go on for a while."""
    put_topic(client, "T", read_queue_nums=4, write_queue_nums=2)
    assert [one(client.send(queue_id=3)).code for _ in range(2)] == [0, 0]


def test_a_negative_queue_id_is_any_queue(bench, client):
    put_topic(client, "T")
    answers = [one(client.send(queue_id=-1 - i)) for i in range(40)]
    assert {answer.code for answer in answers} == {0}
    assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1", "2", "3"}
    for queue_id in range(4):
        count = len(bench.records("T", queue_id))
        assert count == sum(answer.ext_fields["queueId"] == str(queue_id) for answer in answers)


# --- sizes


@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_a_body_over_the_limit_is_told_its_size_and_the_limit(bench, client, code):
    client.send()
    answer = one(client.send(body=bytes(BODY_MAX + 1), code=code))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"{BODY_MAX + 1}B" in answer.remark
    assert f"limit {BODY_MAX}B" in answer.remark
    assert len(bench.records("T")) == 1


@pytest.mark.parametrize("code", [V1, V2])
def test_a_body_at_the_limit_is_stored(bench, client, code):
    client.send()
    assert one(client.send(body=bytes(BODY_MAX), code=code)).code == 0
    assert len(bench.records("T")[1].body) == BODY_MAX
    assert one(client.send(body=b"", code=code)).code == 0


@pytest.mark.parametrize("code", [V1, V2])
def test_properties_that_fill_a_record_and_those_that_do_not_fit(bench, client, code):
    client.send()
    ours = len(b"\x02CLUSTER\x01DefaultCluster")
    longest = "KEYS\x01" + "k" * (32767 - ours - 5)
    assert one(client.send(code=code, properties=longest)).code == 0
    answer = one(client.send(code=code, properties=longest + "k"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == (
        "the message is illegal, maybe msg body or properties length not matched. msg properties length 32768B, "
        f"msg body length limit {BODY_MAX}B, msg properties length limit 32KB."
    )
    # Counted in bytes, not in characters.
    answer = one(client.send(code=code, properties="KEYS\x01" + "é" * 16400))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(bench.records("T")) == 2


# --- waiting for the disk


@pytest.fixture
def sync_bench(make_bench):
    bench = make_bench(worker=HeldWorker(), store={"flush_disk_type": "SYNC_FLUSH"})
    bench.worker.work()
    return bench


WAITING = "UNIQ_KEY\x01U\x02WAIT\x01true"
NOT_WAITING = "UNIQ_KEY\x01U\x02WAIT\x01false"


@pytest.mark.parametrize("known", [False, True], ids=["slow way", "fast way"])
@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_under_sync_flush_a_send_is_answered_when_it_is_on_the_disk(sync_bench, code, known):
    client = sync_bench.client()
    if known:
        client.send(properties=NOT_WAITING)
        sync_bench.turn(1)
        sync_bench.worker.work()
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    assert client.send(code=code, body=body, properties=WAITING) == []
    assert [record.body for record in sync_bench.records("T")][-1] == b"x"
    sync_bench.worker.work()
    assert one(client.heard()).code == 0
    assert sync_bench.store.flushed == sync_bench.store.log_end


@pytest.mark.parametrize("code", [V1, V2])
@pytest.mark.parametrize("text", ["false", "FALSE", "False"])
def test_a_message_that_does_not_want_to_wait_does_not(sync_bench, code, text):
    client = sync_bench.client()
    for _ in range(2):
        properties = f"UNIQ_KEY\x01U\x02WAIT\x01{text}"
        assert one(client.send(code=code, properties=properties)).code == 0
    assert all("WAIT" not in record.properties for record in sync_bench.records("T"))


def test_what_is_waited_for_is_the_end_of_all_that_was_sent(sync_bench, monkeypatch):
    ends, durable = [], sync_bench.store.durable
    monkeypatch.setattr(sync_bench.store, "durable", lambda end: ends.append(end) or durable(end))
    sync_bench.client().tell(*[send_command(properties=WAITING) for _ in range(3)])
    assert ends == [sync_bench.store.log_end]


def test_without_the_property_it_waits(sync_bench):
    client = sync_bench.client()
    assert client.send(properties="UNIQ_KEY\x01U") == []
    sync_bench.worker.work()
    assert one(client.heard()).code == 0


def test_under_async_flush_nobody_waits(make_bench):
    bench = make_bench(worker=HeldWorker())
    client = bench.client()
    for _ in range(2):
        assert one(client.send(properties=WAITING)).code == 0
    assert bench.store.flushed < bench.store.log_end


def test_who_does_not_wait_is_answered_before_a_neighbour_who_does(sync_bench):
    client = sync_bench.client()
    client.tell(
        send_command(properties=WAITING),
        send_command(properties=NOT_WAITING, queue_id=1),
        send_command(queue_id=99),
        send_command(properties=WAITING, queue_id=2),
    )
    now = client.heard()
    assert [(answer.opaque, answer.code) for answer in now] == [(2, 0), (3, ResponseCode.SYSTEM_ERROR)]
    assert now[0].ext_fields["queueId"] == "1"
    sync_bench.worker.work()
    later = client.heard()
    assert [(answer.opaque, answer.code, answer.ext_fields["queueId"]) for answer in later] == [
        (1, 0, "0"),
        (4, 0, "2"),
    ]


def test_a_disk_that_takes_too_long_is_answered_as_such(sync_bench):
    client = sync_bench.client()
    client.tell(send_command(properties=WAITING))
    sync_bench.turn(4.9)
    assert client.heard() == []
    sync_bench.turn(0.5)
    answer = one(client.heard())
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT == 10
    assert answer.ext_fields["queueOffset"] == "0"
    sync_bench.worker.work()
    assert client.heard() == []


def test_a_failed_sync_refuses_all_who_wait_and_all_who_come(sync_bench):
    client, other = sync_bench.client(), sync_bench.client()
    client.tell(send_command(properties=WAITING), send_command(properties=WAITING))
    other.tell(send_command(properties=WAITING))
    sync_bench.worker.fail(OSError(5, "Input/output error"))
    answers = client.heard() + other.heard()
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
    assert "Input/output error" in answers[0].remark
    assert not sync_bench.store.writable
    for properties in (WAITING, NOT_WAITING):
        late = one(client.send(properties=properties))
        assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert one(client.send(code=V1)).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_full_transient_pool_asks_for_patience(bench, client, monkeypatch):
    client.send()

    def full(messages):
        raise StoreBusy("all buffers of the transient store pool wait to be written")

    monkeypatch.setattr(bench.store, "append", full)
    answer = one(client.send())
    assert answer.code == ResponseCode.SYSTEM_BUSY == 2
    assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"


def test_a_refused_neighbour_is_not_given_an_answer_twice(sync_bench):
    client = sync_bench.client()
    client.tell(send_command(properties=WAITING), send_command(queue_id=99), send_command(properties=WAITING))
    refused = client.heard()
    sync_bench.worker.work()
    answers = refused + client.heard()
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, 0, 0]
    assert [answer.opaque for answer in answers] == [2, 1, 3]


# --- retries and delays


def test_a_retry_topic_is_made_with_its_first_message(bench, client):
    assert one(client.send("%RETRY%CG", queue_id=0, reconsume_times=1)).code == 0
    assert bench.topics.get("%RETRY%CG").write_queue_nums >= 1
    assert bench.groups.find("CG") is not None


@pytest.mark.parametrize("times_max", [None, 3])
def test_a_message_retried_often_enough_is_a_dead_letter(bench, client, times_max):
    limit = 16 if times_max is None else times_max
    kept = one(client.send("%RETRY%CG", reconsume_times=limit - 1, max_reconsume_times=times_max))
    dead = one(
        client.send("%RETRY%CG", reconsume_times=limit, max_reconsume_times=times_max, body=b"dead",
                    properties="DELAY\x013\x02TAGS\x01A")
    )  # fmt: skip
    assert (kept.code, dead.code) == (0, 0)
    assert len(bench.records("%RETRY%CG")) == 1
    (record,) = bench.records("%DLQ%CG")
    assert record.body == b"dead"
    assert "DELAY" not in record.properties
    assert bench.topics.get("%DLQ%CG").write_queue_nums == 1


def test_a_plain_retry_is_counted_too(bench, client):
    for times in (15, 16):
        client.send("%RETRY%CG", reconsume_times=times)
    assert len(bench.records("%RETRY%CG")) == len(bench.records("%DLQ%CG")) == 1


def test_a_retry_for_an_unknown_group_is_refused(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    answer = one(bench.client().send("%RETRY%CG"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(("level", "queue"), [("1", 0), ("3", 2), ("18", 17), ("19", 17), ("999999999", 17)])
def test_a_delayed_message_waits_in_the_queue_of_its_level(bench, client, level, queue):
    client.send()
    answer = one(client.send(queue_id=2, properties=f"TAGS\x01A\x02DELAY\x01{level}"))
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
    (record,) = bench.records("SCHEDULE_TOPIC_XXXX", queue)
    assert record.properties["REAL_TOPIC"] == "T"
    assert record.properties["REAL_QID"] == "2"
    assert record.properties["DELAY"] == str(queue + 1)
    assert bench.records("T", 2) == []


def test_level_zero_is_no_delay(bench, client):
    assert one(client.send(properties="DELAY\x010")).code == 0
    assert len(bench.records("T")) == 1


@pytest.mark.parametrize("level", ["-1", "NaN", "1e3", "1.5", "", " 1", "9" * 5000, "x"])
def test_a_delay_that_is_no_level(bench, client, level):
    answer = one(client.send(properties=f"DELAY\x01{level}"))
    if level == "":  # a property without a value is none
        assert answer.code == 0
        return
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(answer.remark) < 200
    assert bench.records("T") == []


def test_what_a_producer_says_of_the_real_topic_does_not_count(bench, client):
    client.send(properties="DELAY\x011\x02REAL_TOPIC\x01../../x\x02REAL_QID\x01-7")
    (record,) = bench.records("SCHEDULE_TOPIC_XXXX", 0)
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize("how", [{"sys_flag": 4}, {"sys_flag": 12}, {"sys_flag": 5}])
@pytest.mark.parametrize("code", [V1, V2])
def test_flags_of_a_transaction_without_its_property_are_refused(bench, client, how, code):
    """The Java broker stores such a message where nobody finds it."""
    client.send()
    answer = one(client.send(code=code, **how))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"the broker[{HOST}] sending transaction message is forbidden"
    assert len(bench.records("T")) == 1


def test_half_messages_are_refused_where_the_broker_is_to_refuse_them(make_bench):
    bench = make_bench(reject_transaction_message=True)
    answer = one(bench.client().send(properties="TRAN_MSG\x01true", sys_flag=4))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"the broker[{HOST}] sending transaction message is forbidden"
    assert bench.records("RMQ_SYS_TRANS_HALF_TOPIC") == []


# --- batches


def test_a_batch_is_stored_as_its_messages(bench, client):
    entries = [BatchEntry(i, b"%d" % i, b"TAGS\x01t%d\x02WAIT\x01true" % i) for i in range(3)]
    properties = "UNIQ_KEY\x01U\x02WAIT\x01true"  # those of the batch itself are each message's too
    answer = one(client.send(body=encode_batch(entries), code=BATCH, queue_id=1, batch=True, properties=properties))
    assert answer.code == 0
    records = bench.records("T", 1)
    assert [record.body for record in records] == [b"0", b"1", b"2"]
    assert [record.flag for record in records] == [0, 1, 2]
    assert [record.properties for record in records] == [
        {"TAGS": f"t{i}", "UNIQ_KEY": "U", "CLUSTER": "DefaultCluster"} for i in range(3)
    ]
    ids = answer.ext_fields["msgId"].split(",")
    assert [parse_offset_message_id(one_id)[1] for one_id in ids] == [record.physical_offset for record in records]
    assert answer.ext_fields["queueOffset"] == "0"


def test_the_long_header_says_batch_too(bench, client):
    body = encode_batch([BatchEntry(0, b"x", b""), BatchEntry(0, b"y", b"")])
    for code in (V1, V2):
        assert one(client.send(body=body, code=code, batch=True)).code == 0
    assert [record.body for record in bench.records("T")] == [b"x", b"y"] * 2


def lying(**changes):
    parts = {"size": 20 + 4 + 2 + 3, "body_length": 4, "properties_length": 3, **changes}
    return (
        struct.pack(">iiiii", parts["size"], 0, 0, 0, parts["body_length"])
        + b"body"
        + struct.pack(">h", parts["properties_length"])
        + b"a\x01b"
    )


LYING = {
    "nothing": b"",
    "cut": lying()[:-1],
    "cut in the head": lying()[:10],
    "more after": lying() + b"x",
    "size 0": lying(size=0),
    "size negative": lying(size=-1),
    "size too small": lying(size=28),
    "size huge": lying(size=2**31 - 1),
    "body negative": lying(body_length=-1),
    "body huge": lying(body_length=2**31 - 1),
    "body into the properties": lying(body_length=6),
    "properties negative": lying(properties_length=-1),
    "properties huge": lying(properties_length=32767),
    "good, then bad": lying() + lying(size=1),
}


@pytest.mark.parametrize("name", LYING)
def test_a_batch_whose_sizes_lie_stores_nothing(bench, client, name):
    answer = one(client.send(body=LYING[name], code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.records("T") == []


def test_a_good_batch_for_comparison(bench, client):
    assert one(client.send(body=lying(), code=BATCH)).code == 0
    assert bench.records("T")[0].properties["a"] == "b"


@pytest.mark.parametrize(
    ("topic", "properties", "shared"),
    [("%RETRY%CG", b"", ""), ("T", b"DELAY\x013", ""), ("T", b"", "DELAY\x013")],
    ids=["retry topic", "one delayed", "all delayed"],
)
def test_what_a_batch_may_not_be(bench, client, topic, properties, shared):
    body = encode_batch([BatchEntry(0, b"good", b""), BatchEntry(0, b"x", properties)])
    answer = one(client.send(topic, body=body, code=BATCH, properties=shared))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.records(topic) == []


def test_properties_in_a_batch_have_the_same_limit(bench, client):
    entry = BatchEntry(0, b"x", b"KEYS\x01" + b"k" * 32_750)
    answer = one(client.send(body=encode_batch([entry]), code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.records("T") == []


@given(st.binary(max_size=200))
def test_any_batch_body_is_answered(module_bench, body):
    data = module_bench.send.take_batch([raw(send_command("Known", body, BATCH))], FakeConnection())
    assert len(FrameDecoder().feed(data)) == 1


# --- requests that are not as they must be


@pytest.mark.parametrize(("known", "field"), [(False, f) for f in "abcdefgh"] + [(True, f) for f in "befgh"])
def test_a_missing_field_is_named(bench, client, field, known):
    if known:
        client.send()
    command = send_command()
    del command.ext_fields[field]
    answer = one(client.ask_all(command))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{field}> is null")


@pytest.mark.parametrize(("known", "field"), [(False, f) for f in "defghjl"] + [(True, f) for f in "efghj"])
@pytest.mark.parametrize("value", ["x", "", "1.5", "99999999999999999999"])
def test_a_badly_typed_field_is_named(bench, client, field, value, known):
    if known:
        client.send()
    command = send_command()
    command.ext_fields[field] = value
    answer = one(client.ask_all(command))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"<{field}>" in answer.remark


@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_oneway_is_stored_and_not_answered(bench, client, code):
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    for _ in range(2):
        command = send_command(body=body, code=code)
        command.flag = ONEWAY_FLAG
        assert client.ask_all(command) == []
    bad = send_command("../x", code=code)
    bad.flag = ONEWAY_FLAG
    assert client.ask_all(bad) == []
    assert [record.body for record in bench.records("T")] == [b"x", b"x"]


def test_oneway_among_others(bench, client):
    commands = [send_command(body=b"%d" % i) for i in range(5)]
    commands[1].flag = commands[3].flag = ONEWAY_FLAG
    answers = client.ask_all(*commands)
    assert [answer.opaque for answer in answers] == [1, 3, 5]
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "2", "4"]


@pytest.mark.parametrize("code", [V1, V2])
def test_the_binary_header_is_as_good(bench, client, code):
    for _ in range(2):
        command = send_command(code=code, body=b"x")
        command.serialize_type = ROCKETMQ
        assert one(client.ask_all(command)).code == 0
    assert len(bench.records("T")) == 2


def test_an_empty_request_is_answered(client):
    for code in (V1, V2, BATCH):
        answer = one(client.ask_all(RemotingCommand(code)))
        assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_record_too_large_for_a_segment_is_refused_alone(make_bench, logged):
    """A limit of messages beyond the segment size is a strange setting, and yet no reason to fail others."""
    bench = make_bench(store={"mapped_file_size_commit_log": 16 * 1024, "max_message_size": 32 * 1024})
    client = bench.client()
    answers = client.ask_all(send_command(body=b"a"), send_command(body=bytes(20_000)), send_command(body=b"b"))
    assert [answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert [record.body for record in bench.records("T")] == [b"a", b"b"]
    assert logged.failures == []


def test_born_host_is_where_the_send_came_from(bench):
    connection = FakeConnection(host=CLIENT_HOST)
    bench.send.take_v2([raw(send_command())], connection)
    assert bench.records("T")[0].born_host == ("10.0.0.2", 40000)
