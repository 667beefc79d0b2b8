"""Functions fit on a page and files in a head: so many lines and no more."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600


def sources() -> Iterator[Path]:
    for folder in ("mqbroker", "mqbroker_demo", "pyspark_rocketmq", "twisted", "tests", "bench"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES_MAX
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long = {node.name for node in functions if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX}
    assert long == set()
