"""mqnamesrv as a process: starting, signals, bad input."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.daemons.processes import Process, ask, wait_for

pytestmark = pytest.mark.daemons


def test_it_serves_and_stops_in_order(daemon: Callable[..., Process]) -> None:
    namesrv = daemon("namesrv")
    port = namesrv.wait_for_port()
    answer = ask(port, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("No topic route info in name server for the topic: Nowhere\n")
    namesrv.wait_for_line("The Name Server boot success. serializeType=JSON")
    assert namesrv.stop() == 0
    assert namesrv.out == "The Name Server boot success. serializeType=JSON\n"
    assert "Traceback" not in namesrv.err
    assert not namesrv.ports_file.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_stop_it(daemon: Callable[..., Process], number: signal.Signals) -> None:
    namesrv = daemon("namesrv")
    namesrv.wait_for_port()
    namesrv.signal(number)
    assert namesrv.wait() == 0


def test_it_lives_through_the_other_signals(daemon: Callable[..., Process]) -> None:
    namesrv = daemon("namesrv", "--log-file", "log")
    port = namesrv.wait_for_port()
    log = namesrv.folder / "log"
    namesrv.signal(signal.SIGHUP)
    wait_for(lambda: "settings that differ from the start: 0" in log.read_text(), "reload")
    log.rename(namesrv.folder / "log.1")
    namesrv.signal(signal.SIGUSR1)
    wait_for(log.exists, "new log file")
    assert ask(port, RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
    assert namesrv.stop() == 0
    assert "mqnamesrv stopped" in log.read_text()
    assert "reloaded" in (namesrv.folder / "log.1").read_text()
    assert namesrv.err == ""


def test_a_reload_says_what_changed_and_changes_the_log_level(daemon: Callable[..., Process], tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("bindAddress=127.0.0.1\n")
    namesrv = daemon("namesrv", "-c", conf)
    namesrv.wait_for_port()
    conf.write_text("orderMessageEnable=true\nconnectionsMax=7\nlogLevel=warn\n")
    namesrv.signal(signal.SIGHUP)
    namesrv.wait_for_line("orderMessageEnable=true takes effect now")
    namesrv.wait_for_line("connectionsMax=7 takes effect after a restart")
    namesrv.wait_for_line("logLevel=warn takes effect now")
    conf.write_text("logLevel=loud\n")
    namesrv.signal(signal.SIGHUP)
    namesrv.wait_for_line(f"not reloaded: {conf}:1: logLevel: 'loud' is not one of debug, info, warn, error")
    assert namesrv.stop() == 0
    assert "stopped" not in namesrv.err


def test_settings_are_kept_over_a_restart(daemon: Callable[..., Process], tmp_path: Path) -> None:
    kv = ("-o", f"kvConfigPath={tmp_path}/made/kvConfig.json")
    first = daemon("namesrv", *kv)
    port = first.wait_for_port()
    assert ask(port, RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v").code == ResponseCode.SUCCESS
    first.signal(signal.SIGKILL)
    first.wait()
    second = daemon("namesrv", *kv)
    answer = ask(second.wait_for_port(), RequestCode.GET_KV_CONFIG, namespace="N", key="k")
    assert answer.ext_fields == {"value": "v"}


def test_a_damaged_file_is_not_written_over(daemon: Callable[..., Process], tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{ not json")
    namesrv = daemon("namesrv", "-o", f"kvConfigPath={path}", "--log-level", "error")
    assert namesrv.wait() == 1
    assert f"mqnamesrv: {path} is damaged at byte 0" in namesrv.err
    assert path.read_text() == "{ not json"


def test_a_port_in_use_is_one_line(daemon: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        namesrv = daemon("namesrv", port=port)
        assert namesrv.wait() == 1
    assert namesrv.err == (
        f"mqnamesrv: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop what has the port, or set another listenPort\n"
    )
    assert namesrv.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "missing.conf"], "missing.conf: -c: the file cannot be read: No such file or directory"),
        (["-o", "listenPort=x"], "command line: listenPort: 'x' is not a whole number: it goes from 0 to 65535"),
        (["-o", "listenPrt=1"], "command line: listenPrt: no such setting; did you mean listenPort?"),
        (["-o", "listenPort"], "-o listenPort: write key=value; mqnamesrv --help shows what there is"),
        (["--frobnicate"], "option --frobnicate not recognized; mqnamesrv --help shows what there is"),
        (["--log-format=xml"], "--log-format xml: text or json; mqnamesrv --help shows what there is"),
        (
            ["--log-level=loud"],
            "--log-level loud: one of debug, info, warn, error; mqnamesrv --help",
        ),
        (["--log-file=/nowhere/log"], "/nowhere/log: No such file or directory"),
        (
            ["more"],
            "'more' is not expected; give a file with -c, and settings with -o key=value; mqnamesrv",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(daemon: Callable[..., Process], arguments: list[str], message: str) -> None:
    namesrv = daemon("namesrv", *arguments)
    assert namesrv.wait() == 1
    assert namesrv.err.startswith(f"mqnamesrv: {message}")
    assert namesrv.err.count("\n") == 1
    assert namesrv.out == ""


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_wrong_setting_names_its_line(start: Callable[..., Process], tmp_path: Path, check: list[str]) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("# ports\n\nlistenPort = 70000\n")
    namesrv = start("-m", "mqbroker.daemons.namesrv", "-c", conf, *check)
    assert namesrv.wait() == 1
    assert namesrv.err == f"mqnamesrv: {conf}:3: listenPort: 70000 is out of range: it goes from 0 to 65535\n"


def test_a_good_file_is_called_good(start: Callable[..., Process], tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPrt=1\nbindAddress=127.0.0.1\n")
    namesrv = start("-m", "mqbroker.daemons.namesrv", "-c", conf, "--check")
    assert namesrv.wait() == 0
    assert namesrv.out == (
        f"warning: {conf}:1: listenPrt is not a setting and has no effect; did you mean listenPort?\n"
        "the settings are good\n"
    )


def test_settings_are_printed(daemon: Callable[..., Process]) -> None:
    namesrv = daemon("namesrv", "-p", port=1234)
    assert namesrv.wait() == 0
    assert "listenPort=1234\n" in namesrv.out
    assert "serverSocketBacklog=1024\n" in namesrv.out
    assert namesrv.err == ""
    important = daemon("namesrv", "-m", port=1234, environment={"ROCKETMQ_LISTEN_PRT": "5"})
    assert important.wait() == 0
    assert important.err == (
        "warning: environment variable ROCKETMQ_LISTEN_PRT is not a setting and has no effect; "
        "did you mean ROCKETMQ_LISTEN_PORT?\n"
    )
    assert "listenPort=1234\n" in important.out
    assert "serverSocketBacklog" not in important.out


def test_settings_are_printed_to_who_reads_no_more(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "mqbroker.daemons.namesrv", "-p"]
    found = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(writes)
    assert (found.returncode, found.stderr) == (0, b"")


def test_logs_are_json_where_wanted(daemon: Callable[..., Process], tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPrt=1\n")
    namesrv = daemon("namesrv", "--log-format=json", "-c", conf)
    namesrv.wait_for_port()
    assert namesrv.stop() == 0
    events = [json.loads(line) for line in namesrv.err.splitlines()]
    assert events[0]["msg"] == f"{conf}:1: listenPrt is not a setting and has no effect; did you mean listenPort?"
    assert events[0]["level"] == "warn"
    assert events[0]["logger"] == "mqbroker.daemons.daemon"
    assert {"time", "level", "logger", "msg"} <= set(events[-1])


def test_serving_others_without_protection_is_warned_of(start: Callable[..., Process]) -> None:
    open_to_all = start("-m", "mqbroker.daemons.namesrv", "-o", "listenPort=0", "--ports-file", "ports.json")
    open_to_all.wait_for_line("SERVING ALL ADDRESSES WITHOUT ACCESS CONTROL OR ENCRYPTION")
    assert open_to_all.stop() == 0


def test_the_process_id_is_written(daemon: Callable[..., Process]) -> None:
    namesrv = daemon("namesrv", "--pid-file", "pid")
    namesrv.wait_for_port()
    pid_file = namesrv.folder / "pid"
    assert int(pid_file.read_text()) == namesrv.pid
    assert namesrv.stop() == 0
    assert not pid_file.exists()


def test_a_second_start_leaves_the_files_of_the_first(daemon: Callable[..., Process], tmp_path: Path) -> None:
    pid_file, ports_file = tmp_path / "pid", tmp_path / "ports"
    first = daemon("namesrv", "--pid-file", pid_file, "--ports-file", ports_file)
    wait_for(ports_file.exists, "ports file")
    written = pid_file.read_bytes(), ports_file.read_bytes()
    port = json.loads(written[1])["remoting"]
    second = daemon("namesrv", "--pid-file", pid_file, "--ports-file", ports_file)
    assert second.wait() == 1
    why = f"process {first.pid} has it and runs; stop that first, or name another file"
    assert second.err == f"mqnamesrv: {pid_file}: {why}\n"
    third = daemon("namesrv", "--ports-file", ports_file, port=port)
    assert third.wait() == 1
    assert (pid_file.read_bytes(), ports_file.read_bytes()) == written
    assert first.stop() == 0
    assert not pid_file.exists()
    assert not ports_file.exists()


def test_the_pid_file_of_one_that_was_killed_is_taken_over(daemon: Callable[..., Process], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    first = daemon("namesrv", "--pid-file", pid_file)
    first.wait_for_port()
    first.signal(signal.SIGKILL)
    first.wait()
    assert int(pid_file.read_text()) == first.pid
    second = daemon("namesrv", "--pid-file", pid_file)
    second.wait_for_port()
    assert int(pid_file.read_text()) == second.pid
    assert second.stop() == 0


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_it_says_what_options_there_are(daemon: Callable[..., Process], option: str) -> None:
    namesrv = daemon("namesrv", option)
    assert namesrv.wait() == 0
    assert "Usage: mqnamesrv [options]" in namesrv.out
    assert namesrv.err == ""


def test_all_that_is_wrong_is_told_at_once(daemon: Callable[..., Process], tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("logLevel=loud\nserverSocketBacklog=x\n")
    namesrv = daemon("namesrv", "-c", conf, "-o", "zzz=1")
    assert namesrv.wait() == 1
    assert namesrv.err.splitlines() == [
        "mqnamesrv: command line: zzz: no such setting; -p prints all settings",
        f"mqnamesrv: {conf}:1: logLevel: 'loud' is not one of debug, info, warn, error",
        f"mqnamesrv: {conf}:2: serverSocketBacklog: 'x' is not a whole number: it goes from 1 to 2147483647",
    ]


class TestTwistd:
    """The same under twistd."""

    def start(
        self,
        start: Callable[..., Process],
        *arguments: str | Path,
        port: int = 0,
        twistds: tuple[str, ...] = ("-n", "--pidfile="),
    ) -> Process:
        twistd = "import sys; from twisted.scripts.twistd import run; sys.argv[0] = 'twistd'; run()"
        return start(
            *("-c", twistd, *twistds, "namesrv", "--ports-file=ports.json"),
            "--option=bindAddress=127.0.0.1",
            *(f"--option=listenPort={port}", *arguments),
        )

    def test_it_serves_lives_through_signals_and_stops(self, start: Callable[..., Process]) -> None:
        namesrv = self.start(start)
        port = namesrv.wait_for_port()
        namesrv.signal(signal.SIGUSR1)
        namesrv.signal(signal.SIGHUP)
        namesrv.wait_for_line("settings that differ from the start: 0")
        assert ask(port, RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
        namesrv.signal(signal.SIGTERM)
        assert namesrv.wait() in (0, -signal.SIGTERM)
        namesrv.wait_for_line("Server Shut Down.")

    def test_a_port_in_use_ends_it(self, start: Callable[..., Process]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            namesrv = self.start(start, port=taken.getsockname()[1])
            assert namesrv.wait() == 1
        # Under twistd, standard error goes to its log.
        assert "cannot listen on 127.0.0.1" in namesrv.out
        assert "Traceback" not in namesrv.out + namesrv.err

    def test_a_port_in_use_ends_it_in_the_background_too(self, start: Callable[..., Process]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            namesrv = self.start(start, port=taken.getsockname()[1], twistds=("-l", "log", "--pidfile=pid"))
            assert namesrv.wait() == 1
        assert namesrv.err.startswith("cannot listen on 127.0.0.1")
        assert namesrv.err.endswith("stop what has the port, or set another listenPort\n")
        assert namesrv.err.count("\n") == 1
        # What was asked to run in the background tells its parent first, and cleans up after that.
        wait_for(lambda: not (namesrv.folder / "pid").exists(), "end of the daemon")
        log = (namesrv.folder / "log").read_text()
        assert log.count("cannot start: cannot listen on 127.0.0.1") == 1
        assert "Traceback" not in log

    def test_it_serves_in_the_background(self, start: Callable[..., Process]) -> None:
        foreground = self.start(start, twistds=("-l", "log", "--pidfile=pid"))
        assert foreground.wait() == 0
        pid = int((foreground.folder / "pid").read_text())
        try:
            port = foreground.wait_for_port()
            assert ask(port, RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
        finally:
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not (foreground.folder / "pid").exists(), "end of the daemon")
        # Its log ends after that.
        wait_for(lambda: "Server Shut Down." in (foreground.folder / "log").read_text(), "end of its log")
        assert foreground.out + foreground.err == ""

    def test_a_wrong_setting_ends_it(self, start: Callable[..., Process]) -> None:
        namesrv = self.start(start, "--option=listenPort=x")
        assert namesrv.wait() == 1
        assert namesrv.err == "command line: listenPort: 'x' is not a whole number: it goes from 0 to 65535\n"

    def test_its_version_is_ours(self, start: Callable[..., Process]) -> None:
        namesrv = self.start(start, "--version")
        assert namesrv.wait() == 0
        assert namesrv.out.startswith("mqbroker ")

    def test_logs_are_json_where_wanted(self, start: Callable[..., Process]) -> None:
        namesrv = self.start(start, "--log-format=json")
        namesrv.wait_for_port()
        wait_for(lambda: "boot success" in namesrv.out, "the line that it has started")
        namesrv.signal(signal.SIGTERM)
        namesrv.wait()
        events = [json.loads(line) for line in namesrv.out.splitlines()]
        assert "The Name Server boot success. serializeType=JSON" in [event["msg"] for event in events]

    def test_the_log_level_counts_and_is_read_again(self, start: Callable[..., Process], tmp_path: Path) -> None:
        conf = tmp_path / "namesrv.conf"
        conf.write_text("logLevel=error\n")
        namesrv = self.start(start, "-c", conf, twistds=("-n", "--pidfile=", "-l", "log"))
        namesrv.wait_for_port()
        log = namesrv.folder / "log"
        assert log.read_text() == ""
        conf.write_text("logLevel=info\n")
        namesrv.signal(signal.SIGHUP)
        wait_for(lambda: "settings that differ from the start: 1" in log.read_text(), "reload")
        namesrv.signal(signal.SIGUSR1)
        wait_for((namesrv.folder / "log.1").exists, "rotated log")
        namesrv.signal(signal.SIGTERM)
        namesrv.wait()
        assert "Server Shut Down." in log.read_text()
        assert namesrv.out == ""

    def test_settings_are_read_again_from_another_directory(
        self, start: Callable[..., Process], tmp_path: Path
    ) -> None:
        (tmp_path / "my.conf").write_text("")
        namesrv = self.start(start, "-c", "../my.conf", twistds=("-n", "--pidfile=", "--rundir=/"))
        namesrv.wait_for_port()
        (tmp_path / "my.conf").write_text("orderMessageEnable=true\n")
        namesrv.signal(signal.SIGHUP)
        namesrv.wait_for_line("orderMessageEnable=true takes effect now")
        namesrv.signal(signal.SIGTERM)
        namesrv.wait()

    def test_a_log_that_cannot_be_written_is_one_line(self, start: Callable[..., Process]) -> None:
        namesrv = self.start(start, twistds=("-n", "--pidfile=", "-l", "nowhere/log"))
        assert namesrv.wait() == 1
        assert namesrv.err == "nowhere/log: the log cannot be written there: No such file or directory\n"
