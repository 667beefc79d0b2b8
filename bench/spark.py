"""What Spark reads of a broker of ours, all 23 columns, and what a stream takes that has nothing to read.

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
    cpu = median([read["rows"] / read["cpu"] for read in reads[1:]])
    wall = median([read["rows"] / read["seconds"] for read in reads[1:]])
    table.head(f"Spark, {reads[0]['rows']:,} rows of 23 columns, local[1]")
    table.wanted_row("rows/s of a core", f"{number(cpu):>9}   {number(wall)} by the clock", cpu, at_least=ROWS_WANTED)
    percent = idle["idle_percent"]
    cells = f"{number(percent, 2):>9} % of a core, of which the JVM {number(idle['jvm_percent'], 2)}"
    table.wanted_row("idle stream", cells, percent, below=IDLE_PERCENT_WANTED)
