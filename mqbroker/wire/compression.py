"""Compressed bodies of messages: zlib, as 4.9 producers use it, and LZ4 and Zstandard, which 5.x producers use too.

The sysFlag's bits 8 to 10 name the type. LZ4 is the frame format. Its library and Zstandard's are optional.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from mqbroker.errors import MQError
from mqbroker.wire.codes import SysFlag

#: Maximum decompressed body: no producer may send a larger one.
BODY_BYTES_MAX = 64 * 1024 * 1024
#: Maximum ratio of a decompressed to a compressed body: with zlib (LZ4's is lower), and with Zstandard.
ZLIB_RATIO_MAX, ZSTD_RATIO_MAX = 1032, 32_768


class UnreadableBody(MQError):
    """A body that cannot be decompressed: it is corrupt or of an unknown type, it would be larger than BODY_BYTES_MAX,
    or the library for its type is not installed. The text says which."""


class _Decompressor(Protocol):
    eof: bool

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


#: By type: its name, and the modules that may have it, each with the package to install (None: part of Python) and the
#: class. The zlib of 4.9 has no type.
_ZLIB = "zlib", (("zlib", None, "decompressobj"),)
_TYPES: dict[int, tuple[str, tuple[tuple[str, str | None, str], ...]]] = {
    0: _ZLIB,
    SysFlag.COMPRESSION_ZLIB: _ZLIB,
    SysFlag.COMPRESSION_LZ4: ("LZ4", (("lz4.frame", "lz4", "LZ4FrameDecompressor"),)),
    SysFlag.COMPRESSION_ZSTD: (
        "Zstandard",
        (("compression.zstd", None, "ZstdDecompressor"), ("backports.zstd", "backports.zstd", "ZstdDecompressor")),
    ),
}


def compress_body(body: bytes, level: int = 5) -> tuple[bytes, int]:
    """The body with zlib, and the sysFlag that says so; as it is, and 0, if it would be no smaller: brokers count what
    they are sent, so that random bytes just below the limit would be refused. Java's producers send what is larger."""
    compressed = zlib.compress(body, level)
    return (compressed, SysFlag.COMPRESSED) if len(compressed) < len(body) else (body, 0)


def decompress_body(body: bytes, sys_flag: int) -> bytes:
    """The producer's body, from `body` as it is stored with `sys_flag`. Raises UnreadableBody."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind not in _TYPES:
        raise UnreadableBody(f"its sysFlag {sys_flag} names compression type {kind >> 8}, which is not known")
    name, modules = _TYPES[kind]
    make = _decompressor(modules)
    if make is None:
        raise UnreadableBody(
            f"it is compressed with {name}, and the Python package {modules[-1][1]} is not installed:"
            " `pip install mqbroker[compression]`"
        )
    decompressor: _Decompressor = make()
    try:
        # One byte more than allowed: zlib notices the end of its data only while it may still write.
        found = decompressor.decompress(body, BODY_BYTES_MAX + 1)
    except MemoryError:
        raise UnreadableBody(f"no memory is left to decompress its {len(body)} bytes of {name}") from None
    except Exception as error:  # each library has errors of its own
        raise UnreadableBody(f"it is not valid {name}: {error}") from error
    if len(found) > BODY_BYTES_MAX:
        raise UnreadableBody(f"it decompresses to more than {BODY_BYTES_MAX} bytes")
    if not decompressor.eof:
        raise UnreadableBody(f"it is not valid {name}: it is cut short")
    return found


def decompressed_in_vain(body: bytes, sys_flag: int) -> int:
    """An upper bound of the bytes that `decompress_body` decompressed before it raised UnreadableBody."""
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind not in _TYPES or _decompressor(_TYPES[kind][1]) is None:
        return 0
    ratio = ZSTD_RATIO_MAX if kind == SysFlag.COMPRESSION_ZSTD else ZLIB_RATIO_MAX
    return min(len(body) * ratio, BODY_BYTES_MAX)


@cache  # of a library that is missing, too: looking for it takes longer than a message
def _decompressor(modules: tuple[tuple[str, str | None, str], ...]) -> Callable[[], Any] | None:
    for module, _, attribute in modules:
        try:
            return cast(Callable[[], Any], getattr(import_module(module), attribute))
        except ImportError:
            continue
    return None
