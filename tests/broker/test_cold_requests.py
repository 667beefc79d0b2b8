"""Requests for what is not in memory: answered later, while others are answered at once; and where the disk fails."""

from collections.abc import Callable, Iterator
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import pytest

from mqbroker.broker.delay import DelayService
from mqbroker.broker.requests import pull_message
from mqbroker.broker.transactions.half_message import put_back
from mqbroker.store import page_loader
from mqbroker.wire.bodies import BrokerStatsItem, SubscriptionGroupConfig
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand
from mqbroker.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from mqbroker.wire.headers.coding import Header
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench, Client, pull_header
from tests.broker.test_delay import delay_files, delayed_message
from tests.broker.transacting import COMMIT, HALF, Transactor, end_command
from tests.broker.transacting import bodies as transacted
from tests.fakes import FaultyDisk, SteppedWorker

PULL = RequestCode.PULL_MESSAGE


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


class ColdBench(Bench):
    """On a disk whose pages are not in memory, with a worker that waits to be told."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.disk = FaultyDisk()
        super().__init__(root, worker=SteppedWorker(), disk=self.disk, **changes)
        self.disk.faults.evict()
        self.worker.at_once = False

    def step_all(self) -> int:
        steps = 0
        while self.worker.waiting:
            self.worker.step()
            steps += 1
        return steps

    def close(self) -> None:
        self.worker.at_once = True
        self.step_all()
        super().close()


@pytest.fixture
def cold_bench(make_bench: Callable[..., Bench], tmp_path: Path) -> Iterator[ColdBench]:
    """Ten messages in queue 0 of T, of which nothing is in memory."""
    warm = make_bench()
    client = warm.client()
    for i in range(10):
        client.send("T", b"%d" % i, properties=f"KEYS\x01k{i}")
    warm.store.append([delayed_message(b"due"), delayed_message(b"due as well")])
    warm.close()
    bench = ColdBench(tmp_path / "store")
    yield bench
    bench.close()


@pytest.fixture
def client(cold_bench: ColdBench) -> Client:
    return cold_bench.client()


def send_hot(bench: ColdBench, send: Callable[..., Any]) -> Any:
    """Have what `send` stores stay in memory, when all of the log before it has left that."""
    bench.client().send("Other", bytes(PAGESIZE))
    start = bench.store.log_end
    sent = send()
    bench.store.dispatch_now()
    bench.worker.at_once = False
    bench.disk.faults.evict(but_log_from=start)
    return sent


def test_a_cold_pull_is_answered_when_its_messages_are_there(cold_bench: ColdBench, client: Client) -> None:
    assert client.pull("T", queue_offset=2) is None
    opaque = client._opaque
    cold_bench.step_all()
    (answer,) = client.heard()
    assert (answer.code, answer.opaque, bodies(answer)) == (0, opaque, [b"%d" % i for i in range(2, 10)])
    assert len(cold_bench.held) == 0


def test_answers_of_cold_pulls_keep_nobody_waiting(cold_bench: ColdBench, client: Client) -> None:
    cold_bench.worker.at_once = True
    send_hot(cold_bench, lambda: client.send("T", b"hot"))
    client.tell(*[RemotingCommand.request(PULL, pull_header(queue_offset=offset)) for offset in (10, 0, 10, 5)])
    hot = client.heard()
    assert [bodies(answer) for answer in hot] == [[b"hot"], [b"hot"]]
    cold_bench.step_all()
    late = client.heard()
    assert sorted(map(len, map(bodies, late))) == [6, 11]
    assert {answer.opaque for answer in hot + late} == {2, 3, 4, 5}


def test_who_goes_before_the_answer_harms_nobody(cold_bench: ColdBench, client: Client) -> None:
    assert client.pull("T", queue_offset=0) is None
    connection = client.connection
    client.link.cut()
    cold_bench.step_all()
    assert connection.closed
    other = cold_bench.client()
    assert bodies(other.pull("T", queue_offset=0)) == [b"%d" % i for i in range(10)]


def test_a_cold_oneway_pull_is_not_answered(cold_bench: ColdBench, client: Client) -> None:
    command = RemotingCommand.request(PULL, pull_header(queue_offset=0))
    command.flag = ONEWAY_FLAG
    assert client.ask_all(command) == []
    cold_bench.step_all()
    assert client.heard() == []


def test_a_cold_pull_that_finds_nothing_it_wants(cold_bench: ColdBench, client: Client) -> None:
    assert client.pull("T", queue_offset=0, subscription="None", sys_flag=PullSysFlag.SUBSCRIPTION) is None
    cold_bench.step_all()
    (answer,) = client.heard()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "10"


def test_a_cold_pull_commits_its_offset_at_once(cold_bench: ColdBench, client: Client) -> None:
    client.pull("T", queue_offset=0, sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.COMMIT_OFFSET, commit_offset=4)
    assert cold_bench.offsets.query("CG", "T", 0) == 4


def test_too_many_cold_pulls_are_told_to_come_back(
    cold_bench: ColdBench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_loader, "WAITING_MAX", 1)
    answers = client.ask_all(*[RemotingCommand.request(PULL, pull_header(queue_offset=0)) for _ in range(4)])
    assert [(answer.code, answer.remark) for answer in answers] == [
        (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    ]
    cold_bench.step_all()
    assert [answer.code for answer in client.heard()] == [0, 0, 0]


def test_one_connection_does_not_take_the_share_of_others(
    cold_bench: ColdBench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_message, "COLD_ON_CONNECTION_MAX", 2)
    busy = client.ask_all(*[RemotingCommand.request(PULL, pull_header(queue_offset=0)) for _ in range(3)])
    assert [answer.code for answer in busy] == [ResponseCode.SYSTEM_BUSY]
    other = cold_bench.client()
    assert other.pull("T", queue_offset=0) is None
    cold_bench.step_all()
    assert [answer.code for answer in client.heard() + other.heard()] == [0, 0, 0]
    cold_bench.disk.faults.evict()
    assert client.pull("T", queue_offset=0) is None  # and there is room again
    cold_bench.step_all()
    assert len(client.heard()) == 1


def test_a_queue_that_the_disk_cannot_read(cold_bench: ColdBench, client: Client) -> None:
    path = f"{cold_bench.settings.store.store_path_root_dir}/consumequeue/T/0/{0:020d}"
    cold_bench.disk.faults.unreadable.add((path, 0))
    assert client.pull("T", queue_offset=0) is None
    cold_bench.step_all()
    (answer,) = client.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith(f"{path} is damaged at byte 0: the disk cannot read it")


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=0)),
        (
            RequestCode.QUERY_MESSAGE,
            QueryMessageRequestHeader(topic="T", key="k3", max_num=9, begin_timestamp=0, end_timestamp=2**62),
        ),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=0)),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0)),
        (
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0),
        ),
        (
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ConsumerSendMsgBackRequestHeader(
                offset=0, group="CG", delay_level=3, origin_msg_id="", origin_topic="T", unit_mode=False
            ),
        ),
    ],
)
def test_other_requests_wait_for_the_disk_off_the_reactor(
    cold_bench: ColdBench, client: Client, code: int, header: Header
) -> None:
    cold_bench.groups.put(SubscriptionGroupConfig("CG"))
    assert client.ask(code, header) is None
    assert cold_bench.step_all() > 0
    (answer,) = client.heard()
    assert answer.code == 0


def delay_service(bench: Bench, root: Path) -> Any:
    files = delay_files(root)
    return DelayService(bench.store, files, bench.clock, [1000], bench.parts.stats, bench.topics.readable_queue)


def test_cold_delayed_messages_are_delivered(cold_bench: ColdBench, tmp_path: Path) -> None:
    cold_bench.clock.advance(5)
    delay = delay_service(cold_bench, tmp_path)
    delay.start()
    cold_bench.clock.advance(0)
    delay.arrived("SCHEDULE_TOPIC_XXXX", 0)  # more comes while it reads
    cold_bench.clock.advance(0)
    cold_bench.step_all()
    cold_bench.clock.advance(0)
    cold_bench.worker.at_once = True
    assert {record.body for record in cold_bench.records("T", 3)} == {b"due", b"due as well"}
    assert len(cold_bench.records("T", 3)) == 2
    delay.stop()


def test_a_delay_level_that_cannot_be_read_is_tried_again(cold_bench: ColdBench, tmp_path: Path) -> None:
    cold_bench.clock.advance(5)
    path = f"{cold_bench.settings.store.store_path_root_dir}/consumequeue/SCHEDULE_TOPIC_XXXX/0/{0:020d}"
    cold_bench.disk.faults.unreadable.add((path, 0))
    delay = delay_service(cold_bench, tmp_path)
    delay.start()
    cold_bench.worker.at_once = True
    cold_bench.clock.advance(0)
    assert cold_bench.records("T", 3) == []
    cold_bench.disk.faults.unreadable.clear()
    cold_bench.clock.advance(1)
    cold_bench.clock.advance(0)
    assert len(cold_bench.records("T", 3)) == 2
    delay.stop()


def test_stopping_while_a_delay_level_is_read(cold_bench: ColdBench, tmp_path: Path) -> None:
    cold_bench.clock.advance(5)
    delay = delay_service(cold_bench, tmp_path)
    delay.start()
    cold_bench.clock.advance(0)
    delay.stop()
    cold_bench.step_all()
    assert cold_bench.records("T", 3) == []


def test_how_long_the_disk_took_is_counted_as_latency(cold_bench: ColdBench, client: Client) -> None:
    assert client.pull("T", queue_offset=2) is None
    cold_bench.clock.advance(0.25)
    cold_bench.step_all()
    assert client.heard()[0].code == 0
    assert client.pull("T", queue_offset=9).code == 0
    stats = cold_bench.parts.stats
    cold_bench.clock.advance(9.75)
    stats.tick()
    assert stats.view("GROUP_GET_LATENCY", "0@T@CG").stats_minute == BrokerStatsItem(250, 25.0, 125.0)
    assert stats.view("GROUP_GET_NUMS", "T@CG").stats_minute.sum == 9
    assert cold_bench.store.statistics.longest_get_ms == 250


def test_half_messages_that_are_not_in_memory_are_ended_once(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    warm = make_bench()
    warm.client().send(queue_id=1, body=b"plain")
    producer = Transactor(warm)
    halves = [producer.half(b"%d" % n) for n in range(3)]
    warm.close()
    bench = ColdBench(tmp_path / "store")
    bench.step_all()
    producer = Transactor(bench)
    commands = [end_command(half, COMMIT) for half in (*halves, halves[0])]
    assert producer.client.ask_all(*commands[:3]) == []
    assert producer.client.ask_all(commands[3]) == []
    bench.step_all()
    assert [answer.code for answer in producer.client.heard()] == [0] * 4
    bench.worker.at_once = True
    assert transacted(bench, "T", 1) == [b"plain", b"0", b"1", b"2"]
    bench.close()


@pytest.mark.parametrize("how", ["committed", "put back"])
def test_what_others_settle_while_a_run_waits_is_not_stored_again(
    make_bench: Callable[..., Bench], tmp_path: Path, how: str
) -> None:
    warm = make_bench()
    warm.client().send(queue_id=1, body=b"plain")
    cold_half = Transactor(warm).half(b"cold")
    warm.close()
    bench = ColdBench(tmp_path / "store")
    bench.step_all()
    bench.worker.at_once = True
    producer, other = Transactor(bench), Transactor(bench)
    half = send_hot(bench, lambda: producer.half(b"one"))
    assert producer.client.ask_all(*[end_command(each, COMMIT) for each in (half, cold_half)]) == []
    if how == "committed":
        assert other.commit(half).code == ResponseCode.SUCCESS
    else:
        (record,) = [each for each in bench.records(HALF) if each.body == b"one"]
        bench.parts.half_queue.put_back({half.offset: put_back(record, record.properties)})
    bench.step_all()
    assert [answer.code for answer in producer.client.heard()] == [0, 0]
    bench.worker.at_once = True
    assert sorted(transacted(bench, "T", 1)) == [b"cold", b"one", b"plain"]
    settled = bench.parts.half_queue.settled
    assert settled.next_open(0) == bench.store.max_offset(HALF, 0)
    bench.close()
