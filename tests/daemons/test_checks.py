"""--check finds what would stop the start, in the files that settings name; it makes nothing."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.access.acl_files import acl_places, read_at_start
from mqbroker.access.acl_yaml import BadAcl
from mqbroker.daemons import checks
from mqbroker.daemons.broker import BrokerConsoleOptions
from mqbroker.daemons.namesrv import NamesrvConsoleOptions
from mqbroker.daemons.options import ConsoleOptions
from mqbroker.daemons.process import PidFile, WrittenFile
from mqbroker.store.layout import lock_file
from tests.remoting.certificates import Authority

BOTH = pytest.mark.parametrize("daemon_options", [BrokerConsoleOptions, NamesrvConsoleOptions])
ACCOUNTS = "accounts:\n- accessKey: somebody\n  secretKey: much-longer-than-six\n  admin: true\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int | str, str]]:
    """What --check ends with, for settings: 0, or what is wrong; and what it printed."""

    def check(daemon_options: type[ConsoleOptions], *arguments: str, **settings: Any) -> tuple[int | str, str]:
        # Given here they count before what the environment says.
        given = settings
        if daemon_options is BrokerConsoleOptions:
            given = {"rocketmqHome": tmp_path, "namesrvAddr": "a:1", "storePathRootDir": tmp_path / "store"} | settings
        given = {"bindAddress": "127.0.0.1", "listenPort": 0} | given
        options = [part for key, value in given.items() for part in ("-o", f"{key.replace('__', '.')}={value}")]
        before = set(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as ended:
            daemon_options().parseOptions([*options, *arguments, "--check"])
        assert set(tmp_path.rglob("*")) == before
        return ended.value.code, capsys.readouterr().out

    return check


@BOTH
def test_a_certificate_that_cannot_be_read(
    check: Callable[..., tuple[int | str, str]], authority: Authority, daemon_options: type[ConsoleOptions]
) -> None:
    cert, _ = authority.issue("server")
    tls = {"tls__test__mode__enable": "false", "tls__server__certPath": cert, "tls__server__keyPath": "/not/there"}
    assert check(daemon_options, **tls) == ("/not/there: No such file or directory", "")
    # Read by nobody, it is not looked at.
    assert check(daemon_options, **tls, tls__server__mode="disabled") == (0, "the settings are good\n")


@BOTH
def test_a_certificate_that_can_be_read(
    check: Callable[..., tuple[int | str, str]], authority: Authority, daemon_options: type[ConsoleOptions]
) -> None:
    cert, key = authority.issue("server")
    tls = {"tls__test__mode__enable": "false", "tls__server__certPath": cert, "tls__server__keyPath": key}
    assert check(daemon_options, **tls) == (0, "the settings are good\n")


def test_the_certificate_a_broker_shows_to_name_servers(
    check: Callable[..., tuple[int | str, str]], authority: Authority
) -> None:
    cert, key = authority.issue("server")
    tls = {"tls__test__mode__enable": "false", "tls__server__certPath": cert, "tls__server__keyPath": key}
    tls |= {"tls__client__certPath": cert, "tls__client__keyPath": "/not/there"}
    assert check(BrokerConsoleOptions, **tls, useTLS="true") == ("/not/there: No such file or directory", "")
    assert check(BrokerConsoleOptions, **tls, useTLS="false") == (0, "the settings are good\n")


def test_accounts(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"
    missing = f"{path}: there is no such file, nor one in {tmp_path}/conf/acl, so there would be no accounts; write "
    why, out = check(BrokerConsoleOptions, aclEnable="true")
    assert (str(why)[: len(missing)], out) == (missing, "")
    with pytest.raises(BadAcl, match="there is no such file"):
        read_at_start(acl_places(str(tmp_path), "conf/plain_acl.yml"))
    path.parent.mkdir()
    path.write_text("accounts: [")
    why, out = check(BrokerConsoleOptions, aclEnable="true")
    assert why.startswith(f"{path}: ")
    assert out == ""
    assert check(BrokerConsoleOptions, aclEnable="false") == (0, "the settings are good\n")
    path.write_text(ACCOUNTS)
    path.chmod(0o644)
    exposed = f"{path} can be read by others, who can sign as anybody in it: chmod 600 {path}"
    assert check(BrokerConsoleOptions, aclEnable="true") == (0, f"warning: {exposed}\nthe settings are good\n")
    path.chmod(0o600)
    assert check(BrokerConsoleOptions, aclEnable="true") == (0, "the settings are good\n")
    folder = path.parent / "acl"
    folder.symlink_to(folder)  # as what may not be listed, but for root, too
    why, out = check(BrokerConsoleOptions, aclEnable="true")
    assert (str(why)[: len(f"{folder}: ")], out) == (f"{folder}: ", "")


def cannot_be_written(code: int | str) -> list[str]:
    return [line.partition(" cannot be written: ")[0] for line in str(code).splitlines()]


def test_paths_that_cannot_be_written_are_all_told(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    paths = {"storePathRootDir": "/proc/nope", "storePathCommitLog": tmp_path / "file"}
    files = ("--ports-file", f"{tmp_path}/file/ports", "--log-file", str(tmp_path), "--pid-file", "/proc/nope/pid")
    code, out = check(BrokerConsoleOptions, *files, **paths)
    assert out == ""
    assert cannot_be_written(code) == [
        "storePathRootDir: /proc/nope", f"storePathCommitLog: {tmp_path}/file", f"--ports-file: {tmp_path}/file",
        f"--log-file: {tmp_path}", "--pid-file: /proc/nope",
    ]  # fmt: skip
    code, _ = check(NamesrvConsoleOptions, kvConfigPath="/proc/nope/deeper/kvConfig.json")
    assert code == "kvConfigPath: /proc/nope/deeper cannot be written: /proc: No such file or directory"


def test_what_is_no_file_is_not_to_be_replaced_or_deleted(
    check: Callable[..., tuple[int | str, str]], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, _ = check(
        NamesrvConsoleOptions, "--ports-file", str(pipe), "--pid-file", "/dev/null", "--log-file", "/dev/null"
    )
    why = "it is a device, a pipe or a socket, not a file"
    assert code.splitlines() == [
        f"--ports-file: {pipe} cannot be written: {pipe}: {why}",
        f"--pid-file: /dev/null cannot be written: /dev/null: {why}",
    ]
    with pytest.raises(OSError, match=why):
        PidFile(str(pipe))
    with pytest.raises(OSError, match=why):
        WrittenFile(str(pipe)).write("{}")
    assert pipe.is_fifo()


def test_paths_that_can_be_written(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("5")
    (tmp_path / "log").mkdir()
    files = ("--ports-file", f"{tmp_path}/ports", "--pid-file", f"{tmp_path}/pid")
    paths = {"storePathRootDir": tmp_path / "to" / "be" / "made", "storePathCommitLog": tmp_path / "log"}
    assert check(BrokerConsoleOptions, *files, **paths) == (0, "the settings are good\n")
    assert check(NamesrvConsoleOptions, kvConfigPath=tmp_path / "new" / "kv.json") == (0, "the settings are good\n")


def test_what_may_not_be_meant_is_told(check: Callable[..., tuple[int | str, str]]) -> None:
    code, out = check(BrokerConsoleOptions, namesrvAddr="", bindAddress="")
    assert code == 0
    assert out.splitlines()[0].startswith("warning: no name server is set, so this broker registers nowhere")
    assert "can read, write and delete" in out.splitlines()[1]
    assert "aclEnable" in out.splitlines()[1]
    code, out = check(NamesrvConsoleOptions, bindAddress="")
    assert out.startswith("warning: SERVING ALL ADDRESSES WITHOUT ACCESS CONTROL OR ENCRYPTION")
    assert "aclEnable" not in out


def test_the_stores_of_all_shards(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    assert check(BrokerConsoleOptions, shards=3)[0] == 0
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "shard-2").write_text("a file")
    code, _ = check(BrokerConsoleOptions, shards=3)
    assert str(code).splitlines()[0].startswith(f"storePathRootDir: {tmp_path}/store/shard-2 cannot be written")
    assert check(BrokerConsoleOptions, shards=2)[0] == 0


def test_messages_that_nobody_would_serve(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    log = tmp_path / "store" / "shard-1" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(b"\0\0\0\x80")
    code, _ = check(BrokerConsoleOptions, shards=1)
    assert str(code).startswith(f"shards=1, and there are messages of others: {log}; set shards=2")
    code, out = check(BrokerConsoleOptions, unservedShardsEnable="true")
    assert (code, f"warning: shards=1, and there are messages of others: {log}, which are not served" in out) == (
        0,
        True,
    )


# --- addresses, ports, and what other processes have


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A socket that listens on a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def port_of(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port


@BOTH
def test_a_port_that_another_process_has(
    check: Callable[..., tuple[int | str, str]], daemon_options: type[ConsoleOptions], taken: socket.socket
) -> None:
    port = port_of(taken)
    code, out = check(daemon_options, listenPort=port, **_no_other_ports(daemon_options))
    why = "Address already in use; stop what has the port, or set another listenPort"
    assert (code, out) == (f"cannot listen on 127.0.0.1:{port}: {why}", "")
    taken.close()
    assert check(daemon_options, listenPort=port, **_no_other_ports(daemon_options)) == (0, "the settings are good\n")


def _no_other_ports(daemon_options: type[ConsoleOptions]) -> dict[str, Any]:
    return {"vipPortEnable": "false", "haListenPort": 0} if daemon_options is BrokerConsoleOptions else {}


@BOTH
def test_an_address_that_no_network_card_has(
    check: Callable[..., tuple[int | str, str]], daemon_options: type[ConsoleOptions]
) -> None:
    code, _ = check(daemon_options, bindAddress="192.0.2.1", listenPort=0)
    assert "no network card of this machine has that address; set another bindAddress" in str(code)


def test_ports_without_which_a_start_goes_on(check: Callable[..., tuple[int | str, str]], taken: socket.socket) -> None:
    port = port_of(taken)
    code, out = check(BrokerConsoleOptions, haListenPort=port)
    assert code == 0
    assert out.splitlines()[0].startswith(f"warning: no slave could connect: cannot listen on 127.0.0.1:{port}")
    # What does not serve slaves does not need the port.
    slave = {"brokerRole": "SLAVE", "brokerId": 1}
    assert check(BrokerConsoleOptions, haListenPort=port, **slave) == (0, "the settings are good\n")


def test_the_ports_of_all_shards(check: Callable[..., tuple[int | str, str]], taken: socket.socket) -> None:
    port = port_of(taken)
    code, _ = check(BrokerConsoleOptions, listenPort=port - 10, shards=2, **_no_other_ports(BrokerConsoleOptions))
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in str(code)


def test_addresses_from_which_slaves_may_connect(check: Callable[..., tuple[int | str, str]]) -> None:
    code, _ = check(BrokerConsoleOptions, haWhiteRemoteAddresses="10.0.0.{")
    assert "10.0.0.{" in str(code)


def test_a_store_that_another_process_has_open(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    (tmp_path / "store" / "shard-1").mkdir(parents=True)
    for shards, root in ((1, tmp_path / "store"), (2, tmp_path / "store" / "shard-1")):
        lock = lock_file(str(root / "lock"))
        code, out = check(BrokerConsoleOptions, shards=shards)
        held = f"process {os.getpid()} has it open; stop that first: each broker has a directory of its own"
        assert (code, out) == (f"{root}/lock is locked: {held}", "")
        lock.release()
        assert check(BrokerConsoleOptions, shards=shards) == (0, "the settings are good\n")


def test_a_directory_that_is_no_store(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    (tmp_path / "store" / "photos").mkdir(parents=True)
    code, _ = check(BrokerConsoleOptions)
    assert "it holds photos/ and nothing of a store; set storePathRootDir to a directory of its own" in str(code)


def test_a_pid_file_that_another_process_has(check: Callable[..., tuple[int | str, str]], tmp_path: Path) -> None:
    path = tmp_path / "pid"
    held = PidFile(str(path))
    code, _ = check(BrokerConsoleOptions, "--pid-file", str(path))
    assert code == f"{path}: process {os.getpid()} has it and runs; stop that first, or name another file"
    held.remove()
    assert check(BrokerConsoleOptions, "--pid-file", str(path))[0] == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_an_address_of_the_broker_that_leads_somewhere(
    check: Callable[..., tuple[int | str, str]], address: str
) -> None:
    code, out = check(BrokerConsoleOptions, brokerIP1=address)
    assert code == 0
    assert ("warning: brokerIP1=localhost is " in out) == (address == "localhost")


def test_a_name_of_the_broker_that_leads_nowhere(
    check: Callable[..., tuple[int | str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str) -> str:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(checks, "resolve", resolve)
    code, _ = check(BrokerConsoleOptions, brokerIP1="broker-0")
    assert "brokerIP1: no address of 'broker-0' is known to this machine: Name or service not known" in str(code)
