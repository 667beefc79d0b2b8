"""The list of known mistakes fits the sources: each can be made, and is Python still."""

import ast

import pytest

from tests.mutations.known import KNOWN, SOURCE
from tests.mutations.mutation import Mutation


@pytest.mark.parametrize("mutation", KNOWN, ids=lambda mutation: mutation.name)
def test_a_known_mistake_can_be_made(mutation: Mutation) -> None:
    text = (SOURCE / mutation.file).read_text()
    changed = mutation.applied_to(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_their_names_differ() -> None:
    assert len({mutation.name for mutation in KNOWN}) == len(KNOWN) >= 8
