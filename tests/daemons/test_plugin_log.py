"""Where twistd's options have the log written."""

import io
from pathlib import Path
from typing import Any, cast

import pytest

from mqbroker.config import LogLevel
from mqbroker.daemons.plugin import TwistdLog, make_twistd_log


def make(**twistd: Any) -> tuple[TwistdLog | None, io.StringIO]:
    out = io.StringIO()
    return make_twistd_log(twistd, "text", LogLevel.INFO, out), out


def say(made: TwistdLog) -> None:
    made.observer({"log_format": "hello", "log_namespace": "here"})


@pytest.mark.parametrize("path", [None, "", "-"])
def test_in_the_foreground_it_goes_to_standard_output(path: str | None) -> None:
    made, out = make(nodaemon=True, logfile=path)
    say(made)
    made.rotate()
    assert out.getvalue().endswith("hello\n")


@pytest.mark.parametrize(
    ("twistd", "name"),
    [({}, "twistd.log"), ({"logfile": "my.log"}, "my.log"), ({"logfile": "my.log", "nodaemon": True}, "my.log")],
)
def test_else_to_a_file_that_can_be_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twistd: dict[str, Any], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made, out = make(**twistd)
    say(made)
    made.rotate()
    say(made)
    cast(Any, made.rotate).__self__.close()
    assert [path.read_text().count("hello") for path in (tmp_path / name, tmp_path / f"{name}.1")] == [1, 1]
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    "twistd",
    [{"logger": print, "nodaemon": True}, {"syslog": True}, {"logfile": "-"}],
    ids=["logger", "syslog", "a daemon without output, which twistd refuses"],
)
def test_some_is_left_to_twistd(twistd: dict[str, Any]) -> None:
    assert make(**twistd)[0] is None


def test_a_file_that_cannot_be_opened_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the log cannot be written there: No such file or directory"):
        make(logfile=str(tmp_path / "missing" / "log"))
