"""What consumers answer to brokers, on a cluster in memory and a clock."""

import logging
import random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import RetryLater
from mqbroker.client.broker_requests import MEMBER_REQUESTS, MemberRequests, PullConsumerRequests, decline
from mqbroker.client.connection import Connection, Line
from mqbroker.client.consume_service import DIRECT_MAX
from mqbroker.client.deferred_net import DeferredNet, _Protocol
from mqbroker.wire import fastjson
from mqbroker.wire.admin_bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
)
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.record import encode_record
from tests.client.asking import INFO, NOW_MS, RECORD, STATUS, ask, committed, consume, fill, peer_of, reset_to
from tests.client.member import RETRY, A, Member, Q
from tests.client.world import World
from tests.remoting.link import Link, Peer

# --- running info


def test_a_consumer_tells_of_itself_as_java_reads_it(one_queue: World, name_server: str) -> None:
    fill(one_queue, 3)
    member = Member(one_queue, name_server, listener=lambda m: Deferred(), concurrency=2)
    member.start()
    one_queue.clock.advance(2)
    answer = ask(member, INFO)
    assert (answer.code, answer.opaque, answer.is_response) == (ResponseCode.SUCCESS, 9, True)
    told = fastjson.loads(answer.body)
    assert told["properties"] == {
        "consumerGroup": "g",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeThreadMin": "2",
        "consumeThreadMax": "2",
        "consumeMessageBatchMaxSize": "1",
        "consumeConcurrentlyMaxSpan": "2000",
        "consumeTimeout": "15",
        "maxReconsumeTimes": "-1",
        "pullBatchSize": "32",
        "pullThresholdForQueue": "1000",
        "pullThresholdSizeForQueue": "100",
        "PROP_NAMESERVER_ADDR": f"{name_server};",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": "V4_9_7",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_THREADPOOL_CORE_SIZE": "2",
        "PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS),
    }
    assert [(s["topic"], s["subString"]) for s in told["subscriptionSet"]] == [("%RETRY%g", "*"), ("T", "*")]
    assert "jstack" not in told
    assert set(told["statusTable"]) == {"T", "%RETRY%g"}
    assert set(told["statusTable"]["T"]) == {
        "pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS", "consumeFailedMsgs",
    }  # fmt: skip
    # Java's maps with objects as keys: nothing that strict JSON could say.
    assert b'{"brokerName":"a","queueId":0,"topic":"T"}:{' in answer.body
    of_queue = told["mqTable"][fastjson.JsonKey.of({"topic": "T", "brokerName": "a", "queueId": 0})]
    assert of_queue == {
        "commitOffset": 0,
        "cachedMsgMinOffset": 0,
        "cachedMsgMaxOffset": 2,
        "cachedMsgCount": 3,
        "cachedMsgSizeInMiB": 0,
        "transactionMsgMinOffset": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgCount": 0,
        "locked": False,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": 0,
        "droped": False,
        "lastPullTimestamp": NOW_MS,
        "lastConsumeTimestamp": NOW_MS,
    }


def test_the_name_servers_told_are_those_that_an_address_server_lists_now(
    one_queue: World, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(one_queue, name_server)
    member.start()
    monkeypatch.setattr(member.core._routes, "_name_servers", ("10.0.0.8:9876", "10.0.0.9:9876"))
    told = fastjson.loads(ask(member, INFO).body)
    assert told["properties"]["PROP_NAMESERVER_ADDR"] == "10.0.0.8:9876;10.0.0.9:9876;"


def test_times_and_offsets_of_a_queue_move_on(one_queue: World, name_server: str) -> None:
    held: Deferred[Any] = Deferred()
    member = Member(one_queue, name_server, listener=lambda m: held).start()
    one_queue.clock.advance(3)
    one_queue.cluster.store(Q, b"m" * 3 * 1024 * 1024)
    one_queue.clock.advance(4)
    info = ConsumerRunningInfo.from_json(ask(member, INFO).body).mq_table[Q]
    assert (info.commit_offset, info.cached_msg_size_in_mi_b, info.last_consume_timestamp) == (0, 3, NOW_MS)
    assert info.last_pull_timestamp == NOW_MS + 3000
    held.callback(None)
    info = ConsumerRunningInfo.from_json(ask(member, INFO).body).mq_table[Q]
    assert (info.commit_offset, info.cached_msg_count, info.last_consume_timestamp) == (1, 0, NOW_MS + 7000)


def test_rates_are_told_by_topic(one_queue: World, name_server: str) -> None:
    fill(one_queue, 6)
    answers = iter([None, None, None, None, False, False])
    member = Member(one_queue, name_server, listener=lambda m: next(answers, None)).start()
    one_queue.clock.advance(20)
    status = ConsumerRunningInfo.from_json(ask(member, INFO).body).status_table
    assert (status["T"].pull_tps, status["T"].consume_ok_tps, status["T"].consume_failed_tps) == (0.3, 0.2, 0.1)
    assert (status["T"].consume_failed_msgs, status["%RETRY%g"].consume_failed_msgs) == (2, 0)


def test_only_pulls_that_found_something_have_a_time(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    one_queue.clock.advance(3)
    fill(one_queue, 1)
    one_queue.clock.pump([1] * 20)
    assert ConsumerRunningInfo.from_json(ask(member, INFO).body).status_table["T"].pull_rt == 3000


def test_stacks_are_told_where_they_are_asked_for(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    request = attrs.evolve(INFO, ext_fields=INFO.ext_fields | {"jstackEnable": "true"})
    assert ConsumerRunningInfo.from_json(ask(member, request).body).jstack == "stacks"


def test_a_queue_whose_start_is_not_known_yet_has_no_offset(one_queue: World, name_server: str, silent: object) -> None:
    one_queue.faults.refuse[A, RequestCode.QUERY_CONSUMER_OFFSET] = silent
    member = Member(one_queue, name_server).start()
    assert ConsumerRunningInfo.from_json(ask(member, INFO).body).mq_table[Q].commit_offset == -1
    assert GetConsumerStatusBody.from_json(ask(member, STATUS).body).message_queue_table == {}


# --- positions


def test_a_consumer_tells_what_it_would_commit_in_queues_of_the_topic(one_queue: World, name_server: str) -> None:
    fill(one_queue, 3)
    one_queue.cluster.store(RETRY, b"again", RETRY_TOPIC="T")
    held: Deferred[Any] = Deferred()
    member = Member(one_queue, name_server, listener=lambda m: held if m.body == b"1" else None).start()
    answer = ask(member, STATUS)
    assert GetConsumerStatusBody.from_json(answer.body).message_queue_table == {Q: 1}
    assert b'"messageQueueTable":{{"brokerName":"a","queueId":0,"topic":"T"}:1}' in answer.body
    everything = attrs.evolve(STATUS, ext_fields={"topic": "", "group": "g"})
    assert GetConsumerStatusBody.from_json(ask(member, everything).body).message_queue_table == {Q: 1, RETRY: 1}


def test_answers_tell_of_so_many_queues_and_no_more(
    world: World, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.add_topic("T", queues=3)
    for n in range(3):
        world.cluster.store(MessageQueue("T", "a", n))
    member = Member(world, name_server).start()
    world.clock.pump([0.5] * 4)  # its retry topics were made when it joined
    monkeypatch.setattr("mqbroker.client.running_info.QUEUES_TOLD_MAX", 2)
    first_two = [MessageQueue("T", "a", n) for n in range(2)]
    retries = [MessageQueue("%RETRY%g", broker, 0) for broker in "ab"]
    assert list(ConsumerRunningInfo.from_json(ask(member, INFO).body).mq_table) == retries
    assert GetConsumerStatusBody.from_json(ask(member, STATUS).body).message_queue_table == dict.fromkeys(first_two, 1)


# --- direct consumption


def test_a_message_by_hand_reaches_the_listener_and_moves_no_offset(one_queue: World, name_server: str) -> None:
    fill(one_queue, 1)
    member = Member(one_queue, name_server).start()
    one_queue.clock.advance(5)
    assert committed(one_queue) == 1
    result = ConsumeMessageDirectlyResult.from_json(ask(member, consume()).body)
    assert (result.consume_result, result.remark, result.order, result.auto_commit) == ("CR_SUCCESS", None, False, True)
    message = member.got[-1]
    assert (message.body, message.tags, message.queue, message.queue_offset) == (b"by hand", "t", Q, 3)
    one_queue.clock.advance(5)
    assert committed(one_queue) == 1
    assert one_queue.cluster.sent_back == []
    assert member.core.positions("T") == {Q: 1}


def test_a_message_of_the_retry_topic_comes_by_hand_under_its_own(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    record = attrs.evolve(RECORD, topic="%RETRY%g", properties={"RETRY_TOPIC": "T"})
    ask(member, consume(encode_record(record)))
    assert (member.got[-1].topic, member.got[-1].queue) == ("T", RETRY)


def later(message: Any) -> None:
    raise RetryLater(3)


def fail(message: Any) -> None:
    raise ValueError("no money")


@pytest.mark.parametrize(
    ("listener", "result"),
    [(lambda m: True, "CR_SUCCESS"), (lambda m: False, "CR_LATER"), (later, "CR_LATER"), (fail, "CR_THROW_EXCEPTION")],
)
def test_what_the_listener_says_is_told_and_nothing_goes_back(
    one_queue: World, name_server: str, listener: Any, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(one_queue, name_server, listener=listener).start()
    told = ConsumeMessageDirectlyResult.from_json(ask(member, consume()).body)
    assert told.consume_result == result
    if listener is fail:
        assert told.remark.startswith(
            "ValueError: no money, tests.client.test_broker_requests.fail(test_broker_requests.py:"
        )
    else:
        assert told.remark is None
    assert one_queue.cluster.sent_back == []
    assert [record for record in caplog.records if record.exc_info] == []


def test_the_answer_waits_for_the_listener_and_tells_its_time(one_queue: World, name_server: str) -> None:
    held: Deferred[Any] = Deferred()
    member = Member(one_queue, name_server, listener=lambda m: held).start()
    answers: list[Any] = []
    one_queue.run(peer_of(member).answer(consume())).addCallback(answers.append)
    one_queue.clock.advance(2)
    assert answers == []
    held.callback(None)
    assert ConsumeMessageDirectlyResult.from_json(answers[0].body).spent_time_mills == 2000


def test_so_many_by_hand_and_no_more_and_a_close_waits_for_them(one_queue: World, name_server: str) -> None:
    held: list[Any] = []

    def listener(message: Any) -> Any:
        held.append(Deferred())
        return held[-1]

    member = Member(one_queue, name_server, listener=listener, concurrency=1).start()
    fill(one_queue, 1)
    peer = peer_of(member)
    answers: list[Any] = []
    for _ in range(DIRECT_MAX):
        one_queue.run(peer.answer(consume())).addCallback(answers.append)
    assert len(held) == DIRECT_MAX + 1
    assert ask(member, consume()).code == ResponseCode.SYSTEM_BUSY
    held[1].callback(None)
    one_queue.run(peer.answer(consume())).addCallback(answers.append)
    assert len(answers) == 1
    closed = one_queue.run(member.core.close())
    assert (ask(member, consume()).code, ask(member, reset_to({Q: 0})).code) == (ResponseCode.SYSTEM_ERROR,) * 2
    for waiting in held[:-1]:
        if not waiting.called:
            waiting.callback(None)
    one_queue.cluster.settle()
    assert not closed.called
    held[-1].callback(None)
    one_queue.cluster.settle()
    assert closed.called
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * (DIRECT_MAX + 1)


# --- what is wrong, and who does not answer


BAD_BODIES = [b"", b"\x00\xff", b"[]", b"1", b'"x"', b'{"offsetTable":[1]}', b'{"offsetTable":{"a":1}}',
              b'{"offsetTable":{{"topic":"T","brokerName":"a","queueId":0}:"far"}}',
              b'{"offsetTable":{{"topic":"T","brokerName":"a","queueId":0}:-1}}',
              b'{"offsetTable":{{"topic":"T","brokerName":"a","queueId":0}:1' + b"0" * 40 + b"}}",
              b'{"offsetTable":{{"topic":"T","brokerName":"a"}:1}}', b"[" * 999, b'{"offsetTable":' * 5000]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_body_that_is_no_table_is_refused(one_queue: World, name_server: str, body: Any) -> None:
    fill(one_queue, 2)
    member = Member(one_queue, name_server).start()
    answer = ask(member, reset_to({}, body=body))
    assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, 9)
    assert answer.remark
    assert (member.core.positions("T"), member.bodies) == ({Q: 2}, [b"0", b"1"])


GOOD = encode_record(RECORD)
BAD_MESSAGES = [b"", b"\x00" * 200, GOOD[:-1], GOOD + GOOD, GOOD + b"x", GOOD[:40] + b"\xff" * (len(GOOD) - 40),
                encode_record(attrs.evolve(RECORD, sys_flag=1, body=b"does not inflate"))]  # fmt: skip


@pytest.mark.parametrize("body", BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_what_is_not_one_message_does_not_reach_the_listener(one_queue: World, name_server: str, body: Any) -> None:
    member = Member(one_queue, name_server).start()
    answer = ask(member, consume(body))
    assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert member.got == []


CONSUME = consume()
REQUESTS = [INFO, STATUS, reset_to({Q: 0}), CONSUME]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: str(r.code))
def test_header_fields_that_are_missing_or_of_another_group_are_refused(
    one_queue: World, name_server: str, request_: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    member = Member(one_queue, name_server).start()
    required = {"consumerGroup", "group", "topic", "clientId", "timestamp", "isForce"} & set(request_.ext_fields)
    if request_.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        required.remove("clientId")
    assert required
    for name in required:
        fields = {key: value for key, value in request_.ext_fields.items() if key != name}
        answer = ask(member, attrs.evolve(request_, ext_fields=fields))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")
    (group,) = required & {"consumerGroup", "group"}
    answer = ask(member, attrs.evolve(request_, ext_fields=request_.ext_fields | {group: "other"}))
    remark = "The Consumer Group <other> not exist in this consumer"
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: str(r.code))
def test_a_one_way_request_is_never_answered(one_queue: World, name_server: str, request_: Any) -> None:
    member = Member(one_queue, name_server).start()
    assert ask(member, attrs.evolve(request_, flag=ONEWAY_FLAG)) is None
    assert ask(member, attrs.evolve(request_, flag=ONEWAY_FLAG, ext_fields={})) is None


def test_whatever_bytes_come_there_is_one_answer_and_no_traceback(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fill(one_queue, 2)
    member = Member(one_queue, name_server).start()
    rng = random.Random(7)
    for _ in range(2000):
        request = rng.choice(REQUESTS)
        body = bytearray(request.body or b"{}")
        for _ in range(rng.randint(0, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        fields = {
            key: rng.choice([value, value, value, "", "-1", "9" * 30, "\u4e2d\x00"])
            for key, value in request.ext_fields.items()
        }
        answer = ask(member, attrs.evolve(request, ext_fields=fields, body=bytes(body)))
        assert answer.is_response
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_a_mistake_of_ours_is_answered_too_and_logged(one_queue: World, caplog: pytest.LogCaptureFixture) -> None:
    def nobody() -> None:
        raise LookupError("no member")

    answer = one_queue.result(MemberRequests(nobody, str).answer(INFO))
    assert (answer.code, "no member" in answer.remark) == (ResponseCode.SYSTEM_ERROR, False)
    assert "no member" in caplog.text


def test_a_notice_of_changed_members_is_heard(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server, me="c2").start()
    one_queue.cluster.join("g", "c1")
    notice = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, flag=ONEWAY_FLAG)
    assert ask(member, notice) is None
    assert member.core.assigned == frozenset()
    assert ask(member, attrs.evolve(notice, ext_fields={}, flag=0)).code == ResponseCode.SYSTEM_ERROR


def test_over_a_connection_each_request_has_its_answer(one_queue: World, name_server: str) -> None:
    fill(one_queue, 1)
    held: Deferred[Any] = Deferred()
    member = Member(one_queue, name_server, listener=lambda m: held if m.body == b"by hand" else None).start()
    broker = Peer()
    net = DeferredNet(one_queue.cluster.reactor, peer_of(member).answer, random.Random(1))
    ours = Connection("10.0.0.2:10911", net.loop, Line(), net._answer, net._why_lost)
    link = Link(broker, _Protocol(ours))  # type: ignore[arg-type]
    bad = [attrs.evolve(request, ext_fields={}, body=b"\x00") for request in REQUESTS]
    asked = [*REQUESTS, *bad, RemotingCommand(39), attrs.evolve(INFO, flag=ONEWAY_FLAG)]
    for opaque, request in enumerate(asked):
        broker.transport.write(encode_command(attrs.evolve(request, opaque=opaque)))
    link.pump(chunk=7)
    one_queue.clock.advance(0)
    link.pump()
    by_hand = REQUESTS.index(CONSUME)
    expected = {n: ResponseCode.SUCCESS for n in range(len(REQUESTS)) if n != by_hand}
    expected |= {len(REQUESTS) + n: ResponseCode.SYSTEM_ERROR for n in range(len(bad))}
    expected |= {len(REQUESTS) + len(bad): ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
    assert {answer.opaque: answer.code for answer in broker.answers} == expected
    held.callback(None)
    one_queue.clock.advance(0)
    link.pump()
    assert {answer.opaque: answer.code for answer in broker.answers} == expected | {by_hand: ResponseCode.SUCCESS}
    assert not broker.lost


def test_pull_consumers_and_producers_decline(world: World) -> None:
    answer = PullConsumerRequests("g").answer
    for request in REQUESTS:
        refusal = world.result(answer(request))
        assert refusal.code == ResponseCode.SYSTEM_ERROR
        assert refusal.remark.startswith("The Consumer Group <g> has neither a listener nor queues of its own")
        assert world.result(answer(attrs.evolve(request, flag=ONEWAY_FLAG))) is None
        assert world.result(decline(request)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    for code in (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT):
        assert world.result(answer(RemotingCommand(code))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert world.result(decline(RemotingCommand(code, flag=ONEWAY_FLAG))) is None


def test_what_is_routed_to_members_is_what_they_handle() -> None:
    assert MemberRequests.HANDLERS.keys() == MEMBER_REQUESTS
