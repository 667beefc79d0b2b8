"""How far behind streams are: a listener of Spark's progress, which logs it and serves it to Prometheus."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

from mqbroker.spark.offsets import describe
from mqbroker.spark.progress import StreamOffset
from mqbroker.wire.bodies import MessageQueue

log = logging.getLogger(__name__)


@attrs.frozen
class QueueLag:
    """The number of messages of a queue that are not read yet; the age of the last one that was, in seconds, while
    others wait; and how many were skipped because they were lost. An unknown age is None."""

    messages: int
    seconds: float | None
    skipped: int


@attrs.frozen
class QueryLag:
    """The last progress of a query: `name` is its name, or its id."""

    name: str
    rows_per_second: float
    batch_seconds: float
    queues: Mapping[MessageQueue, QueueLag]


class ProgressListener(StreamingQueryListener):
    """Logs the lag of each query that reads this format, and with a `port` serves it as text for Prometheus.

    Add it by `spark.streams.addListener`. Raises OSError if the port cannot be used; port 0 takes a free one, which
    `port` then says. `now` returns seconds since the epoch.
    """

    def __init__(self, port: int | None = None, host: str = "127.0.0.1", now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lags: dict[str, QueryLag] = {}
        self._gate = threading.Lock()
        self._server = None if port is None else ThreadingHTTPServer((host, port), _handler(self))
        self.port = None if self._server is None else self._server.server_port
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="mqbroker-progress", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

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
        queues: dict[MessageQueue, QueueLag] = {}
        for source in progress.sources:
            queues |= self._queues(source)
        if not queues:
            return
        lag = QueryLag(
            progress.name or str(progress.id), progress.processedRowsPerSecond, progress.batchDuration / 1000, queues
        )
        with self._gate:
            self._lags[str(progress.id)] = lag
        farthest = max(queues, key=lambda queue: queues[queue].messages)
        log.info(
            "query %s: %d messages behind, %d of them in %s, where the last one that was read is %s old; "
            "%.1f rows/s, %.3f s a batch, %d messages skipped",
            lag.name,
            sum(each.messages for each in queues.values()),
            queues[farthest].messages,
            describe(farthest),
            "? s" if (age := queues[farthest].seconds) is None else f"{age:.1f} s",
            lag.rows_per_second,
            lag.batch_seconds,
            sum(each.skipped for each in queues.values()),
        )

    def onQueryTerminated(self, event: Any) -> None:
        with self._gate:
            self._lags.pop(str(event.id), None)

    def _queues(self, source: Any) -> dict[MessageQueue, QueueLag]:
        """Those of a source of this format; other sources have none."""
        try:
            end = StreamOffset.from_json(json.loads(source.endOffset))
            latest = StreamOffset.from_json(json.loads(source.latestOffset or source.endOffset)).positions
        except (TypeError, ValueError, AttributeError):
            return {}
        found = {}
        for queue, offset in end.positions.items():
            waiting = max(0, latest.get(queue, offset) - offset)
            mark = end.last.get(queue)
            seconds = None if mark is None else max(0.0, self._now() - mark.store_ms / 1000)
            found[queue] = QueueLag(waiting, seconds if waiting else 0.0, end.skipped.get(queue, 0))
        return found

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
        add("rows_per_second", "gauge", [({"query": lag.name}, lag.rows_per_second) for lag in lags])
        add("batch_seconds", "gauge", [({"query": lag.name}, lag.batch_seconds) for lag in lags])
        return "\n".join(lines) + "\n"


def _labels(lag: QueryLag, queue: MessageQueue) -> dict[str, Any]:
    return {"query": lag.name, "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _handler(listener: ProgressListener) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            body = listener.metrics_text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Handler
