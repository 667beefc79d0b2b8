"""A broker's life between its start and its stop: what it keeps, tells the name server and looks after."""

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mqbroker.config import TlsSettings, load_broker_settings
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.bodies import RegisterBrokerBody
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UpdateConsumerOffsetRequestHeader
from mqbroker.wire.record import decode_records
from tests.access.acl import write_acl
from tests.broker.service.running import NAMESRV, Reactor, Running, is_locked
from tests.broker.test_every_code import CODES
from tests.remoting.certificates import Authority
from tests.remoting.link import Network, result, serve
from tests.remoting.logs import Logged


def test_it_serves_all_its_codes(make: Callable[..., Running]) -> None:
    running = make().start()
    client = running.client()
    for code in sorted(CODES):
        (answer,) = client.ask_all(RemotingCommand(code))
        assert answer.is_response
    assert result(running.service.started) is None
    assert running.service.ports == {"remoting": 10911, "ha": 10912}


def test_messages_committed_offsets_and_topics_survive_a_restart(make: Callable[..., Running], root: Path) -> None:
    running = make().start()
    client = running.client()
    for i in range(5):
        client.send(body=b"%d" % i)
    header = UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=3)
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
    assert result(running.stop()) is None
    assert not is_locked(root)
    assert not (root / "abort").exists()
    assert json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]["T"]["readQueueNums"] == 4
    again = make().start().client()
    answer = again.pull()
    assert [record.body for record in decode_records(answer.body)] == [b"%d" % i for i in range(5)]
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
    (answer,) = again.ask_all(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.ext_fields["offset"] == "3"


def test_offsets_are_written_while_it_runs(make: Callable[..., Running], root: Path) -> None:
    running = make().start()
    client = running.client()
    client.send()
    header = UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=1)
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    running.turn(5.5)
    assert "T@CG" in (root / "config" / "consumerOffset.json").read_text()


def test_the_name_server_is_told_at_the_start_on_a_change_each_period_and_goodbye(
    make: Callable[..., Running], reactor: Reactor
) -> None:
    running = make().start()
    assert reactor.heard == ["REGISTER_BROKER"]
    running.client().send("New")
    running.turn()
    assert reactor.heard == ["REGISTER_BROKER"] * 2
    running.turn(30)
    assert reactor.heard == ["REGISTER_BROKER"] * 3
    running.stop()
    assert reactor.heard[3:] == ["UNREGISTER_BROKER", "port closed", "port closed"]


def test_settings_read_anew_count_at_once_where_they_can(make: Callable[..., Running], tmp_path: Path) -> None:
    running = make()
    assert running.service.adopt(running.settings) == []  # before it runs there is nothing to change
    client = running.start().client()
    client.send()
    changed = attrs.evolve(running.settings, broker_permission=4, default_topic_queue_nums=3, broker_name="other")
    assert running.service.adopt(changed) == ["brokerName"]
    assert client.pull().code == 0
    assert running.service.adopt(attrs.evolve(changed, broker_permission=2)) == ["brokerName"]
    assert client.pull().code == ResponseCode.NO_PERMISSION


def test_offsets_are_saved_as_often_as_the_settings_say_now(make: Callable[..., Running], root: Path) -> None:
    running = make(flush_consumer_offset_interval_ms=3_600_000).start()
    saved = root / "config" / "consumerOffset.json"
    running.service.adopt(attrs.evolve(running.settings, flush_consumer_offset_interval_ms=2000))
    client = running.client()
    client.send()
    header = UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=1)
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
    running.turn(1)
    assert not saved.exists()
    running.turn(1)
    assert '"T@CG"' in saved.read_text()


def test_accounts_and_certificates_are_looked_at_with_the_settings(
    make: Callable[..., Running], tmp_path: Path, logged: Logged
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    write_acl(tmp_path)
    tls = TlsSettings(test_mode=False, server_cert_path=cert, server_key_path=key)
    running = make(tls=tls, acl_enable=True, rocketmq_home=str(tmp_path)).start()
    assert running.service.adopt(running.settings) == []
    assert not [line for line in logged.lines if "reloaded" in line]
    authority.issue("server")
    write_acl(tmp_path, "accounts: []\n")
    running.service.adopt(running.settings)
    again = [line.partition(" reloaded")[0] for line in logged.lines if "reloaded" in line]
    assert sorted(again) == ["accounts were", "the certificate was"]


def test_without_name_servers(make: Callable[..., Running]) -> None:
    running = make(namesrv=()).start()
    assert result(running.service.started) is None
    assert running.client().send()[0].code == 0
    assert result(running.stop()) is None


def test_a_disconnected_client_leaves_its_groups(make: Callable[..., Running]) -> None:
    from tests.broker.test_client_requests import beat, consumer, consumer_ids

    running = make().start()
    client, other = running.client(), running.client()
    beat(client, consumers=[consumer("CG", "T")])
    beat(other, client_id="c2", consumers=[consumer("CG", "T")])
    other.link.cut()
    assert consumer_ids(client) == ["c1"]


@pytest.mark.parametrize("kind", ["producers", "consumers"])
def test_silent_clients_are_looked_for_and_stay_connected(make: Callable[..., Running], kind: str) -> None:
    from tests.broker.test_client_requests import beat, consumer

    running = make().start()
    client = running.client()
    beat(client, **{kind: ["PG"] if kind == "producers" else [consumer("CG", "T")]})
    parts = running.service._assembly
    assert parts is not None
    for _ in range(14):
        assert client.ask(9999) is not None
        running.turn(10)
    assert (parts.consumers.names(), parts.producers.groups()) == ([], {})
    assert not client.peer.lost


def test_a_delayed_message_is_delivered(make: Callable[..., Running]) -> None:
    running = make().start()
    client = running.client()
    client.send(queue_id=1, properties="DELAY\x011")
    assert client.pull(queue_id=1).code == 19
    running.turn(1.5)
    assert [record.body for record in decode_records(client.pull(queue_id=1).body)] == [b"body"]


# --- settings that are changed while it runs


def test_changed_settings_are_put_into_its_file_and_told_to_the_name_servers(
    make: Callable[..., Running], tmp_path: Path, network: Network, reactor: Reactor
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# ours\nbrokerPermission = 6\nfileReservedTime=3\n")
    told = []

    def note(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        body = RegisterBrokerBody.from_json(request.body)
        told.append(body.topic_config_serialize_wrapper.topic_config_table["SELF_TEST_TOPIC"].perm)
        return RemotingCommand.response(request)

    table = HandlerTable()
    table.register(RequestCode.REGISTER_BROKER, note)
    network.servers[NAMESRV] = serve(reactor, table)
    running = make(config_path=str(conf)).start()
    client = running.client()
    answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\ndeleteWhen=05")
    assert (answer.code, answer.remark) == (0, None)
    assert conf.read_text() == "# ours\nbrokerPermission=4\nfileReservedTime=3\ndeleteWhen=05\n"
    running.turn()
    assert told == [6, 4]


@pytest.mark.parametrize("first", [(), (NAMESRV,)])
@pytest.mark.parametrize("how", ["request", "reload"])
def test_changed_name_servers_are_registered_with_at_once(
    make: Callable[..., Running], tmp_path: Path, network: Network, reactor: Reactor, first: tuple[str, ...], how: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# ours\n")
    told: list[tuple[str, str]] = []
    added = "10.0.0.9:9876"
    for address in (NAMESRV, added):
        table = HandlerTable()

        def note(request: RemotingCommand, connection: IConnection, address: str = address) -> RemotingCommand:
            told.append((address, RequestCode(request.code).name))
            return RemotingCommand.response(request)

        table.register(RequestCode.REGISTER_BROKER, note)
        table.register(RequestCode.UNREGISTER_BROKER, note)
        network.servers[address] = serve(reactor, table)
    running = make(config_path=str(conf), namesrv=first).start()
    client = running.client()
    assert told == [(address, "REGISTER_BROKER") for address in first]
    for addresses in ((added,), first, (added,)):
        told.clear()
        if how == "request":
            answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"namesrvAddr=" + ";".join(addresses).encode())
            assert (answer.code, answer.remark) == (0, None)
            assert load_broker_settings(str(conf)).namesrv_addr == addresses
        else:
            assert running.service.adopt(attrs.evolve(running.settings, namesrv_addr=addresses)) == []
        running.turn()
        left = {added, *first} - set(addresses)
        assert {address for address, code in told if code == "REGISTER_BROKER"} == set(addresses)
        assert {address for address, code in told if code == "UNREGISTER_BROKER"} <= left
    client.send("New")
    running.turn(31)
    assert told[-2:] == [(added, "REGISTER_BROKER")] * 2


@pytest.mark.parametrize("text", ["nonsense", "a:b", "a:70000", "a:1;b", ":", "a b:1", "x" * 70_000])
def test_name_servers_that_cannot_be_are_refused(make: Callable[..., Running], text: str) -> None:
    running = make().start()
    client = running.client()
    answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"namesrvAddr=" + text.encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"namesrvAddr={NAMESRV}\n".encode() in client.ask(RequestCode.GET_BROKER_CONFIG).body.replace(b"\\", b"")


def test_changed_settings_that_cannot_be_kept(make: Callable[..., Running], tmp_path: Path, logged: Logged) -> None:
    (tmp_path / "file").write_text("")
    client = make(config_path=str(tmp_path / "file" / "broker.conf")).start().client()
    answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("changed until the next start only")
    assert [line for line in logged.lines if "broker.conf could not be written: " in line]


def test_a_group_goes_on_after_a_restart_as_if_nothing_had_happened(make: Callable[..., Running]) -> None:
    """The first member that comes back is not taken for the only one, and is given messages before its heartbeat."""
    from tests.broker.test_client_requests import beat, consumer, consumer_ids, pushed

    running = make().start()
    first, second = running.client(), running.client()
    beat(first, client_id="c1", consumers=[consumer("CG", "T")])
    beat(second, client_id="c2", consumers=[consumer("CG", "T")])
    first.send()
    assert first.pull(sys_flag=0, sub_version=0).code == 0
    assert result(running.stop()) is None
    running = make().start()
    first = running.client()
    assert first.pull(sys_flag=0, sub_version=0).code == 0
    assert consumer_ids(first) == ["c1", "c2"]
    beat(first, client_id="c1", consumers=[consumer("CG", "T")])
    ids = consumer_ids(first)
    assert isinstance(ids, list)
    assert sorted(ids) == ["c1", "c2"]
    assert pushed(first) == []
    running.turn(60)
    assert [command.code for command in pushed(first)] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert consumer_ids(first) == ["c1"]
