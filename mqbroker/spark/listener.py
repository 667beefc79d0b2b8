"""How far behind streams are: a listener of Spark's progress, which logs it and serves it to Prometheus."""

from __future__ import annotations

import ast
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

from mqbroker.spark.metrics_server import MetricsServer
from mqbroker.spark.offsets import describe
from mqbroker.spark.progress import StreamOffset
from mqbroker.wire.bodies import MessageQueue

log = logging.getLogger(__name__)


@attrs.frozen
class QueueLag:
    """The number of messages of a queue that are not read yet; the age of the last one that was, in seconds, while
    others wait; how many were skipped because they were lost, and in how many ranges since the listener was added. An
    unknown age is None."""

    messages: int
    seconds: float | None
    skipped: int
    skipped_ranges: int = 0


@attrs.frozen
class QueryLag:
    """The last progress of a query: `name` is its name, or its id. `bytes_per_second` is about that of the stored
    messages; `retries` is the number of tasks that failed and were run again since the listener was added."""

    name: str
    rows_per_second: float
    bytes_per_second: float
    batch_seconds: float
    retries: int
    queues: Mapping[MessageQueue, QueueLag]


@attrs.define
class _Seen:
    """What is counted of a query: the jobs that are over, their failed tasks, and skipped ranges by queue."""

    jobs: set[int] = attrs.field(factory=set)
    retries: int = 0
    ranges: Counter[MessageQueue] = attrs.field(factory=Counter)


class ProgressListener(StreamingQueryListener):
    """Logs the lag of each query that reads this format and, with a `port`, serves it to Prometheus.

    Add it by `spark.streams.addListener`. Raises OSError if the port cannot be used; 0 takes a free port, which the
    attribute `port` then has. `now` returns seconds since the epoch.
    """

    def __init__(self, port: int | None = None, host: str = "127.0.0.1", now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lags: dict[str, QueryLag] = {}
        self._counts: dict[str, _Seen] = {}
        self._gate = threading.Lock()
        self._server = None if port is None else MetricsServer((host, port), self.metrics_text)
        self.port = None if self._server is None else self._server.port

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()

    def lags(self) -> list[QueryLag]:
        """The last progress of each query that runs."""
        with self._gate:
            return list(self._lags.values())

    def onQueryStarted(self, event: Any) -> None:
        """Does nothing."""

    def onQueryIdle(self, event: Any) -> None:
        """Does nothing: without a batch no message waits."""

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        seen = self._counts.setdefault(str(progress.id), _Seen())
        name = progress.name or str(progress.id)
        queues: dict[MessageQueue, QueueLag] = {}
        size = 0
        for source in progress.sources:
            found = self._queues(source, name, seen.ranges)
            size += found[0]
            queues |= found[1]
        if not queues:
            return
        seconds = progress.batchDuration / 1000
        seen.retries += self._failed_tasks(str(progress.runId), seen.jobs)
        lag = QueryLag(
            name, progress.processedRowsPerSecond, size / seconds if seconds else 0.0, seconds, seen.retries, queues
        )
        with self._gate:
            self._lags[str(progress.id)] = lag
        farthest = max(queues, key=lambda queue: queues[queue].messages)
        log.info(
            "query %s: %d messages behind, %d of them in %s, where the last one that was read is %s old; "
            "%.1f rows/s, %.0f bytes/s, %.3f s a batch, %d tasks run again, %d messages skipped",
            lag.name,
            sum(each.messages for each in queues.values()),
            queues[farthest].messages,
            describe(farthest),
            "? s" if (age := queues[farthest].seconds) is None else f"{age:.1f} s",
            lag.rows_per_second,
            lag.bytes_per_second,
            lag.batch_seconds,
            lag.retries,
            sum(each.skipped for each in queues.values()),
        )

    def onQueryTerminated(self, event: Any) -> None:
        with self._gate:
            self._lags.pop(str(event.id), None)
        self._counts.pop(str(event.id), None)

    def _queues(
        self, source: Any, name: str, ranges: Counter[MessageQueue]
    ) -> tuple[int, dict[MessageQueue, QueueLag]]:
        """The bytes of the batch and the queues of a source of this format; other sources have none. Logs what the
        batch skips, and counts it in `ranges`."""
        try:
            start = StreamOffset.from_json(_offset(source.startOffset) or {})
            given = _offset(source.endOffset)
            end = StreamOffset.from_json(given)
            latest = StreamOffset.from_json(_offset(source.latestOffset) or given).positions
        except (TypeError, ValueError, AttributeError, SyntaxError):
            return 0, {}
        for queue, at in sorted(end.resumed.items()) if end != start else ():
            ranges[queue] += 1
            before = start.positions.get(queue)
            log.warning("query %s: skipped in %s: from %s to %d", name, describe(queue), before, at)
        found = {}
        for queue, offset in end.positions.items():
            waiting = max(latest.get(queue, offset) - offset, end.left.get(queue, 0))
            mark = end.last.get(queue)
            seconds = None if mark is None else max(0.0, self._now() - mark.store_ms / 1000)
            skipped = end.skipped.get(queue, 0)
            found[queue] = QueueLag(waiting, seconds if waiting else 0.0, skipped, ranges[queue])
        return max(0, end.size - start.size), found

    def _failed_tasks(self, run: str, over: set[int]) -> int:
        """Of the jobs of a run that ended since they were last counted. Sessions of Spark Connect do not tell."""
        try:
            tracker = self.spark.sparkContext.statusTracker()
        except AttributeError:
            return 0
        jobs = set(tracker.getJobIdsForGroup(run))
        over &= jobs  # Spark forgets old ones
        failed = 0
        for job in jobs - over:
            info = tracker.getJobInfo(job)
            if info is not None and info.status != "RUNNING":
                over.add(job)
                stages = [stage for number in info.stageIds if (stage := tracker.getStageInfo(number)) is not None]
                failed += sum(stage.numFailedTasks for stage in stages)
        return failed

    def metrics_text(self) -> str:
        """What Prometheus reads."""
        lines: list[str] = []
        lags = self.lags()

        def add(name: str, kind: str, values: list[tuple[dict[str, Any], float | None]]) -> None:
            lines.append(f"# TYPE mqbroker_spark_{name} {kind}")
            for labels, value in values:
                if value is not None:
                    text = ",".join(f'{label}="{_escaped(str(each))}"' for label, each in labels.items())
                    lines.append(f"mqbroker_spark_{name}{{{text}}} {value:g}")

        queues = [(_labels(lag, queue), each) for lag in lags for queue, each in sorted(lag.queues.items())]
        add("lag_messages", "gauge", [(labels, each.messages) for labels, each in queues])
        add("lag_seconds", "gauge", [(labels, each.seconds) for labels, each in queues])
        add("skipped_messages", "counter", [(labels, each.skipped) for labels, each in queues])
        add("skipped_ranges", "counter", [(labels, each.skipped_ranges) for labels, each in queues])
        add("task_retries", "counter", [({"query": lag.name}, lag.retries) for lag in lags])
        add("bytes_per_second", "gauge", [({"query": lag.name}, lag.bytes_per_second) for lag in lags])
        add("rows_per_second", "gauge", [({"query": lag.name}, lag.rows_per_second) for lag in lags])
        add("batch_seconds", "gauge", [({"query": lag.name}, lag.batch_seconds) for lag in lags])
        return "\n".join(lines) + "\n"


def _offset(text: str | None) -> Any:
    """An offset of a progress; None without one, for which PySpark has "None". Spark Connect before 4.2 has Python's
    repr in place of JSON."""
    if text is None or text in ("", "None"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _labels(lag: QueryLag, queue: MessageQueue) -> dict[str, Any]:
    return {"query": lag.name, "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
