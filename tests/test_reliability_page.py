"""The page of guarantees names tests: each is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explanation" / "reliability.rst").read_text()
NAMED = sorted(set(re.findall(r":test:`(tests/[\w/]+\.py)::\s*(test_\w+)`", PAGE)))
PARTS = ("One broker", "A master and its slave", "Brokers that elect their master")


def events(part: str) -> dict[str, str]:
    """The events of a part of the page: each title with its block."""
    text = PAGE.partition(f"\n{part}\n---")[2]
    text = re.split(r"\n[^\n]+\n-{3,}\n", text)[0]
    titles = re.split(r"\n([^\n]+)\n~{3,}\n", text)[1:]
    return dict(zip(titles[::2], titles[1::2], strict=True))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_each_event_but_the_loss_of_the_disk_names_a_test() -> None:
    blocks = events("One broker")
    assert [title for title, block in blocks.items() if "::" not in block] == ["The disk is lost"]
    assert len(blocks) > 10


@pytest.mark.parametrize("part", PARTS[1:])
def test_each_event_of_replicas_names_a_test(part: str) -> None:
    blocks = events(part)
    assert [title for title, block in blocks.items() if "::" not in block] == []
    assert len(blocks) >= 8


@pytest.mark.parametrize("part", PARTS)
def test_each_event_says_what_holds_in_each_mode(part: str) -> None:
    modes = {
        "One broker": ("``ASYNC_FLUSH``", "``SYNC_FLUSH``"),
        "A master and its slave": ("``ASYNC_MASTER``", "``SYNC_MASTER``"),
        "Brokers that elect their master": ("What holds",),
    }
    for title, block in events(part).items():
        said = tuple(re.findall(r"^:([^:\n]+): \S", block, re.MULTILINE))
        assert said in (("Both",), modes[part]), title


def test_whatever_is_written_as_a_test_has_a_name() -> None:
    assert len(re.findall(r"tests/[\w/]+\.py::", PAGE)) == len(
        re.findall(r":test:`tests/[\w/]+\.py::\s*test_\w+`", PAGE)
    )
