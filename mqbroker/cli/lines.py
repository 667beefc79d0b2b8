"""Formats a received message as one line. Control characters in messages must not reach the terminal."""

from __future__ import annotations

import logging
import re
from datetime import datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mqbroker.client import ReceivedMessage

# C0 without the tab, DEL, and C1: these control a terminal.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def plain_line(body: bytes) -> bytes:
    r"""The body with its line ends escaped as
    and \r: one line per message."""
    return body.replace(b"\r", b"\\r").replace(b"\n", b"\\n") + b"\n"


def escape_controls(text: str | bytes) -> str:
    r"""Text with control characters escaped, as \x1b or
    ."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    # A lone surrogate, which a property can hold, cannot be printed either.
    text = text.encode(errors="backslashreplace").decode()
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


class _Escaping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(escape_controls, super().format(record).split("\n")))


def log_warnings() -> None:
    """Have the client's warnings on standard error, without what servers wrote to command the terminal."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Escaping("mq: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def terminal_line(message: ReceivedMessage) -> str:
    """Time, place, tag, keys and body, in colours."""
    try:
        time = datetime.fromtimestamp(message.store_timestamp_ms / 1000).strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):  # a broker may say any
        time = "??:??:??"
    queue = message.queue
    parts = [
        click.style(f"{time} {escape_controls(queue.broker_name)}/{queue.queue_id}@{message.queue_offset}", dim=True)
    ]
    if message.tags:
        parts.append(click.style(escape_controls(message.tags), fg="cyan"))
    if message.keys:
        parts.append(click.style(escape_controls(" ".join(message.keys)), fg="yellow"))
    if message.reconsume_times:
        parts.append(click.style(f"(again, {message.reconsume_times})", fg="red"))
    return "  ".join([*parts, escape_controls(message.body)])
