"""What was sent to a broker and what it acknowledged, and whether a store holds that: once, in order, nothing else."""

import contextlib
import random
import shutil
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from mqbroker.config import StoreSettings
from mqbroker.store import open_store
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.record import BLANK_MAGIC, Record, decode_record, decode_records
from tests.commands import decode_frame
from tests.daemons.processes import DEADLINE_SECONDS, ask, ask_on, receive
from tests.store.harness import now

TOPIC = "Killed"
QUEUES = 4
WINDOW = 8
#: So many of the last messages of a sender, and as many of those before, are looked up by their keys.
LOOKED_UP = 200
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


class Sender(threading.Thread):
    """Sends over one connection, a window of messages at a time, until that is lost or it is told to end.

    `sent` are the bodies in order, with their queues; `acked` maps a body to (queue offset, physical offset); `refused`
    maps a body to its answer where that was another.
    """

    def __init__(self, name: str, port: int, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.label = name
        self.sent: list[Any] = []
        self.acked: dict[Any, Any] = {}
        self.refused: dict[Any, Any] = {}
        self.is_ended = False
        self._connection = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)
        self._rng = rng

    def run(self) -> None:
        with self._connection, contextlib.suppress(OSError, AssertionError):
            while not self.is_ended:
                self._send_window()

    def _send_window(self) -> None:
        first = len(self.sent)
        frames = []
        for n in range(first, first + self._rng.randint(1, WINDOW)):
            queue = self._rng.randrange(QUEUES)
            body = b"%s-%d-" % (self.label.encode(), n) + bytes(self._rng.randrange(800))
            frames.append(encode_command(send_command(n, queue, body, f"{self.label}-{n}")))
            self.sent.append((body, queue))
        self._connection.sendall(b"".join(frames))
        for _ in frames:
            length = receive(self._connection, 4)
            answer = decode_frame(length + receive(self._connection, int.from_bytes(length, "big")))
            body, _ = self.sent[answer.opaque]
            if answer.code == 0:
                _, physical_offset = parse_offset_message_id(answer.ext_fields["msgId"])
                self.acked[body] = int(answer.ext_fields["queueOffset"]), physical_offset
            else:
                self.refused[body] = answer


def send_command(opaque: int, queue: int, body: bytes, key: str) -> RemotingCommand:
    fields = {"a": "PG", "b": TOPIC, "c": "TBW102", "d": QUEUES, "e": queue, "f": 0, "g": 1_600_000_000_000, "h": 0}
    properties = f"UNIQ_KEY\x01U{key}\x02KEYS\x01{key} also\x02TAGS\x01Tag{queue}\x02WAIT\x01true"
    ext = {**{name: str(value) for name, value in fields.items()}, "i": properties}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, body, opaque=opaque)


def send_one(port: int, body: bytes, queue: int = 0, key: str = "one") -> RemotingCommand:
    """The answer to one send over a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connection:
        return send_on(connection, body, queue, key)


def send_on(connection: socket.socket, body: bytes, queue: int = 0, key: str = "one") -> RemotingCommand:
    """The answer to one send over a connection that there is."""
    command = send_command(7, queue, body, key)
    return ask_on(connection, RequestCode.SEND_MESSAGE_V2, command.body, **command.ext_fields)


def pull(port: int, queue: int, offset: int) -> RemotingCommand:
    """The answer to one pull that is not held."""
    return ask(
        port, RequestCode.PULL_MESSAGE, consumerGroup="CG", topic=TOPIC, queueId=queue, queueOffset=offset,
        maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
    )  # fmt: skip


def pull_all(port: int, queue: int) -> list[Record]:
    """Every record of a queue."""
    records: list[Any] = []
    while True:
        answer = pull(port, queue, len(records))
        if answer.code != 0:
            assert answer.remark in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE"), answer
            return records
        records += decode_records(answer.body)


def scan_log(folder: Path) -> list[Record]:
    """Every record of the commit log, in order."""
    return [record for record, _ in _scan(folder)]


def log_end(folder: Path) -> int:
    """Where the last record of the commit log ends; 0 where there is none."""
    return max((end for _, end in _scan(folder)), default=0)


def _scan(folder: Path) -> list[tuple[Record, int]]:
    """Every record, and where it ends."""
    records = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
            if not size or magic == BLANK_MAGIC:
                break
            record = decode_record(data, at)
            assert record.physical_offset == int(path.name) + at
            at += size
            records.append((record, int(path.name) + at))
    return records


def check_history(log: list[Record], queues: dict[int, list[Record]], senders: list[Sender]) -> None:
    """Compare the records of the log, and those of each queue, to what `senders` sent and have acknowledged."""
    acked = {body: place for sender in senders for body, place in sender.acked.items()}
    queue_of = {body: queue for sender in senders for body, queue in sender.sent}
    # Once, and nothing that nobody sent.
    counts = Counter(record.body for record in log)
    assert {body for body in acked if counts[body] != 1} == set()
    assert {body for body, count in counts.items() if count != 1 or body not in queue_of} == set()
    # Where the acknowledgement said.
    assert {record.body: (record.queue_offset, record.physical_offset) for record in log}.items() >= acked.items()
    # The queues are the log, and dense.
    for queue, records in queues.items():
        assert [record.queue_offset for record in records] == list(range(len(records)))
        assert records == [record for record in log if record.queue_id == queue]
        assert {queue_of[record.body] for record in records} <= {queue}
    assert sum(map(len, queues.values())) == len(log)
    # In order: for each connection what was sent first stands first.
    offsets = {record.body: record.physical_offset for record in log}
    for sender in senders:
        stored = [offsets[body] for body, _ in sender.sent if body in offsets]
        assert stored == sorted(stored)
        # What was not acknowledged is the end of the stream: nothing in the middle went missing.
        if not sender.refused:
            assert all(body in offsets for body, _ in sender.sent[: len(sender.acked)])


def open_here(root: Path, sizes: dict[str, Any]) -> MessageStore:
    """Open a store directory in this process: no threads, and a clock that stands still."""
    clock = Clock()
    clock.advance(time.time())
    settings = StoreSettings(store_path_root_dir=str(root), **sizes)
    store = open_store(settings, disk=OsDisk(), clock=clock, worker=InlineWorker(), store_host=HOST)
    store.start()
    while store.stats.indexed < store.log_end:
        clock.advance(0)
    return store


def stop_here(store: MessageStore) -> None:
    stopped: list[Any] = []
    store.stop().addCallback(stopped.append)
    assert stopped == [None]


def records_of(store: MessageStore, queue: int) -> list[Record]:
    """Every record of a queue of an open store."""
    records: list[Any] = []
    first = store.min_offset(TOPIC, queue)
    while (got := now(store).get(TOPIC, queue, first + len(records), 32)).count:
        records += [record for piece in got.pieces for record in decode_records(bytes(piece))]
    return records


def looked_up(sender: Sender) -> list[tuple[int, Any]]:
    """The number and the body of each message whose key is looked up: a look-up reads each index file, and there may be
    thousands of messages. The last ones are among them, and some of all others."""
    numbered = [(number, body) for number, (body, _) in enumerate(sender.sent)]
    before, last = numbered[:-LOOKED_UP], numbered[-LOOKED_UP:]
    return before[:: len(before) // LOOKED_UP + 1] + last


def check_store(root: Path, copies: Path, sizes: dict[str, int], senders: list[Sender]) -> None:
    """Open copies of a store directory as a kill left it, made below `copies`, and check all that is promised of it."""
    opened = copies / "opened"
    shutil.copytree(root, opened)
    store = open_here(opened, sizes)
    queues = {queue: records_of(store, queue) for queue in range(QUEUES)}
    for sender in senders:
        for n, body in looked_up(sender):
            if body in sender.acked:
                found = now(store).query(TOPIC, f"{sender.label}-{n}", 2, 0, 1 << 62)
                assert [record.body for data in found for record in decode_records(data)] == [body]
    assert list(store.corrupt_ranges) == []
    stop_here(store)
    check_history(scan_log(opened / "commitlog"), queues, senders)
    check_caches(opened, copies / "rebuilt", sizes)
    shutil.rmtree(copies)


def check_remaining(root: Path, copies: Path, sizes: dict[str, int], senders: list[Sender]) -> None:
    """As `check_store`, of a store that deletes its oldest segments: the rest is whole, from some message on."""
    opened, rebuilt = copies / "opened", copies / "rebuilt"
    shutil.copytree(root, opened)
    shutil.copytree(root, rebuilt)
    for part in ("consumequeue", "index"):
        shutil.rmtree(rebuilt / part, ignore_errors=True)
    store, other = open_here(opened, sizes), open_here(rebuilt, sizes)
    log = scan_log(opened / "commitlog")
    acked = {body: place for sender in senders for body, place in sender.acked.items()}
    sent = {body for sender in senders for body, _ in sender.sent}
    first = store.log_min_offset
    remaining = {body: place for body, place in acked.items() if place[1] >= first}
    assert {record.body: (record.queue_offset, record.physical_offset) for record in log}.items() >= remaining.items()
    assert {record.body for record in log} <= sent
    for queue in range(QUEUES):
        records = records_of(store, queue)
        assert records == [record for record in log if record.queue_id == queue]
        assert records == records_of(other, queue)
        assert [record.queue_offset for record in records] == list(
            range(store.min_offset(TOPIC, queue), store.max_offset(TOPIC, queue))
        )
    for sender in senders:
        for n, body in looked_up(sender):
            if body in remaining:
                for each in (store, other):
                    found = now(each).query(TOPIC, f"{sender.label}-{n}", 2, 0, 1 << 62)
                    assert [record.body for data in found for record in decode_records(data)] == [body]
    assert list(store.corrupt_ranges) == list(other.corrupt_ranges) == []
    stop_here(store)
    stop_here(other)
    shutil.rmtree(copies)


def check_caches(root: Path, rebuilt: Path, sizes: dict[str, int]) -> None:
    """Compare consume queues and index of a stopped store to those built of its log alone."""
    shutil.copytree(root, rebuilt)
    for part in ("consumequeue", "index"):
        shutil.rmtree(rebuilt / part, ignore_errors=True)
    stop_here(open_here(rebuilt, sizes))
    assert files(rebuilt / "consumequeue") == files(root / "consumequeue")
    # Index files are named by the time they were made at.
    assert list(files(rebuilt / "index").values()) == list(files(root / "index").values())


def files(directory: Path) -> dict[str, bytes]:
    """The content of all files below a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }
