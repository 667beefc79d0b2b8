"""mqbroker as a process: under a name server, signals, bad input that touches nothing."""

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.daemons.processes import Process, ask, wait_for

pytestmark = pytest.mark.daemons


@pytest.fixture
def broker(daemon: Callable[..., Process], tmp_path: Path) -> Callable[..., Process]:
    """Start a broker with a small store in `tmp_path`/store."""

    def start_broker(*arguments: str | Path, port: int = 0, store: Path = tmp_path / "store") -> Process:
        settings = {
            "brokerName": "broker-a",
            "storePathRootDir": store,
            "mappedFileSizeCommitLog": 1024 * 1024,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 100,
            "maxIndexNum": 400,
        }
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        return daemon("broker", *options, *arguments, port=port)

    return start_broker


def route(namesrv_port: int, topic: str) -> RemotingCommand:
    return ask(namesrv_port, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)


def test_it_registers_while_it_runs(daemon: Callable[..., Process], broker: Callable[..., Process]) -> None:
    namesrv = daemon("namesrv")
    namesrv_port = namesrv.wait_for_port()
    process = broker("-n", f"127.0.0.1:{namesrv_port}")
    port = process.wait_for_port()
    answer = route(namesrv_port, "TBW102")
    assert answer.code == ResponseCode.SUCCESS
    found = json.loads(answer.body)["brokerDatas"]
    assert found == [{"brokerName": "broker-a", "cluster": "DefaultCluster", "brokerAddrs": {"0": f"127.0.0.1:{port}"}}]
    line = f"The broker[broker-a, 127.0.0.1:{port}] boot success. serializeType=JSON"
    process.wait_for_line(f"{line} and name server is 127.0.0.1:{namesrv_port}\n")
    assert process.stop() == 0
    assert "Traceback" not in process.err
    assert route(namesrv_port, "TBW102").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_killed_one_leaves_the_routes_at_once(daemon: Callable[..., Process], broker: Callable[..., Process]) -> None:
    namesrv_port = daemon("namesrv").wait_for_port()
    process = broker("-n", f"127.0.0.1:{namesrv_port}")
    process.wait_for_port()
    process.signal(signal.SIGKILL)
    wait_for(lambda: route(namesrv_port, "TBW102").code == ResponseCode.TOPIC_NOT_EXIST, "route gone")


def test_it_lives_through_signals_and_starts_again(broker: Callable[..., Process], tmp_path: Path) -> None:
    process = broker()
    port = process.wait_for_port()
    process.signal(signal.SIGUSR1)
    process.signal(signal.SIGHUP)
    process.wait_for_line("settings that differ from the start: 0")
    answer = ask(port, RequestCode.GET_MAX_OFFSET, topic="TBW102", queueId=0)
    assert answer.ext_fields == {"offset": "0"}
    assert (tmp_path / "store" / "abort").exists()
    assert process.stop() == 0
    assert not (tmp_path / "store" / "abort").exists()
    again = broker()
    again.wait_for_port()
    assert again.stop() == 0


def test_a_stop_in_which_not_all_is_kept_ends_with_1(broker: Callable[..., Process], tmp_path: Path) -> None:
    process = broker()
    process.wait_for_port()
    config = tmp_path / "store" / "config"
    config.write_bytes(b"where the directory of the tables belongs")
    assert process.stop() == 1
    assert f"{config}/topics.json could not be written" in process.err
    assert "mqbroker did not stop cleanly: see the errors above" in process.err


def test_a_port_in_use_touches_nothing(broker: Callable[..., Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = broker(port=port)
        assert process.wait() == 1
    assert process.err == (
        f"mqbroker: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop what has the port, or set another listenPort\n"
    )
    assert not (tmp_path / "store").exists()


def test_a_locked_store_is_one_line(broker: Callable[..., Process], tmp_path: Path) -> None:
    holder = broker()
    holder.wait_for_port()
    wait_for((tmp_path / "store" / "checkpoint").exists, "the first checkpoint")
    before = sorted(tmp_path.glob("store/**/*"))
    second = broker()
    assert second.wait() == 1
    lock = tmp_path / "store" / "lock"
    assert second.err == (
        f"mqbroker: {lock} is locked: process {holder.pid} has it open; stop that first:"
        " each broker has a directory of its own\n"
    )
    assert sorted(tmp_path.glob("store/**/*")) == before
    assert holder.stop() == 0


def test_a_directory_that_cannot_be_made_is_one_line(broker: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = broker(store=tmp_path / "file" / "store")
    assert process.wait() == 1
    assert process.err == f"mqbroker: {tmp_path}/file/store: Not a directory\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("flushDiskType=FAST", "'FAST' is not one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("namesrvAddr=nowhere", "'nowhere' is not host:port; write for example 127.0.0.1:9876;192.168.0.1:9876"),
        ("aclEnable=true", "set rocketmqHome too: the accounts are in its conf/plain_acl.yml"),
    ],
)
def test_a_wrong_setting_touches_nothing(
    broker: Callable[..., Process], tmp_path: Path, line: str, message: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"# one\n{line}\n")
    process = broker("-c", conf)
    assert process.wait() == 1
    assert process.err == f"mqbroker: {conf}:2: {line.partition('=')[0]}: {message}\n"
    assert not (tmp_path / "store").exists()


def test_a_locked_store_ends_twistd_with_1(
    start: Callable[..., Process], broker: Callable[..., Process], tmp_path: Path
) -> None:
    holder = broker()
    holder.wait_for_port()
    twistd = "import sys; from twisted.scripts.twistd import run; sys.argv[0] = 'twistd'; run()"
    process = start(
        *("-c", twistd, "-n", "--pidfile=pid", "mqbroker", "--option=bindAddress=127.0.0.1", "--option=listenPort=0"),
        f"--option=storePathRootDir={tmp_path}/store",
    )
    assert process.wait() == 1
    assert process.out.count(f"cannot start: {tmp_path}/store/lock is locked: process {holder.pid} has it open") == 1
    assert "Traceback" not in process.out + process.err
    assert not (process.folder / "pid").exists()


def test_under_twistd(start: Callable[..., Process], tmp_path: Path) -> None:
    twistd = "import sys; from twisted.scripts.twistd import run; sys.argv[0] = 'twistd'; run()"
    process = start(
        *("-c", twistd, "-n", "--pidfile=", "mqbroker", "--ports-file=ports.json", "--option=bindAddress=127.0.0.1"),
        *("--option=listenPort=0", f"--option=storePathRootDir={tmp_path}/store", "--option=maxIndexNum=400"),
        *("--option=mappedFileSizeCommitLog=1048576", "--option=maxHashSlotNum=100"),
    )
    port = process.wait_for_port()
    # An answer says that the reactor runs, which twistd starts after the service, and takes signals.
    assert ask(port, RequestCode.GET_MAX_OFFSET, topic="TBW102", queueId=0).code == ResponseCode.SUCCESS
    process.signal(signal.SIGTERM)
    assert process.wait() in (0, -signal.SIGTERM)
    assert not (tmp_path / "store" / "abort").exists()
