"""A broker that deletes its oldest segments while producers send to it and consumers read from it."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.record import decode_records
from tests.daemons.history import QUEUES, TOPIC, Sender, pull, scan_log
from tests.daemons.processes import DEADLINE_SECONDS, Process, ask, wait_for

pytestmark = pytest.mark.daemons

SEGMENT_BYTES = 128 * 1024
ROLLS = 12
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "maxMessageSize": 65_536,
    "fileReservedTime": 0,
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": 100,
    "deleteCommitLogFilesInterval": 1,
    "deleteConsumeQueueFilesInterval": 1,
    "flushIntervalConsumeQueue": 50,
    # What waits for a busy disk waits, and is not refused.
    "brokerFastFailureEnable": "false",
}


class Puller(threading.Thread):
    """Pulls one queue from its beginning, and goes where the broker says, until told to end and at the queue's end."""

    def __init__(self, port: int, queue: int) -> None:
        super().__init__(daemon=True)
        self.records: list[Any] = []
        self.removed = 0
        self.is_ended = False
        self._port = port
        self._queue = queue

    def run(self) -> None:
        offset = 0
        while True:
            is_ended = self.is_ended
            answer = pull(self._port, self._queue, offset)
            following = int(answer.ext_fields["nextBeginOffset"])
            if answer.code == 0:
                self.records += decode_records(answer.body)
            elif following > offset:
                assert following <= int(answer.ext_fields["maxOffset"])
                self.removed += 1
            elif is_ended:
                return
            offset = following


def test_producers_and_consumers_do_not_notice(daemon: Callable[..., Process], tmp_path: Path) -> None:
    settings = {**SETTINGS, "storePathRootDir": tmp_path / "store"}
    broker = daemon("broker", *[part for key, value in settings.items() for part in ("-o", f"{key}={value}")])
    port = broker.wait_for_port()
    log = tmp_path / "store" / "commitlog"
    senders = [Sender(str(n), port, Random(n)) for n in range(2)]
    senders[0].start()
    wait_for(lambda: len(senders[0].acked) > 100, "messages")
    pullers = [Puller(port, queue) for queue in range(QUEUES)]
    for thread in (senders[1], *pullers):
        thread.start()

    def first_segment() -> int:
        return min((int(path.name) for path in log.iterdir()), default=0) // SEGMENT_BYTES

    wait_for(lambda: first_segment() >= ROLLS, "segments that are gone")
    for ending in (senders, pullers):
        for thread in ending:
            thread.is_ended = True
        for thread in ending:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()
    acked = {body: place for sender in senders for body, place in sender.acked.items()}
    assert [sender.refused for sender in senders] == [{}, {}]
    for queue, puller in enumerate(pullers):
        offsets = [record.queue_offset for record in puller.records]
        assert offsets == sorted(set(offsets))
        for record in puller.records:
            assert acked[record.body] == (record.queue_offset, record.physical_offset)
        # What was skipped had been deleted.
        assert len([1 for a, b in itertools.pairwise(offsets) if b != a + 1]) <= puller.removed
        answer = ask(port, RequestCode.GET_MIN_OFFSET, topic=TOPIC, queueId=queue)
        assert int(answer.ext_fields["offset"]) > 0
    assert broker.stop() == 0
    first = first_segment() * SEGMENT_BYTES
    # Beside them are the broker's own, which tell of offsets that it moved.
    kept = {
        record.body: (record.queue_offset, record.physical_offset) for record in scan_log(log) if record.topic == TOPIC
    }
    assert kept == {body: place for body, place in acked.items() if place[1] >= first}
    entries = [int(path.name) // 20 for path in (tmp_path / "store" / "consumequeue" / TOPIC / "0").iterdir()]
    assert min(entries) > 0
    assert "Traceback" not in broker.err + broker.out
