"""Make each known mistake in a copy of the sources and see the tests fail.

``python -m tests.mutations [part of a name]``. The same tests must pass without a mistake: that is seen first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.known import KNOWN, SOURCE, Mutation

ROOT = SOURCE.parent
#: A mistake may also make the tests hang.
TIMEOUT_S = 300


def run_tests(tests: Iterable[str], mutation: Mutation | None) -> tuple[bool, str]:
    """Run tests on a copy of the sources, with a mistake in it or without. Returns whether they passed, and the first
    that did not."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        copy = Path(directory)
        for name in ("mqbroker", "tests", "twisted", "conf", "pyproject.toml", "setup.cfg"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        if mutation is not None:
            file = copy / "mqbroker" / mutation.file
            file.write_text(mutation.applied_to(file.read_text()))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False, "the tests hung"
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.returncode > 1 or (done.returncode == 1 and not failed):
            raise SystemExit(f"the tests could not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return not failed, failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else ""


def is_noticed(mutation: Mutation) -> bool:
    start = time.monotonic()
    passed, by = run_tests(mutation.tests, mutation)
    word = "SURVIVED" if passed else "noticed"
    print(f"{word:8} {time.monotonic() - start:4.0f} s  {mutation.name}  {by}", flush=True)
    return not passed


def main() -> int:
    wanted = " ".join(sys.argv[1:])
    chosen = [mutation for mutation in KNOWN if wanted in mutation.name]
    if not chosen:
        print(f"no known mistake has {wanted!r} in its name:", *(mutation.name for mutation in KNOWN), sep="\n  ")
        return 2
    passed, first = run_tests(dict.fromkeys(test for mutation in chosen for test in mutation.tests), None)
    if not passed:
        print(f"without any mistake the tests fail: {first}")
        return 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        noticed = sum(pool.map(is_noticed, chosen))
    print(f"{noticed} of {len(chosen)} mistakes noticed")
    return 0 if noticed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
