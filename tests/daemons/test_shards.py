"""A broker of several shards as it runs: by the console script, by twistd, and what becomes of it when a part dies."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from mqbroker.config.shards import PORT_STEP
from mqbroker.wire.bodies import ClusterInfo, KVTable, TopicRouteData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.headers import SendMessageRequestHeader, encode_header
from tests.daemons.processes import DEADLINE_SECONDS, SOURCE, Process, ask, wait_for
from tests.daemons.small_disks import SmallDisk
from tests.daemons.test_twistd import TWISTD, Background, background, settings
from tests.interop.processes import free_ports

pytestmark = pytest.mark.daemons

__all__ = ["background"]


@pytest.fixture
def broker(daemon: Callable[..., Process], tmp_path: Path) -> Callable[..., Process]:
    """Start a broker of two shards with small stores in `tmp_path`/store."""

    def start_broker(*arguments: str | Path, port: int = 0, shards: int = 2, **options: object) -> Process:
        given = [part.replace("--option=", "") for part in settings(tmp_path)[2:]]
        chosen = [part for setting in ("brokerName=a", f"shards={shards}", *given) for part in ("-o", setting)]
        return daemon("broker", *chosen, *arguments, port=port, **options)

    return start_broker


def pids_of(process: Process) -> list[int]:
    """The processes of the shards, by their numbers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in children}
    found = {part: pid for pid, command in commands.items() for part in command if part.startswith(b"--shard=")}
    return [found[part] for part in sorted(found)]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def ports(process: Process) -> list[int]:
    process.wait_for_port()
    return [each["remoting"] for each in json.loads(process.ports_file.read_text())["shards"]]


def runtime_info(port: int) -> dict[str, str]:
    return KVTable.from_json(ask(port, RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def test_two_shards_are_two_brokers_of_the_name_server(
    daemon: Callable[..., Process], broker: Callable[..., Process], tmp_path: Path
) -> None:
    namesrv = daemon("namesrv").wait_for_port()
    process = broker("-n", f"127.0.0.1:{namesrv}", "--pid-file", "pid")
    first, second = ports(process)
    info = ClusterInfo.from_json(ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body)
    addresses = {name: data.broker_addrs for name, data in info.broker_addr_table.items()}
    assert addresses == {"a": {0: f"127.0.0.1:{first}"}, "a-1": {0: f"127.0.0.1:{second}"}}
    told = [{key: runtime_info(port).get(key) for key in ("shardOf", "shard", "shards")} for port in (first, second)]
    assert told == [{"shardOf": "a", "shard": str(shard), "shards": "2"} for shard in (0, 1)]
    process.wait_for_line(f"The broker[a-1, 127.0.0.1:{second}] boot success. serializeType=JSON and name server is")
    assert [line.partition("]")[0] for line in process.out.splitlines()] == [
        f"The broker[a, 127.0.0.1:{first}",
        f"The broker[a-1, 127.0.0.1:{second}",
    ]
    assert (process.folder / "pid").read_text() == f"{process.pid}\n"
    pids = pids_of(process)
    assert len(pids) == 2
    assert process.stop() == 0
    assert all(map(is_gone, pids))
    assert not ({"pid", "ports.json"} & {path.name for path in process.folder.iterdir()})
    lines = process.err.splitlines()
    for shard in (0, 1):
        assert sum(line.startswith(f"shard {shard}: ") and line.endswith("] mqbroker stopped") for line in lines) == 1
    assert lines[-1].endswith("[mqbroker.daemons.console] mqbroker stopped")
    for store in (tmp_path / "store", tmp_path / "store" / "shard-1"):
        assert (store / "checkpoint").exists()
        assert not (store / "abort").exists()


def test_a_shard_that_is_killed_comes_again_and_the_other_serves(broker: Callable[..., Process]) -> None:
    process = broker()
    first, _ = ports(process)
    pids = pids_of(process)
    os.kill(pids[1], signal.SIGKILL)
    process.wait_for_line("shard 1 exited: it was killed by SIGKILL; restarting it in 1 s")
    assert ask(first, RequestCode.GET_MAX_OFFSET, topic="TBW102", queueId=0).code == ResponseCode.SUCCESS
    process.wait_for_line("shard 1 serves again")
    assert pids_of(process)[0] == pids[0]
    assert process.stop() == 0


def test_a_topic_that_a_send_creates_on_one_is_on_all_and_survives(
    daemon: Callable[..., Process], broker: Callable[..., Process]
) -> None:
    namesrv = daemon("namesrv").wait_for_port()

    def brokers_of(topic: str) -> set[str]:
        answer = ask(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        if answer.code != ResponseCode.SUCCESS:
            return set()
        return {each.broker_name for each in TopicRouteData.from_json(answer.body).queue_datas}

    def send(port: int, topic: str) -> None:
        header = SendMessageRequestHeader(
            producer_group="P", topic=topic, default_topic="TBW102", default_topic_queue_nums=3, queue_id=0, sys_flag=0,
            born_timestamp=0, flag=0,
        )  # fmt: skip
        assert ask(port, RequestCode.SEND_MESSAGE, b"body", **encode_header(header)).code == ResponseCode.SUCCESS

    process = broker("-n", f"127.0.0.1:{namesrv}", shards=3)
    for round_, port in enumerate(ports(process)):
        send(port, f"T{round_}")
        wait_for(lambda topic=f"T{round_}": brokers_of(topic) == {"a", "a-1", "a-2"}, "the topic on all shards")
    assert process.stop() == 0
    process = broker("-n", f"127.0.0.1:{namesrv}", shards=3)
    ports(process)
    assert brokers_of("T1") == {"a", "a-1", "a-2"}
    os.kill(pids_of(process)[2], signal.SIGKILL)
    process.wait_for_line("shard 2 exited")
    send(ports(process)[0], "Missed")
    wait_for(lambda: brokers_of("Missed") == {"a", "a-1", "a-2"}, "the topic on the one that was away")
    assert process.stop() == 0


def test_a_killed_supervisor_leaves_no_shard_behind(broker: Callable[..., Process], tmp_path: Path) -> None:
    process = broker()
    ports(process)
    pids = pids_of(process)
    process.signal(signal.SIGKILL)
    wait_for(lambda: all(map(is_gone, pids)), "end of the shards")
    assert not list(tmp_path.glob("store/**/abort"))
    again = broker()
    again.wait_for_port()
    assert again.stop() == 0


def test_ctrl_c_stops_each_once(broker: Callable[..., Process], tmp_path: Path) -> None:
    process = broker(wrapper=lambda folder: ["setsid"])
    ports(process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 0
    assert process.err.count("the supervisor: stopping\n") == 2
    assert "stopping already" not in process.err
    assert "Traceback" not in process.err
    assert not list(tmp_path.glob("store/**/abort"))


def test_a_port_in_use_ends_the_start_of_all(broker: Callable[..., Process], tmp_path: Path) -> None:
    first = free_ports(shards=2)
    port = first + PORT_STEP
    with socket.create_server(("127.0.0.1", port)):
        process = broker(port=first)
        assert process.wait() == 1
    why = (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; stop what has the port, or set another listenPort"
    )
    assert [line for line in process.err.splitlines() if "cannot listen" in line] == [f"mqbroker: shard 1: {why}"]
    assert "stopping already" not in process.err
    assert process.out == ""
    assert not (tmp_path / "store" / "shard-1").exists()
    assert not (tmp_path / "store" / "abort").exists()


def test_a_locked_store_of_one_ends_the_start_of_all(broker: Callable[..., Process], tmp_path: Path) -> None:
    holder = broker()
    ports(holder)
    second = broker(shards=3)
    assert second.wait() == 1
    assert f"{tmp_path}/store" in second.err
    assert " is locked: process " in second.err
    assert holder.stop() == 0


def test_a_full_disk_of_one_ends_the_start_of_all(broker: Callable[..., Process], tmp_path: Path) -> None:
    disk = SmallDisk("tmpfs", tmp_path, 512 * 1024)  # a segment is larger
    try:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "shard-1").symlink_to(disk.path)
        process = broker(wrapper=disk.wrapper)
        assert process.wait() == 1
    finally:
        disk.end()
    assert process.out == ""
    [line] = [line for line in process.err.splitlines() if line.startswith("mqbroker: ")]
    assert line.startswith(f"mqbroker: shard 1: {tmp_path}/store/shard-1/commitlog")
    assert "No space left on device" in line
    assert not (tmp_path / "store" / "abort").exists()


def test_slaves_follow_shard_by_shard_and_are_promoted_together(
    daemon: Callable[..., Process], broker: Callable[..., Process], tmp_path: Path
) -> None:
    namesrv = f"127.0.0.1:{daemon('namesrv').wait_for_port()}"
    where = ("-n", namesrv, "-o", "brokerIP2=127.0.0.1", "-o", "haListenPort=0")
    conf = tmp_path / "slave.conf"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: [127.0.0.1]\n")
    acl = ("-o", "aclEnable=true", "-o", f"rocketmqHome={tmp_path}", "-o", "haWhiteRemoteAddresses=127.0.0.1")
    conf.write_text("brokerRole=SLAVE\nbrokerId=1\n")
    master = broker(*where, *acl)
    ports(master)
    slave = broker(*where, *acl, "-c", conf, "-o", f"storePathRootDir={tmp_path}/slave")
    ports(slave)
    wait_for(lambda: mq("ha", "status", "a", "-n", namesrv).returncode == 0, "both slaves to follow")
    shown = mq("brokers", "-n", namesrv).stdout.splitlines()
    assert [(row[1], row[2], row[-1]) for row in (line.split("\t") for line in shown)] == [
        ("a", "0", "2 shards"),
        ("a", "1", "2 shards"),
    ]
    assert "stop it first" in mq("ha", "promote", "a", "-n", namesrv).stderr
    assert master.stop() == 0
    promoted = mq("ha", "promote", "a", "-n", namesrv)
    assert (promoted.returncode, promoted.stderr) == (0, "")
    assert [line.partition(" at ")[0] for line in promoted.stdout.splitlines()] == ["a", "a-1"]
    assert conf.read_text() == "brokerRole=ASYNC_MASTER\nbrokerId=0\n"
    assert slave.stop() == 0


def mq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqbroker.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": SOURCE}, timeout=DEADLINE_SECONDS, check=False
    )


def test_each_line_of_a_log_of_json_is_an_object(broker: Callable[..., Process]) -> None:
    process = broker("--log-format=json")
    ports(process)
    assert process.stop() == 0
    found = [json.loads(line) for line in process.err.splitlines()]
    assert {event.get("shard") for event in found} == {0, 1, None}
    stopped = [event.get("shard") for event in found if event["msg"] == "mqbroker stopped"]
    assert (sorted(stopped[:2]), stopped[2:]) == ([0, 1], [None])


def test_settings_are_changed_in_the_common_file_and_read_by_all(
    broker: Callable[..., Process], tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# ours\nfileReservedTime=72\n")
    process = broker("-c", conf)
    first, second = ports(process)
    assert ask(second, RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=9\n").code == ResponseCode.SUCCESS
    assert conf.read_text() == "# ours\nfileReservedTime=9\n"

    def reserved(port: int) -> bytes:
        [line] = [
            line for line in ask(port, RequestCode.GET_BROKER_CONFIG).body.splitlines() if b"fileReserved" in line
        ]
        return line.partition(b"=")[2]

    assert (reserved(first), reserved(second)) == (b"72", b"9")
    conf.write_text("fileReservedTime=soon\n")
    process.signal(signal.SIGHUP)
    process.wait_for_line(f"not reloaded: {conf}:1: fileReservedTime: 'soon' is not a whole number")
    conf.write_text("fileReservedTime=10\n")
    process.signal(signal.SIGHUP)
    wait_for(lambda: (reserved(first), reserved(second)) == (b"10", b"10"), "the change at both")
    assert process.err.count("not reloaded") == 1
    assert process.stop() == 0


def test_another_number_of_shards_waits_for_a_restart(daemon: Callable[..., Process], tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("shards=2\n")
    options = [part.replace("--option=", "") for part in settings(tmp_path)[2:]]
    process = daemon("broker", "-c", str(conf), *(part for option in options for part in ("-o", option)))
    first, _ = ports(process)
    conf.write_text("shards=3\n")
    os.kill(pids_of(process)[1], signal.SIGKILL)
    process.wait_for_line("shard 1 serves again")  # as one of two
    assert runtime_info(first)["shards"] == "2"
    process.signal(signal.SIGHUP)
    process.wait_for_line("shards=3 takes effect after a restart")
    assert process.stop() == 0


def test_a_store_that_nobody_would_serve_prevents_the_start(broker: Callable[..., Process], tmp_path: Path) -> None:
    log = tmp_path / "store" / "shard-1" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(b"\0\0\0\x80".ljust(4096, b"\0"))
    refused = broker(shards=1)
    assert refused.wait() == 1
    assert refused.err == (
        f"mqbroker: shards=1, and there are messages of others: {log}; set shards=2 to serve them, or "
        "unservedShardsEnable=true to start without them\n"
    )
    left = broker("-o", "unservedShardsEnable=true", shards=1)
    left.wait_for_port()
    assert f"there are messages of others: {log}, which are not served" in left.err
    assert left.stop() == 0


def test_twistd_in_the_background_comes_back_when_all_serve(background: Background, tmp_path: Path) -> None:
    started = background.start("mqbroker", "--ports-file=ports.json", "--option=shards=2", *settings(tmp_path))
    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
    assert len(json.loads((background.folder / "ports.json").read_text())["shards"]) == 2
    background.stop("mqbroker.pid")
    lines = (background.folder / "mqbroker.log").read_text().splitlines()
    assert sum(line.startswith("shard 1: ") and line.endswith("] mqbroker stopped") for line in lines) == 1
    assert not list(tmp_path.glob("store/**/abort"))


def test_twistd_says_why_a_shard_cannot_start(background: Background, tmp_path: Path) -> None:
    with ExitStack() as held:
        while True:  # until the port of the other shard is free
            port = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with suppress(OSError):
                socket.create_server(("127.0.0.1", port - 10)).close()
                break
        options = [*settings(tmp_path), f"--option=listenPort={port - 10}", "--option=shards=2"]
        started = background.start("mqbroker", *options)
    assert started.returncode == 1
    assert started.stderr.startswith(f"shard 1: cannot listen on 127.0.0.1:{port}: Address already in use")
    wait_for(lambda: not (background.folder / "mqbroker.pid").exists(), "end of twistd")


def test_twistd_in_the_foreground(start: Callable[..., Process], tmp_path: Path) -> None:
    options = ["--ports-file=ports.json", "--option=shards=2", *settings(tmp_path)]
    process = start("-c", TWISTD, "-n", "--pidfile=pid", "mqbroker", *options)
    first, second = ports(process)
    pids = pids_of(process)
    for port in (first, second):
        assert ask(port, RequestCode.GET_MAX_OFFSET, topic="TBW102", queueId=0).code == ResponseCode.SUCCESS
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: "shard 0 serves again" in process.out, "the first again")
    process.signal(signal.SIGTERM)
    process.wait()
    assert all(map(is_gone, pids))
    assert not list(tmp_path.glob("store/**/abort"))
