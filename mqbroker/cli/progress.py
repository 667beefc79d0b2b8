"""Progress on standard error: one updated line on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_TERMINAL_S = 0.1
_PLAIN_S = 5.0


def size_text(size: float) -> str:
    """Bytes in a unit that fits: 73.4 MiB."""
    unit = min(4, (max(int(size), 1).bit_length() - 1) // 10)
    return f"{size / 1024**unit:.1f} {'KMGT'[unit - 1]}iB" if unit else f"{size:.0f} B"


class ProgressLine:
    """`at` may be called at any rate; `close`, or the end of a `with`, removes the line."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._what = what
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._began = self._shown = time.monotonic()
        self._is_open = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_S if self._is_terminal else _PLAIN_S):
            return
        self._shown = now
        rate = done / max(now - self._began, 0.001)
        percent = 100 * done // total if total else 100
        text = f"{self._what}: {percent} %, {size_text(done)} of {size_text(total)}, {size_text(rate)}/s"
        if self._is_terminal:
            self._is_open = True
            self._stream.write(f"\r\x1b[K{text}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._is_open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_open = False
