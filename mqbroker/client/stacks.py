"""Where the threads of this process are, as Java's tools show it. For the faces; the cores know no thread."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from mqbroker.client.places import describe_frame

#: What is beyond is left out: an answer has room for other things too.
FRAMES_MAX = 100
CHARACTERS_MAX = 256 * 1024


def thread_stacks() -> str:
    """Thread after thread, the innermost call first. No source file is read."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    parts: list[str] = []
    room = CHARACTERS_MAX
    for ident, frame in sys._current_frames().items():
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
