"""What peers do to real daemons that read nothing, or send more than they seem to: bounded, and told of once."""

import contextlib
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.daemons.processes import DEADLINE_SECONDS, Process, ask, wait_for

MIB = 1024 * 1024
QUEUE: dict[str, Any] = {"topic": "BenchmarkTest", "queueId": 0}
BODY = bytes(60_000)


def resident_mib(process: Process) -> float:
    [line] = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) / 1024


def send(port: int) -> None:
    fields = {
        "producerGroup": "PG", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1,
        "flag": 0,
    }  # fmt: skip
    answer = ask(port, RequestCode.SEND_MESSAGE, BODY, **QUEUE, **fields)
    assert answer.code == ResponseCode.SUCCESS


def pull(opaque: int, **changes: Any) -> bytes:
    """For four messages, which are a quarter of a MiB."""
    fields = {
        **QUEUE, "consumerGroup": "CG", "queueOffset": 0, "maxMsgNums": 4, "sysFlag": int(PullSysFlag.SUBSCRIPTION),
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, **changes,
    }  # fmt: skip
    ext = {key: str(value) for key, value in fields.items()}
    return encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=opaque))


@pytest.fixture
def broker(daemon: Callable[..., Process], tmp_path: Path) -> Callable[..., Process]:
    def start(**settings: int) -> Process:
        options = {
            "storePathRootDir": tmp_path / "store",
            "mappedFileSizeCommitLog": MIB,
            "diskFreeBytesMin": 0,
            "waitTimeMillsInSendQueue": 30_000,
            "diskSpaceWarningLevelRatio": 100,
            **settings,
        }
        return daemon("broker", *(word for key, value in options.items() for word in ("-o", f"{key}={value}")))

    return start


def deaf(stack: contextlib.ExitStack, port: int, requests: int, **changes: int) -> socket.socket:
    """A connection over which as many pulls are sent, and nothing is read."""
    peer = stack.enter_context(socket.socket())
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", port))
    peer.settimeout(DEADLINE_SECONDS)
    with contextlib.suppress(OSError):  # it is not read any more, or closed
        peer.sendall(b"".join(pull(opaque, **changes) for opaque in range(requests)))
    return peer


def has_handled_all(process: Process, port: int) -> bool:
    """Whether the broker has read all that was sent to it, and its reactor sleeps since no request is left.

    The kernel's figures say so: nothing that a client asks for would, as other clients are served in between.
    """
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port and int(queues.partition(":")[2], 16):
            return False
    stat = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "S" for _ in range(100))


def is_closed(peer: socket.socket) -> bool:
    """Whether the other end closed it: what was sent before is read, then comes the end."""
    peer.settimeout(DEADLINE_SECONDS)
    try:
        while peer.recv(MIB):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def closings(process: Process, why: str) -> list[Any]:
    return [line for line in process.err.splitlines() if "closing 127.0.0.1:" in line and why in line]


def test_peers_that_ask_much_at_once_and_read_nothing(broker: Callable[..., Process]) -> None:
    process = broker(serverChannelMaxIdleTimeSeconds=3)
    port = process.wait_for_port()
    for _ in range(4):
        send(port)
    before = resident_mib(process)
    with contextlib.ExitStack() as stack:
        peers = [deaf(stack, port, 1000) for _ in range(30)]
        assert resident_mib(process) - before < 120, "what eight pulls are answered, for 30 peers"
        send(port)  # others are served
        wait_for(lambda: len(closings(process, "it did not read its answers for 3 s")) == 20, "twenty lines")
        send(port)
        assert all(map(is_closed, peers))
        assert len(closings(process, "")) == 20  # the other ten are counted, and told of a minute later
    assert process.stop() == 0
    assert "Traceback" not in process.err


def test_held_pulls_of_peers_that_read_nothing(broker: Callable[..., Process]) -> None:
    """All are answered at once when there is a message, and nothing is asked any more that reading could wait for."""
    process = broker(unsentBytesMax=8 * MIB)
    port = process.wait_for_port()
    send(port)
    before = resident_mib(process)
    with contextlib.ExitStack() as stack:
        held = {"queueOffset": 1, "suspendTimeoutMillis": 30_000, "sysFlag": 4 | int(PullSysFlag.SUSPEND)}
        peers = [deaf(stack, port, 1000, **held) for _ in range(10)]
        wait_for(lambda: has_handled_all(process, port), "all pulls are held")
        send(port)  # 60,000 bytes for each of 1000 pulls, ten times
        assert resident_mib(process) - before < 120, "what may be unsent, until the connection is closed"
        wait_for(lambda: len(closings(process, "bytes of them wait")) == 10, "ten lines")
        assert all(map(is_closed, peers))
        send(port)
    assert process.stop() == 0


def test_a_peer_that_reads_nothing_is_read_no_more_and_closed_in_time(broker: Callable[..., Process]) -> None:
    process = broker(serverChannelMaxIdleTimeSeconds=3)
    port = process.wait_for_port()
    for _ in range(4):
        send(port)
    before = resident_mib(process)
    with contextlib.ExitStack() as stack:
        # A few at a time: their answers are within what may wait unsent, and no more are read than are answered.
        peer = deaf(stack, port, 16)
        with contextlib.suppress(OSError):
            while True:
                peer.sendall(pull(0) * 16)
        assert resident_mib(process) - before < 128, "what may wait unsent, and what a part of one read is answered"
        wait_for(lambda: closings(process, " for 3 s"), "the line that says why")
        send(port)
        assert is_closed(peer)
        assert len(closings(process, "")) == 1
    assert process.stop() == 0


def test_peers_that_reset_while_their_responses_wait_cost_no_line(broker: Callable[..., Process]) -> None:
    process = broker()
    port = process.wait_for_port()
    for _ in range(4):
        send(port)
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            peers = [deaf(stack, port, 32) for _ in range(20)]
            wait_for(lambda: has_handled_all(process, port), "all pulls are answered, and the responses wait")
            for peer in peers:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        send(port)
    assert process.stop() == 0
    assert "Traceback" not in process.err
    assert "CRITICAL" not in process.err


def bomb(mib: int) -> bytes:
    """A registration that inflates to so much, of spaces."""
    packer = zlib.compressobj(9)
    return b"".join([packer.compress(b" " * MIB) for _ in range(mib)]) + packer.flush()


@pytest.mark.parametrize("mib", [64, 1024])
def test_a_registration_that_inflates_to_a_gigabyte(daemon: Callable[..., Process], mib: int) -> None:
    process = daemon("namesrv")
    port = process.wait_for_port()
    broker = {
        "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "haServerAddr": "10.0.0.1:10912",
        "brokerId": 0,
    }  # fmt: skip
    ask(port, RequestCode.GET_BROKER_CLUSTER_INFO)
    before = resident_mib(process)
    body = bomb(mib)
    assert len(body) < 2 * MIB
    for _ in range(3):
        answer = ask(port, RequestCode.REGISTER_BROKER, body, **broker, compressed="true")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    assert resident_mib(process) - before < 48
    assert b"broker-a" not in ask(port, RequestCode.GET_BROKER_CLUSTER_INFO).body
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS):
        assert process.stop() == 0
    assert "Traceback" not in process.err
    assert len(process.err.splitlines()) < 8
