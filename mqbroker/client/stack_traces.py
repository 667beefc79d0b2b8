"""Stack traces of errors and of all threads, in the form of Java's tools."""

from __future__ import annotations

import sys
import threading
from types import FrameType, TracebackType

TEXT_CHARACTERS_MAX = 1024


def describe_frame(frame: FrameType, line: int) -> str:
    """A frame, as in "shop.orders.take(orders.py:12)"."""
    code = frame.f_code
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}({file}:{line})"


def describe_error(error: BaseException) -> str:
    """An exception and its innermost frame, as Java's tools show it."""
    text = f"{type(error).__name__}: {error}"[:TEXT_CHARACTERS_MAX]
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return text if at is None else f"{text}, {describe_frame(at.tb_frame, at.tb_lineno)}"


#: The rest is left out: a response must have room for other things.
FRAMES_MAX = 100
CHARACTERS_MAX = 256 * 1024


def thread_stacks() -> str:
    """The stacks of all threads, innermost call first. Reads no source files."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    parts: list[str] = []
    room = CHARACTERS_MAX
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented
        thread = threads.get(ident)
        part = _stack(thread.name if thread else str(ident), (thread and thread.native_id) or ident, frame)
        room -= len(part)
        if room < 0:
            parts.append("further threads are left out\n")
            break
        parts.append(part)
    return "".join(parts)


def _stack(name: str, number: int, innermost: FrameType) -> str:
    lines = [f"{name:<40}TID: {number}"]
    frame: FrameType | None = innermost
    while frame is not None and len(lines) <= FRAMES_MAX:
        lines.append(f"{name:<40}{describe_frame(frame, frame.f_lineno)}")
        frame = frame.f_back
    return "\n".join(lines) + "\n\n"
