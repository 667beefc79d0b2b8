"""The command line before anything is connected: arguments, errors, exit codes, and what help costs."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from mqbroker.cli import cli
from mqbroker.cli.failures import Failure, failure_of, told
from mqbroker.client.errors import NameServerUnreachable, SendFailed, TopicNotFound
from mqbroker.errors import ConnectionClosed, Refused, Unreachable


def run(*args: str, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(args), input=stdin, prog_name="mq", env={"NAMESRV_ADDR": None})
    return result.exit_code, result.output


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens: it is bound, so nobody else gets it, and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_help_names_every_command() -> None:
    code, output = run("--help")
    assert code == 0
    for name in ("dev", "pub", "sub", "demo"):
        assert f"\n  {name} " in output


def test_help_reads_no_more_than_it_needs() -> None:
    heavy = {"asyncio", "orjson", "pyspark", "rich", "twisted"}
    code = f"import sys, mqbroker.cli; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("command", ["dev", "pub", "sub", "demo"])
def test_each_command_has_help(command: str) -> None:
    assert run(command, "--help")[0] == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("pub", "a/b", "x"), "'a/b' cannot be a topic: use 1 to 127 of the characters"),
        (("pub", "t" * 128, "x"), "cannot be a topic"),
        (("pub", "", "x"), "cannot be a topic"),
        (("sub", "../etc", "-g", "g"), "cannot be a topic"),
        (("sub", "t", "-g", "my group"), "'my group' cannot be a group: use 1 to 255"),
        (("sub", "t"), "'-g' / '--group'"),
        (("sub", "t", "-g", "g", "--tags", "||"), "names no tag"),
        (("sub", "t", "-g", "g", "--count", "0"), "--count"),
        (("sub", "t", "-g", "g", "--from", "middle"), "'first', 'last'"),
        (("pub", "t", "x", "-n", "nowhere"), "each name server must be host:port, not 'nowhere' of type str"),
        (("pub", "t", "x", "-n", "h:99999"), "must be host:port, not 'h:99999'"),
        (("dev", "--port", "70000"), "--port"),
        (("dev", "--port", "5000", "--broker-port", "5000"), "are both 5000"),
        (("demo", "/nonexistent-directory"), "does not exist"),
        (("demo", "--max-lines", "0"), "--max-lines"),
    ],
)
def test_wrong_usage_is_told_with_what_would_be_right(args: tuple[str, ...], says: str) -> None:
    code, output = run(*args)
    assert code == 2
    assert says in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "args", [("pub", "t", "text"), ("sub", "t", "-g", "g"), ("sub", "t", "-g", "g", "--count", "1")]
)
def test_without_a_name_server_it_says_where_it_looked_and_what_to_do(args: tuple[str, ...], closed_port: int) -> None:
    code, output = run(*args, "-n", f"127.0.0.1:{closed_port}")
    assert code == 3
    assert f"127.0.0.1:{closed_port}" in output
    assert "`mq dev` starts one here" in output
    assert "Traceback" not in output


def test_the_name_server_comes_from_the_environment(closed_port: int) -> None:
    address = f"127.0.0.1:{closed_port}"
    result = CliRunner().invoke(cli, ["pub", "t", "text"], env={"NAMESRV_ADDR": address})
    assert (result.exit_code, address in result.output) == (3, True)


def test_an_empty_text_is_refused() -> None:
    code, output = run("pub", "t", "")
    assert code == 1
    assert "body is empty" in output


def test_an_empty_input_sends_nothing_and_fails() -> None:
    code, output = run("pub", "t", "-", stdin="\n\n")
    assert code == 1
    assert "2 empty lines left out" in output
    assert "nothing was sent" in output


def test_a_directory_without_text_is_told(tmp_path: object) -> None:
    code, output = run("demo", str(tmp_path))
    assert code == 1
    assert "no text file" in output


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (NameServerUnreachable([("h:1", "refused")]), 3, "h:1: refused"),
        (Unreachable("connect to h:1 failed"), 3, "Check that it runs"),
        (SendFailed("t", [("b", "h:1", Unreachable("gone"))]), 3, "failed once: b at h:1"),
        (SendFailed("t", [("b", "h:1", Unreachable("gone")), ("b", "h:1", Refused(2, "busy"))]), 1, "busy"),
        (SendFailed("t", [("b", "h:1", Refused(14, "disk full"))]), 1, "check whether its disk is full"),
        (ConnectionClosed("the connection to h:1 was lost: closed"), 3, "was lost: closed"),
        (Refused(16, "no permission"), 1, "the broker refuses: CODE: 16  DESC: no permission"),
        (TopicNotFound("t", ["h:1"], "unknown"), 1, "No route info of this topic: t"),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: int, says: str) -> None:
    failure = failure_of(error)  # type: ignore[arg-type]
    assert failure.exit_code == code
    assert says in failure.message
    assert ("runs and is reachable" in failure.message) == (type(error) is Unreachable)


def test_ctrl_c_has_its_own_exit_code() -> None:
    with pytest.raises(SystemExit) as ended, told():
        raise KeyboardInterrupt
    assert ended.value.code == 130


def test_a_file_error_names_the_file() -> None:
    with pytest.raises(Failure, match="/x/y: Permission denied"), told():
        raise PermissionError(13, "Permission denied", "/x/y")


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), told():
        raise ZeroDivisionError
