"""The sources of the pages."""

import re
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


#: What is said where a page needs this.
SEEN_WITHOUT = {
    r"brokers( of (``mq dev|:doc:)|: ``mq dev``)": "No name server answers",
    r"Java 17": "``JAVA_GATEWAY_EXITED``",
    r"PySpark|\[spark\]": "``No module named 'pyspark'``",
    r"FastAPI": "``No module named 'fastapi'``",
    r"\bports? ": "port is in use|cannot reach",
    r"``mqadmin``": "command not found|command below fails|No route info",
    r"disk": "refused|missing|cannot reach|exit code 1",
    r"": r"without|\b(where|if) (there is no|.* (missing|cannot|too small))|not reach|shows? |what is missing",
}


def test_every_how_to_says_first_what_is_needed_and_what_one_sees_without_it() -> None:
    for path in sorted(ROOT.glob("docs/howto/*.rst")):
        body = path.read_text().split("\n\n", 1)[1]
        # Up to the first section, the first directive or the first sample.
        head = " ".join(re.split(r"\n\n(?=.+\n[-=]{3,}\n|\.\. | {4})", body)[0].split())
        if path.name != "index.rst":
            assert head.startswith("You need "), path.name
            lacking = [
                said
                for needs, said in SEEN_WITHOUT.items()
                if re.search(needs, head) and not re.search(said, head, re.IGNORECASE)
            ]
            assert lacking == [], path.name
