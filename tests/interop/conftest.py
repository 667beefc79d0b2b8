"""Fixtures of the comparison with the Java system: fleets of daemons, and their output in the report of a failure."""

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.interop.etcd import Etcd
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.history import Pause, pause_lines
from tests.interop.java import JavaMissing, JavaSystem, java_system
from tests.interop.peers import PeerHost
from tests.interop.raw import Line
from tests.interop.sample_store import Sample, fill


@pytest.fixture(scope="session")
def java() -> JavaSystem:
    try:
        return java_system()
    except JavaMissing as missing:
        pytest.exit(f"the interop tests need the Java system: {missing}", returncode=1)


@pytest.fixture(scope="session")
def host(java: JavaSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerHost]:
    """Where the Java clients of all tests run."""
    host = PeerHost("peers", java, tmp_path_factory.mktemp("peers"))
    yield host
    host.kill()


@pytest.fixture
def fleet(java: JavaSystem, host: PeerHost, tmp_path: Path) -> Iterator[Fleet]:
    """Daemons and clients of this test alone."""
    fleet = Fleet(tmp_path, java, host)
    yield fleet
    fleet.stop_all()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One of three members, of this test alone."""
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.stop_all()


@pytest.fixture
def quick_fleet(java: JavaSystem, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose clients look after their queues every second, not every twenty."""
    host = PeerHost("quick-peers", java, tmp_path, jvm=["-Drocketmq.client.rebalance.waitInterval=1000"])
    fleet = Fleet(tmp_path, java, host)
    yield fleet
    fleet.stop_all()
    host.kill()


@pytest.fixture(scope="session")
def shared_fleet(java: JavaSystem, host: PeerHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Daemons that several tests use at once, each with topics of its own."""
    fleet = Fleet(tmp_path_factory.mktemp("shared"), java, host)
    yield fleet
    fleet.stop_all()


@pytest.fixture(autouse=True)
def no_failures_in_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test in which a daemon of ours logs an unexpected error fails, whatever its clients made of it."""
    yield
    for fleet in _fleets(request.node):
        fleet.check_logs()


@pytest.fixture(scope="session")
def our_namesrv(shared_fleet: Fleet) -> Namesrv:
    return shared_fleet.namesrv("ours")


@pytest.fixture(scope="session")
def our_broker(shared_fleet: Fleet, our_namesrv: Namesrv) -> Broker:
    return shared_fleet.broker("ours", our_namesrv)


@pytest.fixture(scope="session")
def java_namesrv(shared_fleet: Fleet) -> Namesrv:
    return shared_fleet.namesrv("java")


@pytest.fixture(scope="session")
def java_broker(shared_fleet: Fleet, java_namesrv: Namesrv) -> Broker:
    return shared_fleet.broker("java", java_namesrv)


@pytest.fixture(scope="session")
def sample_stores(shared_fleet: Fleet, our_namesrv: Namesrv) -> dict[Sample, Broker]:
    """The brokers that wrote a sample store each, on their way to stop: `stop` them before using their stores."""
    made: dict[Sample, Broker] = {}
    for sample in Sample:
        made[sample] = shared_fleet.broker(sample.writer, our_namesrv, brokerName=sample.value, **sample.settings)
        with closing(Line(made[sample].addr)) as line:
            fill(line, sample)
        made[sample].process.begin_stop()
    return made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test alone, and of this run of it where it is run again."""
    run = getattr(request.node, "execution_count", 1)
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    return name if run == 1 else f"{name}-{run}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for fleet in _fleets(item):
            report.sections.append(("processes", fleet.report()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print for how long nothing was acknowledged, by kind of fault."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    reports = [report for report in reports if isinstance(report, pytest.TestReport) and report.when == "call"]
    told = [value for report in reports for name, value in report.user_properties if name == "pause"]
    if told:
        terminalreporter.section("pauses without SEND_OK")
        for line in pause_lines([Pause(*pause) for pause in told]):
            terminalreporter.line(line)


def _fleets(item: pytest.Item) -> list[Fleet]:
    """Those that a test uses."""
    found = {id(each): each for each in getattr(item, "funcargs", {}).values() if isinstance(each, Fleet)}
    return list(found.values())
