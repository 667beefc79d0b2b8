"""How the rate of sends changes with the number of connections, of topics, and with the size of messages.

With `plot`, also as a drawing for each, which docs/explanation/performance.rst shows.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from bench.rmqload import Shape
from bench.servers import Bench, Kind
from bench.table import Table, divided, number

CONNECTIONS = (1, 10, 100, 1_000, 10_000)
TOPICS = (1, 10, 100, 1_000, 10_000)
SIZES = (16, 128, 1024, 16 * 1024, 128 * 1024, 1024 * 1024)
COUNT = 200_000
#: Of messages that are sent for one point, at most.
BYTES_MAX = 512 << 20
SETTINGS = {"topicsMax": "20000"}


@attrs.frozen
class Axis:
    """What grows: `unit` is that of `values`."""

    name: str
    unit: str
    values: Sequence[int]

    def shape(self, value: int, factor: float) -> Shape:
        if self.name == "connections":
            return Shape("connections", "send", value, 1, 128, max(int(COUNT * factor), 2 * value))
        if self.name == "topics":
            return Shape("topics", "send", 16, 4, 128, max(int(COUNT * factor), 2 * value), topics=value)
        count = min(COUNT, BYTES_MAX // value)
        return Shape("size", "send", 16, 4, value, max(64, int(count * factor)))


AXES = (
    Axis("connections", "connections, one send in flight on each", CONNECTIONS),
    Axis("topics", "topics of 4 queues", TOPICS),
    Axis("size", "bytes of a message", SIZES),
)


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], factor: float, plot: Path | None) -> None:
    """Print a table for each axis, and draw it into the directory `plot`."""
    for axis in AXES:
        table.head(f"{axis.name:14}{'ours':>11} {'Java':>11} {'ratio':>6}   sends a second; by {axis.unit}")
        rates: dict[Kind, list[float]] = {kind: [] for kind in kinds}
        with ExitStack() as running:
            servers = [running.enter_context(bench.server(kind, **SETTINGS)) for kind in kinds]
            for value in axis.values:
                shape = axis.shape(value, factor)
                for server in servers:
                    server.load("grow", attrs.evolve(shape, count=max(64, shape.count // 4)))  # which warms it up
                    rates[server.kind].append(server.load("grow", shape).rate)
                ours, java = (rates[kind][-1] if kind in rates else None for kind in ("ours", "java"))
                ratio = divided(ours, java)
                table.row(f"{value:,}", f"{number(ours):>7} {number(java):>11} {number(ratio, 2):>6}")
        if plot is not None:
            draw(axis, rates, plot / f"performance-{axis.name}.svg")


def draw(axis: Axis, rates: dict[Kind, list[float]], path: Path) -> None:
    """Draw the rates of each broker. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "same names each time"
    from matplotlib import pyplot

    figure, plot = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
    for kind, label, style in (("ours", "mqbroker", "o-"), ("java", "Java 4.9.7", "s--")):
        if kind in rates:
            plot.plot(axis.values, rates[kind], style, label=label)
    plot.set(xscale="log", yscale="log", xlabel=axis.unit, ylabel="sends a second")
    plot.grid(visible=True, which="major", alpha=0.3)
    plot.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
