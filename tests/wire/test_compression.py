"""Compressed bodies: which are read, what is refused, and within which memory."""

from __future__ import annotations

import contextlib
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.wire import compression
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.compression import BODY_BYTES_MAX, UnreadableBody, compress_body, decompress_body

ZLIB = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
LZ4 = SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4
ZSTD = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD
KINDS = [SysFlag.COMPRESSED, ZLIB, LZ4, ZSTD]
BODY = b"0123456789" * 1000


def compressor(kind: int) -> Callable[[bytes], bytes]:
    if kind == LZ4:
        compress: Callable[[bytes], bytes] = pytest.importorskip("lz4.frame").compress
    elif kind == ZSTD:
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        compress = pytest.importorskip(name).compress
    else:
        compress = zlib.compress
    return compress


@pytest.fixture(params=KINDS, ids=["4.9", "zlib", "lz4", "zstd"])
def kind(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    compressor(found)
    return found


@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(300_000)], ids=len)
def test_bodies_are_decompressed(kind: int, body: bytes) -> None:
    assert decompress_body(compressor(kind)(body), kind) == body


@pytest.mark.parametrize(
    "body", [b"", b"x", BODY, random.Random(1).randbytes(10_000)], ids=["empty", "x", "digits", "random"]
)
def test_a_body_is_compressed_only_if_that_makes_it_smaller(body: bytes) -> None:
    compressed, flag = compress_body(body)
    assert (flag == SysFlag.COMPRESSED) is (body is BODY)
    assert (len(compressed) < len(body)) is (body is BODY)
    assert decompress_body(compressed, flag) == body


def test_a_body_whose_flag_says_that_it_is_not_compressed_is_left_as_it_is() -> None:
    for flag in (0, 2, SysFlag.COMPRESSION_LZ4, SysFlag.COMPRESSION_ZSTD, 0x700):
        assert decompress_body(BODY, flag) == BODY


def test_every_body_that_is_cut_short_is_unreadable(kind: int) -> None:
    body = compressor(kind)(b"abc" * 10)
    for end in range(len(body)):
        with pytest.raises(UnreadableBody, match="is not valid"):
            decompress_body(body[:end], kind)


@given(st.sampled_from([b"", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x78\x9c"]), st.binary(max_size=100))
def test_garbage_is_unreadable_or_read_and_raises_nothing_else(magic: bytes, rest: bytes) -> None:
    for kind in KINDS:
        with contextlib.suppress(UnreadableBody):
            assert len(decompress_body(magic + rest, kind)) <= BODY_BYTES_MAX


def test_a_wrong_checksum_is_unreadable() -> None:
    body = zlib.compress(b"abc")
    with pytest.raises(UnreadableBody, match="not valid zlib"):
        decompress_body(body[:-1] + bytes([body[-1] ^ 1]), ZLIB)


@pytest.mark.parametrize("kind_bits", [0x400, 0x500, 0x600, 0x700])
def test_a_type_that_is_not_known_is_unreadable(kind_bits: int) -> None:
    with pytest.raises(UnreadableBody, match=f"compression type {kind_bits >> 8}, which is not known"):
        decompress_body(zlib.compress(b"abc"), SysFlag.COMPRESSED | kind_bits)


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(compression, "import_module", missing)
    compression._decompressor.cache_clear()
    yield
    compression._decompressor.cache_clear()


@pytest.mark.parametrize(("kind_of", "package"), [(LZ4, "LZ4, and the Python package lz4"), (ZSTD, "backports.zstd")])
@pytest.mark.usefixtures("without_libraries")
def test_without_its_library_a_body_is_unreadable_and_the_error_names_the_package(kind_of: int, package: str) -> None:
    for _ in range(2):
        with pytest.raises(UnreadableBody, match=rf"{package} is not installed: `pip install mqbroker\[compression\]`"):
            decompress_body(b"x", kind_of)


def many_zeros(kind: int, mib: int) -> bytes:
    if kind == LZ4:
        frame = pytest.importorskip("lz4.frame")
        made = frame.LZ4FrameCompressor(block_size=frame.BLOCKSIZE_MAX4MB)
        return bytes(made.begin()) + b"".join(made.compress(bytes(2**20)) for _ in range(mib)) + bytes(made.flush())
    return compressor(kind)(bytes(mib * 2**20)) if kind == ZSTD else zlib.compress(bytes(mib * 2**20))


def test_the_largest_body_is_read_and_one_of_a_byte_more_is_not(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "BODY_BYTES_MAX", 100_000)
    assert len(decompress_body(compressor(kind)(bytes(100_000)), kind)) == 100_000
    with pytest.raises(UnreadableBody, match="more than 100000 bytes"):
        decompress_body(compressor(kind)(bytes(100_001)), kind)


def test_a_bomb_stops_at_the_bound(kind: int) -> None:
    bomb = many_zeros(kind, 256)
    assert len(bomb) < 2**21
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableBody, match=f"more than {BODY_BYTES_MAX} bytes"):
            decompress_body(bomb, kind)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * BODY_BYTES_MAX
