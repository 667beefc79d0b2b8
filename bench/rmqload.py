"""The load generator: builds it from its C source, runs it, reads its one line of results."""

import os
import re
import subprocess
from pathlib import Path

import attrs

_SOURCE = Path(__file__).with_name("rmqload.c")
#: After so long the load generator gives up, and a little later it is given up.
LIMIT_S = 240


class LoadFailed(Exception):
    """The load generator cannot be built, or a request was answered with an error; the message says which."""


@attrs.frozen
class Shape:
    """One kind of load. `count` messages over `conns` connections with `depth` requests in flight on each."""

    name: str
    mode: str
    conns: int
    depth: int
    size: int
    count: int
    #: Of a pull: an expression of the kind TAG or SQL92; messages that are looked through are counted.
    expression: str = ""
    kind: str = "TAG"
    #: Of a send: how many topics get messages in turn.
    topics: int = 1

    def scaled(self, factor: float) -> "Shape":
        return attrs.evolve(self, count=max(1000, int(self.count * factor)))


@attrs.frozen
class Result:
    """What one run measured: messages and MiB a second, and the latency of a request in microseconds."""

    rate: float
    mib_rate: float
    p50_us: int
    p99_us: int
    p999_us: int
    max_us: int


_LINE = re.compile(
    r"\s(?P<rate>\d+) msg/s\s+(?P<mib>[\d.]+) MiB/s .*errors=(?P<errors>\d+) .* "
    r"p50=(?P<p50>\d+) p99=(?P<p99>\d+) p99\.9=(?P<p999>\d+) max=(?P<max>\d+)"
)


def build(target_dir: Path) -> Path:
    """Compile the load generator into `target_dir`. Raises LoadFailed."""
    program = target_dir / "rmqload"
    command = [os.environ.get("CC", "cc"), "-O2", "-o", str(program), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise LoadFailed(f"no C compiler {command[0]!r}; install one, or set CC") from None
    if done.returncode != 0:
        raise LoadFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    return program


def run(program: Path, port: int, topic: str, shape: Shape, limit_s: int = LIMIT_S) -> Result:
    """Put the load on the server at `port`. Raises LoadFailed unless every request is answered well, in time."""
    command = [str(program), shape.mode, "-p", str(port), "-t", topic, "-q", "4", "-v", "-l", str(limit_s)]
    command += ["-c", str(shape.conns), "-d", str(shape.depth), "-s", str(shape.size), "-n", str(shape.count)]
    if shape.topics > 1:
        command += ["-k", str(shape.topics)]
    if shape.expression:
        command += ["-e", shape.expression, "-E", shape.kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + 30, check=False)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{' '.join(command)} did not end within {limit_s + 30} s") from None
    found = _LINE.search(done.stdout)
    if done.returncode != 0 or found is None or found["errors"] != "0":
        raise LoadFailed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    latencies_us = [int(found[name]) for name in ("p50", "p99", "p999", "max")]
    return Result(float(found["rate"]), float(found["mib"]), *latencies_us)
