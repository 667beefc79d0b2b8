"""Where the pages name a Python file, or a function in one, it is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("docs/**/*.rst")), ROOT / "README.rst", ROOT / "CONTRIBUTING.rst"]


def missing(text: str) -> list[str]:
    """The files that a page names and that are nowhere; a name without a folder may be in any, or the reader's own."""
    named = set(re.findall(r"``([\w./-]+\.py)(?:::\w+)?``", text)) - set(re.findall(r":caption: (\S+)", text))
    return sorted(
        name
        for name in named
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "mqbroker"))
        and not ("/" not in name and any(True for _ in ROOT.glob(f"mqbroker/**/{name}")))
        and not ("/" not in name and any(True for _ in ROOT.glob(f"tests/**/{name}")))
    )


def test_the_files_that_pages_name_exist() -> None:
    assert {page: files for page in PAGES if (files := missing(page.read_text()))} == {}


def test_a_file_that_is_nowhere_is_found_out() -> None:
    assert missing("``store/nowhere.py`` and ``store/message_reader.py``, ``nowhere.py::test_x``") == [
        "nowhere.py",
        "store/nowhere.py",
    ]


def defined_in(path: Path) -> set[str]:
    """The functions, classes and constants of a module, and the methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def missing_functions(text: str) -> list[str]:
    """What a page says is in a file of the product, as in ``file.py: Class.method``, ``Class.other``, and is not."""
    wrong: list[str] = []
    for line in text.splitlines():
        file = ""
        for part in re.findall(r"``([^`]+)``", line):
            name, separator, function = part.partition(".py: ")
            if separator:
                file, part = f"{name}.py", function
            if file and re.fullmatch(r"\w+(\.\w+)?", part):
                path = ROOT / "mqbroker" / file
                if not path.exists() or part not in defined_in(path):
                    wrong.append(f"{file}: {part}")
    return wrong


def test_the_functions_that_pages_name_exist() -> None:
    assert {page: names for page in PAGES if (names := missing_functions(page.read_text()))} == {}


def test_a_function_that_is_nowhere_is_found_out() -> None:
    lines = "``store/flush.py: LogFlusher.durable``, ``LogFlusher.nowhere``\n``store/gone.py: f``\n``f``"
    assert missing_functions(lines) == ["store/flush.py: LogFlusher.nowhere", "store/gone.py: f"]
