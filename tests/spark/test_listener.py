"""The listener of progress: what it logs, and what Prometheus reads."""

import json
import logging
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mqbroker.spark.listener import ProgressListener

END = {"orders": {"a": {"0": 90, "1": 7}}, "#last": {"orders": {"a": {"0": [5000, 99_000]}}}}
SKIPPED = {"#skipped": {"orders": {"a": {"1": 3}}}}
LATEST = {"orders": {"a": {"0": 100, "1": 7}}}


def progress(
    *sources: tuple[str | None, str | None], name: str | None = "late", start: object = None, batch_ms: int = 250
) -> Any:
    begin = None if start is None else json.dumps(start)
    found = [SimpleNamespace(startOffset=begin, endOffset=end, latestOffset=latest) for end, latest in sources]
    return SimpleNamespace(
        progress=SimpleNamespace(
            id="7", runId="8", name=name, sources=found, processedRowsPerSecond=12.5, batchDuration=batch_ms
        )
    )


@pytest.fixture
def listener() -> ProgressListener:
    return ProgressListener(now=lambda: 103.5)


def test_a_line_says_how_far_a_query_is_behind(listener: ProgressListener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mqbroker.spark.listener"):
        listener.onQueryProgress(progress((json.dumps(END | SKIPPED), json.dumps(LATEST))))
    assert caplog.messages == [
        "query late: 10 messages behind, 10 of them in queue 0 of topic orders on broker a, where the last one that "
        "was read is 4.5 s old; 12.5 rows/s, 0 bytes/s, 0.250 s a batch, 0 tasks run again, 3 messages skipped"
    ]


def test_what_a_limit_leaves_is_known_where_spark_asks_for_no_ends(listener: ProgressListener) -> None:
    end = json.dumps(END | {"#left": {"orders": {"a": {"0": 4}}}})
    # Before 4.2 the latest offset is the end of the batch.
    listener.onQueryProgress(progress((end, end)))
    (lag,) = listener.lags()
    assert {queue.queue_id: each.messages for queue, each in lag.queues.items()} == {0: 4, 1: 0}
    assert [each.seconds for each in lag.queues.values()] == [4.5, 0.0]
    listener.onQueryProgress(progress((end, json.dumps(LATEST))))
    (lag,) = listener.lags()
    assert {queue.queue_id: each.messages for queue, each in lag.queues.items()} == {0: 10, 1: 0}


def test_a_broker_whose_clock_is_ahead_has_messages_of_no_age() -> None:
    listener = ProgressListener(now=lambda: 98.5)
    listener.onQueryProgress(progress((json.dumps(END), json.dumps(LATEST))))
    assert [each.seconds for each in listener.lags()[0].queues.values()] == [0.0, 0.0]


def test_a_name_of_several_lines_is_one_line_for_prometheus(listener: ProgressListener) -> None:
    listener.onQueryProgress(progress((json.dumps(END), None), name='a\nb\\"'))
    lines = listener.metrics_text().splitlines()
    assert 'mqbroker_spark_task_retries{query="a\\nb\\\\\\""} 0' in lines
    assert all(line.startswith(("# TYPE ", "mqbroker_spark_")) for line in lines)


def test_prometheus_reads_lag_rates_and_losses_by_queue() -> None:
    listener = ProgressListener(port=0, now=lambda: 103.5)
    try:
        listener.onQueryProgress(progress((json.dumps(END | SKIPPED), json.dumps(LATEST)), name='a "b"'))
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        listener.close()
    assert text == listener.metrics_text()
    queue = 'query="a \\\\"b\\\\"",topic="orders",broker="a",queue='.replace("\\\\", "\\")
    assert f'mqbroker_spark_lag_messages{{{queue}"0"}} 10\n' in text
    assert f'mqbroker_spark_lag_seconds{{{queue}"0"}} 4.5\n' in text
    assert f'mqbroker_spark_lag_seconds{{{queue}"1"}} 0\n' in text
    assert f'mqbroker_spark_skipped_messages{{{queue}"1"}} 3\n' in text
    assert "# TYPE mqbroker_spark_rows_per_second gauge\n" in text


@pytest.mark.parametrize("write", [json.dumps, repr])
@pytest.mark.parametrize("nothing", [None, "None"])
def test_offsets_are_read_as_each_pyspark_writes_them(
    write: Any, nothing: str | None, listener: ProgressListener
) -> None:
    for latest, behind in ((write(LATEST), 10), (nothing, 0)):
        event = progress((write(END), latest))
        event.progress.sources[0].startOffset = nothing
        listener.onQueryProgress(event)
        (lag,) = listener.lags()
        assert sum(queue.messages for queue in lag.queues.values()) == behind
        assert len(lag.queues) == 2


@pytest.mark.parametrize("offset", [None, "5", "[1]", "not JSON", '{"a":{"b":3}}', '{"logOffset":1}'])
def test_sources_of_other_formats_are_ignored(listener: ProgressListener, offset: str | None) -> None:
    listener.onQueryProgress(progress((offset, offset)))
    assert listener.lags() == []


def test_a_query_that_has_ended_is_forgotten(listener: ProgressListener) -> None:
    listener.onQueryProgress(progress((json.dumps(END), None)))
    (lag,) = listener.lags()
    assert {queue.queue_id: each.messages for queue, each in lag.queues.items()} == {0: 0, 1: 0}
    listener.onQueryTerminated(SimpleNamespace(id="7"))
    assert listener.lags() == []
    assert listener._counts == {}


def test_bytes_are_those_between_the_offsets_of_a_batch(listener: ProgressListener) -> None:
    end = json.dumps(END | {"#bytes": 5000})
    for start, batch_ms, wanted in ((None, 250, 20_000), ({"#bytes": 4000}, 500, 2000), ({"#bytes": 9000}, 0, 0)):
        listener.onQueryProgress(progress((end, None), start=start, batch_ms=batch_ms))
        assert listener.lags()[0].bytes_per_second == wanted
    assert 'mqbroker_spark_bytes_per_second{query="late"} 0\n' in listener.metrics_text()


def test_each_skipped_range_is_logged_and_counted_once(
    listener: ProgressListener, caplog: pytest.LogCaptureFixture
) -> None:
    start = {"orders": {"a": {"0": 80, "1": 4}}}
    end = END | SKIPPED | {"#from": {"orders": {"a": {"1": 7}}}}
    listener.onQueryProgress(progress((json.dumps(end), None), start=start))
    assert caplog.messages == ["query late: skipped in queue 1 of topic orders on broker a: from 4 to 7"]
    # A batch without messages ends where it began; the next one begins there.
    listener.onQueryProgress(progress((json.dumps(end), None), start=end))
    listener.onQueryProgress(progress((json.dumps(END | SKIPPED), None), start=end))
    assert len(caplog.messages) == 1
    assert 'skipped_ranges{query="late",topic="orders",broker="a",queue="1"} 1\n' in listener.metrics_text()


def test_tasks_that_are_run_again_are_counted_once(listener: ProgressListener) -> None:
    jobs = {1: ("SUCCEEDED", [10, 11]), 2: ("RUNNING", [12])}
    failed = {10: 2, 11: None, 12: 1}
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda run: list(jobs) if run == "8" else [],
        getJobInfo=lambda job: SimpleNamespace(status=jobs[job][0], stageIds=jobs[job][1]),
        getStageInfo=lambda stage: None if failed[stage] is None else SimpleNamespace(numFailedTasks=failed[stage]),
    )
    listener.spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    for wanted in (2, 2, 3):
        if wanted == 3:
            # The first one is forgotten by Spark.
            jobs.clear()
            jobs[2] = ("SUCCEEDED", [12])
        listener.onQueryProgress(progress((json.dumps(END), None)))
        assert listener.lags()[0].retries == wanted
    assert 'task_retries{query="late"} 3\n' in listener.metrics_text()
    assert listener._counts["7"].jobs == {2}
