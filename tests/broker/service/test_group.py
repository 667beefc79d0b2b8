"""Brokers that elect their master by etcd, in memory."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from twisted.python.failure import Failure

from mqbroker.broker.broker_group import etcd_access
from mqbroker.client.options import ProducerOptions
from mqbroker.config import load_broker_settings
from mqbroker.ha.etcd import EtcdAccess
from mqbroker.ha.link import BadPeer, Greeting
from mqbroker.store.layout import lock_file
from mqbroker.wire.admin_bodies import ProducerTableInfo
from mqbroker.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    MessageQueue,
    ProducerData,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.headers import UpdateConsumerOffsetRequestHeader
from tests.broker.bench import send_command
from tests.broker.service.group import Group, Replica, started


def test_the_first_of_a_new_group_is_elected(group: Group) -> None:
    started(group)
    assert len(group.masters) == 1
    answer = group.client(group.master()).send(send_command("T", b"one"))
    assert answer.code == ResponseCode.SUCCESS
    group.wait(2)
    assert len({replica.log() for replica in group.alive()}) == 1


def test_another_is_elected_when_the_master_dies(group: Group) -> None:
    started(group)
    master = group.master()
    for n in range(5):
        assert group.client(master).send(send_command("T", b"%d" % n)).code == ResponseCode.SUCCESS
    group.kill(master.replica_id)
    assert group.wait_for(lambda: group.masters) <= 5.0
    new = group.master()
    assert new.replica_id != master.replica_id
    assert [record.body for record in new.records().values()] == [b"%d" % n for n in range(5)]
    assert group.client(new).send(send_command("T", b"more")).code == ResponseCode.SUCCESS
    group.start(master.replica_id)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert len({replica.log() for replica in group.alive()}) == 1


def test_a_master_that_dies_is_missing_for_five_seconds_at_most(group: Group) -> None:
    started(group)
    for _ in range(3):
        master = group.master()
        group.kill(master.replica_id)
        new = group.wait_for(lambda: [each for each in group.masters if each is not master])  # noqa: B023
        assert new <= 5.0
        assert registered(group) == f"{group.master().host}:10911"
        group.start(master.replica_id)
        group.wait_for(lambda: group.in_sync() == {1, 2, 3})


def registered(group: Group) -> str | None:
    """The master's address as all name servers have it."""
    [address] = {
        table["broker-a"].broker_addrs.get(0) if "broker-a" in table else None for table in group.broker_tables()
    }
    return address


def test_a_former_master_cuts_back_what_nobody_acknowledged(group: Group) -> None:
    started(group)
    master = group.master()
    assert group.client(master).send(send_command("T", b"all have it")).code == ResponseCode.SUCCESS
    others = [each for each in group.alive() if each is not master]
    for other in others:
        group.wires.cut |= {(master.host, other.host), (other.host, master.host)}
    client = group.client(master)
    client.tell(*[send_command("T", b"only here %d" % n) for n in range(5)])
    group.wait(0.3)
    end = master.store.log_end
    assert end > others[0].store.log_end
    group.kill(master.replica_id)
    group.wires.cut.clear()
    new = group.master()
    assert group.client(new).send(send_command("T", b"later")).code == ResponseCode.SUCCESS
    group.start(master.replica_id)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    again = group.replicas[master.replica_id]
    assert [record.body for record in again.records().values()] == [b"all have it", b"later"]
    assert len({replica.log() for replica in group.alive()}) == 1
    assert again.store.max_offset("T", 0) == 2


@pytest.mark.parametrize("who", ["master", "replica"])
def test_a_clock_that_is_set_forward_closes_no_link_and_takes_nobody_out(group: Group, who: str) -> None:
    started(group)
    master = group.master()
    links = list(master.service._master.factory.slaves.links)
    [jumping, *_] = [each for each in group.alive() if (each is master) == (who == "master")]
    epoch = jumping.service._group.member.role.epoch
    jumping.reactor.advance(3600)
    for _ in range(20):
        group.wait(0.25)
        assert group.in_sync() == {1, 2, 3}
    assert master.service._master.factory.slaves.links == links
    assert [each.service._group.member.role.epoch for each in group.alive()] == [epoch] * 3
    assert group.client(master).send(send_command("T", b"later")).code == ResponseCode.SUCCESS


def test_a_clock_that_is_set_forward_removes_no_client_and_closes_no_connection(group: Group) -> None:
    started(group, 1)
    master = group.master()
    client = group.client(master)
    data = HeartbeatData("c1")
    data.producer_data_set.append(ProducerData("PG"))
    data.consumer_data_set.append(ConsumerData("CG", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET"))
    assert client.ask(RequestCode.HEART_BEAT, body=data.to_json()).code == ResponseCode.SUCCESS
    lock = LockBatchRequestBody("CG", "c1", frozenset({MessageQueue("T", "B", 0)}))
    assert client.ask(RequestCode.LOCK_BATCH_MQ, body=lock.to_json()).code == ResponseCode.SUCCESS
    before_ms = int(master.reactor.seconds() * 1000)
    for _ in range(2):
        master.reactor.advance(3600)
        group.wait(15)
    assert master.parts.consumers.find("CG", "c1") is not None
    assert master.parts.producers.find("c1") is not None
    other = LockBatchRequestBody("CG", "c2", frozenset({MessageQueue("T", "B", 0)}))
    assert b"queueId" not in client.ask(RequestCode.LOCK_BATCH_MQ, body=other.to_json()).body
    # The time of its heartbeat is still told as one of the day, as it is now.
    (producer,) = ProducerTableInfo.from_json(client.ask(RequestCode.GET_ALL_PRODUCER_INFO).body).data["PG"]
    assert producer.last_update_timestamp == pytest.approx(before_ms + 7200_000, abs=2000)


@pytest.mark.parametrize("replica_id", [0, -1, -(2**63)])
def test_an_id_that_no_replica_can_have_is_refused(group: Group, replica_id: int) -> None:
    """In the in-sync set it would make the group's state in etcd unreadable for all."""
    started(group, 1)
    part = group.master().service._group
    refused: list[Failure] = []
    part.answer(Greeting(part._digest, part._serves_epoch, replica_id), 0).addErrback(refused.append)
    assert refused[0].check(BadPeer)
    assert f"brokerId={replica_id}, and the ids in a group are above 0" in refused[0].getErrorMessage()


def isolate(group: Group, master: Replica) -> None:
    """Cut a broker off from the others and from etcd."""
    others = [each.host for each in group.replicas.values() if each is not master] + ["etcd"]
    group.wires.cut |= {way for host in others for way in ((host, master.host), (master.host, host))}


def test_offsets_of_what_was_cut_off_are_lowered(group: Group) -> None:
    started(group)
    master = group.master()
    assert group.client(master).send(send_command("T", b"all have it")).code == ResponseCode.SUCCESS
    isolate(group, master)
    group.client(master).tell(*[send_command("T", b"%d" % n) for n in range(3)])
    group.wait(0.2)
    master.parts.offsets.commit("CG", "T", 0, master.store.next_offset("T", 0))
    assert master.parts.offsets.query("CG", "T", 0) == 4
    group.wait_for(lambda: [each for each in group.masters if each is not master])
    group.wires.cut.clear()
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert master.parts.offsets.query("CG", "T", 0) == 1


def test_a_delayed_message_is_delivered_though_the_delivery_was_cut_off(group: Group) -> None:
    started(group)
    master = group.master()
    command = send_command("T", b"later", properties="DELAY\x011")
    assert group.client(master).send(command).code == ResponseCode.SUCCESS
    isolate(group, master)
    group.wait(3)
    # Delivered, where nobody else has it.
    assert (master.store.next_offset("T", 0), master.store.max_offset("T", 0)) == (1, 0)
    group.kill(master.replica_id)
    assert not (master.root / "config" / "delayOffset.json").exists()
    group.wires.cut.clear()
    new = group.master()
    group.wait(2)
    assert [record.body for record in new.records().values() if record.topic == "T"] == [b"later"]


def test_a_master_that_is_cut_off_from_etcd_acknowledges_nothing_when_another_is_elected(group: Group) -> None:
    started(group)
    master = group.master()
    client = group.client(master)
    group.wires.cut |= {(master.host, "etcd"), ("etcd", master.host)}
    group.wait_for(lambda: not group.member(master).is_master)
    answer = client.send(send_command("T", b"too late"))
    assert answer.code != ResponseCode.SUCCESS
    group.wait_for(lambda: group.masters and group.masters[0] is not master)
    group.wires.cut.clear()
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert registered(group) == f"{group.master().host}:10911"


def test_a_master_that_etcd_hears_and_that_does_not_hear_etcd_is_replaced_within_five_seconds(group: Group) -> None:
    started(group)
    master = group.master()
    group.wires.cut.add(("etcd", master.host))
    assert group.wait_for(lambda: [each for each in group.masters if each is not master]) < 5
    group.wires.cut.clear()
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})


def test_a_suspended_master_is_not_registered_again_when_it_goes_on(group: Group) -> None:
    started(group)
    master = group.master()
    group.freeze(master.replica_id)
    group.wait_for(lambda: [each for each in group.masters if each is not master])
    new = next(each for each in group.masters if each is not master)
    group.wait(40)
    group.thaw(master.replica_id)
    for _ in range(60):
        group.step()
        assert registered(group) == f"{new.host}:10911"
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})


def test_a_stop_in_order_hands_over_at_once(group: Group) -> None:
    started(group)
    master = group.master()
    group.stop(master.replica_id)
    assert group.wait_for(lambda: group.masters) < 1.5


def test_a_stop_while_another_is_elected_is_a_stop(group: Group) -> None:
    started(group)
    master = group.master()
    others = [each.host for each in group.replicas.values() if each is not master]
    group.wires.cut |= {way for host in others for way in ((host, master.host), (master.host, host))}
    group.client(master).tell(send_command("T", b"nobody else gets it"))
    group.wait(0.1)
    done: list[object] = []
    master.service.stopService().addBoth(lambda result: done.append(result))  # it waits for the send
    group.etcd.revoke(group.member(master)._lease)
    group.wait_for(lambda: not group.member(master).role.is_master)
    assert not done
    group.wait_for(lambda: done)
    group.wait(3)
    assert not master.service.running
    lock_file(str(master.root / "lock")).release()


@pytest.mark.parametrize("frozen_after_s", [1.0, 1.1, 1.2])
def test_no_send_under_way_fails_when_a_replica_is_suspended(group: Group, frozen_after_s: float) -> None:
    """Clients wait 3 seconds; of those, half a second is left for the network. Whenever the set is looked at."""
    master = started(group)
    suspended = next(each.replica_id for each in group.alive() if each is not master)
    client = group.client(master)
    sent_at: list[float] = []
    waited: dict[int, float] = {}

    def send_for(seconds: float) -> None:
        end = group.now + seconds
        while group.now < end:
            client.tell(send_command("T", b"%d" % len(sent_at)))
            sent_at.append(group.now)
            group.step()
            for answer in client.heard():
                assert answer.code == ResponseCode.SUCCESS
                waited[answer.opaque] = group.now - sent_at[answer.opaque - 1]

    send_for(frozen_after_s)
    group.freeze(suspended)
    send_for(5)
    assert group.in_sync() == {1, 2, 3} - {suspended}
    assert 1.5 < max(waited.values()) < ProducerOptions().send_timeout_s - 0.5
    group.thaw(suspended)
    group.wait_for(lambda: send_for(0.5) or group.in_sync() == {1, 2, 3})
    assert max(waited.values()) < ProducerOptions().send_timeout_s - 0.5
    assert len(waited) >= len(sent_at) - 5


def test_below_the_minimum_nothing_is_acknowledged_and_then_again(group: Group) -> None:
    started(group)
    master = group.master()
    others = [each.replica_id for each in group.alive() if each is not master]
    for other in others:
        group.kill(other)
    group.wait(6)
    assert len(group.in_sync()) == 2  # one of those that were killed has all that was acknowledged
    end = master.store.log_end
    assert group.client(master).send(send_command("T", b"alone")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.store.log_end == end
    group.start(others[0])
    group.wait_for(lambda: others[0] in group.in_sync())
    group.wait(1)
    assert group.client(master).send(send_command("T", b"two")).code == ResponseCode.SUCCESS


def test_a_new_replica_gets_the_whole_log(group: Group) -> None:
    started(group, 1, 2)
    body = b"x" * 9000
    for _ in range(20):
        assert group.client(group.master()).send(send_command("T", body)).code == ResponseCode.SUCCESS
    group.start(3)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert group.replicas[3].log() == group.master().log()
    assert group.replicas[3].log()[0] == 0


def test_a_log_that_is_not_of_the_group_is_left_alone(group: Group, tmp_path: Path) -> None:
    other = Group(tmp_path / "other", Random(2), min_in_sync_replicas=1)
    other.start(3)
    assert other.client(other.master()).send(send_command("T", b"another")).code == ResponseCode.SUCCESS
    other.stop(3)
    root = other.replicas[3].root
    other.close()
    started(group, 1, 2)
    group.client(group.master()).send(send_command("T", b"one"))
    root.rename(tmp_path / "group" / "broker3")
    stranger = group.start(3)
    group.wait(10)
    assert group.in_sync() == {1, 2}
    assert "another epoch 1 of this group than this broker's log" in group.member(stranger).why_not
    assert [record.body for record in stranger.records().values()] == [b"another"]


def test_the_runtime_information_shows_the_group(group: Group) -> None:
    started(group)
    table = KVTable.from_json(group.client(group.master()).ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert (table["groupEpoch"], table["groupInSync"], table["groupWhyNot"]) == ("1", "1 2 3", "")
    assert table["groupReplicaId"] == str(group.master().replica_id)


def test_consumer_offsets_are_kept_over_a_failover(group: Group) -> None:
    started(group)
    master = group.master()
    for n in range(4):
        group.client(master).send(send_command("T", b"%d" % n))
    header = UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=3)
    group.client(master).ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    group.wait(11)  # replicas fetch them each 10 s
    group.kill(master.replica_id)
    assert group.master().parts.offsets.query("CG", "T", 0) == 3


def test_changed_settings_count_after_a_failover(group: Group) -> None:
    started(group)
    replica = next(each for each in group.replicas.values() if each is not group.master())
    for hours in (3, 4):
        body = b"fileReservedTime=%d\n" % hours
        assert group.client(replica).ask(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == 0
    for each in list(group.replicas.values()):
        if each is not replica:
            body = b"fileReservedTime=4\n"
            assert group.client(each).ask(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == 0
    group.kill(group.master().replica_id)
    assert group.master().parts.live.current.store.file_reserved_time_hours == 4


def test_a_role_cannot_be_changed_by_hand(group: Group) -> None:
    started(group)
    before = group.master()
    answer = group.client(before).ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerRole=SLAVE\nbrokerId=7\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "etcdEndpoints" in (answer.remark or "")
    group.wait(3)
    assert group.master() is before


def test_a_history_whose_file_is_damaged_is_read_from_its_copy(group: Group) -> None:
    started(group)
    master = group.master()
    group.kill(master.replica_id)
    new = group.master()
    group.wait(1)
    group.stop(new.replica_id)
    path = new.root / "config" / "epochs.json"
    wanted = path.read_bytes()
    assert b"[2," in wanted
    assert path.with_name("epochs.json.bak").read_bytes() == wanted
    path.write_bytes(b"\0" * len(wanted))
    again = group.start(new.replica_id)
    assert again.service._group is not None
    assert again.service._group._history.last == 2


@pytest.mark.parametrize(("replica_id", "ttl_s", "timeout_s"), [(1, 3, 1.0), (3, 2, 2 / 3), (2, 60, 1.0)])
def test_brokers_ask_etcd_by_their_settings(tmp_path: Path, replica_id: int, ttl_s: int, timeout_s: float) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerRole=SYNC_MASTER\nbrokerId={replica_id}\netcdEndpoints=https://a:1;https://b:1;https://c:1\n"
        f"etcdLeaseTtlSeconds={ttl_s}\netcdUsername=mq\netcdPasswordFile=/p\n"
        "etcdCaFile=/a\netcdCertFile=/c\netcdKeyFile=/k\n"
    )
    assert etcd_access(load_broker_settings(str(conf))) == EtcdAccess(
        endpoints=("https://a:1", "https://b:1", "https://c:1"),
        first=replica_id - 1,
        timeout_s=timeout_s,
        username="mq",
        password_file="/p",
        ca_file="/a",
        cert_file="/c",
        key_file="/k",
    )
