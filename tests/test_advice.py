"""Texts that tell people to move or delete something: none of them may cost messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.sources import ROOT

FOLDERS = ("broker", "cli", "daemons", "ha", "store")
ADVICE = re.compile(
    r"\b(delete|remove|move|empty|clear|wipe)\b[^.;]*?\b(stores?|log|segments?|commitlog|directory|data|etcd|its?)\b"
)
#: What is told of, and why it may go without being kept.
MAY_GO = {
    "requests the cleaning of empty consume queues": "no advice",
    "with an empty store and its own id": "another broker is started, and nothing is moved",
    "mq store repair --move-foreign": "moves what is no part of a store",
    "the log of a DLedger group": "no advice",
    "is not a directory; move it away": "nothing of a store can be in it",
    "and start to have it built again": "is made from the log",
    "removed topics come back": "says what it costs, and no message is lost",
    "move away files that do not belong to it": "no part of the store",
    "Overwrite damaged parts of the log": "what is replaced is copied first",
    "Move files that do not belong to a store": "no part of it",
}


def texts() -> Iterator[tuple[str, str]]:
    """Where each text is, and the text; those of documentation are left out."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "mqbroker" / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            documentation = {id(each.value) for each in _first_statements(tree) if isinstance(each, ast.Expr)}
            for node in ast.walk(tree):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                found = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
                if found and id(node) not in documentation:
                    yield path.relative_to(ROOT).as_posix(), " ".join(" ".join(found).split())


def _first_statements(tree: ast.Module) -> list[ast.stmt]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.body[0] for node in ast.walk(tree) if isinstance(node, kinds) and node.body]


def test_what_people_are_told_to_move_out_of_the_way_they_are_told_to_keep() -> None:
    wrong = [
        (path, text)
        for path, text in texts()
        if len(text.split()) > 3 and ADVICE.search(text) and "keep" not in text
        if not any(known in text for known in MAY_GO)
    ]
    assert wrong == []
