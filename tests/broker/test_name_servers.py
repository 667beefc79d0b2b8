"""What name servers are told, and when. The client here records requests and answers them when told to."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.broker import name_servers
from mqbroker.broker.name_servers import FIRST_RETRY_SECONDS, RETRY_SECONDS, BrokerIdentity, Registration
from mqbroker.errors import ConnectionClosed, Unreachable
from mqbroker.remoting import cooperative_tasks
from mqbroker.wire.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.codes import Perm, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.registration import STEP_TOPICS, QueueNumbers, body_crc32, write_registration
from tests.broker.bench import live_settings
from tests.commands import decode_registration
from tests.remoting.logs import Logged

A, B = "10.0.0.8:9876", "10.0.0.9:9876"
IDENTITY = BrokerIdentity("10.0.0.1:10911", "broker-a", "DefaultCluster", 0)


class FakeClient:
    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.dropped: list[Any] = []

    def drop(self, address: IPv4Address, why: str) -> None:
        self.dropped.append(address)

    def invoke_sync(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[Any]:
        done = Deferred[Any]()
        self.requests.append((address, command, timeout_ms, done))
        return done

    def answer(self, code: int = 0, address: str | None = None, body: bytes = b"", **fields: str) -> None:
        """Answer all that wait, or those to `address`."""
        waiting = [r for r in self.requests if address in (None, r[0])]
        self.requests = [r for r in self.requests if r not in waiting]
        for _, command, _, done in waiting:
            answer = RemotingCommand.response(command, code, "no" if code else None, body=body)
            answer.ext_fields |= fields
            done.callback(answer)

    def fail(self, address: str | None = None, error: ConnectionClosed | None = None) -> None:
        waiting = [r for r in self.requests if address in (None, r[0])]
        self.requests = [r for r in self.requests if r not in waiting]
        for _, _, _, done in waiting:
            done.errback(error or Unreachable("connection refused"))

    @property
    def told(self) -> list[tuple[str, RequestCode]]:
        return [(address, command.code) for address, command, _, _ in self.requests]


@pytest.fixture
def network() -> FakeClient:
    return FakeClient()


class FakeTopics:
    """Topics by name, with a version that a test sets; keeps what it is told of order."""

    def __init__(self) -> None:
        self.table = {"T": TopicConfig("T", 4, 4)}
        self.version = DataVersion(7, 3)
        self.ordered: list[Any] = []

    def snapshot(self) -> TopicConfigSerializeWrapper:
        return TopicConfigSerializeWrapper(dict(self.table), self.version)

    def put(self, name: str) -> None:
        self.table[name] = TopicConfig(name)
        self.version = DataVersion(7, self.version.counter + 1)

    def set_order_topics(self, names: frozenset[str]) -> None:
        self.ordered.append(names)


@pytest.fixture
def topics() -> FakeTopics:
    return FakeTopics()


@pytest.fixture
def make(network: FakeClient, topics: FakeTopics, clock: Clock, tmp_path: Path) -> Callable[..., Registration]:
    def make(
        addresses: Sequence[str] = (A, B), may_register: Callable[[], bool] = lambda: True, **changes: int
    ) -> Registration:
        live = live_settings(tmp_path, namesrv_addr=tuple(addresses), **changes)
        return Registration(cast(Any, network), IDENTITY, cast(Any, topics), live, clock, may_register=may_register)

    return make


REGISTER = RequestCode.REGISTER_BROKER


def registered(make: Callable[..., Registration], network: FakeClient, *given: Any, **changes: Any) -> Registration:
    """One that all its name servers have accepted."""
    registration = make(*given, **changes)
    registration.start()
    network.answer()
    return registration


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_told(make: Callable[..., Registration], network: FakeClient, compressed: bool) -> None:
    make([A], compressed_register=compressed, register_broker_timeout_ms=1234).start()
    ((address, command, timeout_ms, _),) = network.requests
    assert (address, command.code, timeout_ms) == (A, REGISTER, 1234)
    assert command.ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "",
        "brokerId": "0",
        "compressed": "true" if compressed else "false",
        "bodyCrc32": str(body_crc32(command.body)),
    }
    body = decode_registration(command.body, compressed=compressed)
    assert body.queues == {"T": QueueNumbers(4, 4, 6, 0)}
    assert body.data_version == DataVersion(7, 3)


def test_every_name_server_is_told_at_the_start(make: Callable[..., Registration], network: FakeClient) -> None:
    told = make().start()
    assert network.told == [(A, REGISTER), (B, REGISTER)]
    network.answer(address=A)
    assert not told.called
    network.fail(B)
    assert told.called


def test_it_is_told_again_each_period(make: Callable[..., Registration], network: FakeClient, clock: Clock) -> None:
    make(register_name_server_period_ms=30_000).start()
    network.answer()
    clock.advance(29)
    assert network.told == []
    clock.advance(1)
    assert network.told == [(A, REGISTER), (B, REGISTER)]


def settle(clock: Clock, network: FakeClient) -> None:
    """Let a long body be written."""
    for _ in range(100):
        if network.requests:
            return
        clock.advance(0.001)
    raise AssertionError("nothing is sent")


def told_topics(command: RemotingCommand) -> set[str]:
    return set(decode_registration(command.body, compressed=command.ext_fields["compressed"] == "true").queues)


def change(registration: Registration, topics: FakeTopics, name: str) -> None:
    topics.put(name)
    registration.changed(name)


def test_changes_of_one_turn_are_told_together_and_alone(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = registered(make, network, [A])
    for n in range(5):
        change(registration, topics, f"N{n}")
    assert network.told == []
    clock.advance(0)
    ((_, command, _, _),) = network.requests
    found = decode_registration(command.body, compressed=False)
    assert set(found.queues) == {"N0", "N1", "N2", "N3", "N4"}
    assert found.data_version == topics.version
    network.answer()
    clock.advance(0)
    assert network.told == []


def test_a_removed_topic_is_told_by_a_table_without_it(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = registered(make, network, [A])
    for _ in range(2):
        change(registration, topics, "N")
        change(registration, topics, "O")
        del topics.table["N"]
        clock.advance(0)
        ((_, command, _, _),) = network.requests
        found = decode_registration(command.body, compressed=False)
        assert (set(found.queues), found.data_version) == ({"T", "O"}, topics.version)
        network.answer()
    change(registration, topics, "P")
    clock.advance(0)
    assert [told_topics(command) for _, command, _, _ in network.requests] == [{"P"}]


def test_a_topic_removed_of_many_is_told_as_another_version_and_by_the_next_whole_table(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    topics.table = {f"topic-{n}": TopicConfig(f"topic-{n}") for n in range(STEP_TOPICS + 1)}
    registration = make([A], register_name_server_period_ms=30_000)
    registration.start()
    settle(clock, network)
    network.answer()
    change(registration, topics, "N")
    del topics.table["N"]
    clock.advance(0)
    ((_, command, _, _),) = network.requests
    found = decode_registration(command.body, compressed=False)
    assert (dict(found.queues), found.data_version) == ({}, topics.version)
    network.answer()
    clock.advance(30)
    settle(clock, network)
    assert [told_topics(command) for _, command, _, _ in network.requests] == [set(topics.table)]


def test_a_change_during_a_registration_is_told_after_it(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = make([A])
    registration.start()
    change(registration, topics, "New")
    clock.advance(0)
    assert len(network.requests) == 1
    network.answer()
    ((_, command, _, _),) = network.requests
    assert told_topics(command) == {"New"}


def test_a_change_in_the_turn_of_an_answer_is_told_with_its_version(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = make([A])
    registration.start()
    change(registration, topics, "T2")
    clock.advance(0)
    # It has the version of the next request, and is not to be told of in another one of that version.
    change(registration, topics, "T3")
    network.answer()
    ((_, command, _, _),) = network.requests
    assert set(told_topics(command)) == {"T2", "T3"}
    network.answer()
    clock.advance(0)
    assert network.requests == []


def test_who_changed_a_topic_hears_when_all_were_told(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = registered(make, network)
    change(registration, topics, "New")
    heard: list[Any] = []
    registration.changes_registered().addCallback(heard.append)
    assert network.told == [(A, REGISTER), (B, REGISTER)]
    network.answer(address=A)
    assert heard == []
    network.fail(B)
    assert heard == [None]
    clock.advance(0)


def test_nobody_waits_long_for_a_name_server_that_hangs(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = registered(make, network)
    change(registration, topics, "New")
    heard: list[Any] = []
    registration.changes_registered().addCallback(heard.append)
    network.answer(address=A)
    clock.advance(2.9)
    assert heard == []
    clock.advance(0.2)
    assert heard == [None]
    network.answer()
    assert heard == [None]


def test_a_name_server_that_hangs_keeps_no_other_waiting(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = make()
    started = registration.start()
    network.answer(address=A)
    for name in ("N", "O"):
        change(registration, topics, name)
        clock.advance(0)
        ((_, command, _, _),) = [each for each in network.requests if each[0] == A]
        assert told_topics(command) == {name}
        network.answer(address=A)
    assert not started.called
    network.fail(B)
    assert started.called


@pytest.mark.parametrize("loss", ["failed", "closed", "refused"])
def test_who_may_have_lost_it_is_told_all(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics, loss: str
) -> None:
    registration = registered(make, network)
    if loss == "closed":
        registration.connection_closed(B)
    else:
        change(registration, topics, "N")
        clock.advance(0)
        network.answer(address=A)
        network.fail(B) if loss == "failed" else network.answer(ResponseCode.SYSTEM_ERROR, B)
    # Soon, and not only at the next period.
    clock.advance(RETRY_SECONDS)
    ((address, command, _, _),) = network.requests
    assert address == B
    assert told_topics(command) == set(topics.table)
    network.answer()
    change(registration, topics, "O")
    clock.advance(0)
    assert [told_topics(command) for _, command, _, _ in network.requests] == [{"O"}, {"O"}]


def test_the_first_retry_after_a_success_is_soon(
    make: Callable[..., Registration], network: FakeClient, clock: Clock
) -> None:
    registration = registered(make, network, [A], register_name_server_period_ms=60_000)
    registration.connection_closed(A)
    clock.advance(FIRST_RETRY_SECONDS)
    assert network.told == [(A, REGISTER)]
    network.fail()
    clock.advance(FIRST_RETRY_SECONDS)
    assert network.told == [(A, REGISTER)]
    network.fail()
    clock.advance(FIRST_RETRY_SECONDS)
    assert network.told == []
    clock.advance(RETRY_SECONDS - FIRST_RETRY_SECONDS)
    assert network.told == [(A, REGISTER)]


def test_a_change_after_a_loss_is_told_with_all(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = registered(make, network, [A])
    registration.connection_closed(A)
    change(registration, topics, "N")
    clock.advance(0)
    ((_, command, _, _),) = network.requests
    assert told_topics(command) == {"T", "N"}
    network.answer()
    clock.advance(RETRY_SECONDS)
    assert network.told == []


def test_a_name_server_that_stays_away_is_tried_again_and_again(
    make: Callable[..., Registration], network: FakeClient, clock: Clock
) -> None:
    make([A], register_name_server_period_ms=60_000).start()
    for _ in range(5):
        assert network.told == [(A, REGISTER)]
        network.fail()
        assert network.told == []
        clock.advance(RETRY_SECONDS)
    network.answer()
    clock.advance(RETRY_SECONDS)
    assert network.told == []


QUERY = RequestCode.QUERY_DATA_VERSION


def test_without_force_only_who_has_another_version_is_told(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    make(force_register=False, register_name_server_period_ms=10_000, register_broker_timeout_ms=77).start()
    assert network.told == [(A, REGISTER), (B, REGISTER)]
    network.answer()
    clock.advance(10)
    assert network.told == [(A, QUERY), (B, QUERY)]
    _, command, timeout_ms, _ = network.requests[0]
    assert timeout_ms == 77
    assert command.ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    assert DataVersion.from_json(command.body) == topics.version
    network.answer(address=A, body=topics.version.to_json(), changed="false")
    network.answer(address=B, changed="true")
    ((address, command, _, _),) = network.requests
    assert (address, command.code, told_topics(command)) == (B, REGISTER, {"T"})


@pytest.mark.parametrize(
    ("code", "body", "fields"),
    [
        (0, b'{"counter":9,"timestamp":9}', {"changed": "false"}),
        (0, b"", {}),
        (0, b"{", {"changed": "false"}),
        (1, b"", {}),
    ],
)
def test_a_strange_answer_about_the_version_is_a_reason_to_tell_all(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, code: int, body: bytes, fields: dict[str, str]
) -> None:
    make([A], force_register=False, register_name_server_period_ms=10_000).start()
    network.answer()
    clock.advance(10)
    assert network.told == [(A, QUERY)]
    network.answer(code, body=body, **fields)
    clock.advance(RETRY_SECONDS)
    assert network.told == [(A, REGISTER)]


def test_without_force_a_change_meanwhile_is_told(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    registration = registered(make, network, [A], force_register=False, register_name_server_period_ms=10_000)
    clock.advance(10)
    asked = topics.version
    change(registration, topics, "N")
    clock.advance(0)
    network.answer(body=asked.to_json(), changed="false")
    ((_, command, _, _),) = network.requests
    assert (command.code, told_topics(command)) == (REGISTER, {"N"})


def test_order_topics_are_those_of_the_first_name_server_that_answers(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    make(register_name_server_period_ms=10_000).start()
    network.answer(address=B, body=b'{"table":{"B":"broker-a:4"}}')
    network.answer(address=A, body=b'{"table":{"T":"broker-a:4"}}')
    clock.advance(10)
    network.answer(address=B, body=b'{"table":{"B":"broker-a:4"}}')
    network.answer(address=A, body=b'{"table":{}}')
    assert topics.ordered == [{"B"}, {"T"}, frozenset()]


def test_many_topics_are_written_once_and_in_turns(
    make: Callable[..., Registration],
    network: FakeClient,
    clock: Clock,
    topics: FakeTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cooperative_tasks, "TURN_SECONDS", 0)
    topics.table = {f"topic-{n}": TopicConfig(f"topic-{n}") for n in range(3500)}
    written = []
    write = write_registration
    monkeypatch.setattr(name_servers, "write_registration", lambda *a, **k: written.append(1) or write(*a, **k))
    make(register_name_server_period_ms=10_000).start()
    turns = 0
    while not network.told:
        clock.advance(0.001)
        turns += 1
    assert turns > 3
    assert sorted(network.told) == [(A, REGISTER), (B, REGISTER)]
    assert told_topics(network.requests[1][1]) == set(topics.table)
    network.answer()
    clock.advance(10)
    assert network.told == [(A, REGISTER), (B, REGISTER)]
    assert len(written) == 1


def test_what_no_frame_holds_is_registered_compressed(
    make: Callable[..., Registration],
    network: FakeClient,
    clock: Clock,
    topics: FakeTopics,
    monkeypatch: pytest.MonkeyPatch,
    logged: Logged,
) -> None:
    monkeypatch.setattr(name_servers, "BODY_BYTES_MAX", 1000)
    topics.table = {f"topic-{n}": TopicConfig(f"topic-{n}") for n in range(20)}
    make([A]).start()
    ((_, command, _, _),) = network.requests
    assert command.ext_fields["compressed"] == "true"
    assert told_topics(command) == set(topics.table)
    assert logged.lines[0].startswith("20 topics are ")
    network.answer()
    for n in range(20, 23):
        topics.table[f"topic-{n}"] = TopicConfig(f"topic-{n}")
        topics.version = DataVersion(timestamp=1, counter=n)
        clock.advance(30)
        network.answer()
    assert [event["log_level"].name for event in logged if "topics are" in event["log_format"]].count("warn") == 1


def test_another_permission_of_the_broker_is_told_of_all_topics(
    make: Callable[..., Registration], network: FakeClient, topics: FakeTopics
) -> None:
    registration = registered(make, network, [A])
    registration._live.change({"brokerPermission": str(int(Perm.READ))})
    ((_, command, _, _),) = network.requests
    assert decode_registration(command.body, compressed=False).queues == {"T": QueueNumbers(4, 4, 4, 0)}


def test_one_registration_at_a_time(make: Callable[..., Registration], network: FakeClient, clock: Clock) -> None:
    registration = registered(make, network, [A], register_name_server_period_ms=10_000)
    registration.changed("T")
    clock.advance(0)
    clock.advance(10)  # the period is over, and the one for the change is not answered yet
    assert len(network.requests) == 1
    network.answer()
    clock.advance(10)
    assert len(network.requests) == 1


def test_a_name_server_that_stays_away_is_one_line_and_its_return_another(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, logged: Logged
) -> None:
    make(register_name_server_period_ms=10_000).start()
    for _ in range(3):
        network.answer(address=A)
        network.fail(B)
        clock.advance(10)
    network.answer()
    assert logged.lines == [
        f"register broker to name server {A} OK",
        f"registration at name server {B} failed: connection refused",
        f"register broker to name server {B} OK",
    ]


def test_a_name_server_that_closes_before_any_answer_may_want_tls(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, logged: Logged
) -> None:
    make([A], register_name_server_period_ms=10_000).start()
    network.fail(error=ConnectionClosed("reset."))
    clock.advance(10)
    network.answer()
    clock.advance(10)
    network.fail(error=ConnectionClosed("reset"))
    assert logged.lines == [
        f"registration at name server {A} failed: reset; "
        "look whether both sides use TLS (useTLS here, tls.server.mode there)",
        f"register broker to name server {A} OK",
        f"registration at name server {A} failed: reset",
    ]


def test_an_error_code_is_no_registration(
    make: Callable[..., Registration], network: FakeClient, logged: Logged
) -> None:
    make([A]).start()
    network.answer(ResponseCode.SYSTEM_ERROR)
    assert logged.lines == [f"registration at name server {A} failed: CODE: 1  DESC: no"]


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_have_at_most_the_permission_of_the_broker(
    make: Callable[..., Registration], network: FakeClient, topics: FakeTopics, compressed: bool
) -> None:
    topics.table |= {"W": TopicConfig("W", perm=Perm.WRITE), "I": TopicConfig("I", perm=7)}
    make([A], broker_permission=Perm.READ, compressed_register=compressed).start()
    ((_, command, _, _),) = network.requests
    body = decode_registration(command.body, compressed=command.ext_fields["compressed"] == "true")
    assert {name: queues.perm for name, queues in body.queues.items()} == {"T": Perm.READ, "W": 0, "I": Perm.READ}


def test_goodbye_waits_for_what_is_under_way(
    make: Callable[..., Registration], network: FakeClient, clock: Clock
) -> None:
    registration = make()
    registration.start()
    gone = registration.stop()
    assert network.told == [(A, REGISTER), (B, REGISTER)]
    network.answer(address=A)
    assert network.told == [(B, REGISTER), (A, RequestCode.UNREGISTER_BROKER)]
    clock.advance(3)  # and no longer
    assert network.told == [(B, REGISTER), (A, RequestCode.UNREGISTER_BROKER), (B, RequestCode.UNREGISTER_BROKER)]
    network.requests.pop(0)
    network.answer()
    assert gone.called
    registration.connection_closed(A)
    assert clock.getDelayedCalls() == []


def test_goodbye(make: Callable[..., Registration], network: FakeClient, clock: Clock) -> None:
    registration = registered(make, network)
    registration.changed("T")  # too late to be told
    gone = registration.stop()
    assert network.told == [(A, RequestCode.UNREGISTER_BROKER), (B, RequestCode.UNREGISTER_BROKER)]
    assert network.requests[0][1].ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    network.answer(address=A)
    assert not gone.called
    network.fail(B)
    assert gone.called
    clock.advance(100)
    assert network.told == []
    assert clock.getDelayedCalls() == []


# Name servers that change

C = "10.0.0.10:9876"
UNREGISTER = RequestCode.UNREGISTER_BROKER


def set_addresses(registration: Registration, *addresses: str) -> None:
    registration._live.change({"namesrvAddr": ";".join(addresses)})


def test_added_name_servers_are_told_all_and_removed_ones_are_left(
    make: Callable[..., Registration], network: FakeClient, topics: FakeTopics, clock: Clock
) -> None:
    registration = registered(make, network, [A])
    for gone, come in [(A, B), (B, C), (C, A)]:
        set_addresses(registration, come)
        assert network.told == [(gone, UNREGISTER), (come, REGISTER)]
        assert told_topics(network.requests[1][1]) == set(topics.table)
        network.answer()
        registration.connection_closed(gone)
        topics.put("U")
        registration.changed("U")
        clock.advance(0)
        assert network.told == [(come, REGISTER)]
        assert told_topics(network.requests[0][1]) == {"U"}
        network.answer()
        clock.advance(30)
        assert network.told == [(come, REGISTER)]
        network.answer()


def test_name_servers_that_stay_are_not_disturbed(make: Callable[..., Registration], network: FakeClient) -> None:
    registration = registered(make, network, [A, B])
    set_addresses(registration, C, B, A, C)
    assert network.told == [(C, REGISTER)]
    network.answer()
    set_addresses(registration, B, C)
    assert network.told == [(A, UNREGISTER)]


def test_a_broker_may_be_without_name_servers_for_a_time(
    make: Callable[..., Registration], network: FakeClient, topics: FakeTopics, clock: Clock, logged: Logged
) -> None:
    registration = make([])
    assert registration.start().called
    for _ in range(2):
        registration.changed("T")
        clock.advance(30)
        assert registration.changes_registered().called
        assert network.told == []
        set_addresses(registration, A)
        assert network.told == [(A, REGISTER)]
        network.answer()
        set_addresses(registration)
        assert network.told == [(A, UNREGISTER)]
        network.answer()
    assert len([line for line in logged.lines if "is not registered anywhere" in line]) == 2


def test_one_that_is_removed_and_added_again_is_told_so_in_this_order(
    make: Callable[..., Registration], network: FakeClient, clock: Clock
) -> None:
    registration = registered(make, network, [A, B])
    set_addresses(registration, B)
    set_addresses(registration, A, B)
    registration.changed("T")
    clock.advance(0)
    assert network.told == [(A, UNREGISTER), (B, REGISTER)]
    network.answer()
    assert network.told == [(A, REGISTER)]
    network.answer()
    clock.advance(30)
    assert network.told == [(A, REGISTER), (B, REGISTER)]


def test_one_that_hangs_is_left_in_the_end_and_believed_no_more(
    make: Callable[..., Registration], network: FakeClient, topics: FakeTopics, clock: Clock
) -> None:
    registration = make([A])
    registration.start()
    set_addresses(registration)
    assert network.told == [(A, REGISTER)]
    network.answer(body=b'{"table":{"T":"a:4"}}')
    assert topics.ordered == []
    assert network.told == [(A, UNREGISTER)]
    stopped = registration.stop()
    assert not stopped.called
    network.fail()
    assert stopped.called


def test_a_stop_waits_for_those_that_are_left_and_registers_no_more(
    make: Callable[..., Registration], network: FakeClient, clock: Clock
) -> None:
    registration = registered(make, network, [A, B])
    set_addresses(registration, B)
    set_addresses(registration, B, A)
    stopped = registration.stop()
    assert network.told == [(A, UNREGISTER), (B, UNREGISTER)]
    network.answer(address=B)
    assert not stopped.called
    network.answer()
    assert stopped.called
    set_addresses(registration, C)
    clock.advance(60)
    assert network.told == []


def test_a_change_that_waited_for_another_master_is_registered_soon_each_time(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics
) -> None:
    may = [True]
    registration = registered(make, network, [A], may_register=lambda: may[0])
    for number in range(3):
        may[0] = False
        topics.put(f"new{number}")
        registration.changed(f"new{number}")
        clock.advance(1)
        assert network.told == []
        may[0] = True
        clock.advance(RETRY_SECONDS)
        [(_, command, _, _)] = network.requests
        assert f"new{number}" in told_topics(command)
        network.answer()


def test_a_name_server_that_is_lost_again_is_registered_with_again_and_has_its_lines_each_time(
    make: Callable[..., Registration], network: FakeClient, clock: Clock, topics: FakeTopics, logged: Logged
) -> None:
    registration = registered(make, network, [A], register_name_server_period_ms=60_000)
    for number in range(1, 4):
        topics.put(f"new{number}")
        registration.connection_closed(A)
        for seconds in (FIRST_RETRY_SECONDS, FIRST_RETRY_SECONDS, RETRY_SECONDS):
            clock.advance(seconds - 0.1)
            assert network.told == []
            clock.advance(0.1)
            [(_, command, _, _)] = network.requests
            assert {f"new{n}" for n in range(1, number + 1)} < told_topics(command), "it may have lost all"
            network.fail()
        clock.advance(RETRY_SECONDS)
        network.answer()
        lines = [line for line in logged.lines if A in line]
        assert len([line for line in lines if "connection refused" in line]) == number
        assert len(lines) == 1 + 2 * number
        clock.advance(RETRY_SECONDS)
        assert network.told == []
