"""Linux AIO: syncs of files by the kernel, without a thread.

A thread that waits for a sync costs two context switches and a wait for the interpreter's lock, which together exceed
all other costs of a synced message. Here the reactor submits the request to the kernel and is woken by an eventfd, or
polls where the disk is fast. Knows nothing of the files.

Structures and numbers are those of Linux's include/uapi/linux/aio_abi.h and its tables of system calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

# data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved, flags, event descriptor
_IOCB = struct.Struct("<QIIHhIQQqQII")
# data, address of the iocb, result, second result
_IO_EVENT = struct.Struct("<QQqq")
_IOCB_CMD_FDSYNC = 3
_IOCB_FLAG_RESFD = 1
#: io_setup, io_destroy, io_getevents, io_submit
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
DEPTH = 8
#: How often running syncs are checked for completions that were not signalled.
LOOK_S = 1.0

#: If the last sync took less, the next is expected within that time, and the reactor polls for it.
QUICK_SECONDS = 300e-6

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def _call(number: int, *arguments: Any) -> int:
    """Raises OSError."""
    result: int = _syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


@implementer(IReadDescriptor)
class LinuxAio:
    """An AIO context, whose completions the reactor is notified of.

    The constructor raises OSError if the system has no AIO, or no more contexts, or does not permit them.

    :param now: seconds, by which a sync is measured.
    :param expect: called with the seconds within which a sync is expected to end, if that is soon.
    :param call_later: `IReactorTime.callLater`, for a periodic check for completions that the eventfd did not signal.
    """

    def __init__(
        self,
        reactor: IReactorFDSet,
        now: Callable[[], float],
        expect: Callable[[float], None] = lambda seconds: None,
        call_later: Callable[[float, Callable[[], None]], IDelayedCall] | None = None,
    ) -> None:
        calls = _CALLS.get(platform.machine())
        if calls is None or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        setup, self._destroy, self._get_events, self._submit = calls
        context = ctypes.c_ulong(0)
        _call(setup, ctypes.c_uint(DEPTH), ctypes.byref(context))
        self._context = context
        self._events = ctypes.create_string_buffer(_IO_EVENT.size * DEPTH)
        self._no_time = (ctypes.c_long * 2)(0, 0)
        self._waiting: dict[int, tuple[Deferred[None], str, Any]] = {}
        self._number = 0
        self._reactor = reactor
        self._expect = expect
        self._now = now
        self._began = self._took = 0.0
        self._call_later = call_later
        self._look_call: IDelayedCall | None = None
        self._broken: OSError | None = None
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.addReader(self)

    def sync(self, fd: int, path: str) -> Deferred[None]:
        """Sync the file's data, as fdatasync(2) does; fires or fails with OSError then.

        It also fails if the result cannot be learned: an error of the disk is reported once, and another sync would
        succeed. Raises OSError if the request is not accepted: nothing was synced.
        """
        if self._broken is not None:
            raise self._broken
        self._number += 1
        block = ctypes.create_string_buffer(
            _IOCB.pack(self._number, 0, 0, _IOCB_CMD_FDSYNC, 0, fd, 0, 0, 0, 0, _IOCB_FLAG_RESFD, self._event_fd),
            _IOCB.size,
        )
        _call(self._submit, self._context, ctypes.c_long(1), ctypes.byref(ctypes.c_void_p(ctypes.addressof(block))))
        done: Deferred[None] = Deferred()
        self._waiting[self._number] = (done, path, block)
        self._began = self._now()
        if self._took < QUICK_SECONDS:
            self._expect(QUICK_SECONDS)
        if self._look_call is None:
            self._look_later()
        return done

    def _look_later(self) -> None:
        if self._call_later is not None:
            self._look_call = self._call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._look_call = None
        if self._waiting:
            self._tell_ended()
        if self._waiting:
            self._look_later()

    def fileno(self) -> int:
        return self._event_fd

    def logPrefix(self) -> str:  # noqa: N802
        return "syncs"

    def doRead(self) -> None:  # noqa: N802
        """Complete the syncs that have ended."""
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return
        except OSError as error:  # running syncs are polled from time to time; no new ones are accepted
            self._refuse_more(error)
        self._took = self._now() - self._began
        self._tell_ended()

    def _tell_ended(self) -> None:
        try:
            count = _call(
                self._get_events, self._context, ctypes.c_long(0), ctypes.c_long(DEPTH), self._events, self._no_time
            )
        except OSError as error:
            if error.errno != errno.EINTR:
                self._give_up(error)
            return
        for number, _, result, _ in list(_IO_EVENT.iter_unpack(self._events.raw[: count * _IO_EVENT.size])):
            done, path, _block = self._waiting.pop(number, (None, "", None))
            if done is None:
                continue
            if result < 0:
                done.errback(Failure(OSError(-result, os.strerror(-result), path)))  # type: ignore[no-untyped-call]
            else:
                done.callback(None)

    def _refuse_more(self, error: OSError) -> None:
        if self._broken is None:
            self._broken = error
            self._reactor.removeReader(self)

    def _give_up(self, error: OSError) -> None:
        """Fail all running syncs: their results cannot be learned any more."""
        self._refuse_more(error)
        waiting, self._waiting = self._waiting, {}
        for done, path, _block in waiting.values():
            lost = OSError(errno.EIO, f"the kernel does not say how a sync ended: {error.strerror}", path)
            done.errback(Failure(lost))  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:
        """The reactor removed the descriptor, on request or after an exception: `stop` does the rest."""
        self._broken = self._broken or OSError(errno.EIO, f"the reactor let go of it: {reason.getErrorMessage()}")

    def stop(self) -> None:
        """Destroy the AIO context. Waits for running syncs, without notifying anybody."""
        if self._broken is None:
            self._reactor.removeReader(self)
        if self._look_call is not None:
            self._look_call.cancel()
            self._look_call = None
        _call(self._destroy, self._context)
        os.close(self._event_fd)
        self._waiting.clear()
