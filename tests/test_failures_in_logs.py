"""What the tests with Java take for a failure in the log of a daemon of ours, by lines as daemons write them."""

from __future__ import annotations

import pytest
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.daemons.logs import relay_line, text_line
from tests.interop.fleet import failures_in
from tests.remoting.logs import log_kept

log = Logger()


def lines(level: str, *, is_relayed: bool) -> list[str]:
    """The lines of a log with one event of the level, of the daemon or of its shard 11."""
    with log_kept() as events:
        if level == "failure":
            try:
                raise MemoryError
            except MemoryError:
                log.failure("unexpected error", Failure())
        else:
            getattr(log, level)("a CRITICAL [word] in {name}", name="2026-11-21 12:00:00,123 CRITICAL [x]")
        written = "".join(text_line(event) for event in events).splitlines()
        if is_relayed:
            events.clear()
            for line in written:
                relay_line(11, line)
            written = "".join(text_line(event) for event in events).splitlines()
    return written


@pytest.mark.parametrize("is_relayed", [False, True])
@pytest.mark.parametrize("level", ["info", "warn", "error", "critical", "failure"])
def test_critical_lines_and_tracebacks_are_failures_in_a_daemon_and_in_its_shards(
    level: str, *, is_relayed: bool
) -> None:
    found = lines(level, is_relayed=is_relayed)
    assert found[0].startswith("shard 11: ") == is_relayed
    expected = {"critical": [0], "failure": [0, 1]}.get(level, [])
    assert failures_in(["an ordinary line", *found]) == [1 + number for number in expected]
