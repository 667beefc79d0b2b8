"""Log lines, made from events as Twisted's logger makes them."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.logger import Logger, globalLogPublisher
from twisted.logger import LogLevel as EventLevel
from twisted.python.failure import Failure

from mqbroker.config import LogLevel
from mqbroker.daemons.logs import LINES_PER_MINUTE, LineObserver, json_line, relay_line, text_line
from mqbroker.errors import Unreachable


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def logger_to(observer: LineObserver, namespace: str = "mqbroker.x") -> Logger:
    return Logger(namespace, observer=observer)


def failure_of(error: Exception | ZeroDivisionError) -> Failure:
    try:
        raise error
    except Exception:
        return Failure()


def test_a_text_line() -> None:
    event = {"log_time": 0.5, "log_level": EventLevel.warn, "log_namespace": "a.b", "log_format": "{n} gone", "n": 3}
    stamp, rest = text_line(event)[:23], text_line(event)[23:]
    assert stamp.endswith(":00,500")
    assert rest == " WARN [a.b] 3 gone\n"


def test_a_json_line() -> None:
    event = {
        "log_time": 0.5,
        "log_level": EventLevel.warn,
        "log_namespace": "a.b",
        "log_format": "{n} gone at {where}",
        "n": 3,
        "where": object(),
    }
    found = json.loads(json_line(event))
    assert found.pop("msg").startswith("3 gone at <object")
    assert found == {"time": "1970-01-01T00:00:00.500+00:00", "level": "warn", "logger": "a.b", "n": 3}


def test_a_message_cannot_forge_lines(stream: io.StringIO) -> None:
    logger_to(LineObserver("text", LogLevel.INFO, stream)).info("{x}", x="a\n2026-01-01 ERROR [b] c\r")
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("a\\n2026-01-01 ERROR [b] c\\r\n")


def test_a_message_cannot_command_a_terminal_nor_keep_its_line_from_being_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = LineObserver("text", LogLevel.INFO, path=str(path))
    logger_to(observer).info("{x}", x="\x1b[2J\x9b \u2028 \ud800 é 消息 \\")
    observer.close()
    assert path.read_text().endswith(" \\x1b[2J\\x9b \\u2028 \\ud800 é 消息 \\\\\n")


@pytest.mark.parametrize("error", [Unreachable("peer\nis away"), CannotListenError("", 1, OSError(98, "in use"))])
def test_what_was_foreseen_is_one_line(stream: io.StringIO, error: Exception) -> None:
    logger_to(LineObserver("text", LogLevel.INFO, stream)).failure("no luck", failure_of(error))
    assert "no luck: " in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_bug_comes_with_its_traceback(stream: io.StringIO, log_format: str) -> None:
    logger_to(LineObserver(log_format, LogLevel.INFO, stream)).failure("no luck", failure_of(ZeroDivisionError("by 0")))
    text = stream.getvalue() if log_format == "text" else json.loads(stream.getvalue())["exc"]
    assert "Traceback" in text
    assert "ZeroDivisionError: by 0" in text


@pytest.mark.parametrize(("level", "seen"), [("debug", "diwe"), ("info", "iwe"), ("warn", "we"), ("error", "e")])
def test_levels(stream: io.StringIO, level: str, seen: str) -> None:
    observer = LineObserver("json", LogLevel.ERROR, stream)
    observer.level = LogLevel(level)
    log = logger_to(observer)
    log.debug("d")
    log.info("i")
    log.warn("w")
    log.error("e")
    assert "".join(json.loads(line)["msg"] for line in stream.getvalue().splitlines()) == seen


def test_twisteds_own_information_is_for_debugging(stream: io.StringIO) -> None:
    log = logger_to(LineObserver("text", LogLevel.INFO, stream), "twisted.internet.base")
    log.info("chatter")
    assert stream.getvalue() == ""
    log.warn("trouble")
    assert "trouble" in stream.getvalue()


def test_a_closed_stream_is_survived(stream: io.StringIO) -> None:
    stream.close()
    logger_to(LineObserver("text", LogLevel.INFO, stream)).info("x")


def test_an_event_that_cannot_be_formatted_is_survived(stream: io.StringIO) -> None:
    logger_to(LineObserver("text", LogLevel.INFO, stream)).info("{missing.attribute}")
    assert stream.getvalue().count("\n") == 1


def test_a_file_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = LineObserver("text", LogLevel.INFO, path=str(path))
    logger_to(observer).info("one")
    path.rename(tmp_path / "log.1")
    observer.reopen()
    logger_to(observer).info("two")
    assert path.read_text().endswith("two\n")
    assert (tmp_path / "log.1").read_text().endswith("one\n")
    path.rename(tmp_path / "log.2")
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        observer.reopen()
    logger_to(observer).info("three")
    observer.close()
    assert (tmp_path / "log.2").read_text().endswith("three\n")


def test_without_a_file_there_is_nothing_to_open_anew(stream: io.StringIO) -> None:
    observer = LineObserver("text", LogLevel.INFO, stream)
    observer.reopen()
    logger_to(observer).info("x")
    assert stream.getvalue()


# --- what peers may make us write


def told(
    count: int, line: str = "{peer} deleted topic {topic}", time: float = 0.0, **values: str
) -> list[dict[str, Any]]:
    return [
        {"log_format": line, "log_level": EventLevel.info, "log_namespace": "x", "log_time": time, **values}
        for _ in range(count)
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_is_bounded(log_format: str) -> None:
    stream = io.StringIO()
    observer = LineObserver(log_format, LogLevel.INFO, stream)
    for event in told(3, peer="10.0.0.1:1", topic="t" * 16_000_000):
        observer(event)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert all(len(line) < 8500 for line in lines)
    assert "10.0.0.1:1 deleted topic tttt" in lines[0]
    assert "characters) ... ttt" in lines[0]


def test_lines_of_a_kind_are_bounded_in_a_minute() -> None:
    stream = io.StringIO()
    observer = LineObserver("text", LogLevel.INFO, stream)
    for event in told(10_000, peer="10.0.0.1:1", topic="t", time=1000.0):
        observer(event)
    observer(told(1, "the disk is full", time=1001.0)[0])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 601
    assert "the disk is full" in lines[-1]
    observer(told(1, peer="10.0.0.1:1", topic="u", time=1061.0)[0])
    *_, counted, last = stream.getvalue().splitlines()
    assert "INFO" in counted
    assert "9400 more lines as '{peer} deleted topic {topic}' within a minute" in counted
    assert "deleted topic u" in last


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    stream = io.StringIO()
    observer = LineObserver("text", LogLevel.INFO, stream)
    for time in (1000.0, 500.0):
        for event in told(600, peer="p", topic="t", time=time):
            observer(event)
    assert len(stream.getvalue().splitlines()) == 1200


def relayed(observer: LineObserver, *lines: str) -> None:
    globalLogPublisher.addObserver(observer)
    try:
        for line in lines:
            relay_line(3, line)
    finally:
        globalLogPublisher.removeObserver(observer)


def test_lines_of_a_shard_are_written_as_they_are(stream: io.StringIO) -> None:
    relayed(LineObserver("text", LogLevel.ERROR, stream), "2026-01-01 INFO [a] b", "", "\x1b[2J \\")
    assert stream.getvalue() == "shard 3: 2026-01-01 INFO [a] b\nshard 3: \nshard 3: \\x1b[2J \\\\\n"


def test_none_of_them_is_left_out(stream: io.StringIO) -> None:
    relayed(LineObserver("text", LogLevel.INFO, stream), *map(str, range(LINES_PER_MINUTE + 5)))
    assert stream.getvalue().count("\n") == LINES_PER_MINUTE + 5


def test_objects_of_a_shard_stay_objects_and_other_lines_become_some(stream: io.StringIO) -> None:
    event = {"log_time": 0.5, "log_level": EventLevel.warn, "log_format": "{n} gone", "n": 3}
    relayed(LineObserver("json", LogLevel.INFO, stream), json_line(event), "Fatal Python error: {x}", "7")
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert first == {"shard": 3, **json.loads(json_line(event))}
    assert (second["shard"], second["msg"], second["level"]) == (3, "Fatal Python error: {x}", "info")
    assert (third["shard"], third["msg"]) == (3, "7")
