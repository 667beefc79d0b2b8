"""Files that are written beside those of others: no link that somebody put there leads to another file."""

import ast
import contextlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqbroker.config import LogLevel
from mqbroker.config.changes import rewrite_conf
from mqbroker.config.system import is_own_link
from mqbroker.daemons.broker import BrokerConsoleOptions
from mqbroker.daemons.logs import LineObserver
from mqbroker.daemons.plugin import make_twistd_log
from mqbroker.daemons.process import PidFile, WrittenFile
from mqbroker.store.layout import lock_file
from mqbroker.store.os_disk import OsDisk, replace_file
from mqbroker.wire.codes import RequestCode
from tests.daemons.processes import Process, ask
from tests.kept_tables import SOURCE

CONTENT = "another's file\n"

#: Each writes the file of a name, and says whether it did.
WRITERS: dict[str, Callable[[str], object]] = {
    "settings": lambda path: rewrite_conf(path, {"fileReservedTime": "9"}),
    "table": lambda path: replace_file(path, b"{}"),
    "checkpoint": lambda path: OsDisk().write(path, b"0" * 4096),
    "lock": lambda path: lock_file(path).release(),
    "pid": lambda path: PidFile(path).remove(),
    "ports": lambda path: WrittenFile(path).write("{}"),
}
#: What may be a link of the user's own.
FOLLOWED = ("settings", "table", "ports")


def test_no_file_is_opened_to_be_written_in_another_way() -> None:
    """Also those of clients and of Spark: each is opened by `config/system.py`, or by the disk of a store."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            is_open = called == "open" or (called.endswith(".open") and called != "os.open")
            is_by_number = called == "open" and isinstance(node.args[0], ast.Name) and node.args[0].id == "fd"
            writes = any(re.fullmatch("[rwxabt+]*[wxa+][rwxabt+]*", mode) for mode in modes)
            if called.endswith((".write_text", ".write_bytes")) or (is_open and writes and not is_by_number):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "of another"
    path.write_text(CONTENT)
    return path


@pytest.mark.parametrize("suffix", [".tmp", ".bak.tmp"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(
    tmp_path: Path, target: Path, writer: str, suffix: str
) -> None:
    path = tmp_path / "written"
    if writer in ("settings", "table"):
        path.write_text("brokerName=a\n")
    (tmp_path / f"written{suffix}").symlink_to(target)
    is_refused = writer == "settings" and suffix == ".tmp"  # the others remove the link
    with pytest.raises(OSError, match="it is a symbolic link") if is_refused else contextlib.nullcontext():
        WRITERS[writer](str(path))
    assert (target.read_text(), target.is_symlink()) == (CONTENT, False)


@pytest.mark.parametrize("writer", sorted(WRITERS.keys() - set(FOLLOWED)))
def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path, target: Path, writer: str) -> None:
    path = tmp_path / "written"
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        WRITERS[writer](str(path))
    assert target.read_text() == CONTENT


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_to_nothing_makes_no_file_there(tmp_path: Path, writer: str) -> None:
    for name in ("written.tmp", *(["written"] if writer not in FOLLOWED else [])):
        (tmp_path / name).symlink_to(tmp_path / "new")
    with contextlib.suppress(OSError):  # some remove the link, and write
        WRITERS[writer](str(tmp_path / "written"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("writer", ["settings", "pid"])
def test_a_second_name_of_another_file_is_not_written_to(tmp_path: Path, target: Path, writer: str) -> None:
    path = tmp_path / "written"
    os.link(target, f"{path}.tmp" if writer == "settings" else path)
    with pytest.raises(OSError, match="it is not a file of its own"):
        WRITERS[writer](str(path))
    assert target.read_text() == CONTENT


@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_directory_in_the_place_of_a_temporary_file_keeps_nobody_waiting(
    tmp_path: Path, kind: Callable[[str], None]
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    kind(f"{path}.tmp")
    failed: list[OSError] = []

    def write() -> None:
        try:
            rewrite_conf(str(path), {"a": "2"})
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(10)
    assert (thread.is_alive(), len(failed), path.read_text()) == (False, 1, "a=1\n")


def test_settings_are_not_written_into_a_file_that_another_user_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    (tmp_path / "broker.conf.tmp").write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="it is another user's; remove it"):
        rewrite_conf(str(path), {"a": "2"})
    assert path.read_text() == "a=1\n"


def test_a_settings_file_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "broker.conf").write_text("a=1\n")
    (tmp_path / "broker.conf").symlink_to(tmp_path / "real" / "broker.conf")
    rewrite_conf(str(tmp_path / "broker.conf"), {"a": "2"})
    assert (tmp_path / "real" / "broker.conf").read_text() == "a=2\n"
    assert (tmp_path / "broker.conf").is_symlink()


# --- logs


def _of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is another user's from now on, and not root's."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    real = os.lstat

    def lstat(path: str) -> SimpleNamespace:
        found = real(path)
        return SimpleNamespace(st_mode=found.st_mode, st_uid=found.st_uid or 54321)

    monkeypatch.setattr(os, "lstat", lstat)


def test_a_log_follows_a_link_of_its_own_user_alone(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.symlink_to(target)
    assert is_own_link(str(path))
    observer = LineObserver("text", LogLevel.INFO, path=str(path))
    observer.reopen()
    observer.close()
    with monkeypatch.context() as patch:
        _of_another(patch)
        with pytest.raises(OSError, match="it is a symbolic link"):
            LineObserver("text", LogLevel.INFO, path=str(path))
        with pytest.raises(SystemExit, match="log: the log cannot be written there: it is a symbolic link"):
            make_twistd_log({"logfile": str(path)}, "text", LogLevel.INFO, SimpleNamespace())
    assert target.read_text() == CONTENT


def test_a_log_that_is_opened_anew_does_not_follow_a_link_that_was_put_there(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    observer = LineObserver("text", LogLevel.INFO, path=str(path))
    path.rename(tmp_path / "log.1")
    path.symlink_to(target)
    with monkeypatch.context() as patch:
        _of_another(patch)
        with pytest.raises(OSError, match="it is a symbolic link"):
            observer.reopen()
    observer.close()
    assert target.read_text() == CONTENT


@pytest.mark.parametrize("option", ["--pid-file", "--log-file"])
def test_check_fails_on_a_link_where_a_start_does(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    path = tmp_path / "link"
    path.symlink_to(target)
    if option == "--log-file":
        _of_another(monkeypatch)
    settings = ("-o", f"storePathRootDir={tmp_path}/s", "-o", "listenPort=0", "-o", "namesrvAddr=a:1")
    with pytest.raises(SystemExit) as ended:
        BrokerConsoleOptions().parseOptions([*settings, option, str(path), "--check"])
    assert f"{option}: {path} cannot be written: {path}: it is a symbolic link" in str(ended.value.code)


@pytest.mark.daemons
def test_a_change_of_settings_in_a_shared_directory(
    daemon: Callable[..., Process], tmp_path: Path, target: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=72\n")
    (tmp_path / "broker.conf.tmp").symlink_to(target)
    process = daemon(
        "broker", "-c", conf, "-o", f"storePathRootDir={tmp_path}/s", "-o", "mappedFileSizeCommitLog=65536"
    )
    answer = ask(process.wait_for_port(), RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=9\n")
    assert answer.code != 0
    assert (target.read_text(), conf.read_text()) == (CONTENT, "fileReservedTime=72\n")
    process.wait_for_line("it is a symbolic link, which may lead to another's file")
    assert process.stop() == 0
