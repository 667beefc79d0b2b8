"""A broker on a store that was damaged while it was stopped: it serves the rest and says what is gone, or says in one
line why it does not start, with nothing changed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.record import decode_records
from tests.daemons.forks import ForkServer
from tests.daemons.history import QUEUES, files, pull, send_one
from tests.daemons.processes import Process
from tests.daemons.test_full_disk import without_log_lines

pytestmark = pytest.mark.daemons

SEGMENT_BYTES = 64 * 1024
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 100,
    "maxIndexNum": 4000,
}
MESSAGES = 100


def body_of(n: int) -> bytes:
    return b"%04d-" % n + b"content " * 400


def options(store: Path) -> list[str]:
    settings = SETTINGS | {"storePathRootDir": store}
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


@pytest.fixture
def broker(daemon: Callable[..., Process], tmp_path: Path, forks: ForkServer) -> Callable[..., Process]:
    return lambda: daemon("broker", *options(tmp_path / "store"), forks=forks)


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Path:
    """The directory of a broker that was stopped, with five segments and some files of each queue."""
    folder = tmp_path_factory.mktemp("whole")
    store = folder / "store"
    ports = ("-o", "bindAddress=127.0.0.1", "-o", "listenPort=0", "--ports-file", "ports.json")
    process = Process(folder, ["-m", "mqbroker.daemons.broker", *ports, *options(store)], forks=forks)
    try:
        port = process.wait_for_port()
        for n in range(MESSAGES):
            assert send_one(port, body_of(n), n % QUEUES).code == ResponseCode.SUCCESS
        assert process.stop() == 0
    finally:
        process.end()
    assert len(list((store / "commitlog").iterdir())) >= 5
    return store


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Path:
    """A copy of it, of this test alone."""
    return Path(shutil.copytree(whole_store, tmp_path / "store"))


def served(port: int) -> set[bytes]:
    """Bodies by queue, with each pull from where the one before said."""
    bodies = set()
    for queue in range(QUEUES):
        offset = 0
        for _ in range(10 * MESSAGES):
            answer = pull(port, queue, offset)
            if answer.code == ResponseCode.SUCCESS:
                bodies |= {record.body for record in decode_records(answer.body)}
            elif answer.remark == "OFFSET_OVERFLOW_ONE":
                break
            offset = int(answer.ext_fields["nextBeginOffset"])
        else:
            pytest.fail(f"queue {queue} has no end: {answer}")
    return bodies


def test_a_rotten_body_is_not_served_and_told(broker: Callable[..., Process], store: Path) -> None:
    segment = store / "commitlog" / f"{SEGMENT_BYTES:020d}"
    data = segment.read_bytes()
    at = data.index(b"content content")
    rotten = int(data[at - 5 : at - 1])
    segment.write_bytes(data[:at] + b"k" + data[at + 1 :])
    process = broker()
    assert served(process.wait_for_port()) == {body_of(n) for n in range(MESSAGES) if n != rotten}
    assert f"{segment}: no record from offset " in process.err
    assert process.err.count("body CRC differs") == 1
    assert process.stop() == 0


def test_a_segment_of_zeros_takes_only_its_own_messages(broker: Callable[..., Process], store: Path) -> None:
    segment = store / "commitlog" / f"{SEGMENT_BYTES:020d}"
    gone = {body_of(n) for n in range(MESSAGES) if body_of(n) in segment.read_bytes()}
    assert 5 < len(gone) < MESSAGES // 2
    segment.write_bytes(bytes(SEGMENT_BYTES))
    process = broker()
    port = process.wait_for_port()
    assert served(port) == {body_of(n) for n in range(MESSAGES)} - gone
    assert send_one(port, body_of(MESSAGES)).code == ResponseCode.SUCCESS
    assert process.stop() == 0


def second_segment(store: Path) -> Path:
    return store / "commitlog" / f"{SEGMENT_BYTES:020d}"


def queue_file(store: Path) -> Path:
    return store / "consumequeue" / "Killed" / "1" / f"{200:020d}"


def missing_segment(store: Path) -> str:
    second_segment(store).unlink()
    third = store / "commitlog" / f"{2 * SEGMENT_BYTES:020d}"
    return f"{third} is damaged at byte 0: segment {SEGMENT_BYTES:020d} before it is missing"


def cut_segment(store: Path) -> str:
    os.truncate(second_segment(store), 1000)
    return f"{second_segment(store)} is damaged at byte 1000: 1000 bytes; mappedFileSizeCommitLog is {SEGMENT_BYTES}"


def foreign_file(store: Path) -> str:
    (store / "commitlog" / "notes.txt").write_text("mine")
    return (
        f"{store}/commitlog/notes.txt is damaged at byte 0: not a segment; mappedFileSizeCommitLog is {SEGMENT_BYTES}"
    )


def cut_queue_file(store: Path) -> str:
    os.truncate(queue_file(store), 100)
    return f"{queue_file(store)} is damaged at byte 100: 100 bytes; mappedFileSizeConsumeQueue is 200"


def rotten_topics(store: Path) -> str:
    for path in (store / "config").glob("topics.json*"):
        path.write_bytes(b"\0" * 100)
    return f"{store}/config/topics.json is damaged at byte 0: "


@pytest.mark.parametrize("damage", [missing_segment, cut_segment, foreign_file, cut_queue_file, rotten_topics])
def test_what_cannot_be_opened_is_one_line(
    broker: Callable[..., Process], store: Path, damage: Callable[..., str]
) -> None:
    line = damage(store)
    before = {name: data for name, data in files(store).items() if name not in ("lock", "abort")}
    process = broker()
    assert process.wait() == 1
    error = without_log_lines(process.err)
    assert error.startswith(f"mqbroker: {line}")
    assert error.count("\n") == 1
    after = {name: data for name, data in files(store).items() if name not in ("lock", "abort")}
    assert after.keys() >= before.keys()
    assert {name: after[name] for name in before if name.startswith(("commitlog", "consumequeue", "config"))} == {
        name: data for name, data in before.items() if name.startswith(("commitlog", "consumequeue", "config"))
    }


def test_without_consume_queues_and_index_they_are_built_anew(broker: Callable[..., Process], store: Path) -> None:
    for part in ("consumequeue", "index"):
        shutil.rmtree(store / part)
    process = broker()
    assert served(process.wait_for_port()) == {body_of(n) for n in range(MESSAGES)}
    assert process.stop() == 0


@pytest.mark.parametrize("lost", ["a file", "zeros in a file", "the folder"])
def test_what_a_consume_queue_lost_is_built_anew_and_told(
    broker: Callable[..., Process], store: Path, lost: str
) -> None:
    path = queue_file(store)
    if lost == "a file":
        path.unlink()
    elif lost == "the folder":
        shutil.rmtree(path.parent)
    else:
        path.write_bytes(bytes(path.stat().st_size))
    process = broker()
    port = process.wait_for_port()
    assert served(port) == {body_of(n) for n in range(MESSAGES)}
    assert send_one(port, body_of(MESSAGES), 1).code == ResponseCode.SUCCESS
    assert served(port) == {body_of(n) for n in range(MESSAGES + 1)}
    assert ("are rebuilt" if lost == "zeros in a file" else "are rebuilt from the log") in process.err
    assert process.stop() == 0
