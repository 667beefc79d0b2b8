"""Makes syncs of a running daemon fail with EIO from one moment to another: by strace, or by a preloaded library."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.daemons.permits import need
from tests.daemons.processes import Process, wait_for

SHIM = Path(__file__).with_name("failing_calls.c")


class Strace:
    """Attaches strace, which has the calls of a process fail in the kernel's place."""

    def __init__(self, folder: Path) -> None:
        need("failing syncs by strace", ["strace", "-f", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO", "true"])
        self.environment: dict[Any, Any] = {}
        # It can tell the files of an fdatasync, not those of a request to the kernel's queue.
        self.settings = {"kernelSyncEnable": "false"}
        self._output = folder / "strace"
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, process: Process, call: str, directory: Path) -> None:
        """From now on `call` fails for the directory and all files in it that there are."""
        paths = [directory, *(path for path in directory.rglob("*"))] if directory.is_dir() else [directory]
        self._output.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            ["strace", "-f", "-p", str(process.pid), "-o", str(self._output), "-e", f"inject={call}:error=EIO"]
            + [part for path in paths for part in ("-P", str(path))],
            stderr=subprocess.PIPE,
        )
        # It tells of each thread that it has attached to; the threads that wait for work are there already.
        wait_for(lambda: _tracers(process.pid) == {self._process.pid}, "strace to attach")

    @property
    def hits(self) -> int:
        return self._output.read_text().count("(INJECTED)") if self._output.exists() else 0

    def end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate()
            self._process = None


def _tracers(pid: int) -> set[int]:
    """The processes that trace the threads of one; 0 where none does."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(line.split()[1]) for line in (thread / "status").read_text().splitlines() if "TracerPid" in line}
    return found


class Shim:
    """A library before libc, which looks into a file whether to fail."""

    def __init__(self, folder: Path) -> None:
        library = folder / "failing_calls.so"
        need("failing syncs by a preloaded library", ["cc", "-shared", "-fPIC", "-o", str(library), str(SHIM)])
        self._control = folder / "failing"
        self._hits = folder / "failing.hits"
        self.settings: dict[Any, Any] = {}
        self.environment = {"LD_PRELOAD": str(library), "MQBROKER_FAILING_CALLS": str(self._control)}

    def begin(self, _process: Process | None, call: str, directory: Path) -> None:
        """From now on `call` fails for all below the directory."""
        self._hits.unlink(missing_ok=True)
        temporary = self._control.with_suffix(".tmp")
        temporary.write_text(f"{call} {directory}\n")
        os.replace(temporary, self._control)

    @property
    def hits(self) -> int:
        return len(self._hits.read_text().splitlines()) if self._hits.exists() else 0

    def end(self) -> None:
        self._control.unlink(missing_ok=True)


BY: dict[str, type[Shim | Strace]] = {"strace": Strace, "shim": Shim}
