"""The built pages: links lead somewhere, search finds what people look for, and nothing is wider than its column."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from mqbroker.config.unused import UNUSED
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests import settings_page
from tests.docs import widths

ROOT = Path(__file__).parent.parent.parent


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        link = found.get("src" if tag in ("img", "script") else "data" if tag == "object" else "href")
        if link:
            self.links.append(link)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {page: Links(page) for page in site.rglob("*.html") if "_static" not in page.parts}


def test_links_within_the_pages_lead_somewhere(pages: dict[Path, Links]) -> None:
    wrong = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = pages[target].anchors if target in pages and parts.fragment else {unquote(parts.fragment)}
            if not target.exists() or unquote(parts.fragment) not in anchors:
                wrong.append((page.name, link))
    assert len(pages) > 30
    assert wrong == []


def test_links_to_elsewhere_are_encrypted_addresses_without_blanks(pages: dict[Path, Links]) -> None:
    outside = {link for found in pages.values() for link in found.links if urlsplit(link).netloc}
    good = re.compile(r"https://[a-z0-9.-]+\.[a-z]{2,}(/[^\s]*)?")
    assert {link for link in outside if not good.fullmatch(link)} == set()


def test_a_page_names_nobody_as_the_owner_of_nothing(site: Path) -> None:
    foot = (site / "index.html").read_text().partition("<footer")[2]
    assert "Apache License 2.0" in foot


def test_releases_are_one_page_and_no_release_is_in_the_side_bar(site: Path) -> None:
    side_bar = (site / "index.html").read_text().partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    assert re.findall(r">(Releases|\d+\.\d+\.\d+[^<]*)<", side_bar) == ["Releases"]


def pages_by_word(site: Path) -> dict[str, set[str]]:
    """The pages that have each word, by the word as the search has it."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    found: dict[str, set[str]] = {}
    for terms in (index["terms"], index["titleterms"]):
        for word, numbers in terms.items():
            numbers = numbers if isinstance(numbers, list) else [numbers]
            found.setdefault(word, set()).update(index["docnames"][number] for number in numbers)
    return found


def stem(word: str) -> str:
    """A word as the search has it."""
    from sphinx.search.en import SearchEnglish

    return SearchEnglish({}).stem(word.lower())


def test_search_finds_every_setting_error_and_code(site: Path) -> None:
    index = pages_by_word(site)
    settings = [part for key in settings_page.all_settings() | UNUSED.keys() for part in key.split(".")]
    errors = re.findall(r"py:exception:: (\S+)", (ROOT / "docs" / "reference" / "errors.rst").read_text())
    codes = [code.name for code in (*ResponseCode, *RequestCode)]
    words = [*settings, *(name.rpartition(".")[2] for name in errors), *codes]
    assert len(words) > 350
    assert [word for word in words if stem(word) not in index] == []


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("how do I keep messages for a week", "howto/keep-messages"),
        ("why does my consumer get a message twice", "explanation/questions"),
        ("what does FLUSH_DISK_TIMEOUT mean for me", "explanation/questions"),
        ("FLUSH_DISK_TIMEOUT", "reference/errors"),
        ("disk is full", "howto/full-disk"),
    ],
)
def test_search_finds_a_page_by_all_words_of_a_question(site: Path, question: str, page: str) -> None:
    from sphinx.search.en import SearchEnglish

    index = pages_by_word(site)
    words = [word for word in question.split() if word.lower() not in SearchEnglish({}).stopwords]
    assert page in set.intersection(*(index[stem(word)] for word in words))


@pytest.fixture(scope="module")
def seen(site: Path) -> dict[str, Any]:
    """What Chromium shows: see `widths`."""
    if find_spec("playwright") is None:
        pytest.skip("playwright is not installed: pip install playwright")
    if widths.browser_path() is None:
        pytest.skip("there is no Chromium: apt install chromium")
    command = [sys.executable, "-m", "tests.docs.widths", str(site)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, cwd=ROOT)
    shown: dict[str, Any] = json.loads(ended.stdout)
    return shown


def test_nothing_is_wider_than_its_column(seen: dict[str, Any]) -> None:
    assert seen["pages"] > 30
    assert seen["wide"] == []


def test_the_first_result_of_a_search_answers_on_its_first_screen(seen: dict[str, Any]) -> None:
    found = seen["found"]
    questions = "explanation/questions"
    twice = ("Delivery is at least once", "Make consumers idempotent")
    timeout = ("Send it again if that matters", "look for a slow or failing disk")
    expected = {
        "how do I keep messages for a week": (
            f"{questions}#how-do-i-keep-messages-for-a-week",
            ("fileReservedTime=168",),
        ),
        "why does my consumer get a message twice": (f"{questions}#why-does-my-consumer-get-a-message-twice", twice),
        "Why does my consumer get a message twice?": (f"{questions}#why-does-my-consumer-get-a-message-twice", twice),
        "consumer gets message twice": (questions, twice),
        "what does FLUSH_DISK_TIMEOUT mean for me": (f"{questions}#what-does-flush-disk-timeout-mean-for-me", timeout),
        "FLUSH_DISK_TIMEOUT": (questions, timeout),
        "disk is full": ("howto/full-disk", ("exit code 1",)),
    }
    assert {question: page for question, (page, _) in found.items()} == {
        question: page for question, (page, _) in expected.items()
    }
    for question, (_, answers) in expected.items():
        assert [answer for answer in answers if answer not in found[question][1]] == [], question
