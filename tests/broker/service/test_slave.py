"""A slave beside its master: what it copies, serves and refuses, and how it finds its master."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from mqbroker.broker import slave_synchronize
from mqbroker.broker.delay import DelayOffsets
from mqbroker.broker.live_settings import WITH_ACCESS_CONTROL_ONLY
from mqbroker.config import BrokerRole
from mqbroker.errors import MQError
from mqbroker.store.os_disk import OsDisk
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import KVTable, SubscriptionGroupConfig, TopicConfig
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import decode_records
from tests.access.acl import write_acl
from tests.broker.bench import pull_header, send_command
from tests.broker.service.pair import Member, Pair, commit
from tests.remoting.logs import Logged

pytestmark = pytest.mark.usefixtures("logged")


@pytest.fixture
def controlled(tmp_path: Path) -> dict[str, Any]:
    """Settings of brokers with access control, which trust all of the test's addresses."""
    write_acl(tmp_path / "home", "globalWhiteRemoteAddresses: ['*']\n")
    return {"acl_enable": True, "rocketmq_home": str(tmp_path / "home"), "ha_white_remote_addresses": "*"}


def fill(master: Member, count: int = 20, body: bytes = b"x" * 2000) -> None:
    for answer in master.client().ask_all(*(send_command("T", body) for _ in range(count))):
        assert answer.code == ResponseCode.SUCCESS


def test_a_slave_has_its_masters_log_and_serves_it(pair: Pair) -> None:
    master = pair.master()
    fill(master, 40)
    slave = pair.slave(slave_read_enable=True)
    pair.turn(3)
    assert slave.log()[1]
    start, log = slave.log()
    assert start == 65536 * (master.store.log_end // 65536)
    assert master.log()[1].endswith(log)
    fill(master, 40)
    pair.turn(12)
    assert (slave.store.log_end, slave.store.flushed) == (master.store.log_end,) * 2
    assert master.log()[1].endswith(slave.log()[1])
    first = slave.store.min_offset("T", 0)
    answer = slave.client().pull(queue_offset=first)
    assert answer is not None
    assert [record.queue_offset for record in decode_records(answer.body)][:3] == [first, first + 1, first + 2]


def test_a_slave_that_was_there_from_the_first_message_has_all(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(2)
    fill(master, 70)
    pair.turn(2)
    assert slave.log() == master.log()
    assert slave.store.max_offset("T", 0) == 70


def test_sends_and_changes_are_refused_as_java_does(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    fill(master, 1)
    pair.turn(12)
    client = slave.client()
    [answer] = client.send("T")
    assert (answer.code, "This broker is a slave" in (answer.remark or "")) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        True,
    )
    [answer] = client.send("unknown")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert slave.parts.topics.get("unknown") is None
    end = h.EndTransactionRequestHeader(
        producer_group="PG", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8, msg_id="m",
        transaction_id="t",
    )  # fmt: skip
    ended = client.ask(RequestCode.END_TRANSACTION, end)
    assert ended is not None
    assert ended.code == ResponseCode.SLAVE_NOT_AVAILABLE
    changed = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig("G").to_json())
    assert changed is not None
    assert "please execute it from master broker" in (changed.remark or "")


def change_and_follow(pair: Pair, master: Any, slave: Any) -> None:
    """A topic and a group of the master are the slave's, too, after a while."""
    master.parts.topics.put(TopicConfig("A", 3, 3, 6))
    master.parts.groups.put(SubscriptionGroupConfig("G", retry_max_times=3))
    pair.turn(12)
    assert slave.parts.topics.get("A") == TopicConfig("A", 3, 3, 6)
    assert slave.parts.groups.get("G").retry_max_times == 3


def test_tables_follow_and_older_ones_do_not(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    change_and_follow(pair, master, slave)
    version = slave.parts.topics.data_version
    assert version == master.parts.topics.data_version
    master.parts.topics.remove("A")
    pair.turn(12)
    assert slave.parts.topics.get("A") is None
    old = master.parts.topics.snapshot()
    slave.parts.topics.follow(type(old)({}, type(version)(version.timestamp - 1, version.counter - 1)))
    assert slave.parts.topics.get("T") == master.parts.topics.get("T")
    assert slave.parts.topics.data_version == master.parts.topics.data_version


def test_topics_and_groups_follow_a_master_that_says_nothing_of_its_log(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Java's, of one that is empty."""

    async def say_nothing(*_: Any) -> None:
        raise MQError("java.util.NoSuchElementException")

    monkeypatch.setattr(slave_synchronize, "log_bounds", say_nothing)
    master, slave = pair.master(), pair.slave()
    change_and_follow(pair, master, slave)


@pytest.mark.parametrize("error", [MQError("no table"), LookupError("a mistake")])
@pytest.mark.parametrize("failing", ["topics", "groups", "consumer offsets", "delay offsets"])
def test_a_table_that_cannot_be_taken_over_keeps_no_other_from_being(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, logged: Logged, failing: str, error: Exception
) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(12)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    table, name = {
        "topics": (slave.parts.topics, "follow"),
        "groups": (slave.parts.groups, "follow"),
        "consumer offsets": (slave_synchronize, "decode_offsets"),
        "delay offsets": (DelayOffsets, "from_json"),
    }[failing]
    with monkeypatch.context() as patch:
        patch.setattr(table, name, fail)
        master.parts.topics.put(TopicConfig("A", 3, 3, 6))
        master.parts.groups.put(SubscriptionGroupConfig("G", retry_max_times=3))
        master.client().send("T", properties="DELAY\x011")
        master.parts.offsets.commit("G", "T", 0, 1)
        pair.turn(30)
        assert sum("cannot be fetched" in line for line in logged.lines) == 1
        found = {
            "topics": slave.parts.topics.get("A") is not None,
            "groups": slave.parts.groups.get("G") is not None,
            "consumer offsets": slave.parts.offsets.query("G", "T", 0) == 1,
            "delay offsets": slave.parts.delay.snapshot() == DelayOffsets({1: 1}),
        }
        assert found == {each: each != failing for each in found}
    pair.turn(12)
    assert sum("are fetched again" in line for line in logged.lines) == 1
    assert slave.parts.offsets.query("G", "T", 0) == 1
    assert slave.parts.delay.snapshot() == DelayOffsets({1: 1})
    logged.clear()


def test_a_table_that_has_not_changed_is_not_taken_over_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(12)
    versions = []
    monkeypatch.setattr(slave.parts.topics, "follow", lambda topics: versions.append(topics.data_version))
    pair.turn(35)
    assert versions == []
    fill(master, 1)
    pair.turn(35)
    assert versions[-1] == master.parts.topics.data_version
    assert len(versions) == len(set(versions))


def test_a_topic_of_a_new_message_is_there_within_a_second(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(12)
    fill(master, 1)
    pair.turn(1.5)
    assert slave.parts.topics.get("T") is not None


def test_a_topic_that_is_created_again_is_there_within_a_second_each_time(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(12)
    for number in range(1, 4):
        fill(master, number)
        pair.turn(1.5)
        assert slave.parts.topics.get("T") is not None
        fill(master, number)
        pair.turn(1)
        for member in (master, slave):
            member.parts.topics.remove("T")
        pair.turn(1)


def test_groups_that_a_slave_makes_do_not_make_its_tables_newer(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(12)
    master.parts.groups.put(SubscriptionGroupConfig("G"))
    pair.turn(2)
    for number in range(5):
        slave.parts.groups.find(f"local{number}")
    pair.turn(12)
    assert slave.parts.groups.get("G") is not None


def test_offsets_follow_but_never_go_back_by_themselves(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(2)
    fill(master)
    commit(master, "T", 5)
    pair.turn(12)
    assert slave.parts.offsets.query("CG", "T", 0) == 5
    commit(slave, "T", 9)
    pair.turn(12)
    assert slave.parts.offsets.query("CG", "T", 0) == 9
    commit(master, "T", 12)
    pair.turn(12)
    assert slave.parts.offsets.query("CG", "T", 0) == 12
    commit(master, "T", 2)  # a reset
    pair.turn(12)
    assert slave.parts.offsets.query("CG", "T", 0) == 2


def test_offsets_wait_for_the_messages_below_them(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(2)
    pair.network.blocked.add(master.addresses[1])
    fill(master)
    commit(master, "T", 5)
    pair.turn(12)
    assert slave.parts.topics.get("T") is not None
    assert slave.parts.offsets.query("CG", "T", 0) is None
    pair.network.blocked.clear()
    pair.turn(3)
    assert slave.parts.offsets.query("CG", "T", 0) == 5


def test_delay_offsets_follow_and_nothing_is_delivered_by_a_slave(pair: Pair, logged: Logged) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(2)
    master.client().send("T", properties="DELAY\x011")
    pair.turn(30)
    assert slave.parts.delay.snapshot() == master.parts.delay.snapshot() == DelayOffsets({1: 1})
    assert slave.log() == master.log()
    assert not [line for line in logged.lines if "delayed messages is suspended" in line]
    pair.stop("slave1")
    assert b'"offsetTable":{1:1}' in (slave.root / "config" / "delayOffset.json").read_bytes().replace(b" ", b"")


def test_a_slave_knows_what_is_delivered_of_each_part_of_a_level(pair: Pair) -> None:
    master = pair.master(store={"message_delay_level": "1s 1h"})
    pair.turn(2)
    master.client().send("T", properties="DELAY\x012", body=b"old")
    pair.stop("master")
    master, slave = pair.master(store={"message_delay_level": "1s 2s"}), pair.slave()
    pair.turn(2)
    for number in range(3):
        master.client().send("T", properties="DELAY\x012", body=b"%d" % number)
    pair.turn(30)
    expected = DelayOffsets({2: 0}, {2: [[1, 4]]})
    assert [each.parts.delay.snapshot(with_delivered=True) for each in (master, slave)] == [expected] * 2
    pair.stop("slave1")
    assert (slave.root / "config" / "delayDelivered.json").read_bytes() == b'{"2":[[1,4]]}'
    assert b"delivered" not in (slave.root / "config" / "delayOffset.json").read_bytes()


def test_a_pull_from_a_slave_commits_nothing_and_moves_nobody(pair: Pair) -> None:
    master = pair.master()
    slave = pair.slave(slave_read_enable=True)
    pair.turn(2)
    fill(master)
    pair.turn(12)
    client = slave.client()
    found = client.ask(RequestCode.PULL_MESSAGE, pull_header(queue_offset=0, sys_flag=5, commit_offset=3))
    assert found is not None
    assert found.code == ResponseCode.SUCCESS
    assert slave.parts.offsets.query("CG", "T", 0) is None
    ahead = client.ask(RequestCode.PULL_MESSAGE, pull_header(queue_offset=100))
    assert ahead is not None
    assert ahead.code == ResponseCode.PULL_NOT_FOUND
    assert ahead.ext_fields["nextBeginOffset"] == "100"
    assert client.ask(RequestCode.PULL_MESSAGE, pull_header(queue_offset=100, sys_flag=6)) is None
    pair.turn(1.5)
    [held] = client.heard()
    assert (held.code, held.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "100")


def test_with_its_setting_a_slave_corrects_offsets(pair: Pair) -> None:
    master = pair.master()
    slave = pair.slave(offset_check_in_slave=True)
    pair.turn(2)
    fill(master)
    pair.turn(12)
    ahead = slave.client().ask(RequestCode.PULL_MESSAGE, pull_header(queue_offset=100))
    assert ahead is not None
    assert (ahead.code, ahead.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "20")


def test_a_slave_finds_its_master_again_where_it_moved(pair: Pair) -> None:
    pair.master()
    slave = pair.slave()
    pair.turn(2)
    pair.stop("master")
    pair.turn(5)
    moved = pair.start("master-elsewhere", root=pair.members["master"].root)
    fill(moved, 5)
    pair.turn(15)
    assert slave.log() == moved.log()


def test_a_slave_that_starts_first_finds_its_master_soon(pair: Pair) -> None:
    slave = pair.slave()
    pair.turn(1)
    master = pair.master()
    pair.turn(5)
    fill(master, 3)
    pair.turn(0.5)
    assert slave.log() == master.log()


def test_a_slave_that_was_away_catches_up(pair: Pair) -> None:
    master = pair.master()
    slave = pair.slave()
    pair.turn(2)
    fill(master)
    pair.turn(2)
    for end in (pair.kill, pair.stop):
        end("slave1")
        fill(master)
        slave = pair.slave()
        pair.turn(3)
        assert slave.log() == master.log()


def info(member: Member) -> dict[str, str]:
    answer = member.client().ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert answer is not None
    return KVTable.from_json(answer.body).table


def test_the_link_is_shown_at_both_ends(pair: Pair) -> None:
    master, slave = pair.master(), pair.slave()
    pair.turn(2)
    fill(master)
    pair.turn(12)
    [shown] = [value for key, value in info(master).items() if key.startswith("haSlave_")]
    end, behind, seconds, _, why_not_counted = shown.split(",")
    assert (end, behind, seconds, why_not_counted) == (str(master.store.log_end), "0", "0", "")
    assert info(slave)[f"haMaster_{master.addresses[1]}"] == f"{master.store.log_end},0,"
    pair.network.blocked.update(master.addresses)
    pair.network.cut(*master.addresses)
    pair.turn(3)
    assert info(slave)[f"haMaster_{master.addresses[1]}"].startswith(f"{master.store.log_end},0,no connection: ")


def test_a_slave_says_each_minute_how_far_it_is(pair: Pair, logged: Logged) -> None:
    master = pair.master()
    pair.slave()
    pair.turn(2)
    fill(master)
    pair.turn(65)
    assert [line for line in logged.lines if "ahead" in line] == [
        f"master {master.addresses[1]} is 0 bytes ahead",
    ]


# --- logs that differ


def test_a_slave_with_another_log_takes_nothing(pair: Pair, logged: Logged) -> None:
    other = pair.start("other")
    fill(other, 3, b"other")
    pair.stop("other")
    master = pair.master()
    fill(master, 20)
    slave = pair.slave(root=other.root)
    before = slave.log()
    pair.turn(130)
    assert slave.log() == before
    assert not [line for line in logged.lines if ", from offset" in line]
    told = [line for line in logged.lines if "the two logs differ" in line]
    assert len(told) >= 2
    assert "nothing is copied from the master" in told[0]


def test_a_slave_that_is_ahead_takes_nothing(pair: Pair, logged: Logged) -> None:
    """Its master came back with an older copy of its store, and has taken messages since."""
    master, slave = pair.master(), pair.slave()
    pair.turn(2)
    fill(master, 5)
    shutil.copytree(master.root, pair.root / "copy")
    fill(master, 5)
    pair.turn(2)
    pair.kill("master")
    master = pair.master(root=pair.root / "copy")
    fill(master, 2)
    before = slave.log()
    assert len(before[1]) > master.store.log_end
    pair.turn(20)
    assert slave.log() == before
    assert any("it has messages that the master never had" in line for line in logged.lines)


def test_with_its_setting_a_slave_with_another_log_begins_anew(pair: Pair, logged: Logged) -> None:
    other = pair.start("other")
    fill(other, 3, b"other")
    commit(other, "T", 3)
    pair.stop("other")
    former = {path.name for path in (other.root / "commitlog").iterdir()}
    master = pair.master()
    fill(master, 20)
    slave = pair.slave(root=other.root, ha_resync_enable=True)
    pair.turn(30)
    assert slave.log() == master.log()
    assert slave.store.max_offset("T", 0) == 20
    assert slave.parts.offsets.query("CG", "T", 0) is None
    [aside] = slave.root.glob("commitlog.diverged-*")
    assert {path.name for path in aside.iterdir()} >= former
    assert len([line for line in logged.lines if "this store is put aside and copied again" in line]) == 1
    fill(master, 5)
    pair.turn(2)
    assert slave.log() == master.log()


def test_a_store_that_cannot_be_put_aside_stays_as_it_is(
    pair: Pair, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = pair.start("other")
    fill(other, 3, b"other")
    pair.stop("other")
    master = pair.master()
    fill(master, 20)
    disk = OsDisk()

    rename = disk.rename

    def refuse(old: str, new: str) -> None:
        if ".diverged-" in new:
            raise OSError(errno.EACCES, "Permission denied", old)
        rename(old, new)

    monkeypatch.setattr(disk, "rename", refuse)
    slave = pair.slave(root=other.root, ha_resync_enable=True, disk=disk)
    pair.turn(20)
    monkeypatch.undo()
    assert slave.store.max_offset("T", 0) == 3
    assert len([line for line in logged.lines if "the store cannot be put aside: " in line]) == 1
    assert len([line for line in logged.lines if "the two logs differ" in line]) >= 2


# --- SYNC_MASTER


def sent(master: Member) -> list[int]:
    client = master.client()
    client.tell(send_command("T"))
    pair = master.cluster
    pair.turn(1)
    return [answer.code for answer in client.heard()]


def test_a_sync_master_waits_for_our_slave(pair: Pair) -> None:
    master = pair.master(role=BrokerRole.SYNC_MASTER)
    assert sent(master) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    slave = pair.slave()
    pair.turn(3)
    assert sent(master) == [ResponseCode.SUCCESS]
    assert slave.store.log_end == master.store.log_end
    pair.network.blocked.add(master.addresses[1])
    assert sent(master) == []
    pair.network.blocked.clear()


def test_as_many_slaves_as_the_setting_says_must_have_it(pair: Pair) -> None:
    master = pair.master(role=BrokerRole.SYNC_MASTER, in_sync_replicas=3)
    pair.slave(1)
    pair.turn(3)
    assert sent(master) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    pair.slave(2)
    pair.turn(3)
    assert sent(master) == [ResponseCode.SUCCESS]
    pair.stop("slave2")
    assert sent(master) == [ResponseCode.SLAVE_NOT_AVAILABLE]


# --- other roles


def test_a_slave_becomes_master_and_the_former_master_its_slave(
    pair: Pair, controlled: dict[str, Any], logged: Logged
) -> None:
    master, slave = pair.master(**controlled), pair.slave(**controlled)
    pair.turn(2)
    fill(master, 30)
    commit(master, "T", 7)
    pair.turn(12)
    log = slave.log()
    pair.stop("master")
    answer = pair.change("slave1", brokerRole="SYNC_MASTER", brokerId="0")
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    successor = pair.members["slave1"]
    assert len(successor.addresses) == 2
    assert successor.log() == log
    assert successor.parts.offsets.query("CG", "T", 0) == 7
    assert sent(successor) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    former = pair.start("master", BrokerRole.SLAVE, 3, **controlled)
    pair.turn(12)
    assert sent(successor) == [ResponseCode.SUCCESS]
    assert former.log() == successor.log()
    assert "the broker is started with brokerRole=SYNC_MASTER" in logged.lines


def test_a_master_becomes_a_slave(pair: Pair, controlled: dict[str, Any]) -> None:
    one, other = pair.start("one", **controlled), pair.start("other", BrokerRole.SLAVE, 1, **controlled)
    pair.turn(2)
    fill(one, 5)
    pair.turn(2)
    pair.change("one", brokerRole="SLAVE", brokerId="2")
    pair.change("other", brokerRole="ASYNC_MASTER", brokerId="0")
    fill(pair.members["other"], 5)
    pair.turn(12)
    assert pair.members["one"].log() == pair.members["other"].log()
    assert pair.members["one"].store.max_offset("T", 0) == 10
    assert other.root == pair.members["other"].root


@pytest.mark.parametrize(
    "changes",
    [{"brokerRole": "SLAVE"}, {"brokerId": "1"}, {"brokerRole": "SLAVE", "brokerId": "0"}, {"brokerRole": "KING"}],
)
def test_a_role_and_an_id_that_do_not_agree_change_nothing(
    pair: Pair, controlled: dict[str, Any], changes: dict[str, str]
) -> None:
    master = pair.master(**controlled)
    answer = pair.change("master", **changes)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert pair.members["master"] is master
    assert master.service.running


@pytest.mark.parametrize(
    "changes",
    [
        {"brokerRole": "SLAVE", "brokerId": "1"},
        {"brokerRole": "SYNC_MASTER"},
        {"brokerId": "0", "fileReservedTime": "9"},
        {"brokerRole": "KING"},
    ],
)
def test_where_anybody_could_ask_for_it_a_role_stays(pair: Pair, changes: dict[str, str]) -> None:
    master = pair.master()
    answer = pair.change("master", **changes)
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "change it in the broker's settings file and send its process SIGHUP, or set aclEnable=true" in (
        answer.remark or ""
    )
    assert pair.members["master"] is master
    assert master.parts.live.current.store.file_reserved_time_hours == 72
    assert sent(master) == [ResponseCode.SUCCESS]


def test_the_file_changes_a_role_without_access_control(pair: Pair, logged: Logged) -> None:
    pair.master()
    slave = pair.slave()
    pair.turn(2)
    pair.stop("master")
    settings = slave.service.settings
    store = attrs.evolve(settings.store, broker_role=BrokerRole.ASYNC_MASTER)
    assert slave.service.adopt(attrs.evolve(settings, store=store, broker_id=0)) == []
    pair.turn(2)
    assert "the broker is started with brokerRole=ASYNC_MASTER" in logged.lines


def test_all_that_a_request_may_change_is_no_role_path_address_or_credential(pair: Pair) -> None:
    """But what needs access control, and namesrvAddr, which Java's tools change."""
    words = {"path", "addr", "address", "dir", "ip1", "ip2", "port", "name", "command", "home", "key", "secret", "acl"}
    words |= {"tls", "role", "id", "master", "white"}
    changeable = pair.master().parts.live.changeable
    found = {key for key in changeable if words & {word.lower() for word in re.findall("[A-Z]?[a-z0-9]+", key)}}
    assert found - {"namesrvAddr"} == WITH_ACCESS_CONTROL_ONLY


def test_a_stop_while_the_role_changes_is_a_stop(pair: Pair, controlled: dict[str, Any]) -> None:
    master = pair.master(**controlled)
    pair.slave(**controlled)
    pair.turn(2)
    pair.network.blocked.add(master.addresses[1])  # a stop waits for the slave
    fill(master, 5)
    servers = len(pair.reactor.tcpServers)
    command = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerRole=SYNC_MASTER\n")
    client = master.client()
    client.tell(command)
    assert [answer.code for answer in client.heard()] == [ResponseCode.SUCCESS]
    pair.stop("master")
    assert not master.service.running
    assert len(pair.reactor.tcpServers) == servers


def test_a_broker_whose_store_cannot_be_put_aside_before_it_starts_again_ends(
    pair: Pair, controlled: dict[str, Any], logged: Logged
) -> None:
    def out_of_memory() -> None:
        raise MemoryError

    pair.master(**controlled)
    slave = pair.slave(**controlled)
    pair.turn(2)
    slave.service._before_next = out_of_memory
    pair.change("slave1", brokerRole="ASYNC_MASTER", brokerId="0")
    assert "the broker cannot restart, and exits: MemoryError" in logged.lines
    assert pair.reactor.hasStopped
    slave.is_dead = True


def test_a_broker_that_cannot_start_again_ends(pair: Pair, controlled: dict[str, Any], logged: Logged) -> None:
    pair.master(**controlled)
    slave = pair.slave(**controlled)
    pair.turn(2)
    pair.reactor.taken = True
    pair.change("slave1", brokerRole="ASYNC_MASTER", brokerId="0")
    assert any("cannot restart, and exits" in line for line in logged.lines)
    assert pair.reactor.hasStopped
    pair.reactor.taken = False
    slave.is_dead = True
