"""The pure rules: process queue, subscriptions, messages, options, ids, peer answers."""

import asyncio
import pickle
import random
from datetime import timedelta
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    BadMessage,
    ClientTls,
    Message,
    MessageQueue,
    NameServerUnreachable,
    SendFailed,
    TopicNotFound,
    aio,
    blocking,
)
from mqbroker.client.batches import parts_of
from mqbroker.client.errors import DELAY_LEVELS
from mqbroker.client.identity import Identity, local_ip, make_client_id
from mqbroker.client.messages import PullStatus, ReceivedMessage, SendStatus, nearest_delay_level
from mqbroker.client.options import ProducerOptions, parse_name_servers
from mqbroker.client.process_queue import ProcessQueue
from mqbroker.client.send import Rotation, prepare, queue_for_key, send_request
from mqbroker.client.subscription import matches, subscribe_to
from mqbroker.client.tls import connection_lost
from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut, Unreachable
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.compression import decompress_body
from mqbroker.wire.properties import decode_properties, encode_properties
from mqbroker.wire.record import RECORD_BYTES_MIN
from tests.client.loopback import Loopback
from tests.client.records import a_record


def queues(count: Any, broker: Any = "a", topic: Any = "T") -> Any:
    return [MessageQueue(topic, broker, n) for n in range(count)]


def received(offset: Any, body: Any = b"x") -> Any:
    record = a_record(queue_offset=offset, physical_offset=offset * 100, store_size=100, body=body)
    return ReceivedMessage.of_record(record, "a")


def test_the_committable_offset_is_the_lowest_not_consumed() -> None:
    held = ProcessQueue(queues(1)[0], 10, messages_max=3, bytes_max=100, span_max=2000)
    assert held.committable == 10
    batch = held.add([received(n) for n in (10, 11, 13)], 14)
    assert (held.committable, held.is_full, held.span) == (10, True, (10, 13))
    batch.done(1, 1.0)
    batch.done(1, 1.0)
    assert (held.committable, held.is_full, len(held)) == (10, False, 2)
    batch.done(0, 1.0)
    assert held.committable == 13
    batch.done(2, 1.0)
    assert (held.committable, len(held)) == (14, 0)


def test_a_process_queue_is_full_by_bytes_and_counts_a_repeated_offset_once() -> None:
    held = ProcessQueue(queues(1)[0], 0, messages_max=100, bytes_max=10, span_max=2000)
    first = held.add([received(0, b"12345")], 1)
    again = held.add([received(0, b"12345")], 1)
    assert (held.is_full, first.messages) == (False, [None])
    held.add([received(1, b"12345")], 2)
    assert held.is_full
    first.done(0, 1.0)
    assert held.is_full
    again.done(0, 1.0)
    assert (held.is_full, held.committable) == (False, 1)


def test_bytes_that_were_consumed_behind_a_stuck_message_make_no_queue_full() -> None:
    held = ProcessQueue(queues(1)[0], 0, messages_max=100, bytes_max=20, span_max=2000)
    stuck = held.add([received(0, b"12345")], 1)
    for n in range(1, 30):
        held.add([received(n, b"12345")], n + 1).done(0, 1.0)
    assert (held.is_full, held.bytes, held.committable) == (False, 5, 0)
    stuck.done(0, 1.0)
    assert (held.bytes, held.committable) == (0, 30)


def test_a_process_queue_is_full_where_one_message_holds_back_too_many() -> None:
    held = ProcessQueue(queues(1)[0], 0, messages_max=100, bytes_max=100, span_max=10)
    batch = held.add([received(n) for n in range(11)], 11)
    for index in range(1, 10):
        batch.done(index, 1.0)
    assert not held.is_full
    held.add([received(11)], 12)
    assert (held.is_full, held.is_stretched, held.committable) == (True, True, 0)
    batch.done(0, 1.0)
    assert not held.is_full
    batch.done(10, 1.0)
    assert held.committable == 11


def test_after_a_step_back_the_lower_offset_is_committed() -> None:
    held = ProcessQueue(queues(1)[0], 100, messages_max=9, bytes_max=99, span_max=2000)
    held.add([received(100)], 101)
    held.add([], 5)
    assert held.committable == 5


def test_subscriptions() -> None:
    both = subscribe_to("T", " a || b||", 5)
    assert (both.tags_set, both.code_set, both.sub_version) == ({"a", "b"}, {97, 98}, 5)
    assert matches(both, "a")
    assert not matches(both, "c")
    assert not matches(both, None)
    for all_of_it in ("*", "", "  "):
        assert subscribe_to("T", all_of_it, 1).sub_string == "*"
        assert matches(subscribe_to("T", all_of_it, 1), None)
    with pytest.raises(BadArgument, match="it names no tag"):
        subscribe_to("T", "||", 1)


def test_messages_are_checked_where_they_are_made() -> None:
    assert Message("T", "ü").body == "ü".encode()
    assert Message("T", b"x", keys="a b").keys == ("a", "b")
    assert Message("T", bytearray(b"ab")).body == Message("T", memoryview(b"ab")).body == b"ab"
    assert Message("T", b"x", keys=(key for key in "ab")).keys == ("a", "b")
    assert Message("T", b"x", delay_level=18, flag=-(2**31), tags="ü", unique_key="u").delay_level == 18
    with pytest.raises(BadMessage, match=r"^topic must be text"):
        Message("../T", b"x")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("body", value) for value in (5, None, [1, 2], 1.5, True, "\ud800", ...)),
        *(("tags", value) for value in (["a"], b"a", 1, "a\x01b", "a\x02", "\udfff")),
        *(("keys", value) for value in (5, None, b"ab", ["a b"], [""], ["a", None], ["a\x01"], ["\ud800"])),
        *(("properties", value) for value in ({"UNIQ_KEY": "x"}, {"a": "\x01"}, {"a\x02": "b"}, {"": "b"}, {"a": ""})),
        *(
            ("properties", value)
            for value in ({1: "b"}, {"a": 1}, {"a": None}, {"a": "\ud800"}, [("a", "b")], "ab", 0, None)
        ),
        *(("delay_level", value) for value in (99, 19, -5, -1, "3", 1.0, True, None)),
        *(("wait_stored", value) for value in (0, 1, "no", None)),
        *(("flag", value) for value in (2**31, -(2**31) - 1, "1", 0.0, None)),
        *(("unique_key", value) for value in (7, b"x", "a\x01")),
    ],
    ids=repr,
)
def test_what_cannot_be_sent_is_refused_by_field_and_topic(field: Any, wrong: Any) -> None:
    fields = {"body": b"x"} | {field: wrong}
    with pytest.raises(BadMessage, match=rf"^message to topic orders: {field}.* must be ") as caught:
        Message("orders", **fields)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("topic", [None, 5, b"T"])
def test_a_topic_that_is_no_text_is_refused(topic: Any) -> None:
    with pytest.raises(BadMessage, match="topic must be text"):
        Message(topic, b"x")


def test_properties_that_no_record_has_room_for_are_refused() -> None:
    prepare(Message("T", b"x", properties={"a": "x" * 32_000}), ProducerOptions(), lambda: "U", 1)
    large = Message("T", b"x", properties={"a": "x" * 32_767})
    for make in (prepare, lambda message, options, ids, now: parts_of([message], options)):
        with pytest.raises(BadMessage, match=r"topic T: properties.* the limit is 32767"):
            make(large, ProducerOptions(), lambda: "U", 1)


def test_a_retried_message_keeps_its_topic_and_id() -> None:
    record = a_record(
        topic="%RETRY%g",
        queue_offset=1,
        physical_offset=2,
        store_host=("1.2.3.4", 6),
        reconsume_times=2,
        properties={"RETRY_TOPIC": "T", "UNIQ_KEY": "U", "KEYS": "a b", "TAGS": "t"},
    )
    message = ReceivedMessage.of_record(record, "a")
    assert (message.topic, message.queue.topic, message.msg_id) == ("T", "%RETRY%g", "U")
    assert (message.keys, message.tags, message.reconsume_times) == (("a", "b"), "t", 2)
    assert message.offset_msg_id == "01020304000000060000000000000002"


def test_large_bodies_are_compressed_and_keep_their_id() -> None:
    options = ProducerOptions(compress_over_bytes=10)
    large = b"0" * 20  # which compression makes smaller
    outgoing = prepare(Message("T", large, tags="t", keys=["k"], delay_level=3), options, lambda: "U", 77)
    assert outgoing.sys_flag == 1
    assert decompress_body(outgoing.body, 1) == large
    assert decode_properties(outgoing.properties.encode()) == {
        "KEYS": "k",
        "UNIQ_KEY": "U",
        "WAIT": "true",
        "DELAY": "3",
        "TAGS": "t",
    }
    assert prepare(Message("T", b"0" * 9), options, lambda: "U", 77).sys_flag == 0
    assert prepare(Message("T", b"x", unique_key="mine"), options, lambda: "U", 77).msg_id == "mine"


def test_sizes_are_checked_and_named() -> None:
    options = ProducerOptions(message_bytes_max=100)
    with pytest.raises(BadMessage, match=r"101 bytes, the limit is 100"):
        prepare(Message("T", b"x" * 101), options, lambda: "U", 1)
    with pytest.raises(BadMessage, match="empty"):
        prepare(Message("T", b""), options, lambda: "U", 1)


def test_batches() -> None:
    ids = iter("UVW")
    batch = [Message("T", b"1", flag=5), Message("T", b"2", tags="t")]
    (part,) = parts_of(batch, ProducerOptions())
    outgoing = part.outgoing(lambda: next(ids), 1)
    entries = decode_batch(outgoing.body)
    assert [(e.flag, e.body) for e in entries] == [(5, b"1"), (0, b"2")]
    assert decode_properties(entries[1].properties) == {"UNIQ_KEY": "V", "WAIT": "true", "TAGS": "t"}
    assert outgoing.msg_id == "U,V"
    request = send_request(outgoing, MessageQueue("T", "a", 3), "g", ProducerOptions())
    assert (request.code, request.ext_fields["m"], request.ext_fields["e"]) == (320, "true", "3")
    for wrong in (
        [Message("T", b"1"), Message("T", b"1", delay_level=1)],
        [Message("T", b"1"), Message("T", b"")],
        [Message("T", b"1"), Message("%RETRY%g", b"1")],
        [Message("T", b"1"), Message("T", b"x" * (4 * 1024 * 1024 + 1))],
    ):
        with pytest.raises(BadMessage, match=r"message 1 of the batch: .*; no message was sent"):
            parts_of(wrong, ProducerOptions())


def test_batches_split_themselves() -> None:
    options = ProducerOptions(message_bytes_max=1000)
    kinds = [("T", True), ("U", True), ("T", False)]
    messages = [
        Message(*(kinds[n % 3][0], bytes(n % 400 + 1)), wait_stored=kinds[n % 3][1], flag=n) for n in range(500)
    ]
    parts = parts_of(messages, options)
    assert sorted(index for part in parts for index in part.indexes) == list(range(500))
    for part in parts:
        assert part.size <= 1000
        sent = part.outgoing(lambda: "U" * 32, 1)
        stored = RECORD_BYTES_MIN + len("T") + len(encode_properties({"CLUSTER": "DefaultCluster", "WAIT": "true"}))
        assert len(sent.body) + (stored - 22) * len(part.messages) <= 1000
        assert part.indexes == sorted(part.indexes)
        assert len({(message.topic, message.wait_stored) for message in part.messages}) == 1
        assert [entry.flag for entry in decode_batch(part.outgoing(lambda: "U" * 32, 1).body)] == part.indexes
        assert part.ids == ["U" * 32] * len(part.messages)
    # A message alone may be as long as the limit allows.
    assert len(parts_of([Message("T", bytes(1000)), Message("T", b"1")], options)) == 2
    assert parts_of([], options) == []


def test_a_delay_is_a_level_or_a_time_that_a_level_has() -> None:
    assert [Message("T", b"x", delay_level=level).delay_level for level in DELAY_LEVELS] == list(range(1, 19))
    for wrong in (timedelta(seconds=7), timedelta(0), timedelta(days=1), timedelta(seconds=-1)):
        with pytest.raises(BadMessage, match=r"delay_level must be a number .* nearest_delay_level\(\) finds one, not"):
            Message("T", b"x", delay_level=wrong)
    near = {0: 1, 0.9: 1, 3: 2, 7: 2, 8: 3, 20: 4, 300: 9, 3000: 17, 86400: 18, -5: 1}
    assert {seconds: nearest_delay_level(timedelta(seconds=seconds)) for seconds in near} == near


def test_light_queues_are_named_as_brokers_read_them() -> None:
    message = Message("T", b"x", tags="t", properties={"p": "1"}).to_light_queues("%LMQ%a", "%LMQ%b-c")
    assert message.properties == {"p": "1", "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b-c"}
    assert (message.tags, message.body) == ("t", b"x")
    more = message.with_properties({"q": "2"})
    assert more.properties == {**message.properties, "q": "2"}
    for wrong in ("a", "%LMQ%a,b", "%LMQ%", 5, None):
        with pytest.raises(BadMessage, match=r"each light queue must be text that begins with %LMQ%"):
            Message("T", b"x").to_light_queues(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadMessage):
        message.with_properties({"TAGS": "no"})
    with pytest.raises(BadMessage):
        Message("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})


def test_a_unit_ends_the_id_of_a_client() -> None:
    identity = Identity(["127.0.0.1:9876"], random.Random(1), lambda: 0.0, "unit1")
    identity.take()
    assert identity.client_id.endswith("@unit1")
    for wrong in ("a b", "a@b", "1\x01", 5, None, "x" * 65):
        with pytest.raises(BadArgument, match="unit_name must be text"):
            ProducerOptions(unit_name=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 5, "text", [-1], ["1"]])
def test_codes_to_retry_are_checked(wrong: Any) -> None:
    with pytest.raises(BadArgument, match=r"ProducerOptions\.retry_codes must be several response codes"):
        ProducerOptions(retry_codes=wrong)


def test_rotation_takes_turns_and_avoids_brokers() -> None:
    rotation = Rotation(random.Random(1))
    both = queues(2, "a") + queues(2, "b")
    turns = [rotation.next("T", both) for _ in range(8)]
    assert sorted(turns[:4]) == both
    assert turns[4:] == turns[:4]
    assert {rotation.next("T", both, {"a"}).broker_name for _ in range(5)} == {"b"}
    assert {rotation.next("T", both, {"a", "b"}).broker_name for _ in range(4)} == {"a", "b"}


def test_a_key_chooses_the_queue_that_java_chooses() -> None:
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE.
    assert queue_for_key(queues(7), "polygenelubricants").queue_id == (2**31) % 7
    assert queue_for_key(queues(4), "abc").queue_id == 96354 % 4


def test_name_servers_are_read_from_text_and_lists() -> None:
    assert parse_name_servers(" a:1 ;b:2;a:1;") == ("a:1", "b:2")
    assert parse_name_servers(["[::1]:9876"]) == ("[::1]:9876",)
    for wrong in ("", ";", "localhost", "a:b", "a:0", ":1", "a:70000"):
        with pytest.raises(MQError):
            parse_name_servers(wrong)


def test_client_ids_differ() -> None:
    rng = random.Random(1)
    ids = {make_client_id("10.0.0.1", 7, rng) for _ in range(100)}
    assert len(ids) == 100
    assert all(client_id.startswith("10.0.0.1@7#") for client_id in ids)
    assert local_ip(("127.0.0.1:9876",)) == "127.0.0.1"


def test_errors_say_what_to_do_and_can_be_pickled() -> None:
    errors = [
        TopicNotFound("T", ("n:1",), "why"),
        NameServerUnreachable((("n:1", "refused"),)),
        SendFailed("T", (("a", "x:1", Unreachable("gone")),)),
        BadMessage("too large"),
    ]
    for error in errors:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "mqadmin of a Java RocketMQ, which is not part of this package" in str(errors[0])
    assert "n:1: refused" in str(errors[1])
    assert "a at x:1: Unreachable: gone" in str(errors[2])


def test_a_status_is_printed_by_name() -> None:
    assert [f"{SendStatus.SEND_OK}", str(PullStatus.FOUND), str(SendStatus(0))] == ["SEND_OK", "FOUND", "SEND_OK"]


@pytest.mark.parametrize(
    "expression",
    [
        "price > 10", "price>10", "price>=-1.5", "a <> 5", "region = 'north'", "region='north'", "a = b", "a IS NULL",
        "a is not null", "a BETWEEN 1 AND 2", "a IN ('x', 'y')", "a in('x')", "NOT a = 5", "TAGS = 'x' OR a > 3",
        "(a > 1) AND (b < 2)", "a = 1 || b = 2",
    ],
)  # fmt: skip
def test_an_sql_expression_is_no_tag(expression: Any) -> None:
    with pytest.raises(BadArgument, match=r"or Sql\(.* if it is an SQL92 expression"):
        subscribe_to("T", expression, 1)


@pytest.mark.parametrize(
    "tag", ["k=5", "k=v", "a->b", "a>b", "order_paid", "in", "AND", "not", "is", "a b", "R&D", "1"]
)
def test_what_only_resembles_one_is_a_tag(tag: Any) -> None:
    assert subscribe_to("T", f"{tag} || x", 1).tags_set == {tag, "x"}


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Unreachable("connect to x:1 failed"), "check that x:1 is reachable from here"),
        (ConnectionClosed("lost"), "see the log of that broker"),
        (RequestTimedOut("no answer"), "overloaded"),
        (Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now"), "whether its disk is full"),
        (Refused(ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy"), "send less at a time"),
        (Refused(ResponseCode.NO_PERMISSION, "no"), "does not allow writes"),
        (Refused(ResponseCode.SYSTEM_ERROR, "AclException: no"), "plain_acl.yml"),
        (Refused(ResponseCode.SYSTEM_ERROR, "boo"), "its remark"),
    ],
)
def test_a_failed_send_gives_the_advice_that_fits_its_last_attempt(error: Any, says: Any) -> None:
    text = str(SendFailed("T", (("a", "x:1", Unreachable("gone")), ("a", "x:1", error))))
    assert says in text
    assert ("reachable from here" in text) == ("reachable from here" in says)


def test_the_same_attempt_again_and_again_is_told_once() -> None:
    text = str(SendFailed("T", [("a", "x:1", Unreachable("gone"))] * 9))
    assert text.count("gone") == 1
    assert "failed 9 times" in text
    assert "gone (9 times)" in text


@pytest.mark.parametrize(
    ("tls", "has_answered", "request_bytes", "says"),
    [
        (None, False, 100, "lost; it may take only encrypted ones (ClientTls, --tls of mq)"),
        (None, False, 2_000_000, "lost; it may take no frames of 2000000 bytes, or only encrypted ones"),
        (None, True, 2_000_000, "lost"),
        (None, True, 17_000_000, "lost; a request of 17000000 bytes was on it"),
        (None, False, 17_000_000, "above 16777216 (com.rocketmq.remoting.frameMaxLength"),
        (ClientTls(), False, 100, "lost; it may want a certificate of the client"),
        (ClientTls(cert_file="c"), False, 100, "lost"),
    ],
)
def test_a_lost_connection_is_explained_by_what_was_on_it(
    tls: Any, has_answered: Any, request_bytes: Any, says: Any
) -> None:
    text = str(connection_lost("lost", tls, has_answered=has_answered, request_bytes=request_bytes))
    assert says in text
    assert ("encrypted" in text) == ("encrypted" in says)
    assert (text == "lost") == (says == "lost")


@pytest.mark.parametrize("face", ["blocking", "aio"])
def test_a_frame_that_is_too_large_is_named_as_the_reason(server: Loopback, face: Any) -> None:
    server.add_topic("T", queues=1)
    options = ProducerOptions(message_bytes_max=20_000_000, compress_over_bytes=2**40)
    large = Message("T", bytes(17_000_000))

    def send_blocking() -> None:
        with blocking.Producer(server.addr, "pg", options=options) as producer:
            producer.send(large)

    async def send_aio() -> None:
        async with aio.Producer(server.addr, "pg", options=options) as producer:
            await producer.send(large)

    with pytest.raises(SendFailed, match="a request of 17000") as caught:
        send_blocking() if face == "blocking" else asyncio.run(send_aio())
    assert "encrypted" not in str(caught.value)
    assert len(caught.value.attempts) == 1
