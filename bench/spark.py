"""What Spark reads of a broker of ours, what its plans and streams take, and what a task writes.

Rows are counted by the CPU time of the Python processes that read, which ask the broker, decode, and hand Arrow batches
to Spark's JVM; they are compared with pulls alone, by the same client.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench import routes
from bench.rmqload import LoadFailed
from bench.servers import Bench
from bench.table import Table, number
from mqbroker.client import Message
from mqbroker.client.blocking import Producer

#: The topics of `spark_load`, which imports PySpark.
TOPIC, MANY, TRICKLE = "bench-read", "bench-many", "bench-trickle"

#: Messages of 128 B with a key, a tag and a property.
ROWS = 1_000_000
MANY_QUEUES = 1000
#: Of what pulls alone take of a core in the same run: all 23 columns, and the body.
COLUMNS_WANTED, BODY_WANTED = 0.45, 0.8
CLOCK_WANTED = ROWS / 6
#: How many times the CPU of a read of one column, driver and JVM included.
COUNT_WANTED = 1.5
#: Memory of a process that has read all, to that of one that has read a quarter.
MEMORY_WANTED = 1.2
PLAN_S_WANTED = 1.0
#: A batch of a stream, beyond one of Spark's own source of numbers.
BATCH_S_WANTED = 0.1
IDLE_PERCENT_WANTED = {"idle": 1.0, "idle many": 2.0}
#: Of what a task writes: rows/s of its core, and how many times as much as a loop of send_batch in the same run.
WRITTEN_WANTED = {"plain": 400_000, "full": 300_000}
TIMES_LOOP_WANTED = 3.0
#: How much less that may be with guarantee=effectively-once where nothing is repeated.
ONCE_RATIO_WANTED = 0.95
WRITE_ROWS = 400_000
LIMIT_S = 1200

Figures = Mapping[str, Sequence[Mapping[str, float]]]


def measure(bench: Bench, table: Table, rounds: int, factor: float) -> None:
    """Print what reads, streams and writes take. Raises LoadFailed."""
    if importlib.util.find_spec("pyspark") is None:
        raise LoadFailed("spark needs PySpark: pip install '.[spark]'")
    with (
        routes.namesrv(bench, "ours") as server,
        bench.server("ours", namesrvAddr=f"127.0.0.1:{server.port}", brokerIP1="127.0.0.1"),
    ):
        name_server = f"127.0.0.1:{server.port}"
        _fill(name_server, max(10_000, int(ROWS * factor)))
        pulls = _rates(_run("pulls", "bench.spark_pull_load", name_server, TOPIC, str(rounds + 1)))
        # A read before those that are measured: the JVM has compiled nothing, and no worker is there.
        found = _run("Spark", "bench.spark_load", name_server, str(rounds + 1))
        written = _written(name_server, rounds, max(10_000, int(WRITE_ROWS * factor)))
    figures = by_what(found)
    _show_read(table, figures, pulls)
    _show_streams(table, figures)
    _show_written(table, written)


def by_what(lines: Sequence[dict[str, Any]]) -> Figures:
    found: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        found.setdefault(line.pop("what"), []).append(line)
    return found


def _run(what: str, module: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of JSON that a program prints. Raises LoadFailed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise LoadFailed(f"{what} failed\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _fill(name_server: str, rows: int) -> None:
    _run("the fill", "bench.spark_write_load", name_server, "1", str(rows), TOPIC)
    with Producer(name_server, "bench") as producer:
        producer.create_topic(MANY, MANY_QUEUES)
        producer.send(Message(TRICKLE, b"x"))


def _rates(lines: Sequence[Mapping[str, float]]) -> float:
    """Rows a second of a core: the median of all rounds but the first."""
    return median([line["rows"] / line["cpu"] for line in lines[1:]])


def _show_read(table: Table, found: Figures, pulls: float) -> None:
    rows = int(found["columns"][0]["rows"])
    table.head(
        f"Spark, {rows:,} rows of 128 B with a key, a tag and a property, local[2]: rows/s of a core of the worker"
    )
    table.row("pulls alone", f"{number(pulls):>9}")
    for what, name, wanted in (("columns", "23 columns", COLUMNS_WANTED), ("body", "body", BODY_WANTED)):
        rate = _rates(found[what])
        table.wanted_row(
            f"{name} to pulls", f"{number(rate / pulls, 2):>9}   {number(rate)}", rate / pulls, at_least=wanted
        )
    clock = median([line["rows"] / line["seconds"] for line in found["columns"][1:]])
    table.wanted_row("by the clock", f"{number(clock):>9}", clock, at_least=CLOCK_WANTED)
    count, one = (median([line["all"] for line in found[what][1:]]) for what in ("count", "count one"))
    cells = f"{number(count / one, 2):>9}   {number(count, 2)} and {number(one, 2)} s of CPU"
    table.wanted_row("count() to a column", cells, count / one, below=COUNT_WANTED)
    quarter, whole = found["quarter"][0]["worker_mib"], found["columns"][-1]["worker_mib"]
    cells = f"{number(whole / quarter, 2):>9}   {number(whole)} and {number(quarter)} MiB"
    table.wanted_row("memory of a worker", cells, whole / quarter, below=MEMORY_WANTED)


def _show_streams(table: Table, found: Figures) -> None:
    table.head(f"Spark, plans and streams; many: {MANY_QUEUES:,} queues")
    plan = median([line["seconds"] for line in found["plan"][1:]])
    table.wanted_row("plan of many", f"{number(plan, 2):>9} s", plan, below=PLAN_S_WANTED)
    batch, rate = found["micro-batch"][0]["seconds"], found["rate"][0]["seconds"]
    cells = f"{number(1000 * (batch - rate)):>9} ms   {number(1000 * batch)} and {number(1000 * rate)}"
    table.wanted_row("batch beyond rate's", cells, batch - rate, below=BATCH_S_WANTED)
    for what, wanted in IDLE_PERCENT_WANTED.items():
        line = found[what][0]
        cells = f"{number(line['percent'], 2):>9} % of a core, of which the JVM {number(line['jvm_percent'], 2)}"
        table.wanted_row(what, cells, line["percent"], below=wanted)


def _written(name_server: str, rounds: int, rows: int) -> dict[str, float]:
    """Rows/s of the core of a task and of a loop, by what was written. Raises LoadFailed."""
    # A write before those that are measured, as for reads.
    found = by_what(_run("the write", "bench.spark_write_load", name_server, str(rounds + 1), str(rows)))
    return {what: _rates(lines) for what, lines in found.items()}


def _show_written(table: Table, rates: dict[str, float]) -> None:
    table.head("Spark, a task writes rows of 128 B; full: with a key, a tag and a property")
    for what, wanted in WRITTEN_WANTED.items():
        sink, once, loop = (rates[f"{what} {each}"] for each in ("sink", "once", "loop"))
        table.wanted_row(f"{what} rows/s of a core", f"{number(sink):>9}", sink, at_least=wanted)
        cells = f"{number(sink / loop, 2):>9}   send_batch {number(loop)}"
        table.wanted_row(f"{what} to a loop", cells, sink / loop, at_least=TIMES_LOOP_WANTED)
        cells = f"{number(once / sink, 2):>9}   {number(once)}"
        table.wanted_row(f"{what} once to that", cells, once / sink, at_least=ONCE_RATIO_WANTED)
