"""Received messages as lines."""

from collections.abc import Callable

import click
import pytest

from mqbroker.cli.lines import escape_controls, plain_line, terminal_line
from mqbroker.client import ReceivedMessage


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"hi", b"hi\n"),
        (b"a\nb\r\n", b"a\\nb\\r\\n\n"),
        (b"", b"\n"),
        (b"\xff\x00\t", b"\xff\x00\t\n"),
        ("straße".encode(), "straße\n".encode()),
    ],
)
def test_a_pipe_gets_the_body_in_one_line(body: bytes, line: bytes) -> None:
    assert plain_line(body) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"plain text", "plain text"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (b"a\nb\r", "a\\nb\\r"),
        ("\x9b31m", "\\x9b31m"),
        (b"tab\tstays", "tab\tstays"),
        (b"\xff", "\\xff"),
        ("\ud800", "\\ud800"),
        ("日本", "日本"),
    ],
)
def test_nothing_reaches_a_terminal_as_a_command(text: str | bytes, shown: str) -> None:
    assert escape_controls(text) == shown


def test_a_terminal_gets_place_tag_keys_and_body(received: Callable[..., ReceivedMessage]) -> None:
    line = click.unstyle(terminal_line(received(b"body\x1b[2J", tags="paid\x07", keys=("k1", "k2"), again=2)))
    time, rest = line[:8], line[8:]
    assert time.count(":") == 2
    assert rest == " broker-a/2@7  paid\\x07  k1 k2  (again, 2)  body\\x1b[2J"
