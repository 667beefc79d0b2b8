"""What was sent against what came: comparisons of the events that clients print."""

from collections import Counter
from collections.abc import Iterable
from contextlib import closing

from mqbroker.client.blocking import PushConsumer
from mqbroker.wire import fastjson
from mqbroker.wire.codes import RequestCode
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.peers import Peer
from tests.interop.processes import PATIENCE_S, Event, ProcessFailed, eventually
from tests.interop.raw import Line


def produce(fleet: Fleet, namesrv: Namesrv, topic: str, **options: object) -> list[Event]:
    """Send with the Java producer; every message must be accepted. Returns its "sent" events by their index, when all
    can be read but what was sent one-way."""
    process = fleet.peer("produce", namesrv, topic=topic, readable=True, **options)
    process.finish()
    assert process.events("failed") == []
    sent = sorted(process.events("sent"), key=lambda event: event["index"])
    assert all(event.get("status", "SEND_OK") == "SEND_OK" for event in sent)
    return sent


def pull(fleet: Fleet, namesrv: Namesrv, topic: str, **options: object) -> list[Event]:
    """Read the whole topic with the Java pull consumer; with `count`, as soon as that many are there."""
    process = fleet.peer("pull", namesrv, topic=topic, **options)
    process.finish()
    return process.events("message")


def consumer(fleet: Fleet, namesrv: Namesrv, topic: str, group: str, **options: object) -> Peer:
    """Start a Java push consumer; returns once it has started."""
    process = fleet.peer("consume", namesrv, topic=topic, group=group, **options)
    process.wait_events("started")
    return process


def stop_consumer(process: Peer) -> list[Event]:
    """Have it leave its group in good order (offsets saved); returns all it got."""
    process.close_stdin()
    process.finish()
    return process.events("message")


def bodies(events: Iterable[Event]) -> Counter[str]:
    """The bodies as a multiset of hashes."""
    return Counter(event["sha256"] for event in events)


def positions(events: Iterable[Event]) -> set[tuple[str, int, int]]:
    """Where the messages are: broker, queue, offset."""
    return {(event["broker"], event["queueId"], event["queueOffset"]) for event in events}


def assert_dense(events: Iterable[Event]) -> None:
    """In each queue the offsets are 0, 1, 2 ... in the order of the events."""
    queues: dict[tuple[str, int], list[int]] = {}
    for event in events:
        queues.setdefault((event["broker"], event["queueId"]), []).append(event["queueOffset"])
    for queue, offsets in queues.items():
        assert offsets == list(range(len(offsets))), queue


def assigned(process: Peer) -> set[str]:
    """The queues that a Java consumer has now, as "broker:queue id"."""
    return set(process.events("assigned")[-1]["queues"])


def ours(member: PushConsumer, topic: str) -> set[str]:
    """As `assigned`, of our consumer, without its group's retry queue."""
    return {f"{queue.broker_name}:{queue.queue_id}" for queue in member.assigned if queue.topic == topic}


def wait_assigned(process: Peer, queues: int, patience_s: float = PATIENCE_S) -> None:
    """Wait until the consumer's last rebalance gave it so many queues."""
    process.wait_until(
        f"{queues} queues assigned",
        lambda _: any(len(event["queues"]) == queues for event in process.events("assigned")[-1:]),
        patience_s,
    )


def wait_committed(broker: Broker, group: str, topic: str, queues: int, count: int) -> None:
    """Wait until the broker has all of a consumer's offsets, of queues without messages too.

    Its pulls bring those of what it consumed; those of all queues come one-way, now and then and while it leaves."""
    line = Line(broker.addr)
    told: dict[int, int] = {}

    def committed() -> bool:
        nonlocal told
        table = fastjson.loads(line.one(RequestCode.GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
        told = table.get(f"{topic}@{group}", {})
        return len(told) == queues and sum(told.values()) == count

    with closing(line):
        try:
            eventually(f"{group} has committed {count} messages", committed)
        except ProcessFailed as failed:
            raise ProcessFailed(f"{failed}; last told: {told}") from None
