"""What a broker stores of its own accord while masters of its group are killed: delayed messages when they are due, and
committed ones of transactions. Each is stored once, whoever was the master when."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

import pytest

from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Fleet
from tests.interop.group import Machine, Three
from tests.interop.load import Load, OurSender
from tests.interop.processes import eventually

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server, or build it with Go")
#: As many as a topic gets that a new master does not know yet.
QUEUES = 8
KILLS = 2
TRANSACTIONS = 4_000
#: What the producer of transactions says when it has sent, and when it is asked.
OUTCOMES, ANSWERS = "cruu", "crcr"
CHECK_S = 1


def test_delayed_messages_and_transactions_are_stored_once_though_masters_are_killed(
    fleet: Fleet, etcd: Etcd, topic: str
) -> None:
    """No producer sends anything again by itself."""
    namesrv, ended = fleet.namesrv("ours"), f"{topic}-ended"
    settings = {"messageDelayLevel": "1s 2s", "transactionTimeOut": "1000", "transactionCheckMax": "1000"}
    settings["transactionCheckInterval"] = str(CHECK_S * 1000)
    three = Three(fleet, namesrv, etcd, [Machine()] * 3, **settings)
    for name in (topic, ended):
        master = three.brokers[three.master].addr
        fleet.peer("createtopic", namesrv, topic=name, broker=master, queues=QUEUES).finish()
    options = {"outcomes": OUTCOMES, "answers": ANSWERS, "count": TRANSACTIONS, "interval_ms": 5, "retries": 0}
    transactions = fleet.peer("transact", namesrv, topic=ended, **options)
    delayed = OurSender(namesrv, topic, "delayed", delay_level=1, retries=0)
    load = Load(delayed)
    for _ in range(KILLS):
        load.wait_until_it_goes_on()
        load.wait_for(2)
        former = three.away = three.master
        three.kill(former)
        address = three.brokers[former].addr
        load.wait("another is registered", lambda: three.registered_master() not in (None, address))  # noqa: B023
        three.restart(former)
        three.away = 0
        load.wait_until_it_goes_on()
        load.wait("all three are in sync", lambda: three.is_whole)
    acknowledged = {event["sha256"] for event in load.end()}
    transactions.wait_events("all sent")
    sent = {event["index"] for event in transactions.events("sent") if event["status"] == "SEND_OK"}
    committed = {digest_of(index) for index in sent if ANSWERS[index % 4] == "c"}
    rolled_back = {digest_of(index) for index in range(TRANSACTIONS) if ANSWERS[index % 4] == "r"}

    def stored(name: str) -> Counter[str]:
        return Counter(three.messages(name, QUEUES).values())

    eventually("all delayed messages are delivered", lambda: acknowledged <= stored(topic).keys())
    eventually("all transactions are ended", lambda: committed <= stored(ended).keys())
    load.wait_for(4 * CHECK_S)
    kinds = {name: Counter(stored(name).values()) for name in (topic, ended)}
    print(f"{three.elections()}: stored so many times: {kinds}; asked {len(transactions.events('asked'))}", flush=True)
    assert [set(counts) for counts in kinds.values()] == [{1}, {1}]
    assert not rolled_back & stored(ended).keys()
    assert len(set(three.elections())) == KILLS + 1
    assert min(len(acknowledged), len(committed)) > 300
    transactions.close_stdin()
    three.require_same_logs()


def digest_of(index: int) -> str:
    return sha256(b"transaction %d" % index).hexdigest()
