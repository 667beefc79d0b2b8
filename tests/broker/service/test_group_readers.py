"""What consumers of a group's master get: what stays whatever happens; and what a deposed master does, which is
nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.broker.broker_group import BrokerGroup
from mqbroker.config import BelowInSync
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    GetMaxOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqbroker.wire.record import decode_record
from tests.broker.bench import pull_header, send_command
from tests.broker.service.group import Group, Replica, started
from tests.broker.service.simulation.disks import with_zeros


def others_of(group: Group, master: Replica) -> list[Replica]:
    return [each for each in group.alive() if each is not master]


def cut_off(group: Group, master: Replica) -> None:
    """The replicas hear nothing of their master any more; etcd does."""
    for other in others_of(group, master):
        group.wires.cut |= {(master.host, other.host), (other.host, master.host)}


class Consumer:
    """Goes on where it was, as clients do; a pull is held for a moment at most."""

    def __init__(self, group: Group) -> None:
        self.group, self.offset = group, 0
        self.bodies: list[bytes] = []

    def pull(self, replica: Replica, flags: int = PullSysFlag.SUBSCRIPTION) -> RemotingCommand:
        header = pull_header("T", queue_offset=self.offset, sys_flag=flags)
        return self.group.client(replica).ask(RequestCode.PULL_MESSAGE, header)

    def read(self, replica: Replica) -> int:
        """Pull until nothing is there; returns the last code."""
        while True:
            answer = self.pull(replica)
            self.offset = int(answer.ext_fields["nextBeginOffset"])
            if answer.code != ResponseCode.SUCCESS:
                return answer.code
            at = 0
            while at < len(answer.body):
                record = decode_record(answer.body, at)
                self.bodies.append(record.body)
                at += int.from_bytes(answer.body[at : at + 4], "big")


@pytest.mark.parametrize("below", [BelowInSync.AUTO, BelowInSync.APPEND])
def test_no_consumer_skips_what_takes_the_place_of_messages_that_were_never_confirmed(
    tmp_path: Path, below: BelowInSync
) -> None:
    group = Group(tmp_path / "group", sends_below_in_sync=below)
    master = started(group)
    consumer = Consumer(group)
    assert group.client(master).send(send_command("T", b"first")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    assert consumer.read(master) == ResponseCode.PULL_NOT_FOUND
    others = [each.replica_id for each in others_of(group, master)]
    for other in others:
        group.kill(other)
    group.wait(2)
    alone = {group.client(master).send(send_command("T", b"alone %d" % n)).code for n in range(20)}
    refused = below is BelowInSync.AUTO
    assert alone == {ResponseCode.SERVICE_NOT_AVAILABLE if refused else ResponseCode.SLAVE_NOT_AVAILABLE}
    assert master.store.next_offset("T", 0) == (1 if refused else 21)
    group.wait(1)
    consumer.read(master)
    group.kill(master.replica_id)
    for other in others:
        group.start(other)
    new = group.master()
    group.wait_for(lambda: group.in_sync() >= set(others))
    for n in range(30):
        assert group.client(new).send(send_command("T", b"kept %d" % n)).code == ResponseCode.SUCCESS
    group.wait(0.1)
    consumer.read(new)
    assert consumer.bodies == [b"first", *(b"kept %d" % n for n in range(30))]
    group.close()


def test_readers_get_a_message_when_the_replicas_have_it_and_not_before(group: Group) -> None:
    master = started(group)
    consumer = Consumer(group)
    client = group.client(master)
    assert client.send(send_command("T", b"one")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    cut_off(group, master)
    client.tell(send_command("T", b"two"))
    group.wait(0.3)
    found = consumer.pull(master)
    assert (found.code, found.ext_fields["maxOffset"]) == (ResponseCode.SUCCESS, "1")
    asked = client.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="T", queue_id=0))
    assert asked.ext_fields["offset"] == "1"
    group.wires.cut.clear()
    group.wait_for(lambda: master.store.max_offset("T", 0) == 2, 5)


def test_a_held_pull_is_answered_at_the_confirmation(group: Group) -> None:
    master = started(group)
    client, waiting = group.client(master), group.client(master)
    assert client.send(send_command("T", b"one")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
    waiting.tell(RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=1, sys_flag=flags)))
    group.step()
    cut_off(group, master)
    client.tell(send_command("T", b"two"))
    group.wait(0.3)
    assert (waiting.heard(), client.heard()) == ([], [])
    group.wires.cut.clear()
    for _ in range(100):
        group.step()
        answers, sent = waiting.heard(), client.heard()
        if answers or sent:
            break
    assert [each.code for each in (*answers, *sent)] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]  # in one step


def test_who_got_send_ok_finds_the_message_by_its_id_at_once(group: Group) -> None:
    master = started(group)
    answer = group.client(master).send(send_command("T", b"one"))
    assert answer.code == ResponseCode.SUCCESS
    offset = int(answer.ext_fields["msgId"][-16:], 16)
    assert offset < master.store.replicated()
    found: list[Any] = []
    Deferred.fromCoroutine(master.store.queries.record(offset)).addCallback(found.append)
    assert found[0] is not None


def test_an_elected_master_shows_its_tail_when_the_others_have_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the replica knows to be confirmed may be less than it has."""
    master = started(group)
    consumer = Consumer(group)
    for n in range(4):
        assert group.client(master).send(send_command("T", b"%d" % n)).code == ResponseCode.SUCCESS
    group.wait(0.2)
    places = sorted(master.records())
    consumer.read(master)
    assert consumer.offset == 4
    make = BrokerGroup.make_in_sync

    def make_known(self: BrokerGroup, slaves: Any) -> Any:
        self.store.note.forget_above(places[2])
        return make(self, slaves)

    monkeypatch.setattr(BrokerGroup, "make_in_sync", make_known)
    group.kill(master.replica_id)
    group.wait_for(lambda: [each for each in group.replicas.values() if each.is_master])
    [new] = [each for each in group.replicas.values() if each.is_master]
    assert (new.store.max_offset("T", 0), new.store.next_offset("T", 0)) == (2, 4)
    # Who has read on from the former master waits at its place, and is not sent back.
    answer = consumer.pull(new)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "4")
    group.wait_for(lambda: new.store.max_offset("T", 0) == 4, 5)
    assert group.client(new).send(send_command("T", b"4")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    consumer.read(new)
    assert consumer.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_a_delayed_message_whose_delivery_is_in_the_tail_is_delivered_once(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = started(group)
    assert group.client(master).send(send_command("T", b"later", properties="DELAY\x011")).code == ResponseCode.SUCCESS
    group.wait_for(lambda: master.store.max_offset("T", 0) == 1)
    group.wait(0.3)
    place = max(master.records())
    make = BrokerGroup.make_in_sync

    def make_known(self: BrokerGroup, slaves: Any) -> Any:
        self.store.note.forget_above(place)
        return make(self, slaves)

    monkeypatch.setattr(BrokerGroup, "make_in_sync", make_known)
    group.kill(master.replica_id)
    new = group.master()
    group.wait_for(lambda: new.store.max_offset("T", 0) == 1, 5)
    assert group.client(new).send(send_command("T", b"next")).code == ResponseCode.SUCCESS
    group.wait(3)
    consumer = Consumer(group)
    consumer.read(new)
    assert consumer.bodies == [b"later", b"next"]


def test_a_master_alone_shows_no_tail_that_it_does_not_know_to_be_confirmed(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = started(group)
    for n in range(4):
        assert group.client(master).send(send_command("T", b"%d" % n)).code == ResponseCode.SUCCESS
    group.wait(0.2)
    places = sorted(master.records())
    make = BrokerGroup.make_in_sync

    def make_known(self: BrokerGroup, slaves: Any) -> Any:
        self.store.note.forget_above(places[3])
        return make(self, slaves)

    monkeypatch.setattr(BrokerGroup, "make_in_sync", make_known)
    for replica_id in (1, 2, 3):
        group.kill(replica_id)
    group.start(master.replica_id)
    again = group.master()
    group.wait(10)
    assert again.store.max_offset("T", 0) == 3
    consumer = Consumer(group)
    consumer.read(again)
    assert consumer.bodies == [b"0", b"1", b"2"]


def test_no_consumer_is_led_past_what_an_incomplete_replica_cannot_read(tmp_path: Path) -> None:
    """As one that asks the former master, while its address stands in the route still."""
    group = Group(tmp_path / "group", is_disk_simulated=True, slave_read_enable=True)
    master = started(group)
    for n in range(4):
        sent = send_command("T", b"%d" % n * 9000)
        assert group.client(master).send(sent).code == ResponseCode.SUCCESS
    group.wait(2)
    group.kill(master.replica_id)
    replica = group.replicas[master.replica_id]
    replica.disk = with_zeros(replica.disk, [0], 0, 20_000)
    replica = group.start(master.replica_id)
    assert "its log has no message from" in replica.why_not_whole
    consumer, client = Consumer(group), group.client(replica)
    for _ in range(3):  # by a plan, too
        answer = consumer.pull(replica)
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    asked = client.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="T", queue_id=0))
    assert asked.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "this broker's store is incomplete" in (asked.remark or "")
    group.wait_for(lambda: group.in_sync() == {1, 2, 3} and not replica.why_not_whole, 40)
    assert consumer.read(group.replicas[master.replica_id]) == ResponseCode.PULL_NOT_FOUND
    assert [body[:1] for body in consumer.bodies] == [b"0", b"1", b"2", b"3"]
    group.close()


def paused_while_another_is_elected(group: Group, master: Replica) -> Replica:
    """The new master. The former one goes on in the next step, before any of its timers have been called."""
    group.freeze(master.replica_id)
    group.wait_for(lambda: [each for each in group.masters if each is not master])
    [new] = [each for each in group.masters if each is not master]
    return new


def go_on_with_requests(group: Group, master: Replica) -> None:
    """As after SIGCONT: what the sockets have is read first."""
    group.replicas[master.replica_id].is_frozen = False
    group.wires.frozen.discard(master.host)
    for _ in range(3):
        group.wires.pump()


def test_a_deposed_master_appends_and_serves_nothing_after_a_pause(group: Group) -> None:
    master = started(group)
    client = group.client(master)
    assert client.send(send_command("T", b"one")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    paused_while_another_is_elected(group, master)
    end, topics = master.store.log_end, master.parts.topics.names()
    [place, *_] = master.records()
    requests = [
        send_command("T", b"two"),
        send_command("T", b"three", code=RequestCode.SEND_MESSAGE),
        RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header("T", sys_flag=PullSysFlag.SUBSCRIPTION)),
        RemotingCommand.request(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=1),
        ),
        RemotingCommand.request(
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0),
        ),
        RemotingCommand.request(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ConsumerSendMsgBackRequestHeader(offset=place, group="CG", delay_level=1),
        ),
        RemotingCommand.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequestHeader(
                topic="New", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
                topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
            ),
        ),
    ]  # fmt: skip
    client.tell(*requests)
    go_on_with_requests(group, master)
    codes = {each.opaque: each.code for each in client.heard()}
    assert [codes[each.opaque] for each in requests] == [
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.PULL_NOT_FOUND,
        *4 * [ResponseCode.SERVICE_NOT_AVAILABLE],
    ]
    assert (master.store.log_end, master.parts.topics.names()) == (end, topics)
    assert master.parts.offsets.query("CG", "T", 0) is None


def test_a_held_pull_of_a_deposed_master_is_not_served_and_keeps_its_offset(group: Group) -> None:
    master = started(group)
    client = group.client(master)
    assert client.send(send_command("T", b"one")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    paused_while_another_is_elected(group, master)
    flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
    client.tell(RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header("T", sys_flag=flags)))
    go_on_with_requests(group, master)
    assert client.heard() == []
    group.thaw(master.replica_id)
    group.wait(2)
    assert [(each.code, each.ext_fields["nextBeginOffset"]) for each in client.heard()] == [
        (ResponseCode.PULL_NOT_FOUND, "0")
    ]


def test_a_deposed_master_delivers_no_delayed_message(group: Group) -> None:
    master = started(group)
    assert group.client(master).send(send_command("T", b"later", properties="DELAY\x011")).code == ResponseCode.SUCCESS
    group.wait(0.2)
    paused_while_another_is_elected(group, master)
    end = master.store.log_end
    group.thaw(master.replica_id)
    assert master.store.log_end == end


def test_while_etcd_is_away_a_master_whose_lease_has_run_out_serves_nobody_and_then_again(group: Group) -> None:
    master = started(group)
    client = group.client(master)
    assert client.send(send_command("T", b"one")).code == ResponseCode.SUCCESS
    hosts = [each.host for each in group.replicas.values()]
    group.wires.cut |= {way for host in hosts for way in ((host, "etcd"), ("etcd", host))}
    group.wait(5)
    assert client.send(send_command("T", b"two")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    consumer = Consumer(group)
    assert consumer.read(master) == ResponseCode.PULL_NOT_FOUND
    assert consumer.offset == 0
    group.wires.cut.clear()
    new = group.master()
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert group.client(new).send(send_command("T", b"three")).code == ResponseCode.SUCCESS
    group.wait(0.1)
    consumer.read(new)
    assert consumer.bodies == [b"one", b"three"]
