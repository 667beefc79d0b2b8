"""A small store with one of everything in it, written by a running broker of either kind."""

from __future__ import annotations

import shutil
import time
from enum import Enum
from pathlib import Path
from typing import Any

from mqbroker.wire.command import RemotingCommand
from tests.interop.fleet import Kind
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, send, send_batch

SEGMENT_BYTES = 65536
QUEUE_FILE_MESSAGES = 1000
SETTINGS = {
    "maxIndexNum": "700",
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": str(20 * QUEUE_FILE_MESSAGES),
    # Some messages of "large" fit, not 32 of them.
    "maxTransferBytesOnMessageInMemory": "30000",
    "maxTransferBytesOnMessageInDisk": "12000",
    # A Java broker refuses what waits for 200 ms on a busy machine.
}
FEATURES = {
    "enableConsumeQueueExt": "true",
    # 204 units of 20 bytes, and the 4 that stay free.
    "mappedFileSizeConsumeQueueExt": "4084",
    "enableMultiDispatch": "true",
    "enableLmq": "true",
}


class Sample(Enum):
    """The sample stores there are. The first one's writer stops slowly."""

    JAVA_FULL = "java-full"
    OURS = "ours"
    OURS_FULL = "ours-full"

    @property
    def writer(self) -> Kind:
        return "java" if self is Sample.JAVA_FULL else "ours"

    @property
    def is_full(self) -> bool:
        return self is not Sample.OURS

    @property
    def settings(self) -> dict[str, Any]:
        return {**SETTINGS, **FEATURES} if self.is_full else SETTINGS


#: Segments to take away, which hold all of "plain" 1 and the beginning of "plain" 0.
OLDEST = 3

TOPICS = {"plain": 4, "tags": 2, "large": 1, "batch": 1, "times": 1, "keys": 2, "delayed": 1, "empty": 2, "multi": 2}
#: Messages of each queue, for those that have any.
COUNTS = {
    ("plain", 0): 210,
    ("plain", 1): 40,
    ("plain", 2): 20,
    ("tags", 0): 90,
    ("tags", 1): 1104,
    ("large", 0): 12,
    ("batch", 0): 40,
    ("times", 0): 40,
    ("keys", 0): 120,
    ("keys", 1): 5,
    ("multi", 0): 12,
    ("multi", 1): 6,
    ("SCHEDULE_TOPIC_XXXX", 17): 5,
    # Where the settings ask for them.
    ("%LMQ%one", 0): 18,
    ("%LMQ%two", 0): 6,
}


def unique_key(topic: str, queue_id: int, index: int) -> str:
    return f"{topic}-{queue_id}-{index}".encode().hex().upper().zfill(32)


def message(topic: str, queue_id: int, index: int, size: int = 100, **properties: str) -> RemotingCommand:
    body = f"{topic} {queue_id} {index} ".encode().ljust(size, b"x")
    return send(topic, queue_id, body, {"UNIQ_KEY": unique_key(topic, queue_id, index), "WAIT": "true", **properties})


def fill(line: Line, sample: Sample) -> None:
    """Write all messages; returns when they can be read."""
    line.ask_well([create_topic(topic, queues) for topic, queues in TOPICS.items()])
    # One alone, so that the log begins with a known one: of those sent at once any may come first.
    line.ask_well([message("plain", 0, 0, 1000)])
    line.ask_well([message("plain", 1, i, 1000) for i in range(40)])
    line.ask_well([message("plain", 0, i, 1000) for i in range(1, 210)])
    line.ask_well([message("plain", 2, i) for i in range(20)])
    # Tags "A", "B" and none in turns; then so many of one tag that a get does not look at all of them.
    tags: list[dict[str, Any]] = [{"TAGS": "A"}, {"TAGS": "B"}, {}]
    for i in range(90):
        line.ask_well([message("tags", 0, i, **tags[i % 3])])
    line.ask_well([message("tags", 1, i, 1, TAGS="A") for i in range(1100)])
    line.ask_well([message("tags", 1, i, TAGS="B") for i in range(1100, 1104)])
    line.ask_well([message("large", 0, i, 9000) for i in range(12)])
    for first in range(0, 40, 8):
        keys = [unique_key("batch", 0, i) for i in range(first, first + 8)]
        line.ask_well([send_batch("batch", 0, [(b"batch", {"UNIQ_KEY": key, "TAGS": "A"}) for key in keys])])
    _write_times(line)
    # More messages share a key than a query gives.
    line.ask_well([message("keys", 0, i, KEYS=f"one-{i} shared") for i in range(120)])
    line.ask_well([message("keys", 1, i, KEYS=f"one-{i} some") for i in range(5)])
    for queue, count, topics in ((0, 12, "%LMQ%one"), (1, 6, "%LMQ%one,%LMQ%two")):
        line.ask_well([message("multi", queue, i, TAGS="A", INNER_MULTI_DISPATCH=topics) for i in range(count)])
    line.ask_well([message("delayed", 0, i, DELAY="18", TAGS="A") for i in range(5)])
    wait_all(line, sample)


def wait_all(line: Line, sample: Sample) -> None:
    """Return when all can be read."""
    for (topic, queue_id), count in COUNTS.items():
        if topic.startswith("%LMQ%") and not sample.is_full:
            continue
        eventually(f"all of {topic} {queue_id}", lambda t=topic, q=queue_id, c=count: line.max_offset(t, q) == c)  # type: ignore[misc]


def _write_times(line: Line) -> None:
    """Messages in groups of 1 to 7 with at least 3 ms between the groups; those of a group share a ms as they can."""
    at = 0
    for count in (1, 2, 7, 1, 5, 7, 7, 1, 1, 7, 1):
        start = time.monotonic()
        while time.monotonic() < start + 0.003:
            pass
        line.ask_well(
            [send_batch("times", 0, [(b"time", {"UNIQ_KEY": unique_key("times", 0, at + i)}) for i in range(count)])]
        )
        at += count


def without_oldest(store: Path, copy: Path) -> Path:
    """Copy a stopped store without its oldest segments."""
    shutil.copytree(store, copy)
    for segment in sorted((copy / "commitlog").iterdir())[:OLDEST]:
        segment.unlink()
    return copy
