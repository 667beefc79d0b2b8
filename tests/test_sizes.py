"""Functions fit on a page, and files are small enough to read as a whole."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800


def sources() -> Iterator[Path]:
    for folder in ("mqbroker", "mqbroker_demo", "pyspark_rocketmq", "twisted", "tests", "bench"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def too_long(path: Path) -> Iterator[str]:
    text = path.read_text()
    if text.count("\n") > FILE_LINES_MAX:
        yield str(path.relative_to(ROOT))
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        if (function.end_lineno or 0) - function.lineno >= FUNCTION_LINES_MAX:
            yield f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"


def test_files_and_functions_are_short() -> None:
    paths = list(sources())
    assert len(paths) > 500
    assert [place for path in paths for place in too_long(path)] == []
