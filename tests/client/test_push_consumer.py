from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import ConsumeFrom, ConsumeResult, NameServerUnreachable, RetryLater
from mqbroker.client.errors import ClientClosed
from mqbroker.errors import Refused
from mqbroker.wire.bodies import HeartbeatData, MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.member import RETRY, A, B, Member, Q
from tests.client.world import World

PULL = RequestCode.PULL_MESSAGE


def committed(world: World, queue: Any = Q) -> Any:
    return world.cluster.offsets.get(("g", queue))


def test_it_consumes_what_is_there_and_what_comes(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server).start()
    assert member.bodies == [b"0"]
    one_queue.cluster.store(Q, b"1")
    assert member.bodies == [b"0", b"1"]
    assert member.core.assigned == {Q, RETRY}
    assert committed(one_queue) is None
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2


def test_the_heartbeat_carries_both_subscriptions(one_queue: World, name_server: str) -> None:
    Member(one_queue, name_server, consume_from=ConsumeFrom.LAST).start("a || b")
    (request,) = one_queue.faults.asked(RequestCode.HEART_BEAT)
    (data,) = HeartbeatData.from_json(request.body).consumer_data_set
    assert (data.group_name, data.consume_type, data.message_model) == ("g", "CONSUME_PASSIVELY", "CLUSTERING")
    assert data.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert {s.topic: s.sub_string for s in data.subscription_data_set} == {"T": "a || b", "%RETRY%g": "*"}
    pull = next(r for r in one_queue.faults.asked(PULL) if r.ext_fields["topic"] == "T")
    subscription = next(s for s in data.subscription_data_set if s.topic == "T")
    assert int(pull.ext_fields["subVersion"]) == subscription.sub_version
    assert (pull.ext_fields["sysFlag"], pull.ext_fields["suspendTimeoutMillis"]) == ("2", "15000")


def test_an_account_that_all_brokers_refuse_ends_the_start(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=1)
    refusal = (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured")
    world.faults.refuse[A, RequestCode.HEART_BEAT] = world.faults.refuse[B, RequestCode.HEART_BEAT] = refusal
    with pytest.raises(Refused, match="No accessKey is configured"):
        Member(world, name_server).start()


@pytest.mark.parametrize("remark", ["AclException: No accessKey is configured", "busy"])
def test_where_one_broker_takes_the_account_it_starts(world: World, name_server: str, remark: Any) -> None:
    world.cluster.add_topic("T", queues=1)
    world.faults.refuse[A, RequestCode.HEART_BEAT] = (ResponseCode.SYSTEM_ERROR, remark)
    member = Member(world, name_server).start()
    assert MessageQueue("T", "b", 0) in member.core.assigned


def test_an_account_that_one_broker_refuses_while_another_is_busy_may_do(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=1)
    world.faults.refuse[A, RequestCode.HEART_BEAT] = (ResponseCode.SYSTEM_ERROR, "AclException: no")
    world.faults.refuse[B, RequestCode.HEART_BEAT] = (ResponseCode.SYSTEM_ERROR, "busy")
    Member(world, name_server).start()


def test_brokers_that_are_only_busy_do_not_end_the_start(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=1)
    for addr in (A, B):
        world.faults.refuse[addr, RequestCode.HEART_BEAT] = (ResponseCode.SYSTEM_ERROR, "busy")
    Member(world, name_server).start()


def test_tags_are_compared_exactly_and_what_is_left_out_counts_as_consumed(one_queue: World, name_server: str) -> None:
    # "Aa" and "BB" have one hash, so the broker lets both through.
    for tags in ("Aa", "BB", "Aa"):
        one_queue.cluster.store(Q, tags.encode(), TAGS=tags)
    member = Member(one_queue, name_server).start("BB")
    assert member.bodies == [b"BB"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 3


@pytest.mark.parametrize(
    ("consume_from", "offset", "retry_offset"),
    [(ConsumeFrom.FIRST, 0, 0), (ConsumeFrom.LAST, 9, 0), (ConsumeFrom.TIMESTAMP, 7, 2)],
)
def test_a_new_group_starts_where_it_was_told(
    one_queue: World, name_server: str, consume_from: Any, offset: Any, retry_offset: Any
) -> None:
    one_queue.faults.refuse[A, RequestCode.QUERY_CONSUMER_OFFSET] = (ResponseCode.QUERY_NOT_FOUND, "Not found")
    for _ in range(2):
        one_queue.cluster.store(RETRY, b"again", RETRY_TOPIC="T")
    for n in range(9):
        if n == 7:
            one_queue.clock.pump([30] * 180)  # half an hour ago is before the seventh
        one_queue.cluster.store(Q, b"%d" % n)
    Member(one_queue, name_server, consume_from=consume_from).start()
    first = {r.ext_fields["topic"]: r.ext_fields["queueOffset"] for r in reversed(one_queue.faults.asked(PULL))}
    assert first == {"T": str(offset), "%RETRY%g": str(retry_offset)}


def test_the_time_to_start_from_is_half_an_hour_ago_unless_said(one_queue: World, name_server: str) -> None:
    one_queue.faults.refuse[A, RequestCode.QUERY_CONSUMER_OFFSET] = (ResponseCode.QUERY_NOT_FOUND, "Not found")
    Member(one_queue, name_server, consume_from=ConsumeFrom.TIMESTAMP).start()
    now_ms = int(one_queue.clock.seconds() * 1000)
    (search,) = one_queue.faults.asked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert int(search.ext_fields["timestamp"]) == now_ms - 1_800_000


def test_a_committed_offset_wins(one_queue: World, name_server: str) -> None:
    for n in range(3):
        one_queue.cluster.store(Q, b"%d" % n)
    one_queue.cluster.offsets["g", Q] = 2
    assert Member(one_queue, name_server).start().bodies == [b"2"]


def test_an_illegal_offset_is_corrected(one_queue: World, name_server: str) -> None:
    one_queue.cluster.offsets["g", Q] = 100
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server).start()
    one_queue.cluster.store(Q, b"1")
    assert member.bodies == []
    one_queue.clock.advance(1)
    assert member.bodies == [b"1"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2


def fail(message: Any) -> None:
    raise ValueError("no")


def later(message: Any) -> None:
    raise RetryLater(-1)


@pytest.mark.parametrize(
    ("listener", "delay_level"),
    [
        (fail, 0),
        (later, -1),
        (lambda message: False, 0),
        (lambda message: ConsumeResult.RETRY, 0),
    ],
)
def test_what_the_listener_rejects_goes_back_to_the_broker(
    one_queue: World, name_server: str, listener: Any, delay_level: Any
) -> None:
    one_queue.cluster.store(Q, b"0", UNIQ_KEY="U")
    Member(one_queue, name_server, listener=listener).start()
    (header,) = one_queue.cluster.sent_back
    assert (header.group, header.offset, header.delay_level) == ("g", 0, delay_level)
    assert (header.origin_msg_id, header.origin_topic, header.max_reconsume_times) == ("U", "T", 16)
    one_queue.clock.advance(5)
    assert committed(one_queue) == 1


def test_a_message_that_fails_again_goes_back_under_its_own_topic(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(RETRY, b"0", RETRY_TOPIC="T", reconsume_times=1)
    member = Member(one_queue, name_server, listener=fail).start()
    assert [(m.topic, m.queue.topic, m.reconsume_times) for m in member.got] == [("T", "%RETRY%g", 1)]
    (header,) = one_queue.cluster.sent_back
    assert (header.origin_topic, header.bname) == ("T", "a")


def test_what_the_broker_does_not_take_back_is_tried_here(one_queue: World, name_server: str) -> None:
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        one_queue.faults.refuse[A, code] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.cluster.store(Q, b"0")
    one_queue.cluster.store(Q, b"1")
    member = Member(one_queue, name_server, listener=lambda m: m.body == b"1" or m.reconsume_times > 0).start()
    assert member.bodies == [b"0", b"1"]
    one_queue.clock.advance(4.9)
    assert committed(one_queue) is None
    one_queue.clock.advance(0.1)
    assert [(m.body, m.reconsume_times) for m in member.got] == [(b"0", 0), (b"1", 0), (b"0", 1)]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2


def test_a_message_under_way_holds_back_the_commit_and_concurrency_is_bounded(
    one_queue: World, name_server: str
) -> None:
    running: dict[Any, Any] = {}

    def listener(message: Any) -> Any:
        running[message.body] = Deferred()
        return running[message.body]

    for n in range(5):
        one_queue.cluster.store(Q, b"%d" % n)
    Member(one_queue, name_server, listener=listener, concurrency=2).start()
    assert list(running) == [b"0", b"1"]
    running[b"1"].callback(None)
    assert list(running) == [b"0", b"1", b"2"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 0
    running[b"0"].callback(None)
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2


def test_a_full_queue_is_not_pulled_until_there_is_room(one_queue: World, name_server: str) -> None:
    waiting: list[Any] = []

    def listener(message: Any) -> Any:
        waiting.append(Deferred())
        return waiting[-1]

    for n in range(100):
        one_queue.cluster.store(Q, b"%d" % n)
    Member(one_queue, name_server, listener=listener, concurrency=1, queue_messages_max=10, pull_batch=5).start()

    def pulled() -> Any:
        return max(int(r.ext_fields["queueOffset"]) for r in one_queue.faults.asked(PULL))

    assert pulled() == 5
    one_queue.clock.advance(60)
    assert pulled() == 5
    waiting[0].callback(None)
    one_queue.cluster.settle()
    assert pulled() == 10


def test_a_pull_that_the_broker_does_not_hold_is_not_repeated_at_once(
    one_queue: World, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbroker.broker.long_polling.HELD_ON_CONNECTION_MAX", 1)  # that of the retry topic
    member = Member(one_queue, name_server).start()
    before = len(one_queue.faults.asked(PULL))
    one_queue.clock.pump([0.5] * 20)
    assert 9 <= len(one_queue.faults.asked(PULL)) - before <= 11
    one_queue.cluster.store(Q, b"0")
    one_queue.clock.pump([0.5] * 2)
    assert member.bodies == [b"0"]


def stuck_with(body: Any) -> Any:
    """A listener that never ends with the message of this body, and what it waits for."""
    waiting: Deferred[Any] = Deferred()
    return (lambda message: waiting if message.body == body else None), waiting


def test_one_stuck_message_does_not_let_the_span_grow(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5000):
        one_queue.cluster.store(Q, b"%d" % n)
    listener, waiting = stuck_with(b"10")
    member = Member(one_queue, name_server, listener=listener).start()
    # As in Java, a pull is not cut in the middle.
    assert 2010 < len(member.got) <= 2010 + 32
    one_queue.clock.advance(60)
    assert len(member.got) <= 2010 + 32
    assert "pulling is paused until message 10 is consumed" in caplog.text
    assert committed(one_queue) == 10
    waiting.callback(None)
    one_queue.cluster.settle()
    assert len(set(member.bodies)) == 5000


def test_a_message_that_the_listener_is_with_for_too_long_goes_back(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    one_queue.cluster.store(Q, b"0", UNIQ_KEY="U")
    one_queue.cluster.store(Q, b"1")
    listener, waiting = stuck_with(b"0")
    Member(one_queue, name_server, listener=listener, concurrency=2).start()
    one_queue.clock.pump([60] * 15)
    assert one_queue.cluster.sent_back == []
    assert committed(one_queue) == 0
    one_queue.clock.pump([60] * 2)
    (header,) = one_queue.cluster.sent_back
    assert (header.origin_msg_id, header.offset, header.delay_level) == ("U", 0, 3)
    assert committed(one_queue) == 2
    assert "longer than consume_timeout_s" in caplog.text
    waiting.errback(ValueError("too late"))
    one_queue.clock.pump([60] * 40)
    assert len(one_queue.cluster.sent_back) == 1


def test_an_overdue_message_that_no_broker_takes_back_is_kept(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        one_queue.faults.refuse[A, code] = (ResponseCode.SYSTEM_ERROR, "no")
    listener, waiting = stuck_with(b"0")
    Member(one_queue, name_server, listener=listener, consume_timeout_s=15.0).start()
    one_queue.clock.pump([1] * 60)
    assert committed(one_queue) == 0
    waiting.callback(None)
    one_queue.clock.pump([1] * 6)
    assert committed(one_queue) == 1
    assert one_queue.cluster.sent_back == []


def test_the_clock_of_the_machine_may_jump(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    listener, _ = stuck_with(b"0")
    Member(one_queue, name_server, listener=listener).start()
    one_queue.clock.set_forward += 3600
    one_queue.clock.pump([60] * 3)
    assert one_queue.cluster.sent_back == []


def test_a_pull_that_was_held_is_repeated_at_once_if_the_clock_was_set_back(one_queue: World, name_server: str) -> None:
    Member(one_queue, name_server, suspend_s=10.0).start()
    one_queue.clock.set_forward -= 3600
    pulls = len(one_queue.faults.asked(PULL))
    one_queue.clock.pump([1] * 9)
    assert len(one_queue.faults.asked(PULL)) == pulls
    one_queue.clock.pump([0.5] * 3)
    assert len(one_queue.faults.asked(PULL)) > pulls


def test_thousands_of_messages_do_not_run_out_of_stack(one_queue: World, name_server: str) -> None:
    for n in range(3000):
        one_queue.cluster.store(Q, b"%d" % n)
    member = Member(one_queue, name_server, concurrency=1, queue_messages_max=5000, pull_batch=1024).start()
    assert len(set(member.bodies)) == 3000


def test_pulls_go_on_after_the_broker_was_away(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    one_queue.faults.down.add(A)
    one_queue.faults.cut(A)
    one_queue.clock.pump([0.5] * 10)
    one_queue.faults.down.clear()
    one_queue.cluster.store(Q, b"0")
    one_queue.clock.pump([1, 1])  # the broker has to hear first that the group is there
    assert member.bodies == [b"0"]


def test_a_broker_that_forgot_the_group_is_told_at_once(one_queue: World, name_server: str) -> None:
    one_queue.faults.refuse[A, PULL] = (ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    member = Member(one_queue, name_server).start()
    beats = len(one_queue.faults.asked(RequestCode.HEART_BEAT))
    assert beats > 1
    one_queue.faults.refuse.clear()
    one_queue.cluster.store(Q, b"0")
    one_queue.clock.advance(1)
    assert member.bodies == [b"0"]


def test_two_members_share_and_hand_over_without_repeating(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=2)
    world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])
    queues = [MessageQueue("T", broker, n) for broker in "ab" for n in range(2)]
    for queue in queues:
        world.cluster.store(queue, f"{queue.broker_name}{queue.queue_id}".encode())
    first = Member(world, name_server, me="c1").start()
    assert len(first.core.assigned) == 5
    second = Member(world, name_server, me="c2").start()
    first.core.ids_changed("other group")
    assert len(first.core.assigned) == 5
    first.core.ids_changed("g")
    world.cluster.settle()
    world.clock.advance(0.3)
    assert {q for q in first.core.assigned if q.topic == "T"} == set(queues[:2])
    assert {q for q in second.core.assigned if q.topic == "T"} == set(queues[2:])
    assert sorted(first.bodies + second.bodies) == [b"a0", b"a1", b"b0", b"b1"]
    world.cluster.store(queues[3], b"new")
    assert second.bodies == [b"new"]
    world.result(first.core.close())
    second.core.ids_changed("g")
    world.clock.advance(0.3)
    assert {q for q in second.core.assigned if q.topic == "T"} == set(queues)
    assert second.bodies == [b"new"]


def test_without_a_notice_the_balance_is_checked_every_twenty_seconds(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server, me="c2").start()
    assert Q in member.core.assigned
    one_queue.cluster.join("g", "c1")
    one_queue.clock.pump([1] * 19)
    assert Q in member.core.assigned
    one_queue.clock.advance(1)
    assert member.core.assigned == frozenset()
    pulls = len(one_queue.faults.asked(PULL))
    one_queue.clock.advance(19)  # those that wait at the broker end
    assert (one_queue.faults.unanswered(PULL), len(one_queue.faults.asked(PULL))) == ([], pulls)


def test_what_a_listener_says_of_a_queue_that_has_left_does_not_count(one_queue: World, name_server: str) -> None:
    waiting: Deferred[Any] = Deferred()
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, me="c2", listener=lambda message: waiting).start()
    one_queue.cluster.join("g", "c1")
    member.core.ids_changed("g")
    one_queue.cluster.settle()
    assert member.core.assigned == frozenset()
    one_queue.clock.advance(0.2)  # for so long it is waited for
    assert committed(one_queue) == 0
    waiting.errback(ValueError("no"))
    assert one_queue.cluster.sent_back == []
    one_queue.clock.advance(10)
    assert committed(one_queue) == 0


def test_a_topic_that_does_not_exist_yet_is_waited_for(world: World, name_server: str) -> None:
    member = Member(world, name_server).start()
    assert member.core.assigned == frozenset()
    world.cluster.add_topic("T", queues=1, brokers=["a"])
    world.cluster.store(Q, b"0")
    # The first tries come quickly, well within the twenty seconds of the regular balance.
    world.clock.pump([0.5] * 10)
    assert member.bodies == [b"0"]


def test_without_name_servers_the_start_fails(world: World, name_server: str) -> None:
    world.faults.down.add(name_server)
    member = Member(world, name_server)
    world.result(member.core.subscribe("T"))
    with pytest.raises(NameServerUnreachable):
        world.result(member.core.start())


def test_closing_lets_listeners_end_and_commits_and_leaves(one_queue: World, name_server: str) -> None:
    waiting: Deferred[Any] = Deferred()
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, listener=lambda message: waiting).start()
    closed: list[Any] = []
    one_queue.run(member.core.close()).addBoth(closed.append)
    one_queue.clock.advance(5)
    assert not closed
    waiting.callback(None)
    one_queue.cluster.settle()
    assert closed == [None]
    assert committed(one_queue) == 1
    assert one_queue.cluster.members("g") == []
    assert len(one_queue.faults.asked(RequestCode.UNREGISTER_CLIENT)) == 1
    with pytest.raises(ClientClosed):
        one_queue.result(member.core.start())


def test_closing_does_not_wait_for_ever(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, listener=lambda message: Deferred()).start()
    closed: list[Any] = []
    one_queue.run(member.core.close()).addBoth(closed.append)
    one_queue.clock.advance(10)
    assert closed == [None]
    assert committed(one_queue) == 0


def test_after_closing_nothing_is_left_on_the_clock(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    one_queue.clock.advance(40)
    one_queue.result(member.core.close())
    one_queue.cluster.store(Q)
    one_queue.clock.advance(100)
    assert not one_queue.clock.getDelayedCalls()


def test_a_topic_can_be_added_and_changed_later(one_queue: World, name_server: str) -> None:
    one_queue.cluster.add_topic("U", queues=1, brokers=["a"])
    member = Member(one_queue, name_server).start()
    one_queue.cluster.store(MessageQueue("U", "a", 0), b"u")
    one_queue.result(member.core.subscribe("U"))
    assert member.bodies == [b"u"]
    one_queue.clock.advance(5)
    one_queue.result(member.core.subscribe("T", "x"))
    one_queue.cluster.store(Q, b"no", TAGS="y")
    one_queue.cluster.store(Q, b"yes", TAGS="x")
    assert member.bodies == [b"u", b"yes"]


def test_a_broker_that_is_down_does_not_hold_back_commits_to_others(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=1)
    other = MessageQueue("T", "b", 0)
    world.cluster.store(Q)
    world.cluster.store(other)
    Member(world, name_server).start()
    for down, reached in ((A, other), (B, Q)):
        for queue in (Q, other):
            world.cluster.offsets["g", queue] = 0
        world.faults.down = {down}
        world.clock.advance(5)
        assert [queue for queue in (Q, other) if committed(world, queue) == 1] == [reached]


def test_a_broker_that_was_missing_in_the_route_is_consumed_again_soon(world: World, name_server: str) -> None:
    """One that restarts is out of the route for some seconds; each member that looked then stayed away for a minute."""
    world.cluster.add_topic("T", 1, brokers=["a", "b"])
    member = Member(world, name_server).start()

    def consumed() -> set[str]:
        return {queue.broker_name for queue in member.core.assigned if queue.topic == "T"}

    for _ in range(2):
        assert consumed() == {"a", "b"}
        world.cluster.unregister("b")
        member.core._routes.mark_stale("T")  # as after a pull that failed
        world.clock.pump([1] * 2)
        member.core.ids_changed("g")
        world.cluster.settle()
        world.clock.advance(0.3)
        assert consumed() == {"a"}
        world.cluster.register_again("b", "T")
        world.clock.pump([1] * 7)
