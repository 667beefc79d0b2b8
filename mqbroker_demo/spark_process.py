"""The demo's end of the counting process: whether it can run here, its start, its counts as they come, its end."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqbroker.daemons.process import python_command
from mqbroker.errors import MQError
from mqbroker.spark.java import JavaMissing, find_java
from mqbroker_demo.cluster import child_environ, end_group, spawn
from mqbroker_demo.corpus import Count, file_of_key
from mqbroker_demo.traffic import TOPIC

_LINE_BYTES_MAX = 64 * 1024 * 1024


#: Earlier ones have no data sources in Python.
PYSPARK_LEAST = (4, 0)
_INSTALL = "Install the extra `spark` of this package, or: pip install 'pyspark>=4.0,<5' pyarrow numpy"


class SparkFailed(MQError):
    """Spark is here and could not do its work."""


def what_is_missing() -> str | None:
    """What keeps Spark from running here and what to do about it, or None."""
    absent = [name for name in ("pyspark", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed. {_INSTALL}"
    version = importlib.metadata.version("pyspark")
    if tuple(map(int, version.split(".")[:2])) < PYSPARK_LEAST:
        return f"pyspark is {version}, and the demo needs {'.'.join(map(str, PYSPARK_LEAST))} or later. {_INSTALL}"
    try:
        find_java()
    except JavaMissing as missing:
        return str(missing)
    return None


class SparkCount:
    """The counting process. `files` and `rows` are its latest result; `failed` says why there will be no more."""

    def __init__(self, directory: Path, on_progress: Callable[[int], None]) -> None:
        self.files: dict[str, Count] = {}
        self.rows = 0
        self.failed: str | None = None
        self.log = directory / "spark.log"
        self._scratch = directory / "spark"
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def lines(self) -> int:
        return sum(count.lines for count in self.files.values())

    async def start(self) -> None:
        """Begin to start Java; returns at once."""
        self._scratch.mkdir()
        environ = {
            **child_environ(os.environ),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = python_command("mqbroker_demo.spark_job", str(self._scratch))
        self._process = spawn(command, self.log, environ, piped=True)
        reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        self._reading = asyncio.create_task(self._read(reader))

    def begin(self, name_server: str) -> None:
        """Tell it where the messages are."""
        assert self._process is not None
        assert self._process.stdin is not None
        told = {"name_server": name_server, "topic": TOPIC, "checkpoint": str(self._scratch / "checkpoint")}
        try:
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("it ended at its start")

    async def ready(self) -> None:
        """Return when the session is there, or failed."""
        await self._ready.wait()

    def close(self) -> None:
        """End it, with the Java and Python processes it started."""
        if self._reading is not None:
            self._reading.cancel()
        if self._process is not None:
            end_group(self._process)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._take(json.loads(line))
        self._fail("it ended")

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "session":
            self._ready.set()
        elif event["event"] == "failed":
            self._fail(event["why"])
        else:
            self.rows = event["rows"]
            self.files = {file_of_key(key): Count(*counts) for key, counts in event["files"].items()}
            self._on_progress(self.lines)

    def _fail(self, why: str) -> None:
        self.failed = self.failed or why
        self._ready.set()
