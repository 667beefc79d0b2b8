"""How-to pages that need Java's tools or its broker: followed as they stand, with what they print.

Java's commands are in `$APACHE/bin`, as in a distribution of Apache's; `new` is another environment with the package.
"""

import shlex
import sys
from pathlib import Path

import pytest

from tests.daemons.processes import SOURCE
from tests.interop.java import JavaSystem
from tests.sessions import follow, reader_environment

HOWTO = Path(__file__).parent.parent.parent / "docs" / "howto"
MAINS = {
    "mqadmin": "org.apache.rocketmq.tools.command.MQAdminStartup",
    "mqbroker": "org.apache.rocketmq.broker.BrokerStartup",
    "mqnamesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
}


@pytest.fixture
def environment(java: JavaSystem, tmp_path: Path) -> dict[str, str]:
    """A reader's, with the Java system in $APACHE, and its mqadmin on the path."""
    apache, path = tmp_path / "apache", tmp_path / "path"
    (apache / "bin").mkdir(parents=True)
    path.mkdir()
    for name, main in MAINS.items():
        script = apache / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(java.command(apache, main))} "$@"\n')
        script.chmod(0o755)
    (path / "mqadmin").symlink_to(apache / "bin" / "mqadmin")
    found = reader_environment(tmp_path, PYTHONPATH=SOURCE, APACHE=str(apache))
    return {**found, "PATH": f"{path}:{found['PATH']}"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Where the reader is."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "new").symlink_to(sys.prefix)
    return work


@pytest.mark.thorough
def test_brokers_are_restarted_and_upgraded_without_a_failed_send(environment: dict[str, str], work: Path) -> None:
    assert follow([HOWTO / "drain.rst", HOWTO / "upgrade.rst"], work, environment) > 30


@pytest.mark.thorough
def test_a_store_is_moved_from_the_java_broker_and_back(environment: dict[str, str], work: Path) -> None:
    assert follow([HOWTO / "move.rst"], work, environment) > 20


@pytest.mark.thorough
def test_a_topic_is_created_by_mqadmin(environment: dict[str, str], work: Path) -> None:
    assert follow([HOWTO / "create-topics.rst"], work, environment) == 3
