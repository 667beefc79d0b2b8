"""A broker's life: what it does first and last, and that a start that fails leaves nothing behind.

The order is seen from outside: what name server, clients, files and the disk's worker notice, in the order they do.
"""

import json
import os
import shutil
from itertools import groupby
from random import Random

import attrs
import pytest
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.filepath import FilePath

from mqbroker.broker.service import BrokerService, make_broker, vip_port
from mqbroker.errors import AlreadyStarted, StoreDamaged, StoreLocked
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.store import open_store
from mqbroker.store.disk import OsDisk
from mqbroker.store.lock import lock_file
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import RegisterBrokerBody
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UpdateConsumerOffsetRequestHeader
from mqbroker.wire.record import decode_records
from tests.broker.bench import Client, HeldWorker, make_settings, pull_header
from tests.broker.test_every_code import CODES
from tests.remoting.link import CLIENT, Network, result, serve, waiting

NAMESRV = "10.0.0.8:9876"


class Port:
    """A listening port that starts and stops its factory, as a real one does."""

    def __init__(self, reactor, address, factory):
        self._reactor, self._address, self._factory = reactor, address, factory

    def getHost(self):
        return self._address

    def stopReading(self):  # noqa: N802
        self._reactor.heard.append("pause")

    def startReading(self):  # noqa: N802
        self._reactor.heard.append("resume")

    def stopListening(self):  # noqa: N802
        self._reactor.heard.append("port closed")
        self._factory.doStop()


class Reactor(MemoryReactorClock):
    """Gives out ports unless `taken`; what others notice goes to `heard`."""

    def __init__(self):
        super().__init__()
        self.heard = []
        self.taken = False
        self.taken_ports = set()
        self.advance(1_700_000_000)

    def listenTCP(self, port, factory, backlog=50, interface=""):
        if self.taken or port in self.taken_ports:
            raise CannotListenError(interface, port, OSError(98, "Address already in use"))
        made = super().listenTCP(port, factory, backlog, interface)
        factory.doStart()
        return Port(self, made.getHost(), factory)


class Recording(InlineWorker):
    """Notes what is written, by the names of files."""

    def __init__(self, heard):
        self.heard = heard

    def run(self, function):
        self.heard.append("disk")
        return super().run(function)


@pytest.fixture
def reactor():
    return Reactor()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def network(reactor):
    """One name server that notes what it is told."""
    table = HandlerTable()

    def note(request, connection):
        reactor.heard.append(RequestCode(request.code).name)
        return RemotingCommand.response(request)

    table.register(RequestCode.REGISTER_BROKER, note)
    table.register(RequestCode.UNREGISTER_BROKER, note)
    network = Network()
    network.servers[NAMESRV] = serve(reactor, table)
    return network


class Running:
    """A broker on a reactor, with clients."""

    def __init__(self, reactor, network, root, *, worker=None, namesrv=(NAMESRV,), **changes):
        self.reactor, self.network = reactor, network
        self.root = root
        changes = {"vip_port_enable": False, **changes}
        self.settings = attrs.evolve(make_settings(root, **changes), namesrv_addr=namesrv)
        self.worker = worker or InlineWorker()
        self.service = BrokerService(
            self.settings, reactor, disk=OsDisk(), rng=Random(1), worker=self.worker, connector=network.connector
        )
        self.clients = []

    def start(self):
        self.service.startService()
        self.turn()
        return self

    @property
    def factory(self):
        return self.reactor.tcpServers[-1][1]

    def client(self):
        self.clients.append(Client(self, CLIENT))
        return self.clients[-1]

    def turn(self, seconds=0.0):
        self.reactor.advance(0)
        while seconds > 0:
            self.reactor.advance(min(0.5, seconds))
            seconds -= 0.5
        self.network.pump()
        for client in self.clients:
            client.link.pump()
        self.reactor.advance(0)

    def stop(self):
        """Stop, and pump until it has; the Deferred."""
        done = self.service.stopService()
        for _ in range(10):
            self.turn()
        return done


@pytest.fixture
def make(reactor, network, root):
    made = []

    def make(**fields):
        made.append(Running(reactor, network, fields.pop("root", root), **fields))
        return made[-1]

    yield make
    for running in made:
        running.stop()


def is_locked(root):
    try:
        lock_file(str(root / "lock")).release()
    except StoreLocked:
        return True
    return False


def test_it_serves_all_its_codes(make):
    running = make().start()
    client = running.client()
    for code in sorted(CODES):
        (answer,) = client.ask_all(RemotingCommand(code))
        assert answer.is_response
    assert result(running.service.started) is None
    assert running.service.ports == {"remoting": 10911}


def test_messages_committed_offsets_and_topics_survive_a_restart(make, root):
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


def test_offsets_are_written_while_it_runs(make, root):
    running = make().start()
    client = running.client()
    client.send()
    header = UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=1)
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    running.turn(5.5)
    assert "T@CG" in (root / "config" / "consumerOffset.json").read_text()


def test_the_name_server_is_told_at_the_start_on_a_change_each_period_and_goodbye(make, reactor):
    running = make().start()
    assert reactor.heard == ["REGISTER_BROKER"]
    running.client().send("New")
    running.turn()
    assert reactor.heard == ["REGISTER_BROKER"] * 2
    running.turn(30)
    assert reactor.heard == ["REGISTER_BROKER"] * 3
    running.stop()
    assert reactor.heard[3:] == ["UNREGISTER_BROKER", "port closed"]


def test_the_order_of_stopping(make, reactor, root):
    running = make(worker=Recording(reactor.heard)).start()
    client = running.client()
    client.send()
    client.link.protocols[1].notify_closed(
        lambda: reactor.heard.append(f"client closed, {'locked' if is_locked(root) else 'unlocked'}")
    )
    pulling = running.client()
    assert pulling.ask(RequestCode.PULL_MESSAGE, pull_header(queue_offset=1, sys_flag=6)) is None
    reactor.heard.clear()
    done = running.service.stopService()
    assert result(done) is waiting
    for _ in range(10):
        running.turn()
    assert result(done) is None
    order = [what for what, _ in groupby(reactor.heard)]
    assert order == ["UNREGISTER_BROKER", "port closed", "client closed, locked", "disk"]
    assert not is_locked(root)


def test_nothing_is_taken_once_the_store_stops(make, reactor, root):
    """A message acknowledged then would be lost: the log is cut where it was when the store was stopped."""
    worker = HeldWorker()
    running = make(worker=worker).start()
    worker.work()
    client = running.client()
    client.send(body=b"in time")
    done = running.service.stopService()
    for _ in range(5):
        running.turn()
    assert result(done) is waiting  # for the disk
    assert is_locked(root)
    assert not client.peer.lost  # its send is still to be answered, for which there are some seconds
    running.turn(5)
    assert client.peer.lost
    before = len(client.peer.received)
    client.tell(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert len(client.peer.received) == before
    while not done.called:
        worker.work()
        running.turn()
    assert not is_locked(root)


def test_what_was_taken_is_answered_before_connections_close(make, root):
    worker = HeldWorker()
    running = make(worker=worker).start()
    worker.work()
    client, other, pulling = running.client(), running.client(), running.client()
    assert pulling.ask(RequestCode.PULL_MESSAGE, pull_header("TBW102", sys_flag=6)) is None
    assert client.send(body=b"taken") == []  # its topic is to be on the disk first
    done = running.service.stopService()
    for _ in range(5):
        running.turn()
    assert [answer.code for answer in pulling.heard()] == [ResponseCode.PULL_NOT_FOUND]
    (late,) = other.send("TBW102")
    assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert late.remark == "service not available now. The broker is stopping"
    assert pulling.pull("TBW102").code == ResponseCode.SERVICE_NOT_AVAILABLE
    header = UpdateConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=0, commit_offset=1)
    assert other.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
    assert not any(each.peer.lost for each in running.clients)
    worker.work()
    for _ in range(5):
        running.turn()
    assert [answer.code for answer in client.heard()] == [0]
    assert all(each.peer.lost for each in running.clients)
    while not done.called:
        worker.work()
        running.turn()
    assert "T@CG" in (root / "config" / "consumerOffset.json").read_text()
    assert [record.body for record in decode_records(make().start().client().pull().body)] == [b"taken"]


def test_a_request_that_takes_too_long_is_given_up(make, reactor, logged):
    worker = HeldWorker()
    running = make(worker=worker).start()
    worker.work()
    running.client().send()
    done = running.service.stopService()
    for _ in range(5):
        running.turn()
    running.turn(4.5)
    assert not running.clients[0].peer.lost
    running.turn(1)
    assert running.clients[0].peer.lost
    assert "1 requests are not answered: they took too long" in logged.lines
    while not done.called:
        worker.work()
        running.turn()


def test_who_does_not_read_the_last_answers_is_cut(make, root):
    running = make(namesrv=()).start()
    client = running.client()
    client.link.ends[0].reading = False
    client.tell(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
    done = running.service.stopService()
    running.turn(1.5)
    assert result(done) is waiting
    running.turn(1)
    assert result(done) is None
    assert client.peer.lost


def test_nobody_is_let_in_while_it_drains(make, reactor):
    worker = HeldWorker()
    running = make(worker=worker, namesrv=()).start()
    worker.work()
    running.client().send()
    done = running.service.stopService()
    assert result(done) is waiting
    assert "port closed" in reactor.heard
    worker.work()
    while not done.called:
        worker.work()
        running.turn()


def test_two_starts_are_one_too_many(make, reactor):
    running = make().start()
    with pytest.raises(AlreadyStarted, match="broker-a is started already; stop it first"):
        running.service.startService()
    assert running.client().send()[0].code == 0  # and it goes on
    worker = HeldWorker()
    other = make(root=running.root.parent / "other", worker=worker).start()
    worker.work()
    stopping = other.service.stopService()
    for _ in range(5):
        other.turn()
    assert result(stopping) is waiting
    with pytest.raises(AlreadyStarted):
        other.service.startService()
    while not stopping.called:
        worker.work()
        other.turn()
    assert result(other.service.startService()) is None
    worker.work()


def test_settings_read_anew_count_at_once_where_they_can(make, tmp_path):
    running = make()
    assert running.service.adopt(running.settings) == []  # before it runs there is nothing to change
    client = running.start().client()
    client.send()
    changed = attrs.evolve(running.settings, broker_permission=4, default_topic_queue_nums=3, broker_name="other")
    assert running.service.adopt(changed) == ["brokerName"]
    assert client.pull().code == 0
    assert running.service.adopt(attrs.evolve(changed, broker_permission=2)) == ["brokerName"]
    assert client.pull().code == ResponseCode.NO_PERMISSION


# --- the second port


def test_the_vip_port_serves_the_same(make, reactor):
    running = make(vip_port_enable=True).start()
    assert [server[0] for server in reactor.tcpServers] == [10911, 10909]
    assert running.service.ports == {"remoting": 10911, "vip": 10909}
    assert reactor.tcpServers[0][1] is reactor.tcpServers[1][1]
    assert running.client().send()[0].code == 0
    running.stop()
    assert reactor.heard.count("port closed") == 2


def test_it_starts_without_a_vip_port_that_somebody_has(make, reactor, logged):
    running = make(vip_port_enable=True)
    reactor.taken_ports = {10909}
    running.start()
    assert running.service.ports == {"remoting": 10911}
    assert "port 10909 is not served beside 10911: [Errno 98] Address already in use" in logged.lines
    assert running.client().send()[0].code == 0


@pytest.mark.parametrize(("port", "vip"), [(0, None), (1, None), (2, None), (3, 1), (10911, 10909)])
def test_which_port_is_the_vip_port(tmp_path, port, vip):
    settings = make_settings(tmp_path)
    assert vip_port(attrs.evolve(settings, server=attrs.evolve(settings.server, listen_port=port))) == vip


def test_stopping_twice_is_stopping_once(make, reactor, root):
    worker = HeldWorker()
    running = make(worker=worker).start()
    worker.work()
    running.client().send()
    both = [running.service.stopService(), running.service.stopService()]
    for _ in range(5):
        running.turn()
    assert [result(done) for done in both] == [waiting, waiting]
    while not both[0].called:
        worker.work()
        running.turn()
    assert both[1].called
    assert reactor.heard.count("UNREGISTER_BROKER") == 1


def test_a_name_server_that_is_away_does_not_keep_it_from_starting_or_stopping(make, network, root):
    network.servers.clear()
    running = make().start()
    assert result(running.service.started) is None
    assert running.client().send()[0].code == 0
    assert result(running.stop()) is None
    assert not is_locked(root)


def test_without_name_servers(make):
    running = make(namesrv=()).start()
    assert result(running.service.started) is None
    assert running.client().send()[0].code == 0
    assert result(running.stop()) is None


def test_no_timer_is_left(make, reactor, network):
    network.servers[NAMESRV].doStop()
    running = make().start()
    running.client().send()
    running.turn(1)
    running.stop()
    assert reactor.getDelayedCalls() == []


def test_a_disconnected_client_leaves_its_groups(make):
    from tests.broker.test_client_requests import beat, consumer, consumer_ids

    running = make().start()
    client, other = running.client(), running.client()
    beat(client, consumers=[consumer("CG", "T")])
    beat(other, client_id="c2", consumers=[consumer("CG", "T")])
    other.link.cut()
    assert consumer_ids(client) == ["c1"]


@pytest.mark.parametrize("kind", ["producers", "consumers"])
def test_silent_clients_are_looked_for(make, kind):
    from tests.broker.test_client_requests import beat, consumer

    running = make().start()
    client = running.client()
    beat(client, **{kind: ["PG"] if kind == "producers" else [consumer("CG", "T")]})
    for _ in range(14):
        client.ask(9999)
        running.turn(10)
    assert client.peer.lost


def test_a_delayed_message_is_delivered(make):
    running = make().start()
    client = running.client()
    client.send(queue_id=1, properties="DELAY\x011")
    assert client.pull(queue_id=1).code == 19
    running.turn(1.5)
    assert [record.body for record in decode_records(client.pull(queue_id=1).body)] == [b"body"]


# --- starts that take long


@pytest.fixture
def unindexed(make, root, monkeypatch):
    """A broker whose store takes several turns to open."""
    running = make()
    store = open_store(running.settings.store, disk=OsDisk(), clock=Clock(), worker=InlineWorker(), store_host=bytes(8))
    for _ in range(3):
        store.append([(b"T", 0, 0, 0, 0, bytes(8), 0, 0, b"x", b"")] * 1000)
    store.stop()
    shutil.rmtree(root / "consumequeue")
    monkeypatch.setattr("mqbroker.store.turns.TURN_S", -1)
    return running


def test_nobody_is_accepted_while_the_store_is_recovered(unindexed, reactor):
    started = unindexed.service.startService()
    assert not started.called
    assert reactor.heard == ["pause"]
    unindexed.turn()
    assert result(started) is None
    assert reactor.heard[:2] == ["pause", "resume"]
    (answer,) = unindexed.client().send()
    assert answer.code == 0


def test_stopping_while_the_store_is_recovered_ends_that(unindexed, reactor, network, root):
    network.servers[NAMESRV].doStop()
    started = unindexed.service.startService()
    stopped = unindexed.service.stopService()
    assert result(stopped) is None
    assert result(started) is None
    assert reactor.heard == ["pause", "port closed"]
    assert_undone(unindexed, reactor, root)


# --- starts that fail


def start_of(running):
    """Start it, and raise what it fails with."""
    failures = []
    running.service.startService().addErrback(failures.append)
    for failure in failures:
        failure.raiseException()


def snapshot(root):
    return sorted(path.path for path in FilePath(str(root)).walk()) if root.exists() else None


def assert_undone(running, reactor, root, locked=False):
    for _ in range(5):
        running.turn()
    assert is_locked(root) == locked
    assert not running.service.running
    assert "REGISTER_BROKER" not in reactor.heard
    assert not [call for call in reactor.getDelayedCalls() if "IdleWatch" not in str(call)]
    assert result(running.service.stopService()) is None  # what follows a failed start


def test_a_port_in_use_touches_nothing(make, reactor, network, root):
    network.servers[NAMESRV].doStop()
    reactor.taken = True
    running = make()
    with pytest.raises(CannotListenError):
        start_of(running)
    assert snapshot(root) is None
    assert result(running.service.stopService()) is None


def test_a_locked_store_is_left_alone(make, reactor, network, root):
    network.servers[NAMESRV].doStop()
    running = make().start()
    running.client().send()
    running.stop()
    reactor.heard.clear()
    lock = lock_file(str(root / "lock"))
    before = snapshot(root)
    other = make()
    with pytest.raises(StoreLocked):
        start_of(other)
    assert snapshot(root) == before
    assert_undone(other, reactor, root, locked=True)
    assert reactor.heard == ["port closed"]
    lock.release()


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"])
def test_a_damaged_table_stops_the_start_and_frees_the_store(make, reactor, network, root, name):
    network.servers[NAMESRV].doStop()
    os.makedirs(root / "config")
    (root / "config" / name).write_text("{")
    running = make()
    with pytest.raises(StoreDamaged) as caught:
        start_of(running)
    assert caught.value.path.endswith(name)
    assert_undone(running, reactor, root)
    assert (root / "config" / name).read_text() == "{"  # for whoever will repair it


def test_a_start_that_failed_and_is_stopped_at_once_ends_in_order(make, network, reactor, root):
    """A daemon stops what it could not start: both must not walk through the steps at the same time."""
    network.servers[NAMESRV].doStop()
    os.makedirs(root / "config")
    (root / "config" / "delayOffset.json").write_text("{")
    worker = HeldWorker()
    running = make(worker=worker)
    with pytest.raises(StoreDamaged):
        start_of(running)
    stopped = running.service.stopService()
    running.turn()
    assert result(stopped) is waiting
    while not stopped.called:
        worker.work()
        running.turn()
    assert not is_locked(root)


def test_a_directory_that_cannot_be_made(make, tmp_path, reactor, network):
    network.servers[NAMESRV].doStop()
    (tmp_path / "file").write_text("")
    running = make(root=tmp_path / "file" / "store")
    with pytest.raises(OSError, match="file"):
        start_of(running)
    assert result(running.service.stopService()) is None


def test_a_port_may_be_chosen_by_the_system(make, reactor):
    made = make_broker(make().settings, reactor, Random(1))
    assert isinstance(made, BrokerService)
    assert made.port == 0


# --- settings that are changed while it runs


def test_changed_settings_are_put_into_its_file_and_told_to_the_name_servers(make, tmp_path, network, reactor):
    conf = tmp_path / "broker.conf"
    conf.write_text("# ours\nbrokerPermission = 6\nfileReservedTime=3\n")
    told = []

    def note(request, connection):
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


def test_changed_settings_that_cannot_be_kept(make, tmp_path, logged):
    (tmp_path / "file").write_text("")
    client = make(config_path=str(tmp_path / "file" / "broker.conf")).start().client()
    answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("changed until the next start only")
    assert [line for line in logged.lines if "broker.conf could not be written: " in line]
