"""What happens again and again: each round is as the first one, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pytest
from twisted.internet.task import Clock

from mqbroker.broker import client_registry, filter_table, queue_locks
from mqbroker.broker.client_registry import (
    CLIENT_EXPIRY_SECONDS,
    SUBSCRIPTIONS_PER_CLIENT,
    ConsumerRegistry,
    ProducerRegistry,
)
from mqbroker.broker.filter_table import FilterTable
from mqbroker.broker.long_polling import SWEEP_SECONDS, HeldPull, HeldPulls
from mqbroker.broker.queue_locks import LOCK_SECONDS, QueueLocks
from mqbroker.errors import DiskFull, MessageRefused, Refused, StoreBusy
from mqbroker.filter.bloom import BloomFilter
from mqbroker.remoting.limits import Shares
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import LanguageCode, ResponseCode
from mqbroker.wire.record import NewMessage
from tests.broker.bench import Bench, FakeConnection, live_settings
from tests.broker.test_client_registry import beat, connections, notified
from tests.broker.test_client_requests import beat as heartbeat
from tests.broker.test_client_requests import consumer
from tests.broker.test_delay import delayed_message, delivered, opened, wait
from tests.broker.test_filter_table import sql
from tests.broker.transacting import COMMIT, GIVEN_UP, HALF, OP, UNKNOWN, Transactor, answered, bodies, round_of_checks
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged
from tests.store.harness import Bench as StoreBench
from tests.store.harness import make_bench as make_store_bench
from tests.store.harness import stop

ROUNDS = range(1, 4)


# Transactions


def test_a_half_message_answered_unknown_is_asked_about_15_times_and_so_is_the_next(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    producer = Transactor(bench)
    bench.parts.checks.start()
    for number in ROUNDS:
        producer.half(b"%d" % number)
        for times in range(1, 16):
            producer.beat()
            round_of_checks(bench)
            ((header, record),) = producer.asked()
            assert (record.body, record.properties["TRANSACTION_CHECK_TIMES"]) == (b"%d" % number, str(times))
            producer.end(answered(header), UNKNOWN, from_transaction_check=True)
        assert len(bodies(bench, GIVEN_UP)) == number - 1
        for _ in range(2):
            producer.beat()
            round_of_checks(bench)
            assert producer.asked() == []
            assert bodies(bench, GIVEN_UP) == [b"%d" % n for n in range(1, number + 1)]
        # One between two that are given up is committed at its second check.
        producer.half(b"good")
        for _ in range(2):
            producer.beat()
            round_of_checks(bench)
            ((header, _),) = producer.asked()
        producer.end(answered(header), COMMIT, from_transaction_check=True)
        assert bodies(bench, "T", 1) == [b"good"] * number
        assert len(bodies(bench, HALF)) == number * (1 + 15 + 1 + 2)


def test_each_round_of_checks_reports_the_half_messages_of_that_round(
    make_bench: Callable[..., Bench], logged: Logged
) -> None:
    bench = make_bench(transaction_check_max=100)
    bench.parts.checks.start()
    for number in ROUNDS:
        producer = Transactor(bench)
        producer.half(b"%d" % number)
        del logged[:]
        round_of_checks(bench)
        lines = [line for line in logged.lines if "no producer of PG is connected" in line]
        assert [line.rpartition("messages: ")[2].partition(";")[0] for line in lines] == [str(number)]
        del logged[:]
        for _ in range(2):
            producer.beat()
            round_of_checks(bench)
            assert len(producer.asked()) == number
        assert [line for line in logged.lines if "no producer of PG" in line] == []
        bench.turn(CLIENT_EXPIRY_SECONDS)
        bench.producers.expire()


def test_the_progress_of_transactions_is_committed_each_time_that_it_is_on_the_disk(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(worker=SteppedWorker(at_once=False))
    bench.worker.work()
    producer = Transactor(bench)

    def committed() -> list[int | None]:
        return [bench.offsets.query("CID_RMQ_SYS_TRANS", topic, 0) for topic in (HALF, OP)]

    for number in ROUNDS:
        before = committed()
        producer.commit(producer.half(b"%d" % number))
        for _ in range(3):
            bench.parts.half_queue.save_progress()
        assert committed() == before
        bench.turn(1)
        bench.worker.work()
        for _ in range(2):
            bench.parts.half_queue.save_progress()
        assert committed() == [number, number]


# Held pulls


def test_a_pull_is_held_woken_and_timed_out_again_and_again(clock: Clock) -> None:
    held, calls = HeldPulls(clock, live_settings(held_pulls_max=1)), list[tuple[int, bool]]()
    held.start()
    connection = FakeConnection()

    def check(pull: HeldPull, last: bool) -> bool:
        calls.append((pull.offset, last))
        is_found = pull.offset % 2 == 0 or last
        pull.offset += not is_found
        return is_found

    def hold(offset: int) -> bool:
        return held.hold(HeldPull(connection, "T", 0, offset, clock.seconds() + 2, check))

    for number in ROUNDS:
        offset = 10 * number
        assert hold(offset)
        assert not hold(offset), "there is room for one"
        held.arrived("T", 0, offset + 1)  # it finds a message
        assert calls == [(offset, False)]
        assert hold(offset + 1)
        held.arrived("T", 0, offset + 2)  # it finds one that it does not want, and is held on
        held.arrived("T", 0, offset + 2)
        assert calls == [(offset, False), (offset + 1, False)]
        for _ in range(int(2 / SWEEP_SECONDS)):
            clock.advance(SWEEP_SECONDS)
        assert calls[2:] == [(offset + 2, True)], "it has timed out"
        assert hold(offset)
        connection.closed = True
        clock.advance(SWEEP_SECONDS)
        assert (len(held), len(calls)) == (0, 3), "its connection was closed"
        connection.closed = False
        assert held._shares == Shares()
        calls.clear()
    held.stop()


def test_pulls_that_are_not_held_are_reported_each_minute(clock: Clock, logged: Logged) -> None:
    held = HeldPulls(clock, live_settings(held_pulls_max=1))
    held.start()
    for number in ROUNDS:
        for _ in range(5):
            pull = HeldPull(FakeConnection(), "T", 0, 0, clock.seconds() + 70, lambda _, last: last)
            held.hold(pull)
        assert len([line for line in logged.lines if "heldPullsMax=1" in line]) == number
        for _ in range(150):
            clock.advance(SWEEP_SECONDS)
        assert len(held) == 0
    held.stop()


# Delayed messages


@pytest.fixture
def delays(tmp_path: Path) -> Iterator[StoreBench]:
    bench = make_store_bench(tmp_path / "store")
    yield bench
    bench.close()


def test_offsets_of_delayed_messages_are_written_each_time_that_they_move_and_only_then(delays: StoreBench) -> None:
    store, delay = opened(delays)
    file = delays.root / "config" / "delayOffset.json"
    for number in ROUNDS:
        store.append([delayed_message(b"%d" % number)])
        wait(delays.clock, 1.5)
        for _ in range(2):
            delay.persist()
            assert file.read_bytes() == b'{"offsetTable":{1:%d}}' % number
            file.write_bytes(file.read_bytes() + b" ")
            delay.persist()
            assert file.read_bytes().endswith(b" "), "it was written though nothing moved"
            file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("one_by_one", [False, True])
def test_delayed_messages_that_wait_for_the_store_are_reported_once_each_time(
    delays: StoreBench, monkeypatch: pytest.MonkeyPatch, logged: Logged, one_by_one: bool
) -> None:
    store, _ = opened(delays)
    append, is_full = store.append, False

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        if is_full:
            raise DiskFull("no room")
        if one_by_one and len(messages) > 1:
            raise MessageRefused("one of them is too large")
        return append(messages)

    for number in ROUNDS:
        store.append([delayed_message(b"%da" % number), delayed_message(b"%db" % number)])
        monkeypatch.setattr(store, "append", refuse)
        is_full = True
        wait(delays.clock, 9)
        assert (
            len([line for line in logged.lines if "delivery of delayed messages is suspended: no room" in line])
            == number
        )
        is_full = False
        wait(delays.clock, 1.5)
        assert [record.body for record in delivered(store)][-2:] == [b"%da" % number, b"%db" % number]
        assert len(delivered(store)) == 2 * number
        monkeypatch.setattr(store, "append", append)


def test_a_level_that_cannot_be_read_again_is_read_again(delays: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(delays)
    get = store.get

    def fail(*_: object) -> None:
        raise StoreBusy("too many reads wait")

    for number in ROUNDS:
        monkeypatch.setattr(store, "get", fail)
        store.append([delayed_message(b"%d" % number)])
        wait(delays.clock, 3)
        monkeypatch.setattr(store, "get", get)
        wait(delays.clock, 3)
        assert len(delivered(store)) == number


def test_a_clock_that_is_set_back_again_keeps_no_delayed_message_longer_than_its_delay(delays: StoreBench) -> None:
    count = 0
    for hours in (1, 2, -3, 4):
        store, delay = opened(delays)
        store.append([delayed_message(b"early", 2)])
        delay.stop()
        stop(store)
        delays.opened.clear()
        delays.clock.rightNow -= 3600 * hours
        store, delay = opened(delays)
        wait(delays.clock, 1)
        store.append([delayed_message(b"later", 2)])
        for seconds, more in ((3.5, hours < 0), (1, 1), (5, 2), (5, 2)):
            wait(delays.clock, seconds)
            assert len(delivered(store)) == count + more
        count += 2
        delay.stop()
        stop(store)
        delays.opened.clear()


# Filters


def test_filters_that_come_and_expire_again_leave_their_room(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JsonFile(str(tmp_path / "filters.json"), InlineWorker(), OsDisk())
    table = FilterTable(file, clock.seconds, BloomFilter.for_consumers(32, 20), 60_000)
    monkeypatch.setattr(filter_table, "FILTERS_MAX", 2)
    for number in ROUNDS:
        monkeypatch.setattr(filter_table, "FILTER_CHARACTERS_MAX", 1000)
        for group in ("one", "two", "three"):
            table.register_group(group, [sql("a > 5", number)])
        assert [one.group for one in table.of_topic("T")] == ["one", "two"]
        monkeypatch.setattr(filter_table, "FILTER_CHARACTERS_MAX", 12)
        table.register_group("one", [sql("a > 50000", number + 1)])
        assert [one.group for one in table.of_topic("T")] == ["two"]
        table.register_group("one", [sql("a > 600", number + 1)])
        assert [one.group for one in table.of_topic("T")] == ["two", "one"]
        for group in ("one", "two"):
            table.group_gone(group)
        clock.advance(61)
        table.clean()
        assert table.snapshot().filter_data_by_topic == {}


# Clients and their groups


def leave(registry: ConsumerRegistry | ProducerRegistry, clock: Clock, way: str, joined: list[FakeConnection]) -> None:
    """Have all connections leave the group CG."""
    if way == "expired":
        clock.advance(CLIENT_EXPIRY_SECONDS)
        registry.expire()
    for connection in joined:
        if way == "unregistered":
            registry.unregister(connection, "CG")
        elif way == "closed":
            registry.connection_closed(connection)


WAYS = ["unregistered", "closed", "expired"]


def test_subscriptions_that_are_kept_because_they_are_newer_count(
    clock: Clock, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of the far future and a small heartbeat later would hide what a group keeps in memory."""
    monkeypatch.setattr(client_registry, "SUBSCRIPTION_BYTES_MAX", 1000)
    registry = ConsumerRegistry(clock, live_settings(), lambda group: None)
    one, two = connections(2)
    for _ in ROUNDS:
        beat(registry, one, "client0", SubscriptionData("T", "x" * 900, sub_version=2**63 - 1))
        for _ in range(2):
            beat(registry, one, "client0", SubscriptionData("T", "y", sub_version=1))
            for connection, group in ((one, "CG"), (two, "Other")):
                with pytest.raises(Refused, match="bytes, 1000 at most"):
                    beat(
                        registry, connection, "client1", SubscriptionData("T"), SubscriptionData("U", "z" * 200),
                        group=group,
                    )  # fmt: skip
        registry.unregister(one, "CG")
        beat(registry, two, "client1", SubscriptionData("U", "z" * 1000), group="Other")
        registry.unregister(two, "Other")


@pytest.mark.parametrize("way", WAYS)
def test_consumers_that_come_back_are_told_counted_and_logged_each_time(
    clock: Clock, logged: Logged, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_registry, "SUBSCRIPTION_BYTES_MAX", 1000)
    gone: list[str] = []
    registry = ConsumerRegistry(clock, live_settings(clients_max=2), gone.append)
    one, two, third = connections(3)
    topics = [SubscriptionData(f"T{n}", "tag" * 16) for n in range(2 * SUBSCRIPTIONS_PER_CLIENT)]
    for number in ROUNDS:
        for at, connection in enumerate((one, two)):
            beat(registry, connection, f"client{at}", *topics)
            beat(registry, connection, f"client{at}", *topics)
        assert notified(clock, one, two) == [1, 1]
        with pytest.raises(Refused, match="clientsMax"):
            beat(registry, third, "client2", *topics)
        for more in ("subscriptions", "bytes"):
            extra = SubscriptionData("one more", "x" * (1000 if more == "bytes" else 0))
            with pytest.raises(Refused, match=more):
                beat(registry, one, "client0", *topics[more == "bytes" :], extra)
        leave(registry, clock, way, [one])
        if way != "expired":
            assert notified(clock, one, two) == [0, 1]
            leave(registry, clock, way, [two])
        assert registry.group("CG") is None
        assert gone == ["CG"] * number
        assert len([line for line in logged.lines if "client0 joins CG" in line]) == number
        assert len([line for line in logged.lines if "client0 leaves CG" in line]) == number
        assert len([line for line in logged.lines if "client0 sent no heartbeat" in line]) == (
            number if way == "expired" else 0
        )
        notified(clock, one, two)


@pytest.mark.parametrize("way", WAYS)
def test_producers_that_come_back_are_counted_and_found_each_time(clock: Clock, way: str) -> None:
    registry = ProducerRegistry(clock.seconds, live_settings(clients_max=2))
    one, two, third = connections(3)
    for number in ROUNDS:
        # The account that has a client id leaves it to others when it leaves.
        account = f"account{number}"
        for connection in (one, two):
            registry.register(connection, "the client", LanguageCode.JAVA, 407, "CG", account)
            with pytest.raises(Refused, match="another account"):
                registry.register(third, "the client", LanguageCode.JAVA, 407, "CG", "impostor")
        with pytest.raises(Refused, match="clientsMax"):
            registry.register(third, "other", LanguageCode.JAVA, 407, "CG", account)
        assert (registry.find("the client"), len(registry.group("CG"))) == (two, 2)
        leave(registry, clock, way, [one, two])
        assert (registry.find("the client"), dict(registry.groups())) == (None, {})


def test_a_queue_is_locked_lost_and_locked_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 2)
    locks = QueueLocks(clock.seconds)
    queues = [MessageQueue("T", "broker-a", n) for n in range(3)]
    for _ in ROUNDS:
        for owner, other in (("a", "b"), ("b", "a")):
            assert locks.lock("CG", owner, queues) == {queues[0], queues[1]}
            clock.advance(LOCK_SECONDS - 1)
            assert locks.lock("CG", other, queues) == set()
            assert locks.lock("CG", owner, queues[:1]) == {queues[0]}, "it is renewed"
            clock.advance(2)
            assert locks.lock("CG", other, queues) == {queues[1]}
            clock.advance(LOCK_SECONDS + 1)
        assert locks.lock("Other", "c", queues[1:]) == {queues[1], queues[2]}, "those of CG have run out"
        locks.unlock("Other", "c", queues)


# Slow consumers


def test_a_group_that_is_enabled_again_and_falls_behind_again_is_disabled_again(
    make_bench: Callable[..., Bench], logged: Logged
) -> None:
    bench = make_bench(disable_consume_if_consumer_read_slowly=True, consumer_fallbehind_threshold=5_000)
    client = bench.client()
    for number in ROUNDS:
        for _ in range(10):
            client.send(body=bytes(1000))
        bench.store.dispatch_now()
        heartbeat(client, consumers=[consumer("CG", "T")])
        bench.offsets.commit("CG", "T", 0, 10 * number - 10)
        for _ in range(2):
            bench.parts.slow_consumers.check()
            assert client.pull().code == ResponseCode.NO_PERMISSION
        assert len([line for line in logged.lines if "PROTECT_BROKER" in line]) == number
        bench.offsets.commit("CG", "T", 0, 10 * number)
        bench.groups.put(attrs.evolve(bench.groups.find("CG"), consume_enable=True))
        bench.parts.slow_consumers.check()
        assert client.pull().code == 0


# Fast failure


def test_a_broker_that_is_overloaded_again_refuses_again(bench: Bench) -> None:
    client = bench.client()
    client.send()
    for number in ROUNDS:
        bench.clock.advance(60)
        for seconds, why in ((0.25, "TIMEOUT_CLEAN_QUEUE"), (1.25, "PCBUSY_CLEAN_QUEUE")):
            bench.turns.turn_began = bench.clock.seconds() - seconds
            for _ in range(2):
                (answer,) = client.send()
                assert (answer.code, answer.remark[: len(why) + 2]) == (ResponseCode.SYSTEM_BUSY, f"[{why}]")
        bench.turns.turn_began = bench.clock.seconds()
        for _ in range(2):
            assert client.send()[0].code == 0
        assert len(bench.records("T")) == 1 + 2 * number
