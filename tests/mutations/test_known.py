"""The list of known mistakes fits the sources: each can be made, and is Python still."""

import ast

from tests.mutations.known import KNOWN, SOURCE
from tests.mutations.mutation import Mutation


def why_not(mutation: Mutation) -> str | None:
    """Why the mistake cannot be made, or None if it can."""
    text = (SOURCE / mutation.file).read_text()
    try:
        changed = mutation.applied_to(text)
    except ValueError as error:
        return str(error)
    if mutation.file.endswith(".py") and ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
        return f"{mutation.name}: the code stays the same"
    return None


def test_each_known_mistake_can_be_made() -> None:
    assert [reason for mutation in KNOWN if (reason := why_not(mutation))] == []


def test_their_names_differ() -> None:
    assert len({mutation.name for mutation in KNOWN}) == len(KNOWN) >= 8
