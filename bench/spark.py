"""What Spark reads of a broker of ours, all 23 columns, what a stream takes that has nothing to read, and what a task
writes.

Rows are counted by the CPU time of the Python processes that read, which ask the broker, decode, and hand Arrow batches
to Spark's JVM.
"""

import importlib.util
import json
import subprocess
import sys
from statistics import median

from bench import routes
from bench.rmqload import LoadFailed, Shape
from bench.servers import Bench
from bench.spark_load import TOPIC
from bench.table import Table, number

FILL = Shape("fill 16x4", "send", 16, 4, 128, 1_000_000)
ROWS_WANTED = 500_000
IDLE_PERCENT_WANTED = 1.0
#: Of what a task writes: rows/s of its core, and how many times as much as a loop of send_batch in the same run.
WRITTEN_WANTED = {"plain": 400_000, "full": 300_000}
TIMES_LOOP_WANTED = 3.0
#: How much less that may be with guarantee=effectively-once where nothing is repeated.
ONCE_RATIO_WANTED = 0.95
WRITE_ROWS = 400_000
LIMIT_S = 600


def measure(bench: Bench, table: Table, rounds: int, factor: float) -> None:
    """Print rows a second of a core, and the idle stream. Raises LoadFailed."""
    if importlib.util.find_spec("pyspark") is None:
        raise LoadFailed("spark needs PySpark: pip install '.[spark]'")
    with (
        routes.namesrv(bench, "ours") as name_server,
        bench.server("ours", namesrvAddr=f"127.0.0.1:{name_server.port}", brokerIP1="127.0.0.1") as broker,
    ):
        broker.load(TOPIC, FILL.scaled(factor))
        # A read before those that are measured: the JVM has compiled nothing, and no worker is there.
        command = [sys.executable, "-m", "bench.spark_load", f"127.0.0.1:{name_server.port}", str(rounds + 1)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise LoadFailed(f"Spark failed\n{done.stderr[-2000:]}")
        *reads, idle = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        written = _written(f"127.0.0.1:{name_server.port}", rounds, max(10_000, int(WRITE_ROWS * factor)))
    cpu = median([read["rows"] / read["cpu"] for read in reads[1:]])
    wall = median([read["rows"] / read["seconds"] for read in reads[1:]])
    table.head(f"Spark, {reads[0]['rows']:,} rows of 23 columns, local[1]")
    table.wanted_row("rows/s of a core", f"{number(cpu):>9}   {number(wall)} by the clock", cpu, at_least=ROWS_WANTED)
    percent = idle["idle_percent"]
    cells = f"{number(percent, 2):>9} % of a core, of which the JVM {number(idle['jvm_percent'], 2)}"
    table.wanted_row("idle stream", cells, percent, below=IDLE_PERCENT_WANTED)
    _show_written(table, written)


def _written(name_server: str, rounds: int, rows: int) -> dict[str, float]:
    """Rows/s of the core of a task and of a loop, by what was written. Raises LoadFailed."""
    # A write before those that are measured, as for reads.
    command = [sys.executable, "-m", "bench.spark_write_load", name_server, str(rounds + 1), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise LoadFailed(f"the write failed\n{done.stderr[-2000:]}")
    rates: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        found = json.loads(line)
        rates.setdefault(found["what"], []).append(found["rows"] / found["cpu"])
    return {what: median(each[1:]) for what, each in rates.items()}


def _show_written(table: Table, rates: dict[str, float]) -> None:
    table.head("Spark, a task writes rows of 128 B; full: with a key, a tag and a property")
    for what, wanted in WRITTEN_WANTED.items():
        sink, once, loop = (rates[f"{what} {each}"] for each in ("sink", "once", "loop"))
        table.wanted_row(f"{what} rows/s of a core", f"{number(sink):>9}", sink, at_least=wanted)
        cells = f"{number(sink / loop, 2):>9}   send_batch {number(loop)}"
        table.wanted_row(f"{what} to a loop", cells, sink / loop, at_least=TIMES_LOOP_WANTED)
        cells = f"{number(once / sink, 2):>9}   {number(once)}"
        table.wanted_row(f"{what} once to that", cells, once / sink, at_least=ONCE_RATIO_WANTED)
