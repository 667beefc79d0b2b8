"""What a program may do with a running member, and what a member does by itself: limits, stuck queues, sending back."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import BadArgument, MemoryOffsets, MessageModel, MessageQueue, RetryLater, Sql
from mqbroker.client.assigned_queues import AssignedQueue
from mqbroker.client.subscription import subscribe_to
from mqbroker.errors import MQError
from mqbroker.wire.bodies import HeartbeatData
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.faults import SILENT
from tests.client.member import RETRY, A, Member, Q
from tests.client.world import World

BACK, SEND, PULL = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


def fail(message: Any) -> None:
    raise ValueError("no")


def test_a_suspended_member_pulls_nothing_until_it_is_resumed(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server, suspend_s=1).start()
    member.core.suspend()
    one_queue.clock.pump([1] * 3)
    pulls = len(one_queue.faults.asked(PULL))
    one_queue.cluster.store(Q, b"0")
    one_queue.clock.pump([1] * 200)
    assert (member.bodies, len(one_queue.faults.asked(PULL))) == ([], pulls)
    member.core.resume()
    one_queue.cluster.settle()
    assert member.bodies == [b"0"]


def test_queues_that_come_while_it_is_suspended_are_not_pulled(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server)
    member.core.suspend()
    member.start()
    one_queue.cluster.store(Q, b"0")
    one_queue.clock.pump([1] * 3)
    assert member.bodies == []
    member.core.resume()
    one_queue.cluster.settle()
    assert member.bodies == [b"0"]


def test_a_topic_that_is_given_up_has_its_offsets_committed(one_queue: World, name_server: str) -> None:
    one_queue.cluster.add_topic("U", queues=1, brokers=["a"])
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server).start()
    one_queue.result(member.core.subscribe("U"))
    one_queue.result(member.core.unsubscribe("T"))
    assert one_queue.cluster.offsets["g", Q] == 1
    assert {queue.topic for queue in member.core.assigned} == {"U", "%RETRY%g"}
    data = HeartbeatData.from_json(one_queue.faults.asked(RequestCode.HEART_BEAT)[-1].body)
    assert {s.topic for s in data.consumer_data_set[0].subscription_data_set} == {"U", "%RETRY%g"}
    one_queue.cluster.store(Q, b"1")
    one_queue.clock.pump([5] * 10)
    assert member.bodies == [b"0"]


@pytest.mark.parametrize("set_forward", [0.0, -100.0])
def test_another_expression_counts_although_the_clock_stands_or_is_set_back(
    one_queue: World, name_server: str, set_forward: float
) -> None:
    member = Member(one_queue, name_server).start("a")
    one_queue.clock.set_forward = set_forward
    one_queue.result(member.core.subscribe("T", "*"))
    for tag in "ab":
        one_queue.cluster.store(Q, tag.encode(), TAGS=tag)
    assert member.bodies == [b"a", b"b"]


def test_the_queues_of_a_topic_share_its_limit(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=2)
    world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])
    queues = [MessageQueue("T", broker, n) for broker in "ab" for n in range(2)]
    for queue in queues:
        for n in range(100):
            world.cluster.store(queue, b"%d" % n)
    member = Member(
        world, name_server, listener=lambda _: Deferred(), concurrency=1, topic_messages_max=40, pull_batch=5
    ).start()
    held = sum(each.cached_msg_count for each in member.core.running_info().mq_table.values())
    assert 40 <= held <= 40 + 4 * 5


def test_nothing_is_committed_of_a_queue_whose_broker_has_not_answered(one_queue: World, name_server: str) -> None:
    """It may not have the offset at which the group is."""
    one_queue.cluster.offsets["g", Q] = 7
    one_queue.faults.refuse[A, PULL] = SILENT
    member = Member(one_queue, name_server).start()
    assert [each.ext_fields["queueOffset"] for each in one_queue.faults.asked(PULL)] == ["0", "7"]
    one_queue.clock.pump([1] * 12)
    assert member.core.positions("T") == {}
    one_queue.result(member.core.close())
    assert one_queue.faults.asked(COMMIT) == []


def test_a_queue_that_is_not_pulled_is_begun_anew(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = [True]
    pull = AssignedQueue._step

    async def step(self: Any) -> None:
        if hangs and self._process_queue is not None and self.queue == Q:
            hangs.clear()
            await Deferred()
        await pull(self)

    monkeypatch.setattr(AssignedQueue, "_step", step)
    member = Member(one_queue, name_server).start()
    one_queue.cluster.store(Q, b"0")
    one_queue.clock.pump([5] * 23)
    assert member.bodies == []
    one_queue.clock.pump([5] * 10)
    assert member.bodies == [b"0"]
    assert "was not pulled for two minutes" in caplog.text


def test_a_full_or_idle_queue_is_not_begun_anew(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    one_queue.cluster.store(Q, b"0")
    Member(one_queue, name_server, listener=lambda _: Deferred(), queue_messages_max=1).start()
    one_queue.clock.pump([5] * 60)
    assert "pulling is restarted" not in caplog.text


def test_a_loop_that_did_not_run_is_no_reason_to_begin_anew(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = MemoryOffsets()
    Member(one_queue, name_server, model=MessageModel.BROADCASTING, offset_store=offsets).start()
    one_queue.cluster.reactor.rightNow += 140
    one_queue.clock.pump([1] * 100)
    assert "pulling is restarted" not in caplog.text


def test_what_the_broker_does_not_take_back_is_sent_to_the_retry_topic(one_queue: World, name_server: str) -> None:
    one_queue.faults.refuse[A, BACK] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.cluster.store(Q, b"0", UNIQ_KEY="U", TAGS="x")
    member = Member(one_queue, name_server, listener=lambda m: m.reconsume_times > 0).start()
    (request,) = one_queue.faults.asked(SEND)
    assert (request.ext_fields["b"], request.ext_fields["j"], request.ext_fields["l"]) == ("%RETRY%g", "1", "17")
    one_queue.clock.pump([5] * 10)
    again = member.got[-1]
    assert (again.body, again.topic, again.reconsume_times, again.tags) == (b"0", "T", 1, "x")
    assert one_queue.cluster.offsets["g", Q] == 1


@pytest.mark.parametrize(("level", "sent"), [(0, 3), (2, 2), (18, 18)])
def test_what_is_sent_to_the_retry_topic_has_the_delay_that_its_listener_wants(
    one_queue: World, name_server: str, level: int, sent: int
) -> None:
    one_queue.faults.refuse[A, BACK] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.cluster.store(Q, b"0")

    def listener(message: Any) -> None:
        if not message.reconsume_times:
            raise RetryLater(level)

    Member(one_queue, name_server, listener=listener).start()
    (request,) = one_queue.faults.asked(SEND)
    assert (request.ext_fields["j"], request.ext_fields["l"]) == ("1", "17")
    (waiting,) = one_queue.cluster.stored(MessageQueue("SCHEDULE_TOPIC_XXXX", "a", sent - 1))
    assert (waiting.body, waiting.reconsume_times) == (b"0", 1)


def test_a_dead_letter_that_the_broker_does_not_take_back_is_one_all_the_same(
    one_queue: World, name_server: str
) -> None:
    one_queue.faults.refuse[A, BACK] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.cluster.store(Q, b"0")

    def listener(message: Any) -> None:
        raise RetryLater(-1)

    Member(one_queue, name_server, listener=listener).start()
    one_queue.clock.pump([1] * 3)
    assert [r.body for r in one_queue.cluster.stored(MessageQueue("%DLQ%g", "a", 0))] == [b"0"]


def test_where_neither_is_possible_it_is_tried_here(one_queue: World, name_server: str) -> None:
    for code in (BACK, SEND):
        one_queue.faults.refuse[A, code] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, listener=lambda m: m.reconsume_times > 0).start()
    one_queue.clock.advance(5)
    assert [(m.body, m.reconsume_times) for m in member.got] == [(b"0", 0), (b"0", 1)]
    assert RETRY in member.core.assigned


def test_an_expression_is_sent_as_one(one_queue: World, name_server: str) -> None:
    data = subscribe_to("T", Sql("a > 5 AND b = 'x'"), 7)
    assert (data.sub_string, data.expression_type, data.tags_set) == ("a > 5 AND b = 'x'", "SQL92", frozenset())


@pytest.mark.parametrize("expression", ["a >", "", "a" * 100_000, 5, None])
def test_an_expression_that_no_broker_could_read_is_refused_here(expression: Any) -> None:
    with pytest.raises(BadArgument):
        Sql(expression)


def test_an_expression_as_text_is_refused_with_what_to_write() -> None:
    with pytest.raises(MQError, match=r"or Sql\('a > 5'\)"):
        subscribe_to("T", "a > 5", 1)
    with pytest.raises(BadArgument, match="tags as text, or Sql"):
        subscribe_to("T", 5, 1)  # type: ignore[arg-type]
