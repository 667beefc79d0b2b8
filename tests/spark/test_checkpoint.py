"""The checkpoint of `mqbroker.spark.stream`: kills between any two writes, damage, a full disk, two runs at once.
Without Java."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.types import IntegerType, LongType, StructType

import mqbroker.spark
from mqbroker.spark import api, source
from mqbroker.spark.checkpoint import VERSION, BatchLog
from mqbroker.spark.errors import BadCheckpoint, BadOption
from mqbroker.spark.frames import drive
from mqbroker.spark.options import parse_options
from mqbroker.spark.source import StreamReader
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog

A0, A1 = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1)
SCHEMA = StructType().add("queueId", IntegerType()).add("queueOffset", LongType())
Sink = dict[int, list[tuple[int, int]]]


class Killed(BaseException):
    """The driver's end: nothing of it runs after that."""


@attrs.define
class MemoryFiles:
    """Files in memory. Each change asks `before` first, which may raise."""

    files: dict[str, bytes] = attrs.field(factory=dict)
    before: Callable[[], None] = lambda: None

    def names(self, folder: str) -> Sequence[str]:
        parts = [name.rpartition("/") for name in self.files]
        return [name for where, _, name in parts if where == folder]

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def add(self, name: str, data: bytes) -> bool:
        partial = f".{len(self.files)}.tmp"
        self.before()
        self.files[partial] = data[: len(data) // 2]
        self.before()
        del self.files[partial]
        if name in self.files:
            return False
        self.files[name] = data
        return True

    def replace(self, name: str, data: bytes) -> None:
        self.before()
        self.files[name] = data[: len(data) // 2]
        self.before()
        self.files[name] = data

    def delete(self, name: str) -> None:
        self.before()
        self.files.pop(name, None)


class Countdown:
    """Raises `error` at the call number `at`, counted from 0."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.left, self.error = at, error

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise self.error


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    log = FakeLog()
    log.add(A0, 10)
    log.add(A1, 4)
    monkeypatch.setattr(source, "_client", lambda options: log)
    # As with PySpark 3.5.
    monkeypatch.setattr(api, "TELLS_START", False)
    return log


def run(files: MemoryFiles, sink: Sink, step: Callable[[], None] = lambda: None, **options: str) -> None:
    """Process what is available. Each batch replaces its own rows in `sink`; `step` is asked before and after that."""
    given = {"nameserver": "here:1", "topic": "orders", "startingoffsets": "earliest", "maxoffsetspertrigger": "8"}
    parsed = parse_options(given | options, streaming=True)
    reader = StreamReader(parsed, SCHEMA)

    def process(partitions: Sequence[Any], batch: int) -> None:
        step()
        sink[batch] = [
            (row["queueId"], row["queueOffset"])
            for partition in partitions
            for record_batch in reader.read(partition)
            for row in record_batch.to_pylist()
        ]
        step()

    drive(reader, BatchLog.open(files, "/checkpoint"), process, refuse_sleep, available_now=True, trigger_s=1)


def refuse_sleep(seconds: float) -> None:
    raise AssertionError("a run of what is available waits for nothing")


def rows(sink: Sink) -> list[tuple[int, int]]:
    return sorted(row for batch in sink.values() for row in batch)


ALL = [(0, n) for n in range(10)] + [(1, n) for n in range(4)]


def killed_run(files: MemoryFiles, sink: Sink, at: int) -> bool:
    """A run that is killed at its step `at`; False if it ends before that."""
    steps = Countdown(at, Killed())
    files.before = steps
    try:
        run(files, sink, steps)
    except Killed:
        return True
    finally:
        files.before = lambda: None
    return False


def test_a_kill_between_any_two_steps_neither_loses_nor_repeats(messages: FakeLog) -> None:
    kills = 0
    for first in range(1000):
        one, sink_of_one = MemoryFiles(), Sink()
        if not killed_run(one, sink_of_one, first):
            break
        # Every other step: the next run begins with the other ones.
        for second in range(first % 2, 1000, 2):
            files, sink = MemoryFiles(dict(one.files)), dict(sink_of_one)
            was_killed = killed_run(files, sink, second)
            query = files.files.get("metadata")
            run(files, sink)
            assert rows(sink) == ALL, (first, second)
            assert query in (None, files.files["metadata"])
            assert not [name for name in files.files if name.endswith(".tmp")]
            if not was_killed:
                break
            kills += 1
    assert first > 20
    assert kills > 100


def test_a_first_run_that_was_killed_starts_where_it_did(messages: FakeLog) -> None:
    files, sink = MemoryFiles(), Sink()
    with pytest.raises(Killed):
        run(files, sink, Countdown(0, Killed()))
    # Where the query starts is known, although retention has deleted messages and a queue is new.
    messages.add(MessageQueue("orders", "a", 2), 3)
    assert json.loads(files.files["offsets/0"])["orders"] == {"a": {"0": 0, "1": 0}}
    run(files, sink)
    assert rows(sink) == [*ALL, (2, 0), (2, 1), (2, 2)]


def test_a_full_disk_ends_a_run_and_the_next_one_continues(messages: FakeLog) -> None:
    for at in range(1000):
        files, sink = MemoryFiles(), Sink()
        files.before = Countdown(at, OSError("No space left on device"))
        try:
            run(files, sink)
        except BadCheckpoint as error:
            assert re.fullmatch(  # noqa: PT017 - also the runs without an error are wanted
                r"checkpoint /checkpoint: (\w+/\d+ cannot be written|cannot be used): No space left on device",
                str(error),
            )
        else:
            break
        files.before = lambda: None
        run(files, sink)
        assert rows(sink) == ALL
    assert at > 15


def test_a_second_run_takes_over_and_the_first_ends(messages: FakeLog) -> None:
    files, sink, inner = MemoryFiles(), Sink(), Sink()

    def second() -> None:
        if not inner:
            run(files, inner)

    with pytest.raises(BadCheckpoint, match="commits/1 is not written, because another run has started with this"):
        run(files, sink, second)
    # The one batch that both had is the same.
    assert rows(sink | inner) == ALL
    assert sink == {1: inner[1]}
    earlier = BatchLog.open(files, "/checkpoint")
    BatchLog.open(files, "/checkpoint")
    with pytest.raises(BadCheckpoint, match="offsets/3 is not written"):
        earlier.plan({})


def test_a_plan_that_exists_is_not_replaced(messages: FakeLog) -> None:
    files = MemoryFiles()
    log = BatchLog.open(files, "/checkpoint")
    files.files["offsets/0"] = b"{}"
    with pytest.raises(BadCheckpoint, match="offsets/0 is not written"):
        log.plan({})
    assert files.files["offsets/0"] == b"{}"


def damaged(change: Callable[[dict[str, bytes]], object], *, in_batch: bool = False) -> dict[str, bytes]:
    """The files of a run of three batches, which is killed in the last one if `in_batch`, after `change`."""
    files = MemoryFiles()
    run(files, {}, maxoffsetspertrigger="5")
    if in_batch:
        del files.files["commits/3"]
    change(files.files)
    return files.files


def put(name: str, data: bytes) -> Callable[[dict[str, bytes]], object]:
    return lambda files: files.update({name: data})


def cut(name: str) -> Callable[[dict[str, bytes]], object]:
    return lambda files: files.update({name: files[name][: len(files[name]) // 2]})


def drop(*names: str) -> Callable[[dict[str, bytes]], object]:
    return lambda files: [files.pop(name) for name in names]


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cut("offsets/3"), "offsets/3 is damaged: its "),
        (put("offsets/3", b""), "offsets/3 is damaged: its 0 bytes are no JSON object; restore it from a backup"),
        (put("offsets/3", b"\x00\xff"), "offsets/3 is damaged: its 2 bytes are no JSON object"),
        (put("offsets/3", b"[1]"), "offsets/3 is damaged: its 3 bytes are no JSON object"),
        (put("offsets/3", b'{"orders":{"a":{"0":"x"}}}'), "offsets/3 holds no offsets (offset 'x' of queue 0"),
        (put("offsets/3", b'{"orders":7}'), "offsets/3 holds no offsets (topic 'orders' is not an object"),
        (put("offsets/3", b'{"#last":7}'), "offsets/3 holds no offsets ("),
        (put("offsets/3", b'v1\n{"batchWatermarkMs":0}\n{}'), "it is one of a query that Spark drives"),
        (drop("offsets/3"), "offsets/3 is missing, although batch 3 is done"),
        (cut("metadata"), "metadata is damaged: its "),
        (put("metadata", b"{}"), "metadata has no id of a query; restore it"),
        (put("metadata", b'{"id":7}'), "metadata has no id of a query; restore it"),
        (put("metadata", b'{"id":"q","version":"1"}'), "metadata has no id of a query; restore it"),
        (
            put("metadata", b'{"id":"q","version":%d}' % (VERSION + 1)),
            f"it has version {VERSION + 1}, of a later mqbroker, and this one knows {VERSION}; install that",
        ),
        (drop("metadata"), "metadata is missing, with the id by which rows that were written are recognised"),
        (put("commits/9", b"{}"), "offsets/9 is missing, although batch 9 is done"),
        (put("offsets/9", b"{}"), "commits/8 is missing, although batch 9 was planned"),
    ],
)
def test_damage_is_one_clear_error(
    messages: FakeLog, change: Callable[[dict[str, bytes]], object], said: str, *, in_batch: bool
) -> None:
    if in_batch and "batch 3 is done" in said:
        pytest.skip("without its commit the batch is planned again")
    files = damaged(change, in_batch=in_batch)
    before, sink = dict(files), Sink()
    with pytest.raises(BadCheckpoint, match="^" + re.escape(f"checkpoint /checkpoint: {said}")) as caught:
        run(MemoryFiles(files), sink)
    assert len(str(caught.value)) < 200
    # Neither was a message processed, nor is the checkpoint taken from the run that has it.
    assert (sink, files) == ({}, before)


def test_an_offset_that_a_repeated_batch_needs_is_missing(messages: FakeLog) -> None:
    with pytest.raises(BadCheckpoint, match="offsets/2 is missing; restore it"):
        run(MemoryFiles(damaged(drop("offsets/2"), in_batch=True)), {})


@pytest.mark.parametrize(
    "change",
    [
        # A commit is its name.
        put("commits/3", b""),
        put("commits/3", b"\x00"),
        drop("offsets/2", "commits/2", "offsets/0", "commits/0"),
        put(".1234.tmp", b'{"or'),
        put("driver", b"\xff"),
        drop("driver"),
        put("offsets/_SUCCESS", b""),
        put("offsets/9.bak", b""),
        put("offsets/²", b""),
        # What the version before this one wrote.
        put("metadata", b'{"id":"q"}'),
        put("metadata", b'{"id":"q","version":1,"more":[]}'),
        put("offsets/3", b'{"#more":{},"orders":{"a":{"0":10,"1":4}}}'),
    ],
)
def test_what_does_no_harm_does_not_end_a_query(
    messages: FakeLog, change: Callable[[dict[str, bytes]], object]
) -> None:
    files, sink = MemoryFiles(damaged(change)), Sink()
    messages.add(A1, 2)
    run(files, sink)
    assert sink == {4: [(1, 4), (1, 5)]}


def test_a_session_of_spark_connect_is_refused() -> None:
    class Session:
        @property
        def sparkContext(self) -> None:  # noqa: N802 - Spark's
            raise AttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] Attribute `sparkContext` is not supported")

    class Frame:
        sparkSession = Session()  # noqa: N815 - Spark's

    given: dict[str, Any] = {"nameServer": "here:1", "topic": "orders"}
    with pytest.raises(BadOption, match=r"option checkpoint: .* keeps it through the JVM of"):
        mqbroker.spark.stream(Session(), lambda *_: None, checkpoint="/checkpoint", **given)
    with pytest.raises(BadOption, match="option writeId: is required"):
        mqbroker.spark.foreach_batch(**given)(Frame(), 0)


def test_old_entries_are_deleted(messages: FakeLog) -> None:
    files, sink = MemoryFiles(), Sink()
    messages.add(A0, 110)
    run(files, sink, maxoffsetspertrigger="1")
    assert len(sink) > 110
    assert rows(sink) == [(0, n) for n in range(120)] + [(1, n) for n in range(4)]
    for kind in ("offsets", "commits"):
        assert len(files.names(kind)) == 100
