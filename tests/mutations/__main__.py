"""Make each known mistake in a copy of the sources and see the tests fail.

``python -m tests.mutations [part of a name]``. The same tests must pass without a mistake: that is seen first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.mutations.known import KNOWN, Mutation
from tests.sources import ROOT, copy_sources

#: A mistake may also make the tests hang.
TIMEOUT_S = 300
#: Without a mistake all of the tests run to their end.
ALL_TIMEOUT_S = 1800
ALL_AT_ONCE = ("-n", "auto", "--dist", "loadfile")


def run_tests(
    tests: Iterable[str], copy: Path, *, with_compiled: bool, how: Sequence[str] = (), timeout_s: float = TIMEOUT_S
) -> tuple[bool, str]:
    """Run tests on a copy of the sources. Returns whether they passed, and the first that did not."""
    # Others run pytest at the same time, which removes old directories of the one that they would share.
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={copy / 'basetemp'}", *how]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(copy)
    environment["MQBROKER_KERNEL"] = "on" if with_compiled else "off"
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return False, "the tests hung"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode > 1 or (done.returncode == 1 and not failed):
        raise SystemExit(f"the tests could not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return not failed, failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else ""


def is_noticed(mutation: Mutation, sources: Path) -> bool:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        copy = Path(directory)
        copy_sources(sources, copy)
        file = copy / "mqbroker" / mutation.file
        file.write_text(mutation.applied_to(file.read_text()))
        passed, by = run_tests(mutation.tests, copy, with_compiled=mutation.with_compiled)
    word = "SURVIVED" if passed else "noticed"
    print(f"{word:8} {time.monotonic() - start:4.0f} s  {mutation.name}  {by}", flush=True)
    return not passed


def main() -> int:
    wanted = " ".join(sys.argv[1:])
    chosen = [mutation for mutation in KNOWN if wanted in mutation.name]
    if not chosen:
        print(f"no known mistake has {wanted!r} in its name:", *(mutation.name for mutation in KNOWN), sep="\n  ")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        sources = Path(directory)
        copy_sources(ROOT, sources)
        for with_compiled in (False, True):
            alike = [mutation for mutation in chosen if mutation.with_compiled is with_compiled]
            if not alike:
                continue
            tests = dict.fromkeys(test for mutation in alike for test in mutation.tests)
            passed, first = run_tests(
                tests, sources, with_compiled=with_compiled, how=ALL_AT_ONCE, timeout_s=ALL_TIMEOUT_S
            )
            if not passed:
                print(f"without any mistake the tests fail: {first}")
                return 1
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            noticed = list(pool.map(partial(is_noticed, sources=sources), chosen))
    print(f"{sum(noticed)} of {len(chosen)} mistakes noticed")
    survivors = [mutation.name for mutation, was in zip(chosen, noticed, strict=True) if not was]
    for name in survivors:
        print(f"SURVIVED  {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
