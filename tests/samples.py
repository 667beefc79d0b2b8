"""What the samples of README, pages and examples run against: `mq dev` on free ports."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.daemons.processes import SOURCE, Process

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@attrs.define
class Cluster:
    """A running `mq dev`, and the directory in which samples run."""

    folder: Path
    name_server: str
    _processes: list[Process]

    def adapt(self, text: str) -> str:
        """The sample as it stands, with this cluster's address in place of the usual one."""
        return text.replace("127.0.0.1:9876", self.name_server)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(self.adapt(text))
        return path

    def environment(self) -> dict[str, str]:
        """With the commands of this environment first, and what programs print in time."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ROCKETMQ", "NAMESRV", "MQ_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
        return {**kept, "PATH": path, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1", "HOME": str(self.folder)}

    def run(self, source: str, name: str = "sample.py", timeout: int = 60) -> str:
        """What a program prints; it must end by itself, with exit code 0."""
        done = subprocess.run(
            [sys.executable, "-W", "error", str(self.write(name, source))],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, source: str, name: str, *arguments: str) -> Process:
        """A program that runs until it is stopped. `arguments` are those of Python before the program's file."""
        folder = self.folder / f"{name}-{len(self._processes)}"
        folder.mkdir()
        path = self.write(name, source)
        process = Process(folder, [*arguments, str(path)], environment={"PYTHONUNBUFFERED": "1"})
        self._processes.append(process)
        return process


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start `mq dev`; it, and what was started beside it, is ended at the end."""
    folder.mkdir(exist_ok=True)
    dev = folder / "dev"
    dev.mkdir()
    processes = [Process(dev, ["-m", "mqbroker.cli", "dev", "--memory", "--port", "0", "--broker-port", "0"])]
    try:
        processes[0].wait_for_line("Ctrl-C ends it")
        found = re.search(r"name server +(\S+)", processes[0].out)
        assert found is not None
        yield Cluster(folder, found[1], processes)
    finally:
        for process in reversed(processes):
            process.end()
