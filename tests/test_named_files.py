"""Where the pages name a Python file, it is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("docs/*.rst")), ROOT / "README.rst", ROOT / "CONTRIBUTING.rst"]


def missing(text: str) -> list[str]:
    """The files that a page names and that are nowhere; a name without a folder may be in any."""
    named = set(re.findall(r"``([\w./-]+\.py)(?:::\w+)?``", text))
    return sorted(
        name
        for name in named
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "mqbroker"))
        and not ("/" not in name and any(True for _ in ROOT.glob(f"mqbroker/**/{name}")))
        and not ("/" not in name and any(True for _ in ROOT.glob(f"tests/**/{name}")))
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_a_file_that_is_nowhere_is_found_out() -> None:
    assert missing("``store/nowhere.py`` and ``store/message_reader.py``, ``nowhere.py::test_x``") == [
        "nowhere.py",
        "store/nowhere.py",
    ]
