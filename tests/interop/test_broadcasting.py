"""Members that each get every message: ours and Java's, and the files that they keep offsets in."""

from pathlib import Path

import pytest

from mqbroker.client import ConsumeFrom, LocalOffsets, MemoryOffsets, MessageModel, PushOptions, blocking
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.test_our_clients import Inbox, hashes_of, queues4
from tests.interop.traffic import bodies, consumer, produce, stop_consumer

__all__ = ["queues4"]


def test_ours_and_java_go_on_from_one_file_in_turn(
    shared_fleet: Fleet,
    java_namesrv: Namesrv,
    java_broker: Broker,
    queues4: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    group = f"{queues4}-group"

    def by_java(count: int) -> object:
        theirs = consumer(shared_fleet, java_namesrv, queues4, group, broadcast=True)
        client_id = theirs.events("started")[0]["clientId"]
        theirs.wait_events("message", count)
        found = stop_consumer(theirs)
        path, *_ = tmp_path_factory.getbasetemp().glob(f"peers*/.rocketmq_offsets/{client_id}/{group}/offsets.json")
        files.append(path)
        return bodies(found)

    def by_us(count: int) -> object:
        inbox = Inbox()
        options = PushOptions(
            model=MessageModel.BROADCASTING, offset_store=LocalOffsets(files[-1]), consume_from=ConsumeFrom.FIRST
        )
        member = blocking.PushConsumer(java_namesrv.addr, group, inbox, options=options)
        member.subscribe(queues4)
        with member:
            inbox.wait(count)
        return hashes_of(inbox.messages)

    files: list[Path] = []
    # Enough for each queue to have some: Java keeps no offset of a queue that it found empty.
    for turn, consume in enumerate([by_java, by_us, by_java, by_us]):
        sent = produce(shared_fleet, java_namesrv, queues4, prefix=f"turn {turn}", count=20)
        assert consume(20) == bodies(sent), turn


def test_one_broadcasting_group_of_ours_and_java(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> None:
    group = f"{queues4}-group"
    theirs = consumer(shared_fleet, java_namesrv, queues4, group, broadcast=True)
    inbox = Inbox()
    options = PushOptions(model=MessageModel.BROADCASTING, offset_store=MemoryOffsets(), consume_from=ConsumeFrom.FIRST)
    member = blocking.PushConsumer(java_namesrv.addr, group, inbox, options=options)
    member.subscribe(queues4)
    with member:
        sent = produce(shared_fleet, java_namesrv, queues4, count=40)
        inbox.wait(40)
        theirs.wait_events("message", 40)
    assert hashes_of(inbox.messages) == bodies(stop_consumer(theirs)) == bodies(sent)
