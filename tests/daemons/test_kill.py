"""A broker that is killed in the middle of a stream of sends, again and again: what it acknowledged is there.

Each acknowledged message is in the log and in its queue once, where the acknowledgement said, and in the order it was
sent in. The points of killing come from a seed, printed; MQBROKER_KILL_SEED chooses another.
"""

import contextlib
import os
import signal
import socket
import threading
from collections import Counter
from random import Random

import pytest

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand, decode_frame, encode_command
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.record import BLANK_MAGIC, decode_record, decode_records
from tests.daemons.processes import DEADLINE_SECONDS, ask, receive, wait_for

pytestmark = pytest.mark.daemons

ROUNDS = 5
SENDERS = 3
QUEUES = 4
WINDOW = 8
SEGMENT_BYTES = 512 * 1024


class Sender(threading.Thread):
    """Sends over one connection, a window of messages at a time, until that is lost.

    `sent` are the bodies in order, with their queues; `acked` maps a body to (queue offset, physical offset).
    """

    def __init__(self, name, port, rng):
        super().__init__(daemon=True)
        self.label = name
        self.sent = []
        self.acked = {}
        self._connection = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)
        self._rng = rng

    def run(self):
        with self._connection, contextlib.suppress(OSError, AssertionError):
            while True:
                self._send_window()

    def _send_window(self):
        first = len(self.sent)
        frames = []
        for n in range(first, first + self._rng.randint(1, WINDOW)):
            queue = self._rng.randrange(QUEUES)
            body = b"%s-%d-" % (self.label.encode(), n) + bytes(self._rng.randrange(800))
            frames.append(encode_command(send_command(n, queue, body)))
            self.sent.append((body, queue))
        self._connection.sendall(b"".join(frames))
        for _ in frames:
            length = receive(self._connection, 4)
            answer = decode_frame(length + receive(self._connection, int.from_bytes(length, "big")))
            assert answer.code == 0, answer
            _, physical_offset = parse_offset_message_id(answer.ext_fields["msgId"])
            body, _ = self.sent[answer.opaque]
            self.acked[body] = int(answer.ext_fields["queueOffset"]), physical_offset


def send_command(opaque, queue, body):
    fields = {"a": "PG", "b": "Killed", "c": "TBW102", "d": QUEUES, "e": queue, "f": 0, "g": 1_600_000_000_000, "h": 0}
    ext = {**{name: str(value) for name, value in fields.items()}, "i": "WAIT\x01true"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, body, opaque=opaque)


def pull_all(port, queue):
    """Every record of a queue."""
    records = []
    while True:
        answer = ask(
            port, RequestCode.PULL_MESSAGE, consumerGroup="CG", topic="Killed", queueId=queue, queueOffset=len(records),
            maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip
        if answer.code != 0:
            assert answer.remark in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE"), answer
            return records
        records += decode_records(answer.body)


def scan_log(folder):
    """Every record of the commit log, in order."""
    records = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
            if not size or magic == BLANK_MAGIC:
                break
            record = decode_record(data, at)
            assert record.physical_offset == int(path.name) + at
            records.append(record)
            at += size
    return records


@pytest.fixture
def broker(daemon, tmp_path):
    def start_broker(flush):
        settings = {
            "brokerName": "broker-a",
            "storePathRootDir": tmp_path / "store",
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "maxMessageSize": 65_536,
            "flushDiskType": flush,
        }
        process = daemon("broker", *[part for key, value in settings.items() for part in ("-o", f"{key}={value}")])
        return process, process.wait_for_port()

    return start_broker


def kill_in_the_stream(broker, flush, rng, round_number):
    """Start a broker, let senders stream to it, kill it at a random point; the senders, ended."""
    process, port = broker(flush)
    point = rng.choice([rng.randint(1, 30), rng.randint(30, 300), rng.randint(300, 1500)])
    senders = [Sender(f"{round_number}-{n}", port, Random(rng.random())) for n in range(SENDERS)]
    for sender in senders:
        sender.start()
    wait_for(lambda: sum(len(sender.acked) for sender in senders) >= point, f"{point} acknowledgements")
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for sender in senders:
        sender.join(DEADLINE_SECONDS)
        assert not sender.is_alive()
    print(f"round {round_number}: killed after {point}, {sum(len(s.acked) for s in senders)} acknowledged in all")
    return senders


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_acknowledged_message_is_there_once_and_in_order(broker, tmp_path, flush):
    seed = int(os.environ.get("MQBROKER_KILL_SEED", "497"))
    print(f"seed {seed}")
    rng = Random(f"{seed} {flush}")
    senders = [sender for n in range(ROUNDS) for sender in kill_in_the_stream(broker, flush, rng, n)]
    acked = {body: place for sender in senders for body, place in sender.acked.items()}
    queue_of = {body: queue for sender in senders for body, queue in sender.sent}

    process, port = broker(flush)
    queues = {queue: pull_all(port, queue) for queue in range(QUEUES)}
    assert process.stop() == 0
    log = scan_log(tmp_path / "store" / "commitlog")

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
        assert all(body in offsets for body, _ in sender.sent[: len(sender.acked)])
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 1
