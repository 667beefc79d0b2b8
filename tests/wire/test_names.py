from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import Refused
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX, check_group, check_topic

HOSTILE = [
    "../../../etc/passwd",
    "..",
    ".",
    "a.b",
    "/",
    "a/b",
    "a\\b",
    "%RETRY%../x",
    "%RETRY%/x",
    "a\0",
    "\0",
    "a\n",
    "\na",
    "a b",
    "a@b",
    "a#b",
    "a\x01b",
    "a\x02b",
    "caf\xe9",
    "中文",
    "\u0661",  # a digit, but not of ASCII
    "\uff21",
    "a\ud800",
    "~",
    "a:b",
]


@pytest.mark.parametrize("name", ["T", "TopicTest", "%RETRY%group-1_a", "%DLQ%g", "a|b", "0", "-", "_", "x" * 127])
def test_legal_names_come_back_as_they_are(name: str) -> None:
    assert check_topic(name) == name
    assert check_group(name) == name


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(("check", "word"), [(check_topic, "topic"), (check_group, "group")])
def test_other_characters_are_refused_in_the_words_of_java(check: Callable[..., Any], word: str, name: str) -> None:
    with pytest.raises(Refused) as caught:
        check(name)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert caught.value.remark == (
        f"The specified {word} contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    )


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u3000"])
@pytest.mark.parametrize(("check", "word"), [(check_topic, "topic"), (check_group, "group")])
def test_blank_names_are_refused(check: Callable[..., Any], word: str, name: str) -> None:
    with pytest.raises(Refused) as caught:
        check(name)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert caught.value.remark == f"The specified {word} is blank."


def test_lengths_end_where_java_ends_them() -> None:
    assert (TOPIC_LENGTH_MAX, GROUP_LENGTH_MAX) == (127, 255)
    check_topic("t" * 127)
    check_group("g" * 255)
    with pytest.raises(Refused, match="longer than topic max length"):
        check_topic("t" * 128)
    with pytest.raises(Refused, match="longer than group max length"):
        check_group("g" * 256)


def test_every_topic_of_the_golden_store_is_legal(golden_listing: list[dict[str, Any]]) -> None:
    for topic in {line["topic"] for line in golden_listing}:
        assert check_topic(topic) == topic


@given(st.text(st.characters()))
def test_what_passes_is_one_plain_path_component(name: str) -> None:
    for check in (check_topic, check_group):
        try:
            check(name)
        except Refused:
            continue
        assert name.isascii()
        assert name
        assert not set(name) & set("./\\\0 \r\n")
