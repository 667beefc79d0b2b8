"""Our lite pull consumer on the Java broker, alone and in a group with a Java member."""

from mqbroker.client import ConsumeFrom, LitePullOptions, Place, ReceivedMessage, blocking
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.processes import eventually
from tests.interop.test_our_clients import hashes_of, queues4
from tests.interop.traffic import assigned, bodies, consumer, produce, stop_consumer, wait_assigned

__all__ = ["queues4"]

OPTIONS = LitePullOptions(consume_from=ConsumeFrom.FIRST, suspend_s=1)


def polled(reader: blocking.LitePullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []

    def poll() -> bool:
        found.extend(reader.poll(1))
        return len(found) >= count

    eventually("they are polled", poll)
    return found


def test_it_reads_seeks_and_commits_on_the_java_broker(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, queues4: str
) -> None:
    sent = produce(shared_fleet, java_namesrv, queues4, count=100)
    group = f"{queues4}-group"
    with blocking.LitePullConsumer(java_namesrv.addr, group, options=OPTIONS) as reader:
        reader.subscribe(queues4)
        found = polled(reader, 100)
        assert hashes_of(found) == bodies(sent)
        assert reader.lag().total == 0
        reader.commit()
        queue = found[0].queue
        ours = [message for message in found if message.queue == queue]
        assert reader.committed(queue) == len(ours)
        for message in ours:
            first = reader.message_by_time(queue, message.store_timestamp_ms)
            right = next(each for each in ours if each.store_timestamp_ms >= message.store_timestamp_ms)
            assert first is not None
            assert first.queue_offset == right.queue_offset
        assert reader.message_by_time(queue, ours[-1].store_timestamp_ms + 1) is None
        reader.seek(queue, Place.BEGIN)
        assert [message.queue_offset for message in polled(reader, len(ours))] == list(range(len(ours)))


def test_it_shares_a_group_with_a_java_member(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, queues4: str
) -> None:
    group = f"{queues4}-group"
    theirs = consumer(shared_fleet, java_namesrv, queues4, group, persist_ms=100)
    wait_assigned(theirs, queues=4)
    with blocking.LitePullConsumer(java_namesrv.addr, group, options=OPTIONS) as reader:
        reader.subscribe(queues4)
        wait_assigned(theirs, queues=2, patience_s=15)
        eventually("two queues are ours", lambda: len(reader.assigned) == 2, patience_s=15)
        mine = {f"{queue.broker_name}:{queue.queue_id}" for queue in reader.assigned}
        assert assigned(theirs).isdisjoint(mine)
        sent = produce(shared_fleet, java_namesrv, queues4, count=40)
        theirs.wait_events("message", 20)
        ours = polled(reader, 20)
        assert hashes_of(ours) + bodies(stop_consumer(theirs)) == bodies(sent)
        eventually("all queues are ours", lambda: len(reader.assigned) == 4, patience_s=15)
        later = produce(shared_fleet, java_namesrv, queues4, prefix="later", count=8)
        assert hashes_of(polled(reader, 8)) == bodies(later)
