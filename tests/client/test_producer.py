from typing import Any

import pytest

from mqbroker.client import (
    Message,
    NoBrokerForTopic,
    ProducerOptions,
    SendFailed,
    SendStatus,
)
from mqbroker.client.producer import ProducerCore
from mqbroker.errors import Refused, RequestTimedOut
from mqbroker.wire.bodies import HeartbeatData, MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import SendMessageResponseHeader
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.names import split_address
from tests.client.faults import Passage
from tests.client.world import FixedIdentity, World

SEND = RequestCode.SEND_MESSAGE_V2
A, B = "10.0.0.2:10911", "10.0.0.3:10911"


def make(world: World, name_server: str, **options: Any) -> Any:
    net = world.net()
    return ProducerCore(
        net,
        (name_server,),
        "pg",
        ProducerOptions(**options),
        FixedIdentity(),
    )


@pytest.fixture
def producer(world: World, name_server: str) -> Any:
    world.cluster.add_topic("T")
    world.cluster.register("a", "10.0.0.5:10911", 1)
    return make(world, name_server)


def test_queues_take_turns_and_results_say_where(world: World, producer: Any) -> None:
    results = [world.result(producer.send(Message("T", b"x"))) for _ in range(8)]
    assert {r.status for r in results} == {SendStatus.SEND_OK}
    assert sorted(r.queue for r in results[:4]) == world.result(producer.queues("T"))
    assert [r.queue_offset for r in results] == [0] * 4 + [1] * 4
    assert results[0].msg_id == "U0"
    ids = [parse_offset_message_id(r.offset_msg_id) for r in results]
    assert {place for place, _ in ids} == {split_address(A), split_address(B)}


def test_a_failed_attempt_goes_to_another_broker_with_the_same_id(world: World, producer: Any) -> None:
    world.faults.down.add(A)
    for _ in range(4):
        assert world.result(producer.send(Message("T", b"x"))).queue.broker_name == "b"
    tried = [request.ext_fields["i"] for request in world.faults.asked(SEND)]
    assert len(set(tried)) == 4
    assert len(tried) > 4


def test_the_second_attempt_already_avoids_the_broker_that_failed(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=4)
    world.faults.down.add(A)
    producer = make(world, name_server, retries=1)
    for _ in range(16):
        assert world.result(producer.send(Message("T", b"x"))).queue.broker_name == "b"


def test_after_a_failure_the_route_is_asked_for_again(world: World, producer: Any) -> None:
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    world.faults.down.add(A)
    for _ in range(4):
        world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(route)) == 1
    world.cluster.unregister("a")
    world.clock.advance(1)
    before = len(world.faults.asked(SEND))
    for _ in range(4):
        world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(route)) == 2
    assert len(world.faults.asked(SEND)) == before + 4


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_refusal_that_another_broker_may_not_make_is_retried(world: World, producer: Any, code: Any) -> None:
    world.faults.refuse[A, SEND] = (code, "busy")
    assert {world.result(producer.send(Message("T", b"x"))).queue.broker_name for _ in range(4)} == {"b"}


def test_a_refusal_for_good_is_raised_at_once(world: World, producer: Any) -> None:
    for addr in (A, B):
        world.faults.refuse[addr, SEND] = (ResponseCode.MESSAGE_ILLEGAL, "no")
    with pytest.raises(Refused, match="no"):
        world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(SEND)) == 1


def failure_of(world: World, coroutine: Any, steps: Any = 40) -> Any:
    """What a send fails with, and how many seconds after it began."""
    failed, began = [], world.clock.seconds()
    world.run(coroutine).addErrback(lambda failure: failed.append((failure.value, world.clock.seconds() - began)))
    world.clock.pump([0.1] * steps)
    return failed[0]


def test_attempts_go_on_until_the_time_is_over_and_are_named(world: World, producer: Any) -> None:
    world.faults.down.update((A, B))
    error, took_s = failure_of(world, producer.send(Message("T", b"x")))
    assert isinstance(error, SendFailed)
    assert {addr for _, addr, _ in error.attempts} == {A, B}
    assert 2.5 < took_s <= 3.0
    assert len(error.attempts) > 6
    assert "times); " in str(error)
    assert not world.clock.getDelayedCalls()


@pytest.mark.parametrize("place", [{}, {"key": "k"}, {"queue": MessageQueue("T", "a", 0)}])
@pytest.mark.parametrize("forgotten", [False, True], ids=["route kept", "route gone"])
def test_a_broker_that_is_away_for_a_second_fails_no_send(
    world: World, name_server: str, place: Any, forgotten: Any
) -> None:
    """The name server forgets a broker that has left; its topic has no queues then, or is not known at all."""
    world.cluster.add_topic("T", brokers=["a"])
    producer = make(world, name_server)
    world.result(producer.send(Message("T", b"before")))
    world.cluster.create_no_topics()
    world.faults.down.add(A)
    if forgotten:
        world.cluster.unregister("a")
    found: list[Any] = []
    world.run(producer.send(Message("T", b"x"), **place)).addBoth(found.append)
    world.clock.pump([0.05] * 20)
    assert not found
    world.faults.down.clear()
    world.cluster.register_again("a", "T")
    world.clock.pump([0.1] * 10)
    assert found[0].status is SendStatus.SEND_OK


def test_a_topic_whose_only_broker_has_left_the_route_is_waited_for(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    world.cluster.register("a", "10.0.0.5:10911", 1)
    world.cluster.unregister("a")
    found: list[Any] = []
    world.run(make(world, name_server).send(Message("T", b"x"))).addBoth(found.append)
    world.clock.pump([0.1] * 5)
    assert not found
    world.cluster.register_again("a", "T")
    world.clock.pump([0.1] * 10)
    assert found[0].status is SendStatus.SEND_OK


def test_a_broker_that_stays_away_from_the_route_fails_the_send_in_time(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    world.cluster.register("a", "10.0.0.5:10911", 1)
    world.cluster.unregister("a")
    error, took_s = failure_of(world, make(world, name_server).send(Message("T", b"x")))
    assert isinstance(error, NoBrokerForTopic)
    assert 2.5 < took_s <= 3.0


@pytest.mark.parametrize(("size", "is_tried_again"), [(16 * 2**20, False), (2**20, True)])
def test_a_connection_that_ends_on_too_long_a_frame_is_not_tried_again(
    world: World, name_server: str, size: Any, is_tried_again: Any
) -> None:
    world.cluster.add_topic("T")
    world.faults.refuse[None, SEND] = Passage.cut
    producer = make(world, name_server, message_bytes_max=2**30, compress_over_bytes=2**30)
    error, took_s = failure_of(world, producer.send(Message("T", bytes(size))))
    assert (len(error.attempts) > 1) == (took_s > 2.5) == is_tried_again


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_retries_bound_the_attempts(world: World, name_server: str, retries: Any) -> None:
    world.cluster.add_topic("T")
    world.faults.down.update((A, B))
    error, _ = failure_of(world, make(world, name_server, retries=retries).send(Message("T", b"x")))
    assert len(error.attempts) == 1 + retries


@pytest.mark.parametrize(
    ("code", "attempts"),
    [(ResponseCode.NO_PERMISSION, 3), (ResponseCode.SYSTEM_ERROR, 3), (ResponseCode.SYSTEM_BUSY, 9)],
)
def test_a_refusal_is_repeated_for_long_only_where_it_may_pass(
    world: World, producer: Any, code: Any, attempts: Any
) -> None:
    for addr in (A, B):
        world.faults.refuse[addr, SEND] = (code, "no")
    error, _ = failure_of(world, producer.send(Message("T", b"x")))
    assert len(error.attempts) >= attempts
    assert (len(error.attempts) == 3) == (attempts == 3)


def test_a_send_of_an_hour_names_only_so_many_attempts(world: World, producer: Any) -> None:
    world.faults.down.update((A, B))
    error, _ = failure_of(world, producer.send(Message("T", b"x"), timeout_s=60), steps=700)
    assert len(error.attempts) == 16


def test_all_attempts_together_end_in_time(world: World, producer: Any, silent: object) -> None:
    world.faults.refuse[A, SEND] = world.faults.refuse[B, SEND] = silent
    failed: list[Any] = []
    world.run(producer.send(Message("T", b"x"), timeout_s=0.5)).addErrback(failed.append)
    world.clock.advance(0.49)
    assert not failed
    world.clock.advance(0.01)
    world.clock.pump([0.1] * 5)
    assert isinstance(failed[0].value, SendFailed)
    assert isinstance(failed[0].value.attempts[0][2], RequestTimedOut)
    assert len(world.faults.asked(SEND)) == 1


def test_a_chosen_queue_is_the_only_one_that_is_tried(world: World, producer: Any) -> None:
    queue = MessageQueue("T", "a", 1)
    assert world.result(producer.send(Message("T", b"x"), queue=queue)).queue == queue
    same = {world.result(producer.send(Message("T", b"x"), key="k")).queue for _ in range(5)}
    assert len(same) == 1
    picked = world.result(producer.send(Message("T", b"x"), selector=lambda queues, message: queues[-1]))
    assert picked.queue == MessageQueue("T", "b", 1)
    world.faults.down.add(A)
    error, _ = failure_of(world, producer.send(Message("T", b"x"), queue=queue))
    assert {(name, addr) for name, addr, _ in error.attempts} == {("a", A)}


@pytest.mark.parametrize("status", [s for s in SendStatus if s])
def test_statuses_short_of_safe_are_results(world: World, producer: Any, status: Any) -> None:
    header = SendMessageResponseHeader(msg_id="ID", queue_id=0, queue_offset=0)
    world.faults.refuse[None, SEND] = lambda passage: passage.answer(
        RemotingCommand.response(passage.request, status, header=header)
    )
    assert world.result(producer.send(Message("T", b"x"))).status is status


def test_response_codes_that_are_retried_may_be_chosen(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    world.faults.refuse[A, SEND] = (ResponseCode.MESSAGE_ILLEGAL, "no")
    world.faults.refuse[B, SEND] = (ResponseCode.SYSTEM_ERROR, "no")
    producer = make(world, name_server, retry_codes={ResponseCode.MESSAGE_ILLEGAL}, avoid_slow_brokers=False)
    for _ in range(4):
        with pytest.raises(Refused, match="CODE: 1 "):  # b's is not retried
            world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(SEND)) == 6


def stores_less(world: World, *addrs: str) -> None:
    header = SendMessageResponseHeader(msg_id="ID", queue_id=0, queue_offset=7)
    for addr in addrs:
        world.faults.refuse[addr, SEND] = lambda passage: passage.answer(
            RemotingCommand.response(passage.request, ResponseCode.SLAVE_NOT_AVAILABLE, header=header)
        )


def test_another_broker_is_asked_where_one_may_lose_the_message(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    stores_less(world, A)
    producer = make(world, name_server, retry_unstored=True, avoid_slow_brokers=False)
    for _ in range(4):
        result = world.result(producer.send(Message("T", b"x")))
        assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "b")
    tried = [request.ext_fields["i"] for request in world.faults.asked(SEND)]
    assert (len(tried), len(set(tried))) == (6, 4)
    assert world.result(make(world, name_server).send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))).status == 11


def test_where_all_brokers_may_lose_it_the_last_result_is_returned(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    stores_less(world, A, B)
    producer = make(world, name_server, retry_unstored=True, retries=1)
    result = world.result(producer.send(Message("T", b"x")))
    assert (result.status, result.queue_offset) == (SendStatus.SLAVE_NOT_AVAILABLE, 7)
    assert len(world.faults.asked(SEND)) == 2


def test_a_topic_is_created_like_another_than_the_default(world: World, name_server: str) -> None:
    world.cluster.add_topic("like", queues=2, perm=7, brokers=["b"])
    producer = make(world, name_server, create_topic_key="like")
    assert {queue.broker_name for queue in world.result(producer.queues("new"))} == {"b"}
    world.result(producer.send(Message("new", b"x")))
    assert world.faults.asked(SEND)[0].ext_fields["c"] == "like"


def test_sends_may_go_to_the_second_port(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", brokers=["a"])
    for _ in range(2):
        with pytest.raises(SendFailed, match=r"a at 10\.0\.0\.2:10911: .*10\.0\.0\.2:10909"):
            world.result(make(world, name_server, vip_channel=True, retries=0).send(Message("T", b"x")))
    assert world.faults.asked(SEND) == []


def test_the_unit_mode_is_sent(world: World, name_server: str) -> None:
    world.cluster.add_topic("T")
    world.result(make(world, name_server, unit_mode=True).send(Message("T", b"x")))
    assert world.faults.asked(SEND)[0].ext_fields["k"] == "true"


def test_batches_and_oneways(world: World, producer: Any) -> None:
    results = world.result(producer.send_batch([Message("T", b"1"), Message("T", b"2")]))
    assert [result.msg_id for result in results] == ["U0", "U1"]
    assert [parse_offset_message_id(result.offset_msg_id)[0] for result in results] == [split_address(A)] * 2
    assert [result.queue_offset for result in results] == [0, 1]
    assert len(world.cluster.stored(results[0].queue)) == 2
    world.result(producer.send_oneway(Message("T", b"3")))
    assert len(world.faults.asked(SEND)) == 1


def test_a_topic_that_nobody_may_write_to(world: World, producer: Any) -> None:
    world.cluster.add_topic("R", perm=4)
    with pytest.raises(NoBrokerForTopic):
        world.result(producer.send(Message("R", b"x")))


def test_brokers_hear_of_the_producer_once_a_period_and_when_it_leaves(world: World, producer: Any) -> None:
    beats = RequestCode.HEART_BEAT
    for _ in range(8):
        world.result(producer.send(Message("T", b"x")))
    assert sorted(world.faults.asked_of(beats)) == [A, B]
    data = HeartbeatData.from_json(world.faults.asked(beats)[0].body)
    assert (data.client_id, [p.group_name for p in data.producer_data_set]) == ("me", ["pg"])
    world.clock.advance(30)
    for _ in range(4):
        world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(beats)) == 4
    world.result(producer.close())
    assert sorted(world.faults.asked_of(RequestCode.UNREGISTER_CLIENT)) == [A, B]


def test_a_clock_that_is_set_back_or_forward_changes_no_heartbeat_and_no_time_out(world: World, producer: Any) -> None:
    beats = RequestCode.HEART_BEAT
    for _ in range(8):
        world.result(producer.send(Message("T", b"x")))
    world.clock.set_forward -= 3600
    world.clock.advance(30)
    for _ in range(4):
        world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(beats)) == 4
    world.clock.set_forward += 7200
    for _ in range(4):
        world.result(producer.send(Message("T", b"x")))
    assert len(world.faults.asked(beats)) == 4
    for addr in (A, B):
        world.faults.refuse[addr, RequestCode.SEND_MESSAGE_V2] = (ResponseCode.SYSTEM_BUSY, "busy")
    outcome: list[Any] = []
    world.run(producer.send(Message("T", b"x"))).addErrback(outcome.append)
    world.clock.set_forward += 3600
    world.clock.pump([0.1] * 20)
    assert outcome == []
    world.clock.set_forward -= 7200
    world.clock.pump([0.1] * 15)
    assert outcome[0].check(SendFailed)


def test_kept_alive_it_beats_and_refreshes_by_itself(world: World, producer: Any) -> None:
    world.result(producer.send(Message("T", b"x")))
    world.result(producer.start())
    before = len(world.faults.requests)
    world.clock.advance(30)
    codes = [request.code for _, request in world.faults.requests[before:]]
    assert sorted(codes) == [RequestCode.HEART_BEAT, RequestCode.HEART_BEAT, RequestCode.GET_ROUTEINFO_BY_TOPIC]
    world.result(producer.close())
    assert not world.clock.getDelayedCalls()
