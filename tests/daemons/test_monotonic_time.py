"""Time that goes on whatever the system's clock does."""

import subprocess
import sys

import pytest

from mqbroker.daemons.epoll import LOOK_SECONDS, SLOWED_BY, MonotonicTime


class Clocks:
    """A system's clock and a monotonic one."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_700_000_000.0, 50.0
        self.time = MonotonicTime(lambda: self.wall, lambda: self.monotonic)

    def go_on(self, seconds: float) -> float:
        self.wall += seconds
        self.monotonic += seconds
        return self.time()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_it_is_the_time_of_day(clocks: Clocks) -> None:
    assert clocks.time() == 1_700_000_000
    assert clocks.go_on(5.5) == pytest.approx(1_700_000_005.5)


def test_a_clock_set_forward_is_followed_at_once(clocks: Clocks) -> None:
    clocks.wall += 3600
    assert clocks.go_on(1) == pytest.approx(1_700_003_601)


def test_the_clock_is_looked_at_anew_after_a_while() -> None:
    looks = []
    clocks = Clocks()
    clocks.time = MonotonicTime(lambda: looks.append(clocks.monotonic) or clocks.wall, lambda: clocks.monotonic)
    for _ in range(101):
        clocks.go_on(LOOK_SECONDS / 10)
    assert 1 + 9 <= len(looks) <= 1 + 11


def test_a_clock_set_back_does_not_stop_time_and_is_met_in_the_end(clocks: Clocks) -> None:
    clocks.wall -= 10
    before = clocks.time()
    assert before == pytest.approx(1_700_000_000)
    for _ in range(100):
        after = clocks.go_on(0.5)
        assert after - before == pytest.approx(0.5 * (1 - SLOWED_BY))
        before = after
    for _ in range(1000):
        clocks.go_on(0.5)
    assert clocks.time() == pytest.approx(clocks.wall)


def test_the_daemons_timers_use_it() -> None:
    code = (
        "from mqbroker.daemons.process import install_reactor; install_reactor(); "
        "from twisted.internet import reactor; "
        "from mqbroker.daemons.epoll import MonotonicTime; "
        "from twisted.internet.error import ReactorNotRunning; "
        "assert isinstance(reactor.seconds, MonotonicTime); "
        "before = reactor.seconds(); "
        "call = reactor.callLater(0.01, reactor.stop); "
        "assert 0 < call.getTime() - before < 5; "
        "reactor.run(installSignalHandlers=False)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
