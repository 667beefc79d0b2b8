"""Columns of records by the compiled module: as in Python, whatever the bytes."""

from __future__ import annotations

import zlib
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.kernel import compiled

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

np = pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

parts = st.sampled_from(
    [b"\1", b"\2", b"a", b"TAGS\1x\2", b"TAGS", "é中😀".encode(), b"\xff", b"\xed\xa0\x80", b"", b"\1\1b\2"]
)
PROPERTIES = st.lists(st.lists(parts, max_size=8).map(b"".join), min_size=1, max_size=20)


class Spans:
    """As much of `Rows` as pairs are read from."""

    def __init__(self, properties: list[bytes]) -> None:
        gap = b"\0\1\2"
        ends, data = [], b""
        for each in properties:
            data += gap + each
            ends.append(len(data))
        self.chunk: Any = self
        self.records = data
        self.end = np.array(ends, np.int64)
        self.properties_at = self.end - np.array([len(each) for each in properties], np.int64)

    def __len__(self) -> int:
        return len(self.end)


def pairs_of(pairs: Any) -> Any:
    names = ["TAGS", "a", "é中😀"]
    with_name = [(rows.tolist(), values.to_pylist()) for rows, values in map(pairs.rows_with, names)]
    columns = [pairs.column(name).to_pylist() for name in names]
    return (
        pairs.row.tolist(),
        pairs.names.to_pylist(),
        pairs.values.to_pylist(),
        pairs.offsets().to_pylist(),
        with_name,
        columns,
    )


@settings(derandomize=True, database=None, deadline=None, max_examples=400)
@given(PROPERTIES)
def test_properties_are_those_that_are_read_in_python(properties: list[bytes]) -> None:
    from mqbroker.spark.rows import UndecodableProperties, _pairs_of, _read_pairs_in_python

    spans: Any = Spans(properties)
    found = compiled.read_pairs(spans.records, spans.properties_at, spans.end)
    try:
        expected = pairs_of(_read_pairs_in_python(spans))
    except UndecodableProperties:
        expected = None
    if found is None:  # it looks at what is no pair, too
        with pytest.raises(UnicodeDecodeError):
            [each.decode() for each in properties]
    else:
        assert pairs_of(_pairs_of(found, len(spans))) == expected


def test_more_names_than_are_compared_one_by_one() -> None:
    for count in (64, 65):
        spans = Spans([b"\2".join(b"n%d\1v" % number for number in range(count))])
        found = compiled.read_pairs(spans.records, spans.properties_at, spans.end)
        assert (found is None) == (count > 64)


def test_the_beginnings_of_records() -> None:
    record = (100).to_bytes(4, "big") + bytes(96)
    starts = compiled.record_starts(record * 3)
    assert starts is not None
    assert np.frombuffer(starts, np.int64).tolist() == [0, 100, 200]
    assert compiled.record_starts(b"") == b""
    for size in (0, 90, 101, 199, 300, 2**31 - 1, 2**31, 2**32 - 1):
        assert compiled.record_starts(record + size.to_bytes(4, "big") + bytes(96)) is None
    assert compiled.record_starts(record[:99]) is None
    assert compiled.record_starts(record + b"x") is None


def test_checksums_of_bodies() -> None:
    bodies = [b"", b"a", b"x" * 200, b"y" * 1000]
    ends = np.cumsum([len(each) for each in bodies]).astype(np.int64)
    starts = ends - np.array([len(each) for each in bodies])
    crcs = np.array([zlib.crc32(each) & 0x7FFFFFFF for each in bodies], np.int64)
    data = b"".join(bodies)
    assert compiled.wrong_body(data, starts, ends, crcs) == -1
    assert compiled.wrong_body(data, starts, ends, crcs + np.array([1, 0, 0, 0])) == -1  # an empty one has any
    for n in (1, 2, 3):
        crcs[n] ^= 1 << 30
        assert compiled.wrong_body(data, starts, ends, crcs) == n
        crcs[n] ^= 1 << 30


@pytest.mark.parametrize(
    ("starts", "ends"),
    [([0], [11]), ([-1], [3]), ([4], [3]), ([0, 1], [3]), ([0], [2, 3]), ([2**62], [2**63 - 1])],
)
def test_places_that_are_not_in_the_bytes(starts: list[int], ends: list[int]) -> None:
    places = np.array(starts, np.int64), np.array(ends, np.int64)
    with pytest.raises(ValueError, match="places"):
        compiled.read_pairs(b"0123456789", *places)
    with pytest.raises(ValueError, match="places"):
        compiled.wrong_body(b"0123456789", *places, places[0])
    with pytest.raises(ValueError, match="a checksum for each"):
        compiled.wrong_body(b"0123456789", np.array([0]), np.array([1]), np.array([], np.int64))
    with pytest.raises((TypeError, BufferError, ValueError)):
        compiled.read_pairs(b"0123456789", [0], [1])


def test_bytes_are_text_where_python_says_so() -> None:
    """Each first byte with the bounds of those that may follow it: overlong ones, surrogates, behind the last one."""
    bounds = (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    few = (0x7F, 0x80, 0xBF, 0xC0)
    texts = [bytes((first, *rest)) for first in range(0x80, 0x100) for rest in product(bounds, few, few)]
    texts += [text[:size] for text in texts[:: len(few) ** 2] for size in (1, 2)]
    texts += [text[:3] for text in texts[:: len(few)]]
    wrong = []
    for text in texts:
        try:
            text.decode()
            is_text = True
        except UnicodeDecodeError:
            is_text = False
        spans = Spans([b"a\1" + text])
        found = compiled.read_pairs(spans.records, spans.properties_at, spans.end)
        if (found is not None) is not is_text:
            wrong.append(text)
    assert len(texts) > 10_000
    assert wrong == []


def test_values_are_those_of_the_last_pair_that_has_one() -> None:
    properties = [b"K\1a\2K\1b", b"K\1a\2K\1", b"K\1", b"KK\1a\2K", b"", b"K\1\1\2J\1j"]
    assert compiled.values_of(properties, [b"K\1"]) == [b"b", b"a", b"", b"", b"", b"\1"]
    assert compiled.values_of(properties[-2:], [b"K\1", b"J\1"]) == [(b"", b""), (b"\1", b"j")]
