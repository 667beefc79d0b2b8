"""Pulls: what is found, what is told, what waits."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqbroker.broker.long_polling import HELD_ON_CONNECTION_MAX
from mqbroker.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData, SubscriptionGroupConfig
from mqbroker.wire.codes import Perm, PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, ROCKETMQ, FrameDecoder, RemotingCommand
from mqbroker.wire.headers import CreateTopicRequestHeader, encode_header
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench, Client, FakeConnection, pull_header
from tests.broker.sending import put_topic

COMMIT, SUSPEND, SUBSCRIPTION = PullSysFlag.COMMIT_OFFSET, PullSysFlag.SUSPEND, PullSysFlag.SUBSCRIPTION
PULL = RequestCode.PULL_MESSAGE


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


def offsets(answer: RemotingCommand) -> tuple[int, ...]:
    """(next, min, max)"""
    return tuple(int(answer.ext_fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


def fill(client: Client, count: int = 3, topic: str = "T", **fields: Any) -> None:
    for i in range(count):
        (answer,) = client.send(topic, b"%d" % i, **fields)
        assert answer.code == 0
    client.bench.store.dispatch_now()


def beat(client: Client, *subscriptions: SubscriptionData, group: str = "CG", **fields: Any) -> None:
    consumer = ConsumerData(group, subscription_data_set=list(subscriptions), **fields)
    assert client.ask(RequestCode.HEART_BEAT, body=HeartbeatData("c1", [], [consumer]).to_json()).code == 0


@pytest.mark.parametrize("serialize_type", [0, ROCKETMQ])
def test_messages_are_found(client: Client, serialize_type: int) -> None:
    fill(client, 5)
    answer = client.ask(PULL, pull_header(queue_offset=1, max_msg_nums=3), serialize_type=serialize_type)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies(answer) == [b"1", b"2", b"3"]
    assert offsets(answer) == (4, 0, 5)
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"


@pytest.mark.parametrize("most", [7, 32])
@pytest.mark.parametrize("is_known", [False, True])
def test_who_pulls_to_the_end_gets_all_that_was_acknowledged_before(client: Client, is_known: bool, most: int) -> None:
    fill(client, 70)
    if is_known:
        client.pull(max_msg_nums=most)  # the next ones like it need not be checked
    for number in range(70, 134):
        assert client.send("T", b"%d" % number)[0].code == 0  # their dispatch waits for more
    found: list[bytes] = []
    end = 1
    while len(found) < end:
        answer = client.pull(queue_offset=len(found), max_msg_nums=most)
        found += bodies(answer)
        _, _, end = offsets(answer)
    assert found == [b"%d" % number for number in range(134)]


@pytest.mark.parametrize("serialize_type", [0, ROCKETMQ])
@pytest.mark.parametrize(
    ("ratio", "allowed", "next_broker"), [(0, True, "7"), (40, True, "5"), (0, False, "0"), (40, False, "0")]
)
def test_a_slave_is_to_be_asked_where_a_group_is_far_behind(
    make_bench: Callable[..., Bench], ratio: int, allowed: bool, next_broker: str, serialize_type: int
) -> None:
    bench = make_bench(slave_read_enable=allowed, store={"access_message_in_memory_max_ratio": ratio})
    bench.groups.put(SubscriptionGroupConfig("CG", broker_id=5, which_broker_when_consume_slowly=7))
    client = bench.client()
    fill(client, 9)
    answer = client.ask(PULL, pull_header(queue_offset=0), serialize_type=serialize_type)
    assert (answer.code, answer.ext_fields["suggestWhichBrokerId"]) == (ResponseCode.SUCCESS, next_broker)
    answer = client.ask(PULL, pull_header(queue_offset=10), serialize_type=serialize_type)
    assert answer.ext_fields["suggestWhichBrokerId"] == ("5" if allowed else "0")


OUTCOMES = [
    # (messages, offset asked for, code, name, next offset)
    (0, 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
    (0, 7, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
    (0, -1, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
    (3, 0, ResponseCode.SUCCESS, "FOUND", 3),
    (3, 2, ResponseCode.SUCCESS, "FOUND", 3),
    (3, 3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
    (3, 4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    (3, 2**62, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    (3, -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
]


@pytest.mark.parametrize(("count", "asked", "code", "name", "following"), OUTCOMES)
def test_every_outcome_has_its_code_and_all_three_offsets(
    client: Client, count: int, asked: int, code: int, name: str, following: int
) -> None:
    put_topic(client, "T")
    fill(client, count)
    answer = client.pull(queue_offset=asked)
    assert (answer.code, answer.remark) == (code, name)
    assert offsets(answer) == (following, 0, count)
    assert len(bodies(answer)) == (3 - asked if code == 0 else 0)


@pytest.mark.parametrize("count", [0, -5, 2**31 - 1])
def test_any_number_of_messages_may_be_asked_for(client: Client, count: int) -> None:
    fill(client, 3)
    answer = client.pull(max_msg_nums=count)
    assert answer.code == 0
    assert 1 <= len(bodies(answer)) <= 32


def test_many_pulls_of_one_read(client: Client) -> None:
    fill(client, 4)
    commands = [RemotingCommand.request(PULL, pull_header(queue_offset=i)) for i in (0, 3, 9, 1)]
    answers = client.ask_all(*commands)
    assert [answer.opaque for answer in answers] == [command.opaque for command in commands]
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.PULL_OFFSET_MOVED, 0]


# --- tags


def test_tags_of_the_request(client: Client) -> None:
    for i, tag in enumerate("ABCAB"):
        client.send(body=b"%d" % i, properties=f"TAGS\x01{tag}")
    client.bench.store.dispatch_now()
    assert bodies(client.pull(subscription="A")) == [b"0", b"3"]
    answer = client.pull(subscription=" A || C ")
    assert bodies(answer) == [b"0", b"2", b"3"]
    assert offsets(answer)[0] == 5
    assert (
        bodies(client.pull(subscription="*")) == bodies(client.pull(subscription="")) == [b"%d" % i for i in range(5)]
    )
    nothing = client.pull(subscription="Z")
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert offsets(nothing) == (5, 0, 5)


@pytest.mark.parametrize("expression", ["||", " || ", "|| ||"])
def test_an_expression_without_tags_is_refused(client: Client, expression: str) -> None:
    fill(client, 1)
    assert client.pull(subscription=expression).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_another_kind_of_expression_is_refused(client: Client) -> None:
    fill(client, 1)
    answer = client.pull(subscription="a > 1", expression_type="SQL92")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The broker does not support consumer to filter message by SQL92"


def test_the_registered_subscription_counts_without_the_flag(client: Client) -> None:
    for tag in "AB":
        client.send(body=tag.encode(), properties=f"TAGS\x01{tag}")
    beat(client, SubscriptionData("T", "A", frozenset("A"), frozenset([java_hash("A")]), sub_version=5))
    assert bodies(client.pull(sys_flag=0, subscription=None, sub_version=5)) == [b"A"]
    assert bodies(client.pull(sys_flag=0, subscription="B", sub_version=4)) == [b"A"]
    late = client.pull(sys_flag=0, sub_version=6)
    assert (late.code, late.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        "the consumer's subscription not latest",
    )


def test_hashes_a_client_left_out_are_filled_in(client: Client) -> None:
    for tag in "AB":
        client.send(body=tag.encode(), properties=f"TAGS\x01{tag}")
    beat(client, SubscriptionData("T", "A || C", sub_version=5))
    assert bodies(client.pull(sys_flag=0, subscription=None, sub_version=5)) == [b"A"]


def test_who_is_not_registered_is_told_so(client: Client) -> None:
    fill(client, 1)
    answer = client.pull(sys_flag=0)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark.startswith("the consumer's group info not exist")
    beat(client, SubscriptionData("Other"))
    answer = client.pull(sys_flag=0)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark.startswith("the consumer's subscription not exist")


def test_broadcasting_must_be_allowed_to_the_group(bench: Bench, client: Client) -> None:
    fill(client, 1)
    bench.groups.put(SubscriptionGroupConfig("CG", consume_broadcast_enable=False))
    beat(client, SubscriptionData("T"), message_model="BROADCASTING")
    answer = client.pull(sys_flag=0, sub_version=0)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "can not consume by broadcast way" in (answer.remark or "")


# --- refusals


def test_an_unknown_group_is_made_or_refused(bench: Bench, client: Client, make_bench: Callable[..., Bench]) -> None:
    fill(client, 1)
    assert client.pull(consumer_group="New").code == 0
    assert bench.groups.find("New") is not None
    other = make_bench("other", auto_create_subscription_group=False).client()
    fill(other, 1)
    answer = other.pull()
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark.startswith("subscription group [CG] does not exist, ")


@pytest.mark.parametrize("group", ["../x", "a b", "é", "g" * 256, "g" * 100_000])
def test_an_illegal_group_is_no_group(bench: Bench, client: Client, group: str) -> None:
    fill(client, 1)
    answer = client.pull(consumer_group=group)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert len(answer.remark) < 500
    assert group not in bench.groups.snapshot().subscription_group_table


def test_a_group_may_be_disabled(bench: Bench, client: Client) -> None:
    fill(client, 1)
    bench.groups.put(SubscriptionGroupConfig("CG", consume_enable=False))
    answer = client.pull()
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "subscription group no permission, CG")


def test_topics_that_cannot_be_pulled(bench: Bench, client: Client, make_bench: Callable[..., Bench]) -> None:
    answer = client.pull("None")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("topic[None] not exist, apply first please!")
    assert client.pull("../x").code == ResponseCode.TOPIC_NOT_EXIST
    put_topic(client, "WriteOnly", perm=Perm.WRITE)
    answer = client.pull("WriteOnly")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic[WriteOnly] pulling message is forbidden",
    )
    closed = make_bench("closed", broker_permission=Perm.WRITE).client()
    assert closed.pull().code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("queue_id", [-1, 4, 2**31 - 1])
def test_a_queue_id_out_of_range_is_refused(client: Client, queue_id: int) -> None:
    fill(client, 1)
    answer = client.pull(queue_id=queue_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith(f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4]")


@pytest.mark.parametrize("field", ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag",
                                   "commitOffset", "suspendTimeoutMillis", "subVersion"])  # fmt: skip
def test_a_missing_or_bad_field_is_named(client: Client, field: str) -> None:
    command = RemotingCommand.request(PULL, pull_header())
    del command.ext_fields[field]
    (answer,) = client.ask_all(command)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{field}> is null")
    if field not in ("consumerGroup", "topic"):
        command.ext_fields[field] = "1.5"
        (answer,) = client.ask_all(command)
        assert f"<{field}>" in (answer.remark or "")


# --- offsets


def test_a_pull_commits_the_offset_it_carries(bench: Bench, client: Client) -> None:
    fill(client, 3)
    client.pull(sys_flag=SUBSCRIPTION, commit_offset=2)
    assert bench.offsets.query("CG", "T", 0) is None
    client.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=2)
    assert bench.offsets.query("CG", "T", 0) == 2
    client.pull(sys_flag=SUBSCRIPTION | COMMIT | SUSPEND, queue_offset=3, commit_offset=3)
    assert bench.offsets.query("CG", "T", 0) == 3


@pytest.mark.parametrize("offset", [-1, -(2**63)])
def test_a_negative_offset_is_not_committed(bench: Bench, client: Client, offset: int) -> None:
    fill(client, 1)
    client.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=offset)
    assert bench.offsets.query("CG", "T", 0) is None


# --- long polling


def waits(client: Client, topic: str = "T", **fields: Any) -> int:
    """Send a pull that must wait; its opaque."""
    answer = client.pull(topic, sys_flag=fields.pop("sys_flag", SUBSCRIPTION) | SUSPEND, **fields)
    assert answer is None
    return client._opaque


def test_a_pull_waits_for_a_message(bench: Bench, client: Client) -> None:
    fill(client, 1)
    opaque = waits(client, queue_offset=1)
    assert len(bench.held) == 1
    bench.client().send(body=b"new")
    (answer,) = client.heard()
    assert (answer.code, answer.opaque, bodies(answer)) == (0, opaque, [b"new"])
    assert offsets(answer) == (2, 0, 2)
    assert len(bench.held) == 0
    bench.client().send()
    assert client.heard() == []


def test_it_waits_in_a_queue_that_has_never_had_a_message(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    waits(client)
    bench.client().send(body=b"first")
    assert bodies(client.heard()[0]) == [b"first"]


def test_messages_of_others_do_not_wake_it(bench: Bench, client: Client) -> None:
    fill(client, 1)
    waits(client, queue_offset=1)
    other = bench.client()
    other.send("Other")
    other.send(queue_id=1)
    assert client.heard() == []
    assert len(bench.held) == 1


def test_its_time_is_up(bench: Bench, client: Client) -> None:
    fill(client, 1)
    opaque = waits(client, queue_offset=1, suspend_timeout_millis=3000)
    bench.turn(2.5)
    assert client.heard() == []
    bench.turn(1)
    (answer,) = client.heard()
    assert (answer.code, answer.opaque) == (ResponseCode.PULL_NOT_FOUND, opaque)
    assert offsets(answer) == (1, 0, 1)
    assert len(bench.held) == 0


def test_no_pull_waits_for_ever(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    waits(client, suspend_timeout_millis=2**62)
    waits(client, suspend_timeout_millis=-5)
    bench.turn(1)
    assert len(client.heard()) == 1
    for _ in range(6):
        assert client.ask(9999) is not None  # so that the connection is not idle
        bench.turn(100)
    assert len(client.heard()) == 1


def test_unwanted_messages_let_it_wait_behind_them(bench: Bench, client: Client) -> None:
    fill(client, 1)
    opaque = waits(client, queue_offset=1, subscription="A")
    other = bench.client()
    for _ in range(3):
        other.send(properties="TAGS\x01B")
    assert client.heard() == []
    other.send(body=b"wanted", properties="TAGS\x01A")
    (answer,) = client.heard()
    assert (answer.opaque, bodies(answer)) == (opaque, [b"wanted"])
    assert offsets(answer) == (5, 0, 5)


def test_time_up_behind_unwanted_messages_tells_where_to_go_on(bench: Bench, client: Client) -> None:
    fill(client, 1)
    waits(client, queue_offset=1, subscription="A", suspend_timeout_millis=2000)
    bench.client().send(properties="TAGS\x01B")
    bench.turn(3)
    (answer,) = client.heard()
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert offsets(answer) == (2, 0, 2)


def test_several_wait_for_one_queue(bench: Bench) -> None:
    clients = [bench.client() for _ in range(3)]
    fill(clients[0], 1)
    for client in clients:
        waits(client, queue_offset=1)
    bench.client().send(body=b"x")
    assert [bodies(client.heard()[0]) for client in clients] == [[b"x"]] * 3


def test_who_waits_and_goes_is_forgotten(bench: Bench, client: Client) -> None:
    fill(client, 1)
    waits(client, queue_offset=1)
    client.link.cut()
    bench.turn(1)
    assert len(bench.held) == 0
    bench.client().send()


def test_without_long_polling_it_waits_a_short_time(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(long_polling_enable=False, short_polling_time_ms=1000)
    client = bench.client()
    fill(client, 1)
    waits(client, queue_offset=1, suspend_timeout_millis=100_000)
    bench.turn(2)
    assert client.heard()[0].code == ResponseCode.PULL_NOT_FOUND


def test_oneway_is_neither_answered_nor_held(bench: Bench, client: Client) -> None:
    fill(client, 1)
    for offset in (0, 1):
        command = RemotingCommand.request(PULL, pull_header(queue_offset=offset, sys_flag=SUBSCRIPTION | SUSPEND))
        command.flag = ONEWAY_FLAG
        assert client.ask_all(command) == []
    assert len(bench.held) == 0


def test_an_offset_out_of_range_does_not_wait(client: Client) -> None:
    fill(client, 1)
    assert client.pull(queue_offset=5, sys_flag=SUBSCRIPTION | SUSPEND).code == ResponseCode.PULL_OFFSET_MOVED


def test_a_held_pull_is_answered_in_its_header_encoding(bench: Bench, client: Client) -> None:
    fill(client, 1)
    header = pull_header(queue_offset=1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=1000)
    assert client.ask(PULL, header, serialize_type=ROCKETMQ) is None
    bench.turn(2)
    assert client.heard()[0].serialize_type == ROCKETMQ


@pytest.mark.parametrize("outcome", ["found", "not found", "failed"])
def test_a_held_pull_whose_message_has_left_memory_is_answered_when_it_is_there(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    fill(client, 1)
    waits(client, queue_offset=1)
    get = bench.store.get
    later: Deferred[Any] = Deferred()
    monkeypatch.setattr(bench.store, "get", lambda *arguments: later)
    bench.client().send(body=b"x")
    bench.turn(2)
    assert client.heard() == []
    assert len(bench.held) == 0
    offset = {"found": 1, "not found": 2, "failed": None}[outcome]
    later.callback(Failure(OSError("gone")) if offset is None else get("T", 0, offset, 32))
    (answer,) = client.heard()
    codes = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.SYSTEM_ERROR
    assert answer.code == dict(zip((1, 2, None), codes, strict=True))[offset]
    assert bodies(answer) == ([b"x"] if outcome == "found" else [])


def test_stopping_answers_all_who_wait(bench: Bench, client: Client) -> None:
    fill(client, 1)
    waits(client, queue_offset=1)
    bench.held.stop()
    assert client.heard()[0].code == ResponseCode.PULL_NOT_FOUND
    bench.held.start()


def test_no_connection_holds_more_than_its_share(bench: Bench) -> None:
    """More are answered at once, as if their time were up: memory stays bounded, and good clients just ask again."""
    greedy, modest = bench.client(), bench.client()
    put_topic(modest, "T")
    header = encode_header(pull_header(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=1000))
    for _ in range(HELD_ON_CONNECTION_MAX // 1000 + 1):
        greedy.tell(*[RemotingCommand(PULL, header) for _ in range(1000)])
    assert len(bench.held) == HELD_ON_CONNECTION_MAX
    assert {answer.code for answer in greedy.heard()} == {ResponseCode.PULL_NOT_FOUND}
    waits(modest)
    bench.client().send(body=b"x")
    assert len(greedy.heard()) == HELD_ON_CONNECTION_MAX
    assert len(modest.heard()) == 1
    waits(greedy, queue_offset=1)  # and there is room again


_longs = st.sampled_from([0, 1, 2, 3, 4, -1, 2**31, 2**63 - 1, -(2**63)])
_ints = st.sampled_from([0, 1, 4, -1, 2**31 - 1, -(2**31)])


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    from tests.broker.bench import Bench

    bench = Bench(tmp_path_factory.mktemp("pull"))
    fill(bench.client(), 3)
    yield bench
    bench.close()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "queue_id": _ints,
            "queue_offset": _longs,
            "max_msg_nums": _ints,
            "sys_flag": _ints | st.integers(0, 31),
            "commit_offset": _longs,
            "suspend_timeout_millis": _longs,
            "sub_version": _longs,
            "subscription": st.none() | st.text(max_size=6),
            "expression_type": st.none() | st.text(max_size=4),
            "consumer_group": st.text(max_size=6),
            "topic": st.sampled_from(["T", "U", "..", ""]),
        },
    )
)
def test_any_pull_is_answered_once_or_held(module_bench: Bench, fields: dict[str, Any]) -> None:
    connection = FakeConnection()
    before = len(module_bench.held)
    header = encode_header(pull_header(**fields))
    ext, opaque, flag, body, kind = header, 7, 0, b"", 0
    table = module_bench.table.batch[PULL]
    answers = FrameDecoder().feed(cast(bytes, table([(ext, opaque, flag, body, kind)], connection)))
    assert len(answers) + len(module_bench.held) - before == 1


def test_a_topic_with_fewer_read_queues(client: Client) -> None:
    header = CreateTopicRequestHeader(
        topic="T", default_topic="TBW102", read_queue_nums=1, write_queue_nums=4, perm=6,
        topic_filter_type="SINGLE_TAG", order=False,
    )  # fmt: skip
    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert client.pull(queue_id=1).code == ResponseCode.SYSTEM_ERROR
    assert client.pull(queue_id=0).code == ResponseCode.PULL_NOT_FOUND


def test_many_pulls_of_one_read_are_answered_in_order(bench: Bench, client: Client) -> None:
    for i in range(3):
        client.send(body=b"%d" % i, properties="")
    bench.store.dispatch_now()
    pulls = [RemotingCommand.request(11, pull_header("T", queue_offset=i % 3, max_msg_nums=1)) for i in range(200)]
    answers = client.ask_all(*pulls)
    assert [decode_records(answer.body)[0].body for answer in answers] == [b"%d" % (i % 3) for i in range(200)]
    assert [answer.opaque for answer in answers] == [pull.opaque for pull in pulls]


def test_a_peer_that_reads_nothing_is_answered_little(bench: Bench) -> None:
    client = bench.client()
    client.send(body=bytes(60_000), properties="")
    bench.store.dispatch_now()
    looked = []
    get = bench.store.get
    bench.store.get = lambda *args: looked.append(args) or get(*args)
    client.link.ends[0].reading = False
    client.tell(*[RemotingCommand.request(11, pull_header("T")) for _ in range(1000)])
    assert len(looked) == 8, "eight answers of 60,000 bytes at a time"
    client.link.ends[0].reading = True
    assert len(client.ask_all()) == 1000
