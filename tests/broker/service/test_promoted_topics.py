"""A slave that is put in its master's place has the topics and queues of all messages that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import succeed

from mqbroker.broker.slave_synchronize import SlaveSynchronize
from mqbroker.broker.topic_repair import FILE
from mqbroker.config import BrokerRole
from mqbroker.errors import MQError
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import send_command
from tests.broker.service.pair import Member, Pair
from tests.broker.service.test_slave import controlled
from tests.broker.service.test_slave_removals import as_java, delete, send, served
from tests.remoting.logs import Logged

pytestmark = pytest.mark.usefixtures("logged")
__all__ = ["controlled"]


def both(pair: Pair) -> tuple[Member, Member]:
    """A master and a slave that has copied its tables."""
    master, slave = pair.master(), pair.slave()
    pair.turn(12)
    send(master, "Old", b"1")
    pair.turn(12)
    return master, slave


def promoted(pair: Pair) -> Member:
    """The slave as master, started again with changed settings; its former master was killed."""
    pair.kill("master")
    pair.kill("slave1")
    return pair.start("promoted", BrokerRole.ASYNC_MASTER, root=pair.members["slave1"].root)


def queues_of(member: Member, name: str) -> int:
    topic = member.parts.topics.get(name)
    return 0 if topic is None else topic.read_queue_nums


def test_a_promoted_slave_creates_the_topics_that_its_master_made_last(pair: Pair, logged: Logged) -> None:
    master, _ = both(pair)
    send(master, "New", b"1")
    master.client().send("%RETRY%G")
    pair.turn(0.5)
    member = promoted(pair)
    assert (queues_of(member, "New"), queues_of(member, "%RETRY%G")) == (8, 1)
    assert served(member, "New") == [b"1"]
    assert [line for line in logged.lines if line.startswith("New has 1 messages, but was not among the topics")]


def test_a_slave_whose_role_is_changed_while_it_runs_does_so_too(pair: Pair, controlled: dict[str, Any]) -> None:
    master, slave = pair.master(**controlled), pair.slave(**controlled)
    pair.turn(12)
    send(master, "New", b"1")
    pair.turn(0.5)
    pair.kill("master")
    assert slave.parts.topics.get("New") is None
    answer = pair.change("slave1", brokerRole="ASYNC_MASTER", brokerId="0")
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert served(pair.members["slave1"], "New") == [b"1"]


def test_a_slave_that_never_copied_a_table_creates_all_topics(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(self: SlaveSynchronize, address: str) -> int:
        raise MQError("nobody answers")

    monkeypatch.setattr(SlaveSynchronize, "fetch", fetch)
    master = pair.master()
    pair.slave()
    pair.turn(2)
    send(master, "New", b"1")
    pair.turn(12)
    assert queues_of(promoted(pair), "New") == 8


def test_queues_that_a_topic_got_last_are_there(pair: Pair, logged: Logged) -> None:
    master, slave = both(pair)
    master.parts.topics.put(TopicConfig("Old", 8, 8))
    [answer] = master.client().ask_all(send_command("Old", b"2", queue_id=7))
    assert answer.code == ResponseCode.SUCCESS
    pair.turn(0.5)
    assert queues_of(slave, "Old") == 4
    assert queues_of(promoted(pair), "Old") == 8
    assert [line for line in logged.lines if line.startswith("Old has 1 messages in queues that no consumer read")]


def test_what_the_master_had_taken_away_stays_away(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a Java master, whose slave keeps the messages of deleted topics until it has asked again."""
    as_java(monkeypatch)
    master, slave = both(pair)
    for topic in ("Gone", "Small"):
        [answer] = master.client().ask_all(send_command(topic, b"1", queue_id=3))
        assert answer.code == ResponseCode.SUCCESS
    pair.turn(12)
    master.parts.topics.put(TopicConfig("Small", 2, 2))
    pair.turn(12)
    monkeypatch.setattr(MessageStore, "renumber_topics", lambda store, names: succeed([]))
    delete(master, "Gone")
    pair.turn(12)
    assert ("Gone", 3) in slave.store.queues_by_name
    member = promoted(pair)
    assert (queues_of(member, "Gone"), queues_of(member, "Small")) == (0, 2)


def test_a_promoted_slave_repairs_once(pair: Pair) -> None:
    master, _ = both(pair)
    send(master, "New", b"1")
    pair.turn(0.5)
    member = promoted(pair)
    member.parts.topics.put(TopicConfig("New", 1, 1))
    pair.kill("promoted")
    member = pair.start("promoted", BrokerRole.ASYNC_MASTER)
    assert queues_of(member, "New") == 1


def test_a_former_master_knows_its_own_topics(pair: Pair) -> None:
    """What it has removed itself does not come back."""
    master = pair.master()
    send(master, "Old", b"1")
    [answer] = master.client().ask_all(send_command("Small", b"1", queue_id=3))
    assert answer.code == ResponseCode.SUCCESS
    master.parts.topics.put(TopicConfig("Small", 2, 2))
    pair.stop("master")
    slave = pair.start("slave1", BrokerRole.SLAVE, 1, root=master.root)
    pair.stop("slave1")
    member = pair.start("promoted", BrokerRole.ASYNC_MASTER, root=slave.root)
    assert queues_of(member, "Small") == 2


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"end": "1"}', b'{"end": -1}', b'{"end": true}', b"{}"])
def test_a_corrupt_note_of_what_was_copied_costs_no_topic(pair: Pair, data: bytes) -> None:
    both(pair)
    pair.kill("master")
    pair.kill("slave1")
    root: Path = pair.members["slave1"].root
    for path in (root / "config").glob("topics*"):
        path.unlink()
    (root / "config" / FILE).write_bytes(data)
    member = pair.start("promoted", BrokerRole.ASYNC_MASTER, root=root)
    assert queues_of(member, "Old") == 8
