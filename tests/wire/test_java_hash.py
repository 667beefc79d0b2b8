from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.wire.names import java_hash

# Printed by String.hashCode of OpenJDK 17.
FROM_JAVA = [
    ("", 0),
    ("a", 97),
    ("abc", 96354),
    ("B", 66),
    ("TagA", 2598919),
    ("Aa", 2112),
    ("BB", 2112),
    ("T_x1vdv_16#KEY", 417919228),
    ("TopicTest#FD0000000000000000000000000000025ACD30946E09692950350000", -1463987418),
    ("polygenelubricants", -(2**31)),
    ("zzzzzzzzzz", -1580979136),
    ("\0", 0),
    ("\x01\x02", 33),
    ("\xe9", 233),
    ("\xff", 255),
    ("\u0100", 256),
    ("中文", 646394),
    ("\uffff", 65535),
    ("\U0001f600", 1772899),
    ("a\U0001f600b", 57849694),
    ("\U0010ffff", 1803232),
    ("\ud83d", 55357),
    ("key" * 10000, 663227648),
]


@pytest.mark.parametrize(("text", "hashed"), FROM_JAVA)
def test_hashes_are_those_of_java(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_the_tags_codes_of_the_golden_store(golden_listing: list[dict[str, Any]]) -> None:
    plain = [line for line in golden_listing if "TAGS" in line["properties"] and "DELAY" not in line["properties"]]
    assert len(plain) > 100
    for line in plain:
        assert java_hash(line["properties"]["TAGS"]) == line["tags_code"]


@given(st.text(st.characters()), st.text(st.characters(), max_size=3))
def test_the_hash_of_a_longer_text_follows_from_its_beginning(text: str, more: str) -> None:
    units = len(more.encode("utf-16-be", "surrogatepass")) // 2
    wanted = (java_hash(text) * 31**units + java_hash(more)) & 0xFFFFFFFF
    assert java_hash(text + more) & 0xFFFFFFFF == wanted
    assert -(2**31) <= java_hash(text + more) < 2**31
