"""A plugin of pytest: the compiled module under test is the instrumented one of this copy of the sources.

Otherwise no test is run. The module that is loaded is looked at, and what the process has mapped.
"""

from pathlib import Path

import pytest

from mqbroker.kernel import compiled

#: Undefined symbols of a module that both sanitizers have instrumented.
MARKS = (b"__asan_init", b"__ubsan_handle_add_overflow")


def mapped_files() -> set[Path]:
    """The files that this process has mapped, libraries among them."""
    fields = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return {Path(field[5]) for field in fields if len(field) == 6 and field[5].startswith("/")}


def check_module(root: Path) -> Path:
    """The module's file. Raises pytest.UsageError where it is not below `root`, or not what the sanitizers watch."""
    if compiled is None:
        raise pytest.UsageError("the compiled module is not there, or cannot be loaded: there is nothing to watch")
    assert compiled.__file__ is not None
    module = Path(compiled.__file__).resolve()
    if not module.is_relative_to(root.resolve()):
        raise pytest.UsageError(f"{module} was loaded, which is not the instrumented module below {root}")
    symbols = module.read_bytes()
    if missing := [mark.decode() for mark in MARKS if mark not in symbols]:
        raise pytest.UsageError(f"{module} was built without sanitizers: it has no {', '.join(missing)}")
    mapped = mapped_files()
    for library in ("libasan", "libubsan"):
        if not any(path.name.startswith(f"{library}.so") for path in mapped):
            raise pytest.UsageError(f"{library} is not loaded: nothing would be reported")
    if module not in mapped:
        raise pytest.UsageError(f"{module} is not mapped into this process")
    return module


def pytest_configure(config: pytest.Config) -> None:
    check_module(config.rootpath)


def pytest_report_header(config: pytest.Config) -> str:
    return f"instrumented: {check_module(config.rootpath)}"
