"""The sources of the pages."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LINE_MAX = 120
#: The older releases are as they were written.
SOURCES = [*sorted(ROOT.glob("docs/**/*.rst")), ROOT / "README.rst", ROOT / "CONTRIBUTING.rst"]


def test_lines_are_short() -> None:
    assert len(SOURCES) > 30
    lines = [(path, number, line) for path in SOURCES for number, line in enumerate(path.read_text().splitlines(), 1)]
    assert [f"{path.name}:{number}" for path, number, line in lines if len(line) > LINE_MAX] == []


def test_every_page_is_in_one_of_the_four_parts() -> None:
    parts = {path.parent.name for path in ROOT.glob("docs/*/*.rst")}
    assert parts == {"tutorial", "howto", "reference", "explanation"}
    assert {path.name for path in ROOT.glob("docs/*.rst")} == {"index.rst", "development.rst", "changes.rst"}


def test_every_how_to_says_first_what_is_needed() -> None:
    for path in sorted(ROOT.glob("docs/howto/*.rst")):
        first = path.read_text().split("\n\n")[1]
        assert path.name == "index.rst" or first.startswith("You need "), path.name
