"""Follows a page as a reader would: saves its files, types its commands, and compares what they print.

A page has, in this order or another:

- `.. code-block:: console`: lines with a prompt, `$ `, are typed into a shell, which keeps its directory and jobs from
  block to block; the others are what they print. `...` stands for any text in a line, as a line for any
  number of lines. Messages of several queues come in any order, so that lines are compared without theirs.
- the comment `.. in another terminal` above such a block: its command runs beside the others, to the end of the page.
- `.. code-block::` or `.. literalinclude::` with `:caption: NAME`: a file, which is saved by that name.
- the comment `.. not run: WHY` above any of these: it is left out.

All of it runs in a network namespace, so that the ports are those of the page; with terminals, so that the output is
that for readers. What differs from run to run is compared by its kind: see `VARYING`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from tests.daemons.permits import need

COLUMNS = 120
PATIENCE_SECONDS = 150
_END = "@@ended with"
_OWN_NAMESPACES = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-c")

#: What differs from run to run, and what stands for it where output is compared.
VARYING = (
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+0000", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\bqueue \d+, offset \d+", "queue N, offset N"),
    (r"\bdev/\d+@\d+", "dev/N@N"),
    (r"\bready in [\d.]+ s, process \d+", "ready in N s, process N"),
    (r"(?<=  )(\?|\d+\.\d)(?=  |$)", "RATE"),
    (r"(\S*/)?(mq-data\S*)", r"\2"),
    (r"\s+", " "),
)


@attrs.frozen
class Step:
    """One thing to do: a file to save, or commands with what they print."""

    place: str
    kind: str
    text: str
    file: str = ""


def steps(page: Path) -> Iterator[Step]:
    """What a reader of the page does."""
    text = page.read_text() + "\n"
    block = re.compile(
        r"^(?:\.\. (?P<before>not run: .+|in another terminal)\n\n)?"
        r"\.\. (?P<kind>code-block|literalinclude):: (?P<argument>\S+)\n"
        r"(?: +:caption: (?P<file>\S+)\n)?\n?(?P<body>(?:(?: {4}.*| {3}\S.*)?\n)*)",
        re.MULTILINE,
    )
    for found in block.finditer(text):
        before, file = found["before"] or "", found["file"] or ""
        place = f"{page.name}:{text.count(chr(10), 0, found.start('kind')) + 1}"
        if before.startswith("not run"):
            continue
        body = textwrap.dedent(found["body"]).strip("\n") + "\n"
        if file:
            path = page.parent / found["argument"]
            yield Step(place, "file", path.read_text() if found["kind"] == "literalinclude" else body, file)
        elif found["argument"] == "console":
            yield Step(place, "beside" if before else "run", body)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The lines that are typed, each with the lines that it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").split("\n")
        yield command, printed


def comparable(line: str) -> str:
    for pattern, name in VARYING:
        line = re.sub(pattern, name, line)
    return line.strip()


def is_like(printed: list[str], expected: list[str]) -> bool:
    """Whether the lines are those of the page. A shell's lines that are empty do not count."""
    ours = [comparable(line) for line in printed if line.strip()]
    theirs = [comparable(line) for line in expected if line.strip()]
    if "..." not in theirs:
        ours, theirs = sorted(ours), sorted(theirs)
    pattern = "".join(
        "(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in theirs
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in ours)) is not None


class Terminal:
    """A shell on a terminal of its own, in namespaces that it makes, or those of another.

    With the first shell all that runs in its namespace of processes ends, daemons too.
    """

    def __init__(self, folder: Path, environment: dict[str, str], beside: Terminal | None = None) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        if beside is None:
            command = [*_OWN_NAMESPACES, "ip link set lo up && exec bash --norc"]
        else:
            spaces = Path("/proc", str(beside._child()), "ns")
            enter = [f"--{kind}={spaces / name}" for kind, name in (("net", "net"), ("pid", "pid"), ("mount", "mnt"))]
            command = ["nsenter", *enter, "sh", "-c", 'cd "$0" && exec bash --norc', str(folder)]
        self._master = master
        self._shell = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
            text=True,
            start_new_session=True,
        )
        os.close(slave)
        self._printed = ""

    def _child(self) -> int:
        """The shell in the namespaces: unshare's only child."""
        pid = self._shell.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def type(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(line + "\n")
        self._shell.stdin.flush()

    def run(self, command: str) -> tuple[int, list[str]]:
        """Its exit code, and what was printed until it ended."""
        self.type(f"{command}\necho '{_END}' $?")
        found = self.wait_for(re.compile(rf"{_END} (\d+)\n"))
        printed, self._printed = self._printed[: found.start()], self._printed[found.end() :]
        return int(found[1]), printed.splitlines()

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := pattern.search(self._printed)) is None:
            self.read(max(0.0, end - time.monotonic()))
            assert time.monotonic() < end, f"not within {PATIENCE_SECONDS} s: {pattern.pattern} in {self._printed}"
        return found

    def read(self, seconds: float) -> None:
        """Wait for more output, and take it without colours."""
        if select.select([self._master], [], [], seconds)[0]:
            data = os.read(self._master, 65536).decode(errors="replace")
            self._printed += re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", data).replace("\r\n", "\n")

    def lines(self) -> list[str]:
        return self._printed.splitlines()

    def close(self) -> None:
        """End the shell and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(15)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        os.close(self._master)


def need_namespaces() -> None:
    """Skip the test where a `Terminal` cannot have namespaces of its own."""
    need("namespaces with a loopback", [*_OWN_NAMESPACES, "ip link set lo up"])


def follow(pages: list[Path], folder: Path, environment: dict[str, str]) -> int:
    """Follow the pages, one after the other; the number of commands that were typed. Raises AssertionError."""
    need_namespaces()
    folder.mkdir(exist_ok=True)
    typed = 0
    shell = Terminal(folder, environment)
    terminals = [shell]
    try:
        assert shell.run("true") == (0, [])
        for step in (step for page in pages for step in steps(page)):
            if step.kind == "file":
                code, printed = shell.run(f"cat > {step.file} <<'@@end of file'\n{step.text}@@end of file")
                assert (code, printed) == (0, []), (step.place, printed)
                continue
            for command, expected in commands(step.text):
                typed += 1
                if step.kind == "beside":
                    terminals.append(Terminal(folder, environment, shell))
                    terminals[-1].type(command)
                    wait_until_like(terminals[-1], expected, f"{step.place}: {command}")
                    continue
                code, printed = shell.run(command)
                assert is_like(printed, expected), f"{step.place}: {command}: exit code {code}\n" + "\n".join(printed)
    finally:
        for terminal in reversed(terminals):
            terminal.close()
    return typed


def wait_until_like(terminal: Terminal, expected: list[str], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_like(terminal.lines(), expected):
        assert time.monotonic() < end, f"{what}\n" + "\n".join(terminal.lines())
        terminal.read(0.1)


def reader_environment(home: Path, **more: str) -> dict[str, str]:
    """That of a reader who has activated the environment of the tests."""
    kept = {key: value for key, value in os.environ.items() if key in ("JAVA_HOME", "LANG", "TMPDIR")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "HOME": str(home), "TERM": "xterm", "COLUMNS": str(COLUMNS), **more}
