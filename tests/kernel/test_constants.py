"""The constants of the compiled module are ints to every C compiler."""

from __future__ import annotations

import re
from pathlib import Path

import mqbroker

KERNEL = Path(mqbroker.__file__).parent / "kernel"


def test_constants_fit_an_int() -> None:
    """C23 gives all constants of an enumeration with a larger value an unsigned type, so that `size < RECORD_MIN` is
    false for a negative size."""
    values: dict[str, int] = {}
    for part in re.findall(r'^include "(.*)"', (KERNEL / "compiled.pyx").read_text(encoding="ascii"), re.MULTILINE):
        source = (KERNEL / part).read_text(encoding="ascii")
        for block in re.findall(r"^cdef enum:\n((?:    .*\n|\n)+)", source, re.MULTILINE):
            for name, expression in re.findall(r"^    (\w+) = ([^#\n]+)", block, re.MULTILINE):
                values[name] = eval(expression, {}, values)
    assert values["RECORD_MIN"] == 91
    assert [name for name, value in values.items() if not -(1 << 31) <= value < 1 << 31] == []
