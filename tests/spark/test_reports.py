"""What a stream tells brokers of its progress: what is committed, at each trigger. Without Java."""

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.spark import source
from mqbroker.spark.frames import drive
from mqbroker.spark.offsets import Positions
from mqbroker.spark.progress import StreamOffset
from mqbroker.spark.source import RocketMQDataSource, StreamReader
from tests.spark.fake_log import FakeLog
from tests.spark.test_checkpoint import BatchLog, MemoryFiles, refuse_sleep
from tests.spark.test_stream_reader import A0, A1, SCHEMA, Engine

COMMITS = {"consumergroup": "readers", "commitoffsetstobroker": "true"}


class Reporting(FakeLog):
    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Positions] = []

    def report(self, positions: Positions) -> None:
        self.reports.append(dict(positions))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Reporting:
    log = Reporting()
    log.add(A0, 10)
    log.add(A1, 4)
    monkeypatch.setattr(source, "_client", lambda options: log)
    return log


def stream(**options: str) -> StreamReader:
    given = {"nameserver": "here:1", "topic": "orders", "startingoffsets": "earliest", "maxoffsetspertrigger": "4"}
    reader = RocketMQDataSource(given | options).streamReader(SCHEMA)
    assert isinstance(reader, StreamReader)
    return reader


def positions(offset: Any) -> Positions:
    return StreamOffset.from_json(offset).positions


def test_brokers_are_told_at_each_trigger_what_the_one_before_has_read(log: Reporting) -> None:
    engine, reader = Engine(), stream(**COMMITS)
    read: Positions = {A0: 0, A1: 0}
    for _ in range(6):
        engine.run(reader)
        # What a batch is about to read is not committed yet: a kill repeats it.
        assert log.reports[-1] == read
        for queue in read:
            seen = [at for rows in engine.sink.values() for number, at in rows if number == str(queue.queue_id)]
            read[queue] = max(seen, default=-1) + 1
    assert log.reports[-1] == read == {A0: 10, A1: 4}
    reader.commit({"orders": {"a": {"0": 12, "1": 4}}})
    assert log.reports[-1] == {A0: 12, A1: 4}
    before = len(log.reports)
    Engine().drain(stream())
    assert len(log.reports) == before


def test_brokers_are_told_without_data_sources_too(log: Reporting) -> None:
    batches = BatchLog.open(MemoryFiles(), "/checkpoint")
    drive(stream(**COMMITS), batches, lambda *_: None, refuse_sleep, available_now=True, trigger_s=1)
    assert log.reports[-1] == {A0: 10, A1: 4}
    assert positions(batches.offset(batches.batch)) == log.reports[-1]
