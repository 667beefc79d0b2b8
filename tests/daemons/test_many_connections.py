"""More connections than a daemon takes, on real sockets: bounded, told of once, and others go on being served."""

import contextlib
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.daemons.permits import skip
from tests.daemons.processes import DEADLINE_SECONDS, Process, ask, ask_on, receive, wait_for

MANY = 10_000
TOO_MANY = 300
FILES_BESIDE = 1500
ADDRESSES = [f"127.0.0.{n}" for n in range(1, 6)]


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process have the connections open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MANY + FILES_BESIDE:
        skip("ten thousand connections", f"{hard} files may be open (ulimit -Hn), {MANY + FILES_BESIDE} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def connect(sockets: contextlib.ExitStack, port: int, count: int) -> list[socket.socket]:
    """Open connections from several addresses in turn: one alone has not that many ports."""
    opened = []
    for n in range(count):
        connection = sockets.enter_context(socket.socket())
        connection.settimeout(DEADLINE_SECONDS)
        connection.bind((ADDRESSES[n % len(ADDRESSES)], 0))
        with contextlib.suppress(ConnectionError):  # where it is refused before this is told that it is there
            connection.connect(("127.0.0.1", port))
        opened.append(connection)
    return opened


def is_open(connection: socket.socket) -> bool:
    """Whether the daemon answers on it; waits until it does, or closes it."""
    try:
        return ask_on(connection, 9999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    except (AssertionError, OSError):
        return False


def all_answered(connections: list[socket.socket]) -> None:
    """Ask over all of them, then read all answers."""
    request = encode_command(RemotingCommand(9999))
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        receive(connection, int.from_bytes(receive(connection, 4), "big"))


def resident_mib(process: Process) -> float:
    [line] = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) / 1024


def lines_of(process: Process, text: str) -> list[str]:
    return [line for line in (process.out + process.err).splitlines() if text in line]


@pytest.mark.parametrize("name", ["broker", "namesrv"])
def test_ten_thousand_connections_and_more(
    daemon: Callable[..., Process], tmp_path: Path, sockets: contextlib.ExitStack, many_files: None, name: str
) -> None:
    settings = [*("-o", f"connectionsMax={MANY}"), *("-o", f"connectionsPerAddressMax={MANY // len(ADDRESSES) + 200}")]
    if name == "broker":
        settings += ["-o", f"storePathRootDir={tmp_path / 'store'}", "-o", "mappedFileSizeCommitLog=1048576"]
    process = daemon(name, *settings)
    port = process.wait_for_port()
    all_answered(connect(sockets, port, 10))
    lines_before = len((process.out + process.err).splitlines())
    memory_before = resident_mib(process)
    connections = connect(sockets, port, MANY - 10)
    all_answered(connections)
    memory = resident_mib(process) - memory_before
    assert memory < MANY * 16 / 1024, f"{memory:.0f} MiB for {MANY} connections"
    # One more is closed at once, and so are hundreds; those there are go on.
    refused = connect(sockets, port, TOO_MANY)
    assert not any(map(is_open, refused))
    assert is_open(connections[0])
    assert is_open(connections[-1])
    process.wait_for_line(f"{MANY} connections are open: no more are taken")
    assert len(lines_of(process, "no more are taken")) == 1
    assert len((process.out + process.err).splitlines()) <= lines_before + 2
    assert resident_mib(process) - memory_before < MANY * 16 / 1024
    # Who comes when some have gone is served.
    for connection in connections[:100]:
        connection.close()

    def served() -> bool:
        with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS, (ADDRESSES[0], 0)) as connection:
            return is_open(connection)

    wait_for(served, "a new connection is served")
    sockets.close()
    assert process.stop() == 0


def limited(folder: Path, nofile: int) -> list[str]:
    """The command that lets another one have so few files open."""
    if shutil.which("prlimit") is None:
        skip("fewer open files", "there is no prlimit")
    return ["prlimit", f"--nofile={nofile}:{nofile}", "--"]


def test_few_files(daemon: Callable[..., Process], tmp_path: Path, sockets: contextlib.ExitStack) -> None:
    """Connections leave files to the store, however many come."""
    process = daemon(
        "broker",
        *("-o", f"storePathRootDir={tmp_path / 'store'}"),
        *("-o", "mappedFileSizeCommitLog=65536", "-o", "diskFreeBytesMin=0", "-o", "diskSpaceWarningLevelRatio=100"),
        wrapper=lambda folder: limited(folder, 400),
    )
    port = process.wait_for_port()
    process.wait_for_line("boot success")
    [warning] = lines_of(process, "connectionsMax=20000 cannot be reached")
    assert "400 files may be open, of which 100 are reserved" in warning
    connections = connect(sockets, port, 500)
    served = [connection for connection in connections if is_open(connection)]
    assert 200 < len(served) < 300
    assert served == connections[: len(served)]
    process.wait_for_line("no more are taken; raise ulimit -n")
    assert len(lines_of(process, "no more are taken")) == 1
    # What the store needs now it has: the files of thirty queues, and another segment of the log.
    for queue_id in range(30):
        fields = {
            "producerGroup": "PG", "topic": "BenchmarkTest", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": queue_id, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
        }  # fmt: skip
        answer = ask_on(served[0], RequestCode.SEND_MESSAGE, bytes(4000), **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    for connection in served[100:]:
        connection.close()
    wait_for(lambda: ask_or_none(port) is not None, "a new connection is served")
    again = [connection for connection in connect(sockets, port, 300) if is_open(connection)]
    assert 0 < len(again) <= len(served) - 100
    assert len(lines_of(process, "closed at once")) == 0
    assert process.stop() == 0


def ask_or_none(port: int) -> RemotingCommand:
    try:
        return ask(port, 9999)
    except (AssertionError, OSError):
        return None


def test_no_file_at_all(start: Callable[..., Process], sockets: contextlib.ExitStack) -> None:
    """Where even those that are kept are gone the port goes on, closes who comes, and says so once a minute."""
    script = """if True:
        import os, sys
        from twisted.internet import reactor
        from twisted.internet.protocol import Protocol, ServerFactory
        from twisted.logger import globalLogBeginner, textFileLogObserver
        from mqbroker.remoting.tcp import listen

        class Echo(Protocol):
            def dataReceived(self, data):
                self.transport.write(data)

        globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)], redirectStandardIO=False)
        port = listen(reactor, 0, ServerFactory.forProtocol(Echo), interface="127.0.0.1")
        with open("ports.tmp", "w") as file:
            file.write('{"remoting": %d}' % port.getHost().port)
        os.rename("ports.tmp", "ports.json")
        reactor.run()
    """
    process = start("-c", script, wrapper=lambda folder: limited(folder, 40))
    port = process.wait_for_port()
    connections = connect(sockets, port, 200)

    def echoes(connection: socket.socket) -> bool:
        try:
            connection.sendall(b"x")
            return connection.recv(1) == b"x"
        except OSError:
            return False

    taken = [connection for connection in connections if echoes(connection)]
    assert 10 < len(taken) < 40
    assert taken == connections[: len(taken)]
    process.wait_for_line("no more files may be open; raise ulimit -n")
    began = time.monotonic()
    assert len(process.out.splitlines()) < 5 + (time.monotonic() - began) // 60
    for connection in taken:
        connection.close()
    wait_for(lambda: echoes(connect(sockets, port, 1)[0]), "a new connection is served")
