"""A store whose oldest segments our broker deleted, opened by the Java broker, and the other way back."""

from typing import Any

from tests.interop.fleet import Broker, Fleet
from tests.interop.processes import eventually
from tests.interop.traffic import Event, bodies, produce, pull

BROKER = "travelling"
SEGMENT_BYTES = 131_072
SETTINGS: dict[str, Any] = {
    "brokerName": BROKER,
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    # 50 messages to a file.
    "mappedFileSizeConsumeQueue": "1000",
}
DELETING: dict[str, Any] = {
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": "200",
    "flushIntervalConsumeQueue": "100",
}
KEEPING: dict[str, Any] = {"fileReservedTime": "72"}


def first_offset(broker: Broker) -> int:
    return min(int(path.name) for path in (broker.store / "commitlog").iterdir())


def ends_of_queues(events: list[Event]) -> dict[int, tuple[int, int]]:
    """First and last offset of each queue; all between are there, in order."""
    queues: dict[int, list[int]] = {}
    for event in events:
        queues.setdefault(event["queueId"], []).append(event["queueOffset"])
    assert all(offsets == list(range(offsets[0], offsets[-1] + 1)) for offsets in queues.values())
    return {queue: (offsets[0], offsets[-1]) for queue, offsets in queues.items()}


def test_what_is_left_is_read_and_goes_on(fleet: Fleet, topic: str) -> None:
    store = fleet.scratch / "store"
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("ours", namesrv, store, **SETTINGS, **DELETING)
    sent = produce(fleet, namesrv, topic, count=900, size=1000, keys=True)
    # All that is deleted is deleted before the next broker looks.
    last = max(_physical_offset(event) for event in sent) // SEGMENT_BYTES * SEGMENT_BYTES
    assert last >= 5 * SEGMENT_BYTES
    eventually("all segments but the last are deleted", lambda: first_offset(broker) == last)
    kept = [event for event in sent if _physical_offset(event) >= last]
    eventually("consume queues follow", lambda: min(_entry_files(broker, topic)) > 0)
    left = eventually(
        "no queue has more",
        lambda: (found := pull(fleet, namesrv, topic)) and len(found) == len(kept) and found,
    )
    assert bodies(left) == bodies(kept)
    ends = ends_of_queues(left)
    assert min(first for first, _ in ends.values()) > 0
    broker.process.stop()

    java = fleet.broker("java", namesrv, store, **SETTINGS, **KEEPING)
    assert bodies(pull(fleet, namesrv, topic)) == bodies(left)
    more = produce(fleet, namesrv, topic, prefix="more", count=50, size=1000, keys=True)
    everything = pull(fleet, namesrv, topic)
    assert bodies(everything) == bodies(left) + bodies(more)
    assert {queue: first for queue, (first, _) in ends_of_queues(everything).items()} == {
        queue: first for queue, (first, _) in ends.items()
    }
    java.process.stop()

    fleet.broker("ours", namesrv, store, **SETTINGS, **KEEPING)
    back = pull(fleet, namesrv, topic)
    assert bodies(back) == bodies(everything)
    assert ends_of_queues(back) == ends_of_queues(everything)
    by_key = fleet.mqadmin("queryMsgByKey", "-n", namesrv.addr, "-t", topic, "-k", "more-7")
    assert more[7]["msgId"] in by_key


def _physical_offset(sent: Event) -> int:
    """Where the message is in the log: the last eight bytes of the identifier that the broker gave it."""
    return int(sent["offsetMsgId"][-16:], 16)


def _entry_files(broker: Broker, topic: str) -> list[int]:
    return [int(path.name) for path in (broker.store / "consumequeue" / topic / "0").iterdir()]
