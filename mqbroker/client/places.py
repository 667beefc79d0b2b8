"""Where in a program something is, or went wrong, in one line. Pure."""

from __future__ import annotations

from types import FrameType, TracebackType

TEXT_CHARACTERS_MAX = 1024


def describe_frame(frame: FrameType, line: int) -> str:
    """A place, as in "shop.orders.take(orders.py:12)"."""
    code = frame.f_code
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}({file}:{line})"


def describe_error(error: BaseException) -> str:
    """What was raised and the innermost place it was raised from, as Java's tools show it."""
    text = f"{type(error).__name__}: {error}"[:TEXT_CHARACTERS_MAX]
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return text if at is None else f"{text}, {describe_frame(at.tb_frame, at.tb_lineno)}"
