"""Filtering by expressions: ours beside a Java broker, under the same requests; and one's store under the other."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from mqbroker.config import StoreSettings
from mqbroker.store import open_store
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import decode_records, encode_host
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, request, send

SETTINGS: dict[str, Any] = {
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "filterSupportRetry": "true",
}
COUNT = 60
WANTED = {
    "cheap": "price < 20",
    "north": "region IN ('north') AND price IS NOT NULL",
    "odd": "price BETWEEN 10 AND 12 OR odd = TRUE",
    "none": "price > 1000",
    "failing": "region > 5",
}


def heartbeat(group: str, *subscriptions: SubscriptionData) -> RemotingCommand:
    consumer = ConsumerData(group, subscription_data_set=list(subscriptions))
    return request(RequestCode.HEART_BEAT, HeartbeatData(f"client-{group}", [], [consumer]).to_json())


def sql(text: str, topic: str = "T", version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type="SQL92")


def pull(offset: int, **fields: Any) -> RemotingCommand:
    header = {
        "consumerGroup": "cheap", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 7, "sysFlag": 0,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1, "subscription": "", "expressionType": "SQL92",
    }  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, **{**header, **fields})


def message(i: int) -> RemotingCommand:
    properties = {"UNIQ_KEY": f"{i:032X}", "TAGS": f"t{i % 3}", "WAIT": "true", "price": str(i * 7 % 100)}
    properties |= {"region": ("north", "south", "5.5")[i % 3], "odd": ("true", "false", "x")[i // 3 % 3]}
    if i % 10 == 9:
        del properties["price"]
    topic = "T" if i % 4 else "%RETRY%cheap"
    return send(topic, 0, b"%d" % i, properties | ({} if i % 4 else {"RETRY_TOPIC": ("T", "U", "V")[i // 4 % 3]}))


def told(answer: RemotingCommand) -> tuple[Any, ...]:
    """What lasts of an answer."""
    found = [(record.queue_offset, record.body) for record in decode_records(answer.body)]
    header = answer.ext_fields or {}
    offsets = [header.get(name) for name in ("nextBeginOffset", "minOffset", "maxOffset")]
    return answer.code, answer.remark, *offsets, found


def drive(broker: Broker) -> list[Any]:
    """Consumers that say what they want, messages, and pulls; the answers of all pulls."""
    with closing(Line(broker.addr)) as line:
        line.ask_well([create_topic("T", 1), create_topic("U", 1)])
        early = range(COUNT // 4)
        for i in early:
            line.ask_well([message(i)])
        # Bit maps are made when messages go to their queues: those of the early ones before there are filters.
        counts = {"T": sum(1 for i in early if i % 4), "%RETRY%cheap": sum(1 for i in early if not i % 4)}
        eventually("the early ones", lambda: all(line.max_offset(topic, 0) == n for topic, n in counts.items()))
        for group, text in WANTED.items():
            line.ask_well([heartbeat(group, sql(text), sql("price > 50", "U"), SubscriptionData(f"%RETRY%{group}"))])
        eventually("that the clock goes on", lambda: line.ask_well([heartbeat("tags", SubscriptionData("T"))]))
        for i in range(COUNT // 4, COUNT):
            line.ask_well([message(i)])
        count = sum(1 for i in range(COUNT) if i % 4)
        eventually("all in their queues", lambda: line.max_offset("T", 0) == count)
        answers = [line.one(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0).ext_fields]
        for group in WANTED:
            answers += read(line, consumerGroup=group)
        for text in (*WANTED.values(), "TRUE", "FALSE", "price > 5 whatever", "missing IS NULL"):
            answers += read(line, sysFlag=4, subscription=text)
        answers += read(line, topic="%RETRY%cheap", sysFlag=4, subscription="*", expressionType="TAG")
        answers += read(line, topic="%RETRY%cheap")
        answers += refusals(line)
    return answers


def read(line: Line, **fields: Any) -> list[Any]:
    """All of a queue, pull after pull."""
    answers, offset = [], 0
    while True:
        answer = line.ask([pull(offset, **fields)])[0]
        answers.append(told(answer))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return answers
        offset = int(answer.ext_fields["nextBeginOffset"])


def refusals(line: Line) -> list[Any]:
    line.ask_well([heartbeat("wrong", sql("price >")), heartbeat("renewed", sql("price > 1", version=3))])
    line.ask_well([heartbeat("renewed", sql("price > 2", version=2))])
    asked = [
        pull(0, consumerGroup="wrong"),
        pull(0, consumerGroup="renewed", subVersion=3),
        pull(0, consumerGroup="renewed", subVersion=4),
        pull(0, sysFlag=4, subscription=""),
        pull(0, sysFlag=4, subscription="", expressionType="XPATH"),
    ]
    checked = [check(sql("price > 5")), check(sql("price >")), check(SubscriptionData("T", "t1 || t2"))]
    return [*map(told, line.ask(asked)), *[answer.code for answer in line.ask(checked)]]


def check(wanted: SubscriptionData) -> RemotingCommand:
    body = CheckClientRequestBody("client", "cheap", wanted).to_json()
    return request(RequestCode.CHECK_CLIENT_CONFIG, body)


def units(store_dir: Path) -> list[tuple[int, bytes]]:
    """Tags code and bit map of each message of the topic, of a store that nobody has open."""
    settings = StoreSettings(
        store_path_root_dir=str(store_dir),
        enable_consume_queue_ext=True,
        mapped_file_size_commit_log=4194304,
        mapped_file_size_consume_queue=20000,
        max_hash_slot_num=1000,
        max_index_num=4000,
    )
    clock = Clock()
    clock.advance(1_800_000_000)
    worker = InlineWorker()
    host = encode_host(("127.0.0.1", 1))
    store = open_store(settings, disk=OsDisk(), clock=clock, worker=worker, store_host=host)
    queue = store._queues.by_name["T", 0]
    assert queue.ext is not None
    found = [queue.ext.unit(queue.entry(offset)[2]) for offset in range(queue.max_offset)]
    store.stop()
    return [(unit.tags_code, unit.bit_map) for unit in found if isinstance(unit, ExtUnit)]


def filters(broker: Broker) -> dict[str, Any]:
    """consumerFilter.json without its times."""
    data: dict[str, Any] = json.loads((broker.store / "config" / "consumerFilter.json").read_text())
    for of_topic in data["filterDataByTopic"].values():
        for one in of_topic["groupFilterData"].values():
            assert one.pop("bornTime") > 0
            one.pop("deadTime")
            one.pop("dead")
    return data


def test_both_filter_alike(shared_fleet: Fleet, our_namesrv: Namesrv, tmp_path: Path) -> None:
    kinds: tuple[Kind, Kind] = ("ours", "java")
    brokers = [shared_fleet.broker(kind, our_namesrv, **SETTINGS) for kind in kinds]
    ours, theirs = [drive(broker) for broker in brokers]
    assert ours == theirs
    for broker in brokers:
        broker.process.stop()
    assert filters(brokers[0]) == filters(brokers[1])
    copies = [shutil.copytree(broker.store, tmp_path / broker.kind) for broker in brokers]
    mine, other = map(units, copies)
    assert mine == other
    assert len({bit_map for _, bit_map in mine}) > 5
    # Each with the other's store: filters and bit maps of the one serve the other.
    stores = [broker.store for broker in brokers]
    swapped = [shutil.copytree(stores[1], tmp_path / "a"), shutil.copytree(stores[0], tmp_path / "b")]
    after = []
    for kind, store in zip(kinds, swapped, strict=True):
        broker = shared_fleet.broker(kind, our_namesrv, store=store, **SETTINGS)
        with closing(Line(broker.addr)) as line:
            line.ask_well([heartbeat("cheap", sql(WANTED["cheap"]))])
            after.append(read(line))
        broker.process.stop()
    assert after[0] == after[1]
    assert sum(len(answer[-1]) for answer in after[0]) > 5
