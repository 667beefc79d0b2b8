"""A message whose body cannot be decompressed costs that message alone, in each kind of consumer."""

from __future__ import annotations

import logging
import zlib
from queue import SimpleQueue
from typing import Any

import pytest

from mqbroker.client import ConsumeFrom, MemoryOffsets, Message, MessageModel, PushOptions, messages
from mqbroker.client.errors import UnexpectedResponse
from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.client.queue_requests import read_messages
from mqbroker.wire import compression
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.compression import ZLIB_RATIO_MAX, ZSTD_RATIO_MAX, UnreadableBody, decompress_body
from mqbroker.wire.record import encode_record
from tests.client.member import A, Member, Q
from tests.client.records import a_record
from tests.client.test_lite_pull import Polling
from tests.client.world import World

GARBAGE = b"not zlib"
BOMB = zlib.compress(bytes(70 * 1024 * 1024), 9)
UNREADABLE = [
    (GARBAGE, 1),
    (BOMB, 1),
    (b"\x04\x22\x4d\x18 no LZ4", 0x101),
    (b"\x28\xb5\x2f\xfd no", 0x201),
    (b"x", 0x401),
]


def store_three(world: World, body: bytes, sys_flag: int) -> None:
    world.cluster.store(Q, b"before")
    world.cluster.store(Q, body, sys_flag=sys_flag, UNIQ_KEY="bad", TAGS="a")
    world.cluster.store(Q, b"after")


@pytest.fixture(params=["compiled", "python"])
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(messages, "compiled", None)


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize(("body", "sys_flag"), UNREADABLE, ids=["zlib", "zeros", "lz4", "zstd", "unknown"])
def test_the_others_of_its_pull_are_consumed_and_it_is_sent_back(
    one_queue: World, name_server: str, body: bytes, sys_flag: int, caplog: pytest.LogCaptureFixture
) -> None:
    store_three(one_queue, body, sys_flag)
    member = Member(one_queue, name_server, max_reconsume_times=1).start()
    assert member.bodies == [b"before", b"after"]
    (sent_back,) = one_queue.cluster.sent_back
    assert (sent_back.origin_msg_id, sent_back.delay_level, sent_back.group) == ("bad", 0, "g")
    assert member.core.positions("T") == {Q: 3}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"the body of message bad of {Q} cannot be decompressed: it")
    # It comes again as often as any message, and then is among the dead letters, as it was sent.
    one_queue.clock.pump([1.0] * 12)
    dead = one_queue.cluster.stored(MessageQueue("%DLQ%g", "a", 0))
    assert [(record.body, record.sys_flag & 0x701) for record in dead] == [(body, sys_flag)]
    assert len(one_queue.cluster.sent_back) == 2
    assert member.bodies == [b"before", b"after"]


def test_it_stays_in_its_queue_until_the_broker_has_accepted_it_back(one_queue: World, name_server: str) -> None:
    store_three(one_queue, GARBAGE, 1)
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        one_queue.faults.refuse[A, code] = (ResponseCode.SYSTEM_BUSY, "busy")
    member = Member(one_queue, name_server, local_retry_s=5.0).start()
    assert member.bodies == [b"before", b"after"]
    for _ in range(3):
        assert member.core.positions("T") == {Q: 1}
        one_queue.clock.advance(5)
    assert len(one_queue.faults.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 4
    one_queue.faults.refuse.clear()
    one_queue.clock.advance(5)
    assert member.core.positions("T") == {Q: 3}


def test_it_is_left_to_the_next_member_when_its_member_closes(one_queue: World, name_server: str) -> None:
    store_three(one_queue, GARBAGE, 1)
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        one_queue.faults.refuse[A, code] = (ResponseCode.SYSTEM_BUSY, "busy")
    member = Member(one_queue, name_server, local_retry_s=5.0).start()
    one_queue.result(member.core.close())
    asked = len(one_queue.faults.requests)
    one_queue.clock.advance(60)
    assert len(one_queue.faults.requests) == asked
    assert one_queue.cluster.offsets.get(("g", Q)) == 1


def test_a_queue_full_of_them_is_worked_off_and_logged_once_a_minute(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(200):
        one_queue.cluster.store(Q, GARBAGE, sys_flag=1)
    one_queue.cluster.store(Q, b"good")
    member = Member(one_queue, name_server).start()
    assert member.bodies == [b"good"]
    assert member.core.positions("T") == {Q: 201}
    assert len(one_queue.cluster.sent_back) == 200
    assert len([record for record in caplog.records if "decompressed" in record.getMessage()]) == 1


def test_one_of_another_tag_is_not_sent_back(one_queue: World, name_server: str) -> None:
    store_three(one_queue, GARBAGE, 1)
    one_queue.cluster.store(Q, b"b", TAGS="b")
    member = Member(one_queue, name_server).start("b || BB")
    assert member.bodies == [b"b"]
    assert one_queue.cluster.sent_back == []


@pytest.mark.parametrize(
    ("how", "comes_again"),
    [
        ({"orderly": True}, True),
        ({"batch_max": 8}, True),
        ({"orderly": True, "batch_max": 8}, True),
        ({"model": MessageModel.BROADCASTING}, False),
        ({"model": MessageModel.BROADCASTING, "orderly": True}, False),
    ],
    ids=["orderly", "several", "orderly several", "broadcasting", "broadcasting orderly"],
)
def test_each_way_of_consuming_goes_on_behind_it(
    one_queue: World, name_server: str, how: dict[str, Any], comes_again: bool
) -> None:
    store_three(one_queue, GARBAGE, 1)
    offsets = {} if comes_again else {"offset_store": MemoryOffsets()}
    member = Member(one_queue, name_server, **how, **offsets).start()
    got = [message.body for call in member.got for message in (call if "batch_max" in how else [call])]
    assert got == [b"before", b"after"]
    assert member.core.positions("T") == {Q: 3}
    assert [(header.origin_msg_id, header.delay_level) for header in one_queue.cluster.sent_back] == (
        [("bad", 0)] if comes_again else []
    )


def test_a_program_that_polls_gets_it_marked(one_queue: World, name_server: str) -> None:
    store_three(one_queue, GARBAGE, 1)
    polling = Polling(one_queue, name_server).start()
    found = one_queue.result(polling.core.poll(0, 9))
    assert [(message.body, bool(message.body_error)) for message in found] == [
        (b"before", False),
        (GARBAGE, True),
        (b"after", False),
    ]


def test_each_api_delivers_the_messages_around_it(face: Any, cluster: Any) -> None:
    with face.make("Producer", "pg") as sender:
        sender.send(Message("T", b"before"), queue=Q)
        cluster.store(Q, GARBAGE, sys_flag=1)
        sender.send(Message("T", b"after"), queue=Q)
    got: SimpleQueue[bytes] = SimpleQueue()
    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0)
    consumer = face.make("PushConsumer", "g", lambda message: got.put(message.body), options=options)
    consumer.subscribe("T")
    with consumer:
        assert [face.get(got), face.get(got)] == [b"before", b"after"]
    with face.make("PullConsumer", "cg") as puller:
        found = puller.pull(Q, 0).messages
    assert [message.body for message in found] == [b"before", GARBAGE, b"after"]
    assert [bool(message.body_error) for message in found] == [False, True, False]


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("sizes", [[600] * 9, [5000] * 3, [1, 5000, 1, 1, 999, 1, 1], [1000] * 4, [0] * 9])
def test_bodies_are_decompressed_up_to_a_bound_for_each_pull(
    one_queue: World, name_server: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages come once and in order; what is left of a response is pulled again."""
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 1000)
    decompressed = list[list[int]]()
    wanted = list[bytes]()

    def note_read(records: bytes, *args: Any) -> Any:
        decompressed.append([])
        return read(records, *args)

    def note_body(body: bytes, sys_flag: int) -> bytes:
        whole = decompress_body(body, sys_flag)
        decompressed[-1].append(len(whole))
        return whole

    read = messages.ReceivedMessage.read
    monkeypatch.setattr(messages.ReceivedMessage, "read", note_read)
    monkeypatch.setattr(messages, "decompress_body", note_body)
    for number, size in enumerate(sizes):
        wanted += [b"%d" % number + bytes(size), b"plain %d" % number]
        one_queue.cluster.store(Q, zlib.compress(wanted[-2]), sys_flag=1)
        one_queue.cluster.store(Q, wanted[-1])
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([1.0] * 3)
    assert member.bodies == wanted
    assert member.core.positions("T") == {Q: len(wanted)}
    for run in decompressed:
        assert sum(run[:-1]) < 1000, "each but the last was below the bound"
    polling = Polling(one_queue, name_server).start()
    found = list[bytes]()
    while more := one_queue.result(polling.core.poll(0, 99)):
        found += [message.body for message in more]
    assert found == wanted


@pytest.mark.parametrize(("sys_flag", "ratio"), [(1, ZLIB_RATIO_MAX), (0x101, ZLIB_RATIO_MAX), (0x201, ZSTD_RATIO_MAX)])
def test_those_that_cannot_be_decompressed_count_as_what_was_tried(
    sys_flag: int, ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def refuse(body: bytes, sys_flag: int) -> bytes:
        tried.append(len(body))
        raise UnreadableBody("it is too large")

    monkeypatch.setattr(messages, "decompress_body", refuse)
    monkeypatch.setattr(compression, "_decompressor", lambda modules: object)  # each library is installed
    bomb = bytes(messages.INFLATED_BYTES_MAX // ratio // 2 + 1)
    records = b"".join(
        encode_record(a_record(topic="T", queue_id=0, queue_offset=at, body=bomb, sys_flag=sys_flag)) for at in range(5)
    )
    found, unreadable, left_at = messages.ReceivedMessage.read(records, "a", Q, 0)
    assert (len(found), len(unreadable), left_at, len(tried)) == (2, 2, 2, 2)
    # Bodies that cannot be asked for again stay compressed.
    found, unreadable, left_at = messages.ReceivedMessage.read(records, "a")
    assert (len(found), len(unreadable), left_at, len(tried)) == (5, 5, None, 4)
    assert [message.body for message in found] == [bomb] * 5
    assert [(message.body_error or "")[:10] for message in found] == ["it is too "] * 2 + ["the bodies"] * 3


@pytest.mark.parametrize(
    ("names", "offsets", "left_at"),
    [
        ("%LMQ%l", "7", 7),
        ("other,%LMQ%l", "3,8", 8),
        ("other,%LMQ%l", "3", None),
        ("%LMQ%l", "", None),
        ("%LMQ%l", "-7", None),
        ("%LMQ%l", "7\u0667", None),
        ("%LMQ%l", "9" * 19, None),
        ("%LMQ%other", "7", None),
    ],
)
def test_what_is_left_of_a_light_queue_is_at_the_offset_that_it_names(
    names: str, offsets: str, left_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 1000)
    light = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    body = zlib.compress(bytes(1000))
    records = [
        a_record(topic="T", queue_id=0, queue_offset=at, body=body, sys_flag=1, properties=light) for at in (5, 9)
    ]
    found = messages.ReceivedMessage.read(b"".join(map(encode_record, records)), "a", None, 0, "%LMQ%l")
    assert [len(found[0]), found[2]] == ([1, left_at] if left_at is not None else [2, None])


@pytest.mark.parametrize("named", [0, 3, 4, 10**17])
def test_an_offset_of_a_light_queue_that_is_not_in_the_response_is_refused(
    named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 1000)
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%l", "INNER_MULTI_QUEUE_OFFSET": str(named)}
    body = zlib.compress(bytes(1000))
    record = encode_record(a_record(topic="T", queue_id=0, body=body, sys_flag=1, properties=properties))
    pulled = RawPull(PullStatus.FOUND, 4, 0, 9, record * 2)
    queue = MessageQueue("%LMQ%l", "a", 0)
    with pytest.raises(UnexpectedResponse, match=f"the broker sent offset {named} to a pull from 3 to 4"):
        read_messages(pulled, queue, SubscriptionData("%LMQ%l", "*"), 3)


@pytest.mark.parametrize("sys_flag", [0x401, 0x201])
def test_those_whose_library_is_missing_or_unknown_count_for_nothing(
    sys_flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_decompressor", lambda modules: None)
    records = b"".join(
        encode_record(a_record(topic="T", queue_id=0, queue_offset=at, body=bytes(2**20), sys_flag=sys_flag))
        for at in range(20)
    )
    found, unreadable, left_at = messages.ReceivedMessage.read(records, "a", Q, 0)
    assert (len(found), len(unreadable), left_at) == (20, 20, None)


def test_each_api_gets_all_of_more_than_one_turn(face: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 1000)
    wanted = [b"first", *(b"%d" % number + bytes(600) for number in range(40))]
    with face.make("Producer", "pg") as sender:
        sender.send(Message("T", wanted[0]), queue=Q)
    for body in wanted[1:]:
        cluster.store(Q, zlib.compress(body), sys_flag=1)
    got: SimpleQueue[bytes] = SimpleQueue()
    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0)
    consumer = face.make("PushConsumer", "g", lambda message: got.put(message.body), options=options)
    consumer.subscribe("T")
    with consumer:
        assert sorted(face.get(got) for _ in wanted) == sorted(wanted)
    with face.make("PullConsumer", "cg") as puller:
        at, found = 0, list[bytes]()
        while at < len(wanted):
            pulled = puller.pull(Q, at)
            assert 0 < len(pulled.messages) <= 3
            found += [message.body for message in pulled.messages]
            at = pulled.next_offset
    assert found == wanted
