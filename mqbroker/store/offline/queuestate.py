"""What is known of one queue while it is compared with the log, and how what is wrong with it is told. Must never know
how it is compared.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from mqbroker.store.consumequeues import Removed
from mqbroker.store.offline.extfiles import ExtFiles
from mqbroker.store.offline.findings import Findings
from mqbroker.store.offline.queuefiles import QueueFiles
from mqbroker.wire.codes import is_system_topic
from mqbroker.wire.names import LMQ_PREFIX

RUNS_MAX = 20

REBUILD = "`mq store repair` builds consume queues anew from the log"
_RESTORE = "restore the log from a copy or a slave; consumers go on with the messages after"
#: kind of a run -> what it means for messages `first` to `last` of a queue.
_RUN_TEXTS = {
    "entry missing": "has no entry for messages {span}",
    "entry wrong": "its entries of messages {span} point elsewhere",
    "unit missing": "its entries of messages {span} lead to no unit of the extension",
    "unit wrong": "the units of messages {span} have another tags code or store time than the messages",
    "tags code wrong": "its entries of messages {span} have another tags code than the messages",
    "queue offset wrong": "the records of messages {span} say other queue offsets",
    "queue offset twice": "queue offsets {span} are in the log again",
    "entry ahead": "entries {span} point beyond the end of the log",
    "entry orphaned": "entries {span} point at no record of the queue",
}


class Run:
    """Neighbouring queue offsets with the same thing wrong."""

    __slots__ = ("count", "first", "kind", "last")

    def __init__(self, kind: str, offset: int) -> None:
        self.kind = kind
        self.first = self.last = offset
        self.count = 1


class QueueState:
    """`next`: the queue offset that follows, -1 before the first record. `removed`: what is noted of its removal."""

    __slots__ = (
        "ext", "files", "first_ms", "gaps", "is_extra", "next", "records", "removed", "removed_records", "runs",
        "runs_left_out", "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes, files: QueueFiles, ext: ExtFiles | None, removed: Removed | None) -> None:
        self.topic = topic
        self.files = files
        self.ext = ext
        self.removed = removed
        self.removed_records = 0
        self.next = -1
        self.records = 0
        self.first_ms = 0
        #: first offset, count, whether the queue says so itself.
        self.gaps: list[tuple[int, int, bool]] = []
        self.runs: list[Run] = []
        self.runs_left_out = 0
        self.is_extra = False

    def add(self, kind: str, offset: int) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last.kind == kind and offset == last.last + 1:
            last.last = offset
            last.count += 1
        elif len(self.runs) < RUNS_MAX:
            self.runs.append(Run(kind, offset))
        else:
            self.runs_left_out += 1

    def is_removed(self, offset: int, physical_offset: int, size: int) -> bool:
        """Whether a message was removed with its queue; one that has its entry (still) was not."""
        removed = self.removed
        if removed is None or offset >= removed.next_offset or physical_offset >= removed.until:
            return False
        entry = self.files.entry(offset)
        return entry is None or entry[:2] != (physical_offset, size)


def tell_queue(
    queue: QueueState, findings: Findings, topics: AbstractSet[str] | None, open_from_ms: int | None
) -> None:
    """Report what was found of a queue; `topics` and `open_from_ms` as in QueueCheck.finish."""
    files = queue.files
    if queue.removed_records:
        what = f"{queue.removed_records} messages of queue {files.name} were removed with it, and are in the log only"
        findings.note("queue removed", "", 0, what)
    for start, count, is_told in queue.gaps:
        path, at = files.place(start)
        what = f"queue {files.name}: messages {_span(start, start + count - 1)} are not in the log ({count})"
        lost = 0 if queue.is_extra else count
        if is_told:
            findings.note("messages lost before", path, at, what, lost)
        else:
            findings.lost("messages missing", path, at, what, _RESTORE, lost)
    if not files.is_there and queue.records:
        _tell_missing(queue, findings, topics, open_from_ms)
        return
    for run in queue.runs:
        _tell_run(queue, run, findings, open_from_ms is not None)
    if queue.runs_left_out:
        what = f"queue {files.name}: {queue.runs_left_out} more entries are wrong"
        findings.broken("entry wrong", files.directory, 0, what, REBUILD)


def _tell_run(queue: QueueState, run: Run, findings: Findings, is_open_ended: bool) -> None:
    path, at = queue.files.place(run.first)
    text = _RUN_TEXTS[run.kind].format(span=_span(run.first, run.last))
    what = f"queue {queue.files.name}: {text} ({run.count})"
    if run.kind == "entry orphaned":
        findings.lost(run.kind, path, at, what, _RESTORE, 0 if queue.is_extra else run.count)
    elif run.kind in ("entry missing", "unit missing") and is_open_ended and run.last == queue.next - 1:
        findings.note("entries behind", path, at, f"{what}; the next start builds them")
    elif run.kind == "entry ahead" and is_open_ended:
        findings.note("entries ahead", path, at, f"{what}; the next start cuts them")
    elif run.kind == "entry ahead":  # it was stopped: they were in the log
        findings.lost(run.kind, path, at, what, _RESTORE, 0 if queue.is_extra else run.count)
    else:
        findings.broken(run.kind, path, at, what, REBUILD)


def _tell_missing(
    queue: QueueState, findings: Findings, topics: AbstractSet[str] | None, open_from_ms: int | None
) -> None:
    name = queue.files.name
    topic = name.rpartition("/")[0]
    what = f"{queue.records} messages of queue {name} are in no consume queue"
    is_listed = topics is None or topic in topics or is_system_topic(topic) or topic.startswith(LMQ_PREFIX)
    if not is_listed:
        findings.note("topic deleted", "", 0, f"{what}, and their topic is not in topics.json")
    elif open_from_ms is not None and queue.first_ms >= open_from_ms:
        findings.note("entries behind", "", 0, f"{what}; the next start builds it")
    else:
        findings.broken("consume queue missing", "", 0, what, REBUILD)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
