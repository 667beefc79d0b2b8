"""A slave removes what its master has removed: topics, their queues, groups and offsets."""

from __future__ import annotations

import pytest

from mqbroker.broker import slave_synchronize
from mqbroker.broker.requests import topic_requests
from mqbroker.config import BrokerRole
from mqbroker.errors import Refused
from mqbroker.ha.divergence import LogBounds, log_bounds
from mqbroker.remoting.client import RemotingClient
from mqbroker.store.consumequeues import Removed
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import SubscriptionGroupConfig
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.record import decode_records
from tests.broker.bench import send_command
from tests.broker.service.pair import Member, Pair, commit

pytestmark = pytest.mark.usefixtures("logged")


def send(master: Member, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        [answer] = master.client().ask_all(send_command(topic, body))
        assert answer.code == ResponseCode.SUCCESS


def ask(member: Member, code: int, header: h.Header, body: bytes = b"") -> None:
    answer = member.client().ask(code, header, body)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def delete(master: Member, topic: str) -> None:
    ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, h.DeleteTopicRequestHeader(topic=topic))


def delete_group(master: Member) -> None:
    header = h.DeleteSubscriptionGroupRequestHeader(group_name="CG", remove_offset=True)
    ask(master, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


def start_without_topics(pair: Pair, master: Member) -> Member:
    """Have the master lose its table of topics in a crash, and start it again."""
    pair.kill("master")
    for path in (master.root / "config").glob("topics.json*"):
        path.unlink()
    return pair.master()


def served(member: Member, topic: str) -> list[bytes]:
    """The messages of queue 0, from 0 on as a consumer is corrected."""
    offset, found = 0, list[bytes]()
    for _ in range(10):
        answer = member.client().pull(topic, queue_offset=offset, sys_flag=4)
        assert answer is not None
        if answer.code == ResponseCode.SUCCESS:
            found += [record.body for record in decode_records(answer.body)]
        elif answer.code != ResponseCode.PULL_OFFSET_MOVED:
            return found
        offset = int(answer.ext_fields["nextBeginOffset"])
    raise AssertionError("it has no end")


def queues(member: Member, topic: str = "T") -> list[str]:
    return sorted(path.name for path in member.root.glob(f"consumequeue/{topic}/*"))


def both(pair: Pair) -> tuple[Member, Member]:
    master, slave = pair.master(), pair.slave(slave_read_enable=True, offset_check_in_slave=True)
    pair.turn(2)
    send(master, "T", b"1", b"2", b"3")
    send(master, "Kept", b"k")
    pair.turn(12)
    assert served(slave, "T") == [b"1", b"2", b"3"]
    return master, slave


def commit_at_slave_alone(pair: Pair) -> None:
    """Commit the offset of group Own at a slave that is cut off from its master."""
    master, slave = both(pair)
    for group in ("CG", "Own"):
        master.parts.groups.put(SubscriptionGroupConfig(group))
    commit(master, "T", 1, "CG")
    pair.turn(12)
    pair.network.blocked.add(master.addresses[0])
    commit(slave, "T", 2, "Own")


def test_a_deleted_topic_goes_with_its_queues(pair: Pair) -> None:
    master, slave = both(pair)
    delete(master, "T")
    pair.turn(12)
    assert slave.parts.topics.get("T") is None
    assert queues(slave) == queues(master) == []
    assert slave.store.bounds("T", 0) == master.store.bounds("T", 0) == (3, 3)
    assert served(slave, "Kept") == [b"k"]


def test_one_that_is_created_again_has_the_new_messages_alone(pair: Pair) -> None:
    master, slave = both(pair)
    for body in (b"4", b"5"):  # and a second time
        delete(master, "T")
        send(master, "T", body)
        pair.turn(12)
        assert served(slave, "T") == served(master, "T") == [body]
        assert slave.store.bounds("T", 0) == master.store.bounds("T", 0)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_slave_that_was_away_removes_it_when_it_is_back(pair: Pair, end: str, made_again: bool) -> None:
    master, slave = both(pair)
    getattr(pair, end)("slave1")
    delete(master, "T")
    if made_again:
        send(master, "T", b"4")
    slave = pair.slave(slave_read_enable=True, offset_check_in_slave=True)
    pair.turn(15)
    assert (slave.parts.topics.get("T") is not None) is made_again
    assert served(slave, "T") == ([b"4"] if made_again else [])
    assert slave.store.bounds("T", 0) == master.store.bounds("T", 0)
    # And it stays so.
    getattr(pair, end)("slave1")
    slave = pair.slave(slave_read_enable=True, offset_check_in_slave=True)
    assert served(slave, "T") == ([b"4"] if made_again else [])


def test_a_slave_whose_log_is_behind_removes_it_when_it_has_the_messages(pair: Pair) -> None:
    master, slave = both(pair)
    pair.network.blocked.add(master.addresses[1])
    send(master, "T", b"4")
    delete(master, "T")
    send(master, "T", b"5")
    pair.turn(12)
    assert served(slave, "T") == [b"1", b"2", b"3"]
    pair.network.blocked.clear()
    pair.turn(3)
    assert served(slave, "T") == [b"5"]
    assert slave.store.bounds("T", 0) == master.store.bounds("T", 0) == (4, 5)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_promoted_slave_has_what_its_master_had(pair: Pair, made_again: bool) -> None:
    master, slave = both(pair)
    delete(master, "T")
    if made_again:
        send(master, "T", b"4")
    pair.turn(12)
    pair.kill("master")
    pair.stop("slave1")
    promoted = pair.start("promoted", BrokerRole.ASYNC_MASTER, root=slave.root)
    assert (promoted.parts.topics.get("T") is not None) is made_again
    assert served(promoted, "T") == ([b"4"] if made_again else [])
    send(promoted, "T", b"6")
    assert promoted.store.bounds("T", 0) == (3, 4 + made_again)
    assert served(promoted, "T") == ([b"4", b"6"] if made_again else [b"6"])


def test_a_new_slave_of_a_whole_log_has_no_removed_topic(pair: Pair) -> None:
    master = pair.master()
    send(master, "T", b"1")
    delete(master, "T")
    send(master, "T", b"2")
    slave = pair.slave(slave_read_enable=True, offset_check_in_slave=True)
    pair.turn(15)
    assert served(slave, "T") == [b"2"]


def test_groups_and_offsets_go(pair: Pair) -> None:
    master, slave = both(pair)
    for group in ("CG", "Other"):
        master.parts.groups.put(SubscriptionGroupConfig(group))
        for topic in ("T", "Kept"):
            commit(master, topic, 1, group)
    pair.turn(12)
    assert slave.parts.offsets.query("CG", "T", 0) == 1
    delete_group(master)
    pair.turn(12)
    assert slave.parts.groups.get("CG") is None
    assert slave.parts.offsets.topics_of("CG") == []
    assert not slave.parts.offsets.has_group("CG")
    assert slave.parts.offsets.snapshot() == master.parts.offsets.snapshot()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_group_that_went_while_a_slave_was_away_goes(pair: Pair, end: str, is_lost: bool) -> None:
    """Its offsets, too, unless the master was started again: it may have lost them in a crash."""
    master, slave = both(pair)
    for group in ("CG", "Other"):
        master.parts.groups.put(SubscriptionGroupConfig(group))
        commit(master, "T", 1, group)
    pair.turn(12)
    for _ in range(2):  # and what a slave committed itself, once more
        getattr(pair, end)("slave1")
        assert b"T@CG" in (slave.root / "config" / "consumerOffset.json").read_bytes()
        slave = pair.slave()
    pair.turn(12)
    getattr(pair, end)("slave1")
    delete_group(master)
    if is_lost:
        pair.stop("master")
        master = pair.master()
    slave = pair.slave()
    pair.turn(15)
    assert slave.parts.groups.get("CG") is None
    assert slave.parts.offsets.query("CG", "T", 0) == (1 if is_lost else None)
    assert slave.parts.offsets.query("Other", "T", 0) == 1


def test_what_was_committed_at_a_slave_while_its_master_was_away_stays(pair: Pair) -> None:
    master, slave = both(pair)
    master.parts.groups.put(SubscriptionGroupConfig("CG"))
    pair.turn(12)
    pair.stop("master")
    commit(slave, "T", 2)
    pair.master()
    pair.turn(15)
    assert slave.parts.offsets.query("CG", "T", 0) == 2


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_committed_at_a_slave_alone_stays_after_its_restarts(pair: Pair, end: str) -> None:
    """Though its master runs on: no consumer has committed it there."""
    commit_at_slave_alone(pair)
    pair.turn(12)
    for _ in range(2):
        getattr(pair, end)("slave1")
        slave = pair.slave()
        pair.turn(3)
        pair.network.blocked.clear()
        pair.turn(15)
        assert slave.parts.offsets.query("Own", "T", 0) == 2
        assert slave.parts.offsets.query("CG", "T", 0) == 1


def test_what_was_committed_at_a_slave_alone_just_before_it_stopped_stays(pair: Pair) -> None:
    commit_at_slave_alone(pair)
    pair.stop("slave1")
    slave = pair.slave()
    pair.network.blocked.clear()
    pair.turn(15)
    assert slave.parts.offsets.query("Own", "T", 0) == 2
    assert slave.parts.offsets.query("CG", "T", 0) == 1


def test_offsets_that_went_while_a_slave_was_away_go_though_it_ran_alone_since(pair: Pair) -> None:
    master, slave = both(pair)
    master.parts.groups.put(SubscriptionGroupConfig("CG"))
    commit(master, "T", 1, "CG")
    pair.turn(12)
    pair.network.blocked.add(master.addresses[0])
    delete_group(master)
    for _ in range(2):
        pair.stop("slave1")
        slave = pair.slave()
        pair.turn(3)
        assert slave.parts.offsets.query("CG", "T", 0) == 1
    pair.network.blocked.clear()
    pair.turn(15)
    assert slave.parts.offsets.query("CG", "T", 0) is None


def as_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a master not tell which queues were removed."""
    monkeypatch.setattr(topic_requests, "WITH_REMOVED_QUEUES", "another field")


def test_topics_that_a_java_master_does_not_have_go_and_others_stay(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_java(monkeypatch)
    master, slave = both(pair)
    master.client().send("Kept", properties="DELAY\x011")
    pair.turn(12)
    delete(master, "T")
    pair.turn(12)
    assert (queues(slave), slave.parts.topics.get("T")) == ([], None)
    assert served(slave, "Kept") == [b"k", b"body"]
    assert queues(slave, "SCHEDULE_TOPIC_XXXX") == ["0"]
    # A Java broker numbers the new ones from 0 on.
    assert slave.store.bounds("T", 0) == (0, 0)


def test_topics_that_a_java_master_lacks_after_a_start_keep_their_queues(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have lost them in a crash."""
    as_java(monkeypatch)
    master, slave = both(pair)
    start_without_topics(pair, master)
    pair.turn(15)
    assert slave.parts.topics.get("T") is None
    assert queues(slave) == ["0"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_topic_that_a_java_master_removed_while_a_slave_was_away_goes(
    pair: Pair, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_java(monkeypatch)
    master, slave = both(pair)
    for body in (b"4", b"5"):  # and after a second absence
        getattr(pair, end)("slave1")
        delete(master, "T")
        slave = pair.slave(slave_read_enable=True, offset_check_in_slave=True)
        pair.turn(15)
        assert (queues(slave), slave.parts.topics.get("T")) == ([], None)
        assert served(slave, "Kept") == [b"k"]
        send(master, "T", body)
        pair.turn(12)
        assert served(slave, "T") == served(master, "T") == [body]


def test_what_a_java_master_lost_while_a_slave_was_away_stays(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it removed after a second start of the slave, which has the table of the new run."""
    as_java(monkeypatch)
    master, slave = both(pair)
    pair.stop("slave1")
    start_without_topics(pair, master)
    for _ in range(2):
        slave = pair.slave()
        pair.turn(15)
        assert slave.parts.topics.get("T") is None
        assert queues(slave) == ["0"]
        pair.stop("slave1")


def test_what_a_java_master_lost_with_the_last_version_of_its_table_stays(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave keeps its own table, which is newer: it is no copy of that of the new run."""
    as_java(monkeypatch)
    master, slave = both(pair)
    version = master.parts.topics.data_version
    pair.turn(1)
    for topic in ("New", "Newer", "Newest"):
        send(master, topic, b"n")
    pair.turn(12)
    master = start_without_topics(pair, master)
    master.parts.topics.data_version = version
    for _ in range(2):
        pair.turn(15)
        assert slave.parts.topics.get("New") is not None
        assert queues(slave, "New") == ["0"]
        pair.stop("slave1")
        slave = pair.slave()


def test_a_promoted_slave_that_is_a_slave_again_removes_nothing_of_its_own(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has as a master is no copy of the run that it was a slave of."""
    as_java(monkeypatch)
    _, slave = both(pair)
    pair.stop("slave1")
    assert b'"run":{' in (slave.root / "config" / "topicsCopied.json").read_bytes()
    pair.start("promoted", BrokerRole.ASYNC_MASTER, root=slave.root)
    pair.turn(1)
    assert b'"run":null' in (slave.root / "config" / "topicsCopied.json").read_bytes()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Masters that say nothing of their log, as Java's in its first seconds."""
    addresses = set[str]()

    async def bounds(client: RemotingClient, address: str) -> LogBounds:
        if address in addresses:
            raise Refused(ResponseCode.SYSTEM_ERROR, "java.util.NoSuchElementException")
        return await log_bounds(client, address)

    as_java(monkeypatch)
    monkeypatch.setattr(slave_synchronize, "log_bounds", bounds)
    return addresses


def test_a_topic_that_went_before_a_java_master_said_anything_of_its_log_goes(pair: Pair, silent: set[str]) -> None:
    master = pair.master()
    silent.add(master.addresses[0])
    slave = pair.slave(slave_read_enable=True, offset_check_in_slave=True)
    for _ in range(2):  # and after its second start
        send(master, "T", b"1")
        pair.turn(12)
        assert slave.parts.topics.get("T") is not None
        delete(master, "T")
        pair.turn(12)
        silent.clear()
        pair.turn(12)
        assert (queues(slave), slave.parts.topics.get("T")) == ([], None)
        pair.stop("master")
        master = pair.master()
        silent.add(master.addresses[0])


def test_what_a_java_master_lost_in_a_crash_stays_though_it_says_nothing_of_its_log_at_first(
    pair: Pair, silent: set[str]
) -> None:
    master, slave = both(pair)
    master = start_without_topics(pair, master)
    silent.add(master.addresses[0])
    pair.turn(15)
    silent.clear()
    pair.turn(15)
    assert slave.parts.topics.get("T") is None
    assert queues(slave) == ["0"]


def test_a_topic_that_came_after_the_table_of_a_java_master_stays(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    as_java(monkeypatch)
    master, slave = both(pair)
    pair.network.blocked.add(master.addresses[0])
    send(master, "New", b"n")
    pair.network.blocked.clear()
    pair.turn(0.5)
    assert queues(slave, "New") == ["0"]
    pair.turn(12)
    assert served(slave, "New") == [b"n"]


@pytest.mark.parametrize(
    ("key", "note"),
    [
        (("../x", 0), Removed(1, 400)),
        (("T", -1), Removed(1, 400)),
        (("T", 0), Removed(-1, 400)),
        (("T", 0), Removed(2**62, 400)),
        (("T", 0), Removed(3, 2**62)),
    ],
)
def test_impossible_removals_of_a_master_remove_nothing(
    pair: Pair, key: tuple[str, int], note: Removed, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = both(pair)
    monkeypatch.setattr(master.store, "removed_queues", lambda: {key: note})
    pair.turn(12)
    assert served(slave, "T") == [b"1", b"2", b"3"]
    assert not slave.store.removed_queues()
    # Others are followed all the same.
    monkeypatch.setattr(
        master.store, "removed_queues", lambda: {key: note, ("Kept", 0): Removed(1, master.store.log_end)}
    )
    pair.turn(12)
    assert (served(slave, "T"), served(slave, "Kept")) == ([b"1", b"2", b"3"], [])
