"""Whether our broker's memory stays what it is while it takes ten million messages."""

from bench.rmqload import Shape
from bench.servers import Bench
from bench.table import Table, slope

SAMPLES = 10
STEP = Shape("a million", "send", 64, 8, 128, 1_000_000)
#: What a message takes in log, consume queue and index, and segments that are made ahead of time.
BYTES_A_MESSAGE = 360
AHEAD_BYTES = 3 << 30
GROWTH_WANTED_MIB = 1.0


def measure(bench: Bench, table: Table, factor: float) -> None:
    """Print RssAnon and Rss after each step, and how much a step adds."""
    step = STEP.scaled(factor)
    bench.require_room(SAMPLES * step.count * BYTES_A_MESSAGE + AHEAD_BYTES)
    private: list[float] = []
    resident: list[float] = []
    with bench.server("ours") as server:
        for _ in range(SAMPLES):
            server.load("bench", step)
            of_private, of_resident = server.memory_mib()
            private.append(of_private)
            resident.append(of_resident)
    table.head(f"memory of ours, MiB, at every {step.count:,} of {SAMPLES * step.count:,} messages of {step.size} B")
    # What the first step adds is start, not growth.
    growth = slope(private[1:])
    cells = "".join(f"{value:7.1f}" for value in private) + f"   {growth:+.2f} a step"
    table.wanted_row("RssAnon", cells, growth, below=GROWTH_WANTED_MIB)
    table.row(
        "Rss, with files", "".join(f"{value:7.0f}" for value in resident) + f"   {slope(resident[1:]):+.0f} a step"
    )
