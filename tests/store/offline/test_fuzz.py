"""Whatever bytes are on the disk: a check ends, raises nothing, takes little memory, changes nothing, and tells of
every change that matters."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.errors import StoreUnknown
from mqbroker.store.logscan import Scanned, scan_at
from mqbroker.store.offline.detected_layout import Given
from tests.numbers import numbers
from tests.store.harness import golden_messages, unpack_golden
from tests.store.offline.stores import change, check, picture

SHAPE = Given(segment_bytes=131072, queue_file_bytes=2000, slots=100, capacity=400)
LOG = f"commitlog/{0:020d}"
FEW = settings(max_examples=120, deadline=None)


@cache
def golden() -> Path:
    """The clean golden store, unpacked once for all examples."""
    directory = TemporaryDirectory()
    golden.directory = directory  # type: ignore[attr-defined]  # kept until the process ends
    return unpack_golden("store-clean", Path(directory.name))


@cache
def files() -> list[str]:
    return sorted(str(path.relative_to(golden())) for path in golden().rglob("*") if path.is_file())


@cache
def properties_bytes(log: bytes) -> set[int]:
    """Where in the log's first file, which is given, there are bytes of properties."""
    places: set[int] = set()
    at = 0
    while isinstance(item := scan_at(memoryview(log), at, at), Scanned):
        at += item.size
        places.update(range(at - len(item.properties), at))
    return places


@contextmanager
def changing(*paths: str) -> Iterator[Path]:
    """The golden store, of which these files are as they were again afterwards."""
    contents = {golden() / path: (golden() / path).read_bytes() for path in paths}
    try:
        yield golden()
    finally:
        for path, content in contents.items():
            path.write_bytes(content)


def edit(path: Path, kind: str, where: float, size: int, byte: int) -> None:
    """Do one thing to a file, `where` from its beginning (0.0) to its end."""
    length = path.stat().st_size
    at = int(where * max(length - 1, 0))
    if kind == "remove":
        path.unlink()
    elif kind == "truncate":
        path.write_bytes(path.read_bytes()[:at])
    elif kind == "extend":
        path.write_bytes(path.read_bytes() + bytes([byte]) * size)
    elif kind == "flip":
        change(path, at, lambda data: bytes(one ^ (byte or 1) for one in data))
    elif kind == "fill":
        change(path, at, lambda data: bytes([byte]) * len(data), size)
    else:
        change(path, at, lambda data: data[::-1], size)


edits = st.tuples(
    numbers(0, 10_000),
    st.sampled_from(["flip", "flip", "fill", "fill", "swap", "truncate", "extend", "remove"]),
    st.floats(0, 1),
    st.sampled_from([1, 4, 8, 20, 100, 512, 4096]),
    st.sampled_from([0, 0, 1, 0x10, 0x7F, 0x80, 0xFF]),
)


@FEW
@given(st.lists(edits, min_size=1, max_size=5), st.booleans())
def test_nothing_on_the_disk_breaks_a_check(changes: list[tuple[int, str, float, int, int]], with_shape: bool) -> None:
    names = [files()[number % len(files())] for number, *_ in changes]
    with changing(*names) as root:
        for name, (_, kind, where, size, byte) in zip(names, changes, strict=True):
            path = root / name
            if path.exists():
                edit(path, kind, where, size, byte)
        before = picture(root)
        check(root, SHAPE if with_shape else None)
        assert picture(root) == before


#: Fields of a record that something can be compared with: size, magic, CRC, queue id; queue and physical offset.
_COMPARED = [*range(16), *range(20, 36)]


@FEW
@given(numbers(0, 342), st.data(), st.integers(0, 7))
def test_every_flipped_bit_of_a_record_that_matters_is_told(number: int, data: st.DataObject, bit: int) -> None:
    message = golden_messages()[number]
    log = (golden() / "commitlog" / f"{0:020d}").read_bytes()
    start = message["offset"]
    (body_bytes,) = struct.unpack_from(">i", log, start + 84)
    topic_bytes = log[start + 88 + body_bytes]
    places = [*_COMPARED, *range(84, 88 + body_bytes + 1 + topic_bytes + 2)]
    if not body_bytes:
        places = [place for place in places if not 8 <= place < 12]
    at = data.draw(st.sampled_from(places))
    if at == 8 and bit == 7:  # Java clears it
        bit = 0
    with changing(LOG) as root:
        change(root / LOG, start + at, lambda found: bytes([found[0] ^ 1 << bit]))
        assert not check(root, SHAPE).findings.is_clean


@FEW
@given(numbers(0, 342), st.integers(0, 19), st.integers(0, 7))
def test_every_flipped_bit_of_a_queue_entry_is_told(number: int, at: int, bit: int) -> None:
    message = golden_messages()[number]
    if message["topic"] == "SCHEDULE_TOPIC_XXXX" and at >= 12:  # when it is due; that depends on the settings
        return
    if at == 12 and bit == 7:  # becomes an address of the extension
        return
    path = f"consumequeue/{message['topic']}/{message['queue_id']}/{0:020d}"
    with changing(path) as root:
        change(root / path, 20 * message["queue_offset"] + at, lambda found: bytes([found[0] ^ 1 << bit]))
        assert not check(root, SHAPE).findings.is_clean


@FEW
@given(st.sampled_from([0, 1]), numbers(0, 40 + 400 + 71 * 20), st.integers(0, 7))
def test_every_flipped_bit_of_the_index_is_told(which: int, at: int, bit: int) -> None:
    if 440 <= at < 460 or 460 + 12 <= at < 460 + 16:  # entry 0 is not used; the first one's seconds are no time
        return
    path = [name for name in files() if name.startswith("index/")][which]
    with changing(path) as root:
        change(root / path, at, lambda found: bytes([found[0] ^ 1 << bit]))
        assert not check(root, SHAPE).findings.is_clean


@FEW
@given(numbers(0, 73742), st.sampled_from([92, 512, 4096, 100_000]))
def test_every_zeroed_stretch_of_the_log_is_told(at: int, size: int) -> None:
    with changing(LOG) as root:
        before = (root / LOG).read_bytes()
        change(root / LOG, at, lambda found: bytes(len(found)), size)
        changed = {place for place, byte in enumerate(before[at : at + size], at) if byte}
        # No checksum covers properties, and a sender may give them any bytes.
        is_hidden = changed <= properties_bytes(before)
        assert is_hidden or not check(root, SHAPE).findings.is_clean


def test_sizes_that_lie_take_no_memory(tmp_path: Path) -> None:
    root = Path(shutil.copytree(golden(), tmp_path / "store"))
    for at in (0, 4, 84, 88, 212, 296):
        change(root / "commitlog" / f"{0:020d}", at, lambda found: b"\x7f\xff\xff\xff", 4)
    for path in (root / "index").iterdir():
        change(path, 36, lambda found: b"\x7f\xff\xff\xff", 4)
    with open(root / "commitlog" / f"{131072:020d}", "wb") as file:
        file.truncate(1 << 40)
    with open(root / "checkpoint", "wb") as file:
        file.truncate(1 << 40)
    with open(root / "config" / "topics.json", "wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        report = check(root)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not report.findings.is_clean
    assert peak < 16 * 1024 * 1024


def test_files_where_directories_must_be_are_refused(tmp_path: Path) -> None:
    for name in ("commitlog", "consumequeue", "index", "config"):
        (tmp_path / name).write_bytes(b"a file")
    with pytest.raises(StoreUnknown, match="commitlog"):
        check(tmp_path)
