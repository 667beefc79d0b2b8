"""What is skipped for want of permission says so, and is counted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemons import conftest
from tests.daemons.permits import need, skip, skipped_reasons


def reason_of(act: Callable[..., Any]) -> str:
    with pytest.raises(pytest.skip.Exception) as caught:
        act()
    return str(caught.value)


def test_what_a_machine_does_not_permit_is_a_reason() -> None:
    assert need("nothing", ["true"]) is None
    assert reason_of(lambda: need("a thing", ["no-such-command"])) == (
        "this machine does not permit it: a thing: there is no no-such-command"
    )
    assert reason_of(lambda: need("a thing", ["sh", "-c", "echo not you >&2; exit 1"])) == (
        "this machine does not permit it: a thing: not you"
    )
    assert (
        reason_of(lambda: need("a thing", ["false"])) == "this machine does not permit it: a thing: false ended with 1"
    )


def report(reason: str) -> SimpleNamespace:
    return SimpleNamespace(longrepr=("test_x.py", 1, f"Skipped: {reason}"))


def test_skips_are_counted_by_reason() -> None:
    lost = reason_of(lambda: skip("mounting", "no"))
    reports = [report(lost), report(lost), report("needs Java"), report(reason_of(lambda: skip("tracing", "no")))]
    assert skipped_reasons(reports) == {"mounting: no": 2, "tracing: no": 1}
    lines: list[Any] = []
    terminal = SimpleNamespace(stats={"skipped": reports}, section=lines.append, line=lines.append)
    conftest.pytest_terminal_summary(terminal)
    assert lines == [
        "3 tests skipped: this machine does not permit their faults",
        "    2 mounting: no",
        "    1 tracing: no",
    ]
    lines.clear()
    conftest.pytest_terminal_summary(SimpleNamespace(stats={}, section=lines.append, line=lines.append))
    assert lines == []
