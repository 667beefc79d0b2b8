"""Build the compiled module with AddressSanitizer and UndefinedBehaviorSanitizer in a copy, and run its tests on it.

``python -m tests.sanitizers [options of pytest]``. The sanitizers end the process at the first mistake, with a report
of the C code and Python's stack. That they are awake is seen first, by mistakes made for them. Needs GCC and its
libasan and libubsan.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.sources import ROOT, copy_sources

#: After those of Python, which has signed numbers wrap and may have libc's calls fortified: neither would be reported.
COMPILE = [
    *("-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fno-wrapv-pointer", "-U_FORTIFY_SOURCE"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
]
LINK = ["-fsanitize=address,undefined"]
COMPILER = "gcc"

#: Where the compiled module has work: its own tests, and those that compare it with plain Python.
TESTS = [
    "tests/kernel",
    "tests/access/test_plain_requests.py",
    "tests/client/test_listener_calls.py",
    "tests/client/test_plain_sends.py",
    "tests/filter/test_pick.py",
    "tests/remoting/test_batches.py",
    "tests/remoting/test_garbage.py",
    "tests/remoting/test_shared_reads.py",
    "tests/remoting/test_turns_of_reads.py",
    "tests/spark/test_decode.py",
    "tests/store/test_cold_reads.py",
    "tests/store/test_corrupt_ranges.py",
    "tests/store/test_picked_messages.py",
    "tests/wire/test_frame_decoder.py",
    "tests/wire/test_properties.py",
]

MISTAKES = Path(__file__).with_name("mistakes.c")
#: Of its functions: an argument with which it makes its mistake, and what the report must say.
REPORTS = {
    "read_past_the_end": (10, "AddressSanitizer: heap-buffer-overflow"),
    "overflow": (1, "runtime error: signed integer overflow"),
}
CALL = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])(int(sys.argv[3]))"


def run(*command: str, directory: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """What a command printed. Raises SystemExit with that where it failed."""
    try:
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(f"the sanitizers need {command[0]}, which is not there") from None
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}{command[0]} failed")
    return done.stdout


def find_libraries() -> list[str]:
    """The sanitizers' libraries, to be loaded before all others. Raises SystemExit where GCC or one is missing."""
    paths = [run(COMPILER, f"-print-file-name={name}.so").strip() for name in ("libasan", "libubsan")]
    for path in paths:
        if not Path(path).is_absolute():  # GCC repeats the name of what it does not have
            raise SystemExit(f"the sanitizers need {path}, which {COMPILER} does not have")
    return paths


def make_environment(copy: Path, libraries: list[str]) -> dict[str, str]:
    """For a process that loads what is instrumented, and the copy's packages before those installed."""
    return os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        # Python keeps much until its end. Aborted, the process prints Python's stack too.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        # Each object is a block of its own, behind whose end no byte may be read.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(copy),
        "MQBROKER_KERNEL": "on",
    }


def build_module(copy: Path) -> None:
    """Build the copy's module in place. Raises SystemExit where that fails."""
    for built in (copy / "mqbroker" / "kernel").glob("compiled*.so"):
        built.unlink()
    shutil.copy2(ROOT / "setup.py", copy)
    shutil.copy2(ROOT / "README.rst", copy)  # setup.cfg has it read
    flags = {"CC": COMPILER, "CFLAGS": shlex.join(COMPILE), "LDFLAGS": shlex.join(LINK)}
    run(sys.executable, "setup.py", "build_ext", "--inplace", directory=copy, environment=os.environ | flags)


def see_mistakes_reported(copy: Path, environment: dict[str, str]) -> None:
    """Have each mistake made in a process of its own. Raises SystemExit where one is not reported."""
    library = copy / "mistakes.so"
    of_python = shlex.split(sysconfig.get_config_var("CFLAGS") or "")
    run(COMPILER, *of_python, *COMPILE, *LINK, "-shared", "-fPIC", "-o", str(library), str(MISTAKES))
    for name, (argument, report) in REPORTS.items():
        command = [sys.executable, "-c", CALL, str(library), name, str(argument)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0 or report not in done.stderr:
            raise SystemExit(
                f"a mistake was not reported: {name} of {MISTAKES.name} ended with {done.returncode}, without "
                f"{report!r}\n{done.stderr}"
            )
        print(f"reported, as it must be: {report}", flush=True)


def main() -> int:
    libraries = find_libraries()
    print(f"{run(COMPILER, '--version').splitlines()[0]}: {shlex.join(COMPILE)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sanitizers-") as directory:
        copy = Path(directory)
        copy_sources(ROOT, copy)
        environment = make_environment(copy, libraries)
        see_mistakes_reported(copy, environment)
        build_module(copy)
        # Reports are written to the process's own standard error, which pytest must not keep to itself.
        options = ["-p", "tests.sanitizers.instrumented", "-p", "no:cacheprovider", "--capture=sys", *sys.argv[1:]]
        options.append(f"--basetemp={copy / 'basetemp'}")
        if not any((copy / option.partition("::")[0]).exists() for option in sys.argv[1:]):
            options += TESTS
        print(f"pytest {shlex.join(options)}", flush=True)
        done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=copy, env=environment, check=False)
    if done.returncode < 0:
        print(f"the process of the tests was ended by signal {-done.returncode}: see the report above")
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
