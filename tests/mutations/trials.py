"""Mistakes on trial: each is made in a copy of the sources, whose tests run in processes forked from this one.

A test that fails with a mistake must fail a second time, and pass without the mistake. A fork has the libraries, but
nothing of the project, so that it loads the copy's modules at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import attrs

from tests.mutations.mutation import Mutation
from tests.sources import ROOT, copy_sources

#: A mistake may also make the tests hang.
TIMEOUT_S = 300
#: A mistake is noticed when one test fails as often as this; once might be chance.
FAILURES = 2
#: Runs of a trial in which no test fails so often: they fail by chance.
RUNS_MAX = 8

#: What tests import, apart from the project: a fork has it at once. No reactor, no thread, no plugin of pytest.
LIBRARIES = (
    *("attrs", "click", "hypothesis.strategies", "lark", "OpenSSL.SSL", "orjson", "pytest", "rich.console", "yaml"),
    *("twisted.internet.defer", "twisted.internet.protocol", "twisted.internet.task", "twisted.internet.ssl"),
    *("twisted.application.service", "twisted.python.usage", "twisted.trial.unittest", "zope.interface.verify"),
)
OURS = ("mqbroker", "mqbroker_demo", "pyspark_rocketmq", "tests", "twisted.plugins")


@attrs.frozen
class Outcome:
    """How a run of tests ended: whether all passed, why not, and the id of the first that failed, if one has."""

    passed: bool
    why_not: str = ""
    failed: str = ""


class FirstFailure:
    """A plugin of pytest: writes the id of the first test that fails, or of the file, to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._path.exists():
            self._path.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def run_tests(tests: Sequence[str], copy: Path, *, with_compiled: bool) -> NoReturn:
    """In a forked process: run tests on a copy of the sources, print to the copy's ``output``, and exit."""
    os.setsid()
    output = os.open(copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    os.environ["MQBROKER_KERNEL"] = "on" if with_compiled else "off"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    sys.path[:] = [str(copy), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]
    importlib.invalidate_caches()
    # Others run pytest at the same time, which removes old directories of the one that they would share.
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={copy / 'basetemp'}"]
    (copy / "failed").unlink(missing_ok=True)
    options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    code = 3
    try:
        code = int(importlib.import_module("pytest").main([*options, *tests], [FirstFailure(copy / "failed")]))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


@attrs.define
class Run:
    """A forked run of tests: `pid` on `copy`, ended after TIMEOUT_S."""

    pid: int
    copy: Path
    started: float

    @classmethod
    def start(cls, tests: Sequence[str], copy: Path, *, with_compiled: bool) -> Run:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            run_tests(tests, copy, with_compiled=with_compiled)
        return cls(pid, copy, time.monotonic())

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs. Raises SystemExit where the tests could not run."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and time.monotonic() - self.started < TIMEOUT_S:
            return None
        self.kill()
        if not pid:
            os.waitpid(self.pid, 0)
            return Outcome(False, "the tests hung")
        failed = self.copy / "failed"
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return Outcome(False, f"the tests died of {signal.Signals(-code).name}")
        if failed.exists():
            return Outcome(False, failed.read_text(), failed.read_text())
        if code:
            output = (self.copy / "output").read_text(errors="replace")
            raise SystemExit(f"the tests could not run\n{output[-3000:]}")
        return Outcome(True)

    def kill(self) -> None:
        """End it and the processes that its tests have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@attrs.define
class Trial:
    """One mistake on trial: one of its tests must fail FAILURES times, or all of them hang or die so often.

    `failures`: how often each has failed. `failed`: the one that did last, where it is known, and is to fail again."""

    mutation: Mutation
    copy: Path
    started: float = attrs.field(factory=time.monotonic)
    failures: Counter[str] = attrs.field(factory=Counter)
    runs: int = 0
    failed: str = ""
    run: Run | None = None

    @classmethod
    def start(cls, mutation: Mutation, sources: Path, directory: Path) -> Trial:
        copy = directory / f"{zlib.crc32(mutation.name.encode()):08x}"
        copy.mkdir()
        # Python and Cython replace the files that they write.
        copy_sources(sources, copy, os.link)
        file = copy / "mqbroker" / mutation.file
        text = mutation.applied_to(file.read_text())
        file.unlink()
        file.write_text(text)
        if file.suffix == ".pxi":
            build_module(copy)
        return cls(mutation, copy)

    def step(self) -> bool | None:
        """Whether the mistake was noticed; None while that is not known."""
        is_again = bool(self.failed)
        if self.run is None:
            tests = (self.failed,) if is_again else self.mutation.tests
            self.run = Run.start(tests, self.copy, with_compiled=self.mutation.with_compiled)
        outcome = self.run.outcome()
        if outcome is None:
            return None
        self.run = None
        self.runs += 1
        is_noticed = False
        if outcome.passed:
            self.failed = ""
        else:
            self.failed = outcome.failed
            self.failures[outcome.why_not] += 1
            is_noticed = self.failures[outcome.why_not] >= FAILURES
        if not is_noticed and self.runs < RUNS_MAX and (is_again or not outcome.passed):
            return None
        word, why = ("noticed", outcome.why_not) if is_noticed else ("SURVIVED", "")
        if self.failures and not is_noticed:
            why = f"(failed once and not again: {', '.join(self.failures)})"
        seconds = time.monotonic() - self.started
        print(f"{word:8} {seconds:4.0f} s  {self.mutation.name}  {why}", flush=True)
        shutil.rmtree(self.copy, ignore_errors=True)
        return is_noticed


def build_module(copy: Path) -> None:
    """Build the copy's compiled module in place. Raises SystemExit where that fails."""
    for built in (copy / "mqbroker" / "kernel").glob("compiled*.so"):
        built.unlink()
    for name in ("setup.py", "README.rst"):
        shutil.copy2(ROOT / name, copy)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    # Not optimized: a quarter of the time, and the tests of one mistake are few.
    environment = os.environ | {"CFLAGS": "-O0 -g0"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not list((copy / "mqbroker" / "kernel").glob("compiled*.so")):
        raise SystemExit(f"the compiled module could not be built\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def run_unchanged(tests: Sequence[str], sources: Path, *options: str, with_compiled: bool = False) -> None:
    """Run tests without any mistake. Raises SystemExit with what is printed if one fails."""
    environment = os.environ | {"PYTHONPATH": str(sources), "MQBROKER_KERNEL": "on" if with_compiled else "off"}
    # What is compiled here goes into each copy.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", *options, *dict.fromkeys(tests)]
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"without any mistake the tests fail\n{done.stdout[-3000:]}{done.stderr[-2000:]}")


def see_them_pass(trials: Sequence[Trial], sources: Path) -> None:
    """Run what has failed in trials without any mistake, of trials that hung or died all. Raises SystemExit with the
    first that fails."""
    for with_compiled in (False, True):
        of_these = [each for each in trials if each.mutation.with_compiled is with_compiled]
        tests = [test for each in of_these for test in ((each.failed,) if each.failed else each.mutation.tests)]
        if tests:
            options = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
            run_unchanged(tests, sources, *options, with_compiled=with_compiled)


def try_all(chosen: Sequence[Mutation], sources: Path, directory: Path) -> Iterator[tuple[Trial, bool]]:
    """Each mistake on trial with whether it was noticed, as many at once as there are cores."""
    waiting = list(reversed(chosen))
    running: list[Trial] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.append(Trial.start(waiting.pop(), sources, directory))
            for trial in list(running):
                noticed = trial.step()
                if noticed is not None:
                    running.remove(trial)
                    yield trial, noticed
            time.sleep(0.02)
    finally:
        for trial in running:
            if trial.run is not None:
                trial.run.kill()


def survivors(chosen: Sequence[Mutation]) -> list[Mutation]:
    """The mistakes that no test notices. Raises SystemExit where tests fail without a mistake, or cannot run."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        sources = Path(directory, "sources")
        sources.mkdir()
        copy_sources(ROOT, sources)
        # Compiles them, for all copies.
        run_unchanged([test for mutation in chosen for test in mutation.tests], sources, "--collect-only")
        for library in LIBRARIES:
            importlib.import_module(library)
        assert "twisted.internet.reactor" not in sys.modules, "each fork has a reactor of its own"
        trials = list(try_all(chosen, sources, Path(directory)))
        see_them_pass([trial for trial, noticed in trials if noticed], sources)
        return [trial.mutation for trial, noticed in trials if not noticed]
