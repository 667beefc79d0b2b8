"""Property tests meet the boundaries of their ranges: wide ones come from `numbers`."""

from __future__ import annotations

import ast
from pathlib import Path

#: In a range of so many values each is met now and then.
VALUES_MAX = 200


def test_wide_ranges_of_property_tests_have_small_and_boundary_values() -> None:
    found = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "st.integers" not in text or path.name == "numbers.py":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "st.integers" and len(node.args) == 2:
                low, high = map(_value, node.args)
                if low is not None and high is not None and high - low > VALUES_MAX:
                    found.append(f"{path.name}:{node.lineno}")
    assert not found, "use tests/numbers.py: numbers"


def _value(node: ast.expr) -> int | None:
    """Of an expression of numbers alone."""
    if any(isinstance(each, ast.Name | ast.Call | ast.Attribute) for each in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "range", "eval"))
    return value if isinstance(value, int) else None
