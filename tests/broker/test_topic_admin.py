"""Topics looked at, removed and cleaned: codes 202, 215, 300, 303, 305, 306, 316 and 329."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock

from mqbroker.remoting import cooperative_tasks
from mqbroker.remoting.cooperative_tasks import (
    PIECES_PER_STEP,
    STEPS_PER_TURN,
    TASKS_MAX,
    TASKS_OF_ADDRESS_MAX,
    CooperativeTasks,
)
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.admin_bodies import (
    GroupList,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from mqbroker.wire.bodies import MessageQueue, TopicConfig, TopicList
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CloneGroupOffsetRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from mqbroker.wire.headers.coding import Header
from tests.broker.bench import START, Bench, Client, FakeConnection
from tests.broker.sending import put_topic
from tests.broker.test_client_requests import beat, commit, consumer
from tests.broker.test_topic_requests import create
from tests.remoting.logs import Logged

START_MS = START * 1000


def stats(client: Client, topic: str = "T") -> RemotingCommand:
    return client.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic=topic))


def spans(client: Client, group: str = "CG", topic: str = "T") -> RemotingCommand | list[QueueTimeSpan]:
    header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
    answer = client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    return QueryConsumeTimeSpanBody.from_json(answer.body).consume_time_span_set if answer.code == 0 else answer


def delete(client: Client, topic: str) -> RemotingCommand:
    return client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


def send_every_ten_seconds(bench: Bench, client: Client, count: int = 3) -> None:
    put_topic(client, "T", write_queue_nums=2, read_queue_nums=2)
    for _ in range(count):
        client.send()
        bench.turn(10)


# --- looked at


def test_what_the_queues_of_a_topic_hold(bench: Bench, client: Client) -> None:
    send_every_ten_seconds(bench, client)
    answer = stats(client)
    assert TopicStatsTable.from_json(answer.body).offset_table == {
        queue(0): TopicOffset(0, 3, START_MS + 20_000),
        queue(1): TopicOffset(0, 0, 0),
    }
    assert b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"minOffset":0,"maxOffset":3,' in answer.body


def test_no_such_topic(client: Client) -> None:
    for answer in (stats(client, "None"), spans(client, topic="None")):
        assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[None] not exist")


def test_when_messages_were_stored_and_consumed(bench: Bench, client: Client) -> None:
    send_every_ten_seconds(bench, client)
    empty = QueueTimeSpan(queue(1), -1, -1, -1, 0)
    newest = START_MS + 20_000
    # A group without offsets is as one that begins at the oldest message.
    assert spans(client) == [QueueTimeSpan(queue(0), START_MS, newest, START_MS, 30_000), empty]
    for offset, consumed_ms, waits_ms in ((1, START_MS, 20_000), (2, START_MS + 10_000, 10_000), (3, newest, 0)):
        commit(client, offset)
        assert spans(client) == [QueueTimeSpan(queue(0), START_MS, newest, consumed_ms, waits_ms), empty]


def test_who_consumes_a_topic(client: Client) -> None:
    def groups(topic: str) -> frozenset[str]:
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
        return GroupList.from_json(client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header).body).group_list

    put_topic(client, "T")
    beat(client, consumers=[consumer("online", "T"), consumer("elsewhere", "U")])
    commit(client, group="away")
    commit(client, group="online")
    assert groups("T") == {"online", "away"}
    assert groups("None") == frozenset()


def test_the_topics_of_the_system(bench: Bench, client: Client) -> None:
    answer = client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert TopicList.from_json(answer.body).topic_list == {
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT", "TBW102",
        "broker-a", "SELF_TEST_TOPIC", "DefaultCluster",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "TBW102", "rmq_sys_x"])
def test_nobody_makes_or_deletes_topics_of_the_system(bench: Bench, client: Client, name: str) -> None:
    before = bench.topics.snapshot()
    for answer in (create(client, name), delete(client, name)):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The topic[{name}] is conflict with system topic."
    assert bench.topics.snapshot() == before


# --- removed


def queue_directories(bench: Bench) -> list[str]:
    return sorted(os.listdir(os.path.join(bench.settings.store.store_path_root_dir, "consumequeue")))


def test_a_deleted_topic_is_gone(bench: Bench, client: Client) -> None:
    changed: list[Any] = []
    bench.topics.on_change.append(changed.append)
    client.send("T")
    client.send("U")
    bench.turn(1)
    assert queue_directories(bench) == ["T", "U"]
    assert delete(client, "T").code == 0
    assert bench.topics.get("T") is None
    assert changed[-1] == "T"
    assert queue_directories(bench) == ["U"]
    assert stats(client, "T").code == ResponseCode.TOPIC_NOT_EXIST
    assert delete(client, "T").code == 0  # once more


@pytest.mark.parametrize("name", ["", " ", "../x", "t" * 128])
def test_what_is_no_topic_is_not_deleted(bench: Bench, client: Client, name: str) -> None:
    assert delete(client, name).remark.startswith("The specified topic")


def test_a_disk_that_refuses_to_forget(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    def fail(*arguments: int | str) -> None:
        raise OSError(5, "Input/output error", "/x")

    client.send("T")
    bench.turn(1)
    monkeypatch.setattr(bench.store._remover, "_put_in_trash", fail)
    answer = delete(client, "T")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in (answer.remark or "")
    assert logged.failures == []


def test_unused_topics_are_cleaned(bench: Bench, client: Client) -> None:
    for topic in ("T", "U"):
        client.send(topic)
    bench.turn(1)
    bench.topics.remove("T")
    assert client.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert queue_directories(bench) == ["U"]


def test_expired_files_and_empty_queues_are_cleaned(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    root = tmp_path / "store"
    bench = make_bench(store={"mapped_file_size_commit_log": 128 * 1024, "delete_commit_log_files_interval_ms": 0})
    client = bench.client()
    client.send("old")
    bench.turn(1)
    for _ in range(12):
        client.send("T", body=bytes(30_000))
        bench.turn(0.5)
    for code in (RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE):
        assert client.ask(code).code == 0
        bench.turn(20)
    assert (bench.store.log_min_offset, queue_directories(bench)) == (0, ["T", "old"])  # nothing is that old
    for file in (root / "commitlog").iterdir():
        os.utime(file, (0, 0))
    assert client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    bench.turn(20)
    assert bench.store.log_min_offset > 0
    assert client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    assert queue_directories(bench) == ["T"]


# --- in turns


@pytest.fixture
def take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RemotingCommand, int]]:
    """Ask, and take what is left for later turns one by one: returns the answer, and how many turns those were."""
    turns = []
    call_later = bench.clock.callLater

    def keep(seconds: int, function: Callable[..., Any], *arguments: None) -> Any:
        if seconds == 0:
            turns.append((function, arguments))
            return None
        return call_later(seconds, function, *arguments)

    monkeypatch.setattr(bench.clock, "callLater", keep)

    def take(code: int, header: Header | None = None) -> tuple[RemotingCommand, int]:
        answers: list[Any] = []
        bench.table.handle(RemotingCommand.request(code, header), FakeConnection()).addCallback(answers.append)
        taken = 0
        while turns:
            function, arguments = turns.pop(0)
            assert not turns
            assert not answers
            function(*arguments)
            taken += 1
        return answers[0], taken

    return take


def test_a_task_leaves_the_reactor_its_turns(
    client: Client, take_turns: Callable[..., tuple[RemotingCommand, int]]
) -> None:
    put_topic(client, "T", write_queue_nums=3 * STEPS_PER_TURN + 1)
    answer, turns = take_turns(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
    assert turns == 3
    assert len(TopicStatsTable.from_json(answer.body).offset_table) == 3 * STEPS_PER_TURN + 1


def test_thousands_of_producers_are_listed_in_turns(
    bench: Bench, take_turns: Callable[..., tuple[RemotingCommand, int]]
) -> None:
    for number in range(3 * STEPS_PER_TURN):
        bench.producers.register(FakeConnection(), f"client-{number}", 0, 0, f"G{number % 7}")
    answer, turns = take_turns(RequestCode.GET_ALL_PRODUCER_INFO)
    assert turns >= 3
    assert sum(map(len, ProducerTableInfo.from_json(answer.body).data.values())) == 3 * STEPS_PER_TURN


def test_offsets_in_thousands_of_topics_are_cloned_in_turns(
    bench: Bench, take_turns: Callable[..., tuple[RemotingCommand, int]]
) -> None:
    topics = [f"T{number}" for number in range(3 * STEPS_PER_TURN)]
    for topic in topics:
        bench.topics.put(TopicConfig(topic))
        bench.offsets.commit("G", topic, 0, 5)
    answer, turns = take_turns(
        RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequestHeader(src_group="G", dest_group="H", offline=True)
    )
    assert answer.code == ResponseCode.SUCCESS
    assert turns == 3
    assert sorted(bench.offsets.topics_of("H")) == sorted(topics)


def test_few_tasks_at_a_time_and_none_for_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative_tasks, "STEPS_PER_TURN", 1)
    clock = Clock()
    bounded = CooperativeTasks(clock)
    begun = []

    async def handle(request: RemotingCommand, connection: IConnection) -> Any:
        begun.append(connection)
        await bounded.step()
        return RemotingCommand.response(request)

    connections = [FakeConnection(host=bytes([10, 0, 0, number, 0, 0, 0, 1])) for number in range(TASKS_MAX + 2)]
    answers = [bounded.bounded(handle)(RemotingCommand(1), connection) for connection in connections]
    assert begun == connections[:TASKS_MAX]
    connections[TASKS_MAX].closed = True
    clock.advance(0)
    assert begun == [*connections[:TASKS_MAX], connections[-1]]
    assert [answer.result is None for answer in answers] == [False] * TASKS_MAX + [True, False]


def test_one_address_has_not_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative_tasks, "STEPS_PER_TURN", 1)
    clock = Clock()
    bounded = CooperativeTasks(clock)
    begun = []

    async def handle(request: RemotingCommand, connection: IConnection) -> Any:
        begun.append(connection)
        await bounded.step()
        return RemotingCommand.response(request)

    greedy = [FakeConnection() for _ in range(50)]
    modest = [FakeConnection(host=bytes([10, 0, 0, number, 0, 0, 0, 1])) for number in (101, 102, 103)]
    answers = [bounded.bounded(handle)(RemotingCommand(1), connection) for connection in [*greedy, *modest]]
    assert begun == [*greedy[:TASKS_OF_ADDRESS_MAX], *modest[: TASKS_MAX - TASKS_OF_ADDRESS_MAX]]
    clock.advance(0)
    assert set(modest) <= set(begun)
    clock.pump([0] * 50)
    assert len(begun) == 53
    assert all(answer.called for answer in answers)
    assert not bounded._running
    assert not bounded._waiting


def test_thousands_of_tasks_for_who_is_gone_end_without_nesting() -> None:
    bounded = CooperativeTasks(Clock())

    async def handle(request: RemotingCommand, connection: IConnection) -> Any:
        raise AssertionError

    held = Deferred[Any]()
    connections = [FakeConnection() for _ in range(5000)]

    async def wait(request: RemotingCommand, connection: IConnection) -> Any:
        await held

    for connection in connections[:TASKS_OF_ADDRESS_MAX]:
        bounded.bounded(wait)(RemotingCommand(1), connection)
    answers = [bounded.bounded(handle)(RemotingCommand(1), connection) for connection in connections]
    for connection in connections:
        connection.closed = True
    held.callback(None)
    assert all(answer.called for answer in answers)


def test_a_task_that_cannot_begin_keeps_no_others_from_it() -> None:
    bounded = CooperativeTasks(Clock())

    async def handle(request: RemotingCommand, connection: IConnection) -> Any:
        return RemotingCommand.response(request)

    class Failing(FakeConnection):
        @property
        def has_room(self) -> bool:
            raise MemoryError

        @has_room.setter
        def has_room(self, value: bool) -> None:
            pass

    for _ in range(2):
        with pytest.raises(MemoryError):
            bounded.bounded(handle)(RemotingCommand(1), Failing())
        assert bounded.bounded(handle)(RemotingCommand(1), FakeConnection()).called


def test_who_does_not_read_waits_and_keeps_nobody_waiting() -> None:
    bounded = CooperativeTasks(Clock())
    served = []

    async def handle(request: RemotingCommand, connection: IConnection) -> Any:
        served.append(connection)
        connection.has_room = connection is reads
        return RemotingCommand.response(request)

    reads, does_not, goes = FakeConnection(), FakeConnection(), FakeConnection()
    for connection in [does_not] * 3 + [goes] * 2 + [reads] * (TASKS_MAX + 1):
        bounded.bounded(handle)(RemotingCommand(1), connection)
    assert served == [does_not, goes] + [reads] * (TASKS_MAX + 1)
    for count in (2, 3, 3):
        does_not.has_room = True
        does_not.read()
        assert served.count(does_not) == count
    goes.has_room = goes.closed = True
    goes.read()
    assert served.count(goes) == 1
    assert not bounded._waiting
    assert not bounded._running


class Turns(Clock):
    """Counts what waits for its next turn."""

    turns = 0

    def callLater(self, delay: float, *args: Any, **more: Any) -> IDelayedCall:
        self.turns += 1
        return super().callLater(delay, *args, **more)


def test_a_long_body_is_written_in_turns() -> None:
    clock = Turns()
    body = TopicStatsTable({queue(number): TopicOffset(number, 2**40, START_MS) for number in range(5000)})
    writing = Deferred.fromCoroutine(CooperativeTasks(clock).written(body))
    assert not writing.called
    clock.advance(0)
    assert clock.turns == 5000 // (STEPS_PER_TURN * PIECES_PER_STEP)
    assert writing.result == body.to_json()


def test_a_topic_of_as_many_queues_as_may_be(make_bench: Callable[..., Bench]) -> None:
    clock = Turns()
    clock.advance(START)
    client = make_bench(clock=clock).client()
    put_topic(client, "T", write_queue_nums=65_535, read_queue_nums=65_535)
    before = clock.turns
    answer = stats(client)
    assert clock.turns - before >= 65_535 // STEPS_PER_TURN + 65_535 // (STEPS_PER_TURN * PIECES_PER_STEP)
    assert answer.body.count(b"maxOffset") == 65_535


def test_tasks_that_cannot_be_begun_fail_alone() -> None:
    bounded = CooperativeTasks(Clock())

    def broken(request: RemotingCommand, connection: IConnection) -> Any:
        raise MemoryError

    async def handle(request: RemotingCommand, connection: IConnection) -> Any:
        return RemotingCommand.response(request)

    for _ in range(3 * TASKS_MAX):
        failed: list[Any] = []
        bounded.bounded(broken)(RemotingCommand(1), FakeConnection()).addErrback(failed.append)
        assert [failure.type for failure in failed] == [MemoryError]
        answer: Any = bounded.bounded(handle)(RemotingCommand(1), FakeConnection())
        assert answer.result.code == 0
    assert not bounded._running
