"""Shared maps of files that keep no descriptor open: Python's own do, before 3.13.

The file is mapped over an anonymous map of the same size, which Python made and will unmap.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def map_untracked(fd: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes of a file for reading and writing. Raises OSError, and ValueError where it has
    fewer."""
    if sys.version_info >= (3, 13):
        options: dict[str, Any] = {"trackfd": False}
        return mmap.mmap(fd, size, **options)
    if os.fstat(fd).st_size < size:
        raise ValueError("mmap length is greater than file size")
    access = mmap.PROT_READ | mmap.PROT_WRITE
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, prot=access)
    address = ctypes.addressof(ctypes.c_char.from_buffer(made))
    if _mmap(address, size, access, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return made
