"""The diagrams are what their texts say."""

import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent.parent
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))


def test_the_files_are_what_the_texts_say() -> None:
    for path, text in SCRIPT["files"]().items():
        assert path.read_text() == text, "write them: python docs/diagrams.py"


def test_each_is_on_a_page_and_stays_within_its_width() -> None:
    pages = "".join(page.read_text() for page in ROOT.glob("docs/explanation/*.rst"))
    for path in SCRIPT["files"]():
        assert f":file: {path.name}\n" in pages
        for shape in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}rect"):
            left, width = float(shape.attrib["x"]), float(shape.attrib["width"])
            assert left >= 0, path.name
            assert left + width <= SCRIPT["WIDTH"], path.name
