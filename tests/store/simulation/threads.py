"""Threads that hand over to one another at system calls only, so that the same seed has them do the same.

Each is a thread of the interpreter, of which all wait but the one that it is the turn of. Must never know what they do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from twisted.python.failure import Failure


class Ended(BaseException):
    """The process or the machine ended in the middle of an operation."""


_NO_LOCK = threading.Lock()


class Strand:
    """A function on a thread of its own, that goes on whenever `resume` is called, until it hands back by `pause`."""

    #: Whose turn it is; None for the thread that all others were begun by, which is the reactor's.
    running: Strand | None = None

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._thread: threading.Thread | None = None
        # Held by who waits; made with the thread.
        self._turn = self._handed_back = _NO_LOCK
        self._end: BaseException | None = None
        self.is_done = self.is_ended = False
        self.result: Any = None

    @property
    def is_begun(self) -> bool:
        return self._thread is not None

    def resume(self) -> None:
        """Have it go on. Raises what it ended by, where that ended the process as well."""
        assert not self.is_done
        before, Strand.running = Strand.running, self
        if self._thread is None:
            self._turn, self._handed_back = threading.Lock(), threading.Lock()
            self._turn.acquire()
            self._handed_back.acquire()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._handed_back.acquire()
        Strand.running = before
        if self.is_done:
            self._thread.join()
        if self._end is not None:
            end, self._end = self._end, None
            raise end

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception:
            self.result = Failure()
        except BaseException as end:
            self._end = end
        self.is_done = True
        self._handed_back.release()

    def pause(self) -> None:
        """Hand back to who resumed it. Raises Ended where the process ends before it is its turn again."""
        assert Strand.running is self
        self._handed_back.release()
        self._turn.acquire()
        if self.is_ended:
            raise Ended("while others had their turn")

    def end(self) -> None:
        """Have it end where it is: its process is gone."""
        self.is_ended = True
        while self.is_begun and not self.is_done:
            with contextlib.suppress(Ended):
                self.resume()


def wait_for(strand: Strand | None) -> None:
    """Have others go on: who waits is a thread, or the reactor, for which it is this one that does."""
    if Strand.running is not None:
        Strand.running.pause()
    else:
        assert strand is not None, "the reactor's thread waits for itself"
        strand.resume()


class Lock:
    """threading.Lock."""

    def __init__(self) -> None:
        self._is_held = False
        self._holder: Strand | None = None

    def __enter__(self) -> None:
        while self._is_held:
            wait_for(self._holder)
        self._is_held, self._holder = True, Strand.running

    def __exit__(self, *error: object) -> None:
        self._is_held, self._holder = False, None


class Threads:
    """threading. `begun`: those that a thread of the store has begun and that are not done."""

    Lock = Lock

    def __init__(self) -> None:
        self.begun: list[Strand] = []

    def Thread(self, target: Callable[[], None]) -> Thread:  # noqa: N802
        return Thread(target, self.begun)


class Thread:
    """threading.Thread, whose function raises nothing."""

    def __init__(self, target: Callable[[], None], begun: list[Strand]) -> None:
        self._strand = Strand(target)
        self._target = target
        self._begun = begun

    def start(self) -> None:
        self._begun.append(self._strand)

    def join(self) -> None:
        strand = self._strand
        if not strand.is_begun:  # it had no turn yet: one thread less
            strand.is_done = True
            self._begun.remove(strand)
            self._target()
        while not strand.is_done:
            wait_for(strand)
        if strand in self._begun:
            self._begun.remove(strand)
