"""Light message queues and the extension of consume queues: a store that each kind of broker wrote, read by the other,
and what each makes of the other's log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.task import Clock

from mqbroker.config import StoreSettings
from mqbroker.store import open_store
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import Record, decode_records, encode_host
from tests.interop.fleet import Fleet, Kind
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, pull, request, send, send_batch
from tests.store.harness import now

SEGMENT_BYTES = 65536
SETTINGS: dict[str, Any] = {
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": "2048",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "2000",
    "maxIndexNum": "700",
}
GROUP = "%LMQ%client"
COMMITTED = 17
COUNT = 330
#: As many entries each queue gets in a turn: "other" 1 has its own and those of messages of "plain" 1 that name it.
COUNTS = {
    ("%LMQ%a", 0): 114,
    ("%LMQ%home%lamp", 0): 110,
    ("%LMQ%+#", 0): 55,
    ("plain", 0): 111,
    ("plain", 1): 165,
    ("other", 1): 110,
    ("SCHEDULE_TOPIC_XXXX", 17): 4,
}


@attrs.frozen
class Seen:
    """What lasts of a message, as a queue gives it."""

    queue_offset: int
    body: bytes
    named: str
    offsets: str


def names(i: int) -> str:
    """Which queues message `i` names."""
    return ("%LMQ%a", "%LMQ%home%lamp,%LMQ%+#", "", "%LMQ%home%lamp,other", "", "%LMQ%a,%LMQ%a")[i % 6]


def message(i: int, **properties: str) -> RemotingCommand:
    named = {"INNER_MULTI_DISPATCH": names(i)} if names(i) else {}
    all_of_them = {"UNIQ_KEY": f"{i:032X}", "TAGS": "ABC"[i % 3], "KEYS": f"one-{i} x", **named, "WAIT": "true"}
    topic, queue_id = ("other", 1) if i % 6 == 4 else ("plain", i % 2)
    return send(topic, queue_id, f"message {i}".encode().ljust(400, b"."), {**all_of_them, **properties})


def fill(line: Line, turn: int) -> None:
    """One by one, so that the queues are the same whoever writes them."""
    line.ask_well([create_topic("plain", 2), create_topic("other", 2)])
    start = turn * COUNT
    for i in range(start, start + COUNT):
        line.ask_well([message(i)])
    line.ask_well([send_batch("plain", 0, [(b"batch", {"UNIQ_KEY": f"{turn:032X}", "TAGS": "A"})])])
    line.ask_well([message(start + 6 * i, DELAY="18") for i in range(4)])
    for (topic, queue_id), count in COUNTS.items():
        end = count * (turn + 1)
        eventually(f"all of {topic} {queue_id}", lambda t=topic, q=queue_id, e=end: line.max_offset(t, q) == e)  # type: ignore[misc]
    fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": "%LMQ%a", "queueId": 0, "commitOffset": COMMITTED + turn}
    line.ask_well([request(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)])


def read(line: Line, topic: str, queue_id: int = 0, tags: str = "*") -> list[Seen]:
    """All messages of a queue by the pulls of a light client, whose group is known to nobody."""
    records: list[Record] = []
    end = line.max_offset(topic, queue_id)
    at = 0
    while at < end:
        asked = pull(topic, queue_id, at, tags=tags)
        asked.ext_fields["consumerGroup"] = GROUP
        [answer] = line.ask([asked])
        assert answer.code == ResponseCode.SUCCESS or answer.remark == "NO_MATCHED_MESSAGE", answer
        records += decode_records(answer.body)
        at = int(answer.ext_fields["nextBeginOffset"])
    return [seen(record) for record in records]


def seen(record: Record) -> Seen:
    properties = dict(record.properties)
    return Seen(
        record.queue_offset,
        record.body,
        properties.get("INNER_MULTI_DISPATCH", ""),
        properties.get("INNER_MULTI_QUEUE_OFFSET", ""),
    )


@attrs.frozen
class Answers:
    """What a client of light message queues gets: all messages, those with tags, and where its group is."""

    messages: dict[tuple[str, int], list[Seen]]
    tagged: dict[tuple[str, int], list[Seen]]
    committed: int


def answers(line: Line, turns: int) -> Answers:
    queues = [queue for queue in COUNTS if queue[0] != "SCHEDULE_TOPIC_XXXX"]
    messages = {queue: read(line, *queue) for queue in queues}
    assert {queue: len(found) for queue, found in messages.items()} == {
        queue: turns * COUNTS[queue] for queue in queues
    }
    return Answers(messages, {queue: read(line, *queue, tags="B || C") for queue in queues}, committed(line))


def committed(line: Line) -> int:
    fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": "%LMQ%a", "queueId": 0}
    return line.number(RequestCode.QUERY_CONSUMER_OFFSET, "offset", **fields)


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def rebuilt(store: Path, copy: Path) -> Path:
    """A copy of a store in which all that is made of the log is made anew by us."""
    shutil.copytree(store, copy)
    for name in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(copy / name)
    settings = StoreSettings(
        store_path_root_dir=str(copy),
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=2000,
        mapped_file_size_consume_queue_ext=2048,
        max_hash_slot_num=1000,
        max_index_num=700,
        enable_consume_queue_ext=True,
        enable_lmq=True,
        enable_multi_dispatch=True,
    )
    host = encode_host(("127.0.0.1", 10911))
    opened = open_store(settings, disk=OsDisk(), clock=Clock(), worker=InlineWorker(), store_host=host)
    now(opened).query("plain", "none", 1, 0, 1)
    stopped: list[None] = []
    opened.stop().addCallback(stopped.append)
    assert stopped == [None]
    return copy


def assert_same_files(one: Path, other: Path) -> None:
    for name in ("consumequeue", "consumequeue_ext"):
        files = files_below(one / name)
        assert len(files) >= 4
        assert files_below(other / name) == files
    before, after = ([data for _, data in sorted(files_below(root / "index").items())] for root in (one, other))
    assert len(before) > 1
    assert after == before


def assert_go_on(line: Line) -> None:
    """More messages take the next offsets of all queues."""
    line.ask_well([message(i) for i in range(2 * COUNT, 2 * COUNT + 6)])
    eventually("three more", lambda: line.max_offset("plain", 1) == 2 * COUNTS["plain", 1] + 3)
    assert [found.offsets for found in read(line, "%LMQ%a")[-2:]] == ["228", "229,229"]
    assert [found.offsets for found in read(line, "plain", 1)[-3:]] == ["220,110", "221,220", "229,229"]
    assert [found.body[:11] for found in read(line, "other", 1)[-2:]] == [b"message 663", b"message 664"]


def test_one_store_by_turns(fleet: Fleet) -> None:
    """Each reads what the other wrote; what was made of the log is what we make of all of it anew."""
    namesrv = fleet.namesrv("ours")
    store = fleet.scratch / "store"
    before = None
    kinds: list[Kind] = ["ours", "java"]
    for turn, kind in enumerate(kinds):
        broker = fleet.broker(kind, namesrv, store, brokerName="travelling", **SETTINGS)
        line = Line(broker.addr)
        if before is not None:
            assert answers(line, turn) == before
        fill(line, turn)
        before = answers(line, turn + 1)
        assert before.committed == COMMITTED + turn
        line.close()
        broker.process.stop()
        assert_same_files(store, rebuilt(store, fleet.scratch / f"rebuilt after {kind}"))
    broker = fleet.broker("ours", namesrv, store, brokerName="travelling", **SETTINGS)
    line = Line(broker.addr)
    assert answers(line, 2) == before
    assert_go_on(line)
    line.close()
