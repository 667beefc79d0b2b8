"""What a roll to the next segment costs those who send meanwhile: latencies through ten rolls of small segments.

Flushing is asynchronous, and 64 requests are in flight at any time: what one waits for the others is in the figures.
"""

from collections.abc import Sequence

from bench.rmqload import LoadFailed, Result, Shape
from bench.servers import Bench, Kind
from bench.table import Table, divided, number

ROLLS = 10
SEGMENT_MIB, QUICK_SEGMENT_MIB = 64, 16
BODY_BYTES = 1024
#: What a message in the log takes beside its body, at least; half a segment more makes sure of the last roll.
HEAD_BYTES = 91
P999_WANTED_US = 10_000


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], is_quick: bool) -> None:
    segment_bytes = (QUICK_SEGMENT_MIB if is_quick else SEGMENT_MIB) << 20
    count = (2 * ROLLS + 1) * segment_bytes // (2 * (BODY_BYTES + HEAD_BYTES))
    shape = Shape("roll 16x4 1 KiB", "send", 16, 4, BODY_BYTES, count)
    bench.require_room((ROLLS + 4) * segment_bytes * 2)
    found: dict[Kind, Result] = {}
    rolls: dict[Kind, int] = {}
    for kind in kinds:
        with bench.server(kind, mappedFileSizeCommitLog=str(segment_bytes)) as server:
            server.load("warm", shape.scaled(0.02))
            found[kind] = server.load("bench", shape)
            # One is made ahead of time.
            rolls[kind] = len(list((server.store / "commitlog").iterdir())) - 2
    if min(rolls.values()) < ROLLS:
        raise LoadFailed(f"{rolls} rolls where {ROLLS} were meant")
    show(table, found, count, segment_bytes)


def show(table: Table, found: dict[Kind, Result], count: int, segment_bytes: int) -> None:
    name = f"us, {ROLLS} rolls"
    table.head(
        f"{name:18}{'ours':>9} {'Java':>9} {'Java/ours':>9}   {count:,} sends, segments of {segment_bytes >> 20} MiB"
    )
    for what, field in (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us"), ("max", "max_us")):
        ours, java = (getattr(found[kind], field) if kind in found else None for kind in ("ours", "java"))
        cells = f"{number(ours):>9} {number(java):>9} {number(divided(java, ours), 2):>9}"
        if what == "p99.9":
            table.wanted_row(f"roll {what}", cells, ours, below=P999_WANTED_US)
        else:
            table.row(f"roll {what}", cells)
