"""A broker whose disk cannot read: a start says so in one line, a running broker fails that read only."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqbroker.wire.codes import ResponseCode
from tests.daemons.failing_calls import Shim
from tests.daemons.history import QUEUES, files, pull, send_one
from tests.daemons.processes import Process
from tests.daemons.test_damaged_store import MESSAGES, SETTINGS, body_of, served
from tests.daemons.test_full_disk import without_log_lines

pytestmark = pytest.mark.daemons


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Shim]:
    failing = Shim(tmp_path)
    yield failing
    failing.end()


@pytest.fixture
def broker(daemon: Callable[..., Process], tmp_path: Path, failing: Shim) -> Callable[..., Process]:
    def start_broker() -> Process:
        settings = SETTINGS | {"storePathRootDir": tmp_path / "store"}
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        return daemon("broker", *options, environment=failing.environment)

    return start_broker


@pytest.fixture
def store(broker: Callable[..., Process], tmp_path: Path) -> Path:
    """The directory of a broker that was stopped, with five segments."""
    process = broker()
    port = process.wait_for_port()
    for n in range(MESSAGES):
        assert send_one(port, body_of(n), n % QUEUES).code == ResponseCode.SUCCESS
    assert process.stop() == 0
    return tmp_path / "store"


def leave_memory(path: Path) -> None:
    """Have the kernel forget what it has of a file that is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def test_a_start_that_cannot_read_the_log_says_so_and_changes_nothing(
    broker: Callable[..., Process], store: Path, failing: Shim
) -> None:
    before = files(store)
    for segment in (store / "commitlog").iterdir():
        leave_memory(segment)
    failing.begin(None, "pread", store / "commitlog")
    process = broker()
    assert process.wait() == 1
    failing.end()
    error = without_log_lines(process.err)
    assert error.startswith(f"mqbroker: {store}/commitlog/")
    assert "the disk cannot read it at byte " in error
    assert error.count("\n") == 1
    after = files(store)
    assert {name: after.get(name) for name in before if name.startswith(("commitlog", "consumequeue", "index"))} == {
        name: data for name, data in before.items() if name.startswith(("commitlog", "consumequeue", "index"))
    }
    process = broker()
    assert served(process.wait_for_port()) == {body_of(n) for n in range(MESSAGES)}
    assert process.stop() == 0


def test_a_read_that_fails_fails_alone(broker: Callable[..., Process], store: Path, failing: Shim) -> None:
    process = broker()
    port = process.wait_for_port()
    first = min((store / "commitlog").iterdir())
    leave_memory(first)
    failing.begin(None, "pread", first)
    answer = pull(port, 0, 0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the disk cannot read it" in answer.remark
    assert failing.hits > 0
    assert send_one(port, b"meanwhile", 0).code == ResponseCode.SUCCESS
    failing.end()
    assert served(port) == {body_of(n) for n in range(MESSAGES)} | {b"meanwhile"}
    assert process.stop() == 0
