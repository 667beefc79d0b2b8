"""What the Java system's filter module 4.9.7 makes of some thousand expressions and messages, recorded."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mqbroker.errors import BadExpression, NotEvaluable
from mqbroker.filter import compile_expression
from mqbroker.filter.bloom import BloomFilter
from mqbroker.filter.sql92 import Expression
from tests.filter.cases import questions
from tests.filter.evaluating import evaluate, matches

RECORDED = Path(__file__).parent.parent / "data" / "filter-4.9.7.jsonl.gz"
_NAMES = {True: "true", False: "false", None: "null"}


def recorded() -> list[dict[str, Any]]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def answer(question: dict[str, Any]) -> list[Any]:
    """Ours to a question of tests.filter.cases, as the Java peer gives its own."""
    if "bloom" in question:
        error_percent, consumers = question["bloom"]
        bloom = BloomFilter.for_consumers(consumers, error_percent)
        return [bloom.bit_count, bloom.hash_count, *[list(bloom.of(name).positions) for name in question["names"]]]
    try:
        expression = compile_expression(question["expression"])
    except BadExpression:
        return ["refused"]
    return [outcome(expression, message) for message in question["messages"]]


def outcome(expression: Expression, message: dict[str, str]) -> str:
    try:
        value = evaluate(expression, message)
    except NotEvaluable:
        assert not matches(expression, message)
        return "error"
    assert matches(expression, message) is (value is True)
    return _NAMES[value]


def test_the_table_is_of_these_questions() -> None:
    asked = [{name: value for name, value in row.items() if name != "answer"} for row in recorded()]
    assert asked == questions()
    outcomes = {outcome for row in recorded() for outcome in row["answer"] if isinstance(outcome, str)}
    assert outcomes == {"refused", "true", "false", "null", "error"}


@pytest.mark.parametrize("part", range(10))
def test_ours_answers_as_java_did(part: int) -> None:
    for row in recorded()[part::10]:
        assert answer(row) == row["answer"], row
