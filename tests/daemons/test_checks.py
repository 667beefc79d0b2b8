"""--check finds what would stop the start, in the files that settings name; it makes nothing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqbroker.daemons.broker import BrokerConsoleOptions
from mqbroker.daemons.namesrv import NamesrvConsoleOptions
from mqbroker.daemons.options import ConsoleOptions
from mqbroker.daemons.process import PidFile, WrittenFile
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
        given = {"bindAddress": "127.0.0.1"} | given
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
    missing = f"warning: {path} is not there: nobody has an account, and nobody is served\nthe settings are good\n"
    assert check(BrokerConsoleOptions, aclEnable="true") == (0, missing)
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
    assert (code, f"warning: shards=1, and there are messages of others: {log}, which nobody serves" in out) == (
        0,
        True,
    )
