"""Linux's own queue of input and output on the simulated disk: the calls that `store/linux_aio.py` makes of it.

What is submitted runs when the seed says so, in any order, and the event descriptor tells of it later. Must never know
whose files they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import Counter
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from mqbroker.store.linux_aio import LinuxAio
    from tests.store.simulation.calls import Calls

# As include/uapi/linux/aio_abi.h has them, and the table of system calls of x86_64.
_IOCB = Struct("<QIIHhIQQqQII")
_IO_EVENT = Struct("<QQqq")
_FDSYNC = 3
_RESFD = 1
_SETUP, _DESTROY, _GET_EVENTS, _SUBMIT = 206, 207, 208, 209

#: What may go wrong with it, and how such a call ends.
FAULTS = {"submit": errno.EAGAIN, "event": errno.EBADF, "get events": errno.EINVAL, "word": 0}


@attrs.define(eq=False)
class Request:
    """A sync that was submitted, of which `address` is where it stands in the process."""

    number: int
    address: int
    fd: int
    event_fd: int
    is_done: bool = False


class Aio:
    """`_syscall`.

    `run` has a request done, and fires when the reactor looks at its descriptors. `faults`: which of the calls in
    FAULTS fail from now on, the next time ("word": the next end is not told by the event descriptor).
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.run: Callable[[Callable[[], None]], Deferred[None]] | None = None
        self.faults: set[str] = set()
        self.failed: Counter[str] = Counter()
        self.readers: list[LinuxAio] = []
        self._running: list[Request] = []
        self._ended: list[bytes] = []

    # A reactor

    def addReader(self, reader: LinuxAio) -> None:  # noqa: N802
        self.readers.append(reader)

    def removeReader(self, reader: LinuxAio) -> None:  # noqa: N802
        self.readers.remove(reader)

    def look(self, _: object = None) -> None:
        """Have those read that have something to."""
        for reader in list(self.readers):
            if self._calls.event(reader.fileno()).count:
                try:
                    reader.doRead()
                except Exception:
                    self.removeReader(reader)
                    reader.connectionLost(Failure())

    # The calls

    def fails(self, what: str) -> bool:
        """Whether this is the one that goes wrong."""
        if what not in self.faults:
            return False
        self.faults.remove(what)
        self.failed[what] += 1
        return True

    def check(self, what: str) -> None:
        """Raises OSError where this is the call that goes wrong."""
        if self.fails(what):
            raise OSError(FAULTS[what], os.strerror(FAULTS[what]))

    def __call__(self, number: ctypes.c_long, *arguments: Any) -> int:
        calls: dict[int, Callable[..., int]] = {
            _SETUP: self._setup,
            _DESTROY: self._destroy,
            _GET_EVENTS: self._get_events,
            _SUBMIT: self._submit,
        }
        try:
            return calls[number.value](*arguments)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1

    def _setup(self, depth: ctypes.c_uint, context: Any) -> int:
        context._obj.value = 1
        return 0

    def _destroy(self, context: ctypes.c_ulong) -> int:
        for request in list(self._running):
            self._do(request)
        self._ended.clear()
        return 0

    def _submit(self, context: ctypes.c_ulong, count: ctypes.c_long, blocks: Any) -> int:
        assert count.value == 1
        self._calls.disk.on_call()
        self.check("submit")
        address = blocks._obj.value
        number, *_, opcode, _, fd, _, _, _, _, flags, event_fd = _IOCB.unpack(ctypes.string_at(address, _IOCB.size))
        assert (opcode, flags) == (_FDSYNC, _RESFD)
        self._calls.file(fd)
        request = Request(number, address, fd, event_fd)
        self._running.append(request)
        if self.run is not None:
            self.run(lambda: self._do(request)).addCallback(self.look)
        return 1

    def do(self, at: int) -> None:
        """Do the request that was submitted at this place of those that run."""
        self._do(self._running[at])

    def _do(self, request: Request) -> None:
        if request not in self._running:
            return
        result = 0
        try:
            self._calls.sync(request.fd)
        except OSError as error:
            result = -(error.errno or errno.EIO)
        self._running.remove(request)
        self._ended.append(_IO_EVENT.pack(request.number, request.address, result, 0))
        if not self.fails("word"):
            self._calls.event(request.event_fd).count += 1

    def _get_events(
        self, context: ctypes.c_ulong, least: ctypes.c_long, most: ctypes.c_long, events: Any, time: Any
    ) -> int:
        assert not least.value
        self.check("get events")
        told, self._ended = self._ended[: most.value], self._ended[most.value :]
        data = b"".join(told)
        ctypes.memmove(events, data, len(data))
        return len(told)
