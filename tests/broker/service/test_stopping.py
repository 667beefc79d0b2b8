"""How a broker stops: what it does first and last, and what becomes of those it has not answered."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from mqbroker.errors import AlreadyStarted
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UpdateConsumerOffsetRequestHeader
from mqbroker.wire.record import decode_records
from tests.broker.bench import pull_header
from tests.broker.service.running import NAMESRV, Reactor, Recording, Running, is_locked
from tests.fakes import SteppedWorker
from tests.remoting.link import Network, result, waiting
from tests.remoting.logs import Logged


def test_the_order_of_stopping(make: Callable[..., Running], reactor: Reactor, root: Path) -> None:
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
    assert order == ["UNREGISTER_BROKER", "port closed", "client closed, locked", "port closed", "disk"]
    assert not is_locked(root)


def test_nothing_is_taken_once_the_store_stops(make: Callable[..., Running], reactor: Reactor, root: Path) -> None:
    """A message acknowledged then would be lost: the log is cut where it was when the store was stopped."""
    worker = SteppedWorker(at_once=False)
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


def test_what_was_taken_is_answered_before_connections_close(make: Callable[..., Running], root: Path) -> None:
    worker = SteppedWorker(at_once=False)
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


def test_a_request_that_takes_too_long_is_given_up(
    make: Callable[..., Running], reactor: Reactor, logged: Logged
) -> None:
    worker = SteppedWorker(at_once=False)
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
    assert "requests dropped because they took too long: 1" in logged.lines
    while not done.called:
        worker.work()
        running.turn()


def test_who_does_not_read_the_last_answers_is_cut(make: Callable[..., Running], root: Path) -> None:
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


def test_nobody_is_let_in_while_it_drains(make: Callable[..., Running], reactor: Reactor) -> None:
    worker = SteppedWorker(at_once=False)
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


def test_two_starts_are_one_too_many(make: Callable[..., Running], reactor: Reactor) -> None:
    running = make().start()
    with pytest.raises(AlreadyStarted, match="broker-a is already started; stop it first"):
        running.service.startService()
    assert running.client().send()[0].code == 0  # and it goes on
    worker = SteppedWorker(at_once=False)
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


def test_stopping_twice_is_stopping_once(make: Callable[..., Running], reactor: Reactor, root: Path) -> None:
    worker = SteppedWorker(at_once=False)
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


def test_a_name_server_that_is_away_does_not_keep_it_from_starting_or_stopping(
    make: Callable[..., Running], network: Network, root: Path
) -> None:
    network.servers.clear()
    running = make().start()
    assert result(running.service.started) is None
    assert running.client().send()[0].code == 0
    assert result(running.stop()) is None
    assert not is_locked(root)


def test_no_timer_is_left(make: Callable[..., Running], reactor: Reactor, network: Network) -> None:
    network.servers[NAMESRV].doStop()
    running = make().start()
    running.client().send()
    running.turn(1)
    running.stop()
    assert reactor.getDelayedCalls() == []
